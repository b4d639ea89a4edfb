package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// maxMarksIn bounds the marks that wait for the committer.
const maxMarksIn = 1 << 16

// Writer writes one recording. Append, Mark, Hole, Start and Lines belong to
// one goroutine, the owner of the session, and so does Heard; everything else may be called from
// any. What they store is readable at once through a View, and durable within
// Options.Sync.
//
// Append copies into the open block and returns. A full or old block goes to
// a worker, which compresses it; the committer gathers blocks for a table, the
// ingester writes that, and the waiter moves the durable watermark once it is
// synced. What comes to little waits, and the committer writes it as tail
// records meanwhile. Only
// the committer and the sealer open and close segments, so that Append never
// waits for a disk.
type Writer struct {
	s    *session
	a    *Archive
	lock io.Closer

	next, durable, head, floor atomic.Uint64

	// The session's lock guards these.
	open      *memBlock
	free      []*block.Builder
	freeBufs  [][]byte
	nextBlock uint64
	queue     []*memBlock // cut, for the workers
	pending   int64       // bytes in memory that no durable block holds
	retained  int64       // bytes of durable blocks kept for readers
	ops       uint64      // pieces, marks and records taken
	tailOps   uint64      // of them, those that tail records made durable, or were cut into blocks
	flushTo   uint64      // Flush waits for these
	since     time.Time   // when the oldest operation that no sync covers was taken
	marksIn   []moldcast.Mark
	marksLost uint64
	records   []record
	dirty     bool // the facts have changed since the segment got them
	dirtyFile bool // … since session.json got them
	err       error
	errSince  time.Time // when err began
	healTo    uint64    // err ends when these operations are durable
	failed    bool      // the segment must be opened anew before anything is written
	closing   bool
	closed    bool
	lost      bool // a block can never be written
	stop      bool // workers end
	inflight  int
	ingesting int       // of those, tables
	tailing   bool      // a tail record is on its way
	work      sync.Cond // workers: queue is not empty, or closing
	done      sync.Cond // Append with Wait, Flush, Close: something became durable, or failed

	wake   chan struct{}
	tables chan item // from the committer to the ingester
	pipe   chan item // from both to the waiter
	seal   chan *segment
	quit   chan struct{} // closed by Close

	committer committer
	workers   sync.WaitGroup
	pipeline  sync.WaitGroup
	sealErr   error // after pipeline

	rolled       []*segment // left unsealed by the writer before, and to be merged: for the sealer
	learned      plans      // by which messages are foretold
	mergeAtClose int64      // raw bytes that the sealer may yet merge while closing

	markFilter markFilter

	heard heardLog // of the owner's goroutine, and behind it Close's
}

// record is one metadata record.
type record struct {
	key, value []byte
	filled     moldcast.Range // of a hole record that says so
}

// Writer opens a recording for writing: take 0 is the newest, or the first.
// It locks the session directory, and recovers what a writer before it left
// unsealed. Errors wrap ErrLocked, or name what cannot be read.
func (a *Archive) Writer(channel string, sess moldcast.Session, take int) (*Writer, error) {
	if !ValidChannel(channel) {
		return nil, fmt.Errorf("store: channel %q: want 1 to 64 of A-Z a-z 0-9 . _ : -", channel)
	}
	if take < 0 {
		return nil, fmt.Errorf("store: take %d: want 1 or more, or 0 for the newest", take)
	}
	r := Ref{Channel: channel, Session: sess, Take: take}
	if take == 0 {
		r.Take = 1
		if latest, ok := a.Latest(channel, sess); ok {
			r = latest
		}
	}
	s, lock, err := a.prepare(r)
	if err != nil {
		return nil, err
	}
	w := &Writer{
		s: s, a: a, lock: lock, nextBlock: 1, mergeAtClose: mergeAtClose,
		wake: make(chan struct{}, 1), tables: make(chan item, tablesDepth+2), pipe: make(chan item, pipelineDepth), seal: make(chan *segment, 2*mergeBehind),
		quit: make(chan struct{}),
	}
	w.work.L, w.done.L = &s.mu, &s.mu
	if err := w.recoverSegments(); err != nil {
		w.abandon()
		lock.Close()
		a.forget(s)
		return nil, err
	}
	if err := w.committer.init(w); err != nil {
		w.abandon()
		lock.Close()
		return nil, err
	}
	s.mu.Lock()
	s.w = w
	s.mem = nil
	w.markFilter.head = w.storedMarks()
	w.fresh(0)
	w.publish()
	w.raiseFloor()
	s.mu.Unlock()
	for range a.o.Workers {
		w.workers.Add(1)
		go w.compress(a.newEncoders(&w.learned))
	}
	w.pipeline.Add(4)
	go w.committer.run()
	go w.ingest()
	go w.wait()
	go w.sealer()
	return w, nil
}

