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
	"testing/synctest"
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

// bookPiece is a packet of n messages of an order book: of four kinds and
// lengths, 30 bytes on average, of 200 symbols, orders named by ascending numbers.
func bookPiece(rng *rand.Rand, first moldcast.Seq, n int, at moldcast.Stamp, buf []byte) (moldcast.Piece, []byte) {
	buf = buf[:0]
	for i := range n {
		kind := "AAAADDDUUE"[rng.IntN(10)]
		m := make([]byte, map[byte]int{'A': 36, 'D': 19, 'U': 35, 'E': 31}[kind])
		symbol := rng.IntN(200)
		order := (uint64(first) + uint64(i)) * 3
		if kind != 'A' {
			order -= rng.Uint64N(1 << 14) // one of before
		}
		m[0], m[2] = kind, byte(symbol)
		binary.BigEndian.PutUint64(m[3:], uint64(at)) // the lower 6 bytes of it
		m[3], m[4] = 0, 0
		binary.BigEndian.PutUint64(m[11:], order)
		if kind != 'D' {
			binary.BigEndian.PutUint32(m[19:], 100*uint32(1+rng.IntN(8)*rng.IntN(3)))
			binary.BigEndian.PutUint32(m[len(m)-4:], uint32(10_000+symbol*700+rng.IntN(200))*100)
		}
		if kind == 'A' {
			copy(m[23:], fmt.Sprintf("S%dK%-7d", symbol%7, symbol*37)[:8])
		}
		buf = moldcast.AppendMessage(buf, m)
	}
	return moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(buf, n), Time: at, Heard: at, Line: uint8(rng.IntN(8) / 7)}, buf
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

// countFS counts the bytes that are written to it.
type countFS struct {
	vfs.FS
	n atomic.Int64
}

type countFile struct {
	vfs.File
	n *atomic.Int64
}

func (c *countFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, k)
	if err != nil {
		return nil, err
	}
	return countFile{f, &c.n}, nil
}

func (c *countFS) ReuseForWrite(old, name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.ReuseForWrite(old, name, k)
	if err != nil {
		return nil, err
	}
	return countFile{f, &c.n}, nil
}

func (f countFile) Write(p []byte) (int, error) {
	f.n.Add(int64(len(p)))
	return f.File.Write(p)
}

func (f countFile) WriteAt(p []byte, at int64) (int, error) {
	f.n.Add(int64(len(p)))
	return f.File.WriteAt(p, at)
}

// A slow feed costs at most 2.1 bytes written for each compressed one, as rows:
// every 50 ms of it a tail record, all of it once more as blocks, and all that
// is written around them. Dense blocks are less than half as long, but the tail
// is what it is: there the ratio says little, and it is less in all that
// counts, but for what merging writes, which is counted apart. Nothing here
// waits: a flush stands for the time.
func TestWriteAmplificationOfSlowFeeds(t *testing.T) {
	if raceEnabled {
		t.Skip("what is written is measured, by the clock; the detector slows it down")
	}
	for _, c := range []struct{ rate, packet int }{{1000, 1}, {1000, 8}, {5000, 1}, {20_000, 4}} {
		t.Run(fmt.Sprintf("%d in packets of %d", c.rate, c.packet), func(t *testing.T) {
			rowStored, rows, merged := slowFeed(t, CodecRow, c.rate, c.packet)
			ratio := float64(rows) / float64(rowStored)
			t.Logf("rows: %d bytes of blocks, %d written, %.3f of each", rowStored, rows, ratio)
			if ratio > 2.1 || merged != 0 {
				t.Errorf("%.3f bytes are written for each of a block, want at most 2.1; %d by merging", ratio, merged)
			}
			if ratio < 1.5 {
				t.Errorf("%.3f bytes are written for each of a block: something is not counted", ratio)
			}
			if c.packet != 8 && c.rate != 1000 {
				return // it takes long
			}
			stored, wrote, merged := slowFeed(t, CodecAuto, c.rate, c.packet)
			t.Logf("auto: %d bytes of blocks, %d written, %d of them by merging", stored, wrote, merged)
			if stored > rowStored*7/10 || wrote-merged > rows {
				t.Errorf("auto: %d bytes of blocks and %d written, rows %d and %d", stored, wrote-merged, rowStored, rows)
			}
		})
	}
}

