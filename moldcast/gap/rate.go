package gap

import "time"

// rate is how many requests a second a machine lets go. It begins at
// startRate, and grows by half for each window in which it held requests back
// while answers came, nearly all and promptly; after it was cut, by a 64th of
// the most. It is halved where a window brought no answer, and, down to
// startRate, where an eighth of what the server surely has was not answered, or
// round trips have become many times as long. So it grows only while there is
// something to ask for and the answers prove that it is welcome; and on a path
// that loses much at any rate it stays where it began.
type rate struct {
	now, most int
	cut       bool

	from            Instant // the window begins
	answers, misses int     // of the window, of all requests
	kept, lost      int     // of those, first requests for what the server surely has
	limited         bool    // it held requests back
	last            Instant // the newest request
	limitedAt       Instant // when it last did, anywhere
}

const (
	startRate  = 1000
	leastRate  = 250
	rateWindow = 25 * time.Millisecond
	// restPeriod is how long without a request until growth is forgotten.
	restPeriod = Instant(10 * time.Second)
)

func newRate(most int) rate {
	return rate{now: min(startRate, most), most: most, last: -restPeriod, limitedAt: -restPeriod}
}

// hold takes note that a request had to wait for the rate.
func (r *rate) hold(now Instant) { r.limited, r.limitedAt = true, now }

// pressed reports whether the rate has been the limit of late.
func (r *rate) pressed(now Instant) bool { return now-r.limitedAt <= 4*Instant(rateWindow) }

// asked takes note of a request.
func (r *rate) asked(now Instant) {
	if now-r.last > restPeriod {
		*r = rate{now: min(r.now, startRate), most: r.most, limitedAt: r.limitedAt, from: now}
	}
	r.last = now
}

// answer takes note of one; sure: to a first request for what was sure to be there.
func (r *rate) answer(sure bool) {
	r.answers++
	if sure {
		r.kept++
	}
}

// miss takes note that none came in time.
func (r *rate) miss(sure bool) {
	r.misses++
	if sure {
		r.lost++
	}
}

// late takes note of an answer to a request that was taken for lost.
func (r *rate) late() {
	r.answers++
	r.misses = max(0, r.misses-1)
	r.lost = max(0, r.lost-1)
}

// judge ends the window when it is due. rtt is the smoothed round trip of the
// server that is asked, and base what it is at best; 0: unknown.
func (r *rate) judge(now Instant, rtt, base time.Duration) {
	if now-r.from < Instant(max(rateWindow, 4*rtt)) {
		return
	}
	silent := r.answers == 0 && r.misses >= 4
	lossy := r.lost >= 3 && r.lost*8 > r.lost+r.kept
	switch {
	case silent:
		r.now, r.cut = max(min(leastRate, r.now), r.now/2), false
	case lossy, rtt > 8*base+20*time.Millisecond:
		r.now, r.cut = max(min(startRate, r.now), r.now/2), true
	case !r.limited, r.answers == 0, r.lost*16 > r.lost+r.kept, rtt > 2*base+2*time.Millisecond:
	case r.cut:
		r.now = min(r.most, r.now+r.most/64+1)
	default:
		r.now = min(r.most, r.now+r.now/2+1)
	}
	r.from, r.limited = now, false
	r.answers, r.misses, r.kept, r.lost = 0, 0, 0, 0
}
