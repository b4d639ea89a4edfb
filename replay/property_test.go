package replay

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/pace"
)

// Whatever the packets, holes, range, order of stamps and way to pack: what
// goes is each held message of the range once, in order, with its own bytes,
// never before its time.
func TestEveryMessageOnceInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		base := rapid.SampledFrom([]moldcast.Seq{1, 484311999, ^moldcast.Seq(0) - 400}).Draw(rt, "base")
		tp := new(tape)
		seq, at := base, int64(0)
		for range rapid.IntRange(1, 25).Draw(rt, "packets") {
			if rapid.IntRange(0, 4).Draw(rt, "hole") == 0 {
				seq += moldcast.Seq(rapid.IntRange(1, 3).Draw(rt, "missing"))
			}
			n := rapid.IntRange(1, 6).Draw(rt, "messages")
			at += rapid.SampledFrom([]int64{0, 0, us, 700 * us, 10 * ms, -s1, 2 * s1}).Draw(rt, "delta")
			tp.add(seq, n, at, rapid.SampledFrom([]int{0, 3, 20, 900}).Draw(rt, "size"))
			seq += moldcast.Seq(n)
		}
		tp.first = base
		tp.head += moldcast.Seq(rapid.IntRange(0, 2).Draw(rt, "lost tail"))
		r := moldcast.Range{
			First: moldcast.Seq(rapid.Uint64Range(uint64(base), uint64(tp.head-1)).Draw(rt, "from")),
		}
		r.Next = moldcast.Seq(rapid.Uint64Range(uint64(r.First)+1, uint64(tp.head)).Draw(rt, "to"))
		c := Config{
			Packets: Packets(rapid.IntRange(0, 1).Draw(rt, "packets")),
			MTU:     rapid.SampledFrom([]int{100, 576, 1500}).Draw(rt, "MTU"),
			Pace:    rapid.SampledFrom([]pace.Config{{}, {Speed: 3}, {Max: true}, {Rate: 500}, {MaxIdle: time.Millisecond}}).Draw(rt, "pace"),
			Linger:  time.Second,
		}

		var w *wire
		var rep Report
		synctest.Test(t, func(t *testing.T) {
			w = newWire(t)
			s := tp.stream(w)
			s.Range = r
			c.Streams = []Stream{s}
			rep = play(t, c)
		})

		due := make(map[moldcast.Seq]moldcast.Stamp)
		var want []moldcast.Seq
		high := moldcast.Stamp(0)
		for _, p := range tp.pieces {
			for q := p.First; q < p.Range().Next; q++ {
				if r.Contains(q) {
					want = append(want, q)
					high = max(high, p.Time)
					due[q] = high
				}
			}
		}
		if got := messages(w); !slices.Equal(got, want) {
			rt.Fatalf("messages %v, want %v", got, want)
		}
		holes, at1 := uint64(0), r.First
		for _, q := range append(want, r.Next) {
			if q > at1 {
				holes++
			}
			at1 = q + 1
		}
		if rep.Messages != uint64(len(want)) || rep.Holes != holes || rep.Packets != uint64(len(w.data())) {
			rt.Fatalf("report %+v, want %d messages and %d holes", rep, len(want), holes)
		}
		for i, s := range w.out {
			if s.pkt.Kind == moldcast.End && (s.pkt.First != r.Next || i < len(w.out)-2) {
				rt.Fatalf("end %d at place %d of %d", s.pkt.First, i, len(w.out))
			}
		}
		if e := w.of(moldcast.End); len(e) != 2 {
			rt.Fatalf("%d ends", len(e))
		}
		data := w.data()
		for i, s := range data {
			if len(s.raw) > c.MTU-28 && c.Packets == Repack && s.pkt.Msgs.Len() > 1 {
				rt.Fatalf("packet of %d bytes for an MTU of %d", len(s.raw), c.MTU)
			}
			if c.Pace != (pace.Config{}) {
				continue
			}
			last := s.pkt.Range().Next - 1
			if want := due[last] - due[data[0].pkt.Range().Next-1]; s.at-data[0].at != time.Duration(want) {
				rt.Fatalf("packet %d went %v after the first, want %v", i, s.at-data[0].at, time.Duration(want))
			}
		}
		if c.Packets == Original && r == tp.Range() {
			for i, p := range tp.pieces {
				if !bytes.Equal(data[i].raw[moldcast.HeaderSize:], p.Msgs.Framed()) {
					rt.Fatalf("packet %d is not the original", i)
				}
			}
		}
	})
}
