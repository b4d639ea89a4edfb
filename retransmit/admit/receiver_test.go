package admit

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// A receiver that follows the schedule of moldcast/gap, and loses packets and
// answers at random, is never refused: what it asks for again it asks for after
// the linger is over.
func TestReceiverIsNotSilenced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := New(Config{Client: Rate{Requests: -1, Bytes: -1}, Total: Rate{Requests: -1, Bytes: -1}})
		if err != nil {
			t.Fatal(err)
		}
		from := netip.MustParseAddrPort("10.0.0.1:5000")
		m := gap.New(gap.Config{Servers: 1, Lines: 1, RequestsPerSecond: 20_000})
		fits := uint64(rapid.IntRange(1, 40).Draw(t, "fits"))
		trip := gap.Instant(rapid.IntRange(10, 3000).Draw(t, "µs")) * 1000
		lossy := rapid.IntRange(0, 50).Draw(t, "loss")
		lost := func(p int) bool { return rapid.IntRange(0, 99).Draw(t, "lost") < p }
		type answer struct {
			at gap.Instant
			r  moldcast.Range
		}
		var answers []answer
		accept := func(now gap.Instant, line int, r moldcast.Range) {
			for !r.Empty() {
				sub, v := m.Classify(r)
				if v != gap.Duplicate {
					m.Accept(now, line, sub)
				}
				r.First = sub.Next
			}
		}
		head := moldcast.Seq(1)
		for now := gap.Instant(1); now < gap.Instant(60*time.Millisecond); now += 100_000 {
			if head < 400 {
				r := moldcast.Range{First: head, Next: head + 4}
				head = r.Next
				if !lost(20) {
					m.Passed(now, 0, r)
					accept(now, 0, r)
				}
			}
			for len(answers) > 0 && answers[0].at <= now {
				r := answers[0].r
				answers = answers[1:]
				m.Answered(now, 0, r)
				accept(now, -1, r)
			}
			for {
				q, ok := m.Poll(now)
				if !ok {
					break
				}
				req := moldcast.Request{Session: session("S"), First: q.Range.First, Count: uint16(q.Range.Len())}
				rng, v := a.Admit(now+trip/2, from, req)
				if v != Admitted {
					t.Fatalf("%v at %v: %v", q, time.Duration(now), v)
				}
				rng.Next = min(rng.Next, rng.First+moldcast.Seq(fits), head)
				a.Answered(now+trip/2, from, req, rng.Next, 1000)
				if !lost(lossy) {
					answers = append(answers, answer{now + trip, rng})
				}
			}
		}
	})
}

// One who asks for anything at random, as fast as answers come, is refused only
// what it was just sent, and gets that too when it asks again after the linger.
func TestRandomRequestsAreAnswered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := New(Config{Client: Rate{Requests: -1, Bytes: -1}, Total: Rate{Requests: -1, Bytes: -1}})
		if err != nil {
			t.Fatal(err)
		}
		from := netip.MustParseAddrPort("10.0.0.1:5000")
		linger := moldcast.Instant(a.Config().Linger)
		sent := map[moldcast.Seq]moldcast.Instant{}
		now := moldcast.Instant(0)
		for range 200 {
			now += moldcast.Instant(rapid.IntRange(0, 300_000).Draw(t, "dt"))
			r := moldcast.Request{Session: session("S"), First: moldcast.Seq(rapid.IntRange(1, 100).Draw(t, "first")), Count: uint16(rapid.IntRange(1, 30).Draw(t, "count"))}
			rng, v := a.Admit(now, from, r)
			if v == Repeated {
				for q := rng.First; q < rng.Next; q++ {
					if at, ok := sent[q]; !ok || now-at >= linger {
						t.Fatalf("%v refused, %d was not sent", r.Range(), q)
					}
				}
				now += linger
				if rng, v = a.Admit(now, from, r); v != Admitted {
					t.Fatalf("%v after the linger: %v", r.Range(), v)
				}
			}
			rng.Next = min(rng.Next, rng.First+10)
			a.Answered(now, from, r, rng.Next, 500)
			for q := rng.First; q < rng.Next; q++ {
				sent[q] = now
			}
		}
	})
}

// Wait is exactly how long a refusal lasts.
func TestWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := New(Config{
			Client: Rate{Requests: rapid.SampledFrom([]float64{1, 10, 5000}).Draw(t, "client")},
			Total:  Rate{Requests: rapid.SampledFrom([]float64{2, 5000}).Draw(t, "total")}, Linger: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		now := moldcast.Instant(0)
		for i := range 300 {
			now += moldcast.Instant(rapid.IntRange(0, 1000).Draw(t, "dt"))
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 4).Draw(t, "host"))}), 5000)
			r := moldcast.Request{First: moldcast.Seq(i + 1), Count: 1}
			wait := a.Wait(now, from.Addr())
			switch _, v := a.Admit(now, from, r); {
			case (v == Admitted) != (wait == 0):
				t.Fatalf("%v, wait %v", v, wait)
			case v == Admitted:
				a.Answered(now, from, r, r.First+1, rapid.IntRange(20, 65000).Draw(t, "size"))
			case wait > time.Microsecond:
				if w := a.Wait(now+moldcast.Instant(wait)-1000, from.Addr()); w == 0 {
					t.Fatalf("waits %v, %v is enough", wait, wait-1000)
				}
				if w := a.Wait(now+moldcast.Instant(wait)+1, from.Addr()); w > 1 {
					t.Fatalf("waits %v, %v after that", wait, w)
				}
			}
		}
	})
}