// forget lets the next who asks for a recording read it anew.
func (a *Archive) forget(s *session) {
	a.mu.Lock()
	if a.sessions[s.ref] == s {
		delete(a.sessions, s.ref)
	}
	a.mu.Unlock()
}

// recoverSegments takes up what was left unsealed: the newest segment is
// written on, those before it are sealed. One that cannot be opened stays as
// it is, with its fault.
func (w *Writer) recoverSegments() error {
	s := w.s
	open, damaged := s.unread()
	s.readUnsealed(damaged)
	for i, g := range open {
		if err := s.recover(g, w.signal); err != nil {
			g.abandon()
			var version *VersionError
			if isReadOnlyMedium(err) || errors.As(err, &version) || isNoRoom(err) {
				return err
			}
			s.a.o.Log.Error("segment cannot be recovered; it is left as it is and a new one begun", "segment", g.name, "err", err)
			s.mu.Lock()
			g.fault, g.unknown = err, err
			s.mu.Unlock()
			continue
		}
		s.mu.Lock()
		whole := !s.damagedIn(g.num)
		s.mu.Unlock()
		if i == len(open)-1 && whole {
			w.committer.cur = g
			w.nextBlock = nextID(g.idx.Load(), nil)
			continue
		}
		w.rolled = append(w.rolled, g)
		if _, due := s.mergeDue(g); whole && (due || len(w.rolled) > 1) {
			continue // sealed by the sealer, behind what is merged
		}
		// At once: what replaces a damaged block goes to another segment.
		for ; len(w.rolled) > 0; w.rolled = w.rolled[1:] {
			g := w.rolled[0]
			if err := s.seal(g, s.leave(g, errMergeOpening)); err != nil {
				return err
			}
		}
	}
	return nil
}

// abandon lets go of the segments of a writer that could not be closed.
func (w *Writer) abandon() {
	for _, g := range append(w.rolled, w.committer.cur, w.committer.next) {
		if g != nil {
			g.abandon()
		}
	}
}

// storedMarks is the highest sequence that a stored mark carries. REQUIRES: mu.
func (w *Writer) storedMarks() (q moldcast.Seq) {
	for _, g := range w.s.segs {
		switch x := g.idx.Load(); {
		case g.seal != nil:
			q = max(q, g.seal.MarkMax)
		case x != nil:
			q = max(q, x.markMax)
		}
	}
	return q
}

// Ref names the recording.
func (w *Writer) Ref() Ref { return w.s.ref }

// signal wakes the committer.
func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// fresh begins an open block, which is likely to come to size bytes. REQUIRES:
// mu.
func (w *Writer) fresh(size int) {
	m := &memBlock{id: w.nextBlock, begun: time.Now(), firstOp: w.ops}
	w.nextBlock++
	if n := len(w.free); n > 0 {
		m.b, w.free = w.free[n-1], w.free[:n-1]
	} else {
		m.b = block.NewBuilder(w.s.ref.Session)
	}
	m.b.Grow(size)
	w.open = m
	w.s.mem = append(w.s.mem, m)
}

