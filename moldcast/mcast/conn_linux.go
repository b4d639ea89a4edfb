package mcast

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

// Conn is a UDP socket that reads and writes in batches. See Socket for who
// may call what when.
type Conn struct {
	lifetime
	fd int // non-blocking

	local   netip.AddrPort
	dialled bool
	recvBuf int
	maxData int
	member  *membership // nil: of no group
	ifIndex int         // the one interface that it hears; 0: each datagram tells
	link    *link       // owned by the reading goroutine; nil: not watched

	rd     *reader      // owned by the one reading goroutine
	parked atomic.Bool  // that has found nothing, and waits
	wr     chan *writer // free ones

	fault func(call uintptr) unix.Errno // nil but in tests, see injected

	kernelDropped, truncated, readErrors atomic.Uint64
	rejoins                              atomic.Uint64
	sent, sendRetries, sendErrors        atomic.Uint64
}

// Listen opens a socket that receives what c says, and can send by
// WriteBatch. Errors wrap ErrInterface or ErrAddress, or are the system's.
func Listen(c ListenConfig) (*Conn, error) {
	c.ensureDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	ifi, err := lookupInterface(c.Interface)
	if err != nil {
		return nil, err
	}
	s, err := newConn(c.MaxDatagram)
	if err != nil {
		return nil, err
	}
	if err := s.listen(c, ifi); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Conn) listen(c ListenConfig, ifi *net.Interface) error {
	multicast := c.Addr.Addr().IsMulticast()
	set := func(level, opt, v int, name string) error {
		return os.NewSyscallError("setsockopt "+name, unix.SetsockoptInt(s.fd, level, opt, v))
	}
	if multicast {
		// Several receivers of a group on one host are usual. A unicast port
		// must have one owner.
		if err := set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"); err != nil {
			return err
		}
		// Without this the socket hears groups that other sockets joined.
		if err := set(unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL"); err != nil {
			return err
		}
	} else if ifi != nil {
		if err := unix.BindToDevice(s.fd, ifi.Name); err != nil {
			return fmt.Errorf("%w %q: binding %v to it: %w", ErrInterface, ifi.Name, c.Addr, err)
		}
	}
	for _, o := range []struct {
		level, opt int
		name       string
	}{
		{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, "SO_TIMESTAMPNS"},
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, "SO_RXQ_OVFL"},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, "IP_PKTINFO"},
	} {
		if o.opt == unix.IP_PKTINFO && multicast && ifi != nil {
			s.ifIndex = ifi.Index // known, and a look at the routes saved for each datagram
			continue
		}
		if err := set(o.level, o.opt, 1, o.name); err != nil {
			return err
		}
	}
	if c.ring {
		if err := attach(s.fd, loopedFilter()); err != nil {
			return err
		}
	}
	s.setRecvBuffer(c.RecvBuffer, c.Addr, c.Log)
	if err := unix.Bind(s.fd, &unix.SockaddrInet4{Port: int(c.Addr.Port()), Addr: c.Addr.Addr().As4()}); err != nil {
		return fmt.Errorf("binding %v: %w", c.Addr, os.NewSyscallError("bind", err))
	}
	err := s.setLocal()
	if err != nil {
		return err
	}
	if !multicast {
		return nil
	}
	s.member = &membership{fd: s.fd, group: s.local.Addr(), sources: c.sources}
	index := 0
	if ifi != nil {
		index = ifi.Index
	}
	if err := s.member.join(index); err != nil {
		if errors.Is(err, unix.ENODEV) && ifi == nil {
			return fmt.Errorf("%w: no route for group %v: name the interface", ErrInterface, c.Addr.Addr())
		}
		return err
	}
	if ifi == nil || c.ring {
		return nil
	}
	if s.link, err = newLink(ifi, c.Log); err != nil {
		c.Log.Warn("the interface cannot be watched: groups are not joined again when it comes back", "interface", ifi.Name, "err", err)
	}
	return nil
}

