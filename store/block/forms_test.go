package block

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

var forms = map[string]Level{"dense": Dense, "planes": Planes, "hasty": Hasty, "row": Default}

// encodeBlock is the stored form of b, copied.
func encodeBlock(t testing.TB, e *Encoder, b *Block) (h Header, body []byte) {
	t.Helper()
	header, body := e.EncodeBlock(nil, b, EncodeOptions{})
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	return h, body
}

// Every form of every feed is read back, whole; dense is what its name says,
// and never more than the rows.
func TestForms(t *testing.T) {
	d := mustDecoder(t, DecoderOptions{Verify: true})
	second := newSecondReader(t)
	for _, feed := range slices.Sorted(maps.Keys(feeds)) {
		for _, per := range []int{1, 4} {
			stored := map[string]int{}
			for name, level := range forms {
				e := mustEncoder(t, EncoderOptions{Level: level, Learn: true})
				for seed := range uint64(3) {
					b := feedBlock(feed, 100<<10, per, seed)
					h, body := encodeBlock(t, e, b)
					stored[name] += len(body)
					var got Block
					if err := d.Decode(h, body, &got); err != nil {
						t.Fatalf("%s of %s: %v", name, feed, err)
					}
					if diff := cmp.Diff(blockPieces(b), blockPieces(&got)); diff != "" {
						t.Fatalf("%s of %s: %s", name, feed, diff)
					}
					if seed == 0 {
						second.t = t
						second.agree(h.Append(nil), body, h, &got)
					}
				}
			}
			t.Log(feed, per, stored)
			if stored["dense"] > stored["row"]+stored["row"]/100 {
				t.Errorf("%s: dense takes %d bytes, rows %d", feed, stored["dense"], stored["row"])
			}
			if feed == "itch" || feed == "quotes" {
				if stored["dense"]*10 > stored["row"]*6 || stored["planes"] > stored["row"] {
					t.Errorf("%s: dense takes %d bytes, planes %d, rows %d", feed, stored["dense"], stored["planes"], stored["row"])
				}
			}
		}
	}
}

// A feed that becomes one that rows suit better is stored as rows from the
// first block on; and one that changes is learned anew.
func TestFormsOfChange(t *testing.T) {
	e := mustEncoder(t, EncoderOptions{Level: Dense, Learn: true})
	rows := mustEncoder(t, EncoderOptions{})
	for seed := range uint64(6) {
		encodeBlock(t, e, feedBlock("itch", 64<<10, 4, seed))
	}
	before := e.Plans()
	for _, feed := range []string{"echo", "text", "noise", "quotes", "itch"} {
		for seed := range uint64(3) {
			b := feedBlock(feed, 64<<10, 4, seed)
			h, body := encodeBlock(t, e, b)
			_, r := encodeBlock(t, rows, b)
			if len(body) > len(r)+len(r)/100 {
				t.Errorf("%s: %v takes %d bytes, rows %d", feed, h.Codec, len(body), len(r))
			}
		}
	}
	if e.Plans() == before {
		t.Error("nothing was learned of other messages")
	}
}

// Plans learned of other blocks change bytes, never content.
func TestFormsOfAnything(t *testing.T) {
	var plans []*Plans
	for feed := range feeds {
		plans = append(plans, Learn(nil, feedBlock(feed, 40<<10, 3, 9)))
	}
	for name, level := range forms {
		e, d := mustEncoder(t, EncoderOptions{Level: level}), mustDecoder(t, DecoderOptions{Verify: true})
		rapid.Check(t, func(t *rapid.T) {
			e.UsePlans(plans[rapid.IntRange(0, len(plans)-1).Draw(t, "plans")])
			b := anyBlock(t)
			header, body := e.EncodeBlock(nil, b, EncodeOptions{})
			h, err := ParseHeader(header)
			if err != nil {
				t.Fatal(err)
			}
			var got Block
			if err := d.Decode(h, body, &got); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if diff := cmp.Diff(blockPieces(b), blockPieces(&got)); diff != "" {
				t.Fatal(diff)
			}
			if len(body) > b.Pieces()*32+len(b.rows)+200 {
				t.Fatalf("%d bytes of %d", len(body), len(b.rows))
			}
		})
	}
}

