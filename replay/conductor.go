package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"syscall"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/replay/burst"
	"github.com/moldtape/moldtape/replay/pace"
)

const (
	batchSize   = 64 // datagrams of one Send at most: what one system call takes
	maxHoleLogs = 20 // holes that are logged one by one
	firstRetry  = 100 * time.Microsecond
	lastRetry   = 100 * time.Millisecond
)

// marker is a Sender that treats heartbeats and End of Session apart from
// data.
type marker interface {
	Mark(pkt []byte) error
}

// holder is a Sender that keeps packets back for a time.
type holder interface {
	marker
	// Advance tells the time before each Send, sends what was kept until now, and
	// says when more is due; gap.Never.
	Advance(now moldcast.Instant) (moldcast.Instant, error)
	// Settle also lets go what waits for later packets of the stream.
	Settle(now moldcast.Instant) (moldcast.Instant, error)
	// Flush sends everything that is kept.
	Flush() error
}

// conductor is the sender: the one owner of schedule, queue end and counters.
// Its thread runs run and nothing else.
type conductor struct {
	p     *Player
	cfg   *Config
	w     Waiter
	sched *pace.Schedule
	limit pace.Limiter

	streams []outlet
	holders []int // streams that have one
	ra      *readAhead
	cur     *chunk
	next    int  // of cur.items
	drained bool // the read-ahead has given everything
	loop    int

	steps   int  // packets to send though the clock stands
	stepTo  int  // messages, likewise
	started bool // the read-ahead was full since it was made
	paused  bool // by the user
	holding bool // for a hole
	held    moldcast.Range
	seeking bool // started brings the clock to target
	target  moldcast.Stamp
	startAt moldcast.Instant

	nextBeat moldcast.Instant // nothing about heartbeats is due before

	batch [][]byte
	dues  [batchSize]moldcast.Instant
	mark  []byte

	rep         Report
	rec         recorder
	any         bool
	firstTime   moldcast.Stamp // recorded, of the first packet
	lastTime    moldcast.Stamp // the same, of the last one
	first, last moldcast.Instant
	due0, due1  moldcast.Instant
	waitedHoles uint64
}

// outlet is one stream at the sender's end.
type outlet struct {
	sender Sender
	holder holder // the sender, where it is one
	space  *Space
	heard  bool             // it is replayed as it was heard: nothing is added
	silent moldcast.Instant // since when
	jumped bool             // a seek came since the last packet
	ending bool             // the end is due, and what the holder keeps goes first
	ended  bool
	endAt  moldcast.Instant // of the first End of Session
	endSeq moldcast.Seq     // that it carries
}

func newConductor(p *Player, s *pace.Schedule) *conductor {
	c := &conductor{p: p, cfg: &p.cfg, w: p.cfg.Waiter, sched: s, limit: pace.NewLimiter(p.cfg.CatchUp), rec: newRecorder(!p.cfg.Pace.Max), loop: 1, startAt: math.MinInt64,
		batch: make([][]byte, 0, batchSize), mark: make([]byte, 0, moldcast.HeaderSize)}
	c.streams = make([]outlet, len(c.cfg.Streams))
	return c
}

// begin starts a loop.
func (c *conductor) begin(now moldcast.Instant) {
	spaces := *c.p.spaces.Load()
	c.holders = c.holders[:0]
	for i := range c.streams {
		// Silent for long: a session opens with a heartbeat, so that who hears it
		// knows where it begins even if the first packet is lost.
		c.streams[i] = outlet{sender: c.cfg.Streams[i].Sender, space: spaces[i], silent: now - moldcast.Instant(c.cfg.Heartbeat)}
		c.streams[i].heard = c.cfg.Streams[i].Heard != nil
		if h, ok := c.streams[i].sender.(holder); ok {
			c.streams[i].holder = h
			c.holders = append(c.holders, i)
		}
	}
	c.p.status.loop.Store(uint64(c.loop))
	c.p.status.ended.Store(false)
	c.nextBeat = now
	c.read(func(i int) moldcast.Seq { return c.cfg.Streams[i].Range.First })
}

