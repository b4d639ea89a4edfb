//go:build linux

package mcast

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Whatever the payload, the receiver's own rules find the frame in order.
func TestFrameHeadProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 0, 1500).Draw(t, "payload")
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.ByteRange(1, 223), 4, 4).Draw(t, "source"))), rapid.Uint16Range(1, math.MaxUint16).Draw(t, "port"))
		to := [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "group"))
		to[0] = to[0]&0x0f | 0xe0
		group := netip.AddrPortFrom(netip.AddrFrom4(to), rapid.Uint16Range(1, math.MaxUint16).Draw(t, "to"))
		h := frameHead([6]byte{2, 0, 0, 0, 0, 1}, src, group, 7)
		ipSum, udpSum := headSums(&h)
		fillHead(&h, ipSum, udpSum, []byte("another payload, before")) // heads are used again
		fillHead(&h, ipSum, udpSum, payload)
		b := append(h[:], payload...)
		if m := [6]byte{1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]}; [6]byte(b) != m {
			t.Fatalf("sent to %x, want %x", b[:6], m)
		}
		p, ok := (&frame{ip: b[etherHeader:], wire: len(b) - etherHeader}).parse()
		if !ok || !bytes.Equal(p.data, payload) || p.src != toUint32(src.Addr()) || p.dst != toUint32(group.Addr()) || p.srcPort != src.Port() || p.dstPort != group.Port() || b[etherHeader+8] != 7 {
			t.Fatalf("%x is taken for %+v, %v", b, p, ok)
		}
		if binary.BigEndian.Uint16(b[etherHeader+ipHeader+6:]) == 0 {
			t.Fatal("the checksum says that there is none")
		}
	})
}

func TestMemberOf(t *testing.T) {
	var group, hex = netip.MustParseAddr("239.255.1.2"), "0201FFEF"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		hex = "EFFF0102"
	}
	list := []byte("Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n" +
		"1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"2\tverylongname0:     2      V3\n\t\t\t\t" + hex + "     1 0:00000000\t\t0\n")
	for name, want := range map[string]bool{"lo": false, "verylongname0": true, "verylongname": false, "Device": false} {
		if memberOf(list, name, group) != want {
			t.Errorf("%s: not %v", name, want)
		}
	}
	if memberOf(list[:40], "lo", group) || memberOf(nil, "lo", group) {
		t.Error("members in what is no list")
	}
}

func FuzzMemberOf(f *testing.F) {
	f.Add([]byte("1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n"), "lo")
	f.Add([]byte("\t\n:\n1 : :\n\t\t"), "")
	f.Fuzz(func(t *testing.T, list []byte, iface string) {
		memberOf(list, iface, netip.AddrFrom4([4]byte{224, 0, 0, 1}))
	})
}

// sniffer hears every frame on an interface.
func sniffer(t *testing.T, dev string) func() []byte {
	t.Helper()
	ifi := must[*net.Interface](t)(net.InterfaceByName(dev))
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd := must[int](t)(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all))
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}); err != nil {
		t.Fatal(err)
	}
	return func() []byte {
		for {
			b := make([]byte, 4096)
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				t.Fatal(err)
			}
			if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING || b[0] != 1 || b[23] != protocolUDP || b[30] != 239 {
				continue // what vb sends itself, IGMP, mDNS
			}
			return b[:n]
		}
	}
}

