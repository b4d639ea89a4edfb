package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

var errKilled = errors.New("killed")

// changes reports whether an operation changes a file system. A lock does not:
// it goes with the process.
func changes(op errorfs.Op) bool {
	return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpLock
}

// killed is fs until after so many writes nothing reaches it any more.
func killed(fs vfs.FS, after int64) vfs.FS {
	var n atomic.Int64
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if changes(op) && n.Add(1) > after {
			return errKilled
		}
		return nil
	}))
}

// Whenever it is killed, or the power goes, a prune has removed a segment or
// it has not: nothing else is lost, the archive is sound, and the next prune
// does what is left to do, no more.
func TestPruneCrash(t *testing.T) {
	base := newMemFS()
	o := pruneOptions(base)
	a := create(t, o)
	all := moldcast.Range{First: 1, Next: 2401}
	ref := parts(t, a, "S", all, 6)
	other := parts(t, a, "T", all, 1)
	if err := a.Hold(other, "stays", ""); err != nil {
		t.Fatal(err)
	}
	want := contentRoots(t, view(t, a, ref))
	limit := Retention{Keep: -1, MaxBytes: int64(show(t, a, ref).BytesDisk/2 + show(t, a, other).BytesDisk)}
	dry, err := a.Prune(context.Background(), limit, true, "")
	if err != nil || len(dry.Items) < 3 {
		t.Fatalf("%+v %v", dry, err)
	}
	kept := dry.Items[len(dry.Items)-1].LastSeq + 1
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	// sound checks an archive after a crash.
	sound := func(fs vfs.FS, what string) {
		t.Helper()
		o := pruneOptions(fs)
		a := create(t, o)
		defer a.Close()
		verify(t, a)
		v := view(t, a, ref)
		d := show(t, a, ref)
		if d.HeadSeq != all.Next || d.Holes != 0 || d.FirstSeq > kept || d.NextSeq != all.Next || d.Messages+d.PrunedMessages != all.Len() {
			t.Fatalf("%s: %+v", what, d.Info)
		}
		check(t, v, moldcast.Range{First: d.FirstSeq, Next: all.Next})
		if got := contentRoots(t, v); !slices.Equal(got, want) {
			t.Fatalf("%s: roots %v, want %v", what, got, want)
		}
		check(t, view(t, a, other), all)
		if _, _, err := a.AuditLog(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	step := int64(3)
	if os.Getenv("MOLDTAPE_LONG") != "" {
		step = 1
	}
	rng := rand.New(rand.NewPCG(1, 2))
	points := 0
	for after, done := int64(0), false; !done; after += step {
		for _, percent := range []int{0, 50, 100} {
			points++
			what := fmt.Sprintf("killed after %d writes, %d%% of the rest", after, percent)
			fs := base.crash(100, rng)
			a := create(t, pruneOptions(killed(fs, after)))
			rep, err := a.Prune(context.Background(), limit, false, "")
			done = err == nil
			if done && (rep.Removed != len(dry.Items) || rep.Left != 0) {
				t.Fatalf("%+v", rep)
			}
			_ = a.Close()
			fs = fs.crash(percent, rng)
			sound(fs, what)

			if !done && rng.IntN(2) == 0 { // and again, in the next one
				a := create(t, pruneOptions(killed(fs, rng.Int64N(60))))
				_, _ = a.Prune(context.Background(), limit, false, "")
				_ = a.Close()
				fs = fs.crash(percent, rng)
				sound(fs, what+", twice")
			}

			a = create(t, pruneOptions(fs))
			if _, err := a.Prune(context.Background(), limit, false, ""); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if d := show(t, a, ref); d.FirstSeq != kept || d.PrunedMessages != uint64(kept-all.First) {
				t.Fatalf("%s: after another prune %+v", what, d.Info)
			}
			names, err := fs.List(a.sessionDir(ref))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if strings.HasSuffix(name, goneSuffix) {
					t.Fatalf("%s: %s is left", what, name)
				}
			}
			checkAudit(t, a)
			w := writer(t, a, "S")
			if h := w.Held(); h.First != kept || h.Head != all.Next || len(h.Holes) != 0 {
				t.Fatalf("%s: held %+v", what, h)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			sound(fs, what+", then finished")
		}
	}
	t.Logf("%d points", points)
}

// An error at any one write stops a prune without harm, and the same archive,
// still open, goes on with the next.
func TestPruneFailedWrites(t *testing.T) {
	for n := int64(1); ; n += 4 {
		var at, count atomic.Int64
		mem := newMemFS()
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if at.Load() > 0 && changes(op) && count.Add(1) == at.Load() {
				return errKilled
			}
			return nil
		}))
		a := create(t, pruneOptions(fs))
		all := moldcast.Range{First: 4000, Next: 5200}
		ref := parts(t, a, "S", all, 3)
		want := contentRoots(t, view(t, a, ref))
		at.Store(n)
		_, err := a.Prune(context.Background(), Retention{Keep: 0, MaxBytes: -1}, false, "")
		failed := count.Load() >= n
		at.Store(0)
		if got := contentRoots(t, view(t, a, ref)); !slices.Equal(got, want) {
			t.Fatalf("write %d fails: roots %v, want %v", n, got, want)
		}
		verify(t, a)
		if _, err := a.Prune(context.Background(), Retention{Keep: 0, MaxBytes: -1}, false, ""); err != nil {
			t.Fatal(err)
		}
		if d := show(t, a, ref); d.Segments != 0 || d.PrunedMessages != all.Len() {
			t.Fatalf("write %d fails: %+v", n, d.Info)
		}
		checkAudit(t, a)
		_ = a.Close()
		if !failed {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}
