package replay

import (
	"runtime"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Waiter is the clock of a Player and how it waits for an instant. The
// sender's thread alone uses it.
type Waiter interface {
	Now() moldcast.Instant // monotonic
	Wall() moldcast.Stamp

	// Until returns at t, or earlier where wake has something to take, which
	// it may take. Where t is past it returns at once.
	Until(t moldcast.Instant, wake <-chan struct{})
}

// Spin says how a SystemWaiter waits.
type Spin uint8

// The ways to wait.
const (
	// SpinAuto sleeps to a lead before the instant, then looks at the clock
	// again and again: some 0.1 µs late, for a part of a core.
	SpinAuto Spin = iota
	// SpinAlways does not sleep: no sleep can be late, for a whole core.
	SpinAlways
	// SpinNever only sleeps: some 50 to 150 µs late, for next to no core.
	SpinNever
)

// The lead of a SystemWaiter: how long before its instant it stops sleeping.
const (
	minLead = 30 * time.Microsecond
	maxLead = time.Millisecond
	// Above this a wait can be cut short by wake; below it is too short to
	// matter.
	interruptible = 20 * time.Millisecond
	// Above this SpinAlways sleeps all the same.
	longest = time.Minute
	// Between two looks at the clock that long the thread was not running.
	offCore = 200 * time.Microsecond
)

// SystemWaiter waits on the system's monotonic clock: it sleeps to a lead
// before the instant, then spins (SpinAuto). The lead follows how late the
// system's sleeps have been of late, so a quiet machine spins little. Where
// others want the core a thread that spins is the first to be taken off it, for
// long, so then it only sleeps, for four times as long as it was off. It must
// be used by one goroutine; where that is locked to its thread the thread's
// timer slack is lowered.
type SystemWaiter struct {
	origin time.Time
	timer  *time.Timer
	lead   time.Duration
	spin   Spin
	rest   moldcast.Instant // until then it does not spin
	single bool             // one processor: a spin must let others run
	tuned  bool
}

// NewWaiter is a SystemWaiter whose origin is now.
func NewWaiter(s Spin) *SystemWaiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &SystemWaiter{origin: time.Now(), timer: t, spin: s, lead: 300 * time.Microsecond, single: min(runtime.GOMAXPROCS(0), runtime.NumCPU()) == 1}
}

// Now is ns since w was made, plus one: never 0.
func (w *SystemWaiter) Now() moldcast.Instant { return moldcast.Instant(time.Since(w.origin)) + 1 }

// Wall is the wall clock.
func (w *SystemWaiter) Wall() moldcast.Stamp { return moldcast.StampOf(time.Now()) }

// Until implements Waiter.
func (w *SystemWaiter) Until(t moldcast.Instant, wake <-chan struct{}) {
	if !w.tuned {
		w.tuned = true
		tuneThread()
	}
	for {
		left := time.Duration(t - w.Now())
		switch {
		case left <= 0:
			return
		case w.spin == SpinAlways && left < longest:
			w.burn(t, wake)
			return
		case left > interruptible:
			w.timer.Reset(min(left-interruptible/2, time.Hour))
			select {
			case <-w.timer.C:
				continue
			case <-wake:
				w.timer.Stop()
				return
			}
		case w.spin == SpinNever, w.Now() < w.rest:
			nap(left)
			w.learn(time.Duration(w.Now() - t))
		case left > w.lead:
			aim := t - moldcast.Instant(w.lead)
			nap(left - w.lead)
			w.learn(time.Duration(w.Now() - aim))
		default:
			w.lead = max(w.lead-w.lead/1024, minLead) // or it would stay where packets are closer than that
			if w.burn(t, nil) {
				return
			}
		}
	}
}

// burn looks at the clock until t, or until wake has something; false says that
// the thread was taken off its core meanwhile, and is to rest.
func (w *SystemWaiter) burn(t moldcast.Instant, wake <-chan struct{}) bool {
	for last := w.Now(); last < t; {
		select {
		case <-wake:
			return true
		default:
			if w.single {
				runtime.Gosched()
			}
		}
		now := w.Now()
		if off := now - last; off > moldcast.Instant(offCore) && w.spin == SpinAuto {
			w.rest = now + 4*off
			return now >= t
		}
		last = now
	}
	return true
}

// learn takes in that a sleep ended late by d: up at once, but not by one that
// was much too late, against which no lead helps; down slowly.
func (w *SystemWaiter) learn(d time.Duration) {
	want := d + d/4
	if want > w.lead {
		w.lead = min(want, w.lead+w.lead/2)
	} else {
		w.lead -= (w.lead - want) / 32
	}
	w.lead = min(max(w.lead, minLead), maxLead)
}
