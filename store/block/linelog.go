package block

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math/bits"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/moldtape/moldtape/moldcast"
)

// Limits of a line log.
const (
	MaxHeard    = 1 << 17 // datagrams of one block
	maxLogParts = 1 << 12
	maxLogLines = 64
)

// LogPart is what a block's line log has of one log: that of a session from
// when its writer began. The parts of a log follow one another: Before of the
// next is Before + Heard + Lost of the one before.
type LogPart struct {
	ID       moldcast.Stamp // of the log: when it began
	Before   uint64         // datagrams heard before
	Heard    int            // datagrams that it has
	Lost     uint64         // that were heard meanwhile, and for which there was no room
	From, To moldcast.Stamp // lowest and highest stamp; 0 without datagrams
	Lines    int            // one more than the highest line that brought one
	Last     bool           // the log was ended: nothing is missing behind it
	Bare     bool           // the block also has messages that were heard and stored under no log
}

// Next is Before of the part that follows.
func (p *LogPart) Next() uint64 { return p.Before + uint64(p.Heard) + p.Lost }

// Flags of a part.
const (
	logLast = 1 << 0
	logBare = 1 << 1
)

func (p *LogPart) flags() (f byte) {
	if p.Last {
		f |= logLast
	}
	if p.Bare {
		f |= logBare
	}
	return f
}

// logPart is a part with its datagrams, by line, in the order of hearing.
type logPart struct {
	LogPart
	lines [][]moldcast.Heard
}

func (p *logPart) reset(q LogPart) {
	p.LogPart = q
	p.Heard, p.From, p.To, p.Lines = 0, 0, 0, 0
	for i := range p.lines {
		p.lines[i] = p.lines[i][:0]
	}
	p.lines = p.lines[:0]
}

// line is the list of a line, made where there is none.
func (p *logPart) line(l int) *[]moldcast.Heard {
	for len(p.lines) <= l {
		if n := len(p.lines); n < cap(p.lines) {
			p.lines = p.lines[:n+1]
			p.lines[n] = p.lines[n][:0]
		} else {
			p.lines = append(p.lines, nil)
		}
	}
	p.Lines = len(p.lines)
	return &p.lines[l]
}

// note takes a stamp into the bounds, before Heard counts it.
func (p *logPart) note(t moldcast.Stamp) {
	if p.Heard == 0 {
		p.From, p.To = t, t
	}
	p.From, p.To = min(p.From, t), max(p.To, t)
	p.Heard++
}

// grownParts is parts with one more, whose memory is used again.
func grownParts(parts []logPart, q LogPart) []logPart {
	if n := len(parts); n < cap(parts) {
		parts = parts[:n+1]
	} else {
		parts = append(parts, logPart{})
	}
	parts[len(parts)-1].reset(q)
	return parts
}

// BeginLog begins a part of b's line log: ID, Before, Lost and Last of p hold.
// Where it follows the last part of the same log it is one with that. ErrFull:
// there are too many.
func (b *Builder) BeginLog(p LogPart) error {
	if n := len(b.log); n > 0 {
		if l := &b.log[n-1]; l.ID == p.ID && !l.Last && l.Next() == p.Before {
			l.Lost += p.Lost
			l.Last = p.Last
			return nil
		}
	}
	if len(b.log) == maxLogParts {
		return ErrFull
	}
	b.log = grownParts(b.log, p)
	return nil
}

// Heard adds a datagram to the last part of b's line log, after BeginLog: on
// its line behind those of lower turns. Errors: ErrFull, ErrSeq.
func (b *Builder) Heard(h moldcast.Heard) error {
	switch {
	case b.heard == MaxHeard:
		return ErrFull
	case int(h.Line) >= maxLogLines || !validHeard(h):
		return ErrSeq
	}
	p := &b.log[len(b.log)-1]
	list := p.line(int(h.Line))
	*list = append(*list, h)
	for i := len(*list) - 1; i > 0 && int32((*list)[i-1].Turn-(*list)[i].Turn) > 0; i-- {
		(*list)[i-1], (*list)[i] = (*list)[i], (*list)[i-1]
	}
	p.note(h.Stamp)
	b.heard++
	return nil
}

// EndLog says that the log of b's last part ends there.
func (b *Builder) EndLog() {
	if n := len(b.log); n > 0 {
		b.log[n-1].Last = true
	}
}

