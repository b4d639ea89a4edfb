package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

// written is how many bytes this process has passed to write calls.
func written(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range bytes.Split(b, []byte("\n")) {
		if n, ok := bytes.CutPrefix(line, []byte("wchar: ")); ok {
			v, err := strconv.ParseInt(string(n), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("/proc/self/io has no wchar")
	return 0
}

// marketPiece is a packet like those of a feed: n messages of 36 bytes, some
// of whose fields move and some of which cannot be guessed.
func marketPiece(rng *rand.Rand, first moldcast.Seq, n int, at moldcast.Stamp, buf []byte) (moldcast.Piece, []byte) {
	buf = buf[:0]
	var m [36]byte
	for i := range n {
		q := uint64(first) + uint64(i)
		m[0] = 'A'
		m[1], m[2] = byte(rng.Uint32()%7), byte(rng.Uint32())
		for k := range 8 {
			m[3+k] = byte(uint64(at) >> (56 - 8*k))
			m[11+k] = byte(q * 3 >> (56 - 8*k))
		}
		x := rng.Uint64()
		m[19], m[20], m[21] = "BS"[x&1], byte(x>>8)&3, byte(x>>16)
		copy(m[22:], "STOCK   ")
		m[27] = 'A' + byte(x>>24)%26
		m[28] = 'A' + byte(x>>32)%26
		m[30], m[31], m[32], m[33] = 0, 1, byte(x>>40)&15, byte(x>>48)
		buf = moldcast.AppendMessage(buf, m[:])
	}
	return moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(buf, n), Time: at, Heard: at}, buf
}

// noisePiece is eight messages of 150 random bytes.
func noisePiece(rng *rand.Rand, first moldcast.Seq, at moldcast.Stamp, buf []byte) (moldcast.Piece, []byte) {
	buf = buf[:0]
	var m [152]byte
	for range 8 {
		for i := 0; i < len(m); i += 8 {
			binary.LittleEndian.PutUint64(m[i:], rng.Uint64())
		}
		buf = moldcast.AppendMessage(buf, m[:150])
	}
	return moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(buf, 8), Time: at, Heard: at}, buf
}

// cost is what a run wrote.
type cost struct {
	seconds       float64
	stored, wrote int64 // bytes: of blocks, and passed to write calls
	atSeal        int64 // of wrote, by what came after the last message was durable
	syncs         int64
	longest       time.Duration // that Append took
}

func (c cost) ratio() float64 { return float64(c.wrote) / float64(c.stored) }

// measure stores packets of eight messages on the system's file system: at
// rate raw bytes a second for a while, or, with rate 0, total bytes as fast as
// it goes.
// Noise makes the bodies random: then compressed bytes are as many as raw
// ones, and it is the disk that is measured, not the compressor.
func measure(t testing.TB, o Options, rate float64, total int64, noise bool) (c cost) {
	t.Helper()
	var syncs atomic.Int64
	o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			syncs.Add(1)
		}
		return nil
	}))
	a, err := OpenOrCreate(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	w := writer(t, a, "S")
	rng := rand.New(rand.NewPCG(1, 2))
	var buf []byte
	before := written(t)
	start := time.Now()
	seq := moldcast.Seq(1)
	for sent := int64(0); sent < total; {
		var p moldcast.Piece
		if noise {
			p, buf = noisePiece(rng, seq, moldcast.Stamp(1700000000_000000000)+moldcast.Stamp(seq)*1500, buf)
		} else {
			p, buf = marketPiece(rng, seq, 8, moldcast.Stamp(1700000000_000000000)+moldcast.Stamp(seq)*1500, buf)
		}
		if rate > 0 {
			due := start.Add(time.Duration(float64(sent) / rate * 1e9))
			if d := time.Until(due); d > time.Millisecond {
				<-time.After(d)
			}
		}
		from := time.Now()
		_, err := w.Append(p)
		c.longest = max(c.longest, time.Since(from))
		if err != nil {
			t.Fatal(err)
		}
		seq += 8
		sent += int64(len(p.Msgs.Framed()))
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.seconds = time.Since(start).Seconds()
	c.syncs = syncs.Load()
	c.wrote = written(t) - before
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c.atSeal = written(t) - before - c.wrote
	c.wrote += c.atSeal
	for _, g := range w.s.segs {
		c.stored += int64(g.seal.BytesStored)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

// What is written for each compressed byte: at most 1.05 bytes by an import,
// 1.2 by a capture of 20 MB/s, 2.1 by a slow one; the seals are in it.
func TestWriteAmplification(t *testing.T) {
	for _, c := range []struct {
		name  string
		rate  float64
		total int64
		most  float64
	}{{"import", 0, 48e6, 1.05}, {"20MBps", 25e6, 40e6, 1.2}, {"slow", 2e6, 3e6, 2.1}} {
		t.Run(c.name, func(t *testing.T) {
			o := DefaultOptions()
			o.Wait = c.rate == 0
			got := measure(t, o, c.rate, c.total, true)
			t.Logf("%d bytes of blocks at %.1f MB/s, %d written, %.3f of each; %.0f syncs a second", got.stored,
				float64(got.stored)/1e6/got.seconds, got.wrote, got.ratio(), float64(got.syncs)/got.seconds)
			if got.ratio() > c.most {
				t.Errorf("%.3f bytes are written for each of a block, want at most %v", got.ratio(), c.most)
			}
		})
	}
}

// BenchmarkSync measures what each setting of Options.Sync costs on the
// system's file system, at rates like those of slow and fast feeds and as fast
// as it goes: compressed bytes a second, bytes passed to write calls (wchar of
// /proc/self/io) for each of them, all of the sealing included, and syncs a
// second. Run it with -benchtime 1x.
func BenchmarkSync(b *testing.B) {
	for _, rate := range []struct {
		name  string
		raw   float64
		total int64
		noise bool
	}{{"1MBps", 1e6, 6e6, false}, {"25MBps-noise", 25e6, 100e6, true}, {"full-noise", 0, 300e6, true}} {
		for _, sync := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, time.Second} {
			b.Run(fmt.Sprintf("rate=%s/sync=%v", rate.name, sync), func(b *testing.B) {
				o := DefaultOptions()
				o.Sync = sync
				o.Wait = true
				for range b.N {
					c := measure(b, o, rate.raw, rate.total, rate.noise)
					b.ReportMetric(float64(c.stored)/1e6/c.seconds, "MB/s")
					b.ReportMetric(c.ratio(), "wchar/B")
					b.ReportMetric(float64(c.atSeal)/float64(c.stored), "seal/B")
					b.ReportMetric(float64(c.syncs)/c.seconds, "syncs/s")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}
