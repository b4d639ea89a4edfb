package arbiter

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// What retention left begins at its floor: what is missing below is not asked
// for again, and is no hole; what comes of it all the same is dropped, be it of
// a line, an answer, or a client's wish.
func TestRetain(t *testing.T) {
	rec := newRecorder(t)
	rec.sent = func(moldcast.Session, moldcast.Seq, string) bool { return true }
	a, err := New(Config{Lines: 1, Servers: 1, Start: Live}, rec)
	if err != nil {
		t.Fatal(err)
	}
	name, now := session("S"), moldcast.Instant(0)
	polled := func(d time.Duration) (got []moldcast.Range) {
		for end := now + moldcast.Instant(d); now < end; now += moldcast.Instant(time.Millisecond) {
			for _, q, ok := a.Poll(now); ok; _, q, ok = a.Poll(now) {
				got = append(got, q.Range)
			}
		}
		return got
	}
	rng := func(first, next moldcast.Seq) moldcast.Range { return moldcast.Range{First: first, Next: next} }
	offered := uint64(0)
	line := func(r moldcast.Range) {
		offered++
		a.Offer(now, epoch, 0, sender, packet(name, r, false))
	}
	answer := func(r moldcast.Range) {
		offered++
		a.OfferAnswer(now, epoch+moldcast.Stamp(now), 0, packet(name, r, false))
	}
	for _, r := range []moldcast.Range{rng(100, 110), rng(110, 120), rng(130, 140), rng(150, 160), rng(170, 180)} {
		line(r)
	}
	polled(50 * time.Millisecond)
	s := a.Sessions()[0]
	if s.OpenGaps() != 3 {
		t.Fatalf("%d gaps", s.OpenGaps())
	}
	if n := a.Retain(now, s, 90); n != 0 || s.First() != 100 {
		t.Errorf("a floor below: %d dropped, first %d", n, s.First())
	}
	if n := a.Retain(now, s, 145); n != 15 || s.First() != 145 || s.OpenGaps() != 2 { // in the middle of a gap
		t.Errorf("%d dropped, first %d, %d gaps", n, s.First(), s.OpenGaps())
	}
	if n := a.Retain(now, s, 130); n != 0 || s.First() != 145 {
		t.Errorf("a floor that falls: %d dropped, first %d", n, s.First())
	}
	checkLaws(t, a, offered)
	before := a.Counters()
	answer(rng(120, 130)) // asked for before
	line(rng(140, 145))
	a.Want(now, name, rng(120, 130))
	for _, r := range polled(time.Second) {
		if r.First < 145 {
			t.Errorf("asked for %v", r)
		}
	}
	c := a.Counters()
	if c.Duplicates-before.Duplicates != 15 || c.Messages != before.Messages || c.Implausible != 0 || s.First() != 145 {
		t.Errorf("%+v, first %d", c, s.First())
	}
	line(rng(140, 150)) // a part of it is wanted
	answer(rng(160, 170))
	if got := a.Counters().Messages - before.Messages; got != 15 || s.OpenGaps() != 0 || s.Next() != 180 {
		t.Errorf("%d stored, %d gaps, next %d", got, s.OpenGaps(), s.Next())
	}
	// Of nothing that is left, nothing is missing: the end is one.
	line(rng(190, 200))
	polled(50 * time.Millisecond)
	offered++
	a.Offer(now, epoch, 0, sender, moldcast.AppendHeader(nil, name, 200, moldcast.EndCount))
	if a.Done() {
		t.Error("the end is accepted with a gap")
	}
	if n := a.Retain(now, s, 200); n != 10 || !a.Done() {
		t.Errorf("%d dropped, done %v", n, a.Done())
	}
	checkLaws(t, a, offered)
}
