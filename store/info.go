package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Ref names one recording: the Take-th, from 1, of Session on Channel.
type Ref struct {
	Channel string
	Session moldcast.Session
	Take    int
}

// String is CHANNEL/SESSION, with @TAKE where Take is not 1.
func (r Ref) String() string {
	if r.Take == 1 {
		return r.Channel + "/" + r.Session.String()
	}
	return fmt.Sprintf("%s/%s@%d", r.Channel, r.Session, r.Take)
}

// ValidChannel reports whether name is a channel: 1 to 64 of
// A-Z a-z 0-9 . _ : - and neither "." nor "..".
func ValidChannel(name string) bool {
	if len(name) == 0 || len(name) > 64 || name == "." || name == ".." {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("._:-", c) >= 0) {
			return false
		}
	}
	return true
}

// State says what is going on with a session.
type State string

// The states of a session.
const (
	Live   State = "live"  // somebody writes it now
	Ended  State = "ended" // its End of Session is on record, or its sender went on as another take or session
	Opened State = "open"  // neither
)

// Info describes a session: the fields of `sessions --json`, and with the
// lists below those of `show --json`.
type Info struct {
	Channel    string       `json:"channel"`
	Session    string       `json:"session"` // printed form
	Take       int          `json:"take"`
	State      State        `json:"state"`
	FirstSeq   moldcast.Seq `json:"first_seq"`
	NextSeq    moldcast.Seq `json:"next_seq"`    // no hole below; exclusive
	DurableSeq moldcast.Seq `json:"durable_seq"` // no hole below, and synced; exclusive
	HeadSeq    moldcast.Seq `json:"head_seq"`    // one past the highest stored
	Messages   uint64       `json:"messages"`
	Holes      int          `json:"holes"`
	BytesRaw   uint64       `json:"bytes_raw"`  // framed messages
	BytesDisk  uint64       `json:"bytes_disk"` // files of the segments
	FirstTime  *time.Time   `json:"first_time"` // earliest time of a message; nil without messages
	LastTime   *time.Time   `json:"last_time"`
	Segments   int          `json:"segments"`
	Fault      string       `json:"fault,omitempty"` // why it is not known in full

	// SupersededBy is the take or session that the sender went on as, without
	// an End of Session for this one.
	SupersededBy string `json:"superseded_by,omitempty"`

	// PrunedMessages is how many messages were held and then removed by
	// retention. FirstSeq is the first that is still held.
	PrunedMessages uint64 `json:"pruned_messages"`
	Hold           *Hold  `json:"hold"` // nil: none

	// BytesMerged is how many bytes of segments that are held merging wrote
	// once more, before their seals; Unmerged how many segments were left as
	// they are, though merging would have saved something.
	BytesMerged uint64 `json:"bytes_merged"`
	Unmerged    int    `json:"unmerged"`
}

// Ref is the name of the session.
func (i Info) Ref() Ref {
	s, _ := moldcast.ParseSession(i.Session)
	return Ref{Channel: i.Channel, Session: s, Take: i.Take}
}

// Detail is Info with what `show --json` adds.
type Detail struct {
	Info
	Ended       bool          `json:"ended"`
	EndSeq      *moldcast.Seq `json:"end_seq"` // one past the last message, when ended
	Groups      []string      `json:"groups"`  // of the lines, in order
	Feed        moldcast.Feed `json:"feed"`    // what the sender does, as it was recorded
	HoleList    []HoleInfo    `json:"hole_list"`
	FillList    []FillInfo    `json:"fill_list"`
	FilledList  []FilledInfo  `json:"filled_list"` // FillList summed up, what was filled again once
	PrunedList  []PrunedInfo  `json:"pruned_list"`
	CaptureList []CaptureInfo `json:"capture_list"`
	SegmentList []SegmentInfo `json:"segment_list"`

	// TailMessages are those of Messages that are in no block of a segment yet.
	TailMessages uint64 `json:"tail_messages,omitempty"`

	// SnapshotList is by their headers, in the order of sequences; they are no
	// part of BytesDisk.
	SnapshotList []SnapshotInfo `json:"snapshot_list"`

	Rates  []Rate     `json:"rates"`
	Lines  []LineInfo `json:"lines"`
	Faults []string   `json:"faults,omitempty"` // segments missing, or not known what they hold
}

// HoleInfo is one hole; both ends inclusive.
type HoleInfo struct {
	FirstSeq moldcast.Seq        `json:"first_seq"`
	LastSeq  moldcast.Seq        `json:"last_seq"`
	Reason   moldcast.HoleReason `json:"reason"`
	Time     *time.Time          `json:"time"` // when it was put on record; nil without a record
}

// PrunedInfo is a range that was held and then removed by retention; both
// ends inclusive.
type PrunedInfo struct {
	FirstSeq moldcast.Seq `json:"first_seq"`
	LastSeq  moldcast.Seq `json:"last_seq"`
}

// SegmentInfo is one segment. Its coverage may have holes between FirstSeq and LastSeq.
type SegmentInfo struct {
	Segment   string       `json:"segment"`
	Sealed    bool         `json:"sealed"`
	FirstSeq  moldcast.Seq `json:"first_seq"`
	LastSeq   moldcast.Seq `json:"last_seq"` // inclusive
	Runs      int          `json:"runs"`
	Blocks    int          `json:"blocks"`
	Messages  uint64       `json:"messages"`  // read from it: neither those that others replace nor damaged ones
	BytesRaw  uint64       `json:"bytes_raw"` // of these
	BytesDisk uint64       `json:"bytes_disk"`
	FirstTime *time.Time   `json:"first_time"`
	LastTime  *time.Time   `json:"last_time"`
	Node      string       `json:"node"`            // that recorded it; empty: it had no name
	Opened    *time.Time   `json:"opened"`          // by the clock of that node
	SealedAt  *time.Time   `json:"sealed_time"`     // nil while it is not sealed
	Fault     string       `json:"fault,omitempty"` // why it cannot be read

	// Merged is how many blocks it had before it was merged, and BytesMerged
	// what merging wrote; Unmerged is why it was not, though it was due.
	Merged      int    `json:"merged,omitempty"`
	BytesMerged uint64 `json:"bytes_merged,omitempty"`
	Unmerged    string `json:"unmerged,omitempty"`
}

// Rate is what one minute brought, by the times of the messages.
type Rate struct {
	Minute   time.Time `json:"minute"`
	Messages uint64    `json:"messages"`
	Bytes    uint64    `json:"bytes"` // framed
}

// LineInfo is what one line brought first; "unknown" is of messages whose block
// cannot be read. Filled is how many of Messages came later, from another
// archive, with the line on which that heard them, or from a server.
type LineInfo struct {
	Line     string `json:"line"` // "A", "B", …; "answer" for retransmissions
	Pieces   uint64 `json:"pieces"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"` // framed
	Filled   uint64 `json:"filled,omitempty"`
}