// BareLog says in b's first part that some of b's messages were stored under no
// log.
func (b *Builder) BareLog() {
	if len(b.log) > 0 {
		b.log[0].Bare = true
	}
}

// LoseHeard adds to what the last part lacks.
func (b *Builder) LoseHeard(n uint64) { b.log[len(b.log)-1].Lost += n }

// HeardCount is how many datagrams b's line log has.
func (b *Builder) HeardCount() int { return b.heard }

// Logged reports whether b has a line log, be it of nothing.
func (b *Builder) Logged() bool { return len(b.log) > 0 }

func validHeard(h moldcast.Heard) bool {
	return !h.Data() || h.First != 0 && uint64(h.Count) <= uint64(^h.First)
}

// LogParts is how many parts the line log of b has; 0 where it has none, or
// the Decoder was not asked for it.
func (b *Block) LogParts() int { return len(b.log) }

// LogPart is one of them.
func (b *Block) LogPart(i int) LogPart { return b.log[i].LogPart }

// HeardOn is the datagrams of a line in a part, in the order of hearing; of no
// turn. Read only.
func (b *Block) HeardOn(part, line int) []moldcast.Heard {
	p := &b.log[part]
	if line >= len(p.lines) {
		return nil
	}
	return p.lines[line]
}

// logHash is the SHA-256 of a line log, part by part and line by line.
func logHash(sum hash.Hash, parts []logPart) (out [32]byte) {
	sum.Reset()
	var b [36]byte
	for i := range parts {
		p := &parts[i]
		b[0] = 'p'
		binary.BigEndian.PutUint64(b[1:], uint64(p.ID))
		binary.BigEndian.PutUint64(b[9:], p.Before)
		binary.BigEndian.PutUint64(b[17:], p.Lost)
		b[25], b[26] = byte(len(p.lines)), p.flags()
		sum.Write(b[:27])
		for _, line := range p.lines {
			binary.BigEndian.PutUint32(b[:], uint32(len(line)))
			sum.Write(b[:4])
			for _, h := range line {
				binary.BigEndian.PutUint64(b[:], uint64(h.Stamp))
				binary.BigEndian.PutUint64(b[8:], uint64(h.First))
				binary.BigEndian.PutUint16(b[16:], h.Count)
				b[18] = byte(h.Flags)
				sum.Write(b[:19])
			}
		}
	}
	sum.Sum(out[:0])
	return out
}

// LogInfo is what a header knows of a block's line log.
type LogInfo struct {
	Hash  [sha256.Size]byte // of what it holds
	Parts []LogPart
}

func (l *LogInfo) heard() (n int) {
	for i := range l.Parts {
		n += l.Parts[i].Heard
	}
	return n
}

// fieldLog is the header's field of a line log.
const fieldLog = 1

func (l *LogInfo) appendField(dst []byte) []byte {
	dst = append(dst, l.Hash[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(l.Parts)))
	var id moldcast.Stamp
	for i := range l.Parts {
		p := &l.Parts[i]
		dst = binary.AppendVarint(dst, int64(p.ID-id))
		id = p.ID
		dst = binary.AppendUvarint(dst, p.Before)
		dst = binary.AppendUvarint(dst, p.Lost)
		dst = append(dst, p.flags(), byte(p.Lines))
		dst = binary.AppendUvarint(dst, uint64(p.Heard))
		if p.Heard > 0 {
			dst = binary.AppendVarint(dst, int64(p.From-id))
			dst = binary.AppendUvarint(dst, uint64(p.To-p.From))
		}
	}
	return dst
}

func (l *LogInfo) read(b []byte) (reason string) {
	s := scanner{b: b}
	copy(l.Hash[:], s.bytes(sha256.Size))
	n := s.uvarint()
	if n == 0 || n > maxLogParts {
		s.fail("parts of the line log beyond the limits")
	}
	var id moldcast.Stamp
	total := uint64(0)
	for ; n > 0 && s.reason == ""; n-- {
		var p LogPart
		p.ID = id + moldcast.Stamp(s.varint())
		id = p.ID
		p.Before, p.Lost = s.uvarint(), s.uvarint()
		flags, lines, heard := s.byte(), s.byte(), s.uvarint()
		if total += heard; heard > MaxHeard || total > MaxHeard || flags > logLast|logBare || lines > maxLogLines || (heard > 0) != (lines > 0) {
			s.fail("line log beyond the limits")
		}
		p.Last, p.Bare, p.Lines, p.Heard = flags&logLast != 0, flags&logBare != 0, int(lines), int(heard)
		if heard > 0 {
			p.From = id + moldcast.Stamp(s.varint())
			p.To = p.From + moldcast.Stamp(s.uvarint())
			if p.To < p.From {
				s.fail("times of the line log run backwards")
			}
		}
		l.Parts = append(l.Parts, p)
	}
	s.end()
	return s.reason
}

