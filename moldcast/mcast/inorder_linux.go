package mcast

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DialInOrder is Dial for a socket that sends in order. What an ordinary socket
// is not told counts as not taken, too: what the queue of the interface drops
// (IP_RECVERR), and what is sent by multicast on a named interface that is down
// or without a carrier. Of a batch during which that happens some datagrams may
// have gone all the same.
func DialInOrder(c SendConfig) (InOrder, error) {
	s, err := dialInOrder(c)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func dialInOrder(c SendConfig) (*inOrder, error) {
	s, err := Dial(c)
	if err != nil {
		return nil, err
	}
	// Of unicast it would tell of everything that ICMP reports: what became of
	// earlier datagrams further on.
	if unmap(c.Addr).Addr().IsMulticast() {
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1); err != nil {
			s.Close()
			return nil, os.NewSyscallError("setsockopt IP_RECVERR", err)
		}
	}
	o := &inOrder{Conn: s}
	if c.Interface != "" && unmap(c.Addr).Addr().IsMulticast() {
		if o.link, err = unix.NewIfreq(c.Interface); err != nil {
			s.Close()
			return nil, err
		}
	}
	return o, nil
}

// inOrder is a dialled Conn that sends in order.
type inOrder struct {
	*Conn
	w    writer
	link *unix.Ifreq // to look whether it is up; nil: not known which
}

// down says that the interface carries nothing. It does before its queue drops
// what is put into it, so what was sent before a look that finds it up has
// gone.
func (s *inOrder) down() bool {
	if s.link == nil {
		return false
	}
	if err := unix.IoctlIfreq(s.fd, unix.SIOCGIFFLAGS, s.link); err != nil {
		return true // there is none any more
	}
	const both = unix.IFF_UP | unix.IFF_RUNNING
	return s.link.Uint16()&both != both
}

// roomWait is how long a socket whose buffer is full is waited for.
const roomWait = 20 * time.Millisecond

// Send implements InOrder.
func (s *inOrder) Send(batch [][]byte) (total int, err error) {
	if !s.enter() {
		return 0, net.ErrClosed
	}
	defer s.leave()
	for len(batch) > 0 {
		k := min(len(batch), BatchSize)
		for i := range k {
			s.w.payload(i, batch[i])
		}
		n, err := sendOrdered(s.Conn, s.fd, s.w.hdrs[:k], &s.w.poll)
		if n > 0 && s.down() {
			s.sent.Add(-uint64(n))
			s.sendErrors.Add(1)
			n, err = 0, os.NewSyscallError("sendmmsg", unix.ENETDOWN)
		}
		for i := range k { // not to keep the caller's buffers
			s.w.iovs[i].Base = nil
		}
		total += n
		if err != nil {
			return total, err
		}
		batch = batch[k:]
	}
	return total, nil
}

// sendOrdered sends hdrs by fd, and counts with s.
func sendOrdered(s *Conn, fd int, hdrs []mmsghdr, poll *[3]unix.PollFd) (sent int, err error) {
	waited, echoes := false, 0
	for sent < len(hdrs) {
		var n uintptr
		errno := s.injected(unix.SYS_SENDMMSG)
		if errno == 0 {
			n, _, errno = unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&hdrs[sent])), uintptr(len(hdrs)-sent), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		}
		switch {
		case errno == 0:
			s.sent.Add(uint64(n))
			sent += int(n)
			continue
		case s.closed():
			return sent, net.ErrClosed
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN && !waited:
			// A full socket tells when it has room.
			waited = true
			poll[0] = unix.PollFd{Fd: int32(s.wake), Events: unix.POLLIN}
			poll[1] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
			_, _ = unix.Poll(poll[:2], int(roomWait/time.Millisecond))
			continue
		case errno == unix.ECONNREFUSED && echoes < sendTries:
			// The echo of an earlier datagram: this one was not tried.
			echoes++
			continue
		case errno == unix.EAGAIN, errno == unix.ENOBUFS, errno == unix.ENOMEM:
			s.sendRetries.Add(1)
		default:
			s.sendErrors.Add(1)
		}
		return sent, os.NewSyscallError("sendmmsg", errno)
	}
	return sent, nil
}

