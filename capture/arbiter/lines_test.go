package arbiter

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// TestLineLoss: what a line brought, repeated, lost and may still bring,
// against every message looked at.
func TestLineLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := starts.Draw(t, "first")
		count := moldcast.Seq(rapid.IntRange(1, 200).Draw(t, "messages"))
		packets := feed(t, moldcast.Range{First: start, Next: start + count}, rapid.SampledFrom([]int{0, 20, 50}).Draw(t, "loss"), "A")
		s := &Session{name: session("LINE"), lines: make([]lineState, 1)}
		l := &s.lines[0]
		var now moldcast.Instant
		var first, next moldcast.Seq
		brought := map[moldcast.Seq]bool{}
		passed := map[moldcast.Seq]moldcast.Instant{}
		var messages, repeated, lost, late uint64
		for _, r := range packets {
			now += moldcast.Instant(rapid.SampledFrom([]int64{0, 1e6, 4e8}).Draw(t, "pause"))
			fresh := false
			if next == 0 {
				first, next = r.First, r.First
			}
			for q := r.Next; q < first; q++ {
				passed[q] = now
			}
			for q := next; q < r.First; q++ {
				passed[q] = now
			}
			for q := r.First; q < r.Next; q++ {
				messages++
				_, missing := passed[q]
				switch {
				case q >= next:
				case q < first || missing:
					fresh = true
					delete(passed, q)
				default:
					repeated++
				}
				brought[q] = true
			}
			if fresh {
				late++
			}
			first, next = min(first, r.First), max(next, r.Next)
			// The oldest are given up first, in order of sequence.
			for q := first; q < next; q++ {
				at, ok := passed[q]
				if !ok {
					continue
				}
				if now-at < moldcast.Instant(LossWait) {
					break
				}
				delete(passed, q)
				lost++
			}
			p, err := moldcast.Parse(bodies(s.name, r))
			if err != nil {
				t.Fatal(err)
			}
			s.account(now, epoch, 0, p)
			var st LineStats
			s.line(now, 0, false, &st)
			if st.Messages != messages || st.Repeated != repeated || st.Lost != lost || st.Missing != uint64(len(passed)) || st.Disorder.Count() != late {
				t.Fatalf("after %v: %d messages, %d repeated, %d lost, %d missing, %d late; want %d %d %d %d %d; %v",
					r, st.Messages, st.Repeated, st.Lost, st.Missing, st.Disorder.Count(), messages, repeated, lost, len(passed), late, l.passed)
			}
			if uint64(next-first) != st.Messages-st.Repeated+st.Lost+st.Missing {
				t.Fatalf("%d messages span %v..%v: %+v", next-first, first, next, st)
			}
		}
	})
}

// TestLineTableIsBounded: what is lost in more pieces than are kept is lost at
// once, and counted once.
func TestLineTableIsBounded(t *testing.T) {
	s := &Session{name: session("LINE"), lines: make([]lineState, 1)}
	const packets = 10_000
	for i := range moldcast.Seq(packets) {
		p, _ := moldcast.Parse(bodies(s.name, moldcast.Range{First: 1 + 2*i, Next: 2 + 2*i}))
		s.account(0, epoch, 0, p)
		if n := len(s.lines[0].passed); n > maxPassed {
			t.Fatalf("%d ranges", n)
		}
	}
	var st LineStats
	s.line(0, 0, false, &st)
	if st.Lost+st.Missing != packets-1 || st.Missing > maxPassed || st.Missing < maxPassed/2 {
		t.Fatalf("%d lost, %d missing", st.Lost, st.Missing)
	}
	st = LineStats{}
	if s.line(0, 0, true, &st); st.Lost != packets-1 || st.Missing != 0 {
		t.Fatalf("when nothing comes any more: %d lost, %d missing", st.Lost, st.Missing)
	}
}

