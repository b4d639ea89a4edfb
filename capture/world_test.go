package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// A scenario is what befalls a whole channel in virtual time: its lines, its
// request servers, a peer, its sockets and its clock, over an in-memory
// network. Times are shares of the run, from the first message (0) to the last
// (1) of all sessions.
type scenario struct {
	name     string
	lines    []link
	servers  []serving
	peer     bool     // the recovery stream of a peer has everything
	sessions int      // one after the other; default 1
	steps    []step   // of the wall clock
	deaf     []window // reads of the lines fail: what comes meanwhile is gone
	refused  []window // the system refuses half of the requests
	dies     float64  // when the socket of the first line fails for good; 0: never
	slow     int      // so many times as long between messages
	tune     func(*Config)

	lost   func(*world) moldcast.Range // cannot be had; nil: nothing
	reason string                      // why it is degraded now and then, besides gaps
	check  func(*testing.T, *world)
	may
}

// may is what a scenario may cost, and a little.
type may struct {
	requests float64       // for each answer that is needed
	surplus  float64       // of the messages needed, those that come for nothing
	aside    float64       // of all messages, so many requests more, and six times as many messages for nothing
	after    time.Duration // until all is repaired, from the last message
	waiting  int           // bytes that early messages take up
}

type window struct{ from, to float64 }

// link is one line, from the sender to the socket.
type link struct {
	mcast.Impair
	pack  int           // messages of a packet; 0: 1 to 12
	delay time.Duration // behind the schedule
	down  []window
}

// serving is a request server.
type serving struct {
	deaf, mute, twice float64       // shares of requests not heard, of answers lost, and sent twice
	ring              moldcast.Seq  // how many of the newest it has; 0: all
	silent            []window      // it does nothing
	restart           float64       // from then on it has only what is sent later; 0: never
	think             time.Duration // before an answer
	lacks             []window      // messages, by their share of a session
}

type step struct {
	at float64
	by time.Duration
}

const (
	linkDelay  = 200 * time.Microsecond
	between    = 250 * time.Microsecond // messages
	mostAnswer = 20                     // messages of an answer
)

// world is a scenario under way.
type world struct {
	scenario
	t     *testing.T
	seed  uint64
	n     moldcast.Seq // messages of each session
	clock *steppedClock
	net   *mcast.Network
	sink  *memSink
	ch    *Channel
	ports []*port // of the lines, and of the answers

	stop chan struct{} // the senders have nothing more to do
	busy sync.WaitGroup

	mu   sync.Mutex
	head map[moldcast.Session]moldcast.Seq // one past the last that was sent
	low  moldcast.Seq                      // the first that a restarted server has of the first session
	seen map[moldcast.Session]*gap.Set     // what the lines brought
	late []uint64                          // packets that came out of order, by line

	most struct { // seen by the sampler
		waiting int
		gaps    int
		reasons map[string]bool
	}
	answered  atomic.Uint64 // messages that answers brought
	datagrams atomic.Uint64 // that the channel's sockets gave
	messages  atomic.Uint64 // in them

	status   Status
	repaired time.Duration // after the last message
}

// steppedClock is the system's, whose wall clock is set now and then.
type steppedClock struct {
	*mcast.SystemClock
	off atomic.Int64
}

func (c *steppedClock) Wall() moldcast.Stamp {
	return c.SystemClock.Wall() + moldcast.Stamp(c.off.Load())
}

func sessionOf(i int) moldcast.Session {
	s := sess
	if i > 0 {
		s[4] = byte('0' + i)
	}
	return s
}

func packetOf(s moldcast.Session, first, next moldcast.Seq) []byte {
	b := packet(first, next)
	copy(b, s[:])
	return b
}

func (w *world) gap() time.Duration { return between * time.Duration(w.slow) }

// length of the run.
func (w *world) length() time.Duration {
	return w.gap() * time.Duration(w.n) * time.Duration(w.sessions)
}

func (w *world) share() float64 { return float64(w.clock.Now()) / float64(w.length()) }

func (w *world) in(ws []window) bool {
	at := w.share()
	for _, x := range ws {
		if at >= x.from && at < x.to {
			return true
		}
	}
	return false
}

