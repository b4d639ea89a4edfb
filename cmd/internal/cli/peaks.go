package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/replay/burst"
)

// Bounds of windows that peaks are asked for.
const (
	maxPeakWindow = time.Hour
	maxPeaks      = 10_000
)

type peaksFlags struct {
	windows []string
	count   int
	ranges  rangeFlags
}

func newPeaksCmd(e *env) *cobra.Command {
	var f peaksFlags
	c := &cobra.Command{
		Use:   "peaks SESSION",
		Short: "List the busiest windows of a recorded session",
		Long: `List the busiest windows of a recorded session: from a packet on, by messages.
The first of each length is the busiest of all, exactly; those behind it lie
apart. Headers of blocks say where they can't be; of the other blocks the times
are read. What is damaged counts by its header, unless it is read.`,
		Example: "  moldtape peaks itch/000007525B --window 1ms --window 1s --count 5",
		Args:    sessionArg("peaks"),
		RunE:    func(c *cobra.Command, args []string) error { return e.peaks(c.Context(), args[0], &f) },
	}
	e.addArchive(c)
	c.Flags().StringArrayVar(&f.windows, "window", []string{"1ms", "10ms", "100ms", "1s"}, "length `DUR` of the windows (repeat)")
	c.Flags().IntVar(&f.count, "count", 10, "list the `N` busiest of each length")
	f.ranges.add(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

// peakWindow is a busiest window in print.
type peakWindow struct {
	Window   float64   `json:"window_seconds"`
	From     time.Time `json:"from"`
	Packets  uint64    `json:"packets"`
	Messages uint64    `json:"messages"`
	Bytes    uint64    `json:"bytes"` // of messages
	Rate     float64   `json:"messages_per_second"`
}

func (e *env) peaks(ctx context.Context, name string, f *peaksFlags) error {
	var lengths []time.Duration
	for _, w := range f.windows {
		var d time.Duration
		if err := (config.Duration{P: &d}).Set(w); err != nil || d <= 0 || d > maxPeakWindow {
			return usagef("--window %q: want more than 0, at most %v", w, maxPeakWindow)
		}
		lengths = append(lengths, d)
	}
	if f.count < 1 || f.count > maxPeaks {
		return usagef("--count %d: want 1..%d", f.count, maxPeaks)
	}
	if err := f.ranges.check(); err != nil {
		return err
	}
	archive, err := e.openArchive()
	if err != nil {
		return err
	}
	defer closeQuietly(e.log, "archive", archive.Close)
	ref, err := archive.Find(name)
	if err != nil {
		return err
	}
	s := &replayStream{ref: ref}
	if s.view, err = archive.View(ref); err != nil {
		return err
	}
	defer closeQuietly(e.log, "view", s.view.Close)
	none, err := e.replayRange(s, &f.ranges)
	if err != nil {
		return err
	}
	if none != "" {
		return faultf("%s", none)
	}
	lease, err := s.view.Lease(s.Range)
	if err != nil {
		return err
	}
	defer lease.Close()
	spans, err := e.spansOf(ctx, s)
	if err != nil {
		return err
	}
	defer spans.close()
	peaks, err := burst.FindPeaks(spans.spans, lengths, f.count, spans.read)
	if err != nil {
		return err
	}
	out := []peakWindow{}
	for i, p := range peaks {
		for _, w := range p {
			out = append(out, peakWindow{Window: lengths[i].Seconds(), From: w.From.Time().UTC(), Packets: w.Packets, Messages: w.Messages, Bytes: w.Bytes,
				Rate: float64(w.Messages) / lengths[i].Seconds()})
		}
	}
	if e.json {
		return e.printJSON(struct {
			Session string       `json:"session"`
			Peaks   []peakWindow `json:"peaks"`
		}{ref.String(), out})
	}
	tw := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WINDOW\tFROM\tPACKETS\tMESSAGES\tBYTES\tMESSAGES/S")
	for _, w := range out {
		fmt.Fprintf(tw, "%v\t%s\t%d\t%d\t%d\t%.0f\n", seconds(w.Window), w.From.Format("2006-01-02T15:04:05.000000000Z07:00"), w.Packets, w.Messages, w.Bytes, w.Rate)
	}
	return tw.Flush()
}
