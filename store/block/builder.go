package block

import (
	"fmt"

	"github.com/moldtape/moldtape/moldcast"
)

// Builder is the open block of a session: the bytes of its pieces in the
// order of their arrival, and an index of them in the order of their
// sequences.
//
// Owner: the writer of the session. It has no lock: Append, Mark and Reset
// need the store's lock for writing, every other method the same lock for
// reading; any number of readers may hold that at once, since none of them
// changes anything. Messages that were returned stay valid and unchanged,
// without the lock, until Reset: an append writes only behind them.
type Builder struct {
	session moldcast.Session
	arena   []byte
	chunks  []*chunk // the index: entries in sequence order, chunks not empty
	spare   []*chunk
	marks   []moldcast.Mark
	log     []logPart
	heard   int          // datagrams of log
	next    moldcast.Seq // one past the highest held
	pieces  int
	msgs    int
	minTime moldcast.Stamp
	maxTime moldcast.Stamp
}

// entry is one piece.
type entry struct {
	first moldcast.Seq
	time  moldcast.Stamp
	heard moldcast.Stamp
	at    uint32 // of its first block in the arena
	size  uint32 // of its blocks
	n     uint32 // messages
	line  uint8
	flags moldcast.PieceFlags
}

func (e *entry) next() moldcast.Seq { return e.first + moldcast.Seq(e.n) }

// chunkLen bounds what one insertion moves: the index is a sorted list cut
// into chunks, so that a piece far behind the others costs no more in a block
// of 16 MiB than in one of 256 KiB.
const chunkLen = 256

type chunk struct {
	n int
	e [chunkLen]entry
}

// NewBuilder is an empty open block of session s.
func NewBuilder(s moldcast.Session) *Builder { return &Builder{session: s} }

// Session is the session whose messages b holds.
func (b *Builder) Session() moldcast.Session { return b.session }

// Reset empties b and gives it to session s, keeping its memory. What was
// returned from b before is invalid after it.
func (b *Builder) Reset(s moldcast.Session) {
	b.session = s
	b.arena = b.arena[:0]
	b.spare = append(b.spare, b.chunks...)
	clear(b.chunks)
	b.chunks = b.chunks[:0]
	b.marks = b.marks[:0]
	b.log, b.heard = b.log[:0], 0
	b.next, b.pieces, b.msgs = 0, 0, 0
	b.minTime, b.maxTime = 0, 0
}

// Grow makes room for so many bytes of rows at once, where b is going to have
// them: room made bit by bit is five times as much in all.
func (b *Builder) Grow(raw int) {
	if raw = min(raw, MaxRaw); raw > cap(b.arena) {
		b.arena = append(make([]byte, 0, raw), b.arena...)
	}
}

// RawSize is the bytes of rows: the framed messages.
func (b *Builder) RawSize() int { return len(b.arena) }

// Count is the number of messages that b holds.
func (b *Builder) Count() int { return b.msgs }

// Pieces is the number of pieces that b holds.
func (b *Builder) Pieces() int { return b.pieces }

// Marks is the marks of b in the order of their arrival: read only.
func (b *Builder) Marks() []moldcast.Mark { return b.marks }

// Empty reports whether b holds neither messages nor marks, and no line log.
func (b *Builder) Empty() bool { return b.pieces == 0 && len(b.marks) == 0 && len(b.log) == 0 }

// Times is the lowest and highest Time of a piece; zeros when there is none.
func (b *Builder) Times() (lo, hi moldcast.Stamp) { return b.minTime, b.maxTime }

// Bounds is from the lowest message to one past the highest, holes included;
// zero when there is none.
func (b *Builder) Bounds() moldcast.Range {
	if b.pieces == 0 {
		return moldcast.Range{}
	}
	return moldcast.Range{First: b.chunks[0].e[0].first, Next: b.next}
}

// Append copies a piece into b: at the end in O(1), anywhere else in
// O(log pieces); without allocating once b has been filled before. The caller
// has made sure that none of it is held in b. Errors: ErrFull, ErrOverlap,
// ErrSeq. An empty Builder takes any piece of up to MaxRaw bytes.
func (b *Builder) Append(p moldcast.Piece) error {
	framed, n := p.Msgs.Framed(), p.Msgs.Len()
	switch {
	case n == 0 || p.First == 0 || uint64(n) > uint64(^p.First):
		return ErrSeq
	case len(framed) > MaxRaw-len(b.arena) || b.pieces == MaxPieces:
		return ErrFull
	}
	e := entry{
		first: p.First, time: p.Time, heard: p.Heard,
		at: uint32(len(b.arena)), size: uint32(len(framed)), n: uint32(n),
		line: p.Line, flags: p.Flags,
	}
	if p.First >= b.next {
		b.push(e)
		b.next = e.next()
	} else if !b.insert(e) {
		return ErrOverlap
	}
	b.arena = append(b.arena, framed...)
	if b.pieces == 0 {
		b.minTime, b.maxTime = p.Time, p.Time
	}
	b.minTime, b.maxTime = min(b.minTime, p.Time), max(b.maxTime, p.Time)
	b.pieces++
	b.msgs += n
	return nil
}

