package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// maxShown is how many holes, segments and minutes the table for people
// lists; --json has them all.
const maxShown = 40

func newShowCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:     "show SESSION",
		Short:   "Describe one recorded session: holes, segments, rates, lines",
		Example: "  moldtape show itch/000007525B --archive /var/lib/moldtape",
		Args:    sessionArg("show"),
		RunE:    func(_ *cobra.Command, args []string) error { return e.show(args[0]) },
	}
	e.addArchive(c)
	e.addJSON(c, "one JSON document on stdout")
	return c
}

func (e *env) show(name string) error {
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	ref, err := a.Find(name)
	if err != nil {
		return err
	}
	d, err := a.Show(ref)
	if err != nil {
		return err
	}
	e.sayLive(d.Info)
	for _, f := range d.Faults {
		fmt.Fprintln(e.stderr, "moldtape: "+f)
	}
	if e.json {
		return e.printJSON(d)
	}
	return e.printDetail(d)
}

// mergedText says what was merged before it was sealed; empty where nothing
// was to be.
func mergedText(d store.Detail) string {
	n := 0
	for _, s := range d.SegmentList {
		if s.Merged > 0 {
			n++
		}
	}
	if n == 0 && d.Unmerged == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d segments, %s written once more; %d left as they are", n, len(d.SegmentList), humanize.IBytes(d.BytesMerged), d.Unmerged)
}

