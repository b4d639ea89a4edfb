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
