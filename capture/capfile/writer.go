package capfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/moldtape/moldtape/moldcast"
)

// ErrTooLong: a payload that no UDP datagram can carry.
var ErrTooLong = errors.New("payload longer than a UDP datagram")

// ErrPcapTime: a stamp that pcap's 32-bit seconds cannot hold (before 1970 or
// after 2106-02-07); pcapng can hold those after.
var ErrPcapTime = errors.New("time outside 1970..2106, which is all pcap can hold")

// Format of a capture file that is written.
type Format uint8

// The formats.
const (
	Pcap   Format = iota // nanosecond pcap, little-endian
	Pcapng               // one section, one interface, nanoseconds
)

const (
	etherSize = 14
	ipv4Size  = 20
	ipv6Size  = 40
	udpSize   = 8
)

// Writer writes UDP datagrams as Ethernet frames: from 0.0.0.0 (::) and the
// destination's own port, TTL 1, not fragmented, checksums valid, to the MAC
// address of the multicast group (RFC 1112 section 6.4, RFC 2464 section 7),
// padded to the 60 bytes that Ethernet needs. A datagram above the MTU goes as
// one large frame. It buffers: Flush at the end.
type Writer struct {
	w      *bufio.Writer
	format Format
	file   interface {
		WritePacket(gopacket.CaptureInfo, []byte) error
	}
	enc *encoder
}

// NewWriter writes the file header to w.
func NewWriter(w io.Writer, f Format) (*Writer, error) {
	x := &Writer{w: bufio.NewWriterSize(w, 1<<16), format: f, enc: newEncoder()}
	switch f {
	case Pcap:
		file := pcapgo.NewWriterNanos(x.w)
		x.file = file
		return x, file.WriteFileHeader(MaxFrame, layers.LinkTypeEthernet)
	case Pcapng:
		// It takes x.w for its own buffer, as that is large enough.
		file, err := pcapgo.NewNgWriterInterface(x.w,
			pcapgo.NgInterface{LinkType: layers.LinkTypeEthernet, SnapLength: MaxFrame},
			pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "moldtape"}})
		x.file = file
		return x, err
	}
	return nil, fmt.Errorf("capture file format %d", f)
}

// Write writes one datagram to dst. Errors: ErrTooLong, ErrPcapTime, or what
// writing gives.
func (w *Writer) Write(stamp moldcast.Stamp, dst netip.AddrPort, payload []byte) error {
	most := moldcast.MaxDatagram
	if dst.Addr().Unmap().Is6() {
		most = 65535 - udpSize
	}
	if len(payload) > most {
		return fmt.Errorf("%w: %d bytes", ErrTooLong, len(payload))
	}
	if stamp < 0 || w.format == Pcap && int64(stamp)/1e9 > math.MaxUint32 {
		return fmt.Errorf("%w: %v", ErrPcapTime, stamp.Time())
	}
	frame, err := w.enc.frame(dst, payload)
	if err != nil {
		return err
	}
	err = w.file.WritePacket(gopacket.CaptureInfo{Timestamp: stamp.Time(), CaptureLength: len(frame), Length: len(frame)}, frame)
	if err != nil {
		if e := w.w.Flush(); e != nil {
			return e // pcapgo keeps only the text of what the system said
		}
	}
	return err
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }

// encoder makes Ethernet frames in layers and a buffer of its own, which each
// frame overwrites.
type encoder struct {
	buf     gopacket.SerializeBuffer
	mac     [6]byte
	dst     [16]byte
	ether   layers.Ethernet
	ip4     layers.IPv4
	ip6     layers.IPv6
	udp     layers.UDP
	payload gopacket.Payload
	over4   []gopacket.SerializableLayer
	over6   []gopacket.SerializableLayer
	src4    [4]byte
	src6    [16]byte
	ownMAC  [6]byte
}

func newEncoder() *encoder {
	e := &encoder{buf: gopacket.NewSerializeBuffer(), ownMAC: [6]byte{0x02}} // locally administered
	e.ether = layers.Ethernet{SrcMAC: e.ownMAC[:], DstMAC: e.mac[:]}
	e.ip4 = layers.IPv4{Version: 4, Flags: layers.IPv4DontFragment, TTL: 1, Protocol: layers.IPProtocolUDP, SrcIP: e.src4[:], DstIP: e.dst[:4]}
	e.ip6 = layers.IPv6{Version: 6, HopLimit: 1, NextHeader: layers.IPProtocolUDP, SrcIP: e.src6[:], DstIP: e.dst[:]}
	e.over4 = []gopacket.SerializableLayer{&e.ether, &e.ip4, &e.udp, &e.payload}
	e.over6 = []gopacket.SerializableLayer{&e.ether, &e.ip6, &e.udp, &e.payload}
	return e
}

// frame is an Ethernet frame with one UDP datagram to dst, valid until the next.
func (e *encoder) frame(dst netip.AddrPort, payload []byte) ([]byte, error) {
	a := dst.Addr().Unmap()
	udp := etherSize
	var ls []gopacket.SerializableLayer
	if a.Is4() {
		d := a.As4()
		copy(e.dst[:], d[:])
		e.mac = [6]byte{0x02, 0x00, d[0], d[1], d[2], d[3]}
		if a.IsMulticast() {
			e.mac = [6]byte{0x01, 0x00, 0x5e, d[1] & 0x7f, d[2], d[3]}
		}
		e.ether.EthernetType = layers.EthernetTypeIPv4
		e.udp.SetNetworkLayerForChecksum(&e.ip4)
		ls = e.over4
		udp += ipv4Size
	} else {
		e.dst = a.As16()
		d := e.dst[12:]
		e.mac = [6]byte{0x02, 0x00, d[0], d[1], d[2], d[3]}
		if a.IsMulticast() {
			e.mac[0], e.mac[1] = 0x33, 0x33
		}
		e.ether.EthernetType = layers.EthernetTypeIPv6
		e.udp.SetNetworkLayerForChecksum(&e.ip6)
		ls = e.over6
		udp += ipv6Size
	}
	e.udp.SrcPort, e.udp.DstPort = layers.UDPPort(dst.Port()), layers.UDPPort(dst.Port())
	e.payload = payload
	err := gopacket.SerializeLayers(e.buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...)
	if err != nil {
		return nil, err
	}
	b := e.buf.Bytes()
	if e.udp.Checksum == 0 { // layers.UDP leaves the 0 that says there is none
		binary.BigEndian.PutUint16(b[udp+6:], 0xffff)
	}
	return b, nil
}
