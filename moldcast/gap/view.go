package gap

import (
	"time"
)

// Lost hands out the ranges whose budget ran out, each once, in the order of
// their loss; call it until it says false, after Poll. They are counted then;
// a later fill is counted as recovered.
func (m *Machine) Lost() (Range, bool) {
	if m.lostAt == len(m.lost) {
		m.lost, m.lostAt = m.lost[:0], 0
		return Range{}, false
	}
	m.lostAt++
	return m.lost[m.lostAt-1], true
}

// Gap is one missing range, as Gaps shows it.
type Gap struct {
	Range
	Opened     Instant
	Settled    bool    // no longer mere disorder
	Lost       bool    // its budget ran out
	Background bool    // from before this run, or below its start
	InFlight   bool    // a request for it is unanswered
	Tries      int     // requests since the last answer for it
	NextTry    Instant // when it is asked for (again) unless it comes first; Never: with no server, or Reserved
	Reserved   bool    // on its way by other means
}

// Gaps calls fn with every missing range in order, until it returns false.
// Adjoining parts that differ in their state are given apart. fn must not
// change the machine.
func (m *Machine) Gaps(fn func(Gap) bool) {
	for _, e := range m.order.items() {
		p := &m.pieces[e.id]
		l := &m.losses[p.loss]
		if !fn(Gap{
			NextTry:    m.nextTry(e.id),
			Range:      Range{p.first, p.next},
			Opened:     l.opened,
			Settled:    l.settled,
			Lost:       l.lost,
			Background: l.old,
			InFlight:   p.state == flying,
			Reserved:   p.state == reserved,
			Tries:      int(p.tries),
		}) {
			return
		}
	}
}

// nextTry is when piece id is asked for next, as it looks now.
func (m *Machine) nextTry(id uint32) Instant {
	if m.c.Servers == 0 {
		return Never
	}
	switch p := &m.pieces[id]; p.state {
	case flying:
		return when(m.expiries.key(p.flight))
	case waiting:
		return when(m.waiting.key(id))
	case paused:
		return when(m.paused.key(id))
	case reserved:
		return Never
	case deep:
		return max(m.now, min(m.scouts[probeNear].at, m.scouts[probeAny].at))
	case settling:
		return later(m.losses[p.loss].opened, m.settleTime())
	default:
		return max(m.now, m.allowed(m.class(p)))
	}
}

// Stats are the counters of a Machine since New, each loss counted once, and
// what it has measured.
type Stats struct {
	GapsOpened        uint64 // ranges still missing after the settle time, or resumed
	GapsRecovered     uint64 // of those, filled whole, by whatever path
	MessagesRecovered uint64 // messages that filled them, in whole or in part
	MessagesLost      uint64 // messages whose budget ran out; never falls
	Requests          uint64
	Retries           uint64 // of those, for a range that was asked for before
	Overflows         uint64 // ranges that found the table full
	Evicted           uint64 // ranges that were dropped from a full table, lost or from before this run

	MessagesMissing uint64 // now, settled or not, lost ones included (unless given up)
	Ranges          int    // now, in the table
	Outstanding     int    // requests unanswered now
	RoundTrip       time.Duration
	Rate            int           // requests a second that may go now
	Reach           uint64        // how far below Head the server that is asked first still has messages; 0: no end was found
	AnswerMessages  int           // how many messages an answer carries; 0 unknown
	Skew            time.Duration // p99 between lines; 0 unknown
	Settle          time.Duration // the settle time now
}

// Stats is a copy of the counters.
func (m *Machine) Stats() Stats {
	s := m.stats
	s.Ranges = m.order.len()
	s.Outstanding = m.expiries.len()
	s.AnswerMessages = int(m.fit.messages())
	s.Skew = m.skew.p99
	s.Settle = m.settleTime()
	s.Rate = m.rate.now
	if m.prefer < len(m.servers) {
		r := &m.servers[m.prefer]
		s.RoundTrip = r.rtt
		if r.gone != beyond {
			s.Reach = r.held
		}
	}
	return s
}
