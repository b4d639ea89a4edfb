package store

import (
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// tailPart is what one tail record holds.
type tailPart struct {
	of     *memBlock
	n      uint32 // of the records of that block
	ranges []moldcast.Range
	pieces []moldcast.Piece // of those ranges
	marks  []moldcast.Mark
	marked int // marks of the block that are then recorded
}

// tailPart takes what of m no tail record holds, for the next one. It pins m,
// whose memory the pieces alias. REQUIRES: the session's lock.
func (m *memBlock) tailPart() tailPart {
	marks := m.b.Marks()
	p := tailPart{of: m, n: m.tails, marked: len(marks), marks: marks[min(m.marked, len(marks)):]}
	for _, r := range m.unsynced.Ranges() {
		p.ranges = append(p.ranges, r)
		m.b.PiecesFrom(r.First, func(q moldcast.Piece) bool {
			if q.First >= r.Next {
				return false
			}
			if over := q.Range().Next; over > r.Next {
				q.Msgs, _ = q.Msgs.Split(int(r.Next - q.First))
			}
			p.pieces = append(p.pieces, q)
			return true
		})
	}
	m.unsynced.Clear()
	m.fresh = 0
	m.tails++
	m.pins++
	return p
}

// tailWriter makes tail records. Those of one block are a stream (package
// block) that is broken off now and then: what came before in the same block
// is the history with which a record is compressed.
type tailWriter struct {
	enc *block.StreamEncoder
	b   *block.Builder
	buf []byte

	// What goes on with the stream.
	seg *segment
	id  uint64
	n   uint32
}

// modelRate is how many bytes a second tail records may have modelled: about
// a sixtieth of a processor.
const modelRate = 512 << 10

func (t *tailWriter) init(s moldcast.Session, sync time.Duration) (err error) {
	t.b = block.NewBuilder(s)
	most := max(512, int(min(sync, time.Second)*modelRate/time.Second))
	t.enc, err = block.NewStreamEncoder(min(most, block.MaxModelled))
	return err
}

// put compresses one tail record into a batch for g.
func (t *tailWriter) put(b *pebble.Batch, g *segment, p *tailPart) (err error) {
	t.b.Reset(t.b.Session())
	for _, q := range p.pieces {
		if err := t.b.Append(q); err != nil {
			return err
		}
	}
	for _, k := range p.marks {
		if err := t.b.Mark(k); err != nil {
			return err
		}
	}
	if g != t.seg || p.of.id != t.id || p.n != t.n {
		t.enc.Break()
	}
	t.seg, t.id, t.n = g, p.of.id, p.n+1
	if t.buf, err = t.enc.Encode(t.buf[:0], t.b); err != nil {
		return err
	}
	return b.Set(tailKey(p.of.id, p.n), t.buf, nil)
}

// tailRecord is a decoded tail record.
type tailRecord struct {
	key   []byte
	size  int // bytes
	block *block.Block
	err   error // why it cannot be read
}

var errOtherSession = errors.New("record of another session")

// readTails decodes the tail records of a segment, in the order in which they
// were written.
func readTails(db *pebble.DB, session moldcast.Session, dec *block.Decoder) (out []tailRecord, err error) {
	stream, err := block.NewStreamDecoder()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	err = scan(db, keyTail, func(k, v []byte) error {
		t := tailRecord{key: slices.Clone(k), size: len(v), block: new(block.Block)}
		if len(v) > 0 && v[0]&block.StreamRecord != 0 {
			t.err = stream.Decode(v, t.block)
		} else {
			t.err = decodeTail(v, dec, t.block)
		}
		if t.err == nil && t.block.Session() != session {
			t.err = errOtherSession
		}
		out = append(out, t)
		return nil
	})
	return out, err
}

// decodeTail decodes a tail record of format 1: a block of its own.
func decodeTail(v []byte, dec *block.Decoder, into *block.Block) error {
	header, body, err := splitJoined(v)
	if err != nil {
		return err
	}
	h, err := block.ParseHeader(header)
	if err != nil {
		return err
	}
	return dec.Decode(h, body, into)
}
