package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// Server is a request server as a Source: asked on the schedule of a search,
// and believed only from its address, for its session, and for what was asked.
type Server struct {
	Session moldcast.Session
	Addr    netip.AddrPort
	Budget  time.Duration // how long it is asked without any answer
	Log     *slog.Logger
	Clock   mcast.Clock // nil: the system's

	// Listen makes the socket to ask from; nil: the system's.
	Listen func(mcast.ListenConfig) (mcast.Socket, error)

	// Tell is told how far a Fetch is, four times a second and at its end; nil:
	// nobody.
	Tell func(Progress)

	peer peer
}

// SilentError says that a server answered nothing.
type SilentError struct {
	Addr   netip.AddrPort
	Budget time.Duration
	Before bool // it had answered before
}

func (e *SilentError) Error() string {
	if e.Before {
		return fmt.Sprintf("the server %v does not answer any more, for %v: neither for what is missing nor for what it had answered for", e.Addr, e.Budget)
	}
	return fmt.Sprintf("the server %v does not answer: not one answer to any request within %v", e.Addr, e.Budget)
}

// Name implements Source.
func (s *Server) Name() string { return s.Addr.String() }

// Coverage implements Source: a server tells only by its answers.
func (s *Server) Coverage() ([]moldcast.Range, bool) { return nil, false }

// Fetch implements Source. What the server does not answer for is left. The
// error is *SilentError where it has answered nothing for as long as the
// budget; it may have brought something before.
func (s *Server) Fetch(ctx context.Context, w Want, fn func(moldcast.Piece) error) error {
	if len(w.Ranges) == 0 {
		return nil
	}
	listen := s.Listen
	if listen == nil {
		listen = func(c mcast.ListenConfig) (mcast.Socket, error) { return mcast.Listen(c) }
	}
	sock, err := listen(mcast.ListenConfig{Log: s.Log})
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	f := &fetching{Server: s, fn: fn, wake: mcast.NewWake(), search: newSearch(&s.peer, w, s.Budget)}
	f.addr = netip.AddrPortFrom(s.Addr.Addr().Unmap(), s.Addr.Port())
	if f.addr.Addr().IsUnspecified() { // this host; its answers come from a real address
		f.addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), f.addr.Port())
	}
	f.clock = s.Clock
	if f.clock == nil {
		f.clock = mcast.NewClock()
	}
	f.rx = mcast.StartRX(sock, mcast.NewRing(0, 0), f.wake, s.Log)
	defer f.rx.Close()
	return f.run(ctx)
}

// fetching is the state of one Fetch.
type fetching struct {
	*Server
	addr   netip.AddrPort
	clock  mcast.Clock
	fn     func(moldcast.Piece) error
	rx     *mcast.RX
	wake   *mcast.Wake
	search *search
	out    []mcast.Datagram
	arena  []byte
	began  moldcast.Instant
	told   moldcast.Instant
	logged moldcast.Instant
}

// run asks until all that the server has was brought.
func (f *fetching) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		// All that has come counts before a request is taken for unanswered.
		for more := true; more; {
			var err error
			if more, err = f.drain(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		now := f.clock.Now()
		if err := f.ask(now); err != nil {
			return err
		}
		f.tell(now)
		if f.search.Done() {
			break
		}
		if err := f.rx.Err(); err != nil {
			return fmt.Errorf("receiving answers: %w", err)
		}
		at := f.search.Deadline()
		if at <= now {
			continue
		}
		c := f.wake.Arm()
		if !f.rx.Ring().Empty() {
			f.wake.Disarm()
			continue
		}
		timer.Reset(time.Duration(at - now))
		select {
		case <-c:
		case <-timer.C:
		case <-ctx.Done():
		}
		f.wake.Disarm()
	}
	for _, r := range f.search.Left() {
		f.Log.Debug("not answered", "session", f.Session, "source", f.addr, "range", r)
	}
	if f.search.Silent() {
		return &SilentError{f.Addr, f.Budget, f.peer.heard}
	}
	return nil
}

const (
	tellEvery = moldcast.Instant(time.Second / 4)
	logEvery  = moldcast.Instant(5 * time.Second)
)

// tell tells how far it is; the log, at the beginning and the end of what may
// take long, and in between now and then.
func (f *fetching) tell(now moldcast.Instant) {
	done := f.search.Done()
	if f.told == 0 {
		f.began, f.logged = now, now
		if !f.search.rough {
			f.logged = -logEvery
		}
	}
	if f.told != 0 && now-f.told < tellEvery && !done {
		return
	}
	f.told = now
	p := f.search.Progress()
	if f.Tell != nil {
		f.Tell(p)
	}
	switch {
	case done && !p.Rough:
		f.Log.Info("asked a request server for what is missing", "session", f.Session, "source", f.addr, "ranges", p.Ranges,
			"messages", p.Messages, "filled", p.Brought, "unanswered", p.Messages-p.Brought, "requests", p.Requests,
			"took", time.Duration(now-f.began).Round(time.Millisecond))
	case done || now-f.logged < logEvery:
	default:
		f.logged = now
		what := "asking a request server for what is missing"
		if p.Rough {
			what = "comparing with what a request server has"
		}
		f.Log.Info(what, "session", f.Session, "source", f.addr, "ranges", p.Ranges, "asked", p.Asked, "messages", p.Messages,
			"answered", p.Brought, "unanswered", p.Unanswered, "at_most", p.AtMost.Round(100*time.Millisecond))
	}
}

// drain takes the answers that have come; it reports whether there are more.
func (f *fetching) drain() (more bool, err error) {
	for range 256 {
		d := f.rx.Ring().Pop()
		if d == nil {
			return false, nil
		}
		if d.Src != f.addr {
			continue
		}
		p, err := moldcast.Parse(d.Data)
		if err != nil || p.Session != f.Session || p.Kind != moldcast.Data {
			continue
		}
		if err := f.take(d.Stamp, p); err != nil {
			return false, err
		}
	}
	return true, nil
}

// take gives on what of an answer was asked for.
func (f *fetching) take(stamp moldcast.Stamp, p moldcast.Packet) error {
	r, msgs := p.Range(), p.Msgs
	for !r.Empty() {
		part, wanted := f.search.Wanted(r)
		var these moldcast.Messages
		these, msgs = msgs.Split(int(part.Len()))
		r.First = part.Next
		if !wanted {
			continue
		}
		f.search.Took(part)
		err := f.fn(moldcast.Piece{
			First: part.First, Msgs: these, Heard: stamp, Line: moldcast.AnswerLine, Flags: moldcast.Repaired,
		})
		if err != nil {
			return err
		}
	}
	f.search.Answered(f.clock.Now(), p.Range())
	return nil
}

// ask sends the requests that are due.
func (f *fetching) ask(now moldcast.Instant) error {
	for more := true; more; {
		f.out, f.arena = f.out[:0], f.arena[:0]
		for len(f.out) < mcast.BatchSize {
			r, ok := f.search.Poll(now)
			if !ok {
				more = false
				break
			}
			at := len(f.arena)
			f.arena = moldcast.AppendRequest(f.arena, moldcast.Request{Session: f.Session, First: r.First, Count: uint16(r.Len())})
			f.out = append(f.out, mcast.Datagram{Data: f.arena[at:], Dst: f.addr})
		}
		if len(f.out) == 0 {
			return nil
		}
		if _, err := f.rx.Socket().WriteBatch(f.out); errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("asking: %w", err)
		}
	}
	return nil
}
