//go:build linux

package mcast

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// heard is what a line heard, as far as the back ends must agree.
type heard struct {
	Datagram
	line int
}

// hearing is one set of lines on one back end.
type hearing struct {
	name string
	taps []*Tap
}

// listenBoth opens the same lines on both back ends.
func listenBoth(t *testing.T, lines []ListenConfig) [2]*hearing {
	t.Helper()
	var out [2]*hearing
	for i, b := range []Backend{UDPBackend, RingBackend} {
		taps := must[[]*Tap](t)(OpenLines(lines, b))
		t.Cleanup(func() {
			for _, tap := range taps {
				tap.Socket.Close()
			}
		})
		out[i] = &hearing{b.String(), taps}
	}
	return out
}

// until collects what the lines hear, through an RX each, up to an end: a
// datagram that begins with "end" on every line that is said to.
func (h *hearing) until(t *testing.T, ends int) []heard {
	t.Helper()
	wake := NewWake()
	var rxs []*RX
	for _, tap := range h.taps {
		rxs = append(rxs, StartRX(tap.Socket, NewRing(1024, 2048), wake, nil))
	}
	var out []heard
	deadline := time.After(30 * time.Second)
	for ends > 0 {
		c := wake.Arm()
		for i, rx := range rxs {
			for d := rx.Ring().Pop(); d != nil; d = rx.Ring().Pop() {
				if bytes.HasPrefix(d.Data, []byte("end")) {
					ends--
					continue
				}
				x := heard{*d, h.taps[i].Line(d)}
				x.Data = bytes.Clone(d.Data)
				x.Local, x.lent, x.skip, x.group = netip.Addr{}, false, false, 0
				out = append(out, x)
			}
		}
		if ends == 0 {
			break
		}
		select {
		case <-c:
		case <-deadline:
			t.Errorf("%s: no end came; heard %d: %+v", h.name, len(out), rxs[0].Counters())
			ends = 0
		}
	}
	for _, rx := range rxs {
		if n := rx.Counters(); n.KernelDropped > 0 && h.name == "ring" {
			t.Errorf("%s: %+v", h.name, n)
		}
		discard(rx)
	}
	slices.SortStableFunc(out, func(a, b heard) int {
		return cmp.Or(cmp.Compare(a.line, b.line), bytes.Compare(a.Data, b.Data))
	})
	return out
}

// agree checks that both back ends heard the same, and that it is what was to
// be heard: "line:payload", long payloads by their first 20 bytes.
func agree(t *testing.T, both [2]*hearing, ends int, want []string) {
	t.Helper()
	var got [2][]heard
	done := make(chan struct{})
	go func() { // while the other reads, what this hears waits in its buffers
		defer close(done)
		got[0] = both[0].until(t, ends)
	}()
	got[1] = both[1].until(t, ends)
	<-done
	slices.Sort(want)
	for i, h := range both {
		var have []string
		for _, x := range got[i] {
			have = append(have, fmt.Sprintf("%s:%.20s", LineName(x.line), x.Data))
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("%s heard\n%q, want\n%q", h.name, have, want)
		}
	}
	if t.Failed() {
		return
	}
	for i := range got[0] {
		u, r := got[0][i], got[1][i]
		if !bytes.Equal(u.Data, r.Data) || u.Src != r.Src || u.Dst != r.Dst || u.Stamp != r.Stamp || u.IfIndex != r.IfIndex || u.Truncated != r.Truncated {
			t.Errorf("datagram %d: udp has %d bytes %v %v %v on %d, ring %d bytes %v %v %v on %d", i,
				len(u.Data), u.Src, u.Dst, u.Stamp.Time(), u.IfIndex, len(r.Data), r.Src, r.Dst, r.Stamp.Time(), r.IfIndex)
		}
		if age := time.Since(r.Stamp.Time()); age < 0 || age > time.Minute {
			t.Errorf("stamp %v", r.Stamp.Time())
		}
	}
}

