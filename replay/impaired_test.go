package replay

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/replay/impair"
	"github.com/moldtape/moldtape/replay/pace"
)

func line(t *testing.T, name string, next Sender, c impair.Config) Link {
	t.Helper()
	l, err := impair.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return Link{Name: name, Next: next, Line: l}
}

// every is a recording of n packets d ns apart.
func every(n int, d int64) *tape {
	var at []int64
	for i := range int64(n) {
		at = append(at, i*d)
	}
	return train(at...)
}

// Two lines are harmed apart, and what is noted is what went: whatever the
// speed, and with calls that fail on the way.
func TestImpaired(t *testing.T) {
	harm := impair.Config{Loss: 0.1, BurstLoss: 0.005, BurstLen: 4, Duplicate: 0.1, Reorder: 0.1, Depth: 4, Seed: 5}
	run := func(t *testing.T, p pace.Config) (a, b *wire, notes []Harm, rep Report) {
		bubble(t, func(t *testing.T) {
			a, b = newWire(t), newWire(t)
			for i, w := range []*wire{a, b} {
				calls := 0
				w.fails = func(int) (int, error) {
					if calls++; calls%(7+i) == 0 {
						return 1, errBroken
					}
					return 99, nil
				}
			}
			other := harm
			other.Seed = impair.Derive(harm.Seed, 1)
			s := NewImpaired([]Link{line(t, "A", a, harm), line(t, "B", b, other)}, func(h Harm) { notes = append(notes, h) })
			rep = play(t, Config{Streams: []Stream{every(1000, 10*ms).stream(s)}, Pace: p, Linger: 3 * time.Second})
		})
		return a, b, notes, rep
	}
	a, b, notes, rep := run(t, pace.Config{})
	if rep.Packets != 1000 || rep.Messages != 1000 {
		t.Errorf("report %+v", rep)
	}
	for name, w := range map[string]*wire{"A": a, "B": b} {
		copies := map[moldcast.Seq]int{}
		for _, s := range w.data() {
			copies[s.pkt.First]++
		}
		want := map[moldcast.Seq]int{}
		for q := range moldcast.Seq(1000) {
			want[q+1] = 1
		}
		last, late := uint64(0), 0
		for _, h := range notes {
			if h.Line != name {
				continue
			}
			if h.Packet <= last || h.First != moldcast.Seq(h.Packet) || h.Messages != 1 || h.Session != sessionA {
				t.Fatalf("noted %+v after packet %d", h, last)
			}
			last = h.Packet
			if h.Fate.Lost != impair.NotLost {
				delete(want, h.First)
			}
			if h.Fate.Duplicate {
				want[h.First]++
			}
			if h.Fate.Reorder > 0 {
				late++
			}
		}
		if fmt.Sprint(copies) != fmt.Sprint(want) {
			t.Errorf("line %s: what came is not what is noted", name)
		}
		if late < 50 || slices.IsSorted(w.firsts()) {
			t.Errorf("line %s: %d out of order", name, late)
		}
		if e := w.of(moldcast.End); len(e) < 2 || w.out[len(w.out)-len(e)].pkt.Kind != moldcast.End {
			t.Errorf("line %s: %d ends, or data behind them", name, len(e))
		}
	}
	if slices.Equal(a.firsts(), b.firsts()) {
		t.Error("both lines are harmed alike")
	}
	for _, p := range []pace.Config{{}, {Speed: 50}, {Max: true}, {Rate: 3}} {
		a2, b2, notes2, _ := run(t, p)
		if !slices.Equal(notes, notes2) {
			t.Errorf("%+v: the same seed harms other packets", p)
		}
		if p.Rate == 0 { // else heartbeats come between, and let go what waits
			equal(t, "line A", a2.firsts(), a.firsts())
			equal(t, "line B", b2.firsts(), b.firsts())
		}
	}
}

