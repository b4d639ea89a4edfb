package store

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/moldtape/moldtape/moldcast"
)

// View reads one recording: what is in memory where this process writes it,
// the open segment and the sealed ones, as one sequence. Its methods may be
// called from any goroutine.
type View struct {
	s *session
}

func newView(s *session) *View { return &View{s: s} }

// Ref names the recording.
func (v *View) Ref() Ref { return v.s.ref }

// Close is there for symmetry: a View holds nothing that must be released.
func (v *View) Close() error { return nil }

// Bounds is the first sequence and one past the highest stored; both 0 for a
// session that holds nothing and has heard nothing.
func (v *View) Bounds() (first, head moldcast.Seq) {
	s := v.s
	s.refreshIfDue()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first(), s.head()
}

// Known is Bounds as of the last look at the disk: it takes none.
func (v *View) Known() (first, head moldcast.Seq) {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first(), s.head()
}

// Ended reports whether End of Session is on record, and then one past the
// last message of the session.
func (v *View) Ended() (end moldcast.Seq, ok bool) {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endSeq()
}

// Feed is what the sender does, as it was recorded.
func (v *View) Feed() (f moldcast.Feed) {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.facts.Feed != nil {
		f = *s.facts.Feed
	}
	f.EnsureDefaults()
	return f
}

// Groups are the recorded groups of the lines, in order; empty when they are
// not known.
func (v *View) Groups() []string {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.facts.Groups...)
}

// Coverage is what is held: ranges in order, with a hole between any two or,
// where numbers only rise, numbers that no message has.
func (v *View) Coverage() []moldcast.Range {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]moldcast.Range(nil), s.heldRanges()...)
}

// Pruned is what was held and retention removed: ranges in order. None of it
// is a hole.
func (v *View) Pruned() []moldcast.Range {
	s := v.s
	s.refreshIfDue()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]moldcast.Range(nil), s.gone.Ranges()...)
}

// Holes is what is missing between first and head, and of an ended session up
// to its end; without the times of neighbours.
func (v *View) Holes() []moldcast.Hole {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing()
}

// Append appends to dst up to count messages from first on, contiguous and
// framed as on the wire, that take up to size bytes; a first message that
// alone is larger is appended alone. It goes across blocks and pieces. n is
// how many; 0 only with an error: *moldcast.HoleError at a hole (where numbers
// only rise, at one that no message has, with the reason Absent), ErrBeyond at
// or beyond the head, ErrBelow before the first, *PrunedError where it was
// pruned, *CorruptError where the disk
// gave a block back wrong, and, unless cold, ErrCold where a block must be
// read from disk: that one also behind n messages. Without such a read it does
// not allocate beyond dst; without cold it does not look at the disk at all.
func (v *View) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) (out []byte, n int, err error) {
	s := v.s
	out = dst
	if count <= 0 {
		return out, 0, nil
	}
	for q := first; n < count; {
		s.mu.Lock()
		p := s.locate(q)
		if p.where == inMemory {
			var m moldcast.Messages
			m, size = take(p.mem.b, q, count-n, size, n == 0)
			out = append(out, m.Framed()...)
			s.mu.Unlock()
			if m.Len() == 0 {
				break
			}
			n += m.Len()
			q += moldcast.Seq(m.Len())
			continue
		}
		var hole moldcast.Hole
		if p.where == inHole {
			hole = s.holeAt(p.r)
		}
		s.mu.Unlock()
		if p.where == inBlock {
			k := blockKey{p.seg, p.blk.first}
			b := v.s.a.cache.get(k)
			if b == nil && cold {
				if b, err = v.s.a.cache.load(v.s.a.table, k); err != nil {
					if s.vanished(p.seg, err) {
						continue
					}
					s.damaged(p.seg, p.blk.first, p.r, err)
					return v.stop(out, n, p.seg.corrupt(p.r, err))
				}
			}
			if b == nil {
				return v.stop(out, n, ErrCold)
			}
			var m moldcast.Messages
			m, size = take(b, q, count-n, size, n == 0)
			if m.Len() == 0 {
				break
			}
			out = append(out, m.Framed()...)
			n += m.Len()
			if q += moldcast.Seq(m.Len()); q < p.r.Next {
				break // the block has more, but there is no room
			}
			continue
		}
		if p.where == inSegment && cold {
			if _, err := p.seg.loadIndex(v.s.a.table); err != nil {
				if s.vanished(p.seg, err) {
					continue
				}
				s.damagedSegment(p.seg, err)
				return v.stop(out, n, p.seg.corrupt(p.r, err))
			}
			continue
		}
		return v.stop(out, n, v.cannot(p, hole, cold))
	}
	return out, n, nil
}

// Block names a unit that is read from disk at once. It is comparable.
type Block struct {
	seg   *segment
	first moldcast.Seq // 0: the index of the segment
}

