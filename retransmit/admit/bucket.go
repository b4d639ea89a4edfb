package admit

import (
	"math"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// bucket is a token bucket. Its level may be negative: debt of what was paid
// after the fact.
type bucket struct {
	level float64
	last  moldcast.Instant // of level
}

// limit is what buckets of one kind are filled by.
type limit struct {
	rate float64 // tokens a second; negative: no limit
	cap  float64
}

func limitOf(rate float64, burst float64, least float64) limit {
	return limit{rate: rate, cap: max(rate*burst, min(rate, least), 1)}
}

func (b *bucket) fill(l limit, now moldcast.Instant) {
	if now <= b.last { // a clock read before another's: nothing to add
		return
	}
	b.level = min(l.cap, b.level+float64(now-b.last)*l.rate/1e9)
	b.last = now
}

// has reports whether n tokens are there. fill comes before.
func (b *bucket) has(l limit, n float64) bool { return l.rate < 0 || b.level >= n }

func (b *bucket) take(l limit, n float64) {
	if l.rate >= 0 {
		b.level -= n
	}
}

func (b *bucket) full(l limit) bool { return l.rate < 0 || b.level >= l.cap }

// budget is a Rate in force.
type budget struct{ requests, bytes limit }

func budgetOf(r Rate, burst float64) budget {
	b := budget{
		requests: limitOf(r.Requests, burst, leastBurst),
		bytes:    limitOf(r.Bytes, burst, moldcast.MaxDatagram),
	}
	b.bytes.cap = max(b.bytes.cap, moldcast.MaxDatagram)
	return b
}

// account is what is left of a budget.
type account struct{ requests, bytes bucket }

func (a *account) open(b budget, now moldcast.Instant) {
	a.requests = bucket{level: b.requests.cap, last: now}
	a.bytes = bucket{level: b.bytes.cap, last: now}
}

func (a *account) fill(b budget, now moldcast.Instant) {
	a.requests.fill(b.requests, now)
	a.bytes.fill(b.bytes, now)
}

// can reports whether a request may be answered: a request token, and no debt
// of bytes.
func (a *account) can(b budget) bool {
	return a.requests.has(b.requests, 1) && (b.bytes.rate < 0 || a.bytes.level > 0)
}

func (a *account) full(b budget) bool { return a.requests.full(b.requests) && a.bytes.full(b.bytes) }

// wait is how long it takes until can.
func (a account) wait(b budget, now moldcast.Instant) time.Duration {
	a.fill(b, now)
	return max(a.requests.wait(b.requests, 1), a.bytes.wait(b.bytes, math.SmallestNonzeroFloat64))
}

// wait is how long it takes until the level is n.
func (b *bucket) wait(l limit, n float64) time.Duration {
	switch {
	case b.has(l, n):
		return 0
	case l.rate == 0:
		return math.MaxInt64
	}
	return max(1, time.Duration(min((n-b.level)/l.rate*1e9, math.MaxInt64/2)))
}
