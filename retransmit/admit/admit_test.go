package admit

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// event is one step of a generated history.
type event struct {
	at       moldcast.Instant
	from     netip.AddrPort
	r        moldcast.Request
	answered bool   // if admitted
	sent     uint64 // messages, at most
	size     int
}

// next is one past what was sent.
func (e event) next() moldcast.Seq {
	r := e.r.Range()
	return r.First + moldcast.Seq(min(r.Len(), e.sent))
}

func genEvents(t *rapid.T, clients int) []event {
	n := rapid.IntRange(1, 200).Draw(t, "n")
	base := rapid.SampledFrom([]moldcast.Seq{1, 484311999, ^moldcast.Seq(0) - 200}).Draw(t, "base")
	now := moldcast.Instant(rapid.Int64Range(-1e12, 1e12).Draw(t, "origin"))
	ev := make([]event, n)
	for i := range ev {
		now += moldcast.Instant(rapid.SampledFrom([]int64{0, 1, 1000, 300_000, 999_999, 1_000_000, 2_000_000, 50_000_000, 2_000_000_000}).Draw(t, "dt"))
		host := rapid.IntRange(1, clients).Draw(t, "host")
		r := moldcast.Request{
			Session: session(rapid.SampledFrom([]string{"S", "T"}).Draw(t, "session")),
			First:   base + moldcast.Seq(rapid.IntRange(0, 3).Draw(t, "first")),
			Count:   rapid.SampledFrom([]uint16{1, 10, 65535}).Draw(t, "count"),
		}
		ev[i] = event{
			at:       now,
			from:     netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(host >> 8), byte(host)}), uint16(5000+rapid.IntRange(0, 1).Draw(t, "port"))),
			r:        r,
			answered: rapid.Bool().Draw(t, "answered"),
			sent:     uint64(rapid.IntRange(1, 12).Draw(t, "sent")),
			size:     rapid.IntRange(20, 65507).Draw(t, "size"),
		}
	}
	return ev
}

// A request is swallowed exactly when the same one was answered, or all that it
// asks for was sent, to the same place less than Linger ago, as one of the newest
// 64 answers to the client.
func TestLingerProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Client: Rate{Requests: -1, Bytes: -1}, Total: Rate{Requests: -1, Bytes: -1}, Linger: time.Millisecond}
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var answers []event
		for _, e := range genEvents(t, 3) {
			e.r.Count = min(e.r.Count, moldcast.MaxCount)
			want := false
			perClient := 0
			for i := len(answers) - 1; i >= 0; i-- {
				p := answers[i]
				if p.from.Addr() != e.from.Addr() {
					continue
				}
				if perClient++; perClient > 64 {
					break
				}
				if e.at-p.at < 1e6 && p.from == e.from &&
					(p.r == e.r || p.r.Session == e.r.Session && p.r.First <= e.r.First && e.r.Range().Next <= p.next()) {
					want = true
				}
			}
			rng, v := a.Admit(e.at, e.from, e.r)
			if got := v == Repeated; got != want {
				t.Fatalf("%v %v %v: %v, want repeated=%v", e.at, e.from, e.r, v, want)
			}
			if v == Admitted && rng != e.r.Range() {
				t.Fatalf("admitted %v of %v", rng, e.r)
			}
			if v == Admitted && e.answered {
				a.Answered(e.at, e.from, e.r, e.next(), e.size)
				answers = append(answers, e)
			}
		}
	})
}

