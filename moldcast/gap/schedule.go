package gap

import (
	"math/bits"
	"time"
)

// Request is what to ask whom.
type Request struct {
	Range  Range // 1..MaxRequest messages
	Server int
	Try    int // 1 for the first request for it
}

// flight is a request that is unanswered.
type flight struct {
	rng    Range
	from   Seq // what was asked for begins here: above rng.First when that was asked for in vain
	front  Seq // when it was sent
	sent   Instant
	retry  Instant // when it is sent again, unless it is answered
	server int
	try    int
	pieces int    // that wait for it
	limit  uint16 // what kept it from asking for more: messages of an answer, as estimated; 0: nothing did
	before uint16 // messages of the shortest earlier request that began here too, whose answer may still come

	answered bool
	scout    scout
}

// class says in which turn a piece is asked for.
func (m *Machine) class(p *piece) int {
	switch l := &m.losses[p.loss]; {
	case l.slow:
		return slow
	case p.tries > 1:
		return again
	case l.old || l.lost:
		return background
	}
	return live
}

func (m *Machine) makeReady(id uint32) {
	p := &m.pieces[id]
	if m.isReserved(Range{p.first, p.next}) {
		p.state = reserved
		return
	}
	p.state = ready
	m.ready[m.class(p)].push(id, uint64(p.first))
}

func (m *Machine) makeWaiting(id uint32, until Instant) {
	m.pieces[id].state = waiting
	m.waiting.push(id, at(until))
}

// advance does what has fallen due by now.
func (m *Machine) advance(now Instant) {
	m.tick(now)
	if m.order.len() == 0 {
		return
	}
	m.settleDue(now)
	for m.budgets.len() > 0 && when(m.budgets.items[0].key) <= m.clock() {
		id := m.budgets.items[0].id
		if due := m.budgetEnd(id); due > m.clock() {
			m.budgets.change(id, at(due))
			continue
		}
		m.lose(id)
	}
	for m.expiries.len() > 0 && when(m.expiries.items[0].key) <= now {
		m.expire(m.expiries.items[0].id)
	}
	for _, h := range [...]*heap{&m.waiting, &m.paused} {
		for h.len() > 0 && when(h.items[0].key) <= now {
			id := h.items[0].id
			m.rest(id)
			m.makeReady(id)
		}
	}
}

// budgetEnd is when a loss is lost. One that had no turn yet, because others
// before it are being answered, is not given up without having been asked for.
func (m *Machine) budgetEnd(id uint32) Instant {
	l := &m.losses[id]
	base := l.base
	if m.c.Servers > 0 && !l.asked && m.answered {
		base = max(base, m.lastAnswer)
	}
	if m.isReserved(Range{l.first, l.next}) {
		base = max(base, m.renewed)
	}
	return later(base, m.c.Budget)
}

// lose ends the budget of a loss.
func (m *Machine) lose(id uint32) {
	l := &m.losses[id]
	m.budgets.remove(id)
	from := m.find(l.first)
	to := from
	items := m.order.items()
	for ; to < len(items) && items[to].first < l.next; to++ {
		m.rest(items[to].id)
	}
	to = m.merge(from, to)
	items = m.order.items()
	l.slow = true
	if !l.lost {
		l.lost = true
		m.open--
		m.openSettled--
		m.stats.MessagesLost += l.missing
		for _, e := range items[from:to] {
			p := &m.pieces[e.id]
			m.lost = append(m.lost, Range{p.first, p.next})
		}
	}
	if !m.c.GiveUp {
		until := later(m.now, m.slowWait(l))
		for _, e := range items[from:to] {
			m.makeWaiting(e.id, until)
		}
		return
	}
	for _, e := range items[from:to] {
		p := &m.pieces[e.id]
		m.giveUp(Range{p.first, p.next})
		m.freePieces = append(m.freePieces, e.id)
	}
	m.order.splice(from, to, 0)
	m.stats.MessagesMissing -= l.missing
	m.dropLoss(id)
	m.setNext()
}