// TestBackendsAgree: on the same traffic both back ends hear the same.
func TestBackendsAgree(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	const port, other = 5000, 5001
	one, two, only := "239.77.0.1", "239.77.0.2", "239.77.0.3"
	stranger := address("10.77.0.9", 4000)
	lines := []ListenConfig{
		{Addr: address(one, port), Interface: "vb"},
		{Addr: address(two, port), Interface: "vb"},
		{Addr: address(one, other), Interface: "vb"},
		{Addr: address(only, port), Interface: "vb", Source: stranger.Addr()},
	}
	frame := func(to string, port uint16, payload string, change func(*udpFrame)) []byte {
		u := &udpFrame{src: stranger, dst: address(to, port), payload: []byte(payload)}
		if change != nil {
			change(u)
		}
		return u.bytes()
	}
	long := func(name string, n int) string { return (name + strings.Repeat(" long", n/5+1))[:n] }

	both := listenBoth(t, lines)
	va := inject(t, "va")
	send := func(p ...[]byte) { t.Helper(); va.send(p) }
	send(frame(one, port, "plain", nil), frame(two, port, "plain", nil), frame(one, other, "plain", nil), frame(only, port, "plain", nil))
	send(frame(one, port, "", nil))
	send(frame(one, port, long("full", 1472), nil))
	send(frame(one, port, "options", func(u *udpFrame) { u.options = bytes.Repeat([]byte{1}, 12) }))
	send(frame(one, port, "padded", func(u *udpFrame) { u.padding = 12 }))
	send(frame(one, port, "unsummed", func(u *udpFrame) { u.noChecksum = true }))
	send(frame(one, port, "whole", func(u *udpFrame) { u.fragment = 0x4000 }))
	// Not to be heard.
	send(frame("239.77.0.4", port, "other group", nil), frame(one, 5002, "other port", nil))
	send(frame(only, port, "other source", func(u *udpFrame) { u.src = address("10.77.0.8", 1) }))
	spoilt := frame(one, port, "bad checksum", nil)
	spoilt[len(spoilt)-1]++
	header := frame(one, port, "bad header checksum", nil)
	header[8]++
	send(spoilt, header)
	send(frame(one, port, "from a group", func(u *udpFrame) { u.src = address(two, 1) }))
	send(frame(one, port, "from loopback", func(u *udpFrame) { u.src = address("127.0.0.1", 1) }))
	va.raw(append(ethernetTo([6]byte{2, 0, 0, 0, 0, 0x55}), frame(one, port, "another host's", nil)...))
	// Fragments: in order, not so, twice, some of other groups, one missing.
	send(fragments(frame(one, port, long("fragments", 4000), nil), 1, 1480)...)
	backwards := fragments(frame(two, port, long("backwards", 5000), nil), 2, 1480)
	slices.Reverse(backwards)
	send(backwards...)
	send(fragments(frame(one, port, "small fragments", nil), 3, 8)...)
	twice := fragments(frame(one, port, long("twice", 3000), nil), 4, 1480)
	send(twice[0], twice[0], twice[1], twice[2])
	send(fragments(frame("239.77.0.4", port, long("other group", 3000), nil), 5, 1480)...)
	send(fragments(frame(one, port, long("incomplete", 3000), nil), 6, 1480)[1:]...)
	send(fragments(frame(one, port, long("huge", 60000), nil), 7, 1480)...)
	bad := frame(one, port, long("bad fragments", 3000), nil)
	bad[2000]++
	send(fragments(bad, 8, 1480)...)
	// VLANs: priority is no VLAN, others are not this interface's.
	va.send([][]byte{frame(one, port, "priority", nil)}, 5<<13)
	va.send([][]byte{frame(one, port, "VLAN 100", nil)}, 100)
	want := []string{
		"A:plain", "B:plain", "C:plain", "D:plain", "A:", "A:" + long("full", 20), "A:options", "A:padded", "A:unsummed", "A:whole",
		"A:" + long("fragments", 20), "B:" + long("backwards", 20), "A:small fragments", "A:" + long("twice", 20), "A:" + long("huge", 20), "A:priority",
	}
	// Sockets: from the other end of the cable, and from this host itself.
	// What loops back has an end of its own: a ring hears it by another way.
	for _, dev := range []string{"va", "vb"} {
		s := must[*Conn](t)(Dial(SendConfig{Addr: address(one, port), Interface: dev}))
		defer s.Close()
		must[int](t)(s.Send([][]byte{[]byte("socket on " + dev), []byte(long("fragments of "+dev, 3000))}))
		want = append(want, "A:socket on "+dev, "A:"+long("fragments of "+dev, 20))
		if segments(t, s, []byte(dev+" segment 1"+dev+" segment 2"+dev+" seg 3"), 12) {
			want = append(want, "A:"+dev+" segment 1", "A:"+dev+" segment 2", "A:"+dev+" seg 3")
		}
	}
	quiet := must[*Conn](t)(Dial(SendConfig{Addr: address(one, port), Interface: "vb", NoLoop: true}))
	defer quiet.Close()
	must[int](t)(quiet.Send([][]byte{[]byte("not looped")}))
	must[int](t)(must[*Conn](t)(Dial(SendConfig{Addr: address(one, port), Interface: "vb"})).Send([][]byte{[]byte("end of vb")}))
	send(frame(one, port, "end", nil), frame(two, port, "end", nil), frame(one, other, "end", nil), frame(only, port, "end", nil))
	agree(t, both, 5, want)
}

