package cli

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/pacereport"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/pace"
)

// pacingFlags say how packets are waited for and sent, and what is told of it.
type pacingFlags struct {
	catchUp     string
	spin        string
	tx          string
	sendRetry   time.Duration
	maxLateness time.Duration
	report      string

	by string // "udp", "packet" or "both": what dial has opened so far
}

func (f *pacingFlags) add(c *cobra.Command) {
	fl := c.Flags()
	f.sendRetry = 5 * time.Second
	fl.StringVar(&f.catchUp, "catch-up", "2", "what is late is made up for `X` times as fast as the schedule, 1.01..1000; max: at once")
	fl.StringVar(&f.spin, "spin", "auto", "auto: sleep, and look at the clock for the last part of each wait; always: never sleep, for a whole core; never: only sleep")
	fl.StringVar(&f.tx, "tx", "auto", "auto: packet where that works, else udp; udp: by a socket; packet: as frames, past the system's stack (needs CAP_NET_RAW)")
	fl.Var(config.Duration{P: &f.sendRetry}, "send-retry", "how long a packet that the system does not take is tried again")
	fl.Var(config.Duration{P: &f.maxLateness}, "max-lateness", "exit 1 if a packet went later than that; 0: never")
	fl.StringVar(&f.report, "report", "", "write a page with the schedule and what became of it to `FILE.html`")
}

// config checks the flags and puts them into cfg.
func (f *pacingFlags) config(cfg *replay.Config) error {
	if f.catchUp == "max" {
		cfg.CatchUp = math.Inf(1)
	} else {
		x, err := strconv.ParseFloat(f.catchUp, 64)
		if err != nil || !(x >= pace.MinCatchUp && x <= pace.MaxCatchUp) {
			return usagef("--catch-up %q: want %v..%v, or max", f.catchUp, pace.MinCatchUp, float64(pace.MaxCatchUp))
		}
		cfg.CatchUp = x
	}
	switch f.spin {
	case "auto":
	case "always":
		cfg.Spin = replay.SpinAlways
	case "never":
		cfg.Spin = replay.SpinNever
	default:
		return usagef("--spin %q: want auto, always or never", f.spin)
	}
	switch {
	case f.tx != "auto" && f.tx != "udp" && f.tx != "packet":
		return usagef("--tx %q: want auto, udp or packet", f.tx)
	case f.sendRetry <= 0:
		return usagef("--send-retry %v: want more than 0", f.sendRetry)
	case f.maxLateness < 0:
		return usagef("--max-lateness %v: want 0 or more", f.maxLateness)
	case f.maxLateness > 0 && cfg.Pace.Max:
		return usagef("--max-lateness: without pacing nothing is late")
	}
	cfg.SendRetry = f.sendRetry
	return nil
}

// dial opens a socket to send by.
func (f *pacingFlags) dial(e *env, c mcast.SendConfig) (mcast.InOrder, error) {
	s, by, err := f.open(e, c)
	switch {
	case err != nil:
		return nil, err
	case f.by == "":
		f.by = by
	case f.by != by:
		f.by = "both"
	}
	return s, nil
}

func (f *pacingFlags) open(e *env, c mcast.SendConfig) (s mcast.InOrder, by string, err error) {
	heard := c.Addr.Addr().IsMulticast() && c.Interface != "" && mcast.HeardHere(c.Interface, c.Addr.Addr())
	switch {
	case f.tx == "udp":
	case f.tx == "packet":
		if heard {
			e.log.Warn("--tx packet: receivers on this host do not hear it", "group", c.Addr, "interface", c.Interface)
		}
		if s, err = mcast.DialPacket(c); errors.Is(err, mcast.ErrNoFrames) {
			return nil, "", faultf("--tx packet: %v: give --tx udp", err)
		}
		return s, "packet", err
	case heard:
		e.log.Debug("sent by UDP", "group", c.Addr, "why", "somebody on this host hears the group, who would not hear frames")
	default:
		s, err = mcast.DialPacket(c)
		if !errors.Is(err, mcast.ErrNoFrames) {
			return s, "packet", err
		}
		level := e.log.Debug // what is as it must be
		if errors.Is(err, os.ErrPermission) {
			level = e.log.Info
		}
		level("sent by UDP", "group", c.Addr, "why", err)
	}
	s, err = mcast.DialInOrder(c)
	return s, "udp", err
}

// page is the file of --report, written beside its place and then put there.
type page struct {
	path string
	tmp  *os.File
}

// openPage finds out before the replay whether the page can be written.
func (f *pacingFlags) openPage() (*page, error) {
	if f.report == "" {
		return nil, nil
	}
	if st, err := os.Stat(f.report); err == nil && !st.Mode().IsRegular() {
		return nil, usagef("--report %s: is no regular file", f.report)
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.report), ".replay-*.html")
	if err != nil {
		return nil, usagef("--report: %v", err)
	}
	return &page{path: f.report, tmp: tmp}, nil
}

// write fills the page and puts it in its place.
func (p *page) write(streams []*replayStream, how string, rep *replay.Report) error {
	if p == nil {
		return nil
	}
	var names []string
	for _, s := range streams {
		if s.line == 0 {
			names = append(names, s.ref.String())
		}
	}
	err := errors.Join(
		pacereport.Write(p.tmp, pacereport.Page{Sessions: names, How: how, Report: rep}),
		p.tmp.Chmod(0o644),
		p.tmp.Close(),
	)
	if err == nil {
		err = os.Rename(p.tmp.Name(), p.path)
	}
	if err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	p.tmp = nil
	return nil
}

// discard takes away what was not put in its place.
func (p *page) discard() {
	if p != nil && p.tmp != nil {
		p.tmp.Close()
		os.Remove(p.tmp.Name())
	}
}

// how says in words how a replay was paced and sent, where to beside its group,
// what was harmed, and whether it came to its end.
func (f *replayFlags) how(c *replay.Config, tx string, ended error) string {
	var w []string
	switch {
	case f.stress.factor != 0:
		w = append(w, fmt.Sprintf("stress %v", f.stress.factor))
	case c.Pace.Max:
		w = append(w, "no waiting")
	case c.Pace.Rate != 0:
		w = append(w, fmt.Sprintf("%v messages a second", c.Pace.Rate))
	default:
		w = append(w, fmt.Sprintf("speed %v", c.Pace.Speed))
	}
	if f.stress.fromPeak > 0 {
		w = append(w, fmt.Sprintf("from %v before the peak", f.stress.fromPeak))
	}
	if c.Pace.MaxIdle > 0 {
		w = append(w, fmt.Sprintf("quiet times at most %v", c.Pace.MaxIdle))
	}
	w = append(w, "catch-up "+f.pacing.catchUp, "spin "+f.pacing.spin, "tx "+tx)
	if f.asHeard {
		w = append(w, "as heard")
	}
	if len(f.impair.lineB) > 0 {
		w = append(w, "line B to "+strings.Join(f.impair.lineB, " and "))
	}
	if harm := f.impair.how(); harm != "" {
		w = append(w, harm)
	}
	switch {
	case errors.Is(ended, replay.ErrInterrupted):
		w = append(w, "cut short: it was stopped")
	case ended != nil:
		w = append(w, "cut short: "+ended.Error())
	}
	return strings.Join(w, ", ")
}

// tooLate is the fault of --max-lateness.
func (f *pacingFlags) tooLate(rep *replay.Report) error {
	if late := seconds(rep.PacingError.Max); f.maxLateness > 0 && late > f.maxLateness {
		return faultf("--max-lateness %v: a packet went %v late", f.maxLateness, late)
	}
	return nil
}
