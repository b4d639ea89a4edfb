package store

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// The goroutines around the committer: the workers before it; the ingester,
// the waiter and the sealer behind it.

// ingest is the goroutine that writes tables: bodies first, synced and
// ingested, then the batch with their headers, which makes them blocks. So
// that a table never holds up a tail record, which goes to the log meanwhile.
func (w *Writer) ingest() {
	defer w.pipeline.Done()
	defer close(w.pipe)
	for it := range w.tables {
		if it.sealed == nil {
			if it.err == nil {
				it.err = guard(it.log, func() error { return it.seg.ingest(it.db, it.blocks) })
			}
			it.submit()
		}
		w.pipe <- it
	}
}

// submit hands the batch to the log, without waiting for the sync.
func (it *item) submit() {
	if it.err == nil {
		it.err = guard(it.log, func() error { return it.db.ApplyNoSyncWait(it.batch, pebble.Sync) })
	}
}

// putBlock puts what makes a block of a body that was ingested into a batch:
// its header. A block of marks alone, which is small, goes there whole.
func putBlock(b *pebble.Batch, m *memBlock) error {
	if m.parsed.Messages == 0 {
		return b.Set(seqKey(nil, keyMarks, m.id), joined(nil, m.header, m.body), nil)
	}
	return b.Set(seqKey(nil, keyHeader, uint64(m.parsed.First())), m.header, nil)
}

func putJSON(b *pebble.Batch, key []byte, v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Set(key, doc, nil)
}

// compress is a worker: it compresses blocks in the order in which they were
// cut.
func (w *Writer) compress(enc *encoders) {
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
		waiting, last := len(w.queue)+w.a.o.behind, w.closing
		m.state = blockEncoding
		if n := len(w.freeBufs); n > 0 {
			m.buf, w.freeBufs = w.freeBufs[n-1], w.freeBufs[:n-1]
		}
		s.mu.Unlock()
		note, err := enc.encode(m, waiting, last, w.hurried)
		if note != nil {
			w.a.o.Log.Error("block was encoded wrongly; it is stored as rows", "session", s.ref, "range", m.cov.Bounds(), "err", note)
		}
		s.mu.Lock()
		if err != nil {
			// Only what was not framed can do this, and Append's callers
			// parsed it; or what fails its check as rows too. The block stays
			// in memory and is served from there.
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

// hurried reports whether blocks wait for a worker.
func (w *Writer) hurried() bool {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return len(w.queue)+w.a.o.behind >= hurry
}

// encode compresses m, whose builder no longer changes. The stored form is of t
// until it is kept.
func (m *memBlock) encode(enc *block.Encoder, t *tools) error {
	header, body, err := enc.Encode(t.made[:0], m.b, block.EncodeOptions{Patch: m.patch})
	if err != nil {
		return err
	}
	m.header, m.body, t.made = header, body, body
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

// keep copies the stored form, so that it takes no more memory than it has
// bytes: while it is made it has room for all that might not shrink.
func (m *memBlock) keep() {
	n := len(m.body)
	m.buf = append(append(m.buf[:0], m.body...), m.header...)
	m.body, m.header = m.buf[:n], m.buf[n:]
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
			err = guard(it.log, it.batch.SyncWait) // the one thing that moves the durable watermark
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
	if it.blocks != nil {
		w.ingesting--
	}
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
		for _, p := range it.parts {
			for _, r := range p.ranges {
				s.synced.Add(r)
			}
			p.of.marked = max(p.of.marked, p.marked)
		}
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
	if it.blocks != nil {
		w.ingesting--
	}
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

// sealer merges segments, where that is due, and seals them, in the order of
// their numbers: the chain of seals follows it.
func (w *Writer) sealer() {
	defer w.pipeline.Done()
	for ; len(w.rolled) > 0; w.rolled = w.rolled[1:] {
		w.finish(w.rolled[0])
	}
	for g := range w.seal {
		w.finish(g)
	}
}

// finish merges and seals g. When that fails it is tried again, and those
// after it wait; while the Writer is being closed once, and then g and those
// after it are for the next who opens the session.
func (w *Writer) finish(g *segment) {
	if w.sealErr != nil {
		g.abandon()
		return
	}
	g, left := w.merge(g)
	released, last := false, false
	for {
		var err error
		if g.dead() {
			g.retire()
			err = g.open(w.a, w.signal)
		}
		if err == nil {
			err = w.s.seal(g, left)
		}
		if err == nil {
			if released {
				w.a.reserve.refill()
			} else {
				w.a.reserve.fill()
			}
			return
		}
		if isNoRoom(err) && !released && w.a.reserve.release() {
			released = true // sealing drops logs, so that there is room for another
			continue
		}
		w.a.o.Log.Error("cannot seal", "segment", g.name, "err", err)
		if last {
			w.sealErr = hint(err)
			g.abandon()
			return
		}
		select {
		case <-time.After(sealRetry):
		case <-w.quit:
			last = true
		}
	}
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
