package gap

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// ringServer is a request server that keeps the newest messages of the
// stream, or all of them.
type ringServer struct {
	keeps Seq // 0: all
	lacks Set // of that
	dead  bool
	fits  Seq
	loss  float64 // of requests, and of answers
	rtt   Instant
	perS  int // most answers a second; 0: no bound
	free  Instant
	asked int // requests
	gone  int // of those, for what it no longer had
}

// stream is a feed in virtual time with a Machine that hears it.
type stream struct {
	m       *Machine
	servers []*ringServer
	rng     *rand.Rand
	perS    int
	now     Instant
	head    Seq  // of the feed
	busy    bool // nothing is taken in

	flying   []arrival // by time
	lost     uint64
	answers  []Seq // the order in which messages were recovered
	record   bool
	twice    *uint64 // counts messages of answers that were held
	requests int
}

type arrival struct {
	at     Instant
	server int
	r      Range
}

func newStream(c Config, perS int, servers ...*ringServer) *stream {
	c.Servers, c.Seed = len(servers), 1
	return &stream{m: New(c), servers: servers, rng: rand.New(rand.NewPCG(1, 2)), perS: perS, head: 1}
}

// due does what falls due before at.
func (s *stream) due(at Instant) {
	for {
		d := s.m.Deadline()
		if len(s.flying) > 0 {
			d = min(d, s.flying[0].at)
		}
		if d >= at {
			s.now = max(s.now, at)
			return
		}
		s.now = max(s.now, d)
		for len(s.flying) > 0 && s.flying[0].at <= s.now {
			a := s.flying[0]
			s.flying = s.flying[1:]
			s.m.Answered(s.now, a.server, a.r)
			if s.busy {
				s.m.Hold(s.now, true)
				continue
			}
			take(s.m, s.now, answerLine, a.r, func(r Range, v Verdict) {
				if s.record && v == Fill {
					s.answers = append(s.answers, r.First)
				}
				if s.twice != nil && v == Duplicate {
					*s.twice += r.Len()
				}
			})
		}
		s.poll()
	}
}

func (s *stream) poll() {
	for {
		q, ok := s.m.Poll(s.now)
		if !ok {
			break
		}
		s.ask(q)
	}
	for r, ok := s.m.Lost(); ok; r, ok = s.m.Lost() {
		s.lost += r.Len()
	}
}

func (s *stream) ask(q Request) {
	v := s.servers[q.Server]
	v.asked++
	s.requests++
	low := Seq(0)
	if v.keeps > 0 && s.head > v.keeps {
		low = s.head - v.keeps
	}
	switch {
	case q.Range.First >= s.head, v.dead || s.rng.Float64() < v.loss || v.lacks.Contains(q.Range.First):
		return
	case q.Range.First < low:
		v.gone++
		return
	}
	if s.rng.Float64() < v.loss {
		return
	}
	at := s.now + v.rtt + Instant(s.rng.Int64N(int64(v.rtt)/4+1))
	if v.perS > 0 {
		v.free = max(v.free, s.now) + interval(v.perS)
		at += v.free - s.now
	}
	r := Range{q.Range.First, min(q.Range.Next, q.Range.First+v.fits, s.head)}
	for x := r.First; x < r.Next; x++ {
		if v.lacks.Contains(x) {
			r.Next = x
		}
	}
	i, _ := slices.BinarySearchFunc(s.flying, at, func(a arrival, at Instant) int { return cmp.Compare(a.at, at) })
	s.flying = slices.Insert(s.flying, i, arrival{at, q.Server, r})
}

// run publishes n messages, one a packet, of which the machine hears those
// outside missed.
func (s *stream) run(n int, heard bool) {
	step := interval(s.perS)
	for range n {
		s.due(s.now + step)
		r := Range{s.head, s.head + 1}
		s.head++
		switch {
		case s.busy:
			s.m.Hold(s.now, true)
			s.m.Passed(s.now, 0, r)
			s.m.Reveal(s.now, 0, r.Next)
		case heard:
			s.m.Passed(s.now, 0, r)
			take(s.m, s.now, 0, r, func(Range, Verdict) {})
		}
		s.poll()
	}
}

func (s *stream) free() {
	s.busy = false
	s.m.Hold(s.now, false)
}

func (s *stream) check(t *testing.T) {
	t.Helper()
	if err := s.m.check(); err != nil {
		t.Fatal(err)
	}
}

