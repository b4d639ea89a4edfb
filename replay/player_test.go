package replay

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/pace"
)

func TestOriginalPacketsAtOriginalTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := new(tape).add(7, 3, 0, 20).add(10, 1, 250*us, 0).add(11, 40, 251*us, 30).add(51, 1, 3*s1, 60000)
		w := newWire(t)
		rep := play(t, Config{Streams: []Stream{tp.stream(w)}})
		equal(t, "times", w.times(), []int64{0, 250 * us, 251 * us, 3 * s1})
		for i, s := range w.data() {
			want := moldcast.AppendHeader(nil, sessionA, tp.pieces[i].First, uint16(tp.pieces[i].Msgs.Len()))
			want = append(want, tp.pieces[i].Msgs.Framed()...)
			if !bytes.Equal(s.raw, want) {
				t.Errorf("packet %d is not the recorded one", i)
			}
		}
		if rep.Packets != 4 || rep.Messages != 45 || rep.Bytes != 60+0+1200+60000 || rep.Elapsed != 3 || rep.Scheduled != 3 || rep.PacingError != (Errors{}) {
			t.Errorf("report %+v", rep)
		}
		if tp.opened != tp.closed {
			t.Errorf("%d sources opened, %d closed", tp.opened, tp.closed)
		}
	})
}

// Two hours, a packet each 0.75 s in the mean, through a sender that takes 50 µs a packet:
// what each packet is late by does not add up, and the end is not at full
// speed.
func TestFaultDriftOverHours(t *testing.T) {
	for _, speed := range []float64{1, 3} {
		bubble(t, func(t *testing.T) {
			tp := new(tape)
			body := moldcast.AppendMessage(nil, []byte("x"))
			at, x := int64(0), uint64(88172645463325252)
			for seq := moldcast.Seq(1); at < 7200*s1; seq++ {
				tp.pieces = append(tp.pieces, moldcast.Piece{First: seq, Msgs: moldcast.MessagesOf(body, 1), Time: moldcast.Stamp(day0 + at)})
				tp.first, tp.head = 1, seq+1
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				at += int64(x % 1_500_000_000)
			}
			const takes = 50 * time.Microsecond
			w := newWire(t)
			w.takes = takes
			rep := play(t, Config{Streams: []Stream{tp.stream(w)}, Pace: pace.Config{Speed: speed}, Heartbeat: time.Hour})
			worst := int64(0)
			times := w.times()
			for i, got := range times {
				want := int64(float64(tp.pieces[i].Time-tp.pieces[0].Time) / speed)
				worst = max(worst, got-want, want-got)
			}
			// Two packets that lie closer than a send takes queue up, briefly.
			if worst > 10*int64(takes) {
				t.Errorf("speed %v: a packet was %v off its time", speed, time.Duration(worst))
			}
			if d := rep.Elapsed - rep.Scheduled; d > 0.001 || d < -0.001 || len(times) != len(tp.pieces) {
				t.Errorf("speed %v: %d of %d packets, elapsed %v, scheduled %v", speed, len(times), len(tp.pieces), rep.Elapsed, rep.Scheduled)
			}
			if rep.PacingError.P50 < 45e-6 || rep.PacingError.P50 > 55e-6 {
				t.Errorf("median pacing error %v, want the 50 µs of a send", rep.PacingError.P50)
			}
		})
	}
}

func TestFaultSpeedSlowsDown(t *testing.T) {
	at := []int64{0, 100 * us, 1 * s1, 10 * s1}
	for _, tt := range []struct {
		pace pace.Config
		want []int64
	}{
		{pace.Config{Speed: 2}, []int64{0, 50 * us, s1 / 2, 5 * s1}},
		{pace.Config{Speed: 0.25}, []int64{0, 400 * us, 4 * s1, 40 * s1}},
		{pace.Config{Speed: 1000}, []int64{0, us / 10, 1 * ms, 10 * ms}},
		{pace.Config{Max: true}, []int64{0, 0, 0, 0}},
		{pace.Config{Rate: 100}, []int64{0, 10 * ms, 20 * ms, 30 * ms}},
		{pace.Config{MaxIdle: 2 * time.Second}, []int64{0, 100 * us, 1 * s1, 3 * s1}},
	} {
		bubble(t, func(t *testing.T) {
			w := newWire(t)
			rep := play(t, Config{Streams: []Stream{train(at...).stream(w)}, Pace: tt.pace})
			equal(t, "times", w.times(), tt.want)
			if want := time.Duration(tt.want[3]).Seconds(); rep.Scheduled != want || rep.Elapsed != want {
				t.Errorf("%+v: scheduled %v, elapsed %v, want %v", tt.pace, rep.Scheduled, rep.Elapsed, want)
			}
		})
	}
}

