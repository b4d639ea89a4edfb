package store

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

// brokenFS is a file system whose writes to some files fail while it is on.
type brokenFS struct {
	on     atomic.Bool
	files  string // part of their names
	err    error  // nil: ENOSPC
	failed atomic.Int64
}

func (b *brokenFS) wrap(fs vfs.FS) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !b.on.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || !strings.Contains(op.Path, b.files) {
			return nil
		}
		if b.err != nil {
			if op.Kind == errorfs.OpLock { // flock asks for no write
				return nil
			}
			b.failed.Add(1)
			return b.err
		}
		b.failed.Add(1)
		return syscall.ENOSPC
	}))
}

// ever is longer than any machine needs for what comes to pass at all.
const ever = 5 * time.Minute

// until waits for what happens in the background.
func until(t testing.TB, what string, fn func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(ever)
	for !fn() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// A write that fails never moves the durable watermark, and ends nothing:
// what comes is taken up to the bound and served, and when the disk works
// again everything is written by itself.
func TestFailedWrites(t *testing.T) {
	for _, files := range []string{".log", ".seg", "MANIFEST"} {
		t.Run(files, func(t *testing.T) {
			b := &brokenFS{files: files}
			o := testOptions(b.wrap(newMemFS()))
			o.QueueBytes = 128 << 10
			a := create(t, o)
			w := writer(t, a, "S")
			r := moldcast.Range{First: 100, Next: 600}
			fillRange(t, w, r, 5)
			if err := w.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			_, before, _ := w.Watermarks()
			if before != 600 {
				t.Fatalf("durable %d", before)
			}

			b.on.Store(true)
			var err error
			for err == nil {
				p := piece(r.Next, 5)
				if _, err = w.Append(p); err == nil {
					r.Next += 5
				}
				if files == "MANIFEST" && r.Next > 4000 {
					break // it may never be written to
				}
			}
			if files != "MANIFEST" {
				if !errors.Is(err, ErrBusy) {
					t.Fatal(err)
				}
				until(t, "the error shows", func() bool { return w.Err() != nil })
				if err := w.Flush(context.Background()); !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("flush: %v", err)
				}
				if _, d, _ := w.Watermarks(); d != before && b.failed.Load() == 0 {
					t.Fatalf("durable moved to %d", d)
				}
			}
			check(t, w.View(), r)
			_, stuck, _ := w.Watermarks()
			if stuck == r.Next && files != "MANIFEST" {
				t.Fatal("all is durable though no write succeeds")
			}

			b.on.Store(false)
			until(t, "it writes again", func() bool { return w.Err() == nil && w.Flush(context.Background()) == nil })
			if _, d, _ := w.Watermarks(); d != r.Next {
				t.Fatalf("durable %d, want %d", d, r.Next)
			}
			fillRange(t, w, moldcast.Range{First: r.Next, Next: r.Next + 500}, 7)
			r.Next += 500
			check(t, w.View(), r)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			verify(t, a)
			check(t, view(t, a, w.Ref()), r)
		})
	}
}

// Closing while the disk is full says so, and does not hang; what was durable
// is there for the next.
func TestCloseOnFullDisk(t *testing.T) {
	b := &brokenFS{files: ".seg"}
	fs := newMemFS()
	o := testOptions(b.wrap(fs))
	a := create(t, o)
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 1000}
	fillRange(t, w, r, 3)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.on.Store(true)
	fillRange(t, w, moldcast.Range{First: 1000, Next: 2000}, 3)
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("close: %v", err)
	}
	if first, next, head, lost := w.Synced(); first != 1 || next < 1000 || head != next || !slices.Equal(lost, []moldcast.Range{{First: next, Next: 2000}}) {
		t.Fatalf("synced %d..%d, head %d, without %v", first, next, head, lost)
	}
	b.on.Store(false)
	w = writer(t, a, "S")
	if next, d, _ := w.Watermarks(); next < 1000 || next != d {
		t.Fatalf("next %d, durable %d", next, d)
	}
	fillRange(t, w, moldcast.Range{First: 1000, Next: 2000}, 3)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r.Next = 2000
	check(t, view(t, a, w.Ref()), r)
	verify(t, a)
}

// A seal that cannot be written is tried again.
func TestSealFails(t *testing.T) {
	b := &brokenFS{files: "seal.json"}
	o := testOptions(b.wrap(newMemFS()))
	a := create(t, o)
	w := writer(t, a, "S")
	b.on.Store(true)
	r := moldcast.Range{First: 1, Next: 8000}
	fillRange(t, w, r, 9)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("close: %v", err)
	}
	b.on.Store(false)
	check(t, view(t, a, w.Ref()), r)
	verify(t, a)
	infos, err := a.Sessions()
	if err != nil || infos[0].Segments < 2 || infos[0].Messages != 7999 {
		t.Fatalf("%+v %v", infos, err)
	}
}

