// Command codec measures what the forms of a block's payload take, in bytes
// and time, beside rows compressed by zstd at its default level, which is what
// everything is compared with:
//
//	MOLDTAPE_CORPUS=… go run ./cmd/internal/bench/codec [--block 256K] [--packet 4] [--messages 1000000] [FILE…]
//
// It takes all files of the corpus and the generator, or the files named:
// captures, BinaryFILEs (.itch), or rows (.rows: BinaryFILE too). Speeds are of
// the processor's time of one thread, of raw bytes (10^6) a second, with hashes
// and checksums; the median of rounds in which all forms take turns. Plans are
// learned from the first block, and anew where the encoder asks for it, outside
// of that time; learn is how long that took. Where xz is installed, its size of
// all rows in one file is there too.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

var forms = []struct {
	name  string
	level block.Level
}{{"row", block.Default}, {"row-fast", block.Fastest}, {"planes", block.Planes}, {"hasty", block.Hasty}, {"dense", block.Dense}}

func main() {
	runtime.LockOSThread()
	size := flag.Int("block", 256, "size of blocks, in KiB of rows")
	packet := flag.Int("packet", 4, "messages a packet of the generator")
	messages := flag.Int("messages", 500_000, "messages of the generator")
	rounds := flag.Int("rounds", 5, "rounds")
	flag.Parse()
	files := flag.Args()
	corpus := os.Getenv("MOLDTAPE_CORPUS")
	if len(files) == 0 && corpus != "" {
		_ = filepath.WalkDir(corpus, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasSuffix(path, ".md") {
				files = append(files, path)
			}
			return nil
		})
	}
	failed := false
	fail := func(name string, err error) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		failed = true
	}
	fmt.Println("feed                          form      B/msg  of row   encode MB/s  of row   decode MB/s  of row  learn")
	measure := func(f *feed) {
		if f.count < 50 {
			return // says nothing
		}
		if err := report(f, *size<<10, *rounds); err != nil {
			fail(f.name, err)
		}
	}
	for _, path := range files {
		f, err := readFeed(path)
		if err != nil {
			if len(flag.Args()) > 0 {
				fail(path, err)
			}
			continue
		}
		measure(f)
	}
	if len(flag.Args()) == 0 {
		measure(generated(*messages, *packet))
	}
	if failed {
		os.Exit(1)
	}
}

// result is what a form takes.
type result struct {
	stored         int
	codecs         map[block.Codec]int
	learn          time.Duration
	encode, decode []time.Duration // of each round
}

// report measures a feed and prints it.
func report(f *feed, size, rounds int) error {
	blocks, err := cut(f, size)
	if err != nil {
		return err
	}
	results := make([]result, len(forms))
	dec, err := block.NewDecoder(block.DecoderOptions{})
	if err != nil {
		return err
	}
	defer dec.Close()
	for range rounds {
		for i, form := range forms {
			if err := results[i].round(blocks, form.level, size, dec); err != nil {
				return fmt.Errorf("%s: %w", form.name, err)
			}
		}
	}
	speed := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(len(f.rows)) / 1e6 / d[len(d)/2].Seconds()
	}
	row := &results[0]
	for i, form := range forms {
		r := &results[i]
		e, d := speed(r.encode), speed(r.decode)
		fmt.Printf("%-28s  %-8s %6.3f  %6.3f  %12.1f  %6.2f  %12.1f  %6.2f  %5dms  %v\n", f.name, form.name,
			float64(r.stored)/float64(f.count), float64(r.stored)/float64(row.stored),
			e, e/speed(row.encode), d, d/speed(row.decode), r.learn.Milliseconds(), r.codecs)
	}
	if n, err := xz(f.rows); err == nil {
		fmt.Printf("%-28s  %-8s %6.3f  %6.3f  dense is %.3f of it\n", f.name, "xz -9e",
			float64(n)/float64(f.count), float64(n)/float64(row.stored), float64(results[len(forms)-1].stored)/float64(n))
	}
	return nil
}

// cut makes blocks of a feed, as an archive does.
func cut(f *feed, size int) (out []*block.Block, err error) {
	b := block.NewBuilder(moldcast.Session{'B', 'E', 'N', 'C', 'H'})
	for i, p := range f.pieces {
		if err := b.Append(p); err != nil {
			return nil, err
		}
		if b.RawSize() >= size || i == len(f.pieces)-1 {
			x := new(block.Block)
			if err := b.Freeze(x); err != nil {
				return nil, err
			}
			out = append(out, x)
			b.Reset(x.Session())
		}
	}
	return out, nil
}

// round encodes and decodes all blocks once.
func (r *result) round(blocks []*block.Block, level block.Level, size int, dec *block.Decoder) error {
	enc, err := block.NewEncoder(block.EncoderOptions{BlockSize: size, Level: level})
	if err != nil {
		return err
	}
	r.stored, r.learn, r.codecs = 0, 0, map[block.Codec]int{}
	var buf []byte
	var got block.Block
	// Buffers are made before time is taken.
	if _, buf = enc.EncodeBlock(buf, blocks[0], block.EncodeOptions{}); level == block.Dense {
		start := cpu()
		enc.UsePlans(block.Learn(nil, blocks[0]))
		r.learn = cpu() - start
	}
	var encode, decode time.Duration
	for _, b := range blocks {
		start := cpu()
		header, body := enc.EncodeBlock(buf[:0], b, block.EncodeOptions{})
		encode += cpu() - start
		buf = body
		h, err := block.ParseHeader(header)
		if err != nil {
			return err
		}
		r.codecs[h.Codec]++
		r.stored += len(body) + len(header)
		if err := dec.Decode(h, body, &got); err != nil { // and makes its buffers
			return err
		}
		start = cpu()
		if err := dec.Decode(h, body, &got); err != nil {
			return err
		}
		decode += cpu() - start
		if !bytes.Equal(got.Rows(), b.Rows()) {
			return fmt.Errorf("block %v is another one when decoded", h.Range())
		}
		if enc.WantsPlans() {
			start = cpu()
			enc.UsePlans(block.Learn(enc.Plans(), b))
			r.learn += cpu() - start
		}
	}
	r.encode, r.decode = append(r.encode, encode), append(r.decode, decode)
	return nil
}

// cpu is the processor's time that this thread took.
func cpu() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // no Linux
	}
	return time.Duration(t.Nano())
}

// xz is how many bytes xz -9e makes of b.
func xz(b []byte) (int, error) {
	cmd := exec.Command("xz", "-9e", "-c")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	return len(out), err
}
