package block

import (
	"encoding/binary"
	"math/bits"
)

// Limits of a part: of the payload in columns that is coded for itself.
const (
	partRaw      = 1 << 20 // rows, in bytes, and one more message
	partMessages = 1 << 16
	maxRow       = 255 // longest message that has a shape
	leastRows    = 8   // a shape has
	maxPartShape = 250
	maxTables    = 16
	maxLookups   = 4
	maxFeeds     = 4
	maxSteps     = 64
)

// Steps of a plan: what a message of a shape is foretold by.
const (
	stepOwn    = 1 // the message of its shape before
	stepAny    = 2 // the message before
	stepShape  = 3 // the newest message of another shape
	stepKey    = 4 // the message that the last lookup found
	stepLookup = 5
)

// step says that a field of a message is stored as its difference to one of
// another message, or (stepLookup) that it is a key by which to look for that
// one.
type step struct {
	kind   uint8
	at, n  uint8 // the field: where it begins, bytes
	little bool  // it is a little-endian number
	from   uint8 // where the field of the other message begins
	arg    uint8 // stepShape: the shape; stepLookup: the table
	sure   bool  // in a part: whatever other message there is has that field
}

// feed says that the field of a message at at is the key by which it is found
// in a table.
type feed struct{ table, at uint8 }

// shapeOf tells messages apart by length and first byte: bits 8-15 and 0-7.
type shapeOf uint16

func (s shapeOf) width() int { return int(s >> 8) }

// plan is how messages of a shape are foretold. In Plans, args are positions
// in Plans.shapes; in a part those in the part.
type plan struct {
	shape shapeOf
	steps []step
	feeds []feed
	by    []uint8 // of each byte of the row: 1 + which one before it splits its plane, or 0; may be short
}

// Plans is what was learned of messages. It does not change.
type Plans struct {
	plans  []plan
	at     map[shapeOf]int // in plans
	widths []uint8         // of the keys of each table
	clocks []clock
}

// partShape is a shape in a part.
type partShape struct {
	plan
	rows  int
	byRow bool   // steps need the order of all messages
	owns  []move // those of the steps that need none but the message of its shape before
	moves []move // the others
	done  int
	last  int      // where the newest row begins; -1: none yet
	mat   []byte   // of who encodes: differences, row by row
	at    []uint32 // of who decodes: where each row begins
}

// table finds the newest message by a key.
type table struct {
	width uint8
	bits  uint8
	slots []uint32 // tag<<21 | where the row begins
}

const (
	leastTableBits, maxTableBits = 6, 14

	tagBits  = 11
	rowBits  = 32 - tagBits // MaxRaw of a part and more
	hashMult = 0x9E3779B97F4A7C15
)

// reset makes t ready for so many rows.
func (t *table) reset(rows int) {
	t.bits = uint8(min(max(bits.Len(uint(rows))+1, leastTableBits), maxTableBits))
	if n := 1 << t.bits; cap(t.slots) < n {
		t.slots = make([]uint32, n)
	} else {
		t.slots = t.slots[:n]
		clear(t.slots)
	}
}

func (t *table) slot(key uint64) (at, tag uint32) {
	h := key * hashMult
	return uint32(h >> (64 - t.bits)), uint32(h>>(64-t.bits-tagBits)) & (1<<tagBits - 1)
}

// find is where the row begins that was put last under key; -1: none.
func (t *table) find(key uint64) int {
	at, tag := t.slot(key)
	v := t.slots[at]
	if v == 0 || v>>rowBits != tag {
		return -1
	}
	return int(v & (1<<rowBits - 1))
}

func (t *table) put(key uint64, row int) {
	at, tag := t.slot(key)
	t.slots[at] = tag<<rowBits | uint32(row)
}

// part is the plan of a part.
type layout struct {
	shapes []partShape
	tables []table
	ids    []byte // of each message its shape; len(shapes): none
	others int    // messages without a shape
	text   int    // their bytes
	temp   []byte
}

// addShape adds a shape, with the memory of one that was there before.
func (p *layout) addShape(s shapeOf, rows int) *partShape {
	n := len(p.shapes)
	if n < cap(p.shapes) {
		p.shapes = p.shapes[:n+1]
	} else {
		p.shapes = append(p.shapes, partShape{})
	}
	x := &p.shapes[n]
	x.plan = plan{shape: s, steps: x.steps[:0], feeds: x.feeds[:0], by: x.by[:0]}
	x.rows, x.byRow, x.done, x.last, x.mat, x.at = rows, false, 0, -1, x.mat[:0], x.at[:0]
	return x
}

