package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memSink keeps what is stored in maps; refuse makes Append fail.
type memSink struct {
	mu       sync.Mutex
	sessions map[moldcast.Session]*memSession // the latest takes
	takes    []*memSession                    // all
	refuse   func(p moldcast.Piece) bool
	room     func() bool // nil: always
	openErr  error
	trouble  atomic.Pointer[Trouble]
}

type memSession struct {
	heard  []moldcast.Heard
	sink   *memSink
	take   int
	mu     sync.Mutex // of msgs
	msgs   map[moldcast.Seq]string
	held   moldcast.Held
	set    gap.Set
	marks  []moldcast.Mark
	holes  []moldcast.Hole
	start  moldcast.Seq
	closed int
	twice  int
	stats  []byte
	by     string // Supersede

	floor     moldcast.Seq
	withdrawn int
	shareOf   int
	shared    []moldcast.Range
}

func (k *memSink) Open(_ string, s moldcast.Session, take int, _ []string) (SessionSink, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.openErr != nil {
		return nil, k.openErr
	}
	if k.sessions == nil {
		k.sessions = map[moldcast.Session]*memSession{}
	}
	x := k.sessions[s]
	if x == nil || take > x.take {
		x = &memSession{sink: k, take: max(take, 1), msgs: map[moldcast.Seq]string{}}
		k.takes = append(k.takes, x)
		k.sessions[s] = x
	}
	return x, nil
}

func (x *memSession) Take() int                { return x.take }
func (x *memSession) Held() moldcast.Held      { return x.held }
func (x *memSession) Start(first moldcast.Seq) { x.start = first }
func (x *memSession) Mark(m moldcast.Mark)     { x.marks = append(x.marks, m) }
func (x *memSession) Heard(h moldcast.Heard)   { x.heard = append(x.heard, h) }
func (x *memSession) Withdraw()                { x.withdrawn++ }
func (x *memSession) Supersede(by string)      { x.by = by }
func (x *memSession) Share(take int, ranges []moldcast.Range) error {
	x.shareOf, x.shared = take, ranges
	return nil
}
func (x *memSession) Shared() (take int, missing []moldcast.Range) {
	for _, r := range x.shared {
		missing = append(missing, x.set.Missing(r)...)
	}
	return x.shareOf, missing
}
func (x *memSession) Older(take int, dst []byte, first moldcast.Seq, count, size int) ([]byte, int, error) {
	return x.sink.takes[take-1].Read(dst, first, count, size)
}
func (x *memSession) Hole(h moldcast.Hole) { x.holes = append(x.holes, h) }
func (x *memSession) Trouble() Trouble {
	if t := x.sink.trouble.Load(); t != nil {
		return *t
	}
	return Trouble{}
}
func (x *memSession) Segments() int                          { return 1 }
func (x *memSession) Captured(_, _ moldcast.Stamp, b []byte) { x.stats = append([]byte(nil), b...) }
func (x *memSession) Close() error                           { x.closed++; return nil }
func (x *memSession) Room() bool                             { return x.sink.room == nil || x.sink.room() }

func (x *memSession) Covers(r moldcast.Range) (moldcast.Range, bool) { return x.set.Cut(r) }

func (x *memSession) Holes() int {
	if x.set.Len() == 0 {
		return 0
	}
	b := x.set.Bounds()
	if x.start != 0 {
		b.First = min(b.First, x.start)
	}
	return len(x.set.Missing(b))
}

