package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// asker asks a request server.
type asker struct {
	conn    *mcast.Conn
	to      netip.AddrPort
	session moldcast.Session
	out, in []mcast.Datagram
}

func newAsker(to netip.AddrPort, session moldcast.Session) (*asker, error) {
	conn, err := mcast.Listen(mcast.ListenConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), MaxDatagram: 2048})
	if err != nil {
		return nil, err
	}
	a := &asker{conn: conn, to: to, session: session, in: make([]mcast.Datagram, mcast.BatchSize)}
	for i := range a.in {
		a.in[i].Data = make([]byte, 0, 2048)
	}
	a.out = make([]mcast.Datagram, mcast.BatchSize)
	return a, nil
}

// asked is what became of it.
type asked struct {
	requests, messages int
	took               time.Duration
}

func (a asked) perSecond(n int) float64 { return float64(n) / a.took.Seconds() }

// ask asks for what next says, until it says false or d is over, with window
// requests in flight, a quarter of them sent at a time: one by one it is system
// calls that are measured. Nothing is lost on lo: where something is not
// answered, that is an error after a minute.
func (a *asker) ask(window int, d time.Duration, next func() (moldcast.Seq, uint16, bool)) (r asked, err error) {
	began := time.Now()
	stuck := time.AfterFunc(d+time.Minute, func() { a.conn.Close() })
	defer stuck.Stop()
	free, over := window, false
	for !over || free < window {
		k := 0
		for enough := free >= max(1, window/4); enough && !over && free > 0 && k < len(a.out); {
			first, count, ok := next()
			if over = !ok; over {
				break
			}
			a.out[k].Data = moldcast.AppendRequest(a.out[k].Data[:0], moldcast.Request{Session: a.session, First: first, Count: count})
			a.out[k].Dst = a.to
			k, free = k+1, free-1
		}
		if k > 0 {
			if _, err := a.conn.WriteBatch(a.out[:k]); err != nil {
				return r, err
			}
		}
		if free == window {
			break
		}
		n, err := a.conn.ReadBatch(a.in) // waits: who spins takes from the server what they share of a core
		if err != nil {
			return r, err
		}
		now := time.Now()
		for i := range n {
			p, err := moldcast.Parse(a.in[i].Data)
			if err != nil {
				return r, err
			}
			r.messages += p.Msgs.Len()
		}
		r.requests += n
		free += n
		over = over || d > 0 && now.Sub(began) >= d
		if d > 0 && over {
			break
		}
	}
	if r.took = time.Since(began); r.requests == 0 {
		return r, errors.New("nothing was answered")
	}
	return r, nil
}

// hot asks for as much as fits, anywhere in [1, count].
func hot(to string, session moldcast.Session, count, window int, d time.Duration) (asked, error) {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return asked{}, fmt.Errorf("%q: %w", to, err)
	}
	a, err := newAsker(addr, session)
	if err != nil {
		return asked{}, err
	}
	defer a.conn.Close()
	for q := moldcast.Seq(1); q <= moldcast.Seq(count); { // all is decoded then
		from := q
		if _, err := a.ask(1, 0, func() (moldcast.Seq, uint16, bool) {
			ok := q == from
			q += 2000
			return from, 34, ok
		}); err != nil {
			return asked{}, err
		}
		q = from + 2000
	}
	// Each once before any again: the server does not answer the same twice
	// within a millisecond.
	firsts := rand.New(rand.NewPCG(1, 2)).Perm(count - 100)
	i := -1
	return a.ask(window, d, func() (moldcast.Seq, uint16, bool) {
		i = (i + 1) % len(firsts)
		return moldcast.Seq(1 + firsts[i]), 100, true
	})
}
