package retransmit

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

const (
	writeSlice  = time.Second            // a write that takes longer is interrupted, to look at what came meanwhile
	stallSlices = 4                      // and so often at least, before a reader has stalled: time in which this machine stood still counts as one
	holeLook    = 250 * time.Millisecond // how often an open gap is looked at
	lingerTime  = 2 * time.Second        // how long the last words may take
	shakeTime   = 15 * time.Second       // at most, for a TLS handshake; never more than Stall
	placeFirst  = time.Second            // one that waits in line for so long is told its place …
	placeEvery  = 5 * time.Second        // … and again
	inputSize   = 512
	keepOut     = 4096 // of out, once it is written
)

// reader is one connection. The goroutine in run owns it; the one in receive
// owns input between two resumes.
type reader struct {
	s    *StreamServer
	conn net.Conn
	raw  net.Conn  // under conn
	tcp  *turnConn // under conn; nil: none
	m    *soup.Server

	in     chan input
	resume chan struct{}
	done   chan struct{} // run has ended
	input  [inputSize]byte

	session moldcast.Session
	feed    *feed
	found   chan found // what a login asked for; nil: none is looked for
	opening chan found // the same, until it is accepted: it may hold a snapshot
	snap    *sending   // what is sent before the messages; nil: nothing
	load    *load      // what is waited for; nil: nothing
	near    spot       // where the next message is
	out     []byte     // frames, the first perhaps in part, and how much of them is written
	at      int
	stuck   time.Duration    // writes waited so long since the client last took something, or there was nothing to take
	gapTill moldcast.Instant // an open gap is not looked at again before
	gapAt   moldcast.Seq     // where the client was told of one
	placeAt moldcast.Instant // when the client is told its place in line
	denyAt  moldcast.Instant // when a login is rejected; 0: it is not
	stopAt  moldcast.Instant // the server stops: what is there is sent until then; 0: it does not
	end     StreamEnd

	mute    *list.Element // of StreamServer.mu.mute, until it has logged in; under that mu
	gaveWay bool          // it was closed to make room; the same

	addr  string
	since time.Time
	shown struct {
		sync.Mutex
		user  string
		feed  *feed
		next  moldcast.Seq
		state ReaderState
		load  *load
	}
}

// found is what a login asked for.
type found struct {
	session moldcast.Session
	rec     Recording
	first   moldcast.Seq
	asked   bool     // for a snapshot
	snap    *sending // nil: there is none
	err     error
}

// input is what arrived when; it is in reader.input until resume.
type input struct {
	at  moldcast.Instant
	n   int
	err error
}

func newReader(s *StreamServer, conn net.Conn) *reader {
	now := s.cfg.Clock.Now()
	r := &reader{
		s: s, conn: conn, raw: conn, m: soup.NewServer(now), end: StreamLost, addr: conn.RemoteAddr().String(), since: time.Now(),
		in: make(chan input), resume: make(chan struct{}), done: make(chan struct{}),
	}
	if c, ok := conn.(*net.TCPConn); ok {
		if t, err := newTurnConn(c, s.turns); err == nil { // else it is closed already
			r.tcp, r.conn = t, t
		}
	}
	return r
}

// refuse closes a connection that is not served. What it writes fits the
// socket's buffer.
func (r *reader) refuse(why StreamEnd) {
	if why == StreamNotAllowed {
		r.m.Reject(soup.NotAuthorised)
		if r.s.maySay(why) {
			r.s.cfg.Log.Warn("reader from outside the allow-list is not served", "from", r.conn.RemoteAddr(), "help", "--allow names the networks that are served")
		}
	} else {
		r.m.Refuse("no room for another reader; come back later")
		if r.s.maySay(why) {
			r.s.cfg.Log.Warn("as many readers of the recovery stream as may be; another one is not served", "from", r.conn.RemoteAddr(), "readers", r.s.cfg.Readers)
		}
	}
	if r.s.cfg.TLS == nil { // else there is a handshake before, which nobody waits for
		_ = r.conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, _ = r.conn.Write(r.m.Output(0))
	}
	r.conn.Close()
}

// receive reads what the client sends.
func (r *reader) receive() {
	err := r.shakeHands()
	for {
		n := 0
		if err == nil {
			n, err = r.conn.Read(r.input[:])
		}
		select {
		case r.in <- input{r.s.cfg.Clock.Now(), n, err}:
		case <-r.done:
			return
		}
		if err != nil {
			return
		}
		select {
		case <-r.resume:
		case <-r.done:
			return
		}
	}
}

// shakeHands is over in time, whatever the client does: until then nothing can
// be written to it, and nobody else looks at the time.
func (r *reader) shakeHands() error {
	conn, ok := r.conn.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(shakeTime, r.s.cfg.Stall))
	defer cancel()
	return conn.HandshakeContext(ctx)
}

