package repair

import (
	"math/bits"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// search decides what a request server is asked for, and when, to bring what
// it has of some ranges, whichever messages it lacks. It is pure: no socket,
// goroutine or clock.
//
// A server answers from the first message asked for on, or not at all. So each
// range is asked for from its beginning, the newest first, since that is what
// a sender's ring still has. What follows an answer is asked for next. A
// message that several requests did not bring is one that the server lacks;
// what lies behind it in its range is cut into parts, and each is asked for
// from its own beginning: at once where the part borders on what was answered,
// else after everything else, the largest first, and for no longer than the
// budget. Nothing is concluded from one message about any other.
//
// Not to be answered counts against a message only while the server lives:
// when a request that was sent later was answered. For that, one message that
// it has is asked for again now and then (the witness). How many such requests
// it takes follows the share that is lost.
//
// Requests go at 1000 a second to begin with; more while they are answered,
// less where most of what the server surely has has to be asked for again.
type search struct {
	peer   *peer
	budget time.Duration
	rough  bool

	ranges []moldcast.Range
	taken  []bool // ranges that were begun
	left   int    // ranges that were not
	newest int    // those from here on were
	spread int    // for what is asked for out of turn
	signs  []moldcast.Range

	want         gap.Set // what was not answered
	longestRange uint64

	segments []segment
	free     []uint32
	begun    map[moldcast.Seq]uint32 // segments that were asked for, by first
	ends     map[moldcast.Seq]uint32 // ready ones of kind dark, by next
	ready    [kinds]queue
	waiting  queue // until a request is taken for unanswered
	flying   []uint32
	live     [kinds]int

	outside, now moldcast.Instant // the owner's clock, and without the time in which nothing ran
	started      moldcast.Instant
	proven       moldcast.Instant // a request sent then was answered
	heard        moldcast.Instant // the newest answer
	gained       moldcast.Instant // the newest that brought something, or the end of anything but dark segments
	tat          moldcast.Instant // of the rate (GCRA)
	againTat     moldcast.Instant // of that of what the server may well lack
	held         bool             // a request waited for the rate
	witness      watch
	guesses      int              // dark segments that were made
	signAt       moldcast.Instant // the next round of signs
	signRound    int
	sign         int
	sent         int
	rand         gap.Random
	kept, lost   int // of what the server surely has, since the rate was judged

	requests      int
	brought       uint64 // messages
	begunMessages uint64 // of ranges that were begun
}

// peer is what is known of a server.
type peer struct {
	heard   bool
	witness moldcast.Seq  // it has this
	rtt     time.Duration // smoothed; 0: unknown
	loss    uint64        // of 1<<lossBits requests for what it has, those not answered
	proofs  uint64        // requests that loss comes from
	rate    int           // requests a second; 0: not begun
	fit     uint64        // messages of its newest answer
}

// segment is a range of which nothing was answered, and that is asked for from
// its beginning.
type segment struct {
	first, next moldcast.Seq
	asked       moldcast.Instant // the newest request
	began       moldcast.Instant // the first one from here
	gen         uint32           // of its entry in a queue
	tries       uint16
	misses      uint16 // of those, not answered by a server that lives
	kind        kind
	used        bool
	lit         bool // what lies right before was answered
	flying      bool
}

// kind says in which turn a segment is asked for.
type kind uint8

const (
	stream kind = iota // what follows an answer
	edge               // what precedes one
	plain              // a range that is wanted, from its beginning
	dark               // what lies behind a message that the server lacks
	kinds
)

// watch is the asking for the witness.
type watch struct {
	asked, began moldcast.Instant
	tries        int
}

const (
	outstanding = 64 // requests that may be unanswered at once
	startRate   = 1000
	leastRate   = 50
	mostRate    = 20_000

	firstRTO = 50 * time.Millisecond // while the round trip is unknown
	leastRTO = 10 * time.Millisecond
	mostRTO  = time.Second
	firstTry = 30 * time.Millisecond // how long a request is waited for at least that may be for what the server lacks
	mostTry  = 250 * time.Millisecond

	leastTries = 3
	mostTries  = 24 // that count
	endless    = 64 // that may not: after so many a message counts as lacking, whatever was answered meanwhile

	lossBits  = 16
	firstLoss = 1 << lossBits / 5

	watchEvery = 25 * time.Millisecond
	signEvery  = 250 * time.Millisecond
	silentAsks = 3000 // a silent server is asked so often at least, or three times for each range

	// A longer step of the clock is none: the machine stood still.
	mostStep = time.Second / 2

	split       = 8       // parts
	steal       = 64      // messages of a segment that is worth dividing, at least
	maxBegun    = 1 << 14 // segments that are not dark, before another range is begun
	maxSegments = 1 << 16

	roughGuesses = 256 // dark segments of a rough search
)

// newSearch begins to look for what p has of w. budget is how long it may be
// silent.
func newSearch(p *peer, w Want, budget time.Duration) *search {
	s := &search{
		peer: p, budget: budget, rough: w.Rough, ranges: w.Ranges, signs: w.Signs,
		taken: make([]bool, len(w.Ranges)), left: len(w.Ranges), newest: len(w.Ranges),
		begun: map[moldcast.Seq]uint32{}, ends: map[moldcast.Seq]uint32{},
	}
	if p.rate == 0 {
		p.rate, p.loss = startRate, firstLoss
	}
	for _, r := range w.Ranges {
		s.want.Add(r)
		s.longestRange = max(s.longestRange, r.Len())
	}
	return s
}

// tick takes the time.
func (s *search) tick(now moldcast.Instant) {
	switch {
	case s.outside == 0:
		s.now = 1
		s.started, s.heard, s.gained, s.signAt = s.now, s.now, s.now, s.now
		s.tat, s.againTat = s.now, s.now
	case now > s.outside:
		s.now += min(now-s.outside, moldcast.Instant(mostStep))
	default:
		return
	}
	s.outside = now
}

// Wanted is the leading part of r that is wholly wanted, or wholly not.
func (s *search) Wanted(r moldcast.Range) (part moldcast.Range, wanted bool) { return s.want.Cut(r) }

// Took takes note that r, which was wanted, came.
func (s *search) Took(r moldcast.Range) {
	s.want.Remove(r)
	s.brought += r.Len()
	s.gained = s.now
}

// Answered takes note of an answer of the server, after Took.
func (s *search) Answered(now moldcast.Instant, r moldcast.Range) {
	s.tick(now)
	if r.Empty() {
		return
	}
	p := s.peer
	p.heard, p.fit, s.heard = true, r.Len(), s.now
	if w := &s.witness; w.tries > 0 && r.Contains(p.witness) {
		s.proved(w.asked, w.began, w.tries, w.tries-1)
		*w = watch{}
	}
	if r.First > p.witness || s.witness.tries > 4 {
		p.witness, s.witness = r.First, watch{}
	}
	if id, ok := s.begun[r.First]; ok {
		s.answered(id, r)
	}
	for i := len(s.flying) - 1; i >= 0; i-- { // it may begin before what was asked for
		if id := s.flying[i]; r.Contains(s.segments[id].first) {
			s.answered(id, r)
			i = min(i, len(s.flying))
		}
	}
	if s.held && p.rate < mostRate {
		s.held = false
		p.rate = min(mostRate, p.rate+p.rate/64+1)
	}
}

// proved takes note that a request was answered: one of tries, the first of
// them sent at began and the newest at asked, of which misses were none.
func (s *search) proved(asked, began moldcast.Instant, tries, misses int) {
	p := s.peer
	if tries > 1 {
		asked = began // which of them it was is not known
	}
	s.proven = max(s.proven, asked)
	switch d := time.Duration(s.now - asked); {
	case p.rtt == 0:
		p.rtt = max(d, 1)
	case tries == 1:
		p.rtt += (d - p.rtt) / 8
	}
	for i := range misses + 1 {
		p.proofs = min(p.proofs+1, 64)
		share := max(16, p.proofs) // the more is known, the less one of them tells
		if i < misses {
			p.loss += (1<<lossBits - p.loss) / share
		} else {
			p.loss -= p.loss / share
		}
	}
	s.lost += misses
	s.kept++
	if n := s.lost + s.kept; n >= 32 {
		switch {
		case 3*s.lost > 2*n:
			p.rate = max(min(leastRate, p.rate), p.rate/2)
		case 8*s.lost > n && p.rate > startRate:
			p.rate = max(startRate, p.rate/2)
		}
		s.lost, s.kept = 0, 0
	}
}

// answered takes note that an answer held the first message of a segment.
func (s *search) answered(id uint32, r moldcast.Range) {
	g := &s.segments[id]
	s.proved(g.asked, g.began, int(g.tries), int(g.misses))
	s.rest(id)
	if below, ok := s.ends[g.first]; ok { // what precedes it comes before all that is dark
		s.rest(below)
		s.as(below, edge)
		s.makeReady(below)
	}
	g.first, g.lit = min(r.Next, g.next), true
	if !s.clip(id) {
		s.drop(id)
		return
	}
	s.as(id, stream)
	s.makeReady(id)
}

// clip lets a segment begin with what is wanted still; false: nothing is.
func (s *search) clip(id uint32) bool {
	g := &s.segments[id]
	for g.first < g.next {
		part, wanted := s.want.Cut(moldcast.Range{First: g.first, Next: g.next})
		if wanted {
			return true
		}
		g.first, g.lit = part.Next, true
		g.tries, g.misses = 0, 0
	}
	return false
}

// add makes a segment.
func (s *search) add(r moldcast.Range, k kind) uint32 {
	var id uint32
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
	} else {
		id = uint32(len(s.segments))
		s.segments = append(s.segments, segment{})
	}
	s.segments[id] = segment{first: r.First, next: r.Next, kind: k, used: true, gen: s.segments[id].gen}
	s.live[k]++
	s.makeReady(id)
	return id
}

