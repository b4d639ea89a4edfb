//go:build linux

package mcast

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// join opens a receiver of a group on the loopback interface, at a free port.
func join(t testing.TB, group string, c ListenConfig) *Conn {
	t.Helper()
	c.Addr, c.Interface = netip.AddrPortFrom(netip.MustParseAddr(group), c.Addr.Port()), "lo"
	s := must[*Conn](t)(Listen(c))
	t.Cleanup(func() { s.Close() })
	return s
}

func dial(t testing.TB, to netip.AddrPort, c SendConfig) *Conn {
	t.Helper()
	c.Addr = to
	if to.Addr().IsMulticast() {
		c.Interface = "lo"
	}
	s := must[*Conn](t)(Dial(c))
	t.Cleanup(func() { s.Close() })
	return s
}

// read reads until want datagrams have come.
func read(t testing.TB, s Socket, want, size int) (out []Datagram) {
	t.Helper()
	for len(out) < want {
		ds := buffers(want-len(out), size)
		n, err := s.ReadBatch(ds)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ds[:n]...)
	}
	return out
}

func TestConnMulticast(t *testing.T) {
	in := join(t, "239.255.50.1", ListenConfig{})
	out := dial(t, in.LocalAddr(), SendConfig{})
	long := bytes.Repeat([]byte("0123456789"), 6551)[:moldcast.MaxDatagram]
	before := time.Now()
	if n, err := out.Send([][]byte{[]byte("a"), nil, long, []byte("b")}); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	ds := read(t, in, 4, 100)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]byte{[]byte("a"), nil, long, []byte("b")} {
		d := ds[i]
		if !bytes.Equal(d.Data, want) || d.Truncated {
			t.Errorf("datagram %d: %d bytes, want %d", i, len(d.Data), len(want))
		}
		if d.Src != out.LocalAddr() || d.Src.Addr() != loopback.Addr() {
			t.Errorf("datagram %d comes from %v, want %v", i, d.Src, out.LocalAddr())
		}
		if d.IfIndex != lo.Index {
			t.Errorf("datagram %d: interface %d, want %d", i, d.IfIndex, lo.Index)
		}
		if at := d.Stamp.Time(); at.Before(before.Add(-time.Millisecond)) || at.After(time.Now()) {
			t.Errorf("datagram %d: stamp %v", i, at)
		}
	}
	if c := out.Counters(); c.Sent != 4 || c.SendErrors != 0 {
		t.Errorf("%+v", c)
	}
}

// TestConnUnicast: batches in and out of one socket, each to its own address;
// what cannot be sent does not keep the rest.
func TestConnUnicast(t *testing.T) {
	server := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
	defer server.Close()
	a, b := dial(t, server.LocalAddr(), SendConfig{}), dial(t, server.LocalAddr(), SendConfig{Bind: loopback})
	for range 100 {
		must[int](t)(a.Send([][]byte{[]byte("from a")}))
		must[int](t)(b.Send([][]byte{[]byte("from b")}))
	}
	ds := read(t, server, 200, 64)
	for i := range ds {
		ds[i].Dst = ds[i].Src
	}
	bad := []Datagram{
		{Data: []byte("x")}, // to nowhere
		{Data: make([]byte, 70000), Dst: a.LocalAddr()},
		{Data: []byte("x"), Dst: netip.MustParseAddrPort("[::1]:9")},
	}
	ds = append(append(ds[:100:100], bad...), ds[100:]...)
	n, err := server.WriteBatch(ds)
	if n != 200 || err == nil {
		t.Errorf("%d of 200 answered, %v", n, err)
	}
	if c := server.Counters(); c.SendErrors != 3 || c.Sent != 200 {
		t.Errorf("%+v", c)
	}
	for s, want := range map[*Conn]string{a: "from a", b: "from b"} {
		for i, d := range read(t, s, 100, 64) {
			if string(d.Data) != want {
				t.Errorf("answer %d is %q, want %q", i, d.Data, want)
			}
		}
	}
	if _, err := server.Send([][]byte{nil}); !errors.Is(err, ErrAddress) {
		t.Errorf("Send on a socket that was not dialled: %v", err)
	}
}

