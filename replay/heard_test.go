package replay

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// markList is a MarkSource.
type markList []moldcast.Mark

func (l *markList) Next() (moldcast.Mark, error) {
	if len(*l) == 0 {
		return moldcast.Mark{}, io.EOF
	}
	k := (*l)[0]
	*l = (*l)[1:]
	return k, nil
}

// withMarks gives s heartbeats at ns after day0: {at, line, next}.
func withMarks(s Stream, marks ...[3]int64) Stream {
	s.Marks = func(moldcast.Seq) (MarkSource, error) {
		var l markList
		for _, m := range marks {
			l = append(l, moldcast.Mark{Kind: moldcast.Heartbeat, Next: moldcast.Seq(m[2]), Stamp: moldcast.Stamp(day0 + m[0]), Line: uint8(m[1])})
		}
		return &l, nil
	}
	return s
}

// onWire says what went, and when in ms.
func onWire(w *wire) (out []string) {
	for _, s := range w.out {
		out = append(out, fmt.Sprintf("%d %v %d", s.at.Milliseconds(), s.pkt.Kind, s.pkt.First))
	}
	return out
}

// Recorded heartbeats go at their times, each once though two lines brought it,
// with what is next; those before the first packet and behind the last do not,
// and none of silence is beside one.
func TestRecordedHeartbeats(t *testing.T) {
	marks := [][3]int64{
		{-500 * ms, 0, 1},                  // before the first
		{900 * ms, 0, 2}, {901 * ms, 1, 2}, // both lines
		{1700 * ms, 1, 2},                    // lost on line A
		{3300 * ms, 0, 2}, {3302 * ms, 1, 2}, // more than a second of silence: one of silence between
		{3350 * ms, 1, 1},                                       // a line that lags
		{3700 * ms, 0, 3}, {3900 * ms, 0, 9}, {9000 * ms, 0, 4}, // what is missing is not foretold; behind the last
	}
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		s := withMarks(train(0, 3500*ms, 4000*ms).stream(w), marks...)
		rep := play(t, Config{Streams: []Stream{s}})
		equal(t, "on the wire", onWire(w), []string{
			"0 heartbeat 1", "0 data 1", "900 heartbeat 2", "1700 heartbeat 2", "2700 heartbeat 2", "3302 heartbeat 2",
			"3500 data 2", "3700 heartbeat 3", "3900 heartbeat 3", "4000 data 3", "4000 end 4",
		})
		if rep.Heartbeats != 7 || rep.Packets != 3 {
			t.Errorf("report %+v", rep)
		}
	})
	// Where their times mean nothing, silence alone counts.
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		c := Config{Streams: []Stream{withMarks(train(0, 3500*ms).stream(w), marks...)}}
		c.Pace.MaxIdle = 1500 * time.Millisecond
		play(t, c)
		equal(t, "on the wire", onWire(w), []string{"0 heartbeat 1", "0 data 1", "1000 heartbeat 2", "1500 data 2", "1500 end 3"})
	})
}

// In a pause heartbeats of silence go on, and recorded ones shift with the rest.
func TestRecordedHeartbeatsInAPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		p, result, _ := start(t, Config{Streams: []Stream{withMarks(train(0, 1000*ms).stream(w), [3]int64{800 * ms, 0, 2})}})
		after(500 * time.Millisecond)
		p.Pause()
		after(1200 * time.Millisecond)
		p.Resume()
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		equal(t, "on the wire", onWire(w), []string{"0 heartbeat 1", "0 data 1", "1000 heartbeat 2", "2000 heartbeat 2", "2200 data 2", "2200 end 3"})
	})
}

// heardTape is what a line brought.
type heardTape struct {
	list []moldcast.Heard
	from moldcast.Stamp
	buf  []byte
}

func (h *heardTape) Next() (moldcast.Heard, []byte, error) {
	for {
		if len(h.list) == 0 {
			return moldcast.Heard{}, nil, io.EOF
		}
		x := h.list[0]
		h.list = h.list[1:]
		if x.Stamp < h.from {
			continue
		}
		h.buf = h.buf[:0]
		if x.Flags != 0 {
			return x, nil, &moldcast.HoleError{Hole: moldcast.Hole{Range: x.Range(), Reason: moldcast.Pruned}}
		}
		for r := x.Range(); !r.Empty(); r.First++ {
			h.buf = moldcast.AppendMessage(h.buf, body(r.First, 12))
		}
		return x, h.buf, nil
	}
}

