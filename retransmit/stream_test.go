package retransmit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

var day1 = moldcast.Session([]byte("DAY1      "))

// tape is a Recording in memory, and the only one there is: message q is
// "message q", whatever is missing.
type tape struct {
	mu          sync.Mutex
	first, head moldcast.Seq
	end         moldcast.Seq // 0: not ended
	growing     bool
	holes       []moldcast.Hole
	fail        error
	cold        moldcast.Seq  // what is below is on disk
	disk        time.Duration // that a read there takes
	next        *tape         // another take
}

func (v *tape) Recording(s moldcast.Session) (moldcast.Session, Recording, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.next != nil {
		return day1, v.next, nil
	}
	if s != day1 && s != soup.Blank {
		return s, nil, ErrNoRecording
	}
	return day1, v, nil
}

func (v *tape) set(fn func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fn()
}

func (v *tape) Bounds() (first, head moldcast.Seq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.first, v.head
}

func (v *tape) Ended() (moldcast.Seq, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.end, v.end != 0
}

func (v *tape) Growing() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.growing
}

func (v *tape) Append(dst []byte, q moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	if q < v.cold {
		if !cold {
			return dst, 0, ErrCold
		}
		if v.disk > 0 {
			<-time.After(v.disk)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n, room := 0, len(dst)+size
	for ; n < count && q < max(v.head, v.end); q++ {
		for _, h := range v.holes {
			if h.Range.Contains(q) && n == 0 {
				h.Range.First = q
				return dst, 0, &moldcast.HoleError{Hole: h}
			} else if h.Range.Contains(q) {
				return dst, n, nil
			}
		}
		if v.fail != nil {
			return dst, 0, v.fail
		}
		m := fmt.Appendf(nil, "message %d", q)
		if n > 0 && len(dst)+moldcast.LengthSize+len(m) > room {
			break
		}
		dst = moldcast.AppendMessage(dst, m)
		n++
	}
	return dst, n, nil
}

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.conns <- b
	return a
}

// world runs fn beside a server, in virtual time; the server is stopped when
// fn returns.
func world(t *testing.T, v *tape, cfg StreamConfig, fn func(t *testing.T, s *StreamServer, p *pipes)) {
	t.Helper()
	world2(t, v, cfg, fn)
}

// world2 is world of any Recordings.
func world2(t *testing.T, v Recordings, cfg StreamConfig, fn func(t *testing.T, s *StreamServer, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { serveInMemory(t, v, cfg, fn) })
}

// serveInMemory is world2 in a bubble that is there already.
func serveInMemory(t *testing.T, v Recordings, cfg StreamConfig, fn func(t *testing.T, s *StreamServer, p *pipes)) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	cfg.Listener, cfg.Recordings = p, v
	s, err := NewStream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := serving(s.Run)
	t.Cleanup(func() { _ = stop() }) // where fn ends the test
	fn(t, s, p)
	synctest.Wait()
	if err := stop(); err != nil {
		t.Error(err)
	}
	st := s.Stats()
	var sum uint64
	for _, n := range st.Ends {
		sum += n
	}
	if st.Readers != 0 || sum != st.Connections {
		t.Errorf("not conserved: %+v", st)
	}
}

// client reads a stream to its end, whatever that is.
type client struct {
	conn  net.Conn
	m     *soup.Client
	clock *mcast.SystemClock
	mute  bool // sends no heartbeats

	first moldcast.Seq
	got   []string
	beats int
	hole  moldcast.Range
	gaps  []moldcast.Range
	end   moldcast.Seq
	debug []string
	other func(soup.Event) // gets events of other kinds
	err   error
}

func connect(p *pipes, l soup.Login) *client { return speak(p.dial(), l) }

func speak(conn net.Conn, l soup.Login) *client {
	c := &client{conn: conn, clock: mcast.NewClock()}
	c.m = soup.NewClient(c.clock.Now(), l)
	return c
}

