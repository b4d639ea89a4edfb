package replay

import (
	"errors"
	"io"

	"github.com/moldtape/moldtape/moldcast"
)

// hear is feed.advance of a line that is replayed as it was heard.
func (f *feed) hear() error {
	h, framed, err := f.heard.Next()
	var missing *moldcast.HoleError
	switch {
	case errors.Is(err, io.EOF):
		f.head = event{kind: end, first: f.pos, next: f.pos, time: f.high}
		return nil
	case errors.As(err, &missing):
		r := missing.Hole.Range
		f.head = event{kind: hole, first: r.First, next: r.Next, time: f.high, reason: missing.Hole.Reason}
		return nil
	case err != nil:
		return err
	}
	f.high = max(f.high, h.Stamp)
	f.head = event{kind: packet, count: h.Count, first: h.First, next: h.Range().Next, framed: framed, time: f.high}
	if h.Data() {
		f.pos = max(f.pos, f.head.next)
	}
	return nil
}

// markFeed gives the recorded heartbeats of a stream that goes out on one line:
// of each the first that any line brought.
type markFeed struct {
	src  MarkSource // nil: none, or through
	mark moldcast.Mark
	some bool // mark is the next

	begun bool           // something of the stream was seen
	said  moldcast.Stamp // of the newest event
	seq   moldcast.Seq   // that the newest heartbeats carry
	beats map[uint8]int  // so many of them on each line
	sent  int            // of them
}

// before is whether a heartbeat comes before e, which is the next event
// otherwise, and when. Those before the first event and behind the last one are
// not sent.
func (m *markFeed) before(e *event) (at moldcast.Stamp, due bool, err error) {
	if !m.begun {
		m.begun, m.said = true, e.time
	}
	for e.kind != end {
		if !m.some {
			if m.mark, err = m.src.Next(); errors.Is(err, io.EOF) {
				m.close()
				return 0, false, nil
			} else if err != nil {
				return 0, false, err
			}
			m.some = true
		}
		if m.mark.Stamp > e.time {
			break
		}
		m.some = false
		if m.mark.Stamp >= m.said && m.first(m.mark) {
			m.said = m.mark.Stamp
			return m.said, true, nil
		}
	}
	m.said = max(m.said, e.time)
	return 0, false, nil
}

// first reports whether k is a heartbeat that no other line brought: on its
// line it is one more that carries this sequence than on any.
func (m *markFeed) first(k moldcast.Mark) bool {
	if k.Kind != moldcast.Heartbeat || k.Next < m.seq {
		return false
	}
	if k.Next > m.seq || m.beats == nil {
		m.seq, m.sent, m.beats = k.Next, 0, map[uint8]int{}
	}
	m.beats[k.Line]++
	if m.beats[k.Line] <= m.sent {
		return false
	}
	m.sent = m.beats[k.Line]
	return true
}

func (m *markFeed) close() {
	if m.src != nil {
		closeSource(m.src)
		m.src = nil
	}
}
