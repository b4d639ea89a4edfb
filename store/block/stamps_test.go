package block

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

type stamped struct {
	r moldcast.Range
	t moldcast.Stamp
}

func stampsOf(s *Stamps, r moldcast.Range) (out []stamped, held bool) {
	held = s.Each(r, func(r moldcast.Range, t moldcast.Stamp) { out = append(out, stamped{r, t}) })
	return out, held
}

// checkStamps compares s with the block that it is of.
func checkStamps(t fataler, b *Block, s *Stamps, err error) {
	if err != nil {
		t.Fatalf("stamps of a sound block: %v", err)
	}
	var want, got []stamped
	for i := range b.Pieces() {
		p := b.PieceAt(i)
		want = append(want, stamped{p.Range(), p.Time})
	}
	for _, r := range b.Runs() {
		part, held := stampsOf(s, r)
		if !held {
			t.Fatalf("%v is not held", r)
		}
		got = append(got, part...)
		if _, held := stampsOf(s, moldcast.Range{First: r.First, Next: r.Next + 1}); held {
			t.Fatalf("%v and one more is held", r)
		}
		// Cut at both ends.
		cut := moldcast.Range{First: r.First + r2(r.Len(), 3), Next: r.Next - r2(r.Len(), 5)}
		part, held = stampsOf(s, cut)
		if !held || !cut.Empty() && (part[0].r.First != cut.First || part[len(part)-1].r.Next != cut.Next) {
			t.Fatalf("%v of %v: %v", cut, r, part)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("stamps %v, want %v", got, want)
	}
}

func r2(n, part uint64) moldcast.Seq { return moldcast.Seq(n / part) }

// The stamps of a block are those of its pieces, in every form, and are read
// without its messages where these do not say when they were sent.
func TestStamps(t *testing.T) {
	d := mustDecoder(t, DecoderOptions{})
	for name, level := range forms {
		for _, feed := range []string{"itch", "quotes", "text", "noise"} {
			b := feedBlock(feed, 100<<10, 3, 4)
			e := mustEncoder(t, EncoderOptions{Level: level})
			e.UsePlans(Learn(nil, b))
			h, body := encodeBlock(t, e, b)
			var s Stamps
			err := d.Stamps(h, body, &s)
			checkStamps(t, b, &s, err)
			if lags := level == Dense && (feed == "itch" || feed == "quotes"); lags && !s.Whole() || level == Default && s.Whole() {
				t.Errorf("%s of %s: whole is %v", name, feed, s.Whole())
			}
			noAllocs(t, "stamps "+name+" of "+feed, func() {
				if err := d.Stamps(h, body, &s); err != nil {
					t.Fatal(err)
				}
			})
			// Damage of the messages matters where they are needed.
			body[sectionHeader+9] ^= 1
			if err := d.Stamps(h, body, &s); (err == nil) == s.Whole() {
				t.Errorf("%s of %s, messages damaged: %v", name, feed, err)
			}
			body[sectionHeader+9] ^= 1
			at := sectionHeader + int(binary.BigEndian.Uint32(body[8:])) // the boundaries
			body[at+sectionHeader+3] ^= 1
			if err := d.Stamps(h, body, &s); !errors.As(err, new(*CorruptError)) {
				t.Errorf("%s of %s, boundaries damaged: %v", name, feed, err)
			}
			if _, held := stampsOf(&s, h.Runs[0]); held {
				t.Errorf("%s of %s: something is left of what was damaged", name, feed)
			}
		}
	}
}

func TestStampsOfAnything(t *testing.T) {
	d, e := mustDecoder(t, DecoderOptions{}), mustEncoder(t, EncoderOptions{})
	var s Stamps
	var got Block
	rapid.Check(t, func(t *rapid.T) {
		header, body, err := e.Encode(nil, drawBuilder(t), EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Decode(h, body, &got); err != nil {
			t.Fatal(err)
		}
		err = d.Stamps(h, body, &s)
		checkStamps(t, &got, &s, err)
	})
}

// BenchmarkStamps is a block of 256 KiB with its messages, and without.
func BenchmarkStamps(b *testing.B) {
	d := mustDecoder(b, DecoderOptions{})
	for name, level := range forms {
		blk := feedBlock("itch", 256<<10, 1, 4)
		e := mustEncoder(b, EncoderOptions{Level: level})
		e.UsePlans(Learn(nil, blk))
		h, body := encodeBlock(b, e, blk)
		var s Stamps
		var whole Block
		b.Run("form="+name+"/what=whole", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(h.RawLen))
			for b.Loop() {
				if err := d.Decode(h, body, &whole); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("form="+name+"/what=stamps", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(h.RawLen))
			for b.Loop() {
				if err := d.Stamps(h, body, &s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
