package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
)

// Fill is the record of a range that was brought in later: a hole filled, or
// what was damaged replaced.
type Fill struct {
	Range  moldcast.Range
	Time   moldcast.Stamp // when; 0 for Writer.Filled: now
	Node   string         // of the archive that did it; set by Writer.Filled
	By     string         // what did it: repair
	Source string         // where the messages came from: an address, or an archive and session
}

// fillRecord is Fill as it is stored.
type fillRecord struct {
	First  moldcast.Seq   `json:"first_seq"`
	Next   moldcast.Seq   `json:"next_seq"`
	Time   moldcast.Stamp `json:"time_ns"`
	Node   string         `json:"node"`
	By     string         `json:"by"`
	Source string         `json:"source"`
}

func fillKey(dst []byte, f fillRecord) []byte {
	return binary.BigEndian.AppendUint64(seqKey(dst, keyFill, uint64(f.Time)), uint64(f.First))
}

func readFills(db *pebble.DB) (out []fillRecord, err error) {
	err = scan(db, keyFill, func(_, v []byte) error {
		var f fillRecord
		if err := json.Unmarshal(v, &f); err != nil {
			return err
		}
		out = append(out, f)
		return nil
	})
	return out, err
}

// Filled puts on record that a range was brought in later, and from where. It
// is a fact of the segment that is open, and of its seal.
func (w *Writer) Filled(f Fill) {
	if f.Range.Empty() {
		return
	}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing {
		return
	}
	if f.Time == 0 {
		f.Time = moldcast.StampOf(w.a.o.Clock())
	}
	r := fillRecord{First: f.Range.First, Next: f.Range.Next, Time: f.Time, Node: w.a.o.Node, By: f.By, Source: f.Source}
	b, err := json.Marshal(r)
	if err != nil {
		return // it has no member that cannot be marshalled
	}
	s.fills = append(s.fills, r)
	w.records = append(w.records, record{key: fillKey(nil, r), value: b})
	w.touch()
}

// FillInfo is one Fill; both ends inclusive.
type FillInfo struct {
	FirstSeq moldcast.Seq `json:"first_seq"`
	LastSeq  moldcast.Seq `json:"last_seq"`
	Time     time.Time    `json:"time"`
	Node     string       `json:"node"`
	By       string       `json:"by"`
	Source   string       `json:"source"`
}

// FilledInfo is how many of the messages that are held were brought in later,
// of those Fills with the same By and Source. What was written anew of a damaged
// segment is not among them.
type FilledInfo struct {
	By       string `json:"by"`
	Source   string `json:"source"`
	Messages uint64 `json:"messages"`
}

func (f fillRecord) rewritten() bool { return strings.HasPrefix(f.Source, filesOf) }

// Rewrite stores anew, in the open segment, what of r is read from segment
// (its directory's name), whose store is damaged: as what replaces it. What
// cannot be read is left. n is how many messages that were.
func (w *Writer) Rewrite(segment string, r moldcast.Range) (n uint64, err error) {
	num, ok := parseSegmentName(segment)
	if !ok {
		return 0, fmt.Errorf("store: %q is no segment", segment)
	}
	c := w.View().Cursor(r.First)
	defer c.Close()
	for {
		p, err := c.Next()
		var bad *CorruptError
		var hole *moldcast.HoleError
		switch {
		case errors.As(err, &bad), errors.As(err, &hole):
			continue
		case err == io.EOF || err == nil && p.First >= r.Next:
			return n, nil
		case err != nil:
			return n, err
		}
		if over := p.Range().Next; over > r.Next {
			p.Msgs, _ = p.Msgs.Split(int(r.Next - p.First))
		}
		k, err := w.rewrite(num, p)
		if n += uint64(k); err != nil {
			return n, err
		}
	}
}

// rewrite stores of p what lies in sealed segment num.
func (w *Writer) rewrite(num int, p moldcast.Piece) (n int, err error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing {
		return 0, ErrClosed
	}
	for p.Msgs.Len() > 0 {
		i := s.runAfter(p.First)
		if i == len(s.runs) {
			break
		}
		run := s.runs[i]
		k := p.Msgs.Len()
		if run.r.First > p.First {
			k = int(min(uint64(k), uint64(run.r.First-p.First)))
		} else {
			k = int(min(uint64(k), uint64(run.r.Next-p.First)))
		}
		q := p
		q.Msgs, p.Msgs = p.Msgs.Split(k)
		p.First += moldcast.Seq(k)
		if run.r.First > q.First || run.seg.num != num || !run.seg.sealed {
			continue
		}
		if err := w.store(q, true); err != nil {
			return n, err
		}
		s.dropRuns(q.Range(), num)
		n += k
	}
	w.publish()
	return n, nil
}