// Gaps below a millisecond are waited for, each of them.
func TestFaultShortGapsSkipped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var at []int64
		for i := range int64(500) {
			at = append(at, i*37*us)
		}
		w := newWire(t)
		play(t, Config{Streams: []Stream{train(at...).stream(w)}})
		equal(t, "times", w.times(), at)
		for _, n := range w.sizes {
			if n != 1 {
				t.Fatalf("a batch of %d packets that are not due together", n)
			}
		}
	})
}

// A slow source delays the start, not the packets.
func TestClockStartsWhenReadAheadEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var at []int64
		for i := range int64(200) {
			at = append(at, i*ms)
		}
		tp := train(at...)
		tp.slow = 20 * time.Millisecond
		w := newWire(t)
		rep := play(t, Config{Streams: []Stream{tp.stream(w)}, Heartbeat: time.Hour})
		equal(t, "times", w.times(), at)
		if first := w.data()[0].at; first < 4*time.Second || rep.PacingError.Max != 0 {
			t.Errorf("first packet at %v, before everything was read; report %+v", first, rep)
		}
	})
}

func TestFaultClockBeforeReadAheadIsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// Two packets fill a chunk.
		const n, full = 60, 2 * chunks
		tp := new(tape)
		for i := range n {
			tp.add(moldcast.Seq(i+1), 1, int64(i)*10*ms, 60000)
		}
		tp.slow = 10 * time.Millisecond
		w := newWire(t)
		rep := play(t, Config{Streams: []Stream{tp.stream(w)}, Heartbeat: time.Hour, ReadAhead: 256 << 10})
		if first := w.data()[0].at; first < full*tp.slow || first >= n*tp.slow {
			t.Errorf("first packet at %v", first)
		}
		if len(w.data()) != n || rep.PacingError.Max != 0 {
			t.Errorf("%d packets, report %+v", len(w.data()), rep)
		}
	})
}

func TestFaultEqualStampsLoseTheirOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := new(tape)
		var want []moldcast.Seq
		for i := range moldcast.Seq(300) {
			tp.add(i+1, 1, int64(i/100)*s1, 8)
			want = append(want, i+1)
		}
		w := newWire(t)
		play(t, Config{Streams: []Stream{tp.stream(w)}})
		equal(t, "order", w.firsts(), want)
		equal(t, "batches", w.sizes[:7], []int{1, 64, 36, 64, 36, 64, 36}) // a heartbeat opens
	})
}

// A step of the recorder's wall clock neither stalls nor reorders.
func TestBackwardStamps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		play(t, Config{Streams: []Stream{train(0, 10*ms, -3600*s1, 5*ms, 20*ms).stream(w)}})
		equal(t, "order", w.firsts(), []moldcast.Seq{1, 2, 3, 4, 5})
		equal(t, "times", w.times(), []int64{0, 10 * ms, 10 * ms, 10 * ms, 20 * ms})
	})
}

// Three sessions on one clock: each packet at its own time, also where one of
// them begins later or ends sooner.
func TestFaultSeveralSessionsNotOnOneClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		wires := []*wire{newWire(t), newWire(t), newWire(t)}
		tapes := []*tape{train(1*s1, 2*s1, 9*s1), train(0, 2*s1, 3*s1), train(5*s1, 5*s1+1)}
		c := Config{Pace: pace.Config{Speed: 2}}
		for i, tp := range tapes {
			s := tp.stream(wires[i])
			s.Session = name("S" + string(rune('0'+i)))
			c.Streams = append(c.Streams, s)
		}
		play(t, c)
		began := wires[1].data()[0].at
		for i, tp := range tapes {
			for k, s := range wires[i].data() {
				if want := time.Duration(int64(tp.pieces[k].Time)-day0) / 2; s.at-began != want {
					t.Errorf("session %d, packet %d: %v after the start, want %v", i, k, s.at-began, want)
				}
			}
			if ends := wires[i].of(moldcast.End); len(ends) != 1 || ends[0].pkt.First != tp.head || ends[0].at < wires[i].data()[len(tp.pieces)-1].at {
				t.Errorf("session %d: ends %+v", i, ends)
			}
		}
	})
}

