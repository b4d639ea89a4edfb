package gap

import "time"

// openGap puts r, which begins at head, into the table.
func (m *Machine) openGap(r Range) bool {
	if m.holding && m.lengthen(r) {
		return true
	}
	if m.order.len() >= m.c.MaxGaps && !m.evict(true) {
		m.stats.Overflows++
		return false
	}
	id := m.addLoss(r)
	p := m.addPiece(piece{first: r.First, next: r.Next, loss: id})
	m.order.push(entry{r.First, p})
	m.unsettled.push(fresh{id, m.losses[id].gen})
	return true
}

// evict makes room in a full table by giving up a range that is lost, or, with
// old, one from before this run. Without it, a table full of ranges that nobody
// will ever bring would keep out all that is to come.
func (m *Machine) evict(old bool) bool {
	var id uint32
	switch {
	case m.ready[slow].len() > 0:
		id = m.ready[slow].items[0].id
	case m.waiting.len() > 0:
		id = m.waiting.items[0].id
	case old && m.ready[background].len() > 0:
		id = m.ready[background].items[0].id
	case m.deep > 0 && m.dispensable(m.order.items()[0].id, old):
		id = m.order.items()[0].id
	default:
		return false
	}
	p := &m.pieces[id]
	r := Range{p.first, p.next}
	m.drop(m.find(r.First))
	m.giveUp(r)
	m.stats.Evicted++
	m.setNext()
	return true
}

// lengthen adds r, which begins at head, to the gap that ends there, if it is
// still to be asked for: what cannot be taken in is one gap, not one a packet.
func (m *Machine) lengthen(r Range) bool {
	n := m.order.len()
	if n == 0 {
		return false
	}
	id := m.order.items()[n-1].id
	p := &m.pieces[id]
	l := &m.losses[p.loss]
	if p.next != r.First || l.next != r.First || l.lost || p.state != settling && p.state != ready || m.isReserved(r) {
		return false
	}
	p.next, l.next = r.Next, r.Next
	l.missing += r.Len()
	m.stats.MessagesMissing += r.Len()
	return true
}

// dispensable reports whether a piece is deep, and lost or, with old, from
// before this run.
func (m *Machine) dispensable(id uint32, old bool) bool {
	p := &m.pieces[id]
	l := &m.losses[p.loss]
	return p.state == deep && (l.slow || old && l.old)
}

func (m *Machine) addLoss(r Range) uint32 {
	var id uint32
	if n := len(m.freeLosses); n > 0 {
		id = m.freeLosses[n-1]
		m.freeLosses = m.freeLosses[:n-1]
	} else {
		id = uint32(len(m.losses))
		m.losses = append(m.losses, loss{})
	}
	l := &m.losses[id]
	*l = loss{first: r.First, next: r.Next, missing: r.Len(), opened: m.now, base: m.clock(), gen: l.gen + 1, used: true}
	if !m.timed {
		l.young, m.young = true, true
	}
	m.open++
	m.stats.MessagesMissing += r.Len()
	return id
}

func (m *Machine) dropLoss(id uint32) {
	l := &m.losses[id]
	if l.settled && !l.slow && !l.young {
		m.budgets.remove(id)
	}
	if !l.lost {
		m.open--
		if l.settled {
			m.openSettled--
		}
	}
	l.used, l.young = false, false
	l.gen++
	m.freeLosses = append(m.freeLosses, id)
}

func (m *Machine) addPiece(p piece) uint32 {
	if n := len(m.freePieces); n > 0 {
		id := m.freePieces[n-1]
		m.freePieces = m.freePieces[:n-1]
		m.pieces[id] = p
		return id
	}
	m.pieces = append(m.pieces, p)
	return uint32(len(m.pieces) - 1)
}

// find is the index in order of the first piece that ends beyond q.
func (m *Machine) find(q Seq) int {
	items := m.order.items()
	lo, hi := 0, len(items)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if items[mid].first > q {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo > 0 && m.pieces[items[lo-1].id].next > q {
		return lo - 1
	}
	return lo
}

// cut splits the piece at index i before q, which lies inside it; both parts
// keep its state.
func (m *Machine) cut(i int, q Seq) {
	id := m.order.items()[i].id
	rest := m.pieces[id]
	rest.first, rest.span = q, 0
	m.pieces[id].next = q
	to := m.addPiece(rest)
	m.order.splice(i+1, i+1, 1)
	m.order.items()[i+1] = entry{q, to}
	switch rest.state {
	case ready:
		m.ready[m.class(&rest)].push(to, uint64(q))
	case waiting:
		m.waiting.push(to, m.waiting.key(id))
	case paused:
		m.paused.push(to, m.paused.key(id))
	case deep:
		m.deep++
	case flying:
		m.flights[rest.flight].pieces++
	}
}

// rest takes the piece out of the heap or flight that its state stands for,
// and leaves it settling.
func (m *Machine) rest(id uint32) {
	p := &m.pieces[id]
	switch p.state {
	case ready:
		m.ready[m.class(p)].remove(id)
	case waiting:
		m.waiting.remove(id)
	case paused:
		m.paused.remove(id)
	case deep:
		m.deep--
	case flying:
		fl := &m.flights[p.flight]
		fl.pieces--
		if fl.pieces == 0 {
			m.expiries.remove(p.flight)
			m.freeFl = append(m.freeFl, p.flight)
		}
	}
	p.state = settling
}

// fill takes sub, which lies in the piece at index i and touches an end of it,
// out of the table.
func (m *Machine) fill(i int, sub Range, answer bool) {
	id := m.order.items()[i].id
	p := &m.pieces[id]
	switch {
	case p.first == sub.First && p.next == sub.Next:
		m.rest(id)
		m.freePieces = append(m.freePieces, id)
		m.order.splice(i, i+1, 0)
	case p.first == sub.First:
		p.first, p.span = sub.Next, 0
		m.order.items()[i].first = sub.Next
		if p.state == ready {
			m.ready[m.class(p)].change(id, uint64(p.first))
		}
	default:
		p.next = sub.First
	}
	if i == 0 {
		m.setNext()
	}
	l := &m.losses[p.loss]
	l.missing -= sub.Len()
	m.stats.MessagesMissing -= sub.Len()
	if l.settled {
		m.stats.MessagesRecovered += sub.Len()
		l.base = m.clock()
	}
	if l.missing == 0 {
		if l.settled {
			m.stats.GapsRecovered++
			m.repair.Add(int64(m.now - l.opened))
		}
		m.dropLoss(p.loss)
		return
	}
	if l.slow && answer {
		m.hurry(p.loss)
	}
}

func (m *Machine) setNext() {
	m.next = m.head
	if items := m.order.items(); len(items) > 0 {
		m.next = items[0].first
	}
}

// later is t + d, at most Never.
func later(t Instant, d time.Duration) Instant {
	if s := t + Instant(d); s >= t {
		return s
	}
	return Never
}