// lines2 is an arbiter with two lines on which a session is taken up.
func lines2(t *testing.T) (*Arbiter, *Session) {
	t.Helper()
	a, err := New(Config{Lines: 2, Start: Live}, &discard{})
	if err != nil {
		t.Fatal(err)
	}
	d := moldcast.AppendHeader(nil, session("L"), 1, 0)
	a.Offer(0, epoch, 0, sender, d)
	a.Offer(0, epoch, 1, sender, d)
	return a, a.sessions[session("L")]
}

// TestSkew: which line was first is told by the stamps, not by which was
// looked at first; whatever the framing.
func TestSkew(t *testing.T) {
	a, s := lines2(t)
	at := func(us int64) moldcast.Stamp { return epoch + moldcast.Stamp(us*1000) }
	now := moldcast.Instant(time.Second)
	for i := range int64(100) {
		q := moldcast.Seq(1 + 10*i)
		t0 := i * 1000
		late := int64(20) // B comes 20 µs later; each tenth time A 300 µs later
		if i%10 == 9 {
			late = -300
		}
		a.Offer(now, at(t0), 0, sender, bodies(s.name, moldcast.Range{First: q, Next: q + 10}))
		if i%2 == 0 {
			a.Offer(now, at(t0+late), 1, sender, bodies(s.name, moldcast.Range{First: q, Next: q + 10}))
			continue
		}
		a.Offer(now, at(t0+late-1), 1, sender, bodies(s.name, moldcast.Range{First: q, Next: q + 4}))
		a.Offer(now, at(t0+late), 1, sender, bodies(s.name, moldcast.Range{First: q + 4, Next: q + 10}))
	}
	st := a.LineStats(a.now)
	A, B := &st.Lines[0], &st.Lines[1]
	// The 50 packets that B cut in two were compared twice: the first ends
	// within A's.
	if A.Compared != 150 || B.Compared != 150 || A.First != 130 || B.First != 20 {
		t.Fatalf("A first in %d of %d, B in %d of %d", A.First, A.Compared, B.First, B.Compared)
	}
	if A.Skew.Count() != 20 || A.Skew.Max() != 301_000 || B.Skew.Count() != 130 || B.Skew.Max() != 20_000 {
		t.Fatalf("A %d times later, by %d at most; B %d times, by %d", A.Skew.Count(), A.Skew.Max(), B.Skew.Count(), B.Skew.Max())
	}
	if A.Taken != 1000 || B.Taken != 0 || B.Messages != 1000 || A.Packets != 101 || A.Heartbeats != 1 {
		t.Fatalf("A took %d of %d messages in %d packets, B %d of %d", A.Taken, A.Messages, A.Packets, B.Taken, B.Messages)
	}

	// A line farther behind than what is remembered, or beside a clock that was
	// set, is not compared.
	before := B.Compared
	for i := range moldcast.Seq(2 * maxArrivals) {
		a.Offer(now, at(200_000), 0, sender, bodies(s.name, moldcast.Range{First: 1001 + i, Next: 1002 + i}))
	}
	a.Offer(now, at(200_000), 1, sender, bodies(s.name, moldcast.Range{First: 1001, Next: 1101}))
	a.Offer(now, at(60_000_000), 1, sender, bodies(s.name, moldcast.Range{First: 1001 + maxArrivals, Next: 1102 + maxArrivals}))
	if st := a.LineStats(a.now); st.Lines[1].Compared != before {
		t.Fatalf("compared %d times", st.Lines[1].Compared-before)
	}
	a.Offer(now, at(200_001), 1, sender, bodies(s.name, moldcast.Range{First: 1102 + maxArrivals, Next: 1103 + maxArrivals}))
	if st := a.LineStats(a.now); st.Lines[1].Compared != before+1 {
		t.Fatalf("compared %d times", st.Lines[1].Compared-before)
	}
}