// anyBlock mixes messages of feeds and whatever else.
func anyBlock(t *rapid.T) *Block {
	rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	var make []func() []byte
	for _, f := range rapid.SliceOfN(rapid.SampledFrom(slices.Sorted(maps.Keys(feeds))), 1, 3).Draw(t, "feeds") {
		make = append(make, feeds[f](rnd))
	}
	own := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, 4).Draw(t, "messages")
	make = append(make, func() []byte { return own[rnd.IntN(len(own))] })
	b := NewBuilder(testSession)
	seq, at := moldcast.Seq(rapid.Uint64Range(1, 1<<40).Draw(t, "first")), rapid.Int64().Draw(t, "at")
	unit := rapid.SampledFrom([]int64{1, 1000, 1e6, 1e9}).Draw(t, "unit")
	at -= at % unit
	for range rapid.IntRange(1, 400).Draw(t, "pieces") {
		n := 1 + rnd.IntN(5)
		var framed []byte
		for range n {
			framed = moldcast.AppendMessage(framed, make[rnd.IntN(len(make))]())
		}
		switch rnd.IntN(40) {
		case 0:
			at = int64(rnd.Uint64()) / unit * unit
		default:
			at += int64(rnd.IntN(5000)) * unit
		}
		p := moldcast.Piece{First: seq, Msgs: moldcast.MessagesOf(framed, n), Time: moldcast.Stamp(at), Heard: moldcast.Stamp(at)}
		if rnd.IntN(30) == 0 {
			p.Heard += moldcast.Stamp(rnd.IntN(100)) * moldcast.Stamp(unit)
		}
		if err := b.Append(p); err != nil {
			t.Fatal(err)
		}
		seq += moldcast.Seq(n + rnd.IntN(10)/9)
	}
	out := new(Block)
	if err := b.Freeze(out); err != nil {
		t.Fatal(err)
	}
	return out
}

// What was learned is one thing, however often it is learned.
func TestLearnIsOne(t *testing.T) {
	b := feedBlock("itch", 100<<10, 2, 1)
	p := Learn(nil, b)
	if len(p.plans) < 3 || len(p.widths) == 0 || len(p.clocks) == 0 {
		t.Errorf("%d plans, %d tables, %d clocks", len(p.plans), len(p.widths), len(p.clocks))
	}
	for range 3 {
		if diff := cmp.Diff(fmt.Sprint(p), fmt.Sprint(Learn(nil, b))); diff != "" {
			t.Fatal(diff)
		}
	}
	// What another block says nothing of is kept.
	q := Learn(p, feedBlock("quotes", 30<<10, 2, 1))
	if len(q.plans) != len(p.plans)+1 {
		t.Errorf("%d plans, want those %d and one more", len(q.plans), len(p.plans))
	}
}

// Lags are stored where a field of the messages is the feed's time, and
// deltas where none is.
func TestLags(t *testing.T) {
	for feed, want := range map[string]int{"itch": 1, "quotes": 1, "text": 0} {
		e := mustEncoder(t, EncoderOptions{Level: Dense, Learn: true})
		b := feedBlock(feed, 60<<10, 1, 3)
		h, body := encodeBlock(t, e, b)
		for at := 0; at < len(body); {
			s := body[at:]
			n := sectionHeader + int(binary.BigEndian.Uint32(s[8:]))
			if tag(binary.BigEndian.Uint16(s)) == tagTimes {
				if Codec(s[3]) != Lagged || (s[sectionHeader] > 0) != (want > 0) {
					t.Errorf("%s: times are stored as %v with %d clocks", feed, Codec(s[3]), s[sectionHeader])
				}
				// 2000 ns of jitter are 11 bits.
				if per := float64(n) / float64(h.Packets); want > 0 && per > 1.9 {
					t.Errorf("%s: %.2f bytes a stamp", feed, per)
				}
			}
			at += n
		}
	}
}

