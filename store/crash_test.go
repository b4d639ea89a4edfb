package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// memFS is a crashable file system in memory. Its Lock leaves no file: that
// of MemFS waits for itself while the file system is cloned.
type memFS struct {
	*vfs.MemFS
	held sync.Map
}

func newMemFS() *memFS { return &memFS{MemFS: vfs.NewCrashableMem()} }

func (m *memFS) Lock(name string) (io.Closer, error) {
	if _, held := m.held.Swap(name, nil); held {
		return nil, syscall.EAGAIN
	}
	return memLock{m, name}, nil
}

type memLock struct {
	m    *memFS
	name string
}

func (l memLock) Close() error { l.m.held.Delete(l.name); return nil }

// ReuseForWrite is MemFS's, which takes the lock that CrashClone waits for a
// second time while it holds it: both would wait for ever.
func (m *memFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := m.Rename(from, to); err != nil {
		return nil, err
	}
	return m.OpenReadWrite(to, c)
}

func (m *memFS) crash(percent int, rng *rand.Rand) *memFS {
	return &memFS{MemFS: m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})}
}

// crashes is how many crashes the tests go through.
func crashes() int {
	if os.Getenv("MOLDTAPE_LONG") != "" {
		return 500
	}
	return 60
}

// feed stores messages as a lossy feed brings them: mostly in order, with
// gaps that are filled later, or never.
type feed struct {
	rng  *rand.Rand
	next moldcast.Seq
	gaps []moldcast.Range
	sent gap.Set
}

func (f *feed) step(t testing.TB, w *Writer) {
	n := 1 + f.rng.IntN(12)
	p := moldcast.Piece{}
	switch k := f.rng.IntN(20); {
	case k == 0: // lost, for now
		f.gaps = append(f.gaps, moldcast.Range{First: f.next, Next: f.next + moldcast.Seq(n)})
		f.next += moldcast.Seq(n)
		return
	case k == 1 && len(f.gaps) > 0: // a fill
		i := f.rng.IntN(len(f.gaps))
		g := f.gaps[i]
		f.gaps[i] = f.gaps[len(f.gaps)-1]
		f.gaps = f.gaps[:len(f.gaps)-1]
		p = piece(g.First, int(g.Len()))
		p.Flags = moldcast.Repaired
	case k == 2: // again, with what is before
		first := f.next - min(f.next-1, moldcast.Seq(n))
		p = piece(max(first, 1), 2*n)
		f.next = p.Range().Next
	case k == 3:
		w.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: f.next, Stamp: moldcast.Stamp(f.next)})
		return
	default:
		p = piece(f.next, n)
		f.next += moldcast.Seq(n)
	}
	if _, err := w.Append(p); err != nil {
		t.Fatal(err)
	}
	f.sent.Add(p.Range())
}

// checkHeld reads v whole: every message that is held must be right, and held
// must be what want says it may be at most and at least.
func checkHeld(t testing.TB, v *View, least moldcast.Range, most *gap.Set) {
	t.Helper()
	var got gap.Set
	c := v.Cursor(0)
	defer c.Close()
	for {
		p, err := c.Next()
		var hole *moldcast.HoleError
		if errors.As(err, &hole) {
			continue
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		at := p.First
		for m := p.Msgs; m.Len() > 0; at++ {
			if b := m.Next(); string(b) != string(message(at)) {
				t.Fatalf("message %d is %q", at, b)
			}
		}
		got.Add(p.Range())
	}
	if miss := got.Missing(least); len(miss) > 0 {
		t.Fatalf("durable %v, but %v is missing", least, miss)
	}
	for _, r := range got.Ranges() {
		if extra := most.Missing(r); len(extra) > 0 {
			t.Fatalf("%v is held but was never stored", extra)
		}
	}
}

// Whenever the power goes, what was durable is there, bit for bit, and what
// else is there is right; the archive opens by itself, is sound, and can be
// written on.
func TestCrash(t *testing.T) {
	for i := range crashes() {
		seed := uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { crashOnce(t, seed) })
	}
}

func crashOnce(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	mem := newMemFS()
	o := testOptions(mem)
	o.Sync = []time.Duration{0, time.Millisecond, 5 * time.Millisecond}[rng.IntN(3)]
	o.BlockSize = []int{1 << 10, 4 << 10, 64 << 10}[rng.IntN(3)]
	o.TailBytes = int64(rng.IntN(3)) * 8 << 10
	o.MergeSaves = []float64{-1, anyMerge}[rng.IntN(2)]
	a := create(t, o)
	w := writer(t, a, "S")
	f := &feed{rng: rng, next: []moldcast.Seq{1, 484311999, ^moldcast.Seq(0) - 1<<20}[rng.IntN(3)]}
	steps := 200 + rng.IntN(1500)
	for range steps {
		f.step(t, w)
		if rng.IntN(400) == 0 {
			if err := w.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rng.IntN(4) == 0 { // in the middle of closing
		go w.Close()
	}
	first := f.sent.Bounds().First
	_, durable, _ := w.Watermarks()
	mem = mem.crash([]int{0, 30, 100}[rng.IntN(3)], rng)
	least := moldcast.Range{First: first, Next: durable}
	_ = w.Close()
	_ = a.Close()

	// A second crash, while it recovers or writes on.
	if rng.IntN(2) == 0 {
		o.FS = mem
		a := create(t, o)
		w, err := a.Writer("default", sess(t, "S"), 0)
		if err != nil {
			t.Fatal(err)
		}
		for range rng.IntN(50) {
			f.step(t, w)
		}
		if _, d, _ := w.Watermarks(); d < durable && !least.Empty() {
			t.Fatalf("durable was %d, and after recovery is %d", durable, d)
		}
		mem2 := mem.crash(rng.IntN(100), rng)
		_ = w.Close()
		_ = a.Close()
		mem = mem2
	}

	o.FS = mem
	a = create(t, o)
	verify(t, a)
	if _, err := a.Sessions(); err != nil { // reads without recovering
		t.Fatal(err)
	}
	if rng.IntN(2) == 0 {
		checkHeld(t, view(t, a, w.Ref()), least, &f.sent)
	}
	w = writer(t, a, "S")
	checkHeld(t, w.View(), least, &f.sent)
	if next, d, _ := w.Watermarks(); next != d {
		t.Fatalf("next %d and durable %d differ after recovery", next, d)
	}
	for range 100 {
		f.step(t, w)
	}
	for _, r := range w.View().Holes() { // everything once more
		if f.sent.Contains(r.Range.First) {
			put(t, w, piece(r.Range.First, int(r.Range.Len())))
			f.sent.Add(r.Range)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	checkHeld(t, view(t, a, w.Ref()), least, &f.sent)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}