// TestConnAnswersFromAddressAsked: a socket bound to any address answers from
// the one that was asked.
func TestConnAnswersFromAddressAsked(t *testing.T) {
	server := must[*Conn](t)(Listen(ListenConfig{}))
	defer server.Close()
	asker := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
	defer asker.Close()
	for _, at := range []string{"127.0.0.1", "127.0.0.2", "127.9.8.7"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(at), server.LocalAddr().Port())
		must[int](t)(asker.WriteBatch([]Datagram{{Data: []byte("ask"), Dst: to}}))
		ds := read(t, server, 1, 16)
		if ds[0].Local != to.Addr() {
			t.Errorf("asked at %v, it says %v", to, ds[0].Local)
		}
		ds[0].Dst = ds[0].Src
		must[int](t)(server.WriteBatch(ds))
		if got := read(t, asker, 1, 16)[0]; got.Src != to {
			t.Errorf("asked %v, answered from %v", to, got.Src)
		}
	}
}

// TestConnRefused: an ICMP echo of an earlier datagram neither ends nor
// starves anything.
func TestConnRefused(t *testing.T) {
	gone := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
	addr := gone.LocalAddr()
	gone.Close()
	s := dial(t, addr, SendConfig{})
	for range 10 {
		if n, err := s.Send([][]byte{[]byte("x")}); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	back := must[*Conn](t)(Listen(ListenConfig{Addr: addr}))
	defer back.Close()
	must[int](t)(s.Send([][]byte{[]byte("here")}))
	ds := read(t, back, 1, 64)
	ds[0].Dst = ds[0].Src
	must[int](t)(back.WriteBatch(ds))
	if got := read(t, s, 1, 64); string(got[0].Data) != "here" {
		t.Errorf("%q", got[0].Data)
	}
}

func TestConnTruncated(t *testing.T) {
	in := must[*Conn](t)(Listen(ListenConfig{Addr: loopback, MaxDatagram: 64}))
	out := dial(t, in.LocalAddr(), SendConfig{})
	must[int](t)(out.Send([][]byte{make([]byte, 64), make([]byte, 65), []byte("ok")}))
	ds := read(t, in, 3, 16)
	if ds[0].Truncated || !ds[1].Truncated || ds[2].Truncated || len(ds[0].Data) != 64 || string(ds[2].Data) != "ok" {
		t.Errorf("%v %v %v", ds[0].Truncated, ds[1].Truncated, ds[2].Truncated)
	}
	// An RX discards such a one, and says so.
	wake := NewWake()
	c := wake.Arm()
	rx := StartRX(in, NewRing(8, 0), wake, nil)
	defer rx.Close()
	must[int](t)(out.Send([][]byte{make([]byte, 65), []byte("ok")}))
	for rx.Counters().Received < 2 {
		<-c
		c = wake.Arm()
	}
	if d := rx.Ring().Pop(); string(d.Data) != "ok" || rx.Counters().Truncated != 2 {
		t.Errorf("%q, %+v", d.Data, rx.Counters())
	}
}

// TestConnKernelDrops: what finds the receive buffer full is counted.
func TestConnKernelDrops(t *testing.T) {
	in := join(t, "239.255.50.2", ListenConfig{RecvBuffer: 20000})
	out := dial(t, in.LocalAddr(), SendConfig{})
	const sent = 500
	for range sent {
		must[int](t)(out.Send([][]byte{make([]byte, 200)}))
	}
	ds := buffers(BatchSize, 2048)
	got := 0
	drain := func() {
		for {
			// What there is can be read without waiting: the drops are told
			// with what comes after them.
			pending, err := unix.IoctlGetInt(in.fd, unix.SIOCINQ)
			if err != nil {
				t.Fatal(err)
			}
			if pending == 0 {
				return
			}
			got += must[int](t)(in.ReadBatch(ds))
		}
	}
	drain()
	must[int](t)(out.Send([][]byte{[]byte("after the drops")}))
	drain()
	c := in.Counters()
	if c.KernelDropped == 0 || uint64(got)+c.KernelDropped != sent+1 {
		t.Errorf("%d read, %d dropped of %d", got, c.KernelDropped, sent+1)
	}
}

// TestConnGroupsApart: a socket hears its own group only, though another
// socket of the host joined one on the same port.
func TestConnGroupsApart(t *testing.T) {
	a := join(t, "239.255.50.3", ListenConfig{})
	b := join(t, "239.255.50.4", ListenConfig{Addr: a.LocalAddr()})
	second := join(t, "239.255.50.3", ListenConfig{Addr: a.LocalAddr()})
	must[int](t)(dial(t, a.LocalAddr(), SendConfig{}).Send([][]byte{[]byte("a")}))
	must[int](t)(dial(t, b.LocalAddr(), SendConfig{}).Send([][]byte{[]byte("b")}))
	for s, want := range map[*Conn]string{a: "a", b: "b", second: "a"} {
		if got := read(t, s, 1, 16); string(got[0].Data) != want {
			t.Errorf("%v hears %q", s.LocalAddr(), got[0].Data)
		}
		// Nor what others joined on another interface.
		if all, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL); all != 0 || err != nil {
			t.Errorf("IP_MULTICAST_ALL is %d, %v", all, err)
		}
	}
}

