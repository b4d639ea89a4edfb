package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// streamPeer is the recovery stream of another node, in memory: it holds
// [first, head) of the session but the holes.
type streamPeer struct {
	mu          sync.Mutex
	first, head moldcast.Seq
	ended       bool
	holes       gap.Set
	lies        bool          // sends other messages
	cuts        []int         // the n-th connection ends after so many bytes; -1: it is refused
	mute        moldcast.Seq  // goes silent before this message; 0: never
	open        gap.Set       // what it waits for itself
	slow        time.Duration // between two writes of 100 bytes
	rejects     bool
	down        bool // connections are refused
	garbage     bool

	told   moldcast.Seq
	logins []moldcast.Seq
	conns  int
}

func (p *streamPeer) set(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
}

func (p *streamPeer) asked() []moldcast.Seq {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]moldcast.Seq(nil), p.logins...)
}

// dial is Config.DialRecovery over the peers, which are numbered.
func dialPeers(peers ...*streamPeer) func(context.Context, string) (net.Conn, error) {
	return func(_ context.Context, addr string) (net.Conn, error) {
		var i int
		_, _ = fmt.Sscan(addr, &i)
		p := peers[i]
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			return nil, errors.New("connection refused")
		}
		cut := 0
		if p.conns < len(p.cuts) {
			cut = p.cuts[p.conns]
		}
		p.conns++
		if cut < 0 {
			return nil, errors.New("connection refused")
		}
		a, b := net.Pipe()
		go p.serve(&cutConn{Conn: b, left: cut, cut: cut > 0})
		return a, nil
	}
}

// cutConn ends after so many bytes.
type cutConn struct {
	net.Conn
	left int
	cut  bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if !c.cut {
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b[:min(len(b), c.left)])
	if c.left -= n; c.left == 0 {
		c.Conn.Close()
		return n, net.ErrClosed
	}
	return n, err
}

func (p *streamPeer) serve(conn net.Conn) {
	defer conn.Close()
	clock := mcast.NewClock()
	m := soup.NewServer(clock.Now())
	var mu sync.Mutex // of m
	go func() {
		defer conn.Close()
		buf := make([]byte, 100)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			for b := buf[:n]; len(b) > 0; {
				k, login, err := m.Receive(clock.Now(), b)
				b = b[k:]
				if err != nil {
					mu.Unlock()
					return
				}
				if login != nil {
					p.login(m, login)
				}
			}
			mu.Unlock()
		}
	}()
	for {
		mu.Lock()
		if m.Poll(clock.Now()) != nil {
			mu.Unlock()
			return
		}
		p.fill(m)
		out := m.Output(clock.Now())
		if m.Serving() {
			out = append(out, p.data(clock.Now(), m)...)
		}
		closing := m.Closing()
		mu.Unlock()
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return
			}
		}
		if closing {
			return
		}
		pause := time.Millisecond
		if p.slow > 0 {
			pause = p.slow
		}
		time.Sleep(pause)
	}
}

func (p *streamPeer) login(m *soup.Server, l *soup.Login) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logins = append(p.logins, l.Seq)
	first := min(max(l.Seq, p.first), p.head)
	if part, hole := p.holes.Cut(moldcast.Range{First: first, Next: first + 1<<20}); hole {
		first = part.Next
	}
	switch {
	case p.rejects:
		m.Reject(soup.SessionNotAvailable)
	default:
		m.Accept(l.Session, first)
	}
}

// fill says what ends the stream.
func (p *streamPeer) fill(m *soup.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !m.Serving() {
		return
	}
	q := m.Next()
	if part, hole := p.holes.Cut(moldcast.Range{First: q, Next: p.head}); q < p.head && hole {
		m.Hole(part)
	} else if part, open := p.open.Cut(moldcast.Range{First: q, Next: p.head}); q < p.head && open && p.told != q {
		p.told = q
		m.Gap(part)
	} else if q == p.head && p.ended {
		m.End()
	}
}

func (p *streamPeer) data(now moldcast.Instant, m *soup.Server) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.garbage {
		return []byte("\x00\x00\x00")
	}
	limit := 40_000
	if p.slow > 0 {
		limit = 100
	}
	var framed []byte
	n := 0
	for q := m.Next(); q < p.head && len(framed) < limit && !p.holes.Contains(q) && !p.open.Contains(q) && q != p.mute; q++ {
		text := body(q)
		if p.lies {
			text = "lie" + text
		}
		framed = moldcast.AppendMessage(framed, []byte(text))
		n++
	}
	if n == 0 {
		return nil
	}
	m.Sent(now, n)
	out, _ := soup.AppendData(nil, moldcast.MessagesOf(framed, n))
	return out
}

