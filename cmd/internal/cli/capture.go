package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
	"github.com/spf13/cobra"
)

// maxNakRetry is where the back-off of requests ends.
const maxNakRetry = 250 * time.Millisecond

type captureFlags struct {
	channel        string
	lines          []string
	iface          string
	sessions       []string
	rerequest      []string
	rerequestPort  uint16
	mtu            int
	retransmitAddr string
	httpAddr       string
	sync           time.Duration
	segmentSize    int64
	segmentTime    time.Duration
	reserve        int64
	reorderWait    time.Duration
	reorderBytes   int64
	nakRetry       time.Duration
	nakRate        int
	nakBudget      time.Duration
	onLoss         string
	start          string
	untilEnd       bool
	endTimeout     time.Duration
	strict         bool
	retention      retentionFlags
	stream         streamFlags
}

func newCaptureCmd(e *env) *cobra.Command {
	f := &captureFlags{sync: store.DefaultSync, segmentSize: 1 << 30, reserve: store.DefaultReserve, reorderWait: 2 * time.Millisecond, reorderBytes: 64 << 20, nakRetry: 2 * time.Millisecond, nakRate: 1000, nakBudget: 10 * time.Second}
	c := &cobra.Command{
		Use:   "capture",
		Short: "Record a channel: join its lines, repair every gap, archive the stream",
		Long: `Record a channel: join its lines, repair every gap, archive the stream.

Prints one JSON object on stdout when it receives ({"event":"ready",…}) and one when it has stopped
({"event":"stopped",…}, with the counters). SIGINT and SIGTERM stop it cleanly: everything received is durable.`,
		Example: `  moldtape capture --channel itch --line 233.54.12.111:26477,interface=eth1 --line 233.49.196.111:26477,interface=eth2 \
    --rerequest 10.1.2.3:26400 --retransmit-listen :26402 --archive /data/moldtape`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runCapture(c.Context(), e, f) },
	}
	fs := c.Flags()
	e.addArchive(c)
	fs.StringVar(&f.channel, "channel", "default", "`NAME` of the channel: letters, digits and ._:-")
	fs.StringArrayVar(&f.lines, "line", nil, "line to receive, `G:P[,interface=NAME][,source=ADDR]`; repeat for B, C …")
	fs.StringVar(&f.iface, "interface", "", "interface `NAME` of lines that name none")
	fs.StringArrayVar(&f.sessions, "session", nil, "record only this session `NAME` (repeat; default all)")
	fs.StringArrayVar(&f.rerequest, "rerequest", nil, "request server `HOST:PORT`, or source with --rerequest-port (repeat)")
	fs.Uint16Var(&f.rerequestPort, "rerequest-port", 0, "`PORT` of --rerequest source")
	fs.IntVar(&f.mtu, "mtu", 1500, "MTU of answers, in `BYTES`")
	fs.StringVar(&f.retransmitAddr, "retransmit-listen", "", "serve requests for all that is archived on this UDP `HOST:PORT`")
	f.stream.add(c)
	fs.StringVar(&f.httpAddr, "http", "", "serve /status and /healthz on this TCP `HOST:PORT`")
	fs.Var(durationValue{&f.sync}, "sync", "longest time a received message is not yet durable; 0: synced as soon as it is stored")
	fs.Var(sizeValue{&f.segmentSize}, "segment-size", "start the next segment at this many stored bytes")
	fs.Var(sizeValue{&f.reserve}, "reserve", "room kept in ARCHIVE/reserve, to stop in order on a full disk; 0: none")
	fs.Var(durationValue{&f.segmentTime}, "segment-time", "start the next segment after this long; 0: by size only")
	fs.Var(durationValue{&f.reorderWait}, "reorder-wait", "how long an early message waits in memory for its predecessor: so much later than --sync it is durable; no longer than --nak-budget")
	fs.Var(sizeValue{&f.reorderBytes}, "reorder-bytes", "bound of what waits in memory")
	fs.Var(durationValue{&f.nakRetry}, "nak-retry", "least time before a request is repeated")
	fs.IntVar(&f.nakRate, "nak-rate", f.nakRate, "most requests a second, for each session, `N`: what the servers bear")
	fs.Var(durationValue{&f.nakBudget}, "nak-budget", "how long a gap is asked for before it is recorded as a hole")
	fs.StringVar(&f.onLoss, "on-loss", "record", "`record|stall`: after the budget the hole is on record, or never given up")
	fs.StringVar(&f.start, "start", "", "where a new session begins, `beginning|live` (default beginning where there is a request server, else live)")
	fs.BoolVar(&f.untilEnd, "until-end", false, "stop when every session has ended, is repaired and durable")
	fs.Var(durationValue{&f.endTimeout}, "end-timeout", "stop with exit 1 after this long without a packet; 0: never")
	f.retention.add(c, "while capturing, and every minute, ")
	fs.BoolVar(&f.strict, "strict", false, "exit 1 if messages were lost or holes are left")
	return c
}

