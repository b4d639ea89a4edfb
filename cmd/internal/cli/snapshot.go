package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

func newSnapshotCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Store, get, list and remove snapshots of an application's state",
		Long: `A snapshot is opaque bytes that an application stores with a recorded session: its
state after all messages below a sequence, which is exclusive, so that the
messages after it begin with that very sequence. It is part of the archive: hashed,
verified, repaired, on record in the audit log, and pruned once a message at or
after its sequence is.`,
		Example: "  moldtape snapshot put itch/000007525B --seq 484312000 book.bin --archive /var/lib/moldtape",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("snapshot: unknown command %q; want put, get, list or rm", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newSnapshotPutCmd(e), newSnapshotGetCmd(e), newSnapshotListCmd(e), newSnapshotRmCmd(e))
	return c
}

// snapshotOf opens the archive, and does do with the recording of a name.
func (e *env) snapshotOf(name string, do func(a *store.Archive, r store.Ref) error) error {
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	ref, err := a.Find(name)
	if err != nil {
		return err
	}
	return do(a, ref)
}

func newSnapshotPutCmd(e *env) *cobra.Command {
	var seq string
	c := &cobra.Command{
		Use:   "put SESSION --seq N FILE|-",
		Short: "Store a snapshot: the state after all messages below N",
		Long: `Store a file, or stdin, as the snapshot of a session at --seq: the state of an
application after all messages below N; N itself is the first that is not in it.

It is durable when the command returns. A session may be captured meanwhile, by
another process. What is stored is never overwritten: the same once more changes
nothing, other bytes at the same sequence are refused. So is N beyond the end of a
session, where that is on record: of one that another process captures, in a sealed
segment. What was stored there before is a fault of list and verify, and get passes
over it.`,
		Example: "  moldtape snapshot put itch/000007525B --seq 484312000 book.bin --archive /var/lib/moldtape",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("snapshot put: want SESSION and FILE, or - for stdin")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if seq == "" {
				return usagef("snapshot put: want --seq N, the sequence of the first message that is not in the state")
			}
			q, err := parseSeq("--seq", seq)
			if err != nil {
				return err
			}
			return e.snapshotOf(args[0], func(a *store.Archive, r store.Ref) error { return e.snapshotPut(c.Context(), a, r, q, args[1]) })
		},
	}
	c.Flags().StringVar(&seq, "seq", "", "`N`: the state is that after all messages below N")
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

// interruptedReader ends with the context.
type interruptedReader struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptedReader) Read(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(b)
}

func (e *env) snapshotPut(ctx context.Context, a *store.Archive, r store.Ref, q moldcast.Seq, name string) error {
	src := e.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		src = f
	}
	info, err := a.PutSnapshot(r, q, interruptedReader{ctx, src}, who())
	if err != nil {
		return interrupted(ctx, err)
	}
	if e.json {
		return e.printJSON(snapshotJSON{r.String(), info})
	}
	fmt.Fprintf(e.stderr, "%v: snapshot at %d stored, %s, SHA-256 %s\n", r, info.Seq, count(info.Bytes, "byte"), info.Sum)
	return nil
}

// snapshotJSON is a snapshot in what --json prints.
type snapshotJSON struct {
	Session string `json:"session"`
	store.SnapshotInfo
}

func newSnapshotGetCmd(e *env) *cobra.Command {
	var seq, out string
	c := &cobra.Command{
		Use:   "get SESSION [--seq N] [-o FILE|-]",
		Short: "Get the newest snapshot at or before N",
		Long: `Write the newest snapshot of a session at or before --seq (default: the newest of
all) to a file, or stdout. Its sequence is told on stderr, or by --json where it is
written to a file: the messages after it begin there.

What does not match its checksums is not written: exit 1 names the snapshot, and
--seq one below it gets the one before.`,
		Example: "  moldtape snapshot get itch/000007525B --seq 484320000 -o book.bin --archive /var/lib/moldtape",
		Args:    sessionArg("snapshot get"),
		RunE: func(c *cobra.Command, args []string) error {
			var q moldcast.Seq
			if seq != "" {
				var err error
				if q, err = parseSeq("--seq", seq); err != nil {
					return err
				}
			}
			if e.json && out == "-" {
				return usagef("snapshot get: --json goes with -o FILE: the bytes go to stdout without it")
			}
			return e.snapshotOf(args[0], func(a *store.Archive, r store.Ref) error { return e.snapshotGet(c.Context(), a, r, q, out) })
		},
	}
	c.Flags().StringVar(&seq, "seq", "", "the newest at or before `N` (default: the newest)")
	c.Flags().StringVarP(&out, "output", "o", "-", "write to this `FILE`; - is stdout")
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout; with -o FILE")
	return c
}

