package store

import (
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// markFilter finds marks that are on record already, so that importing a file
// twice adds nothing. It belongs to the committer.
type markFilter struct {
	head   moldcast.Seq // highest sequence of a mark stored before this writer
	last   moldcast.Seq // the last one asked for: its blocks are loaded
	seen   map[moldcast.Mark]struct{}
	loaded map[blockPlace]struct{}
}

// takeMarks puts the marks that wait into the open block.
func (c *committer) takeMarks() {
	w := c.w
	s := w.s
	s.mu.Lock()
	in := w.marksIn
	w.marksIn = nil
	s.mu.Unlock()
	if len(in) == 0 {
		return
	}
	keep := in[:0]
	for _, k := range in {
		if k.Next > w.markFilter.head || !c.recorded(k) {
			keep = append(keep, k)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keep {
		if w.open.b.Mark(k) != nil {
			w.cut()
			_ = w.open.b.Mark(k) // it is of a kind that Writer.Mark let in, and the block is empty
		}
	}
}

// recorded reports whether k was stored before this writer began.
func (c *committer) recorded(k moldcast.Mark) bool {
	f := &c.w.markFilter
	if f.seen == nil {
		f.seen, f.loaded = map[moldcast.Mark]struct{}{}, map[blockPlace]struct{}{}
	}
	if f.last != k.Next {
		c.loadMarks(k.Next)
		f.last = k.Next
	}
	_, ok := f.seen[k]
	return ok
}

// loadMarks reads the marks of every block whose marks may carry q.
func (c *committer) loadMarks(q moldcast.Seq) {
	for c.tryMarks(q) {
	}
}

// tryMarks is loadMarks; again where a segment was merged meanwhile.
func (c *committer) tryMarks(q moldcast.Seq) (again bool) {
	w := c.w
	s := w.s
	f := &w.markFilter
	var todo []blockPlace
	s.mu.Lock()
	segs := append([]*segment(nil), s.segs...)
	s.mu.Unlock()
	for _, g := range segs {
		if g.fault != nil || g.seal != nil && (g.seal.Marks == 0 || q < g.seal.MarkMin || q > g.seal.MarkMax) {
			continue
		}
		x, err := g.loadIndex(w.a.table)
		if err != nil {
			w.a.o.Log.Warn("marks cannot be compared", "segment", g.name, "err", err)
			continue
		}
		s.mu.Lock()
		add := func(k blockPlace, lo, hi moldcast.Seq) {
			if _, have := f.loaded[k]; !have && lo != 0 && lo <= q && q <= hi {
				f.loaded[k] = struct{}{}
				todo = append(todo, k)
			}
		}
		for i := range x.blocks {
			b := &x.blocks[i]
			add(blockPlace{seg: g, first: b.first}, b.markMin, b.markMax)
		}
		for _, m := range x.marks {
			add(blockPlace{seg: g, id: m.id}, m.markMin, m.markMax)
		}
		s.mu.Unlock()
	}
	if len(todo) == 0 {
		return false
	}
	dec, err := block.NewDecoder(block.DecoderOptions{})
	if err != nil {
		return false
	}
	defer dec.Close()
	var b block.Block
	for _, t := range todo {
		if err := t.decode(w.a.table, dec, &b); err != nil {
			if s.vanished(t.seg, err) {
				again = true
				continue
			}
			w.a.o.Log.Warn("marks cannot be compared", "segment", t.seg.name, "err", err)
			continue
		}
		for _, k := range b.Marks() {
			f.seen[k] = struct{}{}
		}
	}
	return again
}
