package block

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// encode is a block of b, copied.
func encode(t testing.TB, e *Encoder, b *Builder, o EncodeOptions) (header, body []byte) {
	t.Helper()
	header, body, err := e.Encode(nil, b, o)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(header), bytes.Clone(body)
}

func decode(t testing.TB, d *Decoder, header, body []byte, into *Block) Header {
	t.Helper()
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(h, body, into); err != nil {
		t.Fatal(err)
	}
	return h
}

// stamps are drawn from clocks of every unit, and the ends of what fits.
func drawStamp(t *rapid.T, name string) moldcast.Stamp {
	switch rapid.IntRange(0, 5).Draw(t, name+" clock") {
	case 0:
		return moldcast.Stamp(rapid.Int64().Draw(t, name))
	case 1:
		return rapid.SampledFrom([]moldcast.Stamp{0, math.MinInt64, math.MaxInt64, -1}).Draw(t, name)
	case 2:
		return 1e9 * moldcast.Stamp(rapid.Int64Range(-9e9, 9e9).Draw(t, name))
	default:
		return 1_473_799_831_000_000_000 + 1000*moldcast.Stamp(rapid.Int64Range(0, 1e6).Draw(t, name))
	}
}

// drawBuilder fills a builder with pieces of all kinds in any order.
func drawBuilder(t *rapid.T) *Builder {
	b := NewBuilder(testSession)
	base := rapid.SampledFrom([]moldcast.Seq{1, 484311999, 1<<64 - 1 - 300}).Draw(t, "base")
	for range rapid.IntRange(0, 30).Draw(t, "pieces") {
		first := base + moldcast.Seq(rapid.IntRange(0, 250).Draw(t, "first"))
		var msgs []string
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			m := rapid.SampledFrom([]string{"", "a", "the same again and again", "xyz", strings.Repeat("long ", 60)}).Draw(t, "message")
			msgs = append(msgs, m)
		}
		p := piece(first, drawStamp(t, "time"), msgs...)
		if rapid.Bool().Draw(t, "repaired") {
			p.Heard = drawStamp(t, "heard")
			p.Line = rapid.SampledFrom([]uint8{0, 1, moldcast.AnswerLine}).Draw(t, "line")
			p.Flags = moldcast.PieceFlags(rapid.Uint8().Draw(t, "flags"))
		}
		if err := b.Append(p); err != nil && !errors.Is(err, ErrOverlap) {
			t.Fatal(err)
		}
	}
	for range rapid.IntRange(0, 5).Draw(t, "marks") {
		m := moldcast.Mark{
			Kind:  rapid.SampledFrom([]moldcast.Kind{moldcast.Heartbeat, moldcast.End}).Draw(t, "kind"),
			Next:  moldcast.Seq(rapid.Uint64Min(1).Draw(t, "next")),
			Stamp: drawStamp(t, "stamp"),
			Line:  rapid.Uint8().Draw(t, "mark line"),
		}
		if err := b.Mark(m); err != nil {
			t.Fatal(err)
		}
	}
	drawLog(t, b)
	return b
}

