package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
)

// options are how thorough a comparison is.
type options struct {
	runs    int
	step    time.Duration // of a rate that is tried
	closer  float64       // rates are found to this
	cpuStep time.Duration
}

func compare(args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	program := fs.String("moldtape", "", "the program")
	runs := fs.Int("runs", 5, "of each arm, in turn")
	quick := fs.Bool("quick", false, "short steps, rates found roughly, and not at 4 messages a packet")
	dir := fs.String("dir", os.TempDir(), "where the arms write")
	log := fs.Bool("v", false, "say what each step came to")
	only := fs.String("only", "", "one feed: 1.35, 4 or full messages a packet")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cores, err := harness.TwoCores()
	if err != nil {
		return err
	}
	b := &bench{cores: cores, log: *log}
	if b.dir, err = os.MkdirTemp(*dir, "tape"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	o := options{runs: *runs, step: 1500 * time.Millisecond, closer: 0.03, cpuStep: 3 * time.Second}
	measured := feeds
	if *quick {
		o.step, o.closer, o.cpuStep = 500*time.Millisecond, 0.15, time.Second
		measured = []string{"1.35", "full"}
	}
	if *only != "" {
		measured = []string{*only}
	}
	arms := []arm{moldtape(*program)}
	for _, a := range []arm{dumpcap(), tcpdump()} {
		if why := b.missing(a); why != "" {
			fmt.Fprintln(os.Stderr, why)
			continue
		}
		arms = append(arms, a)
	}
	fmt.Printf("capture: load %s; ring or buffer of %d MiB, steps of %v, rates to %.0f %%, CPU: medians of %d runs in turn\n\n", harness.Load(), bufferMiB, o.step, 100*o.closer, o.runs)
	harness.Head()
	for _, f := range measured {
		if err := b.goals(f, *program, arms, o); err != nil {
			return fmt.Errorf("%s messages a packet: %w", f, err)
		}
	}
	return nil
}

func (b *bench) goals(f, program string, arms []arm, o options) error {
	top, err := b.top(f)
	if err != nil {
		return err
	}
	found, err := b.rates(f, arms, top, o)
	if err != nil {
		return err
	}
	own := found[0].low
	for i, a := range arms[1:] {
		want := 0.9
		if a.name == "tcpdump" {
			want = 0.8
		}
		harness.Row("3", fmt.Sprintf("loss-free packets/s : %s, %s a packet", a.name, f), "%.0f", own, found[i+1].low, own/found[i+1].low, "≥", want)
	}
	if len(arms) == 1 {
		harness.Alone("3", fmt.Sprintf("loss-free packets/s, %s a packet", f), "%.0f", own, "no peer")
	}
	for i, a := range arms {
		if found[i].limit {
			fmt.Printf("     %s: the sender went no faster\n", a.name)
		}
	}
	rate := math.Inf(1)
	for _, s := range found {
		rate = min(rate, s.low/2)
	}
	if err := b.cpuGoal(f, arms, rate, o); err != nil {
		return err
	}
	if found[0].limit {
		own *= 0.9 // the sender has answers to send, too
	}
	if err := b.lossGoal(f, program, own, o); err != nil {
		return err
	}
	fmt.Println()
	return nil
}

// top is the rate of the sender when nobody listens.
func (b *bench) top(f string) (float64, error) {
	const packets = 200000
	tx, err := b.sender(f, 0, packets, 0)
	if err != nil {
		return 0, err
	}
	defer tx.kill()
	s, err := tx.send(func() {})
	return packets / s.took.Seconds(), err
}

// search is where an arm's loss-free rate lies.
type search struct {
	low, high float64
	limit     bool // the sender can no more
	done      bool
}

// rates finds, for each arm, the highest rate at which it records everything,
// all in turn, so that what else the machine does is shared.
func (b *bench) rates(f string, arms []arm, top float64, o options) ([]search, error) {
	found := make([]search, len(arms))
	for first, open := true, true; open; first = false {
		open = false
		for i, a := range arms {
			s := &found[i]
			if s.done {
				continue
			}
			rate := (max(s.low, s.high/8) + s.high) / 2
			packets := rate * o.step.Seconds()
			if first { // as fast as it goes
				rate, packets = 0, top*o.step.Seconds()
			}
			sent, ok, err := b.passes(a, f, rate, int(packets))
			switch {
			case err != nil:
				return nil, err
			case ok && first:
				s.low, s.limit, s.done = sent, true, true
			case ok:
				if s.low = max(s.low, sent); sent < rate*0.98 {
					s.high = rate // the sender was kept from it: more is not shown
				}
			default:
				s.high = sent
			}
			s.done = s.done || s.high-s.low <= o.closer*s.high
			open = open || !s.done
		}
	}
	return found, nil
}

// passes says whether an arm records everything at a rate, in one of two
// tries: what else the machine does may spoil one; and how fast was sent.
func (b *bench) passes(a arm, f string, rate float64, packets int) (sent float64, ok bool, err error) {
	for range 2 {
		r, err := b.step(a, f, rate, packets, 0)
		if err != nil {
			return 0, false, err
		}
		if sent = float64(packets) / r.sent.took.Seconds(); r.complete() {
			return sent, true, nil
		}
	}
	return sent, false, nil
}

// cpuGoal compares CPU at one rate, that all can take.
func (b *bench) cpuGoal(f string, arms []arm, rate float64, o options) error {
	cpu := make([][]float64, len(arms))
	for range o.runs {
		for i, a := range arms {
			r, err := b.step(a, f, rate, int(rate*o.cpuStep.Seconds()), 0)
			if err != nil {
				return err
			}
			if r.recorded != r.sent.packets {
				fmt.Printf("     %s recorded %d of %d packets at %.0f/s\n", a.name, r.recorded, r.sent.packets, rate)
			}
			cpu[i] = append(cpu[i], r.cpuPacket())
		}
	}
	own := harness.Median(cpu[0])
	for i, a := range arms[1:] {
		what := fmt.Sprintf("CPU a packet : %s, %s a packet", a.name, f)
		if a.name == "dumpcap" {
			harness.Row("4", what, "%.3f µs", own, harness.Median(cpu[i+1]), own/harness.Median(cpu[i+1]), "≤", 1)
		} else {
			harness.Alone("4", what, "%.3f µs", own, fmt.Sprintf("%10.3f µs %6.2f", harness.Median(cpu[i+1]), own/harness.Median(cpu[i+1])))
		}
	}
	if len(arms) == 1 {
		harness.Alone("4", fmt.Sprintf("CPU a packet, %s a packet", f), "%.3f µs", own, "no peer")
	}
	return nil
}
