package gap

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMachineChaos calls everything at random on a machine with tight bounds:
// whatever happens, its state stays consistent, nothing is accepted or lost
// twice, what is held stays held, and what is wanted is never forgotten.
func TestMachineChaos(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]Seq{60, 484311999, ^Seq(0) - 500}).Draw(t, "start")
		c := Config{
			Lines:             rapid.IntRange(1, 3).Draw(t, "lines"),
			Servers:           rapid.IntRange(0, 2).Draw(t, "servers"),
			Outstanding:       rapid.IntRange(1, 5).Draw(t, "outstanding"),
			MaxGaps:           rapid.SampledFrom([]int{1, 3, 8, 1000}).Draw(t, "gaps"),
			MaxRequest:        rapid.SampledFrom([]int{1, 3, 10, 1000}).Draw(t, "request"),
			Budget:            time.Duration(rapid.Int64Range(1, 20).Draw(t, "budget")) * time.Millisecond,
			SlowMin:           10 * time.Millisecond,
			SlowMax:           40 * time.Millisecond,
			GiveUp:            rapid.Bool().Draw(t, "give up"),
			RequestsPerSecond: rapid.SampledFrom([]int{100, 100_000}).Draw(t, "rate"),
			HeartbeatInterval: 10 * time.Millisecond,
			Seed:              1,
		}
		m := New(c)
		var have, lost Set
		withdrawn := false // then a message may be lost again
		now := Instant(0)
		if rapid.Bool().Draw(t, "resume") {
			missing := []Range{}
			head := start + 40
			for q := start; q < head; {
				n := Seq(rapid.IntRange(1, 10).Draw(t, "run"))
				r := Range{q, min(head, q+n)}
				if rapid.Bool().Draw(t, "missing") {
					missing = append(missing, r)
				} else {
					have.Add(r)
				}
				q = r.Next
			}
			m.Resume(start, head, missing)
			if m.First() != start || m.Head() != head {
				t.Fatal("Resume")
			}
		} else {
			m.Start(start)
		}
		offer := func(line int, r Range) {
			for !r.Empty() {
				sub, v := m.Classify(r)
				if sub.Empty() || sub.First != r.First || sub.Next > r.Next {
					t.Fatalf("Classify(%v) = %v %v", r, sub, v)
				}
				r.First = sub.Next
				part, held := have.Cut(sub)
				switch v {
				case Below:
					if sub.Next > m.First() {
						t.Fatalf("%v below %d", sub, m.First())
					}
					continue
				case Duplicate:
					if !held || part != sub {
						t.Fatalf("%v is no duplicate", sub)
					}
					continue
				case Forgotten:
					if part, vague := m.vague.Cut(sub); !vague || part != sub {
						t.Fatalf("%v is not forgotten", sub)
					}
					continue
				}
				if held || part != sub {
					t.Fatalf("%v is held, and %v", sub, v)
				}
				if v == InOrder && (m.Next() != m.Head() || sub.First != m.Head()) || v == Ahead && sub.First < m.Head() {
					t.Fatalf("%v %v, next %d head %d", sub, v, m.Next(), m.Head())
				}
				part, was := lost.Cut(sub)
				if given, gone := m.given.Cut(sub); gone {
					part, was = given, true
				}
				if was != (v == Stale) || part != sub {
					t.Fatalf("%v %v, lost %v, given up %v", sub, v, lost.Ranges(), m.given.Ranges())
				}
				head, before := m.Head(), m.stats
				if !m.Accept(now, line, sub) {
					if v == InOrder || m.stats.Overflows != before.Overflows+1 || m.Head() != head {
						t.Fatalf("%v %v refused", sub, v)
					}
					continue
				}
				have.Add(sub)
				if _, v := m.Classify(sub); v != Duplicate {
					t.Fatalf("%v accepted, then %v", sub, v)
				}
			}
		}
		var asked []Request
		for range rapid.IntRange(1, 80).Draw(t, "ops") {
			now += Instant(rapid.Int64Range(0, int64(2*ms)).Draw(t, "dt"))
			line := rapid.IntRange(0, c.Lines-1).Draw(t, "line")
			switch op := rapid.IntRange(0, 11).Draw(t, "op"); op {
			case 0, 1, 2, 3:
				q := m.Head() + Seq(rapid.IntRange(0, 12).Draw(t, "ahead"))
				q -= Seq(rapid.IntRange(0, 30).Draw(t, "back"))
				r := Range{q, q + Seq(rapid.IntRange(1, 12).Draw(t, "len"))}
				m.Passed(now, line, r)
				offer(line, r)
			case 4:
				q := m.Head() + Seq(rapid.IntRange(0, 10).Draw(t, "ahead")) - Seq(rapid.IntRange(0, 5).Draw(t, "back"))
				m.Passed(now, line, Range{q, q})
				m.Reveal(now, line, q)
			case 5:
				q := m.First() - Seq(rapid.IntRange(-2, 6).Draw(t, "below"))
				if full := m.order.len() >= c.MaxGaps; !m.Extend(q) && (!full || m.First() <= q) {
					t.Fatalf("Extend(%d) refused", q)
				}
				if q := m.Head() - Seq(rapid.IntRange(0, 20).Draw(t, "withdraw")); m.Withdraw(q) {
					if m.Head() != q || !have.Bounds().Intersect(Range{q, ^Seq(0)}).Empty() {
						t.Fatalf("withdrew from %d: head %d, held %v", q, m.Head(), have.Ranges())
					}
					lost.Remove(Range{q, ^Seq(0)})
					m.given.Remove(Range{q, ^Seq(0)})
					withdrawn = true
				}
			case 10:
				r := Range{First: m.Head() - Seq(rapid.IntRange(0, 40).Draw(t, "from"))}
				r.Next = r.First + Seq(rapid.IntRange(0, 20).Draw(t, "reserve"))
				if rapid.Bool().Draw(t, "release") {
					m.Release(now, r)
				} else {
					m.Reserve(now, r)
				}
			case 11:
				m.Hold(now, rapid.Bool().Draw(t, "hold"))
			case 6:
				now += Instant(rapid.Int64Range(0, int64(30*ms)).Draw(t, "wait"))
			default:
				if len(asked) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(asked)-1).Draw(t, "which")
				q := asked[i]
				if op == 7 {
					asked = append(asked[:i], asked[i+1:]...)
				}
				r := q.Range
				r.Next = min(r.Next, r.First+Seq(rapid.IntRange(1, 12).Draw(t, "fit")))
				m.Answered(now, q.Server-rapid.IntRange(0, 1).Draw(t, "unknown"), r)
				offer(answerLine, r)
			}
			for n := 0; ; n++ {
				if n > 1000 {
					t.Fatal("Poll does not end")
				}
				q, ok := m.Poll(now)
				if !ok {
					break
				}
				if q.Range.Len() < 1 || q.Range.Len() > uint64(c.MaxRequest) || q.Server < 0 || q.Server >= c.Servers ||
					q.Range.First < m.First() || q.Range.Next > m.Head() && !withdrawn {
					t.Fatalf("request %+v", q)
				}
				asked = append(asked, q)
			}
			for r, ok := m.Lost(); ok; r, ok = m.Lost() {
				for _, s := range []*Set{&have, &lost} {
					if part, in := s.Cut(r); in || part != r {
						t.Fatalf("%v lost, but held or lost before", r)
					}
				}
				lost.Add(r)
			}
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
			if m.Deadline() <= now && m.c.Servers == 0 {
				t.Fatalf("due at %d, though Poll has just said no at %d", m.Deadline(), now)
			}
			if d := m.Deadline(); d < now {
				t.Fatalf("due at %d, though Poll has just said no at %d", d, now)
			}
			missing := have.Clone()
			m.Gaps(func(g Gap) bool {
				if part, in := missing.Cut(g.Range); in || part != g.Range {
					t.Fatalf("gap %v is held", g.Range)
				}
				missing.Add(g.Range)
				return true
			})
			for _, s := range []*Set{&lost, &m.given, &m.vague} {
				for _, r := range s.Ranges() {
					missing.Add(r)
				}
			}
			if want := (Range{m.First(), m.Head()}); !want.Empty() && (missing.Len() != 1 || missing.Ranges()[0] != want) {
				t.Fatalf("held and missing %v, want %v", missing.Ranges(), want)
			}
			if st := m.Stats(); !withdrawn && st.MessagesLost != lost.Count() || st.GapsRecovered > st.GapsOpened || st.Ranges > c.MaxGaps+2*c.Outstanding+50 {
				t.Fatalf("stats %+v, lost %d", st, lost.Count())
			}
		}
	})
}
