package store

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// segment is one Pebble store. The session's lock guards sealed, seal, cov
// and lines; mu guards db.
type segment struct {
	num  int
	dir  string
	name string // CHANNEL/SESSION@TAKE/000001.seg
	id   identity

	sealed  bool
	seal    *seal                 // nil: not sealed, or the seal is damaged
	fault   error                 // why it cannot be read, or its seal not
	unknown error                 // why it cannot be told what it holds, unless its seal tells
	sound   atomic.Pointer[seal]  // seal again, for who does not hold the lock
	idx     atomic.Pointer[index] // of the open segment always; of a sealed one while it is open for reading
	lines   []lineCount           // of the open segment
	node    string                // that began it
	opened  time.Time

	// mu is held for reading while db is used, and for writing to change it.
	// db is the store as this process writes it; nil when it does not.
	mu    sync.RWMutex
	db    *pebble.DB
	fence *fenceFS
	log   *pebbleLog
	moved bool // another has taken its place, with other blocks: see install

	opening *attempt // to open it for writing, that did not end yet

	gone goneKeys
}

func newSegment(num int, dir string, id identity) *segment {
	return &segment{
		num: num, dir: dir, id: id,
		name: id.Channel + "/" + recordingName(id.Session, id.Take) + "/" + segmentName(num),
	}
}

// open opens the segment for writing, making it where there is none. Its
// index is loaded; wake is called, from anywhere, when its store fails.
func (g *segment) open(a *Archive, wake func()) error {
	if err := a.present(); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	if err := a.room(); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	if err := makeDir(a.o.FS, g.dir); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	t, err := g.openStore(a, wake)
	if err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	db, fence, log := t.db, t.fence, t.log
	fail := func(err error) error {
		fence.raise()
		closeQuietly(db)
		return fmt.Errorf("%s: %w", g.name, err)
	}
	idx := g.idx.Load()
	if idx == nil {
		if idx, err = readIndex(db, g.id.Session, nil); err != nil {
			return fail(err)
		}
		logBadHeaders(a.o.Log, g, idx)
		if g.lines == nil {
			if g.lines, err = readLines(db); err != nil {
				return fail(err)
			}
		}
	}
	info, err := readSegmentInfo(db)
	switch {
	case errors.Is(err, pebble.ErrNotFound) && len(idx.blocks) > 0:
		return fail(errors.New("its store is empty; what was written to it is gone"))
	case errors.Is(err, pebble.ErrNotFound):
		info = segmentInfo{Format: segmentFormat, identity: g.id, Segment: g.num, Node: a.o.Node, Opened: a.o.Clock().UTC()}
		err = writeSegmentInfo(db, log, info)
	case err != nil:
	case info.Format < 1 || info.Format > segmentFormat:
		err = &VersionError{Path: g.name, Got: info.Format, Want: segmentFormat}
	case info.identity != g.id || info.Segment != g.num:
		err = fmt.Errorf("it is %s/%v@%d segment %d: moved here by hand?", info.Channel, info.Session, info.Take, info.Segment)
	case info.Format < segmentFormat:
		// Before anything of the newer format is written.
		info.Format = segmentFormat
		err = writeSegmentInfo(db, log, info)
	}
	if err != nil {
		return fail(err)
	}
	g.node, g.opened = info.Node, info.Opened
	removeTables(a.o.FS, g.dir)
	g.mu.Lock()
	g.db, g.fence, g.log = db, fence, log
	g.mu.Unlock()
	g.idx.Store(idx)
	return nil
}

// guard runs a write and sees that a failure of the log is an error, whatever
// Pebble makes of it.
func guard(log *pebbleLog, fn func() error) (err error) {
	if log.dead.Load() {
		return log.Err()
	}
	err = protect(fn)
	if errors.Is(err, errPanic) {
		log.fail(err)
	}
	if log.dead.Load() {
		err = log.Err() // what failed first: behind the fence all does
	}
	return err
}

// abandon gives up a segment that this process writes: nothing that is still
// on its way reaches the directory.
func (g *segment) abandon() {
	g.retire()
	g.mu.Lock()
	opening := g.opening
	g.opening = nil
	g.mu.Unlock()
	if opening != nil {
		opening.giveUp()
	}
}

// retire gives up a store that failed, to open it anew. It is closed in the
// background.
func (g *segment) retire() {
	g.mu.Lock()
	db, fence := g.db, g.fence
	g.db, g.fence, g.log = nil, nil, nil
	g.mu.Unlock()
	if db == nil {
		return
	}
	fence.raise()
	go closeQuietly(db)
}

func closeQuietly(db *pebble.DB) {
	_ = protect(db.Close)
}

// dead reports whether the store of an open segment failed.
func (g *segment) dead() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.db == nil || g.log.dead.Load()
}

func readSegmentInfo(db *pebble.DB) (segmentInfo, error) {
	var info segmentInfo
	return info, readMeta(db, metaSegment, &info)
}

func writeSegmentInfo(db *pebble.DB, log *pebbleLog, info segmentInfo) error {
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return guard(log, func() error { return db.Set(metaSegment, b, pebble.Sync) })
}

