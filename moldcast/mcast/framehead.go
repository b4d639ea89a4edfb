package mcast

import (
	"encoding/binary"
	"net/netip"
)

const (
	etherHeader  = 14
	frameHeaders = etherHeader + ipHeader + udpHeader
	dontFragment = 0x4000
)

// frameHead is what a multicast datagram in an Ethernet frame begins with (RFC 1112 6.4 for
// the destination, RFC 791, RFC 768): all but the lengths and checksums, which
// differ from one datagram to the next.
func frameHead(from [6]byte, src, group netip.AddrPort, ttl int) (h [frameHeaders]byte) {
	to, addr := group.Addr().As4(), src.Addr().As4()
	copy(h[:], []byte{0x01, 0x00, 0x5e, to[1] & 0x7f, to[2], to[3]})
	copy(h[6:], from[:])
	binary.BigEndian.PutUint16(h[12:], etherTypeIP)
	ip := h[etherHeader:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[6:], dontFragment) // so its identification means nothing (RFC 6864)
	ip[8], ip[9] = byte(ttl), protocolUDP
	copy(ip[12:], addr[:])
	copy(ip[16:], to[:])
	udp := ip[ipHeader:]
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], group.Port())
	return h
}

// headSums are the parts of the checksums that do not change.
func headSums(h *[frameHeaders]byte) (ip, udp uint64) {
	b := h[etherHeader:]
	return sum(0, b[:ipHeader]), sum(protocolUDP, b[12:ipHeader+4])
}

// fillHead puts lengths and checksums for payload into a head.
func fillHead(h *[frameHeaders]byte, ipSum, udpSum uint64, payload []byte) {
	ip := h[etherHeader:]
	udp := ip[ipHeader:]
	n := udpHeader + len(payload)
	binary.BigEndian.PutUint16(ip[2:], uint16(ipHeader+n))
	binary.BigEndian.PutUint16(ip[10:], ^fold(ipSum+uint64(ipHeader+n)))
	binary.BigEndian.PutUint16(udp[4:], uint16(n))
	c := ^fold(sum(udpSum+2*uint64(n), payload)) // the length is in the pseudo header, too
	if c == 0 {
		c = 0xffff // 0 would say that there is none
	}
	binary.BigEndian.PutUint16(udp[6:], c)
}
