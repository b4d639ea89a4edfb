package retransmit

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/moldcast/soup"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// Recording is one take of a session as the recovery stream reads it. Its
// methods are called from several goroutines at the same time. What is missing
// in a recording that was pruned or damaged is a hole of it too.
type Recording interface {
	Held

	// Ended is one past the last message of the session, once its end is on
	// record.
	Ended() (end moldcast.Seq, ok bool)

	// Growing reports that it is still being written, its end being on record or
	// not: a missing range with no reason on record may yet be filled.
	Growing() bool
}

// Recordings finds what a recovery stream serves. It is called at each login,
// from several goroutines, and may read a disk.
type Recordings interface {
	// Recording is the latest take of the session; with soup.Blank, the current
	// session. The same take is the same Recording, comparable with ==. The
	// errors are ErrNoRecording, or a failure to read.
	Recording(s moldcast.Session) (moldcast.Session, Recording, error)
}

// ErrNoRecording: no such session, or for soup.Blank none that is the current
// one.
var ErrNoRecording = errors.New("retransmit: session not available")

// StreamConfig is what a StreamServer is made of.
type StreamConfig struct {
	Listener   net.Listener // Run closes it
	Recordings Recordings

	// Allow lists the networks that are served; nil takes admit.DefaultAllow.
	Allow []netip.Prefix

	// Authorise reports whether who logs in may read; nil: everyone may. The user
	// is soup's Login.Name. It is called from several goroutines.
	Authorise func(user, password string) bool

	// TLS is spoken on every connection; nil: none is.
	TLS *tls.Config

	// Readers bounds the connections: 1..65536. Default 1024. Beyond, one that has
	// not logged in for a second gives way to a new one. One costs two
	// goroutines and 1 KiB; while it is slow to take what is on its way, also a
	// chunk of up to 160 KiB, where no other reader or the cache has that too.
	Readers int

	// Reads is how many chunks are read from the disk of the archive at once:
	// 1..256. Default 2, so that they leave the processors to the capture.
	Reads int

	// Cache is how many bytes of the stream are kept, as they go over the wire,
	// for the other readers: 1 MiB..16 GiB. Default 32 MiB.
	Cache int64

	// Turns is how many readers write to the network at once: 1..256. Default
	// half as many as there are processors.
	Turns int

	// Stall is how long a reader may take nothing of what is sent to it before
	// it is disconnected. Default 15s.
	Stall time.Duration

	Clock Clock        // default: the system's
	Log   *slog.Logger // default: discarded
}

// EnsureDefaults fills in what is zero.
func (c *StreamConfig) EnsureDefaults() {
	if c.Allow == nil {
		c.Allow = admit.DefaultAllow()
	}
	if c.Readers == 0 {
		c.Readers = 1024
	}
	if c.Reads == 0 {
		c.Reads = 2
	}
	if c.Cache == 0 {
		c.Cache = 32 << 20
	}
	if c.Turns == 0 {
		c.Turns = min(max(runtime.NumCPU()/2, 1), 256)
	}
	if c.Stall == 0 {
		c.Stall = 15 * time.Second
	}
	if c.Clock == nil {
		c.Clock = mcast.NewClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports the first value out of range. EnsureDefaults comes before.
func (c *StreamConfig) Validate() error {
	switch {
	case c.Listener == nil:
		return errors.New("retransmit: no Listener")
	case c.Recordings == nil:
		return errors.New("retransmit: no Recordings")
	case c.Readers < 1 || c.Readers > 65536:
		return fmt.Errorf("retransmit: Readers %d: want 1..65536", c.Readers)
	case c.Reads < 1 || c.Reads > 256:
		return fmt.Errorf("retransmit: Reads %d: want 1..256", c.Reads)
	case c.Cache < 1<<20 || c.Cache > 16<<30:
		return fmt.Errorf("retransmit: Cache %d: want 1 MiB..16 GiB", c.Cache)
	case c.Turns < 1 || c.Turns > 256:
		return fmt.Errorf("retransmit: Turns %d: want 1..256", c.Turns)
	case c.Stall < 0:
		return fmt.Errorf("retransmit: Stall %v: want a time above 0", c.Stall)
	}
	return nil
}

// StreamEnd is how a connection of the recovery stream ended.
type StreamEnd uint8

// The ways a connection ends.
const (
	StreamNotAllowed   StreamEnd = iota // from outside the allow-list
	StreamFull                          // there were Readers connections
	StreamNoLogin                       // none came in time, or not before its place was needed
	StreamRejected                      // session not available
	StreamProtocol                      // the client did not speak the protocol
	StreamSilent                        // no heartbeat of the client in time
	StreamStalled                       // it did not read what was sent
	StreamHole                          // at a hole: it logs in again behind it
	StreamComplete                      // after the end of the session
	StreamLogout                        // the client left
	StreamLost                          // the connection broke, or the client closed it
	StreamFailed                        // the archive could not be read
	StreamMoved                         // another recording took its place under its name
	StreamStopped                       // the server stopped
	StreamUnauthorised                  // wrong user or password
	StreamEnds                          // number of them
)

var streamEndNames = [StreamEnds]string{
	"not_allowed", "full", "no_login", "rejected", "protocol", "silent", "stalled", "hole", "complete", "logout", "lost", "read_failed", "moved", "stopped", "unauthorised",
}

// String is e as a counter's name.
func (e StreamEnd) String() string {
	if e < StreamEnds {
		return streamEndNames[e]
	}
	return "end(?)"
}

// StreamStats counts since the server was made. Connections is always Readers
// and all of Ends.
type StreamStats struct {
	Connections uint64 // accepted
	Readers     int    // now
	Messages    uint64 // handed to the system
	Bytes       uint64 // of these, framing included
	Wire        WireStats
	Ends        [StreamEnds]uint64
}

// Add adds those of another server.
func (s *StreamStats) Add(o StreamStats) {
	s.Connections += o.Connections
	s.Readers += o.Readers
	s.Messages += o.Messages
	s.Bytes += o.Bytes
	s.Wire.add(o.Wire)
	for e, n := range o.Ends {
		s.Ends[e] += n
	}
}

// Counters is every counter with its snake_case name, in a fixed order.
func (s StreamStats) Counters() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, c := range []struct {
			name string
			n    uint64
		}{
			{"connections", s.Connections}, {"messages", s.Messages}, {"bytes", s.Bytes},
			{"chunks", s.Wire.Chunks}, {"chunks_encoded", s.Wire.Encoded}, {"messages_encoded", s.Wire.Messages}, {"reads", s.Wire.Reads},
		} {
			if !yield("recovery_"+c.name, c.n) {
				return
			}
		}
		for e, n := range s.Ends {
			if !yield("recovery_"+StreamEnd(e).String(), n) {
				return
			}
		}
	}
}