func (x *memSession) Append(p moldcast.Piece) (int, error) {
	if x.sink.refuse != nil && x.sink.refuse(p) {
		return 0, errors.New("full")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m := p.Msgs
	for q := p.First; m.Len() > 0; q++ {
		if _, ok := x.msgs[q]; ok {
			x.twice++
		}
		x.msgs[q] = string(m.Next())
	}
	x.set.Add(p.Range())
	return p.Msgs.Len(), nil
}

func (x *memSession) Compare(first moldcast.Seq, m moldcast.Messages) (moldcast.Seq, bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for q := first; m.Len() > 0; q++ {
		data := string(m.Next())
		if got, ok := x.msgs[q]; ok && got != data {
			return q, true, nil
		}
	}
	return 0, false, nil
}

func (x *memSession) Read(dst []byte, first moldcast.Seq, count, size int) ([]byte, int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for ; n < count; n++ {
		data, ok := x.msgs[first+moldcast.Seq(n)]
		if !ok || n > 0 && size < len(data)+moldcast.LengthSize {
			break
		}
		size -= len(data) + moldcast.LengthSize
		dst = moldcast.AppendMessage(dst, []byte(data))
	}
	if n == 0 {
		return dst, 0, errors.New("nothing there")
	}
	return dst, n, nil
}

func (x *memSession) Durable() moldcast.Range {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.set.Len() == 0 {
		return moldcast.Range{}
	}
	return x.set.Ranges()[0]
}

func (x *memSession) Floor() moldcast.Seq { return x.floor }

func (x *memSession) Watermarks() (next, durable, head moldcast.Seq) {
	b := x.set.Bounds()
	part, held := x.set.Cut(moldcast.Range{First: b.First, Next: b.Next + 1})
	if !held {
		return b.First, b.First, b.Next
	}
	return part.Next, part.Next, b.Next
}

var sess = moldcast.Session{'T', 'E', 'S', 'T', ' ', ' ', ' ', ' ', ' ', ' '}

func body(q moldcast.Seq) string { return fmt.Sprintf("message %d", q) }

// packet is [first, next) as one datagram.
func packet(first, next moldcast.Seq) []byte {
	b := moldcast.AppendHeader(nil, sess, first, uint16(next-first))
	for q := first; q < next; q++ {
		b = moldcast.AppendMessage(b, []byte(body(q)))
	}
	return b
}

func control(next moldcast.Seq, count uint16) []byte {
	return moldcast.AppendHeader(nil, sess, next, count)
}

// rig is a channel on loopback lines, running.
type rig struct {
	t      *testing.T
	ch     *Channel
	sink   *memSink
	lines  []*net.UDPConn
	cancel context.CancelFunc
	done   chan struct{}
	status Status
	err    error
}

func start(t *testing.T, lines int, sink *memSink, tune func(*Config)) *rig {
	t.Helper()
	cfg := Config{Channel: "test", Log: slog.New(slog.DiscardHandler), Start: arbiter.Beginning, Seed: 1}
	for range lines {
		cfg.Lines = append(cfg.Lines, Line{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	}
	// Lines on port 0 differ once they are bound; Validate wants them apart.
	for i := 1; i < lines; i++ {
		cfg.Lines[i].Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", i+1)), 0)
	}
	if tune != nil {
		tune(&cfg)
	}
	ch, err := New(cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ch: ch, sink: sink, done: make(chan struct{})}
	for _, a := range ch.Lines() {
		addr, err := net.ResolveUDPAddr("udp4", a)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.DialUDP("udp4", nil, addr)
		if err != nil {
			t.Fatal(err)
		}
		r.lines = append(r.lines, c)
		t.Cleanup(func() { c.Close() })
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.status, r.err = ch.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

func (r *rig) send(line int, b []byte) {
	r.t.Helper()
	if _, err := r.lines[line].Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// until waits for a status that ok likes.
func (r *rig) until(what string, ok func(Status) bool) Status {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		st, err := r.ch.Status(ctx)
		if err != nil {
			r.t.Fatalf("waiting for %s: %v (last %+v)", what, err, st)
		}
		if ok(st) {
			return st
		}
	}
}

func (r *rig) wait() Status {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(30 * time.Second):
		r.t.Fatal("the channel does not end")
	}
	return r.status
}

// exactly checks that [first, next) is stored, each once, and nothing else.
func (r *rig) exactly(first, next moldcast.Seq) {
	r.t.Helper()
	x := r.sink.sessions[sess]
	if x == nil {
		r.t.Fatal("no session was opened")
	}
	if len(x.msgs) != int(next-first) || x.twice != 0 {
		r.t.Errorf("%d messages stored, %d of them twice; want %d once", len(x.msgs), x.twice, next-first)
	}
	for q := first; q < next; q++ {
		if x.msgs[q] != body(q) {
			r.t.Fatalf("message %d is %q", q, x.msgs[q])
		}
	}
	if x.closed != 1 {
		r.t.Errorf("session closed %d times", x.closed)
	}
}

// server answers requests for [1, end) on loopback; drop says which request,
// counted from 1, is not heard.
func server(t *testing.T, end moldcast.Seq, drop func(n int) bool) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 100)
		for n := 1; ; n++ {
			k, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			q, err := moldcast.ParseRequest(b[:k])
			if err != nil || drop(n) || q.First >= end {
				continue
			}
			next := min(q.Range().Next, end, q.First+20)
			_, _ = c.WriteToUDPAddrPort(packet(q.First, next), from)
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestTwoLinesFillEachOther(t *testing.T) {
	const n = 3000
	r := start(t, 2, &memSink{}, func(c *Config) { c.UntilEnd, c.Start = true, arbiter.Live; c.ReorderWait = time.Second })
	// A packs 7, B 11; B loses each 13th packet, A each 12th that B did not lose.
	a, b := moldcast.Seq(1), moldcast.Seq(1)
	var lost gap.Set // by B
	lostA := 0
	for i := 1; a <= n || b <= n; i++ {
		if b <= n {
			next := min(b+11, n+1)
			if i%13 == 3 {
				lost.Add(moldcast.Range{First: b, Next: next})
			} else {
				r.send(1, packet(b, next))
			}
			b = next
		}
		if a <= n {
			next := min(a+7, n+1)
			part, held := lost.Cut(moldcast.Range{First: a, Next: next})
			if i%12 == 5 && !held && part.Next == next {
				lostA++
			} else {
				r.send(0, packet(a, next))
			}
			a = next
		}
	}
	if lostA < 10 || lost.Len() < 10 {
		t.Fatalf("A lost %d packets, B %d: too few to show anything", lostA, lost.Len())
	}
	for l := range 2 {
		r.send(l, control(n+1, moldcast.EndCount))
	}
	st := r.wait()
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.exactly(1, n+1)
	if st.NaksSent != 0 || st.MessagesLost != 0 || st.Holes() != 0 || st.Duplicates == 0 {
		t.Errorf("status %+v", st)
	}
}

func TestGapsAreAskedFor(t *testing.T) {
	const n = 2000
	srv := server(t, n+1, func(k int) bool { return k%5 == 2 })
	r := start(t, 1, &memSink{}, func(c *Config) { c.UntilEnd = true; c.Rerequest = []netip.AddrPort{srv} })
	for q, i := moldcast.Seq(1), 0; q <= n; i++ {
		next := min(q+10, n+1)
		if i%9 != 4 && next <= n-30 { // and the tail is lost
			r.send(0, packet(q, next))
		}
		q = next
	}
	r.send(0, control(n+1, moldcast.EndCount))
	st := r.wait()
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.exactly(1, n+1)
	if st.NaksSent == 0 || st.GapsRecovered == 0 || st.MessagesLost != 0 || st.Messages != n {
		t.Errorf("status %+v", st)
	}
	x := r.sink.sessions[sess]
	if x.start != 1 || len(x.marks) == 0 || x.marks[len(x.marks)-1].Kind != moldcast.End {
		t.Errorf("start %d, marks %v", x.start, x.marks)
	}
}

func TestAnswersOnlyFromServersAsked(t *testing.T) {
	srv := server(t, 1, func(int) bool { return true }) // hears, never answers
	r := start(t, 1, &memSink{}, func(c *Config) { c.Rerequest = []netip.AddrPort{srv}; c.Start = arbiter.Live })
	r.send(0, packet(100, 101))
	r.send(0, packet(101, 102))
	r.send(0, packet(105, 106))
	r.until("a request", func(s Status) bool { return s.NaksSent > 0 })
	// A stranger on another loopback address answers at the request socket.
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9)}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), r.ch.asks.Socket().LocalAddr().Port())))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(packet(102, 105)); err != nil {
		t.Fatal(err)
	}
	st := r.until("the stranger's datagram, and 105 stored", func(s Status) bool { return s.WrongSession == 1 && s.Messages >= 3 })
	if st.Messages != 3 {
		t.Errorf("%d messages stored, want 3", st.Messages)
	}
}