// TestTimes: how long messages waited, and gaps were open.
func TestTimes(t *testing.T) {
	a, s := lines2(t)
	ms := func(n int64) moldcast.Instant { return moldcast.Instant(n * 1e6) }
	offer := func(n int64, line int, r moldcast.Range) {
		a.Offer(ms(n), epoch, line, sender, bodies(s.name, r))
		a.Poll(ms(n))
	}
	offer(10, 0, moldcast.Range{First: 1, Next: 5})
	offer(20, 0, moldcast.Range{First: 7, Next: 9})
	offer(21, 1, moldcast.Range{First: 1, Next: 7}) // in time
	offer(30, 0, moldcast.Range{First: 11, Next: 13})
	a.Poll(ms(32)) // an island
	a.Poll(ms(40)) // settled
	offer(50, 1, moldcast.Range{First: 7, Next: 11})
	st := a.LineStats(a.now)
	if w := &st.Wait; w.Count() != 2 || w.Max() != int64(ms(2)) || w.Sum() != uint64(ms(3)) {
		t.Errorf("%d packets waited, %v at most", w.Count(), time.Duration(w.Max()))
	}
	if r := &st.Repair; r.Count() != 1 || r.Max() != int64(ms(20)) {
		t.Errorf("%d gaps recovered, after %v at most", r.Count(), time.Duration(r.Max()))
	}
	if c := a.Counters(); c.InOrder != 4 || c.Early != 4 || c.Filled != 4 {
		t.Errorf("%d in order, %d early, %d filled", c.InOrder, c.Early, c.Filled)
	}

	// What a session counted stays when it is closed, with the tail that a line
	// never brought.
	end := moldcast.AppendHeader(nil, s.name, 13, moldcast.EndCount)
	a.Offer(ms(60), epoch+1, 0, sender, end)
	a.Poll(ms(60))
	if was := a.LineStats(ms(60)); was.Lines[0].Missing != 4 || was.Lines[0].Lost != 0 {
		t.Errorf("A misses %d", was.Lines[0].Missing)
	}
	was := a.LineStats(ms(3_600_000))
	a.Poll(ms(3_600_000))
	if st := a.LineStats(a.now); len(a.Sessions()) != 0 || st.Lines[1].Lost != 2 || st.Lines[0].Lost != 4 ||
		st.Lines[0] != was.Lines[0] || st.Lines[1] != was.Lines[1] || st.Repair != was.Repair || st.Wait != was.Wait {
		t.Errorf("B lost %d, A %d; %d sessions", st.Lines[1].Lost, st.Lines[0].Lost, len(a.Sessions()))
	}
	if now, stamp, ever := a.Heard(0); now != ms(60) || stamp != epoch+1 || !ever {
		t.Errorf("A heard at %v, %v", now, stamp)
	}
}

// checkLineLaws holds of any arbiter at any time.
func checkLineLaws(t tester, a *Arbiter) {
	c := a.Counters()
	st := a.LineStats(a.now)
	waits, _ := a.Waiting()
	if held := c.InOrder + c.Early + c.Filled + c.Stale; held < c.Messages+waits || held > c.Messages+waits+c.QueueDropped {
		t.Fatalf("%d messages with a verdict, %d stored, %d wait, %d dropped", held, c.Messages, waits, c.QueueDropped)
	}
	var packets, taken uint64
	for i := range st.Lines {
		l := &st.Lines[i]
		packets += l.Packets
		taken += l.Taken
		if l.Repeated > l.Messages || l.First+l.Skew.Count() != l.Compared {
			t.Fatalf("line %d: %d of %d messages repeated; first in %d, later in %d of %d", i, l.Repeated, l.Messages, l.First, l.Skew.Count(), l.Compared)
		}
	}
	if packets > c.Packets+c.Retaken || taken > c.InOrder+c.Early+c.Filled+c.Stale {
		t.Fatalf("lines brought %d packets of %d, %d messages", packets, c.Packets, taken)
	}
	if n := st.Repair.Count(); n != c.GapsRecovered {
		t.Fatalf("%d repair times of %d gaps", n, c.GapsRecovered)
	}
}
