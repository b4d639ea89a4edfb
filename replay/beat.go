package replay

import (
	"io"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Heartbeats, recorded ones and those of silence, and ends.

// recorded sends a heartbeat that was recorded. One that fails is made up for by
// the next.
func (c *conductor) recorded(o *outlet, seq moldcast.Seq, now moldcast.Instant) {
	if err := c.sendMark(o, 0, seq); err != nil {
		c.rep.SendErrors++
		return
	}
	c.rep.Heartbeats++
	o.silent = now
}

// recordedBy is when a recorded heartbeat of stream i is due, if that is the
// next thing of it that is ready, and by then.
func (c *conductor) recordedBy(i int, by moldcast.Instant) (at moldcast.Instant, ok bool) {
	if c.cur == nil || !c.sched.Running() {
		return 0, false
	}
	for k := c.next; k < min(len(c.cur.items), c.next+batchSize); k++ {
		it := &c.cur.items[k]
		if int(it.stream) != i {
			continue
		}
		at = c.sched.Due(it.place)
		return at, it.kind == heartbeat && at <= by
	}
	return 0, false
}

// sendMark sends a heartbeat (count 0) or End of Session (EndCount) with seq.
func (c *conductor) sendMark(o *outlet, count uint16, seq moldcast.Seq) error {
	c.mark = moldcast.AppendHeader(c.mark[:0], o.space.session, seq, count)
	if m, ok := o.sender.(marker); ok {
		return m.Mark(c.mark)
	}
	c.batch = append(c.batch[:0], c.mark)
	n, err := o.sender.Send(c.batch)
	if n == 1 {
		return nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	return err
}

// beat sends what silence asks for and says when it asks next. The stream busy
// has a packet due: it is about to speak for itself.
func (c *conductor) beat(now moldcast.Instant, busy int) moldcast.Instant {
	if now < c.nextBeat {
		return c.nextBeat
	}
	next := gap.Never
	every, linger := moldcast.Instant(c.cfg.Heartbeat), moldcast.Instant(c.cfg.Linger)
	for i := range c.streams {
		o := &c.streams[i]
		if o.heard {
			if o.ended && now < o.endAt+linger {
				next = min(next, o.endAt+linger)
			}
			continue
		}
		if !o.ended && now >= o.silent+every {
			if at, ok := c.recordedBy(i, now+every/2); ok {
				next = min(next, max(at, now)+every/4) // not one more beside it
				continue
			}
		}
		if i != busy && now >= o.silent+every && (!o.ended || o.silent+every <= o.endAt+linger) {
			count, seq := uint16(0), o.space.Published()
			if o.ended {
				count, seq = moldcast.EndCount, o.endSeq
			}
			// One that fails is made up for by the next.
			if err := c.sendMark(o, count, seq); err != nil {
				c.rep.SendErrors++
			} else if !o.ended {
				c.rep.Heartbeats++
			}
			o.silent = now
		}
		if o.ended {
			if now < o.endAt+linger {
				next = min(next, o.silent+every, o.endAt+linger)
			}
			continue
		}
		next = min(next, o.silent+every)
	}
	c.nextBeat = next
	return next
}