// late is a channel without sockets in virtual time, whose one line the test
// plays; it has heard nothing below 10001.
type late struct {
	t    *testing.T
	c    *Channel
	sink *memSink
	head moldcast.Seq
	stop context.CancelFunc
	done chan Status
}

// virtual runs fn with one, in a bubble. servers: there are some, which answer
// nothing.
func virtual(t *testing.T, servers bool, tune func(*Config), fn func(l *late), peers ...*streamPeer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Lines: []Line{{}}, RecoveryThreshold: 1000, DialRecovery: dialPeers(peers...), Seed: 12}
		for i := range peers {
			cfg.Recovery = append(cfg.Recovery, fmt.Sprint(i))
		}
		if tune != nil {
			tune(&cfg)
		}
		cfg.EnsureDefaults()
		l := &late{t: t, sink: &memSink{}, head: 10001, done: make(chan Status, 1)}
		c := &Channel{
			cfg: cfg, sink: l.sink, clock: cfg.Clock, wake: mcast.NewWake(),
			ask: make(chan func()), ended: make(chan struct{}), stopped: make(chan struct{}), cold: newCold(),
		}
		if servers {
			c.servers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}
		}
		arb, err := arbiter.New(arbiter.Config{
			Lines: 1, Servers: len(c.servers), Start: cfg.Start,
			Gap: gap.Config{Budget: cfg.NakBudget},
		}, output{c})
		if err != nil {
			t.Fatal(err)
		}
		c.arb, l.c = arb, c
		ctx, cancel := context.WithCancel(context.Background())
		l.stop = cancel
		go func() {
			st, err := c.Run(ctx)
			if err != nil {
				t.Error(err)
			}
			l.done <- st
		}()
		defer cancel()
		l.send(2)
		fn(l)
		cancel()
		<-l.done
		time.Sleep(time.Second) // the peers notice
	})
}

// send plays n more messages on the line, a packet each.
func (l *late) send(n int) {
	for range n {
		l.offer(packet(l.head, l.head+1))
		l.head++
	}
}

func (l *late) offer(b []byte) {
	l.c.tell(func() {
		now := l.c.clock.Now()
		l.c.lastPacket = now
		l.c.arb.Offer(now, l.c.clock.Wall(), 0, netip.MustParseAddr("10.0.0.1"), b)
	})
}

func (l *late) status() Status {
	l.t.Helper()
	st, err := l.c.Status(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	return st
}

// until waits, in virtual time, while the line goes on.
func (l *late) until(what string, limit time.Duration, ok func(Status) bool) Status {
	l.t.Helper()
	for end := time.Now().Add(limit); ; {
		st := l.status()
		if ok(st) {
			return st
		}
		if time.Now().After(end) {
			l.t.Fatalf("not %s after %v: %+v, recovering %+v", what, limit, st.Counters, st.Recovering)
		}
		time.Sleep(50 * time.Millisecond)
		l.send(1)
	}
}

func (l *late) whole(limit time.Duration) Status {
	l.t.Helper()
	return l.until("whole", limit, func(st Status) bool {
		return len(st.Sessions) == 1 && st.Sessions[0].NextSeq == l.head && st.Sessions[0].Holes == 0
	})
}

// exactly checks that [first, head) is stored, each once, but for holes.
func (l *late) exactly(first moldcast.Seq, holes ...moldcast.Range) {
	l.t.Helper()
	l.c.tell(func() {
		x := l.sink.sessions[sess]
		want := uint64(l.head - first)
		for _, h := range holes {
			want -= h.Len()
		}
		if x.twice != 0 || x.set.Count() != want {
			l.t.Errorf("%d messages stored, %d twice; want %d: %v", x.set.Count(), x.twice, want, x.set.Ranges())
		}
		for q, m := range x.msgs {
			if m != body(q) {
				l.t.Fatalf("message %d is %q", q, m)
			}
		}
	})
}

// A node that starts late fetches the beginning while the line goes on; no
// request goes out for what the stream brings.
func TestRecoveryOfTheBeginning(t *testing.T) {
	p := &streamPeer{first: 1, head: 10003}
	virtual(t, true, nil, func(l *late) {
		st := l.whole(time.Minute)
		l.exactly(1)
		if st.Streamed < 10000 || st.MessagesRecovered != 10000 || st.GapsOpened != st.GapsRecovered || st.MessagesLost != 0 || len(st.Recovering) != 0 {
			t.Errorf("%+v, recovering %v", st.Counters, st.Recovering)
		}
		if got := p.asked(); !slices.Equal(got, []moldcast.Seq{10001, 1}) {
			t.Errorf("logins at %v", got)
		}
	}, p)
}

func TestRecoveryAsksForNothingThatIsStreamed(t *testing.T) {
	p := &streamPeer{first: 1, head: 10003, slow: 100 * time.Millisecond}
	virtual(t, true, nil, func(l *late) {
		before := l.until("streaming", time.Minute, func(st Status) bool { return len(st.Recovering) == 1 && st.Recovering[0].Messages > 0 })
		if r := before.Recovering; len(r) != 1 || r[0].State != fetchStreaming || r[0].Session != sess || r[0].Peer != "0" || r[0].LastSeq != 10000 || r[0].Messages == 0 {
			t.Fatalf("recovering %+v", before.Recovering)
		}
		time.Sleep(20 * time.Second)
		after := l.status()
		if after.NaksSent != before.NaksSent || after.Streamed < before.Streamed+500 || after.MessagesLost != 0 {
			t.Errorf("before %+v, after %+v", before.Counters, after.Counters)
		}
		// A gap that the threshold leaves to requests is asked for meanwhile.
		l.head += 20
		l.send(3)
		time.Sleep(time.Second)
		if st := l.status(); st.NaksSent == after.NaksSent {
			t.Errorf("a short gap was not asked for: %+v", st.Counters)
		}
	}, p)
}

// The stream is cut at every byte of it; what is fetched next is what is
// missing then.
func TestRecoveryStreamCutAtEveryByte(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 7
	}
	for cut := 1; cut < 33+60*17; cut += step {
		p := &streamPeer{first: 9941, head: 10003, cuts: []int{cut}}
		virtual(t, false, func(c *Config) { c.RecoveryThreshold = 20; c.Start = arbiter.Live }, func(l *late) {
			l.head = 10063
			p.set(func() { p.head = 10063 })
			l.send(3)
			l.whole(time.Minute)
			l.exactly(10001)
			if st := l.status(); st.Conflicts != 0 || st.MessagesLost != 0 {
				t.Errorf("cut at %d: %+v", cut, st.Counters)
			}
		}, p)
	}
}

