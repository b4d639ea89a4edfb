package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/store"
)

const (
	statusTimeout = 10 * time.Second
	maxStatus     = 64 << 20 // bytes of a document

	// A gap that is younger is no failure: it is being repaired.
	gapPatience = time.Second
)

func newStatusCmd(e *env) *cobra.Command {
	var addr string
	var readers, clients bool
	c := &cobra.Command{
		Use:   "status ADDR",
		Short: "Show how a running node does",
		Long: `Show how the node whose --http ADDR (host:port) is given does: a capture, or a
retransmit.

Exit 0: every channel is ok, or has ended. Exit 1: one is degraded, which is
said with its reasons, or the node cannot be reached, or does not answer. That
gaps are open is shown, and a failure once they were for a second without a
break.

next is one past what is held without a hole, durable the same of what is
synced, head one past the highest held; HOLES counts the ranges missing between,
those still asked for included. Of lines, FIRST is how many of the
packets compared with another line's came first, SKEW how much later the others
came (half of them, 99 %, the latest).

With --clients it shows who asks the node for messages instead: how often, how
often it was answered and refused, and why, what it asked for last, the lowest
sequence that it asked for in that session, and in how long it may ask again.

With --readers it shows, after all else, each reader that is connected to a
recovery stream of the node: where it is, how far behind, and since when; or
that there is none. With --clients too, the one follows the other.`,
		Example: "  moldtape status 127.0.0.1:26480\n  moldtape status --clients 127.0.0.1:26480",
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && addr == "":
				addr = args[0]
			case len(args) > 0 || addr == "":
				return usagef("status: want one ADDR, the host:port of a node's --http, like 127.0.0.1:26480")
			}
			addr = strings.TrimSuffix(strings.TrimPrefix(addr, "http://"), "/")
			if strings.Contains(addr, "/") {
				return usagef("status %q: want host:port, or http://host:port", addr)
			}
			return parseHostPort("status", addr)
		},
		RunE: func(c *cobra.Command, _ []string) error { return e.status(c.Context(), addr, readers, clients) },
	}
	c.Flags().StringVar(&addr, "http", "", "the `ADDR`, instead of the argument")
	c.Flags().BoolVar(&readers, "readers", false, "show also each reader of a recovery stream, or that there is none")
	c.Flags().BoolVar(&clients, "clients", false, "show instead who asks for messages by request, those who ask most first; with --readers these too")
	e.addJSON(c, "the node's own document on stdout, as its /status has it")
	return c
}

func (e *env) status(ctx context.Context, addr string, readers, clients bool) error {
	body, err := fetchStatus(ctx, addr)
	if err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return faultf("%s: %w", addr, err)
	}
	var d httpd.Document
	if err := json.Unmarshal(body, &d); err != nil || d.State == "" {
		return faultf("%s: what answers there is no moldtape node", addr)
	}
	if d.Role == "" && d.Channels == nil && !e.json {
		return faultf("%s: neither a capture nor a retransmit answers there; of a replay --json shows its /status", addr)
	}
	show, bad := func(w io.Writer) error { return printStatus(w, d, readers) }, failing(d)
	if d.Role == httpd.RoleRetransmit {
		var served httpd.Serving
		if err := json.Unmarshal(body, &served); err != nil {
			return faultf("%s: its answer is not understood: %w", addr, err)
		}
		show, bad = func(w io.Writer) error { return printServing(w, served, readers) }, failingServed(served)
	}
	switch {
	case e.json:
		show = func(io.Writer) error { _, err := e.stdout.Write(body); return err }
	case clients:
		show = func(w io.Writer) error {
			if err := printClients(w, d.Node); err != nil || !readers {
				return err
			}
			return printStreams(w, d.Streams, d.Time, true)
		}
	}
	if err := show(plainWriter{e.stdout}); err != nil {
		return err
	}
	if len(bad) > 0 {
		return faultf("%s: degraded: %s", addr, strings.Join(bad, "; "))
	}
	return nil
}

