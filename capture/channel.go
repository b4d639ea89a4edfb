package capture

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

const (
	slotSize    = 2048             // of a ring: a full Ethernet frame; longer datagrams get a buffer of their own
	answerSlots = 4096             // or half of what a line has, where that is less,
	leastSlots  = 256              // but not less than this
	drainBatch  = 64               // datagrams of one ring before the next ring has its turn
	alarmEvery  = 10 * time.Second // a trouble that lasts is logged so often
	maxRecent   = 256              // closed sessions remembered for Status

	stopQuiet = 20 * time.Millisecond
	stopLimit = time.Second

	lookEvery = 500 * time.Millisecond // how the archive does

	flushTries = 500 // of 10 ms: how long a stop waits for room in the store
	flushPause = 10 * time.Millisecond
)

// Channel captures one channel. The goroutine in Run owns everything in it
// but the counters of the sockets; Status and Lines may be called from others.
type Channel struct {
	cfg      Config
	sink     Sink
	clock    mcast.Clock
	wake     *mcast.Wake
	lines    []*tap
	asks     *mcast.RX // the socket that requests go out of and answers come in; nil without servers
	arb      *arbiter.Arbiter
	asksHigh int         // as tap.high
	ask      chan func() // run by the engine
	wants    chan wanted // taken note of by the engine
	windows  atomic.Pointer[map[moldcast.Session]uint64]
	ended    chan struct{} // the engine takes no more
	cold     *cold
	recovery recovery
	acks     *acker // nil: nothing is acknowledged

	stopped chan struct{} // final is here
	final   Status

	servers    []netip.AddrPort // by the arbiter's number; the stream's source is last, and zero until heard
	sourceSeen moldcast.Instant // when the stream was last heard from that source
	lastPacket moldcast.Instant
	foreign    uint64 // datagrams from senders that no line names or that were not asked: in wrong_session
	request    []byte
	out        []mcast.Datagram

	closing sync.WaitGroup
	mu      struct {
		sync.Mutex
		recent       []SessionStatus // sessions that were closed
		failed       error           // the first failure to close one
		closeTrouble Trouble         // that
	}

	writeAlarm, openAlarm, holeAlarm moldcast.Instant // when each may be logged again

	openTrouble Trouble // a session cannot be opened
	lastStorage Storage // what was logged
	health      health
	rate        rate
	nextNote    moldcast.Instant // when the lag of sessions is noted next
	nextRecord  moldcast.Instant // when what was measured of them is put on record next
	nextLook    moldcast.Instant
	quietHoles  uint64 // on record since the last that was logged
}

// session is what the engine keeps of one of the arbiter's.
type session struct {
	sink     SessionSink
	first    moldcast.Seq // what sink.Start was told, or was stored lowest
	over     bool         // its sender goes on as another take or session
	lag      lag
	began    moldcast.Stamp // when this capture took it up
	recorded uint64         // packets of lines, when what was measured was put on record
	peers    []peer         // for recovery streams, as in Config.Recovery
	turn     int            // whose turn it is
	reads    sync.WaitGroup // comparisons and copies that read it
	acked    *acked
}

// Lines are the addresses that the lines are received on, in their order.
func (c *Channel) Lines() []string {
	out := make([]string, len(c.cfg.Lines))
	for _, t := range c.lines {
		for _, l := range t.own() {
			out[l] = t.Addr(l + t.base).String()
		}
	}
	return out
}

