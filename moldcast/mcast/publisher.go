package mcast

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Source gives a Publisher its messages, in order.
type Source interface {
	// Next is the next message, valid until the next call; io.EOF after the
	// last.
	Next() ([]byte, error)
}

// PublisherConfig configures a Publisher.
type PublisherConfig struct {
	Sender   moldcast.SenderConfig
	Out      Socket      // dialled to the group
	Requests Socket      // where requests come in and answers go out; nil: none are answered
	Impair   *Impairment // what the packets of messages suffer before Out; nil: nothing. Heartbeats and ends pass

	// Rate is messages a second, on one schedule from the first: a delay is
	// caught up. 0: as fast as Out takes them.
	Rate float64

	// Live says that Source may wait for its messages (a pipe): it is then
	// read by a goroutine of its own, what it has is sent at once, and a delay
	// is not caught up. Otherwise packets are filled.
	Live bool

	// Quorum is told the acknowledgements that Acks receives; both or neither.
	// Run owns it. With Gate End of Session is sent only once the quorum holds
	// all that was published: until then heartbeats go on, and requests are
	// answered. Where that cannot come about any more by what the ring has
	// (ErrGateLost), Run ends after GateTimeout without an archive that gets
	// further; 0: never.
	Quorum      *moldcast.Quorum
	Acks        Socket
	Gate        bool
	GateTimeout time.Duration

	Linger time.Duration // how long End of Session is repeated, and requests are answered, after the last message
	Clock  Clock         // nil: a new SystemClock
	Log    *slog.Logger  // nil: silent
}

// Publisher runs a moldcast.Sender on sockets.
type Publisher struct {
	cfg    PublisherConfig
	sender *moldcast.Sender
	sent   atomic.Uint64
	quorum atomic.Pointer[QuorumStatus]
	stats  PublisherStats
}

// PublisherStats are what a Publisher did.
type PublisherStats struct {
	moldcast.SenderStats
	Impair     ImpairCounters // packets, not messages
	Dropped    uint64         // packets that the system would not send
	Unanswered uint64         // answers that it would not send, and requests that found the queue full

	// Publishing is the time from the start to the first End of Session, without
	// what Linger adds.
	Publishing time.Duration
}

// Ends that a stopped Publisher sends, and their distance: a short stand-in
// for Linger.
const (
	stopEnds = 3
	stopGap  = 50 * time.Millisecond
)

// NewPublisher makes a Publisher. Run owns the sockets and closes them.
func NewPublisher(c PublisherConfig) (*Publisher, error) {
	if c.Out == nil {
		return nil, errors.New("publisher has no socket to send to")
	}
	if !(c.Rate == 0 || c.Rate >= 1e-3 && c.Rate <= 1e9) {
		return nil, fmt.Errorf("rate %v: want 0, or 0.001..1e9 messages a second", c.Rate)
	}
	if (c.Quorum == nil) != (c.Acks == nil) || c.Gate && c.Quorum == nil {
		return nil, errors.New("a publisher's quorum needs a socket for acknowledgements, its gate a quorum")
	}
	if c.Linger < 0 || c.GateTimeout < 0 {
		return nil, fmt.Errorf("linger %v, gate timeout %v: want none below 0", c.Linger, c.GateTimeout)
	}
	if c.Clock == nil {
		c.Clock = NewClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s, err := moldcast.NewSender(c.Sender)
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: c, sender: s}
	p.sent.Store(uint64(s.Sent()))
	return p, nil
}

// Sent is one past the last message sent; it may be asked at any time.
func (p *Publisher) Sent() moldcast.Seq { return moldcast.Seq(p.sent.Load()) }

// Stats is what p did; to be asked once Run has returned.
func (p *Publisher) Stats() PublisherStats { return p.stats }

// Run publishes all messages of src, ends the session and lingers. When ctx
// ends it sends what it has taken from src and an End of Session, and returns
// nil at once. An error is that of src (after an End of Session, since what
// was published stands) or of a closed socket, or wraps ErrGate
// or ErrGateLost.
func (p *Publisher) Run(ctx context.Context, src Source) error {
	r := &publishing{Publisher: p, ctx: ctx, wake: NewWake()}
	r.emitFn = r.emit
	if p.cfg.Requests != nil {
		r.rx = StartRX(p.cfg.Requests, NewRing(4096, 64), r.wake, p.cfg.Log)
		defer r.rx.Close()
	}
	if p.cfg.Acks != nil {
		r.acks = StartRX(p.cfg.Acks, NewRing(4096, 128), r.wake, p.cfg.Log)
		defer r.acks.Close()
	}
	defer p.cfg.Out.Close()
	if p.cfg.Live {
		r.feed = startFeeder(src, r.wake)
		defer close(r.feed.stop)
	} else {
		r.src = src
	}
	began := p.cfg.Clock.Now()
	err := r.run()
	if r.endedAt == 0 {
		r.endedAt = p.cfg.Clock.Now()
	}
	p.stats.Publishing = time.Duration(r.endedAt - began)
	p.stats.SenderStats = p.sender.Stats()
	if r.acks != nil {
		r.quorumStatus(p.cfg.Clock.Now())
	}
	if p.cfg.Impair != nil {
		p.stats.Impair = p.cfg.Impair.Counters()
	}
	if r.rx != nil {
		c := r.rx.Counters()
		p.stats.Unanswered += c.QueueDropped
		p.stats.Requests += c.Truncated
		p.stats.Malformed += c.Truncated // longer than a request ever is
	}
	return err
}

