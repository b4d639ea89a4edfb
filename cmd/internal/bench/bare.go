package bench

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast/mcast"
)

// bareReceiver is a loop of recvmmsg, and nothing else.
type bareReceiver struct {
	fd   int
	bufs [mcast.BatchSize][2048]byte
	iov  [mcast.BatchSize]unix.Iovec
	msgs [mcast.BatchSize]struct {
		hdr unix.Msghdr
		n   uint32
		_   [4]byte
	}
}

func newBareReceiver(group netip.AddrPort) (b *bareReceiver, buffer int, err error) {
	ifi, err := net.InterfaceByName(Loopback)
	if err != nil {
		return nil, 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, 0, os.NewSyscallError("socket", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, mcast.DefaultRecvBuffer/2) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, mcast.DefaultRecvBuffer/2)
	}
	buffer, berr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	err = errors.Join(berr,
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(group.Port()), Addr: group.Addr().As4()}),
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.Addr().As4(), Ifindex: int32(ifi.Index)}))
	if err != nil {
		unix.Close(fd)
		return nil, 0, err
	}
	b = &bareReceiver{fd: fd}
	for i := range b.msgs {
		b.iov[i].Base = &b.bufs[i][0]
		b.iov[i].SetLen(len(b.bufs[i]))
		b.msgs[i].hdr.Iov, b.msgs[i].hdr.Iovlen = &b.iov[i], 1
	}
	return b, buffer, nil
}

func (b *bareReceiver) drain(quiet time.Duration) (n int, err error) {
	for idle := (time.Time{}); ; {
		k, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(b.fd), uintptr(unsafe.Pointer(&b.msgs[0])), uintptr(len(b.msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
		case unix.EAGAIN, unix.EINTR:
			if idle.IsZero() {
				idle = time.Now()
			}
			if time.Since(idle) > quiet {
				return n, nil
			}
			continue
		default:
			return n, os.NewSyscallError("recvmmsg", errno)
		}
		idle = time.Time{}
		n += int(k)
		for i := range int(k) {
			if b.bufs[i][0] == endMark {
				return n, nil
			}
		}
	}
}

func (b *bareReceiver) early() bool { return false }

func (b *bareReceiver) Close() error { return unix.Close(b.fd) }
