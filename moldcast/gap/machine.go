package gap

import (
	"github.com/moldtape/moldtape/moldcast/hist"
)

// Verdict is what became of an offered range.
type Verdict uint8

// The verdicts of Classify.
const (
	InOrder   Verdict = iota // continues what is held without a gap
	Ahead                    // at or beyond Head, with a gap somewhere before it
	Fill                     // in a gap that is open
	Duplicate                // held already
	Stale                    // in a gap that was given up
	Below                    // under First: not wanted
	Forgotten                // near what was given up long ago: held or not, the owner must know
)

var verdictNames = [...]string{"in order", "ahead", "fill", "duplicate", "stale", "below", "forgotten"}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "verdict(?)"
}

// Machine detects the gaps of one sequence space and schedules the requests
// for them. It is owned by one goroutine, which keeps the messages.
//
// For each datagram of a line the owner calls Passed once, then Classify and
// Accept until the range is used up (Reveal instead for a heartbeat or an end
// of session). For each answer it calls Answered, then Classify and Accept.
// When Deadline has come, and after each datagram, it calls Poll until that
// says false, then Lost until that says false.
//
// Between First and Head every sequence is held or in the table of missing
// ranges, so the size of the state follows the number of gaps, never that of
// messages. Nothing in the order of arrival allocates; what concerns a gap
// costs O(log n) in the number of gaps, and a move of the index of the table
// between the change and its nearer end.
type Machine struct {
	c Config

	first, next, head Seq
	order             deque[entry] // the pieces, by sequence
	pieces            []piece
	freePieces        []uint32
	losses            []loss
	freeLosses        []uint32
	given             Set // given up or evicted, to tell stale from duplicate
	vague             Set // the same, older, with what is held between: see forget

	now   Instant // of the latest call
	timed bool    // now is set
	young bool    // some losses came before any time was known

	lines []line
	top   Seq // highest end of a packet of any line
	// The highest end of a packet of any line among the newest frontCount, and
	// among the frontPackets before those.
	lately, before Seq
	frontCount     int
	probe          probe
	skew           skew
	unsettled      deque[fresh]

	pos      []int32
	ready    [classes]heap // pieces to ask for, by sequence
	waiting  heap          // pieces of slow losses, by time
	paused   heap          // others that were not answered, by time of the next request
	lossPos  []int32
	budgets  heap // settled losses that may be lost, by time of clock
	flights  []flight
	freeFl   []uint32
	flPos    []int32
	expiries heap // flights, by time

	below       Range // see WantBelow
	belowServer int   // that was asked for it last

	reserved Set
	renewed  Instant

	lost    []Range // for Lost
	lostAt  int
	rand    Random
	rate    rate
	tat     Instant // of it (GCRA)
	slowTat Instant // the same of slow requests

	againTat Instant // the same of those for what was not answered twice
	calmTat  Instant // the same of all, were the rate startRate

	slot    Instant // when a request may go by Config.Shared
	hasSlot bool

	prefer     int // server asked first
	servers    []reach
	fit        fit
	lastAnswer Instant // by clock
	answered   bool

	floor     Seq // below, no server has anything, as far as is known
	deep      int // pieces below floor that are not asked for
	scouts    [scoutKinds]scouting
	exploring bool

	holding bool    // nothing can be taken in: see Hold
	stood   Instant // how long the clock of budgets stood still so far
	heldAt  Instant // what it shows while it does

	stats       Stats
	open        int // losses not lost
	openSettled int // of these, those that settled
	repair      hist.Histogram
}

type entry struct {
	first Seq
	id    uint32
}

// piece is a missing range whose sequences share one state.
type piece struct {
	first, next Seq
	asked, prev Instant // the last request and the one before it, when tries say so
	front       Seq     // at the first request
	loss        uint32
	flight      uint32
	tries       uint16
	span        uint16 // messages of the shortest unanswered request that began here
	server      uint8
	state       state
}

type state uint8

const (
	settling state = iota
	ready
	flying
	waiting  // slow, until it is asked for again
	paused   // not answered, until it is asked for again
	deep     // below floor
	reserved // on its way by other means
)

// The classes of what is to be asked for: a later one has its turn when the
// earlier ones have nothing.
const (
	live       = iota // of this run
	background        // from before it, below its start, or lost and coming back
	slow              // lost: now and then
	again             // not answered twice: before the others, but less often
	classes
)

