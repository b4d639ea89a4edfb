package store

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// A worker compresses well, and fast once blocks wait for it, until they do
// not.
func TestEncodersHurry(t *testing.T) {
	for codec, want := range map[Codec][3]block.Level{
		CodecRow:   {block.Default, block.Fastest, block.Fastest},
		CodecAuto:  {block.Dense, block.Planes, block.Hasty},
		CodecDense: {block.Dense, block.Dense, block.Dense},
		CodecFast:  {block.Planes, block.Planes, block.Hasty},
	} {
		for waiting, level := range map[int]int{0: 0, hurry - 1: 0, hurry: 1, rush - 1: 1, rush: 2, 1000: 2} {
			if got := codec.level(waiting); got != want[level] {
				t.Errorf("%v with %d waiting: level %d, want %d", codec, waiting, got, want[level])
			}
		}
		if c, err := ParseCodec(codec.String()); err != nil || c != codec {
			t.Errorf("%v is read as %v, %v", codec, c, err)
		}
	}
	if _, err := ParseCodec("zip"); err == nil {
		t.Error("a codec of no name is one")
	}
}

// testEncoders are those of a worker of an archive of its own.
func testEncoders(t *testing.T, o Options) *encoders {
	o.EnsureDefaults()
	a := &Archive{o: o, box: newToolbox(o.BlockSize), dense: make(chan struct{}, denseTurns()), learner: newLearner(o.BlockSize)}
	a.learner.busyNow = func(*stopwatch) bool { return false } // whatever else runs here
	t.Cleanup(func() { a.learner.close(); a.box.close() })
	return a.newEncoders(new(plans))
}

// encode encodes m; what is learned of it is known when it returns.
func encode(e *encoders, m *memBlock, waiting int) (note, err error) {
	note, err = e.encode(m, waiting, false, nil)
	e.learner.running.Wait()
	return note, err
}

// bookBlock is a block of 64 KiB of messages that can be foretold.
func bookBlock(t *testing.T, seed uint64) *memBlock { return bookOf(t, seed, 64<<10, "") }

// bookOf is a block of so many bytes of such messages, with an end.
func bookOf(t *testing.T, seed uint64, size int, end string) *memBlock {
	rnd := rand.New(rand.NewPCG(seed, 1))
	b := block.NewBuilder(sess(t, "S"))
	for q, at := moldcast.Seq(1), 0; b.RawSize() < size; q++ {
		at += rnd.IntN(5000)
		m := []byte("A0000........0000")
		for i := range 8 {
			m[5+i] = byte(at >> (56 - 8*i))
		}
		m[2] = byte(rnd.IntN(40))
		m[14] = m[2] + 3
		m = append(m, end...)
		p := moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(moldcast.AppendMessage(nil, m), 1), Time: moldcast.Stamp(at + 1000), Heard: moldcast.Stamp(at + 1000)}
		if err := b.Append(p); err != nil {
			t.Fatal(err)
		}
	}
	return &memBlock{b: b}
}

// What is learned of one block makes the next smaller.
func TestEncodersLearn(t *testing.T) {
	e := testEncoders(t, Options{Codec: CodecAuto})
	var stored []int
	for i := range 3 {
		m := bookBlock(t, uint64(i))
		if note, err := encode(e, m, 0); note != nil || err != nil {
			t.Fatal(note, err)
		}
		if want := []block.Codec{block.PlanesZstd, block.Foretold, block.Foretold}[i]; m.parsed.Codec != want {
			t.Errorf("block %d is stored as %v, want %v", i, m.parsed.Codec, want)
		}
		stored = append(stored, len(m.body))
	}
	if e.plans.newest.Load() == nil || stored[1] > stored[0]*9/10 || stored[2] > stored[1]*11/10 {
		t.Errorf("blocks take %v bytes", stored)
	}
	// An import learns first.
	first := bookBlock(t, 0)
	if note, err := testEncoders(t, Options{Codec: CodecAuto, Wait: true}).encode(first, 1000, true, nil); note != nil || err != nil || first.parsed.Codec != block.Foretold {
		t.Errorf("first block of an import: %v %v %v", first.parsed.Codec, note, err)
	}
	m := bookBlock(t, 9)
	if note, err := encode(e, m, hurry); note != nil || err != nil || m.parsed.Codec != block.PlanesZstd {
		t.Errorf("while blocks wait: %v %v %v", m.parsed.Codec, note, err)
	}
}

// A block that does not decode to what it was made from is stored as rows; not
// where that was not asked for.
func TestEncodersVerify(t *testing.T) {
	for _, o := range []Options{{Codec: CodecAuto}, {Codec: CodecAuto, NoVerify: true}} {
		e := testEncoders(t, o)
		e.spoil = func(body []byte) { body[len(body)/2] ^= 1 }
		m := bookBlock(t, 1)
		note, err := encode(e, m, 0)
		if err != nil {
			t.Fatal(err)
		}
		d, err := block.NewDecoder(block.DecoderOptions{Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		bad := d.Decode(m.parsed, m.body, new(block.Block))
		if o.NoVerify {
			if note != nil || bad == nil {
				t.Errorf("not verified: %v, %v", note, bad)
			}
			continue
		}
		if !errors.Is(note, errCodec) || bad != nil || m.parsed.Codec != block.Zstd {
			t.Errorf("noticed %v; stored as %v, which decodes with %v", note, m.parsed.Codec, bad)
		}
	}
}
