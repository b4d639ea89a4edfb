package capture

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// node runs channels that were opened together.
type node struct {
	t        *testing.T
	channels []*Channel
	cancel   context.CancelFunc
	ended    chan struct{}
	statuses []Status
	errs     []error
}

func runNode(t *testing.T, channels []*Channel) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := &node{t: t, channels: channels, cancel: cancel, ended: make(chan struct{}), statuses: make([]Status, len(channels)), errs: make([]error, len(channels))}
	go func() {
		defer close(n.ended)
		done := make(chan struct{})
		for i, c := range channels {
			go func() {
				n.statuses[i], n.errs[i] = c.Run(ctx)
				done <- struct{}{}
			}()
		}
		for range channels {
			<-done
		}
	}()
	t.Cleanup(func() { cancel(); <-n.ended })
	return n
}

// until waits for what a channel's status shows.
func (n *node) until(channel int, what string, ok func(Status) bool) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for {
		st, err := n.channels[channel].Status(ctx)
		if err != nil {
			n.t.Fatalf("%s: %v", what, err)
		}
		if ok(st) {
			return
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("no %s: %+v", what, st)
		case <-time.After(time.Millisecond):
		}
	}
}

func from(t *testing.T, src, dst string) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(src), 0)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(dst)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, c *net.UDPConn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().String()
}

// Channels share a socket, told apart by source: a datagram counts on one. What
// no line names is the first channel's to count, once.
func TestSharedSocket(t *testing.T) {
	addr := netip.MustParseAddrPort(freePort(t))
	own := netip.MustParseAddrPort("127.0.0.1:0")
	sinks := []*memSink{{}, {}}
	var cfgs []Config
	for i, src := range []string{"127.0.0.2", "127.0.0.3"} {
		cfgs = append(cfgs, Config{Channel: string(rune('a' + i)), Start: arbiter.Beginning, Lines: []Line{{Addr: own}, {Addr: addr, Source: netip.MustParseAddr(src)}}})
	}
	channels, err := Open(cfgs, &byChannel{"a": sinks[0], "b": sinks[1]})
	if err != nil {
		t.Fatal(err)
	}
	n := runNode(t, channels)
	if got := channels[1].Lines()[1]; got != addr.String() {
		t.Errorf("line B of the second channel is on %s, want %v", got, addr)
	}
	a, b, stranger := from(t, "127.0.0.2", addr.String()), from(t, "127.0.0.3", addr.String()), from(t, "127.0.0.4", addr.String())
	for q := moldcast.Seq(1); q <= 40; q += 2 {
		send(t, a, packet(q, q+2))
		if q <= 20 {
			send(t, b, packet(q, q+2))
		}
		send(t, stranger, packet(q, q+2))
	}
	send(t, from(t, "127.0.0.9", channels[1].Lines()[0]), packet(21, 31)) // its line A is its own
	n.until(0, "40 messages", func(st Status) bool { return st.Messages == 40 && st.WrongSession == 20 })
	n.until(1, "30 messages", func(st Status) bool { return st.Messages == 30 })
	n.cancel()
	<-n.ended
	for i, want := range []uint64{20, 11} {
		st := n.statuses[i]
		if st.Packets != want || st.Duplicates != 0 || n.errs[i] != nil {
			t.Errorf("channel %d: %d packets, want %d; %d duplicates; %v", i, st.Packets, want, st.Duplicates, n.errs[i])
		}
	}
	if n.statuses[1].WrongSession != 0 {
		t.Errorf("the second channel counts %d strangers too", n.statuses[1].WrongSession)
	}
}

// byChannel is a Sink for each channel.
type byChannel map[string]*memSink

func (k *byChannel) Open(channel string, s moldcast.Session, take int, groups []string) (SessionSink, error) {
	return (*k)[channel].Open(channel, s, take, groups)
}

// Two channels with the same line would count all on both.
func TestSameLineOfTwoChannels(t *testing.T) {
	l := []Line{{Addr: netip.MustParseAddrPort(freePort(t))}}
	_, err := Open([]Config{{Channel: "a", Lines: l}, {Channel: "b", Lines: l}}, &memSink{})
	if !errors.Is(err, mcast.ErrSameLine) {
		t.Fatalf("%v, want ErrSameLine", err)
	}
	for _, name := range []string{"a/A", "b/A"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

// brokenRX is a receiver whose socket failed for good.
type brokenRX struct {
	receiver
	err error
}

func (r brokenRX) Err() error { return r.err }

// A line that fails for good ends its channel; the others go on.
func TestChannelFailsAlone(t *testing.T) {
	lines := []Line{{Addr: netip.MustParseAddrPort("127.0.0.1:0")}}
	channels, err := Open([]Config{
		{Channel: "bad", Lines: lines, Start: arbiter.Beginning},
		{Channel: "good", Lines: lines, Start: arbiter.Beginning},
	}, &byChannel{"bad": {}, "good": {}})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the socket is gone")
	channels[0].lines[0].rx = brokenRX{channels[0].lines[0].rx, broken}
	n := runNode(t, channels)
	n.until(0, "failure", func(st Status) bool { return st.State == StateFailed && strings.Contains(st.Error, broken.Error()) })
	c := from(t, "127.0.0.2", channels[1].Lines()[0])
	for q := moldcast.Seq(1); q <= 20; q++ {
		send(t, c, packet(q, q+1))
	}
	n.until(1, "messages", func(st Status) bool { return st.Messages == 20 && st.State != StateFailed })
	n.cancel()
	<-n.ended
	if !errors.Is(n.errs[0], broken) || n.errs[1] != nil {
		t.Errorf("ended with %v and %v", n.errs[0], n.errs[1])
	}
	if n.statuses[1].State != StateStopped {
		t.Errorf("state %s after the end", n.statuses[1].State)
	}
}

// What cannot be opened ends the node at the start, and leaves nothing open.
func TestOpenAllOrNothing(t *testing.T) {
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := netip.MustParseAddrPort(freePort(t))
	cfgs := []Config{
		{Channel: "a", Lines: []Line{{Addr: free}}, Rerequest: []netip.AddrPort{free}},
		{Channel: "b", Lines: []Line{{Addr: netip.MustParseAddrPort(taken.LocalAddr().String())}}},
	}
	if _, err := Open(cfgs, &memSink{}); err == nil || !strings.Contains(err.Error(), "b/A") {
		t.Fatalf("%v, want the line that is taken", err)
	}
	again, err := Open(cfgs[:1], &memSink{})
	if err != nil {
		t.Fatalf("something was left open: %v", err)
	}
	again[0].Close()
}
