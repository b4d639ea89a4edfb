package mcast

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/rejoin"
)

// RecoveryConfig has a Subscriber fetch what it lacks from recovery streams.
type RecoveryConfig struct {
	rejoin.Config
	Names []string // of the servers, for the log; as many as Servers

	// Dial connects to a server, 0..Servers-1, within a bounded time.
	Dial func(ctx context.Context, server int) (net.Conn, error)
}

const (
	streamBytes = 64 << 10               // read at a time
	streamTick  = 200 * time.Millisecond // at least so often a connection sends what is due
	streamWrite = 5 * time.Second        // a server that takes nothing for so long is left
)

// recovery runs a rejoin.Machine. The goroutine of Run owns it; a connection
// has a goroutine of its own, which does all that may block.
type recovery struct {
	cfg   *RecoveryConfig
	log   *slog.Logger
	clock Clock
	m     *rejoin.Machine

	events  chan *streamEvent
	pending *streamEvent // not taken in full yet
	fresh   bool         // it is new
	bye     map[uint64][]byte
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// streamEvent is what a connection has come to. Its goroutine waits for the
// reply.
type streamEvent struct {
	conn  uint64
	up    bool // it was made just now
	data  []byte
	err   error // after data
	reply chan streamReply
}

type streamReply struct {
	out   []byte // to be sent
	close bool   // and then it is closed
}

func newRecovery(c *RecoveryConfig, r *moldcast.Receiver, clock Clock, log *slog.Logger) (*recovery, error) {
	m, err := rejoin.New(c.Config, r)
	if err != nil {
		return nil, err
	}
	if len(c.Names) != c.Servers || c.Dial == nil {
		return nil, errors.New("recovery: want a name of each server, and Dial")
	}
	return &recovery{cfg: c, log: log, clock: clock, m: m, events: make(chan *streamEvent), bye: map[uint64][]byte{}}, nil
}

func (r *recovery) start() {
	r.ctx, r.cancel = context.WithCancel(context.Background())
}

func (r *recovery) stop() {
	r.cancel()
	r.running.Wait()
}

// work does what is due. Of what came by a stream one chunk is taken, if any.
func (r *recovery) work(now moldcast.Instant) {
	if r.pending == nil {
		select {
		case e := <-r.events:
			r.pending, r.fresh = e, true
		default:
		}
	}
	if e := r.pending; e != nil {
		r.take(now, e)
	}
	for a, ok := r.m.Poll(now); ok; a, ok = r.m.Poll(now) {
		switch a.Do {
		case rejoin.Dial:
			r.running.Go(func() { r.connect(a.Conn, a.Server) })
		case rejoin.Close:
			r.bye[a.Conn] = append([]byte(nil), a.Bytes...)
		}
	}
	for n, ok := r.m.Notice(); ok; n, ok = r.m.Notice() {
		r.tell(n)
	}
	if e := r.pending; e != nil && len(e.data) == 0 {
		r.answer(now, e)
	}
}

// take hands what came to the machine, as far as it takes it.
func (r *recovery) take(now moldcast.Instant, e *streamEvent) {
	if r.fresh && e.up {
		r.m.Connected(now, e.conn)
	}
	r.fresh = false
	e.data = e.data[r.m.Receive(now, e.conn, e.data):]
	if len(e.data) == 0 && e.err != nil {
		r.m.Broken(now, e.conn, e.err)
	}
}

// answer lets the connection go on.
func (r *recovery) answer(now moldcast.Instant, e *streamEvent) {
	r.pending = nil
	bye, closing := r.bye[e.conn]
	if closing {
		delete(r.bye, e.conn)
		e.reply <- streamReply{bye, true}
		return
	}
	e.reply <- streamReply{append([]byte(nil), r.m.Output(now, e.conn)...), e.err != nil}
}

// ready has what a connection came to taken next.
func (r *recovery) ready(e *streamEvent) { r.pending, r.fresh = e, true }

// source is where events come from: nothing while one is under way.
func (r *recovery) source() <-chan *streamEvent {
	if r == nil || r.pending != nil {
		return nil
	}
	return r.events
}

// exchange gives what a connection has come to, and waits for what to do.
func (r *recovery) exchange(e *streamEvent) (streamReply, bool) {
	select {
	case r.events <- e:
	case <-r.ctx.Done():
		return streamReply{}, false
	}
	select {
	case a := <-e.reply:
		return a, true
	case <-r.ctx.Done():
		return streamReply{}, false
	}
}

// connect runs one connection.
func (r *recovery) connect(id uint64, server int) {
	e := &streamEvent{conn: id, up: true, reply: make(chan streamReply, 1)}
	conn, err := r.cfg.Dial(r.ctx, server)
	if err != nil {
		e.up, e.err = false, err
		r.exchange(e)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(r.ctx, func() { conn.Close() })()
	buf := make([]byte, streamBytes)
	for {
		a, ok := r.exchange(e)
		if !ok {
			return
		}
		err := streamSend(conn, a.out)
		if a.close {
			return
		}
		n := 0
		if err == nil {
			n, err = streamRead(conn, buf)
		}
		e.up, e.data, e.err = false, buf[:n], err
	}
}

func streamSend(conn net.Conn, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_ = conn.SetWriteDeadline(time.Now().Add(streamWrite))
	if _, err := conn.Write(b); err != nil {
		return fmt.Errorf("connection lost: %w", err)
	}
	return nil
}

// streamRead reads what has come; that may be nothing.
func streamRead(conn net.Conn, buf []byte) (int, error) {
	_ = conn.SetReadDeadline(time.Now().Add(streamTick))
	n, err := conn.Read(buf)
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return n, nil
	case errors.Is(err, io.EOF):
		return n, errors.New("the server closed the connection")
	}
	return n, fmt.Errorf("connection lost: %w", err)
}

// tell logs what the machine has to tell.
func (r *recovery) tell(n rejoin.Notice) {
	name := r.cfg.Names[n.Server]
	switch n.Kind {
	case rejoin.Fetching:
		r.log.Info("recovery: a gap is fetched", "server", name, "range", n.Range, "messages", n.Range.Len())
	case rejoin.Joined:
		r.log.Info("recovery: live again", "messages", n.Messages)
	case rejoin.Failed:
		r.log.Warn("recovery: the stream broke off, or could not be had", "server", name, "err", n.Err, "messages", n.Messages, "again_after", n.After.Round(time.Millisecond))
	case rejoin.HasHole:
		r.log.Warn("recovery: the server has a hole", "server", name, "range", n.Range)
	case rejoin.Waits:
		r.log.Info("recovery: the server waits for what it lacks itself", "server", name, "range", n.Range)
	case rejoin.Lost:
		r.log.Warn("recovery: no server has it", "range", n.Range, "messages", n.Range.Len())
	case rejoin.Differs:
		r.log.Error("recovery: the server holds another message than was heard; it is not taken", "server", name, "seq", n.Range.First)
	case rejoin.Snapped:
		r.log.Info("recovery: delivery begins with a snapshot", "server", name, "seq", n.Range.First)
	case rejoin.Unsnapped:
		r.log.Warn("recovery: no server has a snapshot", "begins_at", n.Range.First)
	case rejoin.Unfollowed:
		r.log.Warn("recovery: what follows the snapshot is missing; it is asked for again", "server", name, "range", n.Range)
	case rejoin.Said:
		r.log.Info("recovery: the server says", "server", name, "text", n.Text)
	case rejoin.SpentAll:
		r.log.Warn("recovery: nothing came for too long; it is left to requests, or lost", "range", n.Range, "after", n.After)
	}
}
