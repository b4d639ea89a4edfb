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

func addPlanes(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{3, 4, 33, 300, 1024, 5001, 60_002} {
		for _, mean := range []float64{0.05, 0.3, 3, 40, 1000} {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(rnd.ExpFloat64() * mean)
			}
			f.Add(p)
		}
	}
	p := bytes.Repeat([]byte{7}, 9000) // many symbols of less than one state
	for i := range 256 {
		p[i*35] = byte(i)
	}
	f.Add(p)
	p = p[:0]
	for i, k := 0, 1; i < 22; i, k = i+1, k+k/2+1 { // lengths beyond what there may be
		p = append(p, bytes.Repeat([]byte{byte(i)}, k)...)
	}
	f.Add(p[:min(len(p), maxEntropy)])
	p = p[:0]
	for i := range 64 { // all different
		p = append(p, byte(i*3))
		f.Add(bytes.Clone(p))
	}
}

// FuzzFSEWrite has what an fseWriter makes read by an fseReader and by another
// decoder, and takes no more bytes for it than another encoder, and 1 in 256.
func FuzzFSEWrite(f *testing.F) {
	addPlanes(f)
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
		if other := compressFSE(p); other != nil && len(z) > len(other)+len(other)/256+2 {
			t.Fatalf("%d bytes; another encoder makes %d", len(z), len(other))
		}
	})
}

// FuzzHuffman is the same of a huffWriter.
func FuzzHuffman(f *testing.F) {
	addPlanes(f)
	w := new(huffWriter)
	f.Fuzz(func(t *testing.T, p []byte) {
		h, highest, most := countsOf(p)
		if len(p) < 3 || len(p) > maxEntropy || most == len(p) {
			return
		}
		for _, four := range []bool{false, len(p) >= leastHuff4} {
			other := 0
			if s := new(huff0.Scratch); four {
				z, _, _ := huff0.Compress4X(p, s)
				other = len(z)
			} else {
				z, _, _ := huff0.Compress1X(p, s)
				other = len(z)
			}
			z := w.append([]byte("before"), p, h, highest, four)
			if z == nil {
				if other > 0 {
					t.Fatalf("nothing; another encoder makes %d bytes", other)
				}
				continue
			}
			if z = z[6:]; other > 0 && len(z) > other+other/256+2 {
				t.Fatalf("%d bytes; another encoder makes %d", len(z), other)
			}
			s, rest, err := huff0.ReadTable(z, nil)
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