// logInfo is what the header says of parts.
func logInfo(sum hash.Hash, parts []logPart) *LogInfo {
	if len(parts) == 0 {
		return nil
	}
	l := &LogInfo{Hash: logHash(sum, parts), Parts: make([]LogPart, len(parts))}
	for i := range parts {
		l.Parts[i] = parts[i].LogPart
	}
	return l
}

// foretold is what the pieces of the block say of the datagrams of a line.
type foretold struct {
	b     *Block
	line  uint8
	unit  moldcast.Stamp
	next  moldcast.Seq // that the next datagram is expected to carry
	count uint16       // of the last one that brought messages
	piece int          // that is likely to begin at next
	last  moldcast.Stamp
	mean  int64 // of how much later this line is, in units
}

// at is the piece that begins at q.
func (f *foretold) at(q moldcast.Seq) (i int, ok bool) {
	b := f.b
	if f.piece < b.Pieces() && b.firstOf(f.piece) == q {
		return f.piece, true
	}
	if i, ok = b.Find(q); ok && b.firstOf(i) == q {
		return i, true
	}
	return 0, false
}

// expect is the datagram that is likely next.
func (f *foretold) expect() (q moldcast.Seq, count uint16) {
	count = f.count
	if i, ok := f.at(f.next); ok {
		if n := f.b.ords[i+1] - f.b.ords[i]; n <= moldcast.MaxCount {
			count = uint16(n)
		}
	}
	return f.next, count
}

// stamp is when h is likely to have been heard, and how that is known: since
// it is the stored copy, or by another line's.
func (f *foretold) stamp(h *moldcast.Heard) (t moldcast.Stamp, own, other bool) {
	if h.Data() && h.Flags == 0 {
		if i, ok := f.at(h.First); ok {
			line, flags := f.b.origin(i)
			at := f.b.heardAt(i) / f.unit
			switch {
			case flags&moldcast.Repaired != 0:
			case line == f.line:
				return at, true, false
			default:
				return at + moldcast.Stamp(f.mean), false, true
			}
		}
	}
	return f.last, false, false
}

// took goes on behind h, whose stamp is d units later than was foretold.
func (f *foretold) took(h *moldcast.Heard, d int64, other bool) {
	if other {
		f.mean += d >> lagShift
	}
	f.last = h.Stamp / f.unit
	if !h.Data() {
		f.next = h.First
		return
	}
	if i, ok := f.at(h.First); ok {
		f.piece = i + 1
	}
	f.next, f.count = h.Range().Next, h.Count
}

// firstOf is the sequence of the first message of the i-th piece.
func (b *Block) firstOf(i int) moldcast.Seq {
	ord := b.ords[i]
	r := 0
	if len(b.runs) > 1 {
		r = last(b.runOrd, ord)
	}
	return b.runs[r].First + moldcast.Seq(ord-b.runOrd[r])
}

// heardAt is when the i-th piece was heard.
func (b *Block) heardAt(i int) moldcast.Stamp {
	if len(b.odd) > 0 {
		if k := last(b.odd, uint32(i)); b.odd[k] == uint32(i) {
			return b.heard[k]
		}
	}
	return b.times[i]
}

// logWriter makes the section of a line log. It keeps its buffers.
type logWriter struct {
	w     *columnWriter
	ops   []byte
	rest  []uint64 // differences that are in planes
	odd   []byte   // of stored copies with another stamp
	plane []byte
}