// startTLS makes the connection one by TLS. Writes to it go on until they get
// nowhere, so a server that stops ends them.
func (r *reader) startTLS(ctx context.Context) (cancel func() bool) {
	inner := r.conn
	if r.tcp != nil {
		r.tcp.stall = r.s.cfg.Stall
	}
	r.conn = tls.Server(inner, r.s.cfg.TLS)
	return context.AfterFunc(ctx, func() { time.AfterFunc(stopTime+lingerTime, func() { inner.Close() }) })
}

// run serves the connection to its end.
func (r *reader) run(ctx context.Context) StreamEnd {
	if r.s.cfg.TLS != nil {
		defer r.startTLS(ctx)()
	}
	defer r.leave()
	go r.receive()
	stop := ctx.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select { // what came, first: it may end it all
		case in := <-r.in:
			if !r.take(in) {
				return r.end
			}
			continue
		case <-stop:
			stop = nil
			r.stop()
		default:
		}
		now := r.s.cfg.Clock.Now()
		r.poll(now)
		if r.at == len(r.out) {
			r.out, r.at = append(r.out[:0], r.m.Output(now)...), 0
		}
		if r.at < len(r.out) {
			if !r.write() {
				return r.end
			}
			continue
		}
		if cap(r.out) > keepOut {
			r.out, r.at = nil, 0
		}
		if r.m.Closing() {
			r.lastWords()
			return r.end
		}
		k, wake := r.next(now)
		if !k.rng.Empty() {
			if !r.send(k) {
				return r.end
			}
			continue
		}
		if r.m.Closing() || r.m.Pending() {
			continue
		}
		r.stuck = 0
		timer.Reset(r.sleep(now))
		select {
		case in := <-r.in:
			if !r.take(in) {
				return r.end
			}
		case f := <-r.found:
			r.accept(f)
		case <-wake:
		case <-timer.C:
		case <-stop:
			stop = nil
			r.stop()
		}
	}
}

// leave ends what run began.
func (r *reader) leave() {
	close(r.done)
	r.endSnapshot()
	if r.opening != nil {
		takeBack(r.opening)
	}
	if r.tcp != nil {
		r.tcp.Close() // TLS has said goodbye, or would wait for a client that does not read
	} else {
		r.conn.Close()
	}
	if r.feed != nil {
		r.s.leave(r.feed)
	}
	r.s.cfg.Log.Debug("reader left", "from", r.conn.RemoteAddr(), "session", r.session, "next", r.m.Next(), "why", r.end)
}

// poll does what is due.
func (r *reader) poll(now moldcast.Instant) {
	if r.stopAt != 0 && now >= r.stopAt {
		r.close(StreamStopped, stopText)
	}
	if r.denyAt != 0 && now >= r.denyAt && !r.m.Closing() {
		r.end = StreamUnauthorised
		r.m.Reject(soup.NotAuthorised)
	}
	if r.load != nil && now >= r.placeAt {
		r.tellPlace(now)
	}
	if err := r.m.Poll(now); err != nil {
		if errors.Is(err, soup.ErrSilent) {
			r.close(StreamSilent, "no heartbeat came in time")
		} else {
			r.close(StreamNoLogin, "no login came in time")
		}
	}
}

// tellPlace tells the client how many are before it.
func (r *reader) tellPlace(now moldcast.Instant) {
	r.placeAt = now + moldcast.Instant(placeEvery)
	ahead, all, ok := r.s.wire.place(r.load)
	if !ok {
		return
	}
	r.m.Say(fmt.Sprintf("waits for the archive: place %d of %d", ahead+1, all))
	if r.s.maySay(StreamEnds) {
		r.s.cfg.Log.Info("readers of the recovery stream wait for the archive", "reads_in_line", all, "all_read_in", r.s.line.eta(all).Round(time.Millisecond), "help", "--recovery-reads is how many are read at once")
	}
}

const (
	stopText = "the server stops"
	stopTime = time.Second
)

// stop has what was stored by now sent, and perhaps the end of the session,
// before the connection is closed.
func (r *reader) stop() {
	if r.feed == nil {
		r.close(StreamStopped, stopText)
		r.found, r.denyAt = nil, 0
		return
	}
	r.stopAt = r.s.cfg.Clock.Now() + moldcast.Instant(stopTime)
	r.feed.look(false)
}

