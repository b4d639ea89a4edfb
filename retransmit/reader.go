package retransmit

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

const (
	streamChunk = 32 << 10               // bytes of messages read at a time
	writeSlice  = time.Second            // a write that takes longer is interrupted, to look at what came meanwhile
	holeLook    = 250 * time.Millisecond // how often an open gap is looked at
	lingerTime  = 2 * time.Second        // how long the last words may take
	inputSize   = 512
)

// reader is one connection. The goroutine in run owns it; the one in receive
// owns input between two resumes.
type reader struct {
	s    *StreamServer
	conn net.Conn
	m    *soup.Server

	in     chan input
	resume chan struct{}
	done   chan struct{} // run has ended
	input  [inputSize]byte

	session moldcast.Session
	feed    *feed
	out     []byte // whole frames, and how much of them is written
	at      int
	moved   moldcast.Instant // when the client last took something, or there was nothing to take
	gapTill moldcast.Instant // an open gap is not looked at again before
	gapAt   moldcast.Seq     // where the client was told of one
	stopAt  moldcast.Instant // the server stops: what is there is sent until then; 0: it does not
	end     StreamEnd
}

// input is what arrived when; it is in reader.input until resume.
type input struct {
	at  moldcast.Instant
	n   int
	err error
}

func newReader(s *StreamServer, conn net.Conn) *reader {
	now := s.cfg.Clock.Now()
	return &reader{
		s: s, conn: conn, m: soup.NewServer(now), moved: now, end: StreamLost,
		in: make(chan input), resume: make(chan struct{}), done: make(chan struct{}),
	}
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
	_ = r.conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = r.conn.Write(r.m.Output(0))
	r.conn.Close()
}

