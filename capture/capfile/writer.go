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
	file   interface { // of pcapng
		WritePacket(gopacket.CaptureInfo, []byte) error
	}
	enc    encoder
	record [16]byte // head of a pcap's record
}

// NewWriter writes the file header to w.
func NewWriter(w io.Writer, f Format) (*Writer, error) {
	x := &Writer{w: bufio.NewWriterSize(w, 1<<16), format: f}
	switch f {
	case Pcap:
		file := pcapgo.NewWriterNanos(x.w)
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
	frame := w.enc.frame(dst, payload)
	if w.format == Pcap { // for each of many packets; as pcapgo's, in ns and little-endian
		le := binary.LittleEndian
		le.PutUint32(w.record[:], uint32(int64(stamp)/1e9))
		le.PutUint32(w.record[4:], uint32(int64(stamp)%1e9))
		le.PutUint32(w.record[8:], uint32(len(frame)))
		le.PutUint32(w.record[12:], uint32(len(frame)))
		_, err := w.w.Write(w.record[:])
		if err == nil {
			_, err = w.w.Write(frame)
		}
		return err
	}
	err := w.file.WritePacket(gopacket.CaptureInfo{Timestamp: stamp.Time(), CaptureLength: len(frame), Length: len(frame)}, frame)
	if err != nil {
		if e := w.w.Flush(); e != nil {
			return e // pcapgo keeps only the text of what the system said
		}
	}
	return err
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }

// encoder makes Ethernet frames in a buffer of its own, which each frame
// overwrites. gopacket's layers sum two bytes at a time.
type encoder struct{ buf []byte }

const (
	leastFrame    = 60
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
)

// frame is an Ethernet frame with one UDP datagram to dst, valid until the next.
func (e *encoder) frame(dst netip.AddrPort, payload []byte) []byte {
	be := binary.BigEndian
	a := dst.Addr().Unmap()
	size := udpSize + len(payload)
	b := e.buf[:0]
	var src netip.Addr
	if a.Is4() {
		d := a.As4()
		src = netip.IPv4Unspecified()
		if a.IsMulticast() {
			b = append(b, 0x01, 0x00, 0x5e, d[1]&0x7f, d[2], d[3])
		} else {
			b = append(b, 0x02, 0x00, d[0], d[1], d[2], d[3])
		}
		b = append(b, ownMAC[:]...)
		b = be.AppendUint16(b, etherTypeIPv4)
		b = append(b, 0x45, 0)
		b = be.AppendUint16(b, uint16(ipv4Size+size))
		b = append(b, 0, 0, 0x40, 0, 1, protoUDP, 0, 0) // not to be fragmented; TTL 1
		b = append(b, 0, 0, 0, 0)
		b = append(b, d[:]...)
		ip := b[etherSize:]
		be.PutUint16(ip[10:], ^fold(sum(ip, 0)))
	} else {
		d := a.As16()
		src = netip.IPv6Unspecified()
		if a.IsMulticast() {
			b = append(b, 0x33, 0x33, d[12], d[13], d[14], d[15])
		} else {
			b = append(b, 0x02, 0x00, d[12], d[13], d[14], d[15])
		}
		b = append(b, ownMAC[:]...)
		b = be.AppendUint16(b, etherTypeIPv6)
		b = append(b, 0x60, 0, 0, 0)
		b = be.AppendUint16(b, uint16(size))
		b = append(b, protoUDP, 1)
		b = append(b, make([]byte, 16)...)
		b = append(b, d[:]...)
	}
	udp := len(b)
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, uint16(size))
	b = append(append(b, 0, 0), payload...)
	check := ^fold(sum(b[udp:], pseudo(src, a, size)))
	if check == 0 {
		check = 0xffff // 0 would say that there is none (RFC 768)
	}
	be.PutUint16(b[udp+6:], check)
	for len(b) < leastFrame {
		b = append(b, 0)
	}
	e.buf = b
	return b
}

// ownMAC is from whom frames are: locally administered.
var ownMAC = [6]byte{0x02}
