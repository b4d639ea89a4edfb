package mcast

import (
	"errors"
	"net/netip"
)

// InOrder is a sending socket that stops at the first datagram that the system
// does not take, and says which: the first n of a batch went out, err says why
// no more did. What has no room for a moment (ENOBUFS, EAGAIN) is an error
// too: whoever sends decides how long to try again. One goroutine sends at a
// time; the socket keeps nothing of a batch.
type InOrder interface {
	Send(batch [][]byte) (n int, err error)
	LocalAddr() netip.AddrPort
	Counters() Counters
	Close() error
}

// ErrNoFrames is wrapped by what DialPacket finds in the way of sending
// frames.
var ErrNoFrames = errors.New("packets cannot be sent past the system's own stack")
