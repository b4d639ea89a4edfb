package gap

import (
	"slices"
	"time"
)

// reach is what is known of one server: its round trip, and how much it still
// holds. A sender keeps its newest messages, so that is counted in messages
// below the front when it was asked: the depth of a message, which grows as the
// stream goes on. The front is where the lines are, see front: what a forged
// packet says lies far ahead makes no message deeper.
//
// An answer proves its depth. A request that is not answered proves nothing by
// itself; several in a row beyond what was ever answered, while requests sent
// later were answered, bound the depth, the more of them the more requests are
// lost otherwise. Between the two bounds requests go to the middle, so that they
// soon meet. An answer from beyond the upper one moves that up.
type reach struct {
	rtt  time.Duration // smoothed; 0: unknown
	base time.Duration // the shortest of late

	window uint64            // nothing farther down is ever asked for; beyond: not known
	held   uint64            // the greatest depth that was answered
	gone   uint64            // nothing is left from this depth on; beyond: not known
	step   uint64            // how far an answer from beyond moves gone
	doubt  uint64            // the least depth beyond held that was not answered; 0: none
	missed [maxMissed]uint64 // the least such depths that count, ascending
	misses int               // of them
	edge   int               // in a row, not answered just above held

	loss   uint64  // of 1<<lossBits requests for what is held, those not answered
	silent int     // requests since the last answer
	newest Instant // when the newest request that was answered was sent
	heard  bool    // it ever answered
}

const (
	beyond    = ^uint64(0)
	maxMissed = 8
	lossBits  = 16

	// silentAfter requests without an answer a server counts as silent.
	silentAfter = 8
	// So far apart the bounds may stay, and a sixteenth of the lower one.
	closeBy = 64
	// exploreFrom is how far apart they must be for requests to look for them
	// before anything bounds the depth.
	exploreFrom = 256
)

func newReach() reach { return reach{window: beyond, gone: beyond, loss: 1 << lossBits / 50} }

// sample takes a round trip.
func (s *reach) sample(d time.Duration) {
	if s.rtt == 0 {
		s.rtt, s.base = d, d
		return
	}
	s.rtt += (d - s.rtt) / 8
	s.base = min(d, s.base+(d-s.base)/256)
}

// answer takes note that a request sent at a time, for a message at depth d,
// was answered.
func (s *reach) answer(d uint64, sent Instant) {
	s.silent = 0
	if !s.heard || sent > s.newest {
		s.heard, s.newest = true, sent
	}
	s.loss -= s.loss / 32
	if d >= s.doubt {
		s.doubt = 0
	}
	if d >= s.held-s.held/16 {
		s.edge = 0
	}
	if d <= s.held {
		return
	}
	s.held = d
	n := 0
	for n < s.misses && s.missed[n] <= d {
		n++
	}
	s.misses = copy(s.missed[:], s.missed[n:s.misses])
	if d >= s.gone {
		s.step = max(2*s.step, d/8+closeBy)
		s.gone = beyond
		if d < beyond-s.step {
			s.gone = d + s.step
		}
	}
}

// miss takes note that it was not, in time. It reports whether the server
// surely had the message: then the request or the answer was lost.
func (s *reach) miss(d uint64, sent Instant) (lost bool) {
	if d >= s.gone {
		return false
	}
	s.silent = min(s.silent+1, 1<<20)
	counts := s.heard && sent <= s.newest
	if d > s.held {
		if s.doubt == 0 || d < s.doubt || s.silent%(4*maxMissed) == 0 {
			s.doubt = d
		}
		if counts {
			s.bound(d)
		}
		return false
	}
	s.loss += (1<<lossBits - s.loss) / 32
	if counts && d >= s.held-s.held/16 {
		// What was there once has gone, if this goes on.
		if s.edge++; s.edge >= s.enough() {
			s.edge = 0
			s.held -= s.held / 16
		}
	}
	return true
}

// bound takes up a depth beyond held.
func (s *reach) bound(d uint64) {
	at, _ := slices.BinarySearch(s.missed[:s.misses], d)
	if at == maxMissed {
		return
	}
	s.misses = min(s.misses+1, maxMissed)
	copy(s.missed[at+1:s.misses], s.missed[at:])
	s.missed[at] = d
	if n := s.enough(); s.misses >= n && s.missed[n-1] < s.gone {
		s.gone, s.step, s.doubt = s.missed[n-1], 0, 0
		s.misses = n - 1
	}
}

