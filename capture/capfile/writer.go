package capfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"

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
// address of the multicast group (RFC 1112 section 6.4, RFC 2464 section 7). A
// datagram above the MTU goes as one large frame. It buffers: Flush at the end.
type Writer struct {
	w      *bufio.Writer
	format Format
	buf    []byte
}

// NewWriter writes the file header to w.
func NewWriter(w io.Writer, f Format) (*Writer, error) {
	x := &Writer{w: bufio.NewWriterSize(w, 1<<16), format: f}
	le := binary.LittleEndian
	var b []byte
	switch f {
	case Pcap:
		b = le.AppendUint32(b, magicNano)
		b = le.AppendUint16(b, 2)
		b = le.AppendUint16(b, 4)
		b = le.AppendUint64(b, 0) // zone, accuracy
		b = le.AppendUint32(b, MaxFrame)
		b = le.AppendUint32(b, linkEthernet)
	case Pcapng:
		section := le.AppendUint32(nil, ngByteOrder)
		section = le.AppendUint16(section, 1)
		section = le.AppendUint16(section, 0)
		section = le.AppendUint64(section, math.MaxUint64) // length not said
		section = appendOption(section, 4, []byte("moldtape"))
		section = appendOption(section, 0, nil)
		b = appendBlock(b, ngSection, section)
		iface := le.AppendUint32(nil, linkEthernet)
		iface = le.AppendUint32(iface, MaxFrame)
		iface = appendOption(iface, ngOptResol, []byte{9})
		iface = appendOption(iface, 0, nil)
		b = appendBlock(b, ngInterface, iface)
	default:
		return nil, fmt.Errorf("capture file format %d", f)
	}
	_, err := x.w.Write(b)
	return x, err
}

func appendOption(b []byte, code uint16, v []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(v)))
	b = append(b, v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendBlock(b []byte, typ uint32, body []byte) []byte {
	total := uint32(len(body) + 12)
	b = binary.LittleEndian.AppendUint32(b, typ)
	b = binary.LittleEndian.AppendUint32(b, total)
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, total)
}

// Write writes one datagram to dst. Errors: ErrTooLong, ErrPcapTime, or what
// writing gives.
func (w *Writer) Write(stamp moldcast.Stamp, dst netip.AddrPort, payload []byte) error {
	most := moldcast.MaxDatagram
	if dst.Addr().Is6() {
		most = 65535 - udpSize
	}
	if len(payload) > most {
		return fmt.Errorf("%w: %d bytes", ErrTooLong, len(payload))
	}
	if stamp < 0 || w.format == Pcap && int64(stamp)/1e9 > math.MaxUint32 {
		return fmt.Errorf("%w: %v", ErrPcapTime, stamp.Time())
	}
	le := binary.LittleEndian
	n := etherSize + ipv4Size + udpSize + len(payload)
	if dst.Addr().Is6() {
		n += ipv6Size - ipv4Size
	}
	b := w.buf[:0]
	if w.format == Pcap {
		b = le.AppendUint32(b, uint32(int64(stamp)/1e9))
		b = le.AppendUint32(b, uint32(int64(stamp)%1e9))
		b = le.AppendUint32(b, uint32(n))
		b = le.AppendUint32(b, uint32(n))
		b = appendFrame(b, dst, payload)
	} else {
		total := uint32((n+3)&^3 + 32)
		b = le.AppendUint32(b, ngPacket)
		b = le.AppendUint32(b, total)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint32(b, uint32(uint64(stamp)>>32))
		b = le.AppendUint32(b, uint32(stamp))
		b = le.AppendUint32(b, uint32(n))
		b = le.AppendUint32(b, uint32(n))
		b = appendFrame(b, dst, payload)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		b = le.AppendUint32(b, total)
	}
	w.buf = b
	_, err := w.w.Write(b)
	return err
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }

// appendFrame appends an Ethernet frame with one UDP datagram to dst.
func appendFrame(b []byte, dst netip.AddrPort, payload []byte) []byte {
	be := binary.BigEndian
	a := dst.Addr().Unmap()
	n := udpSize + len(payload)
	var src netip.Addr
	if a.Is4() {
		d := a.As4()
		src = netip.IPv4Unspecified()
		if a.IsMulticast() {
			b = append(b, 0x01, 0x00, 0x5e, d[1]&0x7f, d[2], d[3])
		} else {
			b = append(b, 0x02, 0x00, d[0], d[1], d[2], d[3])
		}
		b = append(b, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00) // locally administered
		b = be.AppendUint16(b, 0x0800)
		ip := len(b)
		b = append(b, 0x45, 0)
		b = be.AppendUint16(b, uint16(ipv4Size+n))
		b = append(b, 0, 0, 0x40, 0, 1, protoUDP, 0, 0) // not to be fragmented, TTL 1
		b = append(b, 0, 0, 0, 0)
		b = append(b, d[:]...)
		be.PutUint16(b[ip+10:], ^fold(sum(b[ip:], 0)))
	} else {
		d := a.As16()
		src = netip.IPv6Unspecified()
		if a.IsMulticast() {
			b = append(b, 0x33, 0x33, d[12], d[13], d[14], d[15])
		} else {
			b = append(b, 0x02, 0x00, d[12], d[13], d[14], d[15])
		}
		b = append(b, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00)
		b = be.AppendUint16(b, 0x86dd)
		b = append(b, 0x60, 0, 0, 0)
		b = be.AppendUint16(b, uint16(n))
		b = append(b, protoUDP, 1)
		b = append(b, make([]byte, 16)...)
		b = append(b, d[:]...)
	}
	udp := len(b)
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, uint16(n))
	b = be.AppendUint16(b, 0)
	b = append(b, payload...)
	sum16 := ^fold(sum(b[udp:], pseudo(src, a, n)))
	if sum16 == 0 {
		sum16 = 0xffff // 0 would say that there is none
	}
	be.PutUint16(b[udp+6:], sum16)
	return b
}
