package replay

import (
	"context"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/pace"
)

// Orders are done, and the status shows it, once they are settled.
func TestSettled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		tp := new(tape)
		for i := range 50 {
			tp.add(moldcast.Seq(2*i+1), 2, int64(i)*s1, 12)
		}
		p, result, cancel := start(t, Config{Streams: []Stream{tp.stream(w)}})
		ctx := t.Context()
		settle := func() Status {
			t.Helper()
			before := time.Now()
			if err := p.Settled(ctx); err != nil || time.Since(before) > 0 {
				t.Fatalf("settled after %v: %v", time.Since(before), err)
			}
			return p.Status()
		}
		after(10*time.Millisecond + 2*time.Second)
		p.Pause()
		if s := settle(); !s.Paused || s.Packets != 3 {
			t.Errorf("%+v", s)
		}
		p.StepPackets(4)
		if s := settle(); s.Packets != 7 || p.Published(0) != 15 {
			t.Errorf("after 4 steps %+v", s)
		}
		p.StepMessages(3) // two packets
		if s := settle(); s.Packets != 9 || s.Messages != 18 {
			t.Errorf("after 3 messages %+v", s)
		}
		p.SetSpeed(3)
		p.Scale(2)
		if s := settle(); s.Speed != 6 {
			t.Errorf("speed %v, want 6", s.Speed)
		}
		p.SetSpeed(1)
		p.SeekSeq(0, 52, moldcast.Stamp(day0+25*s1)) // the second of its packet
		if s := settle(); s.Speed != 1 || s.Position != moldcast.Stamp(day0+25*s1) {
			t.Errorf("after the seek %+v", s)
		}
		p.Resume()
		settle()
		at := time.Since(w.since)
		after(time.Second)
		data := w.data()
		if s := data[9]; s.pkt.First != 52 || s.pkt.Msgs.Len() != 1 || s.at != at || len(data) != 11 || data[10].at != at+time.Second {
			t.Errorf("first %d of %d messages at %v, resumed at %v; %d packets", s.pkt.First, s.pkt.Msgs.Len(), s.at, at, len(data))
		}
		p.StepPackets(1000) // more than there are
		after(time.Second)
		settle()
		p.Quit()
		settle()
		if _, err := result(); err != nil && err != ErrInterrupted {
			t.Error(err)
		}
		settle() // over: at once
		cancel()
	})
}

// Where nothing takes orders, waiting ends with the context.
func TestSettledIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, err := New(Config{Streams: []Stream{train(0).stream(newWire(t))}, Pace: pace.Config{Max: true}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p.Pause()
		if p.Settled(ctx) == nil {
			t.Error("settled, and nothing runs")
		}
	})
}