// Whatever goes in comes out, at every level, through Freeze as well; the
// header says the same of it as the pieces do; equal content has equal bytes.
func TestRoundTripAnything(t *testing.T) {
	encoders := map[Level]*Encoder{}
	for _, l := range []Level{Default, Fastest, Better, None} {
		encoders[l] = mustEncoder(t, EncoderOptions{Level: l})
	}
	d := mustDecoder(t, DecoderOptions{Verify: true})
	second := newSecondReader(t)
	var got, frozen Block // used again and again
	rapid.Check(t, func(t *rapid.T) {
		b := drawBuilder(t)
		want := builderPieces(b)
		l := Level(rapid.IntRange(0, 3).Draw(t, "level"))
		patch := rapid.Bool().Draw(t, "patch")
		header, body, err := encoders[l].Encode(nil, b, EncodeOptions{Patch: patch})
		if err != nil {
			t.Fatal(err)
		}
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		if again := h.Append(nil); !bytes.Equal(again, header) {
			t.Fatalf("header written again differs:\n%x\n%x", header, again)
		}
		if err := d.Decode(h, body, &got); err != nil {
			t.Fatal(err)
		}
		if err := b.Freeze(&frozen); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*Block{&got, &frozen} {
			if diff := cmp.Diff(want, blockPieces(c)); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(append([]moldcast.Mark{}, b.Marks()...), append([]moldcast.Mark{}, c.Marks()...)); diff != "" {
				t.Fatal(diff)
			}
			if c.Session() != testSession || c.Count() != b.Count() || c.Pieces() != b.Pieces() || c.Range() != b.Bounds() {
				t.Fatalf("counts %d %d %v", c.Count(), c.Pieces(), c.Range())
			}
		}
		checkHeader(t, h, b, want, patch)
		second.agree(bytes.Clone(header), bytes.Clone(body), h, &got)
		if second.t.Failed() {
			t.Fatal("the second reader does not agree")
		}
		again, bodyAgain := encoders[l].EncodeBlock(nil, &got, EncodeOptions{Patch: patch})
		if !bytes.Equal(again, header) || !bytes.Equal(bodyAgain, body) {
			t.Fatal("the decoded block encodes to other bytes")
		}
	})
}

// checkHeader works out from the pieces what the header should say.
func checkHeader(t *rapid.T, h Header, b *Builder, pieces []flat, patch bool) {
	rows := sha256.New()
	var runs []moldcast.Range
	var times []RunTimes
	var framed []string
	for _, p := range pieces {
		next := p.First + moldcast.Seq(p.N)
		if k := len(runs); k > 0 && runs[k-1].Next == p.First {
			runs[k-1].Next = next
			framed[k-1] += p.Framed
		} else {
			runs = append(runs, moldcast.Range{First: p.First, Next: next})
			times = append(times, RunTimes{Min: p.Time, Max: p.Time})
			framed = append(framed, p.Framed)
		}
		rt := &times[len(times)-1]
		rt.Min, rt.Max = min(rt.Min, p.Time), max(rt.Max, p.Time)
		if p.Flags&moldcast.Repaired == 0 {
			if !rt.Live {
				rt.Live, rt.First = true, p.Time
			}
			rt.Last = p.Time
		}
	}
	raw := 0
	for i, r := range runs {
		rows.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(r.First)), uint64(r.Next)))
		rows.Write([]byte(framed[i]))
		raw += len(framed[i])
	}
	want := Header{
		Session: testSession, Patch: patch, Codec: h.Codec, Runs: runs, Times: times,
		Messages: b.Count(), Packets: len(pieces), RawLen: raw,
		StoredLen: h.StoredLen, BodyCRC: h.BodyCRC, Facts: h.Facts, Rows: [32]byte(rows.Sum(nil)), Log: h.Log,
	}
	for i, rt := range times {
		if i == 0 {
			want.MinTime, want.MaxTime = rt.Min, rt.Max
		}
		want.MinTime, want.MaxTime = min(want.MinTime, rt.Min), max(want.MaxTime, rt.Max)
	}
	for _, m := range b.Marks() {
		if want.Marks == 0 {
			want.MarkMin = m.Next
		}
		want.Marks++
		want.MarkMin, want.MarkMax = min(want.MarkMin, m.Next), max(want.MarkMax, m.Next)
		if m.Kind == moldcast.End {
			want.Ended, want.End = true, m.Next
		}
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Fatal(diff)
	}
	first := want.MarkMin
	if len(runs) > 0 {
		first = runs[0].First
	}
	if h.First() != first {
		t.Fatalf("First %d, want %d", h.First(), first)
	}
}

