package mcast

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/moldtape/moldtape/moldcast"
)

// BatchSize is the most datagrams that one system call reads or writes.
const BatchSize = 64

// DefaultRecvBuffer is the receive buffer asked for where a ListenConfig does
// not say: bytes, as the kernel accounts them.
const DefaultRecvBuffer = 8 << 20

// DefaultRingSize is the size asked for a receive ring where a ListenConfig
// does not say: bytes. The kernel gives all of them at once, unlike a receive
// buffer.
const DefaultRingSize = 32 << 20

// Bounds on the size of a receive ring, in bytes.
const (
	MinRingSize = 4 << 20
	MaxRingSize = 1 << 30
)

// What opening a socket can find wrong with its configuration.
var (
	ErrInterface = errors.New("interface")          // there is none of that name, or it has no use here
	ErrAddress   = errors.New("address")            // not IPv4, or a port is missing
	ErrSameLine  = errors.New("two lines are same") // they differ in nothing
)

// Datagram is one UDP datagram, read or to be written.
type Datagram struct {
	// Data is the payload. For ReadBatch it brings the buffer: cap(Data)
	// bytes are read into, and Data is cut to what came. A datagram that is
	// longer gets a buffer of its own.
	Data []byte

	Src netip.AddrPort // where it came from; set by ReadBatch
	Dst netip.AddrPort // where WriteBatch sends it; set by ReadBatch to what it was sent to, where that is a group

	// Local is the address of this host that it was sent to; for WriteBatch
	// the one that it comes from, where a socket bound to any address has the
	// choice. An answer must come from the address that was asked. The zero
	// Addr is unknown, or the system's choice.
	Local netip.Addr

	Stamp     moldcast.Stamp // when the kernel received it (wall clock, ns)
	IfIndex   int            // the interface that it arrived on; 0 where unknown
	Truncated bool           // longer than MaxDatagram: Data is only its start

	skip  bool  // in a ring: nothing to see here
	lent  bool  // in a ring: Data is the socket's memory, lent until the next Pop
	group uint8 // of a socket of several groups: which
}

// Socket is what the shells need of a socket. *Conn is a real one, *Endpoint
// one of a Network. One goroutine may read, and any number may write, at a
// time; Close may be called from anywhere, and ends both.
type Socket interface {
	// ReadBatch waits for datagrams and reads at most len(ds) of them; at
	// least one unless it fails. net.ErrClosed after Close; other errors are
	// survived inside and counted.
	ReadBatch(ds []Datagram) (int, error)

	// WriteBatch sends each datagram to its Dst. All are tried: what the
	// system refuses is counted and skipped. The result is how many were
	// sent, and the first refusal; net.ErrClosed after Close.
	WriteBatch(ds []Datagram) (int, error)

	// Send sends each payload to the address that the socket was dialled to,
	// with the rules of WriteBatch.
	Send(batch [][]byte) (int, error)

	// LocalAddr is the address that the socket is bound to: for a joined
	// group the group.
	LocalAddr() netip.AddrPort

	io.Closer
}

// ListenConfig says what to receive.
type ListenConfig struct {
	// Addr is a multicast group and port, which is bound to and joined, or a
	// unicast address and port to bind; port 0 asks the system for one. The
	// zero AddrPort is any address, any port. IPv4 only.
	Addr netip.AddrPort

	// Interface is the name of the interface to join on; "" is the system's
	// choice by its routes. With a unicast address the socket is bound to the
	// device.
	Interface string

	// Source, where valid, joins for this sender alone: other senders to the
	// group are not heard. A unicast socket hears everyone; Tap.Line tells.
	Source netip.Addr

	Name        string       // of the line in errors; "": its letter
	RecvBuffer  int          // receive buffer in bytes; 0: DefaultRecvBuffer
	RingSize    int          // of a receive ring in bytes; 0: DefaultRingSize
	MaxDatagram int          // longest datagram read whole, in bytes; 0: moldcast.MaxDatagram
	Log         *slog.Logger // nil: silent

	sources []netip.Addr // joined one by one; empty: everyone
	ring    bool         // a receive ring hears the group: only what that does not see is queued
}

// SendConfig says where to send.
type SendConfig struct {
	Addr       netip.AddrPort // group or unicast target of Send. IPv4 only
	Interface  string         // for multicast; "": the system's choice
	Bind       netip.AddrPort // local address; zero: the system's choice
	TTL        *int           // of multicast, 0..255; nil: 1, and 0 where the interface is a loopback
	NoLoop     bool           // not to be heard by receivers on this host
	SendBuffer int            // bytes; 0: the system's default
	Log        *slog.Logger   // nil: silent
}