func TestRangeCutsPackets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := new(tape).add(1, 4, 0, 9).add(5, 4, ms, 9).add(9, 4, 2*ms, 9)
		w := newWire(t)
		s := tp.stream(w)
		s.Range = moldcast.Range{First: 4, Next: 10}
		rep := play(t, Config{Streams: []Stream{s}})
		equal(t, "order", w.firsts(), []moldcast.Seq{4, 5, 9})
		if got := messages(w); !slices.Equal(got, []moldcast.Seq{4, 5, 6, 7, 8, 9}) {
			t.Errorf("messages %v", got)
		}
		if e := w.of(moldcast.End); len(e) != 1 || e[0].pkt.First != 10 {
			t.Errorf("end of session %+v, want one that carries 10", e)
		}
		if rep.Holes != 0 || rep.Messages != 6 {
			t.Errorf("report %+v", rep)
		}
	})
}

// messages is the sequences on the wire; each body must be the one of its
// sequence.
func messages(w *wire) []moldcast.Seq {
	var out []moldcast.Seq
	for _, s := range w.data() {
		m, seq := s.pkt.Msgs, s.pkt.First
		for m.Len() > 0 {
			b := m.Next()
			if !bytes.Equal(b, body(seq, len(b))) {
				w.t.Errorf("message %d has the bytes %q", seq, b)
			}
			out = append(out, seq)
			seq++
		}
	}
	return out
}

func holed() *tape { return new(tape).add(1, 2, 0, 9).add(5, 2, 10*s1, 9).add(9, 1, 11*s1, 9) }

func TestHoleSkipKeepsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := holed()
		tp.head = 12 // the tail is missing too
		w := newWire(t)
		rep := play(t, Config{Streams: []Stream{tp.stream(w)}})
		equal(t, "order", w.firsts(), []moldcast.Seq{1, 5, 9})
		equal(t, "times", w.times(), []int64{0, 10 * s1, 11 * s1})
		if rep.Holes != 3 {
			t.Errorf("%d holes, want 3", rep.Holes)
		}
		for _, h := range w.of(moldcast.Heartbeat) {
			if h.at > 0 && h.pkt.First != 3 {
				t.Errorf("heartbeat %d before the hole was passed", h.pkt.First)
			}
		}
		if e := w.of(moldcast.End); len(e) != 1 || e[0].pkt.First != 12 {
			t.Errorf("end %+v, want one that reveals the missing tail", e)
		}
	})
}

func TestHoleAtTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := holed().stream(w)
		s.Range.First = 4
		rep := play(t, Config{Streams: []Stream{s}})
		equal(t, "order", w.firsts(), []moldcast.Seq{5, 9})
		equal(t, "times", w.times(), []int64{0, s1})
		if rep.Holes != 2 {
			t.Errorf("%d holes, want 2", rep.Holes)
		}
	})
}

// A source that jumps without a word is held to it.
func TestSilentJumpIsAHole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := holed()
		w := newWire(t)
		s := tp.stream(w)
		s.Open = func(from moldcast.Seq) (Source, error) {
			src, err := tp.open(from)
			return mute{src}, err
		}
		rep := play(t, Config{Streams: []Stream{s}})
		equal(t, "order", w.firsts(), []moldcast.Seq{1, 5, 9})
		if rep.Holes != 2 {
			t.Errorf("%d holes, want 2", rep.Holes)
		}
	})
}

type mute struct{ Source }

func (m mute) Next() (moldcast.Piece, error) {
	for {
		p, err := m.Source.Next()
		var h *moldcast.HoleError
		if !errors.As(err, &h) {
			return p, err
		}
	}
}

func TestHoleStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := holed()
		tp.why = moldcast.Damaged
		w := newWire(t)
		_, result, _ := start(t, Config{Streams: []Stream{tp.stream(w)}, OnHole: Stop, Linger: time.Minute})
		rep, err := result()
		var stop *StopError
		if !errors.As(err, &stop) || !errors.Is(err, ErrHole) || stop.Range != (moldcast.Range{First: 3, Next: 5}) || stop.Reason != moldcast.Damaged {
			t.Fatalf("ended with %v", err)
		}
		equal(t, "order", w.firsts(), []moldcast.Seq{1})
		if len(w.of(moldcast.End)) != 0 || rep.Holes != 1 {
			t.Errorf("ends %v, report %+v", w.of(moldcast.End), rep)
		}
	})
}

func TestHoleWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := holed()
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{tp.stream(w)}, OnHole: Wait})
		after(30 * time.Second)
		if !p.Status().Waiting {
			t.Error("does not say that it waits")
		}
		equal(t, "before the fill", w.firsts(), []moldcast.Seq{1})
		tp.add(3, 1, 4*s1, 9) // half of it
		after(30 * time.Second)
		tp.add(4, 1, 5*s1, 9)
		tp.add(7, 2, 10*s1+ms, 9)
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "order", w.firsts(), []moldcast.Seq{1, 3, 4, 5, 7, 9})
		at := w.times()
		// The clock stood while a message was missing: the rhythm around it is
		// the recorded one.
		if d := at[1]; d < 34*s1 || d > 34*s1+s1/2 {
			t.Errorf("message 3 came %v after 1, want 30 s of waiting and 4 s of time", time.Duration(d))
		}
		if d := at[2] - at[1]; d < 27*s1 {
			t.Errorf("message 4 came %v after 3", time.Duration(d))
		}
		for i, want := range []int64{5 * s1, ms, 999 * ms} {
			if d := at[i+3] - at[i+2]; d != want {
				t.Errorf("packet %d came %v after the one before, want %v", i+3, time.Duration(d), time.Duration(want))
			}
		}
		if rep.Holes != 0 || rep.Elapsed-rep.Scheduled > 1e-6 {
			t.Errorf("report %+v", rep)
		}
		for _, h := range w.of(moldcast.Heartbeat) {
			if h.at > 10*time.Second && h.at < 29*time.Second && h.pkt.First != 3 {
				t.Errorf("heartbeat carries %d while 3 is waited for", h.pkt.First)
			}
		}
		if tp.opened != tp.closed {
			t.Errorf("%d sources opened, %d closed", tp.opened, tp.closed)
		}
	})
}

func TestHoleWaitInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		_, result, cancel := start(t, Config{Streams: []Stream{holed().stream(w)}, OnHole: Wait})
		after(5 * time.Second)
		cancel()
		rep, err := result()
		if !errors.Is(err, ErrInterrupted) || rep.Holes != 1 || len(w.of(moldcast.End)) != 0 {
			t.Errorf("%v, report %+v", err, rep)
		}
	})
}

func TestSourceFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := train(0, s1)
		tp.fail = errBroken
		w := newWire(t)
		s := tp.stream(w)
		s.Range.Next += 5
		_, result, _ := start(t, Config{Streams: []Stream{s}})
		rep, err := result()
		if !errors.Is(err, errBroken) || rep.Packets != 2 || len(w.of(moldcast.End)) != 0 {
			t.Errorf("%v, report %+v", err, rep)
		}
	})
}

func TestHeartbeatsAndEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := train(0, 3500*ms, 3600*ms).stream(w)
		rep := play(t, Config{Streams: []Stream{s}, Linger: 2500 * time.Millisecond})
		type mark struct {
			kind moldcast.Kind
			seq  moldcast.Seq
			at   int64
		}
		var got []mark
		for _, s := range w.out {
			got = append(got, mark{s.pkt.Kind, s.pkt.First, int64(s.at) / ms})
		}
		equal(t, "on the wire", got, []mark{
			{moldcast.Heartbeat, 1, 0}, {moldcast.Data, 1, 0}, {moldcast.Heartbeat, 2, 1000}, {moldcast.Heartbeat, 2, 2000}, {moldcast.Heartbeat, 2, 3000},
			{moldcast.Data, 2, 3500}, {moldcast.Data, 3, 3600},
			{moldcast.End, 4, 3600}, {moldcast.End, 4, 4600}, {moldcast.End, 4, 5600},
		})
		if took := time.Since(w.since); took != 6100*time.Millisecond {
			t.Errorf("ended after %v, want 6.1 s", took)
		}
		if rep.Heartbeats != 4 || rep.Packets != 3 || rep.Elapsed != 3.6 {
			t.Errorf("report %+v", rep)
		}
	})
}

func TestStartAt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		at := moldcast.StampOf(time.Now().Add(90*time.Second + 5))
		play(t, Config{Streams: []Stream{train(0, s1).stream(w)}, StartAt: at})
		if d := w.data()[0].at; d != 90*time.Second+5 {
			t.Errorf("first packet after %v", d)
		}
		equal(t, "times", w.times(), []int64{0, s1})
		if h := w.of(moldcast.Heartbeat); len(h) != 91 || h[0].pkt.First != 1 {
			t.Errorf("%d heartbeats before the start", len(h))
		}
	})
}

func TestInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		tp := train(0, s1, 2*s1, 100*s1)
		_, result, cancel := start(t, Config{Streams: []Stream{tp.stream(w)}, Linger: time.Hour})
		after(1500 * time.Millisecond)
		cancel()
		rep, err := result()
		if !errors.Is(err, ErrInterrupted) || rep.Packets != 2 || len(w.of(moldcast.End)) != 0 {
			t.Errorf("%v, report %+v, ends %v", err, rep, w.of(moldcast.End))
		}
		if time.Since(w.since) != 1500*time.Millisecond || tp.opened != tp.closed {
			t.Errorf("stopped after %v; %d opened, %d closed", time.Since(w.since), tp.opened, tp.closed)
		}
	})
	// In the linger everything was said: nothing is cut short.
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		_, result, cancel := start(t, Config{Streams: []Stream{train(0).stream(w)}, Linger: time.Hour})
		after(90 * time.Second)
		cancel()
		if _, err := result(); err != nil {
			t.Errorf("in the linger: %v", err)
		}
	})
}

func TestRunOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, result, _ := start(t, Config{Streams: []Stream{train(0).stream(newWire(t))}})
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("second run: %v", err)
		}
	})
}

func TestFaultResumeJumpsOverThePause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, 1*s1, 2*s1, 3*s1, 4*s1).stream(w)}})
		after(1500 * time.Millisecond)
		p.Toggle()
		after(60 * time.Second)
		if st := p.Status(); !st.Paused || st.Packets != 2 || int64(st.Position) != day0+1500*ms {
			t.Errorf("status %+v", st)
		}
		p.Toggle()
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "times", w.times(), []int64{0, s1, 62 * s1, 63 * s1, 64 * s1})
		if rep.Elapsed != rep.Scheduled || rep.PacingError.Max != 0 {
			t.Errorf("report %+v", rep)
		}
		if h := w.of(moldcast.Heartbeat); len(h) < 59 {
			t.Errorf("%d heartbeats in a pause of a minute", len(h))
		}
	})
}

func TestPauseBeforeTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, s1).stream(w)}, StartAt: moldcast.StampOf(time.Now().Add(10 * time.Second))})
		after(time.Second)
		p.Pause()
		after(time.Second)
		p.Resume() // still before the time that was asked for
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		if d := w.data()[0].at; d != 10*time.Second {
			t.Errorf("first packet after %v", d)
		}
	})
}

func TestScale(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, 10*s1, 30*s1).stream(w)}})
		after(4 * time.Second)
		p.Scale(2)
		after(time.Millisecond)
		if st := p.Status(); st.Speed != 2 {
			t.Errorf("status %+v", st)
		}
		after(5 * time.Second) // at recorded 14.002 s
		p.Scale(0.5)
		p.Scale(0.5)
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		equal(t, "times", w.times(), []int64{0, 7 * s1, 9001*ms + 2*15998*ms})
	})
}

func TestStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, 0, 10*s1, 20*s1, 21*s1).stream(w)}})
		after(time.Second)
		for range 2 {
			p.Step()
			after(time.Second)
		}
		equal(t, "stepped", w.firsts(), []moldcast.Seq{1, 2, 3, 4})
		p.Resume()
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		equal(t, "times", w.times(), []int64{0, 0, s1, 2 * s1, 4 * s1})
	})
}

// What is left of steps at the end of a loop does not go on in the next.
func TestStepsEndWithTheLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, 10*s1).stream(w)}, Loop: 2})
		after(time.Second)
		p.StepPackets(9)
		after(time.Hour)
		equal(t, "in the pause", w.firsts(), []moldcast.Seq{1, 2})
		p.Resume()
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		equal(t, "in all", w.firsts(), []moldcast.Seq{1, 2, 1, 2})
	})
}

