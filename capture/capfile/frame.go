package capfile

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Link types (www.tcpdump.org/linktypes.html).
const (
	linkNull     = 0
	linkEthernet = 1
	linkRawBSD   = 12
	linkRawOpen  = 14
	linkRaw      = 101
	linkLoop     = 108
	linkSLL      = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276
)

func linkSupported(t uint32) bool {
	switch t {
	case linkNull, linkEthernet, linkRawBSD, linkRawOpen, linkRaw, linkLoop, linkSLL, linkIPv4, linkIPv6, linkSLL2:
		return true
	}
	return false
}

func linkDetail(t uint32) string {
	return fmt.Sprintf("%d; supported are Ethernet (1), raw IP (101, 228, 229), Linux cooked (113, 276), null (0) and loopback (108)", t)
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd

	protoUDP     = 17
	maxVLANDepth = 8
)

// decode finds the UDP datagram of a frame; false: there is none, or not yet.
func (r *Reader) decode(f *frame) (Packet, bool) {
	p := Packet{Stamp: f.stamp, Pos: f.pos, Frame: f.num}
	b := f.data
	ether, b, ok := network(f.link, b)
	if ok {
		switch ether {
		case etherIPv4:
			return r.ipv4(p, b)
		case etherIPv6:
			return r.ipv6(p, b)
		}
	}
	r.stats.Other++
	return Packet{}, false
}

// network strips the link header: the EtherType of what follows, and it. false:
// too short, or nothing that could carry IP.
func network(link uint32, b []byte) (uint16, []byte, bool) {
	var ether uint16
	switch link {
	case linkEthernet:
		if len(b) < 14 {
			return 0, nil, false
		}
		ether, b = binary.BigEndian.Uint16(b[12:]), b[14:]
	case linkSLL:
		if len(b) < 16 {
			return 0, nil, false
		}
		ether, b = binary.BigEndian.Uint16(b[14:]), b[16:]
	case linkSLL2:
		if len(b) < 20 {
			return 0, nil, false
		}
		ether, b = binary.BigEndian.Uint16(b), b[20:]
	case linkNull, linkLoop:
		// The family is in the byte order of the machine that captured; the
		// number of IPv6 differs between systems.
		if len(b) < 4 {
			return 0, nil, false
		}
		family := binary.BigEndian.Uint32(b)
		if family > 0xffff {
			family = binary.LittleEndian.Uint32(b)
		}
		b = b[4:]
		switch family {
		case 2:
			ether = etherIPv4
		case 10, 24, 28, 30:
			ether = etherIPv6
		}
	case linkIPv4:
		ether = etherIPv4
	case linkIPv6:
		ether = etherIPv6
	case linkRaw, linkRawBSD, linkRawOpen:
		if len(b) == 0 {
			return 0, nil, false
		}
		switch b[0] >> 4 {
		case 4:
			ether = etherIPv4
		case 6:
			ether = etherIPv6
		}
	default:
		return 0, nil, false
	}
	for depth := 0; depth < maxVLANDepth; depth++ {
		switch ether {
		case 0x8100, 0x88a8, 0x9100, 0x9200, 0x9300: // 802.1Q, 802.1ad, older QinQ
			if len(b) < 4 {
				return 0, nil, false
			}
			ether, b = binary.BigEndian.Uint16(b[2:]), b[4:]
		default:
			return ether, b, true
		}
	}
	return 0, nil, false
}

// faulty gives p with a fault; the first found stays.
func faulty(p Packet, f Fault) (Packet, bool) {
	if p.Fault == Whole {
		p.Fault = f
	}
	return p, true
}