// read makes a new read-ahead; the clock waits for it.
func (c *conductor) read(from func(int) moldcast.Seq) {
	names := make([]moldcast.Session, len(c.streams))
	for i := range names {
		names[i] = c.streams[i].space.session
	}
	speed := 1.0
	if !c.cfg.Pace.Max && c.cfg.Pace.Rate == 0 {
		speed = c.sched.Speed()
	}
	c.cur, c.next, c.drained, c.started, c.holding = nil, 0, false, false, false
	var warp *burst.Warp
	if c.cfg.Stress != (burst.Plan{}) {
		warp = burst.NewWarp(c.cfg.Stress)
		if c.seeking {
			warp.Begin(c.target)
		}
	}
	since := moldcast.Stamp(0)
	if c.seeking {
		since = c.target
	}
	c.ra = startReadAhead(c.cfg, names, from, since, speed, warp, c.p.poke)
}

func (c *conductor) run(ctx context.Context) error {
	now := c.w.Now()
	if c.cfg.StartAt != 0 {
		if d := c.cfg.StartAt - c.w.Wall(); d > 0 {
			c.startAt = now + moldcast.Instant(d)
		}
	}
	c.begin(now)
	defer func() { c.ra.close() }()
	defer c.flush()
	for {
		done, err := c.turn(ctx)
		if done || err != nil {
			return err
		}
	}
}

// turn does what is due now, or waits until something may be.
func (c *conductor) turn(ctx context.Context) (done bool, err error) {
	now := c.w.Now()
	if ctx.Err() != nil {
		return true, c.cut()
	}
	if err := c.obey(now); err != nil {
		return true, err
	}
	if !c.started && c.ra.full.Load() {
		c.started = true
		if c.seeking {
			c.seeking = false
			c.sched.Seek(now, c.target)
			c.limit.Forget()
		}
	}
	var it *item
	if c.started {
		it = c.head()
		if it != nil || c.drained {
			c.holding = false
		}
	}
	c.clock(now)
	due, busy := gap.Never, -1
	if it != nil {
		if due = c.sched.Due(it.place); it.kind == packet {
			if due = c.limit.Release(due); due <= now {
				busy = int(it.stream)
			}
		}
	}
	beat := c.beat(now, busy)
	kept, err := c.advance(ctx, now)
	if err != nil {
		return true, err
	}
	beat = min(beat, kept)
	if it == nil {
		if c.drained {
			if err := c.ra.err; err != nil {
				return true, err
			}
			if c.over(now) {
				return c.again(now), nil
			}
		}
		c.w.Until(beat, c.p.wake)
		return false, nil
	}
	if it.kind == hole {
		c.next++
		return false, c.hole(it)
	}
	if (c.steps > 0 || c.stepTo > 0) && !c.sched.Running() {
		if it.kind == heartbeat { // a step is to the next packet
			c.next++
			return false, nil
		}
		c.steps, c.stepTo = max(c.steps-1, 0), max(c.stepTo-int(it.msgs), 0)
		c.sched.Step(it.place)
		if it.kind == packet {
			return false, c.send(ctx, it, now, true)
		}
		due = now
	}
	if due > now {
		c.w.Until(min(due, beat), c.p.wake)
		return false, nil
	}
	if it.kind == heartbeat {
		c.next++
		c.recorded(&c.streams[it.stream], it.first, now)
		return false, nil
	}
	if it.kind == end {
		c.next++
		return false, c.end(ctx, &c.streams[it.stream], it.first, now)
	}
	return false, c.send(ctx, it, now, false)
}

// advance sends what holders kept until now; kept is when more is due.
func (c *conductor) advance(ctx context.Context, now moldcast.Instant) (kept moldcast.Instant, err error) {
	kept = gap.Never
	for _, i := range c.holders {
		o := &c.streams[i]
		var t trouble
		next, err := o.holder.Advance(now)
		for err != nil {
			if err := c.retry(ctx, &t, o, err); err != nil {
				return kept, err
			}
			next, err = o.holder.Advance(c.w.Now())
		}
		if o.ending && next == gap.Never {
			if err := c.end(ctx, o, o.endSeq, now); err != nil {
				return kept, err
			}
		}
		kept = min(kept, next)
	}
	return kept, nil
}

