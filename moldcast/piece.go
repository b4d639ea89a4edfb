package moldcast

import (
	"fmt"
	"time"
)

// Stamp is a wall-clock time: ns since 1970-01-01T00:00:00Z. 0 is "none".
type Stamp int64

// Time is s in UTC.
func (s Stamp) Time() time.Time { return time.Unix(0, int64(s)).UTC() }

// StampOf is t as a Stamp; t must lie in 1678..2262.
func StampOf(t time.Time) Stamp { return Stamp(t.UnixNano()) }

// PieceFlags says how a piece came to be stored.
type PieceFlags uint8

// Repaired: the piece answered a request. Its Time was interpolated between
// its live neighbours, and its boundaries are not those of an original packet.
// What comes from another archive keeps what it has there.
const Repaired PieceFlags = 1 << 0

// Piece is a run of consecutive messages of one packet, with all that an
// archive keeps of it: the unit in which messages enter and leave a store.
// Usually it is the whole packet; where part of the packet was held already,
// the rest.
type Piece struct {
	First Seq
	Msgs  Messages // at least one
	Time  Stamp    // when the messages belong
	Heard Stamp    // when the stored copy arrived; equal to Time for what was heard live
	Line  uint8    // 0 is line A, 1 line B …; AnswerLine for retransmissions
	Flags PieceFlags
}

// AnswerLine is the line of what answered a request.
const AnswerLine = 0xFF

// Range is the sequences of p.
func (p Piece) Range() Range { return Range{First: p.First, Next: p.First + Seq(p.Msgs.Len())} }

// Mark is a heartbeat or End of Session as it was heard.
type Mark struct {
	Kind  Kind // Heartbeat or End
	Next  Seq  // the sequence it carried: one past the last message sent
	Stamp Stamp
	Line  uint8
}

// Heard is one datagram of a session as a line brought it: what was on the
// wire, but for the messages, which the archive holds.
type Heard struct {
	Stamp Stamp
	First Seq        // that it carried
	Turn  uint32     // order of hearing, on whatever line, modulo 2^32
	Count uint16     // as on the wire: 0 is a heartbeat, EndCount an End of Session
	Line  uint8      // 0 is line A, 1 line B …
	Flags HeardFlags // Differs
}

// HeardFlags says more of a Heard.
type HeardFlags uint8

// Differs: messages came with other bytes than those that are held, and were
// dropped.
const Differs HeardFlags = 1 << 0

// Data reports whether h brought messages.
func (h Heard) Data() bool { return h.Count != 0 && h.Count != EndCount }

// Range is the sequences of its messages.
func (h Heard) Range() Range {
	r := Range{First: h.First, Next: h.First}
	if h.Data() {
		r.Next += Seq(h.Count)
	}
	return r
}

// Hole is a missing range of an archive.
type Hole struct {
	Range  Range
	Reason HoleReason
	Time   Stamp // when it was put on record; 0 where there is no record

	// Before and After are the times of the messages on either side (0: none):
	// what a fill's Time is interpolated from.
	Before, After Stamp
}

// HoleReason says why a range is missing.
type HoleReason string

// The reasons of a hole.
const (
	NotCaptured   HoleReason = "not_captured"  // no record says more
	Unrecoverable HoleReason = "unrecoverable" // waited and, if there was anybody, asked for until the budget was spent
	Damaged       HoleReason = "damaged"       // was stored; the disk gave it back wrong
	Pruned        HoleReason = "pruned"        // was stored; retention removed it

	// Absent: numbers of the session only rise (Rising), and none of these was
	// heard. Such ranges are no holes, and no list of holes has them.
	Absent HoleReason = "absent"
)

// HoleError is what a reader meets at a range that an archive lacks.
type HoleError struct{ Hole Hole }

func (e *HoleError) Error() string {
	return fmt.Sprintf("hole %v (%s)", e.Hole.Range, e.Hole.Reason)
}

// Held is what an archive holds of a session: what a capture resumes from.
type Held struct {
	First, Next, Head Seq // Next: no hole below; Head: one past the highest. All 0 for a new session
	Holes             []Hole
	HeadTime          Stamp // time of the highest message, 0 if none: the next gap's Before
	Ended             bool
	End               Seq // one past the last message, when Ended

	// Floor: nothing lower is wanted: retention removed what was held there, or
	// around it. 0: nothing was removed.
	Floor Seq
}
