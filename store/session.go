package store

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store/block"
)

// refreshEvery is how long a reader may not see that another process sealed a
// segment.
const refreshEvery = time.Second

// session is the catalogue of one recording: which segment, block in memory or
// hole every sequence lies in. A Writer and all Views of the recording in this
// process share it. mu guards everything in it, is held for lookups and copies
// in memory only, and never during I/O.
type session struct {
	a   *Archive
	ref Ref
	dir string

	mu       sync.Mutex
	segs     []*segment   // by number
	tombs    []*tombstone // by number: of segments that were pruned
	runs     []segRun     // by sequence: what lies in segments
	cov      gap.Set      // what is held, in segments and in memory, or was and is pruned
	synced   gap.Set      // of that, what is durable
	gone     gap.Set      // of that, what was pruned
	facts    facts
	firm     firm
	mark     moldcast.Seq // lowest sequence that a mark carried; 0: none
	ended    bool         // an End of Session is on record, for end
	end      moldcast.Seq
	holes    holeMap
	fills    []fillRecord
	captures []captureRecord // by when they began
	damage   []damageRecord  // all that is on record
	lost     []lostSpan      // by sequence: of that, what nothing replaces
	mem      []*memBlock     // in order of their ids; the last one open, where w is set
	w        *Writer         // who writes it in this process
	loaded   time.Time       // when the directory was last looked at
	newest   sealRef         // the newest seal there is or, by session.json, was
	absent   []numbers       // segments that are neither there nor on record as pruned
	made     time.Time
}

// segRun is a range that lies in one segment.
type segRun struct {
	r   moldcast.Range
	seg *segment
}

// memBlock is a block in memory: the open one, one that waits to be
// compressed and committed, or a durable one that is kept for readers. The
// session's lock guards it, but for builder once it is cut, which then never
// changes.
type memBlock struct {
	id    uint64
	b     *block.Builder
	cov   gap.Set
	state blockState
	pins  int // cursors that read it without the lock

	patch    bool    // it holds what replaces a damaged block
	unsynced gap.Set // of cov, what no tail record holds
	fresh    int64   // about its size in memory
	needs    bool    // when it was submitted it was dirty
	marked   int     // marks of b that a tail record holds
	tails    uint32  // tail records written
	begun    time.Time
	firstOp  uint64 // operations of the writer before it
	lines    []lineCount

	buf, header, body []byte // once compressed
	parsed            block.Header
}

// dirty reports whether only writing m makes all of it durable. REQUIRES: mu.
func (m *memBlock) dirty() bool {
	if m.state >= blockSubmitted {
		return m.needs
	}
	return len(m.unsynced.Ranges()) > 0 || m.marked < len(m.b.Marks())
}

type blockState uint8

const (
	blockOpen      blockState = iota
	blockCut                  // waits for a worker
	blockEncoding             // a worker has it
	blockEncoded              // waits for the committer
	blockSubmitted            // waits for the disk
	blockDurable
)

// size is what m counts for in the bounds of memory: framed bytes, the index of
// its pieces, and its line log.
func (m *memBlock) size() int64 {
	return int64(m.b.RawSize()) + pieceCost*int64(m.b.Pieces()) + heardCost*int64(m.b.HeardCount())
}

const (
	pieceCost = 48
	heardCost = 24
)

// first is where the session begins: the lowest of what is stored and what
// Start put on record; without either, what a heartbeat said; else 0. Once
// something was pruned, it is the lowest that is held or damaged: nothing lower
// is wanted any more. REQUIRES: mu.
func (s *session) first() moldcast.Seq {
	if s.gone.Len() > 0 {
		return s.retained()
	}
	f := s.facts.Start
	if s.cov.Len() > 0 {
		if b := s.cov.Bounds().First; f == 0 || b < f {
			f = b
		}
	}
	if len(s.lost) > 0 && (f == 0 || s.lost[0].r.First < f) {
		f = s.lost[0].r.First
	}
	if f == 0 {
		f = s.mark
	}
	return f
}