// setRecvBuffer asks for a receive buffer of want bytes and says what was got.
func (s *Conn) setRecvBuffer(want int, addr netip.AddrPort, log *slog.Logger) {
	// The kernel doubles what is asked, to account for its own overhead, and
	// reports the double.
	ask := want / 2
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ask) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, ask)
	}
	s.recvBuf, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if s.recvBuf < want {
		log.Warn("receive buffer is smaller than asked for: bursts may be lost in the kernel",
			"addr", addr, "asked", want, "got", s.recvBuf,
			"help", fmt.Sprintf("sysctl -w net.core.rmem_max=%d", ask))
	}
}

// Dial opens a socket that sends to c.Addr. Errors wrap ErrInterface or
// ErrAddress, or are the system's.
func Dial(c SendConfig) (*Conn, error) {
	c.ensureDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	ifi, err := lookupInterface(c.Interface)
	if err != nil {
		return nil, err
	}
	s, err := newConn(moldcast.MaxDatagram)
	if err != nil {
		return nil, err
	}
	if err := s.dial(c, ifi); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Conn) dial(c SendConfig, ifi *net.Interface) error {
	if c.Addr.Addr().IsMulticast() {
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, c.ttlOf(ifi)); err != nil {
			return os.NewSyscallError("setsockopt IP_MULTICAST_TTL", err)
		}
		loop := 1
		if c.NoLoop {
			loop = 0
		}
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, loop); err != nil {
			return os.NewSyscallError("setsockopt IP_MULTICAST_LOOP", err)
		}
		if ifi != nil {
			if err := unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(ifi.Index)}); err != nil {
				return fmt.Errorf("%w %q: sending multicast on it: %w", ErrInterface, ifi.Name, err)
			}
			// The kernel may pick the address of another interface as source,
			// loopback above all; receivers that ask the source for what they
			// missed need one that answers on this one.
			if c.Bind.Addr().IsUnspecified() {
				c.Bind = netip.AddrPortFrom(firstIPv4(ifi), c.Bind.Port())
			}
		}
	}
	if c.SendBuffer > 0 {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, c.SendBuffer/2) != nil {
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, c.SendBuffer/2)
		}
	}
	if err := unix.Bind(s.fd, &unix.SockaddrInet4{Port: int(c.Bind.Port()), Addr: c.Bind.Addr().As4()}); err != nil {
		return fmt.Errorf("binding %v: %w", c.Bind, os.NewSyscallError("bind", err))
	}
	// Connected: the route is looked up once, not for each datagram.
	if err := unix.Connect(s.fd, &unix.SockaddrInet4{Port: int(c.Addr.Port()), Addr: c.Addr.Addr().As4()}); err != nil {
		if errors.Is(err, unix.ENETUNREACH) && ifi == nil {
			return fmt.Errorf("%w: no route for %v: name the interface", ErrInterface, c.Addr.Addr())
		}
		return fmt.Errorf("sending to %v: %w", c.Addr, os.NewSyscallError("connect", err))
	}
	s.dialled = true
	return s.setLocal()
}

func newConn(maxData int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Conn{fd: fd, maxData: maxData, wr: make(chan *writer, 8)}
	if err := s.init(s.free); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func (s *Conn) free() {
	unix.Close(s.fd)
	if s.link != nil {
		s.link.close()
	}
}

func (s *Conn) setLocal() error {
	a, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	in, ok := a.(*unix.SockaddrInet4)
	if !ok {
		return fmt.Errorf("%w: socket is bound to %T", ErrAddress, a)
	}
	s.local = netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port))
	return nil
}

// LocalAddr is the address that s is bound to; for a joined group the group.
func (s *Conn) LocalAddr() netip.AddrPort { return s.local }

// RecvBuffer is the size that the kernel gave the receive buffer, in bytes.
func (s *Conn) RecvBuffer() int { return s.recvBuf }

// Counters is a snapshot; it may be called at any time.
func (s *Conn) Counters() Counters {
	return Counters{
		KernelDropped: s.kernelDropped.Load(),
		Truncated:     s.truncated.Load(),
		ReadErrors:    s.readErrors.Load(),
		Sent:          s.sent.Load(),
		SendRetries:   s.sendRetries.Load(),
		SendErrors:    s.sendErrors.Load(),
		Rejoins:       s.rejoins.Load(),
	}
}
