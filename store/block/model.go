package block

import (
	"encoding/binary"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
)

// bitCoder is a binary arithmetic coder: bits of which one value is likely
// take a fraction of a bit. It codes in both directions, so that what models
// the bits is written once.
type bitCoder struct {
	lo, hi   uint32
	decoding bool
	out      []byte // of who encodes
	in       []byte // of who decodes: what is left; zeros follow
	at       uint32 // in the range
}

func (c *bitCoder) encode(dst []byte) { *c = bitCoder{hi: 1<<32 - 1, out: dst} }

func (c *bitCoder) decode(in []byte) {
	*c = bitCoder{hi: 1<<32 - 1, in: in, decoding: true}
	for range 4 {
		c.next()
	}
}

func (c *bitCoder) next() {
	c.at <<= 8
	if len(c.in) > 0 {
		c.at |= uint32(c.in[0])
		c.in = c.in[1:]
	}
}

// bit codes b, or decodes it. p is how likely it is that it is 1, of 2^16, and
// learns from it.
func (c *bitCoder) bit(p *uint16, b uint32) uint32 {
	mid := c.lo + uint32(uint64(c.hi-c.lo)*uint64(*p)>>16)
	if c.decoding {
		b = 0
		if c.at <= mid {
			b = 1
		}
	}
	if b != 0 {
		c.hi = mid
		*p += (1<<16 - 1 - *p) >> 4
	} else {
		c.lo = mid + 1
		*p -= *p >> 4
	}
	for (c.lo^c.hi)>>24 == 0 {
		if c.decoding {
			c.next()
		} else {
			c.out = append(c.out, byte(c.hi>>24))
		}
		c.lo <<= 8
		c.hi = c.hi<<8 | 0xff
	}
	return b
}

// end is what was encoded, with as many bytes as say where in the range.
func (c *bitCoder) end() []byte {
	for n := 0; ; n++ {
		v := c.hi &^ uint32(1<<(32-8*n)-1)
		if v < c.lo {
			continue
		}
		for ; n > 0; n-- {
			c.out = append(c.out, byte(v>>24))
			v <<= 8
		}
		return c.out
	}
}

// byteModel is how likely the bits of a byte are, each by those above it.
type byteModel [256]uint16

const even = 1 << 15 // the likelihood of a bit of which nothing is known

func (m *byteModel) reset() {
	for i := range m {
		m[i] = even
	}
}

// code codes the lowest bits of x.
func (m *byteModel) code(c *bitCoder, x byte, bits int) byte {
	k := uint32(1)
	for i := bits - 1; i >= 0; i-- {
		k = k<<1 | c.bit(&m[k], uint32(x)>>i&1)
	}
	return byte(k) // without the 1 above, where bits is 8
}

// Limits of what a model knows of messages.
const (
	maxShapes  = 64
	maxColumns = 4 << 10 // bytes of one message of each shape
	noShape    = 127     // code of a message of none
	shapeBits  = 7
)

// model foretells the raw form of records from what came before in their
// stream. Messages of one length and first byte are of one shape, and each of
// their bytes is expected to be that of the message of the shape before, or
// else like those that were at its place. A stream knows maxShapes of them.
type model struct {
	sections [modelledSections][maxVarint]byteModel // by the place in a number
	shape    byteModel
	text     byteModel // of messages without a shape, and what shapes are
	shapes   []shape
	columns  []column
	ids      map[uint32]byte // of shapes, by length and first byte; of who encodes
}

const (
	maxVarint        = 10
	modelledSections = recordSections + 1 // and their lengths
)

type shape struct {
	size  int
	first byte
	at    int // in columns: of all bytes but the first
}

// column is one byte of the messages of a shape.
type column struct {
	last byte
	same [4]uint16 // that it is as the last, by whether the two before it were
	bits byteModel
}

