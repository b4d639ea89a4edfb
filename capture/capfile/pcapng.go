package capfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/moldtape/moldtape/moldcast"
)

// Block types of pcapng (draft-ietf-opsawg-pcapng). Every block is: type u32,
// total length u32, body, total length u32 again; the length counts all and is
// a multiple of 4. Options are: code u16, length u16, value padded to 4.
const (
	ngSection   = 0x0A0D0D0A // byte-order magic u32, version u16 u16, section length i64, options
	ngInterface = 1          // link type u16, reserved u16, snap length u32, options
	ngOldPacket = 2          // interface u16, drops u16, time u32 u32, captured u32, original u32, data
	ngSimple    = 3          // original u32, data
	ngPacket    = 6          // interface u32, time u32 u32, captured u32, original u32, data, options

	ngByteOrder = 0x1A2B3C4D
	ngOptResol  = 9
	ngOptOffset = 14

	ngMaxInterfaces = 1 << 16 // of a section
	ngMaxParsed     = MaxFrame + 256<<10
)

type ngIface struct {
	link   uint32
	snap   uint32
	base2  bool
	exp    uint8 // a time unit is 10^-exp or 2^-exp seconds
	offset int64 // seconds
}

// ngReader is by hand: pcapgo.NgReader panics on options shorter than their
// type, divides by zero for resolutions below 2^-63 s, reads whole seconds as µs
// and rounds binary fractions, believes a captured length beyond its block, and
// cuts the link type to 8 bits. To fence that means to parse every block first.
type ngReader struct {
	order  order
	ifaces []ngIface
	num    int64
	last   moldcast.Stamp // for simple packets, which have no time
}

func newPcapng() *ngReader { return new(ngReader) }

func (n *ngReader) next(s *source, f *frame) error {
	for {
		at := s.pos
		fault := func(err error, format string, args ...any) error {
			return &FormatError{Pos: at, Err: err, Detail: fmt.Sprintf(format, args...)}
		}
		h, err := s.peek(12)
		if err != nil {
			if len(h) == 0 && err == io.EOF {
				return io.EOF
			}
			return short(s, h, err, 0, "block header")
		}
		typ := n.order.u32(h)
		if typ == ngSection { // the same in both byte orders
			switch {
			case binary.LittleEndian.Uint32(h[8:]) == ngByteOrder:
				n.order = little
			case binary.BigEndian.Uint32(h[8:]) == ngByteOrder:
				n.order = big
			default:
				return fault(ErrBlock, "section with byte-order magic %x", h[8:12])
			}
		}
		total := n.order.u32(h[4:])
		if total < 12 || total%4 != 0 {
			return fault(ErrLength, "block of %d bytes", total)
		}
		switch typ {
		case ngSection, ngInterface, ngOldPacket, ngSimple, ngPacket:
		default:
			// Of no interest, and maybe large: passed without being kept.
			if err := n.pass(s, total); err != nil {
				return err
			}
			continue
		}
		if total > ngMaxParsed {
			return fault(ErrLength, "block of %d bytes, most is %d", total, ngMaxParsed)
		}
		b, err := s.peek(int(total))
		if err != nil {
			return short(s, b, err, n.frameNum(typ), fmt.Sprintf("%d of %d bytes are there", len(b), total))
		}
		if t := n.order.u32(b[total-4:]); t != total {
			return fault(ErrBlock, "block length %d before and %d behind", total, t)
		}
		s.pass(int(total))
		body := b[8 : total-4]
		switch typ {
		case ngSection:
			if len(body) < 16 {
				return fault(ErrBlock, "section header of %d bytes", len(body))
			}
			if v := n.order.u16(body[4:]); v != 1 {
				return fault(ErrVersion, "pcapng version %d", v)
			}
			n.ifaces = n.ifaces[:0]
		case ngInterface:
			if len(n.ifaces) == ngMaxInterfaces {
				return fault(ErrBlock, "more than %d interfaces", ngMaxInterfaces)
			}
			i, why := n.iface(body)
			if why != "" {
				return fault(ErrBlock, "interface %d: %s", len(n.ifaces), why)
			}
			n.ifaces = append(n.ifaces, i)
		default:
			if err := n.packet(typ, body, f); err != nil {
				err.Pos, err.Frame = at, n.num+1
				return err
			}
			n.num++
			f.pos, f.num = at, n.num
			return nil
		}
	}
}

func (n *ngReader) frameNum(typ uint32) int64 {
	if typ == ngSection || typ == ngInterface {
		return 0
	}
	return n.num + 1
}