func TestStopStoresWhatWaits(t *testing.T) {
	r := start(t, 1, &memSink{}, func(c *Config) { c.ReorderWait = time.Hour; c.Start = arbiter.Live })
	r.send(0, packet(10, 12))
	r.send(0, packet(12, 14))
	r.send(0, packet(20, 22)) // waits for 14..19
	r.until("three packets", func(s Status) bool { return s.Packets == 3 })
	r.cancel()
	st := r.wait()
	x := r.sink.sessions[sess]
	if len(x.msgs) != 6 || x.msgs[21] != body(21) || x.closed != 1 {
		t.Errorf("stored %v, closed %d", x.msgs, x.closed)
	}
	if st.Holes() != 1 {
		t.Errorf("%d holes, want the one at 14..19", st.Holes())
	}
	if got := st.Sessions[0]; got.FirstSeq != 10 || got.NextSeq != 14 || got.HeadSeq != 22 {
		t.Errorf("session %+v", got)
	}
}

// skipping is a clock that a test sets forward.
type skipping struct {
	mcast.Clock
	by atomic.Int64
}

func (s *skipping) Now() moldcast.Instant { return s.Clock.Now() + moldcast.Instant(s.by.Load()) }

// What a store refuses waits in memory; what finds that full stays missing. It
// is not asked for, nor lost, while there is no room for the answers, and
// repaired then.
func TestRefusedMessagesAreRepaired(t *testing.T) {
	const n = 3000
	srv := server(t, n+1, func(int) bool { return false })
	var full, refused atomic.Bool
	full.Store(true)
	sink := &memSink{}
	sink.refuse = func(p moldcast.Piece) bool {
		if full.Load() && p.First != 1 {
			refused.Store(true)
			return true
		}
		return false
	}
	sink.room = func() bool { return !full.Load() }
	const budget = time.Minute
	clock := &skipping{Clock: mcast.NewClock()}
	r := start(t, 1, sink, func(c *Config) {
		c.UntilEnd, c.Rerequest, c.NakBudget, c.ReorderBytes, c.Clock = true, []netip.AddrPort{srv}, budget, arbiter.MinReorderBytes, clock
	})
	for q := moldcast.Seq(1); q <= n; q++ {
		r.send(0, packet(q, q+1))
		if q%200 == 0 { // a receive buffer holds so many
			r.until("the packets", func(s Status) bool { return s.Packets == uint64(q) })
		}
	}
	clock.by.Store(int64(4 * budget))
	var st Status
	for range 3 { // the engine looks at the time between two answers
		st = r.until("several budgets", func(Status) bool { return true })
	}
	if !refused.Load() || st.QueueDropped == 0 || st.NaksSent != 0 || st.MessagesLost != 0 || st.Messages != 1 {
		t.Errorf("while nothing is taken: %+v", st.Counters)
	}
	full.Store(false)
	r.send(0, control(n+1, moldcast.EndCount))
	st = r.wait()
	r.exactly(1, n+1)
	if st.MessagesRecovered != st.QueueDropped || st.MessagesLost != 0 || st.NaksSent == 0 || st.GapsOpened != 1 {
		t.Errorf("%+v", st.Counters)
	}
}

