package block

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

func mustStream(t testing.TB) (*StreamEncoder, *StreamDecoder) {
	t.Helper()
	e, err := NewStreamEncoder(MaxModelled)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewStreamDecoder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return e, d
}

func record(t testing.TB, e *StreamEncoder, b *Builder) []byte {
	t.Helper()
	r, err := e.Encode(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func begins(record []byte) bool { return record[0]&recordBegins != 0 }

// content is all that a block holds, to compare.
type content struct {
	Pieces []flat
	Marks  []moldcast.Mark
}

func holds(b *Block) content {
	return content{blockPieces(b), append([]moldcast.Mark(nil), b.Marks()...)}
}

// Whatever goes in comes out, record by record. Where one is lost, those of
// its stream that follow are refused, and all others still come out.
func TestStreamRoundTrip(t *testing.T) {
	var got Block
	rapid.Check(t, func(rt *rapid.T) {
		e, d := mustStream(t)
		var records [][]byte
		var want []content
		for range rapid.IntRange(1, 12).Draw(rt, "records") {
			b := drawBuilder(rt)
			if rapid.IntRange(0, 5).Draw(rt, "break") == 0 {
				e.Break()
			}
			r, err := e.Encode([]byte("before"), b)
			if err != nil {
				rt.Fatal(err)
			}
			records = append(records, bytes.TrimPrefix(r, []byte("before")))
			want = append(want, content{builderPieces(b), append([]moldcast.Mark(nil), b.Marks()...)})
		}
		lost := rapid.IntRange(-1, len(records)-1).Draw(rt, "lost")
		bad := false
		for i, r := range records {
			if i == lost {
				bad = true
				continue
			}
			bad = bad && !begins(r)
			err := d.Decode(r, &got)
			if bad {
				if !errors.As(err, new(*CorruptError)) || got.Pieces() > 0 {
					rt.Fatalf("record %d behind one that is lost: %v", i, err)
				}
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(want[i], holds(&got)); diff != "" {
				rt.Fatalf("record %d: %s", i, diff)
			}
		}
	})
}

// streamed is records of a feed, about 1600 bytes of messages each, and what
// each holds.
func streamed(t testing.TB, e *StreamEncoder, size int) (records [][]byte, want []content) {
	_, pieces := filled(size, 2, 3)
	b := NewBuilder(testSession)
	for i, p := range pieces {
		mustAppend(t, b, p)
		if b.RawSize() >= 1600 || i == len(pieces)-1 {
			if i%3 == 0 {
				if err := b.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: p.Range().Next, Stamp: p.Time, Line: 1}); err != nil {
					t.Fatal(err)
				}
			}
			records = append(records, record(t, e, b))
			want = append(want, content{builderPieces(b), append([]moldcast.Mark(nil), b.Marks()...)})
			b.Reset(testSession)
		}
	}
	return records, want
}

// A flipped bit is found, and costs its stream from there on and nothing else.
func TestStreamBitFlips(t *testing.T) {
	e, d := mustStream(t)
	records, want := streamed(t, e, 5*streamLimit)
	streams := 0
	for _, r := range records {
		if begins(r) {
			streams++
		}
	}
	if streams < 5 || streams > 6 {
		t.Fatalf("%d streams of %d bytes, with a limit of %d", streams, 5*streamLimit, streamLimit)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var got Block
	for range 60 {
		hit := rng.IntN(len(records))
		damaged := bytes.Clone(records[hit])
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		bad := false
		for i, r := range records {
			if i == hit {
				r, bad = damaged, true
			} else if begins(r) {
				bad = false
			}
			err := d.Decode(r, &got)
			switch {
			case bad && (!errors.As(err, new(*CorruptError)) || got.Pieces() > 0 || len(got.Marks()) > 0):
				t.Fatalf("record %d, with one flipped in %d: %v", i, hit, err)
			case !bad && err != nil:
				t.Fatalf("record %d, with one flipped in %d: %v", i, hit, err)
			case !bad && !cmp.Equal(want[i], holds(&got)):
				t.Fatalf("record %d, with one flipped in %d, differs", i, hit)
			}
		}
	}
}

// A record of another stream, of the same place in it, is refused.
func TestStreamRecordOfAnother(t *testing.T) {
	e, d := mustStream(t)
	records, _ := streamed(t, e, 20_000)
	e.Break()
	b, _ := filled(1000, 1, 0)
	other := [][]byte{record(t, e, b), record(t, e, b)}
	var got Block
	if err := d.Decode(records[0], &got); err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(other[1], &got); !errors.As(err, new(*CorruptError)) {
		t.Fatalf("a record of another stream: %v", err)
	}
	newer := bytes.Clone(records[0])
	newer[0] |= 0x10
	binary.BigEndian.PutUint32(newer[len(newer)-4:], crc(newer[:len(newer)-4]))
	if err := d.Decode(newer, &got); !errors.As(err, new(*UnsupportedError)) {
		t.Fatalf("a record of a newer version: %v", err)
	}
}

// Messages of any length and content, more shapes than a stream knows.
func TestStreamOfManyShapes(t *testing.T) {
	e, d := mustStream(t)
	rng := rand.New(rand.NewPCG(1, 1))
	b, next := NewBuilder(testSession), moldcast.Seq(1)
	var got Block
	most := 0
	for i := range 60 {
		b.Reset(testSession)
		for range 5 {
			m := make([]byte, []int{0, 1, rng.IntN(60), rng.IntN(60), rng.IntN(200), 1000, 5000, 65000}[rng.IntN(5+i/30*3)])
			for k := range m {
				m[k] = byte(rng.IntN(3) * rng.IntN(256))
			}
			mustAppend(t, b, piece(next, moldcast.Stamp(next), string(m), "", "x"))
			next += 3
		}
		if err := d.Decode(record(t, e, b), &got); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		if diff := cmp.Diff(builderPieces(b), blockPieces(&got)); diff != "" {
			t.Fatalf("record %d: %s", i, diff)
		}
		most = max(most, len(d.model.shapes))
	}
	if most != maxShapes {
		t.Fatalf("%d shapes, want %d at some time", most, maxShapes)
	}
}

// The longest record that is modelled is one that a reader takes.
func TestStreamLongestModelled(t *testing.T) {
	e, d := mustStream(t)
	b := NewBuilder(testSession)
	for i := range maxModelledPieces {
		p := piece(moldcast.Seq(1+i)<<54, moldcast.Stamp(i%2*2-1)<<62, strings.Repeat("x", MaxModelled/maxModelledPieces-2))
		p.Heard, p.Line, p.Flags = -p.Time, uint8(i), moldcast.Repaired
		mustAppend(t, b, p)
	}
	for i := range maxModelledMarks {
		if err := b.Mark(moldcast.Mark{Kind: moldcast.End, Next: moldcast.Seq(1 + i%2<<63), Stamp: moldcast.Stamp(i%2*2-1) << 62}); err != nil {
			t.Fatal(err)
		}
	}
	r := record(t, e, b)
	if n := len(e.raw); r[0]&recordModelled == 0 || n < maxModelRaw/2 || n > maxModelRaw {
		t.Fatalf("kind %x of %d raw bytes", r[0], n)
	}
	var got Block
	if err := d.Decode(r, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(builderPieces(b), blockPieces(&got)); diff != "" {
		t.Fatal(diff)
	}
}

// Text is compressed, messages of an order book are modelled: whichever comes
// to less.
func TestStreamChoosesWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	words := strings.Fields("the order of a book was changed by its owner and then executed at another price on a venue")
	text := func(next moldcast.Seq) string {
		out := fmt.Sprint(next, " ")
		for range 4 + rng.IntN(12) {
			out += words[rng.IntN(len(words))] + " "
		}
		return out
	}
	feeds := map[bool]func(moldcast.Seq) string{
		false: text,
		true:  func(q moldcast.Seq) string { return string(appendITCH(nil, rng, uint64(q), moldcast.Stamp(q)*1e6)[2:]) },
	}
	for modelled, feed := range feeds {
		e, _ := mustStream(t)
		b, next, by := NewBuilder(testSession), moldcast.Seq(1), map[bool]int{}
		for range 2000 {
			b.Reset(testSession)
			for range 50 {
				mustAppend(t, b, piece(next, moldcast.Stamp(next)*1e6, feed(next)))
				next++
			}
			by[record(t, e, b)[0]&recordModelled != 0]++
		}
		if by[modelled] < 8*by[!modelled] {
			t.Errorf("modelled %v: %v", modelled, by)
		}
	}
}

func TestStreamNoAllocations(t *testing.T) {
	e, d := mustStream(t)
	b, _ := filled(1600, 1, 0)
	var buf []byte
	var got Block
	for range 200 { // buffers of every kind of stream
		buf = record(t, e, b)
	}
	noAllocs(t, "StreamEncoder.Encode", func() {
		var err error
		if buf, err = e.Encode(buf[:0], b); err != nil {
			t.Fatal(err)
		}
	})
	e.Break()
	if err := d.Decode(record(t, e, b), &got); err != nil {
		t.Fatal(err)
	}
}

// resealRecords makes the checksums right of records that follow each other.
func resealRecords(records ...[]byte) {
	sum := uint32(0)
	for _, r := range records {
		if n := len(r) - recordCRC; n >= 0 {
			sum = crcAdd(sum, r[:n])
			binary.BigEndian.PutUint32(r[n:], sum)
		}
	}
}

// FuzzStream decodes two records that may be anything.
func FuzzStream(f *testing.F) {
	e, d := mustStream(f)
	for range 3 { // modelled, compressed, and modelled
		records, _ := streamed(f, e, 4000)
		f.Add(records[0], records[1], true)
		f.Add(records[0], records[1], false)
		f.Add(records[1], records[2], true)
		e.Break()
	}
	again := newRewriter(f)
	f.Fuzz(func(t *testing.T, a, b []byte, reseal bool) {
		if reseal {
			a, b = bytes.Clone(a), bytes.Clone(b)
			resealRecords(a, b)
		}
		d.begun = false
		var got Block
		for _, r := range [][]byte{a, b} {
			if err := d.Decode(r, &got); err != nil {
				if !typed(err) || got.Pieces() > 0 {
					t.Fatalf("%T: %v", err, err)
				}
				continue
			}
			again.check(t, &got)
		}
	})
}

// FuzzStreamRaw reads raw forms that may be anything, two in a row.
func FuzzStreamRaw(f *testing.F) {
	e, d := mustStream(f)
	b, _ := filled(600, 2, 10)
	if err := b.Mark(moldcast.Mark{Kind: moldcast.End, Next: 7, Stamp: 8}); err != nil {
		f.Fatal(err)
	}
	var v Block
	for range 2 {
		b.view(&v, nil)
		v.index()
		e.raw = e.appendRecord(e.raw[:0], &v)
		f.Add(bytes.Clone(e.raw), []byte{})
		f.Add(bytes.Clone(e.raw), bytes.Clone(e.raw))
	}
	again := newRewriter(f)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		d.begin(testSession)
		var got Block
		for _, d.raw = range [][]byte{a, b} {
			got.reset(testSession)
			if _, reason := d.parse(&got); reason != "" {
				return
			}
			again.check(t, &got)
		}
	})
}