func TestConnCloseEndsRead(t *testing.T) {
	for range 20 {
		s := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
		done := make(chan error)
		go func() {
			_, err := s.ReadBatch(buffers(1, 16))
			done <- err
		}()
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		s.Close()
		<-closed
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Fatalf("read ends with %v", err)
		}
		// The port is free again.
		again := must[*Conn](t)(Listen(ListenConfig{Addr: s.LocalAddr()}))
		again.Close()
		if _, err := s.ReadBatch(buffers(1, 16)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
		if _, err := s.WriteBatch(buffers(1, 16)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after Close: %v", err)
		}
	}
}

// TestRXClosePrompt: closing an RX ends its thread at once, busy or idle.
func TestRXClosePrompt(t *testing.T) {
	for _, busy := range []bool{false, true} {
		in := join(t, "239.255.50.5", ListenConfig{})
		rx := StartRX(in, NewRing(64, 0), NewWake(), nil)
		out := dial(t, in.LocalAddr(), SendConfig{})
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for busy {
				select {
				case <-stop:
					return
				default:
					_, _ = out.Send([][]byte{[]byte("x"), []byte("y")})
				}
			}
		}()
		for busy && rx.Counters().QueueDropped == 0 {
			must[int](t)(out.Send([][]byte{[]byte("z")}))
		}
		began := time.Now()
		rx.Close()
		rx.Close()
		if took := time.Since(began); took > 20*time.Second { // it hung
			t.Errorf("busy %v: closed after %v", busy, took)
		}
		close(stop)
		<-done
		if c := rx.Counters(); c.Received != uint64(rx.Ring().Len())+c.QueueDropped {
			t.Errorf("%+v, %d wait", c, rx.Ring().Len())
		}
	}
}

func TestConnErrors(t *testing.T) {
	group := netip.MustParseAddrPort("239.255.50.6:26400")
	_, err := Listen(ListenConfig{Addr: group, Interface: "nosuch0"})
	if !errors.Is(err, ErrInterface) || !strings.Contains(err.Error(), `"nosuch0"`) || !strings.Contains(err.Error(), "lo") {
		t.Errorf("%v", err)
	}
	_, err = Dial(SendConfig{Addr: group, Interface: "nosuch0"})
	if !errors.Is(err, ErrInterface) {
		t.Errorf("%v", err)
	}
	ttl := 256
	for _, c := range []SendConfig{{}, {Addr: netip.MustParseAddrPort("[::1]:5")}, {Addr: netip.MustParseAddrPort("1.2.3.4:0")}, {Addr: group, TTL: &ttl}} {
		if _, err := Dial(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	for _, c := range []ListenConfig{{Addr: netip.MustParseAddrPort("[::1]:5")}, {Addr: loopback, MaxDatagram: 1 << 20}, {Addr: group, Source: group.Addr()}} {
		if _, err := Listen(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	s := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
	defer s.Close()
	if _, err := Listen(ListenConfig{Addr: s.LocalAddr()}); !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a unicast port has two owners: %v", err)
	}
}

// TestConnBufferLog: a receive buffer that is smaller than asked for is told,
// with what helps.
func TestConnBufferLog(t *testing.T) {
	var text bytes.Buffer
	s := must[*Conn](t)(Listen(ListenConfig{Addr: loopback, Log: slog.New(slog.NewTextHandler(&text, nil))}))
	defer s.Close()
	if got := s.RecvBuffer(); (got >= DefaultRecvBuffer) != (text.Len() == 0) {
		t.Errorf("got %d bytes, said %q", got, text.String())
	}
	text.Reset()
	huge := must[*Conn](t)(Listen(ListenConfig{Addr: loopback, RecvBuffer: 1<<31 - 1, Log: slog.New(slog.NewTextHandler(&text, nil))}))
	defer huge.Close()
	if !strings.Contains(text.String(), "sysctl -w net.core.rmem_max=") || !strings.Contains(text.String(), "got=") {
		t.Errorf("said %q", text.String())
	}
}

func TestTTL(t *testing.T) {
	group := netip.MustParseAddrPort("239.255.50.7:26400")
	seven := 7
	for _, c := range []struct {
		cfg  SendConfig
		want int
	}{{SendConfig{}, 0}, {SendConfig{TTL: &seven}, 7}} {
		s := dial(t, group, c.cfg)
		if got, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL); got != c.want || err != nil {
			t.Errorf("TTL %d, %v, want %d", got, err, c.want)
		}
	}
	c := SendConfig{}
	if got := c.ttlOf(nil); got != 1 {
		t.Errorf("TTL %d without an interface", got)
	}
}

// TestConnAllocs: neither receiving through an RX nor sending allocates.
func TestConnAllocs(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates")
		return
	}
	in := join(t, "239.255.50.8", ListenConfig{})
	out := dial(t, in.LocalAddr(), SendConfig{})
	wake := NewWake()
	rx := StartRX(in, NewRing(256, 0), wake, nil)
	defer rx.Close()
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
				if len(d.Data) != 100+got {
					t.Fatalf("datagram %d has %d bytes", got, len(d.Data))
				}
				got++
			}
		}
	}
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("%v allocations for %d datagrams", n, len(batch))
	}
}

