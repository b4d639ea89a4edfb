package mcast

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Clock gives the time to the shells. All that share state share one Clock:
// instants of different clocks do not compare.
type Clock interface {
	Now() moldcast.Instant // monotonic, ns since an origin of the clock's own
	Wall() moldcast.Stamp  // wall clock
}

// SystemClock is the real Clock; virtual in a testing/synctest bubble that it
// was made in.
type SystemClock struct{ origin time.Time }

// NewClock is a SystemClock whose origin is now.
func NewClock() *SystemClock { return &SystemClock{origin: time.Now()} }

// Now is ns since c was made, plus one: never 0.
func (c *SystemClock) Now() moldcast.Instant {
	return moldcast.Instant(time.Since(c.origin)) + 1
}

// Wall is the wall clock.
func (c *SystemClock) Wall() moldcast.Stamp { return moldcast.StampOf(time.Now()) }

// until is how long from now to at: 0 when past, an hour for Never.
func until(now, at moldcast.Instant) time.Duration {
	if at <= now {
		return 0
	}
	return min(time.Duration(at-now), time.Hour)
}