// Nothing is allocated for a block, by an encoder and a decoder that have seen
// one like it.
func TestNoAllocationsOfForms(t *testing.T) {
	for name, level := range forms {
		for _, feed := range []string{"itch", "quotes", "noise"} {
			b := feedBlock(feed, 200<<10, 3, 2)
			e, d := mustEncoder(t, EncoderOptions{Level: level}), mustDecoder(t, DecoderOptions{Verify: true})
			e.UsePlans(Learn(nil, b))
			var dst []byte
			noAllocs(t, "encode "+name+" of "+feed, func() { _, dst = e.EncodeBlock(dst[:0], b, EncodeOptions{}) })
			h, body := encodeBlock(t, e, b)
			var got Block
			noAllocs(t, "decode "+name+" of "+feed, func() {
				if err := d.Decode(h, body, &got); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A codec is taken only for the section that it is of.
func TestCodecOfSection(t *testing.T) {
	header, body := sample(t, None)
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	d := mustDecoder(t, DecoderOptions{})
	for at := 0; at < len(body); at += sectionHeader + int(binary.BigEndian.Uint32(body[at+8:])) {
		for c := range Codec(9) {
			b, h := bytes.Clone(body), h
			b[at+3] = byte(c)
			resealBody(b)
			h.BodyCRC = crc(b)
			if at == 0 {
				h.Codec = c
			}
			var got Block
			err := d.Decode(h, b, &got)
			switch section := tag(binary.BigEndian.Uint16(b[at:])); {
			case c == Stored && err != nil, c != Stored && err == nil:
				t.Errorf("%v as %v: %v", section, c, err)
			case !c.of(section) && !errors.As(err, new(*UnsupportedError)):
				t.Errorf("%v as %v: %v, want unsupported", section, c, err)
			}
		}
	}
}

// Rows of more than one part.
func TestManyParts(t *testing.T) {
	d := mustDecoder(t, DecoderOptions{Verify: true})
	for feed, size := range map[string]int{"itch": 3 << 19, "noise": 5 << 18} {
		b := feedBlock(feed, size, 30, 1)
		for _, level := range []Level{Dense, Hasty} {
			e := mustEncoder(t, EncoderOptions{Level: level, BlockSize: MaxTarget, Learn: true})
			h, body := encodeBlock(t, e, b)
			var got Block
			if err := d.Decode(h, body, &got); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.rows, b.rows) {
				t.Fatalf("%s differs", feed)
			}
		}
	}
}

func BenchmarkForms(bm *testing.B) {
	for _, form := range slices.Sorted(maps.Keys(forms)) {
		for _, feed := range []string{"itch", "quotes"} {
			for _, size := range []int{64, 256, 1024} {
				b := feedBlock(feed, size<<10, 4, 2)
				e := mustEncoder(bm, EncoderOptions{Level: forms[form], BlockSize: size << 10})
				e.UsePlans(Learn(nil, feedBlock(feed, size<<10, 4, 1)))
				h, body := encodeBlock(bm, e, b)
				name := fmt.Sprintf("form=%s/feed=%s/block=%dK", form, feed, size)
				bm.Run("encode/"+name, func(bm *testing.B) {
					var dst []byte
					bm.SetBytes(int64(len(b.rows)))
					bm.ReportAllocs()
					for bm.Loop() {
						_, dst = e.EncodeBlock(dst[:0], b, EncodeOptions{})
					}
					bm.ReportMetric(float64(len(dst))/float64(b.Count()), "B/msg")
				})
				bm.Run("decode/"+name, func(bm *testing.B) {
					d := mustDecoder(bm, DecoderOptions{})
					var got Block
					bm.SetBytes(int64(len(b.rows)))
					bm.ReportAllocs()
					for bm.Loop() {
						if err := d.Decode(h, body, &got); err != nil {
							bm.Fatal(err)
						}
					}
				})
			}
		}
	}
}

func BenchmarkLearn(bm *testing.B) {
	for _, feed := range []string{"itch", "quotes"} {
		bm.Run("feed="+feed+"/block=256K", func(bm *testing.B) {
			b := feedBlock(feed, 256<<10, 4, 1)
			for bm.Loop() {
				Learn(nil, b)
			}
		})
	}
}
