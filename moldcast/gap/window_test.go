package gap

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A server whose window is known is never asked for what is farther below the
// head; what no window reaches is lost when its budget is spent; the rest is
// asked for, and comes.
func TestWindows(t *testing.T) {
	for _, c := range []struct {
		name    string
		windows []uint64
		deepest uint64 // that any of them reaches
	}{
		{"one server", []uint64{300}, 300},
		{"two servers", []uint64{300, 2000}, 2000},
		{"one of them not known", []uint64{300, 0}, beyond},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(Config{Servers: len(c.windows), Windows: c.windows, Budget: 2 * time.Second, Seed: 3})
			rng := rand.New(rand.NewPCG(1, 2))
			now, lost := Instant(0), uint64(0)
			var want Set // all that is missing at the end
			asked := make([]int, len(c.windows))
			poll := func() {
				for {
					q, ok := m.Poll(now)
					if !ok {
						break
					}
					asked[q.Server]++
					if d, w := depth(m.Head(), q.Range.First), c.windows[q.Server]; w > 0 && d > w {
						t.Fatalf("server %d is asked for %v, %d below the head; its window is %d", q.Server, q.Range, d, w)
					}
					if rng.IntN(4) == 0 {
						continue // lost
					}
					r := q.Range
					r.Next = min(r.Next, r.First+20)
					m.Answered(now, q.Server, r)
					for !r.Empty() {
						part, v := m.Classify(r)
						if v == Fill || v == Stale {
							m.Accept(now, -1, part)
							want.Remove(part)
						}
						r.First = part.Next
					}
				}
				for r, ok := m.Lost(); ok; r, ok = m.Lost() {
					lost += r.Len()
				}
			}
			// A session that the archive holds in part, and a stream that goes on.
			missing := []Range{{1000, 1500}, {6000, 6100}, {9000, 9050}}
			for _, r := range missing {
				want.Add(r)
			}
			m.Resume(1, 10000, missing)
			for q, step := Seq(10000), 0; step < 6000; step++ {
				r := Range{q, q + 1}
				if step < 1500 {
					m.Passed(now, 0, r)
					if step%50 >= 3 {
						m.Accept(now, 0, r)
					} else {
						want.Add(r)
					}
					q++
				}
				poll()
				now += Instant(time.Millisecond)
			}
			var unreached uint64
			for _, r := range missing {
				if depth(10000, r.Next-1) > c.deepest { // from the beginning
					unreached += r.Len()
				}
			}
			if got := want.Count(); got != unreached || m.Stats().MessagesMissing != unreached || lost < unreached {
				t.Errorf("%d missing, %d lost; want the %d that no window reaches; asked %v", got, lost, unreached, asked)
			}
			for i, n := range asked {
				if n == 0 {
					t.Errorf("server %d was never asked", i)
				}
			}
		})
	}
}