// Delayed packets go at their own time: others, and other streams, at theirs.
func TestJitterLeavesOthersAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, c := newWire(t), newWire(t), newWire(t)
		const most = 35 * time.Millisecond
		delays := map[moldcast.Seq]time.Duration{}
		s := NewImpaired([]Link{line(t, "A", a, impair.Config{Jitter: most, Seed: 3}), {Name: "B", Next: b}},
			func(h Harm) { delays[h.First] = h.Fate.Delay })
		x, y := every(500, 10*ms).stream(s), every(500, 10*ms).stream(c)
		y.Session = name("OTHER")
		rep := play(t, Config{Streams: []Stream{x, y}, Linger: time.Second})
		if rep.PacingError.Max != 0 || rep.Packets != 1000 {
			t.Errorf("report %+v", rep)
		}
		if len(delays) < 490 {
			t.Errorf("%d delayed", len(delays))
		}
		for _, s := range a.data() {
			want := time.Duration(s.pkt.First-1)*10*time.Millisecond + delays[s.pkt.First]
			if got := s.at - b.data()[0].at; got != want {
				t.Fatalf("packet %d went at %v, want %v", s.pkt.First, got, want)
			}
		}
		if len(a.data()) != 500 || slices.IsSorted(a.firsts()) {
			t.Errorf("%d packets, or none overtook another", len(a.data()))
		}
		for i, w := range []*wire{b, c} {
			for k, at := range w.times() {
				if at != int64(k)*10*ms {
					t.Fatalf("wire %d: packet %d at %d", i, k, at)
				}
			}
		}
		e := a.of(moldcast.End)
		if len(e) == 0 || a.out[len(a.out)-len(e)].pkt.Kind != moldcast.End {
			t.Error("data behind the end")
		}
	})
}

// What is held back when a replay is cut short goes all the same: it counts as
// sent.
func TestImpairedCutShort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := NewImpaired([]Link{line(t, "A", w, impair.Config{Reorder: 1, Depth: 50, Jitter: 5 * time.Second})}, nil)
		p, result, cancel := start(t, Config{Streams: []Stream{every(2000, 10*ms).stream(s)}})
		after(3 * time.Second)
		cancel()
		rep, err := result()
		if err != ErrInterrupted {
			t.Fatal(err)
		}
		if got := w.firsts(); len(got) != int(rep.Packets) || p.Published(0) != moldcast.Seq(len(got))+1 {
			t.Errorf("%d packets went, report %+v, published %d", len(got), rep, p.Published(0))
		}
	})
}

// A packet goes through the lines once, however often its sending fails, and
// counts when all that came of it went on every line.
func TestImpairedRetries(t *testing.T) {
	for broken := range 12 { // calls that fail, at each place in turn
		a, b := newWire(t), newWire(t)
		calls := 0
		fail := func(int) (int, error) {
			if calls++; calls-1 == broken || calls-1 == broken+1 {
				return calls % 3, errBroken
			}
			return 99, nil
		}
		a.fails, b.fails = fail, fail
		s := NewImpaired([]Link{line(t, "A", a, impair.Config{Duplicate: 1}), {Name: "B", Next: b}}, nil)
		batch := make([][]byte, 7)
		for i := range batch {
			batch[i] = moldcast.AppendMessage(moldcast.AppendHeader(nil, sessionA, moldcast.Seq(i+1), 1), []byte("x"))
		}
		total := 0
		for len(batch) > 0 {
			n, err := s.Send(batch)
			if n < len(batch) && err == nil {
				t.Fatal("a short send without an error")
			}
			batch, total = batch[n:], total+n
		}
		for s.Mark(moldcast.AppendHeader(nil, sessionA, 8, 0)) != nil {
		}
		equal(t, "line A", a.firsts(), []moldcast.Seq{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7})
		equal(t, "line B", b.firsts(), []moldcast.Seq{1, 2, 3, 4, 5, 6, 7})
		for _, w := range []*wire{a, b} {
			if h := w.of(moldcast.Heartbeat); len(h) == 0 || w.out[len(w.out)-1].pkt.Kind != moldcast.Heartbeat {
				t.Errorf("broken at %d: heartbeats %v", broken, h)
			}
		}
		if d, err := s.Advance(1); total != 7 || d != gap.Never || err != nil {
			t.Errorf("broken at %d: %d counted, due %d, %v", broken, total, d, err)
		}
	}
}

// Nothing is allocated for a packet on its way through the lines.
func TestImpairedDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates: counted without it")
		return
	}
	harm := impair.Config{Loss: 0.1, Duplicate: 0.1, Reorder: 0.2, Jitter: time.Millisecond}
	noted := 0
	s := NewImpaired([]Link{line(t, "A", new(drain), harm), line(t, "B", new(drain), harm)}, func(Harm) { noted++ })
	batch := make([][]byte, batchSize)
	for i := range batch {
		batch[i] = moldcast.AppendMessage(moldcast.AppendHeader(nil, sessionA, 1, 1), make([]byte, 100))
	}
	now := moldcast.Instant(0)
	step := func() {
		now += 64_000
		binary.BigEndian.PutUint64(batch[0][moldcast.SessionSize:], uint64(now))
		if _, err := s.Advance(now); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Send(batch); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n > 0 || noted == 0 {
		t.Errorf("%v allocations a batch", n)
	}
}
