package mcast

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// NetworkConfig describes an in-memory network.
type NetworkConfig struct {
	Latency time.Duration // one way, of every datagram
	Multi   Impair        // harms multicast, on each receiver's own link: the seed is Multi.Seed + its number
	Uni     Impair        // harms unicast, likewise
	Queue   int           // receive buffer of a socket in datagrams; 0: 65536. What finds it full is KernelDropped
	Clock   Clock         // nil: a new SystemClock
}

// Network carries datagrams between Endpoints in memory: multicast to all that
// listen on the group, unicast to the one that is bound. It blocks on channels
// and timers only, so that in a testing/synctest bubble it runs in virtual
// time. Made and used inside the bubble.
type Network struct {
	cfg NetworkConfig

	mu struct {
		sync.Mutex
		ends []*Endpoint
		made int
	}
}

// NewNetwork makes a network without endpoints.
func NewNetwork(c NetworkConfig) (*Network, error) {
	if err := c.Multi.Validate(); err != nil {
		return nil, fmt.Errorf("multicast impairment: %w", err)
	}
	if err := c.Uni.Validate(); err != nil {
		return nil, fmt.Errorf("unicast impairment: %w", err)
	}
	if c.Queue == 0 {
		c.Queue = 65536
	}
	if c.Clock == nil {
		c.Clock = NewClock()
	}
	return &Network{cfg: c}, nil
}

// Endpoint is a Socket of a Network.
type Endpoint struct {
	net   *Network
	local netip.AddrPort // what it is bound to: a group, or an address of its own
	src   netip.AddrPort // what its datagrams come from
	only  netip.Addr     // the one sender heard, where valid
	dst   netip.AddrPort // of Send

	notify chan struct{} // capacity 1: something is due, or will be
	closed chan struct{}

	mu struct {
		sync.Mutex
		closed     bool
		queue      []flying // by due time; those below head were read
		head       int
		frame      []byte // scratch
		multi, uni *Impairment
		quietAt    moldcast.Instant // when the links give up waiting for what overtakes
		counters   Counters
	}
}

type flying struct {
	due  moldcast.Instant
	sent moldcast.Stamp
	src  netip.AddrPort
	data []byte
}

// Listen makes an endpoint that receives what c says; sizes, interface and log
// mean nothing here.
func (n *Network) Listen(c ListenConfig) (*Endpoint, error) {
	c.ensureDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	e, err := n.add(c.Addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock() // others may be sending already
	e.only = c.Source
	n.mu.Unlock()
	return e, nil
}

// Dial makes an endpoint that sends to c.Addr; and receives, as every UDP
// socket does, what is sent to its own address.
func (n *Network) Dial(c SendConfig) (*Endpoint, error) {
	c.ensureDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	e, err := n.add(c.Bind)
	if err != nil {
		return nil, err
	}
	e.dst = c.Addr
	return e, nil
}

func (n *Network) add(at netip.AddrPort) (*Endpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.made++
	number := n.mu.made
	own := netip.AddrFrom4([4]byte{10, 0, byte(number >> 8), byte(number)})
	port := at.Port()
	if port == 0 {
		port = uint16(40000 + number%20000)
	}
	e := &Endpoint{net: n, notify: make(chan struct{}, 1), closed: make(chan struct{})}
	e.src = netip.AddrPortFrom(own, port)
	if at.Addr().IsUnspecified() {
		e.local = e.src
	} else {
		e.local = netip.AddrPortFrom(at.Addr(), port)
		if !at.Addr().IsMulticast() {
			e.src = e.local
		}
	}
	for _, o := range n.mu.ends {
		if o.local == e.local && !e.local.Addr().IsMulticast() {
			return nil, fmt.Errorf("binding %v: address already in use", e.local)
		}
	}
	multi, uni := n.cfg.Multi, n.cfg.Uni
	multi.Seed += uint64(number)
	uni.Seed += uint64(number)
	var err error
	if e.mu.multi, err = NewImpairment(multi); err != nil {
		return nil, err
	}
	if e.mu.uni, err = NewImpairment(uni); err != nil {
		return nil, err
	}
	n.mu.ends = append(n.mu.ends, e)
	return e, nil
}

// LocalAddr implements Socket.
func (e *Endpoint) LocalAddr() netip.AddrPort { return e.local }

// Counters is a snapshot of what happened at e.
func (e *Endpoint) Counters() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.counters
}

// Impairments is what the links to e did: multicast and unicast.
func (e *Endpoint) Impairments() (multi, uni ImpairCounters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.multi.Counters(), e.mu.uni.Counters()
}