// cut hands the open block to the workers. REQUIRES: mu; it is not empty.
func (w *Writer) cut() {
	m := w.open
	m.state = blockCut
	w.queue = append(w.queue, m)
	size := m.b.RawSize()
	w.fresh(size + size/64) // a packet more does not make it grow
	w.work.Signal()
}

// touch notes an operation that must be synced. REQUIRES: mu.
func (w *Writer) touch() {
	w.ops++
	if w.since.IsZero() {
		w.since = time.Now()
		w.signal()
	}
}

// publish moves the watermarks that are read without the lock. REQUIRES: mu.
func (w *Writer) publish() {
	put := func(at *atomic.Uint64, q moldcast.Seq) {
		if at.Load() != uint64(q) { // a store costs several times as much
			at.Store(uint64(q))
		}
	}
	put(&w.next, w.s.next())
	put(&w.durable, w.s.durable())
	put(&w.head, w.s.head())
}

// raiseFloor publishes below what nothing is wanted any more, after retention
// removed something. REQUIRES: mu.
func (w *Writer) raiseFloor() { w.floor.Store(max(w.floor.Load(), uint64(w.s.floor()))) }

// Append stores of p what is not held, anywhere in the session, and never
// changes what is. It copies. stored is how many messages were new. Errors:
// ErrBusy when as much as Options.QueueBytes waits to be made durable (part
// may have been stored), ErrClosed.
func (w *Writer) Append(p moldcast.Piece) (stored int, err error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing {
		return 0, ErrClosed
	}
	if p.First == 0 || p.Range().Empty() {
		return 0, fmt.Errorf("store: %v: no piece of a session", p.Range())
	}
	if e := s.facts.Ending; e != nil && e.By != "" && p.Range().Next > s.head() {
		w.revise(func(e *ending) { e.By = "" })
	}
	w.takeHeard()
	for r := p.Range(); !r.Empty(); {
		part, held := s.cov.Cut(r)
		q := p
		if part != r {
			q.Msgs, p.Msgs = p.Msgs.Split(int(part.Len()))
			p.First = part.Next
		}
		r.First = part.Next
		if held {
			continue
		}
		n, err := w.storeMissing(q)
		stored += n
		if err != nil {
			return stored, err
		}
	}
	w.publish()
	return stored, nil
}

// storeMissing stores q, of which nothing is held. What of it is on record as
// damaged replaces a block of another segment; where that is still the open
// one, it has to wait for the seal, and is not stored. REQUIRES: mu.
func (w *Writer) storeMissing(q moldcast.Piece) (stored int, err error) {
	s := w.s
	for q.Msgs.Len() > 0 {
		p, r := q, q.Range()
		patch, wait := false, false
		if l := s.lostAt(r.First); l != nil && l.r.First < r.Next {
			if patch = l.r.First <= r.First; patch {
				r.Next, wait = min(r.Next, l.r.Next), !l.seg.sealed
			} else {
				r.Next = l.r.First
			}
		}
		p.Msgs, q.Msgs = q.Msgs.Split(int(r.Len()))
		q.First = r.Next
		if wait {
			continue
		}
		if err := w.store(p, patch); err != nil {
			return stored, err
		}
		stored += p.Msgs.Len()
	}
	return stored, nil
}

