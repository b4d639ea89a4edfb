package replay

import (
	"io"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/replay/impair"
)

// Link is one line that a stream goes out on.
type Link struct {
	Name string       // in what is noted: A
	Next Sender       // the rest of the way
	Line *impair.Line // what becomes of packets; nil: they go
}

// Harm is what became of one packet on one line.
type Harm struct {
	Line     string
	Packet   uint64 // of the stream's data on this line, from 1
	Session  moldcast.Session
	First    moldcast.Seq
	Messages int
	Fate     impair.Fate
}

// Impaired is a Sender onto one or several lines, each of which harms data
// packets in its own way. Give each stream one of its own: then what becomes of
// a packet depends on the seeds of the lines and on the packets of its stream
// before it, not on batches, time or other streams. Heartbeats and End of
// Session pass unharmed, behind what waits to be overtaken. The sender's thread
// owns it. A packet that a line loses, or holds back, counts as sent.
type Impaired struct {
	links   []link
	note    func(Harm)
	now     moldcast.Instant // as Advance was told
	applied int              // packets at the front of the next Send that went through the lines
	one     [1][]byte
}

// link is a Link with what came out of it and is not sent yet. Packets are
// copied one behind the other: batches, and what a line holds, go their ways.
type link struct {
	Link
	packets uint64
	buf     []byte
	ends    []int // of the packets in buf
	out     [][]byte
	emit    func([]byte)
}

// NewImpaired joins lines. note, where there is one, is told of every packet
// that does not just go, in the order of packets, each in the order of lines.
func NewImpaired(links []Link, note func(Harm)) *Impaired {
	s := &Impaired{links: make([]link, len(links)), note: note}
	for i := range links {
		l := &s.links[i]
		l.Link = links[i]
		l.emit = func(b []byte) {
			l.buf = append(l.buf, b...)
			l.ends = append(l.ends, len(l.buf))
		}
	}
	return s
}

// Send implements Sender: it takes all of batch or nothing. After an error it
// must be given the same packets again, which go through the lines once.
func (s *Impaired) Send(batch [][]byte) (int, error) {
	for ; s.applied < len(batch); s.applied++ {
		b := batch[s.applied]
		for i := range s.links {
			s.links[i].offer(s.now, b, s.note)
		}
	}
	if err := s.drain(); err != nil {
		return 0, err
	}
	s.applied = 0
	return len(batch), nil
}

func (l *link) offer(now moldcast.Instant, b []byte, note func(Harm)) {
	l.packets++
	if l.Line == nil {
		l.emit(b)
		return
	}
	f := l.Line.Offer(now, b, l.emit)
	if note == nil || !f.Harmed() {
		return
	}
	if p, err := moldcast.Parse(b); err == nil {
		note(Harm{Line: l.Name, Packet: l.packets, Session: p.Session, First: p.First, Messages: p.Msgs.Len(), Fate: f})
	}
}

// Mark sends a heartbeat or End of Session on every line. What is delayed does
// not go before it.
func (s *Impaired) Mark(pkt []byte) error {
	if _, err := s.Settle(s.now); err != nil {
		return err
	}
	s.one[0] = pkt
	for i := range s.links {
		if n, err := s.links[i].Next.Send(s.one[:]); err != nil || n != 1 {
			return short(err)
		}
	}
	return nil
}

// Advance tells the time, sends what was delayed until now, and says when the
// next is due: gap.Never where none waits.
func (s *Impaired) Advance(now moldcast.Instant) (moldcast.Instant, error) {
	s.now = now
	for i := range s.links {
		if l := &s.links[i]; l.Line != nil {
			l.Line.Poll(now, l.emit)
		}
	}
	return s.deadline(), s.drain()
}

// Settle is Advance for a stream that falls silent: what waits to be overtaken
// goes.
func (s *Impaired) Settle(now moldcast.Instant) (moldcast.Instant, error) {
	for i := range s.links {
		if l := &s.links[i]; l.Line != nil {
			l.Line.Settle(now, l.emit)
		}
	}
	return s.Advance(now)
}

// Flush sends everything that is held back.
func (s *Impaired) Flush() error {
	for i := range s.links {
		if l := &s.links[i]; l.Line != nil {
			l.Line.Flush(l.emit)
		}
	}
	return s.drain()
}

func (s *Impaired) deadline() moldcast.Instant {
	d := gap.Never
	for i := range s.links {
		if l := s.links[i].Line; l != nil {
			d = min(d, l.Deadline())
		}
	}
	return d
}

// drain sends what came out of every line. What is not sent is kept.
func (s *Impaired) drain() error {
	var failed error
	for i := range s.links {
		if err := s.links[i].drain(); err != nil {
			failed = err
		}
	}
	return failed
}

func (l *link) drain() error {
	if len(l.ends) == 0 {
		return nil
	}
	l.out = l.out[:0]
	from := 0
	for _, end := range l.ends {
		l.out = append(l.out, l.buf[from:end])
		from = end
	}
	sent := 0
	for sent < len(l.out) {
		n, err := l.Next.Send(l.out[sent:min(sent+batchSize, len(l.out))])
		sent += n
		if err != nil || n == 0 {
			// The rest moves to the front.
			gone := 0
			if sent > 0 {
				gone = l.ends[sent-1]
			}
			l.buf = l.buf[:copy(l.buf, l.buf[gone:])]
			l.ends = l.ends[:copy(l.ends, l.ends[sent:])]
			for k := range l.ends {
				l.ends[k] -= gone
			}
			return short(err)
		}
	}
	l.buf, l.ends = l.buf[:0], l.ends[:0]
	return nil
}

// short is err, and why less was sent than wanted where it is nil.
func short(err error) error {
	if err == nil {
		return io.ErrShortWrite
	}
	return err
}
