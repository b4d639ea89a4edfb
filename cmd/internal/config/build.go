package config

import (
	"fmt"
	"math/bits"
	"net"
	"net/netip"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/cmd/internal/credentials"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/retransmit/admit"
	"github.com/moldtape/moldtape/store"
)

// slotBytes is what one datagram takes in a ring.
const slotBytes = 2048

// slots is how many datagrams a ring holds that takes at most so many bytes: a
// power of two, as all rings.
func slots(size int64) int { return 1 << (bits.Len64(uint64(size/slotBytes)) - 1) }

// StoreOptions are those of the archive. n is valid.
func (n *Node) StoreOptions() store.Options {
	o := store.DefaultOptions()
	o.Sync, o.SegmentSize, o.SegmentTime, o.Reserve = n.Sync, n.SegmentSize, n.SegmentTime, n.Reserve
	o.QueueBytes = n.QueueBytes
	o.Codec, _ = store.ParseCodec(n.Codec)
	o.NoVerify = !n.Verify
	return o
}

// Retention is what is to be removed; false: nothing ever.
func (n *Node) Retention() (store.Retention, bool) {
	return store.Retention{Keep: n.Keep, MaxBytes: n.MaxBytes}, n.Keep >= 0 || n.MaxBytes >= 0
}

// Admission is who is answered, and how often. n is valid.
func (n *Node) Admission() admit.Config {
	var c admit.Config
	c.Allow, _ = ParseAllow(n.Allow)
	c.Client, c.Total = Limit(n.RatePerClient), Limit(n.RateTotal)
	if n.RatePerClient != defaultPerClient {
		c.Loopback = c.Client
	}
	return c
}

// Duty is which requests are answered.
func (n *Node) Duty() retransmit.Duty {
	if n.RetransmitDuty == DutyBeyondWindow {
		return retransmit.BeyondWindow
	}
	return retransmit.Always
}

// The values of RetransmitDuty.
const (
	DutyAlways       = "always"
	DutyBeyondWindow = "beyond-window"
)

// Limit is a rate as admission has it.
func Limit(requests float64) admit.Rate {
	if requests == 0 {
		return admit.Rate{Requests: -1, Bytes: -1}
	}
	return admit.Rate{Requests: requests}
}

// Feed is what the sender of c does.
func (c *Channel) Feed() moldcast.Feed {
	return moldcast.Feed{
		Covers: moldcast.Covers(c.SequenceCovers), Increments: moldcast.Increments(c.Increments), Restart: moldcast.Restart(c.Restart),
		Heartbeats: moldcast.Heartbeats(c.Heartbeats), Snapshot: moldcast.Snapshot(c.Snapshot),
	}
}

// Names are those under which c is recorded: its own, or one for each line that
// has numbers of its own.
func (c *Channel) Names() []string {
	if c.SequenceCovers != string(moldcast.CoversLine) {
		return []string{c.Name}
	}
	names := make([]string, len(c.Lines))
	for i := range names {
		names[i] = c.Name + "." + mcast.LineName(i)
	}
	return names
}

// Capture is the configuration of each channel of n, which is valid, by the
// names that Names gives, in their order. Names of servers are resolved, files
// of logins and certificates are read; those that cannot be are what is wrong.
func (n *Node) Capture() ([]capture.Config, []Problem) {
	var ps problems
	out := make([]capture.Config, 0, len(n.Channels))
	clock, requests := mcast.NewClock(), gap.NewBudget(n.NakRateTotal, nil)
	rx, _ := mcast.ParseBackend(n.RX)
	key, err := ReadAckKey(n.AckKey)
	if err != nil {
		ps.add("ack_key", " %v", err)
	}
	for i := range n.Channels {
		c := &n.Channels[i]
		cfg := capture.Config{
			RX: rx, RingSize: int(n.RXRing),
			Channel: c.Name, Interface: c.Interface,
			ReorderWait: c.ReorderWait, ReorderBytes: c.ReorderBytes,
			NakRetry: c.NakRetry, NakRate: c.NakRate, NakBudget: c.NakBudget, Requests: requests, Clock: clock,
			Stall:    c.OnLoss == "stall",
			UntilEnd: n.UntilEnd, EndTimeout: n.EndTimeout,
			RingSlots: slots(c.RingBytes),
			Recovery:  c.Recovery, RecoveryThreshold: uint64(c.Threshold), RecoveryBytes: n.QueueBytes / 4,
			Feed: c.Feed(), HeartbeatInterval: c.HeartbeatInterval,
		}
		cfg.Acks = n.acks(c, i, key, &ps)
		if c.ReorderWait == 0 {
			cfg.ReorderWait = -1 // an explicit 0 is "do not wait"
		}
		if peers := (credentials.ClientFiles{Login: c.RecoveryLogin, TLS: c.RecoveryTLS, CA: c.RecoveryTLSCA}); peers != (credentials.ClientFiles{}) {
			client, err := peers.Open()
			if err != nil {
				ps.add(path("channels", i, "recovery"), ": %v", err)
				continue
			}
			cfg.DialRecovery, cfg.RecoveryUser, cfg.RecoveryPassword = client.Dial, client.User, client.Password
		}
		switch c.Start {
		case "beginning":
			cfg.Start = arbiter.Beginning
		case "live":
			cfg.Start = arbiter.Live
		}
		for _, s := range c.Lines {
			l, _ := parseLine(s)
			cfg.Lines = append(cfg.Lines, l)
		}
		for _, s := range c.Sessions {
			name, _ := moldcast.ParseSession(s)
			cfg.Sessions = append(cfg.Sessions, name)
		}
		var source uint64 // the window of the stream's source, which comes last
		for j, s := range c.Rerequest {
			addr, window, _ := parseServer(s)
			if addr == "source" {
				cfg.RerequestSource, cfg.RerequestPort, source = true, uint16(c.RerequestPort), window
				continue
			}
			a, err := ResolveServer(addr)
			if err != nil {
				ps.add(path("channels", i, "rerequest", j), " %v", err)
				continue
			}
			cfg.Rerequest, cfg.Windows = append(cfg.Rerequest, a), append(cfg.Windows, window)
		}
		cfg.Windows = append(cfg.Windows, source)
		names := c.Names()
		cfg.LineLog = c.LineLog == "on" || c.LineLog == "auto" && len(cfg.Lines) == len(names)
		if c.SequenceCovers != string(moldcast.CoversLine) {
			out = append(out, cfg)
			continue
		}
		for l, name := range names {
			one := cfg
			one.Channel, one.Lines = name, cfg.Lines[l:l+1]
			out = append(out, one)
		}
	}
	return out, ps
}

// ResolveServer looks up host:port with a port that can be sent to.
func ResolveServer(s string) (netip.AddrPort, error) {
	if err := serverAddr(s); err != nil {
		return netip.AddrPort{}, err
	}
	a, err := net.ResolveUDPAddr("udp4", s)
	if err != nil || a.IP == nil || a.Port == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q: want the host:port of a server, IPv4", s)
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}