// Who reads a segment while its seal removes files reads it right: no file that
// it found there is gone when it opens it.
func TestReadWhileSealed(t *testing.T) {
	var w *Writer
	var of atomic.Pointer[segment]
	var in, parked atomic.Bool // a reader got in, and has found a file
	var next atomic.Uint64
	var reads sync.WaitGroup
	found, gone := make(chan struct{}), make(chan struct{})
	find, leave := sync.OnceFunc(func() { close(found) }), sync.OnceFunc(func() { close(gone) })
	o := testOptions(errorfs.Wrap(newMemFS(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		g := of.Load()
		if g == nil || !strings.HasPrefix(op.Path, g.dir) {
			return nil
		}
		log := strings.HasSuffix(op.Path, ".log")
		switch {
		case op.Kind == errorfs.OpRemove && log && !in.Load():
			if !g.mu.TryRLock() {
				break
			}
			in.Store(g.db == nil)
			g.mu.RUnlock()
			at := moldcast.Seq(next.Add(200)) // in a block that no read has brought into memory
			reads.Go(func() {
				if _, _, err := w.View().Append(nil, at, 1, 1<<16, true); err != nil {
					t.Error(err)
				}
			})
			if in.Load() {
				<-found
			}
		case op.Kind == errorfs.OpStat && log && in.Load():
			parked.Store(true)
			find()
			<-gone
		case op.Kind == errorfs.OpOpenDir && parked.Load(): // by the sealer
			leave()
		case op.Kind == errorfs.OpCreate && parked.Load():
			reads.Wait() // below a seal, files are looked through
		}
		return nil
	})))
	o.CacheBytes, o.TailBytes, o.MergeSaves = 1, 1, -1
	a := create(t, o)
	w = writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 2000}, 9)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.s.mu.Lock()
	seg := w.s.segs[0]
	w.s.mu.Unlock()
	until(t, "blocks are on disk", func() bool { return w.View().Block(900).seg == seg })
	of.Store(seg)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	reads.Wait()
	verify(t, a)
}

// While the disk is slow nothing is durable that is not synced, blocks neither
// nor tail records, and Append does not wait.
func TestSlowDisk(t *testing.T) {
	var slow atomic.Bool
	gate := make(chan struct{})
	mem := newMemFS()
	o := testOptions(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if slow.Load() && strings.HasSuffix(op.Path, ".log") &&
			(op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo) {
			<-gate
		}
		return nil
	})))
	o.SegmentSize = 64 << 10 // tables of 16 KiB at each sync
	a := create(t, o)
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 100}
	fillRange(t, w, r, 3)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	r.Next = 20000
	fillRange(t, w, moldcast.Range{First: 100, Next: 20000}, 3)
	until(t, "blocks wait for the disk", func() bool {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		for _, m := range w.s.mem {
			if m.state == blockSubmitted {
				return true
			}
		}
		return false
	})
	fillRange(t, w, moldcast.Range{First: 20000, Next: 20010}, 3) // moves what is published
	r.Next = 20010
	if next, d, _ := w.Watermarks(); d >= 20000 || next != 20010 {
		t.Errorf("next %d, durable %d while nothing was synced", next, d)
	} else {
		o := o
		o.FS = mem.crash(0, nil)
		b := create(t, o)
		v := view(t, b, w.Ref())
		if _, head := v.Bounds(); head < d {
			t.Errorf("durable was %d, and %d is there", d, head)
		}
	}
	check(t, w.View(), r)
	slow.Store(false)
	close(gate)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, d, _ := w.Watermarks(); d != r.Next {
		t.Errorf("durable %d", d)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), r)
}

// roMedium is a file system mounted read-only.
type roMedium struct{ vfs.FS }

func (roMedium) Create(string, vfs.DiskWriteCategory) (vfs.File, error) { return nil, syscall.EROFS }
func (roMedium) Link(string, string) error                              { return syscall.EROFS }
func (roMedium) Remove(string) error                                    { return syscall.EROFS }
func (roMedium) RemoveAll(string) error                                 { return syscall.EROFS }
func (roMedium) Rename(string, string) error                            { return syscall.EROFS }
func (roMedium) MkdirAll(string, os.FileMode) error                     { return syscall.EROFS }
func (r roMedium) Lock(name string) (io.Closer, error) {
	if strings.Contains(name, ".seg") {
		return nil, syscall.EROFS
	}
	return r.FS.Lock(name) // of a session: flock needs no write
}
func (roMedium) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, syscall.EROFS
}
func (roMedium) ReuseForWrite(string, string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, syscall.EROFS
}
