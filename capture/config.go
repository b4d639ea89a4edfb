package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// MaxLines is the most lines of one channel.
const MaxLines = 16

// Line is one copy of a channel's stream.
type Line struct {
	Addr      netip.AddrPort // IPv4 group and port to join, or a unicast address to bind
	Interface string         // to join on; empty: Config.Interface
	Source    netip.Addr     // only datagrams from here, when valid
}

func (l Line) String() string {
	s := l.Addr.String()
	if l.Interface != "" {
		s += ",interface=" + l.Interface
	}
	if l.Source.IsValid() {
		s += ",source=" + l.Source.String()
	}
	return s
}

// Config is what one channel captures, and how.
type Config struct {
	Channel   string
	Lines     []Line             // 1..MaxLines, all different
	Interface string             // of the lines that name none; empty: the system's choice
	Sessions  []moldcast.Session // to record; empty: all

	Rerequest       []netip.AddrPort // request servers, asked in turn
	RerequestSource bool             // also ask the address that the stream comes from …
	RerequestPort   uint16           // … at this port
	Windows         []uint64         // how many of the newest messages each of Rerequest holds, then the source; 0, or missing: not known

	// Recovery names the recovery streams of peers, host:port. A gap longer than
	// RecoveryThreshold (default 10000) messages is fetched from one of them;
	// without request servers, every gap is.
	Recovery          []string
	RecoveryThreshold uint64
	RecoveryBytes     int64                                                    // a stream waits while so many bytes of a session wait to be durable: the rest is for the lines; default 16 MiB
	DialRecovery      func(ctx context.Context, addr string) (net.Conn, error) // default TCP
	RecoveryUser      string                                                   // of the logins there, at most 6 bytes …
	RecoveryPassword  string                                                   // … and at most 10

	ReorderWait  time.Duration // how long early messages stay in memory; default 2 ms; negative: not at all
	ReorderBytes int64         // and how many bytes of them; default 64 MiB
	NakRetry     time.Duration // least time before a request is repeated; default 2 ms
	NakRate      int           // most requests a second; default 20000. They begin with 1000, and become more only while answers come
	Requests     *gap.Budget   // of several channels together, which then must have one Clock; may be nil
	NakBudget    time.Duration // how long a gap is asked for before it is a hole; default 10 s
	MaxRequest   int           // most messages one request asks for; default moldcast.MaxCount
	Stall        bool          // never give a gap up
	// Feed is what the sender does; its Covers is CoversChannel here: lines with
	// numbers of their own are channels of their own.
	Feed moldcast.Feed
	// LineLog has the sink told of every datagram that a line brings.
	LineLog bool

	HeartbeatInterval time.Duration // how often an idle line is heard; default 1 s

	Start arbiter.Start // where a session that is not held yet begins

	Acks AckConfig // once Acknowledge was called

	UntilEnd   bool          // end when every session has ended, by more than one packet's word; not while the archive fails
	EndTimeout time.Duration // end with ErrEndTimeout after so long without a packet; 0: never

	RecvBuffer int           // bytes of socket receive buffer asked for; default 32 MiB
	RX         mcast.Backend // how the lines are received
	RingSize   int           // bytes of a receive ring; default mcast.DefaultRingSize
	RingSlots  int           // datagrams between a line's thread and the engine; default 8192

	Clock mcast.Clock  // default the system's
	Log   *slog.Logger // default none
	Seed  uint64       // of the request jitter; 0: from the clock
}

// EnsureDefaults fills what is zero.
func (c *Config) EnsureDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Channel == "" {
		c.Channel = "default"
	}
	def(&c.ReorderWait, 2*time.Millisecond)
	def(&c.NakRetry, 2*time.Millisecond)
	def(&c.NakBudget, 10*time.Second)
	def(&c.HeartbeatInterval, time.Second)
	c.Feed.EnsureDefaults()
	if c.ReorderBytes == 0 {
		c.ReorderBytes = 64 << 20
	}
	if c.RecvBuffer == 0 {
		c.RecvBuffer = 32 << 20
	}
	if c.RecoveryThreshold == 0 {
		c.RecoveryThreshold = 10_000
	}
	if c.RecoveryBytes == 0 {
		c.RecoveryBytes = 16 << 20
	}
	if c.DialRecovery == nil {
		c.DialRecovery = dialPeer
	}
	if c.Start == arbiter.StartAuto && len(c.Recovery) > 0 {
		c.Start = arbiter.Beginning
	}
	if c.Clock == nil {
		c.Clock = mcast.NewClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Seed == 0 {
		c.Seed = uint64(c.Clock.Wall())
	}
}

// ErrConfig is wrapped by what Validate finds.
var ErrConfig = errors.New("capture configuration")

// Validate reports the first thing that is wrong with c.
func (c *Config) Validate() error {
	switch {
	case len(c.Lines) == 0:
		return fmt.Errorf("%w: channel %s has no line", ErrConfig, c.Channel)
	case len(c.Lines) > MaxLines:
		return fmt.Errorf("%w: channel %s has %d lines; at most %d", ErrConfig, c.Channel, len(c.Lines), MaxLines)
	case c.RerequestSource && c.RerequestPort == 0:
		return fmt.Errorf("%w: channel %s asks the stream's source but no port is given", ErrConfig, c.Channel)
	case len(c.RecoveryUser) > 6 || len(c.RecoveryPassword) > 10:
		return fmt.Errorf("%w: channel %s has a recovery user of more than 6 bytes, or a password of more than 10", ErrConfig, c.Channel)
	case c.ReorderBytes < 0, c.NakRate < 0, c.NakRetry < 0, c.NakBudget < 0, c.EndTimeout < 0, c.HeartbeatInterval < 0:
		return fmt.Errorf("%w: channel %s has a negative limit", ErrConfig, c.Channel)
	}
	for i, l := range c.Lines {
		if !l.Addr.Addr().Is4() {
			return fmt.Errorf("%w: line %v is not IPv4", ErrConfig, l)
		}
		for _, o := range c.Lines[:i] {
			if o == l {
				return fmt.Errorf("%w: line %v is given twice; lines must differ in group, port, interface or source", ErrConfig, l)
			}
		}
	}
	return nil
}

// ErrEndTimeout: no packet came for Config.EndTimeout.
var ErrEndTimeout = errors.New("no packet for the end timeout")