// encode appends the raw form of the line log of b, whose pieces are indexed.
func (l *logWriter) encode(dst []byte, b *Block, z *zstd.Encoder) []byte {
	if l.w == nil {
		l.w = newColumnWriter()
	}
	exp, unit := b.logUnit()
	l.ops, l.rest = l.ops[:0], l.rest[:0]
	for i := range b.log {
		p := &b.log[i]
		for k, list := range p.lines {
			l.line(b, uint8(k), p.From, unit, list)
		}
	}
	all := uint64(0)
	for _, d := range l.rest {
		all |= d
	}
	width := (bits.Len64(all) + 7) / 8
	dst = append(dst, exp)
	dst = binary.AppendUvarint(dst, uint64(len(l.ops)))
	dst = binary.AppendUvarint(dst, uint64(len(l.rest)))
	dst = append(dst, byte(width))
	l.w.reset(false)
	n := len(l.rest)
	l.plane = grow(l.plane, 2*n)
	above, plane, spare := []byte(nil), l.plane[:n], l.plane[n:]
	for k := width - 1; k >= 0; k-- {
		for i, d := range l.rest {
			plane[i] = byte(d >> (8 * k))
		}
		l.w.split(plane, above)
		above, plane, spare = plane, spare, plane
	}
	l.w.plane(l.ops)
	return l.w.append(dst, z, z == nil)
}

// line writes down one line of a part.
func (l *logWriter) line(b *Block, line uint8, from, unit moldcast.Stamp, list []moldcast.Heard) {
	f := foretold{b: b, line: line, unit: unit, last: from / unit}
	l.ops = binary.AppendUvarint(l.ops, uint64(len(list)))
	l.odd = l.odd[:0]
	run, owns, odds := uint64(0), uint64(0), uint64(0)
	for i := range list {
		h := &list[i]
		q, count := f.expect()
		if h.First == q && h.Count == count && h.Data() && h.Flags == 0 {
			run++
		} else {
			l.ops = binary.AppendUvarint(l.ops, run)
			l.ops = binary.AppendVarint(l.ops, int64(h.First-q))
			l.ops = binary.AppendUvarint(l.ops, uint64(h.Count))
			l.ops = append(l.ops, byte(h.Flags))
			run = 0
		}
		t, own, other := f.stamp(h)
		d := int64(h.Stamp/unit - t)
		switch {
		case own && d == 0:
			owns++
		case own:
			l.odd = binary.AppendUvarint(l.odd, owns)
			l.odd = binary.AppendVarint(l.odd, d)
			owns = 0
			odds++
		default:
			l.rest = append(l.rest, fold(uint64(d), 8))
		}
		f.took(h, d, other)
	}
	if run > 0 {
		l.ops = binary.AppendUvarint(l.ops, run)
	}
	l.ops = binary.AppendUvarint(l.ops, odds)
	l.ops = append(l.ops, l.odd...)
}

// logUnit is the greatest unit of all stamps of b.
func (b *Block) logUnit() (exp byte, ns moldcast.Stamp) {
	_, ns = b.unit()
	u := 0
	for units[u].ns > ns {
		u++
	}
	for i := range b.log {
		for _, list := range b.log[i].lines {
			for k := range list {
				for list[k].Stamp%units[u].ns != 0 {
					u++
				}
			}
		}
	}
	return units[u].exp, units[u].ns
}

// maxLogRaw is the most that the raw bytes of a line log can take: its head,
// for each datagram the numbers of ops, of stored copies with another stamp and
// of planes, and what a bundle needs for itself.
func maxLogRaw(l *LogInfo) int {
	n := 256 + 56*l.heard()
	for i := range l.Parts {
		n += 16 * l.Parts[i].Lines
	}
	return n + n/8
}

// needLog is about the memory that decoding l takes.
func needLog(l *LogInfo) int { return 512 + 80*l.heard() + 128*len(l.Parts) }

// logReader reads the section of a line log. It keeps its buffers.
type logReader struct {
	r     columnReader
	raw   []byte // of the section
	ops   []byte
	rest  []uint64
	plane []byte
}

