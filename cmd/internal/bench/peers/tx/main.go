// tx measures replay beside tcpreplay: goals 13, 14 and 15. Both send the same
// capture over a veth pair in a network namespace of its own (../run.sh makes
// it); tcpdump at the other end, with nanosecond stamps, is the judge.
//
//	tx compare -moldtape PROGRAM [flags]
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
)

// Where it runs.
var (
	group  = netip.MustParseAddrPort("239.255.77.3:27720")
	source = netip.MustParseAddrPort("10.77.0.2:27721")
)

const (
	sendOn    = "tx0" // the pair
	receiveOn = "rx0"
	session   = "PEERS"
)

func main() {
	err := errors.New("want compare")
	if len(os.Args) > 1 && os.Args[1] == "compare" {
		err = compare(os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tx:", err)
		os.Exit(1)
	}
}

func compare(args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	program := fs.String("moldtape", "", "the program")
	runs := fs.Int("runs", 5, "of each arm, in turn")
	quick := fs.Bool("quick", false, "a shorter capture")
	dir := fs.String("dir", os.TempDir(), "where captures and the archive are")
	rate := fs.Float64("rate", 10_000, "packets a second of the paced capture, in the mean")
	log := fs.Bool("v", false, "say what each run came to")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cores, err := harness.TwoCores()
	if err != nil {
		return err
	}
	b := &bench{core: cores[0], program: *program, log: *log}
	if b.dir, err = os.MkdirTemp(*dir, "tx"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	length, top := 8*time.Second, 600_000
	if *quick {
		length, top = 4*time.Second, 300_000
	}
	fmt.Printf("replay: load %s; %v at %.0f packets a second, in bursts; %d runs each, in turn; medians\n\n", harness.Load(), length, *rate, *runs)
	harness.Head()
	if err := b.paced(length, *rate, *runs); err != nil {
		return err
	}
	return b.fastest(top, *runs)
}

// paced is goals 13 and 14.
func (b *bench) paced(length time.Duration, rate float64, runs int) error {
	c, err := b.record("paced", int(length.Seconds()*rate), rate)
	if err != nil {
		return err
	}
	judge := missing("tcpdump", "tcpdump")
	if judge != "" {
		fmt.Printf("%-4s %s\n", "13", judge)
		return nil
	}
	arms := []arm{b.replay("packet", "--tx", "packet"), b.replay("udp", "--tx", "udp"), b.replay("spin", "--tx", "packet", "--spin", "always"), tcpreplay("-K")}
	got := map[string][]course{}
	for range runs {
		for _, a := range arms {
			if why := a.missing(); why != "" {
				continue
			}
			x, err := b.judge(a, c)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			got[a.name] = append(got[a.name], x)
		}
	}
	of := func(name string, f func(course) float64) float64 {
		var v []float64
		for _, x := range got[name] {
			v = append(v, f(x))
		}
		return harness.Median(v)
	}
	row := func(goal, what, a, peer string, f func(course) float64, want float64) {
		if len(got[peer]) == 0 {
			harness.Alone(goal, what, "%.3f µs", of(a, f), missing("tcpreplay", "tcpreplay"))
			return
		}
		ratio, sign := of(a, f)/of(peer, f), "≤"
		if want < 1 { // said the other way round
			ratio, sign, want = 1/ratio, "≥", 1/want
		}
		harness.Row(goal, what, "%.3f µs", of(a, f), of(peer, f), ratio, sign, want)
	}
	late50, late99 := func(x course) float64 { return x.late50 }, func(x course) float64 { return x.late99 }
	gap50, gap99 := func(x course) float64 { return x.gap50 }, func(x course) float64 { return x.gap99 }
	for _, a := range []string{"packet", "udp"} {
		row("13", a+": schedule error p50 : spinning's", a, "spin", late50, 2)
		row("13", "tcpreplay's schedule error p50 : "+a+"'s", a, "tcpreplay", late50, 0.001)
		row("13", "tcpreplay's schedule error p99 : "+a+"'s", a, "tcpreplay", late99, 0.02)
		drift := of(a, func(x course) float64 { return x.drift })
		harness.Alone("13", a+": drift", "%.4f %%", drift*100, fmt.Sprintf("%12.4f %%        ≤ 0.05 %%  %s", of("tcpreplay", func(x course) float64 { return x.drift })*100, harness.Reached(drift <= 0.0005)))
		row("14", a+": gap error p50 : tcpreplay's", a, "tcpreplay", gap50, 1)
		row("14", a+": gap error p99 : tcpreplay's", a, "tcpreplay", gap99, 15)
	}
	for _, a := range arms {
		if lost := of(a.name, func(x course) float64 { return x.lost }); lost > 0 {
			fmt.Printf("     %s: %.2f %% of the packets were not seen by tcpdump\n", a.name, 100*lost)
		}
	}
	fmt.Println()
	return nil
}

// fastest is goal 15.
func (b *bench) fastest(packets, runs int) error {
	c, err := b.record("top", packets, 100_000)
	if err != nil {
		return err
	}
	arms := []arm{b.replay("packet", "--tx", "packet", "--speed", "max"), b.replay("udp", "--tx", "udp", "--speed", "max"), tcpreplay("-K", "-t")}
	got := map[string][]float64{}
	for range runs {
		for _, a := range arms {
			if a.missing() != "" {
				continue
			}
			x, err := b.topSpeed(a, c)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			got[a.name] = append(got[a.name], x)
		}
	}
	peer := harness.Median(got["tcpreplay"])
	for i, want := range []float64{1.15, 0.85} {
		a := arms[i].name
		v, what := harness.Median(got[a]), a+": packets/s : tcpreplay -K -t"
		if peer == 0 {
			harness.Alone("15", what, "%.0f", v, missing("tcpreplay", "tcpreplay"))
			continue
		}
		harness.Row("15", what, "%.0f", v, peer, v/peer, "≥", want)
	}
	fmt.Println()
	return nil
}

// capture is one recording, as a file and in an archive.
type capture struct {
	file, archive string
	stamps        map[uint64]int64 // ns, by first sequence
	order         []uint64
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }
