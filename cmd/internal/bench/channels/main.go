// Command channels measures what a codec costs a node that records many
// channels at once, beside rows:
//
//	go run ./cmd/internal/bench/channels [--channels 64] [--messages 60000] [--rate 250000] [--feeds 1] [--verify=false] [CODEC…]
//
// For each codec (row and auto) a process of its own has that many recordings
// of one archive written side by side, each of so many messages of the
// generator, at so many a second in all, and sealed. With --feeds n there are
// n kinds of messages among them, of which no two have a shape in common.
// CPU is the process's, user and system, from the first message to the last
// seal; RSS its most resident memory; stored is what its files take, merged what
// was written anew for seals.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

const (
	seeds  = 8  // of the generator
	packet = 4  // messages
	round  = 64 // packets of a channel before the next has its turn
)

func main() {
	var c config
	flag.IntVar(&c.channels, "channels", 64, "recordings written side by side")
	flag.IntVar(&c.messages, "messages", 60_000, "messages of each")
	flag.IntVar(&c.rate, "rate", 250_000, "messages a second in all; 0: as fast as can be")
	flag.IntVar(&c.feeds, "feeds", 1, "kinds of messages")
	flag.BoolVar(&c.verify, "verify", false, "blocks are decoded and compared before they are stored")
	one := flag.String("one", "", "measure this codec here, and print figures only")
	flag.Parse()
	if err := run(&c, *one, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

type config struct {
	channels, messages, rate, feeds int
	verify                          bool
}

// figures are what a codec cost.
type figures struct {
	cpu, wall           float64 // s
	rss, stored, merged uint64  // bytes
}

func run(c *config, one string, codecs []string) error {
	if one != "" {
		codec, err := store.ParseCodec(one)
		if err != nil {
			return err
		}
		f, err := c.measure(codec)
		if err == nil {
			fmt.Println(f.cpu, f.wall, f.rss, f.stored, f.merged)
		}
		return err
	}
	if len(codecs) == 0 {
		codecs = []string{store.CodecRow.String(), store.CodecAuto.String()}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Println("codec   CPU s  of the first   RSS MiB  of the first   B/msg  of the first   merged MiB   wall s")
	var first figures
	for i, codec := range codecs {
		out, err := exec.Command(self, append(slices.Clip(os.Args[1:len(os.Args)-flag.NArg()]), "--one", codec)...).Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%s: %s", codec, bytes.TrimSpace(exit.Stderr))
		}
		if err != nil {
			return err
		}
		var f figures
		if _, err := fmt.Sscan(string(out), &f.cpu, &f.wall, &f.rss, &f.stored, &f.merged); err != nil {
			return err
		}
		if i == 0 {
			first = f
		}
		n := float64(c.channels * c.messages)
		fmt.Printf("%-6s %6.1f  %12.2f  %8d  %12.2f  %6.2f  %12.2f  %11d  %7.1f\n", codec, f.cpu, f.cpu/first.cpu,
			f.rss>>20, float64(f.rss)/float64(first.rss), float64(f.stored)/n, float64(f.stored)/float64(first.stored), f.merged>>20, f.wall)
	}
	return nil
}

// measure has all channels recorded here.
func (c *config) measure(codec store.Codec) (f figures, err error) {
	dir, err := os.MkdirTemp("", "moldtape-channels-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	o := store.DefaultOptions()
	o.Codec, o.NoVerify, o.Reserve = codec, !c.verify, 0
	a, err := store.Create(dir, o)
	if err != nil {
		return f, err
	}
	defer a.Close()
	feeds := make([][]moldcast.Messages, min(c.channels, max(seeds, c.feeds)))
	for i := range feeds {
		feeds[i] = packets(c.messages, uint64(i), i%c.feeds)
	}
	before, start := usage(), time.Now()
	if err := c.record(a, feeds); err != nil {
		return f, err
	}
	after := usage()
	f.cpu = seconds(after.Utime) - seconds(before.Utime) + seconds(after.Stime) - seconds(before.Stime)
	f.wall, f.rss = time.Since(start).Seconds(), uint64(after.Maxrss)<<10
	list, err := a.Sessions()
	for _, s := range list {
		f.stored += s.BytesDisk
		f.merged += s.BytesMerged
	}
	return f, err
}

func (c *config) record(a *store.Archive, feeds [][]moldcast.Messages) error {
	session, err := moldcast.ParseSession("BENCH")
	if err != nil {
		return err
	}
	writers := make([]*store.Writer, c.channels)
	for i := range writers {
		w, err := a.Writer(fmt.Sprintf("c%02d", i), session, 0)
		if err != nil {
			return err
		}
		writers[i] = w
	}
	start, sent := time.Now(), 0
	seqs := slices.Repeat([]moldcast.Seq{1}, c.channels)
	for at := 0; at < len(feeds[0]); at += round {
		for i, w := range writers {
			feed := feeds[i%len(feeds)]
			for _, m := range feed[at:min(at+round, len(feed))] {
				now := moldcast.Stamp(time.Now().UnixNano())
				if _, err := w.Append(moldcast.Piece{First: seqs[i], Msgs: m, Time: now, Heard: now}); err != nil {
					return err
				}
				seqs[i] += moldcast.Seq(m.Len())
				sent += m.Len()
			}
			if c.rate > 0 {
				time.Sleep(time.Until(start.Add(time.Duration(float64(sent) / float64(c.rate) * float64(time.Second)))))
			}
		}
	}
	errs := make([]error, len(writers))
	var all sync.WaitGroup
	for i, w := range writers {
		all.Go(func() { errs[i] = w.Close() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// packets are n messages of the generator. Those of a kind other than 0 are
// longer, and begin with another byte.
func packets(n int, seed uint64, kind int) (out []moldcast.Messages) {
	g := itch.NewGenerator(n, seed+1)
	var framed, longer []byte
	for k := 0; ; {
		m, ok := g.Next()
		if ok {
			longer = append(longer[:0], m[0]^byte(kind<<3))
			longer = append(append(longer, make([]byte, kind)...), m[1:]...)
			framed = moldcast.AppendMessage(framed, longer)
			k++
		}
		if k == packet || !ok && k > 0 {
			out = append(out, moldcast.MessagesOf(bytes.Clone(framed), k))
			framed, k = framed[:0], 0
		}
		if !ok {
			return out
		}
	}
}

func usage() (u unix.Rusage) {
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // no Linux
	}
	return u
}

func seconds(t unix.Timeval) float64 { return time.Duration(t.Nano()).Seconds() }