// as gives a segment another kind.
func (s *search) as(id uint32, k kind) {
	g := &s.segments[id]
	s.live[g.kind]--
	g.kind = k
	s.live[k]++
	g.tries, g.misses = 0, 0
}

// rest takes a segment out of whatever it is in.
func (s *search) rest(id uint32) {
	g := &s.segments[id]
	g.gen++
	if g.flying {
		g.flying = false
		i := slices.Index(s.flying, id)
		last := len(s.flying) - 1
		s.flying[i] = s.flying[last]
		s.flying = s.flying[:last]
	}
	if at, ok := s.begun[g.first]; ok && at == id {
		delete(s.begun, g.first)
	}
	if at, ok := s.ends[g.next]; ok && at == id {
		delete(s.ends, g.next)
	}
}

// drop ends a segment that rests.
func (s *search) drop(id uint32) {
	g := &s.segments[id]
	s.live[g.kind]--
	if g.kind != dark {
		s.gained = s.now
	}
	g.used = false
	g.gen++
	s.free = append(s.free, id)
}

// makeReady lets a segment that rests wait for its turn.
func (s *search) makeReady(id uint32) {
	g := &s.segments[id]
	key := ^uint64(g.first)
	if g.kind == dark {
		if key = ^uint64(g.next - g.first); g.tries == 0 {
			s.ends[g.next] = id
		}
	}
	if g.tries > 0 {
		s.begun[g.first] = id
	}
	s.ready[g.kind].push(entry{key, id, g.gen})
}

