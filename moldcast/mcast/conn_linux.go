package mcast

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

// Bounds on the tries to send one datagram that the system has no room for:
// about a second in all, then it is counted and skipped.
const (
	sendTries   = 40
	sendBackoff = 25 * time.Millisecond
)

// Conn is a UDP socket that reads and writes in batches. See Socket for who
// may call what when.
type Conn struct {
	fd   int // non-blocking
	wake int // eventfd: readable once closed

	use  atomic.Int64 // system calls under way, plus closing
	done chan struct{}

	local   netip.AddrPort
	dialled bool
	recvBuf int
	maxData int

	rd *reader      // owned by the one reading goroutine
	wr chan *writer // free ones

	kernelDropped, truncated, readErrors atomic.Uint64
	sent, sendRetries, sendErrors        atomic.Uint64
}

// closing is added to Conn.use by Close.
const closing = 1 << 40

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// control is room for SCM_TIMESTAMPNS, SO_RXQ_OVFL and IP_PKTINFO.
type control [16]uint64

// reader is the state of ReadBatch. The kernel writes into it: it is on the
// heap and stays there.
type reader struct {
	hdrs  [BatchSize]mmsghdr
	iovs  [BatchSize][2]unix.Iovec
	names [BatchSize]unix.RawSockaddrInet4
	ctls  [BatchSize]control
	over  [BatchSize][]byte // for what is longer than the caller's buffer; its pages stay untouched until then
	poll  [2]unix.PollFd
	drops uint32 // kernel's drop counter, as last seen
}

// writer is the state of one WriteBatch or Send.
type writer struct {
	hdrs  [BatchSize]mmsghdr
	iovs  [BatchSize]unix.Iovec
	names [BatchSize]unix.RawSockaddrInet4
	ctls  [BatchSize]sourceControl
	poll  [2]unix.PollFd
}

// sourceControl is the control data that picks a source address; its size in
// bytes, padded to words, is what the kernel wants.
type sourceControl struct {
	hdr  unix.Cmsghdr
	info unix.Inet4Pktinfo
	_    [0]uintptr // alignment
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
		if err := set(o.level, o.opt, 1, o.name); err != nil {
			return err
		}
	}
	s.setRecvBuffer(c.RecvBuffer, c.Addr, c.Log)
	if err := unix.Bind(s.fd, &unix.SockaddrInet4{Port: int(c.Addr.Port()), Addr: c.Addr.Addr().As4()}); err != nil {
		return fmt.Errorf("binding %v: %w", c.Addr, os.NewSyscallError("bind", err))
	}
	if err := s.setLocal(); err != nil {
		return err
	}
	if !multicast {
		return nil
	}
	index := 0
	if ifi != nil {
		index = ifi.Index
	}
	join := func(err error) error {
		if err == nil {
			return nil
		}
		where := "the system's choice of interface"
		if ifi != nil {
			where = "interface " + ifi.Name
		}
		if errors.Is(err, unix.ENODEV) && ifi == nil {
			return fmt.Errorf("%w: no route for group %v: name the interface", ErrInterface, c.Addr.Addr())
		}
		return fmt.Errorf("joining %v on %s: %w", c.Addr.Addr(), where, err)
	}
	if len(c.sources) == 0 {
		return join(unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: c.Addr.Addr().As4(), Ifindex: int32(index)}))
	}
	for _, src := range c.sources {
		if err := join(joinSource(s.fd, index, c.Addr.Addr(), src)); err != nil {
			return err
		}
	}
	return nil
}

