package mcast

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// membership is what a socket hears of one group.
type membership struct {
	fd      int
	group   netip.Addr
	sources []netip.Addr // empty: everyone
}

// join joins on the interface with an index; 0 is the system's choice.
func (m *membership) join(index int) error {
	if len(m.sources) == 0 {
		err := unix.SetsockoptIPMreqn(m.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, m.mreqn(index))
		if err != nil {
			return fmt.Errorf("joining %v on %s: %w", m.group, place(index), err)
		}
	}
	for _, src := range m.sources {
		if err := m.source(unix.MCAST_JOIN_SOURCE_GROUP, index, src); err != nil {
			return fmt.Errorf("joining %v from %v on %s: %w", m.group, src, place(index), err)
		}
	}
	return nil
}

// leave undoes join on the interface with an index. What the kernel gave up
// with the interface is not there to be left: that is no error.
func (m *membership) leave(index int) {
	if len(m.sources) == 0 {
		_ = unix.SetsockoptIPMreqn(m.fd, unix.IPPROTO_IP, unix.IP_DROP_MEMBERSHIP, m.mreqn(index))
	}
	for _, src := range m.sources {
		_ = m.source(unix.MCAST_LEAVE_SOURCE_GROUP, index, src)
	}
}

func (m *membership) mreqn(index int) *unix.IPMreqn {
	return &unix.IPMreqn{Multiaddr: m.group.As4(), Ifindex: int32(index)}
}

// source joins or leaves for one sender (MCAST_…_SOURCE_GROUP: the older
// options take no interface index).
func (m *membership) source(opt, index int, src netip.Addr) error {
	// struct group_source_req { u32 interface; sockaddr_storage group, source; }
	const storage = 128
	at := int(unsafe.Sizeof(uintptr(0))) // sockaddr_storage is aligned to a word
	b := make([]byte, at+2*storage)
	binary.NativeEndian.PutUint32(b, uint32(index))
	for _, a := range []netip.Addr{m.group, src} {
		binary.NativeEndian.PutUint16(b[at:], unix.AF_INET)
		ip := a.As4()
		copy(b[at+4:], ip[:])
		at += storage
	}
	return unix.SetsockoptString(m.fd, unix.IPPROTO_IP, opt, string(b))
}

func place(index int) string {
	if index == 0 {
		return "the system's choice of interface"
	}
	if ifi, err := net.InterfaceByIndex(index); err == nil {
		return "interface " + ifi.Name
	}
	return fmt.Sprintf("interface %d", index)
}
