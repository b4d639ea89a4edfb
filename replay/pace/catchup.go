package pace

import (
	"math"
	"time"
)

// The bounds of how much faster than the schedule a replay catches up.
const (
	MinCatchUp = 1.01
	MaxCatchUp = 1000
)

// slack is how far behind now a limiter reckons from, in ns: what one call
// sends at once although it is not due at once.
const slack = Instant(100 * time.Microsecond)

// Limiter has a replay that fell behind catch up without a burst that the
// recording never had. Packets that are due go at once while they are on time;
// late ones keep their distances, divided by a factor k:
//
//	release(packet) = max(due, release(packet before) + (due - due of the packet before) / k)
//
// where the release before counts as at least the time of its sending less a
// slack of 100 µs. So in any span of length w no more is sent than the schedule
// has in some k·(w + slack), packets that are due together stay together, and
// after a stall of length d the replay is on time again within d·k/(k-1).
//
// A sender that does not keep up even so would fall behind for ever. Where
// lateness grows beyond what it was when the catching up began the slack grows
// fourfold, each time, until the replay is on time again.
//
// The zero value limits nothing. The sender owns it.
type Limiter struct {
	part  float64 // 1/k; 0: no limit
	slack Instant
	due   Instant // of the packet before
	from  Instant // its release, as it counts
	worst Instant // lateness that this catching up had to begin with; 0: on time
}

// NewLimiter makes a limiter that catches up k times as fast as the schedule;
// k is in MinCatchUp..MaxCatchUp, or +Inf: no limit.
func NewLimiter(k float64) Limiter {
	if math.IsInf(k, 1) {
		return Limiter{}
	}
	return Limiter{part: 1 / min(max(k, MinCatchUp), MaxCatchUp), slack: slack}
}

// Release is when the next packet may go if it is due at due: then, or later
// where the one before it was late. So the last of what is made up for keeps its
// distance from what is on time again.
func (l *Limiter) Release(due Instant) Instant {
	if l.part == 0 {
		return due
	}
	return max(due, l.from+l.after(due))
}

// Forget begins anew: what comes next has nothing before it.
func (l *Limiter) Forget() {
	if l.part != 0 {
		*l = Limiter{part: l.part, slack: slack}
	}
}

// after is the distance that late packets keep.
func (l *Limiter) after(due Instant) Instant {
	if due <= l.due {
		return 0
	}
	return Instant(float64(uint64(due)-uint64(l.due)) * l.part)
}

// Sent takes in that the packet due at due is sent at now, at or after its
// release.
func (l *Limiter) Sent(due, now Instant) {
	if l.part == 0 {
		return
	}
	at := l.Release(due)
	switch late := now - due; {
	case late <= slack:
		l.slack, l.worst = slack, 0
	case l.worst == 0:
		l.worst = late
	case late > l.worst+l.slack:
		l.worst = late
		l.slack = min(4*l.slack, Instant(time.Minute))
	}
	l.due, l.from = due, max(min(at, now), now-l.slack)
}
