package pace

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Stamp and Instant are those of moldcast: recorded wall time and real
// monotonic time.
type (
	Stamp   = moldcast.Stamp
	Instant = moldcast.Instant
)

// The speeds that a schedule knows. They are kept in steps of 1e-9.
const (
	MinSpeed = 0.001
	MaxSpeed = 1000
)

// The rates that a schedule knows, in messages a second. They are kept in
// steps of 1e-6.
const (
	MinRate = 0.001
	MaxRate = 1e9
)

// ErrConfig is wrapped by what Config.Validate finds.
var ErrConfig = errors.New("pace")

// Config chooses one of three ways to pace: Max, else Rate when it is not 0,
// else Speed.
type Config struct {
	Speed   float64       // MinSpeed..MaxSpeed; 2 is twice as fast as recorded; 0 is 1
	Rate    float64       // messages a second, whatever the stamps say; 0: by stamps
	Max     bool          // everything is due at once
	MaxIdle time.Duration // longest quiet time of the replay, in real time; 0: none is cut
}

// EnsureDefaults fills in what is 0.
func (c *Config) EnsureDefaults() {
	if c.Speed == 0 {
		c.Speed = 1
	}
}

// Validate checks c after EnsureDefaults. Its error wraps ErrConfig.
func (c Config) Validate() error {
	switch {
	case !(c.Speed >= MinSpeed && c.Speed <= MaxSpeed):
		return fmt.Errorf("%w: speed %v outside %v..%v", ErrConfig, c.Speed, MinSpeed, MaxSpeed)
	case c.Rate != 0 && !(c.Rate >= MinRate && c.Rate <= MaxRate):
		return fmt.Errorf("%w: rate %v outside %v..%v", ErrConfig, c.Rate, MinRate, float64(MaxRate))
	case c.Max && c.Rate != 0:
		return fmt.Errorf("%w: both a rate and no pacing at all", ErrConfig)
	case c.MaxIdle < 0:
		return fmt.Errorf("%w: negative longest quiet time %v", ErrConfig, c.MaxIdle)
	}
	return nil
}

// ratio is num position units to den ns of real time.
type ratio struct{ num, den uint64 }

// real is the real time that the position pos takes, rounded down.
func (r ratio) real(pos uint64) uint64 { return mulDiv(pos, r.den, r.num) }

// position is what passes in d ns of real time, rounded down.
func (r ratio) position(d uint64) uint64 { return mulDiv(d, r.num, r.den) }

// mulDiv is a*b/c, rounded down, and the largest uint64 where that is more.
func mulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, c)
	return q
}

// Schedule reckons due times of one replay, of however many sessions on one
// clock. The sender owns it: it is not safe for concurrent use. It is stopped
// until Start.
//
// The position counts recorded ns in the pacing by stamps, messages in the
// pacing by rate. It is 0 at the first packet.
type Schedule struct {
	cfg   Config
	scale ratio

	running bool
	anchor  Instant // real time of base
	base    uint64  // position that is due at anchor

	placed bool   // first and high are set
	first  Stamp  // the stamp of position 0
	high   Stamp  // running maximum of the stamps of packets that went
	cut    uint64 // recorded ns taken out of quiet times so far
	msgs   uint64 // messages that went
}

// New makes a schedule. It fills in defaults; its error is Validate's.
func New(c Config) (*Schedule, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Schedule{cfg: c}
	s.rescale()
	return s, nil
}

func (s *Schedule) rescale() {
	if s.cfg.Rate != 0 {
		// Messages to ns: den carries the 1e9 ns of a second.
		s.scale = ratio{num: uint64(math.Round(s.cfg.Rate * 1e6)), den: 1e15}
		return
	}
	s.scale = ratio{num: uint64(math.Round(s.cfg.Speed * 1e9)), den: 1e9}
}

// Running reports whether the clock runs.
func (s *Schedule) Running() bool { return s.running }

// Start lets the clock run on from where it stands: after New, the first
// packet is due at now. It is also the end of a pause: what was due d after
// the pause began is due d after now, and what was late already is as late as
// it was. On a running clock it does nothing.
func (s *Schedule) Start(now Instant) {
	if s.running {
		return
	}
	s.running, s.anchor = true, now
}

// Pause stops the clock at now. Until Start nothing is due.
func (s *Schedule) Pause(now Instant) {
	if !s.running {
		return
	}
	s.base = s.at(now)
	s.running = false
}

// at is the position at now; never before the anchor.
func (s *Schedule) at(now Instant) uint64 {
	if !s.running || now <= s.anchor {
		return s.base
	}
	p := s.base + s.scale.position(uint64(now-s.anchor))
	if p < s.base {
		return math.MaxUint64
	}
	return p
}

