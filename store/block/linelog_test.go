package block

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// drawLog gives b a line log: most of the pieces on one line or another, and
// what no piece says anything of.
func drawLog(t *rapid.T, b *Builder) {
	var pieces []moldcast.Piece
	b.PiecesFrom(0, func(p moldcast.Piece) bool {
		pieces = append(pieces, p)
		return true
	})
	for range rapid.IntRange(0, 3).Draw(t, "logs") {
		p := LogPart{
			ID: drawStamp(t, "log"), Before: rapid.Uint64Max(1<<40).Draw(t, "before"),
			Lost: rapid.SampledFrom([]uint64{0, 0, 1, 1 << 40}).Draw(t, "lost"), Last: rapid.Bool().Draw(t, "last"), Bare: rapid.IntRange(0, 3).Draw(t, "bare") == 0,
		}
		if err := b.BeginLog(p); err != nil {
			t.Fatal(err)
		}
		for i := range pieces {
			for range rapid.SampledFrom([]int{0, 1, 1, 1, 2}).Draw(t, "times heard") {
				h := moldcast.Heard{
					Stamp: pieces[i].Heard, First: pieces[i].First, Count: uint16(pieces[i].Msgs.Len()), Turn: uint32(i),
					Line: rapid.SampledFrom([]uint8{0, 1, 1, 5}).Draw(t, "on"),
				}
				switch rapid.IntRange(0, 9).Draw(t, "how") {
				case 0:
					h.Count = rapid.SampledFrom([]uint16{0, 1, 7, moldcast.EndCount}).Draw(t, "count")
				case 1:
					h.First = moldcast.Seq(rapid.Uint64Range(1, 1<<64-10).Draw(t, "seq"))
				case 2:
					h.Flags = moldcast.Differs
				case 3, 4, 5:
					h.Stamp = drawStamp(t, "heard")
				}
				if err := b.Heard(h); err != nil && !errors.Is(err, ErrSeq) {
					t.Fatal(err)
				}
			}
		}
	}
}

// logOf is all that b's line log has.
func logOf(b *Block) (out []string) {
	for i := range b.LogParts() {
		p := b.LogPart(i)
		out = append(out, fmt.Sprintf("%+v", p))
		for line := range p.Lines {
			for _, h := range b.HeardOn(i, line) {
				h.Turn = 0
				out = append(out, fmt.Sprintf("%+v", h))
			}
		}
	}
	return out
}

