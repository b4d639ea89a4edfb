package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// blockCacheBytes is Pebble's own cache of an archive: index blocks and
// headers. Bodies go through the cache of decoded blocks.
const pebbleCacheBytes = 8 << 20

// Archive is an open archive: the directory, what it holds, and what its
// readers share. Its methods may be called from any goroutine.
type Archive struct {
	dir         string
	o           Options
	info        archiveInfo
	infoErr     error // why moldtape.json is of no use, where the recordings say what it would
	locker      locker
	pebbleCache *pebble.Cache
	table       *table
	cache       *blockCache
	reserve     reserve
	box         *toolbox
	learner     *learner
	dense       chan struct{} // has room for as many blocks as are made dense at a time, while it captures
	merging     chan struct{} // has room for as many as merge at a time
	closing     atomic.Int64  // raw bytes that are merged, or to be, while their Writers are closed

	mu       sync.Mutex
	sessions map[Ref]*session
	seals    map[string]*seal      // by directory; a sealed segment never changes
	tombs    map[string]*tombstone // by path, of segments that are gone
	closed   bool
}

// Open opens an existing archive. Errors wrap ErrNotArchive, or are
// *VersionError.
func Open(dir string, o Options) (*Archive, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	fs := o.FS
	b, err := readFile(fs, fs.PathJoin(dir, archiveFile))
	switch {
	case isNotExist(err):
		if _, e := fs.Stat(dir); isNotExist(e) {
			return nil, fmt.Errorf("%w: %s does not exist; --archive names another", ErrNotArchive, dir)
		}
		return nil, fmt.Errorf("%w: %s has no %s; --archive names another", ErrNotArchive, dir, archiveFile)
	case err != nil:
		return nil, fmt.Errorf("archive %s: %w", dir, err)
	}
	var info archiveInfo
	infoErr := parseSummed(b, &info)
	if infoErr != nil && hasRecordings(fs, dir) {
		// What it says stands in every segment too.
		infoErr = fmt.Errorf("%s: %w", archiveFile, infoErr)
		o.Log.Error("a file of the archive is damaged; it is read by its recordings", "archive", dir, "err", infoErr)
		info = archiveInfo{Format: FormatVersion, Node: o.Node}
	} else if infoErr != nil || info.Format <= 0 {
		return nil, fmt.Errorf("%w: %s in %s is not what moldtape wrote there; restore it from a copy: {\"format\":%d}", ErrNotArchive, archiveFile, dir, FormatVersion)
	}
	if info.Format != FormatVersion {
		return nil, &VersionError{Path: dir, Got: info.Format, Want: FormatVersion}
	}
	a := &Archive{
		dir: dir, o: o, info: info, infoErr: infoErr, locker: lockerOf(fs),
		pebbleCache: pebble.NewCache(pebbleCacheBytes),
		cache:       newBlockCache(o.CacheBytes),
		sessions:    map[Ref]*session{}, seals: map[string]*seal{},
		tombs: map[string]*tombstone{},
		box:   newToolbox(o.BlockSize), learner: newLearner(o.BlockSize),
		dense:   make(chan struct{}, denseTurns()),
		merging: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1)),
	}
	a.reserve.a = a
	a.table = newTable(fs, a.pebbleCache, o.Log)
	a.table.noSalvage = o.noSalvage
	return a, nil
}

// hasRecordings reports whether dir holds a segment of a session, or the
// record of one that was pruned.
func hasRecordings(fs vfs.FS, dir string) bool {
	a := &Archive{dir: dir, o: Options{FS: fs}}
	refs, err := a.refs()
	if err != nil {
		return false
	}
	for _, r := range refs {
		names, _ := fs.List(a.sessionDir(r))
		for _, name := range names {
			_, segment := parseSegmentName(name)
			if _, pruned := parsePrunedName(name); segment || pruned {
				return true
			}
		}
	}
	return false
}

// Create makes an archive: dir must not exist or be empty. Errors wrap
// ErrExists.
func Create(dir string, o Options) (*Archive, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	fs := o.FS
	names, err := fs.List(dir)
	if err == nil && slices.Contains(names, archiveFile) {
		return nil, fmt.Errorf("%w: %s", ErrExists, dir)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, archiveFile+".") || !strings.HasSuffix(name, tmpSuffix) {
			if _, err := fs.Stat(fs.PathJoin(dir, archiveFile)); err == nil {
				return nil, fmt.Errorf("%w: %s", ErrExists, dir) // another process made it while it was listed
			}
			return nil, fmt.Errorf("%w: %s is neither empty nor an archive (it has %s); --archive names another", ErrNotArchive, dir, name)
		}
	}
	if err := makeDir(fs, dir); err != nil {
		return nil, fmt.Errorf("archive %s: %w", dir, err)
	}
	info := archiveInfo{Format: FormatVersion, Node: o.Node, Made: o.Clock().UTC()}
	if err := writeArchiveInfo(fs, dir, info, true); err != nil {
		return nil, fmt.Errorf("archive %s: %w", dir, err)
	}
	return Open(dir, o)
}

