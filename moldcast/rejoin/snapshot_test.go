package rejoin

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast/soup"
)

// A user name that leaves no room to ask for a snapshot is told before.
func TestSnapshotUser(t *testing.T) {
	for user, ok := range map[string]bool{"": true, "annie": true, "daniel": false} {
		c := Config{Servers: 1, User: user, Snapshot: &taker{}}
		c.EnsureDefaults()
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", user, err)
		}
	}
}

func TestSnapshots(t *testing.T) {
	for _, tc := range []struct {
		name  string
		s     setup
		snaps []seq
		run   func(t *testing.T, w *world)
	}{
		{"the newest, and what follows", setup{}, []seq{10_000, 40_000}, func(t *testing.T, w *world) {
			w.until(5*time.Second, "live", w.live)
			if w.taker.taken != 40_000 || w.m.Stats().Snapshot != 40_000 || w.r.Stats().Lost != 0 || len(w.up[0].logins) != 0 {
				t.Errorf("taken at %d, %+v, logins %v", w.taker.taken, w.r.Stats(), w.up[0].logins)
			}
		}},
		{"the newest at or before", setup{most: 39_999}, []seq{10_000, 40_000}, func(t *testing.T, w *world) {
			w.until(5*time.Second, "live", w.live)
			if w.taker.taken != 10_000 {
				t.Errorf("taken at %d", w.taker.taken)
			}
		}},
		{"there is none", setup{}, nil, func(t *testing.T, w *world) {
			w.until(5*time.Second, "live", w.live)
			if w.taker.begun != 0 || w.delivered < 50_000 || w.count(Unsnapped) != 1 {
				t.Errorf("%d delivered, notices %s", w.delivered, w.said())
			}
		}},
		{"there is none before", setup{most: 9_999}, []seq{10_000}, func(t *testing.T, w *world) {
			w.at = 9_999
			w.until(5*time.Second, "live", w.live)
			if w.taker.begun != 0 || w.lost != nil {
				t.Errorf("lost %v, notices %s", w.lost, w.said())
			}
		}},
		{"one server has none", setup{servers: 2}, []seq{40_000}, func(t *testing.T, w *world) {
			w.until(5*time.Second, "live", w.live)
			if w.taker.taken != 40_000 {
				t.Errorf("taken at %d", w.taker.taken)
			}
		}},
		{"ahead of what was heard", setup{}, []seq{50_500}, func(t *testing.T, w *world) {
			w.up[0].head = func() seq { return max(w.next, 50_600) }
			w.until(5*time.Second, "live", func() bool { return w.at > 50_600 && w.live() })
			if w.taker.taken != 50_500 {
				t.Errorf("taken at %d", w.taker.taken)
			}
		}},
		{"it breaks off", setup{}, []seq{40_000}, func(t *testing.T, w *world) {
			w.up[0].broken = 2
			w.until(5*time.Second, "live", w.live)
			if w.taker.begun != 3 || w.m.Stats().Reconnects != 2 {
				t.Errorf("begun %d times, %+v", w.taker.begun, w.m.Stats())
			}
		}},
		{"a hole follows", setup{}, []seq{10_000, 40_000}, func(t *testing.T, w *world) {
			w.up[0].holes.Add(rng{First: 40_000, Next: 40_010})
			w.run(time.Second)
			if w.taker.taken != 0 || w.delivered != 0 || w.m.Stats().SnapshotRestarts < 2 {
				t.Errorf("taken at %d, %+v", w.taker.taken, w.m.Stats())
			}
			w.up[0].snaps = append(w.up[0].snaps, 50_000)
			w.until(10*time.Second, "live", w.live)
			if w.taker.taken != 50_000 || w.lost != nil {
				t.Errorf("taken at %d, lost %v", w.taker.taken, w.lost)
			}
		}},
		{"the live messages follow, where the server has a hole", setup{}, []seq{50_040}, func(t *testing.T, w *world) {
			w.up[0].down = true
			w.run(50 * time.Millisecond)
			w.up[0].down = false
			w.up[0].holes.Add(rng{First: 50_040, Next: 50_041})
			w.until(5*time.Second, "live", w.live)
			if w.taker.taken != 50_040 || w.lost != nil {
				t.Errorf("taken at %d, lost %v", w.taker.taken, w.lost)
			}
		}},
		{"never", setup{config: Config{SnapshotTries: 5}}, []seq{40_000}, func(t *testing.T, w *world) {
			w.up[0].broken = 1 << 20
			w.run(10 * time.Second)
			if !errors.Is(w.m.Err(), ErrNoSnapshot) || w.delivered != 0 || w.taker.begun != 5 || w.conn != nil {
				t.Errorf("%v, %d tries", w.m.Err(), w.taker.begun)
			}
		}},
		{"too large", setup{config: Config{SnapshotTries: 3, SnapshotBytes: 100}}, []seq{40_000}, func(t *testing.T, w *world) {
			w.run(5 * time.Second)
			if !errors.Is(w.m.Err(), ErrSnapshotSize) || w.taker.begun != 0 {
				t.Errorf("%v", w.m.Err())
			}
		}},
		{"not authorised", setup{config: Config{SnapshotTries: 2}}, []seq{40_000}, func(t *testing.T, w *world) {
			w.up[0].code = soup.NotAuthorised
			w.run(60 * time.Second)
			if rejected := new(soup.RejectedError); !errors.As(w.m.Err(), &rejected) {
				t.Errorf("%v", w.m.Err())
			}
		}},
		{"the disk fails", setup{}, []seq{40_000}, func(t *testing.T, w *world) {
			w.taker.err = errors.New("no space left")
			w.run(time.Second)
			if !errors.Is(w.m.Err(), w.taker.err) || w.conn != nil {
				t.Errorf("%v", w.m.Err())
			}
		}},
		{"the buffer is full meanwhile", setup{buffer: 200}, []seq{40_000}, func(t *testing.T, w *world) {
			w.up[0].down = true
			w.run(2 * time.Second)
			w.up[0].down = false
			w.until(20*time.Second, "live", w.live)
			if w.r.Stats().Restarts == 0 || w.taker.taken != 40_000 {
				t.Errorf("%+v", w.r.Stats())
			}
		}},
		{"it ended meanwhile", setup{}, []seq{40_000}, func(t *testing.T, w *world) {
			w.up[0].down = true
			w.run(100 * time.Millisecond)
			w.end = true
			w.run(2 * time.Second)
			if w.endAt != 0 {
				t.Error("ended before the snapshot")
			}
			w.up[0].down = false
			w.finish(20 * time.Second)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.s.from, tc.s.next, tc.s.snapshot = 1, 50_000, true
			w := newWorld(t, tc.s)
			w.up[0].snaps = tc.snaps
			tc.run(t, w)
			if w.endAt == 0 && w.m.Err() == nil {
				w.finish(50 * time.Second)
			}
		})
	}
}

