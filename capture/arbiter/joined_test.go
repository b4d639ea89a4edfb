package arbiter

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// joined is an Arbiter of one line, which joins where it hears something, and
// of one request server.
type joined struct {
	a       *Arbiter
	name    moldcast.Session
	now     moldcast.Instant
	offered uint64 // datagrams
}

func newJoined(t *testing.T) *joined {
	t.Helper()
	rec := newRecorder(t)
	rec.sent = func(moldcast.Session, moldcast.Seq, string) bool { return true }
	a, err := New(Config{Lines: 1, Servers: 1, Start: Live}, rec)
	if err != nil {
		t.Fatal(err)
	}
	return &joined{a: a, name: session("S")}
}

// polled is what is asked for in the time that passes.
func (j *joined) polled(d time.Duration) (got []moldcast.Range) {
	for end := j.now + moldcast.Instant(d); j.now < end; j.now += moldcast.Instant(time.Millisecond) {
		for _, q, ok := j.a.Poll(j.now); ok; _, q, ok = j.a.Poll(j.now) {
			got = append(got, q.Range)
		}
	}
	return got
}

func (j *joined) line(first, next moldcast.Seq) {
	j.offered++
	j.a.Offer(j.now, epoch, 0, sender, packet(j.name, moldcast.Range{First: first, Next: next}, false))
}

func (j *joined) answer(first, next moldcast.Seq) {
	j.offered++
	j.a.OfferAnswer(j.now, epoch+moldcast.Stamp(j.now), 0, packet(j.name, moldcast.Range{First: first, Next: next}, false))
}
