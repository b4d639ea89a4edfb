package arbiter

import (
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// A recovery stream brings long gaps in bulk. Its messages enter as answers
// do: they fill what is missing, whoever asked, and reveal nothing.

// streamPiece is the most of a stream that is stored as one piece, in framed
// bytes: about a packet, so that times are interpolated as finely as those of
// answers.
const streamPiece = 1400

// Streamed is what came of OfferStream.
type Streamed struct {
	Gone      bool   // the session was closed, or another take took its place: nothing was used
	Taken     int    // leading messages that are dealt with; fewer than offered: the store has no room for the next, or see Conflicts
	New       uint64 // of these, those that were missing
	Conflicts uint64 // of these, those that are held with other bytes; what follows was not looked at
}

// OfferStream takes messages that a recovery stream brought, the first of them
// at first. What lies at or beyond the head of the session is not used.
func (a *Arbiter) OfferStream(now moldcast.Instant, stamp moldcast.Stamp, s *Session, first moldcast.Seq, msgs moldcast.Messages) (out Streamed) {
	if a.sessions[s.name] != s {
		return Streamed{Gone: true}
	}
	a.now, a.stamp = now, stamp
	for msgs.Len() > 0 {
		piece := msgs.Fit(moldcast.MaxCount, streamPiece)
		var part moldcast.Messages
		part, msgs = msgs.Split(max(piece, 1))
		if !a.streamed(now, stamp, s, first, part, &out) {
			break
		}
		first += moldcast.Seq(part.Len())
	}
	if out.New > 0 {
		s.heard = now
		s.m.Renew(now)
	}
	a.checkEnd(s)
	return out
}

// streamed takes one piece. False: that is all.
func (a *Arbiter) streamed(now moldcast.Instant, stamp moldcast.Stamp, s *Session, first moldcast.Seq, msgs moldcast.Messages, out *Streamed) bool {
	for r := (moldcast.Range{First: first, Next: first + moldcast.Seq(msgs.Len())}); !r.Empty(); {
		sub, v := s.m.Classify(r)
		held := v == gap.Duplicate
		if v == gap.Forgotten {
			sub, held = a.covers(s, sub)
		}
		part := msgs
		if n := int(sub.Len()); n < msgs.Len() {
			part, msgs = msgs.Split(n)
		}
		conflicts := a.c.Conflicts
		p := moldcast.Piece{
			First: sub.First, Msgs: part, Time: s.missing.time(sub.First, stamp), Heard: stamp,
			Line: moldcast.AnswerLine, Flags: moldcast.Repaired,
		}
		stored := true
		switch {
		case held:
			a.duplicate(s, moldcast.AnswerLine, sub.First, part)
		case v == gap.Forgotten:
			stored = a.recall(now, moldcast.AnswerLine, s, p)
		case v == gap.Fill || v == gap.Stale:
			stored = a.try(now, moldcast.AnswerLine, s, sub, v, p)
		default: // below the first, or not known to exist
			out.Taken += part.Len()
			r.First = sub.Next
			continue
		}
		if !stored {
			return false
		}
		if !held {
			out.New += uint64(part.Len())
		}
		a.c.Streamed += uint64(part.Len())
		out.Conflicts += a.c.Conflicts - conflicts
		out.Taken += part.Len()
		if out.Conflicts > 0 {
			return false
		}
		r.First = sub.Next
	}
	return true
}

// Reserve says that a recovery stream brings r: it is not asked for until
// Release, and its budget runs from the last message that a stream brought.
func (s *Session) Reserve(now moldcast.Instant, r moldcast.Range) { s.m.Reserve(now, r) }

// Release ends Reserve.
func (s *Session) Release(now moldcast.Instant, r moldcast.Range) { s.m.Release(now, r) }