// merge joins what adjoins and is at rest of the pieces order[from:to], all of
// one loss, and returns the new end.
func (m *Machine) merge(from, to int) int {
	items := m.order.items()
	k := from
	for i := from + 1; i < to; i++ {
		p, q := &m.pieces[items[k].id], &m.pieces[items[i].id]
		if p.next == q.first && p.state == settling && q.state == settling {
			p.next = q.next
			p.tries = max(p.tries, q.tries)
			p.asked, p.prev = max(p.asked, q.asked), max(p.prev, q.prev)
			m.freePieces = append(m.freePieces, items[i].id)
			continue
		}
		k++
		items[k] = items[i]
	}
	if k+1 < to {
		m.order.splice(k+1, to, 0)
		return k + 1
	}
	return to
}

// hurry takes a lost gap, for which an answer has come after all, back to
// steady asking. What is in flight stays so.
func (m *Machine) hurry(id uint32) {
	l := &m.losses[id]
	items := m.order.items()
	from := m.find(l.first)
	to := from
	for ; to < len(items) && items[to].first < l.next; to++ {
		if m.pieces[items[to].id].state != flying {
			m.rest(items[to].id)
		}
	}
	to = m.merge(from, to)
	l.slow, l.slowTries = false, 0
	l.base = m.clock()
	m.budgets.push(id, at(later(l.base, m.c.Budget)))
	for _, e := range m.order.items()[from:to] {
		if p := &m.pieces[e.id]; p.state != flying {
			p.tries = 0
			m.makeReady(e.id)
		}
	}
}

// expire ends a flight that was not answered, or not in full.
func (m *Machine) expire(f uint32) {
	fl := m.flights[f]
	if !fl.answered {
		m.unanswered(&fl)
	}
	r := fl.rng
	if fl.scout > 0 && !fl.answered {
		defer m.rejoin(r.First)
	}
	for i := m.find(r.First); i < m.order.len(); i++ {
		id := m.order.items()[i].id
		p := &m.pieces[id]
		if p.first >= r.Next {
			break
		}
		if p.state != flying || p.flight != f {
			continue
		}
		m.rest(id)
		switch l := &m.losses[p.loss]; {
		case l.slow:
			m.makeWaiting(id, later(p.asked, m.slowWait(l)))
			m.joinWaiting(i)
		case fl.retry > m.now:
			p.state = paused
			m.paused.push(id, at(fl.retry))
		default:
			m.makeReady(id)
		}
	}
}

// joinWaiting merges the piece at index i, which waits, with an adjoining one
// of its loss that follows it and waits too.
func (m *Machine) joinWaiting(i int) {
	items := m.order.items()
	if i+1 >= len(items) {
		return
	}
	p, q := &m.pieces[items[i].id], &m.pieces[items[i+1].id]
	if p.loss == q.loss && p.next == q.first && q.state == waiting {
		p.next = q.next
		m.rest(items[i+1].id)
		m.freePieces = append(m.freePieces, items[i+1].id)
		m.order.splice(i+1, i+2, 0)
	}
}

// Poll gives the next request that is due; call it until it says false.
func (m *Machine) Poll(now Instant) (Request, bool) {
	m.advance(now)
	if r, ok := m.pollBelow(now); ok {
		return r, true
	}
	if m.c.Servers == 0 || m.holding || m.order.len() == 0 || m.expiries.len() >= m.c.Outstanding {
		return Request{}, false
	}
	m.sift()
	i, c, scout := m.choose(now)
	if i < 0 {
		return Request{}, false
	}
	if scout == 0 && m.due(c) > now {
		m.rate.hold(now)
		return Request{}, false
	}
	if m.c.Shared != nil && !m.hasSlot {
		m.slot, m.hasSlot = m.c.Shared.reserve(now), true
	}
	if m.allowed(c) > now {
		m.rate.hold(now)
		return Request{}, false
	}
	m.hasSlot = false
	return m.ask(now, i, c, scout), true
}