// rewriter writes blocks again that were accepted.
type rewriter struct {
	e *StreamEncoder
	d *StreamDecoder
	b *Builder
}

func newRewriter(t testing.TB) *rewriter {
	e, d := mustStream(t)
	return &rewriter{e, d, NewBuilder(testSession)}
}

// check wants a block that was accepted to be sound: it means the same when it
// is written again.
func (r *rewriter) check(t *testing.T, b *Block) {
	t.Helper()
	if n := b.Size(); n > 64<<20 {
		t.Fatalf("takes %d bytes", n)
	}
	want := holds(b)
	r.b.Reset(b.Session())
	for i := range b.Pieces() {
		mustAppend(t, r.b, b.PieceAt(i))
	}
	for _, m := range b.Marks() {
		if err := r.b.Mark(m); err != nil {
			t.Fatal(err)
		}
	}
	r.e.Break()
	var got Block
	if err := r.d.Decode(record(t, r.e, r.b), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, holds(&got)); diff != "" {
		t.Fatal(diff)
	}
}

// BenchmarkTail compares what 50 ms of a feed of 1000 and 20 000 messages a
// second take as records of a stream and as blocks of their own.
func BenchmarkTail(b *testing.B) {
	_, pieces := filled(2<<20, 1, 0)
	for _, size := range []int{1600, 32_000, 256_000} {
		var in []*Builder
		for _, p := range pieces {
			if n := len(in); n == 0 || in[n-1].RawSize() >= size {
				in = append(in, NewBuilder(testSession))
			}
			mustAppend(b, in[len(in)-1], p)
		}
		e, _ := mustStream(b)
		blocks := mustEncoder(b, EncoderOptions{Level: Fastest})
		var buf []byte
		for name, encode := range map[string]func(*Builder) (int, error){
			"stream": func(in *Builder) (n int, err error) {
				buf, err = e.Encode(buf[:0], in)
				return len(buf), err
			},
			"block": func(in *Builder) (int, error) {
				header, body, err := blocks.Encode(buf[:0], in, EncodeOptions{})
				buf = body
				return len(header) + len(body), err
			},
		} {
			b.Run(fmt.Sprintf("bytes=%d/%s", size, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				i, raw, out := 0, 0, 0
				for b.Loop() {
					n, err := encode(in[i%len(in)])
					if err != nil {
						b.Fatal(err)
					}
					raw += in[i%len(in)].RawSize()
					out += n
					i++
				}
				b.ReportMetric(float64(out)/float64(raw), "B/B")
			})
		}
	}
}
