package replay

import (
	"errors"
	"fmt"
	"io"

	"github.com/moldtape/moldtape/moldcast"
)

// kind tells what comes off a feed.
type kind uint8

const (
	packet    kind = iota
	hole           // [first, next) is missing
	end            // the range is through; next is one past its last sequence
	heartbeat      // a heartbeat that was recorded; first is what it carries
)

// event is the next thing of a feed. framed aliases the feed and is valid
// until its next advance.
type event struct {
	kind        kind
	count       uint16 // packet without messages: on the wire
	first, next moldcast.Seq
	framed      []byte // packet: message blocks
	time        moldcast.Stamp
	reason      moldcast.HoleReason
}

// feed turns the pieces of one source into packets, holes and an end. The
// read-ahead goroutine owns it.
type feed struct {
	stream int
	src    Source
	pos    moldcast.Seq // next sequence to come off
	limit  moldcast.Seq // exclusive end
	sparse bool         // a jump is no hole
	high   moldcast.Stamp

	size   int   // payload bytes of framed messages that fit the MTU
	repack bool  // join pieces
	window int64 // recorded ns within which pieces are joined

	rest    moldcast.Messages // of the piece under way, from pos on
	time    moldcast.Stamp    // of rest; never falls
	buf     []byte            // repack: what is being joined
	pending bool              // held comes next, before rest
	held    event

	heard HeardSource // in place of src
	marks markFeed
	ahead event // the next event but for marks
	known bool  // ahead is it

	head event
}

// advance makes head the next event. After an end it must not be called.
func (f *feed) advance() error {
	if f.heard != nil {
		return f.hear()
	}
	if f.marks.src == nil {
		return f.step()
	}
	if !f.known {
		if err := f.step(); err != nil {
			return err
		}
		f.ahead, f.known = f.head, true
	}
	t, due, err := f.marks.before(&f.ahead)
	if err != nil {
		return err
	}
	if due {
		f.head = event{kind: heartbeat, first: f.ahead.first, next: f.ahead.first, time: t}
		return nil
	}
	f.head, f.known = f.ahead, false
	return nil
}

// step is advance of what is published.
func (f *feed) step() error {
	if f.repack {
		return f.join()
	}
	if f.rest.Len() == 0 {
		ev, err := f.pull()
		if err != nil || ev {
			return err
		}
	}
	f.take(f.rest.Len())
	return nil
}

// take makes a packet of the first n messages of rest; fewer where they would
// not fit a datagram, which no packet from a network can bring about.
func (f *feed) take(n int) {
	head, tail := f.rest, moldcast.Messages{}
	if len(f.rest.Framed()) > moldcast.MaxDatagram-moldcast.HeaderSize || n > moldcast.MaxCount {
		head, tail = f.rest.Split(max(1, f.rest.Fit(min(n, moldcast.MaxCount), f.size)))
	}
	f.rest = tail
	f.head = event{kind: packet, first: f.pos, next: f.pos + moldcast.Seq(head.Len()), framed: head.Framed(), time: f.time}
	f.pos = f.head.next
}

// join makes a packet of as many messages as fit and lie close enough.
func (f *feed) join() error {
	if f.pending {
		f.head, f.pending = f.held, false
		return nil
	}
	f.buf = f.buf[:0]
	n, first := 0, f.pos
	var start, last moldcast.Stamp
	for {
		if f.rest.Len() == 0 {
			ev, err := f.pull()
			if err != nil {
				return err
			}
			if ev && n == 0 {
				return nil
			}
			if ev {
				f.held, f.pending = f.head, true
				break
			}
			if n > 0 && f.pos != first+moldcast.Seq(n) {
				break // numbers were skipped
			}
		}
		if n > 0 && uint64(f.time)-uint64(start) > uint64(f.window) {
			break
		}
		k := f.rest.Fit(moldcast.MaxCount-n, f.size-len(f.buf))
		if k == 0 {
			if n > 0 {
				break
			}
			k = 1 // longer than the MTU: alone in a larger datagram
		}
		if n == 0 {
			first, start = f.pos, f.time
		}
		var head moldcast.Messages
		head, f.rest = f.rest.Split(k)
		f.buf = append(f.buf, head.Framed()...)
		last = f.time
		n += k
		f.pos += moldcast.Seq(k)
	}
	f.head = event{kind: packet, first: first, next: first + moldcast.Seq(n), framed: f.buf, time: last}
	return nil
}

// pull reads the source on until rest has messages, or head is a hole or an
// end: then it reports true.
func (f *feed) pull() (bool, error) {
	for {
		if f.pos >= f.limit {
			return f.finish()
		}
		p, err := f.src.Next()
		if err != nil {
			var h *moldcast.HoleError
			switch {
			case errors.Is(err, io.EOF) && f.sparse:
				return f.finish()
			case errors.Is(err, io.EOF):
				// Short of the range that was promised: its rest is missing.
				return f.miss(f.limit, moldcast.NotCaptured), nil
			case !errors.As(err, &h):
				return false, err
			}
			if h.Hole.Range.Next <= f.pos {
				continue
			}
			if h.Hole.Range.First >= f.limit {
				return f.finish()
			}
			return f.miss(h.Hole.Range.Next, h.Hole.Reason), nil
		}
		r := p.Range()
		switch {
		case r.Empty():
			return false, fmt.Errorf("source gave an empty piece at %d", p.First)
		case r.Next <= f.pos:
			continue
		case r.First >= f.limit:
			return f.finish()
		}
		if r.First < f.pos {
			_, p.Msgs = p.Msgs.Split(int(f.pos - r.First))
			r.First = f.pos
		}
		if r.Next > f.limit {
			p.Msgs, _ = p.Msgs.Split(int(f.limit - r.First))
		}
		f.rest = p.Msgs
		f.high = max(f.high, p.Time)
		f.time = f.high
		if r.First > f.pos && f.sparse {
			f.pos = r.First
		}
		if r.First > f.pos {
			// The source jumped and did not say so: still a hole.
			return f.miss(r.First, moldcast.NotCaptured), nil
		}
		return false, nil
	}
}

// miss makes head the hole from pos to next. rest, where there is some, comes
// behind it.
func (f *feed) miss(next moldcast.Seq, why moldcast.HoleReason) bool {
	next = min(next, f.limit)
	f.head = event{kind: hole, first: f.pos, next: next, time: f.high, reason: why}
	f.pos = next
	return true
}

func (f *feed) finish() (bool, error) {
	if f.sparse {
		f.pos = f.limit
	}
	f.head = event{kind: end, first: f.pos, next: f.pos, time: f.high}
	return true, nil
}

// merge is a heap of feeds by the time of their heads; equal times in the
// order of the streams.
type merge []*feed

func (m merge) Len() int { return len(m) }
func (m merge) Less(i, j int) bool {
	a, b := m[i].head.time, m[j].head.time
	return a < b || a == b && m[i].stream < m[j].stream
}
func (m merge) Swap(i, j int) { m[i], m[j] = m[j], m[i] }

// Push is never used: a merge only shrinks.
func (m *merge) Push(any) { panic("replay: merge does not grow") }

// Pop takes the last off.
func (m *merge) Pop() any {
	old := *m
	f := old[len(old)-1]
	*m = old[:len(old)-1]
	return f
}
