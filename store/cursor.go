package store

import (
	"io"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// batchPieces is how many pieces of a block in memory are taken at a time.
const batchPieces = 128

// Cursor reads a recording by pieces, in the order of sequences. It belongs to
// one goroutine.
type Cursor struct {
	v *View
	q moldcast.Seq // where it is

	// Pieces of a block in memory, which is pinned.
	batch  []moldcast.Piece
	at     int
	pinned *memBlock

	// A decoded block, own or of the cache, and up to where its pieces are
	// wanted.
	b    *block.Block
	i    int
	next moldcast.Seq

	own  lastBlocks[block.Block]
	read int // blocks decoded
	dec  *block.Decoder
}

// ownBlocks is how many decoded blocks a reader keeps: where fills came late,
// the runs of a block and of the one or two that hold its fills alternate.
const ownBlocks = 4

// lastBlocks are the decoded blocks that a reader keeps, the last ones used.
type lastBlocks[T any] struct {
	slots [ownBlocks]struct {
		key  blockKey // zero: nothing
		used uint64
		b    T
	}
	tick uint64
	free int // slot of get
}

// get is the block of k, if held; else room for it, which is to be decoded into
// and then kept.
func (o *lastBlocks[T]) get(k blockKey) (b *T, held bool) {
	o.tick++
	o.free = 0
	for i := range o.slots {
		s := &o.slots[i]
		if s.key == k {
			s.used = o.tick
			return &s.b, true
		}
		if s.used < o.slots[o.free].used {
			o.free = i
		}
	}
	o.slots[o.free].key = blockKey{}
	return &o.slots[o.free].b, false
}

func (o *lastBlocks[T]) keep(k blockKey) {
	o.slots[o.free].key, o.slots[o.free].used = k, o.tick
}

// Seq is the sequence at which the next piece begins, or a hole.
func (c *Cursor) Seq() moldcast.Seq { return c.q }

// Next is the next piece, valid until the call after it. Where the cursor
// began within a piece, or part of one was asked for, it is cut. Errors:
// *moldcast.HoleError once for each hole, *PrunedError (which is one too) for
// each range that was pruned, unless it lies below the first sequence of a
// cursor from 0, *CorruptError for each range that the disk gave back wrong;
// after any of them the next call goes on behind it.
// io.EOF at the head, and again until more is stored.
func (c *Cursor) Next() (moldcast.Piece, error) {
	for {
		if c.at < len(c.batch) {
			p := c.batch[c.at]
			c.at++
			c.q = p.Range().Next
			return p, nil
		}
		if c.b != nil && c.q < c.next {
			p := c.b.PieceAt(c.i)
			c.i++
			if p.First < c.q {
				_, p.Msgs = p.Msgs.Split(int(c.q - p.First))
				p.First = c.q
			}
			if n := p.Range().Next; n > c.next {
				p.Msgs, _ = p.Msgs.Split(int(c.next - p.First))
			}
			c.q = p.Range().Next
			return p, nil
		}
		c.b = nil
		if err := c.fill(); err != nil {
			return moldcast.Piece{}, err
		}
	}
}

// Close lets go of what the cursor reads. A cursor that was read to io.EOF
// need not be closed.
func (c *Cursor) Close() error {
	c.unpin()
	c.batch, c.at, c.b = nil, 0, nil
	if c.dec != nil {
		c.dec.Close()
		c.dec = nil
	}
	return nil
}

// seek moves the cursor.
func (c *Cursor) seek(q moldcast.Seq) {
	c.unpin()
	c.batch, c.at, c.b, c.q = c.batch[:0], 0, nil, q
}

func (c *Cursor) unpin() {
	if c.pinned == nil {
		return
	}
	s := c.v.s
	s.mu.Lock()
	c.pinned.pins--
	s.mu.Unlock()
	c.pinned = nil
}

// fill finds what lies at the cursor.
func (c *Cursor) fill() error {
	s := c.v.s
	c.unpin()
	c.batch, c.at = c.batch[:0], 0
	s.mu.Lock()
	p := s.locate(c.q)
	if p.where == below || c.q == 0 {
		c.q = s.first()
		p = s.locate(c.q)
	}
	var hole moldcast.Hole
	switch p.where {
	case inMemory:
		p.mem.b.PiecesFrom(c.q, func(x moldcast.Piece) bool {
			if x.First >= p.r.Next || len(c.batch) == batchPieces {
				return false
			}
			c.batch = append(c.batch, x)
			return true
		})
		p.mem.pins++
		c.pinned = p.mem
	case inHole:
		hole = s.holeAt(p.r)
	}
	s.mu.Unlock()

	switch p.where {
	case inMemory:
		return nil
	case inBlock:
		k := blockKey{p.seg, p.blk.first}
		b := s.a.cache.get(k)
		if b == nil {
			var err error
			if b, err = c.decode(k); err != nil {
				if s.vanished(p.seg, err) {
					return nil
				}
				s.damaged(p.seg, k.first, p.r, err)
				c.q = p.r.Next
				return p.seg.corrupt(p.r, err)
			}
		}
		i, held := b.Find(c.q)
		if !held {
			s.damaged(p.seg, k.first, p.r, errNotInBlock)
			c.q = p.r.Next
			return p.seg.corrupt(p.r, errNotInBlock)
		}
		c.b, c.i, c.next = b, i, p.r.Next
		return nil
	case inSegment:
		if _, err := p.seg.loadIndex(s.a.table); err != nil {
			if s.vanished(p.seg, err) {
				return nil
			}
			s.damagedSegment(p.seg, err)
			c.q = p.r.Next
			return p.seg.corrupt(p.r, err)
		}
		return nil
	case onRecord:
		c.q = p.r.Next
		return p.seg.corrupt(p.r, p.err)
	case lostBlock:
		s.damaged(p.seg, 0, p.r, errNoHeader)
		c.q = p.r.Next
		return p.seg.corrupt(p.r, errNoHeader)
	case inPruned:
		c.q = p.r.Next
		return &PrunedError{Range: p.r}
	case inAbsent:
		c.q = p.r.Next
		return nil
	case inHole:
		c.q = hole.Range.Next
		return &moldcast.HoleError{Hole: hole}
	}
	s.refreshIfDue()
	return io.EOF
}

// decode reads a block into one of the cursor's own: a scan does not push out
// of the cache what is asked for again and again.
func (c *Cursor) decode(k blockKey) (*block.Block, error) {
	b, held := c.own.get(k)
	if held { // another run of it
		return b, nil
	}
	if c.dec == nil {
		var err error
		if c.dec, err = block.NewDecoder(block.DecoderOptions{}); err != nil {
			return nil, err
		}
	}
	c.read++
	if err := k.seg.decode(c.v.s.a.table, k.first, c.dec, b); err != nil {
		return nil, err
	}
	c.own.keep(k)
	return b, nil
}