func (p *layout) addTable(width uint8) {
	n := len(p.tables)
	if n < cap(p.tables) {
		p.tables = p.tables[:n+1]
	} else {
		p.tables = append(p.tables, table{})
	}
	p.tables[n].width = width
}

func (p *layout) reset() {
	p.shapes, p.tables, p.ids, p.others, p.text = p.shapes[:0], p.tables[:0], p.ids[:0], 0, 0
}

// ready makes tables and shapes ready for the first message, once it is known
// how many have no shape.
func (p *layout) ready() {
	for i := range p.tables {
		rows := 0
		for k := range p.shapes {
			for _, f := range p.shapes[k].feeds {
				if int(f.table) == i {
					rows += p.shapes[k].rows
				}
			}
		}
		p.tables[i].reset(rows)
	}
	least := maxRow // width of any message, and of those in each table
	if p.others > 0 {
		least = 0
	}
	var inTable [maxTables]int
	for i := range inTable {
		inTable[i] = maxRow
	}
	for i := range p.shapes {
		x := &p.shapes[i]
		least = min(least, x.shape.width())
		for _, f := range x.feeds {
			inTable[f.table] = min(inTable[f.table], x.shape.width())
		}
	}
	for i := range p.shapes {
		x := &p.shapes[i]
		found := 0
		for k := range x.steps {
			s := &x.steps[k]
			end := int(s.from) + int(s.n)
			switch s.kind {
			case stepOwn, stepShape:
				s.sure = true
			case stepAny:
				s.sure = end <= least
			case stepKey:
				s.sure = end <= found
			case stepLookup:
				found = inTable[s.arg]
			}
		}
		x.owns = appendMoves(x.owns[:0], x.steps, true)
		x.moves = appendMoves(x.moves[:0], x.steps, false)
		x.byRow = len(x.moves) > 0 || len(x.feeds) > 0
	}
}

// apply gives each shape the plan that was learned for it, as far as what it
// is foretold by is there.
func (p *layout) apply(l *Plans) {
	if l == nil {
		return
	}
	var here, used [256]uint8 // by position in l: 1 + shape in the part; 1 + table in the part
	for i := range p.shapes {
		if k, ok := l.at[p.shapes[i].shape]; ok {
			here[k] = uint8(i + 1)
		}
	}
	fed := func(t uint8) bool {
		for k := range l.plans {
			if here[k] == 0 {
				continue
			}
			for _, f := range l.plans[k].feeds {
				if f.table == t {
					return true
				}
			}
		}
		return false
	}
	for k := range l.plans {
		if here[k] == 0 {
			continue
		}
		x := &p.shapes[here[k]-1]
		found := false
		for _, s := range l.plans[k].steps {
			switch s.kind {
			case stepShape:
				if here[s.arg] == 0 {
					continue
				}
				s.arg = here[s.arg] - 1
			case stepLookup:
				if found = fed(s.arg); !found {
					continue
				}
				if used[s.arg] == 0 {
					p.addTable(l.widths[s.arg])
					used[s.arg] = uint8(len(p.tables))
				}
				s.arg = used[s.arg] - 1
			case stepKey:
				if !found {
					continue
				}
			}
			x.steps = append(x.steps, s)
		}
		x.by = append(x.by, l.plans[k].by...)
	}
	for k := range l.plans {
		if here[k] == 0 {
			continue
		}
		x := &p.shapes[here[k]-1]
		for _, f := range l.plans[k].feeds {
			if used[f.table] != 0 {
				x.feeds = append(x.feeds, feed{used[f.table] - 1, f.at})
			}
		}
	}
}

// appendScript appends what the part is planned by.
func (p *layout) appendScript(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(p.shapes)))
	dst = binary.AppendUvarint(dst, uint64(len(p.tables)))
	for i := range p.tables {
		dst = append(dst, p.tables[i].width)
	}
	for i := range p.shapes {
		x := &p.shapes[i]
		dst = append(dst, byte(x.shape>>8), byte(x.shape))
		dst = binary.AppendUvarint(dst, uint64(x.rows))
		dst = append(dst, byte(len(x.steps)))
		for _, s := range x.steps {
			b := s.kind<<5 | s.n
			if s.little {
				b |= 16
			}
			dst = append(dst, b, s.at)
			switch s.kind {
			case stepShape:
				dst = append(dst, s.from, s.arg)
			case stepKey:
				dst = append(dst, s.from)
			case stepLookup:
				dst = append(dst, s.arg)
			}
		}
		dst = append(dst, byte(len(x.feeds)))
		for _, f := range x.feeds {
			dst = append(dst, f.table, f.at)
		}
		n := 0
		for _, k := range x.by {
			if k != 0 {
				n++
			}
		}
		dst = append(dst, byte(n))
		for j, k := range x.by {
			if k != 0 {
				dst = append(dst, byte(j), k-1)
			}
		}
	}
	return dst
}