// A peer that is silent holds nothing up: requests take over, then the next
// peer.
func TestRecoverySilentPeer(t *testing.T) {
	mute := &streamPeer{first: 1, head: 10003, mute: 500}
	virtual(t, true, nil, func(l *late) {
		l.until("silent", time.Minute, func(st Status) bool { return len(st.Recovering) == 1 && st.Recovering[0].State == fetchSilent })
		before := l.status().NaksSent
		time.Sleep(time.Second)
		if st := l.status(); st.NaksSent == before {
			t.Errorf("nothing is asked for: %+v", st.Counters)
		}
		mute.set(func() { mute.mute = 0 })
		l.until("streaming again", time.Second, func(st Status) bool {
			return len(st.Recovering) == 1 && st.Recovering[0].State == fetchStreaming || st.Sessions[0].NextSeq == l.head
		})
		l.whole(time.Minute)
		l.exactly(1)
		if n := len(mute.asked()); n != 2 { // one to compare
			t.Errorf("%d logins", n)
		}
	}, mute)

	mute, other := &streamPeer{first: 1, head: 10003, mute: 500}, &streamPeer{first: 1, head: 10003}
	virtual(t, false, nil, func(l *late) {
		l.whole(time.Minute)
		l.exactly(1)
		if len(other.asked()) == 0 {
			t.Error("the other peer was not asked")
		}
	}, mute, other)
}

// What a peer has is not held up by what it waits for itself.
func TestRecoveryAroundAnOpenGapOfThePeer(t *testing.T) {
	p := &streamPeer{first: 1, head: 1 << 40}
	p.open.Add(moldcast.Range{First: 10030, Next: 10060})
	virtual(t, true, func(c *Config) { c.Start = arbiter.Live; c.NakBudget = time.Hour }, func(l *late) {
		l.head = 16000
		l.send(2)
		l.until("the rest", 5*time.Second, func(st Status) bool { return st.MessagesRecovered == 16000-10003-30 })
		l.exactly(10001, moldcast.Range{First: 10030, Next: 10060})
		if n := len(p.asked()); n > 3 {
			t.Errorf("%d logins", n)
		}
		p.set(func() { p.open.Clear() })
		l.whole(time.Minute)
		l.exactly(10001)
	}, p)
}