// TestBackendsAgreeVLAN: a VLAN's device hears its VLAN, the trunk does not.
func TestBackendsAgreeVLAN(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	group := address("239.77.0.1", 5000)
	ip(t, "link add link vb name vb.200 type vlan id 200")
	ip(t, "link add link vb name vb.201 type vlan id 201 reorder_hdr off") // the tag stays in the packet
	for _, dev := range []string{"vb.200", "vb.201"} {
		ip(t, "link set "+dev+" up")
		untilRunning(t, dev)
		write(t, "/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", "0")
	}
	both := listenBoth(t, []ListenConfig{
		{Addr: group, Interface: "vb"},
		{Addr: group, Interface: "vb.200"},
		{Addr: group, Interface: "vb.201"},
	})
	va := inject(t, "va")
	for tag := uint16(199); tag < 203; tag++ {
		for _, payload := range []string{fmt.Sprintf("VLAN %d", tag), "end"} {
			if payload == "end" && tag != 200 && tag != 201 {
				continue
			}
			va.send([][]byte{(&udpFrame{src: address("10.77.0.9", 1), dst: group, payload: []byte(payload)}).bytes()}, tag)
		}
	}
	for _, payload := range []string{"untagged", "end"} {
		va.send([][]byte{(&udpFrame{src: address("10.77.0.9", 1), dst: group, payload: []byte(payload)}).bytes()})
	}
	agree(t, both, 3, []string{"A:untagged", "B:VLAN 200", "C:VLAN 201"})
}

// TestBackendsAgreeBridge: what a bridge, or a device on top, takes from a port
// is heard there alone.
func TestBackendsAgreeBridge(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	group := address("239.77.0.1", 5000)
	plain := func(payload string) [][]byte {
		return [][]byte{(&udpFrame{src: address("10.77.0.9", 1), dst: group, payload: []byte(payload)}).bytes()}
	}
	for _, c := range []struct {
		name, setup, dev string
		ends             int
		want             []string
	}{
		{"bridge", "link add br0 type bridge mcast_snooping 0,link set vb master br0", "br0", 1, []string{"B:x"}},
		{"macvlan", "link add link vb name mv0 type macvlan mode bridge", "mv0", 2, []string{"A:x", "B:x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cable(t)
			defer ip(t, "link del va")
			for _, args := range strings.Split(c.setup, ",") {
				ip(t, args)
			}
			ip(t, "link set "+c.dev+" up")
			untilRunning(t, c.dev)
			write(t, "/proc/sys/net/ipv4/conf/"+c.dev+"/rp_filter", "0")
			both := listenBoth(t, []ListenConfig{{Addr: group, Interface: "vb"}, {Addr: group, Interface: c.dev}})
			va := inject(t, "va")
			va.send(plain("x"))
			va.send(plain("end"))
			agree(t, both, c.ends, c.want)
		})
	}
}

// TestBackendsAgreeLoopback: each packet is heard once on the loopback, where
// it goes out and comes in.
func TestBackendsAgreeLoopback(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link set lo up")
	group := address("239.77.0.1", 5000)
	both := listenBoth(t, []ListenConfig{{Addr: group, Interface: "lo"}})
	s := must[*Conn](t)(Dial(SendConfig{Addr: group, Interface: "lo"}))
	defer s.Close()
	long := bytes.Repeat([]byte("0123456789"), 6551)[:65507]
	must[int](t)(s.Send([][]byte{[]byte("one"), nil, long, []byte("two")}))
	want := []string{"A:one", "A:", "A:01234567890123456789", "A:two"}
	if segments(t, s, bytes.Repeat([]byte("segment "), 100), 8) {
		for range 100 {
			want = append(want, "A:segment ")
		}
	}
	must[int](t)(dial(t, group, SendConfig{}).Send([][]byte{[]byte("end")}))
	agree(t, both, 1, want)
}

