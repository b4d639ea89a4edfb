package arbiter

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

func framed(s moldcast.Session, r moldcast.Range, alt bool) moldcast.Messages {
	p, _ := moldcast.Parse(packet(s, r, alt))
	return p.Msgs
}

// A stream fills a long gap while the lines go on and the store is full now
// and then; nothing is stored twice, nothing of what is reserved is asked for,
// and in the end all is there.
func TestStreamFillsALongGap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := newRecorder(t)
		full := false
		rec.busy = func(moldcast.Piece) bool { return full }
		a, err := New(Config{Lines: 1, Servers: 1, Start: Beginning}, rec)
		if err != nil {
			t.Fatal(err)
		}
		name := session("S")
		var now moldcast.Instant
		head := moldcast.Seq(2001)
		line := func(n moldcast.Seq) {
			a.Offer(now, epoch+moldcast.Stamp(now), 0, sender, packet(name, moldcast.Range{First: head, Next: head + n}, false))
			head += n
		}
		line(3)
		line(3)
		s := a.Sessions()[0]
		hole := moldcast.Range{First: 1, Next: 2001}
		s.Reserve(now, hole)
		for q := moldcast.Seq(1); q < hole.Next; {
			now += moldcast.Instant(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 20 * time.Millisecond}).Draw(t, "dt"))
			full = rapid.IntRange(0, 3).Draw(t, "full") == 0
			if rapid.Bool().Draw(t, "line") && !full {
				line(2)
			}
			msgs := framed(name, moldcast.Range{First: q, Next: q + moldcast.Seq(rapid.IntRange(1, 900).Draw(t, "chunk"))}, false)
			out := a.OfferStream(now, epoch+moldcast.Stamp(now), s, q, msgs)
			q += moldcast.Seq(out.Taken)
			if out.Gone || out.Conflicts > 0 || out.Taken < msgs.Len() && !full {
				t.Fatalf("%+v of %d", out, msgs.Len())
			}
			for _, r, ok := a.Poll(now); ok; _, r, ok = a.Poll(now) {
				if !r.Range.Intersect(hole).Empty() {
					t.Fatalf("asked for %v", r.Range)
				}
			}
			checkLaws(t, a, a.Counters().Packets)
		}
		full = false
		a.Flush(now)
		c := a.Counters()
		if s.Next() != head || c.Messages != uint64(head)-1 || c.QueueDropped != 0 || c.NaksSent != 0 || c.Filled != 2000 {
			t.Fatalf("next %d of %d: %+v", s.Next(), head, c)
		}
	})
}

// A stream that brings other bytes than are held changes nothing; what it
// brings of a hole that was given up is stored; after another take began, or
// beyond the head, it is nobody's.
func TestStreamThatLies(t *testing.T) {
	rec := newRecorder(t)
	a, err := New(Config{Lines: 1, Start: Live, Gap: gap.Config{Budget: time.Second}}, rec)
	if err != nil {
		t.Fatal(err)
	}
	name := session("S")
	at := func(now moldcast.Instant, first, next moldcast.Seq) {
		a.Offer(now, epoch, 0, sender, packet(name, moldcast.Range{First: first, Next: next}, false))
	}
	at(0, 11, 15)
	at(0, 15, 21)
	at(0, 31, 41)
	s := a.Sessions()[0]
	out := a.OfferStream(1, epoch, s, 16, framed(name, moldcast.Range{First: 16, Next: 21}, true))
	if out.Conflicts != 5 || out.New != 0 || out.Taken != 5 {
		t.Errorf("%+v", out)
	}
	now := moldcast.Instant(5 * time.Second)
	a.Poll(moldcast.Instant(time.Millisecond))
	a.Poll(now)
	if c := a.Counters(); c.MessagesLost != 10 {
		t.Fatalf("%+v", c)
	}
	out = a.OfferStream(now, epoch, s, 5, framed(name, moldcast.Range{First: 5, Next: 50}, false))
	c := a.Counters()
	if out.New != 10 || out.Taken != 45 || out.Conflicts != 0 || c.Stale != 10 || c.Streamed != 35 || s.Head() != 41 || s.First() != 11 || s.Next() != 41 {
		t.Errorf("%+v, %+v, %d..%d", out, c, s.First(), s.Head())
	}
	checkLaws(t, a, c.Packets)
	a.close(a.now, s)
	if out := a.OfferStream(now, epoch, s, 5, framed(name, moldcast.Range{First: 5, Next: 50}, false)); !out.Gone {
		t.Errorf("%+v of a session that is closed", out)
	}
}
