package moldcast

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast/gap"
)

// DefaultBufferBytes bounds the early messages of a Receiver.
const DefaultBufferBytes = 64 << 20

// A sequence farther than MaxJump beyond the head is believed only when a
// second packet fits it within JumpWait: between it and it + MaxJump. So is the
// first packet of all, which a second one of its session has to be that near
// to, before it or behind.
const (
	MaxJump  = 100_000
	JumpWait = 2 * time.Second
)

// ReceiverConfig configures a Receiver. The callbacks are called by Offer,
// OfferAnswer and Poll, and must not call the Receiver; a nil one is not called.
type ReceiverConfig struct {
	// Session is the session to receive; nil: that of the first two packets.
	Session *Session

	// From is the first sequence wanted; what was sent of it before the first
	// packet heard is a gap like any other. 0: from the first packet heard on,
	// which waits for the second: a heartbeat at the latest.
	From Seq

	// Gap sets lines, servers, timers and bounds. GiveUp is implied: what is not
	// recovered within Gap.Budget is lost, and reception goes on.
	Gap gap.Config

	// Ordered delivers by sequence: a gap holds up what follows it until it is
	// filled or lost. Otherwise every message is delivered as it comes, so that
	// a missing one delays only itself.
	Ordered bool

	// BufferBytes bounds the early messages that wait in order to be delivered
	// (default 64 MiB, at least 64 KiB). What finds it full is dropped, counted,
	// and asked for again like what was lost on the way.
	BufferBytes int

	// BufferMessages bounds them too; 0: it does not.
	BufferMessages uint64

	// Recovery says that recovery streams bring long gaps, by OfferStream. When
	// an early message finds no room then, all that waits is dropped, and what is
	// received begins anew behind it: so the streams reach the live messages
	// however long they take, and memory is bounded. The newest Overlap messages
	// delivered are kept, to be compared.
	Recovery bool

	// OnMessage gets each message of the session once. data is valid until it
	// returns.
	OnMessage func(seq Seq, data []byte)

	// OnLost gets each range that was given up, once; when Ordered in its place
	// between the messages. What arrives of it afterwards is dropped as stale.
	OnLost func(Range)

	// OnEnd is called once, when End of Session was heard and everything before
	// it was delivered or lost. end is one past the last message.
	OnEnd func(end Seq)
}

// EnsureDefaults sets what is zero to its default.
func (c *ReceiverConfig) EnsureDefaults() {
	if c.BufferBytes == 0 {
		c.BufferBytes = DefaultBufferBytes
	}
	c.Gap.GiveUp = true
	c.Gap.EnsureDefaults()
}

// Validate reports what a Receiver cannot work with, after EnsureDefaults.
func (c *ReceiverConfig) Validate() error {
	var errs []error
	if c.BufferBytes < MaxDatagram {
		errs = append(errs, fmt.Errorf("buffer of %d bytes: want at least %d", c.BufferBytes, 64<<10))
	}
	if c.From == ^Seq(0) {
		errs = append(errs, fmt.Errorf("first sequence %d: want at most 2^64-2", c.From))
	}
	return errors.Join(append(errs, c.Gap.Validate())...)
}

// Receiver is the receiving side of a MoldCast session: it finds gaps, asks
// for what is missing, and delivers every message once, in order or at once.
//
// It is pure and owned by one goroutine. After each Offer or OfferAnswer, and
// when Deadline has come, call Poll until it has nothing more. In the order of
// arrival it does not allocate.
type Receiver struct {
	c       ReceiverConfig
	m       *gap.Machine
	session Session
	named   bool // session is known
	started bool // the first packet has come
	at      Seq  // Ordered: all below was delivered or reported lost
	early   early
	lost    gap.Set // Ordered: given up, not reported yet

	tail     tail      // with Recovery
	live     bool      // what is delivered now came by a line
	reserved Range     // by Reserve
	past     gap.Stats // of machines before startOver
	held     bool      // by Hold

	hasEnd, done bool
	end          Seq
	high         Seq // one past the highest message taken
	heard        Instant
	anyHeard     bool // heard is when the newest packet of a line came
	claimed      gap.Claim

	jump  jump
	first []opening // packets that wait for a second one
	stats ReceiverStats
}

// opening is a packet that may be the first of the session.
type opening struct {
	jump
	session Session
}

// maxOpenings bounds the packets that wait for a second one.
const maxOpenings = 8

// jump is a packet that is too far ahead to be believed yet.
type jump struct {
	held  bool
	at    Instant
	line  int
	first Seq
	data  []byte
}

