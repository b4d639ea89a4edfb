//go:build !linux

package mcast

import (
	"fmt"
	"net/netip"
)

// DialInOrder is Dial for a socket that sends in order.
func DialInOrder(c SendConfig) (InOrder, error) {
	s, err := Dial(c)
	if err != nil {
		return nil, err
	}
	return inOrder{s}, nil
}

type inOrder struct{ *Conn }

func (s inOrder) Send(batch [][]byte) (int, error) {
	for i := range batch {
		if _, err := s.Conn.Send(batch[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// DialPacket is Linux's.
func DialPacket(SendConfig) (InOrder, error) {
	return nil, fmt.Errorf("%w: that is Linux's", ErrNoFrames)
}

// HeardHere does not know.
func HeardHere(string, netip.Addr) bool { return false }
