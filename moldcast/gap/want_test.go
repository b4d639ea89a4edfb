package gap

import (
	"testing"
	"time"
)

// lost is a machine whose gap [10, 1000) is lost: asked for every second or
// more, and not before.
func lost(t *testing.T) (*Machine, Instant) {
	t.Helper()
	m := New(Config{Lines: 1, Servers: 1, Budget: 100 * time.Millisecond, SlowMin: time.Second, SlowMax: 10 * time.Second})
	now := Instant(1)
	m.Passed(now, 0, Range{1, 10})
	m.Accept(now, 0, Range{1, 10})
	m.Passed(now, 0, Range{1000, 1001})
	m.Accept(now, 0, Range{1000, 1001})
	for end := now + Instant(2*time.Second); now < end; now += Instant(time.Millisecond) {
		for {
			if _, ok := m.Poll(now); !ok {
				break
			}
		}
		for {
			if _, ok := m.Lost(); !ok {
				break
			}
		}
	}
	if m.Stats().MessagesLost != 990 {
		t.Fatal(m.Stats())
	}
	return m, now
}

func polled(m *Machine, from Instant, d time.Duration) (got []Range, at Instant) {
	at = from
	for ; at < from+Instant(d); at += Instant(time.Millisecond) {
		for {
			q, ok := m.Poll(at)
			if !ok {
				break
			}
			got = append(got, q.Range)
		}
	}
	return got, at
}

// What is lost and wanted is asked for now, that alone, once for each Want.
func TestWant(t *testing.T) {
	m, now := lost(t)
	if q, ok := m.Poll(now); ok {
		t.Fatal("asked for anyway: ", q)
	}
	m.Want(now, Range{500, 510})
	if d := m.Deadline(); d > now {
		t.Errorf("deadline %v at %v", d, now)
	}
	got, now := polled(m, now, 50*time.Millisecond)
	if len(got) != 1 || got[0] != (Range{500, 510}) {
		t.Fatal(got)
	}
	m.Want(now, Range{500, 510})
	m.Want(now, Range{500, 510})
	if got, _ := polled(m, now, 5*time.Millisecond); len(got) != 1 {
		t.Fatal(got)
	}
	m.Answered(now, 0, Range{500, 510})
	m.Accept(now, -1, Range{500, 510})
	if _, v := m.Classify(Range{500, 510}); v != Duplicate {
		t.Fatal(v)
	}
}

// However much is wanted, so much is asked for: a tenth of 1000 a second.
func TestWantIsBounded(t *testing.T) {
	m, now := lost(t)
	n := 0
	for i := range 1000 {
		m.Want(now, Range{Seq(10 + i%900), Seq(12 + i%900)})
		m.WantBelow(now, Range{1, 5})
		var got []Range
		got, now = polled(m, now, time.Millisecond)
		n += len(got)
	}
	if n > 110 {
		t.Fatal(n)
	}
}

// What lies below the first is asked for once, and no gap.
func TestWantBelow(t *testing.T) {
	m := New(Config{Lines: 1, Servers: 2})
	m.Start(1000)
	now := Instant(1)
	m.Accept(now, 0, Range{1000, 1010})
	if d := m.Deadline(); d != Never {
		t.Fatal(d)
	}
	m.WantBelow(now, Range{100, 2000})
	m.WantBelow(now, Range{200, 230})
	if d := m.Deadline(); d > now {
		t.Fatal(d)
	}
	got, now := polled(m, now, 3*time.Second)
	if len(got) != 1 || got[0] != (Range{200, 230}) {
		t.Fatal(got)
	}
	if st := m.Stats(); st.GapsOpened != 0 || st.MessagesMissing != 0 || m.First() != 1000 {
		t.Fatal(st, m.First())
	}
	m.WantBelow(now, Range{1000, 1001})
	if _, ok := m.Poll(now); ok {
		t.Fatal("asked for what is not below")
	}
}

// What a server serves is known by its answers, and only for a while: one that
// has fallen silent, or that was not asked of late, is not vouched for.
func TestServes(t *testing.T) {
	m := New(Config{Lines: 1, Servers: 1})
	const ring = 5000
	now, head := Instant(1), Seq(1)
	step := func(answers bool) {
		now += Instant(time.Millisecond)
		head += 10
		if head%50 != 1 { // one packet of five is lost
			r := Range{head - 10, head}
			m.Passed(now, 0, r)
			m.Accept(now, 0, r)
		}
		for {
			q, ok := m.Poll(now)
			if !ok {
				break
			}
			if answers && q.Range.First+ring >= head {
				m.Answered(now, 0, q.Range)
				m.Accept(now, -1, q.Range)
			}
		}
	}
	const while = 5 * time.Second
	if d := m.Serves(now, while); d != 0 {
		t.Fatal(d)
	}
	for range 2000 {
		step(true)
		if d := m.Serves(now, while); d > ring {
			t.Fatalf("serves %d of %d", d, ring)
		}
	}
	if m.Serves(now, while) == 0 {
		t.Fatal("nothing is known though all is answered")
	}
	if d := m.Serves(now+Instant(while)+Instant(time.Second), while); d != 0 {
		t.Fatalf("%d long after the last answer", d)
	}
	for range 200 {
		step(false)
	}
	if d := m.Serves(now, while); d != 0 {
		t.Fatalf("%d of a server that is silent", d)
	}
}
