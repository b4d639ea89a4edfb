package replay

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// Whatever seeks do, Clip never names a message that was not sent; and while
// the list of skipped ranges is not full, none that was sent is missed.
func TestSpaceAnswersForWhatWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const first, size = 10, 400
		s := newSpace(sessionA, 0, first)
		sent := make(map[moldcast.Seq]bool)
		pos := moldcast.Seq(first)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			jumped := rapid.IntRange(0, 2).Draw(t, "seek") == 0
			if jumped {
				pos = moldcast.Seq(rapid.IntRange(first, first+size).Draw(t, "to"))
			}
			n := moldcast.Seq(rapid.IntRange(1, 5).Draw(t, "messages"))
			s.sent(moldcast.Range{First: pos, Next: pos + n}, jumped)
			for q := pos; q < pos+n; q++ {
				sent[q] = true
			}
			pos += n
		}
		for q := moldcast.Seq(first - 3); q < first+size+10; q++ {
			r := s.Clip(moldcast.Range{First: q, Next: q + 20})
			if r.First != q || r.Empty() == sent[q] {
				t.Fatalf("asked from %d: %v; sent: %v", q, r, sent[q])
			}
			for k := r.First; k < r.Next; k++ {
				if !sent[k] {
					t.Fatalf("answers for %d, which was not sent", k)
				}
			}
			if r.Len() < 20 && !r.Empty() && sent[r.Next] {
				t.Fatalf("asked from %d: ends at %d, which was sent", q, r.Next)
			}
		}
	})
}

// The list is bounded: what no longer fits is not answered for.
func TestSpaceSkippedIsBounded(t *testing.T) {
	s := newSpace(sessionA, 0, 1)
	q := moldcast.Seq(1)
	for range 2 * maxSkipped {
		q += 10
		s.sent(moldcast.Range{First: q, Next: q + 1}, true)
	}
	if n := len(s.mu.skipped); n > maxSkipped {
		t.Fatalf("%d ranges", n)
	}
	for k := moldcast.Seq(1); k < q; k++ {
		if r := s.Clip(moldcast.Range{First: k, Next: k + 1}); !r.Empty() && (k-1)%10 != 0 {
			t.Fatalf("answers for %d, which was not sent", k)
		}
	}
	// Going back cuts ranges in two: the bound holds.
	for k := moldcast.Seq(5); k < q; k += 10 {
		s.sent(moldcast.Range{First: k, Next: k + 1}, true)
		if n := len(s.mu.skipped); n > maxSkipped {
			t.Fatalf("%d ranges", n)
		}
	}
}
