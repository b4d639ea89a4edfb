package retransmit

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

func TestDenials(t *testing.T) {
	const second = moldcast.Instant(time.Second)
	addr := func(i int) netip.Addr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 0x0a000000+uint32(i))
		return netip.AddrFrom4(b)
	}
	// However fast it tries, an address gets ten and one a second.
	var d denials
	looked := 0
	for now := moldcast.Instant(0); now < 60*second; now += second / 100 {
		if !d.spent(now, addr(1)) {
			d.wrong(now, addr(1))
			looked++
		}
		if d.spent(now, addr(2)) {
			t.Fatal("another address pays for it")
		}
	}
	if looked < 69 || looked > 71 {
		t.Errorf("%d tries in a minute, want 70", looked)
	}
	if d.spent(62*second, addr(1)) {
		t.Error("it pays for ever")
	}
	// However many addresses try, the table is bounded, and what has no place in
	// it is bounded together.
	looked = 0
	for i := range 3 * deniedAddrs {
		if now := 1000*second + moldcast.Instant(i)*second/10000; !d.spent(now, addr(100+i)) {
			d.wrong(now, addr(100+i))
			looked++
		}
	}
	if len(d.until) > deniedAddrs || looked > deniedAddrs+11 {
		t.Errorf("%d addresses, %d tries", len(d.until), looked)
	}
	if d.wrong(2000*second, addr(1)); len(d.until) != 1 {
		t.Errorf("%d addresses are kept that have waited long enough", len(d.until))
	}
}

// Over whatever many connections: once so many were wrong, even the right
// password is not looked at, and is again when time has passed.
func TestStreamManyWrong(t *testing.T) {
	looked := 0
	may := func(_, password string) bool { looked++; return password == "secret" }
	v := &tape{first: 1, head: 10, end: 10}
	world(t, v, StreamConfig{Authorise: may, Readers: 100}, func(t *testing.T, s *StreamServer, p *pipes) {
		login := func(password string) *client {
			return connect(p, soup.Login{User: "ann", Password: password, Session: day1, Seq: 1}).run(nil)
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { login("guess") })
			synctest.Wait()
		}
		if looked != 10 {
			t.Errorf("%d passwords were looked at", looked)
		}
		if c := login("secret"); !errors.As(c.err, new(*soup.RejectedError)) {
			t.Errorf("looked at all the same: %v", c.err)
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		login("secret").check(t, 1, 10)
		synctest.Wait()
		if st := s.Stats(); st.Ends[StreamUnauthorised] != 51 || st.Ends[StreamComplete] != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestDeniedAs(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1:5": "10.0.0.1", "[::ffff:10.0.0.1]:5": "10.0.0.1", "[2001:db8::1:2:3:4]:5": "2001:db8::", "[fe80::1%lo]:5": "fe80::",
	} {
		if got := deniedAs(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(in))); got.String() != want {
			t.Errorf("%s counts as %v, want %s", in, got, want)
		}
	}
}