// Peers with holes fill each other's; what no peer has is on record after the
// budget, and is fetched when one has it after all.
func TestRecoveryPeersWithHoles(t *testing.T) {
	hole := func(first, next moldcast.Seq) *streamPeer {
		p := &streamPeer{first: 1, head: 10003}
		p.holes.Add(moldcast.Range{First: first, Next: next})
		return p
	}
	a, b := hole(2000, 2100), hole(5000, 5100)
	virtual(t, false, nil, func(l *late) {
		l.whole(time.Minute)
		l.exactly(1)
	}, a, b)

	a = hole(2000, 2100)
	a.holes.Add(moldcast.Range{First: 1, Next: 11})
	virtual(t, false, nil, func(l *late) {
		st := l.until("lost", time.Minute, func(st Status) bool { return st.MessagesLost == 110 })
		l.exactly(1, moldcast.Range{First: 2000, Next: 2100}, moldcast.Range{First: 1, Next: 11})
		if st.Sessions[0].Holes != 2 {
			t.Errorf("%+v", st.Sessions)
		}
		l.c.tell(func() {
			if h := l.sink.sessions[sess].holes; len(h) != 2 {
				t.Errorf("holes %v", h)
			}
		})
		if n := len(a.asked()); n > 20 {
			t.Errorf("%d logins", n)
		}
		a.set(func() { a.holes.Clear() })
		l.whole(2 * time.Minute)
		l.exactly(1)
	}, a)
}

// Of a peer that holds other messages, of another take, nothing is stored, also
// where nothing is held before what is fetched: what is held behind it tells.
func TestRecoveryProvesAPeerFirst(t *testing.T) {
	lying, good := &streamPeer{first: 1, head: 20000, lies: true}, &streamPeer{first: 1, head: 20000}
	virtual(t, false, func(c *Config) { c.Start = arbiter.Beginning }, func(l *late) {
		st := l.whole(time.Minute)
		l.exactly(1)
		if st.Conflicts == 0 || st.Conflicts > overlap || st.MessagesLost != 0 {
			t.Errorf("%+v", st.Counters)
		}
		if got := lying.asked(); len(got) != 1 {
			t.Errorf("the liar was asked at %v", got)
		}
	}, lying, good)

	// One that has not come that far yet cannot be proven, and is of use.
	short := &streamPeer{first: 1, head: 10001}
	virtual(t, false, func(c *Config) { c.Start = arbiter.Beginning }, func(l *late) {
		l.whole(time.Minute)
		l.exactly(1)
	}, short)
}

// A peer that holds other messages changes nothing; nor does one that is no
// peer at all.
func TestRecoveryBadPeers(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  *streamPeer
		says func(Status) bool
	}{
		{"lying", &streamPeer{first: 1, head: 20000, lies: true}, func(st Status) bool { return st.Conflicts > 0 && st.Conflicts <= 2*overlap }},
		{"garbage", &streamPeer{first: 1, head: 20000, garbage: true}, func(st Status) bool { return st.Conflicts == 0 }},
		{"rejecting", &streamPeer{rejects: true}, func(st Status) bool { return st.Conflicts == 0 }},
		{"refusing", &streamPeer{cuts: []int{-1, -1, -1, -1, -1, -1, -1, -1}}, func(st Status) bool { return st.Conflicts == 0 }},
		{"behind", &streamPeer{first: 1, head: 9000}, func(st Status) bool { return st.Conflicts == 0 }},
		{"empty", &streamPeer{first: 15000, head: 15000, ended: true}, func(st Status) bool { return st.Conflicts == 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := &streamPeer{first: 1, head: 20000}
			virtual(t, false, func(c *Config) { c.Start = arbiter.Live }, func(l *late) {
				l.head += 5000 // a gap in the middle
				l.send(2)
				st := l.whole(time.Minute)
				l.exactly(10001)
				if !c.says(st) {
					t.Errorf("%+v", st.Counters)
				}
			}, c.bad, good)
		})
	}
}

// The stream is read as fast as the store takes it, and no faster; the line
// has its turn meanwhile.
func TestRecoveryFullStore(t *testing.T) {
	p := &streamPeer{first: 1, head: 10003}
	virtual(t, true, nil, func(l *late) {
		var n, refused int
		l.c.tell(func() {
			l.sink.refuse = func(p moldcast.Piece) bool {
				if n++; p.First < 10001 && n%7 != 0 {
					refused++
					return true
				}
				return false
			}
		})
		st := l.whole(10 * time.Minute)
		l.exactly(1)
		if refused == 0 || st.QueueDropped != 0 || st.MessagesLost != 0 {
			t.Errorf("%d refused: %+v", refused, st.Counters)
		}
	}, p)
}