// lacks takes note that the server lacks the first message of a segment, and
// cuts what follows it.
func (s *search) lacks(id uint32) {
	s.rest(id)
	g := s.segments[id]
	r := moldcast.Range{First: g.first + 1, Next: g.next}
	s.drop(id)
	for !r.Empty() {
		run, wanted := s.want.Cut(r)
		if r.First = run.Next; wanted {
			s.cut(run)
		}
	}
}

// cut makes segments of what lies behind a message that the server lacks.
func (s *search) cut(r moldcast.Range) {
	for n := moldcast.Seq(split); !r.Empty(); n-- {
		part := moldcast.Range{First: r.First, Next: r.Next}
		if n > 1 {
			part.Next = part.First + (moldcast.Seq(r.Len())+n-1)/n
		}
		r.First = part.Next
		k := dark
		if s.answeredAfter(part.Next) {
			k = edge
		}
		if s.count() >= maxSegments || k == dark && s.rough && s.guesses >= roughGuesses {
			continue
		}
		if k == dark {
			s.guesses++
		}
		s.add(part, k)
	}
}

// answeredAfter reports whether the first message from q on that was wanted
// came.
func (s *search) answeredAfter(q moldcast.Seq) bool {
	i, _ := slices.BinarySearchFunc(s.ranges, q, func(r moldcast.Range, q moldcast.Seq) int {
		if r.Next <= q {
			return -1
		}
		return 1
	})
	return i < len(s.ranges) && !s.want.Contains(max(q, s.ranges[i].First))
}

