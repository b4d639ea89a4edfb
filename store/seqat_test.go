package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// A time is found by the headers: of hundreds of blocks in tens of segments it
// takes one to be read.
func TestSeqAtReadsOneBlock(t *testing.T) {
	fs := vfs.NewMem()
	a := create(t, testOptions(fs))
	w := writer(t, a, "S")
	const n = 20_000
	at := func(i int) moldcast.Stamp { return 1700000000_000000000 + moldcast.Stamp(i)*1000 }
	for i := range n {
		p := piece(moldcast.Seq(1+i*2), 2)
		p.Time, p.Heard = at(i), at(i)
		put(t, w, p)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	v := view(t, a, w.Ref())
	d, err := a.Show(w.Ref())
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, g := range d.SegmentList {
		blocks += g.Blocks
	}
	read := func() int {
		a.cache.mu.Lock()
		defer a.cache.mu.Unlock()
		return len(a.cache.entries)
	}
	before, asked := read(), 0
	for i := 5; i < n; i += 997 {
		asked++
		if got, want := v.SeqAt(at(i)), moldcast.Seq(1+i*2); got != want {
			t.Errorf("SeqAt of %d = %d, want %d", i, got, want)
		}
	}
	if got := read() - before; got > asked || blocks < 10*asked {
		t.Errorf("%d of %d blocks read for %d times", got, blocks, asked)
	}
}
