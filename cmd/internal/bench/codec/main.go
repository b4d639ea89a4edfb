// Command codec measures what the forms of a block's payload take, in bytes
// and time, beside rows compressed by zstd at its default level, which is what
// everything is compared with:
//
//	MOLDTAPE_CORPUS=… go run ./cmd/internal/bench/codec [--block 256] [--packet 4] [--messages 500000] [FILE…]
//
// It takes all files of the corpus and the generator, or the files named:
// captures, or BinaryFILEs (.itch, .rows, .bin). Speeds are of the processor's
// time of one thread, of raw bytes (10^6) a second, with hashes and checksums;
// the median of rounds in which all forms take turns. Plans are learned from the
// first block, and anew where the encoder asks for it, outside of that time;
// learn is how long that took. Where xz is installed, its size of all rows in
// one file is there too.
//
// With --table it prints, in Markdown, what each file takes in bytes a message,
// beside a pcap of the same packets and what zstd and xz make of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moldtape/moldtape/cmd/internal/bench"
)

// fewest messages of which anything can be said.
const fewest = 50

func main() {
	size := flag.Int("block", 256, "size of blocks, in KiB of rows")
	packet := flag.Int("packet", 4, "messages a packet of the generator")
	messages := flag.Int("messages", 500_000, "messages of the generator")
	rounds := flag.Int("rounds", 5, "rounds")
	table := flag.Bool("table", false, "print bytes a message, as a table in Markdown")
	flag.Parse()
	if *size < 1 || *size > 1<<14 || *packet < 1 || *packet > 40 || *messages < fewest || *rounds < 1 {
		fmt.Fprintln(os.Stderr, "codec: want --block 1..16384, --packet 1..40, --messages of at least 50, --rounds of at least 1")
		os.Exit(2)
	}
	show := report
	if *table {
		show, *rounds = tableRow, 1
		fmt.Println(tableHead)
	} else {
		fmt.Println("feed                          form      B/msg  of row   encode MB/s  of row   decode MB/s  of row  learn")
	}
	failed := false
	fail := func(name string, err error) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		failed = true
	}
	measure := func(f *bench.Feed) {
		if f.Count < fewest {
			return
		}
		results, err := bench.MeasureForms(context.Background(), f, bench.Forms, *size<<10, *rounds, nil)
		if err == nil {
			err = show(f, results)
		}
		if err != nil {
			fail(f.Name, err)
		}
	}
	files, err := flag.Args(), error(nil)
	if len(files) == 0 {
		if files, err = corpus(); err != nil {
			fail("MOLDTAPE_CORPUS", err)
		}
	}
	for _, path := range files {
		f, err := bench.ReadFeed(path)
		switch {
		case err == nil:
			measure(f)
		case flag.NArg() > 0 || !errors.Is(err, bench.ErrNoStream):
			fail(path, err)
		}
	}
	if flag.NArg() == 0 {
		measure(bench.Generated(*messages, *packet))
	}
	if failed {
		os.Exit(1)
	}
}

// corpus is every file of MOLDTAPE_CORPUS.
func corpus() (files []string, err error) {
	dir := os.Getenv("MOLDTAPE_CORPUS")
	if dir == "" {
		return nil, nil
	}
	return files, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
}

func report(f *bench.Feed, results []bench.FormResult) error {
	row := &results[0]
	rowEncode, rowDecode := row.Speeds(f)
	for i := range results {
		r := &results[i]
		e, d := r.Speeds(f)
		fmt.Printf("%-28s  %-8s %6.3f  %6.3f  %12.1f  %6.2f  %12.1f  %6.2f  %5dms  %v\n", f.Name, r.Name,
			float64(r.Stored)/float64(f.Count), float64(r.Stored)/float64(row.Stored),
			e/1e6, e/rowEncode, d/1e6, d/rowDecode, r.Learn.Milliseconds(), r.Codecs)
	}
	if n, err := bench.Packed(f.Rows, "xz", "-9e", "-c"); err == nil {
		fmt.Printf("%-28s  %-8s %6.3f  %6.3f  dense is %.3f of it\n", f.Name, "xz -9e",
			float64(n)/float64(f.Count), float64(n)/float64(row.Stored), float64(results[len(results)-1].Stored)/float64(n))
	}
	return nil
}

const tableHead = `| file | messages | a packet | messages alone | ` + "`xz -9e`" + ` of them | pcap | pcap, ` + "`zstd -3`" + ` | pcap, ` + "`zstd -19`" + ` | row | fast | dense |
|---|---|---|---|---|---|---|---|---|---|---|`

// tableRow is one line of the table: of a message, all bytes that it takes.
func tableRow(f *bench.Feed, results []bench.FormResult) error {
	file, err := f.Pcap()
	if err != nil {
		return err
	}
	packed := func(b []byte, argv ...string) string {
		n, err := bench.Packed(b, argv...)
		switch {
		case errors.Is(err, exec.ErrNotFound):
			return "–"
		case err != nil:
			return err.Error()
		}
		return each(n, f)
	}
	by := map[string]string{}
	for _, r := range results {
		by[r.Name] = each(r.Stored, f)
	}
	fmt.Printf("| %s | %d | %.2f | %s | %s | %s | %s | %s | %s | %s | %s |\n", f.Name, f.Count, float64(f.Count)/float64(len(f.Pieces)),
		each(len(f.Rows), f), packed(f.Rows, "xz", "-9e", "-c"), each(len(file), f), packed(file, "zstd", "-3", "-q", "-c"), packed(file, "zstd", "-19", "-q", "-c"),
		by["row"], by["planes"], by["dense"])
	return nil
}

// each is n bytes for each message.
func each(n int, f *bench.Feed) string { return fmt.Sprintf("%.2f", float64(n)/float64(f.Count)) }
