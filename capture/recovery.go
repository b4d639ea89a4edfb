package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Recovery mode: a gap longer than Config.RecoveryThreshold, or one that
// requests have not filled in stuckAfter, is fetched from the recovery stream of
// a peer. The engine decides what to fetch from whom; a fetch is one connection
// with a goroutine of its own. What it brings goes to the engine in chunks, each
// waited for, so that the network is read no faster than the store takes it, and
// with part of the store's room only. While a stream brings a range, that is
// reserved: no request is sent for it. Whatever goes wrong, the range is
// released, requests take over where there are servers, and the next peer is
// tried, each after a back-off of its own. What is fetched is always what is
// missing then, so there is nothing to resume.

const (
	stuckAfter     = moldcast.Instant(2 * time.Second)
	maxFetches     = 4 // at once, of one channel
	scanEvery      = moldcast.Instant(100 * time.Millisecond)
	peerBackoff    = 100 * time.Millisecond            // after a failure, doubled each time, with jitter …
	peerBackoffMax = 10 * time.Second                  // … up to this
	liarBackoff    = time.Minute                       // after other messages than we hold
	lacksMin       = moldcast.Instant(5 * time.Second) // so long a peer is not asked again for what it lacks, doubled …
	lacksMax       = moldcast.Instant(5 * time.Minute) // … up to this while it brings nothing
	maxLacks       = 1024                              // ranges that a peer is remembered to lack
	overlap        = 16                                // messages before a range that are fetched too, and behind it that are compared first, to see that the peer holds the same
)

// recovery is what the engine keeps of recovery mode.
type recovery struct {
	fetches  []*fetch
	nextScan moldcast.Instant
	alarm    moldcast.Instant // when a failure may be logged again
	owed     owed
	bulk     chan func() // what fetches have for the engine
	running  sync.WaitGroup
	cancel   context.CancelFunc
	ctx      context.Context
}

// peer is what is known of a peer for one session.
type peer struct {
	fails   int
	retryAt moldcast.Instant
	lacks   gap.Set // what it does not hold …
	until   moldcast.Instant
	wait    moldcast.Instant // how long that is
	other   bool             // it held other messages, when it was asked last
	proven  bool             // what it held behind a gap was what we hold
}

// The states of a fetch.
const (
	fetchConnecting = "connecting"
	fetchStreaming  = "streaming"
	fetchSilent     = "silent" // the peer has nothing to send; requests take over
)

// fetch is one connection to a peer. The engine owns it but for what run
// keeps to itself.
type fetch struct {
	c      *Channel
	s      *arbiter.Session
	name   moldcast.Session
	addr   string
	peer   int
	from   moldcast.Seq   // where the login asks to begin
	proof  moldcast.Range // what is compared before, if anything
	rng    moldcast.Range // what is left
	state  string
	since  time.Time
	taken  uint64           // messages that were missing
	claim  moldcast.Range   // what is reserved
	live   bool             // rng went missing in this run
	looked moldcast.Instant // when it was last seen that rng is still what to fetch
}

// Recovering is a range that a recovery stream brings, in Status.
type Recovering struct {
	Session  moldcast.Session `json:"session"`
	Peer     string           `json:"peer"`
	State    string           `json:"state"`     // connecting, streaming, silent
	FirstSeq moldcast.Seq     `json:"first_seq"` // what is left of it
	LastSeq  moldcast.Seq     `json:"last_seq"`
	Since    time.Time        `json:"since"`
	Messages uint64           `json:"messages"` // that were missing, so far
}

func (c *Channel) recovering() []Recovering {
	out := []Recovering{}
	for _, f := range c.recovery.fetches {
		out = append(out, Recovering{f.name, f.addr, f.state, f.rng.First, f.rng.Next - 1, f.since.UTC(), f.taken})
	}
	return out
}

// startRecovery makes ready for fetches; without peers there are none.
func (c *Channel) startRecovery() {
	k := &c.recovery
	k.nextScan = gap.Never
	k.bulk = make(chan func())
	k.ctx, k.cancel = context.WithCancel(context.Background())
	if len(c.cfg.Recovery) > 0 {
		k.nextScan = c.clock.Now()
	}
}