// store puts q, of which nothing is held, into the open block. REQUIRES: mu.
func (w *Writer) store(q moldcast.Piece, patch bool) error {
	s := w.s
	size := int64(len(q.Msgs.Framed())) + pieceCost
	for w.pending+size > w.a.o.QueueBytes && w.pending > 0 {
		if w.open.b.Pieces() > 0 && w.pending == w.open.size() {
			w.cut() // everything waits in the open block
		}
		if !w.a.o.Wait {
			return ErrBusy
		}
		if w.err != nil {
			return w.err
		}
		w.done.Wait()
		if w.closing {
			return ErrClosed
		}
	}
	if err := w.open.b.Append(q); err != nil {
		if !errors.Is(err, block.ErrFull) || w.open.b.Empty() {
			return fmt.Errorf("store: %v: %w", q.Range(), err)
		}
		w.cut()
		if err := w.open.b.Append(q); err != nil {
			return fmt.Errorf("store: %v: %w", q.Range(), err)
		}
	}
	m, r := w.open, q.Range()
	if m.b.Pieces() == 1 {
		if m.b.HeardCount() == 0 {
			m.begun = time.Now()
		}
		w.signal()
	}
	w.logOf(m)
	m.cov.Add(r)
	s.firm.lower(r.First)
	m.unsynced.Add(r)
	m.fresh += size
	if patch {
		m.patch = true
		s.found(r)
	}
	fill := len(s.holes.recs) > 0 && s.holes.overlaps(r)
	s.cov.Add(r)
	w.pending += size
	w.touch()
	if fill {
		w.record(holeRecord{First: r.First, Next: r.Next, Reason: holeFilled, Time: moldcast.StampOf(w.a.o.Clock())})
	}
	if m.b.RawSize() >= w.a.o.BlockSize || m.b.Pieces() >= w.a.o.BlockSize/8 {
		w.cut()
	}
	return nil
}

// record takes up a hole record. What is filled piece by piece, one behind the
// other, is one record for each time that records are written. REQUIRES: mu.
func (w *Writer) record(h holeRecord) {
	w.s.holes.put(h)
	if n := len(w.records); h.Reason == holeFilled && n > 0 && w.records[n-1].filled.Next == h.First {
		h.First = w.records[n-1].filled.First
		w.records = w.records[:n-1]
	}
	b, err := json.Marshal(h)
	if err != nil {
		return // it has no member that cannot be marshalled
	}
	r := record{key: holeKey(nil, h), value: b}
	if h.Reason == holeFilled {
		r.filled = h.rng()
	}
	w.records = append(w.records, r)
	w.touch()
}

// Compare compares m with what is stored from first on, message by message;
// what is not held, or was pruned, agrees with anything. differs says that conflictAt, the
// first that does, holds other bytes. Errors are those of reading.
func (w *Writer) Compare(first moldcast.Seq, m moldcast.Messages) (conflictAt moldcast.Seq, differs bool, err error) {
	v := View{w.s}
	r := moldcast.Range{First: first, Next: first + moldcast.Seq(m.Len())}
	for !r.Empty() {
		w.s.mu.Lock()
		part, held := w.s.cov.Cut(r)
		if held && w.s.gone.Len() > 0 {
			p, gone := w.s.gone.Cut(part)
			part, held = p, !gone
		}
		w.s.mu.Unlock()
		if !held {
			_, m = m.Split(int(part.Len()))
			r.First = part.Next
			continue
		}
		var room [1500]byte // for a packet; what is larger is allocated
		buf, n, err := v.Append(room[:0], part.First, int(part.Len()), 1<<30, true)
		if err != nil {
			return 0, false, err
		}
		if n == 0 {
			return 0, false, fmt.Errorf("store: %v: %w", part, ErrBeyond)
		}
		var mine moldcast.Messages
		mine, m = m.Split(n)
		if theirs := moldcast.MessagesOf(buf, n); !bytes.Equal(mine.Framed(), buf) {
			for q := r.First; ; q++ {
				if !bytes.Equal(mine.Next(), theirs.Next()) {
					return q, true, nil
				}
			}
		}
		r.First += moldcast.Seq(n)
	}
	return 0, false, nil
}

// Start puts on record that the session begins at first, when nothing lower is
// known: what lies between and is not stored is then a hole.
func (w *Writer) Start(first moldcast.Seq) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing || first == 0 || s.facts.Start != 0 && s.facts.Start <= first {
		return
	}
	if s.cov.Len() > 0 && s.cov.Bounds().First <= first {
		return
	}
	s.facts.Start = first
	w.changed()
	w.publish()
}

