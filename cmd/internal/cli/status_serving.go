package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
)

// shownServed is how many sessions of a channel are shown: those written last.
const shownServed = 10

// printServing tells of a node that serves an archive.
func printServing(w io.Writer, d httpd.Serving, readers bool) error {
	t := table(w)
	row(t, "CHANNEL", "STATE", "SESSION", "SESSION IS", "FIRST", "NEXT", "HEAD", "MESSAGES", "HOLES", "TO")
	for _, c := range d.Channels {
		name, state := c.Channel, c.State
		for _, x := range c.Sessions[max(0, len(c.Sessions)-shownServed):] {
			row(t, name, state, servedName(x), x.State, x.FirstSeq, x.NextSeq, x.HeadSeq, humanize.Comma(int64(x.Messages)), x.Holes, shortTime(x.LastTime))
			name, state = "", ""
		}
		if n := len(c.Sessions) - shownServed; n > 0 {
			row(t, "", "", fmt.Sprintf("and %d older", n))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range d.Channels {
		for _, x := range c.Sessions {
			if x.Fault != "" {
				fmt.Fprintf(w, "\n%s/%s: %s\n", c.Channel, servedName(x), x.Fault)
			}
		}
	}
	if d.Error != "" {
		fmt.Fprintf(w, "\n%s\n", d.Error)
	}
	if q := d.Requests; q != nil {
		fmt.Fprintf(w, "\n%s: %s answered, refused: %s\n", count(q.Received, "request"), humanize.Comma(int64(q.Answered)), refusedText(q.Refused))
	}
	return printStreams(w, d.Streams, d.Time, readers)
}

// servedName is SESSION, or SESSION@TAKE.
func servedName(x httpd.ServedSession) string {
	if x.Take > 1 {
		return fmt.Sprintf("%s@%d", x.Session, x.Take)
	}
	return x.Session
}

// failingServed names what is wrong with what is served.
func failingServed(d httpd.Serving) (bad []string) {
	if d.Error != "" {
		bad = append(bad, d.Error)
	}
	for _, c := range d.Channels {
		if c.State == capture.StateOK {
			continue
		}
		var of []string
		for _, x := range c.Sessions {
			if x.Fault != "" {
				of = append(of, servedName(x))
			}
		}
		bad = append(bad, c.Channel+" ("+strings.Join(of, ", ")+")")
	}
	return bad
}