// config reads the flags into a capture configuration.
func (f *captureFlags) config(e *env) (capture.Config, error) {
	cfg := capture.Config{
		Channel: f.channel, Interface: f.iface,
		ReorderWait: f.reorderWait, ReorderBytes: f.reorderBytes, NakRetry: f.nakRetry, NakRate: f.nakRate, NakBudget: f.nakBudget,
		UntilEnd: f.untilEnd, EndTimeout: f.endTimeout, Log: e.log,
	}
	if !store.ValidChannel(f.channel) {
		return cfg, usagef("--channel %q: want 1 to 64 of A-Z a-z 0-9 . _ : -", f.channel)
	}
	if len(f.lines) == 0 {
		return cfg, usagef("--line is required: G:P[,interface=NAME][,source=ADDR], like 239.255.0.1:26400,interface=eth1")
	}
	for _, s := range f.lines {
		l, err := parseLine(s)
		if err != nil {
			return cfg, err
		}
		cfg.Lines = append(cfg.Lines, l)
	}
	for _, s := range f.sessions {
		name, err := moldcast.ParseSession(s)
		if err != nil {
			return cfg, usagef("--session: %v", err)
		}
		cfg.Sessions = append(cfg.Sessions, name)
	}
	if err := f.servers(&cfg); err != nil {
		return cfg, err
	}
	switch f.onLoss {
	case "record":
	case "stall":
		cfg.Stall = true
	default:
		return cfg, usagef("--on-loss %q: want record or stall", f.onLoss)
	}
	switch f.start {
	case "":
	case "beginning":
		cfg.Start = arbiter.Beginning
	case "live":
		cfg.Start = arbiter.Live
	default:
		return cfg, usagef("--start %q: want beginning or live", f.start)
	}
	if f.reorderBytes < arbiter.MinReorderBytes {
		return cfg, usagef("--reorder-bytes %d: want at least %d", f.reorderBytes, arbiter.MinReorderBytes)
	}
	if f.nakBudget <= 0 {
		return cfg, usagef("--nak-budget 0: want a time above 0; --on-loss stall never gives a gap up")
	}
	if f.nakRate < 1 || f.nakRate > 1_000_000 {
		return cfg, usagef("--nak-rate %d: want 1 to 1000000 requests a second", f.nakRate)
	}
	if f.nakRetry <= 0 || f.nakRetry > maxNakRetry {
		return cfg, usagef("--nak-retry %v: want a time above 0, at most %v", f.nakRetry, maxNakRetry)
	}
	if f.reorderWait == 0 {
		cfg.ReorderWait = -1 // an explicit 0 is "do not wait"
	}
	return cfg, nil
}

func (f *captureFlags) servers(cfg *capture.Config) error {
	for _, s := range f.rerequest {
		if s == "source" {
			if f.rerequestPort == 0 {
				return usagef("--rerequest source needs --rerequest-port PORT")
			}
			cfg.RerequestSource, cfg.RerequestPort = true, f.rerequestPort
			continue
		}
		a, err := resolve4("--rerequest", s)
		if err != nil {
			return err
		}
		cfg.Rerequest = append(cfg.Rerequest, a)
	}
	if f.rerequestPort != 0 && !cfg.RerequestSource {
		return usagef("--rerequest-port goes with --rerequest source")
	}
	return nil
}

