package store

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// maxOpenSegments bounds the sealed segments open at a time. Beyond it the
// one unused for longest is closed; only segments in use at the same time can
// exceed it.
const maxOpenSegments = 64

// maxOpenFiles bounds the tables and blob files of them all that are open: a
// segment of the usual size has hundreds.
const maxOpenFiles = 512

// table is the sealed segments open for reading, shared by every reader of an
// archive. While anybody uses one it is leased (see leaser), so that it is not
// pruned; one that is merely kept open is not.
type table struct {
	fs     vfs.FS
	leaser leaser
	cache  *pebble.Cache
	files  *pebble.FileCache
	log    *slog.Logger

	noSalvage bool

	mu     sync.Mutex
	open   map[*segment]*handle
	lru    list.List // of *handle, most recently used first
	closed bool
}

// handle is one open segment. db, idx and err are set when ready is closed.
type handle struct {
	seg   *segment
	ready chan struct{}
	db    *pebble.DB
	idx   *index
	err   error
	refs  int // guarded by the table
	elem  *list.Element
	lease useLease

	// Where the store is damaged: db is nil when openErr says why it cannot be
	// opened, and raw is what its files hold.
	openErr error
	rawOnce sync.Once
	raw     *salvage
	rawErr  error
}

func newTable(fs vfs.FS, cache *pebble.Cache, log *slog.Logger) *table {
	return &table{
		fs: fs, leaser: leaserOf(fs), cache: cache, log: log, open: map[*segment]*handle{},
		files: pebble.NewFileCache(1, maxOpenFiles),
	}
}

// acquire opens g, or joins who does; release gives it back. The error wraps
// errGone where the segment is no longer there.
func (t *table) acquire(g *segment) (*handle, error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, ErrClosed
	}
	if h := t.open[g]; h != nil {
		h.refs++
		t.lru.MoveToFront(h.elem)
		t.mu.Unlock()
		<-h.ready
		if h.err != nil {
			t.unref(h)
			return nil, h.err
		}
		if err := h.lease.take(t.fs, t.leaser, g); err != nil {
			if errors.Is(err, errGone) {
				t.mu.Lock()
				t.drop(h)
				t.mu.Unlock()
			}
			t.unref(h)
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
		// A reader may have opened g while its writer still had the index.
		g.idx.CompareAndSwap(nil, h.idx)
		return h, nil
	}
	h := &handle{seg: g, ready: make(chan struct{}), refs: 1}
	h.elem = t.lru.PushFront(h)
	t.open[g] = h
	t.mu.Unlock()

	leased := false
	if h.err = h.lease.take(t.fs, t.leaser, g); h.err == nil {
		leased = true
		h.db, h.err = openForRead(g.dir, t.fs, t.cache, t.files, t.log.With("segment", g.name))
	}
	if h.err == nil {
		if h.idx, h.err = readIndex(h.db, g.id.Session, nil); h.err == nil {
			logBadHeaders(t.log, g, h.idx)
		} else {
			closeQuietly(h.db)
			h.db = nil
		}
	}
	if leased {
		h.fallBack(t)
	}
	if h.err == nil {
		g.idx.CompareAndSwap(nil, h.idx)
	}
	if h.err != nil {
		h.err = fmt.Errorf("%s: %w", g.name, h.err)
		t.mu.Lock()
		t.drop(h) // the next one tries again
		t.mu.Unlock()
	}
	close(h.ready)
	if h.err != nil {
		if leased {
			h.lease.give()
		}
		t.unref(h)
		return nil, h.err
	}
	t.trim()
	return h, nil
}

func (t *table) release(h *handle) {
	h.lease.give()
	t.unref(h)
}

func (t *table) unref(h *handle) {
	t.mu.Lock()
	h.refs--
	gone := h.refs == 0 && h.elem == nil && h.err == nil
	t.mu.Unlock()
	if gone {
		t.close(h)
	}
}

// drop takes h off the table. REQUIRES: t.mu.
func (t *table) drop(h *handle) {
	if h.elem != nil {
		t.lru.Remove(h.elem)
		h.elem = nil
		delete(t.open, h.seg)
	}
}

// trim closes what is beyond the bound and not in use.
func (t *table) trim() {
	var out []*handle
	t.mu.Lock()
	for e := t.lru.Back(); e != nil && t.lru.Len() > maxOpenSegments; {
		h := e.Value.(*handle)
		e = e.Prev()
		if h.refs == 0 {
			t.drop(h)
			out = append(out, h)
		}
	}
	t.mu.Unlock()
	for _, h := range out {
		t.close(h)
	}
}

func (t *table) close(h *handle) {
	h.seg.idx.CompareAndSwap(h.idx, nil)
	if h.db == nil {
		return
	}
	if err := protect(h.db.Close); err != nil {
		level := slog.LevelWarn
		if errors.Is(err, errPanic) {
			level = slog.LevelDebug // what is wrong with it was said when it was read
		}
		t.log.Log(context.Background(), level, "closing a sealed segment", "segment", h.seg.name, "err", err)
	}
}

// forget closes g, once nobody uses it.
func (t *table) forget(g *segment) {
	t.mu.Lock()
	h := t.open[g]
	idle := false
	if h != nil {
		t.drop(h)
		idle = h.refs == 0
	}
	t.mu.Unlock()
	if idle {
		t.close(h)
	}
}

// shut closes every segment that is not in use, and lets no other be opened.
func (t *table) shut() error {
	t.mu.Lock()
	t.closed = true
	var idle []*handle
	used := 0
	for _, h := range t.open {
		if h.refs > 0 {
			used++
		} else {
			idle = append(idle, h)
		}
		t.drop(h)
	}
	t.mu.Unlock()
	for _, h := range idle {
		t.close(h)
	}
	if used > 0 {
		return errors.New("store: archive closed while its segments are read")
	}
	return nil
}