// receive reads what the client sends.
func (r *reader) receive() {
	for {
		n, err := r.conn.Read(r.input[:])
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

// run serves the connection to its end.
func (r *reader) run(ctx context.Context) StreamEnd {
	defer func() {
		close(r.done)
		r.conn.Close()
		if r.feed != nil {
			r.s.leave(r.feed)
		}
		r.s.cfg.Log.Debug("reader left", "from", r.conn.RemoteAddr(), "session", r.session, "next", r.m.Next(), "why", r.end)
	}()
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
		if r.stopAt != 0 && now >= r.stopAt {
			r.close(StreamStopped, stopText)
		}
		if err := r.m.Poll(now); err != nil {
			if errors.Is(err, soup.ErrSilent) {
				r.close(StreamSilent, "no heartbeat came in time")
			} else {
				r.close(StreamNoLogin, "no login came in time")
			}
		}
		var changed <-chan struct{}
		if r.at == len(r.out) {
			r.out, r.at = append(r.out[:0], r.m.Output(now)...), 0
			changed = r.fill(now)
			r.out = append(r.out, r.m.Output(now)...)
		}
		if r.at < len(r.out) {
			if !r.write() {
				return r.end
			}
			continue
		}
		r.out = nil
		r.moved = now
		if r.m.Closing() {
			r.lastWords()
			return r.end
		}
		timer.Reset(r.sleep(now))
		select {
		case in := <-r.in:
			if !r.take(in) {
				return r.end
			}
		case <-changed:
		case <-timer.C:
		case <-stop:
			stop = nil
			r.stop()
		}
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
	if r.stopAt != 0 {
		d = min(d, r.stopAt)
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
		return false // with end as it is
	}
	r.resume <- struct{}{}
	return true
}

// login accepts or rejects.
func (r *reader) login(now moldcast.Instant, l *soup.Login) {
	session, rec, err := r.s.cfg.Recordings.Recording(l.Session)
	if err != nil {
		if !errors.Is(err, ErrNoRecording) && r.s.maySay(StreamFailed) {
			r.s.cfg.Log.Error("archive cannot be read for the recovery stream", "session", l.Session, "error", err)
		}
		r.end = StreamRejected
		r.m.Reject(soup.SessionNotAvailable)
		return
	}
	r.session, r.feed = session, r.s.join(session, rec)
	first := r.first(rec, l.Seq)
	r.m.Accept(session, first)
	r.s.cfg.Log.Debug("reader", "from", r.conn.RemoteAddr(), "session", session, "asked", l.Seq, "first", first)
}

// first is the lowest sequence at or after q that is held, or may yet be.
func (r *reader) first(rec Recording, q moldcast.Seq) moldcast.Seq {
	end, ended := rec.Ended()
	first, head := rec.Bounds()
	if q == 0 && head > first {
		q = head - 1 // the most recent message
	}
	if ended {
		head = max(head, end)
	}
	q = min(max(q, first, 1), max(head, 1))
	for q < head {
		hole, forGood, err := r.read(nil, rec, q, 1)
		if err != nil || !forGood || hole.Empty() {
			return q
		}
		q = hole.Next
	}
	return q
}

// read calls fn with messages from q on. Otherwise hole is what is missing
// there, as yet or for good.
func (r *reader) read(fn func(moldcast.Messages), rec Recording, q moldcast.Seq, count int) (hole moldcast.Range, forGood bool, err error) {
	r.s.reads <- struct{}{}
	buf := r.s.bufs.Get().(*[]byte)
	framed, n, err := rec.Append((*buf)[:0], q, count, streamChunk, true)
	<-r.s.reads
	*buf = framed
	if n > 0 && fn != nil {
		fn(moldcast.MessagesOf(framed, n))
	}
	if cap(framed) <= 4*streamChunk {
		r.s.bufs.Put(buf)
	}
	var missing *moldcast.HoleError
	switch {
	case n > 0:
		return hole, false, nil
	case !errors.As(err, &missing):
		return hole, false, err
	}
	forGood = missing.Hole.Reason != moldcast.NotCaptured || !rec.Growing()
	return moldcast.Range{First: q, Next: missing.Hole.Range.Next}, forGood, nil
}

// fill puts what comes next into out, if anything does. Else the channel is
// closed when there may be.
func (r *reader) fill(now moldcast.Instant) <-chan struct{} {
	if !r.m.Serving() {
		return nil
	}
	at, changed := r.feed.now()
	q := r.m.Next()
	switch {
	case q < at.head, at.ended && q < at.end:
	case at.ended:
		r.end = StreamComplete
		r.m.End()
		return nil
	case at.moved:
		r.close(StreamMoved, "the session began anew; log in again")
		return nil
	case r.stopAt != 0:
		r.close(StreamStopped, stopText)
		return nil
	default:
		return changed
	}
	if now < r.gapTill {
		return nil
	}
	hole, forGood, err := r.read(func(m moldcast.Messages) {
		n, size := 0, len(r.out)
		if r.out, n = soup.AppendData(r.out, m); n == 0 {
			r.hole(moldcast.Range{First: q, Next: q + 1})
			return
		}
		r.m.Sent(now, n)
		r.s.messages.Add(uint64(n))
		r.s.bytes.Add(uint64(len(r.out) - size))
	}, r.feed.rec, q, moldcast.MaxCount)
	switch {
	case err != nil:
		if r.s.maySay(StreamFailed) {
			r.s.cfg.Log.Error("archive cannot be read for the recovery stream", "session", r.session, "seq", q, "error", err)
		}
		r.close(StreamFailed, "the archive cannot be read")
	case hole.Empty():
	case forGood:
		r.hole(hole)
	default:
		if r.gapAt != q {
			r.gapAt = q
			r.m.Gap(hole)
		}
		r.gapTill = now + moldcast.Instant(holeLook)
	}
	return nil
}

func (r *reader) hole(h moldcast.Range) {
	r.end = StreamHole
	r.m.Hole(h)
}

// write sends some of out. False: the connection is of no more use.
func (r *reader) write() bool {
	_ = r.conn.SetWriteDeadline(time.Now().Add(min(writeSlice, r.s.cfg.Stall)))
	n, err := r.conn.Write(r.out[r.at:])
	r.at += n
	now := r.s.cfg.Clock.Now()
	if n > 0 {
		r.moved = now
	}
	switch {
	case err == nil:
		return true
	case !errors.Is(err, os.ErrDeadlineExceeded):
		if r.end == StreamLost || r.end == StreamComplete || r.end == StreamHole {
			r.end = StreamLost
		}
		return false
	case r.m.Closing():
		return now-r.moved < moldcast.Instant(r.patience())
	case now-r.moved < moldcast.Instant(r.s.cfg.Stall):
		return true
	}
	if r.s.maySay(StreamStalled) {
		r.s.cfg.Log.Warn("reader of the recovery stream reads nothing; disconnected", "from", r.conn.RemoteAddr(), "session", r.session, "next", r.m.Next(), "for", r.s.cfg.Stall)
	}
	r.close(StreamStalled, "nothing of what was sent was read for "+r.s.cfg.Stall.String())
	// What is behind the frame that is half sent would only be in the way.
	r.out = r.out[:r.frameEnd()]
	r.out = append(r.out, r.m.Output(now)...)
	r.moved = now
	return true
}

// patience is how long the last words may take.
func (r *reader) patience() time.Duration {
	if r.end == StreamComplete || r.end == StreamHole {
		return r.s.cfg.Stall
	}
	return lingerTime
}

// frameEnd is where the frame ends of which some is written.
func (r *reader) frameEnd() int {
	end := 0
	for end < r.at {
		end += 2 + (int(r.out[end])<<8 | int(r.out[end+1]))
	}
	return end
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
