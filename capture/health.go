package capture

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// The states of a channel.
const (
	StateOK       = "ok"
	StateDegraded = "degraded" // for the reasons that are named with it
	StateEnded    = "ended"    // every session seen has ended, and is repaired
	StateStopped  = "stopped"  // the capture has
	StateFailed   = "failed"   // it has, for the reason in Status.Error
)

// Why a channel is degraded.
const (
	ReasonGap        = "gap"         // messages are missing, and asked or waited for
	ReasonStorage    = "storage"     // what is received is not stored
	ReasonLineSilent = "line_silent" // a line was not heard for three heartbeats, another was
	ReasonNoPackets  = "no_packets"  // no line was
)

// Reasons are all of these.
var Reasons = []string{ReasonGap, ReasonStorage, ReasonLineSilent, ReasonNoPackets}

// Degradation is one reason for which a channel is degraded now.
type Degradation struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Line   string    `json:"line,omitempty"`
	Text   string    `json:"text"`
}

// OpenGaps is what is missing of a channel, and asked or waited for.
type OpenGaps struct {
	Gaps     int        `json:"gaps"`
	Messages uint64     `json:"messages"`
	NextTry  *time.Time `json:"next_try,omitempty"` // of the ranges below; none: nobody to ask
	Ranges   []OpenGap  `json:"ranges"`             // the first few
}

// OpenGap is a range of them.
type OpenGap struct {
	Session  moldcast.Session `json:"session"`
	Take     int              `json:"take"`
	FirstSeq moldcast.Seq     `json:"first_seq"`
	LastSeq  moldcast.Seq     `json:"last_seq"`
	Since    time.Time        `json:"since"`
	Tries    int              `json:"tries"` // requests since the last answer for it
	NextTry  *time.Time       `json:"next_try,omitempty"`
}

// maxOpenGaps is how many ranges a Status lists.
const maxOpenGaps = 8

// Degraded is how long, and how often, a channel was degraded for one reason.
type Degraded struct {
	Reason  string  `json:"reason"`
	Now     bool    `json:"now"`
	Times   uint64  `json:"times"`
	Seconds float64 `json:"seconds"`
}

const (
	// A gap is said in the log when it stays: a second is longer than an answer
	// takes.
	sayGapAfter = moldcast.Instant(time.Second)
	// A reason that comes and goes is not said again for so long.
	sayAgainAfter = moldcast.Instant(10 * time.Second)
)

// condition is one thing that may be wrong. The zero value is well.
type condition struct {
	on     bool
	said   bool // in the log
	since  moldcast.Instant
	quiet  moldcast.Instant // not said before
	unsaid uint64           // times since it was said last
	times  uint64
	past   moldcast.Instant // how long it was so before
}

// set takes note of how it is at now, if it is wrong since since. It reports
// that it just became well, and was said to be wrong.
func (c *condition) set(now moldcast.Instant, on bool, since moldcast.Instant) (mended bool) {
	switch {
	case on && !c.on:
		c.on, c.since = true, min(since, now)
		c.times++
		c.unsaid++
	case !on && c.on:
		c.on = false
		c.past += now - c.since
		if mended = c.said; mended {
			c.said, c.quiet = false, now+sayAgainAfter
		}
	}
	return mended
}

// due reports that it is to be said now: it has lasted so long.
func (c *condition) due(now, lasted moldcast.Instant) bool {
	if !c.on || c.said || now-c.since < lasted || now < c.quiet {
		return false
	}
	c.said = true
	return true
}

// lasts is how long it is and was so.
func (c *condition) lasts(now moldcast.Instant) moldcast.Instant {
	if c.on {
		return c.past + now - c.since
	}
	return c.past
}

// health is what may be wrong with a channel. Owner: the engine.
type health struct {
	began   moldcast.Instant
	gap     condition
	storage condition
	nothing condition
	silent  []condition // by line
}

func newHealth(lines int, now moldcast.Instant) health {
	return health{began: now, silent: make([]condition, lines)}
}

// watchGaps takes note of whether a gap is open: after every batch, so that
// none is too short for it.
func (c *Channel) watchGaps(now moldcast.Instant) {
	n := 0
	for _, s := range c.arb.Sessions() {
		n += s.OpenGaps()
	}
	g := &c.health.gap
	if n == 0 && !g.on {
		return
	}
	since := now
	if !g.on {
		for _, s := range c.arb.Sessions() {
			if s.OpenGaps() > 0 {
				_, at := s.OpenMissing()
				since = min(since, at)
			}
		}
	}
	open := now - g.since
	if g.set(now, n > 0, since) {
		c.cfg.Log.Info("no gap is open any more", "channel", c.cfg.Channel, "after", time.Duration(open), "messages_lost", c.arb.Counters().MessagesLost)
	}
}

