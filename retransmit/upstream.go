package retransmit

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// Upstream asks others for what the archive lacks.
type Upstream interface {
	// Want says that messages of a session are wanted that the archive lacks:
	// what of r is a hole, or lies below the first. It may be called from any
	// goroutine, must not wait, and may do nothing. What comes of it comes to
	// the View.
	Want(s moldcast.Session, r moldcast.Range)
}

const (
	// wantEvery is how long at least a range is not wanted again: however many
	// clients ask for it, upstream hears of it so often.
	wantEvery = 50 * time.Millisecond
	// wantFor is how long a client that asked is kept in mind, to be answered
	// when what it wants has come. Later its retry finds it.
	wantFor = 250 * time.Millisecond
	// wantLook is how often it is looked whether it has come, while no more than
	// wantFew wait; else more rarely, so that looking takes no more time.
	wantLook = 2 * time.Millisecond
	wantFew  = 128

	maxWants   = 256  // ranges
	maxWaiters = 1024 // requests that wait for one
	ofOne      = 64   // of them, of one client

	// What may be wanted a second: a client that asks for a hole again and again
	// must not have the venue asked as often. Upstream has a budget of its own.
	wantPerClient = 50
	wantTotal     = 200
)

// want is a range that was wanted upstream.
type want struct {
	session moldcast.Session
	r       moldcast.Range
	at      moldcast.Instant
	waiters []waiter
}

// waiter is a request that is answered when what it asks for has come, or has
// no answer, and why.
type waiter struct {
	job
	why   Reason
	until moldcast.Instant
}

// wants is what is wanted upstream, and who waits for it. It is pure, and has
// one owner.
type wants struct {
	budget  *admit.Admitter
	list    []want
	pending map[pending]struct{}
	clients map[netip.Addr]int
}

func newWants() *wants {
	rate := admit.Rate{Requests: wantPerClient, Bytes: -1}
	a, err := admit.New(admit.Config{
		Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Client: rate, Loopback: rate,
		Total: admit.Rate{Requests: wantTotal, Bytes: -1}, Linger: -1,
	})
	if err != nil {
		panic(err) // of constants
	}
	return &wants{budget: a, pending: map[pending]struct{}{}, clients: map[netip.Addr]int{}}
}

// add lets j wait, which has no answer, and why, since lack is lacking. ask:
// upstream is to be told that it is wanted. The Reason is isCold when j waits.
func (w *wants) add(now moldcast.Instant, j job, lack moldcast.Range, why Reason) (ask bool, _ Reason) {
	if _, ok := w.pending[j.key()]; ok {
		return false, Repeated
	}
	x := w.find(now, j.request.Session, lack)
	if x == nil {
		if x = w.place(now, j.request.Session, lack); x == nil {
			return false, why
		}
		if _, v := w.budget.Admit(now, j.from, j.request); v != admit.Admitted {
			return false, why
		}
		waiters := x.waiters
		*x = want{session: j.request.Session, r: lack, at: now, waiters: waiters}
		ask = true
	}
	host := j.from.Addr()
	if len(w.pending) >= maxWaiters || w.clients[host] >= ofOne {
		return ask, why
	}
	w.pending[j.key()] = struct{}{}
	w.clients[host]++
	x.waiters = append(x.waiters, waiter{j, why, now + moldcast.Instant(wantFor)})
	return ask, isCold
}

// find is what was wanted a moment ago that holds r.
func (w *wants) find(now moldcast.Instant, s moldcast.Session, r moldcast.Range) *want {
	for i := range w.list {
		x := &w.list[i]
		if x.session == s && now-x.at < moldcast.Instant(wantEvery) && x.r.First <= r.First && r.Next <= x.r.Next {
			return x
		}
	}
	return nil
}

// place is where r goes: that of the same wanted longer ago, a new one, or one
// that nobody waits for any more; nil: there is none.
func (w *wants) place(now moldcast.Instant, s moldcast.Session, r moldcast.Range) *want {
	var old *want
	for i := range w.list {
		x := &w.list[i]
		switch {
		case now-x.at < moldcast.Instant(wantEvery):
		case x.session == s && x.r == r:
			return x
		case len(x.waiters) == 0:
			old = x
		}
	}
	if old == nil && len(w.list) < maxWants {
		w.list = append(w.list, want{})
		old = &w.list[len(w.list)-1]
	}
	return old
}