// head is one past the highest stored. REQUIRES: mu.
func (s *session) head() moldcast.Seq {
	h := s.cov.Bounds().Next
	if n := len(s.lost); n > 0 {
		h = max(h, s.lost[n-1].r.Next)
	}
	if h == 0 {
		return s.first()
	}
	return h
}

// limit is where holes end: the head, or the end of the session where that
// was never reached. REQUIRES: mu.
func (s *session) limit() moldcast.Seq {
	if end, ok := s.endSeq(); ok {
		return end
	}
	return s.head()
}

// endSeq is the end of the session, where its End of Session is on record and
// was neither withdrawn nor contradicted by data beyond it. REQUIRES: mu.
func (s *session) endSeq() (end moldcast.Seq, ok bool) {
	end, ok = s.end, s.ended
	if e := s.facts.Ending; e != nil && e.Told {
		end, ok = e.End, e.End != 0
	}
	if !ok || end < s.head() {
		return 0, false
	}
	return end, true
}

// next is one past what is held without a hole from first. REQUIRES: mu.
func (s *session) next() moldcast.Seq {
	if s.sparse() {
		return s.whole()
	}
	return reach(&s.cov, s.first())
}

// durable is next of what is durable. REQUIRES: mu.
func (s *session) durable() moldcast.Seq {
	if s.sparse() {
		return min(s.whole(), s.firm.get(&s.cov, &s.synced))
	}
	return reach(&s.synced, s.first())
}

func reach(set *gap.Set, first moldcast.Seq) moldcast.Seq {
	if rs := set.Ranges(); len(rs) > 0 && rs[0].First <= first && first < rs[0].Next {
		return rs[0].Next
	}
	// Below what retention left there may be ranges that are missing.
	if part, held := set.Cut(moldcast.Range{First: first, Next: ^moldcast.Seq(0)}); held {
		return part.Next
	}
	return first
}

// noteEnd puts an End of Session on record. REQUIRES: mu.
func (s *session) noteEnd(end moldcast.Seq) { s.ended, s.end = true, max(s.end, end) }

func (s *session) noteMark(q moldcast.Seq) {
	if q != 0 && (s.mark == 0 || q < s.mark) {
		s.mark = q
	}
}

// addRun maps r to g. REQUIRES: mu.
func (s *session) addRun(r moldcast.Range, g *segment) {
	n := len(s.runs)
	if n > 0 && s.runs[n-1].seg == g && s.runs[n-1].r.Next == r.First {
		s.runs[n-1].r.Next = r.Next
		return
	}
	if n == 0 || s.runs[n-1].r.First < r.First {
		s.runs = append(s.runs, segRun{r, g})
		return
	}
	i := s.runAfter(r.First)
	left := i > 0 && s.runs[i-1].seg == g && s.runs[i-1].r.Next == r.First
	right := i < n && s.runs[i].seg == g && s.runs[i].r.First == r.Next
	switch {
	case left && right:
		s.runs[i-1].r.Next = s.runs[i].r.Next
		s.runs = slices.Delete(s.runs, i, i+1)
	case left:
		s.runs[i-1].r.Next = r.Next
	case right:
		s.runs[i].r.First = r.First
	default:
		s.runs = slices.Insert(s.runs, i, segRun{r, g})
	}
}