// publishing is the state of one Run; its goroutine owns it and the Sender.
type publishing struct {
	*Publisher
	ctx  context.Context
	wake *Wake
	rx   *RX
	acks *RX

	src    Source            // read here
	feed   *feeder           // or by a goroutine
	fed    moldcast.Messages // of feed, being published
	fedBuf []byte            // what fed lies in
	srcErr error             // why the source ended, io.EOF included; nil: it goes on

	next    []byte // message taken from the source and not yet published
	nextIs  bool
	count   uint64           // messages published
	anchor  moldcast.Instant // of the schedule: when message 0 was due
	endedAt moldcast.Instant // when End of Session was sent first
	arena   []byte           // packets of the batch
	batch   [][]byte
	packet  []byte // scratch
	answers []Datagram
	emitFn  func([]byte)
	alarm   moldcast.Instant // when a refusal may be logged again

	waiting                       bool             // for the quorum
	nextStatus                    moldcast.Instant // of it
	lowAlarm, keyAlarm, gateAlarm moldcast.Instant // when each may be logged again
	gatePause                     moldcast.Instant // between two of the second
	gate                          gateWatch
	early                         bool // an early end of the source was logged
}

func (r *publishing) run() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	lingerTo := gap.Never
	if err := r.poll(r.cfg.Clock.Now()); err != nil { // says where the session begins
		return err
	}
	for {
		now := r.cfg.Clock.Now()
		if err := r.answer(); err != nil {
			return err
		}
		if err := r.acknowledged(now); err != nil {
			return err
		}
		wait := gap.Never
		if r.srcErr == nil {
			var err error
			if wait, err = r.publish(now); err != nil {
				return err
			}
		}
		if r.srcErr != nil && lingerTo == gap.Never {
			if !errors.Is(r.srcErr, io.EOF) && !r.early {
				r.early = true
				r.cfg.Log.Warn("messages ended early, ending the session", "err", r.srcErr)
			}
			r.sender.Flush()
			if err := r.sendReady(now); err != nil {
				return err
			}
			switch gated := r.gated(now); {
			case !gated:
				r.sender.Finish()
			case r.gate.expired(now, r.cfg.GateTimeout):
				r.quorumStatus(now)
				r.sent.Store(uint64(r.sender.Sent()))
				return errors.Join(fmt.Errorf("%w: nothing new for %v", ErrGateLost, r.cfg.GateTimeout), r.sourceError())
			}
		}
		if wait > now {
			if err := r.poll(now); err != nil {
				return err
			}
		}
		if r.sender.Ended() && lingerTo == gap.Never {
			r.endedAt = r.cfg.Clock.Now()
			lingerTo = now + moldcast.Instant(r.cfg.Linger)
			if r.sourceError() != nil && r.count == 0 {
				lingerTo = now // there is nothing that anyone could miss
			}
		}
		r.sent.Store(uint64(r.sender.Sent()))
		if now >= lingerTo {
			return r.sourceError()
		}
		if r.acks != nil {
			wait = min(wait, r.nextStatus)
		}
		if wait = min(wait, lingerTo, r.sender.Deadline()); r.ctx.Err() != nil || !r.sleep(timer, wait) {
			return r.stop(timer)
		}
	}
}

// sourceError is what Run returns once the source has ended.
func (r *publishing) sourceError() error {
	if errors.Is(r.srcErr, io.EOF) {
		return nil
	}
	return r.srcErr
}

