package gap

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// server is a rerequest server in virtual time: it answers each request with
// one packet of as many messages as fit, after a round trip.
type server struct {
	rng     *rand.Rand
	loss    float64
	fit     func(Seq) int
	rtt     Instant
	answers []reply
	sent    uint64 // messages
}

type reply struct {
	at     Instant
	server int
	r      Range
}

func (s *server) ask(now Instant, q Request) {
	if s.rng.Float64() < s.loss {
		return
	}
	r := q.Range
	r.Next = min(r.Next, r.First+Seq(s.fit(r.First)))
	s.sent += r.Len()
	if s.rng.Float64() < s.loss {
		return
	}
	s.answers = append(s.answers, reply{now + s.rtt, q.Server, r})
}

// repair runs m with s until nothing is missing, and returns when that was.
func repair(tb testing.TB, m *Machine, s *server, now Instant) Instant {
	next := 0
	for m.Stats().MessagesMissing > 0 {
		d := m.Deadline()
		if next < len(s.answers) {
			d = min(d, s.answers[next].at)
		}
		if d == Never {
			tb.Fatalf("nothing is due: %+v", m.Stats())
		}
		now = max(now, d)
		if next < len(s.answers) && s.answers[next].at <= now {
			a := s.answers[next]
			next++
			m.Answered(now, a.server, a.r)
			take(m, now, answerLine, a.r, func(Range, Verdict) {})
		}
		for {
			q, ok := m.Poll(now)
			if !ok {
				break
			}
			s.ask(now, q)
		}
		if r, ok := m.Lost(); ok {
			tb.Fatalf("lost %v", r)
		}
	}
	return now
}

