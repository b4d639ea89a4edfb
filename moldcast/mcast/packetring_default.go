//go:build !linux

package mcast

import (
	"errors"
	"net/netip"
)

func openPacketRing([]ListenConfig) (Socket, []netip.AddrPort, error) {
	return nil, nil, errors.New("receive rings are Linux's")
}