// decode reads l.raw into b, whose pieces are indexed: what h says is there.
func (l *logReader) decode(h *LogInfo, b *Block, z *zstd.Decoder) (at int, reason string) {
	s := scanner{b: l.raw}
	exp, ops, rest, width := s.byte(), s.uvarint(), s.uvarint(), int(s.byte())
	unit := moldcast.Stamp(0)
	for _, u := range units {
		if u.exp == exp {
			unit = u.ns
		}
	}
	if s.reason != "" || unit == 0 || width > 8 || rest > uint64(h.heard()) || ops > uint64(maxLogRaw(h)) {
		return s.at, "head of the line log"
	}
	if exp > 0 {
		if _, ns := b.unit(); ns < unit {
			return s.at, "unit of the line log is not that of the block"
		}
	}
	n := int(rest)
	if !l.r.open(l.raw[s.at:], n*width+int(ops), z) {
		return s.at, "columns do not open"
	}
	l.rest = append(l.rest[:0], make([]uint64, n)...)
	l.plane = grow(l.plane, 2*n)
	above, plane, spare := []byte(nil), l.plane[:n], l.plane[n:]
	for range width {
		l.r.split(plane, above)
		for i, v := range plane {
			l.rest[i] = l.rest[i]<<8 | uint64(v)
		}
		above, plane, spare = plane, spare, plane
	}
	l.ops = grow(l.ops, int(ops))
	l.r.plane(l.ops)
	if l.r.end(); l.r.s.reason != "" {
		return s.at, l.r.s.reason
	}
	o := scanner{b: l.ops}
	for i := range h.Parts {
		b.log = grownParts(b.log, h.Parts[i])
		p := &b.log[i]
		for k := range h.Parts[i].Lines {
			l.line(&o, b, p, k, h.Parts[i].From, unit, h.Parts[i].Heard-p.Heard)
		}
		if o.reason == "" && p.LogPart != h.Parts[i] {
			o.fail("line log differs from the header's")
		}
		if o.reason != "" {
			return o.bad, o.reason
		}
	}
	if o.end(); len(l.rest) > 0 {
		o.fail("more stamps than datagrams")
	}
	return o.bad, o.reason
}

// line reads one line of p: at most n datagrams.
func (l *logReader) line(s *scanner, b *Block, p *logPart, line int, from, unit moldcast.Stamp, most int) {
	n := s.uvarint()
	if n > uint64(most) {
		s.fail("more datagrams than the header says")
		return
	}
	list := p.line(line)
	*list = slices.Grow(*list, int(n))
	f := foretold{b: b, line: uint8(line), unit: unit, last: from / unit}
	// First what they are, since what foretells the stamps of some comes behind.
	for run := uint64(0); uint64(len(*list)) < n && s.reason == ""; {
		run = s.uvarint()
		if run > n-uint64(len(*list)) {
			s.fail("more datagrams than there are")
			return
		}
		for range run {
			q, count := f.expect()
			h := moldcast.Heard{First: q, Count: count, Line: uint8(line)}
			if !h.Data() || !validHeard(h) {
				s.fail("no datagram of a session")
				return
			}
			*list = append(*list, h)
			f.took(&h, 0, false)
		}
		if uint64(len(*list)) == n {
			break
		}
		q, _ := f.expect()
		h := moldcast.Heard{First: q + moldcast.Seq(s.varint()), Line: uint8(line)}
		count := s.uvarint()
		h.Flags = moldcast.HeardFlags(s.byte())
		if h.Count = uint16(count); count > 0xFFFF || !validHeard(h) {
			s.fail("no datagram of a session")
			return
		}
		*list = append(*list, h)
		f.took(&h, 0, false)
	}
	// Of stored copies whose stamp is another: after how many, and by how much.
	odds, until, odd := s.uvarint(), uint64(0), int64(0)
	next := func() {
		if odds == 0 {
			return
		}
		if until, odd = s.uvarint(), s.varint(); odd == 0 {
			s.fail("stamp that is the stored copy's")
		}
	}
	next()
	const top = 1<<63 - 1
	lo, hi := -top/unit, top/unit
	f = foretold{b: b, line: uint8(line), unit: unit, last: from / unit}
	for i := range *list {
		if s.reason != "" {
			return
		}
		h := &(*list)[i]
		t, own, other := f.stamp(h)
		d := int64(0)
		switch {
		case own && odds > 0 && until == 0:
			d = odd
			odds--
			next()
		case own:
			until--
		case len(l.rest) == 0:
			s.fail("more datagrams than stamps")
			return
		default:
			d = int64(unfold(l.rest[0]))
			l.rest = l.rest[1:]
		}
		if t += moldcast.Stamp(d); unit > 1 && (t < lo || t > hi) {
			s.fail("time beyond 64 bits")
			return
		}
		h.Stamp = t * unit
		f.took(h, d, other)
		p.note(h.Stamp)
	}
	if odds > 0 {
		s.fail("more stamps than stored copies")
	}
}
