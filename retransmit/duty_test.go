package retransmit

import (
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

type testWindow map[moldcast.Session]uint64

func (w testWindow) Window(s moldcast.Session) uint64 { return w[s] }

// What the sender serves is left to it once; a request that comes again was not
// answered by it.
func TestDuty(t *testing.T) {
	v := newMemView(1, 1000, func(int) int { return 40 })
	s2 := session("S2")
	clock := &testClock{}
	s, err := New(Config{Conn: newTestConn(), Source: memSource{s1: v, s2: v}, Clock: clock, Duty: BeyondWindow, Windows: testWindow{s1: 101}})
	if err != nil {
		t.Fatal(err)
	}
	step := func(want string, in ...mcast.Datagram) {
		t.Helper()
		s.batch(in)
		if got := counted(s.Stats()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		checkConserved(t, s.Stats())
	}
	step("requests=1 within_window=1", ask(host(1), s1, 900, 1))
	step("requests=2 answered=1 messages=1 bytes=62 within_window=1", ask(host(1), s1, 899, 1))
	step("requests=3 answered=2 messages=2 bytes=124 within_window=1", ask(host(1), s1, 900, 1))                // again
	step("requests=4 answered=2 messages=2 bytes=124 within_window=2", ask(host(2), s1, 900, 1))                // another's first
	step("requests=5 answered=3 messages=3 bytes=186 within_window=2", ask(host(2), s2, 900, 1))                // nothing is known
	step("requests=6 answered=3 messages=3 bytes=186 beyond_head=1 within_window=2", ask(host(2), s1, 5000, 1)) // there is nothing to leave
	clock.now.Add(int64(dutyTime))
	step("requests=7 answered=3 messages=3 bytes=186 beyond_head=1 within_window=3", ask(host(2), s1, 900, 1)) // long ago
	if _, err := New(Config{Conn: newTestConn(), Source: memSource{}, Duty: BeyondWindow}); err == nil {
		t.Error("a duty that needs to know windows, without")
	}
}

// Whatever is asked, by however many: no request is left to the sender twice
// within the time.
func TestDutyNeverLeavesTwice(t *testing.T) {
	var d duty
	left := map[leftRequest]moldcast.Instant{}
	n := 0
	for i := range 200_000 {
		now := moldcast.Instant(i) * 20_000
		from, r := host(i*7%61), moldcast.Request{Session: s1, First: moldcast.Seq(1000 + i*i%997), Count: 1}
		k := leftRequest{from: from, session: s1, first: r.First}
		if !d.leave(now, from, r, 2500, 1500) {
			delete(left, k)
			continue
		}
		n++
		if at, ok := left[k]; ok && now-at < dutyTime {
			t.Fatalf("%v left twice", k)
		}
		left[k] = now
	}
	if n < 1000 {
		t.Fatal(n)
	}
}