func (m *model) begin() {
	for i := range m.sections {
		for k := range m.sections[i] {
			m.sections[i][k].reset()
		}
	}
	m.shape.reset()
	m.text.reset()
	m.shapes, m.columns = m.shapes[:0], m.columns[:0]
	clear(m.ids)
}

// room reports whether the model takes up another shape, of messages that long.
func (m *model) room(size int) bool {
	return len(m.shapes) < maxShapes && len(m.columns)+size <= maxColumns
}

func (m *model) add(size int, first byte) {
	m.shapes = append(m.shapes, shape{size, first, len(m.columns)})
	if size < 2 {
		return
	}
	at := len(m.columns)
	m.columns = slices.Grow(m.columns, size-1)[:at+size-1]
	for i := at; i < len(m.columns); i++ {
		k := &m.columns[i]
		k.last, k.same = 0, [4]uint16{even, even, even, even}
		k.bits.reset()
	}
}

// code codes the raw form of a record, or decodes it into raw, which is as
// long. It is false where that cannot be one.
func (m *model) code(c *bitCoder, raw []byte) bool {
	at := 0
	number := func(by *[maxVarint]byteModel, end int) (k int) {
		for k < maxVarint && at < end {
			raw[at] = by[k].code(c, raw[at], 8)
			at++
			k++
			if raw[at-1] < 0x80 {
				break
			}
		}
		return k
	}
	for i := range recordSections {
		from := at
		number(&m.sections[recordSections], len(raw))
		n, k := binary.Uvarint(raw[from:at])
		if k <= 0 || n > uint64(len(raw)-at) {
			return false
		}
		for end := at + int(n); at < end; {
			number(&m.sections[i], end)
		}
	}
	for at < len(raw) {
		n := m.message(c, raw[at:])
		if n == 0 {
			return false
		}
		at += n
	}
	return true
}

// message codes the message at the beginning of rows. It answers with the
// bytes it takes, 0 where it cannot be one.
func (m *model) message(c *bitCoder, rows []byte) int {
	if len(rows) < moldcast.LengthSize {
		return 0
	}
	size, first, id := 0, byte(0), byte(noShape)
	if !c.decoding {
		size = int(binary.BigEndian.Uint16(rows))
		if size > 0 {
			first = rows[moldcast.LengthSize]
		}
		if k, ok := m.ids[shapeKey(size, first)]; ok {
			id = k
		} else if m.room(size) {
			id = byte(len(m.shapes))
			m.ids[shapeKey(size, first)] = id
		}
	}
	id = m.shape.code(c, id, shapeBits) &^ (1 << shapeBits)
	if n := len(m.shapes); int(id) < n {
		size, first = m.shapes[id].size, m.shapes[id].first
	} else {
		size = int(m.text.code(c, byte(size>>8), 8))<<8 | int(m.text.code(c, byte(size), 8))
		switch {
		case id == noShape:
		case int(id) > n || !m.room(size):
			return 0
		default:
			if size > 0 {
				first = m.text.code(c, first, 8)
			}
			m.add(size, first)
		}
	}
	if size > len(rows)-moldcast.LengthSize {
		return 0
	}
	binary.BigEndian.PutUint16(rows, uint16(size))
	data := rows[moldcast.LengthSize : moldcast.LengthSize+size]
	switch {
	case id == noShape:
		for i, x := range data {
			data[i] = m.text.code(c, x, 8)
		}
	case size > 0:
		data[0] = first
		s := &m.shapes[id]
		before := 0
		for i := range m.columns[s.at : s.at+size-1] {
			k := &m.columns[s.at+i]
			x, same := data[1+i], uint32(0)
			if x == k.last {
				same = 1
			}
			if same = c.bit(&k.same[before], same); same == 0 {
				k.last = k.bits.code(c, x, 8)
			}
			data[1+i] = k.last
			before = before<<1&3 | int(same)
		}
	}
	return moldcast.LengthSize + size
}

func shapeKey(size int, first byte) uint32 { return uint32(size)<<8 | uint32(first) }
