package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// benchPart is what is measured by one name.
type benchPart struct {
	name string
	run  func(*benchRun, context.Context) error
}

// benchParts are all, in the order in which they are measured.
var benchParts = []benchPart{
	{"receive", (*benchRun).receive},
	{"codec", (*benchRun).codec},
	{"store", (*benchRun).store},
	{"retransmit", (*benchRun).retransmit},
	{"replay", (*benchRun).replay},
}

// Bounds of a bench.
const (
	benchRounds   = 3 // of each measurement, in turn
	benchFeed     = 8 << 20
	benchMessages = 400_000 // of the generator, at most benchFeed bytes
	benchPacket   = 4
	maxBenchTime  = 10 * time.Minute
)

type benchFlags struct {
	only []string
	time time.Duration
	dir  string
	rate float64
}

func newBenchCmd(e *env) *cobra.Command {
	f := &benchFlags{time: time.Second, rate: 10_000}
	c := &cobra.Command{
		Use:   "bench [FILE|SESSION]",
		Short: "Measure this machine: receive, codec, store, retransmit, replay",
		Long: `Measure what moldtape does on this machine, each figure beside a limit that is measured in the same run, in turn with
it: receive against a bare loop of recvmmsg, the codec against rows compressed by zstd at its default level, the store
against an append with fdatasync to the same disk, requests against reading and decoding alone, the pacing of a replay
against one that never sleeps, its speed against sendmmsg alone. The messages are those of a capture file, of a BinaryFILE
(.itch, .bin), or of a session of --archive, their first 8 MB, over and over; without an argument, of a generator.
Everything stays on lo and on 127.0.0.1; what is written is removed again.`,
		Example: "  moldtape bench nasdaq.pcap --only codec,store --time 5s",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("bench: want at most one FILE or SESSION, got %q", args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return e.bench(c.Context(), args, f) },
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&f.only, "only", nil, "measure these `PARTS` alone: receive, codec, store, retransmit, replay (default all)")
	fs.Var(config.Duration{P: &f.time}, "time", "how long each measurement takes")
	fs.StringVar(&f.dir, "dir", "", "measure the disk of `DIR` (default that of temporary files)")
	fs.Float64Var(&f.rate, "rate", f.rate, "packets a second of the replay that is paced, `N`")
	e.addArchive(c)
	e.addJSON(c, "one JSON object on stdout")
	return c
}

// benchResult is one line of the table.
type benchResult struct {
	Part       string   `json:"part"`
	What       string   `json:"what"`
	Value      float64  `json:"value"`
	Unit       string   `json:"unit"`
	Limit      string   `json:"limit,omitempty"` // what it is measured beside
	LimitValue *float64 `json:"limit_value,omitempty"`
	Ratio      *float64 `json:"ratio,omitempty"` // value / limit_value
}

// benchReport is the outcome of a bench.
type benchReport struct {
	Cores      int           `json:"cores"`
	Load       float64       `json:"load"` // runnable threads in the last minute, before
	Kernel     string        `json:"kernel"`
	RmemMax    int           `json:"rmem_max"` // bytes, of net.core.rmem_max
	RX         string        `json:"rx"`       // how multicast is received here by default
	RXReason   string        `json:"rx_reason,omitempty"`
	Dir        string        `json:"dir"`
	Feed       string        `json:"feed"`
	Messages   int           `json:"messages"`
	MessageLen float64       `json:"bytes_per_message"` // framed
	PacketMsgs float64       `json:"messages_per_packet"`
	Time       float64       `json:"time_seconds"` // of each measurement
	Results    []benchResult `json:"results"`
	Skipped    []benchSkip   `json:"skipped"`
}

