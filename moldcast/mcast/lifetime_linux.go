package mcast

import (
	"encoding/binary"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// lifetime keeps file descriptors open while someone uses them.
type lifetime struct {
	use  atomic.Int64 // uses under way, plus closing
	wake int          // eventfd: readable once closed
	done chan struct{}
	free func() // gives everything but wake back
}

// closing is added to lifetime.use by Close.
const closing = 1 << 40

func (l *lifetime) init(free func()) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	l.wake, l.done, l.free = wake, make(chan struct{}), free
	return nil
}

// enter begins a use: the file descriptors stay open until leave.
func (l *lifetime) enter() bool {
	if l.use.Add(1) >= closing {
		l.leave()
		return false
	}
	return true
}

func (l *lifetime) leave() {
	if l.use.Add(-1) == closing {
		l.destroy()
	}
}

func (l *lifetime) closed() bool { return l.use.Load() >= closing }

// destroy gives the file descriptors back, once: after it the count of uses
// can never be exactly closing again.
func (l *lifetime) destroy() {
	if !l.use.CompareAndSwap(closing, 2*closing) {
		return
	}
	l.free()
	unix.Close(l.wake)
	close(l.done)
}

// Close ends reads and writes under way and frees the port; it returns when
// both are so. Closing twice is harmless.
func (l *lifetime) Close() error {
	for {
		u := l.use.Load()
		if u >= closing {
			break
		}
		if l.use.CompareAndSwap(u, u+closing+1) { // +1: the eventfd is ours until it is written
			var one [8]byte
			binary.NativeEndian.PutUint64(one[:], 1)
			_, _ = unix.Write(l.wake, one[:])
			l.leave()
			break
		}
	}
	<-l.done
	return nil
}