// failing names what is wrong with channels, but gaps that may just be being
// repaired.
func failing(d httpd.Document) (bad []string) {
	for _, c := range d.Channels {
		var why []string
		switch c.State {
		case capture.StateOK, capture.StateDegraded, capture.StateEnded, capture.StateStopped:
		case capture.StateFailed:
			why = append(why, "failed: "+c.Error)
		default: // of a later version; never taken for health
			why = append(why, fmt.Sprintf("state %q is not known here", c.State))
		}
		for _, r := range c.Reasons {
			if r.Reason != capture.ReasonGap || d.Time.Sub(r.Since) >= gapPatience {
				why = append(why, r.Reason)
			}
		}
		if len(why) > 0 {
			bad = append(bad, c.Channel+" ("+strings.Join(why, ", ")+")")
		}
	}
	return bad
}

// fetchStatus asks a node.
func fetchStatus(ctx context.Context, addr string) ([]byte, error) {
	client := http.Client{
		Timeout:       statusTimeout,
		Transport:     &http.Transport{DisableKeepAlives: true}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		var ue interface{ Unwrap() error }
		if errors.As(err, &ue) && ue.Unwrap() != nil {
			err = ue.Unwrap() // without the address once more
		}
		return nil, fmt.Errorf("no answer: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	switch {
	case err != nil:
		return nil, fmt.Errorf("no whole answer: %w", err)
	case resp.StatusCode == http.StatusServiceUnavailable:
		return nil, fmt.Errorf("the node does not do its work: %.200s", strings.TrimSpace(string(body)))
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("what answers there is no moldtape node: %s", resp.Status)
	}
	return body, nil
}

// plainWriter writes text that came from elsewhere without what a terminal
// would obey.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(b []byte) (int, error) {
	clean := strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) {
			return '?'
		}
		return r
	}, string(b))
	if _, err := io.WriteString(p.w, clean); err != nil {
		return 0, err
	}
	return len(b), nil
}