// messagesOf is a share of the messages of a session.
func (w *world) messagesOf(x window) moldcast.Range {
	at := func(f float64) moldcast.Seq { return 1 + moldcast.Seq(f*float64(w.n)) }
	return moldcast.Range{First: at(x.from), Next: at(x.to)}
}

// until sleeps until a time from the start.
func (w *world) until(d time.Duration) { time.Sleep(d - time.Duration(w.clock.Now())) }

// run plays x with n messages of each session.
func (x scenario) run(t *testing.T, seed uint64, n moldcast.Seq) {
	synctest.Test(t, func(t *testing.T) {
		x.sessions, x.slow = max(x.sessions, 1), max(x.slow, 1)
		w := &world{
			scenario: x, t: t, seed: seed, n: n, sink: &memSink{}, stop: make(chan struct{}),
			clock: &steppedClock{SystemClock: mcast.NewClock()},
			head:  map[moldcast.Session]moldcast.Seq{}, seen: map[moldcast.Session]*gap.Set{},
		}
		w.most.reasons = map[string]bool{}
		w.open()
		for i, l := range w.lines {
			w.busy.Go(func() { w.send(i, l) })
		}
		w.busy.Go(func() {
			for _, s := range w.steps {
				w.until(time.Duration(s.at * float64(w.length())))
				w.clock.off.Add(int64(s.by))
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ran := make(chan struct{})
		go func() {
			defer close(ran)
			var err error
			if w.status, err = w.ch.Run(ctx); err != nil && (w.dies == 0 || !errors.Is(err, errDead)) {
				t.Error(err)
			}
		}()
		if w.dies > 0 {
			<-ran
		} else {
			w.watch()
		}
		cancel()
		<-ran
		close(w.stop)
		w.busy.Wait()
		if w.dies > 0 {
			w.failed()
		} else {
			w.verdict()
		}
		time.Sleep(time.Second) // the peer notices
	})
}

// open makes the channel, over sockets of the network.
func (w *world) open() {
	t := w.t
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.net, err = mcast.NewNetwork(mcast.NetworkConfig{Latency: linkDelay, Clock: w.clock})
	must(err)
	cfg := Config{
		Channel: "test", Log: slog.New(slog.DiscardHandler), Clock: w.clock, Seed: w.seed,
		NakBudget: time.Minute, RingSlots: 1024,
	}
	for i := range w.lines {
		cfg.Lines = append(cfg.Lines, Line{Addr: group(i)})
	}
	for i, s := range w.servers {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}), 26401)
		cfg.Rerequest = append(cfg.Rerequest, at)
		e, err := w.net.Listen(mcast.ListenConfig{Addr: at})
		must(err)
		w.busy.Go(func() { w.serve(i, s, e) })
		go func() { <-w.stop; e.Close() }()
	}
	if w.peer {
		p := &streamPeer{first: 1, head: w.n + 1, ended: true}
		cfg.Recovery, cfg.RecoveryThreshold, cfg.DialRecovery = []string{"0"}, 500, dialPeers(p)
	}
	if w.tune != nil {
		w.tune(&cfg)
	}
	w.ch, err = newChannel(cfg, w.sink)
	must(err)
	c := w.ch
	for i, l := range c.cfg.Lines {
		e, err := w.net.Listen(mcast.ListenConfig{Addr: l.Addr})
		must(err)
		p := &port{Endpoint: e, w: w, line: i}
		w.ports = append(w.ports, p)
		c.lines = append(c.lines, &tap{Tap: mcast.NewTap(p, i), rx: mcast.StartRX(p, c.newRing(), c.wake, c.cfg.Log), most: len(c.cfg.Lines)})
	}
	if len(w.servers) > 0 {
		e, err := w.net.Listen(mcast.ListenConfig{})
		must(err)
		p := &port{Endpoint: e, w: w, line: -1, rng: rand.New(rand.NewPCG(w.seed, 3))}
		w.ports = append(w.ports, p)
		c.asks = mcast.StartRX(p, c.newRing(), c.wake, c.cfg.Log)
	}
}

func group(line int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{239, 255, 0, byte(line + 1)}), 26400)
}