// joinSource joins group for one sender (MCAST_JOIN_SOURCE_GROUP: the older
// option takes no interface index).
func joinSource(fd, index int, group, src netip.Addr) error {
	// struct group_source_req { u32 interface; sockaddr_storage group, source; }
	const storage = 128
	at := int(unsafe.Sizeof(uintptr(0))) // sockaddr_storage is aligned to a word
	b := make([]byte, at+2*storage)
	binary.NativeEndian.PutUint32(b, uint32(index))
	for _, a := range []netip.Addr{group, src} {
		binary.NativeEndian.PutUint16(b[at:], unix.AF_INET)
		ip := a.As4()
		copy(b[at+4:], ip[:])
		at += storage
	}
	return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.MCAST_JOIN_SOURCE_GROUP, string(b))
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
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	s := &Conn{fd: fd, wake: wake, done: make(chan struct{}), maxData: maxData, wr: make(chan *writer, 8)}
	return s, nil
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
	}
}

// enter begins a use of the file descriptors: they stay open until leave.
func (s *Conn) enter() bool {
	if s.use.Add(1) >= closing {
		s.leave()
		return false
	}
	return true
}

func (s *Conn) leave() {
	if s.use.Add(-1) == closing {
		s.destroy()
	}
}

func (s *Conn) closed() bool { return s.use.Load() >= closing }

// destroy gives the file descriptors back, once: after it the count of uses
// can never be exactly closing again.
func (s *Conn) destroy() {
	if !s.use.CompareAndSwap(closing, 2*closing) {
		return
	}
	unix.Close(s.fd)
	unix.Close(s.wake)
	close(s.done)
}

// Close ends reads and writes under way and frees the port; it returns when
// both are so. Closing twice is harmless.
func (s *Conn) Close() error {
	for {
		u := s.use.Load()
		if u >= closing {
			break
		}
		if s.use.CompareAndSwap(u, u+closing+1) { // +1: the eventfd is ours until it is written
			var one [8]byte
			binary.NativeEndian.PutUint64(one[:], 1)
			_, _ = unix.Write(s.wake, one[:])
			s.leave()
			break
		}
	}
	<-s.done
	return nil
}

// wait waits until fd has events, s closes, or timeout (ms; -1: none) is over.
func (s *Conn) wait(p *[2]unix.PollFd, events int16, timeout int) {
	p[0] = unix.PollFd{Fd: int32(s.wake), Events: unix.POLLIN}
	p[1] = unix.PollFd{Fd: int32(s.fd), Events: events}
	n := 2
	if events == 0 {
		n = 1
	}
	_, _ = unix.Poll(p[:n], timeout)
}

// ReadBatch implements Socket.
func (s *Conn) ReadBatch(ds []Datagram) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	if !s.enter() {
		return 0, net.ErrClosed
	}
	defer s.leave()
	if s.rd == nil {
		s.rd = new(reader)
	}
	r := s.rd
	k := min(len(ds), BatchSize)
	for i := range k {
		if cap(ds[i].Data) < s.maxData && r.over[0] == nil {
			block := make([]byte, BatchSize*s.maxData)
			for j := range r.over {
				r.over[j] = block[j*s.maxData : (j+1)*s.maxData]
			}
		}
		r.prepare(i, &ds[i], s.maxData)
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&r.hdrs[0])), uintptr(k), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			for i := range int(n) {
				s.take(i, &ds[i])
			}
			return int(n), nil
		case s.closed():
			return 0, net.ErrClosed
		case errno == unix.EAGAIN:
			s.wait(&r.poll, unix.POLLIN, -1)
			if s.closed() {
				return 0, net.ErrClosed
			}
		case errno == unix.EINTR:
		case errno == unix.EBADF, errno == unix.EFAULT, errno == unix.EINVAL, errno == unix.ENOTSOCK, errno == unix.ENOSYS:
			// Ours, not the network's: going on would spin.
			return 0, os.NewSyscallError("recvmmsg", errno)
		default:
			// ECONNREFUSED of an earlier send, ENETDOWN, ENOMEM, ENOBUFS: the
			// socket lives on. The pause keeps a lasting one from spinning.
			s.readErrors.Add(1)
			if errno != unix.ECONNREFUSED {
				s.wait(&r.poll, 0, 10)
			}
		}
	}
}

