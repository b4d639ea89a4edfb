package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// moody is a sender that answers requests while it is willing, and counts
// those for each first sequence.
type moody struct {
	conn    *net.UDPConn
	willing atomic.Bool
	mu      sync.Mutex
	asked   map[moldcast.Seq]int
}

func newMoody(t *testing.T) *moody {
	t.Helper()
	m := &moody{asked: map[moldcast.Seq]int{}}
	m.conn = answers(t, func(q moldcast.Request) []byte {
		m.mu.Lock()
		m.asked[q.First]++
		m.mu.Unlock()
		if !m.willing.Load() {
			return nil
		}
		return packet(q.First, min(q.Range().Next, q.First+25))
	})
	return m
}

func (m *moody) count(q moldcast.Seq) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[q]
}

// all is how many requests it has read.
func (m *moody) all() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.asked {
		n += k
	}
	return n
}

// from is a socket of a client with an address of its own.
func from(t *testing.T, host byte, to string) *net.UDPConn {
	t.Helper()
	a := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, host)}, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func request(first moldcast.Seq, count uint16) []byte {
	return moldcast.AppendRequest(nil, moldcast.Request{Session: session, First: first, Count: count})
}

// A hole is on record. However many clients ask for it, the sender is asked for
// it once in 50 ms; when it answers, it is stored, and the clients have it. So it
// is with what lies below the start of a session that was joined late.
func TestWhatIsLackingIsAskedForOnce(t *testing.T) {
	dir := t.TempDir()
	src := newMoody(t)
	node := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.conn.LocalAddr().String(), "--start", "live", "--nak-budget", "100ms",
		"--retransmit-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	ready := node.event("ready")
	line, addr, http := lineAddrs(t, ready)[0], ready["retransmit"].(string), ready["http"].(string)
	for q := moldcast.Seq(1000); q < 1200; q += 10 {
		if q != 1100 {
			_, _ = line.Write(packet(q, q+10))
		}
	}
	waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "messages_lost") == 10 })

	for _, want := range []moldcast.Range{{First: 1100, Next: 1110}, {First: 980, Next: 990}} {
		src.willing.Store(false)
		waitStatus(t, http, func(s map[string]any) bool { return src.all() >= num(t, s, "naks_sent") }) // it has read what was sent before
		before, began := src.count(want.First), time.Now()
		var clients sync.WaitGroup
		var missing atomic.Int64
		clients.Go(func() { <-time.After(400 * time.Millisecond); src.willing.Store(true) })
		const hosts = 12
		missing.Store(hosts)
		for h := range byte(hosts) {
			c := from(t, 10+h, addr)
			clients.Go(func() {
				b := make([]byte, moldcast.MaxDatagram)
				for end := time.Now().Add(hang); time.Now().Before(end); {
					_, _ = c.Write(request(want.First, uint16(want.Len())))
					_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
					n, err := c.Read(b)
					if err != nil {
						continue
					}
					if bytes.Equal(b[:n], packet(want.First, want.Next)) {
						missing.Add(-1)
					} else {
						t.Errorf("%v is answered by %x", want, b[:n])
					}
					return
				}
			})
		}
		clients.Wait()
		took, asked := time.Since(began), src.count(want.First)-before
		if missing.Load() > 0 {
			t.Errorf("%v: %d clients have no answer", want, missing.Load())
		}
		// And now and then by itself.
		if most := int(took/(50*time.Millisecond)) + 3; asked > most {
			t.Errorf("%v: asked for %d times in %v, for %d clients", want, asked, took, hosts)
		}
		t.Logf("%v: asked for %d times in %v, for %d clients", want, asked, took, hosts)
	}
	// What lies between was fetched too.
	waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "messages") == 220 })
	st := httpStatus(t, http)
	requests := st["requests"].(map[string]any)
	if num(t, requests, "wanted") == 0 || num(t, requests, "arrived") == 0 {
		t.Errorf("requests %v", requests)
	}
	node.signal(syscall.SIGTERM)
	stopped := node.event("stopped")
	node.exit(0)
	if num(t, stopped, "holes") != 0 || num(t, stopped, "conflicts") != 0 {
		t.Errorf("stopped %v", stopped)
	}
	if got := exported(t, dir, "default/E2E"); !bytes.Equal(got, binaryFile(980, 1200)) {
		t.Error("the export differs from what was published")
	}
}