// TestAnySnapshot: whatever breaks, the messages from the snapshot on follow it,
// each once.
func TestAnySnapshot(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SampledFrom([]seq{1, 484311999, ^seq(0) - 40_000}).Draw(rt, "first")
		w := newWorld(rt, setup{
			from: 1, first: first, next: first + 10_000, snapshot: true, requests: rapid.IntRange(0, 1).Draw(rt, "requests"),
			servers: rapid.IntRange(1, 2).Draw(rt, "servers"), seed: rapid.Uint64().Draw(rt, "seed"), budget: time.Hour,
			buffer: rapid.SampledFrom([]uint64{0, 300}).Draw(rt, "buffer"),
			config: Config{Budget: time.Hour, SnapshotTries: 1000},
		})
		w.loss = rapid.SampledFrom([]float64{0, 0.2}).Draw(rt, "loss")
		for _, u := range w.up {
			for q := first; rapid.Bool().Draw(rt, "snapshot"); {
				q += seq(rapid.IntRange(0, 4000).Draw(rt, "at"))
				u.snaps = append(u.snaps, min(q, first+10_000))
			}
			u.broken = rapid.IntRange(0, 2).Draw(rt, "breaks")
			u.down = rapid.Bool().Draw(rt, "down")
			u.dieAt = first + seq(rapid.IntRange(0, 12_000).Draw(rt, "dies"))
			if rapid.Bool().Draw(rt, "gap") && len(u.snaps) > 0 {
				u.gaps.Add(rng{First: u.snaps[len(u.snaps)-1], Next: u.snaps[len(u.snaps)-1] + 5})
			}
		}
		w.run(time.Duration(rapid.IntRange(1, 1000).Draw(rt, "ms")) * time.Millisecond)
		w.loss = 0
		for _, u := range w.up {
			u.down = false
			u.gaps.Clear()
		}
		w.finish(100 * time.Second)
		for _, r := range w.lost {
			if r.Next > first { // before, there is nothing
				rt.Fatalf("lost %v", r)
			}
		}
	})
}