// rto is how long a request counts as unanswered.
func (s *search) rto() time.Duration {
	if s.peer.rtt == 0 {
		return firstRTO
	}
	return min(max(4*s.peer.rtt, leastRTO), mostRTO)
}

// patience is how long the try-th request for a segment is waited for before
// the next, without jitter.
func (s *search) patience(lit bool, try int) time.Duration {
	d := s.rto()
	if !lit {
		d = max(d, firstTry)
	}
	return max(d, min(d<<min(try-1, 10), mostTry))
}

// enough is how many requests that are not answered show that the server lacks
// a message: so many that of 100000 messages that it has one would be mistaken.
func (s *search) enough(lit bool) int {
	n, p := 0, uint64(1)<<32
	for p > 1<<32/100_000 && n < mostTries {
		p = p * s.peer.loss >> lossBits
		n++
	}
	n = max(n, leastTries)
	if lit {
		n *= 2
	}
	return n
}

// advance does what is due.
func (s *search) advance(now moldcast.Instant) {
	s.tick(now)
	rto := moldcast.Instant(s.rto())
	for i := len(s.flying) - 1; i >= 0; i-- {
		if g := &s.segments[s.flying[i]]; s.now-g.asked >= rto {
			g.flying = false
			last := len(s.flying) - 1
			s.flying[i] = s.flying[last]
			s.flying = s.flying[:last]
		}
	}
	for {
		e, ok := s.next(&s.waiting)
		if !ok || moldcast.Instant(e.key) > s.now {
			break
		}
		s.waiting.pop()
		g := &s.segments[e.id]
		if g.asked < s.proven {
			g.misses++
		}
		switch {
		case int(g.misses) >= s.enough(g.lit), s.peer.heard && g.tries >= endless:
			s.lacks(e.id)
		default:
			s.rest(e.id)
			s.makeReady(e.id)
		}
	}
	if s.now-s.heard > moldcast.Instant(100*time.Millisecond) {
		s.peer.rate = min(s.peer.rate, startRate)
	}
}

// next is the first entry of a queue that holds still.
func (s *search) next(q *queue) (entry, bool) {
	for len(*q) > 0 {
		e := (*q)[0]
		if g := &s.segments[e.id]; g.used && g.gen == e.gen {
			return e, true
		}
		q.pop()
	}
	return entry{}, false
}

// interval is the time between requests.
func (s *search) interval() moldcast.Instant {
	return moldcast.Instant(time.Second) / moldcast.Instant(s.peer.rate)
}

