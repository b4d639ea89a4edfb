package replay

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/burst"
	"github.com/moldtape/moldtape/replay/pace"
)

// Packets go where a Warp puts them, also behind a seek; position and seeks are
// in recorded time.
func TestStress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var at []int64
		for i := range int64(20) {
			at = append(at, i*4*s1, i*4*s1+100*us)
		}
		w := newWire(t)
		plan := burst.Plan{Factor: 2, Speedup: 4}
		p, _, cancel := start(t, Config{Streams: []Stream{train(at...).stream(w)}, Stress: plan})
		after(3*time.Second + time.Millisecond)
		equal(t, "times", w.times(), []int64{0, 100 * us, s1, s1 + 100*us, 2 * s1, 2*s1 + 100*us, 3 * s1, 3*s1 + 100*us})
		if got := p.Status().Position; got != moldcast.Stamp(day0+12*s1+100*us) {
			t.Errorf("at %v", got.Time())
		}
		p.SeekTo(moldcast.Stamp(day0 + 38*s1))
		from := len(w.data())
		begin := time.Since(w.since)
		after(600 * time.Millisecond)
		data := w.data()[from:]
		if len(data) != 2 || data[0].pkt.First != 21 || data[0].at != begin+500*time.Millisecond {
			t.Errorf("after the seek %d packets, the first at %v", len(data), data[0].at-begin)
		}
		cancel()
	})
	for _, c := range []Config{{Pace: pace.Config{Max: true}, Stress: burst.Plan{Factor: 1, Speedup: 1}}, {Stress: burst.Plan{Factor: 2, Speedup: 1}}} {
		c.Streams = []Stream{train(0).stream(newWire(t))}
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken", c.Stress)
		}
	}
}