// Packet boundaries, order of arrival, times, codec: none enters the hash of
// the rows.
func TestRowsHashOfAnySplit(t *testing.T) {
	var want [32]byte
	e := mustEncoder(t, EncoderOptions{})
	for try := range 20 {
		rnd := rand.New(rand.NewPCG(7, uint64(try)))
		pieces := cutRandomly(rnd, 484311999, 1000, 1+try, 0)
		b := NewBuilder(testSession)
		for _, i := range rnd.Perm(len(pieces)) {
			mustAppend(t, b, pieces[i])
		}
		if try%2 == 1 {
			e = mustEncoder(t, EncoderOptions{Level: Level(rnd.IntN(4))})
		}
		header, _ := encode(t, e, b, EncodeOptions{})
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		if try == 0 {
			want = h.Rows
		}
		if h.Rows != want {
			t.Fatalf("try %d: other rows", try)
		}
	}
}

func TestBlockLookups(t *testing.T) {
	e, d := mustEncoder(t, EncoderOptions{}), mustDecoder(t, DecoderOptions{})
	var got Block
	for _, base := range bases {
		for _, most := range []int{1, 4, 400} {
			t.Run(fmt.Sprintf("%d/%d", base, most), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(most), uint64(base)))
				pieces := cutRandomly(rnd, base, 3000, most, 0.2)
				b := NewBuilder(testSession)
				for _, i := range rnd.Perm(len(pieces)) {
					mustAppend(t, b, pieces[i])
				}
				header, body := encode(t, e, b, EncodeOptions{})
				decode(t, d, header, body, &got)
				checkHolder(t, &got, pieces, true, rnd, 2000)
				for i, p := range pieces {
					if diff := cmp.Diff(flatten(p), flatten(got.PieceAt(i))); diff != "" {
						t.Fatalf("piece %d: %s", i, diff)
					}
					for _, s := range []moldcast.Seq{p.First, p.Range().Next - 1} {
						if k, held := got.Find(s); k != i || !held {
							t.Fatalf("Find(%d) = %d, %v, want %d", s, k, held, i)
						}
					}
					if i > 0 && pieces[i-1].Range().Next < p.First {
						if k, held := got.Find(p.First - 1); k != i || held {
							t.Fatalf("Find(%d) in a hole = %d, %v, want %d", p.First-1, k, held, i)
						}
					}
				}
				if k, held := got.Find(^moldcast.Seq(0)); k != len(pieces) || held {
					t.Fatalf("Find beyond the end = %d, %v", k, held)
				}
			})
		}
	}
}

// part is one section to be put together by hand.
type part struct {
	tag   tag
	flags byte
	codec Codec
	raw   int
	data  []byte
}

func split(t testing.TB, body []byte) (parts []part) {
	for len(body) > 0 {
		n := sectionHeader + int(binary.BigEndian.Uint32(body[8:]))
		parts = append(parts, part{tag(binary.BigEndian.Uint16(body)), body[2], Codec(body[3]), int(binary.BigEndian.Uint32(body[4:])), bytes.Clone(body[sectionHeader:n])})
		body = body[n:]
	}
	return parts
}

// join is a body of the parts with all checksums right, and its header.
func join(h Header, parts []part) (Header, []byte) {
	var body []byte
	for _, p := range parts {
		s := binary.BigEndian.AppendUint16(nil, uint16(p.tag))
		s = append(s, p.flags, byte(p.codec))
		s = binary.BigEndian.AppendUint32(s, uint32(p.raw))
		s = binary.BigEndian.AppendUint32(s, uint32(len(p.data)))
		s = append(s, 0, 0, 0, 0)
		s = append(s, p.data...)
		binary.BigEndian.PutUint32(s[12:], sectionCRC(s))
		body = append(body, s...)
	}
	h.StoredLen, h.BodyCRC = len(body), crc(body)
	return h, body
}