// In every window no client and no total is admitted more than its burst and
// what its rate adds; bytes exceed it by one datagram at most. That holds for
// any number of clients and any size of the table, and all is counted.
func TestBudgetProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rates := []float64{0.5, 1, 10, 1000, 100_000}
		cfg := Config{
			Client:  Rate{Requests: rapid.SampledFrom(rates).Draw(t, "client"), Bytes: rapid.SampledFrom([]float64{0, 10_000, 1e6}).Draw(t, "client bytes")},
			Total:   Rate{Requests: rapid.SampledFrom(rates).Draw(t, "total"), Bytes: rapid.SampledFrom([]float64{0, 10_000, 1e6}).Draw(t, "total bytes")},
			Burst:   rapid.SampledFrom([]time.Duration{0, 1, time.Second}).Draw(t, "burst"),
			Clients: rapid.IntRange(1, 8).Draw(t, "clients"),
			Linger:  -1,
		}
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ev := genEvents(t, 20)
		ok := make([]bool, len(ev))
		for i, e := range ev {
			_, v := a.Admit(e.at, e.from, e.r)
			ok[i] = v == Admitted
			if ok[i] && e.answered {
				a.Answered(e.at, e.from, e.r, e.next(), e.size)
			}
			if n := a.Stats().Clients; n > cfg.Clients || len(a.byKey) != n {
				t.Fatalf("%d clients, %d keys, bound %d", n, len(a.byKey), cfg.Clients)
			}
		}
		var sum uint64
		for _, n := range a.Stats().Verdicts {
			sum += n
		}
		if sum != uint64(len(ev)) {
			t.Fatalf("%d counted of %d", sum, len(ev))
		}
		check := func(what string, b budget, of func(event) bool) {
			for i := range ev {
				var requests, bytes, biggest float64
				for j := i; j < len(ev); j++ {
					if !ok[j] || !of(ev[j]) {
						continue
					}
					requests++
					if ev[j].answered {
						bytes += float64(ev[j].size)
						biggest = max(biggest, float64(ev[j].size))
					}
					secs := float64(ev[j].at-ev[i].at) / 1e9
					if lim := b.requests.cap + secs*b.requests.rate; requests > lim+1e-3 {
						t.Fatalf("%s: %v requests in %vs, limit %v", what, requests, secs, lim)
					}
					if lim := b.bytes.cap + secs*b.bytes.rate + biggest; bytes > lim+1 {
						t.Fatalf("%s: %v bytes in %vs, limit %v", what, bytes, secs, lim)
					}
				}
			}
		}
		check("total", a.total, func(event) bool { return true })
		seen := map[netip.Addr]bool{}
		for _, e := range ev {
			if h := e.from.Addr(); !seen[h] {
				seen[h] = true
				// A client may spend its own budget and, before it has a
				// place, the shared one.
				b := a.client
				b.requests.cap *= 2
				b.bytes.cap *= 2
				b.requests.rate *= 2
				b.bytes.rate *= 2
				check(h.String(), b, func(o event) bool { return o.from.Addr() == h })
			}
		}
	})
}

// A flood of forged sources does not take anything from a client that was
// there before, as long as the total lasts.
func TestFloodDoesNotStarve(t *testing.T) {
	a, err := New(Config{Clients: 16, Total: Rate{Requests: -1, Bytes: -1}})
	if err != nil {
		t.Fatal(err)
	}
	honest := netip.MustParseAddrPort("192.168.0.1:5000")
	now := moldcast.Instant(0)
	seq := moldcast.Seq(1)
	for i := range 200_000 {
		now += 1000
		if i%100 == 0 { // 10 000 a second
			r := moldcast.Request{Session: session("S"), First: seq, Count: 34}
			if _, v := a.Admit(now, honest, r); v != Admitted {
				t.Fatalf("request %d: %v", i, v)
			}
			a.Answered(now, honest, r, r.Range().Next, 1472)
			seq += 34
		}
		forged := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 5000)
		a.Admit(now, forged, moldcast.Request{Session: session("S"), First: 1, Count: 1})
	}
	if s := a.Stats(); s.Clients != 16 || s.Verdicts[ClientRate] == 0 || s.Shared == 0 {
		t.Fatalf("no flood: %+v", s)
	}
}

