package mcast

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

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
	poll  [3]unix.PollFd
	drops uint32 // kernel's drop counter, as last seen
}

// wait waits until fd has events, s closes, or timeout (ms; -1: none) is over.
func (s *Conn) wait(p *[3]unix.PollFd, events int16, timeout int) { s.poll(p[:2], events, timeout) }

// poll is wait for what stands in p[2:], too.
func (s *Conn) poll(p []unix.PollFd, events int16, timeout int) {
	p[0] = unix.PollFd{Fd: int32(s.wake), Events: unix.POLLIN}
	p[1] = unix.PollFd{Fd: int32(s.fd), Events: events}
	if events == 0 {
		p = p[:1]
	}
	_, _ = unix.Poll(p, timeout)
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
	for {
		n, errno := s.tryRead(ds)
		switch {
		case errno == 0:
			return n, nil
		case s.closed():
			return 0, net.ErrClosed
		case errno == unix.EAGAIN:
			s.parked.Store(true)
			s.waitRead()
			s.parked.Store(false)
			if s.closed() {
				return 0, net.ErrClosed
			}
		case errno == unix.EINTR:
		case ours(errno):
			return 0, os.NewSyscallError("recvmmsg", errno)
		default:
			// ECONNREFUSED of an earlier send, ENETDOWN, ENOMEM, ENOBUFS: the
			// socket lives on. The pause keeps a lasting one from spinning.
			s.readErrors.Add(1)
			if errno != unix.ECONNREFUSED {
				s.wait(&s.rd.poll, 0, 10)
			}
		}
	}
}

// TryReadBatch is ReadBatch, but does not wait: where nothing is there it
// returns 0.
func (s *Conn) TryReadBatch(ds []Datagram) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	if !s.enter() {
		return 0, net.ErrClosed
	}
	defer s.leave()
	n, errno := s.tryRead(ds)
	switch {
	case errno == 0:
		return n, nil
	case s.closed():
		return 0, net.ErrClosed
	case ours(errno):
		return 0, os.NewSyscallError("recvmmsg", errno)
	case errno != unix.EAGAIN && errno != unix.EINTR:
		s.readErrors.Add(1)
	}
	return 0, nil
}

// idle implements idler.
func (s *Conn) idle() bool {
	if !s.enter() {
		return true
	}
	defer s.leave()
	// In this order: what was read before has been given on when the reader
	// is back.
	n, err := unix.IoctlGetInt(s.fd, unix.SIOCINQ)
	return (err != nil || n == 0) && s.parked.Load()
}

// ours reports whether errno says that the call was wrong: going on would
// spin.
func ours(errno unix.Errno) bool {
	switch errno {
	case unix.EBADF, unix.EFAULT, unix.EINVAL, unix.ENOTSOCK, unix.ENOSYS:
		return true
	}
	return false
}

// waitRead waits until there may be something to read, and sees to the
// interface meanwhile.
func (s *Conn) waitRead() {
	if s.link == nil {
		s.wait(&s.rd.poll, unix.POLLIN, -1)
		return
	}
	p := &s.rd.poll
	p[2] = unix.PollFd{Fd: int32(s.link.fd), Events: unix.POLLIN}
	timeout := s.link.timeout()
	s.poll(p[:], unix.POLLIN, timeout)
	if p[2].Revents != 0 || timeout >= 0 && p[0].Revents|p[1].Revents == 0 {
		s.link.step(s)
	}
}

// leaveGroup and joinGroup implement joiner.
func (s *Conn) leaveGroup(index int) { s.member.leave(index) }

func (s *Conn) joinGroup(index int) error {
	if err := s.member.join(index); err != nil {
		return err
	}
	s.ifIndex = index
	s.rejoins.Add(1)
	return nil
}

// tryRead reads what there is, without waiting; EAGAIN where there is nothing.
func (s *Conn) tryRead(ds []Datagram) (int, unix.Errno) {
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
	if errno := s.injected(unix.SYS_RECVMMSG); errno != 0 {
		return 0, errno
	}
	// Raw: it never waits, and Go's scheduler need not take the processor away
	// from this thread, and give it back, meanwhile.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&r.hdrs[0])), uintptr(k), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	for i := range int(n) {
		s.take(i, &ds[i])
	}
	return int(n), 0
}

// injected is what a test has a system call fail with instead; 0: it is made.
func (s *Conn) injected(call uintptr) unix.Errno {
	if s.fault == nil {
		return 0
	}
	return s.fault(call)
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
	d.Dst, d.group = netip.AddrPort{}, 0
	if s.member != nil {
		d.Dst = s.local
	}
	d.Stamp, d.IfIndex, d.Local = 0, s.ifIndex, netip.Addr{}
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
