package impair

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Bounds of a Config, and of what is delayed at a time.
const (
	MaxBurst        = 1 << 20
	MaxDepth        = 1 << 16
	MaxJitter       = 10 * time.Second
	MaxDelayed      = 1 << 16
	MaxDelayedBytes = 64 << 20
)

// DefaultDepth is the Depth that 0 stands for.
const DefaultDepth = 8

// Config says how a line harms packets; see the package's rule. Probabilities
// are 0..1. The zero value harms nothing.
type Config struct {
	Loss      float64
	BurstLoss float64       // of a burst to begin at a packet
	BurstLen  int           // packets that a burst takes: 1..MaxBurst
	Duplicate float64       //
	Reorder   float64       //
	Depth     int           // 1..MaxDepth; 0: DefaultDepth
	Jitter    time.Duration // 0..MaxJitter
	Seed      uint64
}

// ErrConfig is wrapped by what Validate finds.
var ErrConfig = errors.New("impairment")

// Harmless reports whether c lets every packet through as it is.
func (c Config) Harmless() bool {
	return c.Loss == 0 && c.BurstLoss == 0 && c.Duplicate == 0 && c.Reorder == 0 && c.Jitter == 0
}

// Validate checks c.
func (c Config) Validate() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", c.Loss}, {"burst loss", c.BurstLoss}, {"duplicate", c.Duplicate}, {"reorder", c.Reorder}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("%w: %s %v outside 0..1", ErrConfig, p.name, p.v)
		}
	}
	switch {
	case c.BurstLoss > 0 && (c.BurstLen < 1 || c.BurstLen > MaxBurst):
		return fmt.Errorf("%w: burst of %d packets outside 1..%d", ErrConfig, c.BurstLen, MaxBurst)
	case c.Depth < 0 || c.Depth > MaxDepth:
		return fmt.Errorf("%w: reorder depth %d outside 1..%d", ErrConfig, c.Depth, MaxDepth)
	case c.Jitter < 0 || c.Jitter > MaxJitter:
		return fmt.Errorf("%w: delay jitter %v outside 0..%v", ErrConfig, c.Jitter, MaxJitter)
	}
	return nil
}

// Cause is why a packet is lost.
type Cause uint8

// Causes of loss.
const (
	NotLost Cause = iota
	Alone         // Config.Loss
	InBurst       // Config.BurstLoss
)

// Fate is what becomes of one packet.
type Fate struct {
	Lost           Cause
	Duplicate      bool
	Reorder        int           // later packets that are let by before it; 0: none
	Delay          time.Duration // of the packet
	DuplicateDelay time.Duration // of its second copy
}

// Harmed reports whether the packet does not just go.
func (f Fate) Harmed() bool { return f != Fate{} }

// Counters of a Line: Offered - Lost + Duplicated packets came out, or are
// Waiting.
type Counters struct {
	Offered, Lost, Duplicated, Reordered, Delayed uint64
	Early                                         uint64 // delayed less than drawn, for want of room
}

// Line is one line. Whoever offers packets owns it.
type Line struct {
	cfg   Config
	src   *rand.PCG
	seen  int64 // packets offered
	burst int   // packets of a burst still to come
	late  heap  // reorder: by the number of the packet that sets it free
	timed heap  // delay: by instant
	count Counters
}

// New makes a Line. Its error is Validate's.
func New(c Config) (*Line, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	return &Line{cfg: c, src: rand.NewPCG(c.Seed, 0x6d6f6c6474617065)}, nil
}

// Derive is the seed of part n of what seed governs: parts are harmed apart.
// It is splitmix64's finaliser (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators, 2014).
func Derive(seed, n uint64) uint64 {
	z := seed + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// chance draws 0..1, without 1.
func (l *Line) chance() float64 { return float64(l.src.Uint64()>>11) / (1 << 53) }

// below draws 0..n-1.
func (l *Line) below(n uint64) uint64 {
	hi, _ := bits.Mul64(l.src.Uint64(), n)
	return hi
}

// draw is the fate of the next packet.
func (l *Line) draw() Fate {
	c := &l.cfg
	alone, burst, twice, late := l.chance(), l.chance(), l.chance(), l.chance()
	after := 1 + int(l.below(uint64(c.Depth)))
	delay, second := time.Duration(l.below(uint64(c.Jitter)+1)), time.Duration(l.below(uint64(c.Jitter)+1))
	switch {
	case l.burst > 0:
		l.burst--
		return Fate{Lost: InBurst}
	case burst < c.BurstLoss:
		l.burst = c.BurstLen - 1
		return Fate{Lost: InBurst}
	case alone < c.Loss:
		return Fate{Lost: Alone}
	}
	f := Fate{Delay: delay}
	if twice < c.Duplicate {
		f.Duplicate, f.DuplicateDelay = true, second
	}
	if late < c.Reorder {
		f.Reorder = after
	}
	return f
}

// Offer takes a packet at now and says what becomes of it. emit is called, in
// order, for each packet that comes out; what it is given is valid during the
// call.
func (l *Line) Offer(now moldcast.Instant, pkt []byte, emit func([]byte)) Fate {
	l.seen++
	l.count.Offered++
	f := l.draw()
	switch {
	case f.Lost != NotLost:
		l.count.Lost++
	case f.Reorder > 0:
		l.count.Reordered++
		l.late.push(pkt, l.seen+int64(f.Reorder), f.Delay)
	default:
		l.out(now, pkt, f.Delay, emit)
	}
	if f.Duplicate {
		l.count.Duplicated++
		l.out(now, pkt, f.DuplicateDelay, emit)
	}
	for l.late.len() > 0 && l.late.min() <= l.seen {
		b, delay := l.late.pop()
		l.out(now, b, delay, emit)
	}
	return f
}

// out is behind reorder: what is not delayed comes out.
func (l *Line) out(now moldcast.Instant, pkt []byte, delay time.Duration, emit func([]byte)) {
	if delay == 0 {
		emit(pkt)
		return
	}
	l.count.Delayed++
	for l.timed.len() >= MaxDelayed || l.timed.len() > 0 && l.timed.bytes+len(pkt) > MaxDelayedBytes {
		l.count.Early++
		b, _ := l.timed.pop()
		emit(b)
	}
	l.timed.push(pkt, int64(now)+int64(delay), 0)
}

// Deadline is when a delayed packet is due; gap.Never where none waits.
func (l *Line) Deadline() moldcast.Instant {
	if l.timed.len() == 0 {
		return gap.Never
	}
	return moldcast.Instant(l.timed.min())
}

// Poll emits what was delayed until now.
func (l *Line) Poll(now moldcast.Instant, emit func([]byte)) {
	for l.Deadline() <= now {
		b, _ := l.timed.pop()
		emit(b)
	}
}

// Settle lets go what waits to be overtaken: the line falls silent. It may be
// delayed still.
func (l *Line) Settle(now moldcast.Instant, emit func([]byte)) {
	for l.late.len() > 0 {
		b, delay := l.late.pop()
		l.out(now, b, delay, emit)
	}
}

// Flush emits everything that is held back.
func (l *Line) Flush(emit func([]byte)) {
	for l.late.len() > 0 {
		b, _ := l.late.pop()
		emit(b)
	}
	for l.timed.len() > 0 {
		b, _ := l.timed.pop()
		emit(b)
	}
}

// Waiting is how many packets are held back.
func (l *Line) Waiting() int { return l.late.len() + l.timed.len() }

// Counters is a snapshot.
func (l *Line) Counters() Counters { return l.count }