// OpenOrCreate opens the archive at dir, or makes one where dir does not exist
// or is empty.
func OpenOrCreate(dir string, o Options) (*Archive, error) {
	o.EnsureDefaults()
	if _, err := o.FS.Stat(o.FS.PathJoin(dir, archiveFile)); isNotExist(err) {
		a, err := Create(dir, o)
		if !errors.Is(err, ErrExists) {
			return a, err
		}
	}
	return Open(dir, o)
}

// Dir is where the archive is.
func (a *Archive) Dir() string { return a.dir }

// Close closes what readers share. Writers are closed before.
func (a *Archive) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	var writing error
	for _, s := range a.sessions {
		s.mu.Lock()
		if s.w != nil {
			writing = fmt.Errorf("store: archive closed while %v is written", s.ref)
		}
		s.mu.Unlock()
	}
	a.mu.Unlock()
	a.learner.close()
	a.box.close()
	err := a.table.shut()
	if writing != nil {
		return writing
	}
	if err == nil {
		_ = protect(func() error { a.table.files.Unref(); a.pebbleCache.Unref(); return nil })
	}
	return err
}

// readSeal reads the seal of g: sealed is whether there is one, fault why it
// is of no use.
func (a *Archive) readSeal(g *segment) (sealed bool, s *seal, fault error) {
	a.mu.Lock()
	s = a.seals[g.dir]
	a.mu.Unlock()
	if s != nil {
		return true, s, nil
	}
	b, err := readFile(a.o.FS, a.o.FS.PathJoin(g.dir, sealFile))
	if isNotExist(err) {
		return false, nil, nil
	}
	if err == nil {
		s, err = parseSeal(b)
	}
	if err == nil && (s.identity != g.id || s.Segment != g.num) {
		err = fmt.Errorf("%s: of %s/%v@%d segment %d", sealFile, s.Channel, s.Session, s.Take, s.Segment)
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		err = notAllowed(err)
		a.o.Log.Warn("seal may not be read; the segment is read by its headers", "segment", g.name, "err", err)
		return true, nil, err
	case err != nil:
		a.o.Log.Error("seal is damaged; the segment is read by its headers", "segment", g.name, "err", err)
		return true, nil, err
	}
	a.keepSeal(g, s)
	return true, s, nil
}

func (a *Archive) keepSeal(g *segment, s *seal) {
	// The hashes are the bulk of it, and only verification needs them: it
	// reads the file.
	s.BlockHashes = nil
	a.mu.Lock()
	a.seals[g.dir] = s
	a.mu.Unlock()
}

// refs lists the recordings, ordered.
func (a *Archive) refs() ([]Ref, error) {
	fs := a.o.FS
	channels, err := fs.List(a.dir)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", a.dir, err)
	}
	var out []Ref
	for _, ch := range channels {
		dir := fs.PathJoin(a.dir, ch)
		if st, err := fs.Stat(dir); !ValidChannel(ch) || err != nil || !st.IsDir() {
			continue
		}
		names, err := fs.List(dir)
		if err != nil {
			return nil, fmt.Errorf("channel %s: %w", ch, err)
		}
		for _, name := range names {
			s, take, ok := parseRecordingName(name)
			if !ok {
				continue
			}
			if st, err := fs.Stat(fs.PathJoin(dir, name)); err == nil && st.IsDir() {
				out = append(out, Ref{Channel: ch, Session: s, Take: take})
			}
		}
	}
	slices.SortFunc(out, func(x, y Ref) int {
		if c := strings.Compare(x.Channel, y.Channel); c != 0 {
			return c
		}
		if c := strings.Compare(x.Session.String(), y.Session.String()); c != 0 {
			return c
		}
		return x.Take - y.Take
	})
	return out, nil
}

func (a *Archive) sessionDir(r Ref) string {
	fs := a.o.FS
	return fs.PathJoin(fs.PathJoin(a.dir, r.Channel), recordingName(r.Session, r.Take))
}

func (a *Archive) newSession(r Ref) *session {
	return &session{a: a, ref: r, dir: a.sessionDir(r)}
}