// prepare points header i at the buffer of d, and beyond it at the overflow.
func (r *reader) prepare(i int, d *Datagram, longest int) {
	h := &r.hdrs[i].hdr
	iov := &r.iovs[i]
	buf := d.Data[:min(cap(d.Data), longest)]
	n := 0
	if len(buf) > 0 {
		iov[n].Base = &buf[0]
		iov[n].SetLen(len(buf))
		n++
	}
	if rest := longest - len(buf); rest > 0 {
		iov[n].Base = &r.over[i][0]
		iov[n].SetLen(rest)
		n++
	}
	h.Iov = &iov[0]
	h.SetIovlen(n)
	h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
	h.Namelen = unix.SizeofSockaddrInet4
	h.Control = (*byte)(unsafe.Pointer(&r.ctls[i]))
	h.SetControllen(int(unsafe.Sizeof(r.ctls[i])))
	h.Flags = 0
}

// take fills d from header i.
func (s *Conn) take(i int, d *Datagram) {
	r := s.rd
	h := &r.hdrs[i].hdr
	n := int(r.hdrs[i].len)
	d.Truncated = h.Flags&unix.MSG_TRUNC != 0
	if d.Truncated {
		s.truncated.Add(1)
	}
	if n <= cap(d.Data) {
		d.Data = d.Data[:n]
	} else {
		big := make([]byte, n)
		k := copy(big, d.Data[:cap(d.Data)])
		copy(big[k:], r.over[i])
		d.Data = big
	}
	port := (*[2]byte)(unsafe.Pointer(&r.names[i].Port)) // network order
	d.Src = netip.AddrPortFrom(netip.AddrFrom4(r.names[i].Addr), uint16(port[0])<<8|uint16(port[1]))
	d.Dst = netip.AddrPort{}
	d.Stamp, d.IfIndex, d.Local = 0, 0, netip.Addr{}
	s.parseControl(d, unsafe.Slice((*byte)(unsafe.Pointer(&r.ctls[i])), int(h.Controllen)))
	if d.Stamp == 0 {
		d.Stamp = moldcast.StampOf(time.Now())
	}
}

// parseControl reads the kernel's stamp, drop counter and arrival interface.
// b is as the kernel wrote it: native order, aligned to words.
func (s *Conn) parseControl(d *Datagram, b []byte) {
	word := int(unsafe.Sizeof(uintptr(0)))
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(b) {
			return
		}
		data := b[unix.SizeofCmsghdr:n]
		switch {
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS && len(data) >= int(unsafe.Sizeof(unix.Timespec{})):
			ts := (*unix.Timespec)(unsafe.Pointer(&data[0]))
			d.Stamp = moldcast.Stamp(ts.Nano())
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			total := binary.NativeEndian.Uint32(data)
			s.kernelDropped.Add(uint64(total - s.rd.drops)) // modulo 2^32
			s.rd.drops = total
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
			d.IfIndex = int(info.Ifindex)
			d.Local = netip.AddrFrom4(info.Spec_dst)
		}
		n = (n + word - 1) &^ (word - 1)
		if n >= len(b) {
			return
		}
		b = b[n:]
	}
}

// WriteBatch implements Socket.
func (s *Conn) WriteBatch(ds []Datagram) (int, error) {
	w, err := s.writer()
	if err != nil {
		return 0, err
	}
	defer s.release(w)
	total := 0
	var first error
	for len(ds) > 0 {
		k := min(len(ds), BatchSize)
		for i := range k {
			w.payload(i, ds[i].Data)
			w.dest(i, ds[i].Dst)
			w.source(i, ds[i].Local)
		}
		n, err := s.flush(w, k)
		total += n
		if errors.Is(err, net.ErrClosed) {
			return total, err
		}
		if first == nil {
			first = err
		}
		ds = ds[k:]
	}
	return total, first
}

