package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/store"
)

// recordedDay is when the recordings of these tests begin.
var recordedDay = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

// record makes an archive with one session whose messages come a second apart
// from recordedDay on; those of skip are missing.
func record(t *testing.T, name string, first, last moldcast.Seq, skip moldcast.Range) (*store.Archive, store.Ref) {
	t.Helper()
	a, err := store.OpenOrCreate(t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	s, err := moldcast.ParseSession(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.Writer("default", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	for q := first; q <= last; q++ {
		if skip.Contains(q) {
			continue
		}
		b := moldcast.AppendMessage(nil, fmt.Appendf(nil, "message %d", q))
		at := moldcast.StampOf(recordedDay.Add(time.Duration(q-first) * time.Second))
		if _, err := w.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(b, 1), Time: at, Heard: at}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return a, w.Ref()
}

// Both ends of a range, on a session that starts late and has a hole: off by one
// at neither, not broken by the hole, nor below the retained start.
func TestFaultStartAtATime(t *testing.T) {
	a, ref := record(t, "TAPE", 484311999, 484312098, moldcast.Range{First: 484312009, Next: 484312019}) // at 10:00:10..19
	v, err := a.View(ref)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	const first = moldcast.Seq(484311999)
	tests := []struct {
		name  string
		flags rangeFlags
		want  moldcast.Range // less first; the zero Range: nothing
		says  string
	}{
		{"everything", rangeFlags{}, moldcast.Range{First: 0, Next: 100}, ""},
		{"both sequences inclusive", rangeFlags{fromSeq: "484312001", toSeq: "484312003"}, moldcast.Range{First: 2, Next: 5}, ""},
		{"one message", rangeFlags{fromSeq: "484312001", toSeq: "484312001"}, moldcast.Range{First: 2, Next: 3}, ""},
		{"below the retained start", rangeFlags{fromSeq: "1", toSeq: "484311999"}, moldcast.Range{First: 0, Next: 1}, "begins at 484311999"},
		{"beyond the head", rangeFlags{toSeq: "18446744073709551614"}, moldcast.Range{First: 0, Next: 100}, ""},
		{"all beyond the head", rangeFlags{fromSeq: "484312099"}, moldcast.Range{}, ""},
		{"all below the start", rangeFlags{toSeq: "484311998"}, moldcast.Range{}, ""},
		{"exactly at a message", rangeFlags{fromTime: "10:00:02", toTime: "10:00:05"}, moldcast.Range{First: 2, Next: 5}, ""},
		{"just behind a message", rangeFlags{fromTime: "10:00:02.000000001", toTime: "10:00:05.000000001"}, moldcast.Range{First: 3, Next: 6}, ""},
		{"just before a message", rangeFlags{fromTime: "10:00:01.999999999", toTime: "10:00:04.999999999"}, moldcast.Range{First: 2, Next: 5}, ""},
		{"RFC 3339, another zone", rangeFlags{fromTime: "2026-03-02T12:00:02+02:00"}, moldcast.Range{First: 2, Next: 100}, ""},
		{"into the hole", rangeFlags{fromTime: "10:00:12", toTime: "10:00:22"}, moldcast.Range{First: 20, Next: 22}, ""},
		{"out of the hole", rangeFlags{toTime: "10:00:12"}, moldcast.Range{First: 0, Next: 20}, ""},
		{"before the start", rangeFlags{fromTime: "09:00:00"}, moldcast.Range{First: 0, Next: 100}, ""},
		{"after the end", rangeFlags{fromTime: "10:30:00"}, moldcast.Range{}, ""},
		{"to before the start", rangeFlags{toTime: "09:00:00"}, moldcast.Range{}, ""},
		{"to after the end", rangeFlags{toTime: "2027-01-01T00:00:00Z"}, moldcast.Range{First: 0, Next: 100}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var said bytes.Buffer
			e := &env{stderr: &said, log: slog.New(slog.DiscardHandler)}
			s := &replayStream{ref: ref, view: v}
			none, err := e.replayRange(s, &tt.flags)
			if err != nil {
				t.Fatal(err)
			}
			want := moldcast.Range{First: first + tt.want.First, Next: first + tt.want.Next}
			if tt.want == (moldcast.Range{}) {
				if none == "" {
					t.Errorf("got %v, want nothing", s.Range)
				}
				return
			}
			if none != "" || s.Range != want {
				t.Errorf("got %v (%s), want %v", s.Range, none, want)
			}
			if !strings.Contains(said.String(), tt.says) || tt.says == "" && said.Len() > 0 {
				t.Errorf("said %q, want %q", said.String(), tt.says)
			}
			src, err := s.Open(s.Range.First)
			if err != nil {
				t.Fatal(err)
			}
			defer src.(io.Closer).Close()
			if p, err := src.Next(); err != nil || p.First != s.Range.First {
				var h *moldcast.HoleError
				if !errors.As(err, &h) || h.Hole.Range.First != s.Range.First {
					t.Errorf("the source begins with %v, %v", p.Range(), err)
				}
			}
		})
	}
}

type script struct {
	steps  []any // a moldcast.Piece or an error
	closed bool
}

func (s *script) Next() (moldcast.Piece, error) {
	x := s.steps[0]
	s.steps = s.steps[1:]
	if err, ok := x.(error); ok {
		return moldcast.Piece{}, err
	}
	return x.(moldcast.Piece), nil
}
func (s *script) Close() error { s.closed = true; return nil }

// What the disk gave back wrong is a hole, with that reason.
func TestDamagedIsAHole(t *testing.T) {
	r := moldcast.Range{First: 5, Next: 9}
	sc := &script{steps: []any{
		moldcast.Piece{First: 4},
		fmt.Errorf("reading: %w", &store.CorruptError{Segment: "000001.seg", Range: r, Err: errors.New("crc")}),
		io.EOF,
	}}
	var damaged atomic.Uint64
	src := &recorded{cursor: sc, log: slog.New(slog.DiscardHandler), damaged: &damaged}
	if p, err := src.Next(); err != nil || p.First != 4 {
		t.Errorf("%+v, %v", p, err)
	}
	_, err := src.Next()
	var h *moldcast.HoleError
	if !errors.As(err, &h) || h.Hole.Range != r || h.Hole.Reason != moldcast.Damaged {
		t.Errorf("got %v, want a damaged hole", err)
	}
	if damaged.Load() != 1 {
		t.Errorf("%d damaged ranges counted, want 1", damaged.Load())
	}
	if _, err := src.Next(); err != io.EOF {
		t.Errorf("got %v", err)
	}
	if src.Close(); !sc.closed {
		t.Error("the cursor is not closed")
	}
}

type pressed struct{ log []string }

func (p *pressed) Toggle()                { p.log = append(p.log, "toggle") }
func (p *pressed) Scale(by float64)       { p.log = append(p.log, fmt.Sprint("scale ", by)) }
func (p *pressed) SeekBy(d time.Duration) { p.log = append(p.log, "seek "+d.String()) }
func (p *pressed) Step()                  { p.log = append(p.log, "step") }
func (p *pressed) Quit()                  { p.log = append(p.log, "quit") }

func TestKeys(t *testing.T) {
	for keys, want := range map[string]string{
		" ":                           "toggle",
		"+=-_":                        "scale 2, scale 2, scale 0.5, scale 0.5",
		"..":                          "step, step",
		"q":                           "quit",
		"\x1b[C\x1b[D\x1b[A\x1bOB":    "seek 10s, seek -10s, seek 1m0s, seek -1m0s",
		"\x1b[C\x1b":                  "seek 10s",
		"\x1b[":                       "",
		"\x1b[Z+xyz\x00\xff\x1b[5~ .": "scale 2, toggle, step",
	} {
		p := new(pressed)
		obeyKeys([]byte(keys), p)
		if got := strings.Join(p.log, ", "); got != want {
			t.Errorf("%q: %s, want %s", keys, got, want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	at := moldcast.StampOf(recordedDay.Add(1500 * time.Millisecond))
	for _, tt := range []struct {
		s    replay.Status
		want string
	}{
		{replay.Status{Speed: 1}, "starting  speed 1  0 packets  0 messages"},
		{replay.Status{Speed: 4, Position: at, Packets: 3, Messages: 9, Late: 1234567, MostLate: 2 * time.Second}, "2026-03-02 10:00:01.500  speed 4  late 1.23ms, at most 2s  3 packets  9 messages"},
		{replay.Status{Speed: 4, Position: at, Paused: true}, "2026-03-02 10:00:01.500  paused  0 packets  0 messages"},
		{replay.Status{Speed: 4, Position: at, Waiting: true}, "2026-03-02 10:00:01.500  waiting for a hole to be filled  0 packets  0 messages"},
		{replay.Status{Position: at, Ended: true}, "2026-03-02 10:00:01.500  ended  0 packets  0 messages"},
		{replay.Status{Position: at}, "2026-03-02 10:00:01.500  speed max  0 packets  0 messages"},
	} {
		if got := progressLine(tt.s); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