// changed notes that the facts have. REQUIRES: mu.
func (w *Writer) changed() {
	w.dirty, w.dirtyFile = true, true
	w.touch()
}

// Lines records the groups of the lines, in order, for exports.
func (w *Writer) Lines(groups []string) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.closing && !slices.Equal(groups, s.facts.Groups) {
		s.facts.Groups = slices.Clone(groups)
		w.changed()
	}
}

// Feed records what the sender does. Where its numbers only rise, what is not
// held is no hole.
func (w *Writer) Feed(f moldcast.Feed) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	f.EnsureDefaults()
	if w.closing || s.facts.Feed != nil && *s.facts.Feed == f {
		return
	}
	s.facts.Feed = &f
	w.changed()
	w.publish()
}

// Mark records a heartbeat or End of Session as it was heard; one that is
// recorded already, to its stamp, is not recorded again.
func (w *Writer) Mark(k moldcast.Mark) {
	if k.Next == 0 || k.Kind != moldcast.Heartbeat && k.Kind != moldcast.End {
		return
	}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing {
		return
	}
	s.noteMark(k.Next)
	if k.Kind == moldcast.End {
		s.noteEnd(k.Next)
		if e := s.facts.Ending; e != nil && (e.Told && e.End != k.Next || e.By != "") {
			w.revise(func(e *ending) { e.End, e.By = k.Next, "" })
		}
	}
	if len(w.marksIn) >= maxMarksIn {
		w.marksLost++
		return
	}
	w.marksIn = append(w.marksIn, k)
	w.touch()
	w.publish()
	w.takeHeard()
}

// Withdraw takes back the End of Session on record: it was not the sender's.
// The marks stay, and what is marked as the end later is the end.
func (w *Writer) Withdraw() {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.endSeq(); !ok || w.closing {
		return
	}
	w.revise(func(e *ending) { e.Told, e.End = true, 0 })
	w.publish()
}

// Supersede puts on record that the sender went on as another take or session,
// by its name, without an End of Session. What is stored beyond the head, or
// marked as the end, takes it back.
func (w *Writer) Supersede(by string) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.endSeq(); ok || w.closing {
		return
	}
	w.revise(func(e *ending) { e.By = by })
}

// revise changes what is known of the end. REQUIRES: mu.
func (w *Writer) revise(fn func(e *ending)) {
	e := ending{}
	if old := w.s.facts.Ending; old != nil {
		e = *old
	}
	fn(&e)
	e.Rev++
	w.s.facts.Ending = &e
	w.changed()
}

// Share puts on record that ranges are the same in an older take, and are
// copied from there: what of them is missing after a crash still can be. It is
// durable when Share returns.
func (w *Writer) Share(take int, ranges []moldcast.Range) error {
	s := w.s
	s.mu.Lock()
	if w.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	s.facts.Shared = &shared{Take: take, Ranges: inclusive(ranges)}
	w.changed()
	s.mu.Unlock()
	return s.writeSessionInfo()
}

// Shared is what is missing of what an older take has the same.
func (w *Writer) Shared() (take int, missing []moldcast.Range) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.facts.Shared == nil {
		return 0, nil
	}
	for _, r := range exclusive(s.facts.Shared.Ranges) {
		missing = append(missing, s.cov.Missing(r)...)
	}
	return s.facts.Shared.Take, missing
}

// Hole puts on record why a range is missing. What of it is stored by then,
// or later, is no hole all the same.
func (w *Writer) Hole(h moldcast.Hole) {
	if h.Range.Empty() {
		return
	}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing {
		return
	}
	if h.Time == 0 {
		h.Time = moldcast.StampOf(w.a.o.Clock())
	}
	if h.Reason == "" {
		h.Reason = moldcast.NotCaptured
	}
	w.record(holeRecord{First: h.Range.First, Next: h.Range.Next, Reason: h.Reason, Time: h.Time})
}