// run reads until the connection ends or done says so.
func (c *client) run(done func() bool) *client {
	defer c.conn.Close()
	buf := make([]byte, 4096)
	for done == nil || !done() {
		if out := c.m.Output(c.clock.Now()); len(out) > 0 && !(c.mute && c.first != 0) {
			if _, c.err = c.conn.Write(out); c.err != nil {
				return c
			}
		}
		_ = c.conn.SetReadDeadline(time.Now().Add(time.Second))
		n, err := c.conn.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			k, events, err := c.m.Receive(c.clock.Now(), b)
			b = b[k:]
			for _, e := range events {
				c.event(e)
			}
			if err != nil {
				c.err = err
				return c
			}
		}
		if err != nil && !strings.Contains(err.Error(), "timeout") {
			return c
		}
		if c.err = c.m.Poll(c.clock.Now()); c.err != nil {
			return c
		}
	}
	return c
}

func (c *client) event(e soup.Event) {
	switch e.Kind {
	case soup.Accepted:
		c.first = e.First
	case soup.Data:
		for e.Msgs.Len() > 0 {
			c.got = append(c.got, string(e.Msgs.Next()))
		}
	case soup.Alive:
		c.beats++
	case soup.Gap:
		c.gaps = append(c.gaps, e.Range)
	case soup.Hole:
		c.hole = e.Range
	case soup.End:
		c.end = e.First
	case soup.Debug:
		c.debug = append(c.debug, e.Text)
	default:
		if c.other != nil {
			c.other(e)
		}
	}
}

// check compares what came with what the tape holds of [first, next).
func (c *client) check(t *testing.T, first, next moldcast.Seq) {
	t.Helper()
	if c.first != first || len(c.got) != int(next-first) {
		t.Fatalf("accepted at %d, %d messages (%v); want [%d,%d)", c.first, len(c.got), c.err, first, next)
	}
	for i, m := range c.got {
		if want := fmt.Sprintf("message %d", first+moldcast.Seq(i)); m != want {
			t.Fatalf("%q, want %q", m, want)
		}
	}
}

