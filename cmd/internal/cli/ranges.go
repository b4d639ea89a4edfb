package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
	"github.com/spf13/cobra"
)

// rangeFlags are --from-seq, --to-seq, --from-time and --to-time.
type rangeFlags struct {
	fromSeq, toSeq   string
	fromTime, toTime string
}

func (r *rangeFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&r.fromSeq, "from-seq", "", "first sequence `N`")
	f.StringVar(&r.toSeq, "to-seq", "", "last sequence `N`")
	f.StringVar(&r.fromTime, "from-time", "", "begin with the first message received at or after `T`: RFC 3339, or HH:MM:SS[.fraction] on the session's day (UTC)")
	f.StringVar(&r.toTime, "to-time", "", "end before the first message received at or after `T`")
}

// check finds wrong usage before any archive is opened; which of two times is
// the earlier may need the session's day.
func (r *rangeFlags) check() error {
	switch {
	case r.fromSeq != "" && r.fromTime != "":
		return usagef("--from-seq and --from-time: want one of them")
	case r.toSeq != "" && r.toTime != "":
		return usagef("--to-seq and --to-time: want one of them")
	}
	for flag, text := range map[string]string{"--from-time": r.fromTime, "--to-time": r.toTime} {
		if text != "" {
			if _, err := parseTimeOn(flag, text, time.Time{}); err != nil {
				return err
			}
		}
	}
	seqs := rangeFlags{fromSeq: r.fromSeq, toSeq: r.toSeq}
	_, err := seqs.resolve(moldcast.Range{}, time.Time{}, nil)
	return err
}

// resolve is the range asked for: held where no flag narrows it. A sequence
// asked for may lie outside held, a time never leads there. day is any time on
// the session's own day; seqAt finds the first message at or after a time.
func (r *rangeFlags) resolve(held moldcast.Range, day time.Time, seqAt func(moldcast.Stamp) moldcast.Seq) (moldcast.Range, error) {
	out := held
	if r.fromSeq != "" {
		n, err := parseSeq("--from-seq", r.fromSeq)
		if err != nil {
			return out, err
		}
		out.First = n
	}
	if r.toSeq != "" {
		n, err := parseSeq("--to-seq", r.toSeq)
		if err != nil {
			return out, err
		}
		out.Next = n + 1
	}
	var from, to moldcast.Stamp
	if r.fromTime != "" {
		t, err := parseTimeOn("--from-time", r.fromTime, day)
		if err != nil {
			return out, err
		}
		from = moldcast.StampOf(t)
		out.First = seqAt(from)
	}
	if r.toTime != "" {
		t, err := parseTimeOn("--to-time", r.toTime, day)
		if err != nil {
			return out, err
		}
		to = moldcast.StampOf(t)
		out.Next = seqAt(to)
	}
	switch {
	case r.fromSeq != "" && r.toSeq != "" && out.First >= out.Next:
		return out, usagef("--to-seq %s: want no less than --from-seq %s", r.toSeq, r.fromSeq)
	case r.fromTime != "" && r.toTime != "" && from > to:
		return out, usagef("--to-time %s: want no earlier than --from-time %s", r.toTime, r.fromTime)
	}
	return out, nil
}

// nothing says that of what is held the range asked for selects nothing.
func (r *rangeFlags) nothing(info store.Info, held moldcast.Range) string {
	s := fmt.Sprintf("%v holds %v", info.Ref(), held)
	if r.fromTime != "" || r.toTime != "" {
		s += fmt.Sprintf(", %s .. %s", fullTime(info.FirstTime), fullTime(info.LastTime))
	}
	s += ": nothing of it lies in the range asked for,"
	for _, f := range []struct{ flag, text string }{
		{"--from-seq", r.fromSeq}, {"--to-seq", r.toSeq}, {"--from-time", r.fromTime}, {"--to-time", r.toTime},
	} {
		if f.text != "" {
			s += " " + f.flag + " " + f.text
		}
	}
	return s
}

// parseSeq reads a sequence: 1..2^64-2.
func parseSeq(flag, s string) (moldcast.Seq, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n == ^uint64(0) {
		return 0, usagef("%s %q: want a sequence, 1 to 18446744073709551614", flag, s)
	}
	return moldcast.Seq(n), nil
}

// parseTimeOn reads RFC 3339, or a time of day on the UTC day of day.
func parseTimeOn(flag, s string, day time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil && t.Year() > 1678 && t.Year() < 2262 {
		return t, nil
	}
	t, err := time.Parse("15:04:05", s) // a fraction is taken too
	if err != nil {
		return t, usagef("%s %q: want RFC 3339, like 2016-09-13T20:50:31.5Z, or HH:MM:SS[.fraction]", flag, s)
	}
	y, m, d := day.UTC().Date()
	return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC), nil
}
