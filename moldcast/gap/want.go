package gap

import "time"

// Want says that somebody asks for r: what of it is lost, and would be asked
// for again only later, has its turn now, at the rate of what is lost. It
// changes nothing for what is asked for anyway, is on its way, or lies deeper
// than any server has it.
func (m *Machine) Want(now Instant, r Range) {
	m.tick(now)
	for i := m.find(r.First); i < m.order.len(); i++ {
		id := m.order.items()[i].id
		p := &m.pieces[id]
		if p.first >= r.Next {
			return
		}
		if p.state != waiting {
			continue
		}
		if p.first < r.First && m.hasRoom() {
			m.cut(i, r.First)
			continue
		}
		if p.next > r.Next && m.hasRoom() {
			m.cut(i, r.Next)
		}
		m.rest(id)
		m.makeReady(id)
	}
}

// WantBelow says that somebody asks for r, which lies below First. It is asked
// for once, of one server after the other, at the rate of what is lost, and is
// no gap: whether it exists the answer tells, which is Below, and for the owner
// to take by Extend. One such range at a time is kept, the newest.
func (m *Machine) WantBelow(now Instant, r Range) {
	m.tick(now)
	if r = r.Intersect(Range{1, m.first}); !r.Empty() {
		m.below = r
	}
}

// belowDue is when the range of WantBelow is asked for; Never: there is none.
func (m *Machine) belowDue() Instant {
	if m.below.Empty() || m.c.Servers == 0 || m.holding {
		return Never
	}
	return m.allowed(slow)
}

// pollBelow gives the request for it, when it is due.
func (m *Machine) pollBelow(now Instant) (Request, bool) {
	if m.belowDue() > now {
		return Request{}, false
	}
	if m.c.Shared != nil && !m.hasSlot {
		m.slot, m.hasSlot = m.c.Shared.reserve(now), true
		if m.allowed(slow) > now {
			return Request{}, false
		}
	}
	m.hasSlot = false
	r := m.below
	m.below = Range{}
	limit := uint64(m.c.MaxRequest)
	if known := m.fit.messages(); known > 0 {
		limit = min(limit, known)
	}
	r.Next = min(r.Next, r.First+Seq(limit))
	m.paid(now, slow)
	m.stats.Requests++
	m.belowServer = (m.belowServer + 1) % m.c.Servers
	return Request{Range: r, Server: m.belowServer, Try: 1}, true
}

// Serves is how far below the front of the lines some server surely still has
// all messages, by what it answered to requests of the last while; 0: that is
// not known of any.
func (m *Machine) Serves(now Instant, while time.Duration) (depth uint64) {
	for i := range m.servers {
		if s := &m.servers[i]; s.heard && s.silent < silentAfter && now-s.newest <= Instant(while) {
			depth = max(depth, s.safe())
		}
	}
	return depth
}