// Frames are those of the system's stack: hardware addresses, source, TTL and
// flags; receivers hear them, in order with what is too long for one.
func TestPacketFrames(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	group := netip.MustParseAddrPort("239.130.1.2:26400")
	in := must[*Conn](t)(Listen(ListenConfig{Addr: group, Interface: "vb"}))
	defer in.Close()
	next := sniffer(t, "vb")
	ttl := 5
	c := SendConfig{Addr: group, Interface: "va", TTL: &ttl}
	udp := must[InOrder](t)(DialInOrder(c))
	defer udp.Close()
	packet := must[InOrder](t)(DialPacket(c))
	defer packet.Close()
	for _, size := range []int{0, 1, 2, 63, 64, 65, 1471, 1472} {
		data := bytes.Repeat([]byte{0xa5, 3, 0xff}, size/3+1)[:size]
		must[int](t)(udp.Send([][]byte{data}))
		want := next()
		must[int](t)(packet.Send([][]byte{data}))
		got := next()
		p, ok := (&frame{ip: got[etherHeader:], wire: len(got) - etherHeader}).parse()
		if !ok || p.srcPort != packet.LocalAddr().Port() {
			t.Errorf("%d bytes: %x is not in order", size, got)
		}
		for _, b := range [][]byte{want, got} {
			copy(b[18:], []byte{0, 0})   // identification
			copy(b[24:], []byte{0, 0})   // its checksum with it
			copy(b[34:36], []byte{0, 0}) // each its own source port
			copy(b[40:42], []byte{0, 0}) // a card's business with the other
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes:\n got %x\nwant %x", size, got[:42], want[:42])
		}
	}
	read(t, in, 16, 2048)

	var batch [][]byte
	for i := range 200 {
		batch = append(batch, bytes.Repeat([]byte{byte(i)}, []int{30, 1472, 1473, 9000}[i%4]))
	}
	if n := must[int](t)(packet.Send(batch)); n != len(batch) {
		t.Errorf("%d of %d sent", n, len(batch))
	}
	for i, d := range read(t, in, len(batch), 16384) {
		if !bytes.Equal(d.Data, batch[i]) || d.Src != packet.LocalAddr() {
			t.Fatalf("datagram %d: %d bytes from %v, want %d from %v", i, len(d.Data), d.Src, len(batch[i]), packet.LocalAddr())
		}
	}
	// An MTU that shrinks meanwhile.
	ip(t, "link set va mtu 1000")
	ip(t, "link set vb mtu 1000")
	if n := must[int](t)(packet.Send(batch[:4])); n != 4 {
		t.Errorf("%d of 4 sent with a smaller MTU", n)
	}
	for i, d := range read(t, in, 4, 16384) {
		if !bytes.Equal(d.Data, batch[i]) {
			t.Fatalf("datagram %d: %d bytes, want %d", i, len(d.Data), len(batch[i]))
		}
	}
	if k := packet.Counters(); k.Sent != 8+200+4 || k.SendErrors > 1 {
		t.Errorf("%+v", k)
	}
	if HeardHere("va", group.Addr()) || !HeardHere("vb", group.Addr()) {
		t.Error("who is a member is not known")
	}
}

// A VLAN, and a bond, are interfaces like any other.
func TestPacketFramesByVLANAndBond(t *testing.T) {
	for _, kind := range []string{"vlan", "bond"} {
		t.Run(kind, func(t *testing.T) {
			if !inNamespace(t) {
				return
			}
			cable(t)
			out, in := "va", "vb"
			switch kind {
			case "vlan":
				ip(t, "link add link va name va.5 type vlan id 5")
				ip(t, "link add link vb name vb.5 type vlan id 5")
				out, in = "va.5", "vb.5"
			case "bond":
				ip(t, "link add bo type bond mode active-backup")
				ip(t, "link set va down")
				ip(t, "link set va master bo")
				out = "bo"
			}
			ip(t, "addr add 10.78.0.1/24 dev "+out)
			for _, dev := range []string{"va", out, in} {
				ip(t, "link set "+dev+" up")
			}
			write(t, "/proc/sys/net/ipv4/conf/"+in+"/accept_local", "1")
			write(t, "/proc/sys/net/ipv4/conf/"+in+"/rp_filter", "0")
			untilRunning(t, out, in)
			group := netip.MustParseAddrPort("239.130.1.3:26400")
			rx := must[*Conn](t)(Listen(ListenConfig{Addr: group, Interface: in}))
			defer rx.Close()
			tx := must[InOrder](t)(DialPacket(SendConfig{Addr: group, Interface: out}))
			defer tx.Close()
			batch := [][]byte{[]byte("a"), bytes.Repeat([]byte("b"), 1472), bytes.Repeat([]byte("c"), 3000)}
			if n := must[int](t)(tx.Send(batch)); n != 3 {
				t.Fatalf("%d of 3 sent", n)
			}
			for i, d := range read(t, rx, 3, 4096) {
				if !bytes.Equal(d.Data, batch[i]) || d.Src.Addr() != netip.MustParseAddr("10.78.0.1") {
					t.Errorf("datagram %d: %d bytes from %v", i, len(d.Data), d.Src)
				}
			}
		})
	}
}

// What stands in the way is an error that says so, and none of it is sent.
func TestPacketRefuses(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	group := netip.MustParseAddrPort("239.130.1.2:26400")
	for _, c := range []SendConfig{
		{Addr: netip.MustParseAddrPort("10.77.0.2:5000"), Interface: "va"},
		{Addr: group, Interface: "lo"},
		{Addr: group},
	} {
		if s, err := DialPacket(c); !errors.Is(err, ErrNoFrames) {
			t.Errorf("%+v: %v, %v", c, s, err)
		}
	}
	if _, err := DialPacket(SendConfig{Addr: group, Interface: "nosuch"}); !errors.Is(err, ErrInterface) {
		t.Error(err)
	}
}