// ReceiverStats are a Receiver's totals. Messages are conserved:
// Received = Delivered + Duplicates + Stale + Unasked + Dropped + Buffered.
type ReceiverStats struct {
	Received   uint64 `json:"received"`     // messages, all copies, from lines and answers
	Delivered  uint64 `json:"delivered"`    // messages handed to OnMessage
	Duplicates uint64 `json:"duplicates"`   // messages that were held already
	OutOfOrder uint64 `json:"out_of_order"` // messages that came before their predecessor, which then came before it was a gap
	Gaps       uint64 `json:"gaps"`         // ranges still missing after the settle time
	Recovered  uint64 `json:"recovered"`    // messages that filled them
	Lost       uint64 `json:"lost"`         // messages given up
	NAKSent    uint64 `json:"nak_sent"`     // requests

	Stale    uint64 `json:"-"` // messages given up before they came, or held for all that is known, below the start, or after the end
	Unasked  uint64 `json:"-"` // messages of answers that were neither missing nor held
	Dropped  uint64 `json:"-"` // messages that found the buffer or the table of gaps full
	Buffered uint64 `json:"-"` // messages that wait now

	Streamed uint64 `json:"-"` // messages that recovery streams brought first
	Restarts uint64 `json:"-"` // times that all that waited was dropped, since there was no room

	Packets      uint64 `json:"-"` // datagrams of the session
	Malformed    uint64 `json:"-"` // datagrams that do not parse
	WrongSession uint64 `json:"-"` // datagrams of another session
	Implausible  uint64 `json:"-"` // datagrams too far ahead that no second one confirmed
}

// NewReceiver makes a Receiver; the error is of Validate.
func NewReceiver(c ReceiverConfig) (*Receiver, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &Receiver{c: c, m: gap.New(c.Gap)}
	r.early.limit, r.early.most = c.BufferBytes, c.BufferMessages
	if c.Session != nil {
		r.session, r.named = *c.Session, true
	}
	if c.From > 0 {
		r.m.Start(c.From)
		r.at = c.From
		r.started = true
	}
	return r, nil
}

// Session is the session received; false before its first packet, unless it
// was configured.
func (r *Receiver) Session() (Session, bool) { return r.session, r.named }

// Next is one past the last message below which all was received or lost; 0
// before the first packet.
func (r *Receiver) Next() Seq {
	if !r.started {
		return 0
	}
	return r.m.Next()
}

// Head is one past the highest message known to exist; 0 before the first
// packet.
func (r *Receiver) Head() Seq {
	if !r.started {
		return 0
	}
	return r.m.Head()
}

// Heard is when the newest packet of the session came on a line; false: none
// did.
func (r *Receiver) Heard() (Instant, bool) { return r.heard, r.anyHeard }

// Done reports whether the end was reached: OnEnd was called.
func (r *Receiver) Done() bool { return r.done }

// Stats is a snapshot.
func (r *Receiver) Stats() ReceiverStats {
	s, g := r.stats, r.m.Stats()
	s.Gaps, s.Recovered = r.past.GapsOpened+g.GapsOpened, r.past.MessagesRecovered+g.MessagesRecovered
	s.Lost, s.NAKSent = r.past.MessagesLost+g.MessagesLost, r.past.Requests+g.Requests
	s.Buffered = r.early.messages
	return s
}

// Gap is what the gap machine counts and measures.
func (r *Receiver) Gap() gap.Stats { return r.m.Stats() }

// Offer takes a datagram of a line, 0..Lines-1. It is not used after the
// return.
func (r *Receiver) Offer(now Instant, line int, datagram []byte) {
	p, err := Parse(datagram)
	if err != nil {
		r.stats.Malformed++
		return
	}
	if r.named && p.Session != r.session {
		r.stats.WrongSession++
		return
	}
	if !r.named || !r.started {
		if r.open(now, line, p, datagram) {
			r.offer(now, line, p, datagram)
		}
		return
	}
	r.offer(now, line, p, datagram)
}

// open holds a packet until another of its session is near it: a single one,
// forged, must not say where the session begins, nor which one it is. Then
// those that are near are processed, lowest first, and it reports true.
func (r *Receiver) open(now Instant, line int, p Packet, datagram []byte) bool {
	r.expireOpenings(now)
	near := func(o *opening) bool {
		d := max(o.first, p.First) - min(o.first, p.First)
		return o.session == p.Session && d <= MaxJump
	}
	start, found := p.First, false
	for i := range r.first {
		if near(&r.first[i]) {
			start, found = min(start, r.first[i].first), true
		}
	}
	if !found {
		if len(r.first) == maxOpenings {
			r.unconfirmed(&r.first[0])
			r.first = slices.Delete(r.first, 0, 1)
		}
		r.first = append(r.first, opening{
			jump{held: true, at: now, line: line, first: p.First, data: slices.Clone(datagram)}, p.Session,
		})
		return false
	}
	r.session, r.named = p.Session, true
	if !r.started {
		r.started = true
		r.m.Start(start)
		r.at = start
	}
	slices.SortStableFunc(r.first, func(x, y opening) int { return cmp.Compare(x.first, y.first) })
	for i := range r.first {
		o := &r.first[i]
		if !near(o) {
			r.unconfirmed(o)
			continue
		}
		p, _ := Parse(o.data)
		r.offer(now, o.line, p, o.data)
	}
	r.first = nil
	return true
}

