package gap

import (
	"testing"
	"time"
)

// sparse is a stream of which every third message is lost, answered by one
// server; it returns the requests and the most messages of one.
func sparse(m *Machine, packets int) (requests, largest int) {
	now := Instant(time.Second)
	seq := m.Head()
	for range packets {
		now += 300 * us
		r := Range{seq, seq + 2}
		m.Passed(now, 0, r)
		take(m, now, 0, r, func(Range, Verdict) {})
		seq += 3
		for q, ok := m.Poll(now); ok; q, ok = m.Poll(now) {
			requests++
			largest = max(largest, int(q.Range.Len()))
			m.Answered(now, q.Server, q.Range)
			take(m, now, answerLine, q.Range, func(Range, Verdict) {})
		}
	}
	return requests, largest
}

// TestLateAnswerTeachesNothing: the answer to a request for one message comes
// when a larger request that begins there too is in flight. It says nothing
// about how much fits, and does not end the larger one.
func TestLateAnswerTeachesNothing(t *testing.T) {
	m := New(Config{Servers: 1, Seed: 1, RequestsPerSecond: 100})
	now := Instant(0)
	take(m, now, 0, Range{1, 2}, func(Range, Verdict) {})
	take(m, now, 0, Range{3, 4}, func(Range, Verdict) {})
	now += 2 * ms
	if q, ok := m.Poll(now); !ok || q.Range != (Range{2, 3}) {
		t.Fatalf("first request %+v", q)
	}
	// So much is missing now that requests are shared.
	for i := range Seq(3000) {
		take(m, now, 0, Range{5 + 2*i, 6 + 2*i}, func(Range, Verdict) {})
	}
	larger := Range{}
	for _, now = range []Instant{now + 2*ms, now + 400*ms} {
		for q, ok := m.Poll(now); ok; q, ok = m.Poll(now) {
			if q.Range.First == 2 {
				larger = q.Range
			}
		}
	}
	if larger.Len() < 10 {
		t.Fatalf("the request is repeated as %v", larger)
	}
	m.Answered(now, 0, Range{2, 3})
	take(m, now, answerLine, Range{2, 3}, func(Range, Verdict) {})
	if n := m.Stats().AnswerMessages; n != 0 {
		t.Errorf("an answer carries %d messages", n)
	}
	for q, ok := m.Poll(now); ok; q, ok = m.Poll(now) {
		if !q.Range.Intersect(larger).Empty() {
			t.Errorf("asked for %v while %v is in flight", q.Range, larger)
		}
	}
	// One that is shorter than any request was is cut short.
	m = New(Config{Servers: 1, Seed: 1})
	take(m, 0, 0, Range{1, 2}, func(Range, Verdict) {})
	take(m, 0, 0, Range{51, 52}, func(Range, Verdict) {})
	for now = 0; m.Stats().Requests < 3; now = m.Deadline() {
		m.Poll(now)
	}
	m.Answered(now, 0, Range{2, 22})
	if n := m.Stats().AnswerMessages; n != 20 {
		t.Errorf("an answer carries %d messages, want 20", n)
	}
}