// send is the sender of one line.
func (w *world) send(line int, l link) {
	rng := rand.New(rand.NewPCG(w.seed, uint64(line)))
	l.Seed = w.seed*16 + uint64(line)
	m, err := mcast.NewImpairment(l.Impair)
	if err != nil {
		w.t.Error(err)
		return
	}
	out, err := w.net.Dial(mcast.SendConfig{Addr: group(line)})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer out.Close()
	emit := func(b []byte) { _, _ = out.Send([][]byte{b}) }
	at := l.delay
	for i := range w.sessions {
		s := sessionOf(i)
		for q := moldcast.Seq(1); q <= w.n; {
			pack := moldcast.Seq(l.pack)
			if pack == 0 {
				pack = moldcast.Seq(1 + rng.IntN(12))
			}
			next := min(q+pack, w.n+1)
			at += w.gap() * time.Duration(next-q)
			w.until(at)
			w.mu.Lock()
			w.head[s] = max(w.head[s], next)
			w.mu.Unlock()
			if !w.in(l.down) {
				m.Apply(packetOf(s, q, next), emit)
			}
			q = next
		}
		m.Flush(emit)
		emit(moldcast.AppendHeader(nil, s, w.n+1, moldcast.EndCount))
	}
	w.mu.Lock()
	w.late = append(w.late, m.Counters().Reordered)
	w.mu.Unlock()
	for {
		for i := range w.sessions {
			if !w.in(l.down) {
				emit(moldcast.AppendHeader(nil, sessionOf(i), w.n+1, moldcast.EndCount))
			}
		}
		select {
		case <-w.stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serve answers requests.
func (w *world) serve(i int, x serving, e *mcast.Endpoint) {
	rng := rand.New(rand.NewPCG(w.seed, uint64(100+i)))
	low := map[moldcast.Session]moldcast.Seq{} // of its ring, since it was restarted
	if x.restart > 0 {
		w.busy.Go(func() {
			w.until(time.Duration(x.restart * float64(w.length())))
			w.mu.Lock()
			defer w.mu.Unlock()
			maps.Copy(low, w.head)
			w.low = low[sess]
		})
	}
	ds := make([]mcast.Datagram, mcast.BatchSize)
	for {
		n, err := e.ReadBatch(ds)
		if err != nil {
			return
		}
		time.Sleep(x.think)
		for _, d := range ds[:n] {
			r, err := moldcast.ParseRequest(d.Data)
			if err != nil {
				w.t.Errorf("request %x: %v", d.Data, err)
				continue
			}
			w.mu.Lock()
			head, first := w.head[r.Session], max(low[r.Session], 1)
			w.mu.Unlock()
			if x.ring > 0 && head > x.ring {
				first = max(first, head-x.ring)
			}
			heard, brought, twice := rng.Float64() >= x.deaf, rng.Float64() >= x.mute, rng.Float64() < x.twice
			if w.in(x.silent) || !heard || !brought || r.First < first || r.First >= head {
				continue
			}
			next, lacking := min(r.Range().Next, head, r.First+mostAnswer), false
			for _, l := range x.lacks {
				l := w.messagesOf(l)
				lacking = lacking || l.Contains(r.First)
				if l.First > r.First {
					next = min(next, l.First)
				}
			}
			if lacking {
				continue
			}
			b := packetOf(r.Session, r.First, next)
			for range 1 + map[bool]int{true: 1}[twice] {
				_, _ = e.WriteBatch([]mcast.Datagram{{Data: b, Dst: d.Src}})
			}
		}
	}
}

var errDead = os.NewSyscallError("recvmmsg", syscall.EBADF)

// port is a socket of the channel: it fails by the script, and counts what it
// gives.
type port struct {
	*mcast.Endpoint
	w          *world
	line       int // -1: of answers
	rng        *rand.Rand
	gone       atomic.Uint64
	readErrors atomic.Uint64
	refusals   atomic.Uint64
}

func (p *port) Counters() mcast.Counters {
	c := p.Endpoint.Counters()
	c.KernelDropped += p.gone.Load()
	c.ReadErrors += p.readErrors.Load()
	c.SendErrors += p.refusals.Load()
	return c
}

// ReadBatch survives errors as a socket must: with a pause, and a count.
func (p *port) ReadBatch(ds []mcast.Datagram) (int, error) {
	for {
		n, err := p.Endpoint.ReadBatch(ds)
		if err != nil {
			return 0, err
		}
		if p.line == 0 && p.w.dies > 0 && p.w.share() >= p.w.dies {
			return 0, errDead
		}
		if p.line >= 0 && p.w.in(p.w.deaf) {
			p.readErrors.Add(1)
			p.gone.Add(uint64(n))
			time.Sleep(10 * time.Millisecond)
			continue
		}
		for i := range ds[:n] {
			p.note(ds[i].Data)
		}
		return n, nil
	}
}

func (p *port) note(b []byte) {
	w := p.w
	w.datagrams.Add(1)
	m, err := moldcast.Parse(b)
	if err != nil {
		w.t.Errorf("datagram %x: %v", b, err)
		return
	}
	if m.Kind != moldcast.Data {
		return
	}
	n := uint64(m.Msgs.Len())
	w.messages.Add(n)
	if p.line < 0 {
		w.answered.Add(n)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	set := w.seen[m.Session]
	if set == nil {
		set = &gap.Set{}
		w.seen[m.Session] = set
	}
	set.Add(m.Range())
}

// WriteBatch skips what is refused, as a socket must.
func (p *port) WriteBatch(ds []mcast.Datagram) (sent int, first error) {
	for i := range ds {
		if p.w.in(p.w.refused) && p.rng.Float64() < 0.5 {
			p.refusals.Add(1)
			if first == nil {
				first = syscall.ENOBUFS
			}
			continue
		}
		n, err := p.Endpoint.WriteBatch(ds[i : i+1])
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, first
}

// watch looks at the channel until all sessions have ended and nothing is
// missing that can be had.
func (w *world) watch() {
	holes := 0
	if w.lost != nil {
		holes = 1
	}
	for limit := w.length() + w.after; ; {
		st, err := w.ch.Status(context.Background())
		if err != nil {
			w.t.Error(err)
			return
		}
		w.ch.tell(func() {
			_, bytes := w.ch.arb.Waiting()
			w.most.waiting = max(w.most.waiting, bytes)
		})
		if st.Open != nil {
			w.most.gaps = max(w.most.gaps, st.Open.Gaps)
		}
		for _, r := range st.Reasons {
			w.most.reasons[r.Reason] = true
		}
		done := 0
		for _, s := range st.Sessions {
			if s.State == "ended" && s.HeadSeq == w.n+1 && s.Holes == holes {
				done++
			}
		}
		now := time.Duration(w.clock.Now())
		w.repaired = now - w.length()
		if done == w.sessions && now >= w.length() && st.Open == nil {
			return
		}
		if now > limit {
			w.t.Errorf("not repaired %v after the last message, of which %v may pass: %+v, open %+v", w.repaired, w.after, st.Sessions, st.Open)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// failed checks how a channel ends whose socket did: with the error, and what
// was stored until then.
func (w *world) failed() {
	x := w.sink.sessions[sess]
	n := moldcast.Seq(len(x.msgs))
	if st := w.status; st.State != StateFailed || !strings.Contains(st.Error, errDead.Error()) || !strings.Contains(st.Error, group(0).String()) || st.Messages != uint64(n) {
		w.t.Errorf("status %+v", st)
	}
	if least := moldcast.Seq(w.dies * float64(w.n) * 0.9); n < least || n == w.n || x.twice != 0 || x.closed != 1 {
		w.t.Errorf("%d messages stored, %d of them twice; closed %d times", n, x.twice, x.closed)
	}
	for q := range n {
		if x.msgs[q+1] != body(q+1) {
			w.t.Fatalf("message %d of %d is %q", q+1, n, x.msgs[q+1])
		}
	}
}

// verdict checks what is true of every scenario, and its own bounds.
func (w *world) verdict() {
	t, st := w.t, w.status
	var cannot gap.Set
	if w.lost != nil {
		cannot.Add(w.lost(w))
	}
	// What is stored is what was published.
	if len(w.sink.takes) != w.sessions {
		t.Errorf("%d takes were recorded, want %d", len(w.sink.takes), w.sessions)
	}
	n := st.Counters
	var stored, missing, needed uint64
	for i := range w.sessions {
		x := w.sink.sessions[sessionOf(i)]
		if x == nil {
			t.Fatalf("session %d is not there", i)
		}
		if x.twice != 0 || x.closed != 1 {
			t.Errorf("%d messages of session %d were stored twice; it was closed %d times", x.twice, i, x.closed)
		}
		for q := moldcast.Seq(1); q <= w.n; q++ {
			if got, ok := x.msgs[q]; ok != !cannot.Contains(q) || ok && got != body(q) {
				t.Fatalf("message %d of session %d is %q, %v; cannot be had: %v; holes %v; %+v", q, i, got, ok, cannot.Ranges(), x.set.Missing(x.set.Bounds()), n)
			}
		}
		if want := uint64(w.n) - cannot.Count(); uint64(len(x.msgs)) != want {
			t.Errorf("%d messages of session %d are stored, want %d", len(x.msgs), i, want)
		}
		stored += uint64(len(x.msgs))
		seen := w.seen[sessionOf(i)]
		if seen == nil {
			seen = &gap.Set{}
		}
		for _, r := range seen.Missing(moldcast.Range{First: 1, Next: w.n + 1}) {
			missing += r.Len()
			needed += (r.Len() + mostAnswer - 1) / mostAnswer
		}
		if m := x.marks[len(x.marks)-1]; m.Kind != moldcast.End || m.Next != w.n+1 {
			t.Errorf("the last mark of session %d is %+v", i, m)
		}
	}
	// Every datagram and message is in one counter.
	if got := n.Packets + n.Malformed + n.Implausible + n.WrongSession; got != w.datagrams.Load() {
		t.Errorf("%d datagrams counted, %d came: %+v", got, w.datagrams.Load(), n)
	}
	got := n.Messages + n.Duplicates + n.Conflicts + n.QueueDropped + n.Unasked
	if came := w.messages.Load() + n.Streamed + n.Retaken + n.Copied; n.Malformed+n.Implausible+n.WrongSession == 0 && got != came {
		t.Errorf("%d messages counted, %d came: %+v", got, came, n)
	}
	if n.InOrder+n.Early+n.Filled+n.Stale != n.Messages || n.Messages != stored {
		t.Errorf("verdicts do not add up to %d stored: %+v", stored, n)
	}
	if lost := cannot.Count(); n.MessagesLost != lost || n.Conflicts+n.QueueDropped+n.Malformed+n.WrongSession+n.Uncompared != 0 {
		t.Errorf("want %d messages lost, and nothing in conflict or dropped: %+v", lost, n)
	}
	if left, bytes := w.ch.arb.Waiting(); left != 0 || bytes != 0 || w.ch.arb.HeldPackets() != 0 {
		t.Errorf("%d messages, %d bytes, %d packets still wait", left, bytes, w.ch.arb.HeldPackets())
	}
	for r := range w.most.reasons {
		if r != ReasonGap && r != w.reason {
			t.Errorf("it was degraded: %s", r)
		}
	}
	if w.reason != "" && !w.most.reasons[w.reason] {
		t.Errorf("it was never degraded for the reason %s", w.reason)
	}
	// What it cost. What came late on all lines is needed, and comes twice.
	late := slices.Min(w.late)
	all := w.aside * float64(w.n) * float64(w.sessions)
	needed += late
	asks := uint64(w.requests*float64(needed)+all) + 20
	surplus := w.answered.Load() + n.Streamed + cannot.Count() - missing
	extra := uint64(w.surplus*float64(missing+7*late)+6*all) + 40
	t.Logf("%d messages missing, in %d answers; %d requests of %d, %d messages for nothing of %d, repaired after %v of %v; %d bytes waited, %d gaps at once",
		missing, needed, n.NaksSent, asks, surplus, extra, w.repaired.Truncate(time.Millisecond), w.after, w.most.waiting, w.most.gaps)
	if n.NaksSent > asks || surplus > extra || w.most.waiting > w.waiting {
		t.Errorf("it cost too much")
	}
	if w.check != nil {
		w.check(t, w)
	}
}

// scenarioSize is how many messages a session has, and how many seeds are
// played.
func scenarioSize() (n moldcast.Seq, seeds int) {
	if os.Getenv("MOLDTAPE_LONG") != "" {
		return 20_000, 3
	}
	return 12_000, 1
}

func TestScenarios(t *testing.T) {
	n, seeds := scenarioSize()
	for _, x := range scenarios() {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", x.name, seed+1), func(t *testing.T) { x.run(t, uint64(seed+1), n) })
		}
	}
}