// resolve4 reads host:port with a port that can be sent to.
func resolve4(flag, s string) (netip.AddrPort, error) {
	if err := parseHostPort(flag, s); err != nil {
		return netip.AddrPort{}, err
	}
	a, err := net.ResolveUDPAddr("udp4", s)
	if err != nil || a.IP == nil || a.Port == 0 {
		return netip.AddrPort{}, usagef("%s %q: want the host:port of a server, IPv4", flag, s)
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// parseLine reads G:P[,interface=NAME][,source=ADDR].
func parseLine(s string) (capture.Line, error) {
	bad := func(why string) (capture.Line, error) {
		return capture.Line{}, usagef("--line %q: %s; want G:P[,interface=NAME][,source=ADDR]", s, why)
	}
	parts := strings.Split(s, ",")
	addr, err := netip.ParseAddrPort(parts[0])
	if err != nil || !addr.Addr().Is4() {
		return bad("no IPv4 address and port")
	}
	l := capture.Line{Addr: addr}
	for _, p := range parts[1:] {
		key, val, _ := strings.Cut(p, "=")
		switch {
		case key == "interface" && val != "" && l.Interface == "":
			l.Interface = val
		case key == "source" && !l.Source.IsValid():
			a, err := netip.ParseAddr(val)
			if err != nil || !a.Is4() || a.IsMulticast() {
				return bad("source is no IPv4 address")
			}
			l.Source = a
		default:
			return bad(fmt.Sprintf("%q", p))
		}
	}
	return l, nil
}

func runCapture(ctx context.Context, e *env, f *captureFlags) error {
	cfg, err := f.config(e)
	if err != nil {
		return err
	}
	if f.mtu < 128 || f.mtu > 65535 {
		return usagef("--mtu %d: want 128..65535", f.mtu)
	}
	if err := f.retention.check(); err != nil {
		return err
	}
	if err := f.stream.check(); err != nil {
		return err
	}
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return usagef("%v", err)
	}
	opts := e.storeOptions()
	opts.Sync, opts.SegmentSize, opts.SegmentTime, opts.Reserve = f.sync, f.segmentSize, f.segmentTime, f.reserve
	if err := opts.Validate(); err != nil {
		return usagef("--segment-size, --segment-time, --sync, --reserve: %v", err)
	}
	if f.retransmitAddr != "" {
		if _, err := requestAddr("--retransmit-listen", f.retransmitAddr); err != nil {
			return err
		}
	}
	if f.httpAddr != "" {
		if err := parseHostPort("--http", f.httpAddr); err != nil {
			return err
		}
	}
	raiseProcs(len(cfg.Lines) + 2) // and the threads of answers and of requests
	sink := &archiveSink{}
	ch, err := capture.New(cfg, sink)
	if err != nil {
		for _, wrong := range []error{capture.ErrConfig, mcast.ErrInterface, mcast.ErrAddress, mcast.ErrSameLine} {
			if errors.Is(err, wrong) {
				return usagef("--line: %v", err)
			}
		}
		return err
	}
	defer ch.Close()
	archive, err := store.OpenOrCreate(e.archiveDir(), opts)
	if err != nil {
		return err
	}
	defer closeQuietly(e.log, "archive", archive.Close)
	unlock, err := archive.LockChannel(cfg.Channel)
	if err != nil {
		return err
	}
	defer closeQuietly(e.log, "channel", unlock)
	src := NewSource(archive, nil, e.log)
	defer closeQuietly(e.log, "views", src.Close)
	sink.archive, sink.source = archive, src
	node := &captureNode{env: e, channels: []*capture.Channel{ch}}
	defer node.close()
	if err := node.serve(f, src); err != nil {
		return err
	}
	if f.retention.asked() {
		node.background(func(ctx context.Context) error { e.retain(ctx, archive, f.retention.retention()); return nil }, "retention")
	}

	ready := ready{Event: "ready", Channels: []readyChannel{{Channel: cfg.Channel, Lines: ch.Lines()}}, Retransmit: node.retransmitAddr, Recovery: node.recoveryAddr, HTTP: node.httpAddr}
	if err := e.printJSON(ready); err != nil {
		return err
	}
	status, err := ch.Run(ctx)
	node.close()
	stopped := newStopped([]capture.Status{status})
	if perr := e.printJSON(stopped); err == nil {
		err = perr
	}
	switch {
	case err != nil:
		return err
	case f.strict && (stopped.MessagesLost > 0 || stopped.Holes > 0):
		return faultf("--strict: %s lost, %s", count(stopped.MessagesLost, "message"), count(stopped.Holes, "hole"))
	}
	return nil
}

// stopped is the event that ends a capture: the counters summed over the
// channels, and each channel.
type stopped struct {
	Event string `json:"event"` // "stopped"
	arbiter.Counters
	Holes    int              `json:"holes"`
	Channels []capture.Status `json:"channels"`

	// Where exactly one session was recorded; exclusive.
	NextSeq    *moldcast.Seq `json:"next_seq,omitempty"`
	DurableSeq *moldcast.Seq `json:"durable_seq,omitempty"`
	HeadSeq    *moldcast.Seq `json:"head_seq,omitempty"`
}

func newStopped(channels []capture.Status) stopped {
	s := stopped{Event: "stopped", Channels: channels}
	var sessions []capture.SessionStatus
	for _, c := range channels {
		s.Counters.Add(c.Counters)
		s.Holes += c.Holes()
		sessions = append(sessions, c.Sessions...)
	}
	if len(sessions) == 1 {
		x := &sessions[0]
		s.NextSeq, s.DurableSeq, s.HeadSeq = &x.NextSeq, &x.DurableSeq, &x.HeadSeq
	}
	return s
}

// archiveSink stores what a channel captures, and lets requests be answered
// from it meanwhile.
type archiveSink struct {
	archive *store.Archive
	source  *Source
}

func (k *archiveSink) Open(channel string, s moldcast.Session, take int, groups []string) (capture.SessionSink, error) {
	w, err := k.archive.Writer(channel, s, take)
	if err != nil {
		return nil, err
	}
	w.Lines(groups)
	view := w.View()
	k.source.Live(w.Ref(), view)
	return &sessionSink{Writer: w, source: k.source, view: view}, nil
}

type sessionSink struct {
	*store.Writer
	source *Source
	view   *store.View
}

func (s *sessionSink) Take() int { return s.Ref().Take }

func (s *sessionSink) Read(dst []byte, first moldcast.Seq, count, size int) ([]byte, int, error) {
	return s.view.Append(dst, first, count, size, true)
}

func (s *sessionSink) Trouble() capture.Trouble {
	since, waiting, err := s.Writer.Trouble()
	return capture.Trouble{Err: err, Since: since, Waiting: waiting}
}

// Close seals the session; requests for it are answered from its segments
// from then on.
func (s *sessionSink) Close() error {
	err := s.Writer.Close()
	s.source.Stored(s.Ref())
	return err
}

// captureNode is what a capture serves beside capturing.
type captureNode struct {
	env      *env
	channels []*capture.Channel
	stop     []func()

	retransmitAddr, recoveryAddr, httpAddr string
}

func (n *captureNode) close() {
	for i := len(n.stop) - 1; i >= 0; i-- {
		n.stop[i]()
	}
	n.stop = nil
}

func (n *captureNode) serve(f *captureFlags, src *Source) error {
	if f.retransmitAddr != "" || f.stream.listen != "" {
		if err := src.Refresh(); err != nil {
			return err
		}
		n.background(func(ctx context.Context) error { src.Run(ctx); return nil }, "refresh of sessions")
	}
	if f.retransmitAddr != "" {
		addr, err := requestAddr("--retransmit-listen", f.retransmitAddr)
		if err != nil {
			return err
		}
		conn, err := retransmit.Listen(addr, n.env.log)
		if err != nil {
			return fmt.Errorf("--retransmit-listen: %w", err)
		}
		srv, err := retransmit.New(retransmit.Config{Conn: conn, Source: src, MTU: f.mtu, Clock: mcast.NewClock(), Log: n.env.log})
		if err != nil {
			conn.Close()
			return err
		}
		n.retransmitAddr = srv.Addr().String()
		n.background(srv.Run, "retransmit")
	}
	stream, err := f.stream.server(src.recordings(f.channel), nil, n.env.log)
	if err != nil {
		return err
	}
	if stream != nil {
		n.recoveryAddr = stream.Addr().String()
		n.background(stream.Run, "recovery stream")
	}
	if f.httpAddr != "" {
		l, err := net.Listen("tcp", f.httpAddr)
		if err != nil {
			return fmt.Errorf("--http: %w", err)
		}
		n.httpAddr = l.Addr().String()
		srv := &http.Server{Handler: n.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
		n.background(func(ctx context.Context) error {
			defer context.AfterFunc(ctx, func() { srv.Close() })()
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		}, "http")
	}
	return nil
}

// background runs a server until close.
func (n *captureNode) background(run func(context.Context) error, what string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			n.env.log.Error(what+" server stopped; capture goes on", "err", err)
		}
	}()
	n.stop = append(n.stop, func() { cancel(); <-done })
}

