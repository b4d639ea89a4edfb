package arbiter

import (
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/hist"
)

// LineStats is what one line brought of a session, or of all; packets that are
// not believed, or contradict what is held, aside. All but Missing only grow.
type LineStats struct {
	Packets    uint64 // heartbeats and ends included
	Heartbeats uint64 // of these, without messages
	Messages   uint64
	Bytes      uint64 // of the messages, payloads only
	Taken      uint64 // of the messages, those that nobody had brought before
	Repeated   uint64 // of the messages, those that it had brought itself, or that count as lost

	// Lost are the messages after its first, up to its newest or to the end of
	// a session that ended, that it did not bring within LossWait after it went
	// past them. Missing are those that it went past less long ago.
	Lost, Missing uint64

	// Compared are the packets that could be compared with another line's, by
	// the receive stamps of what brought their last message; First of these,
	// those that came first. Skew is how much later the others came, in ns.
	Compared, First uint64
	Skew            hist.Histogram

	// Disorder is how far below its newest message, in messages, packets began
	// that brought something it had gone past.
	Disorder hist.Histogram
}

// Merge adds what o counts.
func (l *LineStats) Merge(o *LineStats) {
	l.Packets += o.Packets
	l.Heartbeats += o.Heartbeats
	l.Messages += o.Messages
	l.Bytes += o.Bytes
	l.Taken += o.Taken
	l.Repeated += o.Repeated
	l.Lost += o.Lost
	l.Missing += o.Missing
	l.Compared += o.Compared
	l.First += o.First
	l.Skew.Merge(&o.Skew)
	l.Disorder.Merge(&o.Disorder)
}

// LossWait is how long a line may still bring a message that it went past.
const LossWait = time.Second

const (
	maxPassed   = 256  // ranges that a line may still bring; the oldest are lost when there are more
	maxArrivals = 4096 // how many packets a line may be behind another and be compared with it

	// Stamps that lie farther apart are of a clock that was set.
	maxSkew = moldcast.Stamp(10 * time.Second)
)

// lineState follows one line in one session.
type lineState struct {
	LineStats                // without Missing, and what is lost at the end
	first, next moldcast.Seq // it brought nothing outside; next 0: nothing at all
	passed      []passed     // what it did not bring of that, and may still; ascending
	cursor      uint64       // of arrivals: it is past those before
}

// passed is a range that a line went past at some time.
type passed struct {
	moldcast.Range
	at moldcast.Instant
}

// arrivals are the newest packets that brought the highest message of a
// session.
type arrivals struct {
	ring []arrival // of maxArrivals; nil with one line
	n    uint64    // how many there ever were
	top  moldcast.Seq
}

type arrival struct {
	next  moldcast.Seq
	stamp moldcast.Stamp
	line  int
}

// account takes note of a packet of a line that is believed.
func (s *Session) account(now moldcast.Instant, stamp moldcast.Stamp, line int, p moldcast.Packet) {
	l := &s.lines[line]
	l.Packets++
	if p.Kind != moldcast.Data {
		l.Heartbeats++
		return
	}
	n := p.Msgs.Len()
	l.Messages += uint64(n)
	l.Bytes += uint64(len(p.Msgs.Framed()) - n*moldcast.LengthSize)
	r := p.Range()
	was := l.next
	switch {
	case was == 0:
		l.first, l.next = r.First, r.Next
	case r.First == was:
		l.next = r.Next
	case r.First > was && s.sparse:
		l.next = r.Next // what was skipped need not exist
	case r.First > was:
		l.pass(now, len(l.passed), moldcast.Range{First: was, Next: r.First})
		l.next = r.Next
	default:
		l.disorder(now, r)
	}
	if len(l.passed) > 0 {
		l.expire(now)
	}
	if s.arrived.ring != nil && r.Next > was {
		s.race(stamp, line, r.Next)
	}
}

// pass puts r at i into what l may still bring.
func (l *lineState) pass(now moldcast.Instant, i int, r moldcast.Range) {
	if len(l.passed) >= maxPassed {
		const some = maxPassed / 4 // at once: each time all others are moved
		l.lose(some)
		i = max(0, i-some)
	}
	l.passed = slices.Insert(l.passed, i, passed{r, now})
}

// lose gives up the first n ranges.
func (l *lineState) lose(n int) {
	for _, p := range l.passed[:n] {
		l.Lost += p.Len()
	}
	l.passed = slices.Delete(l.passed, 0, n)
}

// expire gives up what was passed long ago.
func (l *lineState) expire(now moldcast.Instant) {
	if n := l.expired(now); n > 0 {
		l.lose(n)
	}
}

// expired is how many ranges, from the lowest on, were passed long ago.
func (l *lineState) expired(now moldcast.Instant) (n int) {
	for n < len(l.passed) && now-l.passed[n].at >= moldcast.Instant(LossWait) {
		n++
	}
	return n
}