// What was heard comes out again, in order; who does not ask for it gets the
// block without it.
func TestLineLogOfAnything(t *testing.T) {
	e := map[bool]*Encoder{true: mustEncoder(t, EncoderOptions{}), false: mustEncoder(t, EncoderOptions{Level: None})}
	verify, log, plain := mustDecoder(t, DecoderOptions{Verify: true}), mustDecoder(t, DecoderOptions{Log: true}), mustDecoder(t, DecoderOptions{})
	var got, again Block
	rapid.Check(t, func(t *rapid.T) {
		b := drawBuilder(t)
		want := logOf(&Block{log: b.log})
		header, body, err := e[rapid.Bool().Draw(t, "zstd")].Encode(nil, b, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []*Decoder{verify, log} {
			if err := d.Decode(h, body, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, logOf(&got)); diff != "" {
				t.Fatal(diff)
			}
		}
		if err := plain.Decode(h, body, &again); err != nil || again.LogParts() != 0 {
			t.Fatalf("%v, %d parts", err, again.LogParts())
		}
		if diff := cmp.Diff(blockPieces(&got), blockPieces(&again)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Parts of one log that follow one another are one; turns put right what comes
// late.
func TestLineLogJoins(t *testing.T) {
	b := NewBuilder(testSession)
	add := func(p LogPart, turns ...uint32) {
		t.Helper()
		if err := b.BeginLog(p); err != nil {
			t.Fatal(err)
		}
		for _, n := range turns {
			if err := b.Heard(moldcast.Heard{Stamp: moldcast.Stamp(n), First: moldcast.Seq(n), Count: 1, Turn: n}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(LogPart{ID: 7}, 1, 2, 4, 3)
	add(LogPart{ID: 7, Before: 4, Lost: 2}, 5)
	add(LogPart{ID: 7, Before: 8}, 6) // one is missing
	add(LogPart{ID: 8, Before: 9}, 9)
	add(LogPart{ID: 8, Before: 10, Last: true})
	add(LogPart{ID: 8, Before: 10}) // not behind the end
	want := []string{
		"{ID:7 Before:0 Heard:5 Lost:2 From:1 To:5 Lines:1 Last:false Bare:false}", "1", "2", "3", "4", "5",
		"{ID:7 Before:8 Heard:1 Lost:0 From:6 To:6 Lines:1 Last:false Bare:false}", "6",
		"{ID:8 Before:9 Heard:1 Lost:0 From:9 To:9 Lines:1 Last:true Bare:false}", "9",
		"{ID:8 Before:10 Heard:0 Lost:0 From:0 To:0 Lines:0 Last:false Bare:false}",
	}
	var got []string
	for i := range b.log {
		got = append(got, fmt.Sprintf("%+v", b.log[i].LogPart))
		for _, l := range b.log[i].lines {
			for _, h := range l {
				got = append(got, fmt.Sprint(h.Turn))
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestLineLogLimits(t *testing.T) {
	b := NewBuilder(testSession)
	for i := range maxLogParts {
		if err := b.BeginLog(LogPart{ID: moldcast.Stamp(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.BeginLog(LogPart{ID: -1}); err != ErrFull {
		t.Fatal(err)
	}
	for range MaxHeard {
		if err := b.Heard(moldcast.Heard{Stamp: 1, First: 1, Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Heard(moldcast.Heard{Stamp: 1, First: 1, Count: 1}); err != ErrFull {
		t.Fatal(err)
	}
	b.Reset(testSession)
	_ = b.BeginLog(LogPart{})
	for _, h := range []moldcast.Heard{{Count: 1}, {First: 1<<64 - 1, Count: 1}, {First: 1, Count: 1, Line: maxLogLines}} {
		if err := b.Heard(h); err != ErrSeq {
			t.Fatalf("%+v: %v", h, err)
		}
	}
}

// abLines is a block of a feed that was heard on one line or two, and its log:
// each line brings a packet some 20 µs after it was sent, and loses one in 200.
func abLines(perPacket, lines int, two float64) *Builder {
	rnd := rand.New(rand.NewPCG(3, 7))
	next := feeds["itch"](rnd)
	b := NewBuilder(testSession)
	_ = b.BeginLog(LogPart{ID: 1_473_724_800_000_000_000})
	type copied struct {
		h   moldcast.Heard
		out []byte
	}
	var all []copied
	var last [2]moldcast.Stamp
	seq := moldcast.Seq(1)
	for total := 0; total < 256<<10; {
		n := perPacket
		if rnd.Float64() < two {
			n++
		}
		var framed, m []byte
		for range n {
			m = next()
			framed = moldcast.AppendMessage(framed, m)
		}
		total += len(framed)
		at := 1_473_724_800_000_000_000 + moldcast.Stamp(load(m, 5, 6, false))
		for line := range lines {
			if rnd.IntN(200) > 0 {
				lag := 20_000 + 15_000*moldcast.Stamp(line) + moldcast.Stamp(rnd.ExpFloat64()*8000)
				last[line] = max(last[line]+300, at+lag) // in order: it waits behind the one before
				all = append(all, copied{moldcast.Heard{Stamp: last[line], First: seq, Count: uint16(n), Line: uint8(line)}, framed})
			}
		}
		seq += moldcast.Seq(n)
	}
	slices.SortStableFunc(all, func(x, y copied) int { return int(x.h.Stamp - y.h.Stamp) })
	for i, c := range all {
		c.h.Turn = uint32(i)
		_ = b.Heard(c.h)
		_ = b.Append(moldcast.Piece{First: c.h.First, Msgs: moldcast.MessagesOf(c.out, int(c.h.Count)), Time: c.h.Stamp, Heard: c.h.Stamp, Line: c.h.Line})
	}
	return b
}

// What a line log costs of a block: next to nothing on one line, less than 2 %
// on two lines only where packets are full.
func TestLineLogCost(t *testing.T) {
	for _, l := range []Level{Default, Dense} {
		e := mustEncoder(t, EncoderOptions{Level: l, Learn: true})
		for _, x := range []struct {
			name             string
			per, lines       int
			two, least, most float64 // share of the block
		}{
			{"1.35 a packet, one line", 1, 1, 0.35, 0, 0.003},
			{"1.35 a packet", 1, 2, 0.35, 0.05, 0.30},
			{"4 a packet", 4, 2, 0, 0.02, 0.11},
			{"full packets", 42, 2, 0, 0, 0.015},
		} {
			b := abLines(x.per, x.lines, x.two)
			_, body, err := e.Encode(nil, b, EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			with := len(body)
			b.log = nil
			_, body, _ = e.Encode(nil, b, EncodeOptions{})
			share := float64(with-len(body)) / float64(len(body))
			t.Logf("%s, level %d: %d bytes, %.3f a message, %.2f a datagram of the other line, %.2f %% of %d", x.name, l, with-len(body),
				float64(with-len(body))/float64(b.Count()), float64(with-len(body))/float64(b.Pieces()), 100*share, len(body))
			if share < x.least || share > x.most {
				t.Errorf("%s, level %d: %.2f %%, want %v..%v %%", x.name, l, 100*share, 100*x.least, 100*x.most)
			}
		}
	}
}

// Nothing is allocated for a datagram once a builder has been filled before.
func TestHeardDoesNotAllocate(t *testing.T) {
	b := NewBuilder(testSession)
	fill := func() {
		b.Reset(testSession)
		_ = b.BeginLog(LogPart{ID: 1})
		for i := range 1000 {
			_ = b.Heard(moldcast.Heard{Stamp: 1, First: 1, Count: 1, Line: uint8(i % 2), Turn: uint32(i)})
		}
	}
	fill()
	if n := testing.AllocsPerRun(10, fill); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}

// A damaged line log is found, and named.
func TestLineLogDamage(t *testing.T) {
	header, body, err := mustEncoder(t, EncoderOptions{}).Encode(nil, abLines(1, 2, 0.35), EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := mustDecoder(t, DecoderOptions{Log: true})
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	body = bytes.Clone(body)
	body[len(body)-7] ^= 4
	var b Block
	var bad *CorruptError
	if err := d.Decode(h, body, &b); !errors.As(err, &bad) || bad.Part != "line log" {
		t.Fatal(err)
	}
	body[len(body)-7] ^= 4
	h.Log.Parts[0].Heard--
	if err := d.Decode(h, body, &b); !errors.As(err, &bad) || bad.Part != "line log" {
		t.Fatal(err)
	}
}

func FuzzLineLog(f *testing.F) {
	add := func(b *Builder) {
		e := mustEncoder(f, EncoderOptions{Level: None})
		header, body := encode(f, e, b, EncodeOptions{})
		f.Add(header, body)
	}
	add(abLines(40, 2, 0))
	add(buildScript(&testing.T{}, "piece 1 5 \"a\"\npiece 2 9 line=1 \"b\"\nlog 3 0 0 last=1\nheard 5 1 1\nheard 6 2 0 line=1\nheard 9 2 1 line=1\nheard 99 2 1\nheard 99 1 1 flags=1"))
	add(buildScript(&testing.T{}, "log 1 9 4\nlog 1 14 0"))
	d := mustDecoder(f, DecoderOptions{Log: true, Memory: 4 << 20})
	e := mustEncoder(f, EncoderOptions{Level: None})
	f.Fuzz(func(t *testing.T, header, body []byte) {
		header, body = bytes.Clone(header), bytes.Clone(body)
		resealHeader(header)
		resealBody(body)
		h, err := ParseHeader(header)
		if err != nil {
			return
		}
		h.StoredLen, h.BodyCRC = len(body), crc(body)
		var b, again Block
		if err := d.Decode(h, body, &b); err != nil {
			if !typed(err) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		header, body = e.EncodeBlock(nil, &b, EncodeOptions{})
		if h, err = ParseHeader(header); err != nil {
			t.Fatal(err)
		}
		if err := d.Decode(h, body, &again); err != nil {
			if errors.Is(err, ErrTooLarge) {
				return
			}
			t.Fatal(err)
		}
		if diff := cmp.Diff(logOf(&b), logOf(&again)); diff != "" {
			t.Fatal(diff)
		}
	})
}