func (r *reader) sleep(now moldcast.Instant) time.Duration {
	d := r.m.Deadline()
	if r.gapTill > now {
		d = min(d, r.gapTill)
	}
	if r.load != nil {
		d = min(d, r.placeAt)
	}
	for _, t := range [...]moldcast.Instant{r.denyAt, r.stopAt} {
		if t != 0 {
			d = min(d, t)
		}
	}
	return max(0, min(time.Duration(d-now), time.Hour))
}

// close ends the stream for a reason that the client is told.
func (r *reader) close(why StreamEnd, text string) {
	if !r.m.Closing() {
		r.end = why
		r.m.Refuse(text)
	}
}

// take handles what came. False: nothing more can be sent.
func (r *reader) take(in input) bool {
	for b := r.input[:in.n]; len(b) > 0; {
		n, login, err := r.m.Receive(in.at, b)
		b = b[n:]
		if err != nil {
			if r.s.maySay(StreamProtocol) {
				r.s.cfg.Log.Warn("reader does not speak SoupBinTCP", "from", r.conn.RemoteAddr(), "error", err)
			}
			r.close(StreamProtocol, err.Error())
			break
		}
		if login != nil {
			r.login(in.at, login)
		}
	}
	if r.m.Closing() && r.end == StreamLost {
		r.end = StreamLogout
	}
	if in.err != nil {
		var not tls.RecordHeaderError
		switch {
		case r.end != StreamLost:
		case errors.Is(in.err, context.DeadlineExceeded):
			r.end = StreamNoLogin
		case errors.As(in.err, &not):
			r.end = StreamProtocol
			if r.s.maySay(StreamProtocol) {
				r.s.cfg.Log.Warn("reader does not speak TLS", "from", r.conn.RemoteAddr(), "error", in.err)
			}
		}
		return false // else with end as it is
	}
	r.resume <- struct{}{}
	return true
}

// login has what it asks for looked for, in line: that may read a disk.
func (r *reader) login(now moldcast.Instant, l *soup.Login) {
	r.shown.Lock()
	r.shown.user = l.Name()
	r.shown.Unlock()
	if !r.s.authorised(now, r, l) {
		r.denyAt = now + moldcast.Instant(denyAfter)
		return
	}
	r.s.mu.Lock()
	r.s.spoke(r)
	r.s.mu.Unlock()
	result, session, seq, snap := make(chan found, 1), l.Session, l.Seq, l.WantsSnapshot()
	r.found, r.opening = result, result
	r.s.line.put(func() {
		var f found
		switch f.session, f.rec, f.err = r.s.cfg.Recordings.Recording(session); {
		case f.err != nil:
		case snap:
			f.begin(r.s.wire, seq)
		default:
			f.first = r.s.wire.first(f.rec, seq)
		}
		r.hand(f, result)
	})
}

// accept accepts or rejects.
func (r *reader) accept(f found) {
	r.found, r.opening = nil, nil
	switch {
	case r.m.Closing():
		if f.snap != nil {
			f.snap.close()
		}
		return
	case f.err != nil:
		if !errors.Is(f.err, ErrNoRecording) && r.s.maySay(StreamFailed) {
			r.s.cfg.Log.Error("archive cannot be read for the recovery stream", "error", f.err)
		}
		r.end = StreamRejected
		r.m.Reject(soup.SessionNotAvailable)
		return
	}
	r.session, r.feed = f.session, r.s.join(f.session, f.rec)
	r.m.Accept(f.session, f.first)
	r.announce(f)
	r.shown.Lock()
	r.shown.feed = r.feed
	r.shown.Unlock()
	r.show(ReaderHistory)
	r.s.cfg.Log.Debug("reader", "from", r.conn.RemoteAddr(), "session", f.session, "first", f.first)
}

// show is what Readers tells.
func (r *reader) show(state ReaderState) {
	r.shown.Lock()
	r.shown.next, r.shown.state, r.shown.load = r.m.Next(), state, r.load
	r.shown.Unlock()
}

// next is the chunk that comes next. If none does as yet, wake is closed when
// one may; nil: at Deadline, or what is pending says why not.
func (r *reader) next(now moldcast.Instant) (k chunk, wake <-chan struct{}) {
	if !r.m.Serving() {
		return k, nil
	}
	if r.snap != nil {
		return k, r.nextPiece()
	}
	at, changed := r.feed.now()
	q := r.m.Next()
	switch {
	case q < at.head, at.ended && q < at.end:
	case at.ended:
		r.end = StreamComplete
		r.m.End()
		return k, nil
	case at.moved:
		r.close(StreamMoved, "the session began anew; log in again")
		return k, nil
	case r.stopAt != 0:
		r.close(StreamStopped, stopText)
		return k, nil
	default:
		r.show(ReaderLive)
		return k, changed
	}
	if now < r.gapTill {
		return k, nil
	}
	for {
		l := r.load
		if l == nil {
			if k, l = r.s.wire.get(r.feed, q); l == nil {
				return k, nil
			}
			r.load, r.placeAt = l, now+moldcast.Instant(placeFirst)
		}
		select {
		case <-l.done:
			r.load = nil
			if l.at == q && (l.err != nil || !l.hole.Empty()) {
				r.lacks(now, l)
				return k, nil
			}
		default:
			r.show(ReaderHistory)
			return k, l.done
		}
	}
}