// settle lets go what the sender of o keeps for later packets; kept is when the
// rest is due.
func (c *conductor) settle(ctx context.Context, o *outlet, now moldcast.Instant) (kept moldcast.Instant, err error) {
	if o.holder == nil {
		return gap.Never, nil
	}
	var t trouble
	for {
		kept, err := o.holder.Settle(now)
		if err == nil {
			return kept, nil
		}
		if err := c.retry(ctx, &t, o, err); err != nil {
			return kept, err
		}
	}
}

// flush sends what holders keep, however the replay ended: it counts as sent.
func (c *conductor) flush() {
	for _, i := range c.holders {
		if err := c.streams[i].holder.Flush(); err != nil {
			c.rep.SendErrors++
		}
	}
}

// clock lets the schedule run or stand as things are.
func (c *conductor) clock(now moldcast.Instant) {
	if c.started && !c.paused && !c.holding {
		c.sched.Start(max(now, c.startAt))
	} else {
		c.sched.Pause(now)
	}
	s := &c.p.status
	s.waiting.Store(c.holding)
	at := c.position(now)
	if c.seeking {
		at = c.target
	}
	s.position.Store(uint64(at))
	s.packets.Store(c.rep.Packets)
	s.messages.Store(c.rep.Messages)
	speed := c.sched.Speed()
	if c.cfg.Pace.Max {
		speed = 0
	}
	s.speed.Store(math.Float64bits(speed))
	if c.p.awaited.Load() && (c.drained || c.steps == 0 && c.stepTo == 0) {
		c.p.obeyed()
	}
}

// position is the recorded time at now; under stress that of the last packet.
func (c *conductor) position(now moldcast.Instant) moldcast.Stamp {
	if c.cfg.Stress != (burst.Plan{}) {
		return c.lastTime
	}
	return c.sched.Position(now)
}

// obey takes up what the user wants.
func (c *conductor) obey(now moldcast.Instant) error {
	c.p.mu.Lock()
	o := c.p.mu.orders
	c.p.mu.orders = orders{}
	c.p.mu.Unlock()
	if o == (orders{}) {
		return nil
	}
	if o.quit {
		return c.cut()
	}
	switch {
	case o.pause:
		c.paused = true
	case o.resume:
		c.paused, c.steps, c.stepTo = false, 0, 0
	}
	if o.toggle {
		c.paused = !c.paused
		if !c.paused {
			c.steps, c.stepTo = 0, 0
		}
	}
	c.steps = min(c.steps+o.steps, maxSteps)
	c.stepTo = min(c.stepTo+o.stepTo, maxSteps)
	if o.speed != 0 {
		c.sched.Set(now, o.speed)
	}
	if o.scale != 0 {
		c.sched.Scale(now, o.scale)
	}
	c.p.status.paused.Store(c.paused)
	if o.seek {
		to := o.to
		if !o.seekTo {
			to = c.position(now)
			if c.seeking {
				to = c.target
			}
		}
		c.seek(now, to+moldcast.Stamp(o.by), o.seq)
	}
	return nil
}

// seek moves every stream to recorded time t, one of them to a sequence there.
func (c *conductor) seek(now moldcast.Instant, t moldcast.Stamp, seq place) {
	for _, s := range c.cfg.Streams {
		if s.SeqAt == nil && s.Heard == nil {
			return
		}
	}
	if !c.any || c.allEnded() {
		return
	}
	t = max(t, c.firstTime)
	c.sched.Pause(now)
	c.ra.close()
	for i := range c.streams {
		o := &c.streams[i]
		o.jumped, o.ending, o.ended = true, false, false
		o.space.ended.Store(false)
	}
	c.seeking, c.target = true, t
	c.read(func(i int) moldcast.Seq {
		if seq.seq != 0 && seq.stream == i {
			return seq.seq
		}
		if c.cfg.Streams[i].Heard != nil {
			return 0
		}
		return c.cfg.Streams[i].SeqAt(t)
	})
}

// head is the next item, or nil where there is none now.
func (c *conductor) head() *item {
	for {
		if c.cur != nil {
			if c.next < len(c.cur.items) {
				return &c.cur.items[c.next]
			}
			c.ra.free <- c.cur // never blocks: it holds all chunks
			c.cur = nil
		}
		select {
		case ch, ok := <-c.ra.ready:
			if !ok {
				c.drained = true
				return nil
			}
			c.cur, c.next = ch, 0
			continue
		default:
		}
		// What is handed over between the look and this wakes the thread.
		if c.drained || c.ra.starving.Swap(true) {
			return nil
		}
		if c.sched.Running() {
			c.rep.Starved++
		}
	}
}

// hole deals with a missing range that the replay has come to.
func (c *conductor) hole(it *item) error {
	o := &c.streams[it.stream]
	r := moldcast.Range{First: it.first, Next: it.next}
	switch c.cfg.OnHole {
	case Stop:
		c.rep.Holes++
		return &StopError{Stream: int(it.stream), Session: o.space.session, Range: r, Reason: it.reason}
	case Wait:
		c.holding, c.held = true, r
		c.waitedHoles++
		c.logHole(c.waitedHoles, "hole: waiting until it is filled", o, r, it.reason)
	default:
		c.rep.Holes++
		c.logHole(c.rep.Holes, "hole skipped", o, r, it.reason)
	}
	return nil
}

func (c *conductor) logHole(n uint64, what string, o *outlet, r moldcast.Range, why moldcast.HoleReason) {
	switch {
	case n <= maxHoleLogs:
		c.cfg.Log.Warn(what, "session", o.space.session.String(), "messages", r.String(), "reason", string(why))
	case n == maxHoleLogs+1:
		c.cfg.Log.Warn("further holes are counted only")
	}
}

// send sends it, the head, and what follows it on its stream and is due too;
// a step only it.
func (c *conductor) send(ctx context.Context, it *item, now moldcast.Instant, step bool) error {
	items := c.cur.items[c.next:]
	o := &c.streams[it.stream]
	c.batch = c.batch[:0]
	for i := range items {
		n := &items[i]
		if n.kind != packet || n.stream != it.stream || len(c.batch) == batchSize || step && i > 0 {
			break
		}
		due := now
		if !step {
			if due = c.sched.Due(n.place); due > now || c.limit.Release(due) > now {
				break
			}
		}
		c.limit.Sent(due, now)
		c.dues[i] = due
		c.sched.Sent(n.place, int(n.msgs))
		c.batch = append(c.batch, c.cur.buf[n.at:n.end])
	}
	items = items[:len(c.batch)]
	c.next += len(items)
	return c.transmit(ctx, o, items)
}

// transmit sends the batch, which holds items: all of it, or the replay fails.
func (c *conductor) transmit(ctx context.Context, o *outlet, items []item) error {
	batch, dues := c.batch, c.dues[:]
	var t trouble
	for {
		before := c.w.Now()
		n, err := o.sender.Send(batch)
		after := c.w.Now()
		n = min(max(n, 0), len(batch))
		if n > 0 {
			c.account(o, items[:n], dues, before, after)
			batch, items, dues = batch[n:], items[n:], dues[n:]
			t = trouble{}
		}
		if len(batch) == 0 {
			return nil
		}
		if err := c.retry(ctx, &t, o, err); err != nil {
			return err
		}
	}
}

// trouble is one run of failing sends.
type trouble struct {
	since moldcast.Instant
	wait  time.Duration
}

// retry waits before the next try, or says that there is none.
func (c *conductor) retry(ctx context.Context, t *trouble, o *outlet, err error) error {
	c.rep.SendErrors++
	if err == nil {
		err = io.ErrShortWrite
	}
	now := c.w.Now()
	if t.wait == 0 {
		t.since, t.wait = now, firstRetry
		c.cfg.Log.Debug("sending failed, trying again", "session", o.space.session.String(), "err", err)
	}
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EMSGSIZE) || now-t.since >= moldcast.Instant(c.cfg.SendRetry) {
		return fmt.Errorf("%w: session %s at %d: %w", ErrSend, o.space.session, o.space.Published(), err)
	}
	for until := now + moldcast.Instant(t.wait); c.w.Now() < until; {
		if ctx.Err() != nil {
			return c.cut()
		}
		c.w.Until(until, c.p.wake)
	}
	t.wait = min(2*t.wait, lastRetry)
	return nil
}

