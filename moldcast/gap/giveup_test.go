package gap

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSkipAbandon compares a machine with a model that keeps one verdict for
// each sequence: whatever is skipped and abandoned, in whatever state, the
// machine stays whole, and each message is lost at most once.
func TestSkipAbandon(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const span = 60
		start := rapid.SampledFrom(origins).Draw(t, "start")
		m := New(Config{Servers: rapid.IntRange(0, 2).Draw(t, "servers"), GiveUp: true, Budget: 20 * time.Millisecond})
		m.Start(start)
		first, head := start, start
		held := map[Seq]bool{}
		lost := map[Seq]bool{}
		now := Instant(1)
		drain := func() {
			for r, ok := m.Lost(); ok; r, ok = m.Lost() {
				for q := r.First; q < r.Next; q++ {
					if held[q] || lost[q] {
						t.Fatalf("%d is lost, held %v, lost before %v", q, held[q], lost[q])
					}
					lost[q] = true
				}
			}
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
		}
		draw := func() Range {
			a := start + Seq(rapid.IntRange(0, span).Draw(t, "from"))
			return Range{a, a + Seq(rapid.IntRange(1, 20).Draw(t, "n"))}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += Instant(rapid.Int64Range(0, int64(2*time.Millisecond)).Draw(t, "dt"))
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1:
				r := draw()
				m.Passed(now, 0, r)
				for !r.Empty() {
					sub, v := m.Classify(r)
					switch v {
					case InOrder, Ahead, Fill, Stale:
						for q := sub.First; q < sub.Next; q++ {
							if q < first || held[q] || (v == Stale) != lost[q] {
								t.Fatalf("%d is %v: first %d, held %v, lost %v", q, v, first, held[q], lost[q])
							}
							held[q] = v != Stale
						}
						if v != Stale {
							m.Accept(now, 0, sub)
						}
					case Duplicate:
						for q := sub.First; q < sub.Next; q++ {
							if !held[q] {
								t.Fatalf("%d is no duplicate", q)
							}
						}
					}
					r.First = sub.Next
				}
				head = max(head, m.Head())
			case 2:
				q := start + Seq(rapid.IntRange(0, span+30).Draw(t, "first"))
				m.Skip(now, q)
				first, head = max(first, q), max(head, q)
			case 3:
				m.Abandon(now, draw())
			case 4:
				r := draw()
				m.Reserve(now, r)
				if rapid.Bool().Draw(t, "release") {
					m.Release(now, r)
				}
			case 5:
				for _, ok := m.Poll(now); ok; _, ok = m.Poll(now) {
				}
			}
			drain()
			if m.First() != first || m.Head() != head {
				t.Fatalf("%d..%d, want %d..%d", m.First(), m.Head(), first, head)
			}
		}
	})
}