// choose is the piece that has its turn, by its index, and its class; -1: none.
func (m *Machine) choose(now Instant) (i, class int, s scout) {
	if m.allowed(live) <= now {
		if i, s := m.scout(now); i >= 0 {
			return i, m.class(&m.pieces[m.order.items()[i].id]), s
		}
	}
	c := m.turn()
	if c < 0 {
		return -1, 0, 0
	}
	return m.find(m.pieces[m.ready[c].items[0].id].first), c, 0
}

// turn is the class whose turn it is; -1: nothing is ready.
func (m *Machine) turn() int {
	first := -1
	for c := range m.ready {
		if m.ready[c].len() > 0 {
			first = c
			break
		}
	}
	if m.ready[again].len() > 0 && (first == slow || first < again && m.allowed(again) <= m.now) {
		return again
	}
	return first
}

// interval is the mean time between requests.
func (m *Machine) interval() Instant { return interval(m.rate.now) }

// burst is how many requests may go at once after a quiet time.
func (m *Machine) burst() Instant { return max(1, atOnce/m.interval()) }

// Slow requests have a tenth of the rate, of startRate at most: those who have
// not answered for so long are not to be stormed.
const slowShare = 10

// Those that were not answered twice have half of it, and no more than
// startRate: a server that lacks something is not asked for it the more, the
// better it answers for the rest.
const againBurst = 32

func (m *Machine) againInterval() Instant { return max(2*m.interval(), interval(startRate)) }

// allowed is when a request of class c may go.
func (m *Machine) allowed(c int) Instant {
	t := m.tat - (m.burst()-1)*m.interval()
	switch c {
	case slow:
		t = max(t, m.slowTat)
	case again:
		t = max(t, m.againTat-(againBurst-1)*m.againInterval())
	}
	if m.hasSlot {
		t = max(t, m.slot)
	}
	return t
}

// due is when the first piece of class c is asked for. More than startRate is
// for requests that are full, or many: others rather wait for what they can
// share the request with.
func (m *Machine) due(c int) Instant {
	t := m.allowed(c)
	if c > background || m.ready[c].len() > m.c.Outstanding {
		return t
	}
	p := &m.pieces[m.ready[c].items[0].id]
	full := m.fit.messages()
	if full == 0 {
		full = blindSpan
	}
	if m.losses[p.loss].missing < full {
		t = max(t, m.calmTat-(atOnce-interval(startRate)))
	}
	return t
}

// tokens is how many requests may go at once now, were the rate no more than
// startRate.
func (m *Machine) tokens(now Instant) int {
	each := max(m.interval(), interval(startRate))
	return int(max(1, atOnce/each) - max(0, max(m.tat, m.calmTat)-now+each-1)/each)
}

// ask makes the request for the piece at index i, of class c.
func (m *Machine) ask(now Instant, i, c int, s scout) Request {
	free := min(m.c.Outstanding-m.expiries.len(), m.tokens(now))
	pressed := m.ready[c].len() > free

	m.paid(now, c)
	f := m.addFlight()
	fl := &m.flights[f]

	id := m.order.items()[i].id
	p := &m.pieces[id]
	server := m.serverFor(p)
	limit := uint64(m.c.MaxRequest)
	known := m.fit.messages()
	if known > 0 {
		limit = min(limit, known)
	}
	r := Range{p.first, p.first}
	m.board(i, f, limit, now, server)
	p = &m.pieces[id]
	r.Next = p.next
	try := int(p.tries)
	m.stats.Requests++
	if try > 1 {
		m.stats.Retries++
	}
	// Take along what follows at once. When more gaps are waiting than requests
	// may go, also what lies behind messages that are held: their repetition
	// costs bytes, but saves a request.
	capped := r.Len() >= limit
	for c != slow && s == 0 && r.Len() < limit {
		i++
		items := m.order.items()
		if i >= len(items) {
			break
		}
		q := &m.pieces[items[i].id]
		if q.state != ready || m.class(q) != c {
			break
		}
		room := limit - r.Len()
		if q.first > r.Next {
			span := limit
			if known == 0 {
				span = min(span, blindSpan)
			}
			if !pressed {
				break
			}
			if uint64(q.next-r.First) > span {
				capped = true
				break
			}
			room = span - uint64(q.first-r.First)
		}
		id := items[i].id
		m.board(i, f, room, now, server)
		r.Next = m.pieces[id].next
		capped = r.Len() >= limit
	}
	fl.rng, fl.front, fl.sent, fl.server, fl.try, fl.scout = r, m.front(), now, server, try, s
	if capped && known > 0 && limit == known {
		fl.limit = uint16(limit)
	}
	// A request that is repeated only much later leaves room for others before.
	fl.retry = later(now, m.retryWait(server, try))
	m.expiries.push(f, at(min(fl.retry, later(now, max(minFlight, m.c.RetryMin, 4*m.servers[server].rtt)))))
	// A piece that the full table had no room to cut waits whole for the answer
	// to its beginning.
	if r.Len() > limit {
		r.Next = r.First + Seq(limit)
	}
	p = &m.pieces[id]
	fl.before = p.span
	if p.span == 0 || p.span > uint16(r.Len()) {
		p.span = uint16(r.Len())
	}
	fl.from = r.First
	if s == inTurn {
		fl.from += Seq(skip(try, r.Len()))
	}
	return Request{Range: Range{fl.from, r.Next}, Server: server, Try: try}
}

