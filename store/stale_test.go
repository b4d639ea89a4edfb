package store

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// inBlocks reports whether all that w took is written as blocks, and none of
// it kept in memory.
func inBlocks(w *Writer) bool {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return len(w.s.mem) == 1 && w.open.b.Empty()
}

// Who reads a segment while its store has failed opens it beside the writer,
// and sees all the same what is written to it later, when it is sealed.
func TestReadWhileDead(t *testing.T) {
	b := &brokenFS{files: ".log"}
	o := testOptions(b.wrap(newMemFS()))
	o.SegmentSize, o.TailBytes, o.CacheBytes, o.BlockAge = 1<<20, 1, 1, time.Millisecond
	a := create(t, o)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 3001}
	fillRange(t, w, all, 5)
	until(t, "all is in blocks", func() bool { return inBlocks(w) })
	b.on.Store(true)
	put(t, w, piece(all.Next, 5))
	all.Next += 5
	read := false
	until(t, "it is read from the disk", func() bool {
		w.s.mu.Lock()
		g := w.s.segs[0]
		w.s.mu.Unlock()
		check(t, w.View(), all)
		a.table.mu.Lock()
		read = a.table.open[g] != nil
		a.table.mu.Unlock()
		return read
	})
	b.on.Store(false)
	until(t, "it writes again", func() bool { return w.Err() == nil })
	fillRange(t, w, moldcast.Range{First: all.Next, Next: 5001}, 5)
	all.Next = 5001
	until(t, "all is in blocks", func() bool { return inBlocks(w) })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), all)
	verify(t, a)
}

// Who read an unsealed segment as it lay there, beside other readers, goes on
// when a writer comes and merges it: nothing is taken for damaged, and what
// was sealed is read.
func TestReadAsItLiesThenMerged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	o := mergeOptions(nil)
	o.CacheBytes, o.MergeSaves, o.TailBytes, o.BlockAge = 1, -1, 1, time.Millisecond
	a, err := OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	w := writer(t, a, "S")
	for q := mergedRange.First; q < mergedRange.Next; q += 500 { // in files of their own
		lateFills(t, w, moldcast.Range{First: q, Next: q + 500}, 5, 4, 60)
		until(t, "all is in blocks", func() bool { return inBlocks(w) })
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g := view(t, a, w.Ref()).s.segs[0]
	a.Close()
	// As after a crash: it was not sealed, and was never to be.
	a, err = Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	alter(t, a, w.Ref(), 1, func(db *pebble.DB) {
		if err := db.Delete(metaSealed, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	})
	a.Close()
	if err := vfs.Default.Remove(filepath.Join(g.dir, sealFile)); err != nil {
		t.Fatal(err)
	}

	other, err := flocker{}.lock(filepath.Dir(g.dir), false)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	v := view(t, reader, w.Ref())
	other.Close()
	if v.s.segs[0].sealed {
		t.Fatal("it is sealed")
	}
	c := v.Cursor(0)
	defer c.Close()
	at := mergedRange.First
	next := func() error {
		p, err := c.Next()
		if err != nil {
			return err
		}
		if p.First != at {
			t.Fatalf("%d, want %d", p.First, at)
		}
		at = p.Range().Next
		return nil
	}
	if err := next(); err != nil {
		t.Fatal(err)
	}
	o.MergeSaves = anyMerge
	a, err = Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := writer(t, a, "S").Close(); err != nil {
		t.Fatal(err)
	}
	if merged, left := merges(t, a, w.Ref()); len(merged) != 1 {
		t.Fatalf("merged %v, left %v", merged, left)
	}
	for err == nil {
		err = next()
	}
	if !errors.Is(err, io.EOF) || at != mergedRange.Next {
		t.Errorf("at %d: %v", at, err)
	}
	check(t, v, mergedRange)
	if d := a.readDamage(filepath.Dir(g.dir), func(string) bool { return false }); len(d) > 0 {
		t.Errorf("damage %v", d)
	}
}