// StreamServer serves recovery streams. Each connection has a goroutine that
// owns its state and writes, and one that reads; a feed for each recording that
// is read looks whether there is more.
type StreamServer struct {
	cfg   StreamConfig
	line  *line
	wire  *wire
	turns chan struct{}

	mu struct {
		sync.Mutex
		readers int // connections that were not refused yet, those to be refused included
		all     map[*reader]struct{}
		mute    list.List // of *reader: who has not logged in, the longest connected first
		feeds   map[Recording]*feed
		denials denials
	}

	connections, messages, bytes atomic.Uint64
	ends                         [StreamEnds]atomic.Uint64
	said                         [StreamEnds + 1]atomic.Int64 // when each, and last the line, was last logged
}

// NewStream makes a StreamServer. The error is StreamConfig.Validate's.
func NewStream(cfg StreamConfig) (*StreamServer, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &StreamServer{cfg: cfg, line: newLine(cfg.Clock), turns: make(chan struct{}, cfg.Turns)}
	s.wire = newWire(cfg.Cache, s.line)
	s.mu.feeds = map[Recording]*feed{}
	s.mu.all = map[*reader]struct{}{}
	for i := range s.said {
		s.said[i].Store(-1 << 62)
	}
	return s, nil
}

// Addr is the address that is listened on.
func (s *StreamServer) Addr() net.Addr { return s.cfg.Listener.Addr() }

// Stats is a snapshot. It may be called at any time.
func (s *StreamServer) Stats() StreamStats {
	st := StreamStats{Messages: s.messages.Load(), Bytes: s.bytes.Load(), Wire: s.wire.Stats()}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Connections, st.Readers = s.connections.Load(), s.mu.readers
	for e := range st.Ends {
		st.Ends[e] = s.ends[e].Load()
	}
	return st
}

// acceptPause is how long Run waits after a failure to accept, such as no more
// file descriptors.
const acceptPause = 100 * time.Millisecond

// Run serves until ctx is done, which is no error, or the listener fails. It
// closes the listener, tells the readers, and returns when all connections are
// closed. It is called once.
func (s *StreamServer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.cfg.Listener.Close() })
	defer stop()
	serving, cancel := context.WithCancel(ctx)
	s.line.start(s.cfg.Reads)
	defer s.line.stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer s.cfg.Listener.Close()
	for {
		conn, err := s.cfg.Listener.Accept()
		switch {
		case err == nil:
			s.admit(serving, &conns, conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			if s.maySay(StreamFailed) {
				s.cfg.Log.Warn("connection to the recovery stream not accepted", "error", err)
			}
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
		}
	}
}

// admit begins a connection, or says why not.
func (s *StreamServer) admit(ctx context.Context, conns *sync.WaitGroup, conn net.Conn) {
	s.mu.Lock()
	s.connections.Add(1)
	s.mu.readers++
	full := s.mu.readers > s.cfg.Readers
	s.mu.Unlock()
	r := newReader(s, conn)
	switch {
	case !s.allowed(conn.RemoteAddr()):
		r.refuse(StreamNotAllowed)
		s.ended(StreamNotAllowed)
	case full && !s.makeRoom():
		r.refuse(StreamFull)
		s.ended(StreamFull)
	default:
		s.mu.Lock()
		s.mu.all[r] = struct{}{}
		r.mute = s.mu.mute.PushBack(r)
		s.mu.Unlock()
		conns.Go(func() {
			end := r.run(ctx)
			s.mu.Lock()
			delete(s.mu.all, r)
			s.spoke(r)
			if r.gaveWay {
				end = StreamNoLogin
			}
			s.mu.Unlock()
			s.ended(end)
		})
	}
}

