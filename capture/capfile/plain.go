package capfile

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// plain sets p to the datagram of a frame as nearly all of a feed are: Ethernet
// with or without VLAN tags, an IPv4 header without options, no fragment, UDP,
// whole, and with the right checksums. false: the frame is another, and decode
// tells what.
func (r *Reader) plain(f *frame, p *Packet) bool {
	const ethernetIPv4 = etherSize + ipv4Size + udpSize
	be := binary.BigEndian
	b := f.data
	if f.link != linkEthernet || len(b) < ethernetIPv4 {
		return false
	}
	for typ := be.Uint16(b[12:]); typ != etherTypeIPv4; typ = be.Uint16(b[12:]) {
		if b = b[4:]; typ != etherTypeVLAN || len(b) < ethernetIPv4 {
			return false
		}
	}
	ip := b[etherSize:]
	size := int(be.Uint16(ip[2:]))
	udp := ip[ipv4Size:]
	n := int(be.Uint16(udp[4:]))
	switch {
	case ip[0] != 0x45, ip[9] != protoUDP, be.Uint16(ip[6:])&0x3fff != 0,
		size > len(ip), n > size-ipv4Size, n < udpSize:
		return false
	}
	udp = udp[:n:n]
	if r.o.Checksums {
		le := binary.LittleEndian
		addrs := uint64(le.Uint32(ip[12:])) + uint64(le.Uint32(ip[16:]))
		if fold(words(ip[:ipv4Size], 0)) != 0xffff {
			return false
		}
		// The pseudo header: addresses, protocol, length.
		if le.Uint16(udp[6:]) != 0 && fold(words(udp, addrs)+protoUDP<<8+uint64(bits.ReverseBytes16(uint16(n)))) != 0xffff {
			return false
		}
	}
	p.Stamp, p.Pos, p.Frame, p.Fault = f.stamp, f.pos, f.num, Whole
	p.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), be.Uint16(udp))
	p.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), be.Uint16(udp[2:]))
	p.Payload = udp[udpSize:]
	return true
}
