package gap

import "fmt"

// check verifies all that must hold between two calls.
func (m *Machine) check() error {
	items := m.order.items()
	at := m.first
	var missing uint64
	perLoss := map[uint32]uint64{}
	perFlight := map[uint32]int{}
	inHeap := [6]int{}
	deepPieces := 0
	for i, e := range items {
		p := &m.pieces[e.id]
		l := &m.losses[p.loss]
		switch {
		case e.first != p.first:
			return fmt.Errorf("entry %d: first %d, piece %d", i, e.first, p.first)
		case p.first < at || p.next <= p.first || p.next > m.head:
			return fmt.Errorf("piece %d..%d out of order in %d..%d", p.first, p.next, at, m.head)
		case !l.used || p.first < l.first || p.next > l.next:
			return fmt.Errorf("piece %d..%d outside its loss %+v", p.first, p.next, *l)
		}
		at = p.next
		n := uint64(p.next - p.first)
		missing += n
		perLoss[p.loss] += n
		switch p.state {
		case settling:
			if l.settled {
				return fmt.Errorf("piece %d..%d rests in a settled loss", p.first, p.next)
			}
			continue
		case ready:
			c := m.class(p)
			inHeap[c]++
			if h := &m.ready[c]; h.items[m.pos[e.id]] != (heapItem{uint64(p.first), e.id}) {
				return fmt.Errorf("piece %d..%d not in its heap", p.first, p.next)
			}
			if m.isReserved(Range{p.first, p.next}) {
				return fmt.Errorf("piece %d..%d is to be asked for, and reserved", p.first, p.next)
			}
		case waiting:
			inHeap[4]++
			if m.waiting.items[m.pos[e.id]].id != e.id {
				return fmt.Errorf("piece %d..%d does not wait", p.first, p.next)
			}
			if !l.slow {
				return fmt.Errorf("piece %d..%d waits, its loss is not slow", p.first, p.next)
			}
		case reserved:
			if m.reserved.Len() == 0 {
				return fmt.Errorf("piece %d..%d is not reserved in %v", p.first, p.next, m.reserved.Ranges())
			}
		case paused:
			inHeap[5]++
			if m.paused.items[m.pos[e.id]].id != e.id || l.slow {
				return fmt.Errorf("piece %d..%d is not paused, or its loss is slow", p.first, p.next)
			}
		case deep:
			deepPieces++
			if p.first >= m.floor {
				return fmt.Errorf("piece %d..%d is deep, the floor is at %d", p.first, p.next, m.floor)
			}
		case flying:
			perFlight[p.flight]++
			if f := m.flights[p.flight]; p.first < f.rng.First || p.next > f.rng.Next {
				return fmt.Errorf("piece %d..%d outside its flight %v", p.first, p.next, f.rng)
			}
		}
		if !l.settled {
			return fmt.Errorf("piece %d..%d in state %d before it settled", p.first, p.next, p.state)
		}
	}
	for c, n := range []int{m.ready[0].len(), m.ready[1].len(), m.ready[2].len(), m.ready[3].len(), m.waiting.len(), m.paused.len()} {
		if inHeap[c] != n {
			return fmt.Errorf("heap %d has %d pieces, want %d", c, n, inHeap[c])
		}
	}
	if deepPieces != m.deep {
		return fmt.Errorf("%d pieces are deep, want %d", m.deep, deepPieces)
	}
	if len(perFlight) != m.expiries.len() || m.expiries.len()+len(m.freeFl) != len(m.flights) {
		return fmt.Errorf("%d flights with pieces, %d that expire, %d free of %d", len(perFlight), m.expiries.len(), len(m.freeFl), len(m.flights))
	}
	for f, n := range perFlight {
		if m.flights[f].pieces != n {
			return fmt.Errorf("flight %v counts %d pieces, has %d", m.flights[f].rng, m.flights[f].pieces, n)
		}
	}
	if m.expiries.len() > m.c.Outstanding {
		return fmt.Errorf("%d requests outstanding", m.expiries.len())
	}
	for f := range perFlight {
		for g := range perFlight {
			if f < g && !m.flights[f].rng.Intersect(m.flights[g].rng).Empty() && m.stats.MessagesLost == 0 {
				return fmt.Errorf("%v asked for while %v is in flight", m.flights[f].rng, m.flights[g].rng)
			}
		}
	}
	next := m.head
	if len(items) > 0 {
		next = items[0].first
	}
	if m.next != next || m.stats.MessagesMissing != missing {
		return fmt.Errorf("next %d missing %d, want %d %d", m.next, m.stats.MessagesMissing, next, missing)
	}
	open, settled, used, budgets := 0, 0, 0, 0
	var openMissing uint64
	for id := range m.losses {
		l := &m.losses[id]
		if !l.used {
			continue
		}
		used++
		if l.missing == 0 || l.missing != perLoss[uint32(id)] {
			return fmt.Errorf("loss %d..%d counts %d missing, has %d", l.first, l.next, l.missing, perLoss[uint32(id)])
		}
		if !l.lost {
			open++
			if l.settled {
				settled++
				openMissing += l.missing
			}
		}
		if l.settled && !l.slow && !l.young {
			budgets++
		}
	}
	if n, since := m.OpenMissing(); settled != m.OpenGaps() || openMissing != n || (settled > 0) != (since != Never) {
		return fmt.Errorf("%d gaps of %d messages open since %v, want %d of %d", m.OpenGaps(), n, since, settled, openMissing)
	}
	if m.repair.Count() != m.stats.GapsRecovered {
		return fmt.Errorf("%d repair times of %d gaps", m.repair.Count(), m.stats.GapsRecovered)
	}
	if open != m.open || budgets != m.budgets.len() {
		return fmt.Errorf("%d open, %d with a budget, want %d %d", m.open, m.budgets.len(), open, budgets)
	}
	if used+len(m.freeLosses) != len(m.losses) || len(items)+len(m.freePieces) != len(m.pieces) {
		return fmt.Errorf("leak: %d losses, %d free of %d; %d pieces, %d free of %d",
			used, len(m.freeLosses), len(m.losses), len(items), len(m.freePieces), len(m.pieces))
	}
	return nil
}
