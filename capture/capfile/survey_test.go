package capfile

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

func whole(dst netip.AddrPort, payload []byte) Packet {
	return Packet{Stamp: noon, Src: sender, Dst: dst, Payload: payload}
}

func bad(f Fault, p Packet) Packet {
	p.Fault = f
	return p
}

func iex(session uint32, first uint64, msgs ...string) []byte {
	var body []byte
	for _, m := range msgs {
		body = append(body, byte(len(m)), byte(len(m)>>8))
		body = append(body, m...)
	}
	h := make([]byte, iexHeader)
	h[0], h[3] = 1, 0x80
	for i := range 4 {
		h[8+i] = byte(session >> (8 * i))
	}
	h[12], h[13] = byte(len(body)), byte(len(body)>>8)
	h[14], h[15] = byte(len(msgs)), byte(len(msgs)>>8)
	for i := range 8 {
		h[24+i] = byte(first >> (8 * i))
	}
	return append(h, body...)
}

func many(n int, f func(i int) Packet) []Packet {
	out := make([]Packet, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func TestSurveyFlows(t *testing.T) {
	nul := mold("x", 1, "one")
	copy(nul, make([]byte, 10))
	binary := bytes.Clone(nul)
	copy(binary, "\x02\x12USE1")
	little := append(make([]byte, 0, 64), mold("S", 1, "payload")...)
	little[10], little[17] = 1, 0
	little[18], little[19] = 1, 0
	little[20], little[21] = 7, 0
	for _, c := range []struct {
		name  string
		all   []Packet
		proto Protocol
		why   string // part of it
	}{
		{"one packet", []Packet{whole(groupA, mold("S", 1, "one"))}, MoldUDP64, ""},
		{"one heartbeat", []Packet{whole(groupA, mold("S", 1))}, MoldUDP64, ""},
		{"ten NULs", []Packet{whole(groupA, nul)}, MoldUDP64, ""},
		{"empty datagram", []Packet{whole(groupA, nil)}, 0, "shorter"},
		{"binary session", []Packet{whole(groupA, binary)}, 0, "session 02125553453100000000 is binary"},
		{"little-endian", []Packet{whole(groupA, little)}, 0, "little-endian"},
		{"request", []Packet{whole(groupA, moldcast.AppendRequest(nil, moldcast.Request{First: 1, Count: 9}))}, 0, "request"},
		{"trailing", []Packet{whole(groupA, append(mold("S", 1, "one"), 0))}, 0, "after the last message"},
		{"sequence 0", []Packet{whole(groupA, mold("S", 0, "one"))}, 0, "sequence 0"},
		{"overflow", []Packet{whole(groupA, mold("S", ^uint64(0), "one"))}, 0, "2^64-1"},
		{"a tenth otherwise", append(many(9, func(i int) Packet { return whole(groupA, mold("S", uint64(i+1), "m")) }), whole(groupA, []byte("x"))), MoldUDP64, ""},
		{"a fifth otherwise", append(many(4, func(i int) Packet { return whole(groupA, mold("S", uint64(i+1), "m")) }), whole(groupA, []byte("x"))), 0, "1 of 5"},
		{"a session each", many(40, func(i int) Packet { return whole(groupA, mold(fmt.Sprint("S", i), 1, "m")) }), 0, "40 session names"},
		{"only cut", []Packet{bad(Cut, whole(groupA, mold("S", 1, "one")))}, 0, "no datagram is whole"},
		{"offload: all checksums wrong", many(5, func(i int) Packet { return bad(BadUDPSum, whole(groupA, mold("S", uint64(i+1), "m"))) }), MoldUDP64, ""},
		{"offload of IP", many(5, func(i int) Packet { return bad(BadIPSum, whole(groupA, mold("S", uint64(i+1), "m"))) }), MoldUDP64, ""},
		{"iex", []Packet{whole(groupA, iex(0x43cd0000, 1, "one", "two"))}, IEXTP, ""},
		{"iex heartbeat", []Packet{whole(groupA, iex(0x43cd0000, 1))}, IEXTP, ""},
		{"iex short", []Packet{whole(groupA, iex(0x43cd0000, 1, "one")[:42])}, 0, ""},
	} {
		f := surveyOf(c.all, SurveyOptions{}).Flow(groupA)
		if f.Protocol != c.proto || !strings.Contains(f.Why, c.why) || (f.Why == "") != (c.proto != 0) {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, f.Protocol, f.Why, c.proto, c.why)
		}
	}
	// Named, a flow is taken whatever its sessions; what is not framed so is not.
	only := SurveyOptions{Only: []netip.AddrPort{groupA}}
	s := surveyOf([]Packet{whole(groupA, binary), whole(groupB, mold("S", 1, "one"))}, only)
	if s.Flow(groupA).Protocol != MoldUDP64 || s.Flow(groupB) != nil {
		t.Error("binary session with a filter:", s.Flow(groupA), s.Flow(groupB))
	}
	if s := surveyOf([]Packet{whole(groupA, little)}, only); s.Flow(groupA).Protocol != 0 {
		t.Error("little-endian with a filter")
	}
	if s := surveyOf([]Packet{whole(groupA, mold("S", 1, "one"))}, SurveyOptions{Protocol: IEXTP}); s.Flow(groupA).Protocol != 0 {
		t.Error("MoldUDP64 taken where IEX-TP was asked for")
	}
}

// FuzzIEX: of what is taken, the messages are those of the datagram.
func FuzzIEX(f *testing.F) {
	f.Add(iex(0x43cd0000, 7, "one", "", "three"))
	f.Add(iex(1, 9))
	f.Add(iex(1, ^uint64(0)-2, "a", "b"))
	f.Add(iex(1, 1, "abc")[:43])
	f.Add(append(iex(1, 1, "a"), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var scratch []byte
		p, err := IEXTP.Parse(b, &scratch)
		if !bytes.Equal(b, before) {
			t.Fatal("the datagram was changed")
		}
		if err != nil {
			return
		}
		var session uint32
		if _, err := fmt.Sscanf(p.Session.String(), "%08x", &session); err != nil || p.Range().Next < p.First {
			t.Fatal(p, err)
		}
		var msgs []string
		for m := p.Msgs; m.Len() > 0; {
			msgs = append(msgs, string(m.Next()))
		}
		again := iex(session, uint64(p.First), msgs...)
		for _, skipped := range [][2]int{{2, 8}, {16, 24}, {32, 40}} { // what no message needs
			copy(again[skipped[0]:skipped[1]], b[skipped[0]:skipped[1]])
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x was %x", again, b)
		}
	})
}

func TestIEX(t *testing.T) {
	var scratch []byte
	p, err := IEXTP.Parse(iex(0x43cd0000, 7, "one", "", "three"), &scratch)
	if err != nil || p.Session.String() != "43cd0000" || p.First != 7 || p.Msgs.Len() != 3 {
		t.Fatal(p, err)
	}
	for _, want := range []string{"one", "", "three"} {
		if got := string(p.Msgs.Next()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	good := iex(1, ^uint64(0)-2, "a", "b")
	if _, err := IEXTP.Parse(good, &scratch); err != nil {
		t.Error(err)
	}
	for name, b := range map[string][]byte{
		"overflow":      iex(1, ^uint64(0)-1, "a", "b"),
		"sequence 0":    iex(1, 0, "a"),
		"trailing":      append(iex(1, 1, "a"), 0),
		"cut":           iex(1, 1, "abc")[:43],
		"version":       append([]byte{2}, iex(1, 1, "a")[1:]...),
		"header":        iex(1, 1)[:39],
		"count too big": func() []byte { b := iex(1, 1, "a"); b[14] = 2; return b }(),
		"count small":   func() []byte { b := iex(1, 1, "a", "b"); b[14] = 1; return b }(),
		"count 0":       func() []byte { b := iex(1, 1, "a", "b"); b[14] = 0; return b }(),
	} {
		if p, err := IEXTP.Parse(b, &scratch); err == nil {
			t.Errorf("%s: taken as %+v", name, p)
		}
	}
}

func TestSurveyChannels(t *testing.T) {
	stream := func(dst netip.AddrPort, session, flavour string, from, n int) []Packet {
		return many(n, func(i int) Packet {
			return whole(dst, mold(session, uint64(from+i), fmt.Sprint(flavour, from+i)))
		})
	}
	groupC := netip.MustParseAddrPort("233.1.1.1:1000")
	describe := func(all ...[]Packet) string {
		var s []string
		var flat []Packet
		for _, a := range all {
			flat = append(flat, a...)
		}
		for _, g := range surveyOf(flat, SurveyOptions{}).Channels() {
			var l []string
			for _, f := range g {
				l = append(l, f.Dst.String())
			}
			s = append(s, strings.Join(l, "+"))
		}
		return strings.Join(s, " ")
	}
	a, b, c := groupA.String(), groupB.String(), groupC.String()
	for _, x := range []struct{ name, got, want string }{
		{"two lines", describe(stream(groupA, "S", "x", 1, 100), stream(groupB, "S", "x", 50, 100)), a + "+" + b},
		{"lines apart in time", describe(stream(groupA, "S", "x", 1, 10), stream(groupB, "S", "x", 1000, 10)), a + "+" + b},
		{"other sessions", describe(stream(groupA, "S", "x", 1, 10), stream(groupB, "T", "x", 1, 10)), a + " " + b},
		{"one name, two sequence spaces", describe(stream(groupA, "S", "x", 1, 100), stream(groupB, "S", "y", 1, 100)), a + " " + b},
		{"one message differs", describe(stream(groupA, "S", "x", 1, 100), append(stream(groupB, "S", "x", 1, 99), stream(groupB, "S", "y", 100, 1)...)), a + "+" + b},
		{"two channels of two lines", describe(stream(groupA, "S", "x", 1, 20), stream(groupC, "S", "y", 1, 20), stream(groupB, "S", "x", 1, 20)), a + "+" + b + " " + c},
		{"packed otherwise", describe(stream(groupA, "S", "x", 1, 12), []Packet{whole(groupB, mold("S", 1, "x1", "x2", "x3", "x4", "x5")), whole(groupB, mold("S", 6, "x6", "x7", "x8", "x9", "x10", "x11", "x12"))}), a + "+" + b},
		{"beside something else", describe(stream(groupA, "S", "x", 1, 20), []Packet{whole(groupC, []byte("no stream"))}), a},
	} {
		if x.got != x.want {
			t.Errorf("%s: %s, want %s", x.name, x.got, x.want)
		}
	}
}

// Judge tells damage from what is no fault.
func TestSurveyJudge(t *testing.T) {
	good := many(30, func(i int) Packet { return whole(groupA, mold("S", uint64(i+1), "m")) })
	p := whole(groupA, mold("S", 31, "m"))
	near := netip.AddrPortFrom(groupA.Addr(), groupA.Port()+1)
	elsewhere := netip.MustParseAddrPort("10.0.0.1:53")
	noPort := netip.AddrPortFrom(groupA.Addr(), 0)
	moved := func(dst netip.AddrPort) Packet { q := p; q.Dst = dst; return q }
	for _, c := range []struct {
		name string
		p    Packet
		flow bool
		want Fault
	}{
		{"whole", p, true, Whole},
		{"checksum", bad(BadUDPSum, p), true, BadUDPSum},
		{"checksum, port damaged", bad(BadUDPSum, moved(near)), true, BadUDPSum},
		{"ip checksum, address damaged", bad(BadIPSum, moved(netip.AddrPortFrom(groupB.Addr(), groupA.Port()))), true, BadIPSum},
		{"cut", bad(Cut, p), true, Cut},
		{"cut before the port", bad(Cut, moved(noPort)), true, Cut},
		{"cut before the address", bad(Cut, moved(netip.AddrPort{})), true, Cut},
		{"cut, of another", bad(Cut, moved(elsewhere)), false, Cut},
		{"whole, of another", func() Packet { q := moved(elsewhere); q.Payload = []byte("query"); return q }(), false, Whole},
		{"checksum, of another", bad(BadUDPSum, moved(elsewhere)), false, BadUDPSum},
	} {
		s := surveyOf(append(append([]Packet{}, good...), c.p), SurveyOptions{})
		f, fault := s.Judge(&c.p)
		if (f != nil) != c.flow || fault != c.want {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, f != nil, fault, c.flow, c.want)
		}
		if c.want != Whole && len(s.Channels()) != 1 {
			t.Errorf("%s: it became a stream of its own", c.name)
		}
	}
	all := many(30, func(i int) Packet { return bad(BadUDPSum, whole(groupA, mold("S", uint64(i+1), "m"))) })
	if f, fault := surveyOf(all, SurveyOptions{}).Judge(&all[3]); f == nil || fault != Whole {
		t.Error("checksums wrong throughout are a fault")
	}
}

// Any number of flows and sessions takes bounded memory.
func TestSurveyBounds(t *testing.T) {
	s := NewSurvey(SurveyOptions{})
	pkt := mold("S", 1, "m")
	for i := range maxFlows + 100 {
		p := whole(netip.AddrPortFrom(netip.AddrFrom4([4]byte{239, 1, byte(i >> 8), byte(i)}), uint16(1+i>>16)), pkt)
		s.Add(&p)
	}
	for i := range maxSessions + 100 {
		p := whole(netip.MustParseAddrPort("239.1.0.0:1"), mold(fmt.Sprint(i), 1, "m"))
		s.Add(&p)
	}
	s.Finish()
	if len(s.Flows()) != maxFlows || s.Overflow() != 100 {
		t.Errorf("%d flows, %d over", len(s.Flows()), s.Overflow())
	}
	if n := len(s.Flows()[0].tried[0].sessions); n > maxSessions {
		t.Errorf("%d sessions", n)
	}
}
