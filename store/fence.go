package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fenceFS is the file system of one open of one segment for writing. A Pebble
// store whose log failed cannot be used any more; the fence keeps what is left
// of it off the directory, so that it can be opened anew. Once it is up, no
// change reaches the directory. What Pebble is told then:
//
//   - while the store is read (between opened and raise), that every change
//     fails: what is in memory stays there. Pebble retries a failing flush
//     without a pause, so that its tables are refused after one.
//   - else that all went well, which is neither on disk nor believed, since
//     log is marked as dead: Pebble ends neither an open nor a Close before
//     its flushes succeed.
type fenceFS struct {
	vfs.FS
	up     atomic.Bool
	unread atomic.Bool
	log    *pebbleLog // told of failures of the log; nil: they are returned

	mu     sync.Mutex
	locks  []*fenceLock
	raised chan struct{} // closed by raise
}

// fencePause is how long a table of a store that failed is kept waiting.
const fencePause = time.Second

var errFenced = errors.New("store: given up after a failed write")

// errNotLinked is errFenced of a link, which Pebble would else try to copy.
var errNotLinked = fmt.Errorf("%w: %w", errFenced, os.ErrPermission)

func newFenceFS(fs vfs.FS) *fenceFS {
	f := &fenceFS{FS: fs, raised: make(chan struct{})}
	f.unread.Store(true)
	return f
}

// opened says that the store is open, and read from now on.
func (f *fenceFS) opened() { f.unread.Store(false) }

// raise raises the fence and frees the locks held behind it. Nobody reads the
// store any more.
func (f *fenceFS) raise() {
	if f.log != nil {
		f.log.fail(errFenced)
	}
	f.up.Store(true)
	f.unread.Store(true)
	f.mu.Lock()
	locks := f.locks
	f.locks = nil
	select {
	case <-f.raised:
	default:
		close(f.raised)
	}
	f.mu.Unlock()
	for _, l := range locks {
		_ = l.Close()
	}
}

// through reports whether a change may be made; err is what to say where not.
func (f *fenceFS) through() (ok bool, err error) {
	switch {
	case !f.up.Load():
		return true, nil
	case f.unread.Load():
		return false, nil
	}
	return false, errFenced
}

type fenceLock struct {
	once sync.Once
	c    io.Closer
	err  error
}

func (l *fenceLock) Close() error {
	l.once.Do(func() { l.err = l.c.Close() })
	return l.err
}

func (f *fenceFS) Lock(name string) (io.Closer, error) {
	if ok, err := f.through(); !ok {
		return nopCloser{}, err
	}
	c, err := f.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	l := &fenceLock{c: c}
	f.mu.Lock()
	f.locks = append(f.locks, l)
	f.mu.Unlock()
	return l, nil
}

// file makes or opens a file for writing.
func (f *fenceFS) file(open func() (vfs.File, error)) (vfs.File, error) {
	if ok, err := f.through(); !ok {
		return noFile{}, err
	}
	x, err := open()
	if err != nil {
		return nil, err
	}
	return &fenceFile{File: x, fs: f}, nil
}

// logFile is file of what may be Pebble's log: where Pebble cannot close a log
// or begin the next it ends the process, by a panic without the lock that its
// caller then unlocks. So a failure of the log is told to pebbleLog, before
// which nothing that was handed to it is believed, and Pebble hears nothing.
func (f *fenceFS) logFile(name string, create func() (vfs.File, error)) (vfs.File, error) {
	x, err := f.file(create)
	switch {
	case f.log == nil:
	case strings.HasSuffix(name, ".log"):
		if err != nil {
			f.log.fail(err)
			return noFile{}, nil
		}
		return &quietFile{File: x, log: f.log}, nil
	case errors.Is(err, errFenced) && (strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")):
		pause := time.NewTimer(fencePause)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-f.raised:
		}
	}
	return x, err
}

// noFile takes the place of a file that could not be made.
type noFile struct{ vfs.File }

