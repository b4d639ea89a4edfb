package importer

import (
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

// The times at the edges are those of a plain model, whatever the order.
func TestHeard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 60
		var live [size + 2]moldcast.Stamp
		h := newHeard(moldcast.Held{}, 0)
		for range rapid.IntRange(1, 40).Draw(t, "pieces") {
			first := rapid.IntRange(1, size).Draw(t, "first")
			n := min(rapid.IntRange(1, 4).Draw(t, "n"), size+1-first)
			at := moldcast.Stamp(rapid.IntRange(1, 1000).Draw(t, "at"))
			fresh := true // a range that overlaps another keeps the times of both
			for q := first; q < first+n; q++ {
				fresh = fresh && live[q] == 0
			}
			if !fresh {
				continue
			}
			for q := first; q < first+n; q++ {
				live[q] = at
			}
			h.add(moldcast.Range{First: moldcast.Seq(first), Next: moldcast.Seq(first + n)}, at)
		}
		for q := 1; q <= size; q++ {
			lo, hi := q, q
			for lo > 0 && live[lo] == 0 {
				lo--
			}
			for hi <= size && live[hi] == 0 {
				hi++
			}
			before, after := live[lo], live[hi]
			want := moldcast.Stamp(9999)
			switch {
			case live[q] != 0 || before == 0 && after == 0:
			case before == 0:
				want = after
			case after <= before:
				want = before
			default:
				want = before + (after-before)*moldcast.Stamp(q-lo)/moldcast.Stamp(hi-lo)
			}
			if got := h.between(moldcast.Seq(q), 9999); got != want {
				t.Fatalf("%d: %d, want %d", q, got, want)
			}
		}
	})
}

// What an archive holds already is where the times go on from.
func TestHeardBefore(t *testing.T) {
	h := newHeard(moldcast.Held{
		First: 10, Head: 30, HeadTime: 900,
		Holes: []moldcast.Hole{{Range: moldcast.Range{First: 12, Next: 15}, Before: 100, After: 500}},
	}, 50)
	for seq, want := range map[moldcast.Seq]moldcast.Stamp{5: 50, 11: 7, 12: 200, 14: 400, 20: 7, 30: 900, 99: 900} {
		if got := h.between(seq, 7); got != want {
			t.Errorf("%d: %d, want %d", seq, got, want)
		}
	}
	h.add(moldcast.Range{First: 33, Next: 34}, 1300)
	if got := h.between(31, 7); got != 1100 {
		t.Errorf("31: %d, want 1100", got)
	}
}

// The time of an answer does not depend on how many gaps there are.
func TestHeardInOrderAllocates(t *testing.T) {
	h := newHeard(moldcast.Held{}, 0)
	q := moldcast.Seq(1)
	if n := testing.AllocsPerRun(1000, func() {
		h.add(moldcast.Range{First: q, Next: q + 3}, moldcast.Stamp(q))
		q += 3
	}); n != 0 {
		t.Errorf("%v allocations a piece", n)
	}
}

func BenchmarkBetween(b *testing.B) {
	h := newHeard(moldcast.Held{}, 0)
	for i := range moldcast.Seq(100_000) {
		h.add(moldcast.Range{First: 1 + 2*i, Next: 2 + 2*i}, moldcast.Stamp(i+1))
	}
	i := moldcast.Seq(0)
	for b.Loop() {
		i = (i + 7919) % 99_999
		h.between(2+2*i, 1)
	}
}

// A file of many gaps and their answers takes time in proportion: each answer
// looks at its neighbours alone, and each block of answers is put among the
// others in one pass.
func TestManyAnswers(t *testing.T) {
	const n, times = 25_000, 4
	few, many := answers(t, n), answers(t, times*n)
	t.Logf("%v for %d gaps, %v for %d", few, n, many, times*n)
	if many > 2*times*few { // in proportion to the square it would be times as much again
		t.Errorf("%v for %d gaps, %v for %d", few, n, many, times*n)
	}
}

// answers imports n gaps, of one message each, and their answers, and returns
// the processor time that took.
func answers(t *testing.T, n int) time.Duration {
	im := New(opener(filepath.Join(t.TempDir(), "archive")), time.Now)
	s, err := im.Session("C", name("S"))
	if err != nil {
		t.Fatal(err)
	}
	start := processorTime(t)
	for i := range n {
		if err := s.Add(piece(1+2*i, moldcast.Stamp(1000+1000*i), "live"), Place{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n - 1 {
		p := piece(2+2*i, s.Between(moldcast.Seq(2+2*i), 1), "answer")
		if want := moldcast.Stamp(1500 + 1000*i); p.Time != want {
			t.Fatalf("%d: %d, want %d", p.First, p.Time, want)
		}
		p.Flags = moldcast.Repaired
		if err := s.Add(p, Place{}); err != nil {
			t.Fatal(err)
		}
	}
	if r := finish(t, im); r[0].Holes != 0 || r[0].Messages != 2*uint64(n)-1 {
		t.Errorf("%d holes, %d messages", r[0].Holes, r[0].Messages)
	}
	return processorTime(t) - start
}

// processorTime is what this process took, whatever else runs here.
func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
