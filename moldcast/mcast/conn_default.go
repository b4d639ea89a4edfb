//go:build !linux

package mcast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/moldtape/moldtape/moldcast"
)

// Conn is a UDP socket. See Socket for who may call what when.
type Conn struct {
	udp     *net.UDPConn
	dst     netip.AddrPort
	local   netip.AddrPort
	recvBuf int
	maxData int
	scratch []byte // of the one reading goroutine

	truncated, readErrors, sent, sendErrors atomic.Uint64
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
	addr := net.UDPAddrFromAddrPort(c.Addr)
	var udp *net.UDPConn
	switch {
	case !c.Addr.Addr().IsMulticast():
		udp, err = net.ListenUDP("udp4", addr)
	case len(c.sources) == 0:
		udp, err = net.ListenMulticastUDP("udp4", ifi, addr)
	default:
		if udp, err = net.ListenUDP("udp4", addr); err == nil {
			p := ipv4.NewPacketConn(udp)
			for _, s := range c.sources {
				if err = p.JoinSourceSpecificGroup(ifi, addr, &net.UDPAddr{IP: s.AsSlice()}); err != nil {
					udp.Close()
					break
				}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("receiving %v: %w", c.Addr, err)
	}
	if err := udp.SetReadBuffer(c.RecvBuffer); err != nil {
		c.Log.Warn("receive buffer is smaller than asked for", "asked", c.RecvBuffer, "err", err)
	}
	return newConn(udp, netip.AddrPort{}, c.RecvBuffer, c.MaxDatagram), nil
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
	if ifi != nil && c.Bind.Addr().IsUnspecified() {
		c.Bind = netip.AddrPortFrom(firstIPv4(ifi), c.Bind.Port())
	}
	udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(c.Bind))
	if err != nil {
		return nil, fmt.Errorf("binding %v: %w", c.Bind, err)
	}
	if c.Addr.Addr().IsMulticast() {
		p := ipv4.NewPacketConn(udp)
		err = errors.Join(p.SetMulticastTTL(c.ttlOf(ifi)), p.SetMulticastLoopback(!c.NoLoop))
		if ifi != nil {
			err = errors.Join(err, p.SetMulticastInterface(ifi))
		}
		if err != nil {
			udp.Close()
			return nil, fmt.Errorf("sending to %v: %w", c.Addr, err)
		}
	}
	if c.SendBuffer > 0 {
		_ = udp.SetWriteBuffer(c.SendBuffer)
	}
	return newConn(udp, c.Addr, 0, moldcast.MaxDatagram), nil
}

func newConn(udp *net.UDPConn, dst netip.AddrPort, recvBuf, maxData int) *Conn {
	local := unmap(udp.LocalAddr().(*net.UDPAddr).AddrPort())
	return &Conn{udp: udp, dst: dst, local: local, recvBuf: recvBuf, maxData: maxData}
}

// LocalAddr is the address that s is bound to; for a joined group the group.
func (s *Conn) LocalAddr() netip.AddrPort { return s.local }

// RecvBuffer is the size asked for the receive buffer, in bytes.
func (s *Conn) RecvBuffer() int { return s.recvBuf }

// Counters is a snapshot; it may be called at any time.
func (s *Conn) Counters() Counters {
	return Counters{
		Truncated:  s.truncated.Load(),
		ReadErrors: s.readErrors.Load(),
		Sent:       s.sent.Load(),
		SendErrors: s.sendErrors.Load(),
	}
}

// Close ends reads and writes under way and frees the port.
func (s *Conn) Close() error {
	if err := s.udp.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// ReadBatch implements Socket.
func (s *Conn) ReadBatch(ds []Datagram) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	if s.scratch == nil {
		s.scratch = make([]byte, s.maxData+1)
	}
	d := &ds[0]
	for {
		n, src, err := s.udp.ReadFromUDPAddrPort(s.scratch)
		if errors.Is(err, net.ErrClosed) {
			return 0, net.ErrClosed
		}
		if err != nil {
			s.readErrors.Add(1)
			continue
		}
		d.Truncated = n > s.maxData
		if d.Truncated {
			s.truncated.Add(1)
			n = s.maxData
		}
		d.Data = append(d.Data[:0], s.scratch[:n]...)
		d.Src, d.Dst, d.IfIndex, d.Local = unmap(src), netip.AddrPort{}, 0, netip.Addr{}
		d.Stamp = moldcast.StampOf(time.Now())
		return 1, nil
	}
}

// TryReadBatch is ReadBatch, but does not wait: where nothing is there it
// returns 0.
func (s *Conn) TryReadBatch([]Datagram) (int, error) { return 0, nil }

// WriteBatch implements Socket.
func (s *Conn) WriteBatch(ds []Datagram) (n int, first error) {
	for i := range ds {
		ok, err := s.write(ds[i].Data, ds[i].Dst)
		if errors.Is(err, net.ErrClosed) {
			return n, net.ErrClosed
		}
		n += ok
		if first == nil {
			first = err
		}
	}
	return n, first
}

// Send implements Socket. It must not be called on a socket that was not
// dialled.
func (s *Conn) Send(batch [][]byte) (n int, first error) {
	for _, b := range batch {
		ok, err := s.write(b, s.dst)
		if errors.Is(err, net.ErrClosed) {
			return n, net.ErrClosed
		}
		n += ok
		if first == nil {
			first = err
		}
	}
	return n, first
}

func (s *Conn) write(b []byte, dst netip.AddrPort) (int, error) {
	if !dst.IsValid() {
		return 0, fmt.Errorf("%w: no destination", ErrAddress)
	}
	if _, err := s.udp.WriteToUDPAddrPort(b, dst); err != nil {
		s.sendErrors.Add(1)
		return 0, err
	}
	s.sent.Add(1)
	return 1, nil
}