// sample is a small block with every section, stored as it is.
func sample(t testing.TB, level Level) (header, body []byte) {
	b := NewBuilder(testSession)
	mustAppend(t, b,
		piece(10, 1_473_799_831_000_001_000, "a", "", "ccc"),
		piece(13, 1_473_799_831_000_002_000, "ddddddddddddd"),
		piece(20, 1_473_799_831_000_009_000, "e", strings.Repeat("0123456789", 20)),
		moldcast.Piece{
			First: 14, Msgs: piece(14, 0, "rep", "aired").Msgs, Time: 1_473_799_831_000_003_000, Heard: 1_473_799_831_020_000_000,
			Line: moldcast.AnswerLine, Flags: moldcast.Repaired,
		},
	)
	for _, m := range []moldcast.Mark{
		{Kind: moldcast.Heartbeat, Next: 14, Stamp: 1_473_799_831_000_005_000, Line: 1},
		{Kind: moldcast.End, Next: 22, Stamp: 1_473_799_832_000_000_000},
	} {
		if err := b.Mark(m); err != nil {
			t.Fatal(err)
		}
	}
	return encode(t, mustEncoder(t, EncoderOptions{Level: level}), b, EncodeOptions{})
}

// Sound checksums around wrong content: each is an error of the right type.
func TestDecodeRefuses(t *testing.T) {
	header, body := sample(t, None)
	good, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	d := mustDecoder(t, DecoderOptions{Verify: true})
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	corrupt, unsupported := new(CorruptError), new(UnsupportedError)
	set := func(k int, data ...byte) func(*Header, *[]part) {
		return func(_ *Header, p *[]part) { (*p)[k].data, (*p)[k].raw = data, len(data) }
	}
	for _, c := range []struct {
		name   string
		change func(h *Header, p *[]part)
		want   any    // nil: accepted
		text   string // in the error
	}{
		{"nothing changed", func(*Header, *[]part) {}, nil, ""},
		{"unknown optional section is skipped", func(_ *Header, p *[]part) {
			*p = append(*p, part{tag: 6, codec: 77, raw: 1 << 30, data: []byte("lines")})
		}, nil, ""},
		{"unknown required section", func(_ *Header, p *[]part) {
			*p = append(*p, part{tag: 9, flags: sectionRequired, data: []byte("new")})
		}, &unsupported, "section 9"},
		{"unknown codec", func(_ *Header, p *[]part) { (*p)[2].codec = 2 }, &unsupported, "codec 2"},
		{"payload of another codec than the header's", func(h *Header, p *[]part) { h.Codec = Zstd }, &corrupt, "payload"},
		{"sections out of order", func(_ *Header, p *[]part) { (*p)[0], (*p)[1] = (*p)[1], (*p)[0] }, &corrupt, "order"},
		{"a section twice", func(_ *Header, p *[]part) { *p = append(*p, (*p)[4]) }, &corrupt, "order"},
		{"tag 0", func(_ *Header, p *[]part) { *p = append([]part{{data: []byte("x")}}, *p...) }, &corrupt, "order"},
		{"no payload", func(_ *Header, p *[]part) { *p = (*p)[1:] }, &corrupt, "missing"},
		{"no times", func(_ *Header, p *[]part) { *p = append((*p)[:2], (*p)[3:]...) }, &corrupt, ""},
		{"no marks", func(_ *Header, p *[]part) { *p = (*p)[:4] }, &corrupt, "missing"},
		{"marks where the header has none", func(h *Header, p *[]part) { h.Marks = 0 }, &corrupt, "marks"},
		{"empty section", set(3), &corrupt, "length"},
		{"rows one byte short", func(_ *Header, p *[]part) { (*p)[0].raw--; (*p)[0].data = (*p)[0].data[1:] }, &corrupt, "header says"},
		{"raw length that is not the data's", func(_ *Header, p *[]part) { (*p)[1].raw++ }, &corrupt, "decompress"},
		{"rows that are no message blocks", func(_ *Header, p *[]part) { (*p)[0].data[1] = 200 }, &corrupt, "payload"},
		{"a message beyond the rows", func(_ *Header, p *[]part) { (*p)[0].data[0] = 200 }, &corrupt, "beyond the rows"},
		{"rows longer than the messages", func(_ *Header, p *[]part) {
			p0 := &(*p)[0]
			binary.BigEndian.PutUint16(p0.data[len(p0.data)-202:], 190)
		}, &corrupt, "go on"},
		{"fewer runs", set(1, 1, 10, 4, 3, 1, 2, 2), &corrupt, "runs differ"},
		{"another first", set(1, 2, 11, 3, 3, 1, 2, 4, 1, 2), &corrupt, "runs differ"},
		{"a piece of no messages", set(1, 2, 10, 3, 0, 1, 2, 4, 1, 2), &corrupt, "fit their run"},
		{"a piece of no messages between others", set(1, 2, 10, 3, 3, 0, 3, 4, 1, 2), &corrupt, "fit their run"},
		{"a piece beyond its run", set(1, 2, 10, 3, 3, 1, 3, 4, 1, 2), &corrupt, "fit their run"},
		{"pieces short of their run", set(1, 2, 10, 2, 3, 1, 4, 1, 2), &corrupt, "fit their run"},
		{"more pieces than the header says", set(1, 2, 10, 4, 2, 1, 1, 2, 4, 1, 2), &corrupt, "runs differ"},
		{"fewer pieces than the header says", set(1, 2, 10, 2, 3, 3, 4, 1, 2), &corrupt, "differ in number"},
		{"bytes after the boundaries", set(1, 2, 10, 3, 3, 1, 2, 4, 1, 2, 0), &corrupt, "after the end"},
		{"boundaries cut short", set(1, 2, 10, 3, 3, 1, 2, 4, 1), &corrupt, "cut short"},
		{"number in a longer form", set(1, 0x82, 0, 10, 3, 3, 1, 2, 4, 1, 2), &corrupt, "shortest"},
		{"unit of the times", set(2, 4, 0), &corrupt, "unit"},
		{"time beyond 64 bits", set(2, 9, 0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1), &corrupt, "64 bits"},
		{"times differ", set(2, 9, 2, 0, 0, 0, 0), &corrupt, "bounds"},
		{"more heard than pieces", set(2, 9, 2, 0, 0, 0, 5), &corrupt, "more heard"},
		{"heard of no piece", set(2, 9, 2, 0, 0, 0, 1, 4, 2), &corrupt, "no piece"},
		{"heard that is the time", set(2, 9, 2, 0, 0, 0, 1, 0, 0), &corrupt, "equal"},
		{"origins of too many pieces", set(3, 1, 1, 5), &corrupt, "origins"},
		{"origins of no piece", set(3, 1, 1, 0), &corrupt, "origins"},
		{"origins of nothing", set(3, 0, 0, 4), &corrupt, "nothing but"},
		{"other flags", set(3, 1, 0, 4), &corrupt, "bounds"},
		{"another line", set(3, 0, 0, 2, 1, 1, 1, 0, 0, 1), &corrupt, "hash of the facts"},
		{"mark of data", set(4, 0, 0, 2, 2, 2, 0, 2, 2), &corrupt, "no heartbeat"},
		{"mark at 0", set(4, 1, 0, 0, 2, 2, 0, 2, 2), &corrupt, "no heartbeat"},
		{"other marks", set(4, 1, 0, 2, 2, 2, 0, 2, 2), &corrupt, "bounds"},
		{"other bytes of a message", func(_ *Header, p *[]part) { (*p)[0].data[2] ^= 1 }, &corrupt, "hash of the rows"},
		{"a bomb", func(h *Header, p *[]part) {
			h.Codec = Zstd
			(*p)[0].codec = Zstd
			(*p)[0].data = z.EncodeAll(make([]byte, 64<<20), nil)
		}, &corrupt, "decompress"},
		{"a bomb of less than the largest rows", func(h *Header, p *[]part) {
			h.Codec = Zstd
			(*p)[0].codec = Zstd
			(*p)[0].data = z.EncodeAll(make([]byte, 10<<20), nil)
		}, &corrupt, "decompress"},
		{"a bomb in the marks", func(h *Header, p *[]part) {
			(*p)[4].codec = Zstd
			(*p)[4].data = z.EncodeAll(make([]byte, 64<<20), nil)
		}, &corrupt, "decompress"},
		{"no zstd", func(h *Header, p *[]part) { h.Codec, (*p)[0].codec = Zstd, Zstd }, &corrupt, "decompress"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, parts := good, split(t, body)
			c.change(&h, &parts)
			h, b := join(h, parts)
			if h2, err := ParseHeader(h.Append(nil)); err == nil {
				h = h2
			}
			var into Block
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := d.Decode(h, b, &into)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
				t.Errorf("%d bytes allocated for a block of %d", n, h.RawLen)
			}
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !errors.As(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("error %v, want %T with %q", err, c.want, c.text)
			}
			if into.Count() != 0 || into.Pieces() != 0 || len(into.Rows()) != 0 || len(into.Marks()) != 0 {
				t.Error("something is left of a block that failed")
			}
		})
	}
	if err := d.Decode(good, body, new(Block)); err != nil {
		t.Errorf("the decoder does not recover: %v", err)
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	header, _ := sample(t, None)
	reseal := func(h []byte) []byte {
		h = h[:len(h)-4]
		return binary.BigEndian.AppendUint32(h, crc(h))
	}
	at := func(i int, v byte) func([]byte) []byte {
		return func(h []byte) []byte { h[i] = v; return reseal(h) }
	}
	// fields puts further fields where the count of none stands.
	fields := func(f ...byte) func([]byte) []byte {
		return func(h []byte) []byte { return reseal(append(append(h[:len(h)-5], f...), 0, 0, 0, 0)) }
	}
	corrupt, unsupported := new(CorruptError), new(UnsupportedError)
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   any
		text   string
	}{
		{"as it is", func(h []byte) []byte { return h }, nil, ""},
		{"optional flag", at(5, 0x80), nil, ""},
		{"unknown flag", at(5, 2), &unsupported, "header flag 2"},
		{"version 2", at(4, 2), &unsupported, "version 2"},
		{"version 2, damaged", func(h []byte) []byte { h[4] = 2; return h }, &corrupt, "checksum"},
		{"optional field", fields(2, 5, 0, 3, 'a', 'b', 'c', 6, 0, 0), nil, ""},
		{"required field", fields(1, 5, 1, 3, 'a', 'b', 'c'), &unsupported, "header field 5"},
		{"field cut short", fields(1, 5, 0, 3, 'a', 'b'), &corrupt, "cut short"},
		{"bytes after the fields", fields(0, 0), &corrupt, "after the end"},
		{"another magic", at(0, 'm'), &corrupt, "no block header"},
		{"empty", func([]byte) []byte { return nil }, &corrupt, "cut short"},
		{"cut short", func(h []byte) []byte { return h[:50] }, &corrupt, "cut short"},
		{"reserved byte", at(7, 1), &corrupt, "reserved"},
		{"too many rows", at(18, 0xFF), &corrupt, "limits"},
		{"too long a body", at(22, 0xFF), &corrupt, "limits"},
		{"too many pieces", at(94, 0xFF), &corrupt, "limits"},
		{"too many marks", at(98, 0xFF), &corrupt, "limits"},
		{"more runs than pieces", at(102, 100), &corrupt, "more runs"},
		{"first 0", at(103, 0), &corrupt, "not in order"},
		{"no messages in a run", at(104, 0), &corrupt, "not in order"},
		{"more pieces than messages", at(104, 1), &corrupt, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseHeader(c.change(bytes.Clone(header)))
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !errors.As(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("error %v, want %T with %q", err, c.want, c.text)
			}
		})
	}
}

