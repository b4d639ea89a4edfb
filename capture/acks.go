package capture

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// AckConfig says where a channel acknowledges what it holds durably.
type AckConfig struct {
	To  []netip.AddrPort // publishers, IPv4; none: nowhere
	Key []byte           // of moldcast.AckCodec
}

// AckNode is who acknowledges. The channels of one process share it.
type AckNode struct {
	ID    moldcast.NodeID
	Place uint64
	Epoch uint64 // from 1
	acks  atomic.Uint64
}

// AckStatus is what a channel acknowledged.
type AckStatus struct {
	Node    moldcast.NodeID `json:"node"` // zeroes: not known yet
	To      []string        `json:"to"`
	Sent    uint64          `json:"sent"`
	NotSent uint64          `json:"not_sent"` // the system refused them
}

const (
	ackStep      = moldcast.Instant(5 * time.Millisecond) // between two looks while something moves
	ackRest      = 50 * time.Millisecond                  // and at most, while nothing does
	ackCheck     = moldcast.Instant(ackRest)              // between two messages that are read to be proven
	ackAfter     = 5 * moldcast.AckKeepAlive              // how long a session is acknowledged that was closed
	ackMost      = 256                                    // sessions that are
	ackLastWords = 2                                      // times that all is said once more at the end: any may be lost
)

// acker acknowledges what is durable of a channel's sessions. Its goroutine
// asks the sinks; the engine only tells it of them.
type acker struct {
	to    []netip.AddrPort
	codec *moldcast.AckCodec
	clock mcast.Clock
	log   *slog.Logger
	sock  mcast.Socket

	node          atomic.Pointer[AckNode]
	sent, notSent atomic.Uint64
	stop, done    chan struct{}
	close         sync.Once

	mu struct {
		sync.Mutex // held for moments only
		sessions   []*acked
	}

	// The goroutine's own.
	now     []*acked
	message []byte
	out     []byte
	batch   []mcast.Datagram
	alarm   moldcast.Instant
}

// acked is one take of a session.
type acked struct {
	session moldcast.Session
	sink    SessionSink
	until   atomic.Int64 // an instant, once it is closed; 0: it is open

	reading sync.Mutex // while the sink is read
	closing bool       // it may not be read any more. REQUIRES: reading

	// The goroutine's own.
	said      moldcast.Range
	saidAt    moldcast.Instant
	checked   moldcast.Seq
	check     uint64
	checkedAt moldcast.Instant
}

// newAcker opens the socket that acknowledgements go out of.
func newAcker(cfg *Config) (*acker, error) {
	sock, err := mcast.Listen(mcast.ListenConfig{MaxDatagram: 64, RecvBuffer: 4096, Log: cfg.Log})
	if err != nil {
		return nil, fmt.Errorf("channel %s: socket for acknowledgements: %w", cfg.Channel, err)
	}
	return &acker{
		to: cfg.Acks.To, codec: moldcast.NewAckCodec(cfg.Acks.Key), clock: cfg.Clock, log: cfg.Log.With("channel", cfg.Channel), sock: sock,
		stop: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Acknowledge says who acknowledges for the channel, which begins with it. It
// may be called at any time.
func (c *Channel) Acknowledge(n *AckNode) {
	if c.acks != nil {
		c.acks.node.Store(n)
	}
}

// open takes up a session, in place of an older take. Owner: the engine.
func (a *acker) open(s moldcast.Session, sink SessionSink) *acked {
	if a == nil {
		return nil
	}
	x := &acked{session: s, sink: sink}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.sessions = slices.DeleteFunc(a.mu.sessions, func(o *acked) bool { return o.session == s })
	if len(a.mu.sessions) == ackMost {
		a.mu.sessions = slices.Delete(a.mu.sessions, 0, 1)
	}
	a.mu.sessions = append(a.mu.sessions, x)
	return x
}

// noReads returns once x's sink is not read any more, nor ever again.
func (x *acked) noReads() {
	if x == nil {
		return
	}
	x.reading.Lock()
	x.closing = true
	x.reading.Unlock()
}

// closed says that x's sink is closed.
func (a *acker) closed(x *acked) {
	if x != nil {
		x.until.Store(int64(a.clock.Now() + moldcast.Instant(ackAfter)))
	}
}

// run acknowledges until finish.
func (a *acker) run() {
	defer close(a.done)
	step := time.Duration(ackStep)
	timer := time.NewTimer(step)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-a.stop:
			for range ackLastWords {
				a.look(true)
			}
			return
		}
		if step *= 2; a.look(false) {
			step = time.Duration(ackStep)
		}
		step = min(step, ackRest)
		timer.Reset(step)
	}
}

