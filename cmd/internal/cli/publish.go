package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

type publishFlags struct {
	group             string
	session           string
	input             string
	generate          int
	seed              uint64
	rate              float64
	packetMessages    int
	mtu               int
	retransmitListen  string
	ring              int
	heartbeat, linger time.Duration
	dropEvery         int
	loss              float64
	multicast         multicastFlags
	quorum            quorumFlags
}

// multicastFlags are those of every command that joins or sends by multicast.
type multicastFlags struct {
	iface string
	ttl   *int // nil: as the interface asks for
}

func (m *multicastFlags) add(c *cobra.Command, send bool) {
	c.Flags().StringVar(&m.iface, "interface", "", "interface `NAME` for multicast (default: the system's choice)")
	if send {
		c.Flags().Var(ttlValue{&m.ttl}, "ttl", "TTL of multicast, 0..255 (default 1; 0 where the interface is a loopback)")
	}
}

type ttlValue struct{ n **int }

func (v ttlValue) String() string {
	if v.n == nil || *v.n == nil {
		return ""
	}
	return strconv.Itoa(**v.n)
}
func (v ttlValue) Type() string { return "N" }
func (v ttlValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return fmt.Errorf("%q is no TTL; want 0..255", s)
	}
	ttl := int(n)
	*v.n = &ttl
	return nil
}

// sendTo is the socket configuration for a group.
func (m *multicastFlags) sendTo(e *env, group netip.AddrPort) mcast.SendConfig {
	return mcast.SendConfig{Addr: group, Interface: m.iface, TTL: m.ttl, Log: e.log}
}

// raiseProcs makes room for threads that wait in system calls: each holds one
// of Go's processors for a while after it blocks, and on few cores an engine
// would have to wait for it. A GOMAXPROCS of the environment stands.
func raiseProcs(threads int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + threads)
	}
}

// socketError tells a wrong interface or address (exit 2) from a system that
// refuses (exit 1).
func socketError(flag string, err error) error {
	if errors.Is(err, mcast.ErrInterface) {
		return usagef("--interface: %v", err)
	}
	if errors.Is(err, mcast.ErrAddress) {
		return usagef("%s: %v", flag, err)
	}
	return faultf("%s: %w", flag, err)
}

