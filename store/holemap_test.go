package store

import (
	"math/rand/v2"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// The records of a holeMap are those of the last put at each sequence,
// wherever in it that was.
func TestHoleMap(t *testing.T) {
	const span = 400
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var m holeMap
		var want [span + 1]moldcast.HoleReason
		for range 300 {
			first := moldcast.Seq(1 + rng.IntN(span-1))
			if rng.IntN(2) == 0 && len(m.recs) > 0 {
				first = m.recs[0].First // as they are filled
			}
			h := holeRecord{First: first, Next: min(span, first+moldcast.Seq(1+rng.IntN(5))), Reason: []moldcast.HoleReason{moldcast.NotCaptured, moldcast.Unrecoverable, holeFilled}[rng.IntN(3)]}
			m.put(h)
			for q := h.First; q < h.Next; q++ {
				want[q] = h.Reason
				if h.Reason == holeFilled {
					want[q] = ""
				}
			}
			var got [span + 1]moldcast.HoleReason
			at := moldcast.Seq(0)
			for _, r := range m.recs {
				if r.First < at || r.Next <= r.First {
					t.Fatalf("%v after %d", r, at)
				}
				at = r.Next
				for q := r.First; q < r.Next; q++ {
					got[q] = r.Reason
				}
			}
			if got != want {
				t.Fatalf("after %+v: %+v", h, m.recs)
			}
		}
	}
}

// Filling many holes one by one, lowest first, takes no time that grows with
// the square of their number.
func BenchmarkHoleMapFill(b *testing.B) {
	const n = 150_000
	var m holeMap
	for i := range b.N {
		if i%n == 0 {
			m = holeMap{}
			for k := range moldcast.Seq(n) {
				m.put(holeRecord{First: 1 + 2*k, Next: 2 + 2*k, Reason: moldcast.Unrecoverable})
			}
		}
		q := moldcast.Seq(1 + 2*(i%n))
		m.put(holeRecord{First: q, Next: q + 1, Reason: holeFilled})
	}
}