// watch takes note of everything else, and says in the log what lasts.
func (c *Channel) watch(now moldcast.Instant) {
	h, log := &c.health, c.cfg.Log
	if h.gap.due(now, sayGapAfter) {
		o := c.openGaps(now)
		args := []any{"channel", c.cfg.Channel, "reason", ReasonGap, "since", c.wall(h.gap.since), "gaps", o.Gaps, "messages", o.Messages, "times", h.gap.unsaid}
		if len(o.Ranges) > 0 {
			r := o.Ranges[0]
			args = append(args, "session", r.Session, "first_seq", r.FirstSeq, "tries", r.Tries) // it may be a part of a gap: its end says little
		}
		log.Warn("degraded: a gap stays open", args...)
		h.gap.unsaid = 0
	}
	// What the archive's trouble is, look says.
	since := now
	if s := c.lastStorage.Since; s != nil {
		since = now - moldcast.Instant(c.clock.Wall()-moldcast.StampOf(*s))
	}
	h.storage.set(now, c.lastStorage.Degraded(), since)

	live, silence := 0, c.silence()
	for i := range h.silent {
		if c.live(now, i) {
			live++
		}
	}
	quiet := c.arb.Done() // nothing more is to come
	var last moldcast.Instant
	for i := range h.silent {
		l := &h.silent[i]
		heard := c.heardAt(i)
		last = max(last, heard)
		was := now - l.since
		if l.set(now, (live > 0 || l.on) && !quiet && now-heard > silence, heard) && !quiet {
			log.Info("recovered: line is heard again", "channel", c.cfg.Channel, "line", mcast.LineName(i), "after", time.Duration(was))
		}
		if l.due(now, 0) {
			log.Warn("degraded: line is silent", "channel", c.cfg.Channel, "reason", ReasonLineSilent, "line", mcast.LineName(i), "since", c.wall(l.since), "times", l.unsaid)
			l.unsaid = 0
		}
	}
	n := &h.nothing
	was := now - n.since
	idle := quiet || c.cfg.Feed.Heartbeats == moldcast.HeartbeatNone // silence means nothing then
	if n.set(now, live == 0 && !idle && now-last > silence, last) && !idle {
		log.Info("recovered: packets come again", "channel", c.cfg.Channel, "after", time.Duration(was))
	}
	if n.due(now, 0) {
		log.Warn("degraded: no packets", "channel", c.cfg.Channel, "reason", ReasonNoPackets, "since", c.wall(n.since), "times", n.unsaid)
		n.unsaid = 0
	}
}

// heardAt is when a line was heard last; when the capture began, if never.
func (c *Channel) heardAt(line int) moldcast.Instant {
	if now, _, ever := c.arb.Heard(line); ever {
		return now
	}
	return c.health.began
}

// live reports whether a line was heard within three heartbeats.
func (c *Channel) live(now moldcast.Instant, line int) bool {
	at, _, ever := c.arb.Heard(line)
	return ever && now-at <= c.silence()
}

// silence is how long a line that is live is not heard at most.
func (c *Channel) silence() moldcast.Instant {
	return 3 * moldcast.Instant(c.arb.Config().Gap.HeartbeatInterval)
}

// wall is the wall clock at an instant.
func (c *Channel) wall(at moldcast.Instant) time.Time {
	return (c.clock.Wall() - moldcast.Stamp(c.clock.Now()-at)).Time()
}

// openGaps lists what is open.
func (c *Channel) openGaps(now moldcast.Instant) *OpenGaps {
	o := &OpenGaps{Ranges: []OpenGap{}}
	at := func(i moldcast.Instant) *time.Time {
		if i == gap.Never {
			return nil
		}
		t := c.wall(i)
		return &t
	}
	next := moldcast.Instant(gap.Never)
	for _, s := range c.arb.Sessions() {
		n := s.OpenGaps()
		if n == 0 {
			continue
		}
		o.Gaps += n
		m, _ := s.OpenMissing()
		o.Messages += m
		take := 0
		if x, ok := s.Ref.(*session); ok {
			take = x.sink.Take()
		}
		s.Gaps(func(g gap.Gap) bool {
			if len(o.Ranges) == maxOpenGaps {
				return false
			}
			if g.Settled && !g.Lost {
				next = min(next, g.NextTry)
				o.Ranges = append(o.Ranges, OpenGap{
					Session: s.Name(), Take: take, FirstSeq: g.First, LastSeq: g.Range.Next - 1,
					Since: c.wall(g.Opened), Tries: g.Tries, NextTry: at(g.NextTry),
				})
			}
			return true
		})
	}
	o.NextTry = at(next)
	return o
}

// degraded fills in the state of st and what it is made of.
func (c *Channel) degraded(st *Status) {
	now := c.clock.Now()
	c.watchGaps(now)
	c.watch(now)
	h := &c.health
	add := func(cond *condition, reason, line, text string) {
		if cond.on {
			st.Reasons = append(st.Reasons, Degradation{Reason: reason, Since: c.wall(cond.since), Line: line, Text: text})
		}
	}
	st.Reasons = []Degradation{}
	if h.gap.on {
		st.Open = c.openGaps(now)
		add(&h.gap, ReasonGap, "", count(st.Open.Messages, "message")+" missing in "+count(uint64(st.Open.Gaps), "gap"))
	}
	add(&h.storage, ReasonStorage, "", st.Storage.Error)
	add(&h.nothing, ReasonNoPackets, "", "no packet on any line")
	total := Degraded{Reason: ReasonLineSilent}
	for i := range h.silent {
		l := &h.silent[i]
		add(l, ReasonLineSilent, mcast.LineName(i), "line "+mcast.LineName(i)+" is silent, another is not")
		total.Now = total.Now || l.on
		total.Times += l.times
		total.Seconds += time.Duration(l.lasts(now)).Seconds()
	}
	of := func(reason string, cond *condition) Degraded {
		return Degraded{Reason: reason, Now: cond.on, Times: cond.times, Seconds: time.Duration(cond.lasts(now)).Seconds()}
	}
	st.Degraded = []Degraded{of(ReasonGap, &h.gap), of(ReasonStorage, &h.storage), total, of(ReasonNoPackets, &h.nothing)}
	switch {
	case len(st.Reasons) > 0:
		st.State = StateDegraded
		since := st.Reasons[0].Since
		for _, r := range st.Reasons {
			if r.Since.Before(since) {
				since = r.Since
			}
		}
		st.Since = &since
	case c.arb.Done():
		st.State = StateEnded
	default:
		st.State = StateOK
	}
}