// unconfirmed counts a packet that no second one was near.
func (r *Receiver) unconfirmed(o *opening) {
	if r.named && o.session != r.session {
		r.stats.WrongSession++
		return
	}
	r.stats.Implausible++
}

func (r *Receiver) expireOpenings(now Instant) {
	for len(r.first) > 0 && now-r.first[0].at > Instant(JumpWait) {
		r.unconfirmed(&r.first[0])
		r.first = slices.Delete(r.first, 0, 1)
	}
}

// offer takes a packet of the session, which has begun.
func (r *Receiver) offer(now Instant, line int, p Packet, datagram []byte) {
	if head := r.m.Head(); p.First > head && p.First-head > MaxJump && !r.plausible(now, line, p.First, datagram) {
		return
	}
	r.process(now, line, p)
}

// plausible decides on a packet far beyond the head: it is held until another
// fits it. When one does, what was held is processed first.
func (r *Receiver) plausible(now Instant, line int, first Seq, datagram []byte) bool {
	j := &r.jump
	fits := j.held && first >= j.first && first-j.first <= MaxJump && now-j.at <= Instant(JumpWait)
	if fits {
		j.held = false
		p, _ := Parse(j.data)
		r.process(now, j.line, p)
		return true
	}
	if j.held {
		r.stats.Implausible++
	}
	*j = jump{held: true, at: now, line: line, first: first, data: append(j.data[:0], datagram...)}
	return false
}

func (r *Receiver) process(now Instant, line int, p Packet) {
	r.heard, r.anyHeard = now, true
	r.stats.Packets++
	r.stats.Received += uint64(p.Msgs.Len())
	if r.done {
		r.stats.Stale += uint64(p.Msgs.Len())
		return
	}
	rng := p.Range()
	r.m.Passed(now, line, rng)
	if r.claimed.Hear(now, p.Kind != Data, rng, r.m.Head(), gap.ClaimTime) && r.high <= p.First {
		r.withdraw(p)
	}
	switch p.Kind {
	case Data:
		// Whoever goes on has not ended.
		if r.hasEnd && rng.Next > r.end {
			r.hasEnd = false
		}
		r.take(now, line, rng, p.Msgs)
	case Heartbeat:
		r.m.Reveal(now, line, p.First)
	case End:
		// An end below what was heard contradicts it.
		if p.First >= r.m.Head() {
			r.m.Reveal(now, line, p.First)
			r.hasEnd, r.end = true, p.First
		}
	}
	r.checkEnd()
}

// withdraw takes back what a single heartbeat or end has revealed, and others
// have denied ever since. What of it was reported lost already stays so, and is
// no obstacle to the end.
func (r *Receiver) withdraw(p Packet) {
	if r.m.Withdraw(p.First) {
		r.lost.Remove(Range{First: p.First, Next: ^Seq(0)})
	}
	if r.hasEnd = p.Kind == End; r.hasEnd {
		r.end = p.First
	}
}

// OfferAnswer takes a datagram from a server that was asked, 0..Servers-1.
func (r *Receiver) OfferAnswer(now Instant, server int, datagram []byte) {
	p, err := Parse(datagram)
	switch {
	case err != nil:
		r.stats.Malformed++
		return
	case !r.named || p.Session != r.session:
		r.stats.WrongSession++
		return
	}
	r.stats.Packets++
	r.stats.Received += uint64(p.Msgs.Len())
	switch {
	case p.Kind != Data: // a server has no say in what exists
		return
	case r.done || !r.started:
		r.stats.Stale += uint64(p.Msgs.Len())
		return
	}
	r.m.Answered(now, server, p.Range())
	r.take(now, AnswerLine, p.Range(), p.Msgs)
	r.checkEnd()
}

// HeardAnswer says that a datagram came on a line from a server that was asked,
// before it is offered as the line's: it is taken for the answer where it
// brings what was asked for.
func (r *Receiver) HeardAnswer(now Instant, server int, datagram []byte) {
	if !r.named || !r.started || r.done {
		return
	}
	if p, err := Parse(datagram); err == nil && p.Kind == Data && p.Session == r.session {
		r.m.Answered(now, server, p.Range())
	}
}