func TestSeek(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var at []int64
		for i := range int64(100) {
			at = append(at, i*s1)
		}
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(at...).stream(w)}})
		after(2500 * time.Millisecond)
		p.SeekBy(10 * time.Second) // to 12.5 s: the next is 14 at 13 s
		after(time.Second)
		sp, _ := p.Space(sessionA)
		if p.Published(0) != 15 || sp.Clip(moldcast.Range{First: 2, Next: 9}) != (moldcast.Range{First: 2, Next: 4}) ||
			!sp.Clip(moldcast.Range{First: 4, Next: 9}).Empty() || sp.Clip(moldcast.Range{First: 14, Next: 99}) != (moldcast.Range{First: 14, Next: 15}) {
			t.Errorf("published %d, but what the seek passed over must not be", p.Published(0))
		}
		p.SeekBy(-9 * time.Second) // to 4.5 s
		after(3 * time.Second)
		if got := sp.Clip(moldcast.Range{First: 2, Next: 9}); got != (moldcast.Range{First: 2, Next: 4}) {
			t.Errorf("answers %v", got)
		}
		if got := sp.Clip(moldcast.Range{First: 6, Next: 99}); got != (moldcast.Range{First: 6, Next: 9}) {
			t.Errorf("answers %v of what was published after going back", got)
		}
		p.SeekTo(moldcast.Stamp(day0 - s1)) // before the first: to the first
		after(500 * time.Millisecond)
		p.SeekTo(moldcast.Stamp(day0 + 98*s1))
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "order", w.firsts(), []moldcast.Seq{1, 2, 3, 14, 6, 7, 8, 1, 99, 100})
		equal(t, "times", w.times(), []int64{0, s1, 2 * s1, 3 * s1, 4 * s1, 5 * s1, 6 * s1, 6500 * ms, 7 * s1, 8 * s1})
		if e := w.of(moldcast.End); len(e) != 1 || e[0].pkt.First != 101 || rep.Holes != 0 {
			t.Errorf("ends %v, report %+v", e, rep)
		}
	})
}

// A seek beyond the range ends it; the end is that of the range.
func TestSeekBeyondTheRange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := train(0, 10*s1, 20*s1, 30*s1).stream(w)
		s.Range.Next = 3
		p, result, _ := start(t, Config{Streams: []Stream{s}})
		after(time.Second)
		p.SeekBy(time.Hour)
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		if e := w.of(moldcast.End); len(e) != 1 || e[0].pkt.First != 3 || rep.Packets != 1 || p.Published(0) != 2 {
			t.Errorf("ends %v, report %+v, published %d", e, rep, p.Published(0))
		}
	})
}

func TestSeekInAPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, 10*s1, 20*s1, 30*s1).stream(w)}})
		after(time.Second)
		p.Pause()
		p.SeekBy(18 * time.Second)
		after(time.Minute)
		equal(t, "in the pause", w.firsts(), []moldcast.Seq{1})
		p.Resume()
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		equal(t, "times", w.times(), []int64{0, 62 * s1, 72 * s1})
	})
}

func TestQuit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{train(0, s1, 100*s1).stream(w)}})
		after(2 * time.Second)
		p.Quit()
		if rep, err := result(); !errors.Is(err, ErrInterrupted) || rep.Packets != 2 {
			t.Errorf("%v, report %+v", err, rep)
		}
	})
}

func TestLoopsAreSessionsOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := train(0, s1).stream(w)
		s.Session = name("LOOP")
		p, result, _ := start(t, Config{Streams: []Stream{s}, Loop: 10, Linger: time.Second})
		after(5 * time.Second) // in the third loop
		for _, n := range []string{"LOOP03", "LOOP02"} {
			if sp, ok := p.Space(name(n)); !ok || sp.Published() < 2 {
				t.Errorf("%s is not answered for", n)
			}
		}
		for _, n := range []string{"LOOP", "LOOP01", "LOOP04"} {
			if _, ok := p.Space(name(n)); ok {
				t.Errorf("%s is answered for", n)
			}
		}
		rep, err := result()
		if err != nil || rep.Packets != 20 {
			t.Fatalf("%v, report %+v", err, rep)
		}
		for i, d := range w.data() {
			if want, _ := LoopSession(name("LOOP"), i/2+1, 10); d.pkt.Session != want || d.at != time.Duration(int64(i/2)*2+int64(i%2))*time.Second {
				t.Errorf("packet %d: session %s at %v", i, d.pkt.Session, d.at)
			}
		}
		if e := w.of(moldcast.End); len(e) != 20 {
			t.Errorf("%d ends, want 2 a loop", len(e))
		}
	})
}

func TestLoopSession(t *testing.T) {
	for _, tt := range []struct {
		base        string
		loop, loops int
		want        string
	}{{"A", 1, 1, "A"}, {"A", 3, 9, "A3"}, {"A", 3, 10, "A03"}, {"EIGHTLET", 99, 99, "EIGHTLET99"}, {"EIGHTLET", 1, 100, ""}, {"%20", 1, 2, "1"}} {
		got, err := LoopSession(name(tt.base), tt.loop, tt.loops)
		if tt.want == "" {
			if !errors.Is(err, ErrConfig) {
				t.Errorf("%+v: %v", tt, err)
			}
		} else if err != nil || got != name(tt.want) {
			t.Errorf("%+v: %s, %v", tt, got, err)
		}
	}
}

