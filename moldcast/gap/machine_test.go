package gap

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	us = Instant(time.Microsecond)
	ms = Instant(time.Millisecond)
	s1 = Instant(time.Second)
)

// answerLine is any number that is not a line's.
const answerLine = 0xFF

// take classifies and accepts r as an owner does, and calls got with what was
// new.
func take(m *Machine, now Instant, line int, r Range, got func(Range, Verdict)) {
	for !r.Empty() {
		sub, v := m.Classify(r)
		if sub.Empty() || sub.First != r.First || sub.Next > r.Next {
			panic(fmt.Sprintf("Classify(%v) = %v %v", r, sub, v))
		}
		switch v {
		case InOrder, Ahead, Fill, Stale:
			if m.Accept(now, line, sub) {
				got(sub, v)
			}
		}
		r.First = sub.Next
	}
}

// TestMachineModel drives a machine with random loss, repetition, disorder,
// odd packing on up to three lines, and a server that loses requests and
// answers, cuts answers short and repeats them; every message of the session
// must be accepted exactly once, and nothing may be lost.
func TestMachineModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]Seq{1, 484311999, ^Seq(0) - 700}).Draw(t, "start")
		total := rapid.IntRange(1, 600).Draw(t, "messages")
		lines := rapid.IntRange(1, 3).Draw(t, "lines")
		c := Config{
			Lines:       lines,
			Servers:     rapid.IntRange(1, 3).Draw(t, "servers"),
			MaxRequest:  rapid.SampledFrom([]int{0, 1, 7, 100}).Draw(t, "max"),
			Outstanding: rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "outstanding"),
			Budget:      Forever,
			Seed:        rapid.Uint64().Draw(t, "seed"),
		}
		loss := rapid.IntRange(0, 60).Draw(t, "loss%")
		fit := rapid.IntRange(1, 50).Draw(t, "fit")
		m := New(c)
		m.Start(start)
		end := start + Seq(total)
		var have Set
		now := Instant(rapid.Int64Range(-5, 5).Draw(t, "origin"))
		check := func() {
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
		}
		accept := func(line int, r Range) {
			take(m, now, line, r, func(sub Range, v Verdict) {
				if part, held := have.Cut(sub); held || part != sub {
					t.Fatalf("%v accepted twice (%v)", sub, v)
				}
				if v == Stale {
					t.Fatalf("%v stale, nothing was lost", sub)
				}
				have.Add(sub)
				check()
			})
		}
		chance := func(percent int, what string) bool {
			return rapid.IntRange(0, 99).Draw(t, what) < percent
		}
		type answer struct {
			at     Instant
			server int
			r      Range
		}
		var answers []answer
		poll := func() {
			for n := 0; ; n++ {
				if n > 2000 {
					t.Fatal("Poll does not end")
				}
				req, ok := m.Poll(now)
				check()
				if !ok {
					break
				}
				if req.Range.Len() == 0 || req.Range.Len() > uint64(m.c.MaxRequest) || req.Server >= c.Servers || req.Try < 1 {
					t.Fatalf("request %+v", req)
				}
				if req.Range.First < start || req.Range.Next > m.Head() {
					t.Fatalf("request %v outside %d..%d", req.Range, start, m.Head())
				}
				if chance(80, "answered") {
					r := req.Range
					r.Next = min(r.Next, r.First+Seq(fit))
					answers = append(answers, answer{now + Instant(rapid.Int64Range(1, int64(4*ms)).Draw(t, "rtt")), req.Server, r})
					if chance(10, "twice") {
						answers = append(answers, answers[len(answers)-1])
					}
				}
			}
			if r, ok := m.Lost(); ok {
				t.Fatalf("lost %v", r)
			}
		}
		deliver := func(until Instant) {
			for {
				k := -1
				for i, a := range answers {
					if a.at <= until && (k < 0 || a.at < answers[k].at) {
						k = i
					}
				}
				if k < 0 {
					return
				}
				a := answers[k]
				answers = append(answers[:k], answers[k+1:]...)
				now = max(now, a.at)
				m.Answered(now, a.server, a.r)
				check()
				accept(answerLine, a.r)
				poll()
			}
		}
		at := make([]Seq, lines)
		for i := range at {
			at[i] = start
		}
		var held []struct {
			line int
			r    Range
		}
		send := func(line int, r Range) {
			m.Passed(now, line, r)
			check()
			accept(line, r)
			poll()
		}
		for busy := true; busy; {
			busy = false
			for line := range at {
				if at[line] == end {
					continue
				}
				busy = true
				r := Range{at[line], min(end, at[line]+Seq(rapid.IntRange(1, 20).Draw(t, "packet")))}
				at[line] = r.Next
				if chance(loss, "lost") {
					continue
				}
				now += Instant(rapid.Int64Range(0, int64(500*us)).Draw(t, "gap"))
				deliver(now)
				if chance(10, "late") {
					held = append(held, struct {
						line int
						r    Range
					}{line, r})
					continue
				}
				send(line, r)
				if chance(10, "again") {
					send(line, r)
				}
				if len(held) > 0 && chance(50, "release") {
					h := held[0]
					held = held[1:]
					send(h.line, h.r)
				}
			}
		}
		for line := range lines {
			m.Passed(now, line, Range{end, end})
			m.Reveal(now, line, end)
		}
		for n := 0; m.Next() < end; n++ {
			if n > 20000 {
				t.Fatalf("does not end: %+v", m.Stats())
			}
			poll()
			d := m.Deadline()
			for _, a := range answers {
				d = min(d, a.at)
			}
			if d == Never {
				t.Fatalf("nothing due, %d missing", m.Stats().MessagesMissing)
			}
			now = max(now, d)
			deliver(now)
		}
		if want := []Range{{start, end}}; have.Len() != 1 || have.Ranges()[0] != want[0] {
			t.Fatalf("have %v, want %v", have.Ranges(), want)
		}
		st := m.Stats()
		if st.GapsOpened != st.GapsRecovered || st.MessagesMissing != 0 || st.MessagesLost != 0 || st.Ranges != 0 || st.Outstanding != 0 || m.Open() != 0 {
			t.Fatalf("stats %+v", st)
		}
		if m.Deadline() != Never {
			t.Fatal("a deadline without a gap")
		}
	})
}

