package capfile

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// decoder finds the layers of a frame with gopacket's parser, in layers of its
// own that each frame overwrites. Where a layer of gopacket misreads, one of
// this file stands in for it or around it. It must not be copied.
type decoder struct {
	parser  *gopacket.DecodingLayerParser
	all     gopacket.DecodingLayerContainer
	decoded []gopacket.LayerType

	link  linkLayer
	ether etherLayer
	tag   tagLayer
	loop  layers.Loopback
	ip4   ip4Layer
	ip6   ip6Layer
	udp   layers.UDP
}

func (d *decoder) init() {
	d.all = gopacket.DecodingLayerArray(nil)
	for _, l := range []gopacket.DecodingLayer{&d.link, &d.ether, &d.ip4, &d.udp, &d.tag, &d.ip6, &d.loop} {
		d.all = d.all.Put(l)
	}
	d.parser = gopacket.NewDecodingLayerParser(layerLink)
	d.parser.SetDecodingLayerContainer(d.all)
	d.parser.IgnoreUnsupported = true
	d.parser.IgnorePanic = true // Reader.Next names the frame
	d.decoded = make([]gopacket.LayerType, 0, 16)
}

// parse decodes a frame: the IP layer that was found, and whether it is there
// (LayerTypeIPv4 or LayerTypeIPv6) or cut off just before; false: no IP.
func (d *decoder) parse(link uint32, b []byte) (ip gopacket.LayerType, there, ok bool) {
	d.link.link = link
	err := d.parser.DecodeLayers(b, &d.decoded)
	n := len(d.decoded)
	if n > 1 && d.decoded[n-1] == layers.LayerTypeUDP {
		n--
	}
	if n == 0 {
		return 0, false, false
	}
	switch last := d.decoded[n-1]; last {
	case layers.LayerTypeIPv4, layers.LayerTypeIPv6:
		return last, true, true
	default:
		if err != nil {
			return 0, false, false
		}
		// The parser stops before a layer that would be empty.
		l, _ := d.all.Decoder(last)
		next := l.NextLayerType()
		return next, false, next == layers.LayerTypeIPv4 || next == layers.LayerTypeIPv6
	}
}

const (
	layerLink gopacket.LayerType = 2000 // from 2000 on they are a program's own
	layerNone gopacket.LayerType = 0
)

var errShort = errors.New("frame shorter than its header")

// linkLayer stands before the first header: it names gopacket's layer for the
// link type, and decodes the headers that gopacket cannot.
type linkLayer struct {
	link    uint32
	ether   layers.EthernetType
	payload []byte
}

func (l *linkLayer) CanDecode() gopacket.LayerClass { return layerLink }
func (l *linkLayer) LayerPayload() []byte           { return l.payload }

func (l *linkLayer) DecodeFromBytes(b []byte, _ gopacket.DecodeFeedback) error {
	switch l.link {
	case linkSLL: // layers.LinuxSLL panics on an address length beyond the frame
		if len(b) < 16 {
			return errShort
		}
		l.ether, b = layers.EthernetType(binary.BigEndian.Uint16(b[14:])), b[16:]
	case linkSLL2: // gopacket has no SLL2, and takes its number, 276, for 20
		if len(b) < 20 {
			return errShort
		}
		l.ether, b = layers.EthernetType(binary.BigEndian.Uint16(b)), b[20:]
	}
	l.payload = b
	return nil
}

func (l *linkLayer) NextLayerType() gopacket.LayerType {
	switch l.link {
	case linkEthernet:
		return layers.LayerTypeEthernet
	case linkNull, linkLoop:
		return layers.LayerTypeLoopback
	case linkSLL, linkSLL2:
		return behind(l.ether)
	case linkIPv4:
		return layers.LayerTypeIPv4
	case linkIPv6:
		return layers.LayerTypeIPv6
	case linkRaw, linkRawBSD, linkRawOpen: // gopacket has no decoding layer for raw IP
		if len(l.payload) > 0 {
			switch l.payload[0] >> 4 {
			case 4:
				return layers.LayerTypeIPv4
			case 6:
				return layers.LayerTypeIPv6
			}
		}
	}
	return layerNone
}

// behind is the layer that an EtherType announces. gopacket's own table lacks
// the older QinQ tags, and goes into bridged Ethernet, which is not of this link.
func behind(t layers.EthernetType) gopacket.LayerType {
	switch t {
	case layers.EthernetTypeIPv4:
		return layers.LayerTypeIPv4
	case layers.EthernetTypeIPv6:
		return layers.LayerTypeIPv6
	case layers.EthernetTypeDot1Q, layers.EthernetTypeQinQ, 0x9100, 0x9200, 0x9300:
		return layers.LayerTypeDot1Q
	}
	return layerNone
}

