package gap

import (
	"time"

	"github.com/moldtape/moldtape/moldcast/hist"
)

// line is what is known of one line.
type line struct {
	heard Instant
	ever  bool
	high  [3]Seq // the highest first sequences of its packets, all different, descending
}

func (l *line) pass(q Seq) {
	h := &l.high
	switch {
	case q > h[0]:
		h[0], h[1], h[2] = q, h[0], h[1]
	case q == h[0] || q <= h[2] || q == h[1]:
	case q > h[1]:
		h[1], h[2] = q, h[1]
	default:
		h[2] = q
	}
}

// Passed is called once for each packet of a line, with its range, or the
// empty range at its sequence for a heartbeat or end of session. From it come
// the liveness of the line, the skew between lines, and which gaps have
// settled because the lines went on.
func (m *Machine) Passed(now Instant, line int, r Range) {
	m.tick(now)
	if line < 0 || line >= len(m.lines) {
		return
	}
	l := &m.lines[line]
	l.heard, l.ever = now, true
	l.pass(r.First)
	m.goFront(r.Next)
	if len(m.lines) > 1 {
		m.measure(now, line, r)
	}
	if m.unsettled.len() > 0 {
		m.settlePassed()
	}
}

func (m *Machine) isLive(l *line) bool {
	return l.ever && m.now-l.heard <= 3*Instant(m.c.HeartbeatInterval)
}

// liveLines counts the live lines, and tells how far all of them have gone:
// every gap that ends at or below passed has settled. With one line that is
// the third highest packet, since the packet that showed the gap is followed
// by two; with several the second highest of each.
func (m *Machine) liveLines() (n int, passed Seq) {
	var single Seq
	passed = ^Seq(0)
	for i := range m.lines {
		l := &m.lines[i]
		if m.isLive(l) {
			n++
			passed = min(passed, l.high[1])
			single = l.high[2]
		}
	}
	switch n {
	case 0:
		return 0, 0
	case 1:
		return 1, single
	}
	return n, passed
}

// settleTime is how long a new gap may be mere disorder.
func (m *Machine) settleTime() time.Duration {
	if n, _ := m.liveLines(); n < 2 {
		return m.c.Settle
	}
	d := 3 * m.skew.p99
	if m.skew.total == 0 {
		d = m.c.Settle
	}
	return min(max(d, m.c.SettleMin), m.c.SettleMax)
}

// firstFresh is the oldest loss that has not settled.
func (m *Machine) firstFresh() (id uint32, ok bool) {
	for m.unsettled.len() > 0 {
		f := m.unsettled.items()[0]
		if l := &m.losses[f.loss]; l.gen == f.gen && !l.settled {
			return f.loss, true
		}
		m.unsettled.splice(0, 1, 0)
	}
	return 0, false
}

func (m *Machine) settlePassed() {
	_, passed := m.liveLines()
	for {
		id, ok := m.firstFresh()
		if !ok || m.losses[id].timeOnly || m.losses[id].next > passed {
			return
		}
		m.settle(id)
	}
}

func (m *Machine) settleDue(now Instant) {
	if m.unsettled.len() == 0 {
		return
	}
	d := m.settleTime()
	for {
		id, ok := m.firstFresh()
		if !ok || later(m.losses[id].opened, d) > now {
			return
		}
		m.settle(id)
	}
}

// settle makes id a gap.
func (m *Machine) settle(id uint32) {
	l := &m.losses[id]
	l.settled = true
	l.base = m.clock()
	m.stats.GapsOpened++
	m.openSettled++
	if !l.young {
		m.budgets.push(id, at(later(l.base, m.c.Budget)))
	}
	items := m.order.items()
	for i := m.find(l.first); i < len(items) && items[i].first < l.next; i++ {
		m.makeReady(items[i].id)
	}
}

// probe measures the skew between lines: the time from when the first line
// brought a sequence to when each other one went past it. One at a time, so a
// packet costs a comparison.
type probe struct {
	on      bool
	seq     Seq
	at      Instant
	pending int       // live lines that have not passed seq
	seen    [4]uint64 // those that have
}

// A probe that a line does not answer for so long is dropped: the line was
// interrupted, not skewed.
const probeTimeout = Instant(50 * time.Millisecond)

func (m *Machine) measure(now Instant, line int, r Range) {
	p := &m.probe
	if p.on {
		if bit := uint64(1) << (line & 63); r.Next > p.seq && p.seen[line>>6]&bit == 0 {
			p.seen[line>>6] |= bit
			p.pending--
			m.skew.add(time.Duration(now - p.at))
		}
		if p.pending <= 0 || now-p.at > probeTimeout {
			p.on = false
		}
	}
	if r.Next > m.top {
		m.top = r.Next
		if !p.on && !r.Empty() {
			if n, _ := m.liveLines(); n > 1 {
				*p = probe{on: true, seq: r.Next - 1, at: now, pending: n - 1}
				p.seen[line>>6] |= 1 << (line & 63)
			}
		}
	}
}

// skew counts times between lines; it forgets by halving.
type skew struct {
	count [hist.Buckets]uint32
	total uint32
	top   int // no higher bucket counts any
	p99   time.Duration
}

func (s *skew) add(d time.Duration) {
	b := hist.Bucket(int64(d))
	s.count[b]++
	s.top = max(s.top, b)
	s.total++
	if s.total >= 1024 {
		s.total = 0
		for i := range s.count {
			s.count[i] /= 2
			s.total += s.count[i]
		}
	}
	if s.total > 32 && s.total%8 != 0 {
		return
	}
	above := uint32(0)
	for i := s.top; i >= 0; i-- {
		above += s.count[i]
		if above*100 > s.total || i == 0 {
			s.p99 = time.Duration(hist.Top(i))
			return
		}
	}
}