// A client floods the port. Another is answered all the same, what goes out is
// bounded by the budget, and nothing is lost on the line; the node says who it
// was.
func TestFloodOfOneClient(t *testing.T) {
	d := time.Duration(long(20, 1)) * time.Second
	dir := t.TempDir()
	const perClient = 2000
	node := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--retransmit-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--rate-per-client", fmt.Sprint(perClient))
	ready := node.event("ready")
	line, addr, http := lineAddrs(t, ready)[0], ready["retransmit"].(string), ready["http"].(string)
	const before = 2000
	next := moldcast.Seq(1)
	// Nobody repairs: no more is under way than the smallest buffer holds.
	publish := func() {
		_, _ = line.Write(packet(next, next+10))
		if next += 10; next%1000 == 1 {
			for end := time.Now().Add(hang); ; <-time.After(5 * time.Millisecond) {
				_, s, err := get(http, "/status")
				if err == nil && s["channels"].([]any)[0].(map[string]any)["messages"].(float64) >= float64(next-1) {
					return
				} else if time.Now().After(end) {
					t.Errorf("%d were published: %v, %v", next-1, s, err)
					return
				}
			}
		}
	}
	for next <= before {
		publish()
	}
	waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "messages") == before })

	stop := make(chan struct{})
	var all sync.WaitGroup
	var flooded atomic.Int64
	flood := from(t, 2, addr)
	began := time.Now()
	all.Go(func() {
		pace := pacer{rate: 100_000}
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := flood.Write(request(moldcast.Seq(1+n%before), 20)); err == nil {
				flooded.Add(1)
			}
			if n%200 == 0 {
				pace.wait(moldcast.Seq(n))
			}
		}
	})
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				publish()
			}
		}
	})
	victim := from(t, 3, addr)
	asked, first := 0, 0
	b := make([]byte, moldcast.MaxDatagram)
	refused := func() bool { // and the flood is one
		requests := httpStatus(t, http)["requests"].(map[string]any)
		return num(t, requests["refused"].(map[string]any), "client_rate") > 0
	}
	for time.Since(began) < d || time.Since(began) < hang && !refused() {
		q := moldcast.Seq(1 + asked*37%(before-10))
		answered := false
		for try, end := 0, time.Now().Add(hang); !answered; try++ {
			if time.Now().After(end) {
				t.Fatalf("%d has no answer, after %d others", q, asked)
			}
			_, _ = victim.Write(request(q, 5))
			_ = victim.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			for {
				n, err := victim.Read(b)
				if err != nil {
					break
				}
				if answered = bytes.Equal(b[:n], packet(q, q+5)); answered { // else a late answer to a retry
					break
				}
			}
			if answered && try == 0 {
				first++
			}
		}
		asked++
	}
	st := httpStatus(t, http)
	took := time.Since(began)
	clients := run(t, dir, 0, "status", "--clients", http)
	close(stop)
	all.Wait()
	t.Logf("%d requests flooded in %v; of %d of another client %d were answered at once\n%s", flooded.Load(), took, asked, first, clients)

	requests := st["requests"].(map[string]any)
	most := perClient * (took.Seconds() + 0.25) * 2 // and a second's worth of slack for a clock that is read later
	if out := num(t, requests, "answered"); float64(out) > most+perClient {
		t.Errorf("%d answers went out in %v, the budgets are %v", out, took, most)
	}
	top := requests["top_clients"].([]any)[0].(map[string]any)
	if top["client"] != "127.0.0.2" || num(t, top["refused"].(map[string]any), "client_rate") == 0 || top["session"] != "E2E" || num(t, top, "lowest_seq") != 1 {
		t.Errorf("most asked %v", top)
	}
	if !strings.Contains(clients, "127.0.0.2") || !strings.Contains(clients, "127.0.0.3") || !strings.Contains(clients, "client_rate") {
		t.Errorf("status --clients:\n%s", clients)
	}
	node.signal(syscall.SIGTERM)
	stopped := node.event("stopped")
	node.exit(0)
	if num(t, stopped, "messages") != int(next-1) || num(t, stopped, "queue_dropped") != 0 || num(t, stopped, "kernel_dropped") != 0 {
		t.Errorf("published %d: %v", next-1, stopped)
	}
}