// Send implements Socket. It must not be called on a socket that was not
// dialled.
func (s *Conn) Send(batch [][]byte) (int, error) {
	if !s.dialled {
		return 0, fmt.Errorf("%w: socket %v was not dialled", ErrAddress, s.local)
	}
	w, err := s.writer()
	if err != nil {
		return 0, err
	}
	defer s.release(w)
	total := 0
	var first error
	for len(batch) > 0 {
		k := min(len(batch), BatchSize)
		for i := range k {
			w.payload(i, batch[i])
			w.hdrs[i].hdr.Name, w.hdrs[i].hdr.Namelen = nil, 0
			w.source(i, netip.Addr{})
		}
		n, err := s.flush(w, k)
		total += n
		if errors.Is(err, net.ErrClosed) {
			return total, err
		}
		if first == nil {
			first = err
		}
		batch = batch[k:]
	}
	return total, first
}

func (s *Conn) writer() (*writer, error) {
	if !s.enter() {
		return nil, net.ErrClosed
	}
	select {
	case w := <-s.wr:
		return w, nil
	default:
		return new(writer), nil
	}
}

func (s *Conn) release(w *writer) {
	for i := range w.iovs { // not to keep the caller's buffers
		w.iovs[i].Base = nil
	}
	select {
	case s.wr <- w:
	default:
	}
	s.leave()
}

func (w *writer) payload(i int, b []byte) {
	h := &w.hdrs[i].hdr
	h.Iov = &w.iovs[i]
	h.SetIovlen(1)
	w.iovs[i].Base = nil
	if len(b) > 0 {
		w.iovs[i].Base = &b[0]
	}
	w.iovs[i].SetLen(len(b))
}

func (w *writer) dest(i int, a netip.AddrPort) {
	n := &w.names[i]
	n.Family = unix.AF_INET
	n.Addr = [4]byte{}
	if ip := a.Addr().Unmap(); ip.Is4() {
		n.Addr = ip.As4()
	} else {
		n.Family = unix.AF_INET6 // the kernel refuses it: counted like any other refusal
	}
	port := (*[2]byte)(unsafe.Pointer(&n.Port))
	port[0], port[1] = byte(a.Port()>>8), byte(a.Port())
	w.hdrs[i].hdr.Name = (*byte)(unsafe.Pointer(n))
	w.hdrs[i].hdr.Namelen = unix.SizeofSockaddrInet4
}

func (w *writer) source(i int, a netip.Addr) {
	h := &w.hdrs[i].hdr
	if a = a.Unmap(); !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
		h.Control = nil
		h.SetControllen(0)
		return
	}
	c := &w.ctls[i]
	c.hdr.Level, c.hdr.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
	c.hdr.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	c.info = unix.Inet4Pktinfo{Spec_dst: a.As4()}
	h.Control = (*byte)(unsafe.Pointer(c))
	h.SetControllen(int(unsafe.Sizeof(*c)))
}

// flush sends the first k datagrams of w. All are tried; the error is the
// first refusal, or net.ErrClosed, which ends it.
func (s *Conn) flush(w *writer, k int) (sent int, first error) {
	at, tries := 0, 0
	for at < k {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&w.hdrs[at])), uintptr(k-at), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			s.sent.Add(uint64(n))
			sent += int(n)
			at += int(n)
			tries = 0
			continue
		}
		if s.closed() {
			return sent, net.ErrClosed
		}
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			if tries < sendTries {
				tries++
				s.sendRetries.Add(1)
				// A full socket tells when it has room; a full device queue
				// (ENOBUFS) does not.
				if errno == unix.EAGAIN {
					s.wait(&w.poll, unix.POLLOUT, int(sendBackoff/time.Millisecond))
				} else {
					s.wait(&w.poll, 0, min(tries, int(sendBackoff/time.Millisecond)))
				}
				continue
			}
		case unix.ECONNREFUSED:
			// The echo of an earlier datagram: this one was not tried.
			if tries < sendTries {
				tries++
				continue
			}
		}
		s.sendErrors.Add(1)
		if first == nil {
			first = os.NewSyscallError("sendmmsg", errno)
		}
		at++
		tries = 0
	}
	return sent, first
}
