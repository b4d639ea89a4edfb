package burst

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

const ms = moldcast.Stamp(time.Millisecond)

// slow is the rule of Peaks, said again: the busiest window that begins at a
// packet.
func slow(at []moldcast.Stamp, length moldcast.Stamp) (best Window) {
	for i, t := range at {
		w := Window{From: t}
		for _, u := range at[i:] {
			if u-t < length {
				w.Packets++
			}
		}
		if w.Packets > best.Packets {
			best = w
		}
	}
	return best
}

func TestPeaks(t *testing.T) {
	p := NewPeaks(10*time.Millisecond, 2)
	for _, x := range []struct {
		at   moldcast.Stamp
		msgs int
	}{{0, 1}, {5 * ms, 1}, {10 * ms, 5}, {9 * ms, 1}, {19 * ms, 1}, {20 * ms, 1}, {100 * ms, 3}, {109 * ms, 3}, {110 * ms, 1}, {500 * ms, 2}} {
		p.Add(x.at, x.msgs, 10*x.msgs)
	}
	want := []Window{{From: 5 * ms, Packets: 3, Messages: 7, Bytes: 70}, {From: 100 * ms, Packets: 2, Messages: 6, Bytes: 60}}
	if got := p.Done(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := NewPeaks(time.Second, 3).Done(); len(got) != 0 {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestPeaksAreTheBusiest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := draw(rt, 120)
		length := moldcast.Stamp(rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, 30 * time.Millisecond, time.Second}).Draw(rt, "length"))
		p := NewPeaks(time.Duration(length), 5)
		for _, t := range at {
			p.Add(t, 1, 1)
		}
		got := p.Done()
		best := slow(at, length)
		if got[0].From != best.From || got[0].Messages != best.Packets || got[0].Packets != best.Packets {
			rt.Fatalf("busiest %+v, want %+v", got[0], best)
		}
		byTime := slices.Clone(got)
		slices.SortFunc(byTime, func(a, b Window) int { return int(a.From - b.From) })
		for i := range byTime[1:] {
			if byTime[i+1].From-byTime[i].From < length {
				rt.Fatalf("%+v overlap", byTime)
			}
		}
		if len(got) > 5 || !slices.IsSortedFunc(got, busier) {
			rt.Fatalf("%+v", got)
		}
	})
}

// draw is n stamps: bursts, and quiet times between them.
func draw(rt *rapid.T, n int) []moldcast.Stamp {
	t := moldcast.Stamp(1_700_000_000_000_000_000)
	var at []moldcast.Stamp
	for len(at) < n {
		t += moldcast.Stamp(rapid.IntRange(1_000_001, 400_000_000).Draw(rt, "quiet"))
		for range rapid.IntRange(1, 40).Draw(rt, "burst") {
			at = append(at, t)
			t += moldcast.Stamp(rapid.SampledFrom([]int{0, 1, 7000, 333_333, 1_000_000}).Draw(rt, "gap"))
		}
	}
	return at
}

// Order is kept, no gap grows, none within a burst shrinks below 1/F of it,
// and none between bursts below that and MaxGap; nothing comes before its target.
func TestWarp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := draw(rt, 200)
		f := rapid.SampledFrom([]float64{1, 1.5, 2, 3, 10}).Draw(rt, "F")
		plan := Plan{Factor: f, Speedup: f * rapid.SampledFrom([]float64{1, 1.3, 8, 1000}).Draw(rt, "K/F")}
		if err := plan.Validate(); err != nil {
			rt.Fatal(err)
		}
		w := NewWarp(plan)
		var to []moldcast.Stamp
		for _, t := range at {
			to = append(to, w.At(t))
		}
		for i := 1; i < len(at); i++ {
			was, is := at[i]-at[i-1], to[i]-to[i-1]
			least := min(float64(was)/f, float64(MaxGap))
			if was <= moldcast.Stamp(MaxGap) {
				least = float64(was) / f
			}
			if is > was || float64(is) < least || was == 0 && is != 0 {
				rt.Fatalf("gap %d became %d, plan %+v", was, is, plan)
			}
			if target := float64(at[i]-at[0]) / plan.Speedup; float64(to[i]-at[0]) < target-1 {
				rt.Fatalf("packet %d at %d, its target is %v", i, to[i]-at[0], target)
			}
		}
		if got := NewWarp(Plan{Factor: 1, Speedup: 1}); got.At(5) != 5 || got.At(3) != 5 || got.At(9) != 9 {
			rt.Fatal("factor 1 moves packets")
		}
	})
}