func TestEndTimeout(t *testing.T) {
	r := start(t, 1, &memSink{}, func(c *Config) { c.EndTimeout = 30 * time.Millisecond })
	r.wait()
	if !errors.Is(r.err, ErrEndTimeout) {
		t.Fatalf("ended with %v, want ErrEndTimeout", r.err)
	}
}

func TestBadDatagramsAreCountedAndNothingElse(t *testing.T) {
	r := start(t, 1, &memSink{}, func(c *Config) { c.Start = arbiter.Live })
	bad := [][]byte{{}, packet(1, 3)[:19], packet(1, 3)[:25], append(packet(1, 3), 0), control(0, 0), control(^moldcast.Seq(0)-1, 9)}
	for _, b := range bad {
		r.send(0, b)
	}
	r.send(0, packet(1, 2))
	r.send(0, packet(2, 3))
	st := r.until("the good ones", func(s Status) bool { return s.Packets == 2 })
	if st.Malformed != uint64(len(bad)) || st.Messages != 2 {
		t.Errorf("malformed %d, messages %d; want %d and 2", st.Malformed, st.Messages, len(bad))
	}
}

func TestOpenFailureIsRetried(t *testing.T) {
	sink := &memSink{openErr: errors.New("disk")}
	r := start(t, 1, sink, func(c *Config) { c.Start = arbiter.Live })
	r.send(0, packet(1, 2))
	r.send(0, packet(2, 3))
	r.until("the failure", func(s Status) bool { return s.QueueDropped > 0 })
	sink.mu.Lock()
	sink.openErr = nil
	sink.mu.Unlock()
	q := moldcast.Seq(3)
	r.until("a stored message", func(s Status) bool {
		r.send(0, packet(q, q+1))
		q++
		return s.Messages > 0
	})
}

func TestValidate(t *testing.T) {
	line := Line{Addr: netip.MustParseAddrPort("239.255.0.1:26400")}
	six := Line{Addr: netip.MustParseAddrPort("[ff02::1]:26400")}
	for name, cfg := range map[string]Config{
		"no line":      {},
		"same twice":   {Lines: []Line{line, line}},
		"IPv6":         {Lines: []Line{six}},
		"no port":      {Lines: []Line{line}, RerequestSource: true},
		"many":         {Lines: make([]Line, MaxLines+1)},
		"negative":     {Lines: []Line{line}, EndTimeout: -1},
		"no interface": {Lines: []Line{line}, Interface: "nosuch0"},
	} {
		_, err := New(cfg, &memSink{})
		if want := ErrConfig; name == "no interface" {
			if !errors.Is(err, mcast.ErrInterface) {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
