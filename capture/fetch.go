package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

const (
	fetchBytes  = 64 << 10 // read at a time
	fetchTick   = 500 * time.Millisecond
	fetchFull   = 10 * time.Millisecond // before a store that was full is tried again
	silentAfter = 2 * time.Second       // without a message requests take over …
	silentLimit = 10 * time.Second      // … and after this the next peer does
	proofAfter  = time.Second           // without a message a peer has nothing to be proven by yet
	writeLimit  = 5 * time.Second
	mostSaid    = 3 // debug packets of one connection that are logged
)

// Why a stream is left.
var (
	errBehind = errors.New("the peer has not come that far")
	errOther  = errors.New("the peer holds other messages under the same numbers")
	errGone   = errors.New("the session was closed, or another take took its place")
	errMute   = errors.New("the peer sends nothing")
	errEngine = errors.New("the capture has ended")
)

// stream is a fetch's connection. Its goroutine owns it.
type stream struct {
	f    *fetch
	conn net.Conn
	m    *soup.Client
	last moldcast.Instant // when a message came
	mute bool             // the engine was told of silence
	said int              // debug packets
	o    outcome

	// What is compared, not fetched; empty on the connection that fetches.
	proof moldcast.Range
}

// run fetches, and tells the engine how that ended.
func (f *fetch) run(ctx context.Context) {
	o := f.pull(ctx)
	f.tell(func() { f.ended(o) })
}

func (f *fetch) pull(ctx context.Context) outcome {
	if !f.proof.Empty() {
		if o := f.connect(ctx, f.proof.First, f.proof); o.err != nil {
			return o
		}
	}
	return f.connect(ctx, f.from, moldcast.Range{})
}

// connect reads the stream from a sequence on.
func (f *fetch) connect(ctx context.Context, from moldcast.Seq, proof moldcast.Range) outcome {
	conn, err := f.c.cfg.DialRecovery(ctx, f.addr)
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	now := f.c.clock.Now()
	login := soup.Login{User: f.c.cfg.RecoveryUser, Password: f.c.cfg.RecoveryPassword, Session: f.name, Seq: from}
	s := &stream{f: f, conn: conn, last: now, m: soup.NewClient(now, login), proof: proof}
	err = s.read()
	if err == nil {
		s.m.Logout()
		_ = s.flush()
	}
	s.o.err = err
	return s.o
}

// read reads the stream until there is nothing more to fetch, or the peer can
// give no more: both are no error.
func (s *stream) read() error {
	buf := make([]byte, fetchBytes)
	for {
		if err := s.beat(); err != nil {
			return err
		}
		_ = s.conn.SetReadDeadline(time.Now().Add(fetchTick))
		n, err := s.conn.Read(buf)
		now := s.f.c.clock.Now()
		for b := buf[:n]; len(b) > 0; {
			k, events, perr := s.m.Receive(now, b)
			b = b[k:]
			for i := range events {
				if on, err := s.event(now, &events[i]); !on {
					return err
				}
			}
			if perr != nil {
				return perr
			}
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("connection lost: %w", err)
		}
		switch quiet := time.Duration(now - s.last); {
		case quiet >= proofAfter && !s.proof.Empty():
			return nil
		case quiet >= silentLimit:
			return errMute
		case quiet >= silentAfter && !s.mute:
			s.mute = true
			if !s.f.tell(s.f.silent) {
				return errEngine
			}
		}
	}
}

// event handles one. on: read on.
func (s *stream) event(now moldcast.Instant, e *soup.Event) (on bool, err error) {
	f := s.f
	if !s.proof.Empty() {
		return s.prove(now, e)
	}
	switch e.Kind {
	case soup.Accepted:
		s.last = now
		if !f.tell(func() { s.o, on = f.begins(e.First) }) {
			return false, errEngine
		}
		return on, s.o.err
	case soup.Data:
		s.last, s.mute = now, false
		return s.data(e.First, e.Msgs)
	case soup.Gap:
		s.mute = true
		if !f.tell(func() { on = f.gap(e.Range) }) {
			return false, errEngine
		}
		return on, nil
	case soup.Hole:
		s.lacks(e.Range)
		return false, nil
	case soup.End:
		// It holds no more; what we are told exists, others must have.
		s.lacks(moldcast.Range{First: e.First, Next: ^moldcast.Seq(0)})
		return false, nil
	case soup.Debug:
		if s.said++; s.said > mostSaid {
			break
		}
		f.c.cfg.Log.Info("recovery: the peer says", "channel", f.c.cfg.Channel, "session", f.name, "peer", f.addr, "text", e.Text)
	}
	return true, nil
}

// prove handles one while messages are only compared. A peer that has none of
// them, or not yet, cannot be proven, and is believed. on: read on.
func (s *stream) prove(now moldcast.Instant, e *soup.Event) (on bool, err error) {
	f := s.f
	switch e.Kind {
	case soup.Accepted:
		s.last = now
		return e.First == s.proof.First, nil
	case soup.Data:
		s.last = now
		msgs, _ := e.Msgs.Split(int(min(uint64(e.Msgs.Len()), s.proof.Len())))
		if !f.tell(func() { err = f.compare(e.First, msgs) }) {
			return false, errEngine
		}
		s.proof.First += moldcast.Seq(msgs.Len())
		return !s.proof.Empty(), err
	case soup.Gap, soup.Hole, soup.End:
		return false, nil
	}
	return true, nil
}

// lacks notes what the peer does not hold.
func (s *stream) lacks(r moldcast.Range) { s.o.lacks = append(s.o.lacks, r) }

// data gives messages to the engine, waiting for room in the store.
func (s *stream) data(first moldcast.Seq, msgs moldcast.Messages) (on bool, err error) {
	for msgs.Len() > 0 {
		taken := 0
		if !s.f.tell(func() { taken, on, err = s.f.messages(first, msgs) }) {
			return false, errEngine
		}
		if !on || err != nil {
			return false, err
		}
		_, msgs = msgs.Split(taken)
		first += moldcast.Seq(taken)
		if msgs.Len() > 0 {
			select {
			case <-time.After(fetchFull):
			case <-s.f.c.ended:
				return false, errEngine
			}
			s.last = s.f.c.clock.Now()
			if err := s.beat(); err != nil {
				return false, err
			}
		}
	}
	return on, nil
}

// beat does what the protocol has due.
func (s *stream) beat() error {
	if err := s.m.Poll(s.f.c.clock.Now()); err != nil {
		return err
	}
	return s.flush()
}

func (s *stream) flush() error {
	out := s.m.Output(s.f.c.clock.Now())
	if len(out) == 0 {
		return nil
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err := s.conn.Write(out)
	return err
}
