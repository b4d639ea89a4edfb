package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/moldtape/moldtape/cmd/internal/httpd"
)

// printClients shows who asks a node for messages.
func printClients(w io.Writer, d httpd.Node) error {
	q := d.Requests
	if q == nil {
		_, err := fmt.Fprintln(w, "the node answers no requests (capture --retransmit-listen)")
		return err
	}
	if len(q.Top) == 0 {
		_, err := fmt.Fprintln(w, "no client has asked for anything yet")
		return err
	}
	t := table(w)
	row(t, "CLIENT", "SERVER", "REQUESTS", "ANSWERED", "BYTES", "LAST", "LOWEST", "AGO", "AGAIN", "REFUSED")
	for i := range q.Top {
		c := &q.Top[i]
		last, lowest, again := "-", "-", "now"
		if c.Session != nil {
			last, lowest = fmt.Sprintf("%v %d..%d", *c.Session, c.FirstSeq, c.LastSeq), fmt.Sprint(c.LowestSeq)
		}
		switch {
		case !c.Allowed:
			again = "never"
		case c.AgainSeconds > 0:
			again = "in " + secondsText(c.AgainSeconds)
		}
		row(t, c.Client, c.Server, humanize.Comma(int64(c.Received)), humanize.Comma(int64(c.Answered)), humanize.Comma(int64(c.Bytes)),
			last, lowest, secondsText(max(0, d.Time.Sub(c.Last).Seconds())), again, refusedText(c.Refused))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if q.Forgotten > 0 {
		fmt.Fprintf(w, "\n%s that asked little are not told apart any more\n", count(q.Forgotten, "client"))
	}
	return nil
}

// refusedText is how often for what reason, the most frequent first.
func refusedText(refused map[string]uint64) string {
	var list []string
	for why, n := range refused {
		if n > 0 {
			list = append(list, why)
		}
	}
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(cmp.Compare(refused[b], refused[a]), strings.Compare(a, b))
	})
	for i, why := range list {
		list[i] = why + " " + humanize.Comma(int64(refused[why]))
	}
	return cmp.Or(strings.Join(list, ", "), "-")
}
