package retransmit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// Conn is what a Server needs of a socket; an mcast.Socket is one. One
// goroutine reads, several write.
type Conn interface {
	ReadBatch(ds []mcast.Datagram) (int, error)
	TryReadBatch(ds []mcast.Datagram) (int, error) // the same without waiting: 0 where there is nothing
	WriteBatch(ds []mcast.Datagram) (int, error)
	LocalAddr() netip.AddrPort
	Close() error
}

// Clock gives monotonic time.
type Clock interface{ Now() moldcast.Instant }

// recvSize is the room for one request: more than it needs, so that a longer
// datagram is seen to be longer.
const recvSize = 64

// Listen opens the socket of a Server on a unicast address; port 0 asks the
// system for one. Errors are mcast.Listen's.
func Listen(addr netip.AddrPort, log *slog.Logger) (*mcast.Conn, error) {
	if addr.Addr().IsMulticast() {
		return nil, fmt.Errorf("%w %v: requests are unicast", mcast.ErrAddress, addr)
	}
	return mcast.Listen(mcast.ListenConfig{Addr: addr, MaxDatagram: recvSize, Log: log})
}

// Config is what a Server is made of.
type Config struct {
	Conn   Conn   // Run closes it
	Source Source // finds sessions
	Admit  admit.Config

	// Upstream is told what is asked for and lacking; nil: nobody.
	Upstream Upstream

	// Duty is what is answered, default everything. BeyondWindow needs Windows.
	Duty    Duty
	Windows Windows

	// MTU bounds the IPv4 packet of an answer: 128..65535 bytes. Default 1500.
	MTU int

	// Workers read from disk: 1..256. Default 4: such a read waits for the
	// disk more than it computes.
	Workers int

	// QueueCold bounds the requests that wait for a worker: 4..65536. Default
	// 1024: at 1 ms a read, 4 workers are through it in the 250 ms after which
	// the slowest retry comes.
	QueueCold int

	Clock Clock        // default: the system's
	Log   *slog.Logger // default: discarded
}

// EnsureDefaults fills in what is zero.
func (c *Config) EnsureDefaults() {
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.QueueCold == 0 {
		c.QueueCold = 1024
	}
	if c.Clock == nil {
		c.Clock = mcast.NewClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Admit.EnsureDefaults()
}

// Validate reports the first value out of range. EnsureDefaults comes before.
func (c *Config) Validate() error {
	switch {
	case c.Conn == nil:
		return errors.New("retransmit: no Conn")
	case c.Source == nil:
		return errors.New("retransmit: no Source")
	case c.Duty > BeyondWindow || c.Duty == BeyondWindow && c.Windows == nil:
		return errors.New("retransmit: Duty BeyondWindow: want Windows")
	case c.MTU < 128 || c.MTU > 65535:
		return fmt.Errorf("retransmit: MTU %d: want 128..65535", c.MTU)
	case c.Workers < 1 || c.Workers > 256:
		return fmt.Errorf("retransmit: Workers %d: want 1..256", c.Workers)
	case c.QueueCold < 4 || c.QueueCold > 65536:
		return fmt.Errorf("retransmit: QueueCold %d: want 4..65536", c.QueueCold)
	}
	return c.Admit.Validate()
}

// Server answers requests. Run's goroutine owns the batches; the Admitter with
// the census, and the set of pending cold reads, each have a lock, held for
// nanoseconds and never while anything is read, sent or called; counters are
// atomic.
type Server struct {
	cfg     Config
	payload int // of an answer's datagram, bytes

	admit struct {
		sync.Mutex
		*admit.Admitter
		census *census
	}
	cold *pool
	up   upstream

	in, out []mcast.Datagram // of Run's goroutine; out[i].Data is kept from batch to batch
	crowd   *fair[staged]    // of the same: what arrived faster than it was answered
	turn    []mcast.Datagram // of the same: what of it is answered next
	duty    *duty            // of the same; nil: always

	requests, answered, coldAnswered, messages, bytes atomic.Uint64

	wanted, arrived atomic.Uint64
	unanswered      [Reasons]atomic.Uint64
	said            [Reasons]atomic.Int64 // when a Reason was last logged
}

// New makes a Server. The error is Config.Validate's.
func New(cfg Config) (*Server, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, payload: moldcast.PayloadSize(cfg.MTU)}
	a, err := admit.New(cfg.Admit)
	if err != nil {
		return nil, err
	}
	s.admit.Admitter, s.admit.census = a, newCensus()
	s.cold = newPool(cfg.QueueCold)
	s.up.wants, s.up.kick = newWants(), make(chan struct{}, 1)
	s.in, s.turn = requestRoom(), requestRoom()
	s.crowd = newFair[staged](crowdSize)
	if cfg.Duty == BeyondWindow {
		s.duty = new(duty)
	}
	s.out = make([]mcast.Datagram, mcast.BatchSize)
	for i := range s.out {
		s.out[i].Data = make([]byte, 0, s.payload)
	}
	for r := range s.said {
		s.said[r].Store(-1 << 62)
	}
	return s, nil
}

