package store

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

const mergeFiles = tablePrefix + "merge-" // how tables of a merge are called

// mergeRun stores a recording of a merged segment and what came after it. fn
// is called before each operation on a file from the first of the merge on,
// with its number from 1, and may fail it. It returns how many there were,
// and what Close said.
func mergeRun(t testing.TB, mem *memFS, fn func(n int64, op errorfs.Op) error) (ref Ref, ops int64, err error) {
	t.Helper()
	var n atomic.Int64
	var on atomic.Bool
	o := mergeOptions(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !on.Load() {
			if !strings.Contains(op.Path, mergeFiles) {
				return nil
			}
			on.Store(true)
		}
		return fn(n.Add(1), op)
	})))
	a := create(t, o)
	w := writer(t, a, "S")
	w.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: 7, Stamp: 7})
	lateFills(t, w, mergedRange, 5, 4, 300)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = w.Close()
	_ = a.Close()
	return w.Ref(), n.Load(), err
}

var mergedRange = moldcast.Range{First: 484311999, Next: 484311999 + 3000}

func mergeOptions(fs vfs.FS) Options {
	o := testOptions(fs)
	o.SegmentSize, o.BlockSize, o.MergeSaves, o.Sync, o.Wait = 1<<20, 1<<10, anyMerge, time.Hour, true
	o.Clock = func() time.Time { return time.Unix(1700000000, 0) }
	return o
}

// tidy wants no file in a segment that is of no use.
func tidy(t testing.TB, fs vfs.FS, a *Archive, r Ref) {
	t.Helper()
	dir := a.sessionDir(r)
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		n, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		g := newSegment(n, fs.PathJoin(dir, name), identity(r))
		h, err := a.table.acquire(g)
		if err != nil {
			t.Fatal(err)
		}
		live, err := liveTables(h.db)
		if err != nil {
			t.Fatal(err)
		}
		files, err := fs.List(g.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			table := strings.HasSuffix(f, ".sst") || strings.HasSuffix(f, ".blob")
			if table && !live(f) || strings.HasSuffix(f, ".log") || strings.HasPrefix(f, tablePrefix) {
				t.Errorf("%s is left in %s", f, name)
			}
		}
		a.table.release(h)
		a.table.forget(g)
	}
}

// afterMerge checks an archive after a crash or failure in a merge: it opens by
// itself, all is there, and nothing is left. reader: by who only reads.
func afterMerge(t testing.TB, fs *memFS, ref Ref, want kept, reader bool) (merged, left []string) {
	t.Helper()
	a := create(t, mergeOptions(fs))
	if _, err := a.Sessions(); err != nil {
		t.Fatal(err)
	}
	if !reader {
		w := writer(t, a, "S")
		if next, durable, _ := w.Watermarks(); next != mergedRange.Next || durable != next {
			t.Fatalf("next %d durable %d, want %d", next, durable, mergedRange.Next)
		}
		check(t, w.View(), mergedRange)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if d := gocmp.Diff(want, keep(t, a, ref)); d != "" {
		t.Fatal(d)
	}
	verify(t, a)
	tidy(t, fs, a, ref)
	merged, left = merges(t, a, ref)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return merged, left
}

// unmerged is what the recording of mergeRun says, as it was before.
func unmerged(t testing.TB) kept {
	t.Helper()
	o := mergeOptions(newMemFS())
	o.MergeSaves = -1
	a := create(t, o)
	defer a.Close()
	w := writer(t, a, "S")
	w.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: 7, Stamp: 7})
	lateFills(t, w, mergedRange, 5, 4, 300)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return keep(t, a, w.Ref())
}

// The power goes before any operation on a file of a merge and the seal behind
// it, with nothing, some or all of what was not synced on the disk.
func TestMergeCrash(t *testing.T) {
	want := unmerged(t)
	ref, ops, err := mergeRun(t, newMemFS(), func(int64, errorfs.Op) error { return nil })
	if err != nil || ops < 50 {
		t.Fatalf("%d operations, %v", ops, err)
	}
	var before, after atomic.Int64
	t.Run("op", func(t *testing.T) {
		for at := int64(1); at <= ops; at++ {
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(uint64(at), 5))
				mem := newMemFS()
				var taken atomic.Pointer[memFS]
				_, _, err := mergeRun(t, mem, func(n int64, _ errorfs.Op) error {
					if n == at {
						taken.Store(mem.crash([]int{0, 30, 100}[rng.IntN(3)], rng))
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				clone := taken.Load()
				if clone == nil { // this run had fewer
					clone = mem.crash(0, rng)
				}
				reader := rng.IntN(2) == 0
				merged, left := afterMerge(t, clone, ref, want, reader)
				switch {
				case len(merged) == 1 && len(left) == 0:
					after.Add(1)
				case len(left) == 1 && left[0] == errMergeReader.Error() && reader:
					before.Add(1)
				default:
					t.Errorf("merged %v, left %v", merged, left)
				}
			})
		}
	})
	t.Logf("of %d crashes %d before it was merged, opened by a reader; %d merged", ops, before.Load(), after.Load())
	if before.Load() == 0 || after.Load() == 0 {
		t.Error("too few of a kind")
	}
}