// benchSkip is what could not be measured here, and why.
type benchSkip struct {
	Part   string `json:"part"`
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// benchRun is a bench under way.
type benchRun struct {
	*env
	*benchFlags
	feed *bench.Feed
	tmp  string
	part string
	made string // archive that the parts share; empty: there is none yet
	rep  benchReport
}

func (e *env) bench(ctx context.Context, args []string, f *benchFlags) (err error) {
	for _, p := range f.only {
		if !slices.ContainsFunc(benchParts, func(x benchPart) bool { return x.name == p }) {
			return usagef("--only %q: want receive, codec, store, retransmit or replay", p)
		}
	}
	if f.time < time.Millisecond || f.time > maxBenchTime {
		return usagef("--time %v: want 1ms..%v", f.time, maxBenchTime)
	}
	if !(f.rate >= 1 && f.rate <= 1e6) {
		return usagef("--rate %v: want 1..1000000", f.rate)
	}
	r := &benchRun{env: e, benchFlags: f}
	r.rep.Results, r.rep.Skipped = []benchResult{}, []benchSkip{}
	if r.feed, err = e.benchFeed(args); err != nil {
		return err
	}
	if r.tmp, err = os.MkdirTemp(f.dir, "moldtape-bench-"); err != nil {
		return usagef("--dir: %v", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.tmp)) }()
	r.machine()
	raiseProcs(4)
	for _, p := range benchParts {
		if len(f.only) > 0 && !slices.Contains(f.only, p.name) {
			continue
		}
		r.part = p.name
		if err := p.run(r, ctx); ctx.Err() != nil {
			return errInterrupted
		} else if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if e.json {
		return e.printJSON(r.rep)
	}
	return r.print()
}

// benchFeed is the messages that everything is measured with.
func (e *env) benchFeed(args []string) (*bench.Feed, error) {
	if len(args) == 0 {
		f := bench.Generated(benchMessages, benchPacket)
		f.Cut(benchFeed)
		return f, nil
	}
	name := args[0]
	_, err := os.Stat(name)
	if err == nil {
		f, err := bench.ReadFeed(name)
		if err != nil {
			return nil, faultf("%s: %v", name, err)
		}
		if f.Count == 0 {
			return nil, faultf("%s: no messages in it", name)
		}
		f.Cut(benchFeed)
		return f, nil
	}
	archive, aerr := e.openArchive()
	if aerr != nil {
		return nil, faultf("%s: no such file, and no session: %v", name, aerr)
	}
	defer closeQuietly(e.log, "archive", archive.Close)
	ref, err := archive.Find(name)
	if err != nil {
		return nil, err
	}
	view, err := archive.View(ref)
	if err != nil {
		return nil, err
	}
	f, err := bench.FeedOf(ref.String(), view, benchFeed)
	if err == nil && f.Count == 0 {
		err = faultf("%s holds no messages", ref)
	}
	return f, err
}

// machine puts on record what the figures depend on.
func (r *benchRun) machine() {
	rep, f := &r.rep, r.feed
	rep.Cores = runtime.NumCPU()
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &rep.Load)
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		rep.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/sys/net/core/rmem_max"); err == nil { // not of every namespace
		rep.RmemMax, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	rep.RX = mcast.RingBackend.String()
	if err := benchRing(); err != nil {
		rep.RX, rep.RXReason = mcast.UDPBackend.String(), err.Error()
	}
	rep.Dir, rep.Time = filepath.Dir(r.tmp), r.time.Seconds()
	rep.Feed, rep.Messages = f.Name, f.Count
	rep.MessageLen, rep.PacketMsgs = float64(len(f.Rows))/float64(f.Count), float64(f.Count)/float64(len(f.Pieces))
}

// benchRing is why there is no receive ring; nil: there is.
func benchRing() error {
	group, err := freeGroup()
	if err != nil {
		return err
	}
	taps, err := mcast.OpenLines([]mcast.ListenConfig{{Addr: group, Interface: bench.Loopback}}, mcast.RingBackend)
	if err != nil {
		return err
	}
	return taps[0].Socket.Close()
}

// turns measures arms in turn, benchRounds times, each for its share of --time,
// and is the median of what each came to.
func (r *benchRun) turns(ctx context.Context, arms ...func(context.Context, time.Duration) (float64, error)) ([]float64, error) {
	all := make([][]float64, len(arms))
	for range benchRounds {
		for i, arm := range arms {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			v, err := arm(ctx, r.time/benchRounds)
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], v)
		}
	}
	out := make([]float64, len(arms))
	for i := range all {
		out[i] = bench.Median(all[i])
	}
	return out, nil
}

// add puts a figure on record.
func (r *benchRun) add(what, unit string, value float64) {
	r.rep.Results = append(r.rep.Results, benchResult{Part: r.part, What: what, Value: value, Unit: unit})
}

// beside puts a figure and its limit on record.
func (r *benchRun) beside(what, unit string, value float64, limit string, of float64) {
	x := benchResult{Part: r.part, What: what, Value: value, Unit: unit, Limit: limit, LimitValue: &of}
	if ratio := value / of; !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
		x.Ratio = &ratio
	}
	r.rep.Results = append(r.rep.Results, x)
}

// skip puts on record what could not be measured.
func (r *benchRun) skip(what string, why error) {
	r.rep.Skipped = append(r.rep.Skipped, benchSkip{Part: r.part, What: what, Reason: why.Error()})
}

func (r *benchRun) print() error {
	rep := &r.rep
	w := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	row := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", what, fmt.Sprintf(format, args...))
	}
	row("machine", "%d cores, load %.1f, Linux %s", rep.Cores, rep.Load, rep.Kernel)
	if rep.RmemMax > 0 {
		row("net.core.rmem_max", "%d bytes", rep.RmemMax)
	}
	if rep.RXReason != "" {
		row("received by", "%s; %s", rep.RX, rep.RXReason)
	} else {
		row("received by", "%s", rep.RX)
	}
	row("disk", "of %s", rep.Dir)
	row("messages", "%s: %d of %.1f bytes, %.2f a packet", rep.Feed, rep.Messages, rep.MessageLen, rep.PacketMsgs)
	row("time", "%v each, in %d turns; medians", r.time, benchRounds)
	w.Flush() // the table's columns are its own
	fmt.Fprintln(r.stdout)
	fmt.Fprintln(w, "PART\tWHAT\tFIGURE\tUNIT\tRATIO\tLIMIT\tITS FIGURE")
	for _, x := range rep.Results {
		ratio, limit := "", ""
		if x.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *x.Ratio)
		}
		if x.LimitValue != nil {
			limit = benchNumber(*x.LimitValue)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Part, x.What, benchNumber(x.Value), x.Unit, ratio, x.Limit, limit)
	}
	for _, s := range rep.Skipped {
		fmt.Fprintf(w, "%s\t%s\tnot measured: %s\n", s.Part, s.What, s.Reason)
	}
	return w.Flush()
}

// benchNumber is a figure with three digits that say something.
func benchNumber(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return fmt.Sprintf("%.2f M", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.1f k", v/1e3)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1 || a == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
