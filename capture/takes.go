package capture

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

const (
	coldQueue  = 1024 // comparisons that may wait for the disk
	copyBytes  = 64 << 10
	copyPause  = 10 * time.Millisecond // before a store that was full is tried again
	copyFinish = 10 * time.Second      // how long a stop waits for copies
)

// cold reads what is stored, away from the engine: to compare messages that
// come again with those whose hashes are not in memory, and to copy what two
// takes have in common. What comes of it reaches the engine through
// Channel.ask.
type cold struct {
	jobs   chan func()
	done   sync.WaitGroup
	copies atomic.Int64 // on their way
}

func newCold() *cold { return &cold{jobs: make(chan func(), coldQueue)} }

func (k *cold) start(c *Channel) {
	k.done.Go(func() {
		for job := range k.jobs {
			job()
		}
	})
}

// stop ends the goroutines. Nothing may be asked for any more.
func (k *cold) stop() {
	close(k.jobs)
	k.done.Wait()
}

// tell has the engine run fn, and waits for that. False: it has ended.
func (c *Channel) tell(fn func()) bool {
	done := make(chan struct{})
	select {
	case c.ask <- func() { fn(); close(done) }:
		<-done
		return true
	case <-c.ended:
		return false
	}
}

// finishCopies runs what copies bring, for some time, when the engine is to
// end.
func (c *Channel) finishCopies() {
	if c.cold.copies.Load() == 0 {
		return
	}
	timer := time.NewTimer(copyFinish)
	defer timer.Stop()
	for c.cold.copies.Load() > 0 {
		select {
		case fn := <-c.ask:
			fn()
		case <-timer.C:
			c.cfg.Log.Error("the beginning of a take was not copied in time; it stays a gap", "channel", c.cfg.Channel)
			return
		case <-time.After(copyPause):
		}
	}
}

// Compare has a packet compared with what is stored.
func (o output) Compare(q *arbiter.Comparison) bool {
	c := o.c
	x, ok := q.Session.Ref.(*session)
	if !ok {
		return false
	}
	x.reads.Add(1)
	select {
	case c.cold.jobs <- func() {
		var result arbiter.Compared
		select {
		case <-c.ended: // nobody waits for it
		default:
			result = compare(x.sink, q.First, q.Msgs)
		}
		x.reads.Done()
		c.tell(func() { c.arb.Compared(c.clock.Now(), q, result) })
	}:
		return true
	default:
		x.reads.Done()
		return false
	}
}

// compare counts the messages that are stored with other bytes.
func compare(sink SessionSink, first moldcast.Seq, m moldcast.Messages) (out arbiter.Compared) {
	for m.Len() > 0 {
		at, differs, err := sink.Compare(first, m)
		if err != nil {
			out.Failed = out.Differ == 0
			return out
		}
		if !differs {
			return out
		}
		if out.Differ++; out.Differ == 1 {
			out.At = at
		}
		_, m = m.Split(int(at-first) + 1)
		first = at + 1
	}
	return out
}

// Fork opens the next take of a session.
func (o output) Fork(was, next *arbiter.Session, f arbiter.Fork) error {
	c := o.c
	x, ok := was.Ref.(*session)
	if !ok {
		return errors.New("the session is not open")
	}
	take := x.sink.Take() + 1
	sink, err := c.sink.Open(c.cfg.Channel, was.Name(), take, c.Lines())
	if err != nil {
		if c.alarm(&c.openAlarm) {
			c.cfg.Log.Error("the session was restarted under its own name, and the new take cannot be opened; retried",
				"channel", c.cfg.Channel, "session", was.Name(), "take", take, "err", err)
		}
		return err
	}
	next.Ref = &session{sink: sink, began: o.c.clock.Wall(), acked: c.acks.open(next.Name(), sink)}
	if len(f.Shared) > 0 { // before anything is stored: a crash may come at any time
		if err := sink.Share(x.sink.Take(), f.Shared); err != nil {
			c.cfg.Log.Error("what the take has in common with the one before is not on record: after a crash it may stay a gap",
				"channel", c.cfg.Channel, "session", was.Name(), "err", err)
		}
	}
	c.cfg.Log.Error("NEW TAKE: the session was restarted under its own name; what follows is recorded apart, and the take before stays as it is",
		"channel", c.cfg.Channel, "session", was.Name(), "take", sink.Take(), "why", f.Cause.String(), "at_seq", f.At,
		"from_seq", f.First, "line", mcast.LineName(f.Line), "source", f.Source)
	return nil
}

// reader reads stored messages, as SessionSink.Read does.
type reader func(dst []byte, first moldcast.Seq, count, size int) (out []byte, n int, err error)

// Copy copies ranges of a take to the next one.
func (o output) Copy(was, next *arbiter.Session, ranges []moldcast.Range) {
	x, ok := was.Ref.(*session)
	if !ok {
		return
	}
	x.reads.Add(1)
	o.c.copy(next, ranges, x.sink.Read, x.reads.Done)
}

// resume goes on with what a crash, or a stop, left of a copy.
func (c *Channel) resume(s *arbiter.Session, x *session) {
	take, missing := x.sink.Shared()
	if len(missing) == 0 {
		return
	}
	c.cfg.Log.Info("copying what the take has in common with one before it goes on", "channel", c.cfg.Channel, "session", s.Name(), "take", x.sink.Take(), "from", take, "ranges", missing)
	x.reads.Add(1)
	c.copy(s, missing, func(dst []byte, first moldcast.Seq, count, size int) ([]byte, int, error) {
		return x.sink.Older(take, dst, first, count, size)
	}, x.reads.Done)
}

// copy gives a take what read has of ranges, in the background.
func (c *Channel) copy(next *arbiter.Session, ranges []moldcast.Range, read reader, done func()) {
	c.cold.copies.Add(1)
	c.closing.Go(func() {
		defer c.cold.copies.Add(-1)
		defer done()
		var buf []byte
		for _, r := range ranges {
			for !r.Empty() {
				out, n, err := read(buf[:0], r.First, int(min(r.Len(), moldcast.MaxCount)), copyBytes)
				buf = out
				var hole *moldcast.HoleError
				switch {
				case errors.As(err, &hole) && hole.Hole.Range.Next > r.First:
					r.First = min(r.Next, hole.Hole.Range.Next)
					continue
				case err != nil || n == 0:
					c.cfg.Log.Error("the beginning of a take cannot be copied from the take before; it stays a gap",
						"channel", c.cfg.Channel, "session", next.Name(), "range", r, "err", err)
					r.First = r.Next
					continue
				}
				for stored := false; !stored; {
					if !c.tell(func() {
						stored = c.arb.Copied(c.clock.Now(), c.clock.Wall(), next, r.First, moldcast.MessagesOf(out, n))
					}) {
						return
					}
					if !stored {
						<-time.After(copyPause)
					}
				}
				r.First += moldcast.Seq(n)
			}
		}
	})
}
