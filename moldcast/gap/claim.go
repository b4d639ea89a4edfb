package gap

import "time"

// Claim is what heartbeats and ends of session say again and again, below what
// one of them has revealed. One forged packet would else keep an end that is
// true from ever being accepted. The zero value has heard nothing.
type Claim struct {
	next  Seq
	since Instant
	times int
}

// A claim stands when it was heard ClaimTimes in ClaimTime.
const (
	ClaimTimes = 3
	ClaimTime  = 3 * time.Second
)

// Hear takes a packet of a line: its range, whether it is a heartbeat or end
// (control), and the head before it. It reports that the session has long been
// said to go no further than r.First, with no word to the contrary. Whether
// nothing was heard from beyond is for the owner to know; Machine.Withdraw
// then takes back what is missing there.
func (c *Claim) Hear(now Instant, control bool, r Range, head Seq, wait time.Duration) bool {
	switch {
	case !control || r.First >= head:
		if r.Next > c.next {
			c.times = 0
		}
		return false
	case c.times == 0 || c.next != r.First:
		*c = Claim{next: r.First, since: now, times: 1}
		return false
	}
	c.times++
	return c.times >= ClaimTimes && now-c.since >= Instant(wait)
}
