package store

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store/block"
)

// badTails are the tail records of a sealed segment that cannot be read: what
// they held is what lies around what it holds, and nothing else does.
type badTails struct {
	seg   *checkedSegment
	count int
	err   error // of the first
}

// damage is messages that cannot be read from where they lie. Whether it is a
// fault is known when all segments were read.
type damage struct {
	fault  Fault
	seg    int
	block  moldcast.Seq // its key, or its first sequence
	ranges []moldcast.Range
	also   []Fault // what follows from it
}

// tails looks for tail records in a sealed segment.
func (v *verification) tails(c *checked, s *checkedSegment, db *pebble.DB, dec *block.Decoder) error {
	tails, err := readTails(db, c.ref.Session, dec)
	bad := badTails{seg: s}
	for _, t := range tails {
		if t.err == nil {
			continue
		}
		if bad.count++; bad.err == nil {
			bad.err = t.err
		}
	}
	if bad.count > 0 {
		v.mu.Lock()
		c.tails = append(c.tails, bad)
		v.mu.Unlock()
	}
	return err
}

// settleTails tells tail records that cannot be read, and left a hole, from
// those of which all is held by now; partly: not all of the session was read.
func (v *verification) settleTails(c *checked, partly bool) {
	held := c.good.Clone()
	for _, r := range c.raw.Ranges() {
		held.Add(r)
	}
	for _, t := range c.tombs {
		for _, r := range t.ranges() {
			held.Add(r)
		}
	}
	sparse := false
	for _, s := range c.segs {
		sparse = sparse || s.seal != nil && s.seal.Feed != nil && s.seal.Feed.Increments == moldcast.Rising
	}
	for _, b := range c.tails {
		f := Fault{Session: c.ref.String(), Segment: segmentName(b.seg.g.num),
			Problem: oneLine(fmt.Sprintf("%d tail records are damaged: %v", b.count, b.err))}
		var of gap.Set
		for _, o := range b.seg.cov {
			of.Add(o.r)
		}
		own := of.Bounds()
		for _, hole := range held.Missing(held.Bounds()) {
			if hole.First <= own.Next && own.First <= hole.Next {
				if f.FirstSeq == 0 {
					f.FirstSeq = hole.First
				}
				f.LastSeq = hole.Next - 1
			}
		}
		if f.FirstSeq == 0 || sparse || partly {
			f.FirstSeq, f.LastSeq = 0, 0
			f.Problem += "; no hole is known of what they held"
			v.rep.Notes = append(v.rep.Notes, f)
			continue
		}
		f.Problem += "; what they held is a hole until `moldtape repair` fills it"
		v.rep.Faults = append(v.rep.Faults, f)
	}
}
