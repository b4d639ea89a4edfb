package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// Asker asks a request server for messages of one session.
type Asker struct {
	Conn    *mcast.Conn
	To      netip.AddrPort
	Session moldcast.Session
	Out, In []mcast.Datagram // buffers of a batch
}

// NewAsker opens a socket on 127.0.0.1.
func NewAsker(to netip.AddrPort, session moldcast.Session) (*Asker, error) {
	conn, err := mcast.Listen(mcast.ListenConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), MaxDatagram: 2048})
	if err != nil {
		return nil, err
	}
	a := &Asker{Conn: conn, To: to, Session: session, In: make([]mcast.Datagram, mcast.BatchSize)}
	for i := range a.In {
		a.In[i].Data = make([]byte, 0, 2048)
	}
	a.Out = make([]mcast.Datagram, mcast.BatchSize)
	return a, nil
}

// Asked is what became of it.
type Asked struct {
	Requests, Messages int
	Took               time.Duration
}

// PerSecond is n over the time that it took.
func (a Asked) PerSecond(n int) float64 { return float64(n) / a.Took.Seconds() }

// Ask asks for what next says, until it says false or d is over, with window
// requests in flight, a quarter of them sent at a time: one by one it is system
// calls that are measured. Nothing is lost on lo: where something is not
// answered, that is an error after a minute.
func (a *Asker) Ask(ctx context.Context, window int, d time.Duration, next func() (moldcast.Seq, uint16, bool)) (r Asked, err error) {
	began := time.Now()
	stuck := time.AfterFunc(d+time.Minute, func() { a.Conn.Close() })
	defer stuck.Stop()
	defer context.AfterFunc(ctx, func() { a.Conn.Close() })()
	free, over := window, false
	for !over || free < window {
		k := 0
		for enough := free >= max(1, window/4); enough && !over && free > 0 && k < len(a.Out); {
			first, count, ok := next()
			if over = !ok; over {
				break
			}
			a.Out[k].Data = moldcast.AppendRequest(a.Out[k].Data[:0], moldcast.Request{Session: a.Session, First: first, Count: count})
			a.Out[k].Dst = a.To
			k, free = k+1, free-1
		}
		if k > 0 {
			if _, err := a.Conn.WriteBatch(a.Out[:k]); err != nil {
				return r, err
			}
		}
		if free == window {
			break
		}
		n, err := a.Conn.ReadBatch(a.In) // waits: who spins takes from the server what they share of a core
		if err != nil {
			return r, err
		}
		now := time.Now()
		for i := range n {
			p, err := moldcast.Parse(a.In[i].Data)
			if err != nil {
				return r, err
			}
			r.Messages += p.Msgs.Len()
		}
		r.Requests += n
		free += n
		over = over || d > 0 && now.Sub(began) >= d
		if d > 0 && over {
			break
		}
	}
	if r.Took = time.Since(began); r.Requests == 0 {
		return r, errors.New("nothing was answered")
	}
	return r, nil
}

// AskHot asks for as much as fits, anywhere in [1, count].
func AskHot(ctx context.Context, to netip.AddrPort, session moldcast.Session, count, window int, d time.Duration) (Asked, error) {
	a, err := NewAsker(to, session)
	if err != nil {
		return Asked{}, err
	}
	defer a.Conn.Close()
	for q := moldcast.Seq(1); q <= moldcast.Seq(count); { // all is decoded then
		from := q
		if _, err := a.Ask(ctx, 1, 0, func() (moldcast.Seq, uint16, bool) {
			ok := q == from
			q += 2000
			return from, 34, ok
		}); err != nil {
			return Asked{}, err
		}
		q = from + 2000
	}
	// Each once before any again: the server does not answer the same twice
	// within a millisecond.
	firsts := rand.New(rand.NewPCG(1, 2)).Perm(count - 100)
	i := -1
	return a.Ask(ctx, window, d, func() (moldcast.Seq, uint16, bool) {
		i = (i + 1) % len(firsts)
		return moldcast.Seq(1 + firsts[i]), 100, true
	})
}
