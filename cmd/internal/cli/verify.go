package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

type verifyFlags struct {
	root           bool
	fromSeq, toSeq string
}

func newVerifyCmd(e *env) *cobra.Command {
	var o verifyFlags
	c := &cobra.Command{
		Use:   "verify [SESSION...]",
		Short: "Re-read sessions whole and check every checksum, hash and seal",
		Long: `Read every block of the sessions named, or of all, and check checksums, hashes,
continuity and the chain of seals. Each fault is printed with its segment and
range; with any, the exit code is 1. What another process captures is checked
up to its sealed end. Holes on record are told, and no fault.

--root prints FIRST..LAST HASH for each run of coverage, where HASH depends on
the messages alone: two archives that hold the same print the same.`,
		Example: "  moldtape verify itch/000007525B --archive /var/lib/moldtape --root",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := o.check()
			if err != nil {
				return err
			}
			return e.verify(c.Context(), args, o, r)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.root, "root", false, "print the content hash of each run of coverage too")
	f.StringVar(&o.fromSeq, "from-seq", "", "with --root: first sequence `N`")
	f.StringVar(&o.toSeq, "to-seq", "", "with --root: last sequence `N`")
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

// check is the range of --root.
func (o *verifyFlags) check() (moldcast.Range, error) {
	r := moldcast.Range{First: 1, Next: ^moldcast.Seq(0)}
	if !o.root && (o.fromSeq != "" || o.toSeq != "") {
		return r, usagef("--from-seq and --to-seq: want --root with them; verification itself reads everything")
	}
	if o.fromSeq != "" {
		n, err := parseSeq("--from-seq", o.fromSeq)
		if err != nil {
			return r, err
		}
		r.First = n
	}
	if o.toSeq != "" {
		n, err := parseSeq("--to-seq", o.toSeq)
		if err != nil {
			return r, err
		}
		r.Next = n + 1
	}
	if r.Empty() {
		return r, usagef("--to-seq %s: want no less than --from-seq %s", o.toSeq, o.fromSeq)
	}
	return r, nil
}

// verifyRoot is one line of --root.
type verifyRoot struct {
	Session  string       `json:"session"`
	FirstSeq moldcast.Seq `json:"first_seq"`
	LastSeq  moldcast.Seq `json:"last_seq"`
	Hash     string       `json:"hash"`
}

type verifyReport struct {
	store.Report
	OK    bool         `json:"ok"`
	Roots []verifyRoot `json:"roots,omitempty"`
}

func (e *env) verify(ctx context.Context, names []string, o verifyFlags, within moldcast.Range) error {
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	var refs []store.Ref
	for _, name := range names {
		r, err := a.Find(name)
		if err != nil {
			return err
		}
		refs = append(refs, r)
	}
	progress, end := e.verifyProgress()
	report, err := a.Verify(ctx, refs, progress)
	end()
	if err != nil {
		return interrupted(ctx, err)
	}
	for _, s := range report.Skipped {
		fmt.Fprintf(e.stderr, "%s is being written: not checked\n", s)
	}
	out := verifyReport{Report: report, OK: len(report.Faults) == 0}
	if !e.json {
		for _, f := range report.Faults {
			fmt.Fprintln(e.stdout, f)
		}
		for _, f := range append(report.Replaced, report.Notes...) {
			fmt.Fprintln(e.stdout, f)
		}
	}
	if o.root {
		if out.Roots, err = e.roots(ctx, a, refs, within); err != nil {
			return interrupted(ctx, err)
		}
	}
	if e.json {
		if err := e.printJSON(out); err != nil {
			return err
		}
	} else {
		many := o.root && report.Sessions > 1
		for _, r := range out.Roots {
			line := fmt.Sprintf("%d..%d %s", r.FirstSeq, r.LastSeq, r.Hash)
			if many {
				line = r.Session + " " + line
			}
			fmt.Fprintln(e.stdout, line)
		}
		if err := e.namesHoles(a, refs); err != nil {
			return err
		}
		fmt.Fprintf(e.stderr, "%s, %s, %s, %s in %s compressed%s: %s\n",
			count(report.Sessions, "session"), count(report.Segments, "segment"), count(report.Blocks, "block"), count(report.Messages-report.TailMessages, "message"),
			humanize.IBytes(report.Bytes), tailText(report), count(len(report.Faults), "fault"))
	}
	if out.OK && len(out.Roots) == 0 && (o.fromSeq != "" || o.toSeq != "") {
		return faultf("--from-seq, --to-seq: nothing is held of %v", within)
	}
	if !out.OK {
		return &exitError{code: exitFault}
	}
	return nil
}

// namesHoles says which of the sessions, or of all, have holes: they are no
// fault of the archive, and yet it is not complete.
func (e *env) namesHoles(a *store.Archive, refs []store.Ref) error {
	list, err := a.Sessions()
	if err != nil {
		return err
	}
	for _, i := range list {
		if i.Holes > 0 && (len(refs) == 0 || slices.Contains(refs, i.Ref())) {
			fmt.Fprintf(e.stderr, "%v has %s, no fault: `moldtape show` lists what is missing\n", i.Ref(), count(i.Holes, "hole"))
		}
	}
	return nil
}

// interrupted is err, or exit 130 where a signal was the reason.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errInterrupted
	}
	return err
}

func (e *env) roots(ctx context.Context, a *store.Archive, refs []store.Ref, within moldcast.Range) ([]verifyRoot, error) {
	if len(refs) == 0 {
		list, err := a.Sessions()
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			refs = append(refs, s.Ref())
		}
	}
	var out []verifyRoot
	for _, r := range refs {
		v, err := a.View(r)
		if err != nil {
			return nil, err
		}
		runs, err := store.Root(ctx, v, within)
		if err != nil {
			return nil, err
		}
		for _, x := range runs {
			out = append(out, verifyRoot{Session: r.String(), FirstSeq: x.Range.First, LastSeq: x.Range.Next - 1, Hash: hex.EncodeToString(x.Hash[:])})
		}
	}
	return out, nil
}

// tailText is what a capture that was killed had not put in a block.
func tailText(r store.Report) string {
	if r.TailRecords == 0 {
		return ""
	}
	return fmt.Sprintf(", and %s not in a block yet, in %s of %s", count(r.TailMessages, "message"), count(r.TailRecords, "tail record"), humanize.IBytes(r.TailBytes))
}

// verifyProgress shows a bar on a terminal, and nothing elsewhere.
func (e *env) verifyProgress() (update func(store.Progress), end func()) {
	if !isTerminal(e.stderr) {
		return nil, func() {}
	}
	p := mpb.New(mpb.WithOutput(e.stderr), mpb.WithWidth(60))
	bar := p.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name("verify "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage()))
	return func(s store.Progress) {
			bar.SetTotal(int64(s.Total), false)
			bar.SetCurrent(int64(s.Done))
		}, func() {
			bar.SetTotal(-1, true)
			p.Wait()
		}
}
