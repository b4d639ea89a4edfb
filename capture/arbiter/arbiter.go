package arbiter

import (
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Arbiter arbitrates between the lines and the answers of one channel. It is
// a pure state machine owned by one goroutine: no method may run at the same
// time as another.
type Arbiter struct {
	cfg      Config
	out      Output
	named    map[moldcast.Session]bool // Config.Sessions; nil: all
	sessions map[moldcast.Session]*Session
	order    []*Session // the same, as taken up
	last     *Session   // of the last packet
	on       []*Session // by line: of the last packet that was believed
	turn     int        // in order: whose request is next
	taken    bool       // a session was ever taken up
	seed     maphash.Seed

	held    []held             // packets that wait for a second one
	names   []moldcast.Instant // when new names were taken up, the newest Limits.NewSessions
	failing map[moldcast.Session]*failing

	pool         pool
	waitBytes    int    // of all sessions
	waitMessages uint64 // of all sessions

	serial      uint64 // of the packets of lines
	parked      int    // packets that wait for a comparison, of all sessions
	parkedBytes int

	c     Counters     // without those that the gap machines of open sessions keep
	gone  SessionStats // of sessions that were closed
	heard []heard      // by line

	now   moldcast.Instant // of the newest datagram
	stamp moldcast.Stamp   // of the same
}

// New makes the arbiter of a channel. It fills cfg's defaults; errors wrap
// ErrConfig.
func New(cfg Config, out Output) (*Arbiter, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Gap.Shared = gap.NewBudget(cfg.Gap.RequestsPerSecond, cfg.Gap.Shared)
	a := &Arbiter{
		cfg: cfg, out: out,
		sessions: make(map[moldcast.Session]*Session),
		failing:  make(map[moldcast.Session]*failing),
		seed:     maphash.MakeSeed(),
		gone:     SessionStats{Lines: make([]LineStats, cfg.Lines)},
		heard:    make([]heard, cfg.Lines),
		on:       make([]*Session, cfg.Lines),
	}
	for _, s := range cfg.Sessions {
		if a.named == nil {
			a.named = make(map[moldcast.Session]bool)
		}
		a.named[s] = true
	}
	return a, nil
}

// Config is the effective configuration.
func (a *Arbiter) Config() Config { return a.cfg }

// Counters are those of the channel so far.
func (a *Arbiter) Counters() Counters {
	c := a.c
	for _, s := range a.order {
		c.addGaps(s.m.Stats())
	}
	return c
}

// Sessions are the open ones, in the order in which they were taken up. The
// slice is the Arbiter's: read it, and not after the next call.
func (a *Arbiter) Sessions() []*Session { return a.order }

// Waiting is what came before its predecessor and waits in memory: messages,
// and bytes as ReorderBytes counts them.
func (a *Arbiter) Waiting() (messages uint64, bytes int) { return a.waitMessages, a.waitBytes }

// HeldPackets is how many datagrams are held: for a second one, or for a
// comparison with what is stored.
func (a *Arbiter) HeldPackets() int { return len(a.held) + a.parked }

// Offer takes a datagram that came on a line (0..Lines-1) at stamp, from the
// address src. d is not kept. now must not go back from call to call.
func (a *Arbiter) Offer(now moldcast.Instant, stamp moldcast.Stamp, line int, src netip.Addr, d []byte) {
	p, err := a.parse(d)
	if err != nil {
		a.c.Malformed++
		return
	}
	a.now, a.stamp = now, stamp
	a.heard[line] = heard{now, stamp, true}
	if p.Kind == moldcast.Heartbeat && a.cfg.Feed.Heartbeats == moldcast.HeartbeatNone {
		a.c.Packets++ // it is none, whatever it is
		return
	}
	s := a.last
	if s == nil || s.name != p.Session {
		if s = a.sessions[p.Session]; s == nil {
			a.unknown(now, stamp, line, src, p, d)
			return
		}
		a.last = s
	}
	a.offer(now, stamp, line, src, s, p, d)
}

// OfferAnswer takes a datagram that came from a request server
// (0..Servers-1). The caller vouches for the address. Only messages that were
// asked for are used: an answer can fill what is missing, and nothing else.
func (a *Arbiter) OfferAnswer(now moldcast.Instant, stamp moldcast.Stamp, server int, d []byte) {
	p, err := a.parse(d)
	if err != nil {
		a.c.Malformed++
		return
	}
	a.now, a.stamp = now, stamp
	s := a.sessions[p.Session]
	if s == nil || !s.asks {
		a.c.WrongSession++
		return
	}
	r := p.Range()
	if p.Kind == moldcast.Data {
		a.answerBelow(now, s, r)
	}
	if p.Kind == moldcast.Data && r.Next <= s.floor { // it was asked for before that was removed
		a.c.Packets++
		a.c.Duplicates += r.Len()
		return
	}
	if p.Kind == moldcast.Data && !a.answers(s, r) {
		a.c.Implausible++
		return
	}
	a.c.Packets++
	s.heard = now
	if p.Kind != moldcast.Data {
		return // servers have no say in what exists
	}
	s.m.Answered(now, server, r)
	msgs := p.Msgs
	for !r.Empty() {
		sub, v := s.m.Classify(r)
		use := false
		switch v {
		case gap.Duplicate:
		case gap.Fill, gap.Stale:
			sub, use = s.asked.Cut(sub)
		case gap.Forgotten:
			var held bool
			if sub, held = a.covers(s, sub); held {
				v = gap.Duplicate
			}
		}
		part := msgs
		if n := int(sub.Len()); n < msgs.Len() {
			part, msgs = msgs.Split(n)
		}
		switch {
		case v == gap.Duplicate:
			a.duplicate(s, moldcast.AnswerLine, sub.First, part)
		case use:
			a.take(now, moldcast.AnswerLine, s, sub, v, moldcast.Piece{
				First: sub.First, Msgs: part, Time: s.missing.time(sub.First, stamp), Heard: stamp,
				Line: moldcast.AnswerLine, Flags: moldcast.Repaired,
			})
		default:
			a.c.Unasked += uint64(part.Len())
		}
		r.First = sub.Next
	}
	a.checkEnd(s)
}

// HeardAnswer says that a datagram came on a line from a server that was asked
// (0..Servers-1), before it is offered as the line's: it is taken for the
// answer where it brings what was asked for.
func (a *Arbiter) HeardAnswer(now moldcast.Instant, server int, d []byte) {
	p, err := moldcast.Parse(d)
	if err != nil || p.Kind != moldcast.Data {
		return
	}
	if s := a.sessions[p.Session]; s != nil && s.asks {
		s.m.Answered(now, server, p.Range())
	}
}

// answers reports whether any of r was asked for, or is held.
func (a *Arbiter) answers(s *Session, r moldcast.Range) bool {
	for !r.Empty() {
		sub, v := s.m.Classify(r)
		switch v {
		case gap.Duplicate:
			return true
		case gap.Fill, gap.Stale:
			part, held := s.asked.Cut(sub)
			if held || part.Len() < sub.Len() {
				return true
			}
		case gap.Forgotten:
			part, held := a.covers(s, sub)
			if held || part.Len() < sub.Len() {
				return true
			}
		}
		r.First = sub.Next
	}
	return false
}

// holds reports whether the message at seq is surely held, in the store or
// waiting.
func (s *Session) holds(seq moldcast.Seq) bool {
	_, v := s.m.Classify(moldcast.Range{First: seq, Next: seq + 1})
	return v == gap.Duplicate
}

// holds is Session.holds, and asks the store where only that knows.
func (a *Arbiter) holds(s *Session, seq moldcast.Seq) bool {
	r, v := s.m.Classify(moldcast.Range{First: seq, Next: seq + 1})
	if v == gap.Forgotten {
		_, held := a.covers(s, r)
		return held
	}
	return v == gap.Duplicate
}

// process takes a packet of a line that is believed, and does not contradict
// what is held. held: all of its messages are.
func (a *Arbiter) process(now moldcast.Instant, stamp moldcast.Stamp, line int, s *Session, p moldcast.Packet, held bool) {
	a.c.Packets++
	s.heard = now
	a.on[line] = s
	r := p.Range()
	s.m.Passed(now, line, r)
	s.account(now, stamp, line, p)
	a.claim(now, s, p.Kind, r)
	switch p.Kind {
	case moldcast.Data:
		if s.hasEnd && r.Next > s.end {
			s.hasEnd, s.ended = false, false
		}
		if held {
			a.c.Duplicates += r.Len()
		} else {
			a.data(now, stamp, line, s, r, p.Msgs)
		}
	case moldcast.Heartbeat:
		a.reveal(now, line, s, p.First)
		a.out.Mark(s, moldcast.Mark{Kind: p.Kind, Next: p.First, Stamp: stamp, Line: uint8(line)})
	case moldcast.End:
		// One below what was heard contradicts it: not an end, no more than a
		// heartbeat there would be an error.
		if p.First >= s.m.Head() {
			a.reveal(now, line, s, p.First)
			if s.hasEnd && p.First > s.end {
				s.ended = false
			}
			if !s.hasEnd || p.First != s.end {
				s.ends, s.endAt = 0, now
			}
			s.ends++
			s.hasEnd, s.end = true, p.First
			a.out.Mark(s, moldcast.Mark{Kind: p.Kind, Next: p.First, Stamp: stamp, Line: uint8(line)})
		}
	}
	if s.hasEnd {
		a.checkEnd(s)
	}
}

// data takes the messages of a line, at r. Those that are held are the same.
func (a *Arbiter) data(now moldcast.Instant, stamp moldcast.Stamp, line int, s *Session, r moldcast.Range, msgs moldcast.Messages) {
	if first := s.m.First(); r.First < first {
		if r, msgs = a.extend(s, r, msgs); r.Empty() {
			return
		}
	}
	for !r.Empty() {
		sub, v := s.m.Classify(r)
		part := msgs
		if sub.Next != r.Next {
			part, msgs = msgs.Split(int(sub.Len()))
		}
		if v == gap.Forgotten {
			a.forgotten(now, stamp, line, s, sub, part)
		} else if v == gap.Duplicate {
			a.c.Duplicates += sub.Len()
		} else {
			a.take(now, line, s, sub, v, moldcast.Piece{First: sub.First, Msgs: part, Time: stamp, Heard: stamp, Line: uint8(line)})
		}
		r.First = sub.Next
	}
}

// take stores a piece that is not held, or lets it wait for its predecessor or,
// of a line, for the store. line is AnswerLine for answers.
func (a *Arbiter) take(now moldcast.Instant, line int, s *Session, r moldcast.Range, v gap.Verdict, p moldcast.Piece) {
	if !a.try(now, line, s, r, v, p) {
		a.drop(now, line, s, r)
	}
}

// try is take, without the drop: false, there is no room.
func (a *Arbiter) try(now moldcast.Instant, line int, s *Session, r moldcast.Range, v gap.Verdict, p moldcast.Piece) bool {
	head := s.m.Head()
	quiet := len(s.wait.bySeq) == 0
	direct := v == gap.InOrder && quiet || s.predecessorStored(r.First)
	// What extends something held needs no room in the gap table: Accept cannot
	// refuse it. What the store refuses of a line waits for that, as far as there
	// is room; the rest can be had again.
	wait := moldcast.Instant(max(0, min(a.cfg.ReorderWait, a.cfg.Gap.Budget)))
	if direct && !a.out.Append(s, p) {
		a.fullAt(now, s)
		if line == moldcast.AnswerLine {
			return false
		}
		s.wait.retry = s.roomAt
		direct, wait = false, 0
	}
	if !direct && !a.room(now, len(p.Msgs.Framed())+WaitOverhead) {
		return false
	}
	var recovered uint64
	if !quiet {
		recovered = s.m.Stats().MessagesRecovered
	}
	if !s.m.Accept(now, line, r) {
		return false
	}
	a.accepted(s, line, v, r.Len())
	s.high = max(s.high, r.Next)
	if r.First < head {
		last := p.Time
		if p.Flags&moldcast.Repaired != 0 {
			last = s.missing.time(r.Next-1, p.Heard)
		}
		s.missing.fill(r, p.Time, last)
		if s.asked.Len() > 0 {
			s.asked.Remove(r)
		}
	} else {
		if r.First > head {
			a.lack(s, moldcast.Range{First: head, Next: r.First})
		}
		s.missing.heard(r, p.Time)
	}
	a.remember(s, r.First, p.Msgs)
	if direct {
		a.stored(p)
		if !quiet {
			a.follow(now, s, r.Next, s.m.Stats().MessagesRecovered == recovered)
		}
		return true
	}
	e := a.pool.get(p.Msgs.Framed())
	e.Piece = p
	e.Msgs = moldcast.MessagesOf(e.buf, p.Msgs.Len())
	e.since = now
	e.until = now + wait
	s.wait.add(e)
	a.waitBytes += e.size()
	a.waitMessages += r.Len()
	if s.givenUp(r.First - 1) {
		a.behind(now, s, r.First)
	}
	return true
}

// accepted counts n messages that are held from now on.
func (a *Arbiter) accepted(s *Session, line int, v gap.Verdict, n uint64) {
	switch v {
	case gap.InOrder:
		a.c.InOrder += n
	case gap.Ahead:
		a.c.Early += n
	case gap.Fill:
		a.c.Filled += n
	default:
		a.c.Stale += n
	}
	if line != moldcast.AnswerLine {
		s.lines[line].Taken += n
	}
}

// drop leaves r missing, and known to be: it will be asked for.
func (a *Arbiter) drop(now moldcast.Instant, line int, s *Session, r moldcast.Range) {
	a.c.QueueDropped += r.Len()
	if line != moldcast.AnswerLine {
		a.reveal(now, line, s, r.Next)
	}
}

func (a *Arbiter) reveal(now moldcast.Instant, line int, s *Session, next moldcast.Seq) {
	head := s.m.Head()
	if next <= head {
		return
	}
	s.m.Reveal(now, line, next)
	if to := s.m.Head(); to > head {
		a.lack(s, moldcast.Range{First: head, Next: to})
	}
}

// lack puts r, which begins at the head, on the ledger. The machine bounds its
// table by forgetting ranges that are lost; the ledger follows when an eighth
// more has gathered.
func (a *Arbiter) lack(s *Session, r moldcast.Range) {
	if a.cfg.Gap.Sparse {
		return
	}
	s.missing.open(r)
	if bound := a.cfg.Gap.MaxGaps; len(s.missing.gaps) > bound+bound/8+8 {
		s.prune()
	}
}

// prune drops from the ledger what the machine has evicted.
func (s *Session) prune() {
	var table gap.Set
	s.m.Gaps(func(g gap.Gap) bool {
		table.Add(g.Range)
		return true
	})
	s.missing.keep(table.Ranges())
	var gone []moldcast.Range
	for _, r := range s.asked.Ranges() {
		gone = append(gone, table.Missing(r)...)
	}
	for _, r := range gone {
		s.asked.Remove(r)
	}
}

// stored counts what the store took.
func (a *Arbiter) stored(p moldcast.Piece) {
	n := p.Msgs.Len()
	a.c.Messages += uint64(n)
	a.c.Bytes += uint64(len(p.Msgs.Framed()) - n*moldcast.LengthSize)
}

// remember keeps the hashes of messages that are held from now on.
func (a *Arbiter) remember(s *Session, seq moldcast.Seq, msgs moldcast.Messages) {
	for ; msgs.Len() > 0; seq++ {
		s.known.put(seq, a.hash(msgs.Next()))
	}
}

func (a *Arbiter) hash(data []byte) uint64 { return maphash.Bytes(a.seed, data) }

// duplicate takes messages of an answer that are held already: they are
// dropped, and compared with what is remembered.
func (a *Arbiter) duplicate(s *Session, line int, seq moldcast.Seq, msgs moldcast.Messages) {
	for ; msgs.Len() > 0; seq++ {
		if !s.known.differs(seq, a.hash(msgs.Next())) {
			a.c.Duplicates++
			continue
		}
		a.c.Conflicts++
		if !s.conflict {
			s.conflict = true
			a.out.Conflict(s, seq, line)
		}
	}
}

// checkEnd accepts the end of s once everything up to it is stored or given
// up.
func (a *Arbiter) checkEnd(s *Session) {
	if !s.hasEnd || s.ended || len(s.wait.bySeq) > 0 {
		return
	}
	if s.m.Next() < s.end && s.m.Open() > 0 {
		return
	}
	s.ended = true
	a.out.Ended(s)
}

// Poll does what is due at now: it makes islands of what has waited long
// enough, gives up held packets and spent gaps, accepts ends, and forgets
// ended sessions. It returns one request that is to be sent, if any; call it
// until it returns false.
func (a *Arbiter) Poll(now moldcast.Instant) (moldcast.Session, gap.Request, bool) {
	a.expireHeld(now)
	for _, s := range a.order {
		a.expire(now, s)
		if s.full && s.roomAt <= now {
			a.look(now, s)
		}
	}
	for range a.order {
		s := a.order[a.turn%len(a.order)]
		a.turn = (a.turn + 1) % len(a.order)
		if q, ok := s.m.Poll(now); ok {
			s.asks = true
			s.ask(q.Range)
			s.askBelow(now, q)
			return s.name, q, true
		}
	}
	for _, s := range a.order {
		for r, ok := s.m.Lost(); ok; r, ok = s.m.Lost() {
			a.hole(now, s, r)
			a.behind(now, s, r.Next)
		}
		a.checkEnd(s)
	}
	a.forget(now)
	return moldcast.Session{}, gap.Request{}, false
}

// ask takes note of what is missing of r: a request may reach over what is
// held.
func (s *Session) ask(r moldcast.Range) {
	gaps := s.missing.gaps
	for i := s.missing.find(r.First); i < len(gaps) && gaps[i].First < r.Next; i++ {
		s.asked.Add(gaps[i].Intersect(r))
	}
}

// hole reports r, whose budget is spent.
func (a *Arbiter) hole(now moldcast.Instant, s *Session, r moldcast.Range) {
	h := moldcast.Hole{Range: r, Reason: moldcast.Unrecoverable, Time: a.stamp + moldcast.Stamp(now-a.now)}
	if i := s.missing.find(r.First); i < len(s.missing.gaps) && s.missing.gaps[i].Contains(r.First) {
		h.Before, h.After = s.missing.gaps[i].lo.time, s.missing.gaps[i].hi.time
	}
	a.out.Hole(s, h)
}

// Deadline is when Poll next has something to do; gap.Never if only another
// datagram can bring that.
func (a *Arbiter) Deadline() moldcast.Instant {
	at := moldcast.Instant(gap.Never)
	for i := range a.held {
		at = min(at, a.held[i].until)
	}
	for _, s := range a.order {
		at = min(at, s.m.Deadline())
		if s.full {
			at = min(at, s.roomAt)
		}
		if e := s.wait.oldest; e != nil {
			if s.wait.overdue {
				at = min(at, s.wait.retry)
			}
			at = min(at, max(e.until, s.wait.retry))
		} else if s.ended || a.successor(s) != nil {
			at = min(at, s.heard+moldcast.Instant(a.cfg.Limits.Grace))
		}
	}
	return at
}

// Done reports that at least one session was seen, and that each that was has
// ended, with everything up to its end stored or given up.
func (a *Arbiter) Done() bool {
	if !a.taken || len(a.failing) > 0 || a.parked > 0 {
		return false
	}
	for _, s := range a.order {
		if !s.ended {
			return false
		}
	}
	return true
}

// Final reports that Done is not one packet's word: each end was heard twice, or
// followed by silence for as long as three heartbeats. What the sender goes on
// with after a forged end has come by then.
func (a *Arbiter) Final(now moldcast.Instant) bool {
	return a.Done() && !slices.ContainsFunc(a.order, func(s *Session) bool { return !a.endStands(now, s) })
}

// Flush stores everything that waits, as islands, and gives up held packets:
// before a stop. False: the store refused some of it; call again.
func (a *Arbiter) Flush(now moldcast.Instant) bool {
	a.giveUp(func(*held) bool { return true })
	ok := true
	for _, s := range slices.Clone(a.order) {
		for _, t := range slices.Clone(s.tracks) {
			a.pump(s, t, true)
		}
	}
	for _, s := range a.order {
		a.store(now, s, 0, len(s.wait.bySeq))
		ok = ok && len(s.wait.bySeq) == 0
		a.checkEnd(s)
	}
	return ok
}
