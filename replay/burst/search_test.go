package burst

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

type packet struct {
	t               moldcast.Stamp
	messages, bytes int
}

// recording is packets in spans.
type recording struct {
	packets [][]packet
	spans   []Span
	lost    map[int]bool
	reads   int
}

// newRecording is of packets of one message, n a span.
func newRecording(at []moldcast.Stamp, n int) *recording {
	r := new(recording)
	r.add(at, n)
	return r
}

func (r *recording) add(at []moldcast.Stamp, n int) {
	for part := range slices.Chunk(at, n) {
		var ps []packet
		for _, t := range part {
			ps = append(ps, packet{t, 1, 10})
		}
		r.span(ps, true)
	}
}

func (r *recording) span(ps []packet, whole bool) {
	x := Span{Min: ps[0].t, Max: ps[0].t}
	for _, p := range ps {
		x.Min, x.Max = min(x.Min, p.t), max(x.Max, p.t)
		x.Messages += uint64(p.messages)
		x.Packets++
		x.Bytes += uint64(p.bytes)
	}
	if !whole {
		x.Packets, x.Bytes = 0, 0
	}
	r.packets, r.spans = append(r.packets, ps), append(r.spans, x)
}

func (r *recording) read(i int, bytes bool, each func(t moldcast.Stamp, messages, bytes int)) (bool, error) {
	r.reads++
	if r.lost[i] {
		return false, nil
	}
	for _, p := range r.packets[i] {
		if !bytes {
			p.bytes = 0
		}
		each(p.t, p.messages, p.bytes)
	}
	return true, nil
}

// drawRecording is bursts, quiet times, steps of the clock back and forth, and
// holes, cut into spans.
func drawRecording(rt *rapid.T) *recording {
	r := new(recording)
	t := rapid.SampledFrom([]moldcast.Stamp{1_700_000_000_000_000_000, -5_000_000_000, 0}).Draw(rt, "start")
	for range rapid.IntRange(1, 60).Draw(rt, "spans") {
		var ps []packet
		for range rapid.IntRange(1, 12).Draw(rt, "packets") {
			m := rapid.IntRange(1, 6).Draw(rt, "messages")
			ps = append(ps, packet{t, m, 7 * m})
			t += moldcast.Stamp(rapid.SampledFrom([]int{0, 0, 1, 7000, 333_333, 1_000_000, 20_000_000, 400_000_000, -3_000_000, -90_000_000}).Draw(rt, "gap"))
		}
		r.span(ps, rapid.Bool().Draw(rt, "whole"))
	}
	for i := range r.spans {
		if rapid.IntRange(0, 40).Draw(rt, "lost") == 0 {
			if r.lost == nil {
				r.lost = map[int]bool{}
			}
			r.lost[i] = true
		}
	}
	return r
}

// Whatever the spans, what is found is what a look at each packet finds. A span
// that can't be read, and need not be, counts.
func TestFindPeaksIsExact(t *testing.T) {
	all := []time.Duration{1, time.Microsecond, time.Millisecond, 30 * time.Millisecond, time.Second, time.Hour}
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRecording(rt)
		lengths := []time.Duration{rapid.SampledFrom(all).Draw(rt, "length"), rapid.SampledFrom(all).Draw(rt, "other length")}
		most := rapid.IntRange(1, 12).Draw(rt, "most")
		missed := map[int]bool{}
		got, err := FindPeaks(r.spans, lengths, most, func(i int, bytes bool, each func(moldcast.Stamp, int, int)) (bool, error) {
			missed[i] = missed[i] || r.lost[i]
			return r.read(i, bytes, each)
		})
		if err != nil {
			rt.Fatal(err)
		}
		for k, d := range lengths {
			p := NewPeaks(d, most)
			for i, ps := range r.packets {
				if missed[i] {
					continue
				}
				for _, x := range ps {
					p.Add(x.t, x.messages, x.bytes)
				}
			}
			if want := p.Done(); !slices.Equal(got[k], want) {
				rt.Fatalf("%v:\n%+v, want\n%+v", d, got[k], want)
			}
		}
	})
}

// slowPlan counts each packet.
func slowPlan(r *recording, lost map[int]bool, f float64) (Plan, error) {
	one := new(recording)
	for i, ps := range r.packets {
		for _, p := range ps {
			if !lost[i] {
				one.span([]packet{p}, true)
			}
		}
	}
	return NewPlanner(one.spans, nil).Plan(f)
}

func TestPlannerIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRecording(rt)
		f := rapid.SampledFrom([]float64{1, 1.5, 3, 40}).Draw(rt, "factor")
		r.lost = nil // what is earliest and latest is then the same
		got, err := NewPlanner(r.spans, r.read).Plan(f)
		want, wantErr := slowPlan(r, nil, f)
		if got != want || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			rt.Fatalf("%+v %v, want %+v %v", got, err, want, wantErr)
		}
	})
}

// day is packets of which each second has another number, a few seconds many.
func day() (at []moldcast.Stamp) {
	rng := rand.New(rand.NewPCG(1, 2))
	for s := range 900 {
		n := 100 + rng.IntN(100)
		if s%300 == 299 {
			n = 2000 + rng.IntN(1000)
		}
		for range n {
			at = append(at, moldcast.Stamp(s)*1000*ms+moldcast.Stamp(rng.IntN(1000_000_000)))
		}
	}
	slices.Sort(at)
	return at
}

// Of a long recording with few rushes little is read, for long windows; and
// nothing twice for short ones, but for what says what to look for.
func TestSearchReadsLittle(t *testing.T) {
	at := day()
	r := new(recording)
	for rng := rand.New(rand.NewPCG(3, 4)); len(at) > 0; { // blocks are of about one size
		n := min(95+rng.IntN(10), len(at))
		r.add(at[:n], n)
		at = at[n:]
	}
	for _, x := range []struct {
		length time.Duration
		most   int // spans read
	}{{time.Second, len(r.spans) / 8}, {10 * time.Second, len(r.spans) / 3}, {10 * time.Millisecond, len(r.spans) * 10 / 9}} {
		r.reads = 0
		if _, err := FindPeaks(r.spans, []time.Duration{x.length}, 3, r.read); err != nil {
			t.Fatal(err)
		}
		if r.reads > x.most {
			t.Errorf("%v: %d reads of %d spans", x.length, r.reads, len(r.spans))
		}
	}
	r.reads = 0
	if _, err := NewPlanner(r.spans, r.read).Plan(2); err != nil || r.reads > len(r.spans)/8 {
		t.Errorf("planned with %d reads of %d spans: %v", r.reads, len(r.spans), err)
	}
}

// An error ends a search at once.
func TestSearchEnds(t *testing.T) {
	r := newRecording(market(), 100)
	broken := errors.New("broken")
	n := 0
	read := func(int, bool, func(moldcast.Stamp, int, int)) (bool, error) { n++; return false, broken }
	if _, err := FindPeaks(r.spans, []time.Duration{time.Second}, 3, read); !errors.Is(err, broken) || n != 1 {
		t.Errorf("%v after %d reads", err, n)
	}
	if _, err := NewPlanner(r.spans, read).Plan(2); !errors.Is(err, broken) || n != 2 {
		t.Errorf("%v after %d reads", err, n)
	}
}
