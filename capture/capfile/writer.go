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
	enc   encoder
	frame []byte // of pcapng
}

// writeBuffer holds any frame, and many of most.
const writeBuffer = 1 << 18

// NewWriter writes the file header to w. A *bufio.Writer of 256 KiB or more is
// used as it is.
func NewWriter(w io.Writer, f Format) (*Writer, error) {
	x := &Writer{w: bufio.NewWriterSize(w, writeBuffer), format: f}
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

// Write writes one datagram to dst, whose payload is that of all parts together.
// Errors: ErrTooLong, ErrPcapTime, or what writing gives.
func (w *Writer) Write(stamp moldcast.Stamp, dst netip.AddrPort, payload ...[]byte) error {
	size := 0
	for _, p := range payload {
		size += len(p)
	}
	most := moldcast.MaxDatagram
	if dst.Addr().Unmap().Is6() {
		most = 65535 - udpSize
	}
	if size > most {
		return fmt.Errorf("%w: %d bytes", ErrTooLong, size)
	}
	if stamp < 0 || w.format == Pcap && int64(stamp)/1e9 > math.MaxUint32 {
		return fmt.Errorf("%w: %v", ErrPcapTime, stamp.Time())
	}
	if w.format == Pcapng {
		w.frame = w.enc.append(w.frame[:0], dst, size, payload)
		n := len(w.frame)
		err := w.file.WritePacket(gopacket.CaptureInfo{Timestamp: stamp.Time(), CaptureLength: n, Length: n}, w.frame)
		if err != nil {
			if e := w.w.Flush(); e != nil {
				return e // pcapgo keeps only the text of what the system said
			}
		}
		return err
	}
	// As pcapgo's, in ns and little-endian; in the buffer that it is written from.
	if w.w.Available() < pcapRecord+maxHead+size+leastFrame {
		if err := w.w.Flush(); err != nil {
			return err
		}
	}
	b := append(w.w.AvailableBuffer(), make([]byte, pcapRecord)...)
	b = w.enc.append(b, dst, size, payload)
	le, n := binary.LittleEndian, uint32(len(b)-pcapRecord)
	le.PutUint32(b, uint32(int64(stamp)/1e9))
	le.PutUint32(b[4:], uint32(int64(stamp)%1e9))
	le.PutUint32(b[8:], n)
	le.PutUint32(b[12:], n)
	_, err := w.w.Write(b)
	return err
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }

// encoder makes Ethernet frames. gopacket's layers sum two bytes at a time.
type encoder struct {
	dst    netip.AddrPort
	head   []byte // of a datagram to dst, lengths and checksums 0
	udp    int    // of head, where the UDP header begins
	ipSum  uint64 // of an IPv4 header; 0 for IPv6
	pseudo uint64 // … and the pseudo header and ports
}

const (
	leastFrame    = 60
	maxHead       = etherSize + ipv6Size + udpSize
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
)

// to sets the head for another destination.
func (e *encoder) to(dst netip.AddrPort) {
	be := binary.BigEndian
	a := dst.Addr().Unmap()
	b := e.head[:0]
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
		b = append(b, 0x45, 0, 0, 0)
		b = append(b, 0, 0, 0x40, 0, 1, protoUDP, 0, 0) // not to be fragmented; TTL 1
		b = append(b, 0, 0, 0, 0)
		b = append(b, d[:]...)
		e.ipSum = sum(b[etherSize:], 0)
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
		b = append(b, 0x60, 0, 0, 0, 0, 0, protoUDP, 1)
		b = append(b, make([]byte, 16)...)
		b = append(b, d[:]...)
		e.ipSum = 0
	}
	e.udp = len(b)
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, dst.Port())
	b = append(b, 0, 0, 0, 0)
	e.dst, e.head = dst, b
	e.pseudo = sum(b[e.udp:], pseudo(src, a, 0))
}

// append appends an Ethernet frame with one UDP datagram to dst, of a payload
// of n bytes in parts.
func (e *encoder) append(b []byte, dst netip.AddrPort, n int, payload [][]byte) []byte {
	if dst != e.dst || len(e.head) == 0 {
		e.to(dst)
	}
	be := binary.BigEndian
	at := len(b)
	b = append(b, e.head...)
	for _, p := range payload {
		b = append(b, p...)
	}
	size := uint64(udpSize + n)
	ip, udp := b[at+etherSize:], b[at+e.udp:]
	if e.ipSum != 0 {
		be.PutUint16(ip[2:], uint16(ipv4Size+size))
		be.PutUint16(ip[10:], ^fold(e.ipSum+ipv4Size+size))
	} else {
		be.PutUint16(ip[4:], uint16(size))
	}
	be.PutUint16(udp[4:], uint16(size))
	// The length is in the pseudo header too.
	check := ^fold(sum(udp[udpSize:], e.pseudo+2*size))
	if check == 0 {
		check = 0xffff // 0 would say that there is none (RFC 768)
	}
	be.PutUint16(udp[6:], check)
	if short := leastFrame - (len(b) - at); short > 0 {
		b = append(b, make([]byte, short)...)
	}
	return b
}

// ownMAC is from whom frames are: locally administered.
var ownMAC = [6]byte{0x02}
