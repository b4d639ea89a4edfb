package mcast

import (
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lookAgain is how often an interface that is down, or on which a group cannot
// be joined, is looked at without being told.
const lookAgain = time.Second

// link watches one interface by name, for the groups that are joined on it.
// What hears of it (fd is readable when any link of the system changed) calls
// step.
type link struct {
	fd     int // of rtnetlink
	name   string
	index  int
	joined bool // the groups, on the interface with that index
	stale  bool // it was down when they were
	log    *slog.Logger
}

// joiner is who is a member on a link.
type joiner interface {
	leaveGroup(index int)
	joinGroup(index int) error
}

// newLink watches ifi, which is there.
func newLink(ifi *net.Interface, log *slog.Logger) (*link, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	l := &link{fd: fd, name: ifi.Name, index: ifi.Index, joined: true, log: log}
	if l.stale = !running(ifi); l.stale {
		log.Warn("interface is down: waiting for it", "interface", l.name)
	}
	return l, nil
}

func running(ifi *net.Interface) bool {
	const both = net.FlagUp | net.FlagRunning
	return ifi.Flags&both == both
}

// step looks what became of the interface. While it is down, by its
// administrator or for want of a carrier, the groups are left, and joined when
// it is back, perhaps as another of the same name: so the network is told what
// it may have forgotten. Left and joined at once, they would not be told of
// where others of this host are members, too.
func (l *link) step(j joiner) {
	heard, down := l.messages()
	if l.joined && !heard {
		return // of other interfaces
	}
	ifi, err := net.InterfaceByName(l.name)
	up := err == nil && running(ifi)
	if l.joined && (!up || down || l.stale || ifi.Index != l.index) {
		j.leaveGroup(l.index)
		l.joined = false
		if !up && !l.stale {
			l.log.Warn("interface is down: waiting for it", "interface", l.name)
		}
	}
	if !up || l.joined {
		return
	}
	if err := j.joinGroup(ifi.Index); err != nil {
		j.leaveGroup(ifi.Index)
		l.log.Warn("interface is back, but the groups cannot be joined: tried again", "interface", l.name, "err", err)
		return
	}
	l.index, l.joined, l.stale = ifi.Index, true, false
	l.log.Info("interface is back: groups joined again", "interface", l.name)
}

// messages takes those that wait. heard says that there is one about the
// interface, or may have been; down, that it was down, perhaps for a moment.
func (l *link) messages() (heard, down bool) {
	var buf [4096]byte
	for {
		n, _, err := unix.Recvfrom(l.fd, buf[:], 0)
		switch err {
		case nil:
			if index, up, ok := linkMessage(buf[:n]); ok && index == l.index {
				heard, down = true, down || !up
			}
		case unix.EINTR:
		case unix.ENOBUFS: // some are missing
			heard, down = true, true
		default:
			return heard, down
		}
	}
}

// linkMessage reads a message of rtnetlink (struct nlmsghdr, then struct
// ifinfomsg): which interface it is about, and whether that is up.
func linkMessage(b []byte) (index int, up, ok bool) {
	if len(b) < unix.SizeofNlMsghdr+unix.SizeofIfInfomsg {
		return 0, false, false
	}
	const both = unix.IFF_UP | unix.IFF_RUNNING
	kind, info := binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:]
	up = kind == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(info[8:])&both == both
	return int(int32(binary.NativeEndian.Uint32(info[4:]))), up, kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK
}

// timeout bounds the sleep until the next step, in ms; -1: none.
func (l *link) timeout() int {
	if !l.joined {
		return int(lookAgain / time.Millisecond)
	}
	return -1
}

func (l *link) close() { unix.Close(l.fd) }