// What no writer writes, with sound checksums.
func TestParseHeaderRefusesNonsense(t *testing.T) {
	header, _ := sample(t, None)
	for _, c := range []struct {
		name   string
		change func(h *Header)
		text   string
	}{
		{"run beyond the last sequence", func(h *Header) { h.Runs[1] = moldcast.Range{First: 1<<64 - 2, Next: 3} }, "not in order"},
		{"run before the run before", func(h *Header) { h.Runs[1] = moldcast.Range{First: 5, Next: 7} }, "not in order"},
		{"runs without a hole", func(h *Header) { h.Runs[1].First = h.Runs[0].Next }, "not in order"},
		{"times run backwards", func(h *Header) { h.Times[0].Min, h.Times[0].Max = math.MaxInt64, math.MinInt64 }, "backwards"},
		{"first live time too early", func(h *Header) { h.Times[0].First = h.Times[0].Min - 1 }, "outside"},
		{"last live time too late", func(h *Header) { h.Times[0].Last = h.Times[0].Max + 1 }, "outside"},
		{"more messages than any rows", func(h *Header) { h.Runs[1].Next += MaxRaw }, "more messages"},
		{"more messages than the rows", func(h *Header) { h.Runs[1].Next += 1000 }, "length of the rows"},
		{"pieces without runs", func(h *Header) { h.Runs, h.Times = nil, nil }, "do not fit"},
		{"rows without messages", func(h *Header) { h.Runs, h.Times, h.Packets = nil, nil, 0 }, "length of the rows"},
		{"mark at 0", func(h *Header) { h.MarkMin = 0 }, "marks"},
		{"marks backwards", func(h *Header) { h.MarkMax = h.MarkMin - 1 }, "marks"},
		{"end beyond the marks", func(h *Header) { h.End = h.MarkMax + 1 }, "marks"},
		{"end before the marks", func(h *Header) { h.End = h.MarkMin - 1 }, "marks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := ParseHeader(header)
			if err != nil {
				t.Fatal(err)
			}
			c.change(&h)
			if _, err := ParseHeader(h.Append(nil)); !errors.As(err, new(*CorruptError)) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("error %v, want one with %q", err, c.text)
			}
		})
	}
}

