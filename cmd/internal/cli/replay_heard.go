package cli

import (
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/store"
)

// notHeard is what of a session is not replayed as it was heard, in the
// summary.
type notHeard struct {
	Session   string       `json:"session"` // as recorded
	FirstSeq  moldcast.Seq `json:"first_seq,omitempty"`
	LastSeq   moldcast.Seq `json:"last_seq,omitempty"`
	From      *time.Time   `json:"from_time,omitempty"`
	To        *time.Time   `json:"to_time,omitempty"`
	Datagrams uint64       `json:"datagrams,omitempty"`
	Why       string       `json:"why"`
}

// checkHeard refuses what does not go with --as-heard.
func (f *replayFlags) checkHeard(c *cobra.Command) error {
	if !f.asHeard {
		return nil
	}
	for _, flag := range []string{"loss", "burst-loss", "duplicate", "reorder", "reorder-depth", "delay-jitter", "impair-log", "stress", "from-peak", "rate"} {
		if c.Flags().Changed(flag) {
			return usagef("--as-heard and --%s: what the lines brought is replayed, and nothing else", flag)
		}
	}
	switch {
	case f.packets != "original":
		return usagef("--as-heard and --packets %s: the packets are those that the lines brought", f.packets)
	case f.onHole == "wait":
		return usagef("--as-heard and --on-hole wait: want skip or stop")
	}
	return nil
}

// asHeard makes of each session a stream for each of its lines. Ranges are of
// time: from when the first message of the range belongs, to when the one
// behind the last does.
func (e *env) asHeard(streams []*replayStream) (out []*replayStream, missing []notHeard, err error) {
	for _, s := range streams {
		log, err := s.view.Log()
		switch {
		case errors.Is(err, store.ErrNoLog):
			return nil, nil, faultf("--as-heard: %v was recorded without a line log: `capture --line-log on` keeps one", s.ref)
		case err != nil:
			return nil, nil, err
		case log.Lines() > len(lineNames):
			return nil, nil, faultf("--as-heard: %v was heard on %d lines; only A and B can be replayed", s.ref, log.Lines())
		case log.Lines() == len(lineNames) && !s.lineB.IsValid():
			return nil, nil, usagef("--as-heard: %v was heard on two lines: give --line-b G:P for the second", s.ref)
		}
		from, to, err := heardBounds(s)
		if err != nil {
			return nil, nil, err
		}
		for _, m := range log.Missing() {
			if from != 0 && m.To != 0 && m.To < from || to != 0 && m.From >= to {
				continue
			}
			n := notHeard{Session: s.ref.String(), Datagrams: m.Datagrams, Why: m.Why}
			if !m.Range.Empty() {
				n.FirstSeq, n.LastSeq = m.Range.First, m.Range.Next-1
			}
			if m.From != 0 {
				t := m.From.Time()
				n.From = &t
			}
			if m.To != 0 {
				t := m.To.Time()
				n.To = &t
			}
			e.log.Warn("not replayed as heard", "session", n.Session, "messages", m.Range, "from", m.From.Time(), "to", m.To.Time(), "datagrams", n.Datagrams, "why", n.Why)
			missing = append(missing, n)
		}
		for line := range log.Lines() {
			x := &replayStream{Stream: s.Stream, ref: s.ref, view: s.view, group: s.group, line: line}
			if line > 0 {
				x.group = s.lineB
			}
			x.Marks = nil
			x.Heard = func(at moldcast.Stamp) (replay.HeardSource, error) {
				return &heardLine{cursor: log.Line(line, max(at, from)), view: s.view, to: to, of: x, env: e}, nil
			}
			out = append(out, x)
		}
	}
	return out, missing, nil
}