// Run captures until ctx is done, or as Config.UntilEnd and EndTimeout say.
// It then makes everything durable, closes every session and the sockets, and
// returns the last status. Errors: ErrEndTimeout; a session that could not be
// closed well; a socket that failed for good.
func (c *Channel) Run(ctx context.Context) (Status, error) {
	c.cold.start(c)
	c.startRecovery()
	if c.acks != nil {
		go c.acks.run()
	}
	err := c.engine(ctx)
	c.windows.Store(nil) // nobody sees any more what servers have
	c.finishCopies()
	close(c.ended)
	c.stopRecovery()
	c.readOut()
	c.closeSockets()
	for c.drain() {
	}
	// What waited becomes islands. A full store takes them as it gets room; one
	// that gets none leaves them missing, to be repaired by the next capture.
	for i := 0; !c.arb.Flush(c.clock.Now()) && i < flushTries && !c.storage().Degraded(); i++ {
		<-time.After(flushPause)
	}
	for _, s := range c.arb.Sessions() {
		c.release(s)
	}
	c.cold.stop()
	c.closing.Wait()
	c.acks.finish()
	err = errors.Join(err, c.mu.failed)
	st := c.status()
	st.State, st.Since, st.Reasons = StateStopped, nil, []Degradation{}
	if err != nil {
		st.State, st.Error = StateFailed, err.Error()
	}
	c.final = st
	close(c.stopped)
	return st, err
}

// readOut takes what the kernel had received when the stop came: until the
// receive threads have found nothing for a while, stopQuiet, and their sockets
// are empty, or stopLimit has passed on a line that never falls silent. Time in
// which the machine stood still is not time in which they could read.
func (c *Channel) readOut() {
	for spent := time.Duration(0); spent < stopLimit; {
		began := time.Now()
		quiet := time.NewTimer(stopQuiet)
		signal := c.wake.Arm()
		if c.waiting() {
			c.wake.Disarm()
			c.drain()
		} else {
			over := false
			select {
			case <-signal:
			case <-quiet.C:
				over = c.idle()
			}
			c.wake.Disarm()
			if over {
				return
			}
		}
		quiet.Stop()
		spent += min(time.Since(began), stopLimit/10)
	}
}

// Close releases the sockets of a Channel that is not, or no longer, run.
func (c *Channel) Close() {
	c.closeSockets()
	c.acks.shut()
	for _, t := range c.lines {
		t.rx.Ring().Discard()
	}
}

