package capfile

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/moldtape/moldtape/moldcast"
)

// MaxFrame is the longest captured length that is believed: 256 KiB, what
// tcpdump and Wireshark write at most.
const MaxFrame = 256 << 10

// frame is one record of a file.
type frame struct {
	data  []byte // valid until the next one
	orig  int    // length on the wire
	stamp moldcast.Stamp
	link  uint32
	pos   int64 // of the record
	num   int64 // from 1
}

// framer reads the records of one container format.
type framer interface {
	// next sets f to the next record. It gives io.EOF after the last whole one,
	// and a *FormatError or a read error where it can go no further.
	next(s *source, f *frame) error
}

// pcap file header (24 bytes): magic u32, version u16 u16, zone i32, accuracy
// u32, snap length u32, link type u32. Record header (16 bytes): seconds u32,
// fraction u32, captured length u32, original length u32.
const (
	pcapHeader = 24
	pcapRecord = 16

	magicMicro = 0xa1b2c3d4
	magicNano  = 0xa1b23c4d
)

// pcapReader is by hand: pcapgo.Reader wraps a lying fraction into a believable
// time, refuses a captured length above the original one or the snap length,
// allocates what the snap length claims and cuts the link type to 8 bits. With
// all that checked before it is called, a record is decoded already.
type pcapReader struct {
	order order
	unit  uint32 // fractions in a second
	ns    int64  // nanoseconds in a fraction
	link  uint32
	num   int64
}

func newPcap(s *source) (*pcapReader, error) {
	b, err := s.peek(pcapHeader)
	if err != nil {
		return nil, short(s, b, err, 0, "file header")
	}
	p := &pcapReader{unit: 1e6}
	switch le, be := binary.LittleEndian.Uint32(b), binary.BigEndian.Uint32(b); {
	case le == magicMicro:
	case le == magicNano:
		p.unit = 1e9
	case be == magicMicro:
		p.order = big
	case be == magicNano:
		p.order, p.unit = big, 1e9
	}
	p.ns = int64(1e9 / p.unit)
	if v := p.order.u16(b[4:]); v != 2 {
		return nil, &FormatError{Pos: s.pos + 4, Err: ErrVersion, Detail: fmt.Sprintf("pcap version %d.%d, want 2.4", v, p.order.u16(b[6:]))}
	}
	p.link = p.order.u32(b[20:]) & 0xffff // the upper bits tell of frame check sequences
	if !linkSupported(p.link) {
		return nil, &FormatError{Pos: s.pos + 20, Err: ErrLinkType, Detail: linkDetail(p.link)}
	}
	s.pass(pcapHeader)
	return p, nil
}

func (p *pcapReader) next(s *source, f *frame) error {
	at := s.pos
	num := p.num + 1
	h, err := s.peek(pcapRecord)
	if err != nil {
		if len(h) == 0 && err == io.EOF {
			return io.EOF
		}
		return short(s, h, err, num, "record header")
	}
	sec, frac := p.order.u32(h), p.order.u32(h[4:])
	n, orig := p.order.u32(h[8:]), p.order.u32(h[12:])
	if n > MaxFrame {
		return &FormatError{Pos: at, Frame: num, Err: ErrLength, Detail: fmt.Sprintf("captured length %d, most is %d", n, MaxFrame)}
	}
	if frac >= p.unit {
		return &FormatError{Pos: at, Frame: num, Err: ErrTime, Detail: fmt.Sprintf("fraction %d of %d in a second", frac, p.unit)}
	}
	b, err := s.peek(pcapRecord + int(n))
	if err != nil {
		return short(s, b, err, num, fmt.Sprintf("%d of %d bytes are there", max(0, len(b)-pcapRecord), n))
	}
	s.pass(len(b))
	p.num = num
	*f = frame{
		data: b[pcapRecord:], orig: max(int(min(orig, 1<<30)), int(n)), stamp: moldcast.Stamp(int64(sec)*1e9 + int64(frac)*p.ns),
		link: p.link, pos: at, num: num,
	}
	return nil
}

// short is the error for a record that b does not hold whole.
func short(s *source, b []byte, err error, num int64, detail string) error {
	if err != io.EOF {
		return err
	}
	return &FormatError{Pos: s.pos, Frame: num, Err: ErrTruncated, Detail: detail}
}
