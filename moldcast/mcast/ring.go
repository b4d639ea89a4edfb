package mcast

import "sync/atomic"

// Sizes of a Ring where the caller does not say.
const (
	DefaultRingSlots = 8192
	DefaultSlotSize  = 2048
	largeBudget      = 16 << 20 // bytes of datagrams longer than a slot, held at a time
)

// Ring is a single-producer, single-consumer queue of datagrams in
// preallocated slots. The producer is an RX (or Push); the consumer is one
// engine. Neither ever waits for the other.
type Ring struct {
	slots []Datagram
	arena []byte // made when first needed: what is lent does not
	size  int    // of a slot, bytes
	mask  uint64 // len(slots) - 1
	large atomic.Int64
	ended atomic.Pointer[func()] // run once by whoever finds the ring empty

	_    [64]byte // the two ends on cache lines of their own
	head atomic.Uint64
	seen uint64 // producer: tail as last read

	_    [64]byte
	tail atomic.Uint64
	know uint64 // consumer: head as last read
	held bool   // consumer: the slot at tail is in the caller's hands
	_    [64]byte
}

// NewRing makes a ring of at least slots datagrams of size bytes; 0 is
// DefaultRingSlots and DefaultSlotSize.
func NewRing(slots, size int) *Ring {
	if slots <= 0 {
		slots = DefaultRingSlots
	}
	if size <= 0 {
		size = DefaultSlotSize
	}
	n := 1
	for n < slots {
		n *= 2
	}
	return &Ring{slots: make([]Datagram, n), size: size, mask: uint64(n - 1)}
}

// reserve gives the producer up to max free slots that lie side by side, with
// their buffers; none when the ring is full.
func (r *Ring) reserve(max int) []Datagram {
	head := r.head.Load()
	free := uint64(len(r.slots)) - (head - r.seen)
	if free < uint64(max) {
		r.seen = r.tail.Load()
		free = uint64(len(r.slots)) - (head - r.seen)
	}
	at := int(head & r.mask)
	n := min(int(free), max, len(r.slots)-at)
	s := r.slots[at : at+n]
	for i := range s {
		s[i].Data, s[i].lent = r.buffer(at+i), false
	}
	return s
}

func (r *Ring) buffer(slot int) []byte {
	if r.arena == nil {
		r.arena = make([]byte, len(r.slots)*r.size)
	}
	return r.arena[slot*r.size : slot*r.size : (slot+1)*r.size]
}

// publish makes the first n reserved slots visible. Truncated datagrams and
// large ones beyond the budget are emptied, so that Pop skips them; the result
// counts the latter.
func (r *Ring) publish(n int) (dropped int) {
	head := r.head.Load()
	for i := range n {
		d := &r.slots[(head+uint64(i))&r.mask]
		d.skip = d.Truncated
		if len(d.Data) > r.size && !d.skip && !d.lent {
			if r.large.Add(int64(len(d.Data))) > largeBudget {
				r.large.Add(-int64(len(d.Data)))
				d.skip = true
				dropped++
			}
		}
		if d.skip {
			d.Data = nil
		}
	}
	r.head.Store(head + uint64(n))
	return dropped
}

// Push copies a datagram in: for producers other than an RX. It reports
// whether there was room.
func (r *Ring) Push(d *Datagram) bool {
	s := r.reserve(1)
	if len(s) == 0 {
		return false
	}
	buf := s[0].Data
	s[0] = *d
	s[0].lent = false
	s[0].Data = append(buf, d.Data...) // longer than a slot: a buffer of its own
	return r.publish(1) == 0
}

// Pop is the oldest datagram, nil when the ring is empty. It and its Data are
// valid until the next Pop, which gives its slot back.
func (r *Ring) Pop() *Datagram {
	tail := r.tail.Load()
	for {
		if r.held {
			d := &r.slots[tail&r.mask]
			if d.lent {
				d.Data = nil
			} else if len(d.Data) > r.size {
				r.large.Add(-int64(len(d.Data)))
				d.Data = nil
			}
			tail++
			r.tail.Store(tail)
			r.held = false
		}
		if tail == r.know {
			r.know = r.head.Load()
			if tail == r.know {
				if r.ended.Load() != nil {
					r.settle()
				}
				return nil
			}
		}
		r.held = true
		if d := &r.slots[tail&r.mask]; !d.skip {
			return d
		}
	}
}

// end is the producer's last call: free is run when all was popped.
func (r *Ring) end(free func()) {
	r.ended.Store(&free)
	if r.tail.Load() == r.head.Load() {
		r.settle()
	}
}

// settle runs what was given to end.
//
// REQUIRES: the producer has ended, and all was popped and given back.
func (r *Ring) settle() {
	if free := r.ended.Swap(nil); free != nil {
		(*free)()
	}
}

// Discard pops all there is: after the producer's Close, for an engine that has
// ended. The consumer's.
func (r *Ring) Discard() {
	for r.Pop() != nil {
	}
}

// Empty reports whether nothing waits beyond what Pop returned last. The
// consumer's.
func (r *Ring) Empty() bool {
	n := r.head.Load() - r.tail.Load()
	return n == 0 || n == 1 && r.held
}

// Len is about how many datagrams wait; any goroutine may ask.
func (r *Ring) Len() int { return int(r.head.Load() - r.tail.Load()) }

// Cap is how many datagrams r holds at most.
func (r *Ring) Cap() int { return len(r.slots) }

// Wake wakes the one engine that drains rings. Producers signal only when it
// sleeps or is about to: an engine that keeps up costs them one load.
//
//	for {
//		drain()
//		c := wake.Arm()
//		if anything() { // arrived since: a signal may have been saved
//			wake.Disarm()
//			continue
//		}
//		select { case <-c: case <-timer: }
//		wake.Disarm()
//	}
type Wake struct {
	armed atomic.Bool
	c     chan struct{}
}

// NewWake makes a Wake.
func NewWake() *Wake { return &Wake{c: make(chan struct{}, 1)} }

// Arm says that the engine is about to sleep on the channel. It must look at
// its rings once more after Arm and before it sleeps.
func (w *Wake) Arm() <-chan struct{} {
	w.armed.Store(true)
	return w.c
}

// Disarm says that the engine is awake. A signal that was on its way stays in
// the channel and wakes it once for nothing.
func (w *Wake) Disarm() { w.armed.Store(false) }

// Signal wakes the engine if it sleeps.
func (w *Wake) Signal() {
	if w.armed.Load() && w.armed.CompareAndSwap(true, false) {
		w.Kick()
	}
}

// Kick wakes the engine, now or when it sleeps next.
func (w *Wake) Kick() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}