// allowed is when a request may go. again: one for what the server may well
// lack, which is asked for no faster, the better it answers for the rest.
func (s *search) allowed(again bool) moldcast.Instant {
	at := s.tat - (outstanding-1)*s.interval()
	if again {
		at = max(at, s.againTat-(outstanding-1)*s.againInterval())
	}
	return at
}

func (s *search) againInterval() moldcast.Instant {
	return max(s.interval(), moldcast.Instant(time.Second)/startRate)
}

func (s *search) paid(again bool) {
	s.tat = max(s.tat, s.now) + s.interval()
	if again {
		s.againTat = max(s.againTat, s.now) + s.againInterval()
	}
	s.sent++
	s.requests++
}

// Poll is the next request that is due; call it until it says false.
func (s *search) Poll(now moldcast.Instant) (moldcast.Range, bool) {
	s.advance(now)
	if s.Done() {
		return moldcast.Range{}, false
	}
	if at := s.watchAt(); at <= s.now {
		w := &s.witness
		if w.tries++; w.tries == 1 {
			w.began = s.now
		}
		w.asked = s.now
		s.requests++
		return moldcast.Range{First: s.peer.witness, Next: s.peer.witness + 1}, true
	}
	r, isSign := s.nextSign()
	ready, again := s.turn()
	if !isSign && !ready {
		return moldcast.Range{}, false
	}
	if s.allowed(again && !isSign) > s.now {
		s.held = true
		return moldcast.Range{}, false
	}
	if isSign {
		s.sign++
		s.paid(false)
		return r, true
	}
	id, ok := s.choose()
	if !ok {
		return moldcast.Range{}, false
	}
	s.paid(again)
	g := &s.segments[id]
	s.rest(id)
	if g.tries++; g.tries == 1 {
		g.began = s.now
	}
	g.asked = s.now
	g.flying = true
	s.flying = append(s.flying, id)
	s.begun[g.first] = id
	wait := s.patience(g.lit, int(g.tries))
	wait += time.Duration(s.rand.Next() % uint64(wait/4))
	s.waiting.push(entry{uint64(s.now + moldcast.Instant(wait)), id, g.gen})
	return moldcast.Range{First: g.first, Next: min(g.next, g.first+moldcast.MaxCount)}, true
}

// watchAt is when the witness is due: while nothing else is answered.
func (s *search) watchAt() moldcast.Instant {
	if !s.peer.heard {
		return gap.Never
	}
	wait := moldcast.Instant(max(watchEvery, s.rto()))
	w := &s.witness
	if w.tries == 0 {
		return s.heard + moldcast.Instant(watchEvery)
	}
	return w.asked + min(wait<<min(w.tries-1, 10), max(wait, moldcast.Instant(mostTry)))
}

// nextSign is where a server that was not heard yet is asked whether it has
// anything at all: each round at another place of each range.
func (s *search) nextSign() (moldcast.Range, bool) {
	if s.peer.heard || len(s.signs) == 0 {
		return moldcast.Range{}, false
	}
	if s.sign >= len(s.signs) {
		s.sign = 0
		s.signRound++
		s.signAt = max(s.now, s.signAt+moldcast.Instant(signEvery))
	}
	if s.now < s.signAt {
		return moldcast.Range{}, false
	}
	if ready, _ := s.turn(); ready && s.sent%2 == 1 { // what is wanted has its turn too
		return moldcast.Range{}, false
	}
	r := s.signs[len(s.signs)-1-s.sign]
	q := r.First
	switch s.signRound {
	case 0:
	case 1:
		q = r.Next - 1
	default: // 1/2, 1/4, 3/4, 1/8, …
		hi, _ := bits.Mul64(r.Len(), bits.Reverse64(uint64(s.signRound-1)))
		q += moldcast.Seq(hi)
	}
	return moldcast.Range{First: q, Next: q + 1}, true
}

