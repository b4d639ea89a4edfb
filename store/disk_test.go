package store

import (
	"context"
	"errors"
	"fmt"
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

// Every kind of call that changes a disk fails, in each way that disks fail:
// nothing ends, hangs or is lost, what is held is served meanwhile, and
// afterwards it goes on by itself.
func TestDiskFailsAtEveryCall(t *testing.T) {
	kinds := map[string]errorfs.OpKind{
		"create": errorfs.OpCreate, "link": errorfs.OpLink, "remove": errorfs.OpRemove, "rename": errorfs.OpRename,
		"reuse": errorfs.OpReuseForWrite, "mkdir": errorfs.OpMkdirAll, "lock": errorfs.OpLock, "opendir": errorfs.OpOpenDir,
		"preallocate": errorfs.OpFilePreallocate, "close": errorfs.OpFileClose, "write": errorfs.OpFileWrite, "writeat": errorfs.OpFileWriteAt,
		"sync": errorfs.OpFileSync, "syncdata": errorfs.OpFileSyncData, "syncto": errorfs.OpFileSyncTo, "flush": errorfs.OpFileFlush,
	}
	for _, no := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		for name, kind := range kinds {
			t.Run(fmt.Sprintf("%s/%d", name, int(no)), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { failsAtCalls(t, kind, no) })
			})
		}
	}
}

func failsAtCalls(t *testing.T, kind errorfs.OpKind, no syscall.Errno) {
	var on atomic.Bool
	o := testOptions(errorfs.Wrap(newMemFS(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == kind && strings.Contains(op.Path, ".seg") {
			return no
		}
		return nil
	})))
	o.QueueBytes = 128 << 10
	a := create(t, o)
	defer a.Close()
	w := writer(t, a, "S")
	r := moldcast.Range{First: 100, Next: 600}
	fillRange(t, w, r, 5)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	full := false
	for begun := time.Now(); r.Next < 8000 && time.Since(begun) < 20*time.Second; {
		_, err := w.Append(piece(r.Next, 5))
		if errors.Is(err, ErrBusy) {
			if _, _, e := w.Trouble(); e == nil {
				time.Sleep(time.Millisecond) // the disk is only slower than this loop
				continue
			}
			full = true
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Next += 5
	}
	check(t, w.View(), r)
	if since, waiting, err := w.Trouble(); full && (err == nil || !errors.Is(err, no) || since.IsZero() || waiting < 64<<10) {
		t.Errorf("trouble: since %v, %d bytes wait: %v", since, waiting, err)
	}
	_, stuck, _ := w.Watermarks()
	if full && stuck == r.Next {
		t.Error("all is durable")
	}
	on.Store(false)
	heals(t, w, retryMost+time.Second)
	if _, d, _ := w.Watermarks(); d != r.Next {
		t.Errorf("durable %d, want %d", d, r.Next)
	}
	fillRange(t, w, moldcast.Range{First: r.Next, Next: r.Next + 500}, 7)
	r.Next += 500
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	check(t, view(t, a, w.Ref()), r)
}

// smallDisk is full for segments while it is on, but for what the reserve
// gave back.
type smallDisk struct {
	on    atomic.Bool
	files string
	fs    vfs.FS
}

func (d *smallDisk) wrap(fs vfs.FS) vfs.FS {
	d.fs = fs
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if d.on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove && strings.Contains(op.Path, d.files) && d.reserved() {
			return syscall.ENOSPC
		}
		return nil
	}))
}

func (d *smallDisk) reserved() bool {
	_, err := d.fs.Stat("archive/" + reserveFile)
	return err == nil
}

func reserveOptions(d *smallDisk) Options {
	o := testOptions(d.wrap(newMemFS()))
	o.Reserve = 1 << 20
	return o
}