// muteTime is how long a connection without a login keeps its place where there
// are as many as may be. So who opens connections and says nothing cannot shut
// the others out, unless it opens Readers of them in that time, again and again.
const muteTime = time.Second

// makeRoom has the connection give way that is the longest without a login;
// false: none is for muteTime.
func (s *StreamServer) makeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	front := s.mu.mute.Front()
	if front == nil {
		return false
	}
	r := front.Value.(*reader)
	if time.Since(r.since) < muteTime {
		return false
	}
	s.spoke(r)
	r.gaveWay = true
	r.raw.Close()
	return true
}

// spoke says that r has logged in, or left. REQUIRES: mu.
func (s *StreamServer) spoke(r *reader) {
	if r.mute != nil {
		s.mu.mute.Remove(r.mute)
		r.mute = nil
	}
}

func (s *StreamServer) ended(e StreamEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.readers--
	s.ends[e].Add(1)
}

func (s *StreamServer) allowed(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return true // no network: in memory
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	for _, p := range s.cfg.Allow {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// authorised reports whether who logs in may read.
func (s *StreamServer) authorised(now moldcast.Instant, r *reader, l *soup.Login) bool {
	may := s.cfg.Authorise
	if may == nil {
		return true
	}
	from := deniedAs(r.raw.RemoteAddr())
	s.mu.Lock()
	spent := s.mu.denials.spent(now, from)
	s.mu.Unlock()
	why := "too many wrong passwords from this address; it is not looked at"
	if !spent {
		if may(l.Name(), l.Password) {
			return true
		}
		why = "wrong user or password"
		s.mu.Lock()
		s.mu.denials.wrong(now, from)
		s.mu.Unlock()
	}
	if s.maySay(StreamUnauthorised) {
		s.cfg.Log.Warn("reader of the recovery stream is not authorised: "+why, "from", r.conn.RemoteAddr(), "user", l.User)
	}
	return false
}

func (s *StreamServer) maySay(e StreamEnd) bool {
	now, last := s.cfg.Clock.Now(), s.said[e].Load()
	return now-moldcast.Instant(last) >= sayEvery && s.said[e].CompareAndSwap(last, int64(now))
}

// feed tells the readers of a recording, which wait, that there is more.
type feed struct {
	s    *StreamServer
	name moldcast.Session
	rec  Recording
	refs atomic.Int32 // readers; changed with StreamServer.mu held
	stop chan struct{}

	mu struct {
		sync.Mutex
		state
		changed chan struct{} // closed at the next change
	}
}

// state is how far a recording goes.
type state struct {
	head, end moldcast.Seq
	ended     bool
	moved     bool // its name now stands for another: nothing more will come
}

// A feed looks for more so often, and so much less often for each reader: what
// is new is sent to all of them, a crowd gets it in larger pieces. And so often
// it looks whether its name stands for another take by now.
const (
	lookEvery  = 10 * time.Millisecond
	lookReader = 50 * time.Microsecond
	nameEvery  = time.Second
)

func (s *StreamServer) join(name moldcast.Session, rec Recording) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.mu.feeds[rec]
	if f == nil {
		f = &feed{s: s, name: name, rec: rec, stop: make(chan struct{})}
		f.mu.changed = make(chan struct{})
		f.look(false)
		s.mu.feeds[rec] = f
		go f.run()
	}
	f.refs.Add(1)
	return f
}

func (s *StreamServer) leave(f *feed) {
	s.mu.Lock()
	last := f.refs.Add(-1) == 0
	if last {
		delete(s.mu.feeds, f.rec)
		close(f.stop)
	}
	s.mu.Unlock()
	if last {
		s.wire.forget(f)
	}
}

func (f *feed) run() {
	t := time.NewTimer(lookEvery)
	defer t.Stop()
	named := f.s.cfg.Clock.Now()
	for {
		select {
		case <-t.C:
			now := f.s.cfg.Clock.Now()
			name := now-named >= moldcast.Instant(nameEvery)
			if name {
				named = now
			}
			f.look(name)
			t.Reset(lookEvery + time.Duration(f.refs.Load())*lookReader)
		case <-f.stop:
			return
		}
	}
}

func (f *feed) look(name bool) {
	var now state
	moved := false
	if name {
		_, rec, err := f.s.cfg.Recordings.Recording(f.name)
		moved = err == nil && rec != f.rec
	}
	now.end, now.ended = f.rec.Ended() // before the head: all below an end is there
	_, now.head = f.rec.Bounds()
	f.mu.Lock()
	defer f.mu.Unlock()
	now.moved = f.mu.moved || moved
	if now != f.mu.state {
		f.mu.state = now
		close(f.mu.changed)
		f.mu.changed = make(chan struct{})
	}
}

// now is the state, and what is closed when there is another one.
func (f *feed) now() (state, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.state, f.mu.changed
}