// loss is what went missing at once: the unit that opens, is recovered, and
// is lost, each counted once however it is split on the way.
type loss struct {
	first, next Seq
	missing     uint64
	opened      Instant
	base        Instant // the budget runs from here, by clock
	gen         uint32
	slowTries   uint8
	old         bool // background
	timeOnly    bool // does not settle by later packets
	settled     bool
	asked       bool
	lost        bool
	slow        bool
	young       bool // opened is yet to be set
	used        bool
}

// fresh is a loss that has not settled; stale when gen differs.
type fresh struct{ loss, gen uint32 }

// New returns a machine that wants everything from sequence 1. Start or Resume
// say otherwise. It panics when c, defaults applied, does not validate.
func New(c Config) *Machine {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		panic(err)
	}
	m := &Machine{
		c:       c,
		lines:   make([]line, c.Lines),
		rand:    Random(c.Seed),
		rate:    newRate(c.RequestsPerSecond),
		servers: make([]reach, c.Servers),
	}
	for k := range m.scouts {
		m.scouts[k].wait = m.leastWait(scout(k))
	}
	for i := range m.servers {
		m.servers[i] = newReach()
		if i < len(c.Windows) && c.Windows[i] > 0 {
			m.servers[i].window = c.Windows[i]
		}
	}
	for i := range m.ready {
		m.ready[i].pos = &m.pos
	}
	m.waiting.pos = &m.pos
	m.paused.pos = &m.pos
	m.budgets.pos = &m.lossPos
	m.expiries.pos = &m.flPos
	m.Start(1)
	return m
}

// Start says that nothing below first is wanted. It is called before anything
// was accepted.
func (m *Machine) Start(first Seq) {
	first = max(first, 1)
	m.first, m.next, m.head, m.top = first, first, first, first
}

// Resume takes up what an archive holds: all of [first, head) but missing,
// which is clipped to it and may be in any order. The missing ranges are gaps
// that have settled, and are asked for in the background: at most the highest
// MaxGaps/2 of them, which servers are the likeliest to have still. The others
// are given up from the start, as what is evicted. It is called before
// anything was accepted.
func (m *Machine) Resume(first, head Seq, missing []Range) {
	m.Start(first)
	m.head = max(head, m.first)
	m.next, m.top = m.head, m.head
	var set Set
	for _, r := range missing {
		set.Add(r.Intersect(Range{m.first, m.head}))
	}
	ranges := set.Ranges()
	older := max(0, len(ranges)-(m.c.MaxGaps+1)/2)
	for _, r := range ranges[:older] {
		m.giveUp(r)
	}
	for _, r := range ranges[older:] {
		id := m.addLoss(r)
		l := &m.losses[id]
		l.old = true
		p := m.addPiece(piece{first: r.First, next: r.Next, loss: id})
		m.order.push(entry{r.First, p})
		m.settle(id)
	}
	m.setNext()
}

// Extend moves First down to first; [first, old First) becomes a gap that is
// filled in the background. Without effect unless 0 < first < First. false
// means that the table of gaps is full and nothing changed; it is counted in
// Stats.Overflows.
func (m *Machine) Extend(first Seq) bool {
	if first == 0 || first >= m.first {
		return true
	}
	if m.c.Sparse {
		m.first = first
		return true
	}
	if m.order.len() >= m.c.MaxGaps && !m.evict(false) {
		m.stats.Overflows++
		return false
	}
	r := Range{first, m.first}
	m.first, m.next = first, first
	id := m.addLoss(r)
	l := &m.losses[id]
	l.old, l.timeOnly = true, true
	p := m.addPiece(piece{first: r.First, next: r.Next, loss: id})
	m.order.splice(0, 0, 1)
	m.order.items()[0] = entry{r.First, p}
	m.unsettled.push(fresh{id, l.gen})
	return true
}

// First is the lowest sequence wanted.
func (m *Machine) First() Seq { return m.first }

// Next is the lowest sequence that is missing: no gap below. What was given up
// under GiveUp, or evicted from a full table when it was lost, is not missing.
func (m *Machine) Next() Seq { return m.next }

// Head is one past the highest sequence accepted or revealed.
func (m *Machine) Head() Seq { return m.head }

// Open is the number of gaps that are neither filled nor lost, settled or not.
func (m *Machine) Open() int { return m.open }

