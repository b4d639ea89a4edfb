package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
	"github.com/moldtape/moldtape/cmd/internal/bench/peers/jetstream"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

type trials struct {
	self, dir      string
	server, client int // cores
	runs           int
	long, short    float64 // seconds of a run of goal 5, and of the others
	messages       int     // of goals 6 to 8, of the generator
}

func compare(args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	t := &trials{long: 30, short: 5, messages: 1_000_000}
	fs.IntVar(&t.runs, "runs", 5, "of each arm, in turn")
	quick := fs.Bool("quick", false, "short runs")
	dir := fs.String("dir", os.TempDir(), "where the arms write")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *quick {
		t.long, t.short, t.messages = 3, 1, 200_000
	}
	cores, err := harness.TwoCores()
	if err != nil {
		return err
	}
	t.server, t.client = cores[0], cores[1]
	if t.self, err = os.Executable(); err != nil {
		return err
	}
	if t.dir, err = os.MkdirTemp(*dir, "keep"); err != nil {
		return err
	}
	defer os.RemoveAll(t.dir)
	if err := harness.Pin(t.client); err != nil {
		return err
	}
	fmt.Printf("store: load %s; one core, runs of %v and %v s, %d each, in turn; medians\n\n", harness.Load(), t.long, t.short, t.runs)
	harness.Head()
	for _, goals := range []func() error{t.pipelines, t.codec, t.sizes, t.stores, t.publish} {
		if err := goals(); err != nil {
			return err
		}
		fmt.Println()
	}
	return nil
}

// run runs an arm.
func (t *trials) run(name string, seconds float64, more ...string) (k kept, err error) {
	argv := harness.OnCore(t.server, append([]string{t.self, name, t.dir, fmt.Sprint(seconds)}, more...)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return k, fmt.Errorf("%s: %w", name, err)
	}
	return k, json.Unmarshal(out, &k)
}

// turns runs arms in turn.
func (t *trials) turns(runs int, seconds float64, arms ...[]string) ([][]kept, error) {
	got := make([][]kept, len(arms))
	for range runs {
		for i, a := range arms {
			k, err := t.run(a[0], seconds, a[1:]...)
			if err != nil {
				return nil, err
			}
			got[i] = append(got[i], k)
		}
	}
	return got, nil
}

func median(ks []kept, of func(kept) float64) float64 {
	var v []float64
	for _, k := range ks {
		v = append(v, of(k))
	}
	return harness.Median(v)
}

func messages(k kept) float64 { return k.Messages }

// pipelines is goal 5.
func (t *trials) pipelines() error {
	got, err := t.turns(min(t.runs, 3), t.long, []string{"rows"}, []string{"store", "fast", "full"}, []string{"store", "dense", "full"},
		[]string{"store", "fast!", "full"}, []string{"store", "dense!", "full"})
	if err != nil {
		return err
	}
	peer := median(got[0], messages)
	cpu := func(k kept) float64 { return k.CPU }
	for i, name := range []string{"fast", "dense", "fast unchecked", "dense unchecked"} {
		v := median(got[i+1], messages)
		if i < 2 {
			harness.Row("5", name+" : rows, full, messages/s", "%.0f", v, peer, v/peer, "≥", []float64{2.2, 1.3}[i])
		} else {
			harness.Alone("5", name+" : rows, full, messages/s", "%.0f", v, fmt.Sprintf("%13.0f %6.2f", peer, v/peer))
		}
		u, of := median(got[i+1], cpu), median(got[0], cpu)
		harness.Alone("5", name+" : rows, full, CPU µs a message", "%.3f", u, fmt.Sprintf("%13.3f %6.2f", of, u/of))
	}
	return nil
}

// sources are feeds with the most that dense may take of rows, by what the name
// of the file has.
var sources = []struct {
	part, name   string
	most         float64
	itch, speeds bool
}{
	{"nasdaq", "Nasdaq TotalView", 0.70, true, false},
	{".itch", "Nasdaq ITCH", 0.70, true, false},
	{"deep", "IEX DEEP", 0.68, false, true},
	{"tops", "IEX TOPS", 0.80, false, true},
}