// session is the shared catalogue of a recording, read from the directory
// when nobody asked for it before. Its error wraps ErrNotFound where there is
// no such recording.
func (a *Archive) session(r Ref) (*session, error) {
	a.mu.Lock()
	s, closed := a.sessions[r], a.closed
	a.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case s != nil:
		return s, nil
	}
	s = a.newSession(r)
	if _, err := a.o.FS.Stat(s.dir); isNotExist(err) {
		return nil, a.notFound(r.String(), ErrNotFound)
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if other := a.sessions[r]; other != nil {
		return other, nil
	}
	a.sessions[r] = s
	return s, nil
}

func (a *Archive) notFound(name string, kind error) error {
	refs, err := a.refs()
	if err != nil {
		return err
	}
	e := &nameError{name: name, kind: kind}
	for _, r := range refs {
		e.have = append(e.have, r.String())
	}
	return e
}

// Find resolves CHANNEL/SESSION or SESSION, either with @TAKE; without it take
// 1 is meant. Errors wrap ErrNotFound or ErrAmbiguous and list what there is.
func (a *Archive) Find(name string) (Ref, error) {
	refs, err := a.refs()
	if err != nil {
		return Ref{}, err
	}
	channel, rest, qualified := strings.Cut(name, "/")
	if !qualified {
		channel, rest = "", name
	}
	if !strings.Contains(rest, "@") {
		rest += "@1"
	}
	want, take, ok := parseRecordingName(rest)
	var found []Ref
	for _, r := range refs {
		if ok && r.Session == want && r.Take == take && (!qualified || r.Channel == channel) {
			found = append(found, r)
		}
	}
	e := &nameError{name: name, kind: ErrNotFound}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		for _, r := range refs {
			e.have = append(e.have, r.String())
		}
	default:
		e.kind = ErrAmbiguous
		for _, r := range found {
			e.have = append(e.have, r.String())
		}
	}
	return Ref{}, e
}

// Latest is the newest take of a session on a channel; ok is false when there
// is none.
func (a *Archive) Latest(channel string, s moldcast.Session) (latest Ref, ok bool) {
	refs, err := a.refs()
	if err != nil {
		return Ref{}, false
	}
	for _, r := range refs {
		if r.Channel == channel && r.Session == s {
			latest, ok = r, true // the last one: they are ordered
		}
	}
	return latest, ok
}

// View opens a recording for reading. One that this process writes is read
// live. Of one that another process writes, what is sealed is read, and what
// it seals later within a second. One that nobody writes and that was not
// closed in order is recovered and sealed first; where nothing can be written,
// it is read as it is. Errors wrap ErrNotFound or ErrClosed.
func (a *Archive) View(r Ref) (*View, error) {
	s, err := a.session(r)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	live := s.w != nil
	s.mu.Unlock()
	if live {
		return newView(s), nil
	}
	if err := s.refresh(); err != nil {
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	open, damaged := s.unread()
	if len(open) > 0 {
		if err := s.settle(); err != nil {
			return nil, err
		}
	}
	s.readUnsealed(damaged)
	return newView(s), nil
}

// unread is unsealed without the segments that were read or given up.
func (s *session) unread() (open, damaged []*segment) {
	known := func(g *segment) bool { return g.idx.Load() != nil || g.fault != nil && !g.sealed }
	open, damaged = s.unsealed()
	return slices.DeleteFunc(open, known), slices.DeleteFunc(damaged, known)
}

// makeshift reports whether a segment was read as it lay there, unsealed.
func (s *session) makeshift() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segs {
		if !g.sealed && (g.idx.Load() != nil || g.fault != nil) {
			return true
		}
	}
	return len(s.mem) > 0
}

// settle recovers and seals what a writer that is gone left unsealed, or
// reads it as it is where nothing can be written.
func (s *session) settle() error {
	lock, err := s.lock(true)
	switch {
	case errors.Is(err, ErrLocked):
		// Other readers hold it too, but shared; only a writer does not.
		shared, err := s.lock(false)
		if err != nil {
			s.a.o.Log.Info("session is being written; it is read up to its sealed end", "session", s.ref)
			return nil
		}
		defer shared.Close()
		if err := s.refresh(); err != nil {
			return fmt.Errorf("%v: %w", s.ref, err)
		}
		open, _ := s.unread()
		s.readUnsealed(open)
		return nil
	case err != nil:
		return err
	}
	defer lock.Close()
	if err := s.refresh(); err != nil { // it may have been sealed meanwhile
		return fmt.Errorf("%v: %w", s.ref, err)
	}
	if s.remakeSeals() {
		if err := s.refresh(); err != nil {
			return fmt.Errorf("%v: %w", s.ref, err)
		}
	}
	open, _ := s.unread()
	for _, g := range open {
		err := s.recover(g, func() {})
		if err == nil {
			err = s.seal(g, s.leave(g, errMergeReader))
		}
		if err == nil {
			continue
		}
		if !isReadOnlyMedium(err) {
			s.a.o.Log.Error("segment cannot be recovered; it is left as it is", "segment", g.name, "err", err)
		}
		g.abandon()
		s.readUnsealed([]*segment{g})
	}
	return nil
}