// heardStream is a line that brought {ms after day0, first, count}.
func heardStream(w *wire, head moldcast.Seq, list ...[3]int64) Stream {
	return Stream{Session: sessionA, Sender: w, Range: moldcast.Range{First: 1, Next: head}, Heard: func(from moldcast.Stamp) (HeardSource, error) {
		h := &heardTape{from: from}
		for _, x := range list {
			d := moldcast.Heard{Stamp: moldcast.Stamp(day0 + x[0]*ms), First: moldcast.Seq(x[1]), Count: uint16(x[2] & 0xFFFF)}
			if x[2] < 0 {
				d.Count, d.Flags = uint16(-x[2]), moldcast.Differs
			}
			h.list = append(h.list, d)
		}
		return h, nil
	}}
}

// Lines go as they were heard, each in its order and on one clock, and nothing
// else does: no heartbeat of silence, no end; what cannot be made again is a
// hole. What either sent was published.
func TestHeardLines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := newWire(t), newWire(t)
		p, result, _ := start(t, Config{Linger: 3 * time.Second, Streams: []Stream{
			heardStream(a, 9, [3]int64{0, 1, 2}, [3]int64{10, 5, 1}, [3]int64{11, 3, 2}, [3]int64{9, 1, 2}, [3]int64{3000, 6, 0}, [3]int64{3001, 6, moldcast.EndCount}),
			heardStream(b, 9, [3]int64{5, 3, 2}, [3]int64{6, 5, -1}, [3]int64{20, 4, 1}, [3]int64{21, 8, 0}),
		}})
		after(time.Second)
		sp, _ := p.Space(sessionA)
		if got := sp.Clip(moldcast.Range{First: 1, Next: 99}); got != (moldcast.Range{First: 1, Next: 6}) || p.Published(1) != 6 {
			t.Errorf("published %v, %d", got, p.Published(1))
		}
		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "line A", onWire(a), []string{"0 data 1", "10 data 5", "11 data 3", "11 data 1", "3000 heartbeat 6", "3001 end 6"})
		equal(t, "line B", onWire(b), []string{"5 data 3", "20 data 4", "21 heartbeat 8"})
		if rep.Packets != 9 || rep.Messages != 10 || rep.Holes != 1 || rep.Heartbeats != 0 {
			t.Errorf("report %+v", rep)
		}
		if took := time.Since(a.since); took < 6*time.Second || took > 6100*time.Millisecond {
			t.Errorf("ended after %v, want the linger of 3 s behind", took)
		}
	})
}

// A seek goes to a time on both lines, and each loop is a session of its own.
func TestHeardSeekAndLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := newWire(t), newWire(t)
		var one, two [][3]int64
		for i := range int64(50) {
			one, two = append(one, [3]int64{i * 1000, i + 1, 1}), append(two, [3]int64{i*1000 + 300, i + 1, 1})
		}
		p, result, _ := start(t, Config{Streams: []Stream{heardStream(a, 51, one...), heardStream(b, 51, two...)}})
		after(1500 * time.Millisecond)
		p.SeekTo(moldcast.Stamp(day0 + 48*s1 + 100*ms))
		if _, err := result(); err != nil {
			t.Fatal(err)
		}
		equal(t, "line A", onWire(a), []string{"0 data 1", "1000 data 2", "2400 data 50"})
		equal(t, "line B", onWire(b), []string{"300 data 1", "1300 data 2", "1700 data 49", "2700 data 50"})
	})
	bubble(t, func(t *testing.T) {
		a, b := newWire(t), newWire(t)
		play(t, Config{Loop: 2, Streams: []Stream{heardStream(a, 3, [3]int64{0, 1, 2}), heardStream(b, 3, [3]int64{1, 2, 1})}})
		for _, w := range []*wire{a, b} {
			if len(w.out) != 2 || w.out[0].pkt.Session == w.out[1].pkt.Session {
				t.Errorf("%v", onWire(w))
			}
		}
	})
}

func TestHeardConfig(t *testing.T) {
	s := heardStream(nil, 3)
	s.Sender = newWire(t)
	for _, c := range []Config{{Packets: Repack}, {OnHole: Wait}} {
		c.Streams = []Stream{s}
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