// TestRingFilter runs the part of the filter that looks at the packet.
func TestRingFilter(t *testing.T) {
	groups := []group{
		{ip: toUint32(netip.MustParseAddr("239.0.0.1")), port: 1},
		{ip: toUint32(netip.MustParseAddr("239.0.0.2")), port: 2, sources: []uint32{toUint32(netip.MustParseAddr("10.0.0.1")), toUint32(netip.MustParseAddr("10.0.0.2"))}},
	}
	for i := range maxRingGroups - len(groups) {
		groups = append(groups, group{ip: 0xef010000 + uint32(i), port: 3})
	}
	vm := must[*bpf.VM](t)(bpf.NewVM(groupFilter(groups)))
	for _, c := range []struct {
		src, dst string
		change   func([]byte)
		want     bool
	}{
		{"10.0.0.9:1", "239.0.0.1:1", nil, true},
		{"10.0.0.9:1", "239.0.0.1:2", nil, false},
		{"10.0.0.9:1", "239.0.0.2:1", nil, false},
		{"10.0.0.9:1", "239.0.0.2:2", nil, false},
		{"10.0.0.1:1", "239.0.0.2:2", nil, true},
		{"10.0.0.2:1", "239.0.0.2:2", nil, true},
		{"10.0.0.2:1", "239.1.0.61:3", nil, true},
		{"10.0.0.2:1", "239.1.0.62:3", nil, false},
		{"10.0.0.9:1", "239.0.0.1:1", func(b []byte) { b[9] = 6 }, false},
		{"10.0.0.9:1", "239.0.0.1:1", func(b []byte) { b[6] = 0x20 }, false},
		{"10.0.0.9:1", "239.0.0.1:1", func(b []byte) { b[7] = 1 }, false},
		{"10.0.0.9:1", "239.0.0.1:1", func(b []byte) { b[6] = 0x40 }, true},
	} {
		for _, options := range []int{0, 40} {
			u := udpFrame{src: netip.MustParseAddrPort(c.src), dst: netip.MustParseAddrPort(c.dst), options: make([]byte, options)}
			p := u.bytes()
			if c.change != nil {
				c.change(p)
			}
			n := must[int](t)(vm.Run(append(ethernetTo([6]byte{}), p...)))
			if (n > 0) != c.want {
				t.Errorf("%s to %s, %d bytes of options: taken is %v", c.src, c.dst, options, n > 0)
			}
		}
	}
	// The kernel takes the longest there is.
	must[[]bpf.RawInstruction](t)(bpf.Assemble(ringFilter(1, groups)))
	fd := must[int](t)(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	defer unix.Close(fd)
	if err := attach(fd, ringFilter(1, groups)); err != nil {
		t.Error(err)
	}
}

// TestRingFull: an engine that does not read loses nothing silently: what finds
// no room is counted, and what was lent stays as it was.
func TestRingFull(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link set lo up")
	group := address("239.77.0.1", 5000)
	taps := must[[]*Tap](t)(OpenLines([]ListenConfig{{Addr: group, Interface: "lo", RingSize: MinRingSize}}, RingBackend))
	rx := StartRX(taps[0].Socket, NewRing(1<<15, 64), NewWake(), nil)
	defer discard(rx)
	s := dial(t, group, SendConfig{})
	const size = 1000
	sent := 0
	batch := make([][]byte, 32)
	for rx.Counters().KernelDropped == 0 {
		for i := range batch {
			batch[i] = bytes.Repeat([]byte(fmt.Sprintf("%08d", sent+i)), size/8)
		}
		sent += must[int](t)(s.Send(batch))
		if sent > 1<<15 {
			t.Fatalf("%d datagrams of %d bytes fit into %d", sent, size, MinRingSize)
		}
	}
	popped, last := 0, -1
	pop := func() {
		for d := rx.Ring().Pop(); d != nil; d = rx.Ring().Pop() {
			var n int
			if _, err := fmt.Sscanf(string(d.Data[:8]), "%d", &n); err != nil || n <= last || !bytes.Equal(d.Data, bytes.Repeat(d.Data[:8], size/8)) {
				t.Fatalf("datagram %d after %d: %q", n, last, d.Data[:16])
			}
			last = n
			popped++
		}
	}
	deadline := time.Now().Add(time.Minute)
	for uint64(popped)+rx.Counters().KernelDropped < uint64(sent) {
		pop()
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d came, %+v", popped, sent, rx.Counters())
		}
	}
	// There is room again, a little after the last was popped: what comes before
	// is dropped too, and counted.
	const behind = 99999999
	batch[0] = bytes.Repeat(fmt.Appendf(nil, "%08d", behind), size/8)
	for last != behind {
		dropped := rx.Counters().KernelDropped
		must[int](t)(s.Send(batch[:1]))
		for last != behind && rx.Counters().KernelDropped == dropped {
			pop()
			if time.Now().After(deadline) {
				t.Fatalf("there is no room again: %+v", rx.Counters())
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// TestRingAllocs: receiving by a ring allocates nothing.
func TestRingAllocs(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates")
		return
	}
	if !inNamespace(t) {
		return
	}
	ip(t, "link set lo up")
	group := address("239.77.0.1", 5000)
	taps := must[[]*Tap](t)(OpenLines([]ListenConfig{{Addr: group, Interface: "lo"}}, RingBackend))
	wake := NewWake()
	rx := StartRX(taps[0].Socket, NewRing(256, 0), wake, nil)
	defer discard(rx)
	out := dial(t, group, SendConfig{})
	batch := make([][]byte, 32)
	for i := range batch {
		batch[i] = make([]byte, 100+i)
	}
	run := func() {
		if n, err := out.Send(batch); n != len(batch) || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < len(batch); {
			c := wake.Arm()
			if rx.Ring().Empty() {
				<-c
			}
			wake.Disarm()
			for d := rx.Ring().Pop(); d != nil; d = rx.Ring().Pop() {
				got++
			}
		}
	}
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("%v allocations for %d datagrams", n, len(batch))
	}
}

// TestBackendChoice: what OpenLines makes of each wish.
func TestBackendChoice(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link set lo up")
	ip(t, "tuntap add tun0 mode tun")
	ip(t, "link set tun0 up")
	multi := ListenConfig{Addr: address("239.77.0.1", 0), Interface: "lo"}
	uni := ListenConfig{Addr: loopback}
	tunnel := ListenConfig{Addr: address("239.77.0.2", 0), Interface: "tun0"}
	for _, c := range []struct {
		name    string
		lines   []ListenConfig
		backend Backend
		rings   int
		sockets int
		err     error
	}{
		{"udp", []ListenConfig{multi, multi}, UDPBackend, 0, 2, nil},
		{"ring", []ListenConfig{multi, multi}, RingBackend, 1, 1, nil},
		{"auto", []ListenConfig{multi, uni, multi, tunnel}, Auto, 1, 3, nil},
		{"ring, unicast", []ListenConfig{multi, uni}, RingBackend, 0, 0, ErrAddress},
		{"ring, no Ethernet", []ListenConfig{tunnel}, RingBackend, 0, 0, ErrNoRing},
	} {
		t.Run(c.name, func(t *testing.T) {
			taps, err := OpenLines(c.lines, c.backend)
			if !errors.Is(err, c.err) || c.err != nil && !errors.Is(err, ErrNoRing) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			rings := 0
			seen := make(map[netip.AddrPort]bool)
			for _, tap := range taps {
				if tap.Backend() == RingBackend {
					rings++
				}
				for _, l := range tap.Lines() {
					seen[tap.Addr(l)] = true
				}
				tap.Socket.Close()
			}
			if rings != c.rings || len(taps) != c.sockets || err == nil && len(seen) != len(c.lines) {
				t.Errorf("%d sockets, %d of them rings, for %d addresses", len(taps), rings, len(seen))
			}
		})
	}
	// Without the right: an error that says what is missing, or sockets.
	drop := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&drop, &caps[0]); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // capabilities are the thread's
		defer close(done)
		lockForever()
		caps[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err := unix.Capset(&drop, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		_, err := OpenLines([]ListenConfig{multi}, RingBackend)
		if !errors.Is(err, ErrNoRing) || !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
			t.Errorf("got %v", err)
		}
		var log bytes.Buffer
		multi := multi
		multi.Log = textLog(&log)
		taps, err := OpenLines([]ListenConfig{multi, multi}, Auto)
		if err != nil || len(taps) != 2 {
			t.Errorf("%d sockets, %v", len(taps), err)
		}
		for _, tap := range taps {
			tap.Socket.Close()
		}
		if strings.Count(log.String(), "level=INFO") != 1 || !strings.Contains(log.String(), "CAP_NET_RAW") {
			t.Errorf("said %q", log.String())
		}
	}()
	<-done
}

func discard(rx *RX) {
	rx.Close()
	rx.Ring().Discard()
}