// LockChannel takes a channel for one capture, so that a second one does not
// find out session by session. Imports and readers do not ask for it. The
// error wraps ErrLocked while another has it. release lets go.
func (a *Archive) LockChannel(channel string) (release func() error, err error) {
	if !ValidChannel(channel) {
		return nil, fmt.Errorf("channel %q is no name", channel)
	}
	dir := a.o.FS.PathJoin(a.dir, channel)
	a.reserve.yield(channel)
	if err := makeDir(a.o.FS, dir); err != nil {
		return nil, err
	}
	c, err := a.locker.lock(dir, true)
	if errors.Is(err, errHeld) {
		return nil, fmt.Errorf("%w: channel %s of %s is being captured already", ErrLocked, channel, a.dir)
	}
	if err != nil {
		return nil, err
	}
	return c.Close, nil
}

// seal seals one segment that nothing is written to any more. left is why it
// was not merged, where that was due.
func (s *session) seal(g *segment, left error) error {
	s.mu.Lock()
	prev := s.lastSeal(g.num)
	s.mu.Unlock()
	sl, err := g.finish(s.a, prev, left)
	if err != nil {
		return err
	}
	s.a.keepSeal(g, sl)
	s.mu.Lock()
	g.sealed, g.seal = true, sl
	g.sound.Store(sl)
	s.noteSeal(sealRef{g.num, sl.Sum})
	s.mu.Unlock()
	if err := s.writeSessionInfo(); err != nil {
		s.mu.Lock()
		if s.w != nil {
			s.w.dirtyFile = true // again when it is closed
		}
		s.mu.Unlock()
		s.a.o.Log.Warn("session.json does not name the newest seal", "session", s.ref, "err", err)
	}
	// From here on the index comes and goes with the open segments. Who read it
	// while its store had failed may not have seen all of it.
	s.a.table.forget(g)
	g.idx.Store(nil)
	if h, err := s.a.table.acquire(g); err == nil {
		s.a.table.release(h)
	}
	level := slog.LevelInfo
	if s.a.o.Quiet {
		level = slog.LevelDebug
	}
	s.a.o.Log.Log(context.Background(), level, "segment sealed", "segment", g.name, "messages", sl.Messages, "blocks", sl.Blocks, "bytes", sl.BytesDisk)
	return nil
}

// recover opens for writing a segment that was not sealed: what its log holds
// is taken up, and its tail records become blocks. After a crash in between it
// is done again: the headers, which make blocks of the bodies, and the
// deletions are one batch.
func (s *session) recover(g *segment, wake func()) error {
	a := s.a
	dec, err := block.NewDecoder(block.DecoderOptions{})
	if err != nil {
		return err
	}
	defer dec.Close()
	if err := g.open(a, wake); err != nil {
		return err
	}
	db, x := g.db, g.idx.Load()
	fail := func(err error) error {
		g.idx.Store(nil)
		return fmt.Errorf("%s: %w", g.name, err)
	}
	if err := g.dropOrphans(); err != nil {
		return fail(err)
	}
	holes, err := readHoles(db)
	if err != nil {
		return fail(err)
	}
	fills, err := readFills(db)
	if err != nil {
		return fail(err)
	}
	captures, err := readCaptures(db)
	if err != nil {
		return fail(err)
	}
	f, err := readFacts(db)
	if err != nil {
		return fail(err)
	}
	tails, err := readTails(db, s.ref.Session, dec)
	if err != nil {
		return fail(err)
	}
	s.mu.Lock()
	s.addIndex(g, x, holes, fills, captures, f)
	cov, synced := s.cov.Clone(), s.synced.Clone()
	mem := s.takeTails(g, tails, nextID(x, tails))
	s.mu.Unlock()
	if len(tails) > 0 {
		if err := s.commitTails(g, tails, mem); err != nil {
			s.mu.Lock()
			s.cov, s.synced = cov, synced
			s.mu.Unlock()
			return fail(err)
		}
	}
	n := 0
	s.mu.Lock()
	for _, m := range mem {
		n += m.parsed.Messages
		x.add(&m.parsed, m.id)
		for _, r := range m.parsed.Runs {
			s.addRun(r, g)
		}
	}
	next := s.next()
	s.mu.Unlock()
	a.o.Log.Info("segment recovered", "segment", g.name, "blocks", len(x.blocks), "messages", x.messages,
		"tail_records", len(tails), "tail_messages", n, "next_seq", next)
	return nil
}