// What a sender refuses is tried again, in order, and published only then.
func TestSendTrouble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := train(0, 0, 0, 0, 0, s1)
		w := newWire(t)
		w.fails = func(call int) (int, error) {
			switch {
			case call == 1: // behind the heartbeat
				return 2, errBroken
			case call > 0 && call < 6:
				return 0, errBroken
			}
			return 99, nil
		}
		p, result, _ := start(t, Config{Streams: []Stream{tp.stream(w)}})
		after(2 * time.Millisecond)
		if p.Published(0) != 3 {
			t.Errorf("published %d while the sender takes nothing, want 3", p.Published(0))
		}
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "messages", messages(w), []moldcast.Seq{1, 2, 3, 4, 5, 6})
		if rep.SendErrors != 5 || rep.Packets != 6 || w.times()[5] != s1 {
			t.Errorf("report %+v, times %v", rep, w.times())
		}
	})
}

func TestSendTroubleIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		w.fails = func(call int) (int, error) {
			if call >= 3 {
				return 0, errBroken
			}
			return 99, nil
		}
		p, result, _ := start(t, Config{Streams: []Stream{train(0, ms, 2*ms, 3*ms).stream(w)}, SendRetry: 3 * time.Second})
		rep, err := result()
		if !errors.Is(err, ErrSend) || !errors.Is(err, errBroken) {
			t.Errorf("ended with %v", err)
		}
		if rep.Packets != 2 || p.Published(0) != 3 || len(w.of(moldcast.End)) != 0 {
			t.Errorf("published %d, report %+v", p.Published(0), rep)
		}
		if d := time.Since(w.since); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("gave up after %v", d)
		}
	})
}

// A user who has enough does not wait for the tries to end.
func TestSendTroubleIsInterruptible(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		w.fails = func(call int) (int, error) {
			if call >= 2 {
				return 0, errBroken
			}
			return 99, nil
		}
		p, result, cancel := start(t, Config{Streams: []Stream{train(0, s1).stream(w)}, SendRetry: time.Hour})
		after(5 * time.Second)
		cancel()
		rep, err := result()
		if !errors.Is(err, ErrInterrupted) || rep.Packets != 1 || rep.SendErrors < 30 || p.Published(0) != 2 {
			t.Errorf("%v, published %d, report %+v", err, p.Published(0), rep)
		}
		if d := time.Since(w.since); d > 6*time.Second {
			t.Errorf("ended after %v", d)
		}
	})
}

// Each packet is held to its own due time, also in a batch that went in two
// parts.
func TestLatenessOfABatchInParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		w.fails = func(call int) (int, error) {
			switch call { // 0 is the opening heartbeat
			case 1:
				<-time.After(10 * time.Millisecond)
			case 2:
				return 5, errBroken
			}
			return 99, nil
		}
		var at []int64
		for i := range int64(11) {
			at = append(at, i*ms)
		}
		rep := play(t, Config{Streams: []Stream{train(at...).stream(w)}, CatchUp: math.Inf(1)})
		equal(t, "batches", w.sizes[:4], []int{1, 1, 5, 5})
		// The first is 10 ms late, five are 9 to 5 ms, and after 1 ms of waiting
		// five are 5 to 1 ms.
		if p := rep.PacingError; p.P50 < 0.0049 || p.P50 > 0.0053 || p.Max != 0.01 {
			t.Errorf("pacing error %+v", p)
		}
	})
}

func TestPublished(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := new(tape).add(1, 10, 0, 4).add(11, 10, s1, 4).add(21, 10, 2*s1, 4).stream(w)
		s.Range.First = 8
		p, result, _ := start(t, Config{Streams: []Stream{s}, StartAt: moldcast.StampOf(time.Now().Add(time.Second))})
		sp, ok := p.Space(sessionA)
		if !ok || p.Published(0) != 8 || !sp.Clip(moldcast.Range{First: 8, Next: 9}).Empty() {
			t.Errorf("published %d before the start", p.Published(0))
		}
		after(2500 * time.Millisecond)
		for _, tt := range []struct{ ask, want moldcast.Range }{
			{moldcast.Range{First: 8, Next: 9}, moldcast.Range{First: 8, Next: 9}},
			{moldcast.Range{First: 12, Next: 99}, moldcast.Range{First: 12, Next: 21}},
			{moldcast.Range{First: 21, Next: 22}, moldcast.Range{First: 21, Next: 21}},
			{moldcast.Range{First: 7, Next: 9}, moldcast.Range{First: 7, Next: 7}},
			{moldcast.Range{First: 400, Next: 500}, moldcast.Range{First: 400, Next: 400}},
		} {
			if got := sp.Clip(tt.ask); got != tt.want {
				t.Errorf("asked %v: %v, want %v", tt.ask, got, tt.want)
			}
		}
		if _, ok := p.Space(name("OTHER")); ok {
			t.Error("answers for another session")
		}
		if _, err := result(); err != nil || p.Published(0) != 31 {
			t.Errorf("%v, published %d", err, p.Published(0))
		}
	})
}

