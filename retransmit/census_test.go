package retransmit

import (
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// Who asks much stays, whoever floods the table; it stays bounded.
func TestCensusKeepsWhoAsksMost(t *testing.T) {
	c := newCensus()
	heavy := host(1).Addr()
	for i := range 60_000 {
		if i < 50 || i%1500 == 0 {
			c.asked(moldcast.Instant(i), heavy, moldcast.Request{Session: s1, First: 7, Count: 2})
			c.answered(heavy, 10)
		}
		c.asked(moldcast.Instant(i), host(2+i).Addr(), moldcast.Request{})
		c.refused(host(2+i).Addr(), NotAllowed)
	}
	if len(c.rows) != censusSize+1 || len(c.byAddr) != censusSize {
		t.Fatal(len(c.rows), len(c.byAddr))
	}
	top := top(c.places(nil), 3)
	if x := c.find(heavy); len(top) != 3 || top[0] != (place{heavy, 89}) || x.Answered != 89 || x.Bytes != 890 {
		t.Fatalf("%+v", top)
	}
	for i := c.recent.Oldest(); c.recent.Newer(i) != 0; i = c.recent.Newer(i) {
		if c.rows[i].Last > c.rows[c.recent.Newer(i)].Last {
			t.Fatal("not by age")
		}
	}
}

// Every request is counted with its client as it is counted in all, and it is
// told what it asked for, and when it may again.
func TestClients(t *testing.T) {
	v := newMemView(100, 1000, func(int) int { return 40 })
	s, err := New(Config{Conn: newTestConn(), Source: memSource{s1: v}, Clock: &testClock{},
		Admit: admit.Config{Client: admit.Rate{Requests: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	in := []mcast.Datagram{
		ask(host(1), s1, 500, 3), ask(host(1), s1, 110, 2), ask(host(1), s1, 500, 3), ask(host(1), s1, 5, 1), ask(host(1), s1, 900, 1), ask(host(1), s1, 800, 1),
		ask(host(2), session("S2"), 1, 1), {Src: host(2), Data: []byte{1}},
		ask(mustAddr("8.8.8.8:9"), s1, 100, 1), ask(mustAddr("239.1.1.1:9"), s1, 100, 1),
	}
	s.batch(in)
	top, forgotten := s.Clients(10)
	if len(top) != 3 || forgotten != 0 {
		t.Fatalf("%+v", top)
	}
	one := top[0]
	if one.Addr != host(1).Addr() || one.Requests != 6 || one.Answered != 3 || one.Refused[Repeated] != 1 || one.Refused[BelowFirst] != 1 || one.Refused[ClientRate] != 1 ||
		one.Session != s1 || one.Range != (moldcast.Range{First: 800, Next: 801}) || one.Lowest != 5 {
		t.Errorf("%+v", one)
	}
	if one.Wait != 250e6 {
		t.Errorf("may again after %v", one.Wait)
	}
	two := top[1]
	if two.Refused[UnknownSession] != 1 || two.Refused[Malformed] != 1 || two.Wait != 0 {
		t.Errorf("%+v", two)
	}
	if top[2].Refused[NotAllowed] != 1 || top[2].Allowed || !two.Allowed {
		t.Errorf("%+v", top[2])
	}
	st := s.Stats()
	var sum uint64
	for _, c := range top {
		sum += c.Answered
		for _, n := range c.Refused {
			sum += n
		}
	}
	if sum != st.Requests-1 { // the forged one is no client's
		t.Errorf("%d of %d", sum, st.Requests)
	}
	if got, _ := s.Clients(1); len(got) != 1 {
		t.Error(len(got))
	}
}
