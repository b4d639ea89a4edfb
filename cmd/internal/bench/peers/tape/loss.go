package main

import (
	"fmt"
	"os"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
)

// lossPart of the packets is lost in bursts.
const lossPart = 0.005

// repaired is what a lossy step came to.
type repaired struct {
	result
	stopped
}

// clean says whether everything is recorded, and nothing was dropped that was
// sent.
func (r repaired) clean() bool {
	return r.Messages == r.sent.messages && r.Holes == 0 && r.QueueDropped == 0 && r.KernelDropped == 0
}

// lossGoal has the sender lose packets, and answer requests: how fast may it
// go, beside rate, which is recorded without loss, and what does the repair
// cost.
func (b *bench) lossGoal(f, program string, rate float64, o options) error {
	a := moldtape(program, "--rerequest", requests.String(), "--until-end", "--end-timeout", "20s")
	var r repaired
	part, parts := 0.0, []float64{1, 0.95, 0.9, 0.8, 0.65, 0.5, 0.25}
	for try := range 2 * len(parts) {
		part = parts[try/2]
		step, err := b.step(a, f, part*rate, int(part*rate*2*o.step.Seconds()), lossPart)
		if err != nil {
			return err
		}
		r.result = step
		if r.stopped, err = parseStopped(step.out); err != nil {
			return err
		}
		if r.clean() {
			break
		}
		if b.log {
			fmt.Fprintf(os.Stderr, "  at %.2f: %+v of %+v\n", part, r.stopped, r.sent)
		}
	}
	what := func(s string) string { return fmt.Sprintf("%s, %s a packet", s, f) }
	sent := float64(r.sent.packets) / r.sent.took.Seconds()
	harness.Alone("16", what("0.5 % burst loss: holes, drops"), "%.0f", float64(r.Holes+r.QueueDropped+r.KernelDropped), harness.Reached(r.clean()))
	harness.Row("16", what("packets/s : loss-free"), "%.0f", sent, rate, sent/rate, "≥", 0.95)
	harness.Row("16", what("requests : fewest possible"), "%.0f", float64(r.NaksSent), float64(r.sent.fewest), float64(r.NaksSent)/float64(r.sent.fewest), "≤", 1.2)
	harness.Row("16", what("duplicates : messages lost"), "%.0f", float64(r.Duplicates), float64(r.sent.lost), float64(r.Duplicates)/float64(r.sent.lost), "≤", 0.05)
	return nil
}