// paid takes note of a request of class c.
func (m *Machine) paid(now Instant, c int) {
	m.rate.asked(now)
	m.tat = max(m.tat, now) + m.interval()
	m.calmTat = min(max(m.calmTat, now)+interval(startRate), now+atOnce)
	switch c {
	case slow:
		m.slowTat = max(m.slowTat, now) + slowShare*max(m.interval(), interval(startRate))
	case again:
		m.againTat = max(m.againTat, now) + m.againInterval()
	}
}

// skip is how many of n messages a request leaves out, as the try-th for them.
// A server that lacks the first answers nothing, though it may have the rest:
// from the sixth on every third request is for the last half, then the last
// quarter, down to the last message, and so on.
func skip(try int, n uint64) uint64 {
	if try < 6 || try%3 != 0 || n < 2 {
		return 0
	}
	levels := bits.Len64(n) - 1
	return n - n>>(1+(try/3-2)%levels)
}

// blindSpan is how far apart gaps may be that one request covers while it is
// not known how much an answer carries.
const blindSpan = 32

// minFlight is how long at least an answer is waited for that is not to be
// asked for again before.
const minFlight = 10 * time.Millisecond

// board puts the piece at index i, at most its first limit messages, on
// flight f.
func (m *Machine) board(i int, f uint32, limit uint64, now Instant, server int) {
	id := m.order.items()[i].id
	p := &m.pieces[id]
	l := &m.losses[p.loss]
	if !l.asked {
		l.asked = true
		l.base = m.clock()
	}
	m.rest(id)
	if uint64(p.next-p.first) > limit && m.hasRoom() {
		m.cut(i, p.first+Seq(limit))
		to := m.order.items()[i+1].id
		if l.slow {
			m.makeWaiting(to, later(now, m.slowWait(l)))
		} else {
			m.makeReady(to)
		}
		p = &m.pieces[id]
	}
	if l.slow {
		l.slowTries = min(l.slowTries+1, 30)
	}
	p.state = flying
	p.flight = f
	p.prev, p.asked = p.asked, now
	if p.tries == 0 {
		p.front = m.front()
	}
	p.tries = min(p.tries+1, 1<<15)
	p.server = uint8(server)
	m.flights[f].pieces++
}

func (m *Machine) addFlight() uint32 {
	if n := len(m.freeFl); n > 0 {
		f := m.freeFl[n-1]
		m.freeFl = m.freeFl[:n-1]
		m.flights[f] = flight{}
		return f
	}
	m.flights = append(m.flights, flight{})
	return uint32(len(m.flights) - 1)
}