// disorder takes r, which begins below l.next.
func (l *lineState) disorder(now moldcast.Instant, r moldcast.Range) {
	depth := l.next - r.First
	known := moldcast.Range{First: r.First, Next: min(r.Next, l.next)}
	var fresh uint64
	if r.First < l.first {
		below := moldcast.Range{First: r.First, Next: min(r.Next, l.first)}
		fresh += below.Len()
		if below.Next < l.first {
			l.pass(now, 0, moldcast.Range{First: below.Next, Next: l.first})
		}
		l.first = r.First
	}
	fresh += l.fill(known)
	if fresh > 0 {
		l.Disorder.Add(int64(min(depth, 1<<62)))
	}
	l.Repeated += known.Len() - fresh
	l.next = max(l.next, r.Next)
}

// fill takes r out of what l may still bring, and returns how much of it that
// was.
func (l *lineState) fill(r moldcast.Range) (n uint64) {
	i, _ := slices.BinarySearchFunc(l.passed, r.First, func(p passed, q moldcast.Seq) int {
		if p.Next <= q {
			return -1
		}
		return 1
	})
	j := i
	for ; j < len(l.passed) && l.passed[j].First < r.Next; j++ {
		n += l.passed[j].Intersect(r).Len()
	}
	if i == j {
		return 0
	}
	below, above := l.passed[i], l.passed[j-1]
	below.Next, above.First = min(below.Next, r.First), max(above.First, r.Next)
	left, right := below.First < below.Next, above.First < above.Next
	switch {
	case left && right && j-i == 1:
		l.passed[i] = below
		l.passed = slices.Insert(l.passed, j, above)
		return n
	case left && right:
		l.passed[i], l.passed[j-1] = below, above
		i, j = i+1, j-1
	case left:
		l.passed[i] = below
		i++
	case right:
		l.passed[j-1] = above
		j--
	}
	l.passed = slices.Delete(l.passed, i, j)
	return n
}

// race compares when a packet of a line, which ends at next, came with when
// another line brought its last message. What is highest is compared when the
// others get there.
func (s *Session) race(stamp moldcast.Stamp, line int, next moldcast.Seq) {
	a, l := &s.arrived, &s.lines[line]
	if next > a.top {
		a.ring[a.n%maxArrivals] = arrival{next, stamp, line}
		a.top = next
		a.n++
		l.cursor = a.n
		return
	}
	i := l.cursor
	far := a.n > maxArrivals && i < a.n-maxArrivals
	if far {
		i = a.n - maxArrivals
		far = a.ring[i%maxArrivals].next >= next // it may have been one before
	}
	for i < a.n && a.ring[i%maxArrivals].next < next {
		i++
	}
	l.cursor = i
	if far || i == a.n {
		return
	}
	e := &a.ring[i%maxArrivals]
	if e.line == line {
		return
	}
	first, later, d := &s.lines[e.line], l, stamp-e.stamp
	if d < 0 {
		first, later, d = l, first, -d
	}
	if d > maxSkew {
		return
	}
	first.Compared++
	first.First++
	later.Compared++
	later.Skew.Add(int64(d))
}

// line adds what line i brought by now; over: nothing comes any more, so that
// what it went past is lost.
func (s *Session) line(now moldcast.Instant, i int, over bool, to *LineStats) {
	l := &s.lines[i]
	to.Merge(&l.LineStats)
	lost := l.expired(now)
	for i, p := range l.passed {
		if over || i < lost {
			to.Lost += p.Len()
		} else {
			to.Missing += p.Len()
		}
	}
	if s.ended && l.next != 0 && l.next < s.end {
		to.Lost += uint64(s.end - l.next)
	}
}

// SessionStats is how a session, or all of a channel's, went.
type SessionStats struct {
	Lines  []LineStats
	Wait   hist.Histogram // how long messages that came early waited in memory, in ns a packet
	Repair hist.Histogram // how long gaps that were recovered had been missing, in ns
}

// addStats adds those of s to st.
func (s *Session) addStats(now moldcast.Instant, over bool, st *SessionStats) {
	for i := range s.lines {
		s.line(now, i, over, &st.Lines[i])
	}
	st.Wait.Merge(&s.waited)
	st.Repair.Merge(s.m.RepairTime())
}

// LineStats is a copy of what is measured of s by now. over says that nothing
// of it comes any more: then nothing is Missing, but Lost.
func (s *Session) LineStats(now moldcast.Instant, over bool) *SessionStats {
	st := &SessionStats{Lines: make([]LineStats, len(s.lines))}
	s.addStats(now, over, st)
	return st
}

// LineStats is a copy of what was measured of all sessions by now.
func (a *Arbiter) LineStats(now moldcast.Instant) *SessionStats {
	st := &SessionStats{Lines: slices.Clone(a.gone.Lines), Wait: a.gone.Wait, Repair: a.gone.Repair}
	for _, s := range a.order {
		s.addStats(now, false, st)
	}
	return st
}

// heard is when something came last.
type heard struct {
	now   moldcast.Instant
	stamp moldcast.Stamp
	ever  bool
}

// Heard is when a line last brought a datagram that parsed, and its stamp.
func (a *Arbiter) Heard(line int) (now moldcast.Instant, stamp moldcast.Stamp, ever bool) {
	h := a.heard[line]
	return h.now, h.stamp, h.ever
}

// fold takes up what a session counted that ends.
func (a *Arbiter) fold(now moldcast.Instant, s *Session) {
	a.c.addGaps(s.m.Stats())
	s.addStats(now, true, &a.gone)
}
