package store

import (
	"errors"
	"io"
	"os"
	"syscall"

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
