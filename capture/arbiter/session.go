package arbiter

import (
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/hist"
)

// Output takes what an Arbiter decides. Its methods are called from within
// the Arbiter's, one at a time; they must not block, call back into the
// Arbiter, or keep p's bytes after they return.
type Output interface {
	// Open is called when a session is taken up, and returns what the archive
	// holds of it; the zero Held for a new one. After an error it is called
	// again, with another handle, at a later packet.
	Open(s *Session) (moldcast.Held, error)
	// Append stores p, which is not held yet: in order, or an island, or a
	// fill. False: the store took nothing of it; it stays missing, or waits.
	Append(s *Session, p moldcast.Piece) bool
	// Room reports whether Append takes something again. It is asked now and then
	// after one has failed; until then nothing is asked for of the session.
	Room(s *Session) bool
	// Covers is the leading part of r that the store holds wholly (true), or
	// holds nothing of. It is asked only for what was given up long ago.
	Covers(s *Session, r moldcast.Range) (part moldcast.Range, held bool)
	// Mark reports a heartbeat or End of Session of a line, whenever one that
	// is believed comes. An End is accepted only at Ended.
	Mark(s *Session, m moldcast.Mark)
	// Heard reports a datagram of a line that is believed, before what becomes of
	// it: all that LineStats count, and those dropped for a conflict.
	Heard(s *Session, h moldcast.Heard)
	// Hole reports a range whose budget is spent, each once.
	Hole(s *Session, h moldcast.Hole)
	// Ended reports that an End of Session was heard and that everything up to
	// it is stored, or given up. Should data beyond that end come at
	// once, contradicting it, the session goes on, and may end again.
	Ended(s *Session)
	// Withdrawn reports that the End of Session that was reported last does not
	// hold: others denied it (Limits.Withdraw). Another may follow.
	Withdrawn(s *Session)
	// Superseded reports that the sender of was goes on as by: a new take, or
	// another session, on the same lines, that began after was had fallen
	// silent. Close follows for was.
	Superseded(was, by *Session)
	// Conflict reports the first message of the session that was repeated with
	// other bytes than those held.
	Conflict(s *Session, at moldcast.Seq, line int)
	// Compare asks that messages be compared with what the store holds of the
	// session, which may read its disk: not now, but in the order of the calls,
	// and what came of it is given to Arbiter.Compared. False: there is no room
	// for it.
	Compare(c *Comparison) bool
	// Fork begins the next take of a session, which was is the latest of: from
	// now on, next is the handle. Close follows for was. After an error was
	// goes on.
	Fork(was, next *Session, f Fork) error
	// Copy asks that what was holds of ranges be copied to next: not now, but
	// by Arbiter.Copied. Close follows for was, and must wait for that.
	Copy(was, next *Session, ranges []moldcast.Range)
	// Close reports that the Arbiter has forgotten the session: it ended and
	// was silent for Limits.Grace, or another take took its place. A later
	// packet opens it anew.
	Close(s *Session)
}

// State of a session.
type State uint8

// The states of a session.
const (
	StateLive  State = iota
	StateEnded       // the end was accepted
)

func (s State) String() string {
	if s == StateEnded {
		return "ended"
	}
	return "live"
}

// Session is an open session of a channel: the handle that Output gets.
// Its Arbiter owns it; the methods may be called wherever the Arbiter's may.
type Session struct {
	// Ref is for the Output, which may keep there what it needs of the session.
	Ref any

	name     moldcast.Session
	m        *gap.Machine
	missing  ledger
	known    hashes
	asked    gap.Set // of what is missing, what a server was asked for
	wait     waiting
	opened   moldcast.Instant
	heard    moldcast.Instant // of the last packet
	sparse   bool             // numbers only rise
	live     bool             // began at what was heard first: lower packets may come within the start window
	asks     bool             // a request was ever handed out
	conflict bool             // one was reported
	hasEnd   bool             // end is what the sender said
	ended    bool             // and it was accepted
	end      moldcast.Seq
	ends     int              // packets that said so
	endAt    moldcast.Instant // the last sign of the sender going on, or of the end

	resumed bool         // the archive held some of it
	high    moldcast.Seq // one past the highest message held
	tracks  []*track
	ahead   uint64 // serial of the newest packet that brought more than the highest
	agreed  uint64 // serial of the newest packet of data that did not contradict what is held
	low     []low  // by line
	parked  int    // packets of its tracks that wait for a comparison
	forks   []moldcast.Instant
	past    *past
	claimed gap.Claim
	floor   moldcast.Seq     // nothing lower is wanted any more; 0: anything is
	below   moldcast.Range   // below the first, was asked for because somebody wants it
	belowAt moldcast.Instant // when

	full   bool             // the store refused something, and has had no room since
	roomAt moldcast.Instant // when it is asked again

	lines   []lineState
	arrived arrivals
	waited  hist.Histogram
}

// Name is the name of s on the wire.
func (s *Session) Name() moldcast.Session { return s.name }

// State is whether the end of s was accepted.
func (s *Session) State() State {
	if s.ended {
		return StateEnded
	}
	return StateLive
}

// First is the lowest sequence wanted.
func (s *Session) First() moldcast.Seq { return s.m.First() }

// Next is the lowest sequence that is missing, as far as the gap machine
// knows: what waits is not missing. The store's watermark is the one to show.
func (s *Session) Next() moldcast.Seq { return s.m.Next() }

// Head is one past the highest sequence heard or revealed.
func (s *Session) Head() moldcast.Seq { return s.m.Head() }

// End is one past the last message, once an End of Session was heard.
func (s *Session) End() (end moldcast.Seq, ok bool) { return s.end, s.hasEnd }

// Missing is the number of ranges below Head that are known to be missing. The
// store's holes are the ones to show: of those that were given up, only so many
// are remembered.
func (s *Session) Missing() int { return len(s.missing.gaps) }

// Stats are those of the session's gap machine.
func (s *Session) Stats() gap.Stats { return s.m.Stats() }

// OpenGaps is how many gaps are asked or waited for: neither disorder still,
// nor given up.
func (s *Session) OpenGaps() int { return s.m.OpenGaps() }

// OpenMissing is what is missing in OpenGaps, in messages, and since when the
// oldest of them is.
func (s *Session) OpenMissing() (messages uint64, since moldcast.Instant) { return s.m.OpenMissing() }

// Gaps calls fn with every missing range in order, until it returns false.
func (s *Session) Gaps(fn func(gap.Gap) bool) { s.m.Gaps(fn) }