// Status is a snapshot, taken by the engine between two packets, or the last
// one, once Run has returned. ctx bounds the wait for it.
func (c *Channel) Status(ctx context.Context) (Status, error) {
	got := make(chan Status, 1)
	select {
	case c.ask <- func() {
		c.look(c.storage()) // what is shown is in the log
		got <- c.status()
	}:
		return <-got, nil
	case <-c.ended:
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
	select {
	case <-c.stopped:
		return c.final, nil
	case <-ctx.Done():
		return Status{}, fmt.Errorf("channel %s is stopping: %w", c.cfg.Channel, ctx.Err())
	}
}

func (c *Channel) engine(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	c.lastPacket = c.clock.Now()
	c.health = newHealth(len(c.cfg.Lines), c.lastPacket)
	for {
		busy := c.drain()
		now := c.clock.Now()
		c.takeWants(now)
		c.requests(now)
		c.watchGaps(now)
		final := c.cfg.UntilEnd && c.arb.Final(now) && !c.storage().Degraded() // trouble lasts until what waited is durable
		owed := final && c.owed(now)
		switch {
		case ctx.Err() != nil, final && !owed:
			return nil
		case c.cfg.EndTimeout > 0 && !busy && !owed && now-c.lastPacket >= moldcast.Instant(c.cfg.EndTimeout) && c.idle() && !c.waiting():
			return fmt.Errorf("channel %s: %w %v", c.cfg.Channel, ErrEndTimeout, c.cfg.EndTimeout)
		}
		if err := c.failed(); err != nil {
			return err
		}
		if now >= c.nextLook {
			c.nextLook = now + moldcast.Instant(lookEvery)
			c.look(c.storage())
			c.watch(now)
			c.recordDue(now)
			c.retain(now)
			c.noteWindows(now)
			n := c.arb.Counters()
			c.rate.note(ratePoint{now, n.Packets, n.Messages, n.Bytes})
		}
		c.noteLag(now)
		c.scan(now)
		if busy {
			bulk := c.recovery.bulk
			if c.overloaded() {
				bulk = nil
			}
			select {
			case fn := <-c.ask:
				fn()
			case fn := <-bulk:
				fn()
			default:
			}
			continue
		}
		signal := c.wake.Arm()
		if c.waiting() {
			c.wake.Disarm()
			continue
		}
		timer.Reset(c.sleep(now, !owed))
		select {
		case <-signal:
		case <-timer.C:
		case fn := <-c.ask:
			fn()
		case w := <-c.wants:
			c.arb.Want(c.clock.Now(), w.session, w.r)
		case fn := <-c.recovery.bulk:
			fn()
		case <-ctx.Done():
		}
		c.wake.Disarm()
	}
}

// retain drops what is missing below what retention left.
func (c *Channel) retain(now moldcast.Instant) {
	for _, s := range c.arb.Sessions() {
		x, ok := s.Ref.(*session)
		if !ok {
			continue
		}
		floor := x.sink.Floor()
		if n := c.arb.Retain(now, s, floor); n > 0 {
			c.cfg.Log.Info("retention removed what lies around open gaps: they are no longer asked for", "channel", c.cfg.Channel, "session", s.Name(),
				"below", floor, "messages", n)
		}
	}
}

// noteLag notes up to where sessions are held and durable.
func (c *Channel) noteLag(now moldcast.Instant) {
	if now < c.nextNote {
		return
	}
	c.nextNote = now + lagStep
	for _, s := range c.arb.Sessions() {
		if x, ok := s.Ref.(*session); ok {
			_, durable, head := x.sink.Watermarks()
			x.lag.note(now, durable, head)
		}
	}
}

// sleep is how long the engine may sleep if nothing arrives.
// timesOut: Config.EndTimeout holds.
func (c *Channel) sleep(now moldcast.Instant, timesOut bool) time.Duration {
	at := min(c.arb.Deadline(), c.nextLook, c.recovery.nextScan)
	if c.cfg.EndTimeout > 0 && timesOut {
		at = min(at, c.lastPacket+moldcast.Instant(c.cfg.EndTimeout))
	}
	if at == gap.Never {
		return time.Hour
	}
	return max(0, min(time.Duration(at-now), time.Hour))
}

func (c *Channel) waiting() bool {
	for _, t := range c.lines {
		if !t.rx.Ring().Empty() {
			return true
		}
	}
	return c.asks != nil && !c.asks.Ring().Empty()
}

// idle reports whether the receive threads have read all there is.
func (c *Channel) idle() bool {
	for _, t := range c.lines {
		if !t.rx.Idle() {
			return false
		}
	}
	return c.asks == nil || c.asks.Idle()
}

// failed is the error of a receive thread that ended by itself.
func (c *Channel) failed() error {
	for _, t := range c.lines {
		if err := t.rx.Err(); err != nil {
			return fmt.Errorf("channel %s: %v: %w", c.cfg.Channel, t.Socket.LocalAddr(), err)
		}
	}
	return nil
}

// drain offers what waits in the rings, some of each in turn, and reports
// whether it may have left any.
func (c *Channel) drain() bool {
	more := false
	now := c.clock.Now()
	for _, t := range c.lines {
		ring := t.rx.Ring()
		t.high = max(t.high, ring.Len())
		n := 0
		for ; n < drainBatch; n++ {
			d := ring.Pop()
			if d == nil {
				break
			}
			line := t.line(d)
			if line < 0 {
				c.foreign++ // another sender's, which no line is to hear
				continue
			}
			c.lastPacket = now
			c.heardFrom(now, d.Src.Addr())
			if server := slices.Index(c.servers, d.Src); server >= 0 {
				c.arb.HeardAnswer(now, server, d.Data)
			}
			c.arb.Offer(now, d.Stamp, line, d.Src.Addr(), d.Data)
		}
		more = more || n == drainBatch
	}
	if c.asks == nil {
		return more
	}
	ring := c.asks.Ring()
	c.asksHigh = max(c.asksHigh, ring.Len())
	n := 0
	for ; n < drainBatch; n++ {
		d := ring.Pop()
		if d == nil {
			break
		}
		server := c.server(d.Src)
		if server < 0 {
			c.foreign++
			continue
		}
		c.arb.OfferAnswer(now, d.Stamp, server, d.Data)
	}
	return more || n == drainBatch
}

// heardFrom follows the address of the stream for RerequestSource: another
// one is believed when the last has been silent for three heartbeats.
func (c *Channel) heardFrom(now moldcast.Instant, src netip.Addr) {
	if !c.cfg.RerequestSource {
		return
	}
	last := &c.servers[len(c.servers)-1]
	switch {
	case last.Addr() == src:
	case last.IsValid() && now-c.sourceSeen < moldcast.Instant(3*time.Second):
		return
	default:
		*last = netip.AddrPortFrom(src, c.cfg.RerequestPort)
		c.cfg.Log.Info("requests go to the stream's source", "channel", c.cfg.Channel, "server", *last)
	}
	c.sourceSeen = now
}

// server is the number of the server that a datagram came from: by address
// and port, else by address, since some answer from another port; -1 when
// nobody there was asked.
func (c *Channel) server(src netip.AddrPort) int {
	if i := slices.Index(c.servers, src); i >= 0 {
		return i
	}
	return slices.IndexFunc(c.servers, func(a netip.AddrPort) bool { return a.IsValid() && a.Addr() == src.Addr() })
}

// requests sends what is due.
func (c *Channel) requests(now moldcast.Instant) {
	c.request, c.out = c.request[:0], c.out[:0]
	for {
		s, r, ok := c.arb.Poll(now)
		if !ok {
			break
		}
		if c.asks == nil || !c.servers[r.Server].IsValid() {
			continue // the stream's source is not known yet; it is asked again
		}
		at := len(c.request)
		c.request = moldcast.AppendRequest(c.request, moldcast.Request{Session: s, First: r.Range.First, Count: uint16(min(r.Range.Len(), moldcast.MaxCount))})
		c.out = append(c.out, mcast.Datagram{Data: c.request[at:len(c.request):len(c.request)], Dst: c.servers[r.Server]})
	}
	if len(c.out) > 0 {
		// A request that the system does not take is one that was lost: the
		// socket counts it, and the schedule repeats it.
		_, _ = c.asks.Socket().WriteBatch(c.out)
	}
}

// release closes a session of the arbiter in the background: sealing takes
// its time.
func (c *Channel) release(s *arbiter.Session) {
	x, ok := s.Ref.(*session)
	if !ok {
		return
	}
	s.Ref = nil
	c.record(s, x, true)
	st := sessionStatus(s, x)
	c.closing.Go(func() {
		x.reads.Wait()
		x.acked.noReads()
		err := x.sink.Close()
		c.acks.closed(x.acked)
		if err != nil {
			err = fmt.Errorf("channel %s, session %v: %w", c.cfg.Channel, st.Session, err)
			c.cfg.Log.Error("session not closed well", "err", err)
		}
		st.watermarks(x)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.mu.failed == nil && err != nil {
			c.mu.failed, c.mu.closeTrouble = err, Trouble{Err: err, Since: time.Now()}
		}
		if len(c.mu.recent) == maxRecent {
			c.mu.recent = slices.Delete(c.mu.recent, 0, 1)
		}
		c.mu.recent = append(c.mu.recent, st)
	})
}

// alarm reports whether a trouble that is due by at is to be logged now.
func (c *Channel) alarm(at *moldcast.Instant) bool {
	now := c.clock.Now()
	if now < *at {
		return false
	}
	*at = now + moldcast.Instant(alarmEvery)
	return true
}

// output is the arbiter's way to the sink.
type output struct{ c *Channel }

func (o output) Open(s *arbiter.Session) (moldcast.Held, error) {
	c := o.c
	sink, err := c.sink.Open(c.cfg.Channel, s.Name(), 0, c.Lines())
	if err != nil {
		if c.openTrouble.Err == nil {
			c.openTrouble.Since = time.Now()
		}
		c.openTrouble.Err = err
		if c.alarm(&c.openAlarm) {
			c.cfg.Log.Error("session cannot be opened; retried", "channel", c.cfg.Channel, "session", s.Name(), "err", err)
		}
		return moldcast.Held{}, err
	}
	c.openTrouble = Trouble{}
	x := &session{sink: sink, began: c.clock.Wall(), acked: c.acks.open(s.Name(), sink)}
	s.Ref = x
	held := sink.Held()
	c.cfg.Log.Info("session", "channel", c.cfg.Channel, "session", s.Name(), "take", sink.Take(), "held", moldcast.Range{First: held.First, Next: held.Head}.String(), "holes", len(held.Holes))
	c.resume(s, x)
	return held, nil
}

// sink is where s is stored, told where s begins.
func (o output) sink(s *arbiter.Session) SessionSink {
	x := s.Ref.(*session)
	if f := s.First(); f != x.first {
		x.first = f
		x.sink.Start(f)
	}
	return x.sink
}

func (o output) Append(s *arbiter.Session, p moldcast.Piece) bool {
	var err error
	if x := s.Ref.(*session); p.First == s.First() && x.first != 0 {
		// Where the lowest is stored is where the session begins: that need not
		// be told apart, message by message of a stream that descends.
		if _, err = x.sink.Append(p); err == nil {
			x.first = p.First
		}
	} else {
		_, err = o.sink(s).Append(p)
	}
	if err != nil && o.c.alarm(&o.c.writeAlarm) {
		o.c.cfg.Log.Error("messages not stored yet: they wait in memory, and what that has no room for stays a gap", "channel", o.c.cfg.Channel, "session", s.Name(), "range", p.Range(), "err", err)
	}
	return err == nil
}

func (o output) Room(s *arbiter.Session) bool { return s.Ref.(*session).sink.Room() }

func (o output) Covers(s *arbiter.Session, r moldcast.Range) (moldcast.Range, bool) {
	return o.sink(s).Covers(r)
}

func (o output) Mark(s *arbiter.Session, m moldcast.Mark) { o.sink(s).Mark(m) }

func (o output) Heard(s *arbiter.Session, h moldcast.Heard) {
	if o.c.cfg.LineLog {
		s.Ref.(*session).sink.Heard(h)
	}
}

func (o output) Hole(s *arbiter.Session, h moldcast.Hole) {
	o.sink(s).Hole(h)
	if c := o.c; c.alarm(&c.holeAlarm) {
		args := []any{"channel", c.cfg.Channel, "session", s.Name(), "range", h.Range, "messages", h.Range.Len(), "holes_not_logged", c.quietHoles}
		if h.Range.First == s.First() { // most likely it joined late, what the servers no longer have
			args = append(args, "hint", "a session begins with its first message unless --start live has it begin with what is heard")
		}
		if len(c.servers) == 0 && len(c.cfg.Recovery) == 0 {
			args = append(args, "asked", "nobody: there is no request server (--rerequest), and no recovery peer")
		}
		c.cfg.Log.Warn("hole on record; it is filled if its messages still come", args...)
		c.quietHoles = 0
	} else {
		c.quietHoles++
	}
}

func (o output) Ended(s *arbiter.Session) {
	end, _ := s.End()
	o.c.cfg.Log.Info("end of session", "channel", o.c.cfg.Channel, "session", s.Name(), "end", end, "missing_ranges", s.Missing())
}

func (o output) Withdrawn(s *arbiter.Session) {
	o.c.cfg.Log.Warn("the end of session was withdrawn: others deny it", "channel", o.c.cfg.Channel, "session", s.Name(), "head", s.Head())
	o.sink(s).Withdraw()
}

func (o output) Superseded(was, by *arbiter.Session) {
	x, y := was.Ref.(*session), by.Ref.(*session)
	name := o.c.cfg.Channel + "/" + by.Name().String()
	if take := y.sink.Take(); take != 1 {
		name += fmt.Sprintf("@%d", take)
	}
	x.over = true
	x.sink.Supersede(name)
	if was.Name() != by.Name() {
		o.c.cfg.Log.Warn("a session is over without an End of Session: its sender goes on as another", "channel", o.c.cfg.Channel, "session", was.Name(), "by", name)
	}
}

func (o output) Conflict(s *arbiter.Session, at moldcast.Seq, line int) {
	o.c.cfg.Log.Warn("a message came again with other bytes; dropped and counted in conflicts", "channel", o.c.cfg.Channel, "session", s.Name(), "seq", at, "line", mcast.LineName(line))
}

func (o output) Close(s *arbiter.Session) { o.c.release(s) }
