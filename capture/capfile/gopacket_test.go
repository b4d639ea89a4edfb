package capfile

import (
	"net/netip"
	"slices"
)

// appendFrame appends the frame that a Writer makes.
func appendFrame(b []byte, dst netip.AddrPort, payload []byte) []byte {
	f, err := newEncoder().frame(dst, payload)
	if err != nil {
		panic(err)
	}
	return append(b, slices.Clip(f)...)
}