// History, then live, to the end, from wherever a login asks: no message is
// missing or repeated at the joint.
func TestStreamFromHistoryIntoLive(t *testing.T) {
	for _, c := range []struct{ ask, want moldcast.Seq }{{1, 100}, {100, 100}, {5000, 5000}, {0, 20099}, {20100, 20100}, {99999, 20100}} {
		t.Run(fmt.Sprint(c.ask), func(t *testing.T) {
			v := &tape{first: 100, head: 20100, growing: true}
			world(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
				reader := connect(p, soup.Login{Session: soup.Blank, Seq: c.ask})
				go func() {
					for range 300 {
						<-time.After(7 * time.Millisecond)
						v.set(func() { v.head += 100 })
					}
					<-time.After(5 * time.Second)
					v.set(func() { v.end = v.head })
				}()
				reader.run(nil).check(t, c.want, 50100)
				if reader.end != 50100 || reader.beats < 4 {
					t.Errorf("end %d, %d heartbeats", reader.end, reader.beats)
				}
				synctest.Wait()
				if st := s.Stats(); st.Ends[StreamComplete] != 1 || st.Messages != uint64(50100-c.want) {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// At a gap that is open the stream waits; what is on record as a hole is told,
// and ends it; a login there is accepted behind it.
func TestStreamAtHoles(t *testing.T) {
	hole := moldcast.Hole{Range: moldcast.Range{First: 50, Next: 60}, Reason: moldcast.NotCaptured}
	v := &tape{first: 1, head: 100, growing: true, holes: []moldcast.Hole{hole}}
	world(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
		a := connect(p, soup.Login{Session: day1, Seq: 1})
		at50 := connect(p, soup.Login{Session: day1, Seq: 50})
		var all sync.WaitGroup
		all.Go(func() { a.run(nil) })
		all.Go(func() { at50.run(nil) })
		<-time.After(20 * time.Second)
		v.set(func() { v.holes[0].Reason = moldcast.Unrecoverable })
		all.Wait()
		a.check(t, 1, 50)
		at50.check(t, 50, 50)
		if a.hole != hole.Range || at50.hole != hole.Range || a.beats < 15 || a.end != 0 || len(a.gaps) != 1 || a.gaps[0] != hole.Range {
			t.Errorf("holes %v %v, %d heartbeats, end %d", a.hole, at50.hole, a.beats, a.end)
		}
		v.set(func() {
			v.end = 103
			v.holes = append(v.holes, moldcast.Hole{Range: moldcast.Range{First: 100, Next: 103}})
		})
		b := connect(p, soup.Login{Session: day1, Seq: 55}).run(nil)
		b.check(t, 60, 100)
		if want := (moldcast.Range{First: 100, Next: 103}); b.hole != want || b.end != 0 {
			t.Errorf("hole %v before the end, want %v", b.hole, want)
		}
		c := connect(p, soup.Login{Session: day1, Seq: 103}).run(nil)
		if c.check(t, 103, 103); c.end != 103 {
			t.Errorf("end %d", c.end)
		}
	})
	// Filled after all, it goes on.
	v = &tape{first: 1, head: 100, growing: true, holes: []moldcast.Hole{hole}}
	world(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
		a := connect(p, soup.Login{Session: day1, Seq: 1})
		go func() {
			<-time.After(20 * time.Second)
			v.set(func() { v.holes = nil; v.end = 100 })
		}()
		a.run(nil).check(t, 1, 100)
	})
	// That the end is on record makes no hole of what is being repaired; that
	// nobody repairs it any more does.
	for _, repaired := range []bool{true, false} {
		v = &tape{first: 1, head: 100, end: 100, growing: true, holes: []moldcast.Hole{hole}}
		world(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
			a := connect(p, soup.Login{Session: day1, Seq: 1})
			at50 := connect(p, soup.Login{Session: day1, Seq: 50})
			var all sync.WaitGroup
			all.Go(func() { a.run(nil) })
			all.Go(func() { at50.run(nil) })
			<-time.After(20 * time.Second)
			v.set(func() {
				if v.growing = false; repaired {
					v.holes = nil
				}
			})
			all.Wait()
			if repaired {
				a.check(t, 1, 100)
				at50.check(t, 50, 100)
			} else if a.check(t, 1, 50); a.hole != hole.Range || at50.hole != hole.Range || a.end != 0 {
				t.Errorf("holes %v %v, end %d", a.hole, at50.hole, a.end)
			}
		})
	}
}

// One that reads nothing is disconnected, and told; it does not hold up
// another.
func TestStreamStalledReader(t *testing.T) {
	v := &tape{first: 1, head: 100000, end: 100000}
	world(t, v, StreamConfig{Stall: 5 * time.Second}, func(t *testing.T, s *StreamServer, p *pipes) {
		lazy := connect(p, soup.Login{Session: day1, Seq: 1})
		if _, err := lazy.conn.Write(lazy.m.Output(0)); err != nil {
			t.Fatal(err)
		}
		// It takes some, which ends within a frame.
		head := make([]byte, 1000)
		n := 0
		for n < len(head) {
			k, err := lazy.conn.Read(head[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		for b := head; len(b) > 0; {
			k, events, err := lazy.m.Receive(lazy.clock.Now(), b)
			if err != nil {
				t.Fatal(err)
			}
			b = b[k:]
			for _, e := range events {
				lazy.event(e)
			}
		}
		start := time.Now()
		connect(p, soup.Login{Session: day1, Seq: 1}).run(nil).check(t, 1, 100000)
		if d := time.Since(start); d > time.Second {
			t.Errorf("another reader took %v", d)
		}
		<-time.After(6100*time.Millisecond - time.Since(start))
		lazy.run(nil) // wakes up
		lazy.check(t, 1, lazy.first+moldcast.Seq(len(lazy.got)))
		if len(lazy.debug) != 1 || !strings.Contains(lazy.debug[0], "nothing of what was sent was read for 5s") || lazy.end != 0 {
			t.Errorf("debug %q, end %d after %d messages", lazy.debug, lazy.end, len(lazy.got))
		}
		synctest.Wait()
		if st := s.Stats(); st.Ends[StreamStalled] != 1 || st.Ends[StreamComplete] != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A slow reader is served for as long as it gets on, at its pace.
func TestStreamSlowReader(t *testing.T) {
	v := &tape{first: 1, head: 3000, end: 3000}
	world(t, v, StreamConfig{Stall: 3 * time.Second}, func(t *testing.T, s *StreamServer, p *pipes) {
		c := connect(p, soup.Login{Session: day1, Seq: 1})
		c.run(func() bool { <-time.After(2900 * time.Millisecond); return false }).check(t, 1, 3000)
		if c.end != 3000 {
			t.Errorf("end %d", c.end)
		}
	})
}

// skipping is a clock that shows how a machine stood still.
type skipping struct {
	Clock
	stood atomic.Int64
}

func (s *skipping) Now() moldcast.Instant { return s.Clock.Now() + moldcast.Instant(s.stood.Load()) }

// A server whose machine stood still takes nobody for stalled.
func TestStreamOnAMachineThatStoodStill(t *testing.T) {
	v := &tape{first: 1, head: 3000, end: 3000}
	synctest.Test(t, func(t *testing.T) {
		clock := &skipping{Clock: mcast.NewClock()}
		cfg := StreamConfig{Stall: 3 * time.Second, Clock: clock}
		serveInMemory(t, v, cfg, func(t *testing.T, s *StreamServer, p *pipes) {
			reads := 0
			c := connect(p, soup.Login{Session: day1, Seq: 1}).run(func() bool {
				<-time.After(1500 * time.Millisecond) // the server waits in a write
				if reads++; reads == 3 {
					clock.stood.Add(int64(8 * time.Second))
					<-time.After(time.Second)
				}
				return false
			})
			c.check(t, 1, 3000)
			if c.end != 3000 {
				t.Errorf("end %d", c.end)
			}
		})
	})
}

// How connections end, each counted under its name.
func TestStreamEnds(t *testing.T) {
	for _, c := range []struct {
		name StreamEnd
		fn   func(t *testing.T, v *tape, p *pipes) *client
		says string
	}{
		{StreamRejected, func(t *testing.T, v *tape, p *pipes) *client {
			c := connect(p, soup.Login{Session: moldcast.Session{'X'}}).run(nil)
			var r *soup.RejectedError
			if !errors.As(c.err, &r) || r.Code != soup.SessionNotAvailable {
				t.Errorf("%v", c.err)
			}
			return c
		}, ""},
		{StreamNoLogin, func(t *testing.T, v *tape, p *pipes) *client {
			conn := p.dial()
			c := &client{conn: conn, clock: mcast.NewClock()}
			b := make([]byte, 100)
			n, _ := conn.Read(b)
			c.debug = []string{string(b[3:n])}
			return c
		}, "no login came in time"},
		{StreamSilent, func(t *testing.T, v *tape, p *pipes) *client {
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			c.mute = true
			return c.run(nil)
		}, "no heartbeat came in time"},
		{StreamProtocol, func(t *testing.T, v *tape, p *pipes) *client {
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			go func() { _, _ = c.conn.Write([]byte("\x00\x00")) }()
			return c.run(nil)
		}, "not the protocol"},
		{StreamLogout, func(t *testing.T, v *tape, p *pipes) *client {
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			return c.run(func() bool {
				if c.beats == 3 {
					c.m.Logout()
				}
				return false
			})
		}, ""},
		{StreamLost, func(t *testing.T, v *tape, p *pipes) *client {
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			return c.run(func() bool { return c.beats == 3 })
		}, ""},
		{StreamFailed, func(t *testing.T, v *tape, p *pipes) *client {
			v.set(func() { v.fail = errors.New("the disk is gone") })
			return connect(p, soup.Login{Session: day1, Seq: 7}).run(nil)
		}, "the archive cannot be read"},
		{StreamMoved, func(t *testing.T, v *tape, p *pipes) *client {
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			go func() {
				<-time.After(3 * time.Second)
				v.set(func() { v.next = &tape{first: 1, head: 3} })
			}()
			c.run(nil).check(t, 7, 10)
			return c
		}, "the session began anew"},
		{StreamFull, func(t *testing.T, v *tape, p *pipes) *client {
			for range 2 {
				go connect(p, soup.Login{Session: day1, Seq: 7}).run(nil)
			}
			<-time.After(time.Millisecond)
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			b := make([]byte, 100)
			n, _ := c.conn.Read(b)
			c.debug = []string{string(b[3:n])}
			return c
		}, "no room for another reader"},
		{StreamStopped, func(t *testing.T, v *tape, p *pipes) *client {
			go connect(p, soup.Login{Session: day1, Seq: 7}).run(nil)
			<-time.After(time.Second)
			return &client{}
		}, ""},
	} {
		t.Run(c.name.String(), func(t *testing.T) {
			v := &tape{first: 1, head: 10, growing: true}
			var s *StreamServer
			world(t, v, StreamConfig{Readers: 2}, func(t *testing.T, srv *StreamServer, p *pipes) {
				s = srv
				got := c.fn(t, v, p)
				if c.says != "" && !slices.ContainsFunc(got.debug, func(d string) bool { return strings.Contains(d, c.says) }) {
					t.Errorf("said %q, want %q", got.debug, c.says)
				}
			})
			if n := s.Stats().Ends[c.name]; n == 0 {
				t.Errorf("%+v", s.Stats())
			}
		})
	}
}

// Who connects and says nothing cannot keep out who reads; who reads keeps its
// place.
func TestStreamMuteGiveWay(t *testing.T) {
	v := &tape{first: 1, head: 10, growing: true}
	world(t, v, StreamConfig{Readers: 2}, func(t *testing.T, s *StreamServer, p *pipes) {
		said := func(conn net.Conn) string {
			b := make([]byte, 100)
			n, _ := conn.Read(b)
			return string(b[:n])
		}
		mute := [2]net.Conn{p.dial(), p.dial()}
		if got := said(p.dial()); !strings.Contains(got, "no room for another reader") {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(muteTime)
		var stop atomic.Bool
		for range mute {
			c := connect(p, soup.Login{Session: day1, Seq: 7})
			go c.run(stop.Load)
			synctest.Wait()
		}
		for _, conn := range mute {
			if got := said(conn); got != "" {
				t.Errorf("mute: %q", got)
			}
		}
		time.Sleep(2 * muteTime)
		if got := said(p.dial()); !strings.Contains(got, "no room for another reader") {
			t.Errorf("readers gave way: %q", got)
		}
		synctest.Wait()
		if st := s.Stats(); st.Readers != 2 || st.Ends[StreamNoLogin] != 2 || st.Ends[StreamFull] != 2 || s.mu.mute.Len() != 0 {
			t.Errorf("%+v, %d mute", st, s.mu.mute.Len())
		}
		stop.Store(true)
		time.Sleep(2 * time.Second)
	})
}

// A server that stops sends what it has, and the end if there is one.
func TestStreamStopSendsTheRest(t *testing.T) {
	v := &tape{first: 1, head: 10, growing: true}
	var c *client
	ended := make(chan struct{})
	world(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
		c = connect(p, soup.Login{Session: day1, Seq: 1})
		go func() { c.run(nil); close(ended) }()
		<-time.After(1003 * time.Millisecond) // between two looks
		v.set(func() { v.head, v.end = 500, 500 })
	})
	if c.check(t, 1, 500); c.end != 500 {
		t.Errorf("end %d", c.end)
	}
}

// On TCP, what is not in the allow-list is told so; and the last words arrive
// though the client goes on sending.
func TestStreamOnTCP(t *testing.T) {
	run := func(allow ...netip.Prefix) (*StreamServer, func()) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewStream(StreamConfig{Listener: l, Allow: allow, Recordings: &tape{first: 1, head: 200000, end: 200000}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		return s, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	dial := func(s *StreamServer) *client {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return &client{conn: conn, clock: mcast.NewClock()}
	}
	s, stop := run(netip.MustParsePrefix("10.0.0.0/8"))
	c := dial(s)
	b := make([]byte, 10)
	if n, _ := c.conn.Read(b); string(b[:n]) != "\x00\x02JA" {
		t.Errorf("%q", b[:n])
	}
	stop()
	s, stop = run()
	c = dial(s)
	c.m = soup.NewClient(c.clock.Now(), soup.Login{Session: day1, Seq: 1})
	c.run(func() bool {
		if c.first != 0 {
			_, _ = c.conn.Write([]byte("\x00\x02Ux"))
		}
		return false
	}).check(t, 1, 200000)
	if c.end != 200000 {
		t.Errorf("end %d", c.end)
	}
	stop()
}
