package store

import (
	"cmp"
	"slices"
	"sort"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store/block"
)

// unknownLine is of messages of which no block tells the line: it cannot be
// read, and is not on record as damaged yet.
const unknownLine = moldcast.AnswerLine - 1

// filesOf begins the source of what Writer.Rewrite wrote anew: it did not come
// from elsewhere.
const filesOf = "files of "

// FilesOf is the source of a Fill with what was written anew of a segment.
func FilesOf(segment string) string { return filesOf + segment }

// servedFrom is what is read from each segment. A sealed one never changes:
// what it holds of what a patch replaced, and what is damaged in it, its seal
// counts all the same. REQUIRES: mu.
func (s *session) servedFrom() map[*segment][]moldcast.Range {
	out := map[*segment][]moldcast.Range{}
	for _, run := range s.runs {
		out[run.seg] = append(out[run.seg], run.r)
	}
	return out
}

// blocksOf is a copy of what x lists: that of an open segment grows.
func (s *session) blocksOf(x *index) ([]runRef, []blockRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(x.runs), slices.Clone(x.blocks)
}

// partsIn is what of ranges lies in set.
func partsIn(ranges []moldcast.Range, set *gap.Set) (out []moldcast.Range) {
	all := set.Ranges()
	for _, r := range ranges {
		i := sort.Search(len(all), func(i int) bool { return all[i].Next > r.First })
		for ; i < len(all) && all[i].First < r.Next; i++ {
			out = append(out, r.Intersect(all[i]))
		}
	}
	return out
}

// allIn reports whether all of ranges lies in set.
func allIn(ranges []moldcast.Range, set *gap.Set) bool {
	return countOf(partsIn(ranges, set)) == countOf(ranges)
}

func countOf(rs []moldcast.Range) (n uint64) {
	for _, r := range rs {
		n += r.Len()
	}
	return n
}

// filledLater is what of the ranges that are held was brought in later from
// elsewhere, all of it and by source. REQUIRES: mu.
func (s *session) filledLater() (all gap.Set, by []FilledInfo) {
	var seen gap.Set
	by = []FilledInfo{}
	fills := slices.Clone(s.fills)
	// The newest counts where one was filled again; what was written anew is
	// what it was before.
	slices.SortStableFunc(fills, func(a, b fillRecord) int { return cmp.Compare(b.Time, a.Time) })
	for _, f := range fills {
		if f.rewritten() {
			continue
		}
		r := moldcast.Range{First: f.First, Next: f.Next}
		fresh := seen.Missing(r)
		seen.Add(r)
		var n uint64
		for _, x := range fresh {
			for i := s.runAfter(x.First); i < len(s.runs) && s.runs[i].r.First < x.Next; i++ {
				part := s.runs[i].r.Intersect(x)
				n += part.Len()
				all.Add(part)
			}
		}
		k := slices.IndexFunc(by, func(i FilledInfo) bool { return i.By == f.By && i.Source == f.Source })
		switch {
		case k >= 0:
			by[k].Messages += n
		case n > 0:
			by = append(by, FilledInfo{By: f.By, Source: f.Source, Messages: n})
		}
	}
	slices.Reverse(by) // in the order in which they came
	return all, by
}

// tally is what is served of some ranges of a segment.
type tally struct {
	messages, raw uint64
	lines         []lineCount
	rates         map[int64]*Rate // nil: not asked for
}

// count counts what of ranges, sorted and disjoint, lies in blocks of g.
// Headers tell neither lines nor, where a block is served in part, its bytes:
// blocks are read for that. With lines false they are not, and such bytes are
// in proportion.
func (t *tally) count(g *segment, tb *table, runs []runRef, blocks []blockRef, ranges []moldcast.Range, lines bool) error {
	of := make([][]moldcast.Range, len(blocks))
	var taken gap.Set
	for _, patch := range []bool{true, false} { // which comes before what it replaces
		i := 0
		for _, run := range runs {
			if blocks[run.blk].patch != patch {
				continue
			}
			for i < len(ranges) && ranges[i].Next <= run.r.First {
				i++
			}
			for _, r := range ranges[i:] {
				if r.First >= run.r.Next {
					break
				}
				part := r.Intersect(run.r)
				of[run.blk] = append(of[run.blk], taken.Missing(part)...)
				taken.Add(part)
			}
		}
	}
	var dec *block.Decoder
	if lines {
		var err error
		if dec, err = block.NewDecoder(block.DecoderOptions{}); err != nil {
			return err
		}
		defer dec.Close()
	}
	var blk block.Block
	for k, parts := range of {
		b := blocks[k]
		n := countOf(parts)
		if n == 0 {
			continue
		}
		t.messages += n
		raw := uint64(b.raw) * n / uint64(b.messages)
		if !lines {
			t.raw += raw
			continue
		}
		if err := g.decode(tb, b.first, dec, &blk); err != nil {
			t.raw += raw
			t.lines = addLines(t.lines, []lineCount{{Line: unknownLine, Messages: n, Bytes: raw}})
			if t.rates != nil {
				addRate(t.rates, b.minTime, n, raw)
			}
			continue
		}
		blk.PiecesFrom(0, func(p moldcast.Piece) bool {
			n, size := partOf(p, parts)
			if n == 0 {
				return true
			}
			t.raw += size
			t.lines = addLines(t.lines, []lineCount{{Line: p.Line, Pieces: 1, Messages: n, Bytes: size}})
			if t.rates != nil {
				addRate(t.rates, p.Time, n, size)
			}
			return true
		})
	}
	return nil
}

// partOf is what of a piece lies in ranges: messages, and their framed bytes.
func partOf(p moldcast.Piece, ranges []moldcast.Range) (n, size uint64) {
	for _, r := range ranges {
		part := r.Intersect(p.Range())
		if part.Empty() {
			continue
		}
		_, m := p.Msgs.Split(int(part.First - p.First))
		m, _ = m.Split(int(part.Len()))
		n, size = n+part.Len(), size+uint64(len(m.Framed()))
	}
	return n, size
}
