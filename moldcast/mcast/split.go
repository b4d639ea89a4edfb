package mcast

import (
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
)

// Branch is the part of a shared socket that one engine drains: what an RX is
// for a socket of its own. Its lines are those that the engine has on it.
type Branch struct {
	split *split
	ring  *Ring
	wake  *Wake

	received, queueDropped atomic.Uint64
	closed                 atomic.Bool
	first                  bool // has what nobody else is to count
}

// BranchConfig is where a Branch delivers to.
type BranchConfig struct {
	Ring *Ring
	Wake *Wake
}

// split is the thread behind the branches of a socket.
type split struct {
	sock     Socket
	branches []*Branch
	to       func(*Datagram) int
	log      *slog.Logger

	failed atomic.Pointer[error]
	open   atomic.Int64
	close  sync.Once
	done   chan struct{}
}

// StartSplit starts draining s, on an OS thread of its own, into the ring of
// the branch that to names for each datagram; so each is counted once, on one
// branch. What to gives no branch (-1), and what the kernel dropped or cut, is
// the first one's, whoever it was for. The branches own s: the last Close
// closes it. A nil log is silent.
func StartSplit(s Socket, branches []BranchConfig, to func(*Datagram) int, log *slog.Logger) []*Branch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	x := &split{sock: s, to: to, log: log, done: make(chan struct{})}
	for i, b := range branches {
		x.branches = append(x.branches, &Branch{split: x, ring: b.Ring, wake: b.Wake, first: i == 0})
	}
	x.open.Store(int64(len(branches)))
	go x.run()
	return x.branches
}

// Ring is the ring that b fills.
func (b *Branch) Ring() *Ring { return b.ring }

// Socket is the shared socket.
func (b *Branch) Socket() Socket { return b.split.sock }

// Counters is a snapshot; it may be called at any time.
func (b *Branch) Counters() RXCounters {
	c := RXCounters{Received: b.received.Load(), QueueDropped: b.queueDropped.Load()}
	if s, ok := b.split.sock.(interface{ Counters() Counters }); ok && b.first {
		k := s.Counters()
		c.KernelDropped, c.Truncated, c.Errors, c.Invalid = k.KernelDropped, k.Truncated, k.ReadErrors, k.Invalid
	}
	return c
}

// Err is why receiving stopped by itself; nil while it runs, and after Close.
func (b *Branch) Err() error {
	if e := b.split.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// Idle reports whether all that the socket had received is in the rings; true
// where the socket cannot tell.
func (b *Branch) Idle() bool { return idle(b.split.sock) }

// Close ends the delivery to b. What is in the ring stays there to be popped.
func (b *Branch) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	x := b.split
	if x.open.Add(-1) > 0 {
		return nil
	}
	var err error
	x.close.Do(func() { err = x.sock.Close() })
	<-x.done
	return err
}

func (x *split) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(x.done)
	size := DefaultSlotSize
	ds := newScratch(size)
	touched := make([]bool, len(x.branches))
	for {
		for i := range ds {
			ds[i].Data = ds[i].Data[:0]
		}
		n, err := x.sock.ReadBatch(ds)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				x.log.Error("receiving stopped", "addr", x.sock.LocalAddr(), "err", err)
				failed := err
				x.failed.Store(&failed)
				for _, b := range x.branches {
					b.wake.Kick()
				}
			}
			return
		}
		for i := range ds[:n] {
			d := &ds[i]
			at := max(x.to(d), 0)
			b := x.branches[at]
			if !b.closed.Load() {
				b.received.Add(1)
				touched[at] = true
				if !d.Truncated && !b.ring.Push(d) {
					b.queueDropped.Add(1)
				}
			}
			if cap(d.Data) > size {
				d.Data = make([]byte, 0, size) // what was longer than the buffer came in one of its own
			}
		}
		for i, b := range x.branches {
			if touched[i] {
				touched[i] = false
				b.wake.Signal()
			}
		}
	}
}