// A receiver that recovers 100 000 messages as moldcast/gap asks (64 requests
// in flight, the rest of a request asked at once when its answer comes) is
// never refused by the defaults: at any round trip where messages are of 40
// bytes (34 a packet), and where they are larger at those of the default rate.
func TestHonestRecoveryIsNeverRefused(t *testing.T) {
	for _, rtt := range []time.Duration{time.Microsecond, 100 * time.Microsecond, 3300 * time.Microsecond, 100 * time.Millisecond} {
		for _, perPacket := range []moldcast.Seq{1, 7, 34, 100} {
			if rtt < 3*time.Millisecond && perPacket < 34 {
				continue
			}
			t.Run(fmt.Sprintf("rtt=%v/messages=%d", rtt, perPacket), func(t *testing.T) {
				a, err := New(Config{})
				if err != nil {
					t.Fatal(err)
				}
				from := netip.MustParseAddrPort("10.0.0.1:40000")
				const last = 100_000
				next := moldcast.Seq(1)
				now := moldcast.Instant(0)
				var inFlight []moldcast.Range
				for next <= last || len(inFlight) > 0 {
					for len(inFlight) < 64 && next <= last {
						end := min(next+1000, last+1)
						inFlight = append(inFlight, moldcast.Range{First: next, Next: end})
						next = end
					}
					var rest []moldcast.Range
					for _, r := range inFlight {
						q := moldcast.Request{Session: session("S"), First: r.First, Count: uint16(r.Len())}
						if _, v := a.Admit(now, from, q); v != Admitted {
							t.Fatalf("at %v: %v: %v", time.Duration(now), r, v)
						}
						sent := moldcast.Range{First: r.First, Next: min(r.Next, r.First+perPacket)}
						a.Answered(now, from, q, sent.Next, 1472)
						if r.First = sent.Next; !r.Empty() {
							rest = append(rest, r)
						}
					}
					inFlight = rest
					now += moldcast.Instant(rtt)
				}
			})
		}
	}
}

func TestAdmitDoesNotAllocate(t *testing.T) {
	a, err := New(Config{Clients: 4, Client: Rate{Requests: -1, Bytes: -1}, Total: Rate{Requests: -1, Bytes: -1}})
	if err != nil {
		t.Fatal(err)
	}
	now := moldcast.Instant(0)
	r := moldcast.Request{Session: session("S"), First: 1, Count: 34}
	i := 0
	step := func() {
		now += 10_000
		r.First += 34
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 8)}), 5000)
		i++
		if _, v := a.Admit(now, from, r); v == Admitted {
			a.Answered(now, from, r, r.Range().Next, 1472)
		}
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestConfig(t *testing.T) {
	var c Config
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := Config{
		Allow: DefaultAllow(), Client: Rate{20_000, 30e6}, Loopback: Rate{200_000, 300e6}, Total: Rate{200_000, 300e6},
		Burst: 250 * time.Millisecond, MaxCount: 65534, Linger: time.Millisecond, Clients: 4096,
	}
	if fmt.Sprint(c) != fmt.Sprint(want) {
		t.Errorf("defaults %+v, want %+v", c, want)
	}
	for _, bad := range []func(*Config){
		func(c *Config) { c.Allow = []netip.Prefix{{}} },
		func(c *Config) { c.Total.Requests = math.NaN() },
		func(c *Config) { c.Client.Bytes = math.NaN() },
		func(c *Config) { c.Clients = 1<<20 + 1 },
		func(c *Config) { c.Burst = -1 },
	} {
		c := Config{}
		bad(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	for _, clients := range []int{1, 100} {
		for _, gap := range []moldcast.Instant{5_000, 100_000} {
			b.Run(fmt.Sprintf("clients=%d/every=%v", clients, time.Duration(gap)), func(b *testing.B) {
				a, err := New(Config{Client: Rate{Requests: -1, Bytes: -1}})
				if err != nil {
					b.Fatal(err)
				}
				now := moldcast.Instant(0)
				r := moldcast.Request{Session: session("S"), First: 1, Count: 34}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					now += gap
					r.First += 34
					from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i % clients)}), 5000)
					if _, v := a.Admit(now, from, r); v == Admitted {
						a.Answered(now, from, r, r.Range().Next, 1472)
					}
				}
			})
		}
	}
}