// Answered says that a retransmission of r arrived from a server (any number
// outside 0..Servers-1 where that is not known). Call it before Accept of the
// same messages. A server answers one packet of what fits: the rest of the
// request is asked for again at once.
func (m *Machine) Answered(now Instant, server int, r Range) {
	m.tick(now)
	if r.Empty() {
		return
	}
	i := m.find(r.First)
	if i == m.order.len() {
		return
	}
	p := &m.pieces[m.order.items()[i].id]
	if p.first >= r.Next || p.tries == 0 {
		return
	}
	m.answered, m.lastAnswer = true, m.clock()
	if server < 0 || server >= m.c.Servers {
		server = int(p.server)
	}
	m.prefer = server
	m.roundTrip(now, server, p)
	if p.state != flying {
		m.answeredFlight(server, nil, p)
		m.remainder(i, r.Next)
		return
	}
	f := p.flight
	fl := &m.flights[f]
	if r.First <= fl.from {
		m.answeredFlight(server, fl, p)
	}
	// What answers an earlier request in full, late, says nothing about this
	// one, whose own answer may still come: not how much fits, nor that the rest
	// is to be asked for again.
	if r.First == fl.rng.First {
		if r.Next < fl.rng.Next && r.Len() == uint64(fl.before) {
			return
		}
		m.fit.learn(r.Len(), fl.rng.Len(), uint64(fl.limit))
	} else if p.tries > 1 {
		return
	}
	if r.Next >= fl.rng.Next {
		return
	}
	end := fl.rng.Next
	fl.rng.Next = r.Next
	for i = m.find(r.Next); i < m.order.len(); i++ {
		id := m.order.items()[i].id
		p := &m.pieces[id]
		if p.first >= end {
			break
		}
		if p.state != flying || p.flight != f {
			continue
		}
		if p.first < r.Next {
			m.cut(i, r.Next)
			continue
		}
		m.fresh(id)
		m.joinReady(i)
	}
}

// remainder makes what the piece at index i, whose request was given up, has
// from next on ready: the answer came late, and does not reach there.
func (m *Machine) remainder(i int, next Seq) {
	p := &m.pieces[m.order.items()[i].id]
	if p.state != paused || p.next <= next || !m.hasRoom() {
		return
	}
	m.cut(i, next)
	m.fresh(m.order.items()[i+1].id)
	m.joinReady(i + 1)
}

// joinReady merges the piece at index i, which is ready, with an adjoining
// one of its loss that follows it and was not asked for, so that a long gap is
// asked for in full requests.
func (m *Machine) joinReady(i int) {
	items := m.order.items()
	if i+1 >= len(items) {
		return
	}
	p, q := &m.pieces[items[i].id], &m.pieces[items[i+1].id]
	if p.state == ready && p.loss == q.loss && p.next == q.first && q.state == ready && q.tries == 0 {
		p.next = q.next
		m.rest(items[i+1].id)
		m.freePieces = append(m.freePieces, items[i+1].id)
		m.order.splice(i+1, i+2, 0)
	}
}

// Deadline is when Poll or Lost may have something, unless a datagram comes
// first; a time in the past means now.
func (m *Machine) Deadline() Instant {
	if m.lostAt < len(m.lost) || m.young {
		return m.now
	}
	d := m.belowDue()
	if m.order.len() == 0 {
		return d
	}
	if id, ok := m.firstFresh(); ok {
		d = later(m.losses[id].opened, m.settleTime())
	}
	for _, h := range [...]*heap{&m.expiries, &m.waiting, &m.paused} {
		if h.len() > 0 {
			d = min(d, when(h.items[0].key))
		}
	}
	if m.holding {
		return d
	}
	if m.budgets.len() > 0 {
		d = min(d, later(when(m.budgets.items[0].key), time.Duration(m.stood)))
	}
	if m.c.Servers == 0 || m.expiries.len() >= m.c.Outstanding {
		return d
	}
	if m.deep > 0 {
		d = min(d, max(m.allowed(live), min(m.scouts[probeNear].at, m.scouts[probeAny].at)))
	}
	if c := m.turn(); c >= 0 {
		d = min(d, m.due(c))
		if m.ready[again].len() > 0 {
			d = min(d, m.allowed(again))
		}
	}
	return d
}
