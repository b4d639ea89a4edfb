package store

import (
	"errors"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// Span is what the headers tell of messages in a row: those of one run of a
// block.
type Span struct {
	Range    moldcast.Range
	Min, Max moldcast.Stamp // least and greatest time of its messages

	// What of it is a whole block: its packets, and the bytes of the messages
	// in them; else both 0.
	Packets, Bytes int
}

// Stamps reads when the messages of a recording belong, and in which packets
// they came, without the messages: from headers, and where those do not tell
// from the times and boundaries of blocks. It belongs to one goroutine.
type Stamps struct {
	v   *View
	own lastBlocks[block.Stamps]
	dec *block.Decoder

	stats StampsStats
}

// StampsStats is what a Stamps has read beside headers.
type StampsStats struct {
	Blocks uint64 // whose times were decoded
	Whole  uint64 // of those: with their messages, in which the times are
	Bytes  uint64 // stored bytes of the blocks: those are read whole
}

// Stamps reads the times of a recording.
func (v *View) Stamps() *Stamps { return &Stamps{v: v} }

// Stats is what was read so far.
func (s *Stamps) Stats() StampsStats { return s.stats }

// Close lets go of its buffers.
func (s *Stamps) Close() error {
	if s.dec != nil {
		s.dec.Close()
		s.dec = nil
	}
	return nil
}

// Spans calls fn for the spans of r, in order, until it fails. It reads headers,
// and of a block of which r cuts a part off its times. What can't be read is
// left out, as holes are.
func (s *Stamps) Spans(r moldcast.Range, fn func(Span) error) error {
	s.v.s.refreshIfDue()
	for !r.Empty() {
		p, start, err := s.locate(r.First, nil)
		part := p.r.Intersect(r)
		switch {
		case errors.As(err, new(*CorruptError)):
			r.First = part.Next
			continue
		case err != nil || part.Empty():
			return err
		}
		x := Span{Range: part, Min: p.times.Min, Max: p.times.Max}
		some := p.where == inBlock
		switch {
		case some && start == r.First && part == p.r:
			if part.Len() == uint64(p.blk.messages) {
				x.Packets, x.Bytes = p.blk.packets, p.blk.raw-p.blk.messages*moldcast.LengthSize
			}
		case some, p.where == inMemory:
			some = false
			err := s.Each(part, func(_ moldcast.Range, t moldcast.Stamp) {
				if !some {
					x.Min, x.Max, some = t, t, true
				}
				x.Min, x.Max = min(x.Min, t), max(x.Max, t)
			})
			if errors.As(err, new(*CorruptError)) {
				some = false
			} else if err != nil {
				return err
			}
		}
		if some {
			if err := fn(x); err != nil {
				return err
			}
		}
		r.First = part.Next
	}
	return nil
}

// Each calls fn for the packets of r that are held, in order: which messages of
// it, and their time. Those on both ends are cut. fn must not call the View. Errors:
// *CorruptError where the disk gave something of it back wrong; what came before
// was told of.
func (s *Stamps) Each(r moldcast.Range, fn func(r moldcast.Range, t moldcast.Stamp)) error {
	ses := s.v.s
	for !r.Empty() {
		p, _, err := s.locate(r.First, func(p place) {
			p.mem.b.PiecesFrom(r.First, func(x moldcast.Piece) bool {
				in := x.Range().Intersect(p.r).Intersect(r)
				if !in.Empty() {
					fn(in, x.Time)
				}
				return in.Next == x.Range().Next
			})
		})
		part := p.r.Intersect(r)
		if err != nil || part.Empty() {
			return err
		}
		if p.where == inBlock {
			k := blockKey{p.seg, p.blk.first}
			b, err := s.decode(k)
			if ses.vanished(p.seg, err) {
				continue
			}
			if err == nil && !b.Each(part, fn) {
				err = errNotInBlock
			}
			if err != nil {
				ses.damaged(p.seg, k.first, p.r, err)
				return p.seg.corrupt(part, err)
			}
		}
		r.First = part.Next
	}
	return nil
}

// locate finds q, and in a block where its run begins. It is empty at the head.
// Where q lies in memory, look is called, under the session's lock. Errors:
// *CorruptError where the index of a segment can't be read.
func (s *Stamps) locate(q moldcast.Seq, look func(place)) (p place, start moldcast.Seq, err error) {
	ses := s.v.s
	for {
		ses.mu.Lock()
		p = ses.locate(q)
		switch {
		case p.where == inMemory && look != nil:
			look(p)
		case p.where == inBlock:
			x := p.seg.idx.Load()
			if x == nil { // closed meanwhile
				ses.mu.Unlock()
				continue
			}
			start = x.runs[x.after(q)].r.First
		}
		ses.mu.Unlock()
		if p.where != inSegment {
			return p, start, nil
		}
		if _, err := p.seg.loadIndex(ses.a.table); err != nil && !ses.vanished(p.seg, err) {
			ses.damagedSegment(p.seg, err)
			return p, 0, p.seg.corrupt(p.r, err)
		}
	}
}

// decode reads the times of a block.
func (s *Stamps) decode(k blockKey) (*block.Stamps, error) {
	b, held := s.own.get(k)
	if held {
		return b, nil
	}
	if s.dec == nil {
		var err error
		if s.dec, err = block.NewDecoder(block.DecoderOptions{}); err != nil {
			return nil, err
		}
	}
	err := k.seg.readParsed(s.v.s.a.table, k.first, func(h block.Header, body []byte) error {
		s.stats.Bytes += uint64(len(body))
		return s.dec.Stamps(h, body, b)
	})
	if err != nil {
		return nil, err
	}
	s.stats.Blocks++
	if b.Whole() {
		s.stats.Whole++
	}
	s.own.keep(k)
	return b, nil
}
