package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Two things that Pebble keeps around a store, and does not open it without,
// say nothing of what it holds: OPTIONS, which are checked against ours, and
// the marker of the format, which every segment has had the same from the
// first. What is wrong with them costs no message.
const (
	optionsPrefix = "OPTIONS-"
	formatMarker  = "marker.format-version."
)

// unmarked is what is wrong with a store of that kind.
type unmarked struct {
	options []string // files that cannot be read as what Pebble writes
	marker  bool     // it is missing
}

// findUnmarked is nil where nothing is. Errors are those of the file system.
func findUnmarked(fs vfs.FS, dir string) (*unmarked, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	u := &unmarked{marker: true}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, formatMarker):
			u.marker = false
		case strings.HasPrefix(name, optionsPrefix):
			b, err := readFile(fs, fs.PathJoin(dir, name))
			if err != nil {
				return nil, err
			}
			if !soundOptions(dir, b) {
				u.options = append(u.options, name)
			}
		}
	}
	// A store that was only just being made has none yet.
	if u.marker = u.marker && holdsData(fs, dir); !u.marker && len(u.options) == 0 {
		return nil, nil
	}
	return u, nil
}

// soundOptions reports whether Pebble takes b for the options of a store.
func soundOptions(dir string, b []byte) bool {
	if bytes.IndexByte(b, 0) >= 0 {
		return false // none is in what it writes
	}
	o := pebbleOptions(vfs.NewMem(), nil, nil)
	o.EnsureDefaults()
	return protect(func() error { return o.CheckCompatibility(dir, string(b)) }) == nil
}

func (u *unmarked) String() string {
	var what []string
	for _, name := range u.options {
		what = append(what, name+" is damaged")
	}
	if u.marker {
		what = append(what, formatMarker+"* is missing")
	}
	return strings.Join(what, ", ") + ": its store is opened without; the next capture or repair makes it anew"
}

func (u *unmarked) markerName() string {
	return fmt.Sprintf("%s%06d.%03d", formatMarker, 1, pebble.FormatValueSeparation)
}

// mend removes what is damaged, which Pebble writes anew when it opens the
// store, and makes what is missing.
func (u *unmarked) mend(fs vfs.FS, dir string) error {
	if u.marker {
		f, err := fs.Create(fs.PathJoin(dir, u.markerName()), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	for _, name := range u.options {
		if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return syncDir(fs, dir)
}

// asMended shows a directory to a reader as mend would make it.
type asMended struct {
	vfs.FS
	u   *unmarked
	dir string
}

func (f asMended) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	if err != nil || dir != f.dir {
		return names, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(f.u.options, n) })
	if f.u.marker {
		names = append(names, f.u.markerName())
	}
	return names, nil
}

func (f asMended) Unwrap() vfs.FS { return f.FS }
