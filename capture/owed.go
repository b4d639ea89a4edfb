package capture

import (
	"slices"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
)

// owedBudgets is how many times Config.NakBudget a capture that ends by itself
// waits for peers without a message from any.
const owedBudgets = 3

// owed is how long the end has been put off.
type owed struct {
	begun   bool
	missing uint64           // messages, when there were fewest
	since   moldcast.Instant // when that was
}

// owed reports whether a capture whose sessions have all ended goes on
// nevertheless: a peer that has not said, since they ended, that it lacks what
// is missing may yet bring it, be it that it streams, or cannot be reached for
// now, as one that is being restarted. While nothing comes that is so for a
// while only. Peers that hold other messages than we do are not waited for.
func (c *Channel) owed(now moldcast.Instant) bool {
	o := &c.recovery.owed
	missing, any := uint64(0), false
	for _, s := range c.arb.Sessions() {
		x, ok := s.Ref.(*session)
		n := s.Stats().MessagesMissing
		if !ok || n == 0 {
			continue
		}
		missing += n
		for i := range c.peersOf(x) {
			p := &x.peers[i]
			if !o.begun {
				p.lacks.Clear() // it may have been filled itself since
			}
			any = any || c.mayBring(now, s, p)
		}
		any = any || slices.ContainsFunc(c.recovery.fetches, func(f *fetch) bool { return f.s == s && f.state != fetchSilent })
	}
	if !any {
		return false
	}
	limit := owedBudgets * c.cfg.NakBudget
	if !o.begun {
		c.cfg.Log.Info("recovery: all sessions have ended; what is missing is asked of peers again before the capture ends", "channel", c.cfg.Channel,
			"messages", missing, "at_most", limit)
	}
	if !o.begun || missing < o.missing {
		*o = owed{true, missing, now}
	}
	return now-o.since < moldcast.Instant(limit)
}

// mayBring reports whether a peer is known neither to lack what is missing nor
// to hold other messages.
func (c *Channel) mayBring(now moldcast.Instant, s *arbiter.Session, p *peer) bool {
	r, _ := c.wanted(now, s, p)
	return !r.Empty() && !p.other
}

// peersOf is what is known of the peers for a session.
func (c *Channel) peersOf(x *session) []peer {
	if n := len(c.cfg.Recovery); x.peers == nil && n > 0 {
		x.peers = make([]peer, n)
		x.turn = int(c.cfg.Seed % uint64(n)) // nodes do not all begin with the same
	}
	return x.peers
}