// turn reports whether there is something to ask for, and whether the server
// may well lack it: then it waits for all else.
func (s *search) turn() (ready, again bool) {
	if len(s.flying) >= outstanding {
		return false, false
	}
	if s.more() {
		return true, false
	}
	for _, k := range [...]kind{stream, edge} {
		if _, ok := s.next(&s.ready[k]); ok {
			return true, false
		}
	}
	if _, ok := s.longest(); ok {
		return true, false
	}
	for _, k := range [...]kind{plain, dark} {
		if _, ok := s.next(&s.ready[k]); ok {
			return true, true
		}
	}
	return false, false
}

// more reports whether another range may be begun. What is dark does not count:
// it has its turn when all were.
func (s *search) more() bool { return s.left > 0 && s.count()-s.live[dark] < maxBegun }

// count is how many segments there are.
func (s *search) count() int { return len(s.segments) - len(s.free) }

// choose takes the segment that has its turn.
func (s *search) choose() (uint32, bool) {
	for _, k := range [...]kind{stream, edge} {
		if id, ok := s.first(k); ok {
			return id, true
		}
	}
	for s.more() {
		if id := s.begin(); s.clip(id) {
			return id, true
		} else {
			s.rest(id)
			s.drop(id)
		}
	}
	// There is room for more requests: the longest that is on its way is divided.
	if id, ok := s.longest(); ok {
		g := &s.segments[id]
		r := moldcast.Range{First: g.first + (g.next-g.first)/2, Next: g.next}
		g.next = r.First
		return s.add(r, plain), true
	}
	if id, ok := s.first(plain); ok {
		return id, true
	}
	return s.first(dark)
}

// first is the one of a kind that has its turn. Its entry stays until it rests.
func (s *search) first(k kind) (uint32, bool) {
	for {
		e, ok := s.next(&s.ready[k])
		if !ok || s.clip(e.id) {
			return e.id, ok
		}
		s.rest(e.id)
		s.drop(e.id)
	}
}

// begin makes a segment of a range: the newest that was not begun, and in turn
// with it any other one as long as the server was not heard.
func (s *search) begin() uint32 {
	for s.newest > 0 && s.taken[s.newest-1] {
		s.newest--
	}
	i := s.newest - 1
	if !s.peer.heard && s.spread%2 == 1 {
		n := uint64(len(s.ranges))
		hi, _ := bits.Mul64(n, uint64(s.spread/2)*0x9E3779B97F4A7C15)
		if j := int(hi); !s.taken[j] {
			i = j
		}
	}
	s.spread++
	s.taken[i] = true
	s.begunMessages += s.ranges[i].Len()
	s.left--
	return s.add(s.ranges[i], plain)
}

// longest is the segment to divide: of those that are answered, and of all
// while there are few.
func (s *search) longest() (id uint32, ok bool) {
	least := max(steal, 4*s.peer.fit)
	few := s.count() < outstanding
	for _, i := range s.flying {
		g := &s.segments[i]
		if n := uint64(g.next - g.first); n >= least && (g.lit || few && g.kind == plain) {
			id, ok, least = i, true, n+1
		}
	}
	return id, ok && s.count() < maxSegments
}

// Done reports whether nothing more is asked for.
func (s *search) Done() bool {
	over := moldcast.Instant(s.budget)
	switch {
	case s.left == 0 && s.count() == 0:
		return true
	case s.now == 0:
		return false
	case !s.peer.heard:
		return s.now-s.started >= over && s.sent >= min(silentAsks, 3*len(s.ranges))
	case s.now-s.heard >= over:
		return true
	}
	return s.left == 0 && s.count() == s.live[dark] && s.now-s.gained >= over
}

// Silent reports whether the server has not answered for as long as the budget.
func (s *search) Silent() bool {
	return !s.peer.heard || s.now-s.heard >= moldcast.Instant(s.budget)
}

// Left is what was wanted and did not come.
func (s *search) Left() []moldcast.Range { return s.want.Ranges() }

