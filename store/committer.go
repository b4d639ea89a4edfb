package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

const (
	// pipelineDepth is how many batches may wait for the disk at a time.
	pipelineDepth = 8

	// batchBytes is about how much one batch takes.
	batchBytes = 4 << 20

	retryFirst = 100 * time.Millisecond // after a failed write
	retryMost  = 5 * time.Second

	sealRetry = 5 * time.Second

	lookEvery = time.Second // whether the archive is still there

	keptBuilders = 4
)

// item is one batch on its way to the disk, or, with sealed set, the word
// that everything of a segment went before it.
type item struct {
	seg   *segment
	log   *pebbleLog
	batch *pebble.Batch
	err   error // of handing it to the log

	blocks []*memBlock

	// Of a batch with a tail record or metadata:
	tail    bool
	of      *memBlock        // whose pieces the record holds
	ranges  []moldcast.Range // them
	marked  int              // marks of it that are then recorded
	ops     uint64
	records []record
	facts   bool

	sealed *segment
}

// committer is the goroutine that owns the open segment: it alone opens one,
// writes to it, and decides when to roll. Its fields are its own.
type committer struct {
	w      *Writer
	cur    *segment // where blocks go; nil until there is something to write
	next   *segment // opened for a roll; tail records go there already
	rollAt uint64   // blocks up to this id still go to cur

	opening bool
	opened  chan opened
	retryAt time.Time // of the next try to open a segment for a roll

	stored   map[*segment]int64       // bytes of blocks handed to it
	lines    map[*segment][]lineCount // of those blocks and all before
	failWait time.Duration
	failAt   time.Time // of the next try after a failure
	tries    int       // while closing
	looked   time.Time // when the archive was last seen to be there

	enc    *block.Encoder // of tail records
	tail   *block.Builder
	pieces []moldcast.Piece
	buf    []byte
	frame  []byte
}

// account takes what g holds for what was handed to it. REQUIRES: nothing is
// on its way to g.
func (c *committer) account(g *segment) {
	c.w.s.mu.Lock()
	defer c.w.s.mu.Unlock()
	c.stored[g] = int64(g.idx.Load().bytesStored)
	c.lines[g] = slices.Clone(g.lines)
}

type opened struct {
	seg *segment
	err error
}

func (c *committer) init(w *Writer) (err error) {
	c.w = w
	c.opened = make(chan opened, 1)
	c.stored = map[*segment]int64{}
	c.lines = map[*segment][]lineCount{}
	if c.cur != nil {
		c.account(c.cur)
	}
	c.tail = block.NewBuilder(w.s.ref.Session)
	c.enc, err = block.NewEncoder(block.EncoderOptions{BlockSize: min(w.a.o.BlockSize, 256<<10), Level: block.Fastest})
	return err
}

// run is the committer's goroutine.
func (c *committer) run() {
	defer c.w.pipeline.Done()
	defer c.finish()
	c.w.a.reserve.fill()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		done, at := c.step()
		if done {
			return
		}
		wait := time.Hour
		if !at.IsZero() {
			wait = max(0, time.Until(at))
		}
		timer.Reset(wait)
		select {
		case <-c.w.wake:
		case <-timer.C:
		case o := <-c.opened:
			c.arrived(o)
		}
	}
}

// finish lets the goroutines behind the committer end.
func (c *committer) finish() {
	w := c.w
	close(w.pipe)
	w.s.mu.Lock()
	w.stop = true
	w.work.Broadcast()
	w.s.mu.Unlock()
}

