package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// An End of Session that was withdrawn is none, here and after a restart; the
// one that follows is, also below it.
func TestWithdrawnEnd(t *testing.T) {
	for _, crash := range []bool{false, true} {
		fs := vfs.NewCrashableMem()
		o := testOptions(fs)
		a := create(t, o)
		w := writer(t, a, "S")
		fillRange(t, w, moldcast.Range{First: 1, Next: 101}, 5)
		w.Withdraw() // of nothing
		w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 5000, Stamp: 1})
		if h := w.Held(); !h.Ended || h.End != 5000 || len(h.Holes) != 1 {
			t.Fatalf("%+v", h)
		}
		w.Withdraw()
		look := func(what string, ended bool, end moldcast.Seq) {
			t.Helper()
			if h := w.Held(); h.Ended != ended || h.End != end || len(h.Holes) != 0 {
				t.Errorf("%s: %+v", what, h)
			}
		}
		again := func() {
			t.Helper()
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if crash {
				o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
				fs = o.FS.(*vfs.MemFS)
				w.Close()
				a.Close()
			} else {
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				if err := fs.Remove(fs.PathJoin(a.sessionDir(w.Ref()), sessionFile)); err != nil {
					t.Fatal(err)
				}
				a.Close()
			}
			a = create(t, o)
			w = writer(t, a, "S")
		}
		look("withdrawn", false, 0)
		again()
		look("withdrawn, reopened", false, 0)
		fillRange(t, w, moldcast.Range{First: 101, Next: 201}, 5)
		w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 201, Stamp: 2})
		look("ended", true, 201)
		again()
		look("ended, reopened", true, 201)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if d, err := a.Show(w.Ref()); err != nil || d.State != Ended || d.EndSeq == nil || *d.EndSeq != 201 || d.Holes != 0 {
			t.Errorf("%v %+v", err, d)
		}
		verify(t, a)
		a.Close()
	}
}

// A session whose sender went on as another is over, unless it comes back; so
// is a take with a later one.
func TestSuperseded(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	defer a.Close()
	state := func(r Ref, want State, by string) {
		t.Helper()
		d, err := a.Show(r)
		if err != nil || d.State != want || d.SupersededBy != by || d.Ended {
			t.Errorf("%v: %v, %v by %q (%v), want %v by %q", r, err, d.State, d.SupersededBy, d.Ended, want, by)
		}
	}
	w := writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 101}, 5)
	w.Supersede("default/NEXT")
	state(w.Ref(), Live, "default/NEXT")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	state(w.Ref(), Ended, "default/NEXT")
	w = writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 50, Next: 101}, 5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	state(w.Ref(), Ended, "default/NEXT") // nothing new
	w = writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 101, Next: 102}, 5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	state(w.Ref(), Opened, "")
	one := w.Ref()
	w, err := a.Writer("default", sess(t, "S"), 2)
	if err != nil {
		t.Fatal(err)
	}
	fillRange(t, w, moldcast.Range{First: 1, Next: 10}, 5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	state(one, Ended, "default/S@2")
	state(w.Ref(), Opened, "")
}
