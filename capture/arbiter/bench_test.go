package arbiter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

var sender = netip.AddrFrom4([4]byte{10, 0, 0, 1})

// discard is an Output that takes everything.
type discard struct{ messages int }

func (o *discard) Open(*Session) (moldcast.Held, error) { return moldcast.Held{}, nil }
func (o *discard) Append(_ *Session, p moldcast.Piece) bool {
	o.messages += p.Msgs.Len()
	return true
}
func (o *discard) Covers(_ *Session, r moldcast.Range) (moldcast.Range, bool) {
	return r, true
}
func (o *discard) Room(*Session) bool                     { return true }
func (o *discard) Mark(*Session, moldcast.Mark)           {}
func (o *discard) Heard(*Session, moldcast.Heard)         {}
func (o *discard) Hole(*Session, moldcast.Hole)           {}
func (o *discard) Ended(*Session)                         {}
func (o *discard) Withdrawn(*Session)                     {}
func (o *discard) Superseded(_, _ *Session)               {}
func (o *discard) Conflict(*Session, moldcast.Seq, int)   {}
func (o *discard) Compare(*Comparison) bool               { return false }
func (o *discard) Fork(_, _ *Session, _ Fork) error       { return nil }
func (o *discard) Copy(_, _ *Session, _ []moldcast.Range) {}
func (o *discard) Close(*Session)                         {}

// stream makes the packets of an endless session in one buffer.
type stream struct {
	d    []byte
	n    moldcast.Seq
	next moldcast.Seq
	now  moldcast.Instant
}

func newStream(messages, size int) *stream {
	d := moldcast.AppendHeader(nil, session("BENCH"), 1, uint16(messages))
	for range messages {
		d = moldcast.AppendMessage(d, make([]byte, size))
	}
	return &stream{d: d, n: moldcast.Seq(messages), next: 1}
}

func (s *stream) at(seq moldcast.Seq) []byte {
	binary.BigEndian.PutUint64(s.d[moldcast.SessionSize:], uint64(seq))
	return s.d
}

// step offers the next packet on each of the lines.
func (s *stream) step(a *Arbiter, lines int) {
	s.now += 10_000
	d := s.at(s.next)
	for l := range lines {
		a.Offer(s.now, moldcast.Stamp(s.now), l, sender, d)
	}
	s.next += s.n
}

// swap offers the next two packets in the wrong order.
func (s *stream) swap(a *Arbiter) {
	s.now += 10_000
	a.Offer(s.now, moldcast.Stamp(s.now), 0, sender, s.at(s.next+s.n))
	a.Offer(s.now, moldcast.Stamp(s.now), 0, sender, s.at(s.next))
	s.next += 2 * s.n
}

func newBench(tb testing.TB, lines int) *Arbiter {
	// Few messages are compared, so that the pages for them are soon there.
	a, err := New(Config{Lines: lines, Start: Live, Limits: Limits{Compared: pageSize}}, &discard{})
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func TestOfferDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		return // the race detector allocates
	}
	for _, c := range []struct {
		name  string
		lines int
		step  func(*stream, *Arbiter)
	}{
		{"one line", 1, func(s *stream, a *Arbiter) { s.step(a, 1) }},
		{"two lines with duplicates", 2, func(s *stream, a *Arbiter) { s.step(a, 2) }},
		{"out of order", 1, func(s *stream, a *Arbiter) { s.swap(a) }},
		{"polled", 1, func(s *stream, a *Arbiter) {
			s.step(a, 1)
			if a.Deadline() <= s.now {
				a.Poll(s.now)
			}
			a.Poll(s.now)
			_ = a.Counters()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s := newBench(t, c.lines), newStream(30, 40)
			for range 1000 {
				c.step(s, a)
			}
			if n := testing.AllocsPerRun(1000, func() { c.step(s, a) }); n != 0 {
				t.Errorf("%v allocations a packet", n)
			}
			if got := a.Counters(); got.Messages != uint64(s.next-1) || got.QueueDropped != 0 {
				t.Errorf("%+v, want %d messages", got, s.next-1)
			}
		})
	}
}

func BenchmarkOffer(b *testing.B) {
	for _, lines := range []int{1, 2} {
		for _, messages := range []int{1, 4, 34} { // 34 × 42 B fill a packet
			b.Run(fmt.Sprintf("lines=%d/msgs=%d/msg=40", lines, messages), func(b *testing.B) {
				a, s := newBench(b, lines), newStream(messages, 40)
				s.step(a, lines)
				s.step(a, lines)
				b.SetBytes(int64(len(s.d) * lines))
				b.ReportAllocs()
				for b.Loop() {
					s.step(a, lines)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*messages*lines), "ns/msg")
			})
		}
	}
	b.Run("lines=1/msgs=4/msg=40/swapped", func(b *testing.B) {
		a, s := newBench(b, 1), newStream(4, 40)
		b.ReportAllocs()
		for b.Loop() {
			s.swap(a)
		}
	})
}