// step does what is due. at is when something will be, zero when nothing but
// what wakes it.
func (c *committer) step() (done bool, at time.Time) {
	w := c.w
	s := w.s
	if c.lost() {
		return true, at
	}
	if !c.healthy() {
		return c.heal()
	}
	c.takeMarks()

	s.mu.Lock()
	now := time.Now()
	if w.open.b.Pieces() > 0 && (w.closing || now.Sub(w.open.begun) >= w.a.o.BlockAge) || w.closing && !w.open.b.Empty() {
		w.cut()
	}
	work := len(w.records) > 0 || !w.open.b.Empty() || len(w.queue) > 0 || c.oldest() != nil
	s.mu.Unlock()
	if work && c.cur == nil {
		if err := c.begin(); err != nil {
			c.fail(err)
			return false, c.failAt
		}
	}
	for c.cur != nil && c.blocks() {
	}
	c.sync()
	c.roll()

	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing && w.open.b.Empty() && c.oldest() == nil && w.inflight == 0 && !w.tailing &&
		len(w.records) == 0 && len(w.marksIn) == 0 && !c.opening && !w.failed && !w.dirtyNow(c) {
		if c.next != nil {
			w.pipe <- item{sealed: c.cur}
			c.cur = c.next
			c.next = nil
		}
		if c.cur != nil {
			w.pipe <- item{sealed: c.cur}
			c.cur = nil
		}
		if !w.lost {
			w.err = nil
		}
		return true, time.Time{}
	}
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if !w.since.IsZero() && !w.tailing {
		earliest(w.since.Add(w.a.o.Sync))
	}
	if w.open.b.Pieces() > 0 {
		earliest(w.open.begun.Add(w.a.o.BlockAge))
	}
	if t := w.a.o.SegmentTime; t > 0 && c.cur != nil && c.next == nil && !c.opening {
		if c.stored[c.cur] > 0 {
			earliest(maxTime(c.cur.opened.Add(t), c.retryAt))
		}
	}
	return false, at
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// dirtyNow reports whether the facts wait for a segment that is there.
// REQUIRES: mu.
func (w *Writer) dirtyNow(c *committer) bool { return w.dirty && c.cur != nil }

// oldest is the oldest block that is not yet durable and not open. REQUIRES: mu.
func (c *committer) oldest() *memBlock {
	for _, m := range c.w.s.mem {
		if m.state > blockOpen && m.state < blockDurable {
			return m
		}
	}
	return nil
}

// lost reports whether a block can never be written, and the Writer is being
// closed: there is nothing to wait for.
func (c *committer) lost() bool {
	c.w.s.mu.Lock()
	defer c.w.s.mu.Unlock()
	return c.w.lost && c.w.closing && c.w.inflight == 0
}

// healthy reports whether the open segments can be written to.
func (c *committer) healthy() bool {
	w := c.w
	w.s.mu.Lock()
	failed := w.failed
	if w.err == nil {
		c.failWait = 0
	}
	w.s.mu.Unlock()
	if failed {
		return false
	}
	if now := time.Now(); c.cur != nil && now.Sub(c.looked) >= lookEvery {
		c.looked = now
		err := w.a.present()
		if _, e := w.a.o.FS.Stat(c.cur.dir); err == nil {
			err = e
		}
		if err != nil {
			c.cur.log.fail(err)
		}
	}
	for _, g := range []*segment{c.cur, c.next} {
		if g != nil && g.dead() {
			c.fail(g.log.Err())
			return false
		}
	}
	return true
}

// fail stops writing until heal has opened the segments anew.
func (c *committer) fail(err error) {
	c.w.fail(err)
	if c.failWait == 0 {
		c.failWait = retryFirst
	}
	c.failAt = time.Now().Add(c.failWait)
}

// fail notes that something could not be made durable: what waited for the
// disk waits for the committer again.
func (w *Writer) fail(err error) {
	s := w.s
	s.mu.Lock()
	news := w.err == nil || cause(err) != cause(w.err)
	if w.err == nil {
		w.errSince = time.Now()
	}
	w.err, w.failed = hint(err), true
	since, waiting := w.errSince, w.pending
	w.done.Broadcast()
	s.mu.Unlock()
	if news {
		w.a.o.Log.Debug("cannot write: what comes waits in memory; tried again by itself",
			"session", s.ref, "since", since.UTC(), "waiting_bytes", waiting, "err", err)
	}
}

// settled ends a trouble once all that waited when writing began again is
// durable.
func (w *Writer) settled() {
	s := w.s
	s.mu.Lock()
	over := w.err != nil && !w.failed && !w.lost && w.durableOps() >= w.healTo
	since := w.errSince
	if over {
		w.err = nil
		w.done.Broadcast()
	}
	s.mu.Unlock()
	if over {
		w.a.o.Log.Debug("all that waited is durable again", "session", s.ref, "failed_for", time.Since(since).Round(time.Millisecond))
		w.a.reserve.fill()
	}
}

// heal opens anew the segments whose store failed, once nothing is on its way
// to them any more. It reports true when a Writer that is being closed has to
// give up; at is when to call it again, where nothing wakes it before.
func (c *committer) heal() (giveUp bool, at time.Time) {
	w := c.w
	s := w.s
	s.mu.Lock()
	busy, closing := w.inflight > 0, w.closing
	s.mu.Unlock()
	now := time.Now()
	if busy {
		return false, time.Time{} // the waiter wakes us
	}
	if c.failWait == 0 {
		c.failWait = retryFirst
		c.failAt = now.Add(c.failWait)
	}
	if now.Before(c.failAt) && !(closing && c.tries == 0) {
		return false, c.failAt
	}
	s.mu.Lock()
	full := isNoRoom(w.err)
	s.mu.Unlock()
	if full && closing {
		w.a.reserve.release()
	}
	var err error
	for _, g := range []*segment{c.cur, c.next} {
		if g == nil || !g.dead() {
			continue
		}
		g.retire()
		if err = g.open(w.a, w.signal); err != nil {
			break
		}
		c.account(g)
	}
	if err == nil && c.cur == nil {
		err = c.begin()
	}
	if err != nil {
		if closing {
			if c.tries++; c.tries > 1 {
				return true, time.Time{}
			}
		}
		c.failWait = min(2*c.failWait, retryMost)
		if closing {
			c.failWait = retryFirst
		}
		c.failAt = time.Now().Add(c.failWait)
		w.fail(err)
		return false, c.failAt
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.mem {
		if m.state == blockSubmitted {
			m.state = blockEncoded
		}
	}
	// What of the open block no tail record holds for certain.
	w.open.unsynced.Clear()
	for _, r := range w.open.cov.Ranges() {
		for _, miss := range s.synced.Missing(r) {
			w.open.unsynced.Add(miss)
		}
	}
	w.failed = false
	w.healTo = w.ops
	w.dirty = true // so that something is written, which shows whether it can be
	if w.since.IsZero() {
		w.since = time.Now()
	}
	if closing {
		c.tries++
		if c.tries > 2 {
			w.err = fmt.Errorf("the disk fails again and again: %w", w.err)
			return true, time.Time{}
		}
	}
	// Of a failure before this one is settled.
	c.failWait = min(2*c.failWait, retryMost)
	if closing {
		c.failWait = retryFirst
	}
	c.failAt = now.Add(c.failWait)
	w.signal()
	return false, time.Time{}
}

// begin opens the first segment of this writer.
func (c *committer) begin() error {
	g, err := c.create()
	if err != nil {
		return err
	}
	c.w.s.mu.Lock()
	c.w.s.insert(g)
	c.w.dirty = true
	c.w.s.mu.Unlock()
	c.cur = g
	return nil
}

// create makes the next segment.
func (c *committer) create() (*segment, error) {
	w := c.w
	s := w.s
	s.mu.Lock()
	n := max(s.lastNumber(), s.newest.Segment) + 1 // that of one that is missing is not used again
	s.mu.Unlock()
	fs := w.a.o.FS
	g := newSegment(n, fs.PathJoin(s.dir, segmentName(n)), identity{s.ref.Channel, s.ref.Session, s.ref.Take})
	if err := g.open(w.a, w.signal); err != nil {
		return nil, err
	}
	w.a.o.Log.Debug("segment begun", "segment", g.name)
	return g, nil
}

// blocks hands blocks that are compressed to the log, in the order in which
// they were cut, one batch at a time; false when there is none.
func (c *committer) blocks() bool {
	w := c.w
	s := w.s
	g := c.cur
	var take []*memBlock
	size := 0
	s.mu.Lock()
	for _, m := range s.mem {
		if m.state == blockSubmitted || m.state == blockDurable {
			continue
		}
		if m.state != blockEncoded || size >= batchBytes || c.rollAt != 0 && m.id > c.rollAt {
			break
		}
		take = append(take, m)
		size += len(m.body)
	}
	for _, m := range take {
		m.state = blockSubmitted
	}
	if len(take) > 0 {
		w.inflight++
	}
	s.mu.Unlock()
	if len(take) == 0 {
		return false
	}
	it := item{seg: g, log: g.log, batch: g.db.NewBatchWithSize(size + 4096), blocks: take}
	for _, m := range take {
		it.err = putBlock(it.batch, m)
		c.lines[g] = addLines(c.lines[g], m.lines)
		c.stored[g] += int64(len(m.body))
		if it.err == nil && m.tails > 0 {
			// In the same batch, so that a reader of what is left after a
			// crash never meets both; it would ignore the tail records.
			it.err = it.batch.DeleteRange(seqKey(nil, keyTail, m.id), seqKey(nil, keyTail, m.id+1), nil)
		}
		if it.err != nil {
			break
		}
	}
	if it.err == nil {
		it.err = putJSON(it.batch, metaLines, c.lines[g])
	}
	c.submit(it)
	return true
}

func (c *committer) submit(it item) {
	if it.err == nil {
		it.err = guard(it.log, func() error { return it.seg.db.ApplyNoSyncWait(it.batch, pebble.Sync) })
	}
	c.w.pipe <- it
}

// putBlock puts a compressed block into a batch.
func putBlock(b *pebble.Batch, m *memBlock) error {
	if m.parsed.Messages == 0 {
		return b.Set(seqKey(nil, keyMarks, m.id), joined(nil, m.header, m.body), nil)
	}
	first := uint64(m.parsed.First())
	if err := b.Set(seqKey(nil, keyHeader, first), m.header, nil); err != nil {
		return err
	}
	return b.Set(seqKey(nil, keyBody, first), m.body, nil)
}

func putJSON(b *pebble.Batch, key []byte, v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Set(key, doc, nil)
}

// sync writes what no sync covers as a tail record, when it is due, together
// with the metadata that waits.
func (c *committer) sync() {
	w := c.w
	s := w.s
	s.mu.Lock()
	due := !w.since.IsZero() && time.Since(w.since) >= w.a.o.Sync || w.flushTo > w.tailOps || w.closing
	if !due || w.tailing {
		s.mu.Unlock()
		return
	}
	m := w.open
	g := c.cur
	if c.next != nil && m.id > c.rollAt {
		g = c.next
	}
	if g == nil && (!m.b.Empty() || len(w.records) > 0) {
		s.mu.Unlock() // it came after step looked
		w.signal()
		return
	}
	marks := m.b.Marks()
	it := item{tail: true, of: m, ops: w.ops, records: w.records, marked: len(marks)}
	marks = marks[min(m.marked, it.marked):]
	w.records, w.since = nil, time.Time{}
	if len(w.marksIn) > 0 { // they came after takeMarks
		it.ops -= uint64(len(w.marksIn))
		w.since = time.Now()
	}
	c.pieces = c.pieces[:0]
	for _, r := range m.unsynced.Ranges() {
		it.ranges = append(it.ranges, r)
		m.b.PiecesFrom(r.First, func(p moldcast.Piece) bool {
			if p.First >= r.Next {
				return false
			}
			if over := p.Range().Next; over > r.Next {
				p.Msgs, _ = p.Msgs.Split(int(r.Next - p.First))
			}
			c.pieces = append(c.pieces, p)
			return true
		})
	}
	m.unsynced.Clear()
	it.facts = w.dirty && g != nil
	f := s.facts
	if it.facts {
		w.dirty = false
	}
	content := len(c.pieces)+len(marks) > 0
	if g == nil || !content && len(it.records) == 0 && !it.facts {
		w.tailOps = max(w.tailOps, it.ops)
		w.done.Broadcast()
		s.mu.Unlock()
		return
	}
	w.inflight++
	w.tailing = true
	n := m.tails
	if content {
		m.tails++
	}
	m.pins++ // the pieces alias its memory
	s.mu.Unlock()

	it.seg, it.log = g, g.log
	it.batch = g.db.NewBatch()
	if content {
		it.err = c.gather(marks)
	}
	s.mu.Lock()
	m.pins--
	s.mu.Unlock()
	if content && it.err == nil {
		var header, body []byte
		header, body, it.err = c.enc.Encode(c.buf[:0], c.tail, block.EncodeOptions{})
		if it.err == nil {
			c.buf = body
			c.frame = joined(c.frame[:0], header, body)
			it.err = it.batch.Set(tailKey(nil, m.id, n), c.frame, nil)
		}
	}
	for _, r := range it.records {
		if it.err == nil {
			it.err = it.batch.Set(r.key, r.value, nil)
		}
	}
	if it.facts && it.err == nil {
		it.err = putJSON(it.batch, metaFacts, f)
	}
	c.submit(it)
}

// gather copies the pieces and marks of a tail record together.
func (c *committer) gather(marks []moldcast.Mark) error {
	c.tail.Reset(c.w.s.ref.Session)
	for _, p := range c.pieces {
		if err := c.tail.Append(p); err != nil {
			return err
		}
	}
	for _, k := range marks {
		if err := c.tail.Mark(k); err != nil {
			return err
		}
	}
	clear(c.pieces)
	return nil
}

// roll begins the next segment when the open one is full or old: first it is
// opened, then the open block is cut and with all before it goes to the old
// one, which is then sealed.
func (c *committer) roll() {
	w := c.w
	s := w.s
	switch {
	case c.cur == nil || c.opening:
	case c.next == nil:
		full := c.stored[c.cur] >= w.a.o.SegmentSize
		old := w.a.o.SegmentTime > 0 && c.stored[c.cur] > 0 && w.a.o.Clock().Sub(c.cur.opened) >= w.a.o.SegmentTime
		if !full && !old || time.Now().Before(c.retryAt) {
			return
		}
		s.mu.Lock()
		closing := w.closing
		s.mu.Unlock()
		if closing {
			return
		}
		c.opening = true
		go func() {
			g, err := c.create()
			c.opened <- opened{g, err}
		}()
	default:
		s.mu.Lock()
		m := c.oldest()
		waits := m != nil && m.id <= c.rollAt && m.state != blockSubmitted
		for _, m := range s.mem {
			waits = waits || m.id <= c.rollAt && m.state < blockSubmitted && m.state > blockOpen
		}
		s.mu.Unlock()
		if waits {
			return
		}
		w.pipe <- item{sealed: c.cur}
		delete(c.stored, c.cur)
		delete(c.lines, c.cur)
		c.cur, c.next, c.rollAt = c.next, nil, 0
		w.signal()
	}
}

// arrived takes up the segment that was opened for a roll.
func (c *committer) arrived(o opened) {
	c.opening = false
	if o.err != nil {
		c.w.a.o.Log.Error("cannot begin the next segment; the open one is written on", "session", c.w.s.ref, "err", o.err)
		c.retryAt = time.Now().Add(sealRetry)
		return
	}
	w := c.w
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.insert(o.seg)
	c.next = o.seg
	w.dirty = true
	if !w.open.b.Empty() {
		w.cut()
	}
	c.rollAt = w.open.id - 1
	if w.since.IsZero() {
		w.since = time.Now()
	}
}

// abandon lets go of the segments of a writer that could not be closed.
func (c *committer) abandon() {
	for _, g := range []*segment{c.cur, c.next} {
		if g != nil {
			g.abandon()
		}
	}
}

// compress is a worker: it compresses blocks in the order in which they were
// cut.
func (w *Writer) compress(enc *block.Encoder) {
	defer w.workers.Done()
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(w.queue) == 0 {
			if w.stop {
				return
			}
			w.work.Wait()
		}
		m := w.queue[0]
		w.queue = slices.Delete(w.queue, 0, 1)
		m.state = blockEncoding
		if n := len(w.freeBufs); n > 0 {
			m.buf, w.freeBufs = w.freeBufs[n-1], w.freeBufs[:n-1]
		}
		s.mu.Unlock()
		err := m.encode(enc)
		s.mu.Lock()
		if err != nil {
			// Only what was not framed can do this, and Append's callers
			// parsed it. The block stays in memory and is served from there.
			w.a.o.Log.Error("block cannot be encoded", "session", s.ref, "range", m.cov.Bounds(), "err", err)
			if w.err == nil {
				w.errSince = time.Now()
			}
			w.err, w.lost = err, true
			w.done.Broadcast()
			w.signal()
			continue
		}
		m.state = blockEncoded
		w.signal()
	}
}

// encode compresses m, whose builder no longer changes.
func (m *memBlock) encode(enc *block.Encoder) error {
	header, body, err := enc.Encode(m.buf[:0], m.b, block.EncodeOptions{Patch: m.patch})
	if err != nil {
		return err
	}
	m.header, m.body, m.buf = header, body, body
	if m.parsed, err = block.ParseHeader(header); err != nil {
		return err
	}
	m.lines = m.lines[:0]
	m.b.PiecesFrom(0, func(p moldcast.Piece) bool {
		m.lines = addLines(m.lines, []lineCount{{Line: p.Line, Pieces: 1, Messages: uint64(p.Msgs.Len()), Bytes: uint64(len(p.Msgs.Framed()))}})
		return true
	})
	return nil
}

// wait waits for the disk, batch by batch in the order of the log, and moves
// the durable watermark. Once a batch failed, all of that store that come
// after it have failed too.
func (w *Writer) wait() {
	defer w.pipeline.Done()
	defer close(w.seal)
	for it := range w.pipe {
		if it.sealed != nil {
			w.seal <- it.sealed
			continue
		}
		err := it.err
		if err == nil {
			err = guard(it.log, it.batch.SyncWait)
		}
		if err != nil {
			it.log.fail(err)
			w.failedItem(it, err)
		} else {
			w.confirm(it)
			_ = it.batch.Close()
			w.settled()
		}
		w.signal()
	}
}

// confirm takes up what a batch made durable.
func (w *Writer) confirm(it item) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	w.inflight--
	x := it.seg.idx.Load()
	for _, m := range it.blocks {
		m.state = blockDurable
		x.add(&m.parsed, m.id)
		it.seg.lines = addLines(it.seg.lines, m.lines)
		s.addRuns(m.parsed.Runs, it.seg)
		for _, r := range m.parsed.Runs {
			s.synced.Add(r)
		}
		n := m.size()
		w.pending -= n
		w.retained += n
		if len(w.freeBufs) < keptBuilders {
			w.freeBufs = append(w.freeBufs, m.buf[:0])
		}
		m.buf, m.header, m.body = nil, nil, nil
	}
	w.trim()
	if it.tail {
		w.tailing = false
		for _, r := range it.ranges {
			s.synced.Add(r)
		}
		it.of.marked = max(it.of.marked, it.marked)
		w.tailOps = max(w.tailOps, it.ops)
	}
	w.publish()
	w.done.Broadcast()
}

