package block

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
)

// joiner makes rows of columns again. It keeps its buffers.
type joiner struct {
	layout
	r      columnReader
	planes []byte
	to     scatterer
}

// decode appends the rows that stored holds, which are raw bytes long and
// messages messages, to dst[:0]; dst has room for them and slack. It answers
// with what is wrong.
func (c *joiner) decode(dst, stored []byte, raw, messages int, z *zstd.Decoder) (rows []byte, reason string) {
	s := scanner{b: stored}
	rows = dst[:0]
	for len(rows) < raw {
		n, m := s.uvarint(), s.uvarint()
		size := s.bytes(4)
		if s.reason != "" {
			return nil, "part " + s.reason
		}
		body := s.bytes(uint64(binary.BigEndian.Uint32(size)))
		switch {
		case s.reason != "":
			return nil, "part " + s.reason
		case n > uint64(raw-len(rows)) || n >= partRaw+2+1<<16 || m == 0 || m > uint64(messages) || m > partMessages || 2*m > n:
			return nil, "part larger than what is left"
		}
		messages -= int(m)
		at := len(rows)
		rows = rows[:at+int(n)]
		if reason := c.join(rows[at:at+int(n):min(cap(rows), at+int(n)+slack)], body, int(m), z); reason != "" {
			return nil, reason
		}
	}
	if s.end(); s.reason != "" || messages != 0 {
		return nil, "parts differ from the payload in length"
	}
	return rows, ""
}

// join makes the rows of one part.
func (c *joiner) join(rows, stored []byte, messages int, z *zstd.Decoder) (reason string) {
	r := &c.r
	if !r.open(stored, len(rows)+messages, z) {
		return "columns do not open"
	}
	c.readScript(&r.s, len(rows), messages)
	if r.s.reason != "" {
		return r.s.reason
	}
	c.ready()
	c.ids = grow(c.ids, messages)
	clear(c.ids)
	if len(c.shapes) > 0 {
		r.plane(c.ids)
	}
	if !c.place(rows) {
		r.s.fail("shapes of messages do not fit their number")
		return r.s.reason
	}
	for i := range c.shapes {
		x := &c.shapes[i]
		width := x.shape.width()
		c.planes = grow(c.planes, x.rows*width)
		fillPlane(c.planes[:x.rows], byte(x.shape))
		c.to.flat[0] = true
		for j := 1; j < width; j++ {
			var by []byte
			if j < len(x.by) && x.by[j] != 0 {
				k := int(x.by[j] - 1)
				by = c.planes[k*x.rows : (k+1)*x.rows]
			}
			c.to.flat[j] = r.split(c.planes[j*x.rows:(j+1)*x.rows], by)
		}
		c.to.scatter(rows, c.planes, x.at, width)
	}
	if r.end(); r.s.reason != "" {
		return r.s.reason
	}
	byRow := false
	for i := range c.shapes {
		x := &c.shapes[i]
		byRow = byRow || x.byRow
		for k := range x.owns {
			x.owns[k].sum(rows[:cap(rows)], x.at)
		}
	}
	if byRow {
		c.recall(rows)
	}
	return ""
}

// place finds where each message lies, and writes lengths and the messages
// without a shape.
func (c *joiner) place(rows []byte) bool {
	c.temp = grow(c.temp, 2*c.others+c.text)
	high, low, text := c.temp[:c.others], c.temp[c.others:2*c.others], c.temp[2*c.others:]
	c.r.plane(high)
	c.r.plane(low)
	c.r.plane(text)
	for i := range c.shapes {
		x := &c.shapes[i]
		if cap(x.at) < x.rows {
			x.at = make([]uint32, 0, x.rows+x.rows/4)
		}
	}
	at, other := 0, 0
	for _, id := range c.ids {
		if int(id) < len(c.shapes) {
			x := &c.shapes[id]
			n := x.shape.width()
			if len(x.at) == x.rows || at+2+n > len(rows) {
				return false
			}
			rows[at], rows[at+1] = 0, byte(n)
			x.at = append(x.at, uint32(at+2))
			at += 2 + n
			continue
		}
		if int(id) > len(c.shapes) || other == c.others {
			return false
		}
		n := int(high[other])<<8 | int(low[other])
		if n > len(text) || at+2+n > len(rows) {
			return false
		}
		rows[at], rows[at+1] = high[other], low[other]
		copy(rows[at+2:], text[:n])
		text = text[n:]
		at += 2 + n
		other++
	}
	return at == len(rows)
}

// slots are those of a table, in a form for recall.
type slots struct {
	at             []uint32
	key, slot, tag uint8 // shifts: of the bytes read to the key; of its product to slot and tag
}

// load is the key at p. It is read as wide as it is: a part of it may have been
// written a moment ago.
func (t *slots) load(p *[8]byte) uint64 {
	switch t.key {
	case 64 - 8*2:
		return uint64(binary.BigEndian.Uint16(p[:]))
	case 64 - 8*4:
		return uint64(binary.BigEndian.Uint32(p[:]))
	}
	return binary.BigEndian.Uint64(p[:]) >> (t.key & 63)
}

// recall makes values of differences to other messages.
func (c *joiner) recall(rows []byte) {
	var tables [maxTables]slots
	for i := range c.tables {
		t := &c.tables[i]
		tables[i] = slots{t.slots, 64 - 8*t.width, 64 - t.bits, 64 - t.bits - tagBits}
	}
	wide := rows[:cap(rows)]
	at, before := 0, -1
	for _, id := range c.ids {
		at += 2
		if int(id) == len(c.shapes) {
			before = at
			at += int(binary.BigEndian.Uint16(rows[at-2:]))
			continue
		}
		x := &c.shapes[id]
		if x.byRow {
			found := -1
			for k := range x.moves {
				m := &x.moves[k]
				from := before
				switch m.kind {
				case stepLookup:
					t := &tables[m.arg%maxTables]
					h := t.load((*[8]byte)(wide[at+int(m.at):])) * hashMult
					v := t.at[h>>(t.slot&63)]
					found = int(v & (1<<rowBits - 1))
					if v>>rowBits != uint32(h>>(t.tag&63))&(1<<tagBits-1) || v == 0 {
						found = -1
					}
					continue
				case stepShape:
					from = c.shapes[m.arg].last
				case stepKey:
					from = found
				}
				if !m.sure {
					from = within(rows, from, m)
				}
				m.join(wide, at, from)
			}
			for _, f := range x.feeds {
				t := &tables[f.table%maxTables]
				h := t.load((*[8]byte)(wide[at+int(f.at):])) * hashMult
				t.at[h>>(t.slot&63)] = uint32(h>>(t.tag&63))<<rowBits | uint32(at)
			}
		}
		x.last = at
		before = at
		at += x.shape.width()
	}
}