func printStatus(w io.Writer, d httpd.Document, readers bool) error {
	t := table(w)
	row(t, "CHANNEL", "STATE", "SESSION", "HEAD", "NEXT", "DURABLE", "HOLES", "LAG", "MSGS/S", "LOST")
	for i := range d.Channels {
		c := &d.Channels[i]
		list := shownSessions(c.Sessions)
		if len(list) == 0 {
			row(t, c.Channel, c.State, "-", "-", "-", "-", "-", "-", perSecond(c.Rate.Messages), humanize.Comma(int64(c.MessagesLost)))
		}
		for k, s := range list {
			name, state, rate, lost := c.Channel, c.State, perSecond(c.Rate.Messages), humanize.Comma(int64(c.MessagesLost))
			if k > 0 {
				name, state, rate, lost = "", "", "", ""
			}
			ref := store.Ref{Channel: c.Channel, Session: s.Session, Take: s.Take}
			row(t, name, state, strings.TrimPrefix(ref.String(), c.Channel+"/"), s.HeadSeq, s.NextSeq, s.DurableSeq, s.Holes, secondsText(s.LagSeconds), rate, lost)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = table(w)
	row(t, "CHANNEL", "LINE", "ADDRESS", "STATE", "PACKETS", "MESSAGES", "LOST", "FIRST", "SKEW 50%", "99%", "MAX", "DISORDER MAX")
	for i := range d.Channels {
		c := &d.Channels[i]
		for _, l := range c.Lines {
			skew := []any{"-", "-", "-"}
			if l.Skew.Count > 0 {
				skew = []any{secondsText(l.Skew.P50), secondsText(l.Skew.P99), secondsText(l.Skew.Max)}
			}
			row(t, append(append([]any{c.Channel, l.Line, l.Addr, l.State, humanize.Comma(int64(l.Packets)), humanize.Comma(int64(l.Messages)),
				lossText(l), firstText(l)}, skew...), l.Disorder.Max)...)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range d.Channels {
		c := &d.Channels[i]
		for _, r := range c.Reasons {
			fmt.Fprintf(w, "\n%s: %s since %s: %s", c.Channel, r.Reason, shortTime(&r.Since), r.Text)
			switch {
			case r.Reason == capture.ReasonStorage && c.Storage.Advice != "":
				fmt.Fprintf(w, "; %s", c.Storage.Advice)
			case r.Reason == capture.ReasonGap && c.Open != nil:
				printOpen(w, c.Open)
			}
		}
		if c.Error != "" {
			fmt.Fprintf(w, "\n%s: failed: %s", c.Channel, c.Error)
		}
		for _, f := range c.Recovering {
			fmt.Fprintf(w, "\n%s: %s %d..%d is fetched from %s (%s): %s so far", c.Channel, f.Session, f.FirstSeq, f.LastSeq, f.Peer, f.State, count(f.Messages, "message"))
		}
		if len(c.Reasons) > 0 || len(c.Recovering) > 0 || c.Error != "" {
			fmt.Fprintln(w)
		}
	}
	return printStreams(w, d.Streams, d.Time, readers)
}

// printStreams tells of the readers of recovery streams: in a line, where there
// are any, and with each every one of them, or that there is none.
func printStreams(w io.Writer, s *httpd.Streams, now time.Time, each bool) error {
	switch {
	case s == nil && each:
		fmt.Fprintln(w, "\nthe node serves no recovery stream (--recovery-listen)")
	case s != nil && s.Readers == 0 && each:
		fmt.Fprintln(w, "\nno reader of a recovery stream is connected")
	}
	if s == nil {
		return nil
	}
	if s.Readers > 0 {
		fmt.Fprintf(w, "\n%s of recovery streams: ", count(uint64(s.Readers), "reader"))
		sep := ""
		for _, state := range slices.Sorted(maps.Keys(s.States)) {
			if n := s.States[state]; n > 0 {
				fmt.Fprintf(w, "%s%d %s", sep, n, state)
				sep = ", "
			}
		}
		fmt.Fprintln(w)
	}
	if !each || len(s.List) == 0 {
		return nil
	}
	t := table(w)
	row(t, "READER", "USER", "SESSION", "STATE", "NEXT", "LAG", "QUEUED", "FOR")
	for _, r := range s.List {
		state := r.State
		if r.Place > 0 {
			state += fmt.Sprintf(" (%d)", r.Place)
		}
		row(t, r.Addr, cmp.Or(r.User, "-"), r.Session, state, r.NextSeq, r.Lag, humanize.IBytes(uint64(max(r.Queued, 0))), now.Sub(r.Since).Round(time.Second))
	}
	return t.Flush()
}

func printOpen(w io.Writer, o *capture.OpenGaps) {
	if o.NextTry != nil {
		fmt.Fprintf(w, "; next try %s", shortTime(o.NextTry))
	}
	for _, g := range o.Ranges {
		fmt.Fprintf(w, "\n  %s@%d %d..%d, tried %s", g.Session, g.Take, g.FirstSeq, g.LastSeq, count(uint64(g.Tries), "time"))
	}
	if n := o.Gaps - len(o.Ranges); n > 0 {
		fmt.Fprintf(w, "\n  … and %d more", n)
	}
}

// shownSessions are those that are open, or else the one closed last.
func shownSessions(all []capture.SessionStatus) (out []capture.SessionStatus) {
	for _, s := range all {
		if s.Timing != nil {
			out = append(out, s)
		}
	}
	if n := len(all); len(out) == 0 && n > 0 {
		return all[n-1:]
	}
	return out
}

// firstText is how often a line was first.
func firstText(l capture.LineStatus) string {
	if l.Compared == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(l.First)/float64(l.Compared))
}

// lossText is what a line did not bring, and how much of what it should have.
func lossText(l capture.LineStatus) string {
	s := humanize.Comma(int64(l.Lost))
	if due := l.Messages - l.Repeated + l.Lost; l.Lost > 0 && due > 0 {
		s += fmt.Sprintf(" (%.3g%%)", 100*float64(l.Lost)/float64(due))
	}
	return s
}

// secondsText is a time for people, to three digits or so.
func secondsText(s float64) string {
	d := time.Duration(s * 1e9)
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

func perSecond(r float64) string { return humanize.Comma(int64(r + 0.5)) }