// look acknowledges what is to be, or all, and reports whether anything moved.
func (a *acker) look(all bool) (moved bool) {
	node := a.node.Load()
	if node == nil {
		return false
	}
	now := a.clock.Now()
	a.mu.Lock()
	a.mu.sessions = slices.DeleteFunc(a.mu.sessions, func(x *acked) bool { until := x.until.Load(); return until != 0 && int64(now) >= until })
	a.now = append(a.now[:0], a.mu.sessions...)
	a.mu.Unlock()
	a.out, a.batch = a.out[:0], a.batch[:0]
	for _, x := range a.now {
		held := x.sink.Durable()
		if held.First == 0 {
			continue
		}
		due := held != x.said
		moved = moved || due
		if last := held.Next - 1; !held.Empty() && last != x.checked && (now-x.checkedAt >= ackCheck || all || !held.Contains(x.checked)) {
			x.checkedAt = now
			due = a.prove(x, last) || due
		}
		if !held.Contains(x.checked) {
			x.checked, x.check = 0, 0
		}
		if !due && !all && now-x.saidAt < moldcast.Instant(moldcast.AckKeepAlive) {
			continue
		}
		x.said, x.saidAt = held, now
		at := len(a.out)
		a.out = a.codec.Append(a.out, moldcast.Ack{
			Session: x.session, Node: node.ID, Place: node.Place, Epoch: node.Epoch, Counter: node.acks.Add(1),
			Held: held, Checked: x.checked, Check: x.check,
		})
		for _, to := range a.to {
			a.batch = append(a.batch, mcast.Datagram{Data: a.out[at:len(a.out):len(a.out)], Dst: to})
		}
	}
	clear(a.now)
	a.send(now)
	return moved
}

// prove reads message q of x, and reports whether it could.
func (a *acker) prove(x *acked, q moldcast.Seq) bool {
	x.reading.Lock()
	defer x.reading.Unlock()
	if x.closing {
		return false
	}
	b, n, err := x.sink.Read(a.message[:0], q, 1, moldcast.LengthSize+1<<16)
	a.message = b
	if err != nil || n != 1 {
		return false // it is tried again; meanwhile the last stands
	}
	m := moldcast.MessagesOf(b, 1)
	x.checked, x.check = q, moldcast.AckCheck(q, m.Next())
	return true
}

func (a *acker) send(now moldcast.Instant) {
	if len(a.batch) == 0 {
		return
	}
	n, err := a.sock.WriteBatch(a.batch)
	a.sent.Add(uint64(n))
	if n < len(a.batch) {
		a.notSent.Add(uint64(len(a.batch) - n))
		if now >= a.alarm {
			a.alarm = now + moldcast.Instant(alarmEvery)
			a.log.Warn("acknowledgements could not be sent; the publisher does not see what is durable here", "err", err)
		}
	}
}

// finish says all once more, and ends. run was started.
func (a *acker) finish() {
	if a == nil {
		return
	}
	close(a.stop)
	<-a.done
	a.shut()
}

// shut closes the socket.
func (a *acker) shut() {
	if a != nil {
		a.close.Do(func() { a.sock.Close() })
	}
}

func (a *acker) status() *AckStatus {
	if a == nil {
		return nil
	}
	st := &AckStatus{Sent: a.sent.Load(), NotSent: a.notSent.Load()}
	for _, to := range a.to {
		st.To = append(st.To, to.String())
	}
	if n := a.node.Load(); n != nil {
		st.Node = n.ID
	}
	return st
}