// sleep waits for a request, a live source, or the instant at;
// false when ctx ended instead.
func (r *publishing) sleep(timer *time.Timer, at moldcast.Instant) bool {
	now := r.cfg.Clock.Now()
	if at <= now {
		return true
	}
	c := r.wake.Arm()
	defer r.wake.Disarm()
	if r.rx != nil && !r.rx.Ring().Empty() {
		return true
	}
	if r.acks != nil && !r.acks.Ring().Empty() {
		return true
	}
	if r.feed != nil && r.srcErr == nil && !r.nextIs && r.fed.Len() == 0 && r.feed.ready() {
		return true
	}
	timer.Reset(until(now, at))
	select {
	case <-c:
	case <-timer.C:
	case <-r.ctx.Done():
		return false
	}
	return true
}

// stop ends the session in haste: ctx has ended.
func (r *publishing) stop(timer *time.Timer) error {
	if r.sender.Ended() {
		return r.sourceError()
	}
	r.ctx = context.WithoutCancel(r.ctx)
	if r.srcErr == nil {
		r.srcErr = io.EOF
	}
	now := r.cfg.Clock.Now()
	r.sender.Flush()
	if err := r.sendReady(now); err != nil {
		return err
	}
	if r.gated(now) {
		r.sent.Store(uint64(r.sender.Sent()))
		return errors.Join(ErrGate, r.sourceError())
	}
	r.sender.Finish()
	if err := r.poll(now); err != nil {
		return err
	}
	for range stopEnds - 1 {
		for at := now + moldcast.Instant(stopGap); now < at; now = r.cfg.Clock.Now() {
			r.sleep(timer, at)
			if err := r.answer(); err != nil {
				return err
			}
		}
		r.arena = moldcast.AppendHeader(r.arena[:0], r.sender.Config().Session, r.sender.Sent(), moldcast.EndCount)
		r.batch = append(r.batch[:0], r.arena)
		if err := r.send(); err != nil {
			return err
		}
	}
	r.sent.Store(uint64(r.sender.Sent()))
	return r.sourceError()
}

// publish takes the messages that are due, at most about a batch of packets,
// and sends what is ready. The result is when the next is due: not after now
// when there is more to do at once, Never when the source will tell.
func (r *publishing) publish(now moldcast.Instant) (moldcast.Instant, error) {
	limit := BatchSize * 8 // messages between two looks at the requests
	wait := now
	for range limit {
		if !r.nextIs {
			if !r.take() {
				wait = gap.Never
				break
			}
			r.schedule(now)
		}
		if due := r.due(); due > now {
			wait = due
			break
		}
		if err := r.sender.Publish(r.next); err != nil {
			if !errors.Is(err, moldcast.ErrRingFull) {
				r.srcErr = fmt.Errorf("message %d: %w", r.sender.Published(), err)
				break
			}
			r.sender.Flush() // a ring that is smaller than a packet
			if err := r.sendReady(now); err != nil {
				return 0, err
			}
			continue
		}
		r.nextIs = false
		r.count++
	}
	if wait > now {
		// Nothing more is due: what there is waits for nothing.
		r.sender.Flush()
	}
	return wait, r.sendReady(now)
}

// take gets the next message from the source; false when there is none now,
// or ever: then srcErr says why.
func (r *publishing) take() bool {
	if r.srcErr != nil {
		return false
	}
	if r.src != nil {
		r.next, r.srcErr = r.src.Next()
		r.nextIs = r.srcErr == nil
		return r.nextIs
	}
	if r.fed.Len() == 0 {
		r.fed, r.srcErr = r.feed.take(r.fedBuf)
		if r.fed.Len() == 0 {
			return false
		}
		r.fedBuf = r.fed.Framed() // the other of two buffers
	}
	r.next, r.nextIs = r.fed.Next(), true
	return true
}

// due is when message count goes out.
func (r *publishing) due() moldcast.Instant {
	if r.cfg.Rate == 0 {
		return 0
	}
	return r.anchor + moldcast.Instant(float64(r.count)*1e9/r.cfg.Rate)
}

// schedule sets the anchor: once, or again when a live source fell behind.
func (r *publishing) schedule(now moldcast.Instant) {
	if r.cfg.Rate == 0 {
		return
	}
	if r.count == 0 && r.anchor == 0 || r.feed != nil && r.due() < now {
		r.anchor = 0
		r.anchor = now - r.due()
	}
}

// poll sends the heartbeat or End of Session that is due.
func (r *publishing) poll(now moldcast.Instant) error {
	b, ok := r.sender.Poll(now, r.packet[:0])
	r.packet = b
	if !ok {
		return nil
	}
	r.arena, r.batch = r.arena[:0], r.batch[:0]
	if r.cfg.Impair != nil {
		r.cfg.Impair.Flush(r.emitFn) // nothing comes that could overtake what is held
	}
	r.emit(b)
	return r.send()
}