// rebase moves the anchor to now without a jump.
func (s *Schedule) rebase(now Instant) {
	s.base = s.at(now)
	if s.running {
		s.anchor = max(s.anchor, now)
	}
}

// Speed is the present speed; with a Rate, the rate.
func (s *Schedule) Speed() float64 {
	if s.cfg.Rate != 0 {
		return s.cfg.Rate
	}
	return s.cfg.Speed
}

// Scale multiplies the speed (the rate, where that paces) from now on, within
// its bounds. It does nothing where Max paces.
func (s *Schedule) Scale(now Instant, by float64) { s.Set(now, s.Speed()*by) }

// Set sets the speed (the rate, where that paces) from now on, within its
// bounds. It does nothing where Max paces, or speed is not above 0.
func (s *Schedule) Set(now Instant, speed float64) {
	if s.cfg.Max || !(speed > 0) {
		return
	}
	s.rebase(now)
	if s.cfg.Rate != 0 {
		s.cfg.Rate = min(max(speed, MinRate), MaxRate)
	} else {
		s.cfg.Speed = min(max(speed, MinSpeed), MaxSpeed)
	}
	s.rescale()
}

// Seek makes recorded time t the present: a packet of stamp t is due at now,
// one of a lower stamp too. A stopped clock stays stopped.
func (s *Schedule) Seek(now Instant, t Stamp) {
	s.placed = true
	s.first, s.high, s.cut, s.msgs = t, t, 0, 0
	s.base, s.anchor = 0, now
}

// Rewind forgets every packet: the next one is position 0 again and due at
// now. A stopped clock stays stopped.
func (s *Schedule) Rewind(now Instant) {
	s.placed = false
	s.first, s.high, s.cut, s.msgs = 0, 0, 0, 0
	s.base, s.anchor = 0, now
}

// place is the position of the next packet if its stamp is t, and what that
// cuts out of the quiet time before it.
func (s *Schedule) place(t Stamp) (pos, cut uint64) {
	if !s.placed {
		return 0, 0
	}
	// Differences of stamps are taken as uint64: right for any two stamps.
	quiet := uint64(0)
	if t > s.high {
		quiet = uint64(t) - uint64(s.high)
	}
	if s.cfg.MaxIdle > 0 {
		if most := s.scale.position(uint64(s.cfg.MaxIdle)); s.cfg.Rate == 0 && quiet > most {
			cut = quiet - most
		}
	}
	return uint64(s.high) - uint64(s.first) - s.cut + quiet - cut, cut
}

// Due is when the next packet is due if its stamp is t: Never while the clock
// stands. It changes nothing; Sent does.
func (s *Schedule) Due(t Stamp) Instant {
	if !s.running {
		return gap.Never
	}
	if s.cfg.Max {
		return s.anchor
	}
	pos := s.msgs
	if s.cfg.Rate == 0 {
		pos, _ = s.place(t)
	}
	if pos < s.base {
		// Late when the clock was re-based: as late as it was.
		return s.anchor - Instant(min(s.scale.real(s.base-pos), math.MaxInt64))
	}
	d := s.scale.real(pos - s.base)
	if d >= uint64(gap.Never)-uint64(max(s.anchor, 0)) {
		return gap.Never - 1
	}
	return s.anchor + Instant(d)
}

// Sent says that the next packet, of stamp t with msgs messages, has gone: the
// one after it is reckoned behind it.
func (s *Schedule) Sent(t Stamp, msgs int) {
	s.msgs += uint64(msgs)
	if !s.placed {
		s.placed, s.first, s.high = true, t, t
		return
	}
	_, cut := s.place(t)
	s.cut += cut
	s.high = max(s.high, t)
}

// Step moves a stopped clock to the next packet, of stamp t, so that it may go
// now and the clock runs on behind it after Start. On a running clock it does
// nothing.
func (s *Schedule) Step(t Stamp) {
	if s.running {
		return
	}
	pos := s.msgs
	if s.cfg.Rate == 0 {
		pos, _ = s.place(t)
	}
	s.base = max(s.base, pos)
}

// Position is the recorded time at now: of the running clock, where stamps
// pace; else the highest stamp that went. 0 before the first packet.
func (s *Schedule) Position(now Instant) Stamp {
	if !s.placed {
		return 0
	}
	if s.cfg.Max || s.cfg.Rate != 0 {
		return s.high
	}
	pos := s.at(now)
	gone := uint64(s.high) - uint64(s.first) - s.cut
	if pos < gone {
		return s.high
	}
	d := min(pos-gone, uint64(math.MaxInt64)-uint64(max(s.high, 0)))
	return s.high + Stamp(d)
}