// OpenGaps is the number of those of Open that have settled: gaps, not
// disorder.
func (m *Machine) OpenGaps() int { return m.openSettled }

// OpenMissing is what is missing of OpenGaps, in messages, and since when the
// oldest of them is. It looks at every gap.
func (m *Machine) OpenMissing() (messages uint64, since Instant) {
	since = Never
	for i := range m.losses {
		if l := &m.losses[i]; l.used && l.settled && !l.lost {
			messages += l.missing
			since = min(since, l.opened)
		}
	}
	return messages, since
}

// RepairTime counts how long gaps that were recovered had been missing, in ns:
// of those from before this run, since it began. Read only.
func (m *Machine) RepairTime() *hist.Histogram { return &m.repair }

// Classify gives the verdict on a leading part of r, as long as one verdict
// goes. It changes nothing. r must not be empty, and not reach beyond 2^64-1.
func (m *Machine) Classify(r Range) (sub Range, v Verdict) {
	if m.c.Sparse && r.First >= m.first {
		if r.First >= m.head {
			return r, InOrder
		}
		return Range{r.First, min(r.Next, m.head)}, Forgotten
	}
	switch {
	case r.First == m.head && m.next == m.head:
		return r, InOrder
	case r.First >= m.head:
		return r, Ahead
	case r.First < m.first:
		return Range{r.First, min(r.Next, m.first)}, Below
	}
	if m.given.Len() > 0 {
		part, held := m.given.Cut(r)
		if held {
			return part, Stale
		}
		r = part
	}
	if m.vague.Len() > 0 {
		part, held := m.vague.Cut(r)
		if held {
			return m.certain(part)
		}
		r = part
	}
	r.Next = min(r.Next, m.head)
	if r.First < m.next {
		r.Next = min(r.Next, m.next)
		return r, Duplicate
	}
	i := m.find(r.First)
	items := m.order.items()
	if i == len(items) {
		return r, Duplicate
	}
	p := &m.pieces[items[i].id]
	if p.first > r.First {
		r.Next = min(r.Next, p.first)
		return r, Duplicate
	}
	r.Next = min(r.Next, p.next)
	if m.losses[p.loss].lost {
		return r, Stale
	}
	return r, Fill
}

// certain is the verdict on r, which is vague: what is in the table there is
// missing for sure.
func (m *Machine) certain(r Range) (sub Range, v Verdict) {
	items := m.order.items()
	i := m.find(r.First)
	if i == len(items) {
		return r, Forgotten
	}
	p := &m.pieces[items[i].id]
	switch {
	case p.first > r.First:
		return Range{r.First, min(r.Next, p.first)}, Forgotten
	case m.losses[p.loss].lost:
		return Range{r.First, min(r.Next, p.next)}, Stale
	}
	return Range{r.First, min(r.Next, p.next)}, Fill
}

// Accept marks as held a range that Classify gave as InOrder, Ahead, Fill or
// Stale; of a Forgotten one it takes note that it came after all. Other ranges
// change nothing. line is the line that brought it, any
// number outside 0..Lines-1 for an answer. false means that the table of gaps
// is full and nothing changed: the caller must drop the messages, which stay
// missing; it is counted in Stats.Overflows.
func (m *Machine) Accept(now Instant, line int, sub Range) bool {
	m.tick(now)
	if sub.Empty() {
		return true
	}
	if m.c.Sparse {
		m.head = max(m.head, sub.Next)
		m.next = m.head
		return true
	}
	if sub.First >= m.head {
		if sub.First > m.head && !m.openGap(Range{m.head, sub.First}) {
			return false
		}
		if m.order.len() == 0 {
			m.next = sub.Next
		}
		m.head = sub.Next
		return true
	}
	if m.given.Len() > 0 {
		if part, held := m.given.Cut(sub); held {
			m.given.Remove(part)
			m.forget()
			m.stats.MessagesRecovered += part.Len()
			return true
		}
	}
	i := m.find(sub.First)
	var p *piece
	if i < m.order.len() {
		p = &m.pieces[m.order.items()[i].id]
	}
	if p == nil || p.first > sub.First {
		if m.vague.Contains(sub.First) {
			m.stats.MessagesRecovered += sub.Len()
		}
		return true
	}
	sub.Next = min(sub.Next, p.next)
	if p.first < sub.First && sub.Next < p.next {
		if m.order.len() >= m.c.MaxGaps {
			m.stats.Overflows++
			return false
		}
		m.cut(i, sub.Next)
	}
	m.fill(i, sub, line < 0 || line >= m.c.Lines)
	return true
}