// account takes in that items were sent between before and after.
func (c *conductor) account(o *outlet, items []item, dues []moldcast.Instant, before, after moldcast.Instant) {
	n := moldcast.Instant(len(items))
	var late, most moldcast.Instant
	for i := range items {
		it := &items[i]
		c.rep.Messages += uint64(it.msgs)
		c.rep.Bytes += uint64(it.bytes)
		at := before + (after-before)*moldcast.Instant(i+1)/n
		c.rec.add(dues[i], at)
		if !c.cfg.Pace.Max {
			late = at - dues[i]
			most = max(most, late)
		}
		if it.msgs > 0 {
			o.space.sent(moldcast.Range{First: it.first, Next: it.next}, o.jumped)
			o.jumped = false
		}
	}
	c.rep.Packets += uint64(n)
	st := &c.p.status
	st.late.Store(int64(late))
	if int64(most) > st.lateMax.Load() {
		st.lateMax.Store(int64(most))
	}
	o.silent = after
	if !c.any {
		c.any, c.firstTime = true, items[0].time
		c.first, c.due0 = before, dues[0]
		if n == 1 {
			c.first = after
		}
	}
	c.lastTime = items[n-1].time
	c.last, c.due1 = after, dues[n-1]
}

// end sends the first End of Session of a stream, which carries seq: behind
// what its holder keeps.
func (c *conductor) end(ctx context.Context, o *outlet, seq moldcast.Seq, now moldcast.Instant) error {
	o.endSeq = seq
	kept, err := c.settle(ctx, o, now)
	if o.ending = kept != gap.Never; o.ending || err != nil {
		return err
	}
	var t trouble
	for !o.heard {
		err := c.sendMark(o, moldcast.EndCount, seq)
		if err == nil {
			break
		}
		if err := c.retry(ctx, &t, o, err); err != nil {
			return err
		}
	}
	now = max(now, c.w.Now())
	o.ended, o.endAt, o.silent = true, now, now
	o.space.ended.Store(true)
	c.nextBeat = min(c.nextBeat, now)
	c.p.status.ended.Store(c.allEnded())
	return nil
}

func (c *conductor) allEnded() bool {
	for i := range c.streams {
		if !c.streams[i].ended {
			return false
		}
	}
	return true
}

// over reports whether every stream has ended and lingered.
func (c *conductor) over(now moldcast.Instant) bool {
	for i := range c.streams {
		if o := &c.streams[i]; !o.ended || now < o.endAt+moldcast.Instant(c.cfg.Linger) {
			return false
		}
	}
	return true
}

// again starts the next loop, or reports that there is none.
func (c *conductor) again(now moldcast.Instant) bool {
	if c.loop >= c.cfg.Loop {
		return true
	}
	c.loop++
	c.steps, c.stepTo = 0, 0 // steps end with the loop, else packets of the next go by themselves in a pause
	c.ra.close()
	c.sched.Pause(now)
	c.sched.Rewind(now)
	c.limit.Forget()
	c.p.newSpaces(c.loop)
	c.begin(now)
	return false
}

// cut is how a replay ends that the user stops: complete, if all was said.
func (c *conductor) cut() error {
	if c.loop == c.cfg.Loop && c.allEnded() {
		return nil
	}
	return ErrInterrupted
}

func (c *conductor) report() Report {
	r := c.rep
	if c.holding {
		r.Holes++
	}
	if c.any {
		r.Elapsed = time.Duration(c.last - c.first).Seconds()
		r.Scheduled = time.Duration(c.due1 - c.due0).Seconds()
	}
	c.rec.fill(&r)
	return r
}