// TestEstimateGrowsAgain: whatever made it believe that one message fits, a
// machine with sparse gaps finds out that more do.
func TestEstimateGrowsAgain(t *testing.T) {
	fresh, _ := sparse(New(Config{Servers: 1, Seed: 1, RequestsPerSecond: 1000}), 40_000)
	m := New(Config{Servers: 1, Seed: 1, RequestsPerSecond: 1000})
	m.fit.learn(1, 31, 0)
	requests, largest := sparse(m, 40_000)
	t.Logf("%d requests, largest %d; %d when nothing was learnt", requests, largest, fresh)
	if largest < 30 || requests > fresh+2000 || m.Stats().Ranges > 100 {
		t.Errorf("%d requests, largest %d, %d ranges missing; fresh %d requests", requests, largest, m.Stats().Ranges, fresh)
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}

// TestResumeIsBounded: of more holes than the table has room for the highest
// are asked for; the others are given up, not held; and what goes missing now
// finds room at once.
func TestResumeIsBounded(t *testing.T) {
	const max, n = 1000, 20_000
	m := New(Config{Servers: 1, MaxGaps: max, Seed: 1})
	var holes []Range
	for i := range Seq(n) {
		holes = append(holes, Range{2 + 2*i, 3 + 2*i})
	}
	m.Resume(1, 2*n+2, holes)
	if st := m.Stats(); st.Ranges != max/2 || m.Next() != 2*n-max+2 || m.given.Len()+m.vague.Len() > 2*maxGiven {
		t.Fatalf("%+v, next %d, %d given up", st, m.Next(), m.given.Len())
	}
	for q := Seq(2); q < 2*n+2; q += 2 {
		want := Fill
		switch i := int(q-2) / 2; {
		case i < n-max/2-maxGiven:
			want = Forgotten
		case i < n-max/2:
			want = Stale
		}
		if _, v := m.Classify(Range{q, q + 1}); v != want {
			t.Fatalf("%d is %v, want %v", q, v, want)
		}
	}
	now := Instant(0)
	for i := range Seq(max) {
		now += us
		if !m.Accept(now, 0, Range{2*n + 3 + 2*i, 2*n + 4 + 2*i}) {
			t.Fatalf("gap %d finds no room: %+v", i, m.Stats())
		}
	}
	if m.Accept(now, 0, Range{4*n + 3, 4*n + 4}) {
		t.Error("more gaps of this run than the table has room for")
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}

// TestExtendIsBounded: what comes in descending order fills the table, and is
// then refused.
func TestExtendIsBounded(t *testing.T) {
	const max = 100
	m := New(Config{MaxGaps: max})
	m.Start(1_000_000)
	take(m, 0, 0, Range{1_000_000, 1_000_001}, func(Range, Verdict) {})
	q := Seq(1_000_000)
	for i := range 3 * max {
		if m.Extend(q-2) != (i < max) {
			t.Fatalf("%d: first %d, %+v", i, m.First(), m.Stats())
		}
		if i < max {
			q -= 2
			take(m, 0, 0, Range{q, q + 1}, func(Range, Verdict) {})
		}
	}
	if st := m.Stats(); st.Overflows != 2*max || st.Ranges != max || m.First() != q {
		t.Errorf("%+v, first %d, want %d", st, m.First(), q)
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}

// TestWithdraw: what was only revealed can be taken back; what is stored, or
// lies below something stored, cannot.
func TestWithdraw(t *testing.T) {
	m := New(Config{Servers: 1})
	take(m, 0, 0, Range{1, 11}, func(Range, Verdict) {})
	take(m, 0, 0, Range{21, 31}, func(Range, Verdict) {})
	m.Reveal(0, 0, 100)
	m.Poll(2 * ms) // asks for both
	for _, q := range []Seq{0, 5, 15, 25, 100, 200} {
		if m.Withdraw(q) {
			t.Errorf("withdrew %d", q)
		}
	}
	if !m.Withdraw(40) || m.Head() != 40 || m.Stats().MessagesMissing != 10+9 {
		t.Errorf("head %d, %+v", m.Head(), m.Stats())
	}
	if !m.Withdraw(31) || m.Head() != 31 || m.Stats().Ranges != 1 {
		t.Errorf("head %d, %+v", m.Head(), m.Stats())
	}
	if _, v := m.Classify(Range{31, 32}); v != Ahead {
		t.Errorf("the next one is %v", v)
	}
	take(m, 0, answerLine, Range{11, 21}, func(Range, Verdict) {})
	if _, v := m.Classify(Range{31, 32}); v != InOrder || m.Next() != 31 {
		t.Errorf("the next one is %v, next %d", v, m.Next())
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}