// maxGiven bounds what is remembered of given up ranges, twice: so many are
// known exactly, and so many more vaguely.
const maxGiven = 4096

// giveUp takes note of a range that was given up, and is no longer in the
// table.
func (m *Machine) giveUp(r Range) {
	m.given.Add(r)
	m.forget()
}

// forget keeps the bounds. The lowest ranges become vague, and then one with
// their neighbours, with all that is held between. So what is vague covers all
// that was given up, and nothing that is missing is ever taken for held.
func (m *Machine) forget() {
	for m.given.Len() > maxGiven {
		r := m.given.Ranges()[0]
		m.given.Remove(r)
		m.vague.Add(r)
		if rs := m.vague.Ranges(); len(rs) > maxGiven {
			m.vague.Add(Range{rs[0].First, rs[1].Next})
		}
	}
}

// Withdraw takes back that [next, Head) exists: the owner has found that who
// revealed it was wrong. Nothing of it was accepted; what is in flight may
// still be answered, which then is Ahead. false, and without effect, unless
// all of the range is missing, and some.
func (m *Machine) Withdraw(next Seq) bool {
	items := m.order.items()
	if next < m.first || next >= m.head || len(items) == 0 {
		return false
	}
	i := m.find(next)
	at := next
	for _, e := range items[i:] {
		p := &m.pieces[e.id]
		if p.first > at {
			return false // held between
		}
		at = p.next
	}
	if at != m.head {
		return false
	}
	if p := &m.pieces[items[i].id]; p.first < next {
		m.cut(i, next)
		i++
	}
	for m.order.len() > i {
		n := m.order.len() - 1
		id := m.pieces[m.order.items()[n].id].loss
		m.drop(n)
		if l := &m.losses[id]; l.used {
			l.next = min(l.next, next)
		}
	}
	for i := range m.flights {
		r := &m.flights[i].rng
		r.Next = min(r.Next, next)
	}
	m.head = next
	m.top = min(m.top, next)
	m.setNext()
	return true
}

// drop takes the piece at index i out of the table, though nothing came of it.
func (m *Machine) drop(i int) {
	id := m.order.items()[i].id
	p := m.pieces[id]
	m.rest(id)
	m.freePieces = append(m.freePieces, id)
	m.order.splice(i, i+1, 0)
	n := uint64(p.next - p.first)
	m.stats.MessagesMissing -= n
	l := &m.losses[p.loss]
	l.missing -= n
	if l.missing == 0 {
		m.dropLoss(p.loss)
	}
}

// Reveal says that everything below next exists: a heartbeat or an end of
// session of a line carried it. A next at or below Head tells nothing new.
func (m *Machine) Reveal(now Instant, line int, next Seq) {
	m.tick(now)
	if next <= m.head || m.c.Sparse {
		return
	}
	if m.openGap(Range{m.head, next}) {
		m.head = next
	}
}

// tick remembers the latest time.
func (m *Machine) tick(now Instant) {
	if now > m.now || !m.timed {
		m.now = now
		if !m.timed {
			m.timed = true
			m.tat, m.slowTat, m.againTat, m.calmTat = now, now, now, now
		}
	}
	if m.young {
		m.grow()
	}
}

// clock is the time of budgets. It stands still while nothing can be taken in.
func (m *Machine) clock() Instant {
	if m.holding {
		return m.heldAt
	}
	return m.now - m.stood
}

// Hold says that what comes cannot be taken in for now (on), or that it can
// again. Meanwhile nothing is asked for, and no budget runs.
func (m *Machine) Hold(now Instant, on bool) {
	m.tick(now)
	switch {
	case on == m.holding:
	case on:
		m.holding, m.heldAt = true, m.clock()
	default:
		m.holding, m.stood = false, m.now-m.heldAt
	}
}

// grow sets the times of losses that came before any time was known.
func (m *Machine) grow() {
	m.young = false
	for id := range m.losses {
		l := &m.losses[id]
		if l.young {
			l.young = false
			l.opened, l.base = m.now, m.clock()
			if l.settled {
				m.budgets.push(uint32(id), at(later(l.base, m.c.Budget)))
			}
		}
	}
}
