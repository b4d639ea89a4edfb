// keep measures what is kept, and what that takes, beside others: goals 5 to
// 10. Every arm runs in turn as a process of its own, on one core; what sends
// to one, on another. (../run.sh makes a network namespace.)
//
//	keep compare [flags]                 runs all arms and prints the goals
//	keep rows DIR SECONDS                full packets to rows of zstd's default level, appended to a file
//	keep store DIR SECONDS CODEC FEED    the same to an archive; CODEC! : blocks are not checked
//	keep append DIR SECONDS              append + fdatasync of what cannot be compressed
//	keep wal DIR SECONDS                 the same to Pebble, each value synced
//	keep nats DIR                        JetStream, file store with S2; ends with its input, and says its CPU time
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/cmd/internal/bench/peers/jetstream"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
	"github.com/moldtape/moldtape/store/block"
)

func main() {
	err := errors.New("want compare, rows, store, append, wal or nats")
	if len(os.Args) > 2 || len(os.Args) > 1 && os.Args[1] == "compare" {
		args := os.Args[2:]
		switch os.Args[1] {
		case "compare":
			err = compare(args)
		case "nats":
			err = serveNATS(args[0])
		case "rows", "store", "append", "wal":
			err = arm(os.Args[1], args)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "keep:", err)
		os.Exit(1)
	}
}

// kept is what an arm came to: it prints it.
type kept struct {
	Messages  float64 // a second
	Bytes     float64 // a second, as stored
	CPU       float64 // µs a message
	Amplified float64 // bytes written for each stored
}

func arm(name string, args []string) error {
	if len(args) < 2 {
		return errors.New("want DIR and SECONDS")
	}
	n, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return err
	}
	dir, d := filepath.Join(args[0], "arm"), time.Duration(n*1e9)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var k kept
	switch name {
	case "rows":
		k, err = rows(dir, d)
	case "append":
		k.Bytes, err = bench.AppendSynced(context.Background(), dir, d)
	case "wal":
		k.Bytes, err = wal(dir, d)
	default:
		if len(args) != 4 {
			return errors.New("want CODEC and FEED")
		}
		k, err = stored(filepath.Join(dir, "archive"), d, args[2], args[3])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(k)
}

// full is how many messages of the generator fill a packet.
const full = 42

// feedOf is what arms store: of "full" packets, of "4" messages a packet, or
// "noise", which cannot be compressed.
func feedOf(name string) (*bench.Feed, error) {
	switch name {
	case "full":
		return bench.Generated(24<<20/32, full), nil
	case "4":
		return bench.Generated(24<<20/32, 4), nil
	case "noise":
		return bench.NoiseFeed(1<<14, 1400), nil
	}
	return nil, fmt.Errorf("feed %q: want full, 4 or noise", name)
}

func stored(dir string, d time.Duration, codec, feed string) (k kept, err error) {
	o := store.DefaultOptions()
	codec, o.NoVerify = strings.CutSuffix(codec, "!")
	if o.Codec, err = store.ParseCodec(codec); err != nil {
		return k, err
	}
	f, err := feedOf(feed)
	if err != nil {
		return k, err
	}
	s, err := bench.MeasureStore(context.Background(), dir, o, f, d, 0)
	if err != nil {
		return k, err
	}
	return kept{
		Messages: float64(s.Messages) / s.Took.Seconds(), Bytes: float64(s.Disk) / s.Took.Seconds(),
		CPU: s.CPU.Seconds() * 1e6 / float64(s.Messages), Amplified: float64(s.Wrote) / float64(s.Disk),
	}, nil
}

// rows is the least that a pipeline of rows does: blocks of 256 KiB, zstd at
// its default level, an append and an fdatasync every 4 MiB.
func rows(dir string, d time.Duration) (k kept, err error) {
	feed, err := feedOf("full")
	if err != nil {
		return k, err
	}
	f, err := os.Create(filepath.Join(dir, "rows"))
	if err != nil {
		return k, err
	}
	defer f.Close()
	size := store.DefaultOptions().BlockSize
	enc, err := block.NewEncoder(block.EncoderOptions{BlockSize: size, Level: block.Default})
	if err != nil {
		return k, err
	}
	b := block.NewBuilder(moldcast.Session{'R'})
	endless := &bench.Endless{Feed: feed}
	began, cpu := time.Now(), bench.CPU()
	messages, disk, unsynced := 0, 0, 0
	var header, body []byte
	for over := false; !over; {
		p := endless.Next()
		if err := b.Append(p); err != nil {
			return k, err
		}
		messages += p.Msgs.Len()
		if b.RawSize() < size {
			continue
		}
		if header, body, err = enc.Encode(body[:0], b, block.EncodeOptions{}); err != nil {
			return k, err
		}
		b.Reset(moldcast.Session{'R'})
		_, err1 := f.Write(header)
		_, err2 := f.Write(body)
		if err := errors.Join(err1, err2); err != nil {
			return k, err
		}
		n := len(header) + len(body)
		disk, unsynced = disk+n, unsynced+n
		if over = time.Since(began) >= d; over || unsynced >= 4<<20 {
			if err := unix.Fdatasync(int(f.Fd())); err != nil {
				return k, err
			}
			unsynced = 0
		}
	}
	took := time.Since(began).Seconds()
	return kept{Messages: float64(messages) / took, Bytes: float64(disk) / took, CPU: (bench.CPU() - cpu).Seconds() * 1e6 / float64(messages), Amplified: 1}, nil
}

// wal is Pebble as it is used mostly: a value of 256 KiB a write, synced.
func wal(dir string, d time.Duration) (float64, error) {
	db, err := pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, MemTableSize: 64 << 20, Logger: quiet{}})
	if err != nil {
		return 0, err
	}
	noise := bench.Noise(16 << 20)
	n, began := 0, time.Now()
	for i := 0; i == 0 || time.Since(began) < d; i++ {
		at := i * 7919 * 64 % (len(noise) - 256<<10)
		if err := db.Set(fmt.Appendf(nil, "%016d", i), noise[at:at+256<<10], pebble.Sync); err != nil {
			return 0, err
		}
		n += 256 << 10
	}
	took := time.Since(began)
	return float64(n) / took.Seconds(), db.Close()
}

// quiet is a logger of Pebble's.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "keep: "+format+"\n", args...)
	os.Exit(1)
}

func serveNATS(dir string) error {
	url, stop, err := jetstream.Serve(dir, true)
	if err != nil {
		return err
	}
	defer stop()
	before := bench.CPU()
	fmt.Println(url)
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println((bench.CPU() - before).Nanoseconds())
	return nil
}
