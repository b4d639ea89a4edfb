package store

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// A feed of 20 000 packets a second that loses 1 % of them and has each
// answered 20 ms later costs at most 10 % more bytes, and twice the blocks.
func TestLossCostsLittle(t *testing.T) {
	const (
		packets = 60_000
		every   = 50 * time.Microsecond
		answer  = 20 * time.Millisecond
	)
	start := moldcast.Stamp(1700000000_000000000)
	store := func(loss float64) (bytes uint64, blocks int) {
		o := Options{FS: vfs.NewMem(), Sync: time.Hour, BlockAge: time.Hour, Wait: true} // the clock of this machine decides nothing
		a := create(t, o)
		w := writer(t, a, "S")
		rng := rand.New(rand.NewPCG(3, 3))
		type fill struct {
			due int
			p   moldcast.Piece
		}
		var fills []fill
		lost := 0
		seq := moldcast.Seq(1)
		for i := range packets {
			for len(fills) > 0 && fills[0].due <= i {
				put(t, w, fills[0].p)
				fills = fills[1:]
			}
			at := start + moldcast.Stamp(i)*moldcast.Stamp(every)
			n := 1 + i%4
			p, _ := marketPiece(rand.New(rand.NewPCG(uint64(i), 4)), seq, n, at, nil)
			seq += moldcast.Seq(n)
			if rng.Float64() < loss {
				lost++
				p.Flags, p.Line, p.Heard = moldcast.Repaired, moldcast.AnswerLine, at+moldcast.Stamp(answer)
				fills = append(fills, fill{i + int(answer/every), p})
				continue
			}
			put(t, w, p)
		}
		for _, f := range fills {
			put(t, w, f.p)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		rep := verify(t, a)
		if rep.Messages != uint64(seq-1) || (loss > 0) != (lost > 0) {
			t.Fatalf("%d messages, %d packets lost", rep.Messages, lost)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		return rep.Bytes, rep.Blocks
	}
	bytes, blocks := store(0)
	lossyBytes, lossyBlocks := store(0.01)
	t.Logf("%d bytes in %d blocks; with loss %d (%.3f) in %d (%.2f)", bytes, blocks,
		lossyBytes, float64(lossyBytes)/float64(bytes), lossyBlocks, float64(lossyBlocks)/float64(blocks))
	if lossyBytes*100 > bytes*110 {
		t.Errorf("loss costs %d bytes, %d without", lossyBytes, bytes)
	}
	if lossyBlocks > 2*blocks {
		t.Errorf("loss makes %d blocks, %d without", lossyBlocks, blocks)
	}
}
