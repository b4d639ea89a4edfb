package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/impair"
	"github.com/moldtape/moldtape/store"
)

// lineNames are the lines of a replay.
var lineNames = [...]string{"A", "B"}

// impairFlags say how the lines of a replay harm packets, and where line B
// goes.
type impairFlags struct {
	lineB []string

	loss, burstLoss, duplicate, reorder, depth, jitter string

	seed uint64
	log  string

	lines [len(lineNames)]impair.Config // of check
}

func (f *impairFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringArrayVar(&f.lineB, "line-b", nil, "send a second copy to `G:P`, line B (repeat, in the order of the sessions; one: for all of them)")
	fl.StringVar(&f.loss, "loss", "0", "for tests: lose a packet with probability `P`; this and the next five: V for all lines, or A=V,B=V")
	fl.StringVar(&f.burstLoss, "burst-loss", "0,1", "for tests: at a packet, lose it and those behind it with probability P, LEN packets in all: `P,LEN`")
	fl.StringVar(&f.duplicate, "duplicate", "0", "for tests: send a packet twice with probability `P`")
	fl.StringVar(&f.reorder, "reorder", "0", "for tests: send a packet behind later ones with probability `P`")
	fl.StringVar(&f.depth, "reorder-depth", strconv.Itoa(impair.DefaultDepth), "for tests: behind at most `N` packets")
	fl.StringVar(&f.jitter, "delay-jitter", "0s", "for tests: delay each packet by up to `DUR`; others keep their time")
	fl.Uint64Var(&f.seed, "seed", 1, "of the impairment: the same packets are harmed in the same way; lines and sessions each in their own")
	fl.StringVar(&f.log, "impair-log", "", "write what became of each packet that was harmed to `FILE`: a JSON object a line")
}

// check reads the flags.
func (f *impairFlags) check() error {
	lines := 1
	if len(f.lineB) > 0 {
		lines = 2
	}
	probability := func(p *float64, s string) error { return probabilityValue{p}.Set(s) }
	for _, x := range []struct {
		flag, text string
		set        func(c *impair.Config, v string) error
	}{
		{"--loss", f.loss, func(c *impair.Config, v string) error { return probability(&c.Loss, v) }},
		{"--burst-loss", f.burstLoss, func(c *impair.Config, v string) error {
			p, n, ok := strings.Cut(v, ",")
			if !ok && v == "0" {
				n = "1"
			}
			var err error
			if c.BurstLen, err = strconv.Atoi(n); err != nil || c.BurstLen < 1 || c.BurstLen > impair.MaxBurst {
				return fmt.Errorf("%q: want P,LEN with LEN of 1..%d packets, like 0.001,20", v, impair.MaxBurst)
			}
			return probability(&c.BurstLoss, p)
		}},
		{"--duplicate", f.duplicate, func(c *impair.Config, v string) error { return probability(&c.Duplicate, v) }},
		{"--reorder", f.reorder, func(c *impair.Config, v string) error { return probability(&c.Reorder, v) }},
		{"--reorder-depth", f.depth, func(c *impair.Config, v string) (err error) {
			if c.Depth, err = strconv.Atoi(v); err != nil || c.Depth < 1 || c.Depth > impair.MaxDepth {
				return fmt.Errorf("%q: want 1..%d", v, impair.MaxDepth)
			}
			return nil
		}},
		{"--delay-jitter", f.jitter, func(c *impair.Config, v string) error {
			if err := (config.Duration{P: &c.Jitter}).Set(v); err != nil {
				return err
			}
			if c.Jitter < 0 || c.Jitter > impair.MaxJitter {
				return fmt.Errorf("%q: want 0..%v", v, impair.MaxJitter)
			}
			return nil
		}},
	} {
		values, err := byLine(x.text, lines)
		for i, v := range values {
			if v != "" && err == nil {
				err = x.set(&f.lines[i], v)
			}
		}
		if err != nil {
			return usagef("%s %v", x.flag, err)
		}
	}
	if f.depth != strconv.Itoa(impair.DefaultDepth) && !slices.ContainsFunc(f.lines[:], func(c impair.Config) bool { return c.Reorder > 0 }) {
		return usagef("--reorder-depth %s: goes with --reorder", f.depth)
	}
	if f.log != "" && f.harmless() {
		return usagef("--impair-log %s: nothing is harmed: give --loss, --burst-loss, --duplicate, --reorder or --delay-jitter", f.log)
	}
	return nil
}

