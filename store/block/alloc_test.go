package block

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// filled is a builder with about size bytes of ITCH-like messages, perPacket
// to a piece, at 1 µs to 1 ms from one another; late of a hundred pieces come
// repaired after all others.
func filled(size, perPacket, late int) (*Builder, []moldcast.Piece) {
	rnd := rand.New(rand.NewPCG(3, 5))
	b := NewBuilder(testSession)
	var all, repaired []moldcast.Piece
	seq, at := moldcast.Seq(484311999), moldcast.Stamp(1_473_799_831_000_000_000)
	for total := 0; total < size; {
		var framed []byte
		for range perPacket {
			framed = appendITCH(framed, rnd, uint64(seq), at)
		}
		at += 1000 + moldcast.Stamp(rnd.ExpFloat64()*100_000)
		p := moldcast.Piece{First: seq, Msgs: moldcast.MessagesOf(framed, perPacket), Time: at, Heard: at, Line: uint8(rnd.IntN(8) / 7)}
		seq += moldcast.Seq(perPacket)
		total += len(framed)
		if rnd.IntN(100) < late {
			p.Flags, p.Line, p.Heard = moldcast.Repaired, moldcast.AnswerLine, at+20_000_000
			repaired = append(repaired, p)
			continue
		}
		all = append(all, p)
	}
	all = append(all, repaired...)
	for _, p := range all {
		if err := b.Append(p); err != nil {
			panic(err)
		}
	}
	return b, all
}

// appendITCH appends one message with the shape and the entropy of an add,
// delete, execute or replace of an order.
func appendITCH(dst []byte, rnd *rand.Rand, seq uint64, at moldcast.Stamp) []byte {
	kind := "AADDUUEX"[rnd.IntN(8)]
	size := map[byte]int{'A': 36, 'D': 19, 'U': 35, 'E': 31, 'X': 23}[kind]
	m := make([]byte, size)
	m[0] = kind
	m[2] = byte(rnd.IntN(20)) // of few symbols
	for i := range 6 {
		m[5+i] = byte(uint64(at) >> (40 - 8*i))
	}
	ref := seq*7 + rnd.Uint64N(1000)
	for i := range 8 {
		m[11+i] = byte(ref >> (56 - 8*i))
	}
	for i := 19; i < size; i++ {
		if i%4 == 3 {
			m[i] = byte(rnd.IntN(100))
		}
	}
	return moldcast.AppendMessage(dst, m)
}

// noAllocs wants fn to allocate nothing once everything has been used.
func noAllocs(t *testing.T, name string, fn func()) {
	t.Helper()
	if raceEnabled {
		fn()
		return
	}
	if n := testing.AllocsPerRun(20, fn); n != 0 {
		t.Errorf("%s: %v allocations", name, n)
	}
}

func TestNoAllocations(t *testing.T) {
	b, pieces := filled(256<<10, 3, 2)
	e, d := mustEncoder(t, EncoderOptions{}), mustDecoder(t, DecoderOptions{Verify: true})
	noAllocs(t, "Append", func() {
		b.Reset(testSession)
		for _, p := range pieces {
			if err := b.Append(p); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 5 {
			if err := b.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: moldcast.Seq(i + 1)}); err != nil {
				t.Fatal(err)
			}
		}
	})
	r := b.Bounds()
	first := r.First
	step := func() moldcast.Seq {
		if first += 37; first >= r.Next {
			first = r.First
		}
		return first
	}
	noAllocs(t, "Builder.Messages", func() {
		if m, ok := b.Messages(step(), 50, 1450); !ok || m.Len() == 0 {
			t.Fatal("not there")
		}
	})
	var dst []byte
	var h Header
	noAllocs(t, "Encode", func() {
		header, body, err := e.Encode(dst[:0], b, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		dst = body
		if h.RawLen == 0 {
			if h, err = ParseHeader(header); err != nil {
				t.Fatal(err)
			}
		}
	})
	var got Block
	body := dst[:h.StoredLen]
	noAllocs(t, "Decode", func() {
		if err := d.Decode(h, body, &got); err != nil {
			t.Fatal(err)
		}
	})
	noAllocs(t, "Freeze", func() {
		if err := b.Freeze(&got); err != nil {
			t.Fatal(err)
		}
	})
	noAllocs(t, "Block.Messages", func() {
		if m, ok := got.Messages(step(), 50, 1450); !ok || m.Len() == 0 {
			t.Fatal("not there")
		}
	})
	noAllocs(t, "Block.PieceAt", func() {
		i, ok := got.Find(step())
		if p := got.PieceAt(i); !ok || !p.Range().Contains(first) {
			t.Fatal("not there")
		}
	})
	c := NewContent(testSession, pieces[0].First, nil)
	at := pieces[0].First
	m, _ := got.Messages(at, 1000, 1<<20)
	noAllocs(t, "Content.Add", func() {
		if err := c.Add(at, m); err != nil {
			t.Fatal(err)
		}
		at += moldcast.Seq(m.Len())
	})
}