// Any operation on a file fails, once, or all that write tables, or all that
// write, from then on until the Writer is closed: what cannot be merged is sealed as it is, and nothing is lost.
func TestMergeFails(t *testing.T) {
	want := unmerged(t)
	_, ops, err := mergeRun(t, newMemFS(), func(int64, errorfs.Op) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	step := int64(1)
	if crashes() <= 60 {
		step = 3
	}
	var sealed, refused atomic.Int64
	t.Run("op", func(t *testing.T) {
		for at := int64(1); at <= ops; at += step {
			for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT} {
				if fault != syscall.EIO && at%7 != 1 {
					continue // each such run waits for seconds
				}
				t.Run(fmt.Sprintf("%d/%v", at, fault), func(t *testing.T) {
					t.Parallel()
					mem := newMemFS()
					ever := fault != syscall.EIO
					ref, _, err := mergeRun(t, mem, func(n int64, op errorfs.Op) error {
						full := n >= at && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove &&
							(fault == syscall.EDQUOT || strings.Contains(op.Path, ".sst") || strings.Contains(op.Path, mergeFiles))
						if n == at {
							t.Log(op.Kind, op.Path)
						}
						if n == at && !ever || ever && full {
							return fault
						}
						return nil
					})
					if err != nil {
						refused.Add(1)
					} else {
						sealed.Add(1)
					}
					afterMerge(t, mem, ref, want, at%2 == 0)
				})
			}
		}
	})
	t.Logf("%d closed well, %d with an error", sealed.Load(), refused.Load())
	if sealed.Load() < refused.Load() {
		t.Error("too many could not even be sealed")
	}
}