// Close implements Socket.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	was := e.mu.closed
	e.mu.closed = true
	e.mu.Unlock()
	if was {
		return nil
	}
	close(e.closed)
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, o := range n.mu.ends {
		if o == e {
			n.mu.ends = append(n.mu.ends[:i:i], n.mu.ends[i+1:]...)
			break
		}
	}
	return nil
}

// Send implements Socket.
func (e *Endpoint) Send(batch [][]byte) (int, error) {
	for i, b := range batch {
		if err := e.write(e.dst, b); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// WriteBatch implements Socket.
func (e *Endpoint) WriteBatch(ds []Datagram) (int, error) {
	for i := range ds {
		if err := e.write(ds[i].Dst, ds[i].Data); err != nil {
			return i, err
		}
	}
	return len(ds), nil
}

func (e *Endpoint) write(dst netip.AddrPort, b []byte) error {
	e.mu.Lock()
	closed := e.mu.closed
	if !closed {
		e.mu.counters.Sent++
	}
	e.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	n := e.net
	n.mu.Lock()
	var to []*Endpoint
	for _, o := range n.mu.ends {
		if o.local == dst && (!o.only.IsValid() || o.only == e.src.Addr()) {
			to = append(to, o)
		}
	}
	n.mu.Unlock()
	for _, o := range to {
		o.arrive(e.src, dst.Addr().IsMulticast(), b)
	}
	return nil
}

// arrive puts a datagram on the link to e.
func (e *Endpoint) arrive(src netip.AddrPort, multicast bool, b []byte) {
	e.mu.Lock()
	now := e.net.cfg.Clock.Now()
	link := e.mu.uni
	if multicast {
		link = e.mu.multi
	}
	// The sender's address travels with the packet: a held one comes out in
	// another sender's call.
	ip := src.Addr().As4()
	e.mu.frame = append(e.mu.frame[:0], ip[:]...)
	e.mu.frame = binary.BigEndian.AppendUint16(e.mu.frame, src.Port())
	e.mu.frame = append(e.mu.frame, b...)
	link.Apply(e.mu.frame, func(f []byte) { e.enqueue(now, f) })
	e.mu.quietAt = gap.Never
	if e.mu.uni.Waiting()+e.mu.multi.Waiting() > 0 {
		e.mu.quietAt = now + moldcast.Instant(5*time.Millisecond)
	}
	e.mu.Unlock()
	select {
	case e.notify <- struct{}{}:
	default:
	}
}

// REQUIRES: e.mu is held.
func (e *Endpoint) enqueue(now moldcast.Instant, frame []byte) {
	if len(e.mu.queue)-e.mu.head >= e.net.cfg.Queue {
		e.mu.counters.KernelDropped++
		return
	}
	e.mu.queue = append(e.mu.queue, flying{
		due:  now + moldcast.Instant(e.net.cfg.Latency),
		sent: e.net.cfg.Clock.Wall(),
		src:  netip.AddrPortFrom(netip.AddrFrom4([4]byte(frame)), binary.BigEndian.Uint16(frame[4:])),
		data: append([]byte(nil), frame[6:]...),
	})
}

// ReadBatch implements Socket.
func (e *Endpoint) ReadBatch(ds []Datagram) (int, error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		n, next, err := e.read(ds)
		if n > 0 || err != nil {
			return n, err
		}
		timer.Reset(until(e.net.cfg.Clock.Now(), next))
		select {
		case <-e.notify:
		case <-timer.C:
		case <-e.closed:
		}
	}
}

// read takes what is due; next is when more will be.
func (e *Endpoint) read(ds []Datagram) (n int, next moldcast.Instant, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return 0, 0, net.ErrClosed
	}
	now := e.net.cfg.Clock.Now()
	if e.mu.uni.Waiting()+e.mu.multi.Waiting() > 0 && now >= e.mu.quietAt {
		emit := func(f []byte) { e.enqueue(now, f) }
		e.mu.uni.Flush(emit)
		e.mu.multi.Flush(emit)
	}
	for n < len(ds) && e.mu.head < len(e.mu.queue) && e.mu.queue[e.mu.head].due <= now {
		f := &e.mu.queue[e.mu.head]
		e.mu.head++
		d := &ds[n]
		*d = Datagram{
			Data:    append(d.Data[:0], f.data...),
			Src:     f.src,
			Stamp:   f.sent + moldcast.Stamp(e.net.cfg.Latency),
			IfIndex: 1,
		}
		n++
	}
	next = gap.Never
	if e.mu.head < len(e.mu.queue) {
		next = e.mu.queue[e.mu.head].due
	} else {
		clear(e.mu.queue)
		e.mu.queue, e.mu.head = e.mu.queue[:0], 0
	}
	if e.mu.uni.Waiting()+e.mu.multi.Waiting() > 0 {
		next = min(next, e.mu.quietAt)
	}
	return n, next, nil
}