// status asks every channel.
func (n *captureNode) status(ctx context.Context) ([]capture.Status, error) {
	out := make([]capture.Status, 0, len(n.channels))
	for _, c := range n.channels {
		st, err := c.Status(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}

const (
	healthOK       = "ok"
	healthDegraded = "degraded" // some channel cannot store what it receives
	healthStopping = "stopping" // or an engine does not answer
)

// health is the answer of /healthz: 200 where Status is ok, else 503.
type health struct {
	Status   string          `json:"status"`
	Error    string          `json:"error,omitempty"`
	Channels []channelHealth `json:"channels,omitempty"` // those that are not well
}

type channelHealth struct {
	Channel string          `json:"channel"`
	Storage capture.Storage `json:"storage"`
}

func (n *captureNode) health(ctx context.Context) health {
	channels, err := n.status(ctx)
	if err != nil {
		return health{Status: healthStopping, Error: err.Error()}
	}
	h := health{Status: healthOK}
	for _, c := range channels {
		if c.Storage.Degraded() {
			h.Status = healthDegraded
			h.Channels = append(h.Channels, channelHealth{c.Channel, c.Storage})
		}
	}
	return h
}

func (n *captureNode) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		var out struct {
			Channels []capture.Status `json:"channels"`
		}
		var err error
		if out.Channels, err = n.status(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		h := n.health(ctx)
		w.Header().Set("Content-Type", "application/json")
		if h.Status != healthOK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(h)
	})
	return mux
}
