package gap

import (
	"sync/atomic"
	"time"
)

// Budget bounds the requests of all machines that share it, which may belong
// to several goroutines. Their times must be of one clock.
type Budget struct {
	interval Instant
	tat      atomic.Int64 // when it would be even again (GCRA)
	within   *Budget
}

// NewBudget allows perSecond requests a second, 1..1e9, and those of a quarter
// of a second at once after a quiet time; and no more than within does, unless
// that is nil.
func NewBudget(perSecond int, within *Budget) *Budget {
	b := &Budget{interval: interval(perSecond), within: within}
	b.tat.Store(int64(-Never / 2))
	return b
}

// reserve gives the time, at now or later, at which the next request may go.
// Who waits for it is not overtaken.
func (b *Budget) reserve(now Instant) Instant {
	at := now
	if b.within != nil {
		at = b.within.reserve(now)
	}
	for {
		tat := Instant(b.tat.Load())
		if b.tat.CompareAndSwap(int64(tat), int64(max(tat, now)+b.interval)) {
			return max(at, tat-max(0, atOnce-b.interval))
		}
	}
}

// atOnce is how much of a rate may be used up at once after a quiet time.
const atOnce = Instant(time.Second / 4)

// interval is the mean time between so many requests a second.
func interval(perSecond int) Instant { return Instant(time.Second) / Instant(perSecond) }
