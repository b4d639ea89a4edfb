package gap

// Skip says that nothing below first is wanted any more: what is missing there
// is no gap, and is neither recovered nor lost. An answer to what was asked for
// there is Below. Without effect unless first > First.
func (m *Machine) Skip(now Instant, first Seq) {
	m.tick(now)
	if first <= m.first {
		return
	}
	for m.order.len() > 0 {
		p := m.pieces[m.order.items()[0].id]
		if p.first >= first {
			break
		}
		if p.next > first {
			m.cut(0, first)
		}
		m.drop(0)
		if l := &m.losses[p.loss]; l.used {
			l.first = max(l.first, first)
		}
	}
	m.first = first
	m.head = max(m.head, first)
	m.top = max(m.top, first)
	m.setNext()
}

// Abandon gives up what is missing of r at once: it is handed out by Lost, and
// counts as dealt with from then on, as under GiveUp. What comes of it is Stale.
func (m *Machine) Abandon(now Instant, r Range) {
	m.tick(now)
	for i := m.find(r.First); i < m.order.len(); {
		p := m.pieces[m.order.items()[i].id]
		if p.first >= r.Next {
			break
		}
		if p.first < r.First {
			m.cut(i, r.First)
			i++
			continue
		}
		if p.next > r.Next {
			m.cut(i, r.Next)
			p.next = r.Next
		}
		if !m.losses[p.loss].lost {
			m.stats.MessagesLost += uint64(p.next - p.first)
		}
		m.drop(i)
		m.giveUp(Range{p.first, p.next})
		m.lost = append(m.lost, Range{p.first, p.next})
	}
	m.setNext()
}