// slowFeed stores a minute of a feed, and is how many bytes of blocks that
// makes, and how many were written; some by merging.
func slowFeed(t *testing.T, codec Codec, rate, packet int) (stored, wrote, merged int64) {
	const seconds = 60
	fs := &countFS{FS: vfs.NewMem()}
	o := Options{FS: fs, Sync: time.Hour, BlockAge: time.Hour, Codec: codec}
	a := create(t, o)
	w := writer(t, a, "S")
	rng := rand.New(rand.NewPCG(1, 2))
	start := moldcast.Stamp(1700000000_000000000)
	var buf []byte
	messages := min(rate*seconds, 300_000)
	for i, synced := 0, 0; i < messages; i += packet {
		at := start + moldcast.Stamp(i)*moldcast.Stamp(time.Second)/moldcast.Stamp(rate) + moldcast.Stamp(rng.IntN(100_000))
		var p moldcast.Piece
		p, buf = bookPiece(rng, moldcast.Seq(1+i), packet, at, buf)
		put(t, w, p)
		if now := int(at-start) / int(DefaultSync); now > synced {
			synced = now
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, g := range w.s.segs {
		stored += int64(g.seal.BytesStored)
		if m := g.seal.Merge; m != nil {
			merged += int64(m.Written)
		}
	}
	return stored, fs.n.Load(), merged
}

// cost is what a run wrote.
type cost struct {
	seconds       float64
	stored, wrote int64 // bytes: of blocks, and to files
	atSeal        int64 // of wrote, by what came after the last message was durable
	wchar         int64 // of the process, which is also what wakes its threads
	syncs         int64
	longest       time.Duration // that Append took
}

func (c cost) ratio() float64 { return float64(c.wrote) / float64(c.stored) }

// load is what measure stores.
type load struct {
	name   string
	rate   float64 // raw bytes a second; 0: as fast as it goes
	total  int64   // raw bytes
	packet int     // messages of an order book each; 0: of noise, so that compressed
	// bytes are as many as raw ones, and it is the disk that is measured, not the compressor
}

// measure stores packets on the system's file system.
func measure(t testing.TB, o Options, from load) (c cost) {
	t.Helper()
	var syncs atomic.Int64
	files := &countFS{FS: vfs.Default}
	o.FS = errorfs.Wrap(files, errorfs.InjectorFunc(func(op errorfs.Op) error {
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
	before, filesBefore := written(t), files.n.Load()
	start := time.Now()
	seq := moldcast.Seq(1)
	for sent := int64(0); sent < from.total; {
		var p moldcast.Piece
		if from.packet == 0 {
			p, buf = noisePiece(rng, seq, moldcast.Stamp(1700000000_000000000)+moldcast.Stamp(seq)*1500, buf)
		} else {
			p, buf = bookPiece(rng, seq, from.packet, moldcast.StampOf(time.Now()), buf)
		}
		if from.rate > 0 {
			due := start.Add(time.Duration(float64(sent) / from.rate * 1e9))
			if d := time.Until(due); d > time.Millisecond {
				<-time.After(d)
			}
		}
		began := time.Now()
		_, err := w.Append(p)
		c.longest = max(c.longest, time.Since(began))
		if err != nil {
			t.Fatal(err)
		}
		seq = p.Range().Next
		sent += int64(len(p.Msgs.Framed()))
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.seconds = time.Since(start).Seconds()
	c.syncs = syncs.Load()
	unsealed := files.n.Load()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c.wrote, c.atSeal = files.n.Load()-filesBefore, files.n.Load()-unsealed
	c.wchar = written(t) - before
	for _, g := range w.s.segs {
		c.stored += int64(g.seal.BytesStored)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

// inBubble is t.Run in a bubble.
func inBubble(t *testing.T, name string, fn func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, fn) })
}

// What is written for each compressed byte: at most 1.05 bytes by an import,
// 1.2 by a capture of 20 MB/s, 2.1 by a slow one; the seals are in it. No other
// bytes are passed to write calls than those counted, but to wake threads. The
// rates are those of a bubble's time: how fast this machine is changes nothing.
func TestWriteAmplification(t *testing.T) {
	if raceEnabled {
		t.Skip("with the detector it takes a minute, and shows nothing that other tests do not")
	}
	for _, c := range []struct {
		load
		most float64
	}{
		{load{"import", 50e6, 48e6, 0}, 1.05},
		{load{"20MBps", 25e6, 40e6, 0}, 1.2},
		{load{"slow", 2e6, 3e6, 0}, 2.1},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := DefaultOptions()
			if c.name == "import" {
				o.Sync, o.Wait = time.Second, true // as import has it
			}
			got := measure(t, o, c.load)
			t.Logf("%d bytes of blocks at %.1f MB/s, %d written, %.3f of each; %.0f syncs a second", got.stored,
				float64(got.stored)/1e6/got.seconds, got.wrote, got.ratio(), float64(got.syncs)/got.seconds)
			if got.ratio() > c.most {
				t.Errorf("%.3f bytes are written for each of a block, want at most %v", got.ratio(), c.most)
			}
			if got.wchar < got.wrote || float64(got.wchar) > 1.02*float64(got.wrote)+1e6 {
				t.Errorf("%d bytes are passed to write calls, %d are counted", got.wchar, got.wrote)
			}
		})
	}
}

// BenchmarkSync measures what each setting of Options.Sync costs on the
// system's file system, at rates like those of slow and fast feeds and as fast
// as it goes: compressed bytes a second, bytes written to files for each of
// them, all of the sealing included, bytes passed to write calls (wchar of
// /proc/self/io: with those that wake the threads of this process, for each
// packet one) and syncs a second. Run it with -benchtime 1x.
func BenchmarkSync(b *testing.B) {
	for _, from := range []load{
		{"1000msgs", 32.4e3, 32.4e3 * 30, 1},
		{"5000msgs", 162e3, 162e3 * 10, 1},
		{"1MBps", 1e6, 6e6, 8},
		{"25MBps-noise", 25e6, 100e6, 0},
		{"full-noise", 0, 300e6, 0},
	} {
		for _, sync := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, time.Second} {
			b.Run(fmt.Sprintf("rate=%s/sync=%v", from.name, sync), func(b *testing.B) {
				o := DefaultOptions()
				o.Sync = sync
				o.Wait = true
				for range b.N {
					c := measure(b, o, from)
					b.ReportMetric(float64(c.stored)/1e6/c.seconds, "MB/s")
					b.ReportMetric(c.ratio(), "written/B")
					b.ReportMetric(float64(c.wchar)/float64(c.stored), "wchar/B")
					b.ReportMetric(float64(c.atSeal)/float64(c.stored), "seal/B")
					b.ReportMetric(float64(c.syncs)/c.seconds, "syncs/s")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}