// commitTails writes what the tail records of g held as blocks: the bodies as
// tables, then the headers and the deletion of the records in one batch.
func (s *session) commitTails(g *segment, tails []tailRecord, mem []*memBlock) error {
	b := g.db.NewBatch()
	defer b.Close()
	enc := s.a.newEncoders(new(plans))
	lines := slices.Clone(g.lines)
	for _, m := range mem {
		note, err := enc.encode(m, 0, true, nil)
		if note != nil {
			s.a.o.Log.Error("block was encoded wrongly; it is stored as rows", "segment", g.name, "range", m.parsed.Range(), "err", note)
		}
		if err != nil {
			return err
		}
		if err := putBlock(b, m); err != nil {
			return err
		}
		lines = addLines(lines, m.lines)
	}
	if err := putJSON(b, metaLines, lines); err != nil {
		return err
	}
	for _, t := range tails {
		if t.err != nil {
			continue // what cannot be read stays, as evidence
		}
		if err := b.Delete(t.key, nil); err != nil {
			return err
		}
	}
	err := guard(g.log, func() error { return g.ingest(g.db, mem) })
	if err == nil {
		err = guard(g.log, func() error { return g.db.Apply(b, pebble.Sync) })
	}
	if err != nil {
		return err
	}
	g.lines = lines
	return nil
}

// nextID is beyond every block id that a segment uses.
func nextID(x *index, tails []tailRecord) uint64 {
	id := uint64(1)
	for _, m := range x.marks {
		id = max(id, m.id+1)
	}
	for _, t := range tails {
		if block, ok := tailBlock(t.key); ok {
			id = max(id, block+1)
		}
	}
	return id
}

// writeSessionInfo writes session.json.
func (s *session) writeSessionInfo() error {
	s.mu.Lock()
	info := sessionInfo{
		Format:   FormatVersion,
		identity: identity{s.ref.Channel, s.ref.Session, s.ref.Take},
		Made:     s.made, facts: s.facts,
	}
	if newest := s.newest; newest.Segment != 0 {
		info.Newest = &newest
	}
	s.mu.Unlock()
	return writeSummed(s.a.o.FS, s.dir, sessionFile, info)
}

// prepare makes the directory of a recording, takes its lock, and reads it.
func (a *Archive) prepare(r Ref) (*session, io.Closer, error) {
	fs := a.o.FS
	dir := a.sessionDir(r)
	if err := a.present(); err != nil {
		return nil, nil, err
	}
	a.reserve.yield(r.Channel)
	if err := makeDir(fs, fs.PathDir(dir)); err != nil {
		return nil, nil, fmt.Errorf("%v: %w", r, err)
	}
	if err := makeDir(fs, dir); err != nil {
		return nil, nil, fmt.Errorf("%v: %w", r, err)
	}
	if a.infoErr != nil {
		info := archiveInfo{Format: FormatVersion, Node: a.o.Node, Made: a.o.Clock().UTC()}
		if err := writeArchiveInfo(fs, a.dir, info, false); err != nil {
			return nil, nil, fmt.Errorf("archive %s: %w", a.dir, err)
		}
	}
	s, err := a.session(r)
	if err != nil {
		return nil, nil, err
	}
	lock, err := s.lock(true)
	if err != nil {
		return nil, nil, err
	}
	if s.makeshift() {
		// Readers go on with what they have.
		a.forget(s)
		if s, err = a.session(r); err != nil {
			lock.Close()
			return nil, nil, err
		}
	}
	err = s.refresh()
	if err == nil && s.remakeSeals() {
		err = s.refresh()
	}
	if err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("%v: %w", r, err)
	}
	s.mu.Lock()
	fresh := s.made.IsZero()
	if fresh {
		s.made = a.o.Clock().UTC().Truncate(time.Second)
	}
	s.mu.Unlock()
	var version *VersionError
	if _, err := readSessionInfo(a, s.dir); errors.As(err, &version) {
		lock.Close()
		return nil, nil, err
	} else if err != nil {
		if !isNotExist(err) {
			a.o.Log.Warn("session.json is rebuilt from the segments", "session", r, "err", err)
		}
		if err := s.writeSessionInfo(); err != nil {
			lock.Close()
			return nil, nil, fmt.Errorf("%v: %w", r, err)
		}
	}
	return s, lock, nil
}
