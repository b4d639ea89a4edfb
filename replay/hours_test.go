package replay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// leg is a part of a replay: from real time on, recorded time runs from place
// on at speed.
type leg struct {
	real, place int64 // ns from the first packet
	speed       float64
}

// when is the real time at which the recorded time place is reached in legs,
// from the leg k on.
func (l leg) when(place int64) int64 { return l.real + int64(float64(place-l.place)/l.speed) }

// Two hours of two sessions, three times over, with pauses, changes of speed
// and seeks in between: each packet goes within 2 ns of where one anchor puts
// it, at the end as at the beginning.
func TestHoursWithControlAndLoops(t *testing.T) {
	const hours, loops = 7200 * s1, 3
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		var streams []Stream
		var places [2][]int64 // by stream and sequence, from 1
		rng := rand.New(rand.NewPCG(7, 7))
		body := moldcast.AppendMessage(nil, []byte("x"))
		for k := range places {
			tp := &tape{first: 1}
			seq := moldcast.Seq(1)
			// The first and the last packet of both are at the same times.
			for at := int64(0); ; {
				tp.pieces = append(tp.pieces, moldcast.Piece{First: seq, Msgs: moldcast.MessagesOf(body, 1), Time: moldcast.Stamp(day0 + at)})
				places[k] = append(places[k], at)
				seq++
				if at == hours {
					break
				}
				at = min(at+[]int64{0, 700, 3 * us, ms, 4 * s1, 9*s1 + 1}[rng.IntN(6)], hours)
			}
			tp.head = seq
			s := tp.stream(w)
			s.Session = name([]string{"ONE", "TWO"}[k])
			streams = append(streams, s)
		}
		p, result, _ := start(t, Config{Streams: streams, Loop: loops, Heartbeat: 100 * time.Hour, ReadAhead: 4 << 20})
		after(0)
		began := int64(w.data()[0].at)
		now := func() int64 { return int64(time.Since(w.since)) - began }
		legs := []leg{{0, 0, 1}}
		last := func() *leg { return &legs[len(legs)-1] }
		place := func() int64 { return last().place + int64(float64(now()-last().real)*last().speed) }
		speed := func(by float64) {
			at := place()
			p.Scale(by)
			legs = append(legs, leg{now(), at, last().speed * by})
			after(0)
		}

		after(1000*time.Second + 123)
		at := place()
		p.Pause()
		after(3 * time.Second)
		p.Resume()
		legs = append(legs, leg{now(), at, 1}) // 3 s later, and no shorter
		after(500*time.Second + 77)
		speed(4)
		after(300 * time.Second)
		speed(0.125)
		after(100 * time.Second)
		speed(2)
		at = place() + int64(600*s1)
		p.SeekBy(10 * time.Minute)
		legs = append(legs, leg{now(), at, 1})
		after(200 * time.Second)
		at = place() - int64(900*s1)
		p.SeekBy(-15 * time.Minute)
		legs = append(legs, leg{now(), at, 1})

		rep, err := result()
		if err != nil {
			t.Fatal(err)
		}
		// Loops begin where the one before has ended, at the speed that it had.
		round := legs[len(legs)-1].when(hours)
		data := w.data()
		seen := map[string]bool{}
		leg, loop, packets := 0, 1, 0
		for _, s := range data {
			var k int
			if s.pkt.Session[0] == 'T' {
				k = 1
			}
			loop = int(s.pkt.Session[3] - '0')
			got := int64(s.at) - began
			want := round + int64(loop-2)*hours + places[k][s.pkt.First-1]
			if loop == 1 {
				for leg+1 < len(legs) && got >= legs[leg+1].real {
					leg++
				}
				want = legs[leg].when(places[k][s.pkt.First-1])
			}
			if d := got - want; d < -2 || d > 2 {
				t.Fatalf("loop %d, leg %d: packet %d of %s went at %v, want %v", loop, leg, s.pkt.First, s.pkt.Session, time.Duration(got), time.Duration(want))
			}
			seen[s.pkt.Session.String()] = true
			packets++
		}
		if whole := len(places[0]) + len(places[1]); len(seen) != 2*loops || loop != loops || packets < 2*whole || leg != len(legs)-1 {
			t.Errorf("%d packets of %d a loop, loop %d, leg %d, sessions %v", packets, whole, loop, leg, seen)
		}
		if rep.Drift != 0 || rep.PacingError.Max > 2e-9 || rep.Starved != 0 {
			t.Errorf("report %+v", rep)
		}
	})
}