// sendReady sends all packets that are full or flushed.
func (r *publishing) sendReady(now moldcast.Instant) error {
	for more := true; more; {
		r.arena, r.batch = r.arena[:0], r.batch[:0]
		for len(r.batch) < BatchSize {
			if r.cfg.Impair == nil {
				at := len(r.arena)
				if r.arena, more = r.sender.Next(now, r.arena); !more {
					break
				}
				r.batch = append(r.batch, r.arena[at:])
				continue
			}
			if r.packet, more = r.sender.Next(now, r.packet[:0]); !more {
				break
			}
			r.cfg.Impair.Apply(r.packet, r.emitFn)
		}
		if err := r.send(); err != nil {
			return err
		}
	}
	return nil
}

// emit adds a copy of b to the batch. The arena may grow and move: what is in
// the batch stays where it was.
func (r *publishing) emit(b []byte) {
	at := len(r.arena)
	r.arena = append(r.arena, b...)
	r.batch = append(r.batch, r.arena[at:])
}

// send sends the batch. Only a closed socket is an error: what the system
// refuses is counted, and asked for by those who miss it.
func (r *publishing) send() error {
	if len(r.batch) == 0 {
		return nil
	}
	n, err := r.cfg.Out.Send(r.batch)
	if errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("sending: %w", err)
	}
	if n < len(r.batch) {
		r.stats.Dropped += uint64(len(r.batch) - n)
		if now := r.cfg.Clock.Now(); now >= r.alarm {
			r.alarm = now + moldcast.Instant(10*time.Second)
			r.cfg.Log.Warn("packets could not be sent", "packets", len(r.batch)-n, "total", r.stats.Dropped, "err", err)
		}
	}
	return nil
}

// answer answers requests that have come in.
func (r *publishing) answer() error {
	if r.rx == nil {
		return nil
	}
	if err := r.rx.Err(); err != nil {
		return fmt.Errorf("receiving requests: %w", err)
	}
	more := true
	for batches := 0; more && batches < 8; batches++ { // a storm must not stop the stream
		r.arena, r.answers = r.arena[:0], r.answers[:0]
		for len(r.answers) < BatchSize {
			d := r.rx.Ring().Pop()
			if d == nil {
				more = false
				break
			}
			at := len(r.arena)
			b, err := r.sender.Answer(r.arena, d.Data)
			if err != nil {
				r.cfg.Log.Debug("request not answered", "from", d.Src, "err", err)
				continue
			}
			r.arena = b
			r.answers = append(r.answers, Datagram{Data: b[at:], Dst: d.Src, Local: d.Local})
		}
		if len(r.answers) == 0 {
			continue
		}
		n, err := r.cfg.Requests.WriteBatch(r.answers)
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("answering: %w", err)
		}
		r.stats.Unanswered += uint64(len(r.answers) - n)
	}
	return nil
}

// feeder reads a source that may wait, in a goroutine of its own, which lives
// until the source ends or, after stop is closed, gives its next message.
type feeder struct {
	wake *Wake
	room chan struct{} // capacity 1: what there was has been taken
	stop chan struct{}

	mu struct {
		sync.Mutex
		buf []byte // framed messages that wait
		n   int
		err error // why there are no more after them
	}
}

// feederBytes bounds what a feeder reads ahead.
const feederBytes = 256 << 10

func startFeeder(src Source, wake *Wake) *feeder {
	f := &feeder{wake: wake, room: make(chan struct{}, 1), stop: make(chan struct{})}
	go f.run(src)
	return f
}

func (f *feeder) run(src Source) {
	for {
		m, err := src.Next()
		if err == nil && len(m) > moldcast.MaxMessage {
			err = moldcast.ErrTooLong
		}
		for {
			f.mu.Lock()
			if len(f.mu.buf) < feederBytes {
				break
			}
			f.mu.Unlock()
			select {
			case <-f.room:
			case <-f.stop:
				return
			}
		}
		if err == nil {
			f.mu.buf = moldcast.AppendMessage(f.mu.buf, m)
			f.mu.n++
		}
		f.mu.err = err
		f.mu.Unlock()
		f.wake.Signal()
		if err != nil {
			return
		}
	}
}

// take swaps what waits for an empty buffer. The error stands once nothing
// waits any more.
func (f *feeder) take(empty []byte) (moldcast.Messages, error) {
	f.mu.Lock()
	m := moldcast.MessagesOf(f.mu.buf, f.mu.n)
	err := f.mu.err
	if f.mu.n > 0 {
		f.mu.buf, f.mu.n, err = empty[:0], 0, nil
	}
	f.mu.Unlock()
	select {
	case f.room <- struct{}{}:
	default:
	}
	return m, err
}

// ready reports whether take has something to say.
func (f *feeder) ready() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.n > 0 || f.mu.err != nil
}