// Deadline is when Poll may have something, unless an answer comes first.
func (s *search) Deadline() moldcast.Instant {
	d := s.now + moldcast.Instant(mostTry)
	rto := moldcast.Instant(s.rto())
	for _, id := range s.flying {
		d = min(d, s.segments[id].asked+rto)
	}
	if e, ok := s.next(&s.waiting); ok {
		d = min(d, moldcast.Instant(e.key))
	}
	d = min(d, s.watchAt())
	_, isSign := s.nextSign()
	switch ready, again := s.turn(); {
	case ready || isSign:
		d = min(d, s.allowed(again && !isSign))
	case !s.peer.heard && len(s.signs) > 0:
		d = min(d, s.signAt)
	}
	for _, end := range [...]moldcast.Instant{s.heard, s.gained} {
		if end += moldcast.Instant(s.budget); end > s.now {
			d = min(d, end)
		}
	}
	return s.outside + max(0, d-s.now)
}

// Progress is how far a search is.
type Progress struct {
	Rough      bool   // as of Want
	Ranges     int    // wanted
	Asked      int    // of those
	Messages   uint64 // of all ranges
	Brought    uint64 // of those
	Unanswered uint64 // of the ranges that were asked for, what did not come, or not yet
	Requests   int
	AtMost     time.Duration // to go, unless more is answered
}

// Progress is how far it is.
func (s *search) Progress() Progress {
	return Progress{
		Rough: s.rough, Ranges: len(s.ranges), Asked: len(s.ranges) - s.left,
		Messages: s.want.Count() + s.brought, Brought: s.brought,
		Unanswered: s.begunMessages - min(s.begunMessages, s.brought),
		Requests:   s.requests, AtMost: s.atMost(),
	}
}

// atMost is how long it takes from now on if nothing more is answered.
func (s *search) atMost() time.Duration {
	if !s.peer.heard {
		asks := max(0, min(silentAsks, 3*len(s.ranges))-s.sent)
		return max(s.budget-time.Duration(s.now-s.started), time.Duration(asks)*time.Duration(s.interval()))
	}
	n := s.enough(false)
	round := time.Duration(0) // to judge one segment
	for try := 1; try <= n; try++ {
		round += s.patience(false, try) * 5 / 4
	}
	rate := min(s.peer.rate, startRate)
	asks := n * (s.left + s.live[plain] + split*s.live[edge] + 2*s.live[stream])
	d := time.Duration(0)
	if asks > 0 {
		longest := uint64(0)
		for id := range s.segments {
			if g := &s.segments[id]; g.used && g.kind != dark {
				longest = max(longest, uint64(g.next-g.first))
			}
		}
		if s.left > 0 {
			longest = max(longest, s.longestRange)
		}
		levels := bits.Len64(longest)/3 + 2 // of cutting, until what the server has begins
		d = time.Duration(asks)*time.Second/time.Duration(rate) + time.Duration(levels)*round
	}
	if asks > 0 || s.live[dark] > 0 {
		guess := s.budget
		if asks == 0 {
			guess -= time.Duration(s.now - s.gained)
		}
		if s.rough {
			left := s.live[dark] + max(0, roughGuesses-s.guesses)
			guess = min(guess, time.Duration(n*left)*time.Second/time.Duration(rate)+8*round)
		}
		d += max(0, guess)
	}
	return d
}

// queue is a heap of segments by key; an entry counts while its gen is that of
// the segment.
type queue []entry

type entry struct {
	key uint64
	id  uint32
	gen uint32
}

func (q *queue) push(e entry) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].key <= e.key {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*q = h
}

// pop takes out the smallest.
func (q *queue) pop() {
	h := *q
	n := len(h) - 1
	e := h[n]
	h = h[:n]
	for i := 0; n > 0; {
		c := 2*i + 1
		if c+1 < n && h[c+1].key < h[c].key {
			c++
		}
		if c >= n || e.key <= h[c].key {
			h[i] = e
			break
		}
		h[i] = h[c]
		i = c
	}
	*q = h
}
