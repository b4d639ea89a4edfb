package capture

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// tap is a socket that one or more lines are heard on, or this channel's part
// of one that it shares with others.
type tap struct {
	*mcast.Tap
	rx   receiver
	base int // what the numbers of the channel's lines begin at, in the Tap
	most int // how many lines the channel has
	high int // most datagrams that the engine found in its ring
}

// receiver is an mcast.RX, or an mcast.Branch.
type receiver interface {
	Ring() *mcast.Ring
	Idle() bool
	Socket() mcast.Socket
	Counters() mcast.RXCounters
	Err() error
	Close() error
}

// own are the numbers of the channel's lines that t serves.
func (t *tap) own() (lines []int) {
	for _, l := range t.Lines() {
		if l >= t.base && l < t.base+t.most {
			lines = append(lines, l-t.base)
		}
	}
	return lines
}

// line is the number of the channel's line that d came on; -1: of none.
func (t *tap) line(d *mcast.Datagram) int { return max(t.Line(d)-t.base, -1) }

// New opens the sockets of a channel; it captures from Run on. Errors wrap
// ErrConfig, or say which line cannot be received and why.
func New(cfg Config, sink Sink) (*Channel, error) {
	channels, err := Open([]Config{cfg}, sink)
	if err != nil {
		return nil, err
	}
	return channels[0], nil
}

// Open is New for several channels. Lines of different channels may share a
// socket, where they have group and port in common; they are told apart by
// source or interface, and must differ there. Nothing is open after an error.
func Open(cfgs []Config, sink Sink) (channels []*Channel, err error) {
	defer func() {
		if err != nil {
			for _, c := range channels {
				c.Close()
			}
			channels = nil
		}
	}()
	for _, cfg := range cfgs {
		c, err := newChannel(cfg, sink)
		if err != nil {
			return channels, err
		}
		channels = append(channels, c)
	}
	if err := openLines(channels); err != nil {
		return channels, err
	}
	for _, c := range channels {
		if err := c.openAsks(); err != nil {
			return channels, err
		}
		if len(c.cfg.Acks.To) > 0 {
			if c.acks, err = newAcker(&c.cfg); err != nil {
				return channels, err
			}
		}
	}
	return channels, nil
}

// newChannel is a channel without sockets.
func newChannel(cfg Config, sink Sink) (*Channel, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Channel{
		cfg: cfg, sink: sink, clock: cfg.Clock, wake: mcast.NewWake(),
		ask: make(chan func()), wants: make(chan wanted, maxWants), ended: make(chan struct{}), stopped: make(chan struct{}),
		cold:    newCold(),
		servers: slices.Clone(cfg.Rerequest),
	}
	if cfg.RerequestSource {
		c.servers = append(c.servers, netip.AddrPort{})
	}
	onLoss := arbiter.Record
	if cfg.Stall {
		onLoss = arbiter.Stall
	}
	arb, err := arbiter.New(arbiter.Config{
		Channel: cfg.Channel, Lines: len(cfg.Lines), Servers: len(c.servers), Sessions: cfg.Sessions,
		Start: cfg.Start, OnLoss: onLoss, Feed: cfg.Feed,
		ReorderWait: cfg.ReorderWait, ReorderBytes: int(cfg.ReorderBytes),
		Gap: gap.Config{Windows: cfg.Windows, HeartbeatInterval: cfg.HeartbeatInterval, RetryMin: cfg.NakRetry, Budget: cfg.NakBudget, MaxRequest: cfg.MaxRequest, RequestsPerSecond: cfg.NakRate, Shared: cfg.Requests, Seed: cfg.Seed},
	}, output{c})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c.arb = arb
	return c, nil
}

// openLines opens the sockets of all lines: as few as can be.
func openLines(channels []*Channel) error {
	var listen []mcast.ListenConfig
	var owner []int // of the lines: which channel
	base := make([]int, len(channels))
	for i, c := range channels {
		base[i] = len(listen)
		for j, l := range c.cfg.Lines {
			ifname := l.Interface
			if ifname == "" && l.Addr.Addr().IsMulticast() {
				ifname = c.cfg.Interface
			}
			name := mcast.LineName(j)
			if len(channels) > 1 {
				name = c.cfg.Channel + "/" + name
			}
			listen = append(listen, mcast.ListenConfig{
				Addr: l.Addr, Interface: ifname, Source: l.Source, Name: name,
				RecvBuffer: c.cfg.RecvBuffer, RingSize: c.cfg.RingSize, Log: c.cfg.Log,
			})
			owner = append(owner, i)
		}
	}
	taps, err := mcast.OpenLines(listen, channels[0].cfg.RX)
	if err != nil {
		if len(channels) == 1 {
			err = fmt.Errorf("channel %s: %w", channels[0].cfg.Channel, err)
		}
		return err
	}
	for _, t := range taps {
		var owners []int // by the branch
		for _, l := range t.Lines() {
			if !slices.Contains(owners, owner[l]) {
				owners = append(owners, owner[l])
			}
		}
		first := channels[owners[0]]
		if len(owners) == 1 {
			rx := mcast.StartRX(t.Socket, first.newRing(), first.wake, first.cfg.Log)
			first.lines = append(first.lines, &tap{Tap: t, rx: rx, base: base[owners[0]], most: len(first.cfg.Lines)})
			continue
		}
		var into []mcast.BranchConfig
		for _, o := range owners {
			into = append(into, mcast.BranchConfig{Ring: channels[o].newRing(), Wake: channels[o].wake})
		}
		branches := mcast.StartSplit(t.Socket, into, func(d *mcast.Datagram) int {
			l := t.Line(d)
			if l < 0 {
				return -1
			}
			return slices.Index(owners, owner[l])
		}, first.cfg.Log)
		for i, o := range owners {
			c := channels[o]
			c.lines = append(c.lines, &tap{Tap: t, rx: branches[i], base: base[o], most: len(c.cfg.Lines)})
		}
	}
	return nil
}

func (c *Channel) newRing() *mcast.Ring { return mcast.NewRing(c.cfg.RingSlots, slotSize) }

// openAsks opens the socket that requests go out of.
func (c *Channel) openAsks() error {
	if len(c.servers) == 0 {
		return nil
	}
	conn, err := mcast.Listen(mcast.ListenConfig{RecvBuffer: c.cfg.RecvBuffer, Log: c.cfg.Log})
	if err != nil {
		return fmt.Errorf("channel %s: socket for requests: %w", c.cfg.Channel, err)
	}
	slots := answerSlots
	if c.cfg.RingSlots > 0 {
		slots = min(slots, max(c.cfg.RingSlots/2, leastSlots))
	}
	c.asks = mcast.StartRX(conn, mcast.NewRing(slots, slotSize), c.wake, c.cfg.Log)
	return nil
}

func (c *Channel) closeSockets() {
	for _, t := range c.lines {
		t.rx.Close()
	}
	if c.asks != nil {
		c.asks.Close()
	}
}
