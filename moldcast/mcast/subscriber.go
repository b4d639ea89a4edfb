package mcast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/rejoin"
)

// SubscriberConfig configures a Subscriber.
type SubscriberConfig struct {
	// Receiver is what to do with the messages. Its callbacks run on the
	// goroutine of Run. Gap.Lines and Gap.Servers are set from the below.
	Receiver moldcast.ReceiverConfig

	Lines []Socket // line A, B, …; at least one

	// Requests sends the requests and hears the answers; nil: nothing is ever
	// asked for. Answers that come by a line are welcome too.
	Requests Socket
	Servers  []netip.AddrPort // whom to ask, in turn

	// SourcePort, where not 0, adds one server: that port at the address that
	// the stream comes from.
	SourcePort uint16

	// Recovery, where not nil, fetches what is missing from recovery streams. Its
	// Requests is set where there are Servers; Receiver.Recovery is.
	Recovery *RecoveryConfig

	// OnIdle, where not nil, is called each time that all that has come was
	// processed, before the wait for more.
	OnIdle func()

	RingSlots int          // of each line; 0: DefaultRingSlots
	Clock     Clock        // nil: a new SystemClock
	Log       *slog.Logger // nil: silent
}

// Subscriber runs a moldcast.Receiver on sockets.
type Subscriber struct {
	cfg   SubscriberConfig
	rcv   *moldcast.Receiver
	rec   *recovery // nil: none
	stamp moldcast.Stamp
	stats SubscriberStats
}

// SubscriberStats are what a Subscriber did.
type SubscriberStats struct {
	moldcast.ReceiverStats
	QueueDropped  uint64 // datagrams that found a ring full
	KernelDropped uint64 // datagrams that found a socket's buffer full
	Truncated     uint64 // datagrams longer than a UDP datagram can be
	ReadErrors    uint64
	Recovery      rejoin.Stats
	Foreign       uint64 // datagrams to the request socket from those who were not asked
	NotAsked      uint64 // requests that the system would not send
}