func readLines(db *pebble.DB) ([]lineCount, error) {
	var lines []lineCount
	err := readMeta(db, metaLines, &lines)
	if errors.Is(err, pebble.ErrNotFound) {
		err = nil
	}
	return lines, err
}

func readFacts(db *pebble.DB) (facts, error) {
	var f facts
	err := readMeta(db, metaFacts, &f)
	if errors.Is(err, pebble.ErrNotFound) {
		err = nil
	}
	return f, err
}

func readMeta(db *pebble.DB, key []byte, v any) error {
	return protect(func() error {
		b, c, err := db.Get(key)
		if err != nil {
			return err
		}
		defer c.Close()
		return json.Unmarshal(b, v)
	})
}

func readHoles(db *pebble.DB) (out []holeRecord, err error) {
	err = scan(db, keyHole, func(_, v []byte) error {
		var h holeRecord
		if err := json.Unmarshal(v, &h); err != nil {
			return err
		}
		out = append(out, h)
		return nil
	})
	return out, err
}

// finish makes a segment that nothing is written to any more immutable: its
// store is flushed and closed, then seal.json written. prev is the sum of the
// seal before, and left why the segment was not merged, where that was due. The
// index stays as it is. On an error the segment is as it was, or closed and not
// sealed: finish may be called again after open.
func (g *segment) finish(a *Archive, prev string, left error) (*seal, error) {
	db := g.db // written only by whoever calls finish
	if db == nil {
		return nil, fmt.Errorf("%s: not open", g.name)
	}
	wrap := func(err error) (*seal, error) { return nil, fmt.Errorf("%s: seal: %w", g.name, err) }
	// With it a seal that is lost can be made again, to the byte.
	at := sealedAt{Sealed: a.o.Clock().UTC(), Node: a.o.Node}
	record, err := json.Marshal(at)
	if err != nil {
		return wrap(err)
	}
	if err := guard(g.log, func() error { return db.Set(metaSealed, record, pebble.NoSync) }); err != nil {
		return wrap(err)
	}
	if err := g.noteLeft(left); err != nil {
		return wrap(err)
	}
	if err := guard(g.log, func() error { return flush(db, g.log) }); err != nil {
		return wrap(err)
	}
	s, _, err := g.describe(db, prev)
	if err != nil {
		return wrap(err)
	}
	live, err := liveTables(db)
	if err != nil {
		return wrap(err)
	}
	if err := g.closeStore(a, live); err != nil {
		return wrap(err)
	}
	s.Sealed, s.Node = at.Sealed, at.Node
	s.BytesDisk = dirBytes(a.o.FS, g.dir)
	b, err := s.encode()
	if err != nil {
		return wrap(err)
	}
	if err := writeFile(a.o.FS, g.dir, sealFile, b); err != nil {
		return wrap(err)
	}
	return s, nil
}

// closeStore closes the store of a segment that is to be sealed, and removes
// what is then of no use. Readers within this process drain before, and wait
// until the files are gone: those that come after open the directory as that of
// a sealed segment, and who listed a file that is about to go could not.
func (g *segment) closeStore(a *Archive, live func(name string) bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := guard(g.log, g.db.Close)
	if err != nil {
		g.fence.raise()
	}
	g.db, g.fence, g.log = nil, nil, nil
	if err != nil {
		return err
	}
	return dropFiles(a, g, live)
}

// liveTables tells the files of tables and blobs that db reads from others.
func liveTables(db *pebble.DB) (func(name string) bool, error) {
	var live map[string]bool
	blobs := true
	err := protect(func() error {
		levels, err := db.SSTables()
		live = map[string]bool{}
		for _, level := range levels {
			for _, t := range level {
				live[t.BackingSSTNum.String()+".sst"] = true
			}
		}
		blobs = db.Metrics().BlobFiles.LiveCount > 0
		return err
	})
	return func(name string) bool {
		return live[name] || blobs && strings.HasSuffix(name, ".blob")
	}, err
}

// dropFiles removes what a segment that is sealed has no use for: logs, since
// everything in them was flushed, and a store that is only read needs none
// (they take the room that was set aside for them); and tables that are not
// live, which Pebble or a merge could not remove.
func dropFiles(a *Archive, g *segment, live func(name string) bool) error {
	fs := a.o.FS
	names, err := fs.List(g.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		table := strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
		if !strings.HasSuffix(name, ".log") && !isTableTmp(name) && (!table || live(name)) {
			continue
		}
		err := fs.Remove(fs.PathJoin(g.dir, name))
		if err != nil {
			err = fs.Remove(fs.PathJoin(g.dir, name))
		}
		if err != nil && !isNotExist(err) {
			a.o.Log.Warn("a file of no use is left in a sealed segment", "segment", g.name, "file", name, "err", err)
		}
	}
	return syncDir(fs, g.dir) // so that nothing of it comes back under the seal
}