// enough is how many requests in a row that are lost by chance alone are too
// many to be believed.
func (s *reach) enough() int {
	switch p := s.loss * 100 >> lossBits; {
	case p <= 5:
		return 3
	case p <= 10:
		return 4
	case p <= 20:
		return 6
	}
	return maxMissed
}

// limit is the depth up to which to ask: with haste, when not everything can
// be asked for in time, not quite what was answered once.
func (s *reach) limit(haste bool) uint64 {
	limit := s.held
	switch {
	case s.gone == beyond:
		limit = beyond
	case s.apart():
		limit = s.held + (s.gone-s.held)/2
	case haste:
		limit = s.safe()
	}
	return min(limit, s.window)
}

// apart reports whether the bounds are still to meet.
func (s *reach) apart() bool { return s.gone != beyond && s.gone-s.held > s.held/16+closeBy }

// safe is the depth up to which all is there in all likelihood.
func (s *reach) safe() uint64 { return s.held - min(s.held, s.held/128+16) }

// depth is that of q below front.
func depth(front, q Seq) uint64 {
	if q >= front {
		return 0
	}
	return uint64(front - q)
}

// front is how far the lines have come of late; before any was heard, the head.
func (m *Machine) front() Seq {
	if m.frontCount == 0 {
		return m.head
	}
	return min(m.head, max(m.lately, m.before))
}

// frontPackets at least, and twice as many at most, front looks back: more than
// lines are apart in packets that come in turn, few enough that what was forged
// is soon forgotten.
const frontPackets = 16

// goFront takes note of the end of a packet of a line.
func (m *Machine) goFront(next Seq) {
	if m.frontCount++; m.frontCount > frontPackets {
		m.before, m.lately, m.frontCount = m.lately, 0, 1
	}
	m.lately = max(m.lately, next)
}

// silent reports whether server s has long not answered, while another has.
func (m *Machine) silent(s int) bool {
	if m.servers[s].silent < silentAfter {
		return false
	}
	for i := range m.servers {
		if m.servers[i].silent < silentAfter {
			return true
		}
	}
	return false
}

// farthest is the server to ask for what is deepest, and the limit of depth.
func (m *Machine) farthest() (server int, limit uint64) {
	haste := m.rate.pressed(m.now)
	server = -1
	for k := range m.servers {
		i := (m.prefer + k) % len(m.servers)
		if l := m.servers[i].limit(haste); (server < 0 || l > limit) && !m.silent(i) {
			server, limit = i, l
		}
	}
	return server, limit
}

// serverFor is whom to ask for p: the next in turn that is not silent and may
// still have it.
func (m *Machine) serverFor(p *piece) int {
	n := len(m.servers)
	first := m.prefer
	if p.tries > 0 {
		first = (int(p.server) + 1) % n
	}
	if n == 1 {
		return first
	}
	d := depth(m.front(), p.first)
	second := -1
	for k := range n {
		i := (first + k) % n
		if d > m.servers[i].window {
			continue
		}
		if second < 0 {
			second = i
		}
		if m.silent(i) && p.tries%silentAfter != silentAfter-1 {
			continue
		}
		if d <= m.servers[i].limit(false) {
			return i
		}
	}
	return max(second, 0)
}

// unanswered takes note that a flight brought no answer.
func (m *Machine) unanswered(fl *flight) {
	s := &m.servers[fl.server]
	d, lost := depth(fl.front, fl.from), false
	if fl.from < fl.front { // else nobody is known to have come so far
		lost = s.miss(d, fl.sent)
	}
	if d < s.gone {
		m.rate.miss(lost && fl.try == 1)
	}
	m.rate.judge(m.now, s.rtt, s.base)
	if fl.scout > 0 {
		x := &m.scouts[fl.scout]
		most := m.c.RetryMax
		if m.open == 0 {
			most = m.c.SlowMax
		}
		x.wait, x.hits, x.less = min(2*x.wait, most), 0, x.less+1
		if fl.scout == explore {
			x.at = later(m.now, x.wait)
		}
	}
}

