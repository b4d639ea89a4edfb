package mcast

import (
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
)

// RX drains one socket into a ring, on an OS thread of its own. It owns the
// reading side of the socket and the producing end of the ring.
type RX struct {
	sock Socket
	ring *Ring
	wake *Wake
	log  *slog.Logger

	received, queueDropped atomic.Uint64
	failed                 atomic.Pointer[error]

	close sync.Once
	done  chan struct{}
}

// RXCounters are an RX's totals. Received = popped + waiting in the ring +
// QueueDropped + Truncated.
type RXCounters struct {
	Received      uint64 // datagrams read from the socket
	QueueDropped  uint64 // of those, discarded because the ring was full
	Truncated     uint64 // of those, discarded because they were longer than MaxDatagram
	KernelDropped uint64 // datagrams that the kernel discarded because the socket's buffer or ring was full
	Errors        uint64 // failed reads that were survived
	Invalid       uint64 // datagrams for its groups that were found broken, which Received leaves out
}

// StartRX starts draining s into ring, signalling wake. The RX owns s from
// now on: Close closes it. A nil log is silent.
func StartRX(s Socket, ring *Ring, wake *Wake, log *slog.Logger) *RX {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &RX{sock: s, ring: ring, wake: wake, log: log, done: make(chan struct{})}
	if l, ok := s.(lender); ok {
		l.borrow()
	}
	go r.run()
	return r
}

// Ring is the ring that r fills.
func (r *RX) Ring() *Ring { return r.ring }

// Socket is the socket that r drains: for sending, and for its address.
func (r *RX) Socket() Socket { return r.sock }

// Counters is a snapshot; it may be called at any time.
func (r *RX) Counters() RXCounters {
	c := RXCounters{Received: r.received.Load(), QueueDropped: r.queueDropped.Load()}
	if s, ok := r.sock.(interface{ Counters() Counters }); ok {
		k := s.Counters()
		c.KernelDropped, c.Truncated, c.Errors, c.Invalid = k.KernelDropped, k.Truncated, k.ReadErrors, k.Invalid
	}
	return c
}

// Err is why r stopped by itself; nil while it runs, and after Close.
func (r *RX) Err() error {
	if e := r.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// Idle reports whether all that the socket had received is in the ring; true
// where the socket cannot tell.
func (r *RX) Idle() bool { return idle(r.sock) }

// idler is a socket that can tell whether all that came was read, and given on:
// its reader has come back for more.
type idler interface{ idle() bool }

func idle(s Socket) bool {
	i, ok := s.(idler)
	return !ok || i.idle()
}

// Close closes the socket and returns when the thread has ended. What is in
// the ring stays there to be popped; when Pop has returned nil the socket's
// memory is given back: Ring.Discard does that for an engine that has ended.
func (r *RX) Close() error {
	var err error
	r.close.Do(func() { err = r.sock.Close() })
	<-r.done
	return err
}

// lender is a socket that lends its own memory to an RX.
type lender interface {
	Socket

	// borrow says, once and before all else, that memory is going to be lent:
	// after Close it stays until giveBack.
	borrow()
	giveBack()

	// lend fills ds with what there is, without waiting: copied into the
	// buffers, or lent. pos is the position of ds[0] in the stream of all that
	// was lent. release says that what came before a position is not used any
	// more; wait, that there is something to lend, or to look for room again
	// where ds was full, or net.ErrClosed. All are the reading goroutine's.
	lend(ds []Datagram, pos uint64) int
	release(pos uint64)
	wait(full bool) error
}

// runLent is run for a lender. A ring that is full leaves the rest where it
// is: the kernel drops what then finds no room there, and counts it.
func (r *RX) runLent(s lender) error {
	defer r.ring.end(s.giveBack)
	for {
		s.release(r.ring.tail.Load())
		ds := r.ring.reserve(BatchSize)
		n := s.lend(ds, r.ring.head.Load())
		if n == 0 {
			if err := s.wait(len(ds) == 0); err != nil {
				return err
			}
			continue
		}
		r.received.Add(uint64(n))
		if dropped := r.ring.publish(n); dropped > 0 {
			r.queueDropped.Add(uint64(dropped))
		}
		r.wake.Signal()
	}
}

func (r *RX) run() {
	// The thread does nothing else, so that the kernel can run it the moment
	// a datagram comes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.done)
	var err error
	if s, ok := r.sock.(lender); ok {
		err = r.runLent(s)
	} else {
		err = r.runCopied()
	}
	if !errors.Is(err, net.ErrClosed) {
		r.log.Error("receiving stopped", "addr", r.sock.LocalAddr(), "err", err)
		r.failed.Store(&err)
		r.wake.Kick()
	}
}

// runCopied is run for a socket that reads into the ring's buffers. What finds
// the ring full is read and discarded: the kernel's buffer never hides a loss.
func (r *RX) runCopied() error {
	var scratch []Datagram
	for {
		ds := r.ring.reserve(BatchSize)
		full := len(ds) == 0
		if full {
			if scratch == nil {
				scratch = newScratch(r.ring.size)
			}
			ds = scratch
		}
		n, err := r.sock.ReadBatch(ds)
		if err != nil {
			return err
		}
		r.received.Add(uint64(n))
		if full {
			dropped := 0
			for i := range ds[:n] {
				if !ds[i].Truncated {
					dropped++
				}
				if cap(ds[i].Data) > r.ring.size {
					ds[i].Data = ds[i].Data[:0:0]
				}
			}
			r.queueDropped.Add(uint64(dropped))
		} else if dropped := r.ring.publish(n); dropped > 0 {
			r.queueDropped.Add(uint64(dropped))
		}
		r.wake.Signal()
	}
}

// newScratch makes a batch of buffers to discard into.
func newScratch(size int) []Datagram {
	arena := make([]byte, BatchSize*size)
	ds := make([]Datagram, BatchSize)
	for i := range ds {
		ds[i].Data = arena[i*size : i*size : (i+1)*size]
	}
	return ds
}
