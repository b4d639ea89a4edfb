package store

import (
	"errors"
	"io"
	"os"
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

func (f *fenceFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.file(f.FS.Create(name, c))
}

func (f *fenceFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.file(f.FS.OpenReadWrite(name, c, o...))
}

func (f *fenceFS) OpenDir(name string) (vfs.File, error) { return f.file(f.FS.OpenDir(name)) }

func (f *fenceFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.file(f.FS.ReuseForWrite(from, to, c))
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
