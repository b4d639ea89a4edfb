package rejoin

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// TestCases are the cases of recovery, each with what is particular to it.
func TestCases(t *testing.T) {
	for _, tc := range []struct {
		name string
		s    setup
		run  func(t *testing.T, w *world)
	}{
		{"late join", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.until(5*time.Second, "live", w.live)
			if w.r.Stats().Restarts != 0 || w.m.Stats().Connections != 2 { // one of them compares
				t.Errorf("restarts %d, connections %d", w.r.Stats().Restarts, w.m.Stats().Connections)
			}
			w.run(2 * time.Second)
			if w.conn != nil {
				t.Error("the connection stays open")
			}
			if w.count(Fetching) != 1 || w.count(Joined) != 1 {
				t.Errorf("notices %s", w.said())
			}
		}},
		{"after the end, on lines that are silent", setup{from: 1, next: 50_000, session: true}, func(t *testing.T, w *world) {
			w.mute, w.rate, w.end, w.up[0].ended = true, 0, true, true
			w.run(2900 * time.Millisecond)
			if len(w.up[0].logins) > 0 {
				t.Errorf("logins %v before the lines were silent for three heartbeats", w.up[0].logins)
			}
			w.until(5*time.Second, "the end", func() bool { return w.endAt == 50_000 })
			if w.delivered != 49_999 || w.at != 50_000 {
				t.Errorf("%d delivered, up to %d", w.delivered, w.at)
			}
		}},
		{"lines that are silent, a server that goes on and has a hole", setup{from: 1, next: 20_000, session: true}, func(t *testing.T, w *world) {
			w.mute = true
			w.up[0].holes.Add(rng{First: 5000, Next: 5100})
			w.run(8 * time.Second)
			if len(w.lost) != 1 || w.lost[0] != (rng{First: 5000, Next: 5100}) || w.at < 20_000 {
				t.Errorf("lost %v, delivered up to %d", w.lost, w.at)
			}
			at := w.at
			w.until(20*time.Second, "what came since", func() bool { return w.at > at+20_000 })
			if n := len(w.up[0].logins); n > 15 {
				t.Errorf("%d logins", n)
			}
			w.mute = false
			w.until(10*time.Second, "live", w.live)
		}},
		{"lines that are silent, a server that begins later", setup{from: 1, first: 1, next: 20_000, session: true}, func(t *testing.T, w *world) {
			w.mute, w.rate, w.end, w.up[0].ended, w.up[0].first = true, 0, true, true, 7000
			w.until(20*time.Second, "the end", func() bool { return w.endAt == 20_000 })
			if len(w.lost) != 1 || w.lost[0] != (rng{First: 1, Next: 7000}) {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"gaps above one that the server waits for, longer than a gap may take", setup{}, func(t *testing.T, w *world) {
			w.run(50 * time.Millisecond)
			at := w.next
			w.up[0].gaps.Add(rng{First: at + 10, Next: at + 20})
			for range 3 {
				w.mute = true
				w.run(100 * time.Millisecond)
				w.mute = false
				w.run(500 * time.Millisecond)
			}
			w.run(15 * time.Second)
			if w.at > at+10 {
				t.Fatalf("delivered up to %d", w.at)
			}
			w.up[0].gaps.Clear()
			w.until(10*time.Second, "live", w.live)
			if len(w.lost) > 0 {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"late join from a sequence", setup{from: 30_000, next: 50_000}, func(t *testing.T, w *world) {
			w.until(5*time.Second, "live", w.live)
			if w.up[0].logins[1] != 30_000 {
				t.Errorf("logins %v", w.up[0].logins)
			}
		}},
		{"in the middle, above the threshold", setup{requests: 1, config: Config{Threshold: 1000}}, func(t *testing.T, w *world) {
			w.run(50 * time.Millisecond)
			w.mute = true
			w.run(time.Second)
			w.mute = false
			at := w.at
			w.until(5*time.Second, "live", w.live)
			if l := w.up[0].logins; l[len(l)-1] != at-moldcast.Overlap {
				t.Errorf("logins %v, delivered up to %d", l, at)
			}
			if w.asked != 0 {
				t.Errorf("%d requests", w.asked)
			}
		}},
		{"in the middle, below the threshold", setup{requests: 1, config: Config{Threshold: 1000}}, func(t *testing.T, w *world) {
			w.run(50 * time.Millisecond)
			w.mute = true
			w.run(100 * time.Millisecond)
			w.mute = false
			w.run(time.Second)
			if len(w.up[0].logins) != 0 || w.asked == 0 {
				t.Errorf("logins %v, %d requests", w.up[0].logins, w.asked)
			}
			w.until(3*time.Second, "what requests do not fill is fetched", w.live)
		}},
		{"20 % loss, nobody to ask", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.loss = 0.2
			w.run(5 * time.Second)
			w.loss = 0
			w.until(time.Second, "live", w.live)
			if n := w.m.Stats().Connections; n > 3 {
				t.Errorf("%d connections", n)
			}
		}},
		{"recovery slower than live", setup{from: 1, next: 20_000, buffer: 1000}, func(t *testing.T, w *world) {
			w.up[0].rate = 2
			w.run(3 * time.Second)
			if w.delivered < 5000 || w.r.Stats().Restarts < 2 {
				t.Errorf("%d delivered, %d restarts", w.delivered, w.r.Stats().Restarts)
			}
			w.rate = 0
			w.until(30*time.Second, "live once it is quiet", w.live)
		}},
		{"overflow, then the live edge", setup{from: 1, next: 60_000, buffer: 500}, func(t *testing.T, w *world) {
			w.up[0].rate = 30
			w.until(20*time.Second, "live", w.live)
			st := w.r.Stats()
			if st.Restarts == 0 || st.Dropped == 0 {
				t.Errorf("%+v", st)
			}
		}},
		{"overflow in the middle, with requests", setup{requests: 1, buffer: 500, config: Config{Threshold: 1000}}, func(t *testing.T, w *world) {
			w.run(50 * time.Millisecond)
			w.mute = true
			w.run(20 * time.Millisecond) // short: it is asked for, and not answered
			w.mute = false
			w.until(5*time.Second, "live", w.live)
			if w.r.Stats().Restarts == 0 {
				t.Error("no restart")
			}
		}},
		{"the server dies in the middle", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].dieAt = 20_000
			w.until(5*time.Second, "half of it", func() bool { return w.at >= 19_000 })
			w.until(5*time.Second, "live", w.live)
			l := w.up[0].logins
			if st := w.m.Stats(); st.Reconnects != 1 || st.Failures != 1 {
				t.Errorf("%+v", st)
			}
			if l[len(l)-1] != 20_000-moldcast.Overlap {
				t.Errorf("logins %v: what was had is fetched again", l)
			}
		}},
		{"the server is away for half a minute", setup{from: 1, next: 20_000}, func(t *testing.T, w *world) {
			w.up[0].dieAt = 10_000
			w.until(5*time.Second, "half of it", func() bool { return w.at == 10_000 })
			w.up[0].down = true
			w.run(30 * time.Second)
			w.up[0].down = false
			w.until(15*time.Second, "live", w.live)
			if n := w.m.Stats().Failures; n < 5 || n > 12 {
				t.Errorf("%d failures in 30 s", n)
			}
			if w.count(Failed) > 6 {
				t.Errorf("notices %s", w.said())
			}
		}},
		{"no server, ever", setup{from: 1, next: 20_000, config: Config{Budget: 5 * time.Second}}, func(t *testing.T, w *world) {
			w.up[0].down = true
			w.rate = 0
			w.next = 20_010
			w.publish()
			w.publish()
			w.run(3 * time.Second)
			if w.delivered != 0 || w.lost != nil {
				t.Errorf("%d delivered, lost %v", w.delivered, w.lost)
			}
			w.until(20*time.Second, "it is given up", w.live)
			if len(w.lost) != 1 || w.lost[0] != (rng{First: 1, Next: 20_010}) {
				t.Errorf("lost %v", w.lost)
			}
			if w.count(SpentAll) != 1 {
				t.Errorf("notices %s", w.said())
			}
		}},
		{"servers in turn", setup{from: 1, next: 50_000, servers: 3}, func(t *testing.T, w *world) {
			for i, u := range w.up {
				u.dieAt = seq(10_000 * (i + 1))
			}
			w.until(20*time.Second, "live", w.live)
			for i, u := range w.up {
				if len(u.logins) == 0 {
					t.Errorf("server %d was never asked", i)
				}
			}
		}},
		{"a hole of the server", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].holes.Add(rng{First: 20_000, Next: 20_300})
			w.up[0].holes.Add(rng{First: 40_000, Next: 40_001})
			w.until(5*time.Second, "live", w.live)
			if fmt.Sprint(w.lost) != "[20000..20299 40000..40000]" {
				t.Errorf("lost %v", w.lost)
			}
			l := w.up[0].logins
			if l[len(l)-1] > 40_001 {
				t.Errorf("logins %v", l)
			}
		}},
		{"a hole at the start", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].first = 10_000
			w.until(5*time.Second, "live", w.live)
			if fmt.Sprint(w.lost) != "[1..9999]" {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"a hole of one server", setup{from: 1, next: 50_000, servers: 2}, func(t *testing.T, w *world) {
			w.up[0].holes.Add(rng{First: 20_000, Next: 20_300})
			w.up[1].holes.Add(rng{First: 30_000, Next: 30_300})
			w.until(10*time.Second, "live", w.live)
			if w.lost != nil {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"a hole of one server in part", setup{from: 1, next: 50_000, servers: 2}, func(t *testing.T, w *world) {
			w.up[0].holes.Add(rng{First: 20_000, Next: 20_300})
			w.up[1].holes.Add(rng{First: 20_200, Next: 20_500})
			w.until(10*time.Second, "live", w.live)
			if fmt.Sprint(w.lost) != "[20200..20299]" {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"holes of the only server that is there", setup{from: 1, next: 50_000, servers: 3, config: Config{Budget: 4 * time.Second}}, func(t *testing.T, w *world) {
			w.up[0].down = true
			w.up[2].code = soup.NotAuthorised
			w.up[1].holes.Add(rng{First: 20_000, Next: 20_300})
			w.up[1].holes.Add(rng{First: 40_000, Next: 40_010})
			w.until(5*time.Second, "live", w.live)
			if fmt.Sprint(w.lost) != "[20000..20299 40000..40009]" {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"the server without the hole is started anew", setup{from: 1, next: 50_000, servers: 2}, func(t *testing.T, w *world) {
			w.up[0].down = true
			w.up[1].holes.Add(rng{First: 20_000, Next: 20_300})
			w.run(8 * time.Second)
			if w.at != 20_000 {
				t.Errorf("at %d", w.at)
			}
			w.up[0].down = false
			w.until(8*time.Second, "live", w.live)
			if w.lost != nil {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"a hole, with requests", setup{from: 1, next: 50_000, requests: 1, config: Config{Threshold: 1000}}, func(t *testing.T, w *world) {
			w.up[0].holes.Add(rng{First: 20_000, Next: 20_300})
			w.until(5*time.Second, "the hole", func() bool { return w.at == 20_000 })
			w.run(2 * time.Second)
			if w.lost != nil || w.asked == 0 {
				t.Errorf("lost %v, %d requests", w.lost, w.asked)
			}
			w.until(30*time.Second, "live once it is lost", w.live)
			if fmt.Sprint(w.lost) != "[20000..20299]" {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"a gap that the server waits for", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].gaps.Add(rng{First: 20_000, Next: 20_300})
			w.until(5*time.Second, "the gap", func() bool { return w.at == 20_000 })
			w.run(20 * time.Second)
			if n := len(w.up[0].logins); n != 2 {
				t.Errorf("%d logins", n)
			}
			w.up[0].gaps.Clear()
			w.until(5*time.Second, "live", w.live)
			if w.count(Waits) != 1 {
				t.Errorf("notices %s", w.said())
			}
		}},
		{"a gap that one server waits for", setup{from: 1, next: 50_000, servers: 2}, func(t *testing.T, w *world) {
			w.up[0].gaps.Add(rng{First: 20_000, Next: 20_300})
			w.until(5*time.Second, "live", w.live)
		}},
		{"end of session during recovery", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].rate = 50
			w.until(5*time.Second, "half of it", func() bool { return w.at >= 25_000 })
			w.finish(5 * time.Second)
		}},
		{"end of session that only the server tells", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].rate = 50
			w.until(5*time.Second, "half of it", func() bool { return w.at >= 25_000 })
			w.mute = true
			w.run(100 * time.Millisecond)
			w.finish(5 * time.Second)
		}},
		{"session change during recovery", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].rate = 50
			w.until(5*time.Second, "half of it", func() bool { return w.at >= 25_000 })
			w.mute = true
			next := w.next
			w.up[0].head = func() seq { return next }
			w.up[0].ended = true
			other := moldcast.Session([]byte("OTHER     "))
			for q := seq(1); w.endAt == 0; q++ {
				if q > 5000 {
					t.Fatal("does not end")
				}
				b := moldcast.AppendHeader(nil, other, q, 1)
				w.r.Offer(w.now, 0, moldcast.AppendMessage(b, body(other, q)))
				w.step()
			}
			if w.endAt != next || w.at != next || w.r.Stats().WrongSession == 0 {
				t.Errorf("ended at %d, delivered up to %d of %d, %d of the other", w.endAt, w.at, next, w.r.Stats().WrongSession)
			}
		}},
		{"two sessions", setup{from: 1, next: 50_000, session: true}, func(t *testing.T, w *world) {
			other := moldcast.Session([]byte("OTHER     "))
			for q := seq(1); !w.live(); q++ {
				b := moldcast.AppendHeader(nil, other, q, 1)
				w.r.Offer(w.now, 0, moldcast.AppendMessage(b, body(other, q)))
				if w.step(); q > 5000 {
					t.Fatal("is not live")
				}
			}
		}},
		{"the session is not available yet", setup{from: 1, next: 5000}, func(t *testing.T, w *world) {
			w.up[0].code = soup.SessionNotAvailable
			w.run(5 * time.Second)
			if n := w.m.Stats().Failures; n < 4 || n > 9 {
				t.Errorf("%d failures in 5 s", n)
			}
			w.up[0].code = 0
			w.until(15*time.Second, "live", w.live)
		}},
		{"not authorised", setup{from: 1, next: 5000, servers: 2}, func(t *testing.T, w *world) {
			w.up[0].code = soup.NotAuthorised
			w.up[1].code = soup.NotAuthorised
			w.run(10 * time.Second)
			if n := len(w.up[0].logins); n > 1 {
				t.Errorf("%d logins in 10 s", n)
			}
			w.up[1].code = 0
			w.until(60*time.Second, "live", w.live)
		}},
		{"other messages behind the gap", setup{from: 1, next: 5000, servers: 2}, func(t *testing.T, w *world) {
			w.up[0].other = true
			w.until(10*time.Second, "live", w.live) // the world compares what is delivered
			if w.m.turn == 0 {
				t.Error("it came from the server with other messages")
			}
		}},
		{"other messages before the gap", setup{servers: 1}, func(t *testing.T, w *world) {
			w.run(50 * time.Millisecond)
			w.mute = true
			w.run(100 * time.Millisecond)
			w.mute = false
			w.up[0].other = true
			at := w.at
			w.run(5 * time.Second)
			if w.at != at || w.m.Stats().Conflicts != 1 || w.count(Differs) != 1 {
				t.Errorf("delivered from %d to %d, %+v", at, w.at, w.m.Stats())
			}
			w.up[0].other = false
			w.until(80*time.Second, "live", w.live)
		}},
		{"the server is behind", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			lag := seq(10_000)
			w.up[0].head = func() seq { return w.next - min(w.next, lag) }
			w.until(5*time.Second, "as far as it is", func() bool { return w.at >= 45_000 })
			w.rate = 0
			lag = 0
			w.until(20*time.Second, "live", w.live)
		}},
		{"the server ended before", setup{from: 1, next: 50_000}, func(t *testing.T, w *world) {
			w.up[0].head = func() seq { return 40_000 }
			w.up[0].ended = true
			w.until(5*time.Second, "live", w.live)
			if len(w.lost) != 1 || w.lost[0].First != 40_000 {
				t.Errorf("lost %v", w.lost)
			}
		}},
		{"a server that says nothing", setup{from: 1, next: 5000, servers: 2}, func(t *testing.T, w *world) {
			w.m.servers[0].compared = true // it is silent where it fetches
			w.m.turn = 0
			w.up[0].rate = 0
			w.until(12*time.Second, "live", w.live)
			if w.count(Failed) != 1 {
				t.Errorf("notices %s", w.said())
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.s)
			tc.run(t, w)
			if w.endAt == 0 {
				w.rate = max(w.rate, 1)
				w.run(20 * time.Millisecond)
				for _, u := range w.up {
					u.down, u.code = false, 0
				}
				w.finish(100 * time.Second)
			}
		})
	}
}

