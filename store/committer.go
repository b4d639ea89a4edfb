package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// pipelineDepth is how many batches may wait for the disk at a time.
	pipelineDepth = 8

	// tablesDepth is how many tables may be on their way at a time: one that
	// is written while the one before is synced to the log.
	tablesDepth = 2

	// syncTable is from how many compressed bytes on, that wait when a sync is
	// due, they are written as a table in place of a tail record: below it the
	// three syncs of a table cost more than writing the bytes twice.
	syncTable = 256 << 10

	// tailedTable is how much of blocks that tail records made durable already
	// waits to be written together: small enough that a hundred slow sessions
	// fit into memory, large enough that a segment has about 1000 tables.
	tailedTable = 1 << 20

	// fullTable is how much is written without waiting for a sync, and
	// maxTable how much one table takes when the disk was behind.
	fullTable = 4 << 20
	maxTable  = 8 << 20

	retryFirst = 100 * time.Millisecond // after a failed write
	retryMost  = 5 * time.Second
	roomEvery  = 500 * time.Millisecond // whether there is room again

	sealRetry = 5 * time.Second

	lookEvery = time.Second // whether the archive is still there

	keptBuilders = 4
)

// item is one batch on its way to the disk, or, with sealed set, the word
// that everything of a segment went before it.
type item struct {
	seg   *segment
	log   *pebbleLog
	db    *pebble.DB
	batch *pebble.Batch
	err   error // of handing it to the log

	// Blocks, whose bodies are written as a table before the batch.
	blocks []*memBlock

	// Of a batch with tail records or metadata:
	tail    bool
	parts   []tailPart
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
	tables uint64   // blocks up to this id are written as soon as they are compressed

	// How much makes a table: the constants, or less where segments are small.
	syncTable, tailedTable, fullTable int
	ratio                             float64 // compressed bytes a raw byte, of late

	opening bool
	opened  chan opened
	retryAt time.Time // of the next try to open a segment for a roll

	stored   map[*segment]int64       // bytes of blocks handed to it
	lines    map[*segment][]lineCount // of those blocks and all before
	failWait time.Duration
	failAt   time.Time // of the next try after a failure
	roomAt   time.Time // of the next look for room, before that
	starved  bool      // there was none at the last
	tries    int       // while closing
	looked   time.Time // when the archive was last seen to be there

	tails tailWriter
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

func (c *committer) init(w *Writer) error {
	c.w = w
	c.opened = make(chan opened, 1)
	c.stored = map[*segment]int64{}
	c.lines = map[*segment][]lineCount{}
	if c.cur != nil {
		c.account(c.cur)
	}
	part := int(min(w.a.o.SegmentSize/4, maxTable)) // a segment is to have several
	c.syncTable, c.tailedTable, c.fullTable = min(syncTable, part), min(tailedTable, part), min(fullTable, part)
	c.ratio = 0.5
	return c.tails.init(w.s.ref.Session, w.a.o.Sync)
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
	close(w.tables)
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
	if m := c.unwritten(); m != nil && now.Sub(m.begun) >= w.a.o.BlockAge || w.closing {
		if !w.open.b.Empty() && (w.closing || m == w.open) {
			w.cut()
		}
		c.tables = max(c.tables, w.open.id-1)
	}
	work := len(w.records) > 0 || !w.open.b.Empty() || len(w.queue) > 0 || c.oldest() != nil
	s.mu.Unlock()
	if work && c.cur == nil {
		if err := c.begin(); err != nil {
			c.fail(err)
			return false, c.failAt
		}
	}
	c.sync() // first: it decides what is written as a table
	for c.cur != nil && c.blocks() {
	}
	c.roll()

	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing && w.open.b.Empty() && c.oldest() == nil && w.inflight == 0 && !w.tailing &&
		len(w.records) == 0 && len(w.marksIn) == 0 && !c.opening && !w.failed && !w.dirtyNow(c) {
		if c.next != nil {
			w.tables <- item{sealed: c.cur}
			c.cur = c.next
			c.next = nil
		}
		if c.cur != nil {
			w.tables <- item{sealed: c.cur}
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
	if m := c.unwritten(); m != nil && m.id > c.tables {
		earliest(m.begun.Add(w.a.o.BlockAge))
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

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// dirtyNow reports whether the facts wait for a segment that is there.
// REQUIRES: mu.
func (w *Writer) dirtyNow(c *committer) bool { return w.dirty && c.cur != nil }

// unwritten is the oldest block with messages, or much of a line log, that was
// not handed over to be written; it may be the open one. REQUIRES: mu.
func (c *committer) unwritten() *memBlock {
	for _, m := range c.w.s.mem {
		if m.state < blockSubmitted && (m.b.Pieces() > 0 || m.b.HeardCount() >= heardAlone) {
			return m
		}
	}
	return nil
}

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
	if now.Before(c.failAt) && !(closing && c.tries == 0) && !c.relieved(now) {
		return false, minTime(c.failAt, c.roomAt)
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
		if err = guard(g.log, g.dropOrphans); err != nil {
			g.log.fail(err)
			break
		}
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
		switch {
		case closing:
			c.failWait = retryFirst
		case errors.Is(err, errNoRoom) || w.a.present() != nil:
			c.failWait = min(2*c.failWait, roomEvery) // nothing was written
		default:
			c.failWait = min(2*c.failWait, retryMost)
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
	// What no tail record holds for certain.
	for _, m := range s.mem {
		if m.state == blockDurable {
			continue
		}
		m.unsynced.Clear()
		m.fresh = 0
		for _, r := range m.cov.Ranges() {
			for _, miss := range s.synced.Missing(r) {
				m.unsynced.Add(miss)
				m.fresh = m.size()
			}
		}
	}
	c.tails.enc.Break() // what the last record became of is not known
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

// relieved reports whether there is room again, or the archive, where there
// was none at the look before.
func (c *committer) relieved(now time.Time) bool {
	if now.Before(c.roomAt) {
		return false
	}
	c.roomAt = now.Add(roomEvery)
	was := c.starved
	c.starved = c.w.a.present() != nil || c.w.a.room() != nil
	return was && !c.starved
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

// blocks hands blocks that are compressed to the ingester, in the order in
// which they were cut, one table at a time; false when there is none to hand
// over yet.
func (c *committer) blocks() bool {
	w := c.w
	s := w.s
	g := c.cur
	var take []*memBlock
	size, raw := 0, int64(0)
	dirty, due := false, false
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.ingesting >= tablesDepth {
		return false
	}
	var next *memBlock // the one that is not taken
	for _, m := range s.mem {
		if m.state == blockSubmitted || m.state == blockDurable {
			continue
		}
		if next = m; m.state != blockEncoded || size >= maxTable || c.rollAt != 0 && m.id > c.rollAt {
			break
		}
		next = nil
		take = append(take, m)
		size += len(m.body)
		raw += m.size()
		dirty = dirty || m.dirty()
	}
	if len(take) == 0 {
		return false
	}
	last := c.tables // that goes to g
	if c.rollAt != 0 {
		last = min(last, c.rollAt)
	}
	due = take[0].id <= last && (next == nil || next.id > last)
	switch {
	case due || size >= c.fullTable:
	case !dirty && size >= c.tailedTable:
	case 4*raw >= w.a.o.QueueBytes: // they are in the way of what comes
	default:
		return false
	}
	deletes := false
	for _, m := range take {
		deletes = deletes || m.tails > 0
		m.needs = m.dirty()
		m.state = blockSubmitted
	}
	w.inflight++
	w.ingesting++
	it := item{seg: g, log: g.log, db: g.db, batch: g.db.NewBatch(), blocks: take}
	for _, m := range take {
		it.err = putBlock(it.batch, m)
		c.lines[g] = addLines(c.lines[g], m.lines)
		c.stored[g] += int64(len(m.body))
		if n := m.b.RawSize(); n > 0 {
			c.ratio += (float64(len(m.body))/float64(n) - c.ratio) / 8
		}
		if it.err != nil {
			break
		}
	}
	if deletes && it.err == nil {
		// In the batch of the headers, which comes after the bodies: a reader
		// of what is left after a crash ignores the tail records of what a
		// block holds, whenever that was.
		it.err = it.batch.DeleteRange(tailsOf(take[0].id), tailsOf(take[len(take)-1].id+1), nil)
	}
	if it.err == nil {
		it.err = putJSON(it.batch, metaLines, c.lines[g])
	}
	w.tables <- it // there is room: ingesting counts them
	return true
}

// waiting is about how many compressed bytes no sync covers, and nothing
// that was decided yet will write. REQUIRES: mu.
func (c *committer) waiting() int {
	n := 0.0
	for _, m := range c.w.s.mem {
		switch {
		case m.id <= c.tables || m.state >= blockSubmitted || m.fresh == 0:
		case m.state == blockEncoded:
			n += float64(len(m.body)) * float64(m.fresh) / float64(m.size())
		default:
			n += float64(m.fresh) * c.ratio
		}
	}
	return int(n)
}

// sync sees, when it is due, that what no sync covers is written: as a table
// where that is enough, else as tail records; and the metadata that waits.
func (c *committer) sync() {
	w := c.w
	s := w.s
	s.mu.Lock()
	due := !w.since.IsZero() && time.Since(w.since) >= w.a.o.Sync || w.flushTo > w.tailOps || w.closing
	if due && c.waiting() >= c.syncTable && c.cur != nil { // even while tail records are on their way
		if !w.open.b.Empty() {
			w.cut()
		}
		c.tables = max(c.tables, w.open.id-1)
	}
	if !due || w.tailing {
		s.mu.Unlock()
		return
	}
	g := c.cur
	if c.next != nil {
		g = c.next // blocks up to rollAt are on their way to tables
	}
	if g == nil && (!w.open.b.Empty() || len(w.records) > 0) {
		s.mu.Unlock() // it came after step looked
		w.signal()
		return
	}
	it := item{tail: true, ops: w.ops, records: w.records}
	w.records, w.since = nil, time.Time{}
	if len(w.marksIn) > 0 { // they came after takeMarks
		it.ops -= uint64(len(w.marksIn))
		w.since = time.Now()
	}
	it.facts = w.dirty && g != nil
	f := s.facts
	if it.facts {
		w.dirty = false
	}
	for _, m := range s.mem {
		if m.id > c.tables && m.state < blockSubmitted && m.dirty() && g != nil {
			it.parts = append(it.parts, m.tailPart())
		}
	}
	if g == nil || len(it.parts) == 0 && len(it.records) == 0 && !it.facts {
		w.tailOps = max(w.tailOps, it.ops)
		w.done.Broadcast()
		s.mu.Unlock()
		return
	}
	w.inflight++
	w.tailing = true
	s.mu.Unlock()

	it.seg, it.log, it.db = g, g.log, g.db
	it.batch = g.db.NewBatch()
	for i := range it.parts {
		if it.err == nil {
			it.err = c.tails.put(it.batch, g, &it.parts[i])
		}
	}
	s.mu.Lock()
	for i := range it.parts {
		it.parts[i].of.pins--
		it.parts[i].pieces = nil
	}
	s.mu.Unlock()
	for _, r := range it.records {
		if it.err == nil {
			it.err = it.batch.Set(r.key, r.value, nil)
		}
	}
	if it.facts && it.err == nil {
		it.err = putJSON(it.batch, metaFacts, f)
	}
	it.submit()
	w.pipe <- it
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
		full := c.stored[c.cur]+c.encoded() >= w.a.o.SegmentSize
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
		// Not before they are durable: what fails is written again, and where
		// it was, since it may be there all the same.
		m := c.oldest()
		waits := m != nil && m.id <= c.rollAt
		s.mu.Unlock()
		if waits {
			return
		}
		w.tables <- item{sealed: c.cur}
		delete(c.stored, c.cur)
		delete(c.lines, c.cur)
		c.cur, c.next, c.rollAt = c.next, nil, 0
		w.signal()
	}
}

// encoded is how many bytes of blocks wait to be written.
func (c *committer) encoded() (n int64) {
	c.w.s.mu.Lock()
	defer c.w.s.mu.Unlock()
	for _, m := range c.w.s.mem {
		if m.state == blockEncoded {
			n += int64(len(m.body))
		}
	}
	return n
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
	c.tables = max(c.tables, c.rollAt)
	if w.since.IsZero() {
		w.since = time.Now()
	}
}
