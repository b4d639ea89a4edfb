package store

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// What can wait (dense blocks, what is learned for them, merging) takes only the
// processor time that others leave. Whether they leave any is told by the work
// itself: a thread that computes, and has a processor for less of the time than
// it wants one, shares it with others, of whom one may be who receives. Then what
// can wait does: for a block, and longer each time it is so again. Threads of a
// lower priority would not do: Go stops the world for each of them, and waits for
// those that the system does not let run.

const (
	// spareShare is which share of the time that it computes a thread has to have
	// a processor, where there is time to spare.
	spareShare = 0.75

	// spareLook is how long it has to compute for that to be told.
	spareLook = 500 * time.Microsecond

	// How many blocks are compressed fast after a dense one for which there was
	// no time, where that happens again and again.
	spareRestFirst, spareRestMost = 4, 256

	turnLook = 10 * time.Millisecond // who waits for a turn sees so often whether it may
)

// stopwatch tells which share of the time this goroutine had a processor.
type stopwatch struct {
	begun time.Time
	used  time.Duration
}

// startWatch keeps the goroutine on its thread until stop.
func startWatch() *stopwatch {
	runtime.LockOSThread()
	s := new(stopwatch)
	s.begin()
	return s
}

func (s *stopwatch) stop() { runtime.UnlockOSThread() }

// begin begins anew: what was before does not count.
func (s *stopwatch) begin() { s.begun, s.used = time.Now(), threadTime() }

// spare reports whether there is time to spare, by what passed since the
// watch began.
func (s *stopwatch) spare() bool { return s.spareAt(time.Now(), threadTime()) }

// spareAt is spare at a time, when the thread has used so much of a processor:
// true where what passed is too little to tell.
func (s *stopwatch) spareAt(now time.Time, used time.Duration) bool {
	took := now.Sub(s.begun)
	return took < spareLook || float64(used-s.used) >= spareShare*float64(took)
}

// threadTime is the processor time of this thread; that of clock_gettime(2).
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return time.Duration(time.Now().UnixNano()) // it cannot be told
	}
	return time.Duration(t.Nano())
}

// spares reports whether there was time to spare for fn, which only computes.
func spares(fn func()) bool {
	w := startWatch()
	defer w.stop()
	fn()
	return w.spare()
}

// denseTurns is how many blocks of an archive are made dense at a time while it
// captures: one processor is for the others, where there is another.
func denseTurns() int { return max(runtime.NumCPU()-1, 1) }

// spareTime is what a worker knows of the time that there is for dense blocks.
type spareTime struct {
	rest int // blocks, after the next for which there is none
	left int // of these
}

// try reports whether the next block is to be dense.
func (s *spareTime) try() bool {
	if s.left == 0 {
		return true
	}
	s.left--
	return false
}

// tried notes whether there was time for it.
func (s *spareTime) tried(there bool) {
	if there {
		s.rest /= 2
		return
	}
	s.rest = min(max(2*s.rest, spareRestFirst), spareRestMost)
	s.left = s.rest
}