// TestRing: a gap before a sender whose ring is short, one message an answer.
// What is in the ring when asking begins is got, whatever of the gap has left
// it before; what has left costs few requests, and is lost, once.
func TestRing(t *testing.T) {
	const ring, rate = 51_000, 9000
	for _, c := range []struct {
		name   string
		config Config
		gap    int
		server ringServer
		others []*ringServer
		wrong  int // of a thousand in the ring, those that may be lost
		waste  int // requests for what has gone
	}{
		{name: "in the ring", gap: 36_000, wrong: 0, waste: 64},
		{name: "half gone", gap: 72_000, wrong: 50, waste: 250},
		{name: "most gone", gap: 600_000, wrong: 40, waste: 250},
		{name: "loss", gap: 72_000, server: ringServer{loss: 0.01}, wrong: 50, waste: 250},
		{name: "far", gap: 72_000, server: ringServer{rtt: 3 * ms}, wrong: 60, waste: 400},
		{name: "beside a dead one", gap: 72_000, others: []*ringServer{{dead: true}}, wrong: 40, waste: 250},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := c.server
			v.keeps, v.fits, v.rtt = ring, 1, max(v.rtt, 200*us)
			for _, o := range c.others {
				o.fits, o.rtt = 1, 200*us
			}
			s := newStream(c.config, rate, append([]*ringServer{&v}, c.others...)...)
			s.run(1000, true)
			s.busy = true
			s.run(c.gap, false)
			if s.requests > 0 || s.lost > 0 {
				t.Fatalf("%d requests, %d lost while nothing is taken in", s.requests, s.lost)
			}
			s.free()
			begun := s.now
			s.run(30*rate, true)
			s.check(t)
			st := s.m.Stats()
			gone := max(0, c.gap-ring)
			t.Logf("%d of %d recovered, %d lost, %d had gone; %d requests, %d for what had gone, %d/s, reach %d; %v",
				st.MessagesRecovered, c.gap, s.lost, gone, s.requests, v.gone, st.Rate, st.Reach, time.Duration(s.now-begun))
			if wrong := int(s.lost) - gone; wrong > ring*c.wrong/1000 || s.lost != st.MessagesLost || int(s.lost)+int(st.MessagesRecovered) < c.gap {
				t.Errorf("%d lost that were in the ring", wrong)
			}
			if v.gone > c.waste {
				t.Errorf("%d requests for what had gone", v.gone)
			}
			for _, o := range c.others {
				if o.asked > v.asked/50+20 {
					t.Errorf("%d requests to a server that does not answer", o.asked)
				}
			}
		})
	}
}

// TestRingTooFast: where the rate allowed cannot keep up with what leaves the
// ring, most requests still bring something.
func TestRingTooFast(t *testing.T) {
	v := &ringServer{keeps: 20_000, fits: 1, rtt: 200 * us}
	s := newStream(Config{RequestsPerSecond: 1000}, 9000, v)
	s.run(1000, true)
	s.busy = true
	s.run(72_000, false)
	s.free()
	s.run(20*9000, true)
	s.check(t)
	t.Logf("%+v, %d requests, %d gone", s.m.Stats(), v.asked, v.gone)
	if got, ideal := s.m.Stats().MessagesRecovered, uint64(20_000/9*10/10); got < ideal*9/10 {
		t.Errorf("%d recovered; %d could be", got, ideal)
	}
	if v.gone > v.asked/8 {
		t.Errorf("%d of %d requests were for what had gone", v.gone, v.asked)
	}
}

// TestArchive: a server that has everything is asked for the oldest first, also
// beside a sender that has only the newest, and where it lacks some itself.
func TestArchive(t *testing.T) {
	for _, c := range []struct {
		name  string
		lacks []Range
		ring  bool
		loss  float64
	}{
		{name: "all"},
		{name: "loss", loss: 0.05},
		{name: "holes", lacks: []Range{{5000, 9000}, {30_000, 30_001}, {50_000, 50_500}}},
		{name: "lowest", lacks: []Range{{1000, 3000}}},
		{name: "beside a ring", ring: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &ringServer{fits: 3, rtt: 500 * us, loss: c.loss}
			for _, r := range c.lacks {
				v.lacks.Add(r)
			}
			servers := []*ringServer{v}
			if c.ring {
				servers = []*ringServer{{keeps: 10_000, fits: 1, rtt: 200 * us}, v}
			}
			s := newStream(Config{}, 9000, servers...)
			s.run(999, true)
			s.run(72_000, false)
			s.record = true
			s.run(40*9000, true)
			s.check(t)
			st := s.m.Stats()
			t.Logf("%d recovered, %d lost of %d lacked; %d requests, %d/s, reach %d", st.MessagesRecovered, s.lost, v.lacks.Count(), s.requests, st.Rate, st.Reach)
			// What it has right beside a hole may be taken for a part of that.
			want := 72_000 - v.lacks.Count()
			if v.lacks.Count() > 0 {
				want -= want / 50
			}
			if st.MessagesRecovered < want {
				t.Errorf("%d recovered of %d", st.MessagesRecovered, 72_000-v.lacks.Count())
			}
			late := 0
			for i := 1; i < len(s.answers); i++ {
				if s.answers[i]+200 < s.answers[i-1] {
					late++
				}
			}
			if late > len(s.answers)/10 {
				t.Errorf("%d of %d answers not oldest first", late, len(s.answers))
			}
		})
	}
}

// TestForgedFront: packets that say that the stream is far ahead keep nothing
// of it from being asked for.
func TestForgedFront(t *testing.T) {
	const rate = 9000
	for _, jump := range []Seq{90_000, 1 << 40} {
		v := &ringServer{keeps: 51_000, fits: 1, rtt: 200 * us}
		s := newStream(Config{}, rate, v)
		s.run(60_000, true)
		s.busy = true
		s.run(60_000, false) // more than the ring: its length is learnt
		s.free()
		s.run(10*rate, true)
		for i := range Seq(2) {
			r := Range{s.head + jump + i, s.head + jump + i + 1}
			s.m.Passed(s.now, 0, r)
			take(s.m, s.now, 0, r, func(Range, Verdict) {})
		}
		s.record = true
		var missing []Seq
		for range 50 {
			s.run(97, true)
			missing = append(missing, s.head, s.head+1, s.head+2)
			s.run(3, false)
		}
		s.run(rate, true)
		s.check(t)
		left := 0
		for _, q := range missing {
			if !slices.Contains(s.answers, q) {
				left++
			}
		}
		if left > 0 {
			t.Errorf("jump of %d: %d of %d missing messages not recovered", jump, left, len(missing))
		}
	}
}
