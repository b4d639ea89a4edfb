package replay

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/pace"
)

// The faults that other programs shipped are tests named TestFault…, here, in
// package pace and in cmd/internal/cli (starting at a time).

// A pause of 3 s in the midst of a recording at original speed: every packet,
// byte for byte, at its time, and behind the pause at 3 s after it, not one
// sooner to make up for it.
func TestFaultPauseShortensTheRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tp := new(tape)
		at, seq := int64(0), moldcast.Seq(1)
		for i := range 2000 {
			tp.add(seq, 1+i%3, at, 5+i%200)
			seq += moldcast.Seq(1 + i%3)
			at += []int64{0, 100 * us, 4 * ms, 13 * ms}[i%4]
		}
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{tp.stream(w)}})
		const pause = 3 * s1
		after(4*time.Second + 333*time.Microsecond)
		began := time.Since(w.since) - w.data()[0].at
		p.Pause()
		after(time.Duration(pause))
		p.Resume()
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		data := w.data()
		if len(data) != len(tp.pieces) {
			t.Fatalf("%d of %d packets", len(data), len(tp.pieces))
		}
		shifted := 0
		for i, s := range data {
			piece := &tp.pieces[i]
			due := int64(piece.Time) - day0
			if time.Duration(due) > began {
				due += pause
				shifted++
			}
			if got := int64(s.at - data[0].at); got != due {
				t.Fatalf("packet %d went at %v, want %v", i, time.Duration(got), time.Duration(due))
			}
			want := moldcast.AppendHeader(nil, sessionA, piece.First, uint16(piece.Msgs.Len()))
			if !bytes.Equal(s.raw, append(want, piece.Msgs.Framed()...)) {
				t.Fatalf("packet %d is not the recorded one", i)
			}
		}
		if shifted < 500 || shifted > 1500 || rep.PacingError.Max != 0 || rep.Drift != 0 {
			t.Errorf("%d packets behind the pause, report %+v", shifted, rep)
		}
	})
}

// After two hours the distances are those of the recording, not none: 100 µs
// apart at the very end.
func TestFaultFullSpeedAfterHours(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var at []int64
		for i := range int64(721) {
			at = append(at, i*10*s1)
		}
		for i := range int64(200) {
			at = append(at, 7200*s1+(i+1)*100*us)
		}
		w := newWire(t)
		w.takes = 20 * time.Microsecond
		rep := play(t, Config{Streams: []Stream{train(at...).stream(w)}, Heartbeat: time.Hour})
		times := w.times()
		for i := 722; i < len(times); i++ {
			if d := times[i] - times[i-1]; d != 100*us {
				t.Fatalf("packets %d and %d are %v apart", i-1, i, time.Duration(d))
			}
		}
		if b := rep.Busiest[0]; b.Scheduled != b.Sent || b.Sent > 11 {
			t.Errorf("busiest ms %+v", b)
		}
	})
}

// A sender that is away for 20 ms catches up at no more than twice the pace of
// the recording, and is on time again; without a limit it sends all at once.
func TestFaultCatchingUpIsABurst(t *testing.T) {
	for _, by := range []float64{2, pace.MaxCatchUp} {
		bubble(t, func(t *testing.T) {
			var at []int64
			for i := range int64(1000) {
				at = append(at, i*100*us)
			}
			w := newWire(t)
			w.fails = func(n int) (int, error) {
				if n == 300 {
					<-time.After(20 * time.Millisecond)
				}
				return 0, nil
			}
			rep := play(t, Config{Streams: []Stream{train(at...).stream(w)}, CatchUp: by})
			b, last := rep.Busiest[0], w.times()[999]
			if by == 2 && b.Sent > 24 || by > 2 && b.Sent < 150 || b.Scheduled != 10 {
				t.Errorf("catching up %v times as fast: busiest ms %+v", by, b)
			}
			if last != at[999] || rep.PacingError.Max < 0.0199 {
				t.Errorf("catching up %v times as fast: the last at %v, report %+v", by, time.Duration(last), rep)
			}
		})
	}
}

// A reader that is slower than the schedule makes packets late, and is told of;
// it does not stop the clock.
func TestFaultSlowReaderShiftsTheSchedule(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var at []int64
		for i := range int64(40) {
			at = append(at, i*ms)
		}
		tp := train(at...)
		for i := range tp.pieces { // 16 chunks are full before the end
			tp.add(tp.head, 1, 40*ms+int64(i)*ms, 60_000)
		}
		tp.add(tp.head, 1, 10*s1, 5)
		tp.slow = 20 * time.Millisecond
		w := newWire(t)
		rep := play(t, Config{Streams: []Stream{tp.stream(w)}, ReadAhead: 256 << 10})
		if got := w.times(); got[len(got)-1] != 10*s1 {
			t.Errorf("the last went at %v, want 10 s", time.Duration(got[len(got)-1]))
		}
		if rep.Starved == 0 || rep.PacingError.Max == 0 {
			t.Errorf("report %+v: nothing of a slow reader", rep)
		}
	})
}

// A day of 64 channels on one clock: one is busy, the others speak now and
// then. Each packet goes at its time, all in order of their stamps.
func TestManySparseChannelsAndABusyOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const channels, day = 64, 86_400 * s1
		order := newWire(t) // all of them
		var c Config
		want := map[string]int64{} // when each packet goes
		for ch := range int64(channels) {
			tp := new(tape)
			step := 600*s1 + ch*7*ms
			if ch == 0 {
				step = 20 * s1
			}
			body := moldcast.AppendMessage(nil, []byte("x"))
			seq := moldcast.Seq(1)
			for at := ch % 3 * 5 * s1; at < day; at += step {
				tp.pieces = append(tp.pieces, moldcast.Piece{First: seq, Msgs: moldcast.MessagesOf(body, 1), Time: moldcast.Stamp(day0 + at)})
				want[fmt.Sprint(ch, seq)] = at
				seq++
			}
			tp.first, tp.head = 1, seq
			s := tp.stream(order)
			s.Session = name(fmt.Sprintf("CH%02d", ch))
			c.Streams = append(c.Streams, s)
		}
		c.Heartbeat = 100 * time.Hour
		rep := play(t, c)
		data := order.data()
		if len(data) != len(want) || rep.Packets != uint64(len(want)) {
			t.Fatalf("%d of %d packets", len(data), len(want))
		}
		for i, s := range data {
			var ch int64
			fmt.Sscanf(s.pkt.Session.String(), "CH%d", &ch)
			if at := want[fmt.Sprint(ch, s.pkt.First)]; int64(s.at-data[0].at) != at {
				t.Fatalf("packet %d: %s %d went at %v, want %v", i, s.pkt.Session, s.pkt.First, s.at-data[0].at, time.Duration(at))
			}
		}
		if rep.Starved != 0 || rep.Drift != 0 || len(rep.Timeline) > maxSpans {
			t.Errorf("starved %d, drift %v, %d spans", rep.Starved, rep.Drift, len(rep.Timeline))
		}
	})
}