// pass skips a block and checks its second length.
func (n *ngReader) pass(s *source, total uint32) error {
	at := s.pos
	if k, err := s.skip(int64(total) - 4); err != nil {
		if err != io.EOF {
			return err
		}
		return &FormatError{Pos: at, Err: ErrTruncated, Detail: fmt.Sprintf("%d of %d bytes are there", k, total)}
	}
	b, err := s.peek(4)
	if err != nil {
		if err != io.EOF {
			return err
		}
		return &FormatError{Pos: at, Err: ErrTruncated, Detail: fmt.Sprintf("%d of %d bytes are there", int(total)-4+len(b), total)}
	}
	if t := n.order.u32(b); t != total {
		return &FormatError{Pos: at, Err: ErrBlock, Detail: fmt.Sprintf("block length %d before and %d behind", total, t)}
	}
	s.pass(4)
	return nil
}

func (n *ngReader) iface(b []byte) (ngIface, string) {
	if len(b) < 8 {
		return ngIface{}, fmt.Sprintf("description of %d bytes", len(b))
	}
	i := ngIface{link: uint32(n.order.u16(b)), snap: n.order.u32(b[4:]), exp: 6}
	for o := b[8:]; len(o) >= 4; {
		code, size := n.order.u16(o), int(n.order.u16(o[2:]))
		o = o[4:]
		if code == 0 {
			break
		}
		if size > len(o) {
			return ngIface{}, fmt.Sprintf("option %d of %d bytes, %d are there", code, size, len(o))
		}
		v := o[:size]
		switch {
		case code == ngOptResol && size >= 1:
			i.base2, i.exp = v[0]&0x80 != 0, v[0]&0x7f
			if !i.base2 && i.exp > 19 {
				return ngIface{}, fmt.Sprintf("time resolution of 10^-%d s", i.exp)
			}
		case code == ngOptOffset && size >= 8:
			i.offset = int64(n.order.u64(v))
		}
		o = o[min(len(o), (size+3)&^3):]
	}
	return i, ""
}

func (n *ngReader) packet(typ uint32, b []byte, f *frame) *FormatError {
	fault := func(err error, format string, args ...any) *FormatError {
		return &FormatError{Err: err, Detail: fmt.Sprintf(format, args...)}
	}
	var id, captured, orig uint32
	var units uint64
	switch typ {
	case ngSimple:
		if len(b) < 4 {
			return fault(ErrBlock, "simple packet of %d bytes", len(b))
		}
		orig = n.order.u32(b)
		captured = orig
		b = b[4:]
	default:
		if len(b) < 20 {
			return fault(ErrBlock, "packet of %d bytes", len(b))
		}
		id = n.order.u32(b)
		if typ == ngOldPacket {
			id = uint32(n.order.u16(b))
		}
		units = uint64(n.order.u32(b[4:]))<<32 | uint64(n.order.u32(b[8:]))
		captured, orig = n.order.u32(b[12:]), n.order.u32(b[16:])
		b = b[20:]
	}
	if int64(id) >= int64(len(n.ifaces)) {
		return fault(ErrBlock, "interface %d of %d", id, len(n.ifaces))
	}
	i := &n.ifaces[id]
	stamp := n.last
	if typ == ngSimple {
		if i.snap > 0 {
			captured = min(captured, i.snap)
		}
		captured = min(captured, uint32(len(b)))
	} else {
		ns, ok := i.stamp(units)
		if !ok {
			return fault(ErrTime, "%d units", units)
		}
		stamp = ns
		n.last = ns
	}
	if captured > MaxFrame {
		return fault(ErrLength, "captured length %d, most is %d", captured, MaxFrame)
	}
	if int64(captured) > int64(len(b)) {
		return fault(ErrLength, "captured length %d, the block has room for %d", captured, len(b))
	}
	*f = frame{data: b[:captured], orig: max(int(min(orig, 1<<30)), int(captured)), stamp: stamp, link: i.link}
	return nil
}

var pow10 = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10}

// stamp is a time in units of the interface as ns since 1970.
func (i *ngIface) stamp(units uint64) (moldcast.Stamp, bool) {
	var hi, lo uint64
	switch {
	case i.base2:
		hi, lo = bits.Mul64(units, 1e9)
		switch e := uint(i.exp); {
		case e >= 64:
			hi, lo = 0, hi>>(e-64)
		case e > 0:
			hi, lo = hi>>e, lo>>e|hi<<(64-e)
		}
	case i.exp <= 9:
		hi, lo = bits.Mul64(units, pow10[9-i.exp])
	default:
		lo = units / pow10[i.exp-9]
	}
	if hi != 0 || lo > math.MaxInt64 || i.offset > 1<<33 || i.offset < -1<<33 {
		return 0, false
	}
	ns := int64(lo)
	off := i.offset * 1e9
	if off > 0 && ns > math.MaxInt64-off {
		return 0, false
	}
	return moldcast.Stamp(ns + off), true
}