// push puts e behind every other entry.
func (b *Builder) push(e entry) {
	if k := len(b.chunks); k > 0 {
		if c := b.chunks[k-1]; c.n < chunkLen {
			c.e[c.n] = e
			c.n++
			return
		}
	}
	c := b.newChunk()
	c.e[0], c.n = e, 1
	b.chunks = append(b.chunks, c)
}

func (b *Builder) newChunk() *chunk {
	k := len(b.spare)
	if k == 0 {
		return new(chunk)
	}
	c := b.spare[k-1]
	b.spare = b.spare[:k-1]
	c.n = 0
	return c
}

// insert puts e where it belongs, before the last entry; false when it
// overlaps a neighbour.
func (b *Builder) insert(e entry) bool {
	ci, pos := b.after(e.first)
	if p := (cursor{b, ci, pos - 1}); pos > 0 {
		if p.entry().next() > e.first {
			return false
		}
	}
	if s := (cursor{b, ci, pos}).settle(); s.valid() && s.entry().first < e.next() {
		return false
	}
	c := b.chunks[ci]
	if c.n == chunkLen {
		half := b.newChunk()
		half.n = copy(half.e[:], c.e[chunkLen/2:])
		c.n = chunkLen / 2
		b.chunks = append(b.chunks, nil)
		copy(b.chunks[ci+2:], b.chunks[ci+1:])
		b.chunks[ci+1] = half
		if pos > c.n {
			pos -= c.n
			c = half
		}
	}
	copy(c.e[pos+1:c.n+1], c.e[pos:c.n])
	c.e[pos] = e
	c.n++
	return true
}