func (e *env) printDetail(d store.Detail) error {
	t := table(e.stdout)
	row(t, "session", d.Ref())
	row(t, "state", d.State)
	row(t, "sequences", fmt.Sprintf("first %d, next %d, durable %d, head %d", d.FirstSeq, d.NextSeq, d.DurableSeq, d.HeadSeq))
	if d.EndSeq != nil {
		row(t, "ended", fmt.Sprintf("next would be %d", *d.EndSeq))
	}
	messages := humanize.Comma(int64(d.Messages))
	if d.TailMessages > 0 {
		messages += fmt.Sprintf(", of them %s not in a block yet", humanize.Comma(int64(d.TailMessages)))
	}
	row(t, "messages", messages)
	row(t, "repaired", repairedText(d))
	if text := filledText(d.FilledList); text != "" {
		row(t, "filled later", text)
	}
	if len(d.HoleList) > 0 {
		var n uint64
		for _, h := range d.HoleList {
			n += uint64(h.LastSeq-h.FirstSeq) + 1
		}
		row(t, "missing", fmt.Sprintf("%s in %s", count(n, "message"), count(len(d.HoleList), "hole")))
	}
	row(t, "bytes", fmt.Sprintf("%s framed, %s on disk", humanize.IBytes(d.BytesRaw), humanize.IBytes(d.BytesDisk)))
	if text := mergedText(d); text != "" {
		row(t, "merged", text)
	}
	row(t, "time", fullTime(d.FirstTime)+" .. "+fullTime(d.LastTime))
	row(t, "recorded", recordedText(d.SegmentList))
	if d.PrunedMessages > 0 {
		row(t, "pruned", humanize.Comma(int64(d.PrunedMessages))+" messages")
	}
	if d.Hold != nil {
		row(t, "on hold", fmt.Sprintf("%s (%s, %s)", d.Hold.Reason, d.Hold.By, shortTime(&d.Hold.Time)))
	}
	if d.Feed.Increments == moldcast.Rising {
		fmt.Fprintln(e.stdout, "numbers only rise: those that were not heard are no holes")
	}
	for i, g := range d.Groups {
		row(t, "line "+string(rune('A'+i)), g)
	}
	if err := t.Flush(); err != nil {
		return err
	}

	section := func(title string, n int, header []any, cells func(i int) []any) error {
		fmt.Fprintf(e.stdout, "\n%s (%d)\n", title, n)
		if n == 0 {
			return nil
		}
		t := table(e.stdout)
		row(t, header...)
		for i := range min(n, maxShown) {
			row(t, cells(i)...)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if n > maxShown {
			fmt.Fprintf(e.stdout, "… and %d more; --json lists all\n", n-maxShown)
		}
		return nil
	}
	err := section("holes", len(d.HoleList), []any{"FIRST", "LAST", "REASON", "RECORDED"}, func(i int) []any {
		h := d.HoleList[i]
		return []any{h.FirstSeq, h.LastSeq, h.Reason, fullTime(h.Time)}
	})
	if err != nil {
		return err
	}
	err = section("segments", len(d.SegmentList), []any{"SEGMENT", "SEALED", "FIRST", "LAST", "RUNS", "BLOCKS", "MESSAGES", "DISK", "NODE", "OPENED", "SEALED AT", "FAULT"}, func(i int) []any {
		s := d.SegmentList[i]
		return []any{s.Segment, yesNo(s.Sealed), s.FirstSeq, s.LastSeq, s.Runs, s.Blocks, humanize.Comma(int64(s.Messages)), humanize.IBytes(s.BytesDisk), nodeText(s.Node), shortTime(s.Opened), shortTime(s.SealedAt), s.Fault}
	})
	if err != nil {
		return err
	}
	if len(d.SnapshotList) > 0 {
		err = section("snapshots", len(d.SnapshotList), []any{"SEQ", "BYTES", "STORED", "SHA-256", "FAULT"}, func(i int) []any {
			x := d.SnapshotList[i]
			return []any{x.Seq, humanize.Comma(int64(x.Bytes)), shortTime(x.Time), x.Sum, x.Fault}
		})
		if err != nil {
			return err
		}
	}
	header := []any{"LINE", "PACKETS", "MESSAGES", "BYTES"}
	if len(d.FilledList) > 0 {
		header = append(header, "FILLED LATER")
	}
	err = section("lines", len(d.Lines), header, func(i int) []any {
		l := d.Lines[i]
		cells := []any{l.Line, humanize.Comma(int64(l.Pieces)), humanize.Comma(int64(l.Messages)), humanize.IBytes(l.Bytes)}
		if len(d.FilledList) > 0 {
			cells = append(cells, humanize.Comma(int64(l.Filled)))
		}
		return cells
	})
	if err != nil {
		return err
	}
	if err := section("captures", len(d.CaptureList), []any{"BEGAN", "UNTIL", "NODE", "LINE", "PACKETS", "LOST", "FIRST", "SKEW 99%", "DISORDER MAX"}, func(i int) []any {
		c := d.CaptureList[i]
		cells := []any{shortTime(&c.Began), shortTime(&c.Until), nodeText(c.Node)}
		var st capture.CaptureStats
		if json.Unmarshal(c.Stats, &st) != nil {
			return cells // of another version
		}
		var cols [6][]string
		for _, l := range st.Lines {
			for k, v := range []any{l.Line, humanize.Comma(int64(l.Packets)), lossText(l), firstText(l), secondsText(l.Skew.P99), l.Disorder.Max} {
				cols[k] = append(cols[k], fmt.Sprint(v))
			}
		}
		for _, col := range cols {
			cells = append(cells, strings.Join(col, " / "))
		}
		return cells
	}); err != nil {
		return err
	}
	return section("minutes", len(d.Rates), []any{"MINUTE", "MESSAGES", "PER SECOND", "BYTES"}, func(i int) []any {
		r := d.Rates[i]
		return []any{r.Minute.Format(time.RFC3339), humanize.Comma(int64(r.Messages)), humanize.Comma(int64(float64(r.Messages) / covered(r.Minute, d.FirstTime, d.LastTime))), humanize.IBytes(r.Bytes)}
	})
}

// repairedText tells how much no line brought live here: what came as an answer
// to a request, and what was filled later, also from where a line brought it.
func repairedText(d store.Detail) string {
	var n, all uint64
	for _, l := range d.Lines {
		all += l.Messages
		if l.Line == "answer" {
			n += l.Messages
		} else {
			n += l.Filled
		}
	}
	s := count(n, "message")
	if all > 0 {
		s += fmt.Sprintf(" (%.4g %%)", 100*float64(n)/float64(all))
	}
	return s
}

// filledText tells what was brought in when the session was recorded already,
// and from where.
func filledText(list []store.FilledInfo) string {
	var n uint64
	var from []string
	for _, f := range list {
		n += f.Messages
		from = append(from, fmt.Sprintf("%s from %s", humanize.Comma(int64(f.Messages)), f.Source))
	}
	if n == 0 {
		return ""
	}
	if len(list) == 1 {
		from[0] = "from " + list[0].Source
	}
	by := list[0].By
	return fmt.Sprintf("%s by %s, %s", count(n, "message"), by, strings.Join(from, ", "))
}

// recordedText tells who recorded a session, and from when to when.
func recordedText(list []store.SegmentInfo) string {
	var nodes []string
	var from, to *time.Time
	sealed := true
	for _, s := range list {
		if !slices.Contains(nodes, nodeText(s.Node)) {
			nodes = append(nodes, nodeText(s.Node))
		}
		if s.Opened != nil && (from == nil || s.Opened.Before(*from)) {
			from = s.Opened
		}
		if s.SealedAt != nil && (to == nil || s.SealedAt.After(*to)) {
			to = s.SealedAt
		}
		sealed = sealed && s.Sealed
	}
	if len(list) == 0 {
		return "-"
	}
	end := shortTime(to)
	if !sealed {
		end = "not sealed yet"
	}
	return fmt.Sprintf("by %s, %s .. %s", strings.Join(nodes, ", "), shortTime(from), end)
}

func nodeText(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// covered is how many seconds of a minute a session spans, at least one.
func covered(minute time.Time, first, last *time.Time) float64 {
	from, to := minute, minute.Add(time.Minute)
	if first != nil && first.After(from) {
		from = *first
	}
	if last != nil && last.Before(to) {
		to = *last
	}
	return max(to.Sub(from).Seconds(), 1)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
