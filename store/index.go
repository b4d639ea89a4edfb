package store

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// index is what a segment holds, from its headers alone. Of the open segment
// it grows with every block that became durable, under the session's lock; of
// a sealed one it is read once and then never changes.
type index struct {
	blocks []blockRef
	runs   []runRef // by sequence; those of a block need not lie together
	marks  []markRef
	bad    []badHeader
	logs   []logRef

	patches []moldcast.Range // what blocks hold that replace damaged ones

	messages, packets, markCount uint64
	bytesRaw, bytesStored        uint64
	minTime, maxTime             moldcast.Stamp // zero without messages
	markMin, markMax             moldcast.Seq
	ended                        bool
	end                          moldcast.Seq
}

// blockRef is one block with messages.
type blockRef struct {
	first             moldcast.Seq // its key
	messages, packets int
	patch             bool
	raw, stored       int
	codec             block.Codec
	minTime, maxTime  moldcast.Stamp
	markMin, markMax  moldcast.Seq // zero without marks
	logged            bool         // what was heard of it was stored under a line log
}

// fullyLogged reports whether all that was heard of a block was stored under a
// line log.
func fullyLogged(h *block.Header) bool {
	return h.Log != nil && !slices.ContainsFunc(h.Log.Parts, func(p block.LogPart) bool { return p.Bare })
}

// memory is at most what the block takes decoded.
func (b *blockRef) memory() int64 { return int64(b.raw) + 32*int64(b.messages) }

// runRef is one run of a block.
type runRef struct {
	r     moldcast.Range
	times block.RunTimes
	blk   int32 // in blocks
}

// markRef is one block of marks alone.
type markRef struct {
	id               uint64
	markMin, markMax moldcast.Seq
}

// logRef is a block with a line log.
type logRef struct {
	first moldcast.Seq // its key; 0: id is that of one without messages
	id    uint64
	parts []block.LogPart
}

// badHeader is a header that cannot be read.
type badHeader struct {
	key []byte
	err error
}

// add takes up a block. id is that of a block of marks alone.
func (x *index) add(h *block.Header, id uint64) {
	if h.Marks > 0 {
		if x.markCount == 0 || h.MarkMin < x.markMin {
			x.markMin = h.MarkMin
		}
		x.markMax = max(x.markMax, h.MarkMax)
		x.markCount += uint64(h.Marks)
		if h.Ended {
			x.ended, x.end = true, max(x.end, h.End)
		}
	}
	x.bytesStored += uint64(h.StoredLen)
	if h.Log != nil {
		l := logRef{id: id, parts: h.Log.Parts}
		if h.Messages > 0 {
			l.first = h.First()
		}
		x.logs = append(x.logs, l)
	}
	if h.Messages == 0 {
		x.marks = append(x.marks, markRef{id: id, markMin: h.MarkMin, markMax: h.MarkMax})
		return
	}
	if x.messages == 0 {
		x.minTime, x.maxTime = h.MinTime, h.MaxTime
	}
	x.minTime, x.maxTime = min(x.minTime, h.MinTime), max(x.maxTime, h.MaxTime)
	x.messages += uint64(h.Messages)
	x.packets += uint64(h.Packets)
	x.bytesRaw += uint64(h.RawLen)
	blk := int32(len(x.blocks))
	x.blocks = append(x.blocks, blockRef{
		first: h.First(), messages: h.Messages, packets: h.Packets, patch: h.Patch, raw: h.RawLen, stored: h.StoredLen, codec: h.Codec,
		minTime: h.MinTime, maxTime: h.MaxTime, markMin: h.MarkMin, markMax: h.MarkMax, logged: fullyLogged(h),
	})
	if h.Patch {
		x.patches = append(x.patches, h.Runs...)
	}
	runs := make([]runRef, len(h.Runs))
	for i, r := range h.Runs {
		runs[i] = runRef{r: r, times: h.Times[i], blk: blk}
	}
	x.insertRuns(runs)
}

// after is the first run that ends beyond q.
func (x *index) after(q moldcast.Seq) int {
	lo, hi := 0, len(x.runs)
	for lo < hi {
		if m := (lo + hi) / 2; x.runs[m].r.Next > q {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo
}

// coverage lists what is held, in order, merged.
func (x *index) coverage() (out []moldcast.Range) {
	for i := range x.runs {
		r := x.runs[i].r
		if n := len(out); n > 0 && r.First <= out[n-1].Next {
			out[n-1].Next = max(out[n-1].Next, r.Next)
			continue
		}
		out = append(out, r)
	}
	return out
}

// readIndex reads the headers of a segment. digests, where not nil, receives
// the digest of every block, in key order. Errors are those of the store; a
// header that is damaged is listed in bad.
func readIndex(db *pebble.DB, session moldcast.Session, digests *[][32]byte) (*index, error) {
	x := new(index)
	err := scan(db, keyHeader, func(k, v []byte) error {
		h, err := block.ParseHeader(v)
		switch {
		case err != nil:
		case h.Session != session:
			err = errors.New("block of another session")
		case h.Messages == 0 || len(k) != 9 || moldcast.Seq(binary.BigEndian.Uint64(k[1:])) != h.First():
			err = errors.New("block under a wrong key")
		}
		if err != nil {
			x.bad = append(x.bad, badHeader{key: append([]byte(nil), k...), err: err})
			return nil
		}
		x.add(&h, 0)
		if digests != nil {
			*digests = append(*digests, h.Digest())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = scan(db, keyMarks, func(k, v []byte) error {
		h, err := parseMarksHeader(k, v, session)
		if err != nil {
			x.bad = append(x.bad, badHeader{key: append([]byte(nil), k...), err: err})
			return nil
		}
		x.add(&h, binary.BigEndian.Uint64(k[1:]))
		if digests != nil {
			*digests = append(*digests, h.Digest())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

func parseMarksHeader(k, v []byte, session moldcast.Session) (block.Header, error) {
	header, _, err := splitJoined(v)
	if err != nil {
		return block.Header{}, err
	}
	h, err := block.ParseHeader(header)
	switch {
	case err != nil:
		return h, err
	case h.Session != session:
		return h, errors.New("block of another session")
	case len(k) != 9 || h.Messages != 0:
		return h, errors.New("block under a wrong key")
	}
	return h, nil
}

// scan calls fn for every record of one key range, in order. k and v are
// valid until fn returns.
func scan(db *pebble.DB, kind byte, fn func(k, v []byte) error) error {
	return iterate(db, []byte{kind}, []byte{kind + 1}, true, fn)
}

// iterate calls fn for every record of [lower, upper), in order, with its
// value where that is asked for.
func iterate(db *pebble.DB, lower, upper []byte, values bool, fn func(k, v []byte) error) error {
	return protect(func() error {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return err
		}
		closed := false
		defer func() {
			if !closed { // a panic is under way: what it left of the iterator may not even close
				_ = protect(it.Close)
			}
		}()
		for ok := it.First(); ok && err == nil; ok = it.Next() {
			var v []byte
			if values {
				v, err = it.ValueAndErr()
			}
			if err == nil {
				err = fn(it.Key(), v)
			}
		}
		if err == nil {
			err = it.Error()
		}
		closed = true
		if e := it.Close(); err == nil {
			err = e
		}
		return err
	})
}