// lacks says why a load brought nothing.
func (r *reader) lacks(now moldcast.Instant, l *load) {
	switch {
	case l.err != nil:
		if r.s.maySay(StreamFailed) {
			r.s.cfg.Log.Error("archive cannot be read for the recovery stream", "session", r.session, "seq", l.at, "error", l.err)
		}
		r.close(StreamFailed, "the archive cannot be read")
	case l.forGood:
		r.hole(l.hole)
	default:
		if r.gapAt != l.at {
			r.gapAt = l.at
			r.m.Gap(l.hole)
		}
		r.gapTill = now + moldcast.Instant(holeLook)
		r.show(ReaderGap)
	}
}

func (r *reader) hole(h moldcast.Range) {
	r.end = StreamHole
	r.m.Hole(h)
}

// send writes what comes next of a chunk. A write that is interrupted gives the
// chunk back: only the rest of the frame that is half written is kept. False:
// the connection is of no more use.
func (r *reader) send(k chunk) bool {
	data := k.from(r.m.Next(), r.near)
	n, err := r.put(data)
	frames, size := int(k.rng.Next-r.m.Next()), n
	r.near = k.end()
	if n < len(data) {
		for frames, size = 0, 0; size < n; frames++ {
			size += frameSize(data[size:])
		}
		r.near = spot{k.rng.First, r.m.Next() + moldcast.Seq(frames), len(k.wire) - len(data) + size}
		r.out, r.at = append(r.out[:0], data[n:size]...), 0
	}
	r.m.Sent(0, frames)
	r.s.messages.Add(uint64(frames))
	r.s.bytes.Add(uint64(size))
	r.show(ReaderHistory)
	return r.written(n, err)
}

// write writes some of out. False: the connection is of no more use.
func (r *reader) write() bool {
	n, err := r.put(r.out[r.at:])
	r.at += n
	return r.written(n, err)
}

func (r *reader) put(b []byte) (int, error) {
	_ = r.conn.SetWriteDeadline(time.Now().Add(r.slice()))
	return r.conn.Write(b)
}

// slice is how long a write may take.
func (r *reader) slice() time.Duration { return min(writeSlice, r.s.cfg.Stall/stallSlices) }

// written looks at how a write went. False: the connection is of no more use.
func (r *reader) written(n int, err error) bool {
	now := r.s.cfg.Clock.Now()
	r.m.Sent(now, 0) // else heartbeats pile up for one who reads slowly, and no message gets past them
	timeout := errors.Is(err, os.ErrDeadlineExceeded)
	if n > 0 {
		r.stuck = 0
	} else if timeout {
		r.stuck += r.slice()
	}
	switch {
	case err == nil:
		return true
	case !timeout:
		if r.end == StreamComplete || r.end == StreamHole {
			r.end = StreamLost
		}
		return false
	case r.s.cfg.TLS != nil && !r.m.Closing():
		// The stream cannot be taken up again, not even to say why.
		r.stalled()
		r.end = StreamStalled
		return false
	case r.m.Closing():
		return r.stuck < r.patience()
	case r.stuck < r.s.cfg.Stall:
		return true
	}
	r.stalled()
	r.close(StreamStalled, "nothing of what was sent was read for "+r.s.cfg.Stall.String())
	r.stuck = 0
	return true
}

func (r *reader) stalled() {
	if r.s.maySay(StreamStalled) {
		r.s.cfg.Log.Warn("reader of the recovery stream reads nothing; disconnected", "from", r.conn.RemoteAddr(), "session", r.session, "next", r.m.Next(), "for", r.s.cfg.Stall)
	}
}

// patience is how long the last words may take.
func (r *reader) patience() time.Duration {
	if r.end == StreamComplete || r.end == StreamHole {
		return r.s.cfg.Stall
	}
	return lingerTime
}

// lastWords lets the client read all before the connection is closed: a
// connection that is closed with input unread is reset, and what was sent is
// lost.
func (r *reader) lastWords() {
	half, ok := r.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	timeout := time.NewTimer(lingerTime)
	defer timeout.Stop()
	for {
		select {
		case in := <-r.in:
			if in.err != nil {
				return
			}
			r.resume <- struct{}{}
		case <-timeout.C:
			return
		}
	}
}
