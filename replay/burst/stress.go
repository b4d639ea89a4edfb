package burst

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Second is the window whose rate a Plan raises.
const Second = time.Second

// The constants of the rule.
const (
	MaxGap = time.Millisecond
	Lag    = Second / 20
)

// MaxFactor is the largest F.
const MaxFactor = 1000

const (
	binWidth = 10 * time.Millisecond
	maxBins  = 1 << 22
	farthest = moldcast.Stamp(1 << 61)
)

// ErrPlan is wrapped where F can't be reached, or is none.
var ErrPlan = errors.New("stress")

// Plan is how a recording is made busier. The zero Plan leaves it as it is.
type Plan struct {
	Factor  float64 // F: 1..MaxFactor
	Speedup float64 // K: at least F
}

// Validate checks p.
func (p Plan) Validate() error {
	if p == (Plan{}) {
		return nil
	}
	if !(p.Factor >= 1 && p.Factor <= MaxFactor && p.Speedup >= p.Factor && !math.IsInf(p.Speedup, 0)) {
		return fmt.Errorf("%w: factor %v, speed-up %v: want 1..%v, and no less than it", ErrPlan, p.Factor, p.Speedup, MaxFactor)
	}
	return nil
}

// Planner counts the messages of all packets to be replayed, in any order of
// sessions.
type Planner struct {
	width  int64 // of a bin, ns
	base   int64 // stamp of the first bin
	bins   []uint32
	total  uint64
	placed bool
}

// Add takes a packet.
func (p *Planner) Add(t moldcast.Stamp, messages int) {
	t = min(max(t, -farthest), farthest) // differences stay in range
	if !p.placed {
		p.placed, p.width = true, int64(binWidth)
		p.base = int64(t)
	}
	for {
		low := p.base
		if int64(t) < p.base {
			low = int64(t)
		}
		high := max(int64(t), p.base+p.width*int64(len(p.bins)))
		if uint64(high)-uint64(low) < uint64(p.width)*(maxBins-2) {
			break
		}
		p.widen()
	}
	if int64(t) < p.base {
		more := (p.base - int64(t) + p.width - 1) / p.width
		p.bins = append(make([]uint32, more), p.bins...)
		p.base -= more * p.width
	}
	i := (int64(t) - p.base) / p.width
	for int64(len(p.bins)) <= i {
		p.bins = append(p.bins, 0)
	}
	p.bins[i] = uint32(min(uint64(p.bins[i])+uint64(messages), math.MaxUint32))
	p.total += uint64(messages)
}

// widen makes each two bins one.
func (p *Planner) widen() {
	n := (len(p.bins) + 1) / 2
	for i := range n {
		sum := uint64(p.bins[2*i])
		if 2*i+1 < len(p.bins) {
			sum += uint64(p.bins[2*i+1])
		}
		p.bins[i] = uint32(min(sum, math.MaxUint32))
	}
	p.bins = p.bins[:n]
	p.width *= 2
}

// peak is the most messages in n bins in a row.
func (p *Planner) peak(n int) (most uint64) {
	sum := uint64(0)
	for i, b := range p.bins {
		sum += uint64(b)
		if i >= n {
			sum -= uint64(p.bins[i-n])
		}
		most = max(most, sum)
	}
	return most
}

// Peak is the most messages in a second, 0 where there are none.
func (p *Planner) Peak() uint64 { return p.peak(p.second()) }

// second is a second in bins.
func (p *Planner) second() int { return max(int(int64(Second)/max(p.width, 1)), 1) }

// Plan is how to reach factor times the Peak. Its errors wrap ErrPlan.
func (p *Planner) Plan(factor float64) (Plan, error) {
	if !(factor >= 1 && factor <= MaxFactor) {
		return Plan{}, fmt.Errorf("%w: factor %v: want 1..%v", ErrPlan, factor, MaxFactor)
	}
	peak := p.Peak()
	want := uint64(math.Ceil(factor * float64(peak)))
	if want > p.total {
		return Plan{}, fmt.Errorf("%w: the busiest second has %d of %d messages: want a factor of at most %.4g", ErrPlan, peak, p.total, math.Floor(1000*float64(p.total)/float64(max(peak, 1)))/1000)
	}
	low, high := 0, len(p.bins) // peak(high) is enough, peak(low) is not
	for high-low > 1 {
		if mid := low + (high-low)/2; p.peak(mid) >= want {
			high = mid
		} else {
			low = mid
		}
	}
	return Plan{Factor: factor, Speedup: max(factor, float64(high)/float64(p.second()))}, nil
}

// Warp moves stamps by a Plan, in the order of packets.
type Warp struct {
	plan   Plan
	placed bool
	first  moldcast.Stamp // stays where it is
	last   moldcast.Stamp // highest so far
	to     moldcast.Stamp // where that went
	dense  bool           // the burst under way is too far behind
}

// NewWarp makes a Warp of a plan that validates.
func NewWarp(p Plan) *Warp { return &Warp{plan: p} }

// Begin starts anew at t, which stays where it is.
func (w *Warp) Begin(t moldcast.Stamp) {
	w.placed, w.first, w.last, w.to, w.dense = true, t, t, t, false
}

// At is where a packet stamped t goes; behind Begin, else behind the first.
func (w *Warp) At(t moldcast.Stamp) moldcast.Stamp {
	if !w.placed {
		w.Begin(t)
	}
	if t <= w.last {
		return w.to
	}
	gap := t - w.last
	w.last = t
	target := w.first + moldcast.Stamp(float64(t-w.first)/w.plan.Speedup)
	least := moldcast.Stamp(math.Ceil(float64(gap) / w.plan.Factor))
	switch {
	case gap > moldcast.Stamp(MaxGap):
		w.dense = false
		w.to = max(w.to+min(least, moldcast.Stamp(MaxGap)), target)
	case w.dense || w.to-target > moldcast.Stamp(Lag):
		w.dense = true
		w.to = max(w.to+least, target)
	default:
		w.to += gap
	}
	return w.to
}
