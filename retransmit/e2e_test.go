package retransmit

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// serve runs a Server on a real socket of the loopback until the returned
// function, which gives its counters, or the test ends.
func serve(t *testing.T, cfg Config) (*Server, func() Stats) {
	t.Helper()
	conn, err := Listen(loopback, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Conn = conn
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	over := serving(s.Run)
	stop := sync.OnceValue(func() Stats {
		if err := over(); err != nil {
			t.Error(err)
		}
		checkConserved(t, s.Stats())
		return s.Stats()
	})
	t.Cleanup(func() {
		if st := stop(); t.Failed() {
			t.Log(counted(st), conn.Counters())
		}
	})
	return s, stop
}

// requester is a client with a socket of its own.
type requester struct {
	t *testing.T
	*net.UDPConn
	buf []byte
}

func newRequester(t *testing.T, to netip.AddrPort) *requester {
	t.Helper()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &requester{t: t, UDPConn: c, buf: make([]byte, 1<<16)}
}

func (r *requester) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

func (r *requester) receive() []byte {
	r.t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	n, err := r.Read(r.buf)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.buf[:n]
}

// mixed is a spread of sizes: mostly small, some empty, some larger than any MTU.
func mixed(i int) int {
	switch {
	case i%5000 == 4999:
		return 20_000
	case i%97 == 0:
		return 0
	}
	return 20 + i*7%60
}

// 300 random requests over 50 000 messages are answered exactly right, and
// between them whatever has no answer has none: the next datagram received is
// always the answer to the next good request.
func TestRandomRequestsOnLoopback(t *testing.T) {
	const n = 50_000
	for _, first := range []moldcast.Seq{1, 484311999, ^moldcast.Seq(0) - n} {
		v := newMemView(first, n, mixed)
		v.missing = func(q moldcast.Seq) bool { return (q-first)%1000 == 777 }
		v.cold = func(q moldcast.Seq) bool { return q-first < n/2 }
		s, stop := serve(t, Config{Source: memSource{s1: v}})
		c := newRequester(t, s.Addr())
		rnd := rand.New(rand.NewPCG(1, uint64(first)))
		bad := [][]byte{
			{},
			make([]byte, 19),
			make([]byte, 1400),
			ask(client1, s1, first, 0).Data,
			ask(client1, s1, 0, 10).Data,
			ask(client1, s1, v.head, 10).Data,
			ask(client1, s1, v.head+1, 1).Data,
			ask(client1, s1, first+777, 10).Data,
			ask(client1, session("S2"), first, 10).Data,
			moldcast.AppendHeader(nil, s1, first, moldcast.EndCount)[:18],
		}
		wantBad := uint64(0)
		for _, i := range rnd.Perm(300) {
			if rnd.IntN(3) == 0 {
				c.send(bad[rnd.IntN(len(bad))])
				wantBad++
			}
			// Over all of it and never the same: its answer might linger.
			at := i*(n/300) + rnd.IntN(n/300)
			if at%1000 == 777 {
				at++
			}
			r := moldcast.Request{Session: s1, First: first + moldcast.Seq(at), Count: uint16(1 + rnd.IntN(65535))}
			if rnd.IntN(2) == 0 {
				r.Count = uint16(1 + rnd.IntN(20))
			}

			c.send(moldcast.AppendRequest(nil, r))
			got := c.receive()
			// What is right is worked out here by itself: count, hole, head, size.
			k, size := 0, moldcast.HeaderSize
			for k < int(r.Count) && at+k < n && (at+k)%1000 != 777 {
				if size += moldcast.LengthSize + mixed(at+k); size > 1472 && k > 0 {
					break
				}
				k++
				if size > 1472 {
					break
				}
			}
			checkAnswer(t, got, v, s1, moldcast.Range{First: r.First, Next: r.First + moldcast.Seq(k)})
		}
		st := stop()
		if st.Answered != 300 || st.Requests != 300+wantBad || st.Cold == 0 || st.Cold == 300 {
			t.Fatal(counted(st))
		}
	}
}

// A receiver recovers 100 000 messages as it really does: up to 64 requests
// in flight, the rest of each asked for at once when an answer comes. Defaults
// refuse none of it, and all arrives to the byte.
func TestLongGapOnLoopback(t *testing.T) {
	const n = 100_000
	v := newMemView(1, n, func(i int) int { return 20 + i%40 })
	s, stop := serve(t, Config{Source: memSource{s1: v}})
	c := newRequester(t, s.Addr())
	next := moldcast.Seq(1)
	inFlight := 0
	got, datagrams := 0, uint64(0)
	askNext := func() {
		count := min(1000, v.head-next)
		c.send(moldcast.AppendRequest(nil, moldcast.Request{Session: s1, First: next, Count: uint16(count)}))
		next += count
		inFlight++
	}
	wanted := map[moldcast.Seq]moldcast.Seq{} // first to next of what is in flight
	for got < n {
		for inFlight < 64 && next < v.head {
			first := next
			askNext()
			wanted[first] = next
		}
		b := c.receive()
		datagrams++
		p, err := moldcast.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		end, ok := wanted[p.First]
		if !ok || p.Range().Next > end {
			t.Fatalf("answer %v was not asked for", p.Range())
		}
		checkAnswer(t, b, v, s1, p.Range())
		got += p.Msgs.Len()
		delete(wanted, p.First)
		if rest := p.Range().Next; rest < end {
			wanted[rest] = end
			c.send(moldcast.AppendRequest(nil, moldcast.Request{Session: s1, First: rest, Count: uint16(end - rest)}))
		} else {
			inFlight--
		}
	}
	if st := stop(); st.Answered != datagrams || st.Requests != datagrams {
		t.Fatal(counted(st))
	}
}