// read gives fn the stored header and body of the block whose key is first;
// they are valid until fn returns. Where the store of a sealed segment does
// not give them, or fn refuses them as damaged, they are looked for in its
// files, and fn is called again.
func (g *segment) read(t *table, first moldcast.Seq, fn func(header, body []byte) error) error {
	return g.withStore(t, func(db *pebble.DB) error { return g.readBlock(db, first, fn) },
		func(h *handle) error { return g.readSealed(t, h, first, fn) })
}

// readSealed is read of a segment that this process does not write.
func (g *segment) readSealed(t *table, h *handle, first moldcast.Seq, fn func(header, body []byte) error) (err error) {
	if err = h.openErr; err == nil {
		err = g.readBlock(h.db, first, fn)
		if err == nil || !isDamage(err) {
			return err
		}
	}
	raw, rawErr := h.salvage(t)
	if rawErr != nil {
		return err
	}
	rawErr = raw.read(first, fn)
	if errors.Is(rawErr, errNotSalvaged) {
		if h.openErr != nil {
			err = fmt.Errorf("%w: %w", errNoHeader, err)
		}
		return err
	}
	return rawErr
}

// withStore calls open with the store of g where this process writes it, else
// sealed with g opened for reading. While a store that failed is opened anew
// its files come and go, so what is then read from them tells nothing: it is
// read again from the store that is back.
func (g *segment) withStore(t *table, open func(db *pebble.DB) error, sealed func(h *handle) error) error {
	for {
		if db, unlock := g.store(); db != nil {
			defer unlock()
			return open(db)
		}
		err := g.withHandle(t, sealed)
		if err == nil || !g.isWritten() {
			return err
		}
	}
}

// store is the store of g, until unlock; nil where this process does not write
// g.
func (g *segment) store() (db *pebble.DB, unlock func()) {
	g.mu.RLock()
	if g.db == nil {
		g.mu.RUnlock()
		return nil, nil
	}
	return g.db, g.mu.RUnlock
}

func (g *segment) isWritten() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.db != nil
}

func (g *segment) withHandle(t *table, fn func(h *handle) error) error {
	if g.isMoved() {
		return fmt.Errorf("%s: %w", g.name, errGone)
	}
	h, err := t.acquire(g)
	if err != nil {
		return err
	}
	defer t.release(h)
	return fn(h)
}

// readBlock is read of one store.
func (g *segment) readBlock(db *pebble.DB, first moldcast.Seq, fn func(header, body []byte) error) error {
	var k [9]byte
	var fnErr error
	err := g.value(db, seqKey(k[:0], keyHeader, uint64(first)), func(header []byte) error {
		err := g.value(db, seqKey(k[:0], keyBody, uint64(first)), func(body []byte) error {
			fnErr = fn(header, body)
			return nil
		})
		if err != nil {
			return fmt.Errorf("its body: %w", err)
		}
		return nil
	})
	if err == nil {
		err = fnErr
	}
	return err
}

// isMoved reports whether another segment has taken the place of g.
func (g *segment) isMoved() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.moved
}

// use gives fn the store of g, whether it is being written or sealed.
func (g *segment) use(t *table, fn func(db *pebble.DB) error) error {
	return g.withStore(t, fn, func(h *handle) error {
		if h.db == nil {
			return h.openErr
		}
		return fn(h.db)
	})
}

// decode reads and decodes one block.
func (g *segment) decode(t *table, first moldcast.Seq, dec *block.Decoder, into *block.Block) error {
	return g.readParsed(t, first, func(h block.Header, body []byte) error { return dec.Decode(h, body, into) })
}

// readParsed is read with the header parsed, and checked to be of that block.
func (g *segment) readParsed(t *table, first moldcast.Seq, fn func(h block.Header, body []byte) error) error {
	return g.read(t, first, func(header, body []byte) error {
		h, err := block.ParseHeader(header)
		if err != nil {
			return err
		}
		if h.Session != g.id.Session || h.First() != first {
			return errWrongKey
		}
		return fn(h, body)
	})
}

// decodeMarks reads and decodes one block of marks alone.
func (g *segment) decodeMarks(t *table, id uint64, dec *block.Decoder, into *block.Block) error {
	return g.use(t, func(db *pebble.DB) error {
		k := seqKey(nil, keyMarks, id)
		return g.value(db, k, func(v []byte) error {
			h, err := parseMarksHeader(k, v, g.id.Session)
			if err != nil {
				return err
			}
			_, body, err := splitJoined(v)
			if err != nil {
				return err
			}
			return dec.Decode(h, body, into)
		})
	})
}

// loadIndex sees that the index of g is in memory, and is it.
func (g *segment) loadIndex(t *table) (*index, error) {
	if x := g.idx.Load(); x != nil {
		return x, nil
	}
	h, err := t.acquire(g)
	if err != nil {
		return nil, err
	}
	defer t.release(h)
	return h.idx, nil
}

func logBadHeaders(log *slog.Logger, g *segment, x *index) {
	for _, b := range x.bad {
		log.Warn("block header is damaged; what it holds is not served from here", "segment", g.name, "key", hex.EncodeToString(b.key), "err", b.err)
	}
}