// codec is goals 6 and 7.
func (t *trials) codec() error {
	gen := bench.Generated(t.messages/2, 4)
	if err := t.forms(gen, "generator", 0.55, false, true); err != nil {
		return err
	}
	files := map[string][]string{}
	if dir := os.Getenv("MOLDTAPE_CORPUS"); dir != "" {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			for _, s := range sources {
				if strings.Contains(strings.ToLower(d.Name()), s.part) {
					files[s.part] = append(files[s.part], path)
					break
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, s := range sources {
		if len(files[s.part]) == 0 {
			fmt.Printf("%-4s %s: no file of it in $MOLDTAPE_CORPUS\n", "6", s.name)
		}
		for _, path := range files[s.part] {
			f, err := bench.ReadFeed(path)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			name := s.name
			if len(files[s.part]) > 1 {
				name = f.Name
			}
			if err := t.forms(f, name, s.most, s.itch, s.speeds); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

func (t *trials) forms(f *bench.Feed, name string, most float64, itch, speeds bool) error {
	got, err := bench.MeasureForms(context.Background(), f, bench.Forms, store.DefaultOptions().BlockSize, t.runs, nil)
	if err != nil {
		return err
	}
	row, dense := &got[0], &got[len(got)-1]
	each := func(n int) float64 { return float64(n) / float64(f.Count) }
	harness.Row("6", name+": dense : rows, B a message", "%.2f", each(dense.Stored), each(row.Stored), each(dense.Stored)/each(row.Stored), "≤", most)
	worst := slices.MaxFunc(got[2:], func(a, b bench.FormResult) int { return a.Stored - b.Stored })
	harness.Row("6", name+": largest form : rows", "%.2f", each(worst.Stored), each(row.Stored), each(worst.Stored)/each(row.Stored), "≤", 1.01)
	if itch {
		switch n, err := bench.Packed(f.Rows, "xz", "-9e", "-c"); {
		case errors.Is(err, exec.ErrNotFound):
			harness.Alone("7", name+": dense : xz -9e, B a message", "%.2f", each(dense.Stored), "no xz: apt-get install xz-utils")
		case err != nil:
			return err
		default:
			harness.Row("7", name+": dense : xz -9e, B a message", "%.2f", each(dense.Stored), each(n), each(dense.Stored)/each(n), "≤", 0.95)
		}
	}
	if speeds {
		e, d := dense.Speeds(f)
		re, rd := row.Speeds(f)
		harness.Row("7", name+": dense encodes : rows, MB/s", "%.1f", e/1e6, re/1e6, e/re, "≥", 1.5)
		harness.Row("7", name+": dense decodes : rows, MB/s", "%.1f", d/1e6, rd/1e6, d/rd, "≥", 0.35)
	}
	return nil
}

// sizes is goal 8: everything in the directory of an archive, and of JetStream.
func (t *trials) sizes() error {
	f := bench.Generated(t.messages, 4)
	dir := filepath.Join(t.dir, "sizes")
	o := store.DefaultOptions()
	o.Codec, o.Reserve = store.CodecDense, 0
	if _, err := bench.MeasureStore(context.Background(), dir, o, f, 0, f.Count); err != nil {
		return err
	}
	own, err := under(dir)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	each := func(n int) float64 { return float64(n) / float64(f.Count) }
	row := func(peer string, n int, most float64) {
		harness.Row("8", "archive : "+peer+", B a message", "%.2f", each(own), each(n), each(own)/each(n), "≤", most)
	}
	file, err := f.Pcap()
	if err != nil {
		return err
	}
	switch n, err := bench.Packed(file, "zstd", "-3", "-q", "-c"); {
	case errors.Is(err, exec.ErrNotFound):
		harness.Alone("8", "archive : pcap + zstd -3", "%.2f", each(own), "no zstd: apt-get install zstd")
	case err != nil:
		return err
	default:
		row("pcap + zstd -3", n, 0.50)
	}
	row("pcap", len(file), 0.20)
	nats := filepath.Join(t.dir, "nats")
	if _, _, err := t.natsStores(nats, f, f.Count, time.Hour); err != nil {
		fmt.Fprintln(os.Stderr, err)
		harness.Alone("8", "archive : JetStream with S2", "%.2f", each(own), "the peer does not start here")
		return os.RemoveAll(nats)
	}
	n, err := under(nats)
	if err := errors.Join(err, os.RemoveAll(nats)); err != nil {
		return err
	}
	row("JetStream with S2", n, 0.25)
	return nil
}

// under is how many bytes the files below a directory have.
func under(dir string) (n int, err error) {
	return n, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			n += int(i.Size())
		}
		return err
	})
}

// natsStores has JetStream keep messages of f, count of them or those of a
// time: how many a second, and its CPU, in µs a message.
func (t *trials) natsStores(dir string, f *bench.Feed, count int, d time.Duration) (perSecond, cpu float64, err error) {
	s, url, err := harness.Start(harness.OnCore(t.server, t.self, "nats", dir))
	if err != nil {
		return 0, 0, err
	}
	began, n := time.Now(), 0
	feed := &bench.Endless{Feed: f}
	var msgs moldcast.Messages
	err = jetstream.Publish(url, func() ([]byte, bool) {
		if n == count || n%1024 == 0 && time.Since(began) > d {
			return nil, false
		}
		if msgs.Len() == 0 {
			msgs = feed.Next().Msgs
		}
		n++
		return msgs.Next(), true
	})
	took := time.Since(began)
	ns, serr := s.End()
	return float64(n) / took.Seconds(), float64(ns) / 1e3 / float64(max(n, 1)), errors.Join(err, serr)
}

// stores is goal 9.
func (t *trials) stores() error {
	got, err := t.turns(t.runs, t.short, []string{"store", "row", "noise"}, []string{"append"}, []string{"wal"}, []string{"store", "row!", "noise"})
	if err != nil {
		return err
	}
	mb := func(k kept) float64 { return k.Bytes / 1e6 }
	own := median(got[0], mb)
	for i, peer := range []string{"append + fdatasync", "Pebble, WAL sync"} {
		p := median(got[i+1], mb)
		harness.Row("9", "store : "+peer+", MB/s", "%.0f", own, p, own/p, "≥", []float64{0.9, 1.4}[i])
	}
	unchecked, p := median(got[3], mb), median(got[1], mb)
	harness.Alone("9", "the same, blocks not checked", "%.0f", unchecked, fmt.Sprintf("%13.0f %6.2f", p, unchecked/p))
	wrote := median(got[0], func(k kept) float64 { return k.Amplified })
	harness.Alone("9", "bytes written a byte", "%.3f", wrote, fmt.Sprintf("%22s ≤ 1.05  %s", "", harness.Reached(wrote <= 1.05)))
	return nil
}

// publish is goal 10.
func (t *trials) publish() error {
	f, err := feedOf("4")
	if err != nil {
		return err
	}
	var own []kept
	var rate, cpu []float64
	for range t.runs {
		k, err := t.run("store", t.short, "row", "4")
		if err != nil {
			return err
		}
		own = append(own, k)
		dir := filepath.Join(t.dir, "nats")
		r, c, err := t.natsStores(dir, f, -1, time.Duration(t.short*1e9))
		if rerr := os.RemoveAll(dir); err != nil || rerr != nil {
			fmt.Fprintln(os.Stderr, errors.Join(err, rerr))
			harness.Alone("10", "store, 4 a packet, messages/s", "%.0f", median(own, messages), "the peer does not start here")
			return nil
		}
		rate, cpu = append(rate, r), append(cpu, c)
	}
	m, peer := median(own, messages), harness.Median(rate)
	harness.Row("10", "store : JetStream + S2, messages/s", "%.0f", m, peer, m/peer, "≥", 6)
	u, of := median(own, func(k kept) float64 { return k.CPU }), harness.Median(cpu)
	harness.Row("10", "store : JetStream + S2, CPU µs a message", "%.3f", u, of, u/of, "≤", 0.1)
	return nil
}
