package capture

import "github.com/moldtape/moldtape/moldcast"

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
