package block

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// Plans know clocks of messages that are not in a block: its times are as they
// are without, whatever a mean of them would foretell.
func TestClocksOfOtherMessages(t *testing.T) {
	e, d := mustEncoder(t, EncoderOptions{Level: Dense}), mustDecoder(t, DecoderOptions{Verify: true})
	other := NewBuilder(testSession)
	rnd := rand.New(rand.NewPCG(1, 2))
	for q := moldcast.Seq(1); q <= 200; q++ {
		// About one time: the mean of all is nearer than the one before.
		at := moldcast.Stamp(1_700_000_000_000_000_000 + rnd.Int64N(1<<20))
		m := moldcast.AppendMessage(nil, []byte{'?', byte(q)})
		if err := other.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(m, 1), Time: at, Heard: at}); err != nil {
			t.Fatal(err)
		}
	}
	b := new(Block)
	if err := other.Freeze(b); err != nil {
		t.Fatal(err)
	}
	p := &Plans{at: map[shapeOf]int{}, clocks: []clock{{shape: shapeOf(36<<8 | 'A'), at: 5, n: 6}}}
	e.UsePlans(p)
	h, body := encodeBlock(t, e, b)
	var got Block
	if err := d.Decode(h, body, &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.times, b.times) {
		t.Fatal("other times")
	}
}
