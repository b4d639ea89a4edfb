package capfile

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
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

const protoUDP = 17

// decode finds the UDP datagram of a frame; false: there is none, or not yet.
func (r *Reader) decode(f *frame) (Packet, bool) {
	p := Packet{Stamp: f.stamp, Pos: f.pos, Frame: f.num}
	ip, there, ok := r.dec.parse(f.link, f.data)
	switch {
	case !ok:
		return r.other()
	case !there:
		return faulty(p, Cut)
	case ip == layers.LayerTypeIPv4:
		return r.ipv4(p)
	}
	return r.ipv6(p)
}

func (r *Reader) other() (Packet, bool) {
	r.stats.Other++
	return Packet{}, false
}

// faulty gives p with a fault; the first found stays.
func faulty(p Packet, f Fault) (Packet, bool) {
	if p.Fault == Whole {
		p.Fault = f
	}
	return p, true
}

// ipv4 goes on from what the decoder found.
func (r *Reader) ipv4(p Packet) (Packet, bool) {
	ip := &r.dec.ip4
	if !ip.placed {
		return faulty(p, ip.fault)
	}
	src, dst := netip.AddrFrom4([4]byte(ip.SrcIP)), netip.AddrFrom4([4]byte(ip.DstIP))
	p.Src, p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	if ip.fault != Whole {
		return faulty(p, ip.fault)
	}
	if r.o.Checksums && fold(sum(ip.Contents, 0)) != 0xffff {
		p.Fault = BadIPSum
	}
	if ip.Protocol != layers.IPProtocolUDP {
		if p.Fault != Whole {
			return p, true // which protocol it was is as doubtful as the rest
		}
		return r.other()
	}
	if ip.fragment() {
		r.stats.Fragments++
		more := ip.Flags&layers.IPv4MoreFragments != 0
		return r.fragment(p, fragKey{src, dst, uint32(ip.Id), protoUDP}, int(ip.FragOffset)*8, more, ip.cut, ip.Payload)
	}
	return r.udp(p, ip.Payload, ip.cut)
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
	r.dec.udp.DecodeFromBytes(whole.Payload, gopacket.NilDecodeFeedback) // udp finds its errors again
	return r.udp(whole, whole.Payload, false)
}

// ipv6 goes on from what the decoder found.
func (r *Reader) ipv6(p Packet) (Packet, bool) {
	ip := &r.dec.ip6
	r.stats.Fragments += int64(ip.fragments)
	if ip.src.IsValid() {
		p.Src, p.Dst = netip.AddrPortFrom(ip.src, 0), netip.AddrPortFrom(ip.dst, 0)
	}
	switch {
	case ip.fault != Whole:
		return faulty(p, ip.fault)
	case ip.next != protoUDP:
		return r.other()
	case ip.fragment:
		return r.fragment(p, fragKey{ip.src, ip.dst, ip.id, protoUDP}, ip.off, ip.more, ip.cut, ip.payload)
	}
	return r.udp(p, ip.payload, ip.cut)
}

// udp goes on from the UDP layer, which the decoder read from b. Its header
// fields are set also where the layer gives an error, if b has 8 bytes.
func (r *Reader) udp(p Packet, b []byte, cut bool) (Packet, bool) {
	u := &r.dec.udp
	if len(b) < udpSize {
		p.Payload = nil
		return faulty(p, Cut)
	}
	p.Src = netip.AddrPortFrom(p.Src.Addr(), uint16(u.SrcPort))
	p.Dst = netip.AddrPortFrom(p.Dst.Addr(), uint16(u.DstPort))
	n := int(u.Length)
	if n < udpSize { // layers.UDP takes 0 for a jumbogram, which nothing here can be
		p.Payload = nil
		return faulty(p, BadHeader)
	}
	if n > len(b) {
		p.Payload = b[udpSize:]
		if cut {
			return faulty(p, Cut)
		}
		return faulty(p, BadHeader)
	}
	p.Payload = slices.Clip(u.Payload)
	if r.o.Checksums && u.Checksum != 0 && !udpSumRight(p.Src.Addr(), p.Dst.Addr(), b[:n]) {
		return faulty(p, BadUDPSum)
	}
	return p, true
}