func (r *Reader) ipv4(p Packet, b []byte) (Packet, bool) {
	if len(b) < 20 {
		return faulty(p, Cut)
	}
	head := int(b[0]&15) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 {
		total = len(b) // segmentation offload leaves it empty
	}
	if b[0]>>4 != 4 || head < 20 || head > total {
		return faulty(p, BadHeader)
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.Src, p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	if head > len(b) {
		return faulty(p, Cut)
	}
	if r.o.Checksums && fold(sum(b[:head], 0)) != 0xffff {
		p.Fault = BadIPSum
	}
	proto := b[9]
	if proto != protoUDP {
		if p.Fault != Whole {
			return p, true // which protocol it was is as doubtful as the rest
		}
		r.stats.Other++
		return Packet{}, false
	}
	cut := total > len(b)
	body := b[head:min(total, len(b))]
	frag := binary.BigEndian.Uint16(b[6:])
	if more, off := frag&0x2000 != 0, int(frag&0x1fff)*8; more || off > 0 {
		r.stats.Fragments++
		return r.fragment(p, fragKey{src, dst, uint32(binary.BigEndian.Uint16(b[4:])), proto}, off, more, cut, body)
	}
	return r.udp(p, body, cut)
}

// fragment offers one fragment; a datagram that it completes is yielded.
func (r *Reader) fragment(p Packet, k fragKey, off int, more, cut bool, body []byte) (Packet, bool) {
	if off == 0 && len(body) >= 4 {
		p.Src = netip.AddrPortFrom(k.src, binary.BigEndian.Uint16(body))
		p.Dst = netip.AddrPortFrom(k.dst, binary.BigEndian.Uint16(body[2:]))
	}
	switch {
	case p.Fault != Whole:
		return p, true
	case cut:
		return faulty(p, Cut)
	case more && len(body)%8 != 0, off+len(body) > 65535:
		return faulty(p, BadHeader)
	}
	whole, ok := r.frag.add(p, k, off, more, body)
	if !ok {
		return Packet{}, false
	}
	if whole.Fault != Whole {
		return whole, true
	}
	return r.udp(whole, whole.Payload, false)
}

func (r *Reader) ipv6(p Packet, b []byte) (Packet, bool) {
	if len(b) < 40 {
		return faulty(p, Cut)
	}
	if b[0]>>4 != 6 {
		return faulty(p, BadHeader)
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	p.Src, p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	next := b[6]
	b = b[40:]
	if n == 0 {
		n = len(b) // offload, or a jumbogram
	}
	cut := n > len(b)
	b = b[:min(n, len(b))]
	for {
		switch next {
		case protoUDP:
			return r.udp(p, b, cut)
		case 0, 43, 60, 135: // hop by hop, routing, destination options, mobility
			if len(b) < 8 {
				return faulty(p, Cut)
			}
			size := 8 + int(b[1])*8
			if size > len(b) {
				return faulty(p, Cut)
			}
			next, b = b[0], b[size:]
		case 44: // fragment
			if len(b) < 8 {
				return faulty(p, Cut)
			}
			r.stats.Fragments++
			frag := binary.BigEndian.Uint16(b[2:])
			off, more := int(frag&^7), frag&1 != 0
			id := binary.BigEndian.Uint32(b[4:])
			next, b = b[0], b[8:]
			if off == 0 && !more {
				continue // an atomic fragment: a whole datagram
			}
			if next != protoUDP {
				r.stats.Other++
				return Packet{}, false
			}
			return r.fragment(p, fragKey{src, dst, id, next}, off, more, cut, b)
		default:
			r.stats.Other++
			return Packet{}, false
		}
	}
}

func (r *Reader) udp(p Packet, b []byte, cut bool) (Packet, bool) {
	if len(b) < 8 {
		p.Payload = nil
		return faulty(p, Cut)
	}
	p.Src = netip.AddrPortFrom(p.Src.Addr(), binary.BigEndian.Uint16(b))
	p.Dst = netip.AddrPortFrom(p.Dst.Addr(), binary.BigEndian.Uint16(b[2:]))
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < 8 {
		p.Payload = nil
		return faulty(p, BadHeader)
	}
	if n > len(b) {
		p.Payload = b[8:]
		if cut {
			return faulty(p, Cut)
		}
		return faulty(p, BadHeader)
	}
	p.Payload = b[8:n:n]
	if r.o.Checksums && (b[6] != 0 || b[7] != 0) && !udpSumRight(p.Src.Addr(), p.Dst.Addr(), b[:n]) {
		return faulty(p, BadUDPSum)
	}
	return p, true
}

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
// of it. b is at most 64 KiB, so 32-bit words cannot overflow the accumulator.
func sum(b []byte, acc uint64) uint64 {
	for len(b) >= 16 {
		acc += uint64(binary.BigEndian.Uint32(b)) + uint64(binary.BigEndian.Uint32(b[4:])) +
			uint64(binary.BigEndian.Uint32(b[8:])) + uint64(binary.BigEndian.Uint32(b[12:]))
		b = b[16:]
	}
	for len(b) >= 2 {
		acc += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		acc += uint64(b[0]) << 8
	}
	return acc
}

func fold(acc uint64) uint16 {
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}
