package arbiter

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// answerTime is how long after it was asked for an answer is taken that begins
// below the first sequence.
const answerTime = moldcast.Instant(time.Second)

// Want says that a client asks for r of a session, which is lacking. What is
// lost and would be asked for only later is asked for next. What lies below the
// first sequence, by no more than Limits.Jump, is asked for once: the answer
// moves the first sequence down as a line's packet would, and then what lies
// between is a gap; not so where retention removed it. Poll hands out the
// requests, within their budget.
func (a *Arbiter) Want(now moldcast.Instant, name moldcast.Session, r moldcast.Range) {
	s := a.sessions[name]
	if s == nil || s.sparse {
		return
	}
	first := s.m.First()
	if below := r.Intersect(moldcast.Range{First: 1, Next: first}); !below.Empty() && below.First >= s.floor && uint64(first-below.First) <= a.cfg.Limits.Jump {
		s.m.WantBelow(now, below)
	}
	if r = r.Intersect(moldcast.Range{First: first, Next: s.m.Head()}); !r.Empty() {
		s.m.Want(now, r)
	}
}

// askBelow takes note of a request for what lies below the first sequence.
func (s *Session) askBelow(now moldcast.Instant, q gap.Request) {
	if q.Range.Next <= s.m.First() {
		s.below, s.belowAt = q.Range, now
	}
}

// answerBelow moves the first sequence down to r, if that answers a request for
// what lies below it.
func (a *Arbiter) answerBelow(now moldcast.Instant, s *Session, r moldcast.Range) {
	if r.First >= s.m.First() || r.First != s.below.First || r.Next > s.below.Next || now-s.belowAt > answerTime {
		return
	}
	first := s.m.First()
	if !s.m.Extend(r.First) {
		return // no room in the table of gaps: it stays below
	}
	s.missing.extend(r.First, first)
	s.asked.Add(r)
	s.below = moldcast.Range{}
}

// Serves is how many of the newest messages of s some server surely still has,
// by what it answered in the last while; 0: that is not known.
func (s *Session) Serves(now moldcast.Instant, while time.Duration) uint64 {
	return s.m.Serves(now, while)
}