func newPublishCmd(e *env) *cobra.Command {
	f := publishFlags{heartbeat: moldcast.DefaultHeartbeat, linger: 5 * time.Second}
	c := &cobra.Command{
		Use:   "publish",
		Short: "Publish messages to a group as a MoldCast sender",
		Long: `Publish messages to a multicast group as a MoldCast sender, from a file or made
up, and answer requests for those that are still in the ring.

The input is BinaryFILE (u16 length + payload), also compressed with gzip or
zstd; "-" is stdin. Ends with End of Session, also when it is stopped.

With --quorum K it knows how much K archives hold durably, from what captures
acknowledge (capture --ack); with --gate the session ends only when that is all
of it: stopped before, it ends without End of Session, exit 1.`,
		Example: `  moldtape publish --group 239.255.0.1:26400 --session DEMO --generate 100000 \
      --rate 20000 --retransmit-listen 127.0.0.1:26401 --interface lo`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.publish(c, &f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.group, "group", "", "multicast group to publish to, `G:P`")
	fl.StringVar(&f.session, "session", "DEMO", "session `NAME`, 1 to 10 characters")
	fl.StringVar(&f.input, "input", "", "BinaryFILE to publish; - is stdin")
	fl.IntVar(&f.generate, "generate", 0, "publish `N` made-up messages of the shape of ITCH 5.0")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of --generate and --loss")
	fl.Float64Var(&f.rate, "rate", 0, "`MSGS_PER_S`; 0 is as fast as it goes")
	fl.IntVar(&f.packetMessages, "packet-messages", 0, "most messages a packet; 0 is as many as fit")
	fl.IntVar(&f.mtu, "mtu", moldcast.DefaultMTU, "most `BYTES` of an IP packet")
	fl.StringVar(&f.retransmitListen, "retransmit-listen", "", "answer requests on `ADDR`")
	fl.IntVar(&f.ring, "ring", moldcast.DefaultRing, "messages kept for requests; at most 64 MiB of them")
	fl.Var(config.Duration{P: &f.heartbeat}, "heartbeat", "silence after which a heartbeat is sent")
	fl.Var(config.Duration{P: &f.linger}, "linger", "how long End of Session is repeated, and requests are answered")
	fl.IntVar(&f.dropEvery, "drop-every", 0, "for tests: do not send every `N`-th packet of messages, but keep it in the ring")
	fl.Var(probabilityValue{&f.loss}, "loss", "for tests: do not send a packet of messages with probability `P`, but keep it in the ring")
	f.multicast.add(c, true)
	f.quorum.add(c)
	e.addJSON(c, "print a summary as JSON on stdout")
	return c
}

func (f *publishFlags) sender() (moldcast.SenderConfig, error) {
	c := moldcast.SenderConfig{Ring: f.ring, MTU: f.mtu, PacketMessages: f.packetMessages, Heartbeat: f.heartbeat}
	s, err := moldcast.ParseSession(f.session)
	switch {
	case err != nil:
		return c, usagef("--session: %v", err)
	case f.ring < 1 || f.ring > 1<<30:
		return c, usagef("--ring %d: want 1..%d messages", f.ring, 1<<30)
	case f.mtu < 128 || f.mtu > 65535:
		return c, usagef("--mtu %d: want 128..65535", f.mtu)
	case f.packetMessages < 0 || f.packetMessages > moldcast.MaxCount:
		return c, usagef("--packet-messages %d: want 0..%d", f.packetMessages, moldcast.MaxCount)
	case f.heartbeat <= 0:
		return c, usagef("--heartbeat %v: want more than 0", f.heartbeat)
	}
	c.Session = s
	return c, nil
}

func (e *env) publish(c *cobra.Command, f *publishFlags) error {
	if f.group == "" {
		return usagef("--group is required: an IPv4 multicast group, like 239.255.0.1:26400")
	}
	group, err := parseGroup("--group", f.group)
	if err != nil {
		return err
	}
	if group.Port() == 0 {
		return usagef("--group %s: want a port to send to", f.group)
	}
	sender, err := f.sender()
	if err != nil {
		return err
	}
	if f.rate != 0 && !(f.rate >= 1e-3 && f.rate <= 1e9) {
		return usagef("--rate %v: want 0, or 0.001..1e9 messages a second", f.rate)
	}
	if f.dropEvery < 0 {
		return usagef("--drop-every %d: want 0 (none) or more", f.dropEvery)
	}
	cfg := mcast.PublisherConfig{Sender: sender, Rate: f.rate, Linger: f.linger, Clock: mcast.NewClock(), Log: e.log}
	if f.dropEvery > 0 || f.loss > 0 {
		if cfg.Impair, err = mcast.NewImpairment(mcast.Impair{Loss: f.loss, DropEvery: f.dropEvery, Seed: f.seed}); err != nil {
			return usagef("--loss, --drop-every: %v", err)
		}
	}
	src, closeSource, err := e.publishSource(c, f, &cfg)
	if err != nil {
		return err
	}
	defer closeSource()
	if err := e.publishSockets(f, group, &cfg); err != nil {
		return err
	}
	p, err := mcast.NewPublisher(cfg)
	if err != nil {
		return err
	}
	return e.runPublisher(c.Context(), p, src, cfg)
}

// publishSockets opens the sockets; Run closes them.
func (e *env) publishSockets(f *publishFlags, group netip.AddrPort, cfg *mcast.PublisherConfig) error {
	if f.retransmitListen != "" {
		at, err := requestAddr("--retransmit-listen", f.retransmitListen)
		if err != nil {
			return err
		}
		// A request is 20 bytes; what is longer needs no room.
		s, err := mcast.Listen(mcast.ListenConfig{Addr: at, MaxDatagram: 64, Log: e.log})
		if err != nil {
			return socketError("--retransmit-listen", err)
		}
		cfg.Requests = s
	}
	closeAll := func() {
		for _, s := range []mcast.Socket{cfg.Requests, cfg.Acks} {
			if s != nil {
				s.Close()
			}
		}
	}
	if err := f.quorum.config(e, cfg.Sender, cfg); err != nil {
		closeAll()
		return err
	}
	out, err := mcast.Dial(f.multicast.sendTo(e, group))
	if err != nil {
		closeAll()
		return socketError("--group", err)
	}
	cfg.Out = out
	return nil
}

func (e *env) runPublisher(ctx context.Context, p *mcast.Publisher, src mcast.Source, cfg mcast.PublisherConfig) error {
	up := ready{Event: "ready"}
	if cfg.Requests != nil {
		raiseProcs(1)
		up.Retransmit = cfg.Requests.LocalAddr().String()
	}
	if cfg.Acks != nil {
		raiseProcs(1)
		up.Ack = cfg.Acks.LocalAddr().String()
	}
	if up.Retransmit != "" || up.Ack != "" {
		if err := e.printJSON(up); err != nil {
			return err
		}
	}
	stopProgress := func() {}
	if cfg.Acks != nil {
		stopProgress = e.quorumProgress(p)
	}
	err := p.Run(ctx, src)
	stopProgress()
	st := p.Stats()
	attrs := []any{"session", cfg.Sender.Session, "messages", st.Messages, "packets", st.Packets, "seconds", st.Publishing.Seconds(), "requests", st.Requests, "answered", st.Answered}
	if cfg.Impair != nil {
		attrs = append(attrs, "not_sent_on_purpose", st.Impair.Lost)
	}
	if st.Dropped > 0 {
		attrs = append(attrs, "refused_by_system", st.Dropped)
	}
	if q := p.Quorum(); q.K > 0 {
		attrs = append(attrs, "quorum", q.K, "quorum_seq", q.Seq, "lag_messages", q.Sent-q.Seq, "archives", len(q.Archives))
	}
	e.log.Info("published", attrs...)
	if q := p.Quorum(); q.K > 0 && q.Seq < q.Sent && err == nil {
		e.log.Warn(fmt.Sprintf("the quorum was not reached: %d of %d archives hold everything durably", q.Complete(), q.K), "help", "--gate waits for it")
	}
	if e.json {
		if perr := e.printJSON(newPublishSummary(cfg.Sender.Session, p, cfg.Acks)); err == nil {
			err = perr
		}
	}
	return err
}

// publishSource opens what is to be published.
func (e *env) publishSource(c *cobra.Command, f *publishFlags, cfg *mcast.PublisherConfig) (mcast.Source, func(), error) {
	generate := c.Flags().Changed("generate")
	switch {
	case generate == (f.input != ""):
		return nil, nil, usagef("want one of --input FILE and --generate N")
	case generate && f.generate < 0:
		return nil, nil, usagef("--generate %d: want a number of messages", f.generate)
	case generate:
		return &generatedSource{itch.NewGenerator(f.generate, f.seed)}, func() {}, nil
	}
	in := e.stdin
	name, regular := "stdin", false
	closeFile := func() {}
	if f.input != "-" {
		file, err := os.Open(f.input)
		if err != nil {
			return nil, nil, faultf("--input: %w", err)
		}
		st, err := file.Stat()
		if err != nil || st.IsDir() {
			file.Close()
			return nil, nil, faultf("--input %s: want a BinaryFILE", f.input)
		}
		in, name, regular = file, f.input, st.Mode().IsRegular()
		closeFile = func() { file.Close() }
	}
	cfg.Live = !regular
	s := &binarySource{name: name, in: in, regular: regular}
	return s, func() {
		// A pipe may still be read by the publisher's goroutine: the process
		// ends it.
		if regular {
			s.close()
			closeFile()
		}
	}, nil
}

// generatedSource is made-up messages as a source.
type generatedSource struct{ g *itch.Generator }

func (g *generatedSource) Next() ([]byte, error) {
	m, ok := g.g.Next()
	if !ok {
		return nil, io.EOF
	}
	return m, nil
}

// binarySource is a BinaryFILE, perhaps compressed, as a source. It opens the
// file at the first message, so that a pipe is not waited for before.
type binarySource struct {
	name    string
	in      io.Reader
	regular bool
	r       *binaryfile.Reader
	closer  func()
}

func (s *binarySource) close() {
	if s.closer != nil {
		s.closer()
	}
}

func (s *binarySource) Next() ([]byte, error) {
	if s.r == nil {
		content, _, closer, err := capfile.Decompress(bufio.NewReaderSize(s.in, 1<<16))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		s.r, s.closer = binaryfile.NewReader(content), closer
	}
	at := s.r.Pos()
	m, err := s.r.Next()
	switch {
	case err == nil && len(m) <= moldcast.MaxMessage:
		return m, nil
	case err == nil:
		err = &binaryfile.Error{Pos: at, Err: fmt.Errorf("message of %d bytes, the longest that a datagram carries is %d", len(m), moldcast.MaxMessage)}
	case err == io.EOF:
		if !s.regular || !s.r.Ended() {
			return nil, io.EOF
		}
		n, restErr := s.r.Rest()
		if n == 0 && restErr == nil {
			return nil, io.EOF
		}
		err = &binaryfile.Error{Pos: at, Err: fmt.Errorf("a length of zero ends the file, but %d bytes follow", n)}
		if restErr != nil {
			err = &binaryfile.Error{Pos: s.r.Pos(), Err: restErr}
		}
	}
	return nil, fmt.Errorf("%s: %w", s.name, err)
}