// A quarter of the store's room is for streams: while more waits for the disk,
// they wait, and the line does not.
func TestRecoveryLeavesRoomForTheLines(t *testing.T) {
	p := &streamPeer{first: 1, head: 10003}
	virtual(t, true, func(c *Config) { c.RecoveryBytes = 1000; c.NakBudget = time.Hour }, func(l *late) {
		l.sink.trouble.Store(&Trouble{Waiting: 1001})
		time.Sleep(5 * time.Second)
		l.send(10)
		if st := l.status(); st.Streamed > overlap || st.Messages != 12 || len(st.Recovering) != 1 {
			t.Errorf("%+v, %v", st.Counters, st.Recovering)
		}
		l.sink.trouble.Store(&Trouble{Waiting: 1000})
		l.whole(time.Minute)
		l.exactly(1)
	}, p)
}

// Without servers every gap is fetched, the short ones in one go where they
// are near.
func TestRecoveryWithoutServers(t *testing.T) {
	p := &streamPeer{first: 1, head: 1 << 40, slow: 2 * time.Millisecond}
	virtual(t, false, func(c *Config) { c.Start = arbiter.Live }, func(l *late) {
		for range 20 {
			l.head += 3
			l.send(5)
		}
		st := l.whole(time.Minute)
		l.exactly(10001)
		if st.MessagesLost != 0 || st.NaksSent != 0 {
			t.Errorf("%+v", st.Counters)
		}
		if n := len(p.asked()); n > 3 {
			t.Errorf("%d logins for 20 gaps", n)
		}
	}, p)
}

// What requests do not bring is fetched, however short it is, before it is
// lost.
func TestRecoveryOfWhatRequestsDoNotBring(t *testing.T) {
	p := &streamPeer{first: 1, head: 1 << 40}
	virtual(t, true, func(c *Config) { c.Start = arbiter.Live }, func(l *late) {
		l.head += 3
		l.send(5)
		time.Sleep(time.Second)
		if n := len(p.asked()); n != 0 {
			t.Errorf("%d logins for a short gap at once", n)
		}
		st := l.whole(3 * time.Second)
		l.exactly(10001)
		if st.MessagesLost != 0 || st.NaksSent == 0 {
			t.Errorf("%+v", st.Counters)
		}
	}, p)
}

// What went missing just now is fetched before what is long missing.
func TestRecoveryOfLiveGapsFirst(t *testing.T) {
	p := &streamPeer{first: 1, head: 1 << 40, slow: 10 * time.Millisecond}
	virtual(t, true, nil, func(l *late) {
		l.until("streaming", time.Minute, func(st Status) bool { return st.Streamed > 100 })
		from := l.head
		l.head += 2000
		l.send(2)
		l.until("filled", 20*time.Second, func(st Status) bool {
			filled := false
			l.c.tell(func() {
				_, filled = l.sink.sessions[sess].set.Cut(moldcast.Range{First: from, Next: from + 2000})
				filled = filled && l.sink.sessions[sess].set.Contains(from+1999)
			})
			return filled
		})
		if st := l.status(); st.Sessions[0].NextSeq > 5000 {
			t.Errorf("the beginning went on meanwhile up to %d", st.Sessions[0].NextSeq)
		}
		l.whole(10 * time.Minute)
		l.exactly(1)
	}, p)
}

// A restarted sender ends the fetch of the take before: none of it comes into
// the new one.
func TestRecoveryEndsWithTheTake(t *testing.T) {
	p := &streamPeer{first: 1, head: 10003, slow: 100 * time.Millisecond}
	virtual(t, true, nil, func(l *late) {
		l.until("streaming", time.Minute, func(st Status) bool { return st.Streamed > 0 })
		p.set(func() { p.rejects = true })
		l.offer(other(10001, 10002, 10001))
		l.offer(other(10002, 10003, 10001))
		l.until("a take", time.Second, func(st Status) bool { return len(st.Sessions) == 2 })
		l.until("no fetch", 3*time.Second, func(st Status) bool { return len(st.Recovering) == 0 || st.Recovering[0].State == fetchConnecting })
		time.Sleep(5 * time.Second)
		l.c.tell(func() {
			for q, m := range l.sink.takes[1].msgs {
				if q < 10001 {
					t.Errorf("message %d %q of the new take", q, m)
				}
			}
		})
	}, p)
}

// A stop in the middle leaves nothing behind.
func TestRecoveryStops(t *testing.T) {
	p := &streamPeer{first: 1, head: 10003, slow: 100 * time.Millisecond}
	virtual(t, true, nil, func(l *late) {
		l.until("streaming", time.Minute, func(st Status) bool { return st.Streamed > 0 })
		l.stop()
		st := <-l.done
		l.done <- st
		if len(st.Recovering) != 0 {
			t.Errorf("%+v", st.Recovering)
		}
	}, p)
}