// TestLongGap repairs one gap of a million messages: nearly every answer must
// be full and new, and the table stays small.
func TestLongGap(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		t.Run(fmt.Sprintf("loss=%v", loss), func(t *testing.T) {
			const n = 1_000_000
			m := New(Config{Servers: 2, RequestsPerSecond: 1_000_000, Seed: 1})
			take(m, 0, 0, Range{1, 11}, func(Range, Verdict) {})
			take(m, 0, 0, Range{11 + n, 12 + n}, func(Range, Verdict) {})
			s := &server{
				rng: rand.New(rand.NewPCG(1, 2)), loss: loss, rtt: 200 * us,
				fit: func(q Seq) int { return 50 + int(q/64%11) },
			}
			end := repair(t, m, s, 0)
			st := m.Stats()
			ideal := uint64(n / 55)
			t.Logf("%d requests, ideal %d, %d messages sent, %v", st.Requests, ideal, s.sent, time.Duration(end))
			if limit := float64(ideal) * 1.3 / (1 - 2*loss); float64(st.Requests) > limit {
				t.Errorf("%d requests, want at most %.0f", st.Requests, limit)
			}
			if limit := n * 1.01 / (1 - loss); float64(s.sent) > limit {
				t.Errorf("%d messages sent, want at most %.0f", s.sent, limit)
			}
			if len(m.pieces) > 300 || m.next != m.head {
				t.Errorf("%d pieces, next %d head %d", len(m.pieces), m.next, m.head)
			}
			if st.GapsOpened != 1 || st.GapsRecovered != 1 || st.MessagesRecovered != n {
				t.Errorf("stats %+v", st)
			}
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestManyGaps opens 20 000 gaps in one burst and repairs them all, each
// counted once, though the server loses a fifth, and though the last have
// their turn only long after the budget: they were not asked for before.
func TestManyGaps(t *testing.T) {
	const n = 20_000
	m := New(Config{Servers: 1, Seed: 1})
	now := Instant(0)
	q := Seq(484311999)
	m.Start(q)
	for range n {
		now += 2 * us
		m.Passed(now, 0, Range{q, q + 3})
		take(m, now, 0, Range{q, q + 3}, func(Range, Verdict) {})
		q += 3 + 40
	}
	m.Reveal(now, 0, q)
	if st := m.Stats(); st.Ranges != n || st.Overflows != 0 {
		t.Fatalf("stats %+v", st)
	}
	s := &server{rng: rand.New(rand.NewPCG(1, 2)), loss: 0.1, rtt: 100 * us, fit: func(Seq) int { return 50 }}
	end := repair(t, m, s, now)
	st := m.Stats()
	t.Logf("%d requests in %v", st.Requests, time.Duration(end))
	if st.GapsOpened != n || st.GapsRecovered != n || st.MessagesRecovered != 40*n || st.Ranges != 0 {
		t.Fatalf("stats %+v", st)
	}
	if st.Requests > n*5/4+1 || end < 15*s1 {
		t.Errorf("%d requests in %v", st.Requests, time.Duration(end))
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}

// TestBurstSharesRequests: single lost messages close together under pressure
// share requests, so that a storm of gaps is no storm of requests.
func TestBurstSharesRequests(t *testing.T) {
	const n = 10_000
	m := New(Config{Servers: 1, Seed: 1})
	for i := range Seq(n) {
		take(m, 0, 0, Range{1 + i*5, 5 + i*5}, func(Range, Verdict) {})
	}
	s := &server{rng: rand.New(rand.NewPCG(1, 2)), rtt: 100 * us, fit: func(Seq) int { return 60 }}
	end := repair(t, m, s, 0)
	st := m.Stats()
	t.Logf("%d requests in %v", st.Requests, time.Duration(end))
	if st.Requests > n/3 {
		t.Errorf("%d requests for %d gaps", st.Requests, n)
	}
}

// TestDeadServer: when nobody answers, all is lost soon after the budget,
// though there are far more gaps than turns, and asking dies down.
func TestDeadServer(t *testing.T) {
	const n = 5000
	m := New(Config{Servers: 2, Seed: 1})
	for i := range Seq(n) {
		take(m, 0, 0, Range{1 + i*5, 5 + i*5}, func(Range, Verdict) {})
	}
	lost := uint64(0)
	requests := map[int]int{} // by second
	for m.Deadline() < 120*s1 {
		now := m.Deadline()
		for {
			if _, ok := m.Poll(now); !ok {
				break
			}
			requests[int(now/s1)]++
		}
		for r, ok := m.Lost(); ok; r, ok = m.Lost() {
			lost += r.Len()
			if now > 21*s1 {
				t.Fatalf("lost %v at %v", r, time.Duration(now))
			}
		}
	}
	if st := m.Stats(); lost != n-1 || st.MessagesLost != n-1 || st.GapsOpened != n-1 || m.Open() != 0 {
		t.Fatalf("lost %d, stats %+v", lost, st)
	}
	for sec, k := range requests {
		if k > 1250 || sec > 22 && k > 101 {
			t.Errorf("%d requests in second %d", k, sec)
		}
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}

// TestInOrderDoesNotAllocate: nothing that comes in order, twice, or as a
// heartbeat allocates.
func TestInOrderDoesNotAllocate(t *testing.T) {
	m := New(Config{Lines: 2, Servers: 1})
	q, now := Seq(1), Instant(0)
	if n := testing.AllocsPerRun(2000, func() {
		now += 10 * us
		r := Range{q, q + 10}
		q += 10
		for line := range 2 {
			m.Passed(now, line, r)
			for r := r; !r.Empty(); {
				sub, v := m.Classify(r)
				if v == InOrder && !m.Accept(now, line, sub) {
					t.Fatal("refused")
				}
				r.First = sub.Next
			}
			m.Reveal(now, line, q)
		}
		m.Poll(now)
		m.Lost()
		m.Deadline()
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestSteadyLossDoesNotAllocate: once the table has its size, gaps that open
// and close do not allocate either.
func TestSteadyLossDoesNotAllocate(t *testing.T) {
	m := New(Config{Servers: 1, RequestsPerSecond: 1_000_000_000})
	q, now := Seq(1), Instant(0)
	round := func() {
		for range 10 {
			now += ms
			take(m, now, 0, Range{q + 5, q + 10}, func(Range, Verdict) {})
			q += 10
		}
		now += 2 * ms
		for {
			req, ok := m.Poll(now)
			if !ok {
				break
			}
			m.Answered(now, 0, req.Range)
			take(m, now, answerLine, req.Range, func(Range, Verdict) {})
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkMachine(b *testing.B) {
	for _, lines := range []int{1, 2} {
		b.Run(fmt.Sprintf("in-order/lines=%d", lines), func(b *testing.B) {
			b.ReportAllocs()
			m := New(Config{Lines: lines, Servers: 1})
			q, now := Seq(1), Instant(0)
			for b.Loop() {
				now += us
				r := Range{q, q + 10}
				q += 10
				for line := range lines {
					m.Passed(now, line, r)
					if sub, v := m.Classify(r); v == InOrder {
						m.Accept(now, line, sub)
					}
				}
			}
		})
	}
	for _, gaps := range []int{100, 10_000, 65_000} {
		open := func() *Machine {
			m := New(Config{Servers: 1, RequestsPerSecond: 1_000_000_000, Budget: Forever})
			for i := range Seq(gaps) {
				r := Range{1 + i*10, 6 + i*10}
				m.Passed(0, 0, r)
				take(m, 0, 0, r, func(Range, Verdict) {})
			}
			m.Reveal(0, 0, Seq(gaps)*10+1)
			return m
		}
		for _, order := range []string{"oldest", "newest", "random"} {
			b.Run(fmt.Sprintf("fill=%s/gaps=%d", order, gaps), func(b *testing.B) {
				b.ReportAllocs()
				at := rand.New(rand.NewPCG(1, 2)).Perm(gaps)
				for i := range at {
					switch order {
					case "oldest":
						at[i] = i
					case "newest":
						at[i] = gaps - 1 - i
					}
				}
				var m *Machine
				for n := range b.N {
					k := n % gaps
					if k == 0 {
						b.StopTimer()
						m = open()
						m.Poll(ms)
						b.StartTimer()
					}
					q := Seq(at[k])*10 + 6
					r, _ := m.Classify(Range{q, q + 5})
					m.Accept(2*ms, 0, r)
				}
			})
		}
		b.Run(fmt.Sprintf("live-beyond/gaps=%d", gaps), func(b *testing.B) {
			b.ReportAllocs()
			m := open()
			now := Instant(0)
			for b.Loop() {
				now += us
				r := Range{m.Head(), m.Head() + 10}
				m.Passed(now, 0, r)
				sub, _ := m.Classify(r)
				m.Accept(now, 0, sub)
				if m.Deadline() <= now {
					m.Poll(now)
				}
			}
		})
		b.Run(fmt.Sprintf("ask-and-answer/gaps=%d", gaps), func(b *testing.B) {
			b.ReportAllocs()
			m := open()
			now := ms
			for b.Loop() {
				now += us
				q, ok := m.Poll(now)
				if !ok {
					b.StopTimer()
					m = open()
					b.StartTimer()
					continue
				}
				m.Answered(now, 0, q.Range)
				for r := q.Range; !r.Empty(); {
					sub, v := m.Classify(r)
					if v == Fill {
						m.Accept(now, answerLine, sub)
					}
					r.First = sub.Next
				}
			}
		})
	}
}
