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
	j := newJoined(t)
	a := j.a
	for _, q := range []moldcast.Seq{100, 110, 130, 150, 170} {
		j.line(q, q+10)
	}
	j.polled(50 * time.Millisecond)
	s := a.Sessions()[0]
	if s.OpenGaps() != 3 {
		t.Fatalf("%d gaps", s.OpenGaps())
	}
	if n := a.Retain(j.now, s, 90); n != 0 || s.First() != 100 {
		t.Errorf("a floor below: %d dropped, first %d", n, s.First())
	}
	if n := a.Retain(j.now, s, 145); n != 15 || s.First() != 145 || s.OpenGaps() != 2 { // in the middle of a gap
		t.Errorf("%d dropped, first %d, %d gaps", n, s.First(), s.OpenGaps())
	}
	if n := a.Retain(j.now, s, 130); n != 0 || s.First() != 145 {
		t.Errorf("a floor that falls: %d dropped, first %d", n, s.First())
	}
	checkLaws(t, a, j.offered)
	before := a.Counters()
	j.answer(120, 130) // asked for before
	j.line(140, 145)
	a.Want(j.now, j.name, moldcast.Range{First: 120, Next: 130})
	for _, r := range j.polled(time.Second) {
		if r.First < 145 {
			t.Errorf("asked for %v", r)
		}
	}
	c := a.Counters()
	if c.Duplicates-before.Duplicates != 15 || c.Messages != before.Messages || c.Implausible != 0 || s.First() != 145 {
		t.Errorf("%+v, first %d", c, s.First())
	}
	j.line(140, 150) // a part of it is wanted
	j.answer(160, 170)
	if got := a.Counters().Messages - before.Messages; got != 15 || s.OpenGaps() != 0 || s.Next() != 180 {
		t.Errorf("%d stored, %d gaps, next %d", got, s.OpenGaps(), s.Next())
	}
	// Of nothing that is left, nothing is missing: the end is one.
	j.line(190, 200)
	j.polled(50 * time.Millisecond)
	j.offered++
	a.Offer(j.now, epoch, 0, sender, moldcast.AppendHeader(nil, j.name, 200, moldcast.EndCount))
	if a.Done() {
		t.Error("the end is accepted with a gap")
	}
	if n := a.Retain(j.now, s, 200); n != 10 || !a.Done() {
		t.Errorf("%d dropped, done %v", n, a.Done())
	}
	checkLaws(t, a, j.offered)
}