func (noFile) Write(b []byte) (int, error)            { return len(b), nil }
func (noFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (noFile) Preallocate(int64, int64) error         { return nil }
func (noFile) Sync() error                            { return nil }
func (noFile) SyncData() error                        { return nil }
func (noFile) SyncTo(int64) (bool, error)             { return true, nil }
func (noFile) Close() error                           { return nil }
func (noFile) Fd() uintptr                            { return vfs.InvalidFd }
func (noFile) Read([]byte) (int, error)               { return 0, errFenced }
func (noFile) ReadAt([]byte, int64) (int, error)      { return 0, errFenced }
func (noFile) Stat() (vfs.FileInfo, error)            { return noInfo{}, nil }
func (noFile) Prefetch(int64, int64) error            { return nil }

// noInfo is that of a file of which nothing can be told: Pebble asks how long
// a log is that it uses again.
type noInfo struct{}

func (noInfo) Name() string           { return "" }
func (noInfo) Size() int64            { return 0 }
func (noInfo) Mode() os.FileMode      { return 0 }
func (noInfo) ModTime() time.Time     { return time.Time{} }
func (noInfo) IsDir() bool            { return false }
func (noInfo) Sys() any               { return nil }
func (noInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

// logStep is how much room is set aside for a log at a time. Pebble asks for
// as much as its memory holds, 17 MiB, which a log that failed would keep: on a
// small disk that never has room to open the segment anew.
const logStep = 1 << 20

// quietFile is a log, or the directory it lies in, whose failures are told to
// log alone. Only its owner writes to it.
type quietFile struct {
	vfs.File
	log     *pebbleLog
	at      int64 // where the next Write goes
	set     int64 // up to where room is set aside
	allowed int64 // and may be
}

// Preallocate is taken up step by step as the log is written.
func (f *quietFile) Preallocate(at, n int64) error {
	f.set, f.allowed = max(f.set, at), at+n
	f.setAside(f.at + 1)
	return nil
}

// setAside sees that there is room up to where. A file system that has none, or
// cannot set it aside, says so when it is written to.
func (f *quietFile) setAside(where int64) {
	for f.set < min(where, f.allowed) {
		n := min(logStep, f.allowed-f.set)
		if f.File.Preallocate(f.set, n) != nil {
			f.allowed = f.set
			return
		}
		f.set += n
	}
}

func (f *quietFile) told(err error) error {
	if err != nil {
		f.log.fail(err)
	}
	return nil
}

func (f *quietFile) Write(b []byte) (int, error) {
	f.setAside(f.at + int64(len(b)))
	f.at += int64(len(b))
	_, err := f.File.Write(b)
	return len(b), f.told(err)
}

func (f *quietFile) WriteAt(b []byte, at int64) (int, error) {
	_, err := f.File.WriteAt(b, at)
	return len(b), f.told(err)
}

func (f *quietFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err != nil {
		return noInfo{}, f.told(err)
	}
	return info, nil
}

func (f *quietFile) Sync() error     { return f.told(f.File.Sync()) }
func (f *quietFile) SyncData() error { return f.told(f.File.SyncData()) }
func (f *quietFile) Close() error    { return f.told(f.File.Close()) }

func (f *quietFile) SyncTo(n int64) (bool, error) {
	full, err := f.File.SyncTo(n)
	return full, f.told(err)
}

func (f *fenceFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		// It names a file that was only just made. Pebble syncs the directory
		// once, after this: the marker could outlive a crash without the file.
		if ok, err := f.through(); !ok {
			return noFile{}, err
		}
		if err := syncDir(f.FS, f.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return f.logFile(name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *fenceFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.file(func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
}

func (f *fenceFS) OpenDir(name string) (vfs.File, error) {
	x, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	x = &fenceFile{File: x, fs: f}
	if f.log != nil {
		x = &quietFile{File: x, log: f.log}
	}
	return x, nil
}

func (f *fenceFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.logFile(to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, c) })
}

func (f *fenceFS) Link(from, to string) error {
	if ok, err := f.through(); !ok {
		if err != nil {
			err = errNotLinked
		}
		return err
	}
	return f.FS.Link(from, to)
}

func (f *fenceFS) Remove(name string) error {
	if ok, err := f.through(); !ok {
		return err
	}
	return f.FS.Remove(name)
}

func (f *fenceFS) RemoveAll(name string) error {
	if ok, err := f.through(); !ok {
		return err
	}
	return f.FS.RemoveAll(name)
}

func (f *fenceFS) Rename(from, to string) error {
	if ok, err := f.through(); !ok {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *fenceFS) MkdirAll(dir string, perm os.FileMode) error {
	if ok, err := f.through(); !ok {
		return err
	}
	return f.FS.MkdirAll(dir, perm)
}

func (f *fenceFS) Unwrap() vfs.FS { return f.FS }

type fenceFile struct {
	vfs.File
	fs *fenceFS
}

func (f *fenceFile) Write(b []byte) (int, error) {
	if ok, err := f.fs.through(); !ok {
		return len(b), err
	}
	return f.File.Write(b)
}

func (f *fenceFile) WriteAt(b []byte, at int64) (int, error) {
	if ok, err := f.fs.through(); !ok {
		return len(b), err
	}
	return f.File.WriteAt(b, at)
}

func (f *fenceFile) Preallocate(at, n int64) error {
	if ok, err := f.fs.through(); !ok {
		return err
	}
	return f.File.Preallocate(at, n)
}

func (f *fenceFile) Sync() error {
	if ok, err := f.fs.through(); !ok {
		return err
	}
	return f.File.Sync()
}

func (f *fenceFile) SyncData() error {
	if ok, err := f.fs.through(); !ok {
		return err
	}
	return f.File.SyncData()
}

func (f *fenceFile) SyncTo(n int64) (bool, error) {
	if ok, err := f.fs.through(); !ok {
		return true, err
	}
	return f.File.SyncTo(n)
}
