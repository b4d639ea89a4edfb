package gap

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Forever is the Budget of a gap that is never given up.
const Forever time.Duration = math.MaxInt64

// Config sets the timers and bounds of a Machine. The zero value of a field
// stands for its default.
type Config struct {
	// Lines is how many lines can bring messages, 1..254 (default 1). Lines are
	// numbered from 0; any other number is that of an answer.
	Lines int

	// Servers is how many rerequest servers there are, 0..254, numbered from 0.
	// With none nothing is asked for, and a gap waits for the lines until its
	// budget is spent.
	Servers int

	// Windows is how many of the newest messages each server is known to hold, by
	// its number; 0, and beyond the end: not known. It is never asked for what is
	// farther below the head.
	Windows []uint64

	// Settle is how long a missing range may still be mere disorder, unless two
	// later packets tell earlier (1ms). With several live lines it is
	// 3 × the p99 of their skew, within SettleMin..SettleMax (200µs..5ms), unless
	// each of them has passed the range by two packets.
	Settle, SettleMin, SettleMax time.Duration

	// A request is repeated after max(RetryMin, 4 × the round trip), then after
	// twice that, and so on, never later than RetryMax (2ms, 250ms).
	RetryMin, RetryMax time.Duration

	// Outstanding is how many requests may be unanswered at once (64).
	Outstanding int

	// Budget is how long a gap is asked for before it is lost (10s; Forever:
	// never). It runs from the first request, or from the opening when there is
	// nobody to ask; each part of the gap that arrives starts it again.
	Budget time.Duration

	// After the budget, unless GiveUp is set, asking goes on in the background
	// every SlowMin, then more rarely, up to SlowMax (1s, 10s).
	SlowMin, SlowMax time.Duration

	// GiveUp ends asking with the budget: the range is handed out by Lost and
	// counts as dealt with from then on, so that Next goes past it.
	GiveUp bool

	// MaxGaps bounds the table of missing ranges (65536). When it is full, a
	// lost range makes room for a new one; when none is lost, what would open
	// another is refused.
	MaxGaps int

	// MaxRequest is the most messages of one request, 1..65534 (65534).
	MaxRequest int

	// RequestsPerSecond is the most requests a second (20000). A machine begins
	// with 1000, and comes near the most only while answers show that they are
	// welcome.
	RequestsPerSecond int

	// Sparse says that numbers only rise: nothing is ever missing. What lies
	// below the head is Forgotten, since the owner must know whether it is held.
	Sparse bool

	// Shared, unless nil, bounds the requests of all machines that have it.
	Shared *Budget

	// HeartbeatInterval is how often an idle line is heard (1s). A line that is
	// silent for three of them is not live.
	HeartbeatInterval time.Duration

	// Seed starts the jitter of retries: the same seed and events give the same
	// requests.
	Seed uint64
}

// maxRequest is the largest count a request may carry: 65535 would read as
// End of Session.
const maxRequest = 0xFFFF - 1

// EnsureDefaults sets what is zero to its default.
func (c *Config) EnsureDefaults() {
	def(&c.Lines, 1)
	def(&c.Settle, time.Millisecond)
	def(&c.SettleMin, 200*time.Microsecond)
	def(&c.SettleMax, 5*time.Millisecond)
	def(&c.RetryMin, 2*time.Millisecond)
	def(&c.RetryMax, 250*time.Millisecond)
	def(&c.Outstanding, 64)
	def(&c.Budget, 10*time.Second)
	def(&c.SlowMin, time.Second)
	def(&c.SlowMax, 10*time.Second)
	def(&c.MaxGaps, 65536)
	def(&c.MaxRequest, maxRequest)
	def(&c.RequestsPerSecond, 20_000)
	def(&c.HeartbeatInterval, time.Second)
}

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Validate reports what a machine cannot work with, after EnsureDefaults.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, v any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("gap: %s %v: want %s", field, v, want))
		}
	}
	check(c.Lines >= 1 && c.Lines <= 254, "Lines", c.Lines, "1..254")
	check(c.Servers >= 0 && c.Servers <= 254, "Servers", c.Servers, "0..254")
	check(c.Settle >= 0, "Settle", c.Settle, "a positive duration")
	check(c.SettleMin >= 0 && c.SettleMin <= c.SettleMax, "SettleMin", c.SettleMin, "0..SettleMax")
	check(c.RetryMin > 0 && c.RetryMin <= c.RetryMax, "RetryMin", c.RetryMin, "a positive duration up to RetryMax")
	check(c.Outstanding >= 1 && c.Outstanding <= 1<<16, "Outstanding", c.Outstanding, "1..65536")
	check(c.Budget > 0, "Budget", c.Budget, "a positive duration")
	check(c.SlowMin > 0 && c.SlowMin <= c.SlowMax, "SlowMin", c.SlowMin, "a positive duration up to SlowMax")
	check(c.MaxGaps >= 1 && c.MaxGaps <= 1<<24, "MaxGaps", c.MaxGaps, "1..16777216")
	check(c.MaxRequest >= 1 && c.MaxRequest <= maxRequest, "MaxRequest", c.MaxRequest, "1..65534")
	check(c.RequestsPerSecond >= 1 && c.RequestsPerSecond <= 1e9, "RequestsPerSecond", c.RequestsPerSecond, "1..1000000000")
	check(c.HeartbeatInterval > 0, "HeartbeatInterval", c.HeartbeatInterval, "a positive duration")
	return errors.Join(errs...)
}
