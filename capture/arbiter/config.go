package arbiter

import (
	"errors"
	"fmt"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// ErrConfig is wrapped by every error of Config.Validate.
var ErrConfig = errors.New("arbiter configuration")

// Start says where a session begins that the archive does not hold yet.
type Start uint8

// Where a new session begins.
const (
	// StartAuto is Beginning where there is a server to ask, else Live.
	StartAuto Start = iota
	// Beginning makes everything from sequence 1 to the first message heard an
	// ordinary gap.
	Beginning
	// Live begins at the lowest sequence heard; see Limits.StartWindow.
	Live
)

// OnLoss says what becomes of a gap whose budget is spent.
type OnLoss uint8

// What becomes of a gap whose budget is spent.
const (
	Record OnLoss = iota // it is recorded as a hole; asking goes on in the background
	Stall                // a gap is never given up
)

// Config of an Arbiter. The zero value of a field is its default.
type Config struct {
	Channel  string             // named in errors
	Lines    int                // 1..254; default 1
	Servers  int                // servers that can be asked; 0: never asks
	Sessions []moldcast.Session // those recorded; empty: all
	Start    Start
	OnLoss   OnLoss

	// ReorderWait is how long a message that came before its predecessor
	// stays in memory before it is stored as an island: so much later it is
	// durable. Default 2ms; negative: not at all. Where the message before it
	// is given up, which is Gap.Budget after it went missing, it waits no longer.
	ReorderWait time.Duration
	// ReorderBytes bounds what waits, over all sessions of the channel, with
	// WaitOverhead added for each piece. Default 64 MiB, at least MinReorderBytes.
	ReorderBytes int

	// Feed is what the sender does. Rising: nothing is a gap, and a session
	// begins at what is heard. Covers and Snapshot are not the Arbiter's.
	Feed moldcast.Feed

	// Gap configures the gap machine of each session. Lines, Servers, GiveUp
	// and (for Stall) Budget are set by EnsureDefaults. RequestsPerSecond also
	// bounds the requests of all sessions together.
	Gap gap.Config

	Limits Limits
}

// MinReorderBytes is the least that ReorderBytes may be: room for the largest
// datagram.
const MinReorderBytes = 128 << 10

// WaitOverhead is what a waiting piece counts for beyond its bytes.
const WaitOverhead = 128

// Limits bound what one channel may cost. The zero value of a field is its
// default, which is what protocol.md of the design says.
type Limits struct {
	// Jump is how far beyond the head of its session, in messages, a packet
	// may lie and be believed by itself. Default 100000.
	Jump uint64
	// JumpWait is how long a packet farther away is held for a second one that
	// fits it: one between it and Jump messages beyond. Default 2s.
	JumpWait time.Duration
	// HeldPackets bounds how many packets are held, for a second one that fits
	// a jump or that takes up a new session, in the whole channel. Default 64.
	HeldPackets int
	// NewSessions is how many names may be taken up per SessionsWindow, those
	// of Config.Sessions aside. Default 64 per hour.
	NewSessions    int
	SessionsWindow time.Duration
	// Sessions bounds how many sessions are open at once. Default 256.
	Sessions int
	// Compared is how many of the newest messages of a session are remembered
	// by a 64-bit hash, so that a repetition with other bytes is told from a
	// duplicate. Rounded up to a multiple of 4096. Default 1 Mi (8 MiB).
	Compared int
	// StartWindow is how long after a Live start a lower packet may lie more
	// than Jump below the first sequence. Nearer ones are taken at any time.
	// Default 100ms.
	StartWindow time.Duration
	// Withdraw is how long heartbeats or ends must say the same sequence, below
	// the head, before what only a heartbeat or end had revealed above it is
	// taken back. Default 3s.
	Withdraw time.Duration
	// Grace is how long a session that is silent stays open once it ended, or
	// its sender went on as another, its remaining holes asked for. Default 1m.
	Grace time.Duration
	// OpenRetry is the first back-off after a failed Output.Open; it doubles
	// up to OpenRetryMax. Defaults 100ms and 10s.
	OpenRetry, OpenRetryMax time.Duration
	// ForkWindow is how close two conflicting packets of one source must be to
	// begin a new take. Default 1s.
	ForkWindow time.Duration
	// Back is how far below the head, in messages, packets from 1 on must be to
	// mark a restart, where they do. Default 10000: farther than any disorder.
	Back uint64
	// Takes is how many takes a session name may begin per SessionsWindow; what
	// would begin more is conflicts. Default 16.
	Takes int
	// Sources is how many senders of a session are told apart, over all lines.
	// Default 32.
	Sources int
	// KeptPackets and KeptBytes bound the conflicting packets that are kept of
	// one sender, for the take that they may begin; the oldest make room.
	// Defaults 64 and 256 KiB.
	KeptPackets, KeptBytes int
	// ParkedPackets and ParkedBytes bound what waits in the channel for a
	// comparison with what is stored; beyond, it is not compared, and counted
	// in Counters.Uncompared. Defaults 1024 and 4 MiB.
	ParkedPackets, ParkedBytes int
	// StoreRetry is how soon pieces that the store refused, and that waited,
	// are offered to it again, and how often it is asked whether it has room.
	// Default 1ms.
	StoreRetry time.Duration
}

// EnsureDefaults fills the fields that are zero.
func (c *Config) EnsureDefaults() {
	set(&c.Lines, 1)
	if c.Start == StartAuto {
		c.Start = Live
		if c.Servers > 0 {
			c.Start = Beginning
		}
	}
	c.Feed.EnsureDefaults()
	if c.Gap.Sparse = c.Feed.Increments == moldcast.Rising; c.Gap.Sparse {
		c.Start = Live // there is no telling whether 1 exists
	}
	set(&c.ReorderWait, 2*time.Millisecond)
	set(&c.ReorderBytes, 64<<20)
	c.Gap.Lines = c.Lines
	c.Gap.Servers = c.Servers
	c.Gap.GiveUp = false
	if c.OnLoss == Stall {
		c.Gap.Budget = gap.Forever
	}
	c.Gap.EnsureDefaults()
	l := &c.Limits
	set(&l.Jump, 100_000)
	set(&l.JumpWait, 2*time.Second)
	set(&l.HeldPackets, 64)
	set(&l.NewSessions, 64)
	set(&l.SessionsWindow, time.Hour)
	set(&l.Sessions, 256)
	set(&l.Compared, 1<<20)
	set(&l.StartWindow, 100*time.Millisecond)
	set(&l.Withdraw, gap.ClaimTime)
	set(&l.Grace, time.Minute)
	set(&l.OpenRetry, 100*time.Millisecond)
	set(&l.OpenRetryMax, 10*time.Second)
	set(&l.StoreRetry, time.Millisecond)
	set(&l.ForkWindow, time.Second)
	set(&l.Back, 10_000)
	set(&l.Takes, 16)
	set(&l.Sources, 32)
	set(&l.KeptPackets, 64)
	set(&l.KeptBytes, 256<<10)
	set(&l.ParkedPackets, 1024)
	set(&l.ParkedBytes, 4<<20)
}

func set[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}

// Validate checks c after EnsureDefaults. Errors wrap ErrConfig.
func (c *Config) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: channel %s: %s", ErrConfig, c.Channel, fmt.Sprintf(format, args...))
	}
	switch l := c.Limits; {
	case c.Feed.Increments != moldcast.Consecutive && c.Feed.Increments != moldcast.Rising:
		return bad("increments %q", c.Feed.Increments)
	case c.Feed.Restart != moldcast.RestartSession && c.Feed.Restart != moldcast.RestartSequence:
		return bad("restart %q", c.Feed.Restart)
	case c.Feed.Heartbeats != moldcast.HeartbeatNext && c.Feed.Heartbeats != moldcast.HeartbeatLast && c.Feed.Heartbeats != moldcast.HeartbeatNone:
		return bad("heartbeats %q", c.Feed.Heartbeats)
	case c.Lines < 1 || c.Lines > 254:
		return bad("%d lines; want 1 to 254", c.Lines)
	case c.Servers < 0:
		return bad("%d servers", c.Servers)
	case c.Start > Live:
		return bad("start %d", c.Start)
	case c.OnLoss > Stall:
		return bad("on-loss %d", c.OnLoss)
	case c.ReorderBytes < MinReorderBytes:
		return bad("reorder-bytes %d; want at least %d", c.ReorderBytes, MinReorderBytes)
	case l.JumpWait < 0 || l.SessionsWindow < 0 || l.StartWindow < 0 || l.Grace < 0 || l.Withdraw < 0 || l.StoreRetry < 0 || l.ForkWindow < 0:
		return bad("negative time limit")
	case l.OpenRetry < 0 || l.OpenRetryMax < l.OpenRetry:
		return bad("open retry %v to %v", l.OpenRetry, l.OpenRetryMax)
	case l.HeldPackets < 2 || l.NewSessions < 1 || l.Sessions < 1 || l.Compared < 1 ||
		l.Takes < 1 || l.Sources < 1 || l.KeptPackets < 1 || l.KeptBytes < 1 || l.ParkedPackets < 1 || l.ParkedBytes < 1:
		return bad("limits %+v; want at least 2 held packets and 1 of each other", l)
	}
	if err := c.Gap.Validate(); err != nil {
		return fmt.Errorf("%w: channel %s: %w", ErrConfig, c.Channel, err)
	}
	return nil
}