// failedItem gives back what a batch did not make durable.
func (w *Writer) failedItem(it item, err error) {
	s := w.s
	s.mu.Lock()
	w.inflight--
	if it.tail {
		w.tailing = false
		w.records = append(it.records, w.records...)
		w.dirty = w.dirty || it.facts
	}
	s.mu.Unlock()
	w.fail(err)
}

// trim lets go of durable blocks beyond what readers are to find in memory.
// REQUIRES: mu.
func (w *Writer) trim() {
	s := w.s
	n := 0
	for n < len(s.mem) && s.mem[n].state == blockDurable && w.retained > w.a.o.TailBytes {
		m := s.mem[n]
		w.retained -= m.size()
		if m.pins == 0 && len(w.free) < keptBuilders {
			m.b.Reset(s.ref.Session)
			w.free = append(w.free, m.b)
		}
		m.b = nil
		n++
	}
	s.mem = slices.Delete(s.mem, 0, n)
}

// sealer seals segments in the order of their numbers: the chain of seals
// follows it. One that fails is tried again, and those after it wait.
func (w *Writer) sealer() {
	defer w.pipeline.Done()
	last := false
	for g := range w.seal {
		var opening error // why it is not open
		released := false
		for {
			err := opening
			if err == nil {
				err = w.s.seal(g)
			}
			if err == nil {
				if released {
					w.a.reserve.refill()
				}
				break
			}
			if isNoRoom(err) && !released && w.a.reserve.release() {
				released = true // sealing drops logs, so that there is room for another
			} else {
				w.a.o.Log.Error("cannot seal", "segment", g.name, "err", err)
				if last {
					w.sealErr = hint(err)
					g.abandon()
					break
				}
				select {
				case <-time.After(sealRetry):
				case <-w.quit:
					last = true // being closed: once more, then the next who opens it
				}
			}
			opening = nil
			if g.dead() {
				g.retire()
				if opening = g.open(w.a, w.signal); opening != nil {
					w.a.o.Log.Error("cannot open it again", "segment", g.name, "err", opening)
				}
			}
		}
	}
}