// looks appends who waits, by key, and for what. It is apart from due, so that
// who has a lock on the wants does not keep it while it looks.
func (w *wants) looks(dst []awaited) []awaited {
	for i := range w.list {
		for k := range w.list[i].waiters {
			y := &w.list[i].waiters[k]
			dst = append(dst, awaited{y.key(), y.view, y.asked.First})
		}
	}
	return dst
}

// awaited is for what a request waits.
type awaited struct {
	key  pending
	view View
	q    moldcast.Seq
}

// due takes out the waiters whose messages are there, and those whose time is
// over.
func (w *wants) due(now moldcast.Instant, there map[pending]bool) (arrived, over []waiter) {
	for i := range w.list {
		x := &w.list[i]
		kept := x.waiters[:0]
		for _, y := range x.waiters {
			switch {
			case there[y.key()]:
				arrived = append(arrived, y)
			case now >= y.until:
				over = append(over, y)
			default:
				kept = append(kept, y)
				continue
			}
			w.forget(&y)
		}
		clear(x.waiters[len(kept):])
		x.waiters = kept
	}
	return arrived, over
}

func (w *wants) forget(y *waiter) {
	delete(w.pending, y.key())
	host := y.from.Addr()
	if w.clients[host]--; w.clients[host] == 0 {
		delete(w.clients, host)
	}
}

// upstream is wants, and what the two goroutines need that use it.
type upstream struct {
	sync.Mutex
	*wants
	kick chan struct{} // somebody waits
}

// want lets a request wait for what is asked for upstream; isCold: it does. err
// is what answer gave with Missing. REQUIRES: Upstream is there.
func (s *Server) want(now moldcast.Instant, j job, why Reason, err error) Reason {
	lack := j.asked
	if why == BelowFirst {
		first, _ := j.view.Bounds()
		lack.Next = min(lack.Next, first)
		_, _, err = j.view.Append(nil, lack.First, 1, 0, false)
	}
	if h, ok := errors.AsType[*moldcast.HoleError](err); ok {
		switch h.Hole.Reason {
		case moldcast.Absent, moldcast.Pruned: // there is no such message; it was here, and is not to be again
			return why
		}
		lack.Next = min(lack.Next, h.Hole.Range.Next)
	}
	if lack.Empty() {
		return why
	}
	s.up.Lock()
	ask, why := s.up.add(now, j, lack, why)
	s.up.Unlock()
	if ask {
		s.wanted.Add(1)
		s.cfg.Upstream.Want(j.request.Session, lack)
	}
	if why == isCold {
		select {
		case s.up.kick <- struct{}{}:
		default:
		}
	}
	return why
}

// await answers those who wait for what was wanted, until ctx is done.
func (s *Server) await(ctx context.Context) {
	look := time.NewTicker(wantLook)
	defer look.Stop()
	var scratch []byte
	is := func(v View, q moldcast.Seq) bool {
		if first, head := v.Bounds(); q < first || q >= head {
			return false
		}
		out, n, err := v.Append(scratch[:0], q, 1, 0, false)
		scratch = out
		return n > 0 || errors.Is(err, ErrCold)
	}
	var looks []awaited
	there := map[pending]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.up.kick:
		}
		for n := s.waiting(); n > 0; n = s.waiting() {
			for range 1 + n/wantFew {
				select {
				case <-ctx.Done():
					return
				case <-look.C:
				}
			}
			s.up.Lock()
			looks = s.up.looks(looks[:0])
			s.up.Unlock()
			clear(there)
			for _, l := range looks {
				if is(l.view, l.q) {
					there[l.key] = true
				}
			}
			clear(looks) // keeps no view
			s.up.Lock()
			arrived, over := s.up.due(s.cfg.Clock.Now(), there)
			s.up.Unlock()
			for i := range over {
				s.refuse(&over[i].job, over[i].why)
			}
			for i := range arrived {
				s.arrived.Add(1)
				j := arrived[i].job
				j.block = j.view.Block(j.asked.First)
				s.putCold(j)
			}
		}
	}
}

// waiting is how many requests wait.
func (s *Server) waiting() int {
	s.up.Lock()
	defer s.up.Unlock()
	return len(s.up.pending)
}

// stopWaiting counts those who wait when the server stops.
func (s *Server) stopWaiting() {
	s.up.Lock()
	_, over := s.up.due(1<<62, nil)
	s.up.Unlock()
	for i := range over {
		s.refuse(&over[i].job, Stopped)
	}
}