// stopRecovery ends all fetches; the engine has ended.
func (c *Channel) stopRecovery() {
	c.recovery.cancel()
	c.recovery.running.Wait()
	c.recovery.fetches = nil
}

// overloaded reports that what comes on the lines needs the engine more than
// what is fetched does.
func (c *Channel) overloaded() bool {
	for _, t := range c.lines {
		if t.rx.Ring().Len() > c.cfg.RingSlots/4 {
			return true
		}
	}
	return false
}

// scan begins the fetches that are due.
func (c *Channel) scan(now moldcast.Instant) {
	k := &c.recovery
	if now < k.nextScan {
		return
	}
	k.nextScan = now + scanEvery
	for _, s := range c.arb.Sessions() {
		if len(k.fetches) >= maxFetches {
			return
		}
		x, ok := s.Ref.(*session)
		if !ok || slices.ContainsFunc(k.fetches, func(f *fetch) bool { return f.s == s }) {
			continue
		}
		if s.Stats().MessagesMissing == 0 {
			continue
		}
		for range c.peersOf(x) {
			i := x.turn
			if r, live := c.pick(now, s, &x.peers[i]); !r.Empty() {
				c.fetch(s, i, r, live)
				break
			}
			x.turn = (x.turn + 1) % len(x.peers)
		}
	}
}

// threshold is how long a gap must be to be fetched, and longer: without
// servers to ask there is no other way for short ones.
func (c *Channel) threshold() uint64 {
	if len(c.servers) == 0 {
		return 0
	}
	return c.cfg.RecoveryThreshold
}

// pick is the range that a peer is asked for next: the lowest of what went
// missing in this run (live), then the lowest of the rest.
func (c *Channel) pick(now moldcast.Instant, s *arbiter.Session, p *peer) (best moldcast.Range, live bool) {
	if now < p.retryAt {
		return best, false
	}
	return c.wanted(now, s, p)
}

// wanted is pick of a peer that may be asked.
func (c *Channel) wanted(now moldcast.Instant, s *arbiter.Session, p *peer) (best moldcast.Range, live bool) {
	if now >= p.until {
		p.lacks.Clear()
	}
	least := c.threshold()
	var r, rest moldcast.Range
	stuck := false
	settle := func() bool { // r is whole
		for !r.Empty() {
			part, lacks := r, false
			if p.lacks.Len() > 0 {
				part, lacks = p.lacks.Cut(r)
			}
			r.First = part.Next
			switch {
			case lacks || part.Len() <= least && !stuck:
			case live:
				best = part
				return true
			case rest.Empty():
				rest = part
			}
		}
		return false
	}
	s.Gaps(func(g gap.Gap) bool {
		if !g.Settled {
			return true
		}
		fresh, old := !g.Background && !g.Lost, now-g.Opened >= stuckAfter
		if g.First == r.Next && !r.Empty() {
			r.Next = g.Next
			live, stuck = live || fresh, stuck || old
			return true
		}
		if settle() {
			return false
		}
		r, live, stuck = g.Range, fresh, old
		return true
	})
	if !best.Empty() || settle() {
		return best, true
	}
	return rest, false
}

// lacking reports whether any of r is missing.
func lacking(s *arbiter.Session, r moldcast.Range) (any bool) {
	s.Gaps(func(g gap.Gap) bool {
		any = !g.Intersect(r).Empty()
		return !any && g.First < r.Next
	})
	return any
}

// held is the first of the messages right before seq that are held, overlap at
// most; seq itself if none is.
func held(s *arbiter.Session, seq moldcast.Seq) moldcast.Seq {
	from := max(s.First(), seq-min(seq, overlap), 1)
	s.Gaps(func(g gap.Gap) bool {
		if g.First < seq {
			from = max(from, min(g.Next, seq))
		}
		return g.Next < seq
	})
	return from
}

// behind is the messages from seq on that are held, overlap at most.
func behind(s *arbiter.Session, seq moldcast.Seq) moldcast.Range {
	r := moldcast.Range{First: seq, Next: min(s.Head(), seq+overlap)}
	s.Gaps(func(g gap.Gap) bool {
		if g.Next > seq {
			r.Next = min(r.Next, max(g.First, seq))
		}
		return g.Next <= seq
	})
	return r
}