// take delivers what is new of a packet, or keeps it for its turn.
func (r *Receiver) take(now Instant, line int, rng Range, msgs Messages) {
	for !rng.Empty() {
		sub, v := r.m.Classify(rng)
		n := sub.Len()
		part := msgs
		if int(n) < msgs.Len() {
			part, msgs = msgs.Split(int(n))
		}
		rng.First = sub.Next
		switch v {
		case gap.Duplicate:
			r.stats.Duplicates += n
			continue
		case gap.Stale, gap.Below, gap.Forgotten:
			r.stats.Stale += n
			continue
		case gap.InOrder, gap.Ahead:
			if line == AnswerLine {
				r.stats.Unasked += n
				continue
			}
		}
		wait := r.c.Ordered && (sub.First != r.at || r.held)
		next, recovered := r.m.Next(), uint64(0)
		if v == gap.Fill {
			recovered = r.m.Stats().MessagesRecovered
		}
		size := len(part.Framed())
		if (wait && !r.early.fits(sub.First, int(n), size) || !r.m.Accept(now, line, sub)) && !r.makeRoom(now, line, sub, size) {
			r.stats.Dropped += n
			continue
		}
		r.high = max(r.high, sub.Next)
		if line != streamLine && v == gap.Fill && sub.First == next && r.m.Stats().MessagesRecovered == recovered {
			r.stats.OutOfOrder += uint64(r.m.Next() - sub.Next)
		}
		if wait {
			r.early.add(sub, part)
			continue
		}
		r.live = line >= 0 && line != AnswerLine
		r.deliver(sub.First, part)
		if r.c.Ordered {
			r.at = sub.Next
			r.drain()
		}
	}
}

func (r *Receiver) deliver(seq Seq, msgs Messages) {
	r.stats.Delivered += uint64(msgs.Len())
	if r.c.Recovery {
		r.keep(seq, msgs)
	}
	if r.c.OnMessage == nil {
		return
	}
	for msgs.Len() > 0 {
		r.c.OnMessage(seq, msgs.Next())
		seq++
	}
}

// drain delivers, and reports lost, what has its turn.
func (r *Receiver) drain() {
	for !r.held {
		if r.lost.Len() > 0 && r.lost.Ranges()[0].First == r.at {
			rng := r.lost.Ranges()[0]
			r.lost.Remove(rng)
			r.at = rng.Next
			r.report(rng)
			continue
		}
		run, ok := r.early.front(r.at)
		if !ok {
			return
		}
		r.at = run.rng.Next
		r.live = true
		r.deliver(run.rng.First, MessagesOf(run.buf, int(run.rng.Len())))
		r.early.drop()
	}
}

func (r *Receiver) report(rng Range) {
	if r.c.OnLost != nil {
		r.c.OnLost(rng)
	}
}

func (r *Receiver) checkEnd() {
	if !r.hasEnd || r.done || r.held || r.m.Next() < r.end {
		return
	}
	r.done = true
	if r.c.OnEnd != nil {
		r.c.OnEnd(r.end)
	}
}

// Poll gives the next request that is due, and the server to send it to; call
// it until it says false. It reports what is lost.
func (r *Receiver) Poll(now Instant) (req Request, server int, ok bool) {
	r.expireOpenings(now)
	if r.jump.held && now-r.jump.at > Instant(JumpWait) {
		r.jump.held = false
		r.stats.Implausible++
	}
	if !r.started || r.done {
		return Request{}, 0, false
	}
	q, ok := r.m.Poll(now)
	r.reportLost()
	if !ok {
		return Request{}, 0, false
	}
	return Request{Session: r.session, First: q.Range.First, Count: uint16(q.Range.Len())}, q.Server, true
}

// reportLost reports what is lost, in its turn.
func (r *Receiver) reportLost() {
	some := false
	for rng, more := r.m.Lost(); more; rng, more = r.m.Lost() {
		some = true
		if r.c.Ordered {
			r.lost.Add(rng)
		} else {
			r.report(rng)
		}
	}
	if some {
		if r.c.Ordered {
			r.drain()
		}
		r.checkEnd()
	}
}

// Deadline is when Poll may have something, unless a datagram comes first; a
// time in the past means now.
func (r *Receiver) Deadline() Instant {
	d := gap.Never
	if len(r.first) > 0 {
		d = r.first[0].at + Instant(JumpWait) + 1
	}
	if r.jump.held {
		d = min(d, r.jump.at+Instant(JumpWait)+1)
	}
	if r.started && !r.done {
		d = min(d, r.m.Deadline())
	}
	return d
}
