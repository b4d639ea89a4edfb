package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

const (
	size     = 40      // bytes of a message
	hotCount = 200_000 // messages asked for over and over
	allCount = 4_000_000
	inFlight = 64
)

var session, _ = moldcast.ParseSession("PEERS")

type trials struct {
	program, self, dir, archive string
	server, client              int // cores
	d                           time.Duration
	runs                        int
}

func compare(args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	b := &trials{d: 3 * time.Second}
	fs.StringVar(&b.program, "moldtape", "", "the program")
	fs.IntVar(&b.runs, "runs", 5, "of each arm, in turn")
	quick := fs.Bool("quick", false, "short runs")
	dir := fs.String("dir", os.TempDir(), "where the arms write")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *quick {
		b.d = time.Second
	}
	cores, err := harness.TwoCores()
	if err != nil {
		return err
	}
	b.server, b.client = cores[0], cores[1]
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(*dir, "ask"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := harness.Pin(b.client); err != nil {
		return err
	}
	if err := b.fill(); err != nil {
		return err
	}
	fmt.Printf("requests: load %s; %d in flight, messages of %d bytes; medians of %d runs of %v in turn\n\n", harness.Load(), inFlight, size, b.runs, b.d)
	harness.Head()
	return errors.Join(b.hot(), b.cold(), b.storm())
}

// fill makes an archive.
func (b *trials) fill() error {
	b.archive = filepath.Join(b.dir, "archive")
	f := filepath.Join(b.dir, "in.bin")
	rng := rand.New(rand.NewPCG(3, 4))
	var all []byte
	m := make([]byte, size)
	for i := range allCount {
		copy(m, fmt.Sprintf("%012d", i))
		for k := 12; k < size; k += 7 {
			m[k] = byte(rng.IntN(64))
		}
		all = moldcast.AppendMessage(all, m)
	}
	if err := os.WriteFile(f, all, 0o600); err != nil {
		return err
	}
	defer os.Remove(f)
	out, err := exec.Command(b.program, "import", f, "--format", "binaryfile", "--channel", "x", "--session", "PEERS", "--archive", b.archive, "--log-level", "warn").CombinedOutput()
	if err != nil {
		return fmt.Errorf("import: %w: %s", err, out)
	}
	return nil
}

// hot is goal 11.
func (b *trials) hot() error {
	nats, url, err := harness.Start(harness.OnCore(b.server, b.self, "nats", filepath.Join(b.dir, "js"), strconv.Itoa(hotCount), strconv.Itoa(size)))
	why := "the peer does not start here"
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	var requests, messages, gets []float64
	for range b.runs {
		own, ready, err := harness.Start(harness.OnCore(b.server, b.program, "retransmit", "--archive", b.archive, "--listen", "127.0.0.1:0",
			"--rate-per-client", "0", "--rate-total", "0", "--log-level", "warn"))
		if err != nil {
			return err
		}
		var up struct{ Retransmit netip.AddrPort }
		if err := json.Unmarshal([]byte(ready), &up); err != nil {
			return err
		}
		r, err := bench.AskHot(context.Background(), up.Retransmit, session, hotCount, inFlight, b.d)
		if _, serr := own.Stop(); err != nil || serr != nil {
			return errors.Join(err, serr)
		}
		requests, messages = append(requests, r.PerSecond(r.Requests)), append(messages, r.PerSecond(r.Messages))
		if nats == nil {
			continue
		}
		n, err := askNATS(url, hotCount, inFlight, b.d)
		if err != nil {
			return err
		}
		gets = append(gets, n)
	}
	if nats == nil {
		harness.Alone("11", "hot requests a second : JetStream gets", "%.0f", harness.Median(requests), why)
		harness.Alone("11", "messages a second in them : the same", "%.0f", harness.Median(messages), why)
		return nil
	}
	if _, err := nats.End(); err != nil {
		return err
	}
	peer := harness.Median(gets)
	harness.Row("11", "hot requests a second : JetStream gets", "%.0f", harness.Median(requests), peer, harness.Median(requests)/peer, "≥", 4)
	harness.Row("11", "messages a second in them : the same", "%.0f", harness.Median(messages), peer, harness.Median(messages)/peer, "≥", 100)
	return nil
}

// cold is goal 12: processor time of an answer whose block is on disk, beside
// reading and decoding the block alone.
func (b *trials) cold() error {
	misses := int(300 * b.d.Seconds())
	var served, alone []float64
	for run := range b.runs {
		firsts := scattered(run, misses)
		s, addr, err := harness.Start(harness.OnCore(b.server, b.self, "cold", b.archive))
		if err != nil {
			return err
		}
		to, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		a, err := bench.NewAsker(to, session)
		if err != nil {
			return err
		}
		i := 0
		r, err := a.Ask(context.Background(), 1, 0, func() (moldcast.Seq, uint16, bool) {
			if i++; i > len(firsts) {
				return 0, 0, false
			}
			return firsts[i-1], 30, true
		})
		a.Conn.Close()
		took, serr := s.End()
		if err = errors.Join(err, serr); err != nil {
			return err
		}
		served = append(served, float64(took)/float64(r.Requests))
		one, line, err := harness.Start(harness.OnCore(b.server, b.self, "alone", b.archive, strconv.Itoa(run), strconv.Itoa(misses)))
		if err != nil {
			return err
		}
		if _, err := one.End(); err != nil {
			return err
		}
		n, err := strconv.ParseFloat(line, 64)
		if err != nil {
			return err
		}
		alone = append(alone, n/float64(misses))
	}
	us := func(v []float64) float64 { return harness.Median(v) / 1e3 }
	harness.Row("12", "CPU µs of a cold answer : read and decode", "%.1f", us(served), us(alone), us(served)/us(alone), "≤", 1.3)
	return nil
}

// scattered are so many sequences, each in another block than the one before.
func scattered(seed, n int) []moldcast.Seq {
	rng := rand.New(rand.NewPCG(uint64(seed), 9))
	firsts := make([]moldcast.Seq, n)
	for i := range firsts {
		firsts[i] = moldcast.Seq(1 + allCount/2*(i%2) + rng.IntN(allCount/2-100))
	}
	return firsts
}

// alone reads and decodes, and says how much processor time it took, in ns.
func alone(args []string) error {
	seed, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	a, err := coldArchive(args[0])
	if err != nil {
		return err
	}
	defer a.Close()
	infos, err := a.Sessions()
	if err != nil || len(infos) != 1 {
		return fmt.Errorf("sessions: %v %w", infos, err)
	}
	v, err := a.View(infos[0].Ref())
	if err != nil {
		return err
	}
	defer v.Close()
	buf := make([]byte, 0, 2048)
	before := bench.CPU()
	for _, q := range scattered(seed, n) {
		if _, _, err := v.Append(buf, q, 30, 1452, true); err != nil {
			return err
		}
	}
	fmt.Println((bench.CPU() - before).Nanoseconds())
	return nil
}

// storm is what 100 000 requests a second do to how long messages that a
// capture receives are not durable.
func (b *trials) storm() error {
	var calm, stormy []float64
	for range b.runs {
		for _, storm := range []bool{false, true} {
			p99, err := b.lag(storm)
			if err != nil {
				return err
			}
			if storm {
				stormy = append(stormy, p99)
			} else {
				calm = append(calm, p99)
			}
		}
	}
	ms := func(v []float64) float64 { return 1e3 * harness.Median(v) }
	harness.Row("–", "p99 ms of lag in a storm : without", "%.1f", ms(stormy), ms(calm), ms(stormy)/ms(calm), "≤", 2)
	return nil
}

// lag is the 99th percentile of the lag of a capture of 20 000 messages a
// second, in seconds.
func (b *trials) lag(storm bool) (float64, error) {
	dir, err := os.MkdirTemp(b.dir, "lag")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	node, ready, err := harness.Start(harness.OnCore(b.server, b.program, "capture", "--line", "127.0.0.1:0", "--retransmit-listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
		"--archive", dir, "--log-level", "error"))
	if err != nil {
		return 0, err
	}
	var up struct {
		Retransmit, HTTP string
		Channels         []struct{ Lines []string }
	}
	if err := json.Unmarshal([]byte(ready), &up); err != nil {
		return 0, err
	}
	a, err := bench.NewAsker(netip.MustParseAddrPort(up.Retransmit), session)
	if err != nil {
		return 0, err
	}
	defer a.Conn.Close()
	line := netip.MustParseAddrPort(up.Channels[0].Lines[0])
	var lags []float64
	q, m := moldcast.Seq(1), make([]byte, size)
	began := time.Now()
	looks := make(chan error, 1)
	go func() {
		for time.Since(began) < b.d {
			n, err := lagOf(up.HTTP)
			if err != nil {
				looks <- err
				return
			}
			if n >= 0 {
				lags = append(lags, n)
			}
			time.Sleep(5 * time.Millisecond)
		}
		looks <- nil
	}()
	packet := []mcast.Datagram{{Dst: line}}
	for t := time.Duration(0); t < b.d; t += 500 * time.Microsecond {
		time.Sleep(time.Until(began.Add(t)))
		d := moldcast.AppendHeader(packet[0].Data[:0], session, q, 10)
		for range 10 {
			d = moldcast.AppendMessage(d, m)
		}
		packet[0].Data = d
		q += 10
		if _, err := a.Conn.WriteBatch(packet); err != nil {
			return 0, err
		}
		if storm && q > 2000 {
			for i := range a.Out[:50] {
				a.Out[i].Data = moldcast.AppendRequest(a.Out[i].Data[:0], moldcast.Request{Session: session, First: 1 + (q*7+moldcast.Seq(i)*13)%1000, Count: 30})
				a.Out[i].Dst = a.To
			}
			_, _ = a.Conn.WriteBatch(a.Out[:50]) // what does not go is lost, as in any storm
			for {
				if n, err := a.Conn.TryReadBatch(a.In); n == 0 || err != nil {
					break
				}
			}
		}
	}
	err = <-looks
	if _, serr := node.Stop(); err != nil || serr != nil {
		return 0, errors.Join(err, serr)
	}
	if len(lags) < 10 {
		return 0, errors.New("the node says too rarely how it does")
	}
	slices.Sort(lags)
	return lags[len(lags)*99/100], nil
}

// lagOf is the lag of the only session; -1: there is none yet.
func lagOf(addr string) (float64, error) {
	resp, err := http.Get("http://" + strings.TrimSpace(addr) + "/status")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var d struct {
		Channels []struct {
			Sessions []struct {
				Lag float64 `json:"lag_seconds"`
			}
		}
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return 0, err
	}
	if len(d.Channels) == 0 || len(d.Channels[0].Sessions) == 0 {
		return -1, nil
	}
	return d.Channels[0].Sessions[0].Lag, nil
}
