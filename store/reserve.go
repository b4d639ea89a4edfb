package store

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// reserveFile is the emergency reserve of an archive: a file with allocated
// room and a line of text.
const reserveFile = "reserve"

const reserveText = "Room that moldtape keeps free, to seal and to stop in order on a full disk. It may be deleted.\n"

// DefaultReserve is how much room DefaultOptions keeps in reserve.
const DefaultReserve = 16 << 20

// reserveRetry is how often it is tried to make a reserve anew.
const reserveRetry = 5 * time.Second

// reserve keeps room on the file system of an archive that nothing but the
// last writes of a full disk get. mu guards held and tried; making and
// removing the file are done under turn, so that they do not overlap.
type reserve struct {
	a    *Archive
	turn sync.Mutex

	mu    sync.Mutex
	held  bool
	off   bool // there is to be none
	tried time.Time
}

func (r *reserve) path() string { return r.a.o.FS.PathJoin(r.a.dir, reserveFile) }

// fill makes the reserve where there is none, and room for another of its
// size beside it: what is left of a full disk is not for it.
func (r *reserve) fill() { r.make(false) }

// refill makes it of what a seal that needed it has freed.
func (r *reserve) refill() { r.make(true) }

func (r *reserve) make(again bool) {
	size := r.a.o.Reserve
	r.turn.Lock()
	defer r.turn.Unlock()
	r.mu.Lock()
	due := size > 0 && !r.held && !r.off && (again || time.Since(r.tried) >= reserveRetry)
	if due {
		r.tried = time.Now()
	}
	r.mu.Unlock()
	if !due {
		return
	}
	fs := r.a.o.FS
	if st, err := fs.Stat(r.path()); err == nil && st.IsDir() {
		r.disable() // a channel of that name
		return
	}
	_, err := fs.Stat(r.path())
	if free, known := r.a.free(); !again && isNotExist(err) && known && free < 2*uint64(size) {
		r.a.o.Log.Warn("no room for the emergency reserve", "archive", r.a.dir, "free_bytes", free, "reserve_bytes", size)
		return
	}
	f, err := fs.OpenReadWrite(r.path(), vfs.WriteCategoryUnspecified)
	if err == nil {
		if err = f.Preallocate(0, size); err == nil {
			_, err = f.WriteAt([]byte(reserveText), 0)
		}
		if err == nil {
			err = f.Sync()
		}
		if e := f.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		_ = fs.Remove(r.path())
		r.a.o.Log.Warn("cannot make the emergency reserve", "archive", r.a.dir, "reserve_bytes", size, "err", err)
		return
	}
	r.mu.Lock()
	r.held = true
	r.mu.Unlock()
}

// yield gives way to a channel of the same name.
func (r *reserve) yield(channel string) {
	if channel != reserveFile {
		return
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	r.disable()
	if st, err := r.a.o.FS.Stat(r.path()); err == nil && !st.IsDir() {
		_ = r.a.o.FS.Remove(r.path())
	}
}

func (r *reserve) disable() {
	r.mu.Lock()
	r.off = true
	r.mu.Unlock()
}

// release gives its room to whoever writes next, and reports whether there
// was any.
func (r *reserve) release() bool {
	if r.a.o.Reserve <= 0 {
		return false
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	r.mu.Lock()
	off := r.off
	r.held, r.tried = false, time.Now()
	r.mu.Unlock()
	if off || r.a.o.FS.Remove(r.path()) != nil {
		return false
	}
	r.a.o.Log.Warn("emergency reserve released", "archive", r.a.dir, "bytes", r.a.o.Reserve)
	return true
}

// retry runs fn, and once more with the reserve where the disk is full.
func (r *reserve) retry(fn func() error) error {
	err := fn()
	if isNoRoom(err) && r.release() {
		err = fn()
	}
	return err
}

// free is how many bytes the file system of the archive has for us; known is
// false where it does not say.
func (a *Archive) free() (n uint64, known bool) {
	u, err := a.o.FS.GetDiskUsage(a.dir)
	return u.AvailBytes, err == nil
}

// present reports whether the archive is where it was: a file system that was
// unmounted leaves an empty directory, into which nothing must be written.
func (a *Archive) present() error {
	_, err := a.o.FS.Stat(a.o.FS.PathJoin(a.dir, archiveFile))
	if isNotExist(err) {
		return fmt.Errorf("archive %s is gone: %w", a.dir, err)
	}
	return err
}

// cause is the kind of a failure, to tell another one from the same again.
func cause(err error) string {
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		return no.Error()
	case errors.Is(err, os.ErrNotExist):
		return syscall.ENOENT.Error()
	}
	return "other"
}

// leastRoom must be free before a segment is opened for writing: that writes
// something, and a try that fails leaves a full disk fuller.
const leastRoom = 4 << 20

// room is an error while the disk is known to have less than leastRoom.
func (a *Archive) room() error {
	if free, known := a.free(); known && free < leastRoom {
		return fmt.Errorf("%w: %d KiB free, %d MiB needed to open a segment; make room and try again", errNoRoom, free>>10, leastRoom>>20)
	}
	return nil
}

// notDurable says what of the session a Writer that is closed leaves in memory
// alone, because of err. REQUIRES: mu.
func (w *Writer) notDurable(err error) error {
	lost := w.inMemory()
	if len(lost) == 0 {
		return err
	}
	return fmt.Errorf("%d messages within %d..%d are not durable, all below %d are: %w", countOf(lost), lost[0].First, lost[len(lost)-1].Next-1, w.s.durable(), err)
}

// inMemory lists what is stored and no sync covers. REQUIRES: mu.
func (w *Writer) inMemory() (lost []moldcast.Range) {
	for _, r := range w.s.cov.Ranges() {
		lost = append(lost, w.s.synced.Missing(r)...)
	}
	return lost
}

// Synced is what a sync covers: first, next and head as of Held, and lost,
// what was stored and is in memory alone. After a Close that failed that is
// what did not come to the disk for certain. All 0 where nothing is durable.
func (w *Writer) Synced() (first, next, head moldcast.Seq, lost []moldcast.Range) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	lost = w.inMemory()
	if s.synced.Len() == 0 {
		return 0, 0, 0, lost
	}
	if first = s.first(); !s.synced.Contains(s.cov.Bounds().First) {
		first = s.synced.Bounds().First
	}
	return first, reach(&s.synced, first), s.synced.Bounds().Next, lost
}
