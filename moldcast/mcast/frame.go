package mcast

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/moldtape/moldtape/moldcast"
)

// What a TPACKET_V3 receive ring holds (linux/if_packet.h), all in native
// order. A block:
//
//	 0 u32 version   8 u32 status    12 u32 packets   16 u32 offset of the first
//	20 u32 length   24 u64 sequence  32 …             48 packets
//
// A packet, from its own offset on; the last of a block has next 0:
//
//	 0 u32 next   4 u32 sec   8 u32 nsec   12 u32 captured   16 u32 on the wire
//	20 u32 status  24 u16 offset of the frame  26 u16 offset of the IP header
//	… virtio_net_hdr, the 10 bytes before the frame: u8 flags, u8 GSO type,
//	  u16 header length, u16 GSO size, u16, u16
const (
	blockStatus   = 8
	blockPackets  = 12
	blockFirst    = 16
	blockLength   = 20
	blockHeader   = 48
	packetHeader  = 48
	vnetHeader    = 10
	statusUser    = 1
	statusPartial = 1 << 3 // the UDP checksum is not computed yet: the packet never left this host
	statusValid   = 1 << 7 // the UDP checksum was verified
	gsoUDP        = 5      // the frame is several datagrams of GSO size, the last may be shorter
)

// frame is one IPv4 packet in a receive ring.
type frame struct {
	ip      []byte // from the IP header on, as far as it was captured
	wire    int    // how many bytes of it there were
	stamp   moldcast.Stamp
	checked bool // the UDP checksum needs no look
	segment int  // bytes of each datagram in a super-packet; 0: it is one datagram
}

// block walks the packets of one block of a receive ring.
type block struct {
	mem  []byte
	left int // packets not yet taken
	at   int // of the next one; 0: there is none
}

// openBlock starts a walk. What the header promises is believed only within
// mem.
func openBlock(mem []byte) block {
	if len(mem) < blockHeader {
		return block{}
	}
	n := binary.NativeEndian.Uint32(mem[blockPackets:])
	return block{mem: mem, left: int(min(n, uint32(len(mem)/packetHeader))), at: int(binary.NativeEndian.Uint32(mem[blockFirst:]))}
}

// length is how many bytes of the block are in use.
func (b *block) length() int { return int(binary.NativeEndian.Uint32(b.mem[blockLength:])) }

// next takes a packet; ok is false where it lies beyond the block. more is
// false behind the last.
func (b *block) next() (f frame, ok, more bool) {
	if b.left == 0 {
		return frame{}, false, false
	}
	b.left--
	if b.at < blockHeader || b.at > len(b.mem)-packetHeader {
		b.left = 0
		return frame{}, false, true
	}
	p := b.mem[b.at:]
	next := int(binary.NativeEndian.Uint32(p))
	if next < packetHeader || next > len(p) {
		b.left = 0
	}
	b.at += next
	captured, wire := int(binary.NativeEndian.Uint32(p[12:])), int(binary.NativeEndian.Uint32(p[16:]))
	mac, ip := int(binary.NativeEndian.Uint16(p[24:])), int(binary.NativeEndian.Uint16(p[26:]))
	end := mac + captured
	if mac < packetHeader+vnetHeader || ip < mac || ip > end || end > len(p) {
		return frame{}, false, true
	}
	status := binary.NativeEndian.Uint32(p[20:])
	f = frame{
		ip: p[ip:end:end], wire: wire - (ip - mac),
		stamp:   moldcast.Stamp(int64(binary.NativeEndian.Uint32(p[4:]))*1e9 + int64(binary.NativeEndian.Uint32(p[8:]))),
		checked: status&(statusPartial|statusValid) != 0,
	}
	if v := p[mac-vnetHeader:]; v[1]&^0x80 == gsoUDP { // 0x80: ECN
		f.segment = int(binary.NativeEndian.Uint16(v[4:]))
	}
	return f, true, true
}

// packet is a UDP datagram as it lies in a frame.
type packet struct {
	src, dst         uint32
	srcPort, dstPort uint16
	data             []byte // as far as it was captured
	cut              bool   // it was longer
}

const (
	protocolUDP = 17
	ipHeader    = 20
	udpHeader   = 8
)

// parse reads an IPv4 UDP datagram by the rules of the kernel's own stack:
// what that drops unheard is not ok here. A fragment is not ok either: who
// feeds parse has them put together.
func (f *frame) parse() (p packet, ok bool) {
	ip := f.ip
	if len(ip) < ipHeader || ip[0]>>4 != 4 {
		return p, false
	}
	head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case head < ipHeader, head > len(ip), total < head+udpHeader, total > f.wire:
		return p, false
	case binary.BigEndian.Uint16(ip[6:])&0x3fff != 0, ip[9] != protocolUDP:
		return p, false
	case fold(sum(0, ip[:head])) != 0xffff:
		return p, false
	}
	p.src, p.dst = binary.BigEndian.Uint32(ip[12:]), binary.BigEndian.Uint32(ip[16:])
	switch {
	case p.src>>28 == 0xe, p.src == 1<<32-1, p.src>>24 == 0 && p.dst>>8 != 0xe00000: // nobody's address
		return p, false
	}
	u := ip[head:min(total, len(ip))]
	if len(u) < udpHeader {
		return p, false
	}
	length := int(binary.BigEndian.Uint16(u[4:]))
	if length < udpHeader || length > total-head {
		return p, false
	}
	p.cut = length > len(u)
	u = u[:min(length, len(u))]
	p.srcPort, p.dstPort = binary.BigEndian.Uint16(u), binary.BigEndian.Uint16(u[2:])
	p.data = u[udpHeader:len(u):len(u)]
	if !f.checked && f.segment == 0 && !p.cut && binary.BigEndian.Uint16(u[6:]) != 0 { // 0: the sender made none
		pseudo := uint64(protocolUDP) + uint64(length) + uint64(p.src) + uint64(p.dst)
		if fold(sum(pseudo, u)) != 0xffff {
			return p, false
		}
	}
	return p, true
}

// sum adds the 16-bit big-endian words of b, the last padded with a zero, to
// s, which is less than 2^48; fold makes the Internet checksum's sum of it.
func sum(s uint64, b []byte) uint64 {
	// Words of 64 bits with the carry brought round are as good: 2^16 is 1
	// modulo 2^16-1.
	var c uint64
	for len(b) >= 32 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[24:]), c)
		b = b[32:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), c)
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(last[:]), c)
	}
	s, c = bits.Add64(s, 0, c)
	return s + c
}

func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s&0xffff)
}

func toUint32(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func fromUint32(v uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
