package capture

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// maxWants bounds what waits for the engine to take note of.
const maxWants = 256

// wanted is what a client asks for that the archive lacks.
type wanted struct {
	session moldcast.Session
	r       moldcast.Range
}

// Want says that somebody asks for messages of a session that the archive
// lacks: they are asked for next, within the budget of requests. What is asked
// for anyway, and what is not this channel's, changes nothing. It may be called
// from any goroutine and does not wait; false: too much is wanted already.
func (c *Channel) Want(s moldcast.Session, r moldcast.Range) bool {
	select {
	case c.wants <- wanted{s, r}:
		return true
	default:
		return false
	}
}

// takeWants takes note of what is wanted.
func (c *Channel) takeWants(now moldcast.Instant) {
	for {
		select {
		case w := <-c.wants:
			c.arb.Want(now, w.session, w.r)
		default:
			return
		}
	}
}

// Name is the channel's.
func (c *Channel) Name() string { return c.cfg.Channel }

// servesFor is how long an answer vouches for what its server has.
const servesFor = 5 * time.Second

// Window is how many of the newest messages of a session some request server
// surely still has, as of half a second ago, by what it answered in the last
// seconds; 0: that is not known. It may be called from any goroutine and does
// not wait.
func (c *Channel) Window(s moldcast.Session) uint64 {
	if w := c.windows.Load(); w != nil {
		return (*w)[s]
	}
	return 0
}

// noteWindows publishes what Window tells.
func (c *Channel) noteWindows(now moldcast.Instant) {
	w := map[moldcast.Session]uint64{}
	for _, s := range c.arb.Sessions() {
		if n := s.Serves(now, servesFor); n > 0 {
			w[s.Name()] = n
		}
	}
	c.windows.Store(&w)
}