// runAfter is the first run that ends beyond q. REQUIRES: mu.
func (s *session) runAfter(q moldcast.Seq) int {
	lo, hi := 0, len(s.runs)
	for lo < hi {
		if m := (lo + hi) / 2; s.runs[m].r.Next > q {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo
}

// where is the kind of place that a sequence lies in.
type where uint8

const (
	inMemory  where = iota // in mem
	inBlock                // in a block of seg, by its index
	inSegment              // in seg, whose index is not in memory
	lostBlock              // in seg by its seal, but no sound header says so
	onRecord               // in seg, on record as damaged
	inHole
	inAbsent // a number that no message need have
	inPruned
	beyond
	below
)

// place is where a sequence lies, and up to where what follows lies in the
// same: r.First is the sequence.
type place struct {
	where where
	r     moldcast.Range
	mem   *memBlock
	seg   *segment
	blk   blockRef
	times block.RunTimes
	err   error // of what is on record as damaged
}

// locate finds q. REQUIRES: mu.
func (s *session) locate(q moldcast.Seq) place {
	if s.gone.Len() > 0 {
		if part, gone := s.gone.Cut(moldcast.Range{First: q, Next: ^moldcast.Seq(0)}); gone {
			return place{where: inPruned, r: part}
		}
	}
	for i := len(s.mem) - 1; i >= 0; i-- {
		m := s.mem[i]
		if !m.cov.Bounds().Contains(q) {
			continue
		}
		if part, held := m.cov.Cut(moldcast.Range{First: q, Next: ^moldcast.Seq(0)}); held {
			return place{where: inMemory, r: part, mem: m}
		}
	}
	if i := s.runAfter(q); i < len(s.runs) && s.runs[i].r.First <= q {
		run := s.runs[i]
		p := place{where: inSegment, r: moldcast.Range{First: q, Next: run.r.Next}, seg: run.seg}
		x := run.seg.idx.Load()
		if x == nil {
			return p
		}
		k := x.after(q)
		switch {
		case k == len(x.runs):
			p.where = lostBlock
		case x.runs[k].r.First > q:
			p.where = lostBlock
			p.r.Next = min(p.r.Next, x.runs[k].r.First)
		default:
			p.where = inBlock
			p.r.Next = x.runs[k].r.Next
			p.blk, p.times = x.blocks[x.runs[k].blk], x.runs[k].times
		}
		return p
	}
	if l := s.lostAt(q); l != nil && l.r.First <= q {
		return place{where: onRecord, r: moldcast.Range{First: q, Next: l.r.Next}, seg: l.seg, err: l.err}
	}
	limit := s.limit()
	switch {
	case q >= limit:
		return place{where: beyond, r: moldcast.Range{First: q, Next: q}}
	case q < s.first():
		return place{where: below, r: moldcast.Range{First: q, Next: s.first()}}
	}
	if l := s.lostAt(q); l != nil {
		limit = min(limit, l.r.First)
	}
	part, _ := s.cov.Cut(moldcast.Range{First: q, Next: limit})
	if s.sparse() {
		return place{where: inAbsent, r: part}
	}
	return place{where: inHole, r: part}
}

// holeAt is the hole that begins q's missing range. REQUIRES: mu.
func (s *session) holeAt(r moldcast.Range) moldcast.Hole {
	return s.holes.cut(nil, r)[0]
}

// missing lists the holes. REQUIRES: mu.
func (s *session) missing() (out []moldcast.Hole) {
	if s.sparse() {
		for _, l := range s.lost {
			for _, r := range s.cov.Missing(l.r) {
				out = s.holes.cut(out, r)
			}
		}
		return out
	}
	for _, r := range s.cov.Missing(moldcast.Range{First: s.first(), Next: s.limit()}) {
		out = s.holes.cut(out, r)
	}
	return out
}

// load reads the directory: session.json, and the seals. Unsealed segments are
// listed with sealed unset, and nothing more is known of them.
func (s *session) load() error {
	info, err := readSessionInfo(s.a, s.dir)
	if err == nil {
		s.facts.merge(info.facts)
		s.made = info.Made
		if info.Newest != nil {
			s.newest = *info.Newest
		}
	}
	var version *VersionError
	if errors.As(err, &version) {
		return err
	}
	return s.refresh()
}

func readSessionInfo(a *Archive, dir string) (sessionInfo, error) {
	var info sessionInfo
	b, err := readFile(a.o.FS, a.o.FS.PathJoin(dir, sessionFile))
	if err == nil {
		err = parseSummed(b, &info)
	}
	if err != nil {
		return sessionInfo{}, err
	}
	if err == nil && info.Format != FormatVersion {
		err = &VersionError{Path: dir, Got: info.Format, Want: FormatVersion}
	}
	return info, err
}

// refresh looks for segments that are new, or newly sealed.
func (s *session) refresh() error {
	fs := s.a.o.FS
	names, err := fs.List(s.dir)
	if err != nil {
		return err
	}
	s.mu.Lock()
	sealed := map[int]bool{}
	for _, g := range s.segs {
		sealed[g.num] = g.sealed
	}
	s.mu.Unlock()
	id := identity{s.ref.Channel, s.ref.Session, s.ref.Take}
	var fresh []*segment
	for _, name := range names {
		n, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		if sealed[n] {
			continue
		}
		g := newSegment(n, fs.PathJoin(s.dir, name), id)
		g.sealed, g.seal, g.fault = s.a.readSeal(g)
		if !g.sealed {
			if _, err := fs.Stat(g.dir); isNotExist(err) {
				continue // pruned after it was listed
			}
		}
		g.sound.Store(g.seal)
		fresh = append(fresh, g)
	}
	s.mu.Lock()
	s.absent = absent(names, s.newest.Segment)
	s.mu.Unlock()
	damage := s.loadDamage()
	slices.SortFunc(fresh, func(a, b *segment) int { return a.num - b.num })
	s.add(fresh, damage)
	s.findPruned(names)
	return nil
}

// add takes up segments and records of damage that were found.
func (s *session) add(fresh []*segment, damage []damageRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = time.Now()
	if s.w != nil {
		return // it was opened for writing meanwhile: nobody else adds anything
	}
	for _, g := range fresh {
		if k := slices.IndexFunc(s.segs, func(x *segment) bool { return x.num == g.num }); k >= 0 {
			old := s.segs[k]
			if !g.sealed || old.sealed {
				continue
			}
			s.segs = slices.Delete(s.segs, k, k+1)
			for i := range s.runs {
				if s.runs[i].seg == old {
					s.runs[i].seg = g
				}
			}
		}
		s.insert(g)
		if g.seal != nil {
			s.addSeal(g)
		}
	}
	s.takeDamage(damage)
}

// insert puts g in its place by number. REQUIRES: mu.
func (s *session) insert(g *segment) {
	i, _ := slices.BinarySearchFunc(s.segs, g.num, func(x *segment, n int) int { return x.num - n })
	s.segs = slices.Insert(s.segs, i, g)
}

// addSeal takes up what a sealed segment holds. REQUIRES: mu.
func (s *session) addSeal(g *segment) {
	s.noteSeal(sealRef{g.num, g.seal.Sum})
	for _, r := range g.seal.ranges() {
		s.addDurable(r, g)
	}
	for _, r := range exclusive(g.seal.Patches) {
		s.addPatch(r, g)
	}
	if g.seal.Marks > 0 {
		s.noteMark(g.seal.MarkMin)
	}
	if g.seal.Ended {
		s.noteEnd(g.seal.End)
	}
	for _, h := range g.seal.Holes {
		s.holes.put(h)
	}
	s.fills = append(s.fills, g.seal.Fills...)
	s.captures = addCaptures(s.captures, g.seal.Captures)
	s.facts.merge(g.seal.facts)
}

// addDurable takes up a range that lies in g. Where another segment holds
// part of it, that part stays with that one. REQUIRES: mu.
func (s *session) addDurable(r moldcast.Range, g *segment) {
	for rest := r; !rest.Empty(); {
		part := rest
		i := s.runAfter(rest.First)
		if i < len(s.runs) {
			if s.runs[i].r.First <= rest.First {
				rest.First = min(rest.Next, s.runs[i].r.Next)
				continue
			}
			part.Next = min(part.Next, s.runs[i].r.First)
		}
		s.addRun(part, g)
		rest.First = part.Next
	}
	s.cov.Add(r)
	s.synced.Add(r)
	if s.gone.Len() > 0 {
		s.gone.Remove(r)
	}
}

// addIndex takes up what an unsealed segment, or one whose seal is damaged,
// holds by its headers. REQUIRES: mu.
func (s *session) addIndex(g *segment, x *index, holes []holeRecord, fills []fillRecord, captures []captureRecord, f facts) {
	for _, r := range x.coverage() {
		s.addDurable(r, g)
	}
	for _, r := range x.patches {
		s.addPatch(r, g)
	}
	s.applyDamage()
	if x.markCount > 0 {
		s.noteMark(x.markMin)
	}
	if x.ended {
		s.noteEnd(x.end)
	}
	for _, h := range holes {
		s.holes.put(h)
	}
	s.fills = append(s.fills, fills...)
	s.captures = addCaptures(s.captures, captures)
	s.facts.merge(f)
}

// refreshIfDue looks at the directory again where the last look is old:
// another process may write there, or have pruned.
func (s *session) refreshIfDue() {
	s.mu.Lock()
	due := time.Since(s.loaded) >= refreshEvery
	written := s.w != nil
	if due {
		s.loaded = time.Now()
	}
	s.mu.Unlock()
	if due {
		look := s.refresh
		if written {
			look = s.refreshPruned
		}
		if err := look(); err != nil {
			s.a.o.Log.Warn("looking for new segments", "session", s.ref, "err", err)
		}
	}
}

// unsealed lists the segments that are not sealed, by number, and those whose
// seal is damaged.
func (s *session) unsealed() (open, damaged []*segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segs {
		switch {
		case !g.sealed:
			open = append(open, g)
		case g.seal == nil:
			damaged = append(damaged, g)
		}
	}
	return open, damaged
}

// readUnsealed takes up, without a write, what segments hold that are not
// sealed or whose seal is damaged. Tail records stay in memory as blocks.
func (s *session) readUnsealed(segs []*segment) {
	for _, g := range segs {
		if err := s.readOne(g); err != nil {
			s.mu.Lock()
			g.fault, g.unknown = err, err
			s.mu.Unlock()
			s.a.o.Log.Error("segment cannot be read", "segment", g.name, "err", err)
		}
	}
}

func (s *session) readOne(g *segment) error {
	dec, err := block.NewDecoder(block.DecoderOptions{})
	if err != nil {
		return err
	}
	defer dec.Close()
	h, err := s.a.table.acquire(g)
	if g.notMade(s.a.o.FS, err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.a.table.release(h)
	holes, err := readHoles(h.db)
	if err != nil {
		return err
	}
	fills, err := readFills(h.db)
	if err != nil {
		return err
	}
	captures, err := readCaptures(h.db)
	if err != nil {
		return err
	}
	f, err := readFacts(h.db)
	if err != nil {
		return err
	}
	lines, err := readLines(h.db)
	if err != nil {
		return err
	}
	info, err := readSegmentInfo(h.db)
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	if info.Format > segmentFormat {
		return &VersionError{Path: g.name, Got: info.Format, Want: segmentFormat}
	}
	tails, err := readTails(h.db, s.ref.Session, dec)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.lines, g.node, g.opened = lines, info.Node, info.Opened
	g.unknown = nil
	if len(h.idx.bad) > 0 || slices.ContainsFunc(tails, func(t tailRecord) bool { return t.err != nil }) {
		g.unknown = errPartly
	}
	s.addIndex(g, h.idx, holes, fills, captures, f)
	s.mem = append(s.mem, s.takeTails(g, tails, 0)...)
	return nil
}

// takeTails makes blocks in memory of what of the tail records no block
// holds; id is that of the first. REQUIRES: mu.
func (s *session) takeTails(g *segment, tails []tailRecord, id uint64) (out []*memBlock) {
	var m *memBlock
	fresh := func() {
		if m == nil || !m.b.Empty() {
			m = &memBlock{id: id + uint64(len(out)), b: block.NewBuilder(s.ref.Session), state: blockDurable}
			out = append(out, m)
		}
	}
	take := func(q moldcast.Piece) bool {
		if m == nil || m.b.RawSize() >= s.a.o.BlockSize {
			fresh()
		}
		if m.b.Append(q) != nil {
			fresh()
			if m.b.Append(q) != nil {
				return false
			}
		}
		if l := s.lostAt(q.First); l != nil && l.r.First < q.Range().Next {
			m.patch = true
			s.found(q.Range())
		}
		m.cov.Add(q.Range())
		s.cov.Add(q.Range())
		s.synced.Add(q.Range())
		return true
	}
	for _, t := range tails {
		if t.err != nil {
			s.a.o.Log.Warn("tail record is damaged and not used", "segment", g.name, "err", t.err)
			continue
		}
		for i := range t.block.Pieces() {
			eachMissing(&s.cov, t.block.PieceAt(i), take)
		}
		for _, k := range t.block.Marks() {
			if m == nil || m.b.Mark(k) != nil {
				fresh()
				if m.b.Mark(k) != nil {
					continue
				}
			}
			s.noteMark(k.Next)
			if k.Kind == moldcast.End {
				s.noteEnd(k.Next)
			}
		}
	}
	if n := len(out); n > 0 && out[n-1].b.Empty() {
		out = out[:n-1]
	}
	return out
}

// eachMissing calls fn for the parts of p that set lacks, until it returns
// false. fn may add them to set.
func eachMissing(set *gap.Set, p moldcast.Piece, fn func(moldcast.Piece) bool) {
	for r := p.Range(); !r.Empty(); {
		part, held := set.Cut(r)
		q := p
		if part != r {
			q.Msgs, p.Msgs = p.Msgs.Split(int(part.Len()))
			p.First = part.Next
		}
		if !held && !fn(q) {
			return
		}
		r.First = part.Next
	}
}

// lockTries, 10 ms apart: a reader that only looks whether somebody writes
// holds the lock for an instant. A capture's engine may be waiting.
const lockTries = 20

// lock takes the session's lock.
func (s *session) lock(exclusive bool) (io.Closer, error) {
	var err error
	for try := 0; try < lockTries; try++ {
		var c io.Closer
		if c, err = s.a.locker.lock(s.dir, exclusive); err == nil {
			return c, nil
		}
		if !errors.Is(err, errHeld) {
			return nil, fmt.Errorf("%v: %w", s.ref, err)
		}
		if !exclusive {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("%w: session %v (%s) is being written: stop that first, or only read", ErrLocked, s.ref, s.dir)
}

// lastSeal is the sum of the newest seal before segment n, pruned or not;
// empty without one. REQUIRES: mu.
func (s *session) lastSeal(n int) string {
	last := sealRef{}
	if s.newest.Segment < n {
		last = s.newest // it may be missing
	}
	for i := len(s.tombs) - 1; i >= 0; i-- {
		if t := s.tombs[i]; t.Segment < n {
			if t.Segment > last.Segment {
				last = sealRef{t.Segment, t.SealSum}
			}
			break
		}
	}
	for i := len(s.segs) - 1; i >= 0; i-- {
		if g := s.segs[i]; g.num < n && g.num >= last.Segment && g.seal != nil {
			return g.seal.Sum
		}
	}
	return last.Sum
}

// lastNumber is the number of the newest segment that there is or was.
// REQUIRES: mu.
func (s *session) lastNumber() (n int) {
	if k := len(s.segs); k > 0 {
		n = s.segs[k-1].num
	}
	if k := len(s.tombs); k > 0 {
		n = max(n, s.tombs[k-1].Segment)
	}
	return n
}
