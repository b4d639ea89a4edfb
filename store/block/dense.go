package block

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
)

// splitter makes columns of rows: part by part. It keeps its buffers.
type splitter struct {
	layout
	w      *columnWriter
	counts []uint32 // of each shape in the part; zero between parts
	id     []uint8  // of each shape, where it has one in the part
	seen   []shapeOf
	planes []byte
	wide   []byte
	tracks []track // of each shape in the part
	sure   []int32
}

func newSplitter() *splitter {
	return &splitter{w: newColumnWriter(), counts: make([]uint32, 1<<16), id: make([]uint8, 1<<16)}
}

// encode appends rows in columns: foretold by plans, which may be nil. It is
// false where there is more to say of them than a script holds.
func (c *splitter) encode(dst, rows []byte, plans *Plans, z *zstd.Encoder, plain, fast bool) ([]byte, bool) {
	for at := 0; at < len(rows); {
		end, messages := cutPart(rows, at)
		part := rows[at:end]
		if !plain && len(rows)-end < moveSlack {
			// Moves read beyond the last message.
			c.wide = append(append(c.wide[:0], part...), make([]byte, moveSlack)...)
			part = c.wide[:len(part)]
		}
		c.split(part, messages, plans, plain)
		c.columns(part, plain)
		if len(c.w.script) > maxScript {
			return dst, false
		}
		dst = binary.AppendUvarint(dst, uint64(end-at))
		dst = binary.AppendUvarint(dst, uint64(messages))
		// The length before what it is of: as wide as it may have to be.
		size := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		dst = c.w.append(dst, z, fast)
		binary.BigEndian.PutUint32(dst[size:], uint32(len(dst)-size-4))
		at = end
	}
	return dst, true
}

// cutPart is where a part ends that begins at at, and how many messages it
// has.
func cutPart(rows []byte, at int) (end, messages int) {
	for end = at; end < len(rows) && end-at < partRaw && messages < partMessages; messages++ {
		end += frame(rows, end)
	}
	return end, messages
}

// split finds the shapes of a part, and the differences of its messages to
// what foretells them. Without plain, rows has room for moveSlack behind them.
func (c *splitter) split(rows []byte, messages int, plans *Plans, plain bool) {
	c.reset()
	c.seen = c.seen[:0]
	for at := 0; at < len(rows); {
		n := frame(rows, at) - 2
		if n > 0 && n <= maxRow {
			s := shapeOf(n<<8) | shapeOf(rows[at+2])
			if c.counts[s] == 0 {
				c.seen = append(c.seen, s)
			}
			c.counts[s]++
		}
		at += n + 2
	}
	for _, s := range c.seen {
		if c.counts[s] >= leastRows && len(c.shapes) < maxPartShape {
			x := c.addShape(s, int(c.counts[s]))
			x.mat = grow(x.mat, x.rows*s.width()+moveSlack)
			c.id[s] = uint8(len(c.shapes))
		}
	}
	if !plain {
		c.apply(plans)
	}
	c.others = messages
	for i := range c.shapes {
		c.others -= c.shapes[i].rows
	}
	c.ready()
	c.ids = grow(c.ids, messages)
	if plain {
		c.copyRows(rows)
	} else {
		c.foretell(rows)
	}
	for _, s := range c.seen {
		c.counts[s], c.id[s] = 0, 0
	}
}

// grow makes b n long; what it holds is of no use.
func grow[T any](b []T, n int) []T {
	if cap(b) < n {
		return make([]T, n, n+n/4)
	}
	return b[:n]
}

func (c *splitter) copyRows(rows []byte) {
	for i, at := 0, 0; at < len(rows); i++ {
		n := frame(rows, at) - 2
		at += 2
		if x := c.shape(rows[at : at+n]); x != nil {
			c.ids[i] = c.id[x.shape] - 1
			copy(x.mat[x.done:], rows[at:at+n])
			x.done += n
		} else {
			c.other(i, n)
		}
		at += n
	}
}

// shape is that of a message; nil: none.
func (c *splitter) shape(m []byte) *partShape {
	if len(m) == 0 || len(m) > maxRow {
		return nil
	}
	id := c.id[len(m)<<8|int(m[0])]
	if id == 0 {
		return nil
	}
	return &c.shapes[id-1]
}

func (c *splitter) other(i, n int) {
	c.ids[i] = byte(len(c.shapes))
	c.text += n
}

// within is from where the message that begins there has the field that m
// takes from it, else -1.
func within(rows []byte, from int, m *move) int {
	if from < 0 || int(m.from)+int(m.n) > int(binary.BigEndian.Uint16(rows[from-2:])) {
		return -1
	}
	return from
}

// columns writes the planes of a part that was split.
func (c *splitter) columns(rows []byte, plain bool) {
	w := c.w
	w.reset(plain)
	w.script = c.appendScript(w.script)
	if len(c.shapes) > 0 {
		w.plane(c.ids)
	}
	if c.others > 0 {
		c.otherColumns(rows)
	}
	for i := range c.shapes {
		x := &c.shapes[i]
		width := x.shape.width()
		c.planes = grow(c.planes, width*x.rows)
		transpose(c.planes, x.mat, width, x.rows)
		// The first byte is of the shape.
		for j := 1; j < width; j++ {
			var by []byte
			if j < len(x.by) && x.by[j] != 0 {
				k := int(x.by[j] - 1)
				by = c.planes[k*x.rows : (k+1)*x.rows]
			}
			w.split(c.planes[j*x.rows:(j+1)*x.rows], by)
		}
	}
}

// otherColumns writes the messages without a shape: their lengths, highest
// bytes first, and all their bytes.
func (c *splitter) otherColumns(rows []byte) {
	c.temp = grow(c.temp, 2*c.others+c.text)
	high, low, text := c.temp[:c.others], c.temp[c.others:2*c.others], c.temp[2*c.others:]
	k := 0
	for i, at := 0, 0; at < len(rows); i++ {
		n := frame(rows, at) - 2
		at += 2
		if int(c.ids[i]) == len(c.shapes) {
			high[k], low[k] = byte(n>>8), byte(n)
			k++
			text = text[copy(text, rows[at:at+n]):]
		}
		at += n
	}
	c.w.plane(high)
	c.w.plane(low)
	c.w.plane(c.temp[2*c.others:])
}