// byLine splits a value that may differ by line: V for all lines, or
// LINE=V[,LINE=V]; "" where a line is not named. A V may have commas.
func byLine(text string, lines int) (values [len(lineNames)]string, err error) {
	at := -1 // the line whose value goes on; -1: of all
	for i, part := range strings.Split(text, ",") {
		name, v, named := strings.Cut(part, "=")
		switch {
		case !named && i == 0:
			values[0] = part
			continue
		case !named && at < 0:
			values[0] += "," + part
			continue
		case !named:
			values[at] += "," + part
			continue
		case i > 0 && at < 0:
			return values, fmt.Errorf("%q: want a value for all lines, or each with its line, like A=0.1,B=0", text)
		}
		at = -1
		for k, n := range lineNames[:lines] {
			if n == name {
				at = k
			}
		}
		switch {
		case at < 0 && name == lineNames[1]:
			return values, fmt.Errorf("%q: there is no line B without --line-b", text)
		case at < 0:
			return values, fmt.Errorf("%q: no line %q: want A or B", text, name)
		case values[at] != "":
			return values, fmt.Errorf("%q: line %s twice", text, name)
		case v == "":
			return values, fmt.Errorf("%q: no value for line %s", text, name)
		}
		values[at] = v
	}
	if at < 0 {
		for k := range lines {
			values[k] = values[0]
		}
	}
	return values, nil
}

// how says in words what is harmed; empty: nothing is.
func (f *impairFlags) how() string {
	if f.harmless() {
		return ""
	}
	var w []string
	for _, x := range []struct{ name, text, none string }{
		{"loss", f.loss, "0"}, {"burst loss", f.burstLoss, "0,1"}, {"duplicate", f.duplicate, "0"}, {"reorder", f.reorder, "0"},
		{"reorder depth", f.depth, strconv.Itoa(impair.DefaultDepth)}, {"delay jitter", f.jitter, "0s"},
	} {
		if x.text != x.none {
			w = append(w, x.name+" "+x.text)
		}
	}
	return fmt.Sprintf("impaired (%s, seed %d)", strings.Join(w, ", "), f.seed)
}

func (f *impairFlags) harmless() bool {
	for _, c := range f.lines {
		if !c.Harmless() {
			return false
		}
	}
	return true
}

// line makes line i of the n-th stream.
func (f *impairFlags) line(n, i int) (*impair.Line, error) {
	c := f.lines[i]
	if c.Harmless() {
		return nil, nil
	}
	c.Seed = impair.Derive(impair.Derive(f.seed, uint64(i)), uint64(n))
	return impair.New(c)
}

// lineSummary is what a line did to a session, in the summary.
type lineSummary struct {
	Session    string `json:"session"` // as recorded
	Line       string `json:"line"`
	Packets    uint64 `json:"packets"` // offered
	Lost       uint64 `json:"lost"`
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Delayed    uint64 `json:"delayed"`
	Early      uint64 `json:"early"` // delayed less than drawn: too many were
}

// harmed sums up what the lines of the streams did.
func harmed(streams []*replayStream) (out []lineSummary) {
	for _, s := range streams {
		for i, l := range s.lines {
			if l == nil {
				continue
			}
			c := l.Counters()
			out = append(out, lineSummary{Session: s.ref.String(), Line: lineNames[i], Packets: c.Offered,
				Lost: c.Lost, Duplicated: c.Duplicated, Reordered: c.Reordered, Delayed: c.Delayed, Early: c.Early})
		}
	}
	return out
}

