package arbiter

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// One End of Session, which may be forged, is final only when nothing follows
// for three heartbeats; one that is heard twice is at once.
func TestFinal(t *testing.T) {
	const beat = 100 * time.Millisecond
	var a *Arbiter
	var now moldcast.Instant
	name := session("S")
	begin := func() {
		rec := newRecorder(t)
		rec.sent = func(moldcast.Session, moldcast.Seq, string) bool { return true }
		c := Config{Lines: 1, Start: Beginning}
		c.Gap.HeartbeatInterval = beat
		var err error
		if a, err = New(c, rec); err != nil {
			t.Fatal(err)
		}
		now = 0
	}
	offer := func(d []byte) {
		now += moldcast.Instant(time.Millisecond)
		a.Offer(now, epoch+moldcast.Stamp(now), 0, sender, d)
		for _, _, ok := a.Poll(now); ok; _, _, ok = a.Poll(now) {
		}
	}
	data := func(first, next moldcast.Seq) { offer(packet(name, moldcast.Range{First: first, Next: next}, false)) }
	end := func(at moldcast.Seq) { offer(moldcast.AppendHeader(nil, name, at, moldcast.EndCount)) }
	want := func(what string, done, final bool) {
		t.Helper()
		if a.Done() != done || a.Final(now) != final {
			t.Errorf("%s: done %v, final %v; want %v, %v", what, a.Done(), a.Final(now), done, final)
		}
	}

	begin()
	want("nothing heard", false, false)
	data(1, 5)
	data(5, 9)
	end(9)
	want("one end", true, false)
	data(9, 13)
	want("the sender goes on", false, false)
	end(13)
	want("one end again", true, false)
	end(13)
	want("heard twice", true, true)

	begin()
	data(1, 5)
	data(5, 9)
	end(9)
	now += moldcast.Instant(3*beat) - 1
	want("one end, and almost three heartbeats of silence", true, false)
	now++
	want("one end, and three heartbeats of silence", true, true)
}
