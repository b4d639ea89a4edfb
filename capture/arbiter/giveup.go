package arbiter

import (
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// extend moves the first sequence of s down to that of r. Where the gap table
// has no room for what lies between, what is below the first is dropped; and so
// it is below what retention left.
func (a *Arbiter) extend(s *Session, r moldcast.Range, msgs moldcast.Messages) (moldcast.Range, moldcast.Messages) {
	first := s.m.First()
	if r.First >= s.floor && s.m.Extend(r.First) {
		if !a.cfg.Gap.Sparse {
			s.missing.extend(r.First, first)
		}
		return r, msgs
	}
	below := min(r.Len(), uint64(first-r.First))
	if r.First < s.floor {
		a.c.Duplicates += below
	} else {
		a.c.QueueDropped += below
	}
	_, msgs = msgs.Split(int(below))
	r.First += moldcast.Seq(below)
	return r, msgs
}

// Retain says that retention has removed what was held of s below floor. What
// is still missing there is neither asked for nor waited for any more, and is no
// hole; what comes of it is dropped. It returns how many messages that are.
func (a *Arbiter) Retain(now moldcast.Instant, s *Session, floor moldcast.Seq) (missing uint64) {
	if a.sessions[s.name] != s || floor <= s.floor {
		return 0
	}
	s.floor, s.below = floor, moldcast.Range{}
	if floor <= s.m.First() {
		return 0
	}
	missing = s.m.Stats().MessagesMissing
	s.m.Skip(now, floor)
	missing -= s.m.Stats().MessagesMissing
	s.prune()
	a.behind(now, s, floor)
	a.checkEnd(s)
	return missing
}

// givenUp reports whether the message at seq is not held, nor waited for.
func (s *Session) givenUp(seq moldcast.Seq) bool {
	_, v := s.m.Classify(moldcast.Range{First: seq, Next: seq + 1})
	return v == gap.Stale || v == gap.Forgotten
}

// covers is the leading part of r, which the gap machine has forgotten, that
// is wholly held, in the store or waiting, or not at all.
func (a *Arbiter) covers(s *Session, r moldcast.Range) (part moldcast.Range, held bool) {
	i := s.wait.from(r.First)
	if i > 0 && s.wait.bySeq[i-1].next() > r.First {
		return moldcast.Range{First: r.First, Next: min(r.Next, s.wait.bySeq[i-1].next())}, true
	}
	if i < len(s.wait.bySeq) {
		if e := s.wait.bySeq[i]; e.First == r.First {
			return moldcast.Range{First: r.First, Next: min(r.Next, e.next())}, true
		} else if e.First < r.Next {
			r.Next = e.First
		}
	}
	return a.out.Covers(s, r)
}

// forgotten takes messages of a line that lie where the gap machine has
// forgotten what is held: the store knows.
func (a *Arbiter) forgotten(now moldcast.Instant, stamp moldcast.Stamp, line int, s *Session, r moldcast.Range, msgs moldcast.Messages) {
	for !r.Empty() {
		sub, held := a.covers(s, r)
		part := msgs
		if sub.Next != r.Next {
			part, msgs = msgs.Split(int(sub.Len()))
		}
		r.First = sub.Next
		p := moldcast.Piece{First: sub.First, Msgs: part, Time: stamp, Heard: stamp, Line: uint8(line)}
		switch {
		case held:
			a.c.Duplicates += sub.Len()
		case !a.recall(now, line, s, p):
			a.c.QueueDropped += sub.Len()
		}
	}
}

// recall stores what was forgotten, and is not held. False: the store refused.
func (a *Arbiter) recall(now moldcast.Instant, line int, s *Session, p moldcast.Piece) bool {
	if !a.out.Append(s, p) {
		a.fullAt(now, s)
		return false
	}
	r, came := p.Range(), gap.Stale
	if s.sparse {
		came = gap.Fill // nothing was ever given up
	}
	s.m.Accept(now, line, r)
	s.missing.fill(r, p.Time, p.Time)
	a.accepted(s, line, came, r.Len())
	a.remember(s, p.First, p.Msgs)
	a.stored(p)
	return true
}

// claim takes note of where a packet of a line ends. What heartbeats or ends
// alone have revealed is withdrawn once others have said for Limits.Withdraw
// that the session ends below it, with no word from anyone to the contrary.
// What is stored is never withdrawn, nor what lies below it.
func (a *Arbiter) claim(now moldcast.Instant, s *Session, kind moldcast.Kind, r moldcast.Range) {
	if !s.claimed.Hear(now, kind != moldcast.Data, r, s.m.Head(), a.cfg.Limits.Withdraw) || !s.m.Withdraw(r.First) {
		return
	}
	s.missing.cut(r.First)
	s.asked.Remove(moldcast.Range{First: r.First, Next: ^moldcast.Seq(0)})
	if s.hasEnd && s.end > r.First {
		s.hasEnd, s.ended = false, false
		a.out.Withdrawn(s)
	}
}
