package gap

import "time"

// Request is what to ask whom.
type Request struct {
	Range  Range // 1..MaxRequest messages
	Server int
	Try    int // 1 for the first request for it
}

// flight is a request that is unanswered.
type flight struct {
	rng    Range
	pieces int    // that wait for it
	limit  uint16 // what kept it from asking for more: messages of an answer, as estimated; 0: nothing did
	before uint16 // messages of the shortest earlier request that began here too, whose answer may still come
}

// class says in which turn pieces of a loss are asked for.
func (m *Machine) class(id uint32) int {
	switch l := &m.losses[id]; {
	case l.slow:
		return slow
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
	m.ready[m.class(p.loss)].push(id, uint64(p.first))
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
	for m.budgets.len() > 0 && when(m.budgets.items[0].key) <= now {
		id := m.budgets.items[0].id
		if due := m.budgetEnd(id); due > now {
			m.budgets.change(id, at(due))
			continue
		}
		m.lose(id)
	}
	for m.expiries.len() > 0 && when(m.expiries.items[0].key) <= now {
		m.expire(m.expiries.items[0].id)
	}
	for m.waiting.len() > 0 && when(m.waiting.items[0].key) <= now {
		id := m.waiting.items[0].id
		m.rest(id)
		m.makeReady(id)
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
	l.base = m.now
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
	r := m.flights[f].rng
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
		if l := &m.losses[p.loss]; l.slow {
			m.makeWaiting(id, later(p.asked, m.slowWait(l)))
			m.joinWaiting(i)
		} else {
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
	if m.c.Servers == 0 || m.expiries.len() >= m.c.Outstanding {
		return Request{}, false
	}
	for c := range m.ready {
		if m.ready[c].len() == 0 {
			continue
		}
		if m.allowed(c) > now {
			return Request{}, false
		}
		return m.ask(now, c), true
	}
	return Request{}, false
}

// interval is the mean time between requests of the budget.
func (m *Machine) interval() Instant {
	return Instant(time.Second) / Instant(m.c.RequestsPerSecond)
}

// burst is how many requests may go at once after a quiet time.
func (m *Machine) burst() Instant {
	return Instant(max(m.c.Outstanding, m.c.RequestsPerSecond/4))
}

// Slow requests have a tenth of the budget: those who have not answered for
// so long are not to be stormed.
const slowShare = 10

// allowed is when the budget lets a request of class c go.
func (m *Machine) allowed(c int) Instant {
	t := m.tat - (m.burst()-1)*m.interval()
	if c == slow {
		t = max(t, m.slowTat)
	}
	return t
}

// tokens is how many requests the budget lets go at once now.
func (m *Machine) tokens(now Instant) int {
	return int(m.burst() - max(0, m.tat-now+m.interval()-1)/m.interval())
}

// ask makes the request for the first ready piece of class c.
func (m *Machine) ask(now Instant, c int) Request {
	free := min(m.c.Outstanding-m.expiries.len(), m.tokens(now))
	pressed := m.ready[c].len() > free

	m.tat = max(m.tat, now) + m.interval()
	if c == slow {
		m.slowTat = max(m.slowTat, now) + slowShare*m.interval()
	}
	f := m.addFlight()
	fl := &m.flights[f]

	id := m.ready[c].items[0].id
	p := &m.pieces[id]
	i := m.find(p.first)
	server := m.prefer
	if p.tries > 0 {
		server = (int(p.server) + 1) % m.c.Servers
	}
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
	for c != slow && r.Len() < limit {
		i++
		items := m.order.items()
		if i >= len(items) {
			break
		}
		q := &m.pieces[items[i].id]
		if q.state != ready || m.class(q.loss) != c {
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
	fl.rng = r
	if capped && known > 0 && limit == known {
		fl.limit = uint16(limit)
	}
	m.expiries.push(f, at(later(now, m.retryWait(server, try))))
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
	return Request{Range: r, Server: server, Try: try}
}

// blindSpan is how far apart gaps may be that one request covers while it is
// not known how much an answer carries.
const blindSpan = 32

// board puts the ready piece at index i, at most its first limit messages, on
// flight f.
func (m *Machine) board(i int, f uint32, limit uint64, now Instant, server int) {
	id := m.order.items()[i].id
	p := &m.pieces[id]
	l := &m.losses[p.loss]
	if !l.asked {
		l.asked = true
		l.base = now
	}
	m.rest(id)
	if uint64(p.next-p.first) > limit && m.order.len() < m.c.MaxGaps+2*m.c.Outstanding {
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
	m.answered, m.lastAnswer = true, now
	if server < 0 || server >= m.c.Servers {
		server = int(p.server)
	}
	m.prefer = server
	m.roundTrip(now, server, p)
	if p.state != flying {
		return
	}
	f := p.flight
	fl := &m.flights[f]
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
		m.rest(id)
		p.tries, p.span = 0, 0
		m.makeReady(id)
		m.joinReady(i)
	}
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

// fit estimates how many messages an answer carries, in 1/256 of a message:
// ask is what to ask for, mean the mean of those answers that were cut short,
// each of which shows how much fitted there. An answer a little short costs
// another request, a request a little short costs less: so ask falls at once
// to what fitted, and rises fast only up to the mean. Beyond that it rises the
// faster the longer no answer was cut short, so that it forgets what was true
// of other messages.
type fit struct {
	ask, mean uint64
	full      uint // answers since one was cut short
}

const fitOne = 256

// messages is how many to ask for; 0 when nothing is known.
func (f *fit) messages() uint64 { return f.ask / fitOne }

// learn takes an answer that carried got of asked messages. limit is the
// estimate that kept the request from asking for more, 0 if none did.
func (f *fit) learn(got, asked, limit uint64) {
	got *= fitOne
	asked *= fitOne
	limit *= fitOne
	switch {
	case got < asked && f.ask == 0:
		*f = fit{ask: got, mean: got}
	case got < asked:
		f.full = 0
		f.mean = f.mean - f.mean/8 + got/8
		if got < f.ask {
			got = max(got, f.ask/2)
		}
		f.ask = got
	case f.ask == 0 || limit == 0 || limit+fitOne <= f.ask:
		// It says nothing about more.
	case f.ask < f.mean/10*9:
		f.ask += f.ask / 8
	default:
		f.full++
		f.ask += min(max(f.ask/256, 1)<<min(f.full/16, 5), f.ask/8)
	}
	f.ask = min(f.ask, maxRequest*fitOne)
}

// roundTrip takes a sample from an answer for p. After a retry it is not sure
// which request was answered: one that comes too soon for the last is taken
// for the answer to the one before it.
func (m *Machine) roundTrip(now Instant, server int, p *piece) {
	d := time.Duration(now - p.asked)
	s := &m.srtt[server]
	if p.tries > 1 && (server != int(p.server) || *s == 0 || d < *s/2) {
		d = time.Duration(now - p.prev)
	}
	d = min(max(d, 1), m.c.RetryMax)
	if *s == 0 {
		*s = d
		return
	}
	*s += (d - *s) / 8
}

// retryWait is how long the answer to the try-th request is waited for.
func (m *Machine) retryWait(server, try int) time.Duration {
	return m.backoff(max(m.c.RetryMin, 4*m.srtt[server]), m.c.RetryMax, try-1)
}

func (m *Machine) slowWait(l *loss) time.Duration {
	return m.backoff(m.c.SlowMin, m.c.SlowMax, int(l.slowTries))
}

// backoff is d doubled n times, times 0.5 to 1.5, at most most. Doubling ends
// at two thirds of most, so that the jitter remains.
func (m *Machine) backoff(d, most time.Duration, n int) time.Duration {
	limit := max(min(d, most), most*2/3)
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	d = min(d, limit)
	m.rand += 0x9E3779B97F4A7C15
	z := m.rand
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	z ^= z >> 31
	return min(most, d/2+time.Duration(z%uint64(d+1)))
}

// Deadline is when Poll or Lost may have something, unless a datagram comes
// first; a time in the past means now.
func (m *Machine) Deadline() Instant {
	if m.lostAt < len(m.lost) || m.young {
		return m.now
	}
	if m.order.len() == 0 {
		return Never
	}
	d := Never
	if id, ok := m.firstFresh(); ok {
		d = later(m.losses[id].opened, m.settleTime())
	}
	for _, h := range [...]*heap{&m.budgets, &m.expiries, &m.waiting} {
		if h.len() > 0 {
			d = min(d, when(h.items[0].key))
		}
	}
	if m.c.Servers > 0 && m.expiries.len() < m.c.Outstanding {
		for c := range m.ready {
			if m.ready[c].len() > 0 {
				d = min(d, m.allowed(c))
				break
			}
		}
	}
	return d
}