// Counters are a socket's totals since it was opened.
type Counters struct {
	KernelDropped uint64 // datagrams that found the receive buffer full
	Truncated     uint64 // longer than MaxDatagram
	ReadErrors    uint64 // failed reads that were survived
	Sent          uint64 // datagrams that the system took
	SendRetries   uint64 // tries again after ENOBUFS or EAGAIN
	SendErrors    uint64 // datagrams that the system refused, or would not take in time
	Rejoins       uint64 // times that its groups were joined again because the interface came back
	Invalid       uint64 // datagrams that a receive ring found broken; a UDP socket never sees such
}

func (c *ListenConfig) ensureDefaults() {
	if c.RecvBuffer == 0 {
		c.RecvBuffer = DefaultRecvBuffer
	}
	c.RecvBuffer = min(c.RecvBuffer, 1<<31-1) // the kernel's own limit
	if c.RingSize == 0 {
		c.RingSize = DefaultRingSize
	}
	if c.MaxDatagram == 0 {
		c.MaxDatagram = moldcast.MaxDatagram
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if !c.Addr.IsValid() {
		c.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), c.Addr.Port())
	}
	c.Addr = unmap(c.Addr)
	if c.Source.IsValid() && len(c.sources) == 0 {
		c.sources = []netip.Addr{c.Source.Unmap()}
	}
}

func (c *ListenConfig) validate() error {
	if !c.Addr.Addr().Is4() {
		return fmt.Errorf("%w %v: not IPv4", ErrAddress, c.Addr)
	}
	if c.RecvBuffer < 0 || c.MaxDatagram < 0 || c.MaxDatagram > 65535 {
		return fmt.Errorf("receive buffer %d, longest datagram %d: want sizes, the datagram at most 65535", c.RecvBuffer, c.MaxDatagram)
	}
	if c.RingSize < MinRingSize || c.RingSize > MaxRingSize {
		return fmt.Errorf("receive ring of %d bytes: want %d to %d", c.RingSize, MinRingSize, MaxRingSize)
	}
	for _, s := range c.sources {
		if !s.Is4() || s.IsMulticast() {
			return fmt.Errorf("%w: source %v is no IPv4 unicast address", ErrAddress, s)
		}
	}
	return nil
}

func (c *SendConfig) ensureDefaults() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Addr = unmap(c.Addr)
	if !c.Bind.IsValid() {
		c.Bind = netip.AddrPortFrom(netip.IPv4Unspecified(), c.Bind.Port())
	}
	c.Bind = unmap(c.Bind)
}

func (c *SendConfig) validate() error {
	if !c.Addr.Addr().Is4() || c.Addr.Port() == 0 {
		return fmt.Errorf("%w %v: want an IPv4 address and a port to send to", ErrAddress, c.Addr)
	}
	if !c.Bind.Addr().Is4() {
		return fmt.Errorf("%w %v: not IPv4", ErrAddress, c.Bind)
	}
	if c.TTL != nil && (*c.TTL < 0 || *c.TTL > 255) {
		return fmt.Errorf("TTL %d: want 0..255", *c.TTL)
	}
	return nil
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// lookupInterface finds an interface by name; nil for "". The error wraps
// ErrInterface and lists what there is.
func lookupInterface(name string) (*net.Interface, error) {
	if name == "" {
		return nil, nil
	}
	ifi, err := net.InterfaceByName(name)
	if err == nil {
		return ifi, nil
	}
	var have []string
	all, _ := net.Interfaces()
	for _, i := range all {
		have = append(have, i.Name)
	}
	return nil, fmt.Errorf("%w %q is not there; have %s", ErrInterface, name, strings.Join(have, ", "))
}

// ttlOf is the TTL of what c sends by multicast.
func (c *SendConfig) ttlOf(ifi *net.Interface) int {
	switch {
	case c.TTL != nil:
		return *c.TTL
	case ifi != nil && ifi.Flags&net.FlagLoopback != 0:
		return 0
	}
	return 1
}

// firstIPv4 is the first IPv4 address of ifi, the unspecified one if it has
// none.
func firstIPv4(ifi *net.Interface) netip.Addr {
	addrs, _ := ifi.Addrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().Is4() {
				return ip.Unmap()
			}
		}
	}
	return netip.IPv4Unspecified()
}