var levels = map[Level]string{Default: "zstd", Fastest: "zstd-fast", Better: "zstd-better", None: "stored"}

func BenchmarkEncode(bm *testing.B) {
	for _, size := range []int{64, 256, 1024} {
		for _, per := range []int{1, 4, 30} {
			for _, l := range []Level{None, Fastest, Default, Better} {
				if l != Default && (size != 256 || per != 4) {
					continue
				}
				bm.Run(fmt.Sprintf("block=%dK/packet=%d/codec=%s", size, per, levels[l]), func(bm *testing.B) {
					b, _ := filled(size<<10, per, 1)
					e := mustEncoder(bm, EncoderOptions{BlockSize: size << 10, Level: l})
					var dst, header []byte
					bm.SetBytes(int64(b.RawSize()))
					bm.ReportAllocs()
					for bm.Loop() {
						header, dst, _ = e.Encode(dst[:0], b, EncodeOptions{})
					}
					bm.ReportMetric(float64(len(header)+len(dst))/float64(b.Count()), "B/msg")
				})
			}
		}
	}
}

func BenchmarkDecode(bm *testing.B) {
	for _, size := range []int{64, 256, 1024} {
		for _, per := range []int{1, 4, 30} {
			for _, verify := range []bool{false, true} {
				if verify && (size != 256 || per != 4) {
					continue
				}
				bm.Run(fmt.Sprintf("block=%dK/packet=%d/verify=%v", size, per, verify), func(bm *testing.B) {
					b, _ := filled(size<<10, per, 1)
					header, body := encode(bm, mustEncoder(bm, EncoderOptions{BlockSize: size << 10}), b, EncodeOptions{})
					h, err := ParseHeader(header)
					if err != nil {
						bm.Fatal(err)
					}
					d := mustDecoder(bm, DecoderOptions{Verify: verify})
					var got Block
					bm.SetBytes(int64(b.RawSize()))
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

func BenchmarkAppend(bm *testing.B) {
	for _, per := range []int{1, 4, 30} {
		for _, late := range []int{0, 5, 50} {
			bm.Run(fmt.Sprintf("block=256K/packet=%d/late=%d%%", per, late), func(bm *testing.B) {
				b, pieces := filled(256<<10, per, late)
				bm.SetBytes(int64(b.RawSize()))
				bm.ReportAllocs()
				for bm.Loop() {
					b.Reset(testSession)
					for _, p := range pieces {
						if err := b.Append(p); err != nil {
							bm.Fatal(err)
						}
					}
				}
				bm.ReportMetric(float64(bm.Elapsed().Nanoseconds())/float64(bm.N*len(pieces)), "ns/piece")
			})
		}
	}
}

func BenchmarkMessages(bm *testing.B) {
	b, _ := filled(256<<10, 4, 1)
	var frozen Block
	if err := b.Freeze(&frozen); err != nil {
		bm.Fatal(err)
	}
	for name, h := range map[string]holder{"of=builder": b, "of=block": &frozen} {
		bm.Run(name, func(bm *testing.B) {
			rnd := rand.New(rand.NewPCG(1, 2))
			r := b.Bounds()
			bm.ReportAllocs()
			for bm.Loop() {
				if _, ok := h.Messages(r.First+moldcast.Seq(rnd.Uint64N(r.Len())), 50, 1450); !ok {
					bm.Fatal("not there")
				}
			}
		})
	}
}

func BenchmarkContent(bm *testing.B) {
	b, _ := filled(256<<10, 4, 0)
	var frozen Block
	if err := b.Freeze(&frozen); err != nil {
		bm.Fatal(err)
	}
	m, _ := frozen.Messages(frozen.Range().First, 1<<20, 1<<30)
	c := NewContent(testSession, 1, nil)
	bm.SetBytes(int64(len(m.Framed())))
	bm.ReportAllocs()
	for bm.Loop() {
		if err := c.Add(c.Next(), m); err != nil {
			bm.Fatal(err)
		}
	}
}
