package moldcast

import (
	"bytes"

	"github.com/moldtape/moldtape/moldcast/gap"
)

// Overlap is how many of the newest messages delivered a Receiver keeps, to
// compare with what a recovery stream brings of them.
const Overlap = 16

// streamLine is the line of what a recovery stream brings.
const streamLine = -1

// tail keeps the newest messages delivered, by sequence.
type tail struct {
	slots [Overlap]struct {
		seq  Seq
		live bool // a line brought it
		data []byte
	}
}

func (t *tail) keep(seq Seq, data []byte, live bool) {
	s := &t.slots[seq%Overlap]
	s.seq, s.live, s.data = seq, live, append(s.data[:0], data...)
}

// any reports whether a message of rng is kept.
func (t *tail) any(rng Range) bool {
	for i := range t.slots {
		if rng.Contains(t.slots[i].seq) {
			return true
		}
	}
	return false
}

// keep keeps the last of messages that are delivered.
func (r *Receiver) keep(seq Seq, msgs Messages) {
	for ; msgs.Len() > 0; seq++ {
		if data := msgs.Next(); msgs.Len() < Overlap {
			r.tail.keep(seq, data, r.live)
		}
	}
}

// compare runs over messages that are to be looked at alike in the tail and
// among the early ones. differs is the first that is held with other bytes, 0:
// none; same is how many came by a line with the same.
func (r *Receiver) compare(first Seq, msgs Messages) (same int, differs Seq) {
	rng := Range{First: first, Next: first + Seq(msgs.Len())}
	e := &r.early
	i := e.from(first)
	if (i == len(e.runs) || e.runs[i].rng.First >= rng.Next) && !r.tail.any(rng) {
		return 0, 0
	}
	var run Messages // what is left of runs[i], at at
	var at Seq
	open := func() {
		if i < len(e.runs) {
			run, at = MessagesOf(e.runs[i].buf, int(e.runs[i].rng.Len())), e.runs[i].rng.First
		}
	}
	open()
	for seq := first; msgs.Len() > 0; seq++ {
		data := msgs.Next()
		if s := &r.tail.slots[seq%Overlap]; s.seq == seq {
			if !bytes.Equal(s.data, data) {
				return same, seq
			}
			if s.live {
				same++
			}
			continue
		}
		for i < len(e.runs) && e.runs[i].rng.Next <= seq {
			i++
			open()
		}
		if i == len(e.runs) || e.runs[i].rng.First > seq {
			continue
		}
		for ; at < seq; at++ {
			run.Next()
		}
		if !bytes.Equal(run.Next(), data) {
			return same, seq
		}
		at++
		same++
	}
	return same, 0
}

// StreamVerdict is what became of messages of a recovery stream.
type StreamVerdict struct {
	Taken   int // dealt with; the rest is to be offered again
	New     int // of these, were missing
	Same    int // of these, are held from a line, with the same bytes
	Differs Seq // a message that is held with other bytes: nothing was taken; 0: none
}

// Compare takes nothing of what a recovery stream brings, but looks whether it
// is what is held: the newest Overlap messages delivered, and those that wait.
func (r *Receiver) Compare(first Seq, msgs Messages) StreamVerdict {
	same, differs := r.compare(first, msgs)
	return StreamVerdict{Same: same, Differs: differs}
}

// OfferStream takes messages of a recovery stream of the session, after it
// compared them with what is held. What lies at or beyond Head is taken only
// with beyond; otherwise it stays. REQUIRES: started, that is Head is not 0.
func (r *Receiver) OfferStream(now Instant, first Seq, msgs Messages, beyond bool) (v StreamVerdict) {
	if head := r.m.Head(); !beyond && !r.done {
		n := 0
		if first < head {
			n = int(min(uint64(head-first), uint64(msgs.Len())))
		}
		msgs, _ = msgs.Split(n)
	}
	if msgs.Len() == 0 {
		return v
	}
	if v.Same, v.Differs = r.compare(first, msgs); v.Differs != 0 {
		return v
	}
	n := msgs.Len()
	v.Taken = n
	r.stats.Received += uint64(n)
	if r.done {
		r.stats.Stale += uint64(n)
		return v
	}
	before := r.stats.Delivered + r.early.messages
	r.take(now, streamLine, Range{First: first, Next: first + Seq(n)}, msgs)
	v.New = int(r.stats.Delivered + r.early.messages - before)
	r.stats.Streamed += uint64(v.New)
	r.checkEnd()
	return v
}

