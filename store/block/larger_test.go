package block

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// Whatever comes, and whatever came before, in blocks small and large: what is
// stored takes no more than rows do, compressed as hard, and 1 %; in overload,
// where they are not tried, no more than they are.
func TestNeverLarger(t *testing.T) {
	var plans []*Plans
	for _, feed := range slices.Sorted(maps.Keys(feeds)) {
		plans = append(plans, Learn(nil, feedBlock(feed, 40<<10, 3, 9)))
	}
	for level, of := range map[Level]Level{Dense: Default, Planes: Fastest, Hasty: None} {
		e, rows := mustEncoder(t, EncoderOptions{Level: level}), mustEncoder(t, EncoderOptions{Level: of})
		rapid.Check(t, func(t *rapid.T) {
			var past History
			e.Follow(&past)
			for range rapid.IntRange(1, 4).Draw(t, "blocks") {
				if rapid.Bool().Draw(t, "learned") {
					e.UsePlans(rapid.SampledFrom(plans).Draw(t, "plans"))
				}
				b := mixedBlock(t)
				_, stored := e.EncodeBlock(nil, b, EncodeOptions{})
				_, r := rows.EncodeBlock(nil, b, EncodeOptions{})
				if len(stored) > len(r)+len(r)/100+8 {
					t.Fatalf("%d bytes of %d; rows take %d", len(stored), len(b.rows), len(r))
				}
			}
		})
	}
}

// mixedBlock is a block of messages of several feeds and of random bytes, some
// of which are repeated.
func mixedBlock(t *rapid.T) *Block {
	rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
	var from []func() []byte
	for _, f := range rapid.SliceOfN(rapid.SampledFrom(slices.Sorted(maps.Keys(feeds))), 0, 2).Draw(t, "feeds") {
		from = append(from, feeds[f](rnd))
	}
	symbols := rapid.SampledFrom([]int{1, 2, 16, 100, 256}).Draw(t, "symbols")
	longest := rapid.SampledFrom([]int{1, 8, 40, 300, 1400}).Draw(t, "longest")
	fixed := rapid.Bool().Draw(t, "fixed length")
	random := func() []byte {
		n := longest
		if !fixed {
			n = rnd.IntN(longest + 1)
		}
		m := make([]byte, n)
		for i := range m {
			m[i] = byte(rnd.IntN(symbols))
		}
		return m
	}
	known := [][]byte{random(), random(), random()}
	again := func() []byte {
		k := rnd.IntN(len(known))
		if rnd.IntN(8) == 0 {
			known[k] = random()
		}
		return known[k]
	}
	from = append(from, rapid.SampledFrom([]func() []byte{random, again}).Draw(t, "others"))
	b := NewBuilder(testSession)
	size := rapid.SampledFrom([]int{100, 3000, 20_000, smallRaw + 1, 80_000}).Draw(t, "size")
	for q := moldcast.Seq(1); b.RawSize() < size; q++ {
		m := moldcast.AppendMessage(nil, from[rnd.IntN(len(from))]())
		at := moldcast.Stamp(q) * 1000
		if err := b.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(m, 1), Time: at, Heard: at}); err != nil {
			t.Fatal(err)
		}
	}
	out := new(Block)
	if err := b.Freeze(out); err != nil {
		t.Fatal(err)
	}
	return out
}