// TestGapsSay: what a gap that is open says of itself, until it is recovered.
func TestGapsSay(t *testing.T) {
	m := New(Config{Servers: 1, Seed: 1})
	got := func(Range, Verdict) {}
	next := func() (at Instant, flying bool) {
		m.Gaps(func(g Gap) bool {
			at, flying = g.NextTry, g.InFlight
			return false
		})
		return at, flying
	}
	m.Passed(0, 0, Range{1, 2})
	take(m, 0, 0, Range{1, 2}, got)
	m.Passed(ms, 0, Range{5, 6})
	take(m, ms, 0, Range{5, 6}, got)
	if at, _ := next(); m.OpenGaps() != 0 || at != 2*ms {
		t.Fatalf("%d gaps open before one has settled, asked for at %v", m.OpenGaps(), at)
	}
	q, ok := m.Poll(2 * ms)
	if at, flying := next(); !ok || !flying || m.OpenGaps() != 1 || at <= 2*ms || at != m.Deadline() {
		t.Fatalf("%+v %v, %d open, next at %v, deadline %v", q, ok, m.OpenGaps(), at, m.Deadline())
	}
	if n, since := m.OpenMissing(); n != 3 || since != ms {
		t.Fatalf("%d messages since %v", n, since)
	}
	m.Answered(4*ms, 0, q.Range)
	take(m, 4*ms, answerLine, q.Range, got)
	if n, since := m.OpenMissing(); m.OpenGaps() != 0 || n != 0 || since != Never {
		t.Fatalf("%d open, %d messages since %v", m.OpenGaps(), n, since)
	}
	if h := m.RepairTime(); h.Count() != 1 || h.Max() != int64(3*ms) {
		t.Fatalf("%d repaired, in %v", h.Count(), h.Max())
	}
	without := New(Config{})
	without.Start(1)
	without.Accept(0, 0, Range{3, 4})
	without.Gaps(func(g Gap) bool {
		if g.NextTry != Never {
			t.Errorf("asked for at %v, of nobody", g.NextTry)
		}
		return true
	})
}

// What is asked for in vain is asked for from farther on, as far as its last
// message; most requests are for all of it.
func TestSkip(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 20, 65534} {
		whole, last := 0, false
		for try := 1; try <= 60; try++ {
			left := n - skip(try, n)
			if left < 1 || left > n || try < 6 && left != n {
				t.Fatalf("%d of %d are asked for at try %d", left, n, try)
			}
			if left == n {
				whole++
			}
			last = last || left == 1
		}
		if whole < 40 || !last {
			t.Errorf("of %d messages all are asked for %d times of 60; the last alone: %v", n, whole, last)
		}
	}
}