// impairLog writes what became of packets to a file. The sender's thread fills
// buffers, a goroutine writes them, so a slow disk makes it wait only where all
// are full: nothing is left out.
type impairLog struct {
	file  *os.File
	cur   []byte
	full  chan []byte
	spare chan []byte
	done  chan error // the first error

	session moldcast.Session // the last one, and as it stands in the log
	quoted  []byte
}

const (
	impairLogBuffer  = 64 << 10
	impairLogBuffers = 64
)

// newImpairLog makes FILE, or empties it.
func newImpairLog(name string) (*impairLog, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, usagef("--impair-log: %v", err)
	}
	l := &impairLog{file: file, full: make(chan []byte, impairLogBuffers), spare: make(chan []byte, impairLogBuffers), done: make(chan error, 1)}
	for range impairLogBuffers - 1 {
		l.spare <- nil // made when they are needed
	}
	go func() {
		var failed error
		for b := range l.full {
			if failed == nil {
				_, failed = l.file.Write(b)
			}
			l.spare <- b[:0]
		}
		if err := l.file.Close(); failed == nil {
			failed = err
		}
		l.done <- failed
	}()
	return l, nil
}

// noteOf notes what becomes of the packets of one recording; nil where there is
// no log.
func (l *impairLog) noteOf(ref store.Ref) func(replay.Harm) {
	if l == nil {
		return nil
	}
	name, _ := json.Marshal(ref.String())
	return func(h replay.Harm) { l.note(name, h) }
}

// note adds what became of a packet of the recording.
func (l *impairLog) note(recording []byte, h replay.Harm) {
	if len(l.cur) > impairLogBuffer-2048 {
		l.full <- l.cur
		l.cur = <-l.spare
	}
	if l.cur == nil {
		l.cur = make([]byte, 0, impairLogBuffer)
	}
	if l.quoted == nil || h.Session != l.session {
		l.session = h.Session
		l.quoted, _ = json.Marshal(h.Session.String())
	}
	l.cur = appendHarm(l.cur, recording, l.quoted, h)
}

// appendHarm appends h as a line of JSON; recording and session are JSON
// strings.
func appendHarm(b, recording, session []byte, h replay.Harm) []byte {
	b = append(b, `{"recording":`...)
	b = append(b, recording...)
	b = append(b, `,"line":"`...)
	b = append(b, h.Line...)
	b = append(b, `","packet":`...)
	b = strconv.AppendUint(b, h.Packet, 10)
	b = append(b, `,"session":`...)
	b = append(b, session...)
	b = append(b, `,"first_seq":`...)
	b = strconv.AppendUint(b, uint64(h.First), 10)
	b = append(b, `,"messages":`...)
	b = strconv.AppendInt(b, int64(h.Messages), 10)
	f := h.Fate
	switch f.Lost {
	case impair.Alone:
		b = append(b, `,"lost":"alone"`...)
	case impair.InBurst:
		b = append(b, `,"lost":"burst"`...)
	}
	if f.Reorder > 0 {
		b = append(b, `,"reorder":`...)
		b = strconv.AppendInt(b, int64(f.Reorder), 10)
	}
	b = appendDelay(b, `,"delay_seconds":`, f.Delay)
	if f.Duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	b = appendDelay(b, `,"duplicate_delay_seconds":`, f.DuplicateDelay)
	return append(b, "}\n"...)
}

func appendDelay(b []byte, key string, d time.Duration) []byte {
	if d == 0 {
		return b
	}
	b = append(b, key...)
	return strconv.AppendFloat(b, d.Seconds(), 'f', 9, 64)
}

// close writes what is left.
func (l *impairLog) close() error {
	if len(l.cur) > 0 {
		l.full <- l.cur
	}
	close(l.full)
	if err := <-l.done; err != nil {
		return fmt.Errorf("--impair-log: %w", err)
	}
	return nil
}