// Watermarks: next is one past what is stored without a hole from the first
// sequence on, durable the same of what is synced, head one past the highest
// stored. Neither next nor durable passes a hole. All 0 for a session that
// holds nothing and has heard nothing. It takes no lock.
func (w *Writer) Watermarks() (next, durable, head moldcast.Seq) {
	durable = moldcast.Seq(w.durable.Load()) // first: it never overtakes next
	return moldcast.Seq(w.next.Load()), durable, moldcast.Seq(w.head.Load())
}

// Floor is one past what retention removed below the first message that is left;
// nothing lower is wanted any more. What is missing between the two is: that may
// be a gap of this moment. 0: nothing was removed. It never falls.
func (w *Writer) Floor() moldcast.Seq { return moldcast.Seq(w.floor.Load()) }

// Err is why nothing can be made durable at the moment; nil when all is well.
// Writing is tried again by itself.
func (w *Writer) Err() error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.err
}

// Trouble is Err, with the time since when it is so and the bytes that wait in
// memory to become durable. After a failure it lasts until all that waited
// when writing began again is durable.
func (w *Writer) Trouble() (since time.Time, waiting int64, err error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.err != nil {
		since = w.errSince
	}
	return since, w.pending, w.err
}

// Room reports whether a quarter of QueueBytes is free: after an ErrBusy,
// whether it is worth while to ask again for what was refused.
func (w *Writer) Room() bool {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.pending <= w.a.o.QueueBytes/4*3
}

// MarksDropped counts the marks for which there was no room.
func (w *Writer) MarksDropped() uint64 {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.marksLost
}

// View reads the session live: what is in memory, and everything on disk.
func (w *Writer) View() *View { return newView(w.s) }

// durableOps is how many operations are durable. REQUIRES: mu.
func (w *Writer) durableOps() uint64 {
	for _, m := range w.s.mem {
		if m.state >= blockCut && m.state < blockDurable && m.dirty() {
			return min(w.tailOps, m.firstOp)
		}
	}
	return w.tailOps
}

// Flush returns when everything stored so far is durable. Errors: what stops
// that (see Err), ErrClosed, or that of ctx.
func (w *Writer) Flush(ctx context.Context) error {
	s := w.s
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.done.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	target := w.ops
	w.flushTo = max(w.flushTo, target)
	w.signal()
	for w.durableOps() < target {
		switch {
		case w.err != nil:
			return w.err
		case w.closed:
			return ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		}
		w.done.Wait()
	}
	return nil
}

// Close makes everything durable, seals the segment and unlocks the session.
// When that cannot be done it says so, and unlocks all the same: what was
// durable is recovered by the next who opens the session.
func (w *Writer) Close() error {
	s := w.s
	s.mu.Lock()
	if w.closing {
		s.mu.Unlock()
		w.pipeline.Wait()
		return ErrClosed
	}
	w.endLog()
	w.closing = true
	close(w.quit)
	w.done.Broadcast()
	w.signal()
	s.mu.Unlock()
	w.pipeline.Wait()
	w.workers.Wait()
	if n := w.heard.lost; n > 0 {
		w.a.o.Log.Warn("the line log lacks datagrams: memory was full", "session", s.ref, "datagrams", n)
	}
	s.mu.Lock()
	err := w.err
	if err != nil {
		err = w.notDurable(err)
	}
	file := w.dirtyFile
	s.mu.Unlock()
	if err == nil {
		err = w.sealErr
	}
	if err == nil && file {
		err = w.a.reserve.retry(s.writeSessionInfo)
	}
	s.mu.Lock()
	w.closed = true
	s.w = nil
	if err == nil {
		s.mem = nil
	}
	w.done.Broadcast()
	s.mu.Unlock()
	if err != nil {
		w.abandon()
		w.a.forget(s)
		err = fmt.Errorf("store: closing %v: %w", s.ref, err)
	}
	if e := w.lock.Close(); err == nil {
		err = e
	}
	return err
}
