package httpd

import (
	"context"
	"strconv"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Serving is the answer of /status of a node that serves an archive without
// capturing.
type Serving struct {
	Node
	Channels []Served `json:"channels"`
}

// Served is what is served of a channel.
type Served struct {
	Channel  string          `json:"channel"`
	State    string          `json:"state"`    // capture.StateOK, or StateDegraded: some session has a Fault
	Sessions []ServedSession `json:"sessions"` // the one written last at the end
}

// ServedSession is a session that is served, as the archive has it on disk.
type ServedSession struct {
	Session    string       `json:"session"` // printed form
	Take       int          `json:"take"`
	State      string       `json:"state"` // live (another process writes it), open or ended
	FirstSeq   moldcast.Seq `json:"first_seq"`
	NextSeq    moldcast.Seq `json:"next_seq"`    // exclusive, as the next two
	DurableSeq moldcast.Seq `json:"durable_seq"` // what is sealed is durable
	HeadSeq    moldcast.Seq `json:"head_seq"`
	Messages   uint64       `json:"messages"`
	Holes      int          `json:"holes"`
	Segments   int          `json:"segments"`
	LastTime   *time.Time   `json:"last_time"`       // of its messages; nil without any
	Fault      string       `json:"fault,omitempty"` // what of it cannot be served
}

// SessionLive is the State of a session that another process writes.
const SessionLive = "live"

// ServedFunc tells what is served; trouble is what is wrong with the archive as
// a whole, else empty. An error says that the archive does not answer.
type ServedFunc func(context.Context) (channels []Served, trouble string, err error)

func (c *Served) collect(e emit) {
	e.flag("up", "Whether the channel is ok, or has ended.", severity(c.State) < 2)
	e.gauge("served_sessions", "Sessions that are served.", float64(len(c.Sessions)))
	for i := range c.Sessions {
		// Of a long archive, those that change.
		if x := &c.Sessions[i]; x.State == SessionLive {
			watermarks(e.with("session", x.Session, "take", strconv.Itoa(x.Take)), x.FirstSeq, x.NextSeq, x.DurableSeq, x.HeadSeq, x.Segments, x.Holes)
		}
	}
}

// watermarks are the metrics that every session has.
func watermarks(e emit, first, next, durable, head moldcast.Seq, segments, holes int) {
	e.gauge("session_first_seq", "First sequence.", float64(first))
	e.gauge("session_next_seq", "One past what is held without a hole.", float64(next))
	e.gauge("session_durable_seq", "One past what is durable without a hole.", float64(durable))
	e.gauge("session_head_seq", "One past the highest held.", float64(head))
	e.gauge("session_segments", "Segments.", float64(segments))
	e.gauge("session_holes", "Ranges that are missing.", float64(holes))
}