// A disk that is full for merging is none for sealing.
func TestMergeNoRoom(t *testing.T) {
	want := unmerged(t)
	for n, again := int64(1), true; again; n += 4 {
		mem := newMemFS()
		var writes, removes atomic.Int64
		ref, _, err := mergeRun(t, mem, func(_ int64, op errorfs.Op) error {
			switch {
			case !strings.Contains(op.Path, mergeFiles) || op.Kind.ReadOrWrite() != errorfs.OpIsWrite:
			case op.Kind == errorfs.OpRemove:
				if removes.Add(1) <= 2 {
					return syscall.EIO
				}
			default:
				if writes.Add(1) >= n {
					return syscall.ENOSPC
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		a := create(t, mergeOptions(mem))
		full := writes.Load() >= n
		again = full
		if merged, left := merges(t, a, ref); full != (len(left) == 1) || full == (len(merged) == 1) {
			t.Fatalf("write %d fails (%v): merged %v, left %v", n, full, merged, left)
		}
		tidy(t, mem, a, ref)
		a.Close()
		afterMerge(t, mem, ref, want, true)
	}
}

// Readers go on, in the middle of blocks, while segments are merged and
// sealed below them.
func TestMergeUnderReaders(t *testing.T) {
	o := mergeOptions(vfs.NewMem())
	o.SegmentSize, o.TailBytes, o.CacheBytes, o.Sync, o.BlockAge = 16<<10, 1, 1, 0, time.Millisecond
	a := create(t, o)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 40001}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	reader := func(fn func(rng *rand.Rand) error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(1, 9))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := fn(rng); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	right := func(first moldcast.Seq, m moldcast.Messages) error {
		for ; m.Len() > 0; first++ {
			if b := m.Next(); string(b) != string(message(first)) {
				return fmt.Errorf("message %d is %q", first, b)
			}
		}
		return nil
	}
	v := w.View()
	reader(func(rng *rand.Rand) error {
		_, head := v.Bounds()
		c := v.Cursor(moldcast.Seq(rng.Uint64N(uint64(head) + 1)))
		defer c.Close()
		for {
			p, err := c.Next()
			if err == io.EOF {
				return nil
			}
			if errors.As(err, new(*moldcast.HoleError)) {
				continue
			}
			if err != nil {
				return err
			}
			if err := right(p.First, p.Msgs); err != nil {
				return err
			}
		}
	})
	reader(func(rng *rand.Rand) error {
		_, head := v.Bounds()
		q := 1 + moldcast.Seq(rng.Uint64N(uint64(head)+1))
		b, n, err := v.Append(nil, q, 40, 1400, true)
		if errors.As(err, new(*moldcast.HoleError)) || errors.Is(err, ErrBeyond) || errors.Is(err, ErrBelow) {
			return nil
		}
		if err != nil {
			return err
		}
		return right(q, moldcast.MessagesOf(b, n))
	})
	reader(func(rng *rand.Rand) error {
		q := moldcast.Seq(rng.Uint64N(uint64(all.Next)))
		v.SeqAt(piece(q, 1).Time)
		w.Held()
		return nil
	})
	reader(func(*rand.Rand) error {
		if _, err := Root(t.Context(), v, all); err != nil {
			return err
		}
		_, err := a.Show(w.Ref())
		return err
	})
	for q := all.First; q < all.Next; q += 500 {
		lateFills(t, w, moldcast.Range{First: q, Next: q + 500}, 5, 4, 60)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), all)
	rep := verify(t, a)
	merged, left := merges(t, a, w.Ref())
	t.Logf("%d segments, %d merged, %d left", rep.Segments, len(merged), len(left))
	if len(merged) < 3 {
		t.Error("too few were merged")
	}
}

// Capture never waits for a merge, and a merge that falls behind ends: it and
// those that wait are sealed as they are.
func TestMergeFallsBehind(t *testing.T) {
	gate := make(chan struct{})
	var closed atomic.Bool
	var waits atomic.Int64
	closed.Store(true)
	o := mergeOptions(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.Contains(op.Path, mergeFiles) && closed.Load() {
			waits.Add(1)
			<-gate
		}
		return nil
	})))
	o.SegmentSize, o.TailBytes, o.Sync = 16<<10, 1, 0
	a := create(t, o)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 1}
	for len(w.seal) < mergeBehind {
		r := moldcast.Range{First: all.Next, Next: all.Next + 1000}
		all.Next = r.Next
		lateFills(t, w, r, 5, 4, 100)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, durable, _ := w.Watermarks(); durable != all.Next {
			t.Fatalf("durable %d, want %d", durable, all.Next)
		}
		check(t, w.View(), all)
		if all.Next > 200000 {
			t.Fatalf("%d wait", len(w.seal))
		}
		if len(view(t, a, w.Ref()).s.segs) > 1 { // before others wait for it
			until(t, "the first is being merged", func() bool { return waits.Load() > 0 })
		}
	}
	if n := len(view(t, a, w.Ref()).s.segs); n < mergeBehind+2 {
		t.Fatalf("%d segments", n)
	}
	closed.Store(false)
	close(gate)
	until(t, "they are sealed", func() bool {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		return slices.IndexFunc(w.s.segs, func(g *segment) bool { return !g.sealed }) > mergeBehind
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), all)
	verify(t, a)
	_, left := merges(t, a, w.Ref())
	d, err := a.Show(w.Ref())
	if err != nil || len(left) == 0 || d.Unmerged != len(left) || d.SegmentList[0].Unmerged != errMergeBehind.Error() {
		t.Errorf("left %v, %+v %v", left, d, err)
	}
}

// What was rolled before a crash and is to be merged does not hold up who
// opens the recording.
func TestMergeBehindOpening(t *testing.T) {
	gate := make(chan struct{})
	var on atomic.Bool
	on.Store(true)
	mem := newMemFS()
	wait := func() vfs.FS {
		return errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && strings.Contains(op.Path, mergeFiles) {
				<-gate
			}
			return nil
		}))
	}
	o := mergeOptions(wait())
	o.SegmentSize, o.Sync = 16<<10, 0
	a := create(t, o)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 1}
	for len(w.seal) == 0 {
		r := moldcast.Range{First: all.Next, Next: all.Next + 1000}
		all.Next = r.Next
		lateFills(t, w, r, 5, 4, 100)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	old := mem
	mem = mem.crash(0, nil)
	for range 2 { // and crashes again
		o.FS = wait()
		b := create(t, o)
		x, err := b.Writer("default", sess(t, "S"), 0) // while the gate is closed
		if err != nil {
			t.Fatal(err)
		}
		if _, durable, _ := x.Watermarks(); durable != all.Next {
			t.Fatalf("durable %d", durable)
		}
		r := moldcast.Range{First: all.Next, Next: all.Next + 100}
		fillRange(t, x, r, 5)
		all.Next = r.Next
		check(t, x.View(), all)
		if err := x.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		mem = mem.crash(0, nil)
		defer func() {
			_ = x.Close()
			_ = b.Close()
		}()
	}
	on.Store(false)
	close(gate)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	_ = old
	o.FS = mem
	b := create(t, o)
	x := writer(t, b, "S")
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, b, x.Ref()), all)
	verify(t, b)
	tidy(t, mem, b, x.Ref())
	if merged, _ := merges(t, b, x.Ref()); len(merged) == 0 {
		t.Error("nothing was merged")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
