package block

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
)

// countsOf is what a columnWriter has counted of p before it is coded.
func countsOf(p []byte) (h *[256]uint32, highest, most int) {
	h = new([256]uint32)
	histogram(h, p)
	for s, c := range h {
		if c > 0 {
			highest, most = s, max(most, int(c))
		}
	}
	return h, highest, most
}

// entropyPlanes are planes of many lengths and distributions.
func entropyPlanes() (out [][]byte) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{3, 4, 33, 300, 1024, 5001, 60_002} {
		for _, mean := range []float64{0.05, 0.3, 3, 40, 1000} {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(rnd.ExpFloat64() * mean)
			}
			out = append(out, p)
		}
	}
	p := bytes.Repeat([]byte{7}, 9000) // many symbols of less than one state
	for i := range 256 {
		p[i*35] = byte(i)
	}
	out = append(out, p)
	p = nil
	for i, k := 0, 1; i < 22; i, k = i+1, k+k/2+1 { // lengths beyond what there may be
		p = append(p, bytes.Repeat([]byte{byte(i)}, k)...)
	}
	out = append(out, p[:min(len(p), maxEntropy)])
	p = nil
	for i := range 64 { // all different
		p = append(p, byte(i*3))
		out = append(out, bytes.Clone(p))
	}
	return out
}

// FuzzFSEWrite has what an fseWriter makes read by an fseReader and by another
// decoder.
func FuzzFSEWrite(f *testing.F) {
	for _, p := range entropyPlanes() {
		f.Add(p)
	}
	w, r := new(fseWriter), new(fseReader)
	f.Fuzz(func(t *testing.T, p []byte) {
		h, highest, most := countsOf(p)
		if len(p) < 3 || len(p) > maxEntropy || most == len(p) {
			return
		}
		z := w.append([]byte("before"), p, h, highest, usualFSELog)[6:]
		got := make([]byte, len(p))
		if n := r.decode(got, z); n != len(p) || !bytes.Equal(got, p) {
			t.Fatalf("%d of %d bytes are read", n, len(p))
		}
		out, err := fse.Decompress(z, &fse.Scratch{DecompressLimit: maxEntropy + 256})
		if err != nil || !bytes.Equal(out, p) {
			t.Fatalf("another decoder: %v", err)
		}
	})
}

// FuzzHuffman has what a huffWriter makes read by another decoder.
func FuzzHuffman(f *testing.F) {
	for _, p := range entropyPlanes() {
		f.Add(p)
	}
	w := new(huffWriter)
	f.Fuzz(func(t *testing.T, p []byte) {
		h, highest, most := countsOf(p)
		if len(p) < 3 || len(p) > maxEntropy || most == len(p) {
			return
		}
		for _, four := range []bool{false, len(p) >= leastHuff4} {
			z := w.append([]byte("before"), p, h, highest, four)
			if z == nil {
				if highest <= 128 {
					t.Fatal("a tree that any form may have is not written")
				}
				continue
			}
			s, rest, err := huff0.ReadTable(z[6:], nil)
			if err != nil {
				t.Fatal(err)
			}
			var out []byte
			if buf := make([]byte, 0, len(p)); four {
				out, err = s.Decoder().Decompress4X(buf, rest)
			} else {
				out, err = s.Decoder().Decompress1X(buf, rest)
			}
			if err != nil || !bytes.Equal(out, p) {
				t.Fatalf("%d bytes: %v", len(p), err)
			}
		}
	})
}

// What the entropy coders make is as small as what another encoder makes: of
// these planes. For planes of some ten bytes either may be a few bytes longer,
// by the codes' lengths that it takes.
func TestEntropyCodersAreAsSmall(t *testing.T) {
	f, u := new(fseWriter), new(huffWriter)
	for _, p := range entropyPlanes() {
		h, highest, most := countsOf(p)
		if most == len(p) {
			continue
		}
		compare := func(name string, ours, other int) {
			switch {
			case other == 0: // it has none
			case ours == 0 || ours > other+other/256+2:
				t.Errorf("%s of %d bytes, %d symbols at most: %d bytes; another encoder makes %d", name, len(p), highest, ours, other)
			}
		}
		compare("fse", len(f.append(nil, p, h, highest, usualFSELog)), len(compressFSE(p)))
		z, _, _ := huff0.Compress1X(p, new(huff0.Scratch))
		compare("huffman", len(u.append(nil, p, h, highest, false)), len(z))
		if len(p) >= leastHuff4 {
			z, _, _ = huff0.Compress4X(p, new(huff0.Scratch))
			compare("huffman of four", len(u.append(nil, p, h, highest, true)), len(z))
		}
	}
}
