package capture

import (
	"slices"
	"testing"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
)

// A capture that ends by itself tries peers, one too that is being restarted,
// until what is missing is there, every one has said that it lacks it, or for a
// while nothing came. Config.EndTimeout does not end it meanwhile.
func TestRecoveryPastTheEnd(t *testing.T) {
	const budget = 5 * time.Second
	const limit = owedBudgets * budget
	for _, c := range []struct {
		name        string
		rest        *streamPeer   // holds what the others lack; down at first …
		up          time.Duration // … and until so long after the end; 0: for ever
		missing     int
		least, most time.Duration // from the end of the session on
	}{
		{"gone", &streamPeer{}, 0, 7001, limit, limit + budget},
		{"restarted", &streamPeer{first: 1, head: 10003}, 3 * time.Second, 0, 3 * time.Second, limit},
		{"cut again and again", &streamPeer{first: 1, head: 10003, cuts: slices.Repeat([]int{20_000}, 12)}, 3 * time.Second, 0, 3 * time.Second, 2 * limit},
		{"slow", &streamPeer{first: 1, head: 10003, slow: 100 * time.Millisecond}, 3 * time.Second, 0, 2 * limit, 10 * time.Minute},
		{"lacks it too", &streamPeer{first: 1, head: 3000, ended: true}, 3 * time.Second, 7001, 3 * time.Second, limit},
		{"other messages", &streamPeer{first: 1, head: 10003, lies: true}, 3 * time.Second, 7001, 3 * time.Second, limit},
		{"silent", &streamPeer{first: 1, head: 10003, mute: 3000}, 3 * time.Second, 7001, 3 * time.Second, limit + budget},
	} {
		t.Run(c.name, func(t *testing.T) {
			some, same := &streamPeer{first: 1, head: 3000, ended: true}, &streamPeer{first: 1, head: 3000, ended: true}
			c.rest.down = true
			tune := func(cfg *Config) {
				cfg.UntilEnd, cfg.NakBudget, cfg.Start, cfg.EndTimeout = true, budget, arbiter.Beginning, 4*time.Second
			}
			virtual(t, false, tune, func(l *late) {
				l.until("partly there", 20*time.Second, func(st Status) bool { return st.Streamed >= 2999 && st.MessagesLost > 0 })
				for range 3 {
					l.offer(moldcast.AppendHeader(nil, sess, l.head, moldcast.EndCount))
				}
				ended := time.Now()
				if c.up > 0 {
					time.Sleep(c.up)
					c.rest.set(func() { c.rest.down = false })
				}
				st := <-l.done
				l.done <- st
				if took := time.Since(ended); took < c.least || took > c.most {
					t.Errorf("ended after %v, want %v to %v", took, c.least, c.most)
				}
				missing := 0
				for _, g := range l.sink.sessions[sess].set.Missing(moldcast.Range{First: 1, Next: l.head}) {
					missing += int(g.Len())
				}
				if missing != c.missing {
					t.Errorf("%d messages are missing, want %d", missing, c.missing)
				}
			}, some, same, c.rest)
		})
	}
}

// Where every peer lacks what is missing the end is not put off.
func TestRecoveryPastTheEndForNothing(t *testing.T) {
	tune := func(cfg *Config) { cfg.UntilEnd, cfg.NakBudget, cfg.Start = true, time.Second, arbiter.Beginning }
	virtual(t, false, tune, func(l *late) {
		l.until("partly there", 20*time.Second, func(st Status) bool { return st.Streamed >= 2999 && st.MessagesLost > 0 })
		ended := time.Now()
		for range 3 {
			l.offer(moldcast.AppendHeader(nil, sess, l.head, moldcast.EndCount))
		}
		l.done <- <-l.done
		if took := time.Since(ended); took > time.Second {
			t.Errorf("it took %v to end", took)
		}
	}, &streamPeer{first: 1, head: 3000, ended: true})
}