// fetch begins one.
func (c *Channel) fetch(s *arbiter.Session, i int, r moldcast.Range, live bool) {
	now := c.clock.Now()
	f := &fetch{
		c: c, s: s, name: s.Name(), addr: c.cfg.Recovery[i], peer: i, rng: r, state: fetchConnecting, since: time.Now(), looked: now, live: live,
		from: held(s, r.First),
	}
	if !s.Ref.(*session).peers[i].proven {
		// One with another take is else found out only when all of that is stored.
		f.proof = behind(s, r.Next)
	}
	c.recovery.fetches = append(c.recovery.fetches, f)
	c.recovery.running.Go(func() { f.run(c.recovery.ctx) })
	c.cfg.Log.Log(context.Background(), f.level(), "recovery: a gap is fetched", "channel", c.cfg.Channel, "session", f.name, "range", r, "messages", r.Len(), "peer", f.addr)
}

// outcome is how a fetch ended.
type outcome struct {
	err   error            // the peer is left alone for a while
	lacks []moldcast.Range // what it does not hold, or not yet
}

// ended forgets a fetch. Owner: the engine.
func (f *fetch) ended(o outcome) {
	c := f.c
	now := c.clock.Now()
	f.reserve(now, moldcast.Range{})
	c.recovery.fetches = slices.DeleteFunc(c.recovery.fetches, func(o *fetch) bool { return o == f })
	c.recovery.nextScan = now
	x, ok := f.s.Ref.(*session)
	if !ok {
		return
	}
	p := &x.peers[f.peer]
	if f.taken > 0 {
		p.wait = 0
	}
	p.note(now, o.lacks)
	p.other = errors.Is(o.err, errOther)
	if o.err == nil {
		p.fails = 0
		c.cfg.Log.Log(context.Background(), f.level(), "recovery: the stream was left", "channel", c.cfg.Channel, "session", f.name, "peer", f.addr,
			"messages", f.taken, "left", f.rng.Len(), "peer_lacks", fmt.Sprint(o.lacks))
		return
	}
	if f.taken > 0 {
		p.fails = 0
	}
	wait := min(peerBackoff<<min(p.fails, 10), peerBackoffMax)
	wait = wait/2 + rand.N(wait)
	switch {
	case p.other:
		wait, p.proven = liarBackoff, false
	case errors.Is(o.err, errMute): // it may have what follows
		p.note(now, []moldcast.Range{{First: f.rng.First, Next: min(f.rng.Next, f.rng.First+moldcast.Seq(c.cfg.RecoveryThreshold))}})
	}
	p.fails++
	p.retryAt = now + moldcast.Instant(wait)
	x.turn = (f.peer + 1) % len(x.peers)
	if p.fails == 1 || c.alarm(&c.recovery.alarm) {
		c.cfg.Log.Warn("recovery: the stream broke off; the next peer is tried", "channel", c.cfg.Channel, "session", f.name, "peer", f.addr, "err", o.err,
			"messages", f.taken, "left", f.rng.Len(), "again_after", wait.Round(time.Millisecond))
	}
}

// note takes note of what a peer lacks.
func (p *peer) note(now moldcast.Instant, lacks []moldcast.Range) {
	for _, r := range lacks {
		if p.lacks.Len() == 0 {
			p.wait = min(max(2*p.wait, lacksMin), lacksMax)
			p.until = now + p.wait
		}
		if p.lacks.Len() >= maxLacks {
			p.lacks.Add(p.lacks.Bounds())
		}
		p.lacks.Add(r)
	}
}