// Channels with ports of their own answer there for themselves alone.
func TestRequestPortOfOneChannel(t *testing.T) {
	dir := t.TempDir()
	const file = "archive: a\nhttp: 127.0.0.1:0\nretransmit_listen: 127.0.0.1:0\ndefaults: {start: beginning}\nchannels:\n" +
		"  - {name: x, lines: ['127.0.0.1:0'], retransmit_listen: '127.0.0.1:0'}\n  - {name: y, lines: ['127.0.0.1:0'], retransmit_listen: '127.0.0.1:0'}\n"
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	node := moldtape(t, dir, "capture", "--config", "node.yaml")
	ready := node.event("ready")
	other := moldcast.Session{'O', 'T', 'H', 'E', 'R', ' ', ' ', ' ', ' ', ' '}
	ports := []string{}
	for i, c := range ready["channels"].([]any) {
		c := c.(map[string]any)
		line := dial(t, c["lines"].([]any)[0].(string))
		ports = append(ports, c["retransmit"].(string))
		for q := moldcast.Seq(1); q < 100; q++ {
			b := packet(q, q+1)
			if i == 1 {
				copy(b, other[:])
			}
			_, _ = line.Write(b)
		}
	}
	http := ready["http"].(string)
	for end := time.Now().Add(hang); ; <-time.After(5 * time.Millisecond) {
		done := 0
		for _, c := range httpStatus(t, http)["channels"].([]any) {
			done += num(t, c.(map[string]any), "messages")
		}
		if done == 198 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d messages", done)
		}
	}
	x, y := moldcast.Request{Session: session, First: 7, Count: 3}, moldcast.Request{Session: other, First: 7, Count: 3}
	for port, answers := range map[string]map[moldcast.Request]bool{
		ports[0]: {x: true, y: false}, ports[1]: {x: false, y: true}, ready["retransmit"].(string): {x: true, y: true},
	} {
		for r, is := range answers {
			sentinel := r
			if !is {
				sentinel = x
				if r == x {
					sentinel = y
				}
			}
			if got := newAsker(t, port).ask(r, sentinel); (got != nil) != is {
				t.Errorf("%v of %v: %x", port, r, got)
			}
		}
	}
	node.signal(syscall.SIGTERM)
	node.event("stopped")
	node.exit(0)
}

// A node that leaves to the sender what that still has: a request is left to it
// once, one for what has left its ring is answered.
func TestDutyBeyondTheWindow(t *testing.T) {
	dir := t.TempDir()
	const ring = 2000
	src := newSource(t, ring, 0)
	node := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.addr(), "--retransmit-duty", "beyond-window", "--retransmit-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	ready := node.event("ready")
	line, http := lineAddrs(t, ready)[0], ready["http"].(string)
	stop := make(chan struct{})
	var sender sync.WaitGroup
	var head atomic.Uint64
	sender.Go(func() {
		q := moldcast.Seq(1)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			src.published(q + 10)
			if i%5 != 3 {
				_, _ = line.Write(packet(q, q+10))
			}
			q += 10
			head.Store(uint64(q))
			// What was lost does not leave the ring before it is asked for.
			for i%20 == 19 {
				_, s, err := get(http, "/status")
				if err == nil {
					x := s["channels"].([]any)[0].(map[string]any)["sessions"].([]any)
					if len(x) == 1 && x[0].(map[string]any)["next_seq"].(float64) > float64(q)-ring/2 {
						break
					}
				}
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		}
	})
	defer sender.Wait()
	end := sync.OnceFunc(func() { close(stop) })
	defer end()
	window := 0
	waitStatus(t, http, func(s map[string]any) bool {
		list := s["sessions"].([]any)
		if len(list) == 0 || head.Load() < 2*ring {
			return false
		}
		x := list[0].(map[string]any)
		window = num(t, x["timing"].(map[string]any), "server_window")
		return window > 0
	})
	a := newAsker(t, ready["retransmit"].(string))
	old := moldcast.Request{Session: session, First: 5, Count: 3}
	if a.ask(old, old) == nil {
		t.Error("what has left the ring is not answered")
	}
	waitStatus(t, http, func(s map[string]any) bool {
		return num(t, s["sessions"].([]any)[0].(map[string]any), "next_seq") > 2*ring
	})
	left := false
	for until := time.Now().Add(hang); !left && time.Now().Before(until); {
		young := moldcast.Request{Session: session, First: moldcast.Seq(head.Load()) - 5, Count: 1}
		left = a.ask(young, old) == nil &&
			num(t, httpStatus(t, http)["requests"].(map[string]any)["refused"].(map[string]any), "within_window") > 0
		if left && a.ask(young, young) == nil {
			t.Error("what the sender did not answer is not answered either")
		}
	}
	if !left {
		t.Errorf("nothing is left to the sender, whose window is %d", window)
	}
	end()
	sender.Wait()
	node.signal(syscall.SIGTERM)
	node.event("stopped")
	node.exit(0)
	if window > ring {
		t.Errorf("window %d of a ring of %d", window, ring)
	}
}
