package store

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// Damage of what says nothing of the messages costs none of a segment that was
// not sealed: Verify names it, readers that cannot write read on, and the next
// writer makes it good.
func TestDamagedAroundTheStore(t *testing.T) {
	put := func(t *testing.T, fs vfs.FS, path string, b []byte) {
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	zero := func(at, n int) func(*testing.T, vfs.FS, string) {
		return func(t *testing.T, fs vfs.FS, path string) {
			b, err := readFile(fs, path)
			if err != nil {
				t.Fatal(err)
			}
			clear(b[min(at, len(b)):min(at+n, len(b))])
			put(t, fs, path, b)
		}
	}
	remove := func(t *testing.T, fs vfs.FS, path string) {
		if err := fs.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		file   string
		damage func(*testing.T, vfs.FS, string)
		quiet  bool // nothing is wrong without it
	}{
		"zeros":       {file: optionsPrefix, damage: zero(1341, 64)},
		"zeros first": {file: optionsPrefix, damage: zero(0, 64)},
		"all zeros":   {file: optionsPrefix, damage: zero(0, 1<<20)},
		"other keys":  {file: optionsPrefix, damage: func(t *testing.T, fs vfs.FS, p string) { put(t, fs, p, []byte("[Options]\n  comparer=other\n")) }},
		"no sense":    {file: optionsPrefix, damage: func(t *testing.T, fs vfs.FS, p string) { put(t, fs, p, []byte("]\n=\n")) }},
		"no options":  {file: optionsPrefix, damage: remove, quiet: true},
		"no marker":   {file: formatMarker, damage: remove},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newMemFS()
			o := testOptions(fs)
			o.SegmentSize = 1 << 30
			a := create(t, o)
			w := writer(t, a, "S")
			ref, r := w.Ref(), moldcast.Range{First: 1, Next: 800}
			fillRange(t, w, r, 7)
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			crashed := fs.crash(0, nil)
			w.Close()
			a.Close()
			dir := crashed.PathJoin(a.sessionDir(ref), segmentName(1))
			names, err := crashed.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			damaged := 0
			for _, n := range names {
				if strings.HasPrefix(n, c.file) {
					c.damage(t, crashed, crashed.PathJoin(dir, n))
					damaged++
				}
			}
			if damaged == 0 {
				t.Fatal(names)
			}
			o.FS = crashed
			a = create(t, o)
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil || (len(rep.Faults) == 0) != c.quiet || rep.Messages != r.Len() {
				t.Errorf("%d messages, %v, %v", rep.Messages, rep.Faults, err)
			}
			a.Close()

			ro := o
			ro.FS = sealedFS{crashed}
			a, err = Open("archive", ro)
			if err != nil {
				t.Fatal(err)
			}
			check(t, view(t, a, ref), r)
			a.Close()

			a = create(t, o)
			w = writer(t, a, "S")
			check(t, w.View(), r)
			fillRange(t, w, moldcast.Range{First: r.Next, Next: r.Next + 100}, 7)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			verify(t, a)
			a.Close()
		})
	}
}