func TestRepack(t *testing.T) {
	tp := new(tape)
	seq := moldcast.Seq(1)
	for i := range int64(300) { // 100 µs apart, with a second between the hundreds
		tp.add(seq, 2, i/100*s1+i%100*100*us, 20)
		seq += 2
	}
	tp.add(seq, 1, 3*s1, 3000) // longer than the MTU
	tp.add(seq+1, 1, 3*s1, 5)
	tp.add(seq+4, 1, 3*s1, 5) // behind a hole
	for _, paced := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			w := newWire(t)
			rep := play(t, Config{Streams: []Stream{tp.stream(w)}, Packets: Repack, MTU: 576, Pace: pace.Config{Max: !paced}})
			got := messages(w)
			var want []moldcast.Seq
			for i := moldcast.Seq(1); i <= seq+1; i++ {
				want = append(want, i)
			}
			equal(t, "messages", got, append(want, seq+4))
			if rep.Messages != uint64(len(got)) || rep.Holes != 1 {
				t.Errorf("report %+v", rep)
			}
			n, started := 0, w.data()[0].at
			for _, s := range w.data() {
				if len(s.raw) > 576-28 && s.pkt.Msgs.Len() != 1 {
					t.Errorf("packet %d of %d messages has %d bytes", s.pkt.First, s.pkt.Msgs.Len(), len(s.raw))
				}
				n++
				if !paced {
					continue
				}
				// No message early, none more than the wait late.
				for i := range s.pkt.Msgs.Len() {
					if k := int(s.pkt.First) + i - 1; k < 600 {
						due := time.Duration(int64(tp.pieces[k/2].Time) - day0)
						if late := s.at - started - due; k > 40 && (late < -time.Millisecond || late > time.Millisecond) {
							t.Fatalf("message %d went %v late", k+1, late)
						}
					}
				}
			}
			most := 3*(10+1) + 3
			if !paced {
				most = 30
			}
			if n > most {
				t.Errorf("paced %v: %d packets", paced, n)
			}
		})
	}
}

func TestOriginalNeverExceedsADatagram(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		play(t, Config{Streams: []Stream{new(tape).add(1, 60, 0, 2000).stream(w)}})
		if got := messages(w); len(got) != 60 {
			t.Errorf("%d messages", len(got))
		}
		for _, s := range w.data() {
			if len(s.raw) > moldcast.MaxDatagram {
				t.Errorf("a datagram of %d bytes", len(s.raw))
			}
		}
	})
}

func TestConfig(t *testing.T) {
	w := newWire(t)
	ok := func() Config { return Config{Streams: []Stream{train(0).stream(w)}} }
	for i, spoil := range []func(*Config){
		func(c *Config) { c.Streams = nil },
		func(c *Config) { c.Streams[0].Sender = nil },
		func(c *Config) { c.Streams[0].Open = nil },
		func(c *Config) { c.Streams[0].Range = moldcast.Range{First: 3, Next: 3} },
		func(c *Config) { c.Loop = -1 },
		func(c *Config) { c.Loop = 1000 }, // SESSIONA1000 is too long
		func(c *Config) { c.MTU = 20 },
		func(c *Config) { c.CatchUp = 1 },
		func(c *Config) { c.CatchUp = math.NaN() },
		func(c *Config) { c.Spin = 3 },
		func(c *Config) { c.ReadAhead = 5 },
		func(c *Config) { c.Linger = -1 },
	} {
		c := ok()
		spoil(&c)
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("case %d: %v", i, err)
		}
	}
	c := ok()
	c.Pace.Speed = -1
	if _, err := New(c); !errors.Is(err, pace.ErrConfig) {
		t.Errorf("%v", err)
	}
	if _, err := New(ok()); err != nil {
		t.Error(err)
	}
}
