package store

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// storeBook stores an order book in a segment, with every block compressed as
// if so many waited, and is the archive and the codecs of its blocks.
func storeBook(t *testing.T, codec Codec, waiting int) (*Archive, Ref, map[block.Codec]int) {
	t.Helper()
	o := testOptions(vfs.NewMem())
	o.Codec, o.Sync, o.SegmentSize, o.BlockSize, o.behind = codec, time.Hour, 1<<30, 32<<10, waiting
	o.Clock = func() time.Time { return time.Unix(1700000000, 0) }
	a := create(t, o)
	w := writer(t, a, "S")
	rng := rand.New(rand.NewPCG(1, 2))
	var buf []byte
	for i := moldcast.Seq(0); i < 20_000; i += 4 {
		var p moldcast.Piece
		p, buf = bookPiece(rng, 1+i, 4, moldcast.Stamp(1700000000_000000000)+moldcast.Stamp(i)*1_000, buf)
		put(t, w, p)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	codecs := map[block.Codec]int{}
	for _, g := range view(t, a, w.Ref()).s.segs {
		x, err := g.loadIndex(a.table)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range x.blocks {
			codecs[b.codec]++
		}
	}
	return a, w.Ref(), codecs
}

// What was stored fast is dense once it is sealed, says the same, and what
// that wrote is on record; what was told to be fast stays so, and what is
// dense already is left alone.
func TestRecompressed(t *testing.T) {
	rows, r, codecs := storeBook(t, CodecRow, hurry)
	if codecs[block.Zstd] == 0 || len(codecs) != 1 {
		t.Errorf("rows: %v", codecs)
	}
	want := keep(t, rows, r)
	stored := map[Codec]uint64{}
	for _, c := range []struct {
		codec   Codec
		waiting int
		want    block.Codec
		merged  bool
	}{{CodecAuto, rush, block.Foretold, true}, {CodecAuto, hurry, block.Foretold, true}, {CodecFast, 0, block.PlanesZstd, false}, {CodecFast, rush, block.PlanesS2, false}} {
		a, r, codecs := storeBook(t, c.codec, c.waiting)
		if len(codecs) != 1 || codecs[c.want] == 0 {
			t.Errorf("%v with %d waiting: blocks are %v, want %v", c.codec, c.waiting, codecs, c.want)
		}
		merged, left := merges(t, a, r)
		d, err := a.Show(r)
		if err != nil || (len(merged) > 0) != c.merged || len(left) > 0 || (d.BytesMerged > 0) != c.merged {
			t.Errorf("%v with %d waiting: merged %v, %d bytes, left %v, %v", c.codec, c.waiting, merged, d.BytesMerged, left, err)
		}
		for _, g := range view(t, a, r).s.segs {
			stored[c.codec] = max(stored[c.codec], g.seal.BytesStored)
		}
		if diff := gocmp.Diff(want, keep(t, a, r)); diff != "" {
			t.Errorf("%v with %d waiting: %s", c.codec, c.waiting, diff)
		}
	}
	if stored[CodecAuto] > stored[CodecFast]*8/10 {
		t.Errorf("dense takes %d bytes, fast %d", stored[CodecAuto], stored[CodecFast])
	}
}

// What is due is a share, and a block; and what can get smaller.
func TestHastyDue(t *testing.T) {
	const size = 1000
	for i, c := range []struct {
		codec  Codec
		blocks []blockRef
		want   bool
	}{
		{CodecAuto, []blockRef{{codec: block.PlanesS2, raw: size, stored: 500}}, true},
		{CodecDense, []blockRef{{codec: block.PlanesS2, raw: size, stored: 500}}, true},
		{CodecFast, []blockRef{{codec: block.PlanesS2, raw: size, stored: 500}}, false},
		{CodecAuto, []blockRef{{codec: block.PlanesZstd, raw: size - 1, stored: 500}}, false},
		{CodecAuto, []blockRef{{codec: block.PlanesZstd, raw: size, stored: 950}}, false},
		{CodecAuto, []blockRef{{codec: block.PlanesZstd, raw: size, stored: 500}, {codec: block.Foretold, raw: 7 * size}}, true},
		{CodecAuto, []blockRef{{codec: block.PlanesZstd, raw: size, stored: 500}, {codec: block.Zstd, raw: 7*size + 1}}, false},
	} {
		x := &index{blocks: c.blocks}
		for _, b := range c.blocks {
			x.bytesRaw += uint64(b.raw)
		}
		if got := x.hastyDue(c.codec, size); got != c.want {
			t.Errorf("%d: due %v", i, got)
		}
	}
}

// The default is auto, and a codec that is not known is no option.
func TestCodecOption(t *testing.T) {
	o := DefaultOptions()
	if o.Codec != CodecAuto || o.Validate() != nil {
		t.Errorf("default codec %v, %v", o.Codec, o.Validate())
	}
	if o.Codec = 9; o.Validate() == nil || errors.Is(o.Validate(), errCodec) {
		t.Error("codec 9 is taken")
	}
}
