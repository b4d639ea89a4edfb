package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// errStoreLost: a segment's directory holds files of a store, but nothing says
// any more which of them count.
var errStoreLost = errors.New("its store cannot be found by its manifest; restore MANIFEST-* and marker.* from a copy")

// errNoRoom: what a log holds cannot be taken up, for lack of space.
var errNoRoom error = noRoom{}

type noRoom struct{}

func (noRoom) Error() string        { return "no room on the disk" }
func (noRoom) Is(target error) bool { return target == syscall.ENOSPC }

// holdsData reports whether a directory holds files that can have data of a
// store in them. Before the first of them is written to, its manifest is on
// record: where there is none, it was lost.
func holdsData(fs vfs.FS, dir string) bool {
	names, err := fs.List(dir)
	if err != nil {
		return false
	}
	for _, name := range names {
		switch {
		case name == sealFile, strings.HasSuffix(name, ".sst"), strings.HasSuffix(name, ".blob"):
			return true
		case strings.HasSuffix(name, ".log"):
			if st, err := fs.Stat(fs.PathJoin(dir, name)); err == nil && st.Size() > 0 {
				return true
			}
		}
	}
	return false
}

// notMade reports whether err says that g was only just being made, and never
// held anything.
func (g *segment) notMade(fs vfs.FS, err error) bool {
	return errors.Is(err, pebble.ErrDBDoesNotExist) && !g.sealed && !holdsData(fs, g.dir)
}

const (
	// openPatience is how long an open may take, and openGrace what is left of
	// it once a write failed: behind its fence nothing waits for the disk.
	openPatience = time.Minute
	openGrace    = time.Second

	openSpare = 1 << 20 // that must be free beyond what a log holds
)

// attempt is an open for writing on its way. Where the disk does not answer it
// is left as it is, and joined by the next try.
type attempt struct {
	fence *fenceFS
	log   *pebbleLog
	done  chan struct{}
	db    *pebble.DB // with err, once done is closed
	err   error
}

// openStore opens the store of g for writing, or joins who does. wake is
// called, from anywhere, when the store fails.
func (g *segment) openStore(a *Archive, wake func()) (*attempt, error) {
	if err := g.room(a.o.FS); err != nil {
		return nil, err
	}
	g.mu.Lock()
	t := g.opening
	if t == nil {
		t = &attempt{fence: newFenceFS(a.o.FS), done: make(chan struct{})}
		t.log = &pebbleLog{log: a.o.Log.With("segment", g.name), say: true, down: make(chan struct{}), onErr: func(error) { wake() }}
		t.fence.log, t.log.fence = t.log, t.fence
		g.opening = t
		go func() {
			defer close(t.done)
			t.db, t.err = openForWrite(g.dir, t.fence, a.pebbleCache, t.log)
			if db := t.db; t.err != nil && db != nil {
				t.db = nil
				go closeQuietly(db)
			}
		}()
	}
	g.mu.Unlock()
	patience := time.NewTimer(openPatience)
	defer patience.Stop()
	down := t.log.down
	for {
		select {
		case <-t.done:
			g.mu.Lock()
			if g.opening == t {
				g.opening = nil
			}
			g.mu.Unlock()
			return t, t.err
		case <-down:
			down = nil
			patience.Reset(openGrace)
		case <-patience.C:
			if err := t.log.Err(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("it is not open after %v: the disk does not answer", openPatience)
		}
	}
}

// giveUp lets an open that is on its way reach nothing any more, and end.
func (t *attempt) giveUp() {
	t.fence.raise()
	go func() {
		<-t.done
		if t.db != nil {
			closeQuietly(t.db)
		}
	}()
}

// room checks that there is room for what the log of g holds, which is written
// again when it is opened.
func (g *segment) room(fs vfs.FS) error {
	names, err := fs.List(g.dir)
	if err != nil {
		return nil
	}
	var need uint64
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		if st, err := fs.Stat(fs.PathJoin(g.dir, name)); err == nil {
			need += uint64(st.Size())
		}
	}
	if need == 0 {
		return nil
	}
	u, err := fs.GetDiskUsage(g.dir)
	if err != nil || u.TotalBytes == 0 || u.AvailBytes >= need+openSpare {
		return nil
	}
	return fmt.Errorf("%w: %d MiB free, %d MiB needed to take up what its log holds; make room and try again", errNoRoom, u.AvailBytes>>20, (need+openSpare)>>20)
}

// hint is err with what a person can do about it.
func hint(err error) error {
	if isNoRoom(err) && !errors.Is(err, errNoRoom) {
		return fmt.Errorf("%w: make room on the disk", err)
	}
	return err
}

// notAllowed says of an error of reading that it is no damage, where it is that.
func notAllowed(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: the user of this process may not read it, which is no damage", err)
	}
	return err
}
