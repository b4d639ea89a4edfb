package capture

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// lag measures for how long a session has held something that is not durable:
// it remembers, now and then, up to where the session was held. Where more is
// not durable than it remembers, it remembers less often. Owner: the engine.
type lag struct {
	at   []lagPoint
	step moldcast.Instant
}

type lagPoint struct {
	now  moldcast.Instant
	head moldcast.Seq
}

const (
	lagPoints = 64
	lagStep   = moldcast.Instant(10 * time.Millisecond)
)

// note remembers that everything below durable is, and that the session was
// held up to head at now.
func (l *lag) note(now moldcast.Instant, durable, head moldcast.Seq) {
	n := 0
	for n < len(l.at) && l.at[n].head <= durable {
		n++
	}
	l.at = append(l.at[:0], l.at[n:]...)
	if len(l.at) == 0 {
		l.step = lagStep
	} else if last := l.at[len(l.at)-1]; now-last.now < l.step || head == last.head {
		return
	}
	if head <= durable {
		return
	}
	if len(l.at) == lagPoints {
		for i := range lagPoints / 2 {
			l.at[i] = l.at[2*i]
		}
		l.at = l.at[:lagPoints/2]
		l.step *= 2
	}
	l.at = append(l.at, lagPoint{now, head})
}

// behind is since when something is held that is not durable, to a step.
func (l *lag) behind(now moldcast.Instant, durable moldcast.Seq) time.Duration {
	for _, p := range l.at {
		if p.head > durable {
			return time.Duration(now - p.now)
		}
	}
	return 0
}

// rate measures what comes a second, over the last few looks.
type rate struct {
	at [rateLooks]ratePoint
	n  int
}

type ratePoint struct {
	now                      moldcast.Instant
	packets, messages, bytes uint64
}

const rateLooks = 9 // of lookEvery: four seconds

func (r *rate) note(p ratePoint) {
	r.at[r.n%rateLooks] = p
	r.n++
}

// Rate is what came a second, over the last four.
type Rate struct {
	Packets  float64 `json:"packets"`
	Messages float64 `json:"messages"`
	Bytes    float64 `json:"bytes"`
}

func (r *rate) value(p ratePoint) Rate {
	if r.n == 0 {
		return Rate{}
	}
	first := r.at[max(0, r.n-rateLooks)%rateLooks]
	s := time.Duration(p.now - first.now).Seconds()
	if s <= 0 {
		return Rate{}
	}
	return Rate{float64(p.packets-first.packets) / s, float64(p.messages-first.messages) / s, float64(p.bytes-first.bytes) / s}
}
