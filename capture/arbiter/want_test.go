package arbiter

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// A session that was joined late: what a client wants from before is asked for
// once; the answer, and only that, moves the first sequence down, and what lies
// between is fetched then. Nothing of it was a gap before.
func TestWantBelow(t *testing.T) {
	j := newJoined(t)
	a, name := j.a, j.name
	rng := func(first, next moldcast.Seq) moldcast.Range { return moldcast.Range{First: first, Next: next} }
	j.line(1000, 1005)
	j.line(1005, 1010)
	j.polled(time.Second)
	s := a.Sessions()[0]

	a.Want(j.now, session("OTHER"), rng(1, 5))
	a.Want(j.now, name, rng(2000, 2005)) // beyond the head
	if got := j.polled(time.Second); len(got) > 0 {
		t.Fatal("asked for ", got)
	}
	a.Want(j.now, name, rng(980, 1003))
	if got := j.polled(100 * time.Millisecond); len(got) != 1 || got[0] != rng(980, 1000) {
		t.Fatal("asked for ", got)
	}
	if s.First() != 1000 || s.Missing() != 0 || s.OpenGaps() != 0 {
		t.Fatalf("what nobody has is a gap: first %d, %d missing", s.First(), s.Missing())
	}
	j.answer(500, 505) // not asked for
	j.answer(980, 1001)
	if s.First() != 1000 {
		t.Fatalf("first %d by an answer that nobody asked for", s.First())
	}
	j.answer(980, 990)
	if s.First() != 980 || s.Missing() != 1 {
		t.Fatalf("first %d, %d missing", s.First(), s.Missing())
	}
	if got := j.polled(100 * time.Millisecond); len(got) == 0 || got[0] != rng(990, 1000) {
		t.Fatal("asked for ", got)
	}
	j.answer(990, 1000)
	if s.Missing() != 0 || a.Counters().Messages != 30 {
		t.Fatalf("%d missing, %+v", s.Missing(), a.Counters())
	}

	// Too late.
	a.Want(j.now, name, rng(900, 910))
	j.polled(2 * time.Second)
	j.answer(900, 910)
	if s.First() != 980 {
		t.Fatal("an answer to what was asked for long ago was taken")
	}
}

// What lies too far below the first sequence is not asked for.
func TestWantFarBelow(t *testing.T) {
	rec := newRecorder(t)
	rec.sent = func(moldcast.Session, moldcast.Seq, string) bool { return true }
	a, err := New(Config{Lines: 1, Servers: 1, Start: Live}, rec)
	if err != nil {
		t.Fatal(err)
	}
	name := session("S")
	first := moldcast.Seq(a.cfg.Limits.Jump) * 3
	a.Offer(0, epoch, 0, sender, packet(name, moldcast.Range{First: first, Next: first + 5}, false))
	a.Offer(0, epoch, 0, sender, packet(name, moldcast.Range{First: first + 5, Next: first + 9}, false))
	a.Want(1, name, moldcast.Range{First: first - moldcast.Seq(a.cfg.Limits.Jump) - 1, Next: first})
	for now := moldcast.Instant(0); now < 1e9; now += 1e6 {
		if _, q, ok := a.Poll(now); ok {
			t.Fatal(q)
		}
	}
}
