package store

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// sealedFS shows a file system to readers of sealed segments: nothing can be
// locked, and nothing written.
type sealedFS struct{ vfs.FS }

type nopCloser struct{}

func (nopCloser) Close() error { return nil }

func (sealedFS) Lock(string) (io.Closer, error) { return nopCloser{}, nil }

func (sealedFS) Create(string, vfs.DiskWriteCategory) (vfs.File, error) { return nil, errReadOnly }

func (sealedFS) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, errReadOnly
}

func (sealedFS) ReuseForWrite(string, string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, errReadOnly
}
func (sealedFS) Link(string, string) error          { return errReadOnly }
func (sealedFS) Remove(string) error                { return errReadOnly }
func (sealedFS) RemoveAll(string) error             { return errReadOnly }
func (sealedFS) Rename(string, string) error        { return errReadOnly }
func (sealedFS) MkdirAll(string, os.FileMode) error { return errReadOnly }
func (f sealedFS) Unwrap() vfs.FS                   { return f.FS }

// fenceFS is the file system of one open of one segment for writing. A Pebble
// store whose log failed can neither be used nor, always, closed; up is the
// fence that keeps what is left of it off the directory, so that it can be
// opened anew. Behind the fence every change fails, after a pause, since
// Pebble retries a failing flush without one.
type fenceFS struct {
	vfs.FS
	up    atomic.Bool
	pause time.Duration
	log   *pebbleLog // told of failures of the log; nil: they are returned

	mu    sync.Mutex
	locks []*fenceLock
}

var errFenced = errors.New("store: given up after a failed write")

func newFenceFS(fs vfs.FS) *fenceFS { return &fenceFS{FS: fs, pause: time.Second} }

// raise raises the fence and frees the locks held behind it.
func (f *fenceFS) raise() {
	f.up.Store(true)
	f.mu.Lock()
	locks := f.locks
	f.locks = nil
	f.mu.Unlock()
	for _, l := range locks {
		_ = l.Close()
	}
}

func (f *fenceFS) check() error {
	if !f.up.Load() {
		return nil
	}
	time.Sleep(f.pause)
	return errFenced
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
	if err := f.check(); err != nil {
		return nil, err
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

func (f *fenceFS) file(x vfs.File, err error) (vfs.File, error) {
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
	err := f.check()
	var x vfs.File
	if err == nil {
		x, err = f.file(create())
	}
	if f.log == nil || !strings.HasSuffix(name, ".log") {
		return x, err
	}
	if err != nil {
		f.log.fail(err)
		return noFile{}, nil
	}
	return &quietFile{File: x, log: f.log}, nil
}

// noFile takes the place of a log that could not be made.
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

// quietFile is a log, or the directory it lies in, whose failures are told to
// log alone.
type quietFile struct {
	vfs.File
	log *pebbleLog
}

func (f *quietFile) told(err error) error {
	if err != nil {
		f.log.fail(err)
	}
	return nil
}

func (f *quietFile) Write(b []byte) (int, error) {
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

func (f *quietFile) Preallocate(at, n int64) error { return f.told(f.File.Preallocate(at, n)) }
func (f *quietFile) Sync() error                   { return f.told(f.File.Sync()) }
func (f *quietFile) SyncData() error               { return f.told(f.File.SyncData()) }
func (f *quietFile) Close() error                  { return f.told(f.File.Close()) }

func (f *quietFile) SyncTo(n int64) (bool, error) {
	full, err := f.File.SyncTo(n)
	return full, f.told(err)
}

func (f *fenceFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		// It names a file that was only just made. Pebble syncs the directory
		// once, after this: the marker could outlive a crash without the file.
		if err := f.check(); err != nil {
			return nil, err
		}
		if err := syncDir(f.FS, f.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return f.logFile(name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *fenceFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.file(f.FS.OpenReadWrite(name, c, o...))
}

func (f *fenceFS) OpenDir(name string) (vfs.File, error) {
	x, err := f.file(f.FS.OpenDir(name))
	if err != nil || f.log == nil {
		return x, err
	}
	return &quietFile{File: x, log: f.log}, nil
}

func (f *fenceFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.logFile(to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, c) })
}

func (f *fenceFS) Link(from, to string) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.FS.Link(from, to)
}

func (f *fenceFS) Remove(name string) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *fenceFS) RemoveAll(name string) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.FS.RemoveAll(name)
}

func (f *fenceFS) Rename(from, to string) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *fenceFS) MkdirAll(dir string, perm os.FileMode) error {
	if err := f.check(); err != nil {
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
	if err := f.fs.check(); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *fenceFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.fs.check(); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, at)
}

func (f *fenceFile) Preallocate(at, n int64) error {
	if err := f.fs.check(); err != nil {
		return err
	}
	return f.File.Preallocate(at, n)
}

func (f *fenceFile) Sync() error {
	if err := f.fs.check(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *fenceFile) SyncData() error {
	if err := f.fs.check(); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *fenceFile) SyncTo(n int64) (bool, error) {
	if err := f.fs.check(); err != nil {
		return false, err
	}
	return f.File.SyncTo(n)
}

// locker is the lock of session directories: one writer, or any number of
// those who make sure that there is none.
type locker interface {
	// lock takes it; the error is errHeld where another has it.
	lock(dir string, exclusive bool) (io.Closer, error)
}

var errHeld = errors.New("held by another")

func lockerOf(fs vfs.FS) locker {
	if vfs.Root(fs) == vfs.Default {
		return flocker{}
	}
	return fsLocker{fs}
}

// flocker is flock(2) on the directory: it needs no file of its own, works on
// a read-only medium, and a process that dies lets go of it.
type flocker struct{}

func (flocker) lock(dir string, exclusive bool) (io.Closer, error) {
	f, err := flockPath(dir, exclusive)
	if err != nil {
		return nil, err // not f: a nil *os.File is no nil io.Closer
	}
	return f, nil
}

// fsLocker is the lock of a file system that is not the system's: exclusive
// only, on a file.
type fsLocker struct{ fs vfs.FS }

func (l fsLocker) lock(dir string, _ bool) (io.Closer, error) {
	if _, err := l.fs.Stat(dir); err != nil {
		return nil, err
	}
	c, err := l.fs.Lock(l.fs.PathJoin(dir, "LOCK"))
	if err != nil {
		return nil, errHeld
	}
	return c, nil
}

// isNoRoom reports whether err says that the disk is full.
func isNoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isReadOnlyMedium reports whether err says that nothing can be written here.
func isReadOnlyMedium(err error) bool {
	return errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM)
}