// While a link is down nothing counts as sent; when it is back the same socket
// goes on, from where it was.
func TestSendingWhileTheLinkIsDown(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	group := netip.MustParseAddrPort("239.130.1.2:26400")
	in := must[*Conn](t)(Listen(ListenConfig{Addr: group, Interface: "vb"}))
	defer in.Close()
	for name, dialTo := range map[string]func(SendConfig) (InOrder, error){"udp": DialInOrder, "packet": DialPacket} {
		out := must[InOrder](t)(dialTo(SendConfig{Addr: group, Interface: "va"}))
		batch := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
		for _, dev := range []string{"va", "vb"} { // the interface, and its carrier
			ip(t, "link set "+dev+" down")
			n, err := out.Send(batch)
			for end := time.Now().Add(10 * time.Second); err == nil && n == len(batch) && time.Now().Before(end); {
				n, err = out.Send(batch) // the carrier is looked at now and then
			}
			if n != 0 || err == nil {
				t.Errorf("%s, %s down: %d sent, %v", name, dev, n, err)
			}
			ip(t, "link set "+dev+" up")
			untilRunning(t, "va", "vb")
			for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); {
				n, err = out.Send(batch[n:])
			}
			if err != nil {
				t.Errorf("%s, %s up again: %v", name, dev, err)
			}
		}
		out.Close()
		if n, err := out.Send(batch); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s closed: %d sent, %v", name, n, err)
		}
	}
}

// What the queue of an interface drops is not taken for sent: tried until it
// has room, everything arrives.
func TestSendingIntoAFullQueue(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	cable(t)
	if out, err := exec.Command("tc", strings.Fields("qdisc add dev va root tbf rate 16mbit burst 4kb limit 8kb")...).CombinedOutput(); err != nil {
		t.Skipf("no such queue here: %v: %s", err, out)
	}
	group := netip.MustParseAddrPort("239.130.1.2:26400")
	in := must[*Conn](t)(Listen(ListenConfig{Addr: group, Interface: "vb"}))
	defer in.Close()
	out := must[InOrder](t)(DialInOrder(SendConfig{Addr: group, Interface: "va"}))
	defer out.Close()
	var batch [][]byte
	for i := range 500 {
		batch = append(batch, bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 100))
	}
	full := 0
	for left := batch; len(left) > 0; {
		n, err := out.Send(left)
		if left = left[n:]; err == nil {
			continue
		}
		if !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
		full++
		time.Sleep(time.Millisecond)
	}
	if full == 0 {
		t.Error("the queue was never full")
	}
	for i, d := range read(t, in, len(batch), 512) {
		if !bytes.Equal(d.Data, batch[i]) {
			t.Fatalf("datagram %d is another", i)
		}
	}
}

// The first n went, in order, and what is said not to have been sent was not.
func TestInOrderErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		errnos []unix.Errno
		err    unix.Errno
	}{
		{"interrupted", []unix.Errno{unix.EINTR, unix.EINTR}, 0},
		{"full, and then not", []unix.Errno{unix.EAGAIN}, 0},
		{"full", []unix.Errno{unix.EAGAIN, unix.EAGAIN}, unix.EAGAIN},
		{"no room in the queue", []unix.Errno{unix.ENOBUFS}, unix.ENOBUFS},
		{"no network", []unix.Errno{unix.ENETDOWN}, unix.ENETDOWN},
		{"an echo", []unix.Errno{unix.ECONNREFUSED, unix.ECONNREFUSED}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
			defer in.Close()
			out := must[*inOrder](t)(dialInOrder(SendConfig{Addr: in.LocalAddr()}))
			defer out.Close()
			batch := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
			must[int](t)(out.Send(batch[:1]))
			out.fault = failing(unix.SYS_SENDMMSG, c.errnos...)
			n, err := out.Send(batch[1:])
			if c.err == 0 && (n != 2 || err != nil) || c.err != 0 && (n != 0 || !errors.Is(err, c.err)) {
				t.Fatalf("%d sent, %v", n, err)
			}
			if n == 0 { // and so it goes on
				must[int](t)(out.Send(batch[1:]))
			}
			var got []string
			for _, d := range read(t, in, 3, 16) {
				got = append(got, string(d.Data))
			}
			if k := out.Counters(); !slices.Equal(got, []string{"a", "b", "c"}) || k.Sent != 3 || k.SendRetries+k.SendErrors > 1 {
				t.Errorf("came %q; %+v", got, k)
			}
		})
	}
}

func TestInOrderDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	in := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
	defer in.Close()
	out := must[InOrder](t)(DialInOrder(SendConfig{Addr: in.LocalAddr()}))
	defer out.Close()
	batch := [][]byte{make([]byte, 200), make([]byte, 300)}
	if n := testing.AllocsPerRun(100, func() { must[int](t)(out.Send(batch)) }); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}
