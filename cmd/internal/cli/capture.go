package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// captureFlags are the flags of capture: a node of one channel, or the name of
// a file.
type captureFlags struct {
	file string
	node config.Node
}

func newCaptureCmd(e *env) *cobra.Command {
	f := &captureFlags{node: config.Default()}
	f.node.Channels = []config.Channel{config.DefaultChannel()}
	c := &cobra.Command{
		Use:   "capture",
		Short: "Record channels: join their lines, repair every gap, archive the streams",
		Long: `Record a channel: join its lines, repair every gap, archive the stream. Or
record many, as a file says (--config; see config example).

Prints one JSON object on stdout when it receives ({"event":"ready",…}) and one when it has stopped
({"event":"stopped",…}, with the counters). SIGINT and SIGTERM stop it cleanly: everything received is durable.`,
		Example: `  moldtape capture --channel itch --line 233.54.12.111:26477,interface=eth1 --line 233.49.196.111:26477,interface=eth2 \
    --rerequest 10.1.2.3:26400 --retransmit-listen :26402 --archive /data/moldtape
  moldtape capture --config node.yaml`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.capture(c, f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.file, "config", "", "capture the channels of this YAML `FILE`; cannot be mixed with the flags of a channel; what a flag says of the node wins")
	for _, x := range append(f.node.Channels[0].Fields(), f.node.Fields()...) {
		if x.Flag == "" {
			continue
		}
		if fl := fs.VarPF(x.Value, x.Flag, "", x.Usage); x.Value.Type() == "bool" {
			fl.NoOptDefVal = "true"
		}
	}
	return c
}

// config is what the flags say, or the file and the flags. where says in the
// words of either what is wrong.
func (f *captureFlags) config(c *cobra.Command) (n config.Node, where func([]config.Problem) error, err error) {
	if f.file == "" {
		where = func(ps []config.Problem) error {
			if len(ps) == 0 {
				return nil
			}
			return usagef("%s", ps[0].AsFlags())
		}
		f.node.EnsureDefaults()
		return f.node, where, where(f.node.Validate())
	}
	given := map[string]bool{}
	for _, x := range f.node.Fields() {
		given[x.Key] = x.Flag != "" && c.Flags().Changed(x.Flag)
	}
	given["log_level"] = c.Flags().Changed("log-level")
	given["log_format"] = c.Flags().Changed("log-format")
	var mixed []string
	c.Flags().Visit(func(fl *pflag.Flag) {
		if config.OfChannel(fl.Name) {
			mixed = append(mixed, "--"+fl.Name)
		}
	})
	if len(mixed) > 0 {
		return n, nil, usagef("--config cannot be mixed with the flags of a channel (%s): want them in the file", strings.Join(mixed, ", "))
	}
	file, err := config.ReadFile(f.file, f.node, func(key string) bool { return given[key] })
	if err != nil {
		return n, nil, configError(err)
	}
	where = func(ps []config.Problem) error {
		if len(ps) == 0 {
			return nil
		}
		return configError(file.Faults(ps))
	}
	return file.Node, where, nil
}

// configError is what reading a configuration file came to: exit 2.
func configError(err error) error {
	var faults config.Faults
	if errors.As(err, &faults) {
		return usagef("%w", faults)
	}
	return usagef("--config: %w", err)
}

// captureOptions are all that n says of the archive, and what every command shares.
func (e *env) captureOptions(n *config.Node) store.Options {
	o, shared := n.StoreOptions(), e.storeOptions()
	o.Log, o.Node = shared.Log, shared.Node
	return o
}

func (e *env) capture(c *cobra.Command, f *captureFlags) error {
	node, where, err := f.config(c)
	if err != nil {
		return err
	}
	if f.file != "" {
		e.logLevel, e.logFormat = cmp.Or(unlessChanged(c, "log-level", node.LogLevel), e.logLevel), cmp.Or(unlessChanged(c, "log-format", node.LogFormat), e.logFormat)
		if err := e.setLogger(); err != nil {
			return err
		}
	}
	e.archive = node.Archive
	cfgs, problems := node.Capture()
	if err := where(problems); err != nil {
		return err
	}
	lines, feeds := 0, map[string]moldcast.Feed{}
	for i := range cfgs {
		cfgs[i].Log = e.log
		cfgs[i].EnsureDefaults()
		lines += len(cfgs[i].Lines)
		feeds[cfgs[i].Channel] = cfgs[i].Feed
	}
	opts := e.captureOptions(&node)
	raiseProcs(min(lines, maxRaise) + 2) // and the threads of answers and of requests

	sink := &archiveSink{feeds: feeds}
	channels, err := capture.Open(cfgs, sink)
	if err != nil {
		for _, wrong := range []error{capture.ErrConfig, mcast.ErrInterface, mcast.ErrAddress, mcast.ErrSameLine} {
			if errors.Is(err, wrong) && f.file == "" {
				return usagef("--line: %v", err)
			} else if errors.Is(err, wrong) {
				return usagef("%s: %v", f.file, err)
			}
		}
		return err
	}
	n := &captureNode{env: e, channels: channels}
	defer n.closeChannels()
	archive, err := store.OpenOrCreate(e.archiveDir(), opts)
	if err != nil {
		return err
	}
	defer closeQuietly(e.log, "archive", archive.Close)
	for i := range cfgs {
		unlock, err := archive.LockChannel(cfgs[i].Channel)
		if err != nil {
			return err
		}
		defer closeQuietly(e.log, "channel", unlock)
	}
	sink.archive = archive
	ready := ready{Event: "ready"}
	for i, ch := range channels {
		ready.Channels = append(ready.Channels, readyChannel{Channel: cfgs[i].Channel, Lines: ch.Lines()})
	}
	defer n.close()
	if err := n.serve(&node, archive, sink, &ready); err != nil {
		return err
	}
	if r, asked := node.Retention(); asked {
		n.background(func(ctx context.Context) error { e.retain(ctx, archive, r, node.RetainEvery); return nil }, "retention")
	}
	if node.Acknowledges() {
		n.acknowledge(archive)
	}
	if err := e.printJSON(ready); err != nil {
		return err
	}
	statuses, err := n.run(c.Context())
	n.close()
	stopped := newStopped(statuses)
	if perr := e.printJSON(stopped); err == nil {
		err = perr
	}
	switch {
	case err != nil:
		return err
	case node.Strict && (stopped.MessagesLost > 0 || stopped.Holes > 0):
		return faultf("--strict: %s lost, %s", count(stopped.MessagesLost, "message"), count(stopped.Holes, "hole"))
	}
	return nil
}

// maxRaise bounds how many processors are added for the threads of lines: of
// very many only some block at a time, and each processor has its cost.
const maxRaise = 16

func unlessChanged(c *cobra.Command, flag, v string) string {
	if c.Flags().Changed(flag) {
		return ""
	}
	return v
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
	feeds   map[string]moldcast.Feed // by channel
	sources []*Source
}

func (k *archiveSink) Open(channel string, s moldcast.Session, take int, groups []string) (capture.SessionSink, error) {
	w, err := k.archive.Writer(channel, s, take)
	if err != nil {
		return nil, err
	}
	w.Lines(groups)
	if f, ok := k.feeds[channel]; ok {
		w.Feed(f)
	}
	view := w.View()
	for _, src := range k.sources {
		src.Live(w.Ref(), view)
	}
	return &sessionSink{Writer: w, archive: k.archive, sources: k.sources, view: view}, nil
}

type sessionSink struct {
	*store.Writer
	archive *store.Archive
	sources []*Source
	view    *store.View
	older   *store.View // of whoever calls Older
}

func (s *sessionSink) Take() int { return s.Ref().Take }

func (s *sessionSink) Read(dst []byte, first moldcast.Seq, count, size int) ([]byte, int, error) {
	return s.view.Append(dst, first, count, size, true)
}

func (s *sessionSink) Older(take int, dst []byte, first moldcast.Seq, count, size int) ([]byte, int, error) {
	ref := s.Ref()
	if ref.Take = take; s.older == nil || s.older.Ref() != ref {
		v, err := s.archive.View(ref)
		if err != nil {
			return dst, 0, err
		}
		s.older = v
	}
	return s.older.Append(dst, first, count, size, true)
}

func (s *sessionSink) Trouble() capture.Trouble {
	since, waiting, err := s.Writer.Trouble()
	return capture.Trouble{Err: err, Since: since, Waiting: waiting}
}

// Close seals the session; requests for it are answered from its segments
// from then on.
func (s *sessionSink) Close() error {
	err := s.Writer.Close()
	for _, src := range s.sources {
		src.Stored(s.Ref())
	}
	return err
}

// captureNode is the channels of a node, and what is served beside them.
type captureNode struct {
	env      *env
	channels []*capture.Channel
	servers
	stop     []func()
	stopping atomic.Bool
}

// run captures until ctx is done or every channel has ended by itself. What
// ends one channel is its own: the others go on.
func (n *captureNode) run(ctx context.Context) ([]capture.Status, error) {
	defer context.AfterFunc(ctx, func() { n.stopping.Store(true) })()
	statuses := make([]capture.Status, len(n.channels))
	errs := make([]error, len(n.channels))
	var wg sync.WaitGroup
	for i, ch := range n.channels {
		wg.Go(func() {
			statuses[i], errs[i] = ch.Run(ctx)
			if errs[i] != nil && len(n.channels) > 1 {
				n.env.log.Error("channel has stopped; the others go on", "channel", statuses[i].Channel, "err", errs[i])
			}
		})
	}
	wg.Wait()
	n.stopping.Store(true)
	failed := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(failed) > 1 {
		return statuses, fmt.Errorf("%d of %d channels: %w", len(failed), len(errs), errors.Join(failed...))
	}
	return statuses, errors.Join(failed...)
}

// closeChannels releases the sockets.
func (n *captureNode) closeChannels() {
	for _, ch := range n.channels {
		ch.Close()
	}
}

func (n *captureNode) close() {
	for i := len(n.stop) - 1; i >= 0; i-- {
		n.stop[i]()
	}
	n.stop = nil
}

// serve starts what answers requests and serves recovery streams, for all
// channels and for those that have addresses of their own, and HTTP. It says
// in ready where.
func (n *captureNode) serve(node *config.Node, archive *store.Archive, sink *archiveSink, ready *ready) (err error) {
	var one []string
	if len(node.Channels) == 1 {
		one = node.Channels[0].Names()
	}
	if ready.Retransmit, ready.Recovery, err = n.answer(node, node.RetransmitListen, node.Streams.Listen, archive, nil, one, sink); err != nil {
		return err
	}
	up := ready.Channels
	for i := range node.Channels {
		c := &node.Channels[i]
		names := c.Names()
		requests, streams, err := n.answer(node, c.RetransmitListen, c.RecoveryListen, archive, names, names, sink)
		if err != nil {
			return fmt.Errorf("channel %s: %w", c.Name, err)
		}
		for range names {
			up[0].Retransmit, up[0].Recovery = requests, streams
			up = up[1:]
		}
	}
	l, err := n.env.listenHTTP(node.HTTP, readByAll)
	if err != nil || l == nil {
		return err
	}
	ready.HTTP = l.Addr().String()
	srv := httpd.New(n.httpConfig(httpd.Config{Status: n.status, Archive: n.env.archiveDir(), Version: version(), Pprof: node.Pprof, Log: n.env.log,
		Snapshots: &httpd.Snapshots{Archive: archive, Max: node.SnapshotMax}}))
	n.background(func(ctx context.Context) error { return srv.Serve(ctx, l) }, "http")
	return nil
}

// answer serves what is archived of channels (none: of all): requests on one
// address, streams on the other, where there is one, and returns them as bound.
// Streams are of the channels streamed, likewise.
func (n *captureNode) answer(node *config.Node, requests, streams string, archive *store.Archive, channels, streamed []string, sink *archiveSink) (retransmitAt, recoveryAt string, err error) {
	if requests == "" && streams == "" {
		return "", "", nil
	}
	src := NewSource(archive, channels, n.env.log)
	n.stop = append(n.stop, func() { closeQuietly(n.env.log, "views", src.Close) })
	if err := src.Refresh(); err != nil {
		return "", "", err
	}
	sink.sources = append(sink.sources, src)
	n.background(func(ctx context.Context) error { src.Run(ctx); return nil }, "refresh of sessions")
	if requests != "" {
		addr, err := requestAddr("--retransmit-listen", requests)
		if err != nil {
			return "", "", err
		}
		conn, err := retransmit.Listen(addr, n.env.log)
		if err != nil {
			return "", "", fmt.Errorf("--retransmit-listen: %w", err)
		}
		srv, err := retransmit.New(retransmit.Config{
			Conn: conn, Source: src, Upstream: n.upstream(channels), Duty: node.Duty(), Windows: n.upstream(channels), Admit: node.Admission(), MTU: node.MTU, Clock: mcast.NewClock(), Log: n.env.log,
		})
		if err != nil {
			conn.Close()
			return "", "", err
		}
		retransmitAt = srv.Addr().String()
		n.requests = append(n.requests, srv)
		n.background(srv.Run, "retransmit")
	}
	served := node.Streams
	served.Listen = streams
	recordings := src.recordings(streamed...)
	for _, c := range node.Channels {
		recordings.captured = append(recordings.captured, c.Name)
	}
	srv, err := serveStreams(served, recordings, node.Admission().Allow, n.env.log)
	if err != nil {
		return "", "", err
	}
	if srv != nil {
		recoveryAt = srv.Addr().String()
		n.streams = append(n.streams, srv)
		n.background(srv.Run, "recovery stream")
	}
	return retransmitAt, recoveryAt, nil
}

// upstream is what the request server of these channels (none: of all) tells
// what clients ask for that the archive lacks, and asks what senders still serve.
func (n *captureNode) upstream(channels []string) (u upstream) {
	for _, c := range n.channels {
		if len(channels) == 0 || slices.Contains(channels, c.Name()) {
			u = append(u, c)
		}
	}
	return u
}

// upstream asks by the channels that capture: the one that has the session
// asks its servers.
type upstream []*capture.Channel

func (u upstream) Want(s moldcast.Session, r moldcast.Range) {
	for _, c := range u {
		c.Want(s, r)
	}
}

// Window is what the sender serves; where two channels have the session, the
// less of both.
func (u upstream) Window(s moldcast.Session) (window uint64) {
	for _, c := range u {
		if n := c.Window(s); n > 0 && (window == 0 || n < window) {
			window = n
		}
	}
	return window
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
	if n.stopping.Load() {
		return nil, errors.New("the node is stopping")
	}
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
