package retransmit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConn is a Conn whose other end is the test.
type testConn struct {
	in     chan []mcast.Datagram
	out    chan mcast.Datagram // copies of what is written; nil: discarded
	closed chan struct{}
	once   sync.Once
	refuse atomic.Int64 // datagrams still to be refused
}

func newTestConn() *testConn {
	return &testConn{in: make(chan []mcast.Datagram), out: make(chan mcast.Datagram, 256), closed: make(chan struct{})}
}

func (c *testConn) ReadBatch(ds []mcast.Datagram) (int, error) {
	select {
	case in := <-c.in:
		for i, d := range in {
			ds[i].Src, ds[i].Data = d.Src, append(ds[i].Data[:0], d.Data...)
		}
		return len(in), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *testConn) TryReadBatch(ds []mcast.Datagram) (int, error) {
	select {
	case in := <-c.in:
		for i, d := range in {
			ds[i].Src, ds[i].Data = d.Src, append(ds[i].Data[:0], d.Data...)
		}
		return len(in), nil
	default:
		return 0, nil
	}
}

func (c *testConn) WriteBatch(ds []mcast.Datagram) (int, error) {
	n := 0
	var err error
	for _, d := range ds {
		if c.refuse.Add(-1) >= 0 {
			err = errors.New("no buffer space")
			continue
		}
		n++
		if c.out != nil {
			c.out <- mcast.Datagram{Data: bytes.Clone(d.Data), Dst: d.Dst}
		}
	}
	return n, err
}

func (c *testConn) LocalAddr() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:1") }

func (c *testConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

type testClock struct{ now atomic.Int64 }

func (c *testClock) Now() moldcast.Instant { return moldcast.Instant(c.now.Load()) }

var client1 = netip.MustParseAddrPort("10.0.0.1:5000")

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func ask(from netip.AddrPort, s moldcast.Session, first moldcast.Seq, count uint16) mcast.Datagram {
	return mcast.Datagram{Src: from, Data: moldcast.AppendRequest(nil, moldcast.Request{Session: s, First: first, Count: count})}
}

// checkConserved checks that every request has exactly one fate.
func checkConserved(t *testing.T, st Stats) {
	t.Helper()
	sum := st.Answered + uint64(st.Pending)
	for _, n := range st.Unanswered {
		sum += n
	}
	if sum != st.Requests {
		t.Fatalf("%d fates of %d requests: %+v", sum, st.Requests, st)
	}
}

// counted is the counters that are not zero, as text.
func counted(st Stats) string {
	var b strings.Builder
	for name, n := range st.Counters() {
		if n > 0 {
			fmt.Fprintf(&b, "%s=%d ", name, n)
		}
	}
	return strings.TrimSpace(b.String())
}

// Every reason that a request has no answer is counted as what it is.
func TestReasons(t *testing.T) {
	v := newMemView(100, 1000, func(int) int { return 40 })
	v.missing = func(q moldcast.Seq) bool { return q == 500 }
	bad := newMemView(1, 10, func(int) int { return 40 })
	bad.cold = func(moldcast.Seq) bool { return true }
	raw := func(b ...byte) mcast.Datagram { return mcast.Datagram{Src: client1, Data: b} }
	for _, c := range []struct {
		name string
		in   []mcast.Datagram
		want string
	}{
		{"answered", []mcast.Datagram{ask(client1, s1, 100, 10)}, "requests=1 answered=1 messages=10 bytes=440"},
		{"empty", []mcast.Datagram{raw()}, "requests=1 empty=1"},
		{"malformed", []mcast.Datagram{raw(1), raw(make([]byte, 21)...), raw(make([]byte, 64)...)}, "requests=3 malformed=3"},
		{"count 0", []mcast.Datagram{ask(client1, s1, 100, 0)}, "requests=1 count_zero=1"},
		{"sequence 0", []mcast.Datagram{ask(client1, s1, 0, 1)}, "requests=1 seq_zero=1"},
		{"source", []mcast.Datagram{
			ask(netip.MustParseAddrPort("10.0.0.1:0"), s1, 100, 1),
			ask(netip.MustParseAddrPort("239.1.1.1:5000"), s1, 100, 1),
			ask(netip.MustParseAddrPort("255.255.255.255:5000"), s1, 100, 1),
		}, "requests=3 bad_source=3"},
		{"not allowed", []mcast.Datagram{ask(netip.MustParseAddrPort("8.8.8.8:53"), s1, 100, 1)}, "requests=1 not_allowed=1"},
		{"repeated", []mcast.Datagram{ask(client1, s1, 100, 10), ask(client1, s1, 100, 10), ask(client1, s1, 105, 2)},
			"requests=3 answered=1 messages=10 bytes=440 repeated=2"},
		{"foreign session", []mcast.Datagram{ask(client1, session("S2"), 100, 1), ask(client1, moldcast.Session{'S', '1'}, 100, 1)},
			"requests=2 unknown_session=2"},
		{"below", []mcast.Datagram{ask(client1, s1, 1, 200)}, "requests=1 below_first=1"},
		{"beyond", []mcast.Datagram{ask(client1, s1, 1100, 1), ask(client1, s1, 1<<63, 65535)}, "requests=2 beyond_head=2"},
		{"hole", []mcast.Datagram{ask(client1, s1, 500, 10), ask(client1, s1, 499, 10)},
			"requests=2 answered=1 messages=1 bytes=62 missing=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := newTestConn()
			s, err := New(Config{Conn: conn, Source: memSource{s1: v}, Clock: &testClock{}})
			if err != nil {
				t.Fatal(err)
			}
			s.batch(c.in)
			if got := counted(s.Stats()); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			checkConserved(t, s.Stats())
			if n := len(conn.out); uint64(n) != s.Stats().Answered {
				t.Errorf("%d datagrams sent", n)
			}
		})
	}
}

func TestRatesAreCounted(t *testing.T) {
	v := newMemView(1, 1000, func(int) int { return 40 })
	clock := &testClock{}
	s, err := New(Config{Conn: newTestConn(), Source: memSource{s1: v}, Clock: clock,
		Admit: admit.Config{Client: admit.Rate{Requests: 10}, Total: admit.Rate{Requests: 15}}})
	if err != nil {
		t.Fatal(err)
	}
	var in []mcast.Datagram
	for i := range 12 {
		in = append(in, ask(client1, s1, moldcast.Seq(1+i), 1))
	}
	for i := range 12 {
		in = append(in, ask(netip.MustParseAddrPort("10.0.0.2:5000"), s1, moldcast.Seq(1+i), 1))
	}
	s.batch(in)
	if got, want := counted(s.Stats()), "requests=24 answered=15 messages=15 bytes=930 client_rate=2 total_rate=7"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	clock.now.Add(1e9)
	s.batch([]mcast.Datagram{ask(client1, s1, 500, 1)})
	if st := s.Stats(); st.Answered != 16 {
		t.Errorf("%d answered after a second", st.Answered)
	}
}

func TestSendFailure(t *testing.T) {
	v := newMemView(1, 1000, func(int) int { return 40 })
	conn := newTestConn()
	var log bytes.Buffer
	s, err := New(Config{Conn: conn, Source: memSource{s1: v}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	conn.refuse.Store(2)
	s.batch([]mcast.Datagram{ask(client1, s1, 1, 1), ask(client1, s1, 2, 1), ask(client1, s1, 3, 1)})
	conn.refuse.Store(1)
	s.batch([]mcast.Datagram{ask(client1, s1, 4, 1)})
	st := s.Stats()
	checkConserved(t, st)
	if st.Answered != 1 || st.Unanswered[SendFailed] != 3 {
		t.Fatal(counted(st))
	}
	if n := strings.Count(log.String(), "no buffer space"); n != 1 {
		t.Fatalf("said %d times:\n%s", n, &log)
	}
}

// running is a Server that runs on a testConn.
type running struct {
	*Server
	conn *testConn
	stop func() error
}

// serving has a server run until stop, which answers with what Run did.
func serving(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return sync.OnceValue(func() error { cancel(); return <-done })
}

func run(t *testing.T, cfg Config) running {
	t.Helper()
	conn := newTestConn()
	cfg.Conn = conn
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := serving(s.Run)
	t.Cleanup(func() { _ = stop() })
	return running{s, conn, stop}
}

// send hands a batch over and returns when it has been dealt with: the empty
// batch behind it is only read then.
func (r running) send(in ...mcast.Datagram) {
	for len(in) > 0 {
		n := min(len(in), mcast.BatchSize)
		r.conn.in <- in[:n]
		in = in[n:]
	}
	r.conn.in <- nil
}

// While every worker is stuck in a read and the queue is full, hot requests
// are answered at once; the bounds are kept; what was queued is answered when
// the disk comes back, and every cold request has its fate counted.
func TestColdNeverDelaysHot(t *testing.T) {
	v := newMemView(1, 10_000, func(int) int { return 40 })
	v.cold = func(q moldcast.Seq) bool { return q < 5000 }
	v.entered, v.release = make(chan struct{}, 100), make(chan struct{})
	r := run(t, Config{Source: memSource{s1: v}, Workers: 2, QueueCold: 16})

	clients := make([]netip.AddrPort, 6)
	for i := range clients {
		clients[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 5000)
	}
	r.send(ask(clients[0], s1, 1, 10), ask(clients[1], s1, 20, 10))
	<-v.entered
	<-v.entered // both workers read now
	var in []mcast.Datagram
	for i := range 6 {
		for _, c := range clients {
			in = append(in, ask(c, s1, moldcast.Seq(100+10*i), 10))
		}
	}
	r.send(in...)
	// Two are being read; each client may have 4 pending (a quarter), 16 wait.
	st := r.Stats()
	checkConserved(t, st)
	if st.Pending != 18 || st.Unanswered[ColdFull] != 36-16 {
		t.Fatalf("%d pending, %s", st.Pending, counted(st))
	}
	// The same again while it is pending: not queued twice.
	r.send(ask(clients[0], s1, 1, 10), ask(clients[1], s1, 20, 10))
	if st := r.Stats(); st.Unanswered[Repeated] != 2 {
		t.Fatal(counted(st))
	}
	for i := range 1000 {
		q := moldcast.Seq(5000 + i)
		r.send(ask(client1, s1, q, 1))
		got := <-r.conn.out
		checkAnswer(t, got.Data, v, s1, moldcast.Range{First: q, Next: q + 1})
		if got.Dst != client1 {
			t.Fatalf("answer went to %v", got.Dst)
		}
	}
	close(v.release)
	for range 18 {
		got := <-r.conn.out
		p, err := moldcast.Parse(got.Data)
		if err != nil {
			t.Fatal(err)
		}
		checkAnswer(t, got.Data, v, s1, moldcast.Range{First: p.First, Next: p.First + 10})
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	st = r.Stats()
	checkConserved(t, st)
	if st.Pending != 0 || st.Cold != 18 || st.Answered != 1018 {
		t.Fatal(counted(st))
	}
}

// A cold answer lingers and is paid for like any other.
func TestColdAnswerIsAccounted(t *testing.T) {
	v := newMemView(1, 100, func(int) int { return 40 })
	v.cold = func(moldcast.Seq) bool { return true }
	clock := &testClock{}
	r := run(t, Config{Source: memSource{s1: v}, Clock: clock, Workers: 1})
	r.send(ask(client1, s1, 1, 1))
	<-r.conn.out
	for r.Stats().Pending > 0 {
		runtime.Gosched()
	}
	r.send(ask(client1, s1, 1, 1))
	if st := r.Stats(); st.Unanswered[Repeated] != 1 || st.Cold != 1 {
		t.Fatal(counted(st))
	}
	clock.now.Add(1e6)
	r.send(ask(client1, s1, 1, 1))
	<-r.conn.out
}

// One client cannot take the whole queue.
func TestColdShare(t *testing.T) {
	v := newMemView(1, 10_000, func(int) int { return 40 })
	v.cold = func(moldcast.Seq) bool { return true }
	v.release = make(chan struct{})
	r := run(t, Config{Source: memSource{s1: v}, Workers: 1, QueueCold: 40})
	var in []mcast.Datagram
	for i := range 64 { // from two ports of one host
		in = append(in, ask(netip.AddrPortFrom(client1.Addr(), uint16(5000+i%2)), s1, moldcast.Seq(1+i), 1))
	}
	r.send(in...)
	r.send(ask(netip.MustParseAddrPort("10.0.0.2:5000"), s1, 1, 1))
	if st := r.Stats(); st.Pending != 11 || st.Unanswered[ColdFull] != 54 {
		t.Fatalf("%d pending, %s", st.Pending, counted(st))
	}
	close(v.release)
	for range 11 {
		<-r.conn.out
	}
}

// What waits when the server stops is dropped and counted; the read that is
// under way is waited for.
func TestStopWithColdPending(t *testing.T) {
	v := newMemView(1, 100, func(int) int { return 40 })
	v.cold = func(moldcast.Seq) bool { return true }
	v.entered, v.release = make(chan struct{}, 1), make(chan struct{})
	r := run(t, Config{Source: memSource{s1: v}, Workers: 1})
	r.send(ask(client1, s1, 1, 1), ask(client1, s1, 2, 1), ask(client1, s1, 3, 1))
	<-v.entered
	stopped := make(chan error)
	go func() { stopped <- r.stop() }()
	<-r.conn.closed
	select {
	case err := <-stopped:
		t.Fatal("returned before its worker: ", err)
	default:
	}
	for !r.cold.isStopped() {
		runtime.Gosched()
	}
	close(v.release)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	st := r.Stats()
	checkConserved(t, st)
	if st.Pending != 0 || st.Unanswered[Stopped] != 2 || st.Answered != 1 {
		t.Fatal(counted(st))
	}
}

func TestColdReadFails(t *testing.T) {
	v := newMemView(1, 100, func(int) int { return 40 })
	v.cold = func(moldcast.Seq) bool { return true }
	v.fail = errors.New("checksum")
	v.entered = make(chan struct{}, 10)
	var log bytes.Buffer
	r := run(t, Config{Source: memSource{s1: v, session("S2"): alwaysCold{v}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.send(ask(client1, s1, 1, 1), ask(client1, session("S2"), 1, 1))
	<-v.entered
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	st := r.Stats()
	checkConserved(t, st)
	if st.Answered != 0 || st.Unanswered[ReadFailed]+st.Unanswered[Stopped] != 2 {
		t.Fatal(counted(st))
	}
	if !strings.Contains(log.String(), "archive cannot be read") {
		t.Fatalf("said nothing: %s", &log)
	}
}

// alwaysCold claims to be cold also where it may read.
type alwaysCold struct{ *memView }

func (alwaysCold) Append(dst []byte, _ moldcast.Seq, _, _ int, _ bool) ([]byte, int, error) {
	return dst, 0, ErrCold
}

// A socket that fails is the end of Run, with its error.
func TestConnFailure(t *testing.T) {
	boom := errors.New("boom")
	s, err := New(Config{Conn: failingConn{newTestConn(), boom}, Source: memSource{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err != boom {
		t.Fatal(err)
	}
}

type failingConn struct {
	*testConn
	err error
}

func (c failingConn) ReadBatch([]mcast.Datagram) (int, error) { return 0, c.err }

func TestConfig(t *testing.T) {
	ok := func() Config { return Config{Conn: newTestConn(), Source: memSource{}} }
	for _, c := range []struct {
		name string
		set  func(*Config)
	}{
		{"no Conn", func(c *Config) { c.Conn = nil }},
		{"no Source", func(c *Config) { c.Source = nil }},
		{"MTU 127", func(c *Config) { c.MTU = 127 }},
		{"MTU 65536", func(c *Config) { c.MTU = 65536 }},
		{"Workers -1", func(c *Config) { c.Workers = -1 }},
		{"QueueCold 3", func(c *Config) { c.QueueCold = 3 }},
		{"Clients -1", func(c *Config) { c.Admit.Clients = -1 }},
	} {
		cfg := ok()
		c.set(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Listen(netip.MustParseAddrPort("239.255.0.1:0"), nil); !errors.Is(err, mcast.ErrAddress) {
		t.Errorf("multicast: %v", err)
	}
}

// The way of a hot request allocates nothing, whatever becomes of it.
func TestHotPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		return // the race detector allocates
	}
	v := newMemView(1, 100_000, func(i int) int { return 20 + i%40 })
	v.missing = func(q moldcast.Seq) bool { return q%1000 == 0 }
	conn := newTestConn()
	conn.out = nil
	clock := &testClock{}
	s, err := New(Config{Conn: conn, Source: memSource{s1: v}, Clock: clock,
		Admit: admit.Config{Client: admit.Rate{Requests: -1, Bytes: -1}, Total: admit.Rate{Requests: -1, Bytes: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	in := make([]mcast.Datagram, mcast.BatchSize)
	fill := func(i int) {
		clock.now.Add(100_000)
		for k := range in {
			r := moldcast.Request{Session: s1, First: moldcast.Seq(1 + (i*64+k)*17%110_000), Count: uint16(k)}
			if k%16 == 15 {
				r.Session[9] = 'x'
			}
			in[k].Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(k % 4)}), 5000)
			in[k].Data = moldcast.AppendRequest(in[k].Data[:0], r)
		}
	}
	for i := range 100 {
		fill(i)
		s.batch(in)
	}
	i := 100
	if n := testing.AllocsPerRun(200, func() { fill(i); s.batch(in); i++ }); n != 0 {
		t.Fatalf("%v allocations a batch", n)
	}
	st := s.Stats()
	for _, r := range []Reason{Missing, BeyondHead, UnknownSession, CountZero} {
		if st.Unanswered[r] == 0 {
			t.Errorf("no %v among them: %s", r, counted(st))
		}
	}
	if st.Answered == 0 {
		t.Error("nothing answered")
	}
}

// FuzzBatch: any datagram has exactly one fate, and an answer is one to what
// was asked.
func FuzzBatch(f *testing.F) {
	f.Add([]byte{}, uint16(5000), uint32(0x0a000001))
	f.Add(ask(client1, s1, 1, 10).Data, uint16(5000), uint32(0x0a000001))
	f.Add(ask(client1, s1, 90, 65534).Data, uint16(5000), uint32(0x7f000001))
	f.Add(ask(client1, s1, ^moldcast.Seq(0), 65535).Data, uint16(0), uint32(0xe0000001))
	f.Add(make([]byte, 64), uint16(1), uint32(0))
	v := newMemView(1, 100, func(i int) int { return i * 50 })
	v.missing = func(q moldcast.Seq) bool { return q%10 == 0 }
	f.Fuzz(func(t *testing.T, b []byte, port uint16, host uint32) {
		conn := newTestConn()
		s, err := New(Config{Conn: conn, Source: memSource{s1: v}})
		if err != nil {
			t.Fatal(err)
		}
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(host >> 24), byte(host >> 16), byte(host >> 8), byte(host)}), port)
		s.batch([]mcast.Datagram{{Src: from, Data: b}})
		checkConserved(t, s.Stats())
		if len(conn.out) == 0 {
			return
		}
		got := <-conn.out
		if len(conn.out) > 0 {
			t.Fatalf("%d more answers to one datagram", len(conn.out))
		}
		r, err := moldcast.ParseRequest(b)
		if err != nil {
			t.Fatalf("answered %x: %v", b, err)
		}
		p, err := moldcast.Parse(got.Data)
		if err != nil {
			t.Fatal(err)
		}
		if got.Dst != from || p.First != r.First || p.Range().Intersect(r.Range()) != p.Range() {
			t.Fatalf("asked %v, answered %v", r.Range(), p.Range())
		}
		checkAnswer(t, got.Data, v, r.Session, p.Range())
	})
}