// level is that of what is logged about f: short gaps come and go.
func (f *fetch) level() slog.Level {
	if f.rng.Len()+f.taken > f.c.cfg.RecoveryThreshold {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// reserve reserves r instead of what was. Owner: the engine.
func (f *fetch) reserve(now moldcast.Instant, r moldcast.Range) {
	if !f.claim.Empty() {
		f.s.Release(now, f.claim)
	}
	if f.claim = r; !r.Empty() {
		f.s.Reserve(now, r)
	}
}

// begins takes note that the peer will send from first on. on: it is of use.
// Owner: the engine.
func (f *fetch) begins(first moldcast.Seq) (o outcome, on bool) {
	now := f.c.clock.Now()
	switch {
	case first < f.from:
		return outcome{err: errBehind}, false
	case first >= f.rng.Next:
		return outcome{lacks: []moldcast.Range{f.rng}}, false
	case first > f.rng.First:
		o.lacks = append(o.lacks, moldcast.Range{First: f.rng.First, Next: first})
		f.rng.First = first
	}
	f.state = fetchStreaming
	f.reserve(now, f.rng)
	return o, true
}

// messages takes a chunk. on: there is more to fetch. Owner: the engine.
func (f *fetch) messages(first moldcast.Seq, msgs moldcast.Messages) (taken int, on bool, err error) {
	c := f.c
	now := c.clock.Now()
	if x, ok := f.s.Ref.(*session); ok && x.sink.Trouble().Waiting > c.cfg.RecoveryBytes {
		return 0, true, nil // what room is left is for the lines
	}
	out := c.arb.OfferStream(now, c.clock.Wall(), f.s, first, msgs)
	f.taken += out.New
	switch {
	case out.Gone:
		return 0, false, errGone
	case out.Conflicts > 0:
		return out.Taken, false, errOther
	}
	at := first + moldcast.Seq(out.Taken)
	f.rng.First = min(max(f.rng.First, at), f.rng.Next)
	if f.rng.Empty() {
		return out.Taken, f.next(now, at), nil
	}
	f.state = fetchStreaming
	if f.claim.Empty() {
		f.reserve(now, f.rng)
	}
	if now >= f.looked+scanEvery {
		f.looked = now
		if !lacking(f.s, f.rng) {
			return out.Taken, false, nil // others brought it
		}
		if !f.live {
			// What went missing just now goes before what is long missing.
			if r, live := c.pick(now, f.s, f.of()); live && r.Intersect(f.rng).Empty() {
				return out.Taken, false, nil
			}
		}
	}
	return out.Taken, true, nil
}

// compare takes messages that are held already. Owner: the engine.
func (f *fetch) compare(first moldcast.Seq, msgs moldcast.Messages) error {
	switch out := f.c.arb.OfferStream(f.c.clock.Now(), f.c.clock.Wall(), f.s, first, msgs); {
	case out.Gone:
		return errGone
	case out.Conflicts > 0:
		return errOther
	}
	f.of().proven = true
	return nil
}

// of is what is known of the peer. The session must be open.
func (f *fetch) of() *peer { return &f.s.Ref.(*session).peers[f.peer] }

// next looks whether what is to be fetched next lies so near that reading on
// is cheaper than another login. Owner: the engine.
func (f *fetch) next(now moldcast.Instant, at moldcast.Seq) bool {
	r, live := f.c.pick(now, f.s, f.of())
	if r.Empty() || r.First < at || uint64(r.First-at) > f.c.cfg.RecoveryThreshold {
		return false
	}
	f.rng, f.live = r, live
	f.reserve(now, r)
	return true
}

// silent takes note that the peer has had nothing to send for a while. Owner:
// the engine.
func (f *fetch) silent() {
	f.state = fetchSilent
	f.reserve(f.c.clock.Now(), moldcast.Range{})
}

// gap takes note that the peer waits for r itself. on: nothing else can be had
// from it, so wait too. Owner: the engine.
func (f *fetch) gap(r moldcast.Range) (on bool) {
	f.silent()
	if _, ok := f.s.Ref.(*session); !ok {
		return false
	}
	now := f.c.clock.Now()
	p := f.of()
	p.note(now, []moldcast.Range{r})
	next, _ := f.c.pick(now, f.s, p)
	return next.Empty()
}

// tell has the engine run fn, and waits for that. False: it has ended.
func (f *fetch) tell(fn func()) bool {
	done := make(chan struct{})
	select {
	case f.c.recovery.bulk <- func() { fn(); close(done) }:
		<-done
		return true
	case <-f.c.ended:
		return false
	}
}

// dialPeer is the default of Config.DialRecovery.
func dialPeer(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	return d.DialContext(ctx, "tcp", addr)
}
