package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moldtape/moldtape/moldcast"
)

// What callers branch on. Each is wrapped with the place and, where a person
// can do something about it, what.
var (
	ErrNotArchive = errors.New("not an archive")
	ErrExists     = errors.New("there is an archive already")
	ErrLocked     = errors.New("in use by another process")
	ErrNotFound   = errors.New("no such session")
	ErrAmbiguous  = errors.New("session name is ambiguous")
	ErrClosed     = errors.New("closed")

	// ErrBusy: as many bytes as QueueBytes allows wait to be made durable. What
	// was offered is not stored; it may be offered again.
	ErrBusy = errors.New("store: too much waits to be written")

	// ErrCold: the answer needs a read from disk, and the caller asked for none.
	ErrCold = errors.New("store: not in memory")

	// ErrBeyond: the sequence lies at or beyond the head.
	ErrBeyond = errors.New("store: at or beyond the head")

	// ErrBelow: the sequence lies before the first of the session.
	ErrBelow = errors.New("store: before the first of the session")

	// errReadOnly is what the read-only file system answers to a write.
	errReadOnly = errors.New("store: sealed segments are never written")
)

// VersionError: the archive was made by a program with another format.
type VersionError struct {
	Path      string
	Got, Want int
}

func (e *VersionError) Error() string {
	what := "use a newer moldtape"
	if e.Got < e.Want {
		what = "use an older moldtape, or import it anew"
	}
	return fmt.Sprintf("%s has format version %d, this moldtape reads %d: %s", e.Path, e.Got, e.Want, what)
}

// CorruptError: the disk gave a range back wrong. It is never served.
type CorruptError struct {
	Segment string         // directory of the segment, within the archive
	Range   moldcast.Range // what cannot be read
	Err     error          // what is wrong with it
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: %v damaged: %v", e.Segment, e.Range, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// nameError is a name that finds no session, or several.
type nameError struct {
	name string
	kind error // ErrNotFound or ErrAmbiguous
	have []string
}

func (e *nameError) Unwrap() error { return e.kind }

func (e *nameError) Error() string {
	const most = 20
	if len(e.have) == 0 {
		return fmt.Sprintf("%v: %q; the archive holds none", e.kind, e.name)
	}
	list, more := e.have, ""
	if len(list) > most {
		list, more = list[:most], fmt.Sprintf(" and %d more", len(list)-most)
	}
	return fmt.Sprintf("%v: %q; there is %s%s", e.kind, e.name, strings.Join(list, ", "), more)
}
