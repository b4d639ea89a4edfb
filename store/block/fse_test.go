package block

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/fse"
)

// compressFSE is what a columnWriter stores of p; nil: nothing.
func compressFSE(p []byte) []byte {
	out, err := fse.Compress(p, nil)
	if err != nil {
		return nil
	}
	return out
}

// FuzzFSE compares fseReader with another decoder: what that one's encoder made
// is read as it was; whatever else is read is what the other makes of it, too.
func FuzzFSE(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{40, 300, 5000, 60_000} {
		for _, mean := range []float64{0.05, 0.3, 3, 40} {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(min(255, rnd.ExpFloat64()*mean))
			}
			f.Add(p)
			if z := compressFSE(p); z != nil {
				f.Add(z)
				f.Add(z[:len(z)-2])
				z = bytes.Clone(z)
				z[len(z)/2] ^= 0x10
				f.Add(z)
			}
		}
	}
	f.Add([]byte{0x0F, 1, 2, 3, 4, 5, 6, 7, 8, 9}) // an accuracy beyond what there is
	r := new(fseReader)
	buf := make([]byte, maxEntropy)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > maxEntropy {
			return
		}
		if z := compressFSE(p); z != nil {
			dst := bytes.Repeat([]byte{0xAA}, len(p)+1)
			if n := r.decode(dst[:len(p)], z); n != len(p) || !bytes.Equal(dst[:n], p) || dst[n] != 0xAA {
				t.Fatalf("%d bytes of %d", n, len(p))
			}
			if n := r.decode(dst[:len(p)-1], z); n == len(p)-1 {
				t.Fatal("one symbol too few, and nobody noticed")
			}
		}
		if n := r.decode(buf, p); n >= 0 {
			want, err := fse.Decompress(p, &fse.Scratch{DecompressLimit: maxEntropy + 256})
			if err != nil || !bytes.Equal(buf[:n], want) {
				t.Fatalf("%d symbols, want %d: %v", n, len(want), err)
			}
		}
	})
}
