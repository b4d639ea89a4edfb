package store

import (
	"container/list"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Merging writes what a segment holds anew before it is sealed: in the order
// of sequences, in blocks of the usual size, compressed well.

const (
	// DefaultMergeSaves is the default of Options.MergeSaves.
	DefaultMergeSaves = 0.33

	// mergeBehind is how many segments may wait for their seal behind one that
	// is merged: then that, and they, are sealed as they are.
	mergeBehind = 3

	// mergeAtClose is how many raw bytes are merged while a Writer is closed,
	// and while all of an archive are, at some 50 MB/s.
	mergeAtClose    = 256 << 20
	mergeAtCloseAll = 512 << 20

	mergeLook = 100 * time.Millisecond // who waits for others to have merged sees so often whether it is to

	// mergeWindow is how many bytes of decoded blocks a merge keeps, and
	// mergeReads how often it may decode each block for want of more.
	mergeWindow = 32 << 20
	mergeReads  = 4

	mergeTable = 64 << 20    // bytes of bodies in one table
	mergeSpare = 64 << 20    // that stay free on the disk, beside the reserve
	mergeRest  = time.Second // at most, after a block
	mergeBusy  = 4           // as long as that took, where there is no time to spare
)

// Why a segment was left as it is, that was to be merged.
var (
	errMergeBehind  = errors.New("segments wait for their seals")
	errMergeClosing = errors.New("too much to merge while closing")
	errMergeRoom    = fmt.Errorf("merging: %w", errNoRoom)
	errMergeScatter = errors.New("too scattered")
	errMergeDamage  = errors.New("damaged")
	errMergeReader  = errors.New("sealed by who only reads")
	errMergeSealed  = errors.New("its seal was begun before") // and may be named by others
	errMergeFailed  = errors.New("its store failed")
	errMergeOpening = errors.New("sealed while opening")
)

// mergeRecord is what became of a segment that was to be merged.
type mergeRecord struct {
	Blocks      int    `json:"blocks"`         // it had before
	BytesStored uint64 `json:"bytes_stored"`   // of those
	Written     uint64 `json:"bytes_written"`  // by merging: keys and values
	Left        string `json:"left,omitempty"` // why it was left as it is
}

// readMerge is the record of what became of a segment that was to be merged;
// nil where there is none.
func readMerge(db *pebble.DB) (*mergeRecord, error) {
	r := new(mergeRecord)
	err := readMeta(db, metaMerged, r)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	return r, err
}

// noteLeft puts on record in g why it was not merged, where left says so.
func (g *segment) noteLeft(left error) error {
	if left == nil {
		return nil
	}
	x := g.idx.Load()
	record, err := json.Marshal(mergeRecord{Blocks: len(x.blocks) + len(x.marks), BytesStored: x.bytesStored, Left: left.Error()})
	if err != nil {
		return err
	}
	return guard(g.log, func() error { return g.db.Set(metaMerged, record, pebble.NoSync) })
}

// mergePlan is what merging a segment would save, from its index alone. Cost
// is that of reading it whole by a Cursor: the raw bytes that are decoded, and
// an eighth of a block for each time one is.
type mergePlan struct {
	before, after int64 // cost
	raw           int64 // bytes
	reads         int64 // raw bytes that merging decodes
	target        int64 // size of a block
}

func planMerge(x *index, blockSize int) mergePlan {
	p := mergePlan{target: int64(blockSize), raw: int64(x.bytesRaw), after: int64(x.bytesRaw)}
	each := p.target / 8
	reader, merger := newWindow(ownBlocks), newWindow(mergeWindow)
	var next moldcast.Seq
	patch, filled := false, p.target // filled: bytes in the block that is made
	for i := range x.runs {
		r := &x.runs[i]
		b := &x.blocks[r.blk]
		if r.r.First < next {
			return mergePlan{} // blocks overlap: it is for Verify to say so
		}
		next = r.r.Next
		if !reader.use(r.blk, 1) {
			p.before += int64(b.raw) + each
		}
		if !merger.use(r.blk, b.memory()) {
			p.reads += int64(b.raw)
		}
		if b.patch != patch || filled >= p.target {
			patch, filled = b.patch, 0
			p.after += each
		}
		filled += int64(b.raw) * int64(r.r.Len()) / int64(b.messages)
		if over := (filled - 1) / p.target; over > 0 {
			filled -= over * p.target
			p.after += over * each
		}
	}
	return p
}

// due reports whether merging saves a share of the cost, and a block at least.
func (p mergePlan) due(saves float64) bool {
	saved := p.before - p.after
	return saves >= 0 && saved > 0 && saved >= p.target && float64(saved) >= saves*float64(p.before)
}

// window is what was used last, up to a size, and two at least.
type window struct {
	max, size int64
	at        map[int32]*list.Element
	lru       list.List // of windowed, most recently used first
	drop      func(k int32)
}

type windowed struct {
	k    int32
	size int64
}

func newWindow(size int64) *window { return &window{max: size, at: map[int32]*list.Element{}} }

// use takes k up, and reports whether it was there.
func (w *window) use(k int32, size int64) bool {
	if e := w.at[k]; e != nil {
		w.lru.MoveToFront(e)
		return true
	}
	w.at[k] = w.lru.PushFront(windowed{k, size})
	w.size += size
	for w.size > w.max && w.lru.Len() > 2 {
		old := w.lru.Remove(w.lru.Back()).(windowed)
		delete(w.at, old.k)
		w.size -= old.size
		if w.drop != nil {
			w.drop(old.k)
		}
	}
	return false
}

// mergeHasty is the share of raw bytes, one in so many, and a block at least,
// from which on what was stored fast has a segment written anew.
const mergeHasty = 8

// hastyDue reports whether so much was stored fast that it is to be compressed
// anew.
func (x *index) hastyDue(c Codec, blockSize int) bool {
	hasty := uint64(0)
	for i := range x.blocks {
		// What hardly got smaller does not get much smaller by more effort.
		if b := &x.blocks[i]; c.hasty(b.codec) && b.stored < b.raw-b.raw/10 {
			hasty += uint64(b.raw)
		}
	}
	return hasty >= uint64(blockSize) && hasty*mergeHasty >= x.bytesRaw
}

// mergeDue reports whether g, to which nothing is written any more, is to be
// merged.
func (s *session) mergeDue(g *segment) (p mergePlan, due bool) {
	o := &s.a.o
	if o.MergeSaves < 0 {
		return p, false
	}
	x := g.idx.Load()
	p = planMerge(x, o.BlockSize)
	return p, p.due(o.MergeSaves) || p.raw > 0 && x.hastyDue(o.Codec, o.BlockSize)
}

// leave is left where g was to be merged, else nil.
func (s *session) leave(g *segment, left error) error {
	if _, due := s.mergeDue(g); !due {
		return nil
	}
	return left
}

// merge merges g where that is due. It returns what takes the place of g, or
// g, and why it was left as it is where it was due.
func (w *Writer) merge(g *segment) (*segment, error) {
	s := w.s
	p, due := s.mergeDue(g)
	if !due {
		return g, nil
	}
	if g.dead() {
		return g, errMergeFailed
	}
	start := time.Now()
	to, written, err := w.mergeNow(g, p)
	if to != g { // what readers have of g is of no use any more
		s.a.cache.forget(g)
		s.a.table.forget(g)
	}
	if err != nil {
		w.a.o.Log.Warn("segment is not merged; it is sealed as it is", "segment", g.name, "why", err)
	} else {
		w.a.o.Log.Debug("segment merged", "segment", g.name, "blocks", len(g.idx.Load().blocks), "merged_blocks", len(to.idx.Load().blocks),
			"bytes_written", written, "took", time.Since(start).Round(time.Millisecond))
	}
	return to, err
}

func (w *Writer) mergeNow(g *segment, p mergePlan) (to *segment, written uint64, err error) {
	s := w.s
	s.mu.Lock()
	damaged := s.damagedIn(g.num)
	s.mu.Unlock()
	free, known := w.a.free()
	sealed := readMeta(g.db, metaSealed, new(sealedAt))
	switch {
	case damaged || len(g.idx.Load().bad) > 0:
		return g, 0, errMergeDamage
	case sealed == nil:
		return g, 0, errMergeSealed
	case !errors.Is(sealed, pebble.ErrNotFound):
		return g, 0, sealed
	case p.reads > mergeReads*p.raw:
		return g, 0, errMergeScatter
	case known && free < g.idx.Load().bytesStored+uint64(w.a.o.Reserve)+mergeSpare:
		return g, 0, errMergeRoom
	}
	pace := mergePace{w: w, left: p.raw, atClose: &w.mergeAtClose}
	defer pace.end()
	if err := pace.turn(); err != nil {
		return g, 0, err
	}
	pace.watch = startWatch()
	defer pace.watch.stop()
	defer func() { <-w.a.merging }()
	m, err := newMerger(w.a, g, w.learned.newest.Load())
	if err != nil {
		return g, 0, err
	}
	defer m.close()
	if err := m.write(&pace); err != nil {
		m.remove()
		if m.bad != nil {
			s.damaged(g, m.bad.key, m.bad.r, err)
			err = errMergeDamage
		}
		return g, 0, err
	}
	to, err = s.install(g, m)
	return to, m.written, err
}

// mergePace says when a merge rests, and when it ends.
type mergePace struct {
	w       *Writer
	left    int64  // raw bytes
	atClose *int64 // that may be merged while closing
	claimed int64  // of what all may merge while closing
	watch   *stopwatch
	began   bool
}

// turn waits until fewer merge than may, or for why g is not to be merged.
func (p *mergePace) turn() error {
	for {
		if err := p.check(); err != nil {
			return err
		}
		select {
		case p.w.a.merging <- struct{}{}:
			return nil
		case <-time.After(mergeLook):
		}
	}
}

// end gives back what was claimed.
func (p *mergePace) end() { p.w.a.closing.Add(-p.claimed) }

// check is why the merge is to end.
func (p *mergePace) check() error {
	if len(p.w.seal) >= mergeBehind {
		return errMergeBehind
	}
	select {
	case <-p.w.quit:
		if p.claimed == 0 {
			p.claimed = p.left
			p.w.a.closing.Add(p.left)
			if p.left > *p.atClose || p.w.a.closing.Load() > mergeAtCloseAll {
				return errMergeClosing
			}
		}
	default:
	}
	return nil
}

// did is called when n raw bytes were written, or a block (0) was compared. It
// rests as long as that took, so that a merge takes half a processor at most,
// and much longer where others want it, while nothing waits for it.
func (p *mergePace) did(n int64) error {
	p.left -= n
	if err := p.check(); err != nil {
		return err
	}
	select {
	case <-p.w.quit:
		*p.atClose -= n
		return nil
	default:
	}
	if len(p.w.seal) == 0 && p.began {
		rest := time.Since(p.watch.begun)
		if !p.watch.spare() {
			rest *= mergeBusy
		}
		t := time.NewTimer(min(rest, mergeRest))
		defer t.Stop()
		select {
		case <-t.C:
		case <-p.w.quit:
		}
	}
	p.began = true
	p.watch.begin()
	return nil
}

// install lets what m wrote take the place of what g holds: in its store, as
// one edit of its manifest, which a crash leaves done or not done; and in the
// session, as another segment, since whoever looked something up in the index
// of g before must not read from what is there now: it gets errGone, and looks
// again. After an error that leaves it open which of the two is there, that
// segment has to be opened anew.
func (s *session) install(g *segment, m *merger) (*segment, error) {
	if err := guard(g.log, func() error { return flush(g.db, g.log) }); err != nil {
		m.remove()
		return g, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.mu.Lock()
	damaged := s.damagedIn(g.num)
	s.mu.Unlock()
	if damaged { // meanwhile
		m.remove()
		return g, errMergeDamage
	}
	to := newSegment(g.num, g.dir, g.id)
	to.node, to.opened = g.node, g.opened
	err := guard(g.log, func() error { return m.ingest(g.db) })
	if err == nil {
		to.db, to.fence, to.log = g.db, g.fence, g.log
		to.idx.Store(m.idx)
	} else {
		g.fence.raise()
		go closeQuietly(g.db)
	}
	g.db, g.fence, g.log = nil, nil, nil
	g.moved = true
	s.mu.Lock()
	defer s.mu.Unlock()
	to.lines = g.lines
	for i := range s.segs {
		if s.segs[i] == g {
			s.segs[i] = to
		}
	}
	for i := range s.runs {
		if s.runs[i].seg == g {
			s.runs[i].seg = to
		}
	}
	return to, err
}

// sameContent is what two indexes of the same segment differ in.
func sameContent(x, y *index) error {
	set := func(rs []moldcast.Range) (out gap.Set) {
		for _, r := range rs {
			out.Add(r)
		}
		return out
	}
	same := func(x, y gap.Set) bool {
		if x.Count() != y.Count() {
			return false
		}
		for _, r := range x.Ranges() {
			if len(y.Missing(r)) > 0 {
				return false
			}
		}
		return true
	}
	switch {
	case len(y.bad) > 0:
		return y.bad[0].err
	case x.messages != y.messages || x.packets != y.packets || x.bytesRaw != y.bytesRaw:
		return fmt.Errorf("%d messages, %d packets, %d bytes became %d, %d, %d", x.messages, x.packets, x.bytesRaw, y.messages, y.packets, y.bytesRaw)
	case x.markCount != y.markCount || x.markMin != y.markMin || x.markMax != y.markMax || x.ended != y.ended || x.end != y.end:
		return fmt.Errorf("%d marks within %d..%d, end %d, became %d within %d..%d, end %d", x.markCount, x.markMin, x.markMax, x.end, y.markCount, y.markMin, y.markMax, y.end)
	case x.minTime != y.minTime || x.maxTime != y.maxTime:
		return errors.New("the bounds of its times changed")
	case !same(set(x.coverage()), set(y.coverage())) || !same(set(x.patches), set(y.patches)):
		return errors.New("its coverage changed")
	}
	return nil
}