// StreamShows says that there are messages below next, which a recovery stream
// goes beyond. Only for where the lines are silent.
func (r *Receiver) StreamShows(now Instant, next Seq) {
	if r.started && !r.done {
		r.m.Reveal(now, streamLine, next)
	}
}

// StreamEnd says that a recovery stream ended with the session at end. Where
// lines showed more than that, it tells nothing, and the result is false.
func (r *Receiver) StreamEnd(now Instant, end Seq) bool {
	if !r.started || end < r.m.Head() {
		return false
	}
	r.m.Reveal(now, streamLine, end)
	r.hasEnd, r.end = true, end
	r.checkEnd()
	return true
}

// Ordered reports whether delivery is by sequence.
func (r *Receiver) Ordered() bool { return r.c.Ordered }

// Gaps calls fn with every missing range in order, until it returns false.
func (r *Receiver) Gaps(fn func(gap.Gap) bool) {
	if r.started && !r.done {
		r.m.Gaps(fn)
	}
}

// Waiting is the run of messages from seq on that wait for their turn; empty
// where the one at seq does not.
func (r *Receiver) Waiting(seq Seq) Range {
	e := &r.early
	if i := e.from(seq); i < len(e.runs) && e.runs[i].rng.Contains(seq) {
		return Range{First: seq, Next: e.runs[i].rng.Next}
	}
	return Range{First: seq, Next: seq}
}

// Kept is the first of the messages right before seq that Compare can compare;
// seq if none is.
func (r *Receiver) Kept(seq Seq) Seq {
	for n := 0; n < Overlap && seq > 1 && r.tail.slots[(seq-1)%Overlap].seq == seq-1; n++ {
		seq--
	}
	return seq
}

// Reserve says that rng is on its way by recovery stream, instead of what was
// said before: nothing of it is asked for, and its budget begins anew. Empty:
// nothing is.
func (r *Receiver) Reserve(now Instant, rng Range) {
	if !r.reserved.Empty() && rng != r.reserved {
		r.m.Release(now, r.reserved)
	}
	if r.reserved = rng; !rng.Empty() {
		r.m.Reserve(now, rng)
	}
}

// Lose gives up what is missing of rng: it is reported lost.
func (r *Receiver) Lose(now Instant, rng Range) {
	if r.started && !r.done {
		r.m.Abandon(now, rng)
		r.reportLost()
	}
}

// Hold has nothing delivered or reported until Hold(now, false): everything
// waits, in order, in the room for early messages. Only where delivery is
// ordered.
func (r *Receiver) Hold(now Instant, on bool) {
	r.held = on && r.c.Ordered
	if !r.held && r.started && !r.done {
		r.drain()
		r.checkEnd()
	}
}

// Skip says that delivery begins at first: a snapshot has what comes before.
// What waits of that is dropped as stale. Without effect unless first > Next.
func (r *Receiver) Skip(now Instant, first Seq) {
	if !r.started || r.done || first <= r.at {
		return
	}
	r.m.Skip(now, first)
	lost := r.lost.Count()
	r.lost.Remove(Range{Next: first})
	r.past.MessagesLost -= lost - r.lost.Count()
	r.stats.Stale += r.early.dropBelow(first)
	r.at = first
	r.drain()
	r.checkEnd()
}

// startOver drops all that waits for its turn, where something found no room:
// from the next message to be delivered up to head it is one gap. What requests
// have learned of their servers is forgotten.
func (r *Receiver) startOver(now Instant, head Seq) {
	head = max(head, r.m.Head())
	r.stats.Restarts++
	r.stats.Dropped += r.early.messages
	r.early.clear()
	g := r.m.Stats()
	r.past.GapsOpened += g.GapsOpened
	r.past.MessagesRecovered += g.MessagesRecovered
	r.past.MessagesLost += g.MessagesLost - r.lost.Count() // not reported: it is missing again
	r.past.Requests += g.Requests
	r.lost.Clear()
	r.m = gap.New(r.c.Gap)
	r.m.Start(r.at)
	r.m.Reveal(now, streamLine, head)
	if !r.reserved.Empty() {
		r.reserved = Range{First: r.at, Next: head}
		r.m.Reserve(now, r.reserved)
	}
}

// makeRoom starts over where that helps, and accepts sub then.
func (r *Receiver) makeRoom(now Instant, line int, sub Range, size int) bool {
	if !r.c.Recovery || !r.c.Ordered || line == streamLine || r.early.messages == 0 {
		return false
	}
	r.startOver(now, sub.First)
	return r.early.fits(sub.First, int(sub.Len()), size) && r.m.Accept(now, line, sub)
}
