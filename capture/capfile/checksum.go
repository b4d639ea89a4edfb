package capfile

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// gopacket computes checksums only when it writes, two bytes at a time; those
// that are read, and those of a Writer, are computed here.

// udpSumRight checks the checksum of a UDP header and payload, which is over a
// pseudo header too (RFC 768, RFC 8200 section 8.1).
func udpSumRight(src, dst netip.Addr, b []byte) bool {
	return fold(sum(b, pseudo(src, dst, len(b)))) == 0xffff
}

func pseudo(src, dst netip.Addr, n int) uint64 {
	acc := uint64(protoUDP) + uint64(n)
	if src.Is4() {
		s, d := src.As4(), dst.As4()
		return sum(d[:], sum(s[:], acc))
	}
	s, d := src.As16(), dst.As16()
	return sum(d[:], sum(s[:], acc))
}

// sum adds b to a ones' complement sum as big-endian words; fold makes 16 bits
// of it. acc may be a sum itself, or anything below 2^63.
func sum(b []byte, acc uint64) uint64 {
	return acc + uint64(bits.ReverseBytes16(fold(words(b, 0))))
}

// words adds b to a ones' complement sum as little-endian words of 32 bits:
// folded, that is the same as of 16 bits, and swapped, as of big-endian ones
// (RFC 1071 section 2). b is at most 64 KiB, so the sum of its words is below
// 2^46; acc is anything below 2^63.
func words(b []byte, acc uint64) uint64 {
	le := binary.LittleEndian
	for ; len(b) >= 32; b = b[32:] {
		acc += uint64(le.Uint32(b)) + uint64(le.Uint32(b[4:])) + uint64(le.Uint32(b[8:])) + uint64(le.Uint32(b[12:])) +
			uint64(le.Uint32(b[16:])) + uint64(le.Uint32(b[20:])) + uint64(le.Uint32(b[24:])) + uint64(le.Uint32(b[28:]))
	}
	for ; len(b) >= 8; b = b[8:] {
		acc += uint64(le.Uint32(b)) + uint64(le.Uint32(b[4:]))
	}
	if len(b) >= 4 {
		acc += uint64(le.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		acc += uint64(le.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		acc += uint64(b[0])
	}
	return acc
}

func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff // below 2^33
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc>>16 + acc&0xffff)
}
