package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

func newSessionsCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "sessions",
		Short: "List the recorded sessions",
		Long: `List the recorded sessions of an archive.

next is one past what is held without a hole, head one past the highest held.
Of a session that another process captures (state live), what it has sealed is
listed. A session is ended when its End of Session is on record, or its sender
went on as another take or session (superseded_by of --json), else open. Of one
that was pruned, first is the first message that is still held.`,
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
	return store.Open(e.archiveDir(), e.storeOptions())
}

// storeOptions are those that every command shares: the log, and this host's
// name for what is put on record.
func (e *env) storeOptions() store.Options {
	o := store.DefaultOptions()
	o.Log = e.log
	if host, err := os.Hostname(); err == nil {
		o.Node = host
	}
	return o
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
		if s.Fault != "" {
			fmt.Fprintf(e.stderr, "moldtape: %v is not known in full: %s\n", s.Ref(), s.Fault)
		}
	}
	if e.json {
		return e.printJSON(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(e.stderr, "no sessions in", a.Dir())
		return nil
	}
	t := table(e.stdout)
	row(t, "SESSION", "STATE", "FIRST", "NEXT", "HEAD", "MESSAGES", "HOLES", "RAW", "DISK", "FROM", "TO", "HOLD")
	for _, s := range list {
		row(t, s.Ref(), s.State, s.FirstSeq, s.NextSeq, s.HeadSeq, humanize.Comma(int64(s.Messages)), s.Holes,
			humanize.IBytes(s.BytesRaw), humanize.IBytes(s.BytesDisk), shortTime(s.FirstTime), shortTime(s.LastTime), yesNo(s.Hold != nil))
	}
	return t.Flush()
}

// sayLive says on stderr that a session goes on beyond what is listed of it.
func (e *env) sayLive(s store.Info) {
	if s.State == store.Live {
		fmt.Fprintf(e.stderr, "%v is being captured: shown up to its sealed end\n", s.Ref())
	}
}

// sayReadTo says on stderr that a session goes on beyond what is read of it.
func (e *env) sayReadTo(s store.Info, held moldcast.Range) {
	if s.State != store.Live {
		return
	}
	end := "nothing of it is sealed yet"
	if !held.Empty() {
		end = fmt.Sprintf("read up to its sealed end %d", held.Next-1)
	}
	fmt.Fprintf(e.stderr, "moldtape: %v is being captured: %s\n", s.Ref(), end)
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

// shortTime prints a time for people, in UTC, to the microsecond.
func shortTime(t *time.Time) string { return timeText(t, "2006-01-02T15:04:05.000000Z") }

// fullTime prints all of a time, in UTC.
func fullTime(t *time.Time) string { return timeText(t, "2006-01-02T15:04:05.000000000Z") }

func timeText(t *time.Time, form string) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(form)
}
