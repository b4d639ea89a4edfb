package mcast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds on the tries to send one datagram that the system has no room for:
// about a second in all, then it is counted and skipped.
const (
	sendTries   = 40
	sendBackoff = 25 * time.Millisecond
)

// writer is the state of one WriteBatch or Send.
type writer struct {
	hdrs  [BatchSize]mmsghdr
	iovs  [BatchSize]unix.Iovec
	names [BatchSize]unix.RawSockaddrInet4
	ctls  [BatchSize]sourceControl
	poll  [3]unix.PollFd
}

// sourceControl is the control data that picks a source address; its size in
// bytes, padded to words, is what the kernel wants.
type sourceControl struct {
	hdr  unix.Cmsghdr
	info unix.Inet4Pktinfo
	_    [0]uintptr // alignment
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
		var n uintptr
		errno := s.injected(unix.SYS_SENDMMSG)
		if errno == 0 {
			n, _, errno = unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&w.hdrs[at])), uintptr(k-at), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		}
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
