package arbiter

import (
	"net/netip"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Cause is by which rule a new take began.
type Cause uint8

// The causes of a new take.
const (
	// Conflict: two packets of one source, within Limits.ForkWindow and
	// without an agreeing one between, held other bytes than the take.
	Conflict Cause = iota
	// AfterEnd: data came at or beyond the end of a session that had ended.
	AfterEnd
	// WentBack: every live line was below the head for three heartbeats.
	WentBack
	// BackToOne: numbers began at 1 again, where that marks a restart.
	BackToOne
)

func (c Cause) String() string {
	switch c {
	case Conflict:
		return "conflicting packets"
	case AfterEnd:
		return "data after end of session"
	case BackToOne:
		return "numbers from 1 again"
	}
	return "lines went back"
}

// Fork is why and where a take begins.
type Fork struct {
	Cause  Cause
	At     moldcast.Seq // the message, or the heartbeat's sequence, that decided
	Line   int
	Source netip.Addr
	First  moldcast.Seq     // the take's first sequence
	Shared []moldcast.Range // of what the take before holds, what is the same and comes by Copy
}

// Comparison is a packet that holds messages of which no hash is remembered:
// it waits until they were compared with the stored bytes.
type Comparison struct {
	Session *Session
	First   moldcast.Seq
	Msgs    moldcast.Messages // unchanged until Compared is called

	t *track
	p *parked
}

// Compared is what came of a Comparison.
type Compared struct {
	Failed bool         // it could not be made
	Differ int          // messages that are stored with other bytes
	At     moldcast.Seq // the first of them
}

// parked is a packet of a track that waits for its comparison, or behind one
// that does. It is not yet counted.
type parked struct {
	kept
	waits  bool // for its own comparison
	gone   bool // nothing waits for the result any more
	result *Compared
}

// kept is a packet, and a copy of it where it is kept.
type kept struct {
	now    moldcast.Instant
	stamp  moldcast.Stamp
	data   []byte
	serial uint64 // in the order of arrival; 0: not given yet
}

func (a *Arbiter) packet(k *kept) moldcast.Packet {
	p, _ := a.parse(k.data) // it parsed when it came
	return p
}

// track follows what one source sends on one line of a session.
//
// In the ordinary course that only goes up, and top is how far it ever went. A
// packet below top begins a run: the network repeated or delayed it, another
// line was quicker, or the sender began anew. Where that is found to be so,
// the run is the beginning of the next take.
type track struct {
	line  int
	src   netip.Addr
	heard moldcast.Instant
	top   moldcast.Seq // 0: it was never at the head
	inRun bool         // its last packet was of the run
	run   run

	conflict   moldcast.Instant // when its last conflicting packet came
	conflicted bool             // there was one
	serial     uint64           // of it

	queue []*parked
}

// run is an unbroken ascent of a track below its top. What of it agreed with
// the take is remembered as ranges, since the take holds the bytes; what did
// not is kept.
type run struct {
	seen   gap.Set
	agreed gap.Set
	heard  moldcast.Instant
	kept   []kept
	bytes  int
	one    struct { // the newest packet at 1
		serial uint64
		next   moldcast.Seq // one past its last message
	}
}

func (x *run) clear() {
	x.seen.Clear()
	x.agreed.Clear()
	clear(x.kept)
	x.kept, x.bytes = x.kept[:0], 0
}

// keep copies a packet; the oldest make room.
func (x *run) keep(k kept, l *Limits) {
	k.data = slices.Clone(k.data)
	x.kept, x.bytes = append(x.kept, k), x.bytes+len(k.data)
	n := 0
	for len(x.kept)-n > l.KeptPackets || x.bytes > l.KeptBytes && len(x.kept)-n > 1 {
		x.bytes -= len(x.kept[n].data)
		n++
	}
	x.kept = slices.Delete(x.kept, 0, n)
}

// maxRunRanges bounds the ranges of a run: one with more losses is taken to
// begin where it is.
const maxRunRanges = 1024

// place puts r into the ordinary course of t, or into its run (true). high is
// one past what the session holds.
func (t *track) place(now moldcast.Instant, r moldcast.Range, high moldcast.Seq, window moldcast.Instant) bool {
	x := &t.run
	b := x.seen.Bounds()
	open := x.seen.Len() > 0
	recent := open && t.inRun && now-x.heard <= window
	top := t.top
	if top == 0 {
		top = high
	}
	doubt := t.conflicted && now-t.conflict <= window || len(t.queue) > 0
	switch {
	case open && r.First == b.Next && (t.inRun || r.First < top) && (r.First < top || doubt):
		// it goes on
	case r.First >= top && !(doubt && recent), r.First == t.top:
		t.top, t.inRun = max(t.top, r.Next), false
		return false
	case recent && x.seen.Len() < maxRunRanges && (r.First >= b.First || r.Next == b.First):
		// something of it was lost, came late, or came again
	default:
		x.clear()
	}
	x.seen.Add(r)
	x.heard, t.inRun = now, true
	if r.Next > top {
		t.top = r.Next
	}
	return true
}

// low is how long a line has been below the head.
type low struct {
	heard moldcast.Instant
	since moldcast.Instant
	beats int  // heartbeats since then
	on    bool // it is
}

// past is what is left of the take before: a line that lags still brings
// packets of it for a while.
type past struct {
	until  moldcast.Instant
	tracks []*track
}

// track finds that of a source on a line; the one silent longest makes room.
func (s *Session) track(now moldcast.Instant, line int, src netip.Addr, most int) *track {
	for _, t := range s.tracks {
		if t.line == line && t.src == src {
			t.heard = now
			return t
		}
	}
	if len(s.tracks) >= most {
		oldest := -1
		for i, t := range s.tracks {
			if len(t.queue) == 0 && (oldest < 0 || t.heard < s.tracks[oldest].heard) {
				oldest = i
			}
		}
		if oldest >= 0 {
			s.tracks = slices.Delete(s.tracks, oldest, oldest+1)
		}
	}
	t := &track{line: line, src: src, heard: now}
	s.tracks = append(s.tracks, t)
	return t
}

// judgement is what the messages of a packet are to what is held.
type judgement struct {
	same, differ, unknown int          // held: as remembered, otherwise, or not remembered
	fresh                 int          // not held
	at                    moldcast.Seq // the first that differs
}

// judge compares the messages at r.
func (a *Arbiter) judge(s *Session, r moldcast.Range, msgs moldcast.Messages) (j judgement) {
	if r.First >= s.m.Head() {
		j.fresh = msgs.Len()
		return j
	}
	for !r.Empty() {
		sub, v := s.m.Classify(r)
		held := v == gap.Duplicate
		if v == gap.Forgotten {
			sub, held = a.covers(s, sub)
		}
		part := msgs
		if sub.Next != r.Next {
			part, msgs = msgs.Split(int(sub.Len()))
		}
		r.First = sub.Next
		if !held {
			j.fresh += part.Len()
			continue
		}
		for seq := sub.First; part.Len() > 0; seq++ {
			switch known, same := s.known.compare(seq, a.hash(part.Next())); {
			case !known:
				j.unknown++
			case same:
				j.same++
			default:
				if j.differ++; j.differ == 1 {
					j.at = seq
				}
			}
		}
	}
	return j
}

// admit takes a packet of a line that is believed.
func (a *Arbiter) admit(k kept, line int, src netip.Addr, s *Session, p moldcast.Packet) {
	if s.past != nil && a.ofThePast(k.now, line, src, s, p) {
		return
	}
	l := &a.cfg.Limits
	if k.serial == 0 {
		a.serial++
		k.serial = a.serial
	}
	t := s.track(k.now, line, src, l.Sources)
	if p.Kind != moldcast.Data {
		a.control(k, t, s, p)
		return
	}
	if t.top == 0 && !s.resumed && k.now-s.opened <= moldcast.Instant(l.ForkWindow) {
		t.top = p.First // it began with the session: it may lag, but did not go back
	}
	inRun := t.place(k.now, p.Range(), s.high, moldcast.Instant(l.ForkWindow))
	if a.backToOne(k, s, t, p, inRun) && a.fork(k, s, t, Fork{Cause: BackToOne, At: p.First, First: 1}, p) {
		return
	}
	j := a.judge(s, p.Range(), p.Msgs)
	compare := j.unknown > 0 && j.differ == 0
	// What its run or an end decides comes after what waits of the same source.
	behind := len(t.queue) > 0 && (inRun || s.hasEnd && p.Range().Next > s.end)
	if (compare || behind) && a.park(k, t, s, p, compare) {
		return
	}
	a.settle(k, t, s, p, inRun, j)
}

// backToOne reports that p tells of a restart by its number alone: it goes on
// from a packet at 1 of the same source, far below the head, and since that one
// no line has gone on at the head.
func (a *Arbiter) backToOne(k kept, s *Session, t *track, p moldcast.Packet, inRun bool) bool {
	if a.cfg.Feed.Restart != moldcast.RestartSequence || !inRun {
		return false
	}
	r, one := p.Range(), &t.run.one
	if r.First == 1 {
		one.serial, one.next = k.serial, r.Next
		return false
	}
	return t.run.seen.Contains(1) && r.First >= one.next && r.Next < s.high && uint64(s.high-r.Next) >= a.cfg.Limits.Back && s.ahead < one.serial
}

// settle takes a packet of data that was compared.
func (a *Arbiter) settle(k kept, t *track, s *Session, p moldcast.Packet, inRun bool, j judgement) {
	r := p.Range()
	window := moldcast.Instant(a.cfg.Limits.ForkWindow)
	if j.differ > 0 {
		// One that waited for its comparison may come before one that did not.
		near := max(k.now, t.conflict)-min(k.now, t.conflict) <= window
		if t.conflicted && near && s.agreed <= min(k.serial, t.serial) {
			if a.fork(k, s, t, Fork{Cause: Conflict, At: j.at, First: t.run.seen.Bounds().First}, p) {
				return
			}
		}
		a.conflicting(k, t, s, p, inRun, j)
		return
	}
	a.c.Uncompared += uint64(j.unknown)
	if s.hasEnd && r.Next > s.end && a.endStands(k.now, s) {
		first := r.First
		if inRun {
			first = t.run.seen.Bounds().First
		}
		if !a.fork(k, s, t, Fork{Cause: AfterEnd, At: max(r.First, s.end), First: first}, p) {
			a.refused(p)
		}
		return
	}
	switch {
	case j.fresh > 0:
		s.agreed = max(s.agreed, k.serial)
		if r.Next > s.high {
			s.ahead = max(s.ahead, k.serial)
		}
		s.endAt = max(s.endAt, k.now) // the sender goes on
		for i := range s.low {
			s.low[i].on = false
		}
		s.low[t.line].heard = k.now
	case j.same > 0:
		s.agreed = max(s.agreed, k.serial)
		a.lower(k.now, s, t, r.Next, false)
	}
	if inRun && j.unknown == 0 {
		t.run.agreed.Add(r)
	}
	a.hear(k, t, s, p, 0)
	a.process(k.now, k.stamp, t.line, s, p, j.fresh == 0)
}

// conflicting drops a packet of which something is held with other bytes.
func (a *Arbiter) conflicting(k kept, t *track, s *Session, p moldcast.Packet, inRun bool, j judgement) {
	r := p.Range()
	a.hear(k, t, s, p, moldcast.Differs)
	a.c.Packets++
	s.heard = k.now
	a.c.Duplicates += uint64(j.same + j.unknown)
	a.c.Conflicts += uint64(j.differ + j.fresh)
	if !inRun {
		t.run.clear()
		t.run.seen.Add(r)
		t.run.heard, t.inRun = k.now, true
	}
	t.run.keep(k, &a.cfg.Limits)
	if !t.conflicted || k.serial > t.serial {
		t.conflict, t.conflicted, t.serial = k.now, true, k.serial
	}
	a.lower(k.now, s, t, r.Next, false)
	if !s.conflict {
		s.conflict = true
		a.out.Conflict(s, j.at, t.line)
	}
}

// control takes a heartbeat or End of Session.
func (a *Arbiter) control(k kept, t *track, s *Session, p moldcast.Packet) {
	if a.lower(k.now, s, t, p.First, true) {
		first := p.First
		if t.run.seen.Len() > 0 && t.run.seen.Bounds().Next == p.First {
			first = t.run.seen.Bounds().First
		}
		if a.fork(k, s, t, Fork{Cause: WentBack, At: p.First, First: first}, p) {
			return
		}
	}
	if p.Kind == moldcast.Heartbeat {
		s.endAt = max(s.endAt, k.now)
	}
	a.hear(k, t, s, p, 0)
	a.process(k.now, k.stamp, t.line, s, p, false)
}

// hear reports a packet of a line as it was on the wire.
func (a *Arbiter) hear(k kept, t *track, s *Session, p moldcast.Packet, flags moldcast.HeardFlags) {
	h := moldcast.Heard{Stamp: k.stamp, First: p.First, Turn: uint32(k.serial), Line: uint8(t.line), Flags: flags}
	switch p.Kind {
	case moldcast.Data:
		h.Count = uint16(p.Msgs.Len())
	case moldcast.End:
		h.Count = moldcast.EndCount
	}
	if p.Kind == moldcast.Heartbeat && a.cfg.Feed.Heartbeats == moldcast.HeartbeatLast {
		h.First-- // parse made it the next
	}
	a.out.Heard(s, h)
}

// lower takes note of where a source on a line is: the message at next is the
// next one it will send. It reports that for as long as three heartbeats all
// live lines have been below what is held: a source is where it sent from
// before, and where the next message is held already.
func (a *Arbiter) lower(now moldcast.Instant, s *Session, t *track, next moldcast.Seq, beat bool) bool {
	l := &s.low[t.line]
	now = max(now, l.heard)
	l.heard = now
	below := next < s.high && (t.top == 0 || next < t.top) && (next < s.m.First() || a.holds(s, next))
	if !below {
		*l = low{heard: now}
		return false
	}
	if !l.on {
		l.on, l.since, l.beats = true, now, 0
	}
	if !beat {
		return false
	}
	l.beats++
	long := 3 * moldcast.Instant(a.cfg.Gap.HeartbeatInterval)
	if l.beats < 3 || s.parked > 0 { // what waits for its comparison may go on with what is held
		return false
	}
	for i := range s.low {
		o := &s.low[i]
		if o.heard != 0 && now-o.heard < long && (!o.on || now-o.since < long) {
			return false
		}
	}
	return now-l.since >= long
}

// endStands reports whether the End of Session is more than one packet's
// word: it was heard twice, or nothing was heard since for as long as three
// heartbeats.
func (a *Arbiter) endStands(now moldcast.Instant, s *Session) bool {
	return s.ends > 1 || now-s.endAt >= 3*moldcast.Instant(a.cfg.Gap.HeartbeatInterval)
}

// ofThePast drops what a line that lags still brings of the take before.
func (a *Arbiter) ofThePast(now moldcast.Instant, line int, src netip.Addr, s *Session, p moldcast.Packet) bool {
	if now >= s.past.until {
		s.past = nil
		return false
	}
	for i, t := range s.past.tracks {
		if t.line != line || t.src != src {
			continue
		}
		if p.First < t.top || p.First <= s.m.Head() {
			s.past.tracks = slices.Delete(s.past.tracks, i, i+1)
			return false
		}
		t.top = max(t.top, p.First+moldcast.Seq(p.Msgs.Len()))
		a.c.Packets++
		a.c.Conflicts += uint64(p.Msgs.Len())
		return true
	}
	return false
}

// park lets a packet wait for its comparison (compare), or for that of one
// before it. False: there is no room.
func (a *Arbiter) park(k kept, t *track, s *Session, p moldcast.Packet, compare bool) bool {
	l := &a.cfg.Limits
	if a.parked >= l.ParkedPackets || a.parkedBytes+len(k.data) > l.ParkedBytes {
		return false
	}
	k.data = slices.Clone(k.data)
	x := &parked{kept: k, waits: compare}
	if compare {
		p := a.packet(&x.kept)
		if !a.out.Compare(&Comparison{Session: s, First: p.First, Msgs: p.Msgs, t: t, p: x}) {
			return false
		}
	}
	t.queue = append(t.queue, x)
	a.parked++
	a.parkedBytes += len(k.data)
	s.parked++
	return true
}

// Compared takes the result of a Comparison, which is called for exactly once.
func (a *Arbiter) Compared(now moldcast.Instant, c *Comparison, result Compared) {
	if c.p.gone {
		return
	}
	c.p.result = &result
	a.pump(c.Session, c.t, false)
}

// unpark takes the first packet out of the queue of t.
func (a *Arbiter) unpark(s *Session, t *track) *parked {
	x := t.queue[0]
	t.queue = slices.Delete(t.queue, 0, 1)
	a.parked--
	a.parkedBytes -= len(x.data)
	s.parked--
	return x
}

// pump takes the packets of t that wait no longer; all: also those that do.
func (a *Arbiter) pump(s *Session, t *track, all bool) {
	for len(t.queue) > 0 && a.sessions[s.name] == s {
		x := t.queue[0]
		if x.waits && x.result == nil && !all {
			return
		}
		p := a.packet(&x.kept)
		j := a.judge(s, p.Range(), p.Msgs)
		a.unpark(s, t)
		x.gone = true
		if res := x.result; res != nil && !res.Failed {
			if res.Differ > 0 {
				j.differ, j.at = max(res.Differ, j.differ), res.At
				j.same = max(0, p.Msgs.Len()-j.fresh-j.differ)
				j.fresh = p.Msgs.Len() - j.same - j.differ
			} else {
				j.same += j.unknown
				a.remember(s, p.First, p.Msgs)
			}
			j.unknown = 0
		}
		a.settle(x.kept, t, s, p, t.run.seen.Contains(p.First), j)
	}
}

// mayFork bounds how often a session name begins a take.
func (a *Arbiter) mayFork(now moldcast.Instant, s *Session) bool {
	l := &a.cfg.Limits
	s.forks = slices.DeleteFunc(s.forks, func(at moldcast.Instant) bool { return now-at >= moldcast.Instant(l.SessionsWindow) })
	return len(s.forks) < l.Takes
}

// fork ends the take s and begins the next one, at f.First, with what the run
// of t kept, then p, which decided. False: there is no new take, and s goes on.
func (a *Arbiter) fork(k kept, s *Session, t *track, f Fork, p moldcast.Packet) bool {
	if !a.mayFork(k.now, s) {
		return false
	}
	f.Line, f.Source = t.line, t.src
	copied := t.run.agreed.Clone()
	for i := range t.run.kept {
		copied.Remove(a.packet(&t.run.kept[i]).Range())
	}
	copied.Remove(p.Range())
	f.Shared = slices.Clone(copied.Ranges())
	n := a.newSession(k.now, s.name)
	n.forks = append(s.forks, k.now)
	if a.cfg.Start == Beginning && !n.sparse && (f.Cause != AfterEnd || f.First < s.end) {
		// The run may have begun before it was heard: before this process did,
		// where it was killed, or in what was lost. What is below is not known to
		// be what the take before holds, so it is asked for.
		f.First = 1
	}
	if err := a.out.Fork(s, n, f); err != nil {
		a.c.OpenFailures++
		return false
	}
	a.finish(k.now, s)
	a.out.Superseded(s, n)
	next := p.First
	for i := range t.run.kept {
		next = min(next, a.packet(&t.run.kept[i]).First)
	}
	next = max(next, f.First)
	n.m.Start(next)
	n.high = next
	if f.First < next {
		n.m.Extend(f.First)
		if !n.sparse {
			n.missing.extend(f.First, next)
		}
	}
	a.sessions[s.name] = n
	a.order[slices.Index(a.order, s)] = n
	a.last = n
	for line := range a.on {
		if a.on[line] == s {
			a.on[line] = n
		}
	}
	n.past = &past{until: k.now + 3*moldcast.Instant(a.cfg.Gap.HeartbeatInterval)}
	var waiting []waitingPacket
	for _, o := range s.tracks {
		for len(o.queue) > 0 {
			x := a.unpark(s, o)
			x.gone = true
			waiting = append(waiting, waitingPacket{x.kept, o.line, o.src})
		}
		if o.top = max(o.top, o.run.seen.Bounds().Next); (f.Cause == Conflict || f.Cause == BackToOne) && o != t && o.top != 0 {
			n.past.tracks = append(n.past.tracks, o)
		}
	}
	nt := n.track(k.now, t.line, t.src, a.cfg.Limits.Sources)
	for i := range t.run.kept {
		x := &t.run.kept[i]
		p := a.packet(x)
		a.c.Retaken += uint64(p.Msgs.Len())
		nt.top = max(nt.top, p.Range().Next)
		if j := a.judge(n, p.Range(), p.Msgs); j.differ > 0 {
			a.c.Duplicates += uint64(j.same)
			a.c.Conflicts += uint64(j.differ + j.fresh)
			continue
		}
		n.m.Passed(k.now, t.line, p.Range())
		n.account(k.now, x.stamp, t.line, p)
		a.data(k.now, x.stamp, t.line, n, p.Range(), p.Msgs)
	}
	if len(f.Shared) > 0 {
		a.reveal(k.now, t.line, n, copied.Bounds().Next)
		a.out.Copy(s, n, f.Shared)
	}
	a.fold(k.now, s)
	a.out.Close(s)
	a.admit(k, t.line, t.src, n, p)
	for _, w := range waiting {
		a.admit(w.kept, w.line, w.src, a.sessions[s.name], a.packet(&w.kept))
	}
	return true
}

type waitingPacket struct {
	kept
	line int
	src  netip.Addr
}

// finish gives the store what still waits of a take that ends.
func (a *Arbiter) finish(now moldcast.Instant, s *Session) {
	a.store(now, s, 0, len(s.wait.bySeq))
	for _, e := range s.wait.bySeq {
		a.c.QueueDropped += uint64(e.Msgs.Len())
		a.waitBytes -= e.size()
		a.waitMessages -= uint64(e.Msgs.Len())
		a.pool.put(e)
	}
	s.wait.remove(0, len(s.wait.bySeq))
}

// Copied takes messages that Output.Copy was asked for, as the take before
// holds them: s is the new one. False: the store refused some of them.
func (a *Arbiter) Copied(now moldcast.Instant, stamp moldcast.Stamp, s *Session, first moldcast.Seq, msgs moldcast.Messages) bool {
	if a.sessions[s.name] != s {
		return true
	}
	dropped := a.c.QueueDropped
	a.c.Copied += uint64(msgs.Len())
	for r := (moldcast.Range{First: first, Next: first + moldcast.Seq(msgs.Len())}); !r.Empty(); {
		sub, v := s.m.Classify(r)
		if v == gap.Forgotten && s.sparse {
			var held bool
			if sub, held = a.covers(s, sub); !held {
				v = gap.Fill
			}
		}
		part := msgs
		if n := int(sub.Len()); n < msgs.Len() {
			part, msgs = msgs.Split(n)
		}
		if v == gap.Fill || v == gap.Stale {
			a.take(now, moldcast.AnswerLine, s, sub, v, moldcast.Piece{
				First: sub.First, Msgs: part, Time: s.missing.time(sub.First, stamp), Heard: stamp,
				Line: moldcast.AnswerLine, Flags: moldcast.Repaired,
			})
		} else {
			a.c.Duplicates += sub.Len()
		}
		r.First = sub.Next
	}
	a.checkEnd(s)
	return a.c.QueueDropped == dropped
}
