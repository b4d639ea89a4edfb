package block

import (
	"encoding/binary"
	"math/bits"
)

// What foretells the messages of a part is looked up once, in their order: for
// each message where those begin that its steps name. All else is done shape by
// shape, and move by move, in loops that take no branches by what messages say.

// partSource is a way in which messages of a shape find another one.
type partSource struct {
	kind  uint8 // stepOwn, stepAny, stepShape or stepLookup
	arg   uint8 // stepShape: the shape; stepLookup: the table
	at    uint8 // stepLookup: the key
	shift uint8 // … 64 - 8 bytes of it
	from  []int32
}

// track is what a splitter knows of the messages of a shape.
type track struct {
	at      []int32 // where each begins
	sources []partSource
	feeds   []feed
	n       int   // messages so far
	last    int32 // where the newest begins; -1: none yet
}

// trace makes tracks ready for the shapes of a part.
func (c *splitter) trace() {
	for len(c.tracks) < len(c.shapes) {
		c.tracks = append(c.tracks, track{})
	}
	for i := range c.shapes {
		x, t := &c.shapes[i], &c.tracks[i]
		t.at = grow(t.at, x.rows)
		t.feeds, t.n, t.last = x.feeds, 0, -1
		t.sources = t.sources[:0]
		found := uint8(0)
		for k := range x.moves {
			m := &x.moves[k]
			switch m.kind {
			case stepLookup:
				t.add(partSource{kind: stepLookup, arg: m.arg, at: m.at, shift: m.shift}, x.rows)
				found = uint8(len(t.sources) - 1)
				m.source = found
			case stepKey:
				m.source = found
			default:
				m.source = t.find(partSource{kind: m.kind, arg: m.arg}, x.rows)
			}
		}
	}
}

// find is the place of s, which is no lookup, in t.sources.
func (t *track) find(s partSource, rows int) uint8 {
	for k := range t.sources {
		if o := &t.sources[k]; o.kind == s.kind && o.arg == s.arg {
			return uint8(k)
		}
	}
	t.add(s, rows)
	return uint8(len(t.sources) - 1)
}

// add adds a source, with the memory of one that was there before.
func (t *track) add(s partSource, rows int) {
	n := len(t.sources)
	if n < cap(t.sources) {
		t.sources = t.sources[:n+1]
		s.from = t.sources[n].from
	} else {
		t.sources = append(t.sources, partSource{})
	}
	s.from = grow(s.from, rows)
	t.sources[n] = s
}

// find fills tracks, and the shapes of all messages. rows has room for
// moveSlack behind them.
func (c *splitter) find(rows []byte) {
	wide := rows[:len(rows)+moveSlack]
	before := int32(-1)
	for i, at := 0, 0; at < len(rows); i++ {
		n := frame(rows, at) - 2
		at += 2
		id := uint8(0)
		if n > 0 && n <= maxRow {
			id = c.id[n<<8|int(rows[at])]
		}
		if id == 0 {
			c.other(i, n)
			before = int32(at)
			at += n
			continue
		}
		id--
		c.ids[i] = id
		t := &c.tracks[id]
		r := t.n
		t.n = r + 1
		t.at[r] = int32(at)
		for k := range t.sources {
			s := &t.sources[k]
			from := before
			switch s.kind {
			case stepShape:
				from = c.tracks[s.arg].last
			case stepLookup:
				from = int32(c.tables[s.arg].find(binary.BigEndian.Uint64(wide[at+int(s.at):]) >> (s.shift & 63)))
			}
			s.from[r] = from
		}
		for _, f := range t.feeds {
			x := &c.tables[f.table]
			x.put(binary.BigEndian.Uint64(wide[at+int(f.at):])>>((64-8*x.width)&63), at)
		}
		t.last = int32(at)
		before = int32(at)
		at += n
	}
}

// foretell makes the messages of each shape their differences to what their
// steps say. rows has room for moveSlack behind them.
func (c *splitter) foretell(rows []byte) {
	c.trace()
	c.find(rows)
	wide := rows[:len(rows)+moveSlack]
	for i := range c.shapes {
		x, t := &c.shapes[i], &c.tracks[i]
		w := x.shape.width()
		gather(x.mat, wide, t.at, w)
		for k := range x.owns {
			m := &x.owns[k]
			m.differ(x.mat, wide, w, noMessage[:])
			m.differ(x.mat[w:], wide, w, t.at[:x.rows-1])
		}
		for k := range x.moves {
			m := &x.moves[k]
			if m.kind == stepLookup {
				continue
			}
			from := t.sources[m.source].from
			if !m.sure {
				c.sure = reaching(grow(c.sure, x.rows), from, rows, m)
				from = c.sure
			}
			m.differ(x.mat, wide, w, from)
		}
	}
}

var noMessage = [1]int32{-1}

// gather copies messages of w bytes that begin at at into rows of mat. Both
// have room for moveSlack behind all of them.
func gather(mat, rows []byte, at []int32, w int) {
	for r, o := range at {
		to, from := mat[r*w:], rows[o:]
		for k := 0; k < w; k += 8 {
			binary.LittleEndian.PutUint64(to[k:], binary.LittleEndian.Uint64(from[k:]))
		}
	}
}

// reaching is from, with -1 in place of messages that end before the field that
// m takes of them does. It is put into dst.
func reaching(dst, from []int32, rows []byte, m *move) []int32 {
	for r, o := range from {
		if o >= 0 && int(m.from)+int(m.n) > int(binary.BigEndian.Uint16(rows[o-2:])) {
			o = -1
		}
		dst[r] = o
	}
	return dst
}

// differ makes the field, in each row of mat, of w bytes, its difference to
// that of the message of rows that begins at the row's from; -1: to none.
func (m *move) differ(mat, rows []byte, w int, from []int32) {
	if len(from) == 0 {
		return
	}
	mat, rows = mat[m.at:], rows[m.from:]
	shift := m.shift & 63
	low := uint64(1)<<shift - 1
	switch m.form {
	case moveBytes:
		mask := m.mask
		for r, o := range from {
			none := o >> 31 // all ones, or 0: a branch would be guessed wrong
			to := mat[r*w:][:8]
			v := binary.LittleEndian.Uint64(rows[o&^none:]) & mask &^ uint64(int64(none))
			binary.LittleEndian.PutUint64(to, subBytes(binary.LittleEndian.Uint64(to), v))
		}
	case moveBig:
		for r, o := range from {
			none := o >> 31
			to := mat[r*w:][:8]
			a := binary.BigEndian.Uint64(to)
			v := a>>shift - binary.BigEndian.Uint64(rows[o&^none:])>>shift&^uint64(int64(none))
			binary.BigEndian.PutUint64(to, foldHigh(v<<shift)&^low|a&low)
		}
	case moveLittle:
		for r, o := range from {
			none := o >> 31
			to := mat[r*w:][:8]
			v := binary.LittleEndian.Uint64(to)
			a := bits.ReverseBytes64(v)
			v -= binary.LittleEndian.Uint64(rows[o&^none:]) &^ uint64(int64(none))
			binary.BigEndian.PutUint64(to, foldHigh(v<<shift)&^low|a&low)
		}
	}
}

// foldHigh is fold of the highest bytes of d, the others of which are 0: those
// of what comes out mean nothing.
func foldHigh(d uint64) uint64 { return d<<1 ^ uint64(int64(d)>>63) }
