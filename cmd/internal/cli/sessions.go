package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/store"
)

func newSessionsCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "sessions",
		Short: "List the recorded sessions",
		Long: `List the recorded sessions of an archive.

next is one past what is held without a hole, head one past the highest held.
Of a session that another process captures (state live), what it has sealed is
listed. A session is open when its End of Session is not on record.`,
		Example: "  moldtape sessions --archive /var/lib/moldtape --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return e.sessions() },
	}
	e.addArchive(c)
	e.addJSON(c, "a JSON list on stdout")
	return c
}

// openArchive opens the archive of --archive for reading.
func (e *env) openArchive() (*store.Archive, error) {
	o := store.DefaultOptions()
	o.Log = e.log
	return store.Open(e.archiveDir(), o)
}

func (e *env) sessions() error {
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	list, err := a.Sessions()
	if err != nil {
		return err
	}
	for _, s := range list {
		e.sayLive(s)
	}
	if e.json {
		return e.printJSON(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(e.stderr, "no sessions in", a.Dir())
		return nil
	}
	t := table(e.stdout)
	row(t, "SESSION", "STATE", "FIRST", "NEXT", "HEAD", "MESSAGES", "HOLES", "RAW", "DISK", "FROM", "TO")
	for _, s := range list {
		row(t, s.Ref(), s.State, s.FirstSeq, s.NextSeq, s.HeadSeq, humanize.Comma(int64(s.Messages)), s.Holes,
			humanize.IBytes(s.BytesRaw), humanize.IBytes(s.BytesDisk), shortTime(s.FirstTime), shortTime(s.LastTime))
	}
	return t.Flush()
}

// sayLive says on stderr that a session goes on beyond what is listed of it.
func (e *env) sayLive(s store.Info) {
	if s.State == store.Live {
		fmt.Fprintf(e.stderr, "%v is being captured: shown up to its sealed end\n", s.Ref())
	}
}

// table aligns the cells of rows.
func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func row(t *tabwriter.Writer, cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = fmt.Sprint(c)
	}
	fmt.Fprintln(t, strings.Join(text, "\t"))
}

// shortTime prints a time for people, in UTC.
func shortTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