// answeredFlight takes note that server answered a flight, or, with none, a
// request for p whose flight is over.
func (m *Machine) answeredFlight(server int, fl *flight, p *piece) {
	s := &m.servers[server]
	switch {
	case fl == nil:
		s.silent = 0
		if p.tries == 1 && server == int(p.server) {
			s.answer(depth(p.front, p.first), p.asked)
		}
		m.rate.late()
	case fl.server != server:
		s.silent = 0
		m.rate.late()
	case !fl.answered:
		fl.answered = true
		was := s.held
		s.answer(depth(fl.front, fl.from), fl.sent)
		m.rate.answer(fl.try == 1 && s.held == was)
		if fl.scout > 0 {
			x := &m.scouts[fl.scout]
			x.wait, x.hits, x.less = m.leastWait(fl.scout), min(x.hits+1, 6), 0
		}
	}
	m.rate.judge(m.now, s.rtt, s.base)
}

// scout is why a piece is asked for out of turn.
type scout uint8

const (
	inTurn    scout = iota
	explore         // to find the bounds, or whether the server is still there
	proof           // it surely is there, if the server is
	probeNear       // a little below what was answered, farther each time that it is answered, else nearer
	probeAny        // anywhere in what seems to be gone
	scoutKinds
)

// scouting paces one kind: while nothing is answered, more and more slowly.
type scouting struct {
	at   Instant
	wait time.Duration
	hits int // answered in a row
	less int // of the near ones: not answered in a row; each asks for half as much as the one before
}

// probeMin is how soon at least one probe follows another.
const probeMin = 25 * time.Millisecond

func (m *Machine) leastWait(k scout) time.Duration {
	if k < probeNear {
		return m.c.RetryMin
	}
	return min(probeMin, m.c.SlowMax)
}

// sift brings the pieces that are to be asked for in line with what the
// servers still have: those before floor rest, deep, until a probe shows that
// they are there after all, or the budget is spent.
func (m *Machine) sift() {
	floor := Seq(0)
	front := m.front()
	if _, limit := m.farthest(); limit < uint64(front) {
		floor = front - Seq(limit)
	}
	if floor < m.floor && m.deep > 0 {
		m.surface(Range{floor, m.floor})
	}
	m.floor = floor
	for c := range m.ready {
		for m.ready[c].len() > 0 && Seq(m.ready[c].items[0].key) < floor {
			m.sink(m.ready[c].items[0].id)
		}
	}
}

// sink makes what lies before floor of a ready piece deep.
func (m *Machine) sink(id uint32) {
	p := &m.pieces[id]
	l := &m.losses[p.loss]
	if !l.asked {
		l.asked, l.base = true, m.clock()
	}
	i := m.find(p.first)
	end := min(p.next, m.floor)
	if i > 0 {
		q := &m.pieces[m.order.items()[i-1].id]
		if q.state == deep && q.loss == p.loss && q.next == p.first {
			q.next = end
			if end < p.next {
				m.rest(id)
				p.first = end
				m.order.items()[i].first = end
				m.fresh(id)
				return
			}
			m.rest(id)
			m.freePieces = append(m.freePieces, id)
			m.order.splice(i, i+1, 0)
			return
		}
	}
	if end < p.next && m.hasRoom() {
		m.cut(i, end)
		m.fresh(m.order.items()[i+1].id)
	}
	m.rest(id)
	m.pieces[id].state = deep
	m.deep++
}

// fresh makes a piece ready that was not asked for before.
func (m *Machine) fresh(id uint32) {
	m.rest(id)
	p := &m.pieces[id]
	p.tries, p.span = 0, 0
	m.makeReady(id)
}

// surface makes the deep pieces in r ready.
func (m *Machine) surface(r Range) {
	for i := m.find(r.First); i < m.order.len(); i++ {
		id := m.order.items()[i].id
		p := &m.pieces[id]
		if p.first >= r.Next {
			return
		}
		if p.state != deep {
			continue
		}
		if p.first < r.First {
			if m.hasRoom() {
				m.cut(i, r.First)
			}
			continue
		}
		m.fresh(id)
	}
}

// hasRoom reports whether a piece may be cut for a request.
func (m *Machine) hasRoom() bool { return m.order.len() < m.c.MaxGaps+2*m.c.Outstanding }