// NewSubscriber makes a Subscriber. Run owns the sockets and closes them.
func NewSubscriber(c SubscriberConfig) (*Subscriber, error) {
	if len(c.Lines) == 0 {
		return nil, errors.New("subscriber has no line")
	}
	if c.Clock == nil {
		c.Clock = NewClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Receiver.Gap.Lines = len(c.Lines)
	c.Receiver.Gap.Servers = 0
	if c.Requests != nil {
		c.Receiver.Gap.Servers = len(c.Servers)
		if c.SourcePort != 0 {
			c.Receiver.Gap.Servers++
		}
	}
	c.Servers = slices.Clone(c.Servers)
	for i, a := range c.Servers {
		a = unmap(a)
		if a.Addr().IsUnspecified() { // this host; its answers come from a real address
			a = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
		}
		c.Servers[i] = a
	}
	c.Receiver.Recovery = c.Recovery != nil
	r, err := moldcast.NewReceiver(c.Receiver)
	if err != nil {
		return nil, err
	}
	s := &Subscriber{cfg: c, rcv: r}
	if c.Recovery != nil {
		if s.rec, err = newRecovery(c.Recovery, r, c.Clock, c.Log); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Stats is what s did; to be asked once Run has returned.
func (s *Subscriber) Stats() SubscriberStats { return s.stats }

// Stamp is when the datagram that was processed last was received: for the
// Receiver's callbacks.
func (s *Subscriber) Stamp() moldcast.Stamp { return s.stamp }

// Receiver is what s runs: for use once Run has returned.
func (s *Subscriber) Receiver() *moldcast.Receiver { return s.rcv }

// drainAtOnce is how many datagrams of a ring are taken before the next
// socket has its turn.
const drainAtOnce = 256

// Run receives until the session has ended or ctx has; both are no error. An
// error is that of a socket, or of rejoin.Machine.Err.
func (s *Subscriber) Run(ctx context.Context) error {
	r := &subscribing{Subscriber: s, wake: NewWake()}
	for _, l := range s.cfg.Lines {
		r.lines = append(r.lines, StartRX(l, NewRing(s.cfg.RingSlots, 0), r.wake, s.cfg.Log))
	}
	r.all = r.lines
	if s.cfg.Requests != nil {
		r.answers = StartRX(s.cfg.Requests, NewRing(s.cfg.RingSlots, 0), r.wake, s.cfg.Log)
		r.all = append(r.all[:len(r.all):len(r.all)], r.answers)
	}
	if s.rec != nil {
		s.rec.start()
		defer s.rec.stop()
	}
	err := r.run(ctx)
	for _, rx := range r.all {
		rx.Close()
		rx.Ring().Discard()
	}
	s.stats.ReceiverStats = s.rcv.Stats()
	if s.rec != nil {
		s.stats.Recovery = s.rec.m.Stats()
	}
	for _, rx := range r.all {
		c := rx.Counters()
		s.stats.QueueDropped += c.QueueDropped
		s.stats.KernelDropped += c.KernelDropped
		s.stats.Truncated += c.Truncated
		s.stats.ReadErrors += c.Errors
	}
	return err
}

// subscribing is the state of one Run; its goroutine owns it and the Receiver.
type subscribing struct {
	*Subscriber
	wake    *Wake
	lines   []*RX
	answers *RX
	all     []*RX

	source  netip.Addr // where the stream comes from
	out     []Datagram
	arena   []byte
	alarmAt moldcast.Instant
}

func (r *subscribing) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		more := r.drain()
		now := r.cfg.Clock.Now()
		if r.rec != nil && !(more && r.overloaded()) {
			r.stamp = r.cfg.Clock.Wall()
			r.rec.work(now)
			if err := r.rec.m.Err(); err != nil {
				return fmt.Errorf("recovery: %w", err)
			}
		}
		if err := r.ask(now); err != nil {
			return err
		}
		if r.rcv.Done() || ctx.Err() != nil {
			return nil
		}
		for _, rx := range r.all {
			if err := rx.Err(); err != nil {
				return fmt.Errorf("receiving %v: %w", rx.Socket().LocalAddr(), err)
			}
		}
		wait := r.rcv.Deadline()
		if r.rec != nil {
			wait = min(wait, r.rec.m.Deadline())
		}
		if more || wait <= now {
			continue
		}
		if r.cfg.OnIdle != nil {
			r.cfg.OnIdle()
		}
		c := r.wake.Arm()
		if !r.empty() {
			r.wake.Disarm()
			continue
		}
		timer.Reset(until(now, wait))
		select {
		case <-c:
		case e := <-r.rec.source():
			r.rec.ready(e)
		case <-timer.C:
		case <-ctx.Done():
		}
		r.wake.Disarm()
	}
}

// overloaded reports that what comes on the lines needs all there is.
func (r *subscribing) overloaded() bool {
	for _, rx := range r.lines {
		if rx.Ring().Len() > rx.Ring().Cap()/4 {
			return true
		}
	}
	return false
}

func (r *subscribing) empty() bool {
	for _, rx := range r.all {
		if !rx.Ring().Empty() {
			return false
		}
	}
	return true
}

// drain offers what has come; it reports whether there is more.
func (r *subscribing) drain() (more bool) {
	for line, rx := range r.lines {
		n := 0
		for ; n < drainAtOnce; n++ {
			d := rx.Ring().Pop()
			if d == nil {
				break
			}
			now := r.cfg.Clock.Now()
			r.stamp = d.Stamp
			if r.answers != nil {
				if server := r.server(d.Src); server >= 0 {
					r.rcv.HeardAnswer(now, server, d.Data)
				}
			}
			if d.Src.Addr() != r.source && r.cfg.SourcePort != 0 {
				r.offerNew(now, line, d)
				continue
			}
			r.rcv.Offer(now, line, d.Data)
		}
		more = more || n == drainAtOnce
	}
	if r.answers == nil {
		return more
	}
	n := 0
	for ; n < drainAtOnce; n++ {
		d := r.answers.Ring().Pop()
		if d == nil {
			break
		}
		if server := r.server(d.Src); server >= 0 {
			r.stamp = d.Stamp
			r.rcv.OfferAnswer(r.cfg.Clock.Now(), server, d.Data)
		} else {
			r.stats.Foreign++
		}
	}
	return more || n == drainAtOnce
}

// offerNew offers a datagram from an address that the stream did not come
// from before: if it belongs to the session, it does now.
func (r *subscribing) offerNew(now moldcast.Instant, line int, d *Datagram) {
	before := r.rcv.Stats().Packets
	r.rcv.Offer(now, line, d.Data)
	if r.rcv.Stats().Packets > before {
		r.source = d.Src.Addr()
		r.cfg.Log.Debug("stream comes from", "source", d.Src)
	}
}

// server is the number of a server; -1 for any other address.
func (r *subscribing) server(a netip.AddrPort) int {
	for i, s := range r.cfg.Servers {
		if s == a {
			return i
		}
	}
	if r.cfg.SourcePort != 0 && a.Port() == r.cfg.SourcePort && a.Addr() == r.source {
		return len(r.cfg.Servers)
	}
	return -1
}

// ask sends the requests that are due.
func (r *subscribing) ask(now moldcast.Instant) error {
	for more := true; more; {
		r.out, r.arena = r.out[:0], r.arena[:0]
		for len(r.out) < BatchSize {
			req, server, ok := r.rcv.Poll(now)
			if !ok {
				more = false
				break
			}
			to := netip.AddrPortFrom(r.source, r.cfg.SourcePort)
			if server < len(r.cfg.Servers) {
				to = r.cfg.Servers[server]
			}
			at := len(r.arena)
			r.arena = moldcast.AppendRequest(r.arena, req)
			r.out = append(r.out, Datagram{Data: r.arena[at:], Dst: to})
			r.cfg.Log.Debug("asked", "server", to, "range", req.Range())
		}
		if len(r.out) == 0 {
			return nil
		}
		n, err := r.cfg.Requests.WriteBatch(r.out)
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("asking: %w", err)
		}
		if n < len(r.out) {
			r.stats.NotAsked += uint64(len(r.out) - n)
			if now >= r.alarmAt {
				r.alarmAt = now + moldcast.Instant(10*time.Second)
				r.cfg.Log.Warn("requests could not be sent", "err", err)
			}
		}
	}
	return nil
}