// readScript is the way back, of a part of so many messages and bytes of rows:
// what it accepts can be carried out. A fault sticks in s.
func (p *layout) readScript(s *scanner, raw, messages int) {
	p.reset()
	shapes, tables := s.uvarint(), s.uvarint()
	if shapes > maxPartShape || tables > maxTables {
		s.fail("more shapes or tables than there may be")
		return
	}
	for range tables {
		w := s.byte()
		if w < 1 || w > 8 {
			s.fail("key of no width")
			return
		}
		p.addTable(w)
	}
	p.others, p.text = messages, raw-2*messages
	for range shapes {
		shape := shapeOf(s.byte())<<8 | shapeOf(s.byte())
		rows, w := s.uvarint(), uint64(shape.width())
		if w == 0 || rows == 0 || rows > uint64(p.others) || rows*w > uint64(max(p.text, 0)) {
			s.fail("shape of no messages, or of more than there are")
			return
		}
		p.others -= int(rows)
		p.text -= int(rows * w)
		p.addShape(shape, int(rows)).readPlan(s, tables)
		if s.reason != "" {
			return
		}
	}
	if p.others == 0 && p.text != 0 || p.text < 0 {
		s.fail("bytes of no message")
		return
	}
	for i := range p.shapes {
		for _, t := range p.shapes[i].steps {
			switch {
			case t.kind == stepShape && (int(t.arg) >= len(p.shapes) || int(t.from)+int(t.n) > p.shapes[t.arg].shape.width()):
				s.fail("field of no other message")
			case t.kind == stepLookup && t.n != p.tables[t.arg].width:
				s.fail("key is not as wide as those of its table")
			}
		}
		for _, f := range p.shapes[i].feeds {
			if int(f.at)+int(p.tables[f.table].width) > p.shapes[i].shape.width() {
				s.fail("key of no message")
			}
		}
	}
}

func (x *partShape) readPlan(s *scanner, tables uint64) {
	w := x.shape.width()
	n := int(s.byte())
	if n > maxSteps {
		s.fail("more steps than there may be")
		return
	}
	var used [4]uint64 // fields of two steps must not overlap
	for range n {
		b := s.byte()
		t := step{kind: b >> 5, little: b&16 != 0, n: b & 15, at: s.byte()}
		t.from = t.at
		switch t.kind {
		case stepOwn, stepAny:
		case stepShape:
			t.from, t.arg = s.byte(), s.byte()
		case stepKey:
			t.from = s.byte()
		case stepLookup:
			t.arg = s.byte()
			if uint64(t.arg) >= tables {
				s.fail("table that is not there")
			}
		default:
			s.fail("step is not known")
		}
		if t.n < 1 || t.n > 8 || int(t.at)+int(t.n) > w {
			s.fail("field of no message")
		}
		if s.reason != "" {
			return
		}
		if t.kind != stepLookup {
			for k := int(t.at); k < int(t.at)+int(t.n); k++ {
				if used[k/64]&(1<<(k%64)) != 0 {
					s.fail("fields overlap")
					return
				}
				used[k/64] |= 1 << (k % 64)
			}
		}
		x.steps = append(x.steps, t)
	}
	n = int(s.byte())
	if n > maxFeeds {
		s.fail("more keys than there may be")
		return
	}
	for range n {
		f := feed{s.byte(), s.byte()}
		if uint64(f.table) >= tables {
			s.fail("table that is not there")
			return
		}
		x.feeds = append(x.feeds, f)
	}
	for n = int(s.byte()); n > 0; n-- {
		j, k := s.byte(), s.byte()
		if int(j) >= w || k >= j || int(j) < len(x.by) {
			s.fail("planes are split out of order")
			return
		}
		for len(x.by) < int(j) {
			x.by = append(x.by, 0)
		}
		x.by = append(x.by, k+1)
	}
}