// market is an hour of microbursts of 0.3 ms: at most 300 a second in a rush of
// some seconds, 20 a second else.
func market() []moldcast.Stamp {
	var at []moldcast.Stamp
	for s := range 600 {
		bursts := 20
		if s%200 > 190 {
			bursts = 300
		}
		for b := range bursts {
			t := moldcast.Stamp(s)*1000*ms + moldcast.Stamp(b)*1000*ms/moldcast.Stamp(bursts)
			for i := range 10 {
				at = append(at, t+moldcast.Stamp(i)*ms/30)
			}
		}
	}
	return at
}

func TestStress(t *testing.T) {
	at := market()
	for _, f := range []float64{1, 2, 3, 5} {
		r := newRecording(at[len(at)/2:], 700) // sessions come one by one
		r.add(at[:len(at)/2], 900)
		pl := NewPlanner(r.spans, r.read)
		plan, err := pl.Plan(f)
		if err != nil {
			t.Fatal(err)
		}
		before, after := NewPeaks(Second, 1), NewPeaks(Second, 1)
		w := NewWarp(plan)
		kept, gaps := 0, 0
		var last, to moldcast.Stamp
		for i, t := range at {
			before.Add(t, 1, 1)
			next := w.At(t)
			after.Add(next, 1, 1)
			if i > 0 && t-last <= moldcast.Stamp(MaxGap) {
				gaps++
				if next-to == t-last {
					kept++
				}
			}
			last, to = t, next
		}
		ratio := float64(after.Done()[0].Messages) / float64(before.Done()[0].Messages)
		if math.Abs(ratio/f-1) > 0.05 || plan.Speedup < f {
			t.Errorf("stress %v: the peak is %.3f times what it was, plan %+v", f, ratio, plan)
		}
		if f <= 2 && float64(kept) < 0.999*float64(gaps) { // beyond, the rush leaves no room
			t.Errorf("stress %v: %d of %d gaps within bursts are as they were", f, kept, gaps)
		}
	}
	var few []moldcast.Stamp
	for i := range 30 {
		few = append(few, moldcast.Stamp(i)*100*ms, moldcast.Stamp(i)*100*ms)
	}
	r := newRecording(few, 7)
	pl := NewPlanner(r.spans, r.read)
	if _, err := pl.Plan(3.1); !errors.Is(err, ErrPlan) || err.Error() != "stress: the busiest second has 20 of 60 messages: want a factor of at most 3" {
		t.Errorf("%v", err)
	}
	if _, err := pl.Plan(math.NaN()); !errors.Is(err, ErrPlan) {
		t.Errorf("%v", err)
	}
	for _, p := range []Plan{{Factor: 2, Speedup: 1}, {Factor: 0.5, Speedup: 1}, {Factor: 1, Speedup: math.Inf(1)}, {Factor: math.NaN(), Speedup: 2}} {
		if p.Validate() == nil {
			t.Errorf("%+v validates", p)
		}
	}
}

// Bins are wider instead of more: from one end of time to the other.
func TestPlannerIsBounded(t *testing.T) {
	r := newRecording([]moldcast.Stamp{0, math.MaxInt64, math.MinInt64, 5}, 2)
	p := NewPlanner(r.spans, r.read)
	if peak, err := p.Peak(); p.total != 4 || len(p.bins) > maxBins || peak != 2 || err != nil {
		t.Errorf("%d in %d bins of %d, peak %d, %v", p.total, len(p.bins), p.width, peak, err)
	}
	none := NewPlanner(nil, nil)
	if peak, err := none.Peak(); peak != 0 || err != nil {
		t.Errorf("of nothing: %d, %v", peak, err)
	}
}