// Addr is the address that requests are read from.
func (s *Server) Addr() netip.AddrPort { return s.cfg.Conn.LocalAddr() }

// Stats is a snapshot. It may be called at any time.
func (s *Server) Stats() Stats {
	st := Stats{
		Requests: s.requests.Load(), Answered: s.answered.Load(), Cold: s.coldAnswered.Load(),
		Messages: s.messages.Load(), Bytes: s.bytes.Load(), Pending: s.cold.len() + s.waiting(),
		Wanted: s.wanted.Load(), Arrived: s.arrived.Load(),
	}
	for r := range st.Unanswered {
		st.Unanswered[r] = s.unanswered[r].Load()
	}
	s.admit.Lock()
	st.Admit = s.admit.Stats()
	s.admit.Unlock()
	return st
}

// Run answers until ctx is done, which is no error, or the socket fails. It
// closes the socket, and returns when no goroutine of the server is left:
// after the reads from disk that are under way then. It is called once.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.cfg.Conn.Close() })
	defer stop()
	var workers sync.WaitGroup
	for range s.cfg.Workers {
		workers.Go(s.work)
	}
	awaiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var waits sync.WaitGroup
	waits.Go(func() { s.await(awaiting) })
	err := s.serve()
	s.cfg.Conn.Close()
	cancel()
	waits.Wait()
	s.stopWaiting()
	s.cold.stop()
	workers.Wait()
	if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// batch answers requests that arrived together, as far as memory answers them.
func (s *Server) batch(in []mcast.Datagram) {
	now := s.cfg.Clock.Now()
	s.requests.Add(uint64(len(in)))
	k, messages := 0, 0
	for i := range in {
		o := &s.out[k]
		n, why := s.handle(now, &in[i], o)
		switch {
		case why == noReason:
			k++
			messages += n
		case why < Reasons:
			s.unanswered[why].Add(1)
		}
	}
	if k > 0 {
		s.send(s.out[:k], messages)
	}
}

// handle turns one request into its answer in o, of n messages, or says why
// there is none; isCold: a worker answers.
func (s *Server) handle(now moldcast.Instant, d, o *mcast.Datagram) (n int, why Reason) {
	r, why := parse(d.Data)
	asked, why := s.judge(now, d.Src, r, why)
	if why != noReason {
		return 0, why
	}
	v, ok := s.cfg.Source.Lookup(r.Session)
	if !ok {
		return 0, s.refused(d.Src, UnknownSession)
	}
	if s.duty != nil && s.leave(now, d.Src, r, v) {
		return 0, s.refused(d.Src, WithinWindow)
	}
	out, sent, why, err := answer(o.Data, v, r.Session, asked, s.payload, false)
	o.Data = out
	switch why {
	case noReason:
		o.Dst = d.Src
		s.answering(now, d.Src, r, sent.Next, len(out))
		return int(sent.Len()), noReason
	case isCold:
		s.putCold(job{from: d.Src, request: r, asked: asked, view: v, block: v.Block(sent.Next)})
		return 0, isCold
	case Missing, BelowFirst:
		if s.cfg.Upstream != nil {
			if why = s.want(now, job{from: d.Src, request: r, asked: asked, view: v}, why, err); why == isCold {
				return 0, why
			}
		}
	case ReadFailed:
		s.readFailed(now, r, err)
	}
	return 0, s.refused(d.Src, why)
}

// leave reports whether a request is left to the sender.
func (s *Server) leave(now moldcast.Instant, from netip.AddrPort, r moldcast.Request, v View) bool {
	window := s.cfg.Windows.Window(r.Session)
	if window == 0 {
		return false
	}
	_, head := v.Bounds()
	return s.duty.leave(now, from, r, head, window)
}