func (e *env) snapshotGet(ctx context.Context, a *store.Archive, r store.Ref, q moldcast.Seq, name string) error {
	asked := q
	end, ended, err := a.EndOf(r)
	if err != nil {
		e.log.Warn("where the session ended is not known", "session", r, "err", err)
	}
	if ended && (q == 0 || q > end) {
		q = end
	}
	s, err := a.OpenSnapshot(r, q)
	if err != nil {
		return olderHint(err)
	}
	defer s.Close()
	if asked != q { // what lies between was stored before the end was on record
		if all, err := a.OpenSnapshot(r, asked); err == nil {
			if all.Seq() > end {
				e.log.Warn("passed over a snapshot beyond the end of the session", "session", r, "seq", all.Seq(), "end", end-1)
			}
			all.Close()
		}
	}
	out, err := createPlain(name, e.stdout)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, interruptedReader{ctx, s}); err != nil {
		out.discard()
		return interrupted(ctx, olderHint(err))
	}
	if err := out.commit(); err != nil {
		return err
	}
	info := s.Info()
	if e.json {
		return e.printJSON(snapshotJSON{r.String(), info})
	}
	fmt.Fprintf(e.stderr, "%v: snapshot at %d, %s: the messages after it begin with %d\n", r, info.Seq, count(info.Bytes, "byte"), info.Seq)
	return nil
}

// olderHint adds to damage what can be done.
func olderHint(err error) error {
	var bad *store.SnapshotError
	if errors.As(err, &bad) {
		return fmt.Errorf("%w; --seq %d gets the one before, and `moldtape repair --from` restores it from another archive", err, bad.Seq-1)
	}
	return err
}

func newSnapshotListCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:     "list SESSION",
		Short:   "List the snapshots of a session",
		Example: "  moldtape snapshot list itch/000007525B --json --archive /var/lib/moldtape",
		Args:    sessionArg("snapshot list"),
		RunE:    func(_ *cobra.Command, args []string) error { return e.snapshotOf(args[0], e.snapshotList) },
	}
	e.addArchive(c)
	e.addJSON(c, "a JSON list on stdout")
	return c
}

func (e *env) snapshotList(a *store.Archive, r store.Ref) error {
	list, err := a.Snapshots(r)
	if err != nil {
		return err
	}
	if e.json {
		return e.printJSON(list)
	}
	if len(list) == 0 {
		fmt.Fprintf(e.stderr, "no snapshots of %v\n", r)
		return nil
	}
	t := table(e.stdout)
	row(t, "SEQ", "BYTES", "STORED", "SHA-256", "FAULT")
	for _, s := range list {
		row(t, s.Seq, humanize.Comma(int64(s.Bytes)), shortTime(s.Time), s.Sum, s.Fault)
	}
	return t.Flush()
}

func newSnapshotRmCmd(e *env) *cobra.Command {
	var seq string
	c := &cobra.Command{
		Use:   "rm SESSION --seq N",
		Short: "Remove the snapshot at N",
		Long: `Remove one snapshot. It is on record in the audit log; of a session on hold nothing
is removed. Retention removes snapshots by itself: see prune.`,
		Example: "  moldtape snapshot rm itch/000007525B --seq 484312000 --archive /var/lib/moldtape",
		Args:    sessionArg("snapshot rm"),
		RunE: func(_ *cobra.Command, args []string) error {
			if seq == "" {
				return usagef("snapshot rm: want --seq N, that of the snapshot; `moldtape snapshot list` lists them")
			}
			q, err := parseSeq("--seq", seq)
			if err != nil {
				return err
			}
			return e.snapshotOf(args[0], func(a *store.Archive, r store.Ref) error { return a.RemoveSnapshot(r, q, who()) })
		},
	}
	c.Flags().StringVar(&seq, "seq", "", "sequence of the snapshot, `N`")
	e.addArchive(c)
	return c
}

// createPlain is createOutput without compression, whatever the name.
func createPlain(name string, stdout io.Writer) (*output, error) {
	o, w, err := openOutput(name, stdout)
	if err != nil {
		return nil, err
	}
	buf := bufio.NewWriterSize(w, 1<<18)
	o.Writer, o.finish = buf, append(o.finish, buf.Flush)
	return o, nil
}