// sound gives a deep piece to probe for at now; -1: none.
func (m *Machine) sound(now Instant, r *reach) (int, scout) {
	items := m.order.items()
	j := m.find(m.floor)
	if j > 0 && (j == len(items) || items[j].first >= m.floor) {
		j--
	}
	last := &m.pieces[items[j].id]
	in := Range{items[0].first, min(last.next, m.floor)}
	if front := m.front(); r.window < uint64(front) {
		in.First = max(in.First, front-Seq(r.window))
	}
	if in.Empty() {
		return -1, 0
	}
	for k := probeNear; k <= probeAny; k++ {
		x := &m.scouts[k]
		if now < x.at {
			continue
		}
		x.at = later(now, x.wait)
		in := in
		if k == probeNear {
			span := r.held >> (6 - x.hits)
			if x.less > 0 && span>>(x.less-1) == 0 {
				x.less = 0 // the last message alone was asked for: from farther on again
			}
			in.First = max(in.First, in.Next-min(in.Next, Seq(span>>x.less+1)))
		} else {
			in.First += Seq(m.rand.Next() % in.Len())
		}
		if i := m.pieceIn(in); i >= 0 {
			return i, k
		}
	}
	return -1, 0
}

// scout is a piece to ask for out of turn, to find how much the servers have:
// on the way to the bounds, and then, now and then, what is beyond. -1: none.
func (m *Machine) scout(now Instant) (int, scout) {
	s, _ := m.farthest()
	if s < 0 {
		return -1, 0
	}
	r := &m.servers[s]
	if m.deep > 0 {
		if i, k := m.sound(now, r); i >= 0 {
			return i, k
		}
	}
	// While the bounds are looked for, every other request is for what lies
	// between, now and then before there are any, and else for what was there,
	// which shows whether the server answers. So it is when it falls silent, to
	// tell a server that lacks something from one that is gone.
	front := m.front()
	low := max(m.order.items()[0].first, m.floor)
	search := r.gone == beyond && r.doubt > r.held && r.doubt-r.held > exploreFrom && r.doubt <= uint64(front)
	silent := r.silent >= silentAfter && low < front && front-low > exploreFrom
	if !search && !silent && !r.apart() {
		return -1, 0
	}
	if m.exploring = !m.exploring; !m.exploring {
		return -1, 0
	}
	switch {
	case !search && !silent, now < m.scouts[explore].at:
		return m.pieceIn(Range{front - Seq(min(r.safe(), uint64(front))), front}), proof
	case search:
		in := Range{front - Seq(r.doubt) + 1, front - Seq(r.held)}
		if i := m.pieceIn(Range{in.First + Seq(in.Len()/2), in.Next}); i >= 0 {
			return i, explore
		}
		return m.pieceIn(in), explore
	}
	return m.pieceIn(Range{low + Seq(m.rand.Next()%uint64(front-low)), front}), explore
}

// pieceIn finds a piece that begins in r and may be asked for, near its
// beginning; one that lies across it is cut. -1: none.
func (m *Machine) pieceIn(r Range) int {
	const look = 64
	i := m.find(r.First)
	for end := min(i+look, m.order.len()); i < end; i++ {
		p := &m.pieces[m.order.items()[i].id]
		if p.first >= r.Next {
			break
		}
		if l := &m.losses[p.loss]; l.slow && p.state != deep {
			continue
		}
		switch {
		case p.state != ready && p.state != deep && p.state != paused:
		case p.first < r.First:
			if m.hasRoom() {
				m.cut(i, r.First)
				id := m.order.items()[i+1].id
				if m.fresh(id); m.pieces[id].state == ready {
					return i + 1
				}
			}
		case p.state != paused:
			return i
		}
	}
	return -1
}

// rejoin joins the piece at q, which was cut for a request that brought
// nothing, with what it was cut from.
func (m *Machine) rejoin(q Seq) {
	i := m.find(q) - 1
	if i < 0 {
		return
	}
	id := m.order.items()[i].id
	for p := &m.pieces[id]; i+1 < m.order.len(); {
		with := m.order.items()[i+1].id
		x := &m.pieces[with]
		if p.loss != x.loss || p.next != x.first || x.state != ready && x.state != paused ||
			p.state != ready && p.state != paused && (p.state != deep || x.first >= m.floor) {
			return
		}
		p.next = x.next
		m.rest(with)
		m.freePieces = append(m.freePieces, with)
		m.order.splice(i+1, i+2, 0)
	}
}
