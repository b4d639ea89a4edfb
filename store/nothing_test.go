package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// A sealed segment of which nothing can be read is damaged, whatever the store
// says of it: it is a hole, and can be mended.
func TestSegmentOfWhichNothingIsLeft(t *testing.T) {
	for _, how := range []string{"removed", "empty"} {
		o := testOptions(vfs.NewMem())
		a := create(t, o)
		ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 3001}, 3)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		a = create(t, o)
		dir := o.FS.PathJoin(a.newSession(ref).dir, segmentName(2))
		names, err := o.FS.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if path := o.FS.PathJoin(dir, name); strings.HasSuffix(name, ".sst") {
				if err := o.FS.Remove(path); err != nil {
					t.Fatal(err)
				}
				if how == "empty" {
					f, err := o.FS.Create(path, vfs.WriteCategoryUnspecified)
					if err != nil {
						t.Fatal(err)
					}
					if err := f.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		c := view(t, a, ref).Cursor(1001)
		var bad *CorruptError
		if _, err := c.Next(); !errors.As(err, &bad) || bad.Range != (moldcast.Range{First: 1001, Next: 2001}) {
			t.Fatalf("%s: %v", how, err)
		}
		c.Close()
		if rep, err := a.Verify(t.Context(), nil, nil); err != nil || len(rep.Faults) == 0 {
			t.Fatalf("%s: %v %v", how, rep.Faults, err)
		}
		if d := show(t, a, ref); d.NextSeq != 1001 || d.HeadSeq != 3001 || d.Holes != 1 {
			t.Fatalf("%s: %+v", how, d)
		}
		w := writer(t, a, "S")
		fillRange(t, w, moldcast.Range{First: 1001, Next: 2001}, 7)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		check(t, view(t, a, ref), moldcast.Range{First: 1, Next: 3001})
		verify(t, a)
	}
}