// DialPacket is a socket that sends multicast as Ethernet frames of its own
// making, by a packet socket: past routing, firewall and queueing discipline
// (PACKET_QDISC_BYPASS), for about two thirds of the CPU. The frames are those that the
// system's stack would make: group's and interface's hardware addresses, source
// address and port of a UDP socket that is held meanwhile, TTL, don't-fragment,
// checksums. What does not fit the interface's MTU goes through that UDP
// socket, which fragments it. Receivers on this host do not hear it: see
// HeardHere. It needs CAP_NET_RAW and a named Ethernet interface, also a VLAN
// or a bond. Errors wrap ErrNoFrames where that is what is wrong, else they are
// Dial's.
func DialPacket(c SendConfig) (InOrder, error) {
	c.ensureDefaults()
	none := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", ErrNoFrames, fmt.Errorf(format, args...))
	}
	ifi, err := lookupInterface(c.Interface)
	switch {
	case err != nil:
		return nil, err
	case !c.Addr.Addr().IsMulticast():
		return nil, none("%v is unicast: whose hardware address to send to only the system knows (ARP)", c.Addr.Addr())
	case ifi == nil:
		return nil, none("no interface is named")
	case ifi.Flags&net.FlagLoopback != 0:
		return nil, none("%s is a loopback: the kernel drops what comes from a loopback address and not from its own stack", ifi.Name)
	}
	if err := ethernet(ifi.Name); err != nil {
		return nil, none("%s: %w", ifi.Name, err)
	}
	fd, err := packetSocket()
	if err != nil {
		return nil, none("%w", err)
	}
	udp, err := dialInOrder(c)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	p := &packetConn{inOrder: udp, out: fd, mtu: ifi.MTU, name: ifi.Name}
	udp.Conn.lifetime.free = func() { // before anyone else knows of udp
		unix.Close(fd)
		udp.Conn.free()
	}
	if err := p.open(ifi, c.ttlOf(ifi), c.Addr, c.SendBuffer); err != nil {
		p.Close()
		return nil, none("%s: %w", ifi.Name, err)
	}
	return p, nil
} // packetConn sends frames. Its inOrder holds the source address, sends what is
// too long, and counts.
type packetConn struct {
	*inOrder
	out  int // packet socket
	mtu  int
	name string

	ipSum, udpSum uint64 // of what is the same in all headers
	heads         [BatchSize][frameHeaders]byte
	iovs          [BatchSize][2]unix.Iovec
	hdrs          [BatchSize]mmsghdr
}

func (p *packetConn) open(ifi *net.Interface, ttl int, group netip.AddrPort, buffer int) error {
	if len(ifi.HardwareAddr) != 6 {
		return fmt.Errorf("its hardware address %q is not Ethernet's", ifi.HardwareAddr)
	}
	// Protocol 0: it hears nothing.
	if err := unix.Bind(p.out, &unix.SockaddrLinklayer{Ifindex: ifi.Index}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.SetsockoptInt(p.out, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return os.NewSyscallError("setsockopt PACKET_QDISC_BYPASS", err)
	}
	if buffer > 0 && unix.SetsockoptInt(p.out, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer/2) != nil {
		_ = unix.SetsockoptInt(p.out, unix.SOL_SOCKET, unix.SO_SNDBUF, buffer/2)
	}
	head := frameHead([6]byte(ifi.HardwareAddr), p.local, group, ttl)
	p.ipSum, p.udpSum = headSums(&head)
	for i := range p.heads {
		p.heads[i] = head
		p.iovs[i][0].Base = &p.heads[i][0]
		p.iovs[i][0].SetLen(frameHeaders)
		p.hdrs[i].hdr.Iov = &p.iovs[i][0]
		p.hdrs[i].hdr.SetIovlen(2)
	}
	return nil
}

// Send implements InOrder.
func (p *packetConn) Send(batch [][]byte) (total int, err error) {
	if !p.enter() {
		return 0, net.ErrClosed
	}
	defer p.leave()
	for len(batch) > 0 {
		k := 0
		for k < len(batch) && k < BatchSize && len(batch[k]) <= p.mtu-ipHeader-udpHeader {
			fillHead(&p.heads[k], p.ipSum, p.udpSum, batch[k])
			p.iovs[k][1].Base = nil
			if len(batch[k]) > 0 {
				p.iovs[k][1].Base = &batch[k][0]
			}
			p.iovs[k][1].SetLen(len(batch[k]))
			k++
		}
		if k == 0 { // too long for a frame
			n, err := p.inOrder.Send(batch[:1])
			total += n
			if err != nil {
				return total, err
			}
			batch = batch[1:]
			continue
		}
		n, err := sendOrdered(p.Conn, p.out, p.hdrs[:k], &p.w.poll)
		for i := range k {
			p.iovs[i][1].Base = nil
		}
		total += n
		if errors.Is(err, unix.EMSGSIZE) && p.shrunk() {
			batch = batch[n:]
			continue
		}
		if err != nil {
			return total, err
		}
		batch = batch[k:]
	}
	return total, nil
}

// shrunk looks whether the interface's MTU is less than it was.
func (p *packetConn) shrunk() bool {
	ifi, err := net.InterfaceByName(p.name)
	if err != nil || ifi.MTU >= p.mtu {
		return false
	}
	p.mtu = ifi.MTU
	return true
}

// HeardHere reports whether a socket of this host is a member of group on the
// interface now: it does not hear what DialPacket sends there.
func HeardHere(iface string, group netip.Addr) bool {
	b, err := os.ReadFile("/proc/thread-self/net/igmp")
	return err == nil && memberOf(b, iface, group)
}

// memberOf reads the kernel's list: a line for each interface, "2 eth0 : 1 V3",
// then one, indented, for each group, which begins with the address as the
// number that it is in memory.
func memberOf(list []byte, iface string, group netip.Addr) bool {
	a := group.As4()
	want := fmt.Sprintf("%08X", binary.NativeEndian.Uint32(a[:]))
	here := false
	for line := range bytes.Lines(list) {
		f := bytes.Fields(line)
		switch {
		case len(f) < 2:
		case line[0] != '\t':
			here = string(bytes.TrimSuffix(f[1], []byte(":"))) == iface
		case here && string(f[0]) == want:
			return true
		}
	}
	return false
}
