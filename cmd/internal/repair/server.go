package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// Server is a request server as a Source: asked on the schedule of a
// gap.Machine, and believed only from its address, for its session, and for
// what was asked.
type Server struct {
	Session moldcast.Session
	Addr    netip.AddrPort
	Budget  time.Duration // how long a range is asked for without any answer
	Log     *slog.Logger
	Clock   mcast.Clock // nil: the system's

	// Listen makes the socket to ask from; nil: the system's.
	Listen func(mcast.ListenConfig) (mcast.Socket, error)

	heard bool // it has answered anything at all
}

// SilentError says that a server answered nothing at all.
type SilentError struct {
	Addr   netip.AddrPort
	Budget time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("the server %v does not answer: not one answer to any request within %v", e.Addr, e.Budget)
}

// maxRanges bounds how many ranges are asked for at a time.
const maxRanges = 1 << 16

// Name implements Source.
func (s *Server) Name() string { return s.Addr.String() }

// Coverage implements Source: a server tells only by its answers.
func (s *Server) Coverage() ([]moldcast.Range, bool) { return nil, false }

// Fetch implements Source. What the server does not answer for within the
// budget is left. The error is *SilentError where it has answered nothing yet,
// in this Fetch or before.
func (s *Server) Fetch(ctx context.Context, ranges []moldcast.Range, fn func(moldcast.Piece) error) error {
	if len(ranges) == 0 {
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
	f := &fetching{Server: s, fn: fn, wake: mcast.NewWake()}
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
	for len(ranges) > 0 {
		n := min(len(ranges), maxRanges)
		if err := f.run(ctx, ranges[:n], s.Budget); err != nil {
			return err
		}
		ranges = ranges[n:]
		if !s.heard {
			return &SilentError{s.Addr, s.Budget}
		}
	}
	return f.probe(ctx)
}

const (
	probeRounds = 20          // a million messages are cut down to one
	probeBudget = time.Second // of each round
	maxProbes   = 4096        // ranges of a round
)

// probe looks for what a server has behind a message that it lacks: it answers
// from the first message asked for, or not at all. Each range that was given
// up is halved from its end.
func (f *fetching) probe(ctx context.Context) error {
	var unknown []moldcast.Range // by sequence; between any two lies what is known
	behind := func(lost []moldcast.Range) {
		for _, r := range lost {
			if r.First++; !r.Empty() {
				unknown = append(unknown, r)
			}
		}
	}
	behind(f.lost.Ranges())
	for round := 0; round < probeRounds && f.answered && len(unknown) > 0; round++ {
		unknown = unknown[:min(len(unknown), maxProbes)]
		var ask, rest []moldcast.Range
		for _, r := range unknown {
			mid := r.First + moldcast.Seq(r.Len()/2)
			ask = append(ask, moldcast.Range{First: mid, Next: r.Next})
			if r.First < mid {
				rest = append(rest, moldcast.Range{First: r.First, Next: mid})
			}
		}
		f.lost.Clear()
		unknown = rest
		if err := f.run(ctx, ask, min(f.Budget, probeBudget)); err != nil {
			return err
		}
		behind(f.lost.Ranges())
		slices.SortFunc(unknown, func(a, b moldcast.Range) int { return cmp.Compare(a.First, b.First) })
	}
	return nil
}

// fetching is the state of one Fetch.
type fetching struct {
	*Server
	addr  netip.AddrPort
	clock mcast.Clock
	fn    func(moldcast.Piece) error
	rx    *mcast.RX
	wake  *mcast.Wake
	m     *gap.Machine
	out   []mcast.Datagram
	arena []byte

	lost     gap.Set // given up
	answered bool    // anything at all
}

// run asks for ranges until each was answered or given up.
func (f *fetching) run(ctx context.Context, ranges []moldcast.Range, budget time.Duration) error {
	f.m = gap.New(gap.Config{Servers: 1, Budget: budget, GiveUp: true, MaxGaps: 2 * maxRanges})
	f.m.Resume(ranges[0].First, ranges[len(ranges)-1].Next, ranges)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		more, err := f.drain()
		if err != nil {
			return err
		}
		now := f.clock.Now()
		if err := f.ask(now); err != nil {
			return err
		}
		for {
			r, ok := f.m.Lost()
			if !ok {
				break
			}
			f.lost.Add(r)
			f.Log.Debug("not answered", "session", f.Session, "source", f.addr, "range", r)
		}
		if f.m.Next() == f.m.Head() {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := f.rx.Err(); err != nil {
			return fmt.Errorf("receiving answers: %w", err)
		}
		at := f.m.Deadline()
		if more || at <= now {
			continue
		}
		c := f.wake.Arm()
		if !f.rx.Ring().Empty() {
			f.wake.Disarm()
			continue
		}
		timer.Reset(min(time.Duration(at-now), time.Hour))
		select {
		case <-c:
		case <-timer.C:
		case <-ctx.Done():
		}
		f.wake.Disarm()
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
		f.heard = true
		if err := f.take(f.clock.Now(), d.Stamp, p); err != nil {
			return false, err
		}
	}
	return true, nil
}

// take gives on what of an answer was asked for.
func (f *fetching) take(now moldcast.Instant, stamp moldcast.Stamp, p moldcast.Packet) error {
	r, msgs := p.Range(), p.Msgs
	if r.First >= f.m.Head() || r.Next <= f.m.First() {
		return nil
	}
	f.m.Answered(now, 0, r)
	for !r.Empty() {
		sub, verdict := f.m.Classify(r)
		var part moldcast.Messages
		part, msgs = msgs.Split(int(sub.Len()))
		r.First = sub.Next
		switch verdict {
		case gap.Fill, gap.Stale:
		case gap.InOrder, gap.Ahead:
			return nil // beyond what was asked for
		default:
			continue
		}
		if !f.m.Accept(now, -1, sub) {
			continue
		}
		f.answered = true
		err := f.fn(moldcast.Piece{
			First: sub.First, Msgs: part, Heard: stamp, Line: moldcast.AnswerLine, Flags: moldcast.Repaired,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ask sends the requests that are due.
func (f *fetching) ask(now moldcast.Instant) error {
	for more := true; more; {
		f.out, f.arena = f.out[:0], f.arena[:0]
		for len(f.out) < mcast.BatchSize {
			q, ok := f.m.Poll(now)
			if !ok {
				more = false
				break
			}
			at := len(f.arena)
			f.arena = moldcast.AppendRequest(f.arena, moldcast.Request{Session: f.Session, First: q.Range.First, Count: uint16(q.Range.Len())})
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