// BenchmarkLoopback is datagrams from Send to Pop, of 200 bytes, a batch at a
// time, by each back end; the ring where it is permitted.
func BenchmarkLoopback(b *testing.B) {
	for _, backend := range []Backend{UDPBackend, RingBackend} {
		b.Run("rx="+backend.String(), func(b *testing.B) {
			group := netip.MustParseAddrPort("239.255.50.9:26400")
			taps, err := OpenLines([]ListenConfig{{Addr: group, Interface: "lo"}}, backend)
			if err != nil {
				b.Skip(err)
			}
			out := dial(b, group, SendConfig{})
			wake := NewWake()
			rx := StartRX(taps[0].Socket, NewRing(0, 0), wake, nil)
			defer discard(rx)
			batch := make([][]byte, BatchSize)
			for i := range batch {
				batch[i] = make([]byte, 200)
			}
			b.SetBytes(200 * BatchSize)
			b.ReportAllocs()
			for b.Loop() {
				must[int](b)(out.Send(batch))
				for got := 0; got < BatchSize; {
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
		})
	}
}

// FuzzControl: control data of any shape is read within its bounds.
func FuzzControl(f *testing.F) {
	header := func(length uint64, level, kind uint32, data ...byte) []byte {
		b := binary.NativeEndian.AppendUint64(nil, length)
		b = binary.NativeEndian.AppendUint32(b, level)
		b = binary.NativeEndian.AppendUint32(b, kind)
		return append(b, data...)
	}
	f.Add(header(20, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, 0, 0, 0))
	f.Add(header(1<<63, unix.IPPROTO_IP, unix.IP_PKTINFO))
	f.Add(header(32, unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var aligned control
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&aligned)), int(unsafe.Sizeof(aligned)))
		n := copy(raw, b)
		s := &Conn{rd: new(reader)}
		var d Datagram
		s.parseControl(&d, raw[:n])
		if s.kernelDropped.Load() > uint64(n)<<32 {
			t.Errorf("%d drops", s.kernelDropped.Load())
		}
	})
}

// A socket is idle when what came was read, and its reader is back.
func TestConnIdle(t *testing.T) {
	in := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
	out := dial(t, in.LocalAddr(), SendConfig{})
	must[int](t)(out.Send([][]byte{[]byte("1"), []byte("2")}))
	if in.idle() {
		t.Error("idle with two datagrams to be read")
	}
	read(t, in, 2, 8)
	if in.idle() {
		t.Error("idle while what was read may not be given on")
	}
	rx := StartRX(in, NewRing(0, 0), NewWake(), nil)
	for !rx.Idle() {
		time.Sleep(time.Millisecond)
	}
	rx.Close()
	if !rx.Idle() {
		t.Error("not idle after Close")
	}
}
