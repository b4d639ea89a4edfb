package block

import (
	"errors"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
)

// Stamps are the packets of a block without their messages: which sequences,
// and when they belong. Like a Block it does not change until a Decoder is
// given it again; the zero value is empty.
type Stamps struct {
	b     Block
	whole bool
}

// Whole reports whether all of the block had to be decoded: its times are
// stored as differences to what its messages say.
func (s *Stamps) Whole() bool { return s.whole }

// Stamps is Decode without the messages: it decodes, and checks, the
// boundaries, times and origins alone, as far as that goes. Errors: as of
// Decode.
func (d *Decoder) Stamps(h Header, body []byte, into *Stamps) error {
	into.whole = false
	seen, f := d.sections(&h, body, stampTags, nil, &into.b)
	if errors.Is(f.err, errNeedsRows) {
		into.whole = true
		return d.Decode(h, body, &into.b)
	}
	if !f.found() {
		f = d.finishStamps(&h, seen, &into.b)
	}
	return d.result(&h, f, &into.b)
}

// finishStamps is finish without the messages.
func (d *Decoder) finishStamps(h *Header, seen tag, b *Block) fault {
	if want := tag(1<<tagBoundaries | 1<<tagTimes); h.Packets > 0 && seen&want != want || h.Packets == 0 && seen != 0 {
		return fault{part: "body", reason: "sections missing, or there without cause"}
	}
	if h.Packets > 0 {
		b.ords = append(b.ords, uint32(b.msgs))
	}
	if d.runs = b.runTimes(d.runs[:0]); !slices.Equal(d.runs, h.Times) {
		return fault{part: tagTimes.String(), reason: "times differ from the header's bounds"}
	}
	return fault{}
}

// Each calls fn for the packets of r, in order: which sequences of it, and
// their time. Those on both ends are cut. It is false where r is not all held.
func (s *Stamps) Each(r moldcast.Range, fn func(r moldcast.Range, t moldcast.Stamp)) bool {
	b := &s.b
	k := b.run(r.First)
	if r.Empty() || k == len(b.runs) || b.runs[k].First > r.First || b.runs[k].Next < r.Next {
		return r.Empty()
	}
	for i, _ := b.Find(r.First); r.First < r.Next; i++ {
		next := min(b.runs[k].First+moldcast.Seq(b.ords[i+1]-b.runOrd[k]), r.Next)
		fn(moldcast.Range{First: r.First, Next: next}, b.times[i])
		r.First = next
	}
	return true
}
