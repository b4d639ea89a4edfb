package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/store"
)

// retentionFlags are --keep and --max-bytes; negative values: not given.
type retentionFlags struct {
	keep     time.Duration
	maxBytes int64
}

func (f *retentionFlags) add(c *cobra.Command) {
	f.keep, f.maxBytes = config.Unset, config.Unset
	c.Flags().Var(config.Optional{Value: config.Duration{P: &f.keep}, Unset: func() bool { return f.keep < 0 }}, "keep", "remove segments that were sealed this long ago, like 90d")
	c.Flags().Var(config.Optional{Value: config.Size{P: &f.maxBytes}, Unset: func() bool { return f.maxBytes < 0 }}, "max-bytes", "remove the oldest segments until the archive takes at most this much")
}

func (f *retentionFlags) asked() bool { return f.keep >= 0 || f.maxBytes >= 0 }

func (f *retentionFlags) retention() store.Retention {
	return store.Retention{Keep: f.keep, MaxBytes: f.maxBytes}
}

func newPruneCmd(e *env) *cobra.Command {
	var f retentionFlags
	var dryRun bool
	c := &cobra.Command{
		Use:   "prune --keep DUR | --max-bytes SIZE",
		Short: "Remove the oldest sealed segments, by age or size",
		Long: `Remove whole sealed segments, the oldest first, by the time at which they were
sealed: those older than --keep, then more until the archive takes at most
--max-bytes. What is on hold is never removed; what is being read is left, and
said. Snapshots go once a message at or after their sequence has, and count in
--max-bytes. A capture may go on meanwhile. Sequences and content hashes of what was
removed are kept: the session continues where it was, nothing of it is asked
for again, and verify --root prints the same. Each removal is in the audit log,
before and after.`,
		Example: "  moldtape prune --keep 90d --max-bytes 2TB --dry-run --archive /var/lib/moldtape",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !f.asked() {
				return usagef("prune: want --keep DUR, like 90d, or --max-bytes SIZE, like 500GiB, or both")
			}
			return e.prune(c.Context(), f.retention(), dryRun)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

func (e *env) prune(ctx context.Context, r store.Retention, dryRun bool) error {
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	rep, err := a.Prune(ctx, r, dryRun, who())
	if e.json {
		if perr := e.printJSON(rep); err == nil {
			err = perr
		}
		return interrupted(ctx, err)
	}
	if len(rep.Items) > 0 {
		t := table(e.stdout)
		row(t, "SESSION", "SEGMENT", "FIRST", "LAST", "DISK", "SEALED", "WHY", "REMOVED")
		for _, i := range rep.Items {
			done := yesNo(i.Removed)
			if i.Left != "" {
				done += ": " + i.Left
			}
			row(t, i.Session, i.Segment, i.FirstSeq, i.LastSeq, humanize.IBytes(i.Bytes), shortTime(&i.Sealed), i.Reason, done)
		}
		if perr := t.Flush(); err == nil {
			err = perr
		}
	}
	if perr := e.printSnapshotItems(rep.Snapshots); err == nil {
		err = perr
	}
	for _, s := range rep.Held {
		fmt.Fprintf(e.stderr, "%s is on hold\n", s)
	}
	for _, s := range rep.Unreadable {
		fmt.Fprintf(e.stderr, "%s has a damaged seal and is never removed\n", s)
	}
	also := ""
	if n := len(rep.Snapshots); n > 0 {
		also = " and " + count(n, "snapshot")
	}
	if dryRun {
		fmt.Fprintf(e.stderr, "%s%s would be removed: %s before, %s after\n", count(len(rep.Items), "segment"), also, humanize.IBytes(rep.BytesBefore), humanize.IBytes(rep.BytesAfter))
	} else {
		fmt.Fprintf(e.stderr, "%s%s removed, %d left: %s before, %s after\n", count(rep.Removed, "segment"), also, rep.Left, humanize.IBytes(rep.BytesBefore), humanize.IBytes(rep.BytesAfter))
	}
	if rep.Over > 0 {
		fmt.Fprintf(e.stderr, "--max-bytes is exceeded by %s: %s\n", humanize.IBytes(rep.Over), keptText(rep.Kept))
	}
	return interrupted(ctx, err)
}

// keptText says what stands in the way of --max-bytes.
func keptText(kept []store.PruneKept) string {
	if len(kept) == 0 {
		return "not all was reached"
	}
	var parts []string
	for _, k := range kept {
		what := count(k.Segments, "segment")
		switch k.Reason {
		case store.KeptHold:
			what += " on hold"
		case store.KeptOpen:
			what += " not sealed yet"
		case store.KeptUnreadable:
			what += " with a damaged seal"
		case store.KeptLeft:
			what += " in use"
		case store.KeptSnapshots:
			what = "snapshots"
		}
		parts = append(parts, what+" ("+humanize.IBytes(k.Bytes)+")")
	}
	return strings.Join(parts, ", ") + " cannot be removed"
}

// printSnapshotItems lists the snapshots that go.
func (e *env) printSnapshotItems(items []store.SnapshotItem) error {
	if len(items) == 0 {
		return nil
	}
	t := table(e.stdout)
	row(t, "SESSION", "SNAPSHOT AT", "DISK", "REMOVED")
	for _, i := range items {
		done := yesNo(i.Removed)
		if i.Left != "" {
			done += ": " + i.Left
		}
		row(t, i.Session, i.Seq, humanize.IBytes(i.Bytes), done)
	}
	return t.Flush()
}

// retain applies r to the archive, now and every so often, until ctx is done.
func (e *env) retain(ctx context.Context, a *store.Archive, r store.Retention, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	over := ""
	for {
		rep, err := a.Prune(ctx, r, false, who())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			e.log.Error("retention failed; it is tried again", "err", err)
		case rep.Removed > 0 || rep.Left > 0:
			e.log.Info("retention", "removed", rep.Removed, "left", rep.Left, "bytes_before", rep.BytesBefore, "bytes_after", rep.BytesAfter)
		}
		if err == nil {
			over = e.sayOver(over, rep, r)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sayOver says once that --max-bytes cannot be kept to, and again when the
// reasons are others; was is what it gave last.
func (e *env) sayOver(was string, rep store.PruneReport, r store.Retention) string {
	if rep.Over == 0 {
		if was != "" {
			e.log.Info("retention: the archive takes no more than --max-bytes again", "max_bytes", r.MaxBytes, "bytes", rep.BytesAfter)
		}
		return ""
	}
	why := ""
	for _, k := range rep.Kept {
		why += string(k.Reason) + " "
	}
	if why != was {
		e.log.Warn("retention cannot reach --max-bytes", "max_bytes", r.MaxBytes, "bytes", rep.BytesAfter, "why", keptText(rep.Kept))
	}
	return why
}

// who is user@host, for the audit log.
func who() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		return name
	}
	return name + "@" + host
}

func newHoldCmd(e *env) *cobra.Command {
	return e.holdCmd("hold", "Keep a session from being pruned, until it is released",
		"Nothing of a session on hold is ever removed by prune, or by the retention of a\ncapture node. The hold is shown by sessions and show, and is in the audit log.",
		"  moldtape hold itch/000007525B --reason 'case 2026-17' --archive /var/lib/moldtape",
		(*store.Archive).Hold)
}

func newReleaseCmd(e *env) *cobra.Command {
	return e.holdCmd("release", "End the hold of a session",
		"The session may be pruned again. It is in the audit log.",
		"  moldtape release itch/000007525B --reason 'case closed' --archive /var/lib/moldtape",
		(*store.Archive).Release)
}

func (e *env) holdCmd(name, short, long, example string, do func(a *store.Archive, r store.Ref, reason, by string) error) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: name + " SESSION --reason TEXT", Short: short, Long: long, Example: example,
		Args: sessionArg(name),
		RunE: func(_ *cobra.Command, args []string) error {
			if reason == "" || len(reason) > store.MaxReason {
				return usagef("--reason: want a text of 1 to %d bytes", store.MaxReason)
			}
			a, err := e.openArchive()
			if err != nil {
				return err
			}
			defer a.Close()
			ref, err := a.Find(args[0])
			if err != nil {
				return err
			}
			return do(a, ref, reason, who())
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log: `TEXT`")
	e.addArchive(c)
	return c
}

func newAuditCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Print the audit log and check its chain",
		Long: `Print what was removed, put on hold and released, with who, when and why. Each
line of audit.log has the SHA-256 of the line before: where one was changed,
removed or put in, the line after it does not fit: it is named, and the exit code
is 1. What is to be recorded on such a log is, behind an entry chain_broken that
names the lines; moldtape repair turns back single bits. That the last line was changed, or lines are missing at the end, the chain
cannot show: keep its last line elsewhere.`,
		Example: "  moldtape audit --archive /var/lib/moldtape --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return e.audit() },
	}
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

func (e *env) audit() error {
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	entries, torn, err := a.AuditLog()
	var broken *store.AuditError
	if err != nil && !errors.As(err, &broken) {
		return err
	}
	if torn {
		fmt.Fprintln(e.stderr, "behind the last line lies one that a crash cut short before it was confirmed; the next one replaces it")
	}
	if e.json {
		out := struct {
			Entries    []store.AuditEntry `json:"entries"`
			OK         bool               `json:"ok"`
			BrokenLine int                `json:"broken_line,omitempty"` // the first
			Problem    string             `json:"problem,omitempty"`
			Breaks     []store.AuditBreak `json:"breaks"`
		}{Entries: entries, OK: broken == nil, Breaks: []store.AuditBreak{}}
		if entries == nil {
			out.Entries = []store.AuditEntry{}
		}
		if broken != nil {
			out.BrokenLine, out.Problem, out.Breaks = broken.Breaks[0].Line, broken.Breaks[0].Problem, broken.Breaks
		}
		if err := e.printJSON(out); err != nil {
			return err
		}
	} else if len(entries) > 0 {
		t := table(e.stdout)
		row(t, "TIME", "EVENT", "SESSION", "SEGMENT", "FIRST", "LAST", "BY", "REASON")
		for _, x := range entries {
			first, last := "", ""
			if x.FirstSeq != 0 {
				first, last = fmt.Sprint(uint64(x.FirstSeq)), fmt.Sprint(uint64(x.LastSeq))
			}
			reason := x.Reason
			if len(x.Broken) > 0 {
				reason = fmt.Sprintf("lines %v: %s", x.Broken, reason)
			}
			switch {
			case reason == "":
				reason = x.File
			case x.File != "":
				reason = x.File + ": " + reason
			}
			row(t, shortTime(&x.Time), x.Event, x.Session, x.Segment, first, last, x.By, reason)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if broken != nil {
		for _, b := range broken.Breaks[1:] {
			fmt.Fprintln(e.stderr, b)
		}
		return faultf("%v", broken)
	}
	if !e.json {
		fmt.Fprintf(e.stderr, "%s: the chain is whole\n", count(len(entries), "line"))
	}
	return nil
}