// On a full disk the reserve lets a Writer close in order.
func TestReserveLetsClose(t *testing.T) {
	d := &smallDisk{files: ".seg"}
	a := create(t, reserveOptions(d))
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 1000}
	fillRange(t, w, r, 3)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	until(t, "the reserve is there", d.reserved)
	d.on.Store(true)
	fillRange(t, w, moldcast.Range{First: 1000, Next: 2000}, 3)
	r.Next = 2000
	until(t, "it fails", func() bool { return w.Err() != nil })
	if !d.reserved() {
		t.Error("the reserve is gone while nothing is closed or sealed")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d.on.Store(false)
	check(t, view(t, a, w.Ref()), r)
	verify(t, a)
	w = writer(t, a, "S")
	until(t, "the reserve is there again", func() bool { w.a.reserve.refill(); return d.reserved() })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// A seal uses the reserve at once, and makes it anew of what it freed.
func TestReserveLetsSeal(t *testing.T) { synctest.Test(t, reserveLetsSeal) }

func reserveLetsSeal(t *testing.T) {
	d := &smallDisk{files: "seal.json"}
	a := create(t, reserveOptions(d))
	defer a.Close()
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 10}
	fillRange(t, w, r, 3)
	until(t, "the reserve is there", d.reserved)
	d.on.Store(true)
	begun := time.Now()
	for ; r.Next < 8000; r.Next += 5 {
		if _, err := w.Append(piece(r.Next, 5)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	sealed := func() bool {
		infos, err := a.Sessions()
		return err == nil && infos[0].Segments > 1 && d.sealed(a, w)
	}
	until(t, "a segment is sealed", sealed)
	if took := time.Since(begun); took > sealRetry {
		t.Errorf("it took %v", took)
	}
	until(t, "the reserve is there again", d.reserved)
	d.on.Store(false)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), r)
	verify(t, a)
}

func (d *smallDisk) sealed(a *Archive, w *Writer) bool {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return len(w.s.segs) > 0 && w.s.segs[0].sealed
}

// What a Close could not write is counted.
func TestCloseSaysWhatIsNotDurable(t *testing.T) {
	b := &brokenFS{files: ".seg"}
	a := create(t, testOptions(b.wrap(newMemFS())))
	w := writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 1000}, 3)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.on.Store(true)
	fillRange(t, w, moldcast.Range{First: 1000, Next: 1500}, 5)
	err := w.Close()
	if err == nil || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "500 messages within 1000..1499 are not durable, all below 1000 are") {
		t.Fatalf("close: %v", err)
	}
}

// The reserve and a channel of its name get along; an archive without a
// reserve has no such file.
func TestReserveAndChannel(t *testing.T) {
	d := &smallDisk{}
	a := create(t, reserveOptions(d))
	w := writer(t, a, "S")
	until(t, "the reserve is there", d.reserved)
	x, err := a.Writer(reserveFile, w.Ref().Session, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*Writer{w, x} {
		fillRange(t, w, moldcast.Range{First: 1, Next: 50}, 3)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check(t, view(t, a, x.Ref()), moldcast.Range{First: 1, Next: 50})
	verify(t, a)
	a.reserve.refill()
	if st, err := d.fs.Stat("archive/" + reserveFile); err != nil || !st.IsDir() {
		t.Errorf("%v %v", st, err)
	}
}

// An archive that was moved away is missed, nothing is made in its place, and
// when it is back writing goes on.
func TestVanished(t *testing.T) {
	fs := newMemFS()
	a := create(t, testOptions(fs))
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 100}
	fillRange(t, w, r, 3)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := fs.Rename("archive/"+archiveFile, "away"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is missed", func() bool {
		fillRange(t, w, moldcast.Range{First: r.Next, Next: r.Next + 1}, 1)
		r.Next++
		return w.Err() != nil
	})
	if !isNotExist(w.Err()) {
		t.Errorf("%v", w.Err())
	}
	check(t, w.View(), r)
	other := moldcast.Session{'O', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '}
	if _, err := a.Writer("ch", other, 0); !isNotExist(err) {
		t.Errorf("a session was opened: %v", err)
	}
	if err := fs.Rename("away", "archive/"+archiveFile); err != nil {
		t.Fatal(err)
	}
	until(t, "it writes again", func() bool { return w.Flush(context.Background()) == nil && w.Err() == nil })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), r)
	verify(t, a)
}
