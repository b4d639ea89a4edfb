package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/burst"
)

// stressFlags make a replay begin at a peak, and make its peak higher.
type stressFlags struct {
	factor   float64
	fromPeak time.Duration
}

func (f *stressFlags) add(c *cobra.Command) {
	c.Flags().Float64Var(&f.factor, "stress", 0, "make the busiest second `F` times as busy: quiet times go, bursts keep their shape; instead of --speed")
	c.Flags().Var(config.Duration{P: &f.fromPeak}, "from-peak", "begin `DUR` before the busiest window of that length; instead of --from-seq and --from-time")
}

func (f *stressFlags) check(c *cobra.Command) error {
	set := c.Flags().Changed
	switch {
	case set("stress") && !(f.factor >= 1 && f.factor <= burst.MaxFactor):
		return usagef("--stress %v: want 1..%v", f.factor, burst.MaxFactor)
	case set("stress") && (set("speed") || set("rate")):
		return usagef("--stress and --speed or --rate are ways to pace: give one of them")
	case set("from-peak") && (f.fromPeak <= 0 || f.fromPeak > maxPeakWindow):
		return usagef("--from-peak %v: want more than 0, at most %v", f.fromPeak, maxPeakWindow)
	case set("from-peak") && (set("from-seq") || set("from-time")):
		return usagef("--from-peak and --from-seq or --from-time: want one of them")
	}
	return nil
}

// apply narrows the streams to where the peak is, then plans the stress of
// what is left of them.
func (f *stressFlags) apply(ctx context.Context, e *env, streams []*replayStream, cfg *replay.Config) error {
	if f.fromPeak > 0 {
		var best burst.Window
		for _, s := range streams {
			w, err := e.peakOf(ctx, s, f.fromPeak)
			if err != nil {
				return err
			}
			if w.Messages > best.Messages {
				best = w
			}
		}
		from := best.From - moldcast.Stamp(f.fromPeak)
		for _, s := range streams {
			// At least the last message stays: a stream of nothing is none.
			s.Range.First = min(max(s.Range.First, s.view.SeqAt(from)), s.Range.Next-1)
		}
		e.log.Info("from the peak", "from", from.Time(), "peak", best.From.Time(), "window", f.fromPeak, "messages", best.Messages, "packets", best.Packets)
	}
	if f.factor == 0 {
		return nil
	}
	spans, err := e.spansOf(ctx, streams...)
	if err != nil {
		return err
	}
	defer spans.close()
	p := burst.NewPlanner(spans.spans, spans.read)
	plan, err := p.Plan(f.factor)
	switch {
	case errors.Is(err, burst.ErrPlan):
		return usagef("--%v", err)
	case err != nil:
		return err
	}
	peak, err := p.Peak()
	if err != nil {
		return err
	}
	cfg.Stress = plan
	e.log.Info("stress", "factor", plan.Factor, "messages_of_busiest_second", peak, "speed_up", plan.Speedup)
	return nil
}

// peakOf is the busiest window of a stream.
func (e *env) peakOf(ctx context.Context, s *replayStream, length time.Duration) (burst.Window, error) {
	spans, err := e.spansOf(ctx, s)
	if err != nil {
		return burst.Window{}, err
	}
	defer spans.close()
	found, err := burst.FindPeaks(spans.spans, []time.Duration{length}, 1, spans.read)
	if err != nil || len(found[0]) == 0 {
		return burst.Window{}, err
	}
	return found[0][0], nil
}
