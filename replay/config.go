package replay

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/burst"
	"github.com/moldtape/moldtape/replay/pace"
)

// Source gives the pieces of a recording in order of their sequences. A piece
// is valid until the next call. Errors: io.EOF at the end; one that wraps a
// *moldcast.HoleError once for each range that is missing or damaged, after
// which the source goes on behind it; anything else ends the replay. A Source
// that is an io.Closer is closed when it is done with.
type Source interface {
	Next() (moldcast.Piece, error)
}

// MarkSource gives heartbeats and ends; io.EOF at the end. One that is an
// io.Closer is closed when it is done with.
type MarkSource interface {
	Next() (moldcast.Mark, error)
}

// HeardSource gives the datagrams that a line brought, in the order of hearing,
// with their message blocks, valid until the next call. Errors: io.EOF; one that
// wraps a *moldcast.HoleError for a datagram that cannot be made again, behind
// which it goes on; anything else ends the replay. One that is an io.Closer is
// closed when it is done with.
type HeardSource interface {
	Next() (h moldcast.Heard, framed []byte, err error)
}

// Sender sends datagrams in order. The first n of batch were sent; err says
// why n < len(batch). It must not retain batch. An mcast.InOrder is one; an
// *mcast.Conn is not: it goes on behind a datagram that was refused.
type Sender interface {
	Send(batch [][]byte) (n int, err error)
}

// Stream is one recorded session and where it goes.
type Stream struct {
	Session moldcast.Session // published under this name; streams to one group need different ones
	Sender  Sender

	// Range is what to publish, [First, Next): First is what heartbeats carry
	// before the first message. It must not be empty.
	Range moldcast.Range

	// Sparse says that numbers only rise: where a Source jumps nothing is
	// missing, and it need not reach Range.Next.
	Sparse bool

	// Open gives a Source that starts at from. It is called by the read-ahead
	// goroutine alone: at the start, for each seek and loop, and again and
	// again while a hole is waited for, when it must see what was filled.
	Open func(from moldcast.Seq) (Source, error)

	// Marks gives the heartbeats that were heard, on whatever line, about in
	// order; those before the range may be left out. Where stamps pace and
	// nothing is cut out of them, they are sent at their times. nil: there are
	// none. Called by the read-ahead goroutine alone.
	Marks func(from moldcast.Seq) (MarkSource, error)

	// Heard replays a line as it was heard, in place of what Open and Marks
	// give: all that its source gives from a time on (0: from the beginning), and
	// nothing else, neither heartbeats in silence nor an End of Session. Streams
	// of one session have one Space: what any of them sent was published. Called
	// by the read-ahead goroutine alone.
	Heard func(from moldcast.Stamp) (HeardSource, error)

	// SeqAt is the first sequence whose time is at or after t. It is needed
	// for seeks only; nil: seeking does nothing. Called by the read-ahead
	// goroutine alone.
	SeqAt func(t moldcast.Stamp) moldcast.Seq
}

// HoleAction is what to do at a hole.
type HoleAction uint8

// The actions at a hole.
const (
	Skip HoleAction = iota // go on with the next message, at its time
	Stop                   // end before the hole, without End of Session: ErrHole
	Wait                   // stop the clock until the hole is filled
)

// Packets says how messages are put into datagrams.
type Packets uint8

// The ways to make packets.
const (
	// Original packets, byte for byte but for the session name.
	Original Packets = iota
	// Repack fills datagrams up to the MTU. Where the recorded rhythm paces,
	// messages are joined only within Config.RepackWait, and the datagram goes
	// when its last message is due: none is early.
	Repack
)

// Config of a Player.
type Config struct {
	Streams []Stream

	Pace    pace.Config
	CatchUp float64        // how many times as fast as the schedule what is late is made up for: 2; see pace.Limiter
	Stress  burst.Plan     // makes what is replayed busier; needs pacing by stamps
	StartAt moldcast.Stamp // wall time of the first packet; 0, or past: as soon as possible
	Loop    int            // times to play; 0 is 1. More than once: see LoopSession

	Packets    Packets
	MTU        int           // of the network: 1500; 68..65535
	RepackWait time.Duration // 1ms of real time

	OnHole   HoleAction
	HolePoll time.Duration // how often a hole that is waited for is looked at: 200ms

	Heartbeat time.Duration // silence before a heartbeat, in real time: 1s
	Linger    time.Duration // how long End of Session is repeated; 0: it is sent once

	ReadAhead int           // bytes of the queue of ready packets: 16 MiB, at least 256 KiB
	SendRetry time.Duration // how long a failing Sender is tried again: 5s

	Spin   Spin         // how it is waited
	Waiter Waiter       // nil: NewWaiter(Spin)
	Log    *slog.Logger // nil: silent
}