// Block is what must be read for the message at q; the zero Block where that is
// nothing.
func (v *View) Block(q moldcast.Seq) Block {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch p := s.locate(q); p.where {
	case inBlock:
		return Block{p.seg, p.blk.first}
	case inSegment:
		return Block{seg: p.seg}
	}
	return Block{}
}

// source is a block, open or decoded.
type source interface {
	Messages(first moldcast.Seq, count, size int) (moldcast.Messages, bool)
}

// take is what fits of the messages from q on, and the room that is then left.
func take[S source](b S, q moldcast.Seq, count, size int, alone bool) (moldcast.Messages, int) {
	m, _ := b.Messages(q, count, size)
	if m.Len() == 0 && alone {
		m, _ = b.Messages(q, 1, moldcast.LengthSize+0xFFFF)
	}
	return m, size - len(m.Framed())
}

// stop ends an answer: what was gathered before err is an answer, but the
// caller may want to have one that is cut short by ErrCold whole.
func (v *View) stop(out []byte, n int, err error) ([]byte, int, error) {
	if n > 0 && err != ErrCold {
		return out, n, nil
	}
	return out, n, err
}

// cannot says why nothing can be read at p.
func (v *View) cannot(p place, hole moldcast.Hole, cold bool) error {
	if cold && (p.where == inHole || p.where == inAbsent || p.where == beyond) {
		v.s.refreshIfDue()
	}
	switch p.where {
	case inSegment:
		return ErrCold
	case lostBlock:
		v.s.damaged(p.seg, 0, p.r, errNoHeader)
		return p.seg.corrupt(p.r, errNoHeader)
	case onRecord:
		return p.seg.corrupt(p.r, p.err)
	case inHole:
		return &moldcast.HoleError{Hole: hole}
	case inAbsent:
		return &moldcast.HoleError{Hole: moldcast.Hole{Range: p.r, Reason: moldcast.Absent}}
	case below:
		return ErrBelow
	case inPruned:
		return &PrunedError{Range: p.r}
	}
	return ErrBeyond
}

var errNoHeader = errors.New("no sound header of a block where the seal says that there is one")

var errNotInBlock = errors.New("the block does not hold what its header says")

// corrupt is err as a fault of a range of g. A reader that was only too late
// for a closed archive is told that.
func (g *segment) corrupt(r moldcast.Range, err error) error {
	if errors.Is(err, ErrClosed) {
		return err
	}
	return &CorruptError{Segment: g.name, Range: r, Err: err}
}

// SeqAt is the first message, by sequence, whose time is at or after t: the
// first of the session when t is before the start, the head when it is after
// the end. Since the running maximum of the times reaches t first where a
// time does, steps of the wall clock do not disturb it. A block that cannot
// be read counts by the times in its header.
func (v *View) SeqAt(t moldcast.Stamp) moldcast.Seq {
	s := v.s
	s.refreshIfDue()
	s.mu.Lock()
	q, head := s.first(), s.head()
	s.mu.Unlock()
	for q < head {
		s.mu.Lock()
		p := s.locate(q)
		if p.where == inMemory {
			found := moldcast.Seq(0)
			p.mem.b.PiecesFrom(q, func(x moldcast.Piece) bool {
				if x.First >= p.r.Next {
					return false
				}
				if x.Time >= t {
					found = x.First
				}
				return found == 0
			})
			s.mu.Unlock()
			if found != 0 {
				return found
			}
			q = p.r.Next
			continue
		}
		// A sealed segment that ends before t needs no look inside.
		skip := p.seg != nil && p.seg.seal != nil && p.seg.seal.LastTime < t
		s.mu.Unlock()
		switch {
		case p.where == beyond:
			return head
		case skip, p.where == inHole, p.where == inAbsent, p.where == lostBlock, p.where == onRecord, p.where == below, p.where == inPruned:
		case p.where == inSegment:
			_, err := p.seg.loadIndex(s.a.table)
			if err == nil || s.vanished(p.seg, err) {
				continue
			}
		case p.times.Max >= t:
			b, err := s.a.cache.load(s.a.table, blockKey{p.seg, p.blk.first})
			if s.vanished(p.seg, err) {
				continue
			}
			if err != nil {
				return q
			}
			found := moldcast.Seq(0)
			b.PiecesFrom(q, func(x moldcast.Piece) bool {
				if x.First >= p.r.Next {
					return false
				}
				if x.Time >= t {
					found = x.First
				}
				return found == 0
			})
			if found != 0 {
				return found
			}
		}
		q = p.r.Next
	}
	return head
}

