package block

import (
	"encoding/binary"
	"math/bits"
)

// A move is one or more steps of a plan at once, in a form that takes no
// branches by width: eight bytes are read and written wherever it begins, so
// that there must be as many behind every message.
type move struct {
	kind   uint8 // of the steps
	form   uint8
	arg    uint8
	sure   bool
	at     uint8
	from   uint8
	n      uint8  // bytes of one field
	shift  uint8  // 64 - 8n
	source uint8  // of who encodes: of the message that it is the difference to
	mask   uint64 // moveBytes: of the bytes from at on; moveLittle: of n
}

const (
	moveBytes  = iota // single bytes, of up to eight
	moveBig           // a number
	moveLittle        // the same, little-endian
	moveLookup
)

const moveSlack = 8

// appendMoves appends the moves of those of steps that are of kind stepOwn, or
// of the others. Steps between two lookups are of fields that are apart, and of
// other messages: their order means nothing.
func appendMoves(dst []move, steps []step, own bool) []move {
	begin := len(dst) // of those that a step can join
	for i := range steps {
		s := &steps[i]
		if (s.kind == stepOwn) != own {
			continue
		}
		m := move{kind: s.kind, arg: s.arg, sure: s.sure, at: s.at, from: s.from, n: s.n, shift: 64 - 8*s.n}
		switch {
		case s.kind == stepLookup:
			m.form = moveLookup
			dst = append(dst, m)
			begin = len(dst)
			continue
		case s.n == 1:
			m.form, m.mask = moveBytes, 0xFF
			if s.sure && joined(dst[begin:], s) {
				continue
			}
		case s.little:
			m.form, m.mask = moveLittle, 1<<(8*s.n)-1
		default:
			m.form = moveBig
		}
		dst = append(dst, m)
	}
	return dst
}

// joined adds the byte of s to one of moves, where there is one that it fits.
func joined(moves []move, s *step) bool {
	for k := range moves {
		m := &moves[k]
		if m.form != moveBytes || !m.sure || m.kind != s.kind || m.arg != s.arg || int(m.from)-int(m.at) != int(s.from)-int(s.at) {
			continue
		}
		d := int(s.at) - int(m.at)
		switch {
		case d > 0 && d < 8:
			m.mask |= 0xFF << (8 * d)
			return true
		case d < 0 && bits.Len64(m.mask)-8*d <= 64:
			m.mask = m.mask<<(-8*d) | 0xFF
			m.at, m.from = s.at, s.from
			return true
		}
	}
	return false
}

const highs = 0x8080808080808080 // of eight bytes

// addBytes and subBytes are the sums and differences of eight bytes each.
func addBytes(a, b uint64) uint64 { return (a&^highs + b&^highs) ^ (a^b)&highs }
func subBytes(a, b uint64) uint64 { return (a | highs - b&^highs) ^ (a^^b)&highs }

// join makes a value, in rows, of a difference.
func (m *move) join(rows []byte, at, from int) {
	to := rows[at+int(m.at):][:8]
	switch m.form {
	case moveBytes:
		if from >= 0 {
			a := binary.LittleEndian.Uint64(to)
			binary.LittleEndian.PutUint64(to, addBytes(a, binary.LittleEndian.Uint64(rows[from+int(m.from):])&m.mask))
		}
	case moveBig:
		a := binary.BigEndian.Uint64(to)
		v := unfold(a >> (m.shift & 63))
		if from >= 0 {
			v += binary.BigEndian.Uint64(rows[from+int(m.from):]) >> (m.shift & 63)
		}
		binary.BigEndian.PutUint64(to, v<<(m.shift&63)|a&(1<<(m.shift&63)-1))
	case moveLittle:
		a := binary.LittleEndian.Uint64(to)
		v := unfold(bits.ReverseBytes64(a) >> (m.shift & 63))
		if from >= 0 {
			v += binary.LittleEndian.Uint64(rows[from+int(m.from):])
		}
		binary.LittleEndian.PutUint64(to, a&^m.mask|v&m.mask)
	}
}

// sum makes values of differences to the message before, of all messages that
// begin at at.
func (m *move) sum(rows []byte, at []uint32) {
	field, v := uint32(m.at), uint64(0)
	switch m.form {
	case moveBytes:
		mask := m.mask
		for _, o := range at {
			to := rows[o+field:][:8]
			a := binary.LittleEndian.Uint64(to)
			v = addBytes(v, a&mask)
			binary.LittleEndian.PutUint64(to, a&^mask|v)
		}
	case moveBig:
		shift := m.shift & 63
		low := uint64(1)<<shift - 1
		for _, o := range at {
			to := rows[o+field:][:8]
			a := binary.BigEndian.Uint64(to)
			v += unfold(a >> shift)
			binary.BigEndian.PutUint64(to, v<<shift|a&low)
		}
	case moveLittle:
		shift, mask := m.shift&63, m.mask
		for _, o := range at {
			to := rows[o+field:][:8]
			a := binary.LittleEndian.Uint64(to)
			v += unfold(bits.ReverseBytes64(a) >> shift)
			binary.LittleEndian.PutUint64(to, a&^mask|v&mask)
		}
	}
}