// ErrConfig is wrapped by what Validate finds, except for faults of Pace,
// which wrap pace.ErrConfig.
var ErrConfig = errors.New("replay")

// EnsureDefaults fills in what is 0.
func (c *Config) EnsureDefaults() {
	c.Pace.EnsureDefaults()
	if c.Loop == 0 {
		c.Loop = 1
	}
	if c.CatchUp == 0 {
		c.CatchUp = 2
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.RepackWait == 0 {
		c.RepackWait = time.Millisecond
	}
	if c.HolePoll == 0 {
		c.HolePoll = 200 * time.Millisecond
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Second
	}
	if c.ReadAhead == 0 {
		c.ReadAhead = 16 << 20
	}
	if c.SendRetry == 0 {
		c.SendRetry = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate checks c after EnsureDefaults.
func (c *Config) Validate() error {
	if err := c.Pace.Validate(); err != nil {
		return err
	}
	fault := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", ErrConfig, fmt.Errorf(format, args...))
	}
	if err := c.Stress.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	switch {
	case c.Stress != (burst.Plan{}) && (c.Pace.Max || c.Pace.Rate != 0):
		return fault("stress where the stamps do not pace")
	case len(c.Streams) == 0 || len(c.Streams) > math.MaxUint16:
		return fault("%d streams, want 1..%d", len(c.Streams), math.MaxUint16)
	case c.Loop < 1:
		return fault("%d loops", c.Loop)
	case !(c.CatchUp >= pace.MinCatchUp) || c.CatchUp > pace.MaxCatchUp && !math.IsInf(c.CatchUp, 1):
		return fault("catching up %v times as fast: want %v..%v, or no limit", c.CatchUp, pace.MinCatchUp, float64(pace.MaxCatchUp))
	case c.Spin > SpinNever:
		return fault("spin %d", c.Spin)
	case c.MTU < 68 || c.MTU > 65535:
		return fault("MTU %d outside 68..65535", c.MTU)
	case c.ReadAhead < 256<<10:
		return fault("read-ahead of %d bytes, want at least 256 KiB", c.ReadAhead)
	case c.Heartbeat < 0 || c.Linger < 0 || c.RepackWait < 0 || c.HolePoll < 0 || c.SendRetry < 0:
		return fault("negative duration")
	}
	for i, s := range c.Streams {
		switch {
		case s.Heard != nil && (c.Packets == Repack || c.OnHole == Wait || c.Stress != (burst.Plan{})):
			return fault("stream %d: what is replayed as heard is neither repacked, nor stressed, nor waits for holes", i)
		case s.Sender == nil || s.Open == nil && s.Heard == nil:
			return fault("stream %d has no sender or no source", i)
		case s.Range.Empty() || s.Range.First == 0:
			return fault("stream %d has nothing to publish", i)
		}
		if _, err := LoopSession(s.Session, 1, c.Loop); err != nil {
			return err
		}
	}
	return nil
}

// LoopSession is the name under which a session is published the loop-th of
// loops times, from 1. A session must not start again under its own name, so
// where there are several loops each name is base with its trailing spaces
// cut, and the number of the loop with as many digits as the last has: LOOP
// becomes LOOP01 … LOOP12. It wraps ErrConfig where that is too long.
func LoopSession(base moldcast.Session, loop, loops int) (moldcast.Session, error) {
	if loops <= 1 {
		return base, nil
	}
	n := moldcast.SessionSize
	for n > 0 && base[n-1] == ' ' {
		n--
	}
	last := strconv.Itoa(loops)
	if n+len(last) > moldcast.SessionSize {
		return moldcast.Session{}, fmt.Errorf("%w: session %s leaves no room for the numbers of %d loops: want at most %d bytes", ErrConfig, base, loops, moldcast.SessionSize-len(last))
	}
	s := base
	copy(s[n:], fmt.Sprintf("%0*d", len(last), loop))
	return s, nil
}

func closeSource(s any) {
	if c, ok := s.(io.Closer); ok {
		_ = c.Close()
	}
}
