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
