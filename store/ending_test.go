package store

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// An End of Session that was withdrawn is none, here and after a restart; the
// one that follows is, also below it.
func TestWithdrawnEnd(t *testing.T) {
	for _, crash := range []bool{false, true} {
		fs := newMemFS()
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
				fs = fs.crash(0, nil)
				o.FS = fs
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

// What a take has in common with the one before is known after a crash at any
// time, once anything of the take is.
func TestShareSurvives(t *testing.T) {
	for at := range 60 {
		fs := newMemFS()
		o := testOptions(fs)
		o.Sync = time.Millisecond
		a := create(t, o)
		closed(t, a, "S", 5, moldcast.Range{First: 1, Next: 201})
		w, err := a.Writer("default", sess(t, "S"), 2)
		if err != nil {
			t.Fatal(err)
		}
		same := moldcast.Range{First: 1, Next: 101}
		clones := make(chan *memFS, 1)
		go func() { // somewhere in the course of it
			for range at * 20 {
				runtime.Gosched()
			}
			clones <- fs.crash(50, rand.New(rand.NewPCG(uint64(at), 1)))
		}()
		if err := w.Share(1, []moldcast.Range{same}); err != nil {
			t.Fatal(err)
		}
		fillRange(t, w, moldcast.Range{First: 101, Next: 1101}, 5)
		fillRange(t, w, moldcast.Range{First: 1, Next: 1 + moldcast.Seq(at)}, 1)
		crashed := <-clones
		w.Close()
		a.Close()
		o.FS = crashed
		a = create(t, o)
		if r, ok := a.Latest("default", sess(t, "S")); ok && r.Take == 2 {
			w := writer(t, a, "S")
			take, missing := w.Shared()
			held := w.View().Coverage()
			if len(held) > 0 && (take != 1 || len(missing) == 0 && held[0].First != 1) {
				t.Errorf("crash %d: of %v, shared with take %d, missing %v", at, held, take, missing)
			}
			for _, r := range held {
				for _, m := range missing {
					if !r.Intersect(m).Empty() {
						t.Errorf("crash %d: %v is held, and missing", at, r.Intersect(m))
					}
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		a.Close()
	}
}