// Held is what the session holds, with the times of the messages on both sides
// of each hole, and of the highest one. It reads headers, of the segments that
// holes border on and of the last one, and few blocks. Of an ended session Head
// is at least its end.
func (w *Writer) Held() moldcast.Held {
	s := w.s
	s.mu.Lock()
	h := moldcast.Held{First: s.first(), Next: s.next(), Head: s.limit()}
	h.End, h.Ended = s.endSeq()
	h.Holes = s.missing()
	h.Floor = s.floor()
	s.mu.Unlock()
	n := &neighbours{s: s}
	for i := range h.Holes {
		hole := &h.Holes[i]
		if i > 0 && h.Holes[i-1].Range.Next == hole.Range.First {
			hole.Before = h.Holes[i-1].Before // one missing range with two records
		} else {
			hole.Before = n.before(hole.Range.First)
		}
	}
	for i := len(h.Holes) - 1; i >= 0; i-- {
		hole := &h.Holes[i]
		if i+1 < len(h.Holes) && h.Holes[i+1].Range.First == hole.Range.Next {
			hole.After = h.Holes[i+1].After
		} else {
			hole.After = n.after(hole.Range.Next)
		}
	}
	h.HeadTime = n.before(h.Head)
	return h
}

// neighbours finds the times of messages next to holes. Headers tell most of
// them; for the others it reads so many blocks, and then makes do with a bound.
type neighbours struct {
	s     *session
	reads int
}

const neighbourReads = 32

// before is the time of the last message below q; 0 when there is none.
func (n *neighbours) before(q moldcast.Seq) moldcast.Stamp {
	n.s.mu.Lock()
	prev, ok := n.s.lastBelow(q)
	n.s.mu.Unlock()
	if !ok {
		return 0
	}
	for {
		p, start := n.s.locateRun(prev)
		if t := p.times; p.where == inBlock && p.r.Next <= q && t.Live && t.Last == t.Max {
			return t.Last // what was repaired behind it is no earlier, and no later
		}
		at := p.times.Max
		if n.pieces(p, start, func(x moldcast.Piece) bool {
			if x.First < q {
				at = x.Time
			}
			return x.First < q
		}) {
			return at
		}
	}
}

// after is the time of the first message at or above q; 0 when there is none.
func (n *neighbours) after(q moldcast.Seq) moldcast.Stamp {
	p, _ := n.s.locateRun(q)
	for p.where != inMemory && p.where != inBlock {
		if p.where == beyond || p.r.Empty() {
			return 0
		}
		p, _ = n.s.locateRun(p.r.Next)
	}
	q = max(q, p.r.First)
	if t := p.times; p.where == inBlock && t.Live && t.First == t.Min {
		return t.First
	}
	at := p.times.Min
	if !n.pieces(p, q, func(x moldcast.Piece) bool {
		at = x.Time
		return false
	}) {
		return n.after(q)
	}
	return at
}

// pieces calls fn with those at p from q on, as far as they can be read. It is
// false where they lie elsewhere by now.
func (n *neighbours) pieces(p place, q moldcast.Seq, fn func(moldcast.Piece) bool) bool {
	if p.where == inMemory {
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		if p.mem.b != nil {
			p.mem.b.PiecesFrom(q, fn)
		}
		return true
	}
	if p.where != inBlock || n.reads >= neighbourReads {
		return true
	}
	n.reads++
	b, err := n.s.a.cache.load(n.s.a.table, blockKey{p.seg, p.blk.first})
	if err != nil {
		return !n.s.vanished(p.seg, err)
	}
	b.PiecesFrom(q, fn)
	return true
}

// lastBelow is the highest sequence held below q. REQUIRES: mu.
func (s *session) lastBelow(q moldcast.Seq) (moldcast.Seq, bool) {
	rs := s.cov.Ranges()
	lo, hi := 0, len(rs)
	for lo < hi { // the first range that begins at or beyond q
		if m := (lo + hi) / 2; rs[m].First >= q {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == 0 {
		return 0, false
	}
	return min(q, rs[lo-1].Next) - 1, true
}

// locateRun is locate with the index loaded, and where the run that holds q
// begins in its block.
func (s *session) locateRun(q moldcast.Seq) (place, moldcast.Seq) {
	for {
		s.mu.Lock()
		p := s.locate(q)
		start := q
		switch p.where {
		case inMemory:
			rs := p.mem.cov.Ranges()
			i := sort.Search(len(rs), func(i int) bool { return rs[i].Next > q })
			start = rs[i].First // locate found q there
		case inBlock:
			x := p.seg.idx.Load()
			if x == nil {
				s.mu.Unlock()
				continue
			}
			start = x.runs[x.after(q)].r.First
		}
		s.mu.Unlock()
		if p.where != inSegment {
			return p, start
		}
		if _, err := p.seg.loadIndex(s.a.table); err != nil {
			return place{where: lostBlock, r: p.r, seg: p.seg}, start
		}
	}
}

// Cursor reads on from a sequence, by pieces, in the order of sequences.
func (v *View) Cursor(from moldcast.Seq) *Cursor { return &Cursor{v: v, q: from} }

var _ io.Closer = (*View)(nil)

func (p place) String() string { return fmt.Sprintf("%d %v", p.where, p.r) }
