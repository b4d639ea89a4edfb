package retransmit

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A reader's socket may hold so much that is not yet sent; what is on its way to
// the other end is bounded by that end's window. So a reader that takes nothing
// costs the kernel little, and one that is far away loses nothing.
const unsentBytes = 128 << 10

// turnConn is a TCP connection of which a write takes a turn for each copy to
// the kernel, and none while it waits for room there. There are fewer turns than
// processors: however many readers there are, most of them wait for a channel,
// not for a processor, and a capture beside them finds one.
type turnConn struct {
	*net.TCPConn
	raw   syscall.RawConn
	turns chan struct{}
	step  func(fd uintptr) bool // turnConn.write, made once

	// A write that gets nowhere for so long fails; while it gets on it goes on
	// whatever the deadline: for TLS, where one that was interrupted cannot be
	// taken up again. 0: by the deadline.
	stall time.Duration

	// Of the write under way.
	b   []byte
	n   int
	err error
}

func newTurnConn(c *net.TCPConn, turns chan struct{}) (*turnConn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	t := &turnConn{TCPConn: c, raw: raw, turns: turns}
	t.step = t.copy
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
	return t, nil
}

// Write is called from one goroutine at a time.
func (t *turnConn) Write(b []byte) (int, error) {
	t.b, t.n, t.err = b, 0, nil
	var err error
	for stuck := 0; stuck < stallSlices; {
		before := t.n
		if t.stall > 0 {
			_ = t.SetWriteDeadline(time.Now().Add(t.stall / stallSlices))
		}
		if err = t.raw.Write(t.step); t.stall == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if stuck++; t.n > before {
			stuck = 0
		}
	}
	t.b = nil
	if err == nil {
		err = t.err
	}
	return t.n, err
}

// copy copies what there is room for. False: there is none as yet.
func (t *turnConn) copy(fd uintptr) bool {
	for t.n < len(t.b) {
		t.turns <- struct{}{}
		n, err := unix.Write(int(fd), t.b[t.n:])
		<-t.turns
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case err != nil:
			t.err = &net.OpError{Op: "write", Net: "tcp", Addr: t.RemoteAddr(), Err: err}
			return true
		default:
			t.n += n
		}
	}
	return true
}

// queued is how much of what was written the other end has not taken.
func (t *turnConn) queued() int {
	n := 0
	_ = t.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
