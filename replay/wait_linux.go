package replay

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for about d on the calling thread. The runtime's own timers are
// 0.5 to 1.2 ms late, the kernel's some tens of µs.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	// Woken early by a signal, the caller looks at the clock and sleeps again.
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
}

// tuneThread lowers the timer slack of the calling thread from 50 µs to 1 ns.
// It is a wish: where it fails the lead grows instead.
func tuneThread() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }
