package mcast

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// udpFrame is an IPv4 UDP datagram as it lies behind a link header.
type udpFrame struct {
	src, dst   netip.AddrPort
	options    []byte // of IP, a multiple of 4 bytes
	payload    []byte
	padding    int    // bytes behind the packet, as a short Ethernet frame has
	noChecksum bool   // of UDP
	fragment   uint16 // flags and offset, as on the wire
}

func (u *udpFrame) bytes() []byte {
	head := ipHeader + len(u.options)
	total := head + udpHeader + len(u.payload)
	b := make([]byte, head, total+u.padding)
	b[0] = 4<<4 | byte(head/4)
	binary.BigEndian.PutUint16(b[2:], uint16(total))
	binary.BigEndian.PutUint16(b[6:], u.fragment)
	b[8], b[9] = 1, protocolUDP
	src, dst := u.src.Addr().As4(), u.dst.Addr().As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	copy(b[20:], u.options)
	binary.BigEndian.PutUint16(b[10:], ^slowSum(b))
	b = binary.BigEndian.AppendUint16(b, u.src.Port())
	b = binary.BigEndian.AppendUint16(b, u.dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(u.payload)))
	b = append(b, 0, 0)
	b = append(b, u.payload...)
	if !u.noChecksum {
		pseudo := append(append(append([]byte{}, src[:]...), dst[:]...), 0, protocolUDP)
		pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(udpHeader+len(u.payload)))
		c := ^slowSum(append(pseudo, b[head:]...))
		if c == 0 {
			c = 0xffff
		}
		binary.BigEndian.PutUint16(b[head+6:], c)
	}
	return append(b, bytes.Repeat([]byte{0xee}, u.padding)...)
}

// slowSum is RFC 1071's sum, word by word.
func slowSum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "ones") {
			for i := range b {
				b[i] = 0xff
			}
		}
		start := rapid.Uint32().Draw(t, "start")
		want := slowSum(append(binary.BigEndian.AppendUint32(nil, start), b...))
		if got := fold(sum(uint64(start), b)); got != want {
			t.Fatalf("sum is %#x, want %#x", got, want)
		}
	})
}

var (
	testSrc = netip.MustParseAddrPort("10.1.2.3:4000")
	testDst = netip.MustParseAddrPort("239.1.2.3:5000")
)

func aFrame(change func(*udpFrame)) *udpFrame {
	u := &udpFrame{src: testSrc, dst: testDst, payload: []byte("a payload of some bytes")}
	if change != nil {
		change(u)
	}
	return u
}

// TestParse: the rules of the kernel's own stack.
func TestParse(t *testing.T) {
	plain := aFrame(nil)
	for _, c := range []struct {
		name    string
		frame   *udpFrame
		spoil   func(f *frame)
		ok, cut bool
		short   int // of the payload
	}{
		{name: "plain", ok: true},
		{name: "empty", frame: aFrame(func(u *udpFrame) { u.payload = nil }), ok: true},
		{name: "options", frame: aFrame(func(u *udpFrame) { u.options = bytes.Repeat([]byte{1}, 40) }), ok: true},
		{name: "padding", frame: aFrame(func(u *udpFrame) { u.padding = 11 }), ok: true},
		{name: "no checksum", frame: aFrame(func(u *udpFrame) { u.noChecksum = true }), ok: true},
		{name: "not to be fragmented", frame: aFrame(func(u *udpFrame) { u.fragment = 0x4000 }), ok: true},
		{name: "from 0.0.0.0", frame: aFrame(func(u *udpFrame) { u.src = netip.MustParseAddrPort("0.0.0.0:1") })},
		{name: "from 0.0.0.0 on the link", frame: aFrame(func(u *udpFrame) {
			u.src, u.dst = netip.MustParseAddrPort("0.0.0.0:1"), netip.MustParseAddrPort("224.0.0.9:520")
		}), ok: true},
		{name: "from a group", frame: aFrame(func(u *udpFrame) { u.src = netip.MustParseAddrPort("239.0.0.1:1") })},
		{name: "from all", frame: aFrame(func(u *udpFrame) { u.src = netip.MustParseAddrPort("255.255.255.255:1") })},
		{name: "first fragment", frame: aFrame(func(u *udpFrame) { u.fragment = 0x2000 })},
		{name: "last fragment", frame: aFrame(func(u *udpFrame) { u.fragment = 7 })},
		{name: "IPv6", spoil: func(f *frame) { f.ip[0] = 0x65 }},
		{name: "TCP", spoil: func(f *frame) { f.ip[9] = 6; fixHeader(f.ip) }},
		{name: "header checksum", spoil: func(f *frame) { f.ip[8]++ }},
		{name: "header too short", spoil: func(f *frame) { f.ip[0] = 0x44; fixHeader(f.ip) }},
		{name: "header beyond the packet", spoil: func(f *frame) { f.ip[0] = 0x4f; f.ip = f.ip[:40]; f.wire = 40 }},
		{name: "longer than the frame", spoil: func(f *frame) { f.ip = f.ip[:len(f.ip)-1]; f.wire-- }},
		{name: "no room for UDP", spoil: func(f *frame) { binary.BigEndian.PutUint16(f.ip[2:], 27); fixHeader(f.ip) }},
		{name: "UDP longer than IP", spoil: func(f *frame) { f.ip[25]++; f.checked = true }},
		{name: "UDP length 7", spoil: func(f *frame) { f.ip[25] = 7; f.checked = true }},
		{name: "UDP shorter than IP", spoil: func(f *frame) { f.ip[25]--; f.checked = true }, ok: true, short: 1},
		{name: "payload spoilt", spoil: func(f *frame) { f.ip[len(f.ip)-1]++ }},
		{name: "port spoilt", spoil: func(f *frame) { f.ip[21]++ }},
		{name: "spoilt, but the hardware's word is good", spoil: func(f *frame) { f.ip[26]++; f.checked = true }, ok: true},
		{name: "cut", spoil: func(f *frame) { f.ip = f.ip[:len(f.ip)-5] }, ok: true, cut: true, short: 5},
		{name: "cut in the header", spoil: func(f *frame) { f.ip = f.ip[:19] }},
		{name: "cut behind the header", spoil: func(f *frame) { f.ip = f.ip[:27] }},
		{name: "nothing", spoil: func(f *frame) { f.ip = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := c.frame
			if u == nil {
				u = plain
			}
			f := frame{ip: u.bytes()}
			f.wire = len(f.ip)
			if c.spoil != nil {
				c.spoil(&f)
			}
			p, ok := f.parse()
			if ok != c.ok {
				t.Fatalf("taken: %v, want %v", ok, c.ok)
			}
			if !ok {
				return
			}
			want := u.payload[:len(u.payload)-c.short]
			if !bytes.Equal(p.data, want) || p.cut != c.cut {
				t.Errorf("payload %q, cut %v, want %q, %v", p.data, p.cut, want, c.cut)
			}
			if c.spoil == nil && (netip.AddrPortFrom(fromUint32(p.src), p.srcPort) != u.src || netip.AddrPortFrom(fromUint32(p.dst), p.dstPort) != u.dst) {
				t.Errorf("from %v:%d to %v:%d", fromUint32(p.src), p.srcPort, fromUint32(p.dst), p.dstPort)
			}
		})
	}
}

// fixHeader makes the header checksum right again.
func fixHeader(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^slowSum(ip[:max(int(ip[0]&15)*4, 20)]))
}

// blockBytes builds a block as the kernel does; the virtio header of a frame
// is given by its GSO size, 0 for none.
func blockBytes(size int, segment uint16, packets ...[]byte) []byte {
	b := make([]byte, size)
	at := blockHeader
	ne := binary.NativeEndian
	ne.PutUint32(b[blockStatus:], statusUser)
	ne.PutUint32(b[blockPackets:], uint32(len(packets)))
	ne.PutUint32(b[blockFirst:], uint32(at))
	for i, p := range packets {
		const mac, ip = 96, 96 + ethernetHeader
		frame := b[at:]
		next := (ip + len(p) + 15) &^ 15
		if i < len(packets)-1 {
			ne.PutUint32(frame, uint32(next))
		}
		ne.PutUint32(frame[4:], 7)
		ne.PutUint32(frame[8:], uint32(100+i))
		ne.PutUint32(frame[12:], uint32(ethernetHeader+len(p)))
		ne.PutUint32(frame[16:], uint32(ethernetHeader+len(p)))
		ne.PutUint16(frame[24:], mac)
		ne.PutUint16(frame[26:], ip)
		if segment > 0 {
			frame[mac-vnetHeader+1] = gsoUDP
			ne.PutUint16(frame[mac-vnetHeader+4:], segment)
		}
		copy(frame[ip:], p)
		at += next
	}
	ne.PutUint32(b[blockLength:], uint32(at))
	return b
}

const ethernetHeader = 14

func TestBlock(t *testing.T) {
	var packets [][]byte
	for i := range 5 {
		packets = append(packets, aFrame(func(u *udpFrame) { u.payload = bytes.Repeat([]byte{byte(i)}, 10*i) }).bytes())
	}
	mem := blockBytes(4096, 0, packets...)
	b := openBlock(mem)
	for i, want := range packets {
		f, ok, more := b.next()
		if !ok || !more || !bytes.Equal(f.ip, want) || f.wire != len(want) || f.stamp != 7e9+100+moldcast.Stamp(i) || f.checked || f.segment != 0 {
			t.Fatalf("packet %d: %+v, %v, %v", i, f, ok, more)
		}
	}
	if _, _, more := b.next(); more {
		t.Error("more than there are")
	}
	b = openBlock(blockBytes(4096, 9, packets[1]))
	if f, ok, _ := b.next(); !ok || f.segment != 9 {
		t.Errorf("segment %d", f.segment)
	}
	binary.NativeEndian.PutUint32(mem[blockHeader+20:], statusValid)
	if f, _, _ := first(mem); !f.checked {
		t.Error("a verified checksum is not known")
	}
	// Whatever an offset says, nothing beyond the block is read.
	for _, at := range []int{blockPackets, blockFirst, blockHeader, blockHeader + 12, blockHeader + 24, blockHeader + 26} {
		for _, v := range []uint32{0, 1, 47, 4095, 4096, 1 << 16, 1 << 31, 1<<32 - 1} {
			spoilt := bytes.Clone(mem)
			binary.NativeEndian.PutUint32(spoilt[at:], v)
			walk(spoilt)
		}
	}
}

func first(mem []byte) (frame, bool, bool) {
	b := openBlock(mem)
	return b.next()
}

// walk parses all of a block.
func walk(mem []byte) (frames, packets int) {
	b := openBlock(mem)
	for {
		f, ok, more := b.next()
		if !more {
			return frames, packets
		}
		if !ok {
			continue
		}
		frames++
		if _, ok := f.parse(); ok {
			packets++
		}
	}
}

// FuzzBlock: a block of any content is read within its bounds, and ends.
func FuzzBlock(f *testing.F) {
	f.Add(blockBytes(1024, 0, aFrame(nil).bytes()))
	f.Add(blockBytes(2048, 8, aFrame(nil).bytes(), aFrame(func(u *udpFrame) { u.options = make([]byte, 8) }).bytes()))
	f.Add(blockBytes(1024, 0, aFrame(func(u *udpFrame) { u.fragment = 0x2000 }).bytes(), aFrame(func(u *udpFrame) { u.noChecksum = true }).bytes(), aFrame(func(u *udpFrame) { u.padding = 20 }).bytes()))
	f.Add(blockBytes(256, 0))
	f.Fuzz(func(t *testing.T, mem []byte) {
		if frames, packets := walk(mem); packets > frames || frames > len(mem)/packetHeader {
			t.Errorf("%d frames, %d packets in %d bytes", frames, packets, len(mem))
		}
	})
}

// FuzzParse: an IP packet of any content is read within its bounds, and what
// comes out of it lies in it.
func FuzzParse(f *testing.F) {
	for _, change := range []func(*udpFrame){
		nil,
		func(u *udpFrame) { u.payload = nil },
		func(u *udpFrame) { u.options = bytes.Repeat([]byte{1}, 40) },
		func(u *udpFrame) { u.padding = 18 },
		func(u *udpFrame) { u.noChecksum = true },
		func(u *udpFrame) { u.fragment = 0x2001 },
		func(u *udpFrame) { u.payload = make([]byte, 1472) },
	} {
		f.Add(aFrame(change).bytes(), 0, true)
		f.Add(aFrame(change).bytes(), 100, false)
	}
	f.Fuzz(func(t *testing.T, ip []byte, more int, checked bool) {
		fr := frame{ip: ip, wire: len(ip) + max(0, min(more, 65535)), checked: checked}
		p, ok := fr.parse()
		if ok && (len(p.data) > len(ip)-ipHeader-udpHeader || p.cut && more <= 0) {
			t.Errorf("%d bytes of payload in %d, cut %v", len(p.data), len(ip), p.cut)
		}
	})
}