// after is the place of the first entry that begins beyond first, in the
// chunk of the entry before it: pos is 0 only before every entry. b is not
// empty.
func (b *Builder) after(first moldcast.Seq) (ci, pos int) {
	lo, hi := 0, len(b.chunks)
	for lo < hi {
		if m := (lo + hi) / 2; b.chunks[m].e[0].first > first {
			hi = m
		} else {
			lo = m + 1
		}
	}
	ci = max(lo-1, 0)
	c := b.chunks[ci]
	lo, hi = 0, c.n
	for lo < hi {
		if m := (lo + hi) / 2; c.e[m].first > first {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return ci, lo
}

// cursor walks the entries in sequence order.
type cursor struct {
	b       *Builder
	ci, pos int
}

func (c cursor) valid() bool   { return c.ci < len(c.b.chunks) && c.pos < c.b.chunks[c.ci].n }
func (c cursor) entry() *entry { return &c.b.chunks[c.ci].e[c.pos] }

// settle moves c from the end of a chunk to the beginning of the next.
func (c cursor) settle() cursor {
	if c.ci < len(c.b.chunks) && c.pos >= c.b.chunks[c.ci].n {
		c.ci, c.pos = c.ci+1, 0
	}
	return c
}

func (c cursor) step() cursor {
	c.pos++
	return c.settle()
}

// seek is the first entry that ends beyond first.
func (b *Builder) seek(first moldcast.Seq) cursor {
	if b.pieces == 0 {
		return cursor{b: b}
	}
	ci, pos := b.after(first)
	c := cursor{b, ci, pos}
	if pos > 0 && b.chunks[ci].e[pos-1].next() > first {
		c.pos--
	}
	return c.settle()
}

// Mark adds a heartbeat or End of Session as it was heard. Errors: ErrFull,
// ErrSeq, ErrKind.
func (b *Builder) Mark(m moldcast.Mark) error {
	switch {
	case m.Kind != moldcast.Heartbeat && m.Kind != moldcast.End:
		return ErrKind
	case m.Next == 0:
		return ErrSeq
	case len(b.marks) == MaxMarks:
		return ErrFull
	}
	b.marks = append(b.marks, m)
	return nil
}

// Runs is the coverage of b: sorted ranges with holes between.
func (b *Builder) Runs() []moldcast.Range { return b.AppendRuns(nil) }

// AppendRuns appends Runs to dst.
func (b *Builder) AppendRuns(dst []moldcast.Range) []moldcast.Range {
	old := len(dst)
	for _, c := range b.chunks {
		for i := range c.e[:c.n] {
			e := &c.e[i]
			if k := len(dst); k > old && dst[k-1].Next == e.first {
				dst[k-1].Next = e.next()
				continue
			}
			dst = append(dst, moldcast.Range{First: e.first, Next: e.next()})
		}
	}
	return dst
}

// Messages is up to count messages from first on that take up to size bytes
// framed; fewer where a hole follows, or what follows does not lie behind
// them in memory: ask again from there. It is false where first is not held,
// and true with no messages where the first alone exceeds size.
func (b *Builder) Messages(first moldcast.Seq, count, size int) (moldcast.Messages, bool) {
	c := b.seek(first)
	if !c.valid() || c.entry().first > first {
		return moldcast.Messages{}, false
	}
	e := c.entry()
	at, left := int(e.at), int(e.n)
	for k := first - e.first; k > 0; k-- {
		at += frame(b.arena, at)
		left--
	}
	start, n := at, 0
	for n < count {
		if left == 0 {
			c = c.step()
			if !c.valid() || c.entry().first != e.next() || int(c.entry().at) != at {
				break
			}
			e = c.entry()
			left = int(e.n)
		}
		f := frame(b.arena, at)
		if at+f-start > size {
			break
		}
		at += f
		left--
		n++
	}
	return moldcast.MessagesOf(b.arena[start:at:at], n), true
}

// frame is the size of the message block at b[at:].
func frame(b []byte, at int) int {
	return moldcast.LengthSize + (int(b[at])<<8 | int(b[at+1]))
}

func (b *Builder) piece(e *entry) moldcast.Piece {
	end := e.at + e.size
	return moldcast.Piece{
		First: e.first, Msgs: moldcast.MessagesOf(b.arena[e.at:end:end], int(e.n)),
		Time: e.time, Heard: e.heard, Line: e.line, Flags: e.flags,
	}
}

// PiecesFrom calls fn for the pieces of b in sequence order, from the message
// first on (a piece that begins before it is cut), until fn returns false.
func (b *Builder) PiecesFrom(first moldcast.Seq, fn func(moldcast.Piece) bool) {
	for c := b.seek(first); c.valid(); c = c.step() {
		p := b.piece(c.entry())
		if p.First < first {
			_, p.Msgs = p.Msgs.Split(int(first - p.First))
			p.First = first
		}
		if !fn(p) {
			return
		}
	}
}

// Find is the piece that holds message first, whole.
func (b *Builder) Find(first moldcast.Seq) (moldcast.Piece, bool) {
	c := b.seek(first)
	if !c.valid() || c.entry().first > first {
		return moldcast.Piece{}, false
	}
	return b.piece(c.entry()), true
}

// SeqAt is the first message, by sequence, whose Time is at or after t.
func (b *Builder) SeqAt(t moldcast.Stamp) (moldcast.Seq, bool) {
	if b.pieces == 0 || b.maxTime < t {
		return 0, false
	}
	for _, c := range b.chunks {
		for i := range c.e[:c.n] {
			if c.e[i].time >= t {
				return c.e[i].first, true
			}
		}
	}
	return 0, false
}

// view fills v with what b holds. v.rows aliases the arena where that is in
// sequence order (true), else it is buf, grown; buf is returned.
func (b *Builder) view(v *Block, buf []byte) (rows []byte, aliases bool) {
	v.reset(b.session)
	at, ordered := uint32(0), true
	for _, c := range b.chunks {
		for i := range c.e[:c.n] {
			e := &c.e[i]
			ordered = ordered && e.at == at
			at += e.size
			v.addPiece(e.first, int(e.n), e.time, e.heard, e.line, e.flags)
		}
	}
	v.marks = append(v.marks, b.marks...)
	if ordered {
		v.rows = b.arena
		return buf, true
	}
	buf = buf[:0]
	for _, c := range b.chunks {
		for i := range c.e[:c.n] {
			e := &c.e[i]
			buf = append(buf, b.arena[e.at:e.at+e.size]...)
		}
	}
	v.rows = buf
	return buf, false
}

// Freeze copies what b holds into a decoded block, as if it had been encoded
// and decoded, without its line log: for a cache. It wraps ErrFraming.
func (b *Builder) Freeze(into *Block) error {
	rows, aliases := b.view(into, into.rows)
	if aliases {
		rows = append(rows[:0], b.arena...)
	}
	into.rows = rows
	if reason, at := into.index(); reason != "" {
		into.reset(b.session)
		return fmt.Errorf("%w: %s at byte %d", ErrFraming, reason, at)
	}
	return nil
}
