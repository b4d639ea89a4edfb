//go:build linux

package mcast

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRejoin: when the interface comes back, the network is told anew, and both
// back ends hear.
func TestRejoin(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	group := address("239.77.0.1", 5000)
	only := address("239.77.0.2", 5000)
	source := address("10.77.0.9", 1)
	var log syncBuffer
	lines := []ListenConfig{{Addr: group, Interface: "vb", Log: textLog(&log)}, {Addr: only, Interface: "vb", Source: source.Addr(), Log: textLog(&log)}}
	both := listenBoth(t, lines)
	wake := NewWake()
	type arrival struct {
		rx  *RX
		tap *Tap
	}
	var all []arrival
	for _, h := range both {
		for _, tap := range h.taps {
			rx := StartRX(tap.Socket, NewRing(256, 2048), wake, nil)
			defer discard(rx)
			all = append(all, arrival{rx, tap})
		}
	}
	// hear sends until every line of both has heard what.
	hear := func(what string) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		missing := map[string]bool{}
		for i, a := range all {
			for _, l := range a.tap.Lines() {
				missing[fmt.Sprint(i, l)] = true
			}
		}
		va := inject(t, "va")
		for len(missing) > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%s is not heard by %v", what, missing)
			}
			for _, to := range []netip.AddrPort{group, only} {
				p := (&udpFrame{src: source, dst: to, payload: []byte(what)}).bytes()
				_ = unix.Sendto(va.fd, append(ethernetTo([6]byte{1, 0, 0x5e, p[17] & 0x7f, p[18], p[19]}), p...), 0, &unix.SockaddrLinklayer{Ifindex: va.index})
			}
			time.Sleep(5 * time.Millisecond) // between two tries
			for i, a := range all {
				for d := a.rx.Ring().Pop(); d != nil; d = a.rx.Ring().Pop() {
					if string(d.Data) == what {
						delete(missing, fmt.Sprint(i, a.tap.Line(d)))
						if d.IfIndex != must[*net.Interface](t)(net.InterfaceByName("vb")).Index {
							t.Errorf("heard on interface %d", d.IfIndex)
						}
					}
				}
			}
		}
	}
	rejoined := func(times uint64) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for _, a := range all {
			s := a.tap.Socket.(interface{ Counters() Counters })
			for s.Counters().Rejoins < times {
				if time.Now().After(deadline) {
					t.Fatalf("%v: joined again %d times, want %d", a.tap.Socket.LocalAddr(), s.Counters().Rejoins, times)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	hear("before")
	reports := igmp(t, "va")
	ip(t, "link set va down") // the carrier goes; the kernel tells of it a little later
	for deadline := time.Now().Add(30 * time.Second); log.count("interface is down") < len(all); {
		if time.Now().After(deadline) {
			t.Fatalf("they say %q", log.String())
		}
		time.Sleep(time.Millisecond)
	}
	ip(t, "link set va up")
	rejoined(1)
	reports.want(t, group.Addr(), only.Addr())
	hear("after the carrier")
	ip(t, "link set vb down")
	ip(t, "link set vb up")
	rejoined(2)
	hear("after down and up")
	ip(t, "link del va")
	cable(t)
	rejoined(3)
	hear("after another of that name")

	// One that is down at first.
	ip(t, "link set va down")
	for _, a := range all {
		discard(a.rx)
	}
	all = nil
	for _, h := range listenBoth(t, lines) {
		for _, tap := range h.taps {
			rx := StartRX(tap.Socket, NewRing(256, 2048), wake, nil)
			defer discard(rx)
			all = append(all, arrival{rx, tap})
		}
	}
	ip(t, "link set va up")
	rejoined(1)
	hear("after it was down at first")
}

// igmpReports are the IGMP reports that go by on an interface.
type igmpReports struct{ fd int }

func igmp(t *testing.T, dev string) *igmpReports {
	t.Helper()
	ifi := must[*net.Interface](t)(net.InterfaceByName(dev))
	const ip = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8
	fd := must[int](t)(unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, ip))
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: ifi.Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	return &igmpReports{fd}
}

// want waits for reports of all groups.
func (r *igmpReports) want(t *testing.T, groups ...netip.Addr) {
	t.Helper()
	missing := slices.Clone(groups)
	buf := make([]byte, 2048)
	for len(missing) > 0 {
		n, _, err := unix.Recvfrom(r.fd, buf, 0)
		if err == unix.ENETDOWN || err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("no IGMP report for %v: %v", missing, err)
		}
		p := buf[:n]
		if n < 20 || p[9] != unix.IPPROTO_IGMP {
			continue
		}
		missing = slices.DeleteFunc(missing, func(g netip.Addr) bool {
			a := g.As4()
			return bytes.Contains(p[20:], a[:])
		})
	}
}