// TestAnything is a receiver with servers that do whatever they like but lie,
// over a line that loses what it likes: in the end all is delivered in order,
// each message once, but what is lost, which no server had.
func TestAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SampledFrom([]seq{1, 484311999, ^seq(0) - 30_000}).Draw(rt, "first")
		behind := seq(rapid.IntRange(0, 15_000).Draw(rt, "behind"))
		w := newWorld(rt, setup{
			from: rapid.SampledFrom([]seq{0, first, first + behind/2}).Draw(rt, "from"), first: first, next: first + behind,
			servers: rapid.IntRange(1, 3).Draw(rt, "servers"), requests: rapid.IntRange(0, 1).Draw(rt, "requests"),
			buffer: rapid.SampledFrom([]uint64{0, 200, 3000}).Draw(rt, "buffer"),
			seed:   rapid.Uint64().Draw(rt, "seed"), budget: time.Hour,
			config: Config{
				Threshold: rapid.SampledFrom([]uint64{0, 500}).Draw(rt, "threshold"),
				Budget:    time.Hour, Seed: rapid.Uint64().Draw(rt, "jitter"),
			},
		})
		w.loss = rapid.SampledFrom([]float64{0, 0.01, 0.2, 0.5}).Draw(rt, "loss")
		if w.r.Stats(); w.at == 0 {
			w.loss = min(w.loss, 0.01) // where the session begins is not the matter here
		}
		w.run(20 * time.Millisecond)
		var holes, some gap.Set // of all servers, and of any
		holes.Add(rng{First: 1, Next: ^seq(0)})
		away := false // a server was, which then has no say
		for i, u := range w.up {
			u.rate = rapid.SampledFrom([]int{2, 20, 300}).Draw(rt, fmt.Sprint("rate", i))
			for range rapid.IntRange(0, 3).Draw(rt, "holes") {
				a := first + seq(rapid.IntRange(0, 16_000).Draw(rt, "hole"))
				u.holes.Add(rng{First: a, Next: a + seq(rapid.IntRange(1, 400).Draw(rt, "n"))})
			}
			for _, r := range u.holes.Ranges() {
				some.Add(r)
			}
			for _, r := range u.holes.Missing(rng{First: 1, Next: ^seq(0)}) {
				holes.Remove(r)
			}
		}
		for range rapid.IntRange(0, 25).Draw(rt, "events") {
			u := w.up[rapid.IntRange(0, len(w.up)-1).Draw(rt, "server")]
			event := rapid.IntRange(0, 5).Draw(rt, "event")
			away = away || event == 0 || event == 2
			switch event {
			case 0:
				u.down = !u.down
			case 1:
				w.mute = !w.mute
			case 2:
				u.dieAt = w.at + seq(rapid.IntRange(0, 3000).Draw(rt, "dies"))
			case 3:
				a := w.at + seq(rapid.IntRange(0, 3000).Draw(rt, "gap"))
				u.gaps.Add(rng{First: a, Next: a + 50})
			case 4:
				u.gaps.Clear()
			case 5:
				w.rate = rapid.IntRange(0, 3).Draw(rt, "rate")
			}
			w.run(time.Duration(rapid.IntRange(1, 800).Draw(rt, "ms")) * time.Millisecond)
		}
		w.mute, w.loss, w.rate = false, 0, 0
		for _, u := range w.up {
			u.down, u.dieAt, u.rate = false, 0, max(u.rate, 20)
			u.gaps.Clear()
		}
		w.finish(200 * time.Second)
		for _, r := range w.lost {
			for q := r.First; q < r.Next; q++ {
				if !holes.Contains(q) && !(away && some.Contains(q)) {
					rt.Fatalf("%d of %v is lost, and was to be had%s", q, r, w.said())
				}
			}
		}
	})
}
