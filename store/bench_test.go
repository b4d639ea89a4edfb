package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// BenchmarkAppend stores packets in order on the system's file system, as fast
// as it goes; the time includes making all durable and sealing.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 4, 30} {
		b.Run(fmt.Sprintf("packet=%d/block=256K/sync=50ms", n), func(b *testing.B) {
			o := DefaultOptions()
			o.Wait = true
			a, err := OpenOrCreate(b.TempDir(), o)
			if err != nil {
				b.Fatal(err)
			}
			defer a.Close()
			w := writer(b, a, "S")
			p := piece(1, n)
			b.SetBytes(int64(len(p.Msgs.Framed())))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				p.First = moldcast.Seq(1 + i*n)
				p.Time += moldcast.Stamp(time.Microsecond)
				p.Heard = p.Time
				if _, err := w.Append(p); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Flush(context.Background()); err != nil {
				b.Fatal(err)
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkAnswer answers requests from memory and from decoded blocks.
func BenchmarkAnswer(b *testing.B) {
	o := DefaultOptions()
	o.TailBytes = 1 << 20
	a, err := OpenOrCreate(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	w := writer(b, a, "S")
	defer w.Close()
	const n = 400000
	for q := moldcast.Seq(1); q < n; q += 4 {
		put(b, w, piece(q, 4))
	}
	if err := w.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	v := w.View()
	buf := make([]byte, 0, 2048)
	for name, q := range map[string]moldcast.Seq{"tail": n - 1000, "block": 1000} {
		b.Run(name, func(b *testing.B) {
			if _, _, err := v.Append(buf, q, 40, 1452, true); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := range b.N {
				if _, _, err := v.Append(buf, q+moldcast.Seq(i%500), 40, 1452, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkVerify reads one segment whole, by as many processors as there are.
func BenchmarkVerify(b *testing.B) {
	for _, codec := range []Codec{CodecRow, CodecDense} {
		b.Run("block=256K/codec="+codec.String(), func(b *testing.B) {
			o := DefaultOptions()
			o.Wait, o.Codec, o.NoVerify = true, codec, true
			a, err := OpenOrCreate(b.TempDir(), o)
			if err != nil {
				b.Fatal(err)
			}
			defer a.Close()
			w := writer(b, a, "S")
			raw := 0
			for q := moldcast.Seq(1); raw < 8<<20; q += 30 {
				p := piece(q, 30)
				raw += len(p.Msgs.Framed())
				put(b, w, p)
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(raw))
			for b.Loop() {
				if rep, err := a.Verify(context.Background(), nil, nil); err != nil || len(rep.Faults) > 0 {
					b.Fatal(rep, err)
				}
			}
		})
	}
}