// heardBounds is the times between which what was heard is asked for; 0: no
// bound.
func heardBounds(s *replayStream) (from, to moldcast.Stamp, err error) {
	first, head := s.view.Bounds()
	if end, ok := s.view.Ended(); ok {
		head = max(head, end)
	}
	at := func(q moldcast.Seq) (moldcast.Stamp, error) {
		c := s.view.Cursor(q)
		defer c.Close()
		for {
			p, err := c.Next()
			if errors.As(err, new(*moldcast.HoleError)) || errors.As(err, new(*store.CorruptError)) {
				continue
			}
			if errors.Is(err, io.EOF) {
				return 0, nil
			}
			return p.Time, err
		}
	}
	if s.Range.First > first {
		if from, err = at(s.Range.First); err != nil {
			return 0, 0, err
		}
	}
	if s.Range.Next < head {
		to, err = at(s.Range.Next)
	}
	return from, to, err
}

// heardLine makes the datagrams of a line again, of what the archive holds.
type heardLine struct {
	cursor interface {
		Next() (moldcast.Heard, error)
		Close() error
	}
	view *store.View
	to   moldcast.Stamp // 0: to the end
	of   *replayStream
	env  *env
	buf  []byte
}

// differed is why a datagram is not made again that had other bytes than what
// is stored.
const differed moldcast.HoleReason = "heard with other bytes"

// Next implements replay.HeardSource.
func (l *heardLine) Next() (moldcast.Heard, []byte, error) {
	lacks := func(r moldcast.Range, why moldcast.HoleReason) error {
		return &moldcast.HoleError{Hole: moldcast.Hole{Range: r, Reason: why}}
	}
	h, err := l.cursor.Next()
	var bad *store.CorruptError
	switch {
	case errors.As(err, &bad):
		l.env.log.Error("a part of the line log is damaged and not replayed", "session", l.of.ref, "line", mcast.LineName(l.of.line), "error", bad)
		l.of.damaged.Add(1)
		return h, nil, &moldcast.HoleError{Hole: moldcast.Hole{Range: bad.Range, Reason: moldcast.Damaged}}
	case err != nil:
		return h, nil, err
	case l.to != 0 && h.Stamp >= l.to:
		return h, nil, io.EOF
	case !h.Data():
		return h, nil, nil
	case h.Flags&moldcast.Differs != 0:
		return h, nil, lacks(h.Range(), differed)
	}
	l.buf = l.buf[:0]
	for r := h.Range(); !r.Empty(); {
		out, n, err := l.view.Append(l.buf, r.First, int(r.Len()), moldcast.MaxDatagram, true)
		if err != nil {
			var hole *moldcast.HoleError
			why := moldcast.NotCaptured
			switch {
			case errors.As(err, &hole):
				why = hole.Hole.Reason
			case errors.As(err, &bad):
				why = moldcast.Damaged
				l.of.damaged.Add(1)
			case !errors.Is(err, store.ErrBelow) && !errors.Is(err, store.ErrBeyond):
				return h, nil, err
			}
			return h, nil, lacks(h.Range(), why)
		}
		l.buf, r.First = out, r.First+moldcast.Seq(n)
	}
	return h, l.buf, nil
}

func (l *heardLine) Close() error { return l.cursor.Close() }

// marksOf gives the recorded heartbeats of a session.
func (e *env) marksOf(s *replayStream) func(moldcast.Seq) (replay.MarkSource, error) {
	return func(from moldcast.Seq) (replay.MarkSource, error) {
		c, err := s.view.Marks(from)
		if err != nil {
			return nil, err
		}
		return &recordedMarks{MarkCursor: c, of: s, env: e}, nil
	}
}

// recordedMarks passes over blocks that cannot be read: what they hold besides
// is said where it is replayed.
type recordedMarks struct {
	*store.MarkCursor
	of  *replayStream
	env *env
}

func (m *recordedMarks) Next() (moldcast.Mark, error) {
	for {
		k, err := m.MarkCursor.Next()
		var bad *store.CorruptError
		if !errors.As(err, &bad) {
			return k, err
		}
		m.env.log.Debug("heartbeats cannot be read", "session", m.of.ref, "err", bad)
	}
}
