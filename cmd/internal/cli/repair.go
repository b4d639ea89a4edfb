package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/repair"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

type repairFlags struct {
	from   []string
	budget time.Duration
}

func newRepairCmd(e *env) *cobra.Command {
	f := repairFlags{budget: 10 * time.Second}
	c := &cobra.Command{
		Use:   "repair SESSION [--from ADDR|ARCHIVE]...",
		Short: "Restore damaged files of a recorded session, and fill its holes from a request server or another archive",
		Long: `Restore damaged files of a session, then fill its holes.

Files around the messages need no source: a turned bit of moldtape.json,
audit.log, session.json, hold.json, of a seal, or of what was kept of pruned
segments is turned back where a hash proves it; else seals and session.json are
made again from the segments, hold.json from the audit log. Seals must come out
as the seal after them names them. What was done is told, with what proves it,
and is in the audit log; what cannot be restored is named, exit 1. So are holes
that are left.

With --from, holes are filled: a request server (host:port) is asked for
what is missing, the newest first; another archive (a directory) gives its messages with their
times and packets, and its snapshots where they are missing or damaged here. Several
--from are used in turn. Two archives heal each other.

First what both sides hold at the edges of the holes is compared; a difference
ends the repair with exit 1, and nothing is mixed. Each fill is put on record
with its source. Holes that are left are named, exit 1.

A server may lack anything, as a sender does what has left its ring: what it has
is filled first, then it is asked several times for what it does not answer for.
The log says how long that takes at most. Ctrl-C keeps what was filled.

A session that is being captured is not repaired: its capture asks its own
servers for what is missing.`,
		Example: "  moldtape repair itch/000007525B --from 10.1.2.3:26400 --from /mnt/peer/moldtape --archive /var/lib/moldtape",
		Args:    sessionArg("repair"),
		RunE:    func(c *cobra.Command, args []string) error { return e.repair(c.Context(), args[0], f) },
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.from, "from", nil, "request server `ADDR` (host:port), or directory of another archive (repeat)")
	fl.Var(config.Duration{P: &f.budget}, "nak-budget", "how long a server is asked that answers nothing, or nothing more")
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

// repairReport is `repair --json`.
type repairReport struct {
	Session string `json:"session"`
	OK      bool   `json:"ok"`

	// Damaged files around the messages: restored, or why they cannot be.
	Files []store.Mended `json:"files"`

	// Snapshots that were missing or damaged, copied from another archive.
	Snapshots []repair.Restored `json:"snapshots,omitempty"`

	// Messages whose segment is damaged around them, written anew.
	Rewritten uint64 `json:"rewritten"`

	// What is wrong all the same, by a second look.
	Faults []store.Fault `json:"faults,omitempty"`
	repair.Result
}

func (e *env) repair(ctx context.Context, name string, f repairFlags) error {
	if f.budget <= 0 {
		return usagef("--nak-budget %v: want more than 0", f.budget)
	}
	o := e.storeOptions()
	o.Wait = true
	a, err := store.Open(e.archiveDir(), o)
	if err != nil {
		return err
	}
	defer a.Close()
	ref, err := a.Find(name)
	if err != nil {
		return err
	}
	var sources []repair.Source
	var letGo []func()
	for _, s := range f.from {
		src, done, err := e.repairSource(s, ref, f)
		if err != nil {
			return err
		}
		done = sync.OnceFunc(done)
		defer done()
		sources, letGo = append(sources, src), append(letGo, done)
	}
	out := repairReport{Session: ref.String()}
	out.Files, err = a.Mend(ref, who())
	if errors.Is(err, store.ErrLocked) {
		return errCaptured(ref)
	}
	if err != nil {
		return err
	}
	if live, err := e.capturing(a, ref); err != nil || live {
		if err == nil {
			err = errCaptured(ref)
		}
		return err
	}
	// What is damaged goes on record with it, and is a hole then.
	scan, err := a.Verify(ctx, []store.Ref{ref}, nil)
	if err != nil {
		return interrupted(ctx, err)
	}
	if out.Snapshots, err = restoreSnapshots(ctx, a, ref, sources, e.log); err != nil {
		return interrupted(ctx, err)
	}
	w, err := a.Writer(ref.Channel, ref.Session, ref.Take)
	if errors.Is(err, store.ErrLocked) {
		return errCaptured(ref)
	}
	if err != nil {
		return err
	}
	if out.Rewritten, err = rewrite(w, scan, e.log); err == nil {
		var shared []repair.Filled
		if shared, err = repair.Shared(ctx, w, a, e.log); err == nil {
			out.Result, err = repair.Run(ctx, w, sources, e.log)
		}
		out.Filled = append(out.Filled, shared...)
	}
	if e := w.Close(); err == nil {
		err = e
	}
	if e := auditRepair(a, ref, out); err == nil {
		err = e
	}
	for _, done := range letGo { // before anything is printed
		done()
	}
	var unmended []store.Mended
	for _, m := range out.Files {
		if !m.Restored {
			unmended = append(unmended, m)
		}
	}
	out.OK = err == nil && len(out.Remaining) == 0 && len(unmended) == 0
	if out.OK && len(scan.Faults) > 0 {
		again, err := a.Verify(ctx, []store.Ref{ref}, nil)
		if err != nil {
			return interrupted(ctx, err)
		}
		out.Faults = again.Faults
		out.OK = len(out.Faults) == 0
	}
	if e.json {
		if err := e.printJSON(out); err != nil {
			return err
		}
	} else {
		e.printRepair(out)
	}
	var failed *repair.SourcesError
	switch {
	case err != nil && !errors.As(err, &failed):
		return interrupted(ctx, err)
	case len(out.Remaining) > 0:
		left := out.Remaining[0]
		text := fmt.Sprintf("%v: %s left, the first is %d..%d", ref, count(len(out.Remaining), "hole"), left.FirstSeq, left.LastSeq)
		if failed != nil {
			return faultf("%s: %w", text, failed)
		}
		if len(f.from) == 0 {
			text += "; --from host:port or --from DIR says where the messages may be had"
		}
		return faultf("%s", text)
	case len(unmended) > 0:
		return faultf("%v: not everything can be restored: %v", ref, unmended[0])
	case len(out.Faults) > 0:
		return faultf("%v: not everything can be restored: %v", ref, out.Faults[0])
	}
	return nil
}

// auditRepair puts on record what a repair stored, in one entry: the fills
// themselves, each with its source, are a fact of the segment.
func auditRepair(a *store.Archive, ref store.Ref, r repairReport) error {
	if len(r.Filled) == 0 && r.Rewritten == 0 {
		return nil
	}
	x := store.AuditEntry{Event: store.AuditRepair, Session: ref.String(), By: who(), Messages: r.Rewritten}
	type part struct {
		source   string
		messages uint64
		ranges   int
	}
	var parts []part
	for _, f := range r.Filled {
		k := slices.IndexFunc(parts, func(p part) bool { return p.source == f.Source })
		if k < 0 {
			k, parts = len(parts), append(parts, part{source: f.Source})
		}
		n := uint64(f.LastSeq-f.FirstSeq) + 1
		parts[k].messages += n
		parts[k].ranges++
		x.Messages += n
		if x.FirstSeq == 0 || f.FirstSeq < x.FirstSeq {
			x.FirstSeq = f.FirstSeq
		}
		x.LastSeq = max(x.LastSeq, f.LastSeq)
	}
	var told []string
	for _, p := range parts {
		told = append(told, fmt.Sprintf("%s in %s filled from %s", count(p.messages, "message"), count(p.ranges, "range"), p.source))
	}
	if r.Rewritten > 0 {
		told = append(told, count(r.Rewritten, "message")+" of damaged segments written anew")
	}
	if x.Reason = strings.Join(told, "; "); len(x.Reason) > store.MaxReason {
		x.Reason = strings.ToValidUTF8(x.Reason[:store.MaxReason], "") + "…"
	}
	return a.Audit(x)
}

// restoreSnapshots copies from archives what is missing of snapshots, or damaged.
func restoreSnapshots(ctx context.Context, a *store.Archive, ref store.Ref, sources []repair.Source, log *slog.Logger) (out []repair.Restored, err error) {
	for _, s := range sources {
		from, ok := s.(*repair.Archive)
		if !ok {
			continue
		}
		done, err := from.Snapshots(ctx, a, ref, who())
		out = append(out, done...)
		var bad *store.SnapshotError
		switch {
		case err == nil:
		case errors.As(err, &bad), errors.Is(err, store.ErrSnapshotExists), errors.Is(err, store.ErrSnapshotSeq), errors.Is(err, store.ErrNoSnapshot):
			log.Warn("not every snapshot of the other archive could be copied", "session", ref, "err", err)
		default:
			return out, err
		}
	}
	return out, nil
}

// rewrite writes anew what can be read of segments whose store is damaged.
func rewrite(w *store.Writer, scan store.Report, log *slog.Logger) (n uint64, err error) {
	for _, f := range scan.Faults {
		if !f.Readable {
			continue
		}
		r := moldcast.Range{First: f.FirstSeq, Next: f.LastSeq + 1}
		k, err := w.Rewrite(f.Segment, r)
		if n += k; err != nil {
			return n, err
		}
		if k > 0 {
			w.Filled(store.Fill{Range: r, By: "repair", Source: store.FilesOf(f.Segment)})
			log.Info("written anew", "session", w.Ref(), "range", r, "messages", k, "segment", f.Segment)
		}
	}
	return n, nil
}

func errCaptured(ref store.Ref) error {
	return faultf("%v is being captured: the capture itself asks its request servers for what is missing, in the background; repair it when that has stopped", ref)
}

// capturing reports whether another process writes the session. What one that
// is gone left unsealed is sealed.
func (e *env) capturing(a *store.Archive, ref store.Ref) (bool, error) {
	v, err := a.View(ref)
	if err != nil {
		return false, err
	}
	return v.Info().State == store.Live, nil
}

// repairSource opens one --from. done lets go of it.
func (e *env) repairSource(s string, ref store.Ref, f repairFlags) (src repair.Source, done func(), err error) {
	if st, err := os.Stat(s); err == nil && st.IsDir() {
		if same(s, e.archiveDir()) {
			return nil, nil, usagef("--from %s: is the archive to repair; want another one", s)
		}
		o := store.DefaultOptions()
		o.Log = e.log
		a, err := store.Open(s, o)
		if err != nil {
			return nil, nil, fmt.Errorf("--from %s: %w", s, err)
		}
		from, err := repair.OpenArchive(a, ref, e.log)
		if err != nil {
			a.Close()
			return nil, nil, fmt.Errorf("--from %s: %w", s, err)
		}
		return from, func() { a.Close() }, nil
	}
	addr, err := resolve4("--from", s)
	if err != nil {
		return nil, nil, usagef("--from %q: want the host:port of a request server (IPv4), or the directory of another archive", s)
	}
	server := &repair.Server{Session: ref.Session, Addr: addr, Budget: f.budget, Log: e.log}
	return server, e.repairProgress(server), nil
}

// repairProgress keeps a line on a terminal about what is asked of a server.
func (e *env) repairProgress(s *repair.Server) (stop func()) {
	if !isTerminal(e.stderr) {
		return func() {}
	}
	var now atomic.Pointer[string]
	s.Tell = func(p repair.Progress) {
		line := repairLine(s.Name(), p)
		now.Store(&line)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.statusLine(ctx, func() string {
			if line := now.Load(); line != nil {
				return *line
			}
			return ""
		})
	}()
	return func() { cancel(); <-done }
}

func repairLine(server string, p repair.Progress) string {
	what, done := "holes", "filled"
	if p.Rough {
		what, done = "ranges around holes", "compared"
	}
	line := fmt.Sprintf("%s asked for %s of %s %s  %s %s, %s unanswered", server, humanize.Comma(int64(p.Asked)), humanize.Comma(int64(p.Ranges)), what,
		count(p.Brought, "message"), done, humanize.Comma(int64(p.Unanswered)))
	if p.AtMost > 0 {
		line += fmt.Sprintf("  at most %v more, unless it answers", p.AtMost.Round(time.Second))
	}
	return line
}

// same reports whether two paths name one directory.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func (e *env) printRepair(r repairReport) {
	for _, m := range r.Files {
		what := "cannot be restored"
		if m.Restored {
			what = "restored"
		}
		fmt.Fprintf(e.stdout, "%s %s: %s\n", m.File, what, m.How)
	}
	for _, f := range r.Faults {
		fmt.Fprintf(e.stdout, "%v\n", f)
	}
	for _, x := range r.Snapshots {
		fmt.Fprintf(e.stdout, "%s snapshot at %d restored from %s\n", r.Session, x.Seq, x.Source)
	}
	for _, f := range r.Filled {
		fmt.Fprintf(e.stdout, "%s %d..%d filled from %s\n", r.Session, f.FirstSeq, f.LastSeq, f.Source)
	}
	for _, h := range r.Remaining {
		fmt.Fprintf(e.stdout, "%s %d..%d missing (%s)\n", r.Session, h.FirstSeq, h.LastSeq, h.Reason)
	}
	if r.Holes == 0 {
		fmt.Fprintf(e.stderr, "%s: no hole to fill\n", r.Session)
		return
	}
	line := fmt.Sprintf("%s: %s filled, %s left", count(r.Holes, "hole"), count(r.Messages, "message"), count(len(r.Remaining), "hole"))
	if r.Compared > 0 {
		line += fmt.Sprintf("; %s at their edges are the same", count(r.Compared, "message"))
	}
	fmt.Fprintln(e.stderr, line)
}