// putCold hands j to a worker, or counts why not.
func (s *Server) putCold(j job) {
	why, dropped := s.cold.put(j)
	if dropped != nil {
		s.refuse(dropped, ColdFull)
	}
	if why != isCold {
		s.refuse(&j, why)
	}
}

// judge says whether a request that parsed is to be answered, and what of it;
// of one that did not it only takes note.
func (s *Server) judge(now moldcast.Instant, from netip.AddrPort, r moldcast.Request, why Reason) (asked moldcast.Range, _ Reason) {
	s.admit.Lock()
	if why == noReason {
		var v admit.Verdict
		asked, v = s.admit.Admit(now, from, r)
		why = reasonOf[v]
	} else {
		r = moldcast.Request{}
	}
	if why != BadSource {
		c := s.admit.census.asked(now, from.Addr(), r)
		if why != noReason {
			c.Refused[why]++
		}
	}
	s.admit.Unlock()
	if why == NotAllowed && s.maySay(now, NotAllowed) {
		s.cfg.Log.Warn("request from outside the allow-list is not answered", "from", from, "session", r.Session, "help", "--allow names the networks that are answered")
	}
	return asked, why
}

// refused takes note with its client that a request has no answer.
func (s *Server) refused(from netip.AddrPort, why Reason) Reason {
	s.admit.Lock()
	s.admit.census.refused(from.Addr(), why)
	s.admit.Unlock()
	return why
}

// answering takes note that r is answered, up to next.
func (s *Server) answering(now moldcast.Instant, from netip.AddrPort, r moldcast.Request, next moldcast.Seq, size int) {
	s.admit.Lock()
	s.admit.Answered(now, from, r, next, size)
	s.admit.census.answered(from.Addr(), size)
	s.admit.Unlock()
}

// ClientStatus is a Client, and how it stands now.
type ClientStatus struct {
	Client
	Wait    time.Duration // until the budgets have room for it; 0: now
	Quiet   time.Duration // since its newest request
	Allowed bool          // by the allow-list; else it never may
}

// Clients are those who asked most, at most n, and how many others were
// forgotten. It may be called at any time.
func (s *Server) Clients(n int) (list []ClientStatus, forgotten uint64) {
	// Whoever answers waits for the lock: it is not kept over what takes long.
	all := make([]place, 0, censusSize)
	s.admit.Lock()
	all, forgotten = s.admit.census.places(all), s.admit.census.forgotten
	s.admit.Unlock()
	all = top(all, n)
	list = make([]ClientStatus, 0, len(all))
	for _, p := range all {
		s.admit.Lock()
		now := s.cfg.Clock.Now()
		if c := s.admit.census.find(p.addr); c.Addr == p.addr { // else it was forgotten since
			list = append(list, ClientStatus{Client: *c, Wait: s.admit.Wait(now, c.Addr), Quiet: max(0, time.Duration(now-c.Last)), Allowed: s.admit.Allowed(c.Addr)})
		}
		s.admit.Unlock()
	}
	return list, forgotten
}

// send sends answers of so many messages, and returns how many were sent.
func (s *Server) send(out []mcast.Datagram, messages int) int {
	bytes := 0
	for i := range out {
		bytes += len(out[i].Data)
	}
	n, err := s.cfg.Conn.WriteBatch(out)
	s.answered.Add(uint64(n))
	s.messages.Add(uint64(messages))
	s.bytes.Add(uint64(bytes))
	if n == len(out) {
		return n
	}
	s.unanswered[SendFailed].Add(uint64(len(out) - n))
	if now := s.cfg.Clock.Now(); !errors.Is(err, net.ErrClosed) && s.maySay(now, SendFailed) {
		s.cfg.Log.Warn("answer not sent", "error", err)
	}
	return n
}

func (s *Server) readFailed(now moldcast.Instant, r moldcast.Request, err error) {
	if s.maySay(now, ReadFailed) {
		s.cfg.Log.Error("archive cannot be read for a request", "session", r.Session, "range", r.Range(), "error", err)
	}
}

// sayEvery is the least time between two log lines of one kind: whoever sends
// requests must not fill the log.
const sayEvery = moldcast.Instant(10 * time.Second)

func (s *Server) maySay(now moldcast.Instant, r Reason) bool {
	last := s.said[r].Load()
	return now-moldcast.Instant(last) >= sayEvery && s.said[r].CompareAndSwap(last, int64(now))
}