type etherLayer struct{ layers.Ethernet }

func (l *etherLayer) NextLayerType() gopacket.LayerType { return behind(l.EthernetType) }

type tagLayer struct{ layers.Dot1Q }

func (l *tagLayer) NextLayerType() gopacket.LayerType { return behind(l.Type) }

// ip4Layer is layers.IPv4 with faults told apart. It never gives an error.
type ip4Layer struct {
	layers.IPv4
	fault  Fault
	cut    bool // the packet is longer than the frame
	placed bool // the addresses are good
}

func (l *ip4Layer) DecodeFromBytes(b []byte, _ gopacket.DecodeFeedback) error {
	l.fault, l.cut, l.placed = Whole, false, false
	if len(b) < ipv4Size {
		l.fault = Cut
		return nil
	}
	// layers.IPv4 puts the frame's length for an empty one, in 16 bits.
	b = b[:min(len(b), 65535)]
	err := l.IPv4.DecodeFromBytes(b, gopacket.NilDecodeFeedback)
	head := int(l.IHL) * 4
	switch {
	case l.Version != 4, head < ipv4Size, head > int(l.Length): // layers.IPv4 takes any version
		l.fault = BadHeader
		return nil
	case err != nil && head > len(b):
		l.fault = Cut
	}
	// Any other error is of an option. Options are not looked at: all else was
	// read before them.
	l.cut, l.placed = int(l.Length) > len(b), true
	return nil
}

func (l *ip4Layer) fragment() bool {
	return l.Flags&layers.IPv4MoreFragments != 0 || l.FragOffset != 0
}

// NextLayerType: nothing but UDP. layers.IPv4 would go on into tunnels, and the
// packet inside would overwrite the outer.
func (l *ip4Layer) NextLayerType() gopacket.LayerType {
	if l.fault == Whole && l.Protocol == layers.IPProtocolUDP && !l.fragment() {
		return layers.LayerTypeUDP
	}
	return layerNone
}

// ip6Layer is an IPv6 header and its extension headers. It is by hand because
// layers.IPv6 refuses an empty length (offload leaves one), calls each packet
// with a hop-by-hop header truncated and allocates for it; and gopacket has no
// decoding layer for fragments. It never gives an error.
type ip6Layer struct {
	src, dst  netip.Addr // invalid where the header is
	next      uint8      // behind the extension headers
	fault     Fault
	cut       bool // the packet is longer than the frame
	fragments int  // fragment headers
	fragment  bool // the payload is one of several
	id        uint32
	off       int
	more      bool
	payload   []byte
}

func (l *ip6Layer) CanDecode() gopacket.LayerClass { return layers.LayerTypeIPv6 }
func (l *ip6Layer) LayerPayload() []byte           { return l.payload }

func (l *ip6Layer) NextLayerType() gopacket.LayerType {
	if l.fault == Whole && l.next == protoUDP && !l.fragment {
		return layers.LayerTypeUDP
	}
	return layerNone
}

func (l *ip6Layer) DecodeFromBytes(b []byte, _ gopacket.DecodeFeedback) error {
	*l = ip6Layer{}
	if len(b) < ipv6Size {
		l.fault = Cut
		return nil
	}
	if b[0]>>4 != 6 {
		l.fault = BadHeader
		return nil
	}
	l.src, l.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	n := int(binary.BigEndian.Uint16(b[4:]))
	l.next = b[6]
	b = b[ipv6Size:]
	if n == 0 {
		n = len(b) // offload, or a jumbogram
	}
	l.cut = n > len(b)
	b = b[:min(n, len(b))]
	for {
		size := 8
		switch l.next {
		case 0, 43, 60, 135: // hop by hop, routing, destination options, mobility
			if len(b) >= 8 {
				size += int(b[1]) * 8
			}
		case 44: // fragment
		default:
			l.payload = b
			return nil
		}
		if size > len(b) {
			l.fault = Cut
			return nil
		}
		if l.next == 44 {
			l.fragments++
			frag := binary.BigEndian.Uint16(b[2:])
			l.off, l.more = int(frag&^7), frag&1 != 0
			l.id = binary.BigEndian.Uint32(b[4:])
			if l.off != 0 || l.more { // else an atomic fragment: a whole datagram
				l.fragment, l.next, l.payload = true, b[0], b[8:]
				return nil
			}
		}
		l.next, b = b[0], b[size:]
	}
}