// Any bit that flips is found. (One checksum or another covers every byte.)
func TestEveryFlippedBitIsFound(t *testing.T) {
	d := mustDecoder(t, DecoderOptions{})
	for _, level := range []Level{None, Default} {
		header, body := sample(t, level)
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		flip := func(b []byte, fn func(bit int)) {
			for bit := range len(b) * 8 {
				b[bit/8] ^= 1 << (bit % 8)
				fn(bit)
				b[bit/8] ^= 1 << (bit % 8)
			}
		}
		corrupt := new(CorruptError)
		flip(header, func(bit int) {
			if _, err := ParseHeader(header); !errors.As(err, &corrupt) {
				t.Fatalf("header bit %d: %v", bit, err)
			}
		})
		var into Block
		flip(body, func(bit int) {
			if err := d.Decode(h, body, &into); !errors.As(err, &corrupt) {
				t.Fatalf("body bit %d: %v", bit, err)
			}
		})
		// The sections find it without the body's checksum too.
		flip(body, func(bit int) {
			h.BodyCRC = crc(body)
			if err := d.Decode(h, body, &into); !errors.As(err, &corrupt) {
				t.Fatalf("body bit %d under a sound sum: %v", bit, err)
			}
		})
		h.BodyCRC = crc(body)
		for n := range len(body) {
			h := h
			h.StoredLen, h.BodyCRC = n, crc(body[:n])
			if err := d.Decode(h, body[:n], &into); !errors.As(err, &corrupt) {
				t.Fatalf("body cut at %d: %v", n, err)
			}
		}
		if err := d.Decode(h, body, &into); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHashesOnlyUnderVerify(t *testing.T) {
	header, body := sample(t, Default)
	for _, change := range []func(*Header){
		func(h *Header) { h.Rows[0] ^= 1 },
		func(h *Header) { h.Facts[0] ^= 1 },
	} {
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		digest := h.Digest()
		change(&h)
		if h.Digest() == digest {
			t.Error("the digest does not see it")
		}
		if err := mustDecoder(t, DecoderOptions{}).Decode(h, body, new(Block)); err != nil {
			t.Error(err)
		}
		if corrupt := new(CorruptError); !errors.As(mustDecoder(t, DecoderOptions{Verify: true}).Decode(h, body, new(Block)), &corrupt) {
			t.Error("the wrong hash is not seen")
		}
	}
}

func TestDecodeWithinMemory(t *testing.T) {
	header, body := sample(t, Default)
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	if err := mustDecoder(t, DecoderOptions{Memory: 300}).Decode(h, body, new(Block)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	// The worst header there can be still fits the default.
	worst := Header{RawLen: MaxRaw, Messages: MaxRaw / 2, Packets: MaxPieces, Marks: MaxMarks, Runs: make([]moldcast.Range, MaxPieces)}
	if n := need(&worst); n > DefaultMemory {
		t.Errorf("the largest block needs %d, more than %d", n, DefaultMemory)
	}
}

// A block at the limits of pieces and marks encodes and decodes; one more of
// either is refused.
func TestLimits(t *testing.T) {
	b := NewBuilder(testSession)
	p := piece(1, 1<<62, "")
	for i := range MaxPieces {
		p.First, p.Time = moldcast.Seq(2*i+1), -p.Time+moldcast.Stamp(i)
		p.Line = uint8(i)
		mustAppend(t, b, p)
	}
	p.First += 2
	if err := b.Append(p); !errors.Is(err, ErrFull) {
		t.Errorf("one more piece: %v", err)
	}
	for i := range MaxMarks { // the longest differences there are
		m := moldcast.Mark{Kind: moldcast.Heartbeat, Next: 1, Stamp: math.MinInt64 / 2}
		if i%2 == 1 {
			m.Next, m.Stamp = 1<<63, math.MaxInt64/2
		}
		if err := b.Mark(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: 1}); !errors.Is(err, ErrFull) {
		t.Errorf("one more mark: %v", err)
	}
	header, body := encode(t, mustEncoder(t, EncoderOptions{Level: Fastest}), b, EncodeOptions{})
	var got Block
	d := mustDecoder(t, DecoderOptions{Verify: true})
	h := decode(t, d, header, body, &got)
	if len(h.Runs) != MaxPieces || got.Pieces() != MaxPieces || len(got.Marks()) != MaxMarks {
		t.Errorf("%d runs, %d pieces, %d marks", len(h.Runs), got.Pieces(), len(got.Marks()))
	}
	if n := got.Size() + cap(d.raw); n > DefaultMemory {
		t.Errorf("takes %d bytes", n)
	}
}

func TestEncodeRefusesUnframed(t *testing.T) {
	b := NewBuilder(testSession)
	mustAppend(t, b, moldcast.Piece{First: 1, Msgs: moldcast.MessagesOf([]byte{0, 9, 1}, 1)})
	if _, _, err := mustEncoder(t, EncoderOptions{}).Encode(nil, b, EncodeOptions{}); !errors.Is(err, ErrFraming) {
		t.Error(err)
	}
	if err := b.Freeze(new(Block)); !errors.Is(err, ErrFraming) {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []EncoderOptions{{BlockSize: -1}, {BlockSize: MaxTarget + 1}, {Level: 9}} {
		if _, err := NewEncoder(o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
	for _, o := range []EncoderOptions{{BlockSize: 1}, {BlockSize: MaxTarget}, {BlockSize: 100_000}} {
		mustEncoder(t, o)
	}
}
