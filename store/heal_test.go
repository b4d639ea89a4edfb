package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

// outage fails calls that change a segment from the from-th of them on, up to
// the to-th.
type outage struct {
	fails    func(errorfs.Op) bool
	calls    atomic.Int64
	from, to atomic.Int64
}

func (d *outage) inject(op errorfs.Op) error {
	if !d.fails(op) || !strings.Contains(op.Path, ".seg") {
		return nil
	}
	if n := d.calls.Add(1); n >= d.from.Load() && n < d.to.Load() {
		return syscall.ENOSPC
	}
	return nil
}

// takesRoom reports whether an operation fails on a full disk: not one on what
// is there already, as anything else does on a broken one.
func takesRoom(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpFilePreallocate, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSyncData:
		return true
	}
	return false
}

// heals waits, in the time of a bubble, until all is durable.
func heals(t *testing.T, w *Writer, within time.Duration) {
	t.Helper()
	for begun := time.Now(); w.Flush(t.Context()) != nil || w.Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > within {
			t.Fatalf("after %v: %v", time.Since(begun), w.Err())
		}
	}
}

// Whatever call is the first to fail, and however long calls do: when they
// succeed again it is written again, soon, and nothing is left that waits: no
// open, flush or Close of a store that was given up.
func TestHeals(t *testing.T) {
	step := int64(11)
	if os.Getenv("MOLDTAPE_LONG") != "" {
		step = 3 // each call, by one of the three outages
	}
	for i, fails := range []func(errorfs.Op) bool{changes, takesRoom} {
		for k, calls := range []int64{1, 4, 1 << 40} {
			for n := 1 + int64(k); n < 400; n += step {
				t.Run(fmt.Sprintf("%d/%d/%d", i, calls, n), func(t *testing.T) {
					t.Parallel()
					d := &outage{fails: fails}
					d.from.Store(n)
					d.to.Store(n + calls)
					synctest.Test(t, func(t *testing.T) { healsAfter(t, d) })
				})
			}
		}
	}
}

func healsAfter(t *testing.T, d *outage) {
	o := testOptions(errorfs.Wrap(newMemFS(), errorfs.InjectorFunc(d.inject)))
	o.QueueBytes = 128 << 10
	a := create(t, o)
	defer a.Close()
	w := writer(t, a, "S")
	r := moldcast.Range{First: 100, Next: 100}
	put := func(until moldcast.Seq) {
		t.Helper()
		for r.Next < until {
			_, err := w.Append(piece(r.Next, 5))
			if errors.Is(err, ErrBusy) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Next += 5; r.Next%500 == 0 {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	put(4000)
	time.Sleep(12 * time.Second) // of tries, farther and farther between
	d.to.Store(0)
	heals(t, w, retryMost+time.Second)
	if _, durable, _ := w.Watermarks(); durable != r.Next {
		t.Errorf("durable %d, want %d", durable, r.Next)
	}
	put(r.Next + 1000)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	check(t, view(t, a, w.Ref()), r)
}

// roomFS says how much room it has.
type roomFS struct {
	vfs.FS
	free *atomic.Uint64
}

func (f roomFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free.Load(), TotalBytes: 1 << 40}, nil
}

// fullDisk is a Writer with 1000 messages that are durable and 500 that are
// not, for want of room.
func fullDisk(t *testing.T) (d *outage, free *atomic.Uint64, a *Archive, w *Writer) {
	d = &outage{fails: takesRoom}
	free = new(atomic.Uint64)
	free.Store(1 << 30)
	o := testOptions(roomFS{errorfs.Wrap(newMemFS(), errorfs.InjectorFunc(d.inject)), free})
	o.BlockAge = 30 * time.Second
	a = create(t, o)
	w = writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 1001}, 5)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	free.Store(2 * leastRoom) // that is not enough
	d.to.Store(1 << 40)
	fillRange(t, w, moldcast.Range{First: 1001, Next: 1501}, 5)
	time.Sleep(time.Minute)
	if !errors.Is(w.Err(), syscall.ENOSPC) {
		t.Fatal(w.Err())
	}
	return d, free, a, w
}

// However long a disk was full: it is written to within a second after there
// is room.
func TestGoesOnWithRoom(t *testing.T) {
	for _, full := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			d, free, a, w := fullDisk(t)
			defer a.Close()
			free.Store(0)
			time.Sleep(full)
			d.to.Store(0)
			free.Store(1 << 30)
			heals(t, w, time.Second)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			check(t, view(t, a, w.Ref()), moldcast.Range{First: 1, Next: 1501})
		})
	}
}

// A Writer is closed on a full disk after two tries, and waits for nothing
// else.
func TestClosesOnFullDiskAtOnce(t *testing.T) {
	for _, left := range []uint64{0, 2 * leastRoom} {
		synctest.Test(t, func(t *testing.T) {
			_, free, a, w := fullDisk(t)
			defer a.Close()
			free.Store(left)
			begun := time.Now()
			if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("close: %v", err)
			}
			if took := time.Since(begun); took > 3*retryFirst {
				t.Errorf("it took %v", took)
			}
		})
	}
}
