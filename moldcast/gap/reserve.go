package gap

// Reserve says that r, as far as it is missing, is on its way by other means
// than requests: nothing of it is asked for until Release. The budgets of gaps
// in it run from the latest call of Reserve or Renew. What is in flight stays
// so. The owner keeps the ranges few.
func (m *Machine) Reserve(now Instant, r Range) {
	m.tick(now)
	if r.Empty() {
		return
	}
	m.reserved.Add(r)
	m.renewed = m.clock()
	for i := m.find(r.First); i < m.order.len(); i++ {
		id := m.order.items()[i].id
		p := &m.pieces[id]
		if p.first >= r.Next {
			return
		}
		if room := m.c.MaxGaps - m.order.len(); room > 0 && p.first < r.First {
			m.cut(i, r.First)
			continue
		} else if room > 0 && p.next > r.Next {
			m.cut(i, r.Next)
		}
		switch p := &m.pieces[id]; p.state {
		case ready, waiting, paused, deep:
			m.rest(id)
			p.state = reserved
		}
	}
}

// Renew says that what is reserved goes on coming.
func (m *Machine) Renew(now Instant) {
	m.tick(now)
	m.renewed = m.clock()
}

// Release ends Reserve for r: what is still missing of it is asked for. It
// looks at every gap: in a full table more may have been reserved than was said.
func (m *Machine) Release(now Instant, r Range) {
	m.tick(now)
	m.reserved.Remove(r)
	for _, e := range m.order.items() {
		if m.pieces[e.id].state == reserved {
			m.rest(e.id)
			m.makeReady(e.id)
		}
	}
}

// isReserved reports whether any of r is.
func (m *Machine) isReserved(r Range) bool {
	if m.reserved.Len() == 0 {
		return false
	}
	part, held := m.reserved.Cut(r)
	return held || part.Next < r.Next
}
