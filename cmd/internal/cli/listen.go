package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/ndjson"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

type listenFlags struct {
	group         string
	rerequest     []string
	rerequestPort uint16
	count         uint64
	output        string
	format        string
	ordered       bool
	nakBudget     time.Duration
	strict        bool
	recover       recoverFlags
	multicast     multicastFlags
	rx            rxFlags
}

func newListenCmd(e *env) *cobra.Command {
	f := listenFlags{nakBudget: 10 * time.Second, recover: newRecoverFlags()}
	c := &cobra.Command{
		Use:   "listen",
		Short: "Receive a group as a MoldCast receiver",
		Long: `Receive a multicast group as a MoldCast receiver: detect gaps, ask for what is
missing, and write the messages in order, each once. Ends at End of Session.
With --recovery it begins with the first message of the session, whenever it is
started: what was sent before is fetched while it listens.`,
		Example: `  moldtape listen --group 239.255.0.1:26400 --interface lo \
      --rerequest 127.0.0.1:26401 --recovery 127.0.0.1:26403 --output day.itch --strict`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.listen(c, &f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.group, "group", "", "multicast group to receive, `G:P`")
	fl.StringArrayVar(&f.rerequest, "rerequest", nil, "`ADDR` to ask for what is missing, or source: the address that the stream comes from (repeat for more)")
	fl.Uint16Var(&f.rerequestPort, "rerequest-port", 0, "port of --rerequest source")
	fl.Uint64Var(&f.count, "count", 0, "stop after `N` messages; 0 is none")
	fl.StringVar(&f.output, "output", "", "write the messages to `FILE`; - is stdout")
	fl.StringVar(&f.format, "format", "binaryfile", "of the output: binaryfile, ndjson or none")
	fl.BoolVar(&f.ordered, "ordered", true, "deliver in order; false delivers a message as soon as it arrives")
	fl.Var(config.Duration{P: &f.nakBudget}, "nak-budget", "how long a gap is asked for before it is lost")
	fl.BoolVar(&f.strict, "strict", false, "exit 1 if messages were lost")
	f.recover.add(c)
	f.multicast.add(c, false)
	f.rx.add(c)
	e.addJSON(c, "print the summary as JSON on stdout")
	return c
}

// listenSummary is `listen --json`.
type listenSummary struct {
	Received   uint64 `json:"received"`
	Delivered  uint64 `json:"delivered"`
	Duplicates uint64 `json:"duplicates"`
	OutOfOrder uint64 `json:"out_of_order"`
	Gaps       uint64 `json:"gaps"`
	Recovered  uint64 `json:"recovered"`
	Lost       uint64 `json:"lost"`
	NAKSent    uint64 `json:"nak_sent"`

	Streamed      uint64 `json:"streamed"`       // messages that recovery streams brought first
	Reconnects    uint64 `json:"reconnects"`     // connections to recovery servers after one that broke off or could not be had
	Restarts      uint64 `json:"restarts"`       // times that all that waited was dropped: the buffer was full
	BufferDropped uint64 `json:"buffer_dropped"` // messages that were, or found no room
	Conflicts     uint64 `json:"conflicts"`      // messages of recovery servers that were other than those heard

	SnapshotSeq      moldcast.Seq `json:"snapshot_seq"`      // where the snapshot is that delivery began with; 0: with none
	SnapshotRestarts uint64       `json:"snapshot_restarts"` // snapshots that were not taken, since the next message did not follow
}

func (e *env) listen(c *cobra.Command, f *listenFlags) error {
	if f.group == "" {
		return usagef("--group is required: an IPv4 multicast group, like 239.255.0.1:26400")
	}
	group, err := parseGroup("--group", f.group)
	if err != nil {
		return err
	}
	cfg := mcast.SubscriberConfig{Clock: mcast.NewClock(), Log: e.log}
	if err := f.servers(&cfg); err != nil {
		return err
	}
	switch {
	case f.format != "binaryfile" && f.format != "ndjson" && f.format != "none":
		return usagef("--format %q: want binaryfile, ndjson or none", f.format)
	case f.nakBudget <= 0:
		return usagef("--nak-budget %v: want more than 0", f.nakBudget)
	case e.json && f.output == "-":
		return usagef("--json and --output - both want stdout: write the output to a file")
	}
	// The first signal ends Run; so do the last message wanted and a failed
	// write.
	ctx, stop := context.WithCancel(c.Context())
	defer stop()
	l := &listener{limit: f.count, stop: stop, log: e.log}
	cfg.Receiver = moldcast.ReceiverConfig{Ordered: f.ordered, OnMessage: l.message, OnLost: l.lost, Gap: gap.Config{Budget: f.nakBudget}}
	cfg.OnIdle = l.idle
	if err := f.recover.apply(&cfg, f.nakBudget); err != nil {
		return err
	}
	if f.recover.snapshot != "" {
		file := &snapshotFile{name: f.recover.snapshot, told: func(seq moldcast.Seq, bytes uint64) error {
			return e.printEvent(f, snapshotEvent{"snapshot", seq, bytes, f.recover.snapshot})
		}}
		defer file.drop()
		cfg.Recovery.Snapshot = file
	}
	return e.runListener(ctx, f, group, cfg, l)
}

func (f *listenFlags) servers(cfg *mcast.SubscriberConfig) error {
	for _, s := range f.rerequest {
		if s == "source" {
			if f.rerequestPort == 0 {
				return usagef("--rerequest source needs --rerequest-port PORT")
			}
			cfg.SourcePort = f.rerequestPort
			continue
		}
		a, err := resolve4("--rerequest", s)
		if err != nil {
			return err
		}
		cfg.Servers = append(cfg.Servers, a)
	}
	if f.rerequestPort != 0 && cfg.SourcePort == 0 {
		return usagef("--rerequest-port goes with --rerequest source")
	}
	return nil
}

func (e *env) runListener(ctx context.Context, f *listenFlags, group netip.AddrPort, cfg mcast.SubscriberConfig, l *listener) error {
	backend, ring, err := f.rx.parse()
	if err != nil {
		return err
	}
	taps, err := mcast.OpenLines([]mcast.ListenConfig{{Addr: group, Interface: f.multicast.iface, RingSize: ring, Log: e.log}}, backend)
	if err != nil {
		return socketError("--group", err)
	}
	line := taps[0].Socket
	cfg.Lines = []mcast.Socket{line}
	if len(f.rerequest) > 0 {
		s, err := mcast.Listen(mcast.ListenConfig{Log: e.log})
		if err != nil {
			line.Close()
			return socketError("--rerequest", err)
		}
		cfg.Requests = s
	}
	closeSockets := func() {
		line.Close()
		if cfg.Requests != nil {
			cfg.Requests.Close()
		}
	}
	sub, err := mcast.NewSubscriber(cfg)
	if err != nil {
		closeSockets()
		return err
	}
	raiseProcs(2)
	l.stamp = sub.Stamp
	if l.out, err = e.openMessages(f); err != nil {
		closeSockets()
		return err
	}
	err = e.printEvent(f, ready{Event: "ready", Channels: []readyChannel{{Channel: "default", Lines: []string{line.LocalAddr().String()}}}})
	if err == nil {
		err = sub.Run(ctx)
	} else {
		closeSockets()
	}
	if closeErr := l.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return e.reportListen(f, l, sub.Stats())
}

// printEvent prints an event on stdout, or on stderr where stdout carries the
// messages.
func (e *env) printEvent(f *listenFlags, event any) error {
	if f.output != "-" {
		return e.printJSON(event)
	}
	other := *e
	other.stdout = e.stderr
	return other.printJSON(event)
}

// snapshotEvent says that --snapshot is there: the state after all messages
// below Seq. Those that are delivered begin with it.
type snapshotEvent struct {
	Event string       `json:"event"`
	Seq   moldcast.Seq `json:"seq"`
	Bytes uint64       `json:"bytes"`
	File  string       `json:"file"`
}

func (e *env) reportListen(f *listenFlags, l *listener, st mcast.SubscriberStats) error {
	sum := listenSummary{
		Received: st.Received, Delivered: l.n, Duplicates: st.Duplicates, OutOfOrder: st.OutOfOrder,
		Gaps: st.Gaps, Recovered: st.Recovered, Lost: st.Lost, NAKSent: st.NAKSent,
		Streamed: st.Streamed, Reconnects: st.Recovery.Reconnects, Restarts: st.Restarts, BufferDropped: st.Dropped, Conflicts: st.Recovery.Conflicts,
		SnapshotSeq: st.Recovery.Snapshot, SnapshotRestarts: st.Recovery.SnapshotRestarts,
	}
	e.log.Info("received", "received", sum.Received, "delivered", sum.Delivered, "duplicates", sum.Duplicates,
		"out_of_order", sum.OutOfOrder, "gaps", sum.Gaps, "recovered", sum.Recovered, "lost", sum.Lost, "nak_sent", sum.NAKSent,
		"streamed", sum.Streamed, "reconnects", sum.Reconnects, "restarts", sum.Restarts, "buffer_dropped", sum.BufferDropped, "conflicts", sum.Conflicts,
		"malformed", st.Malformed, "wrong_session", st.WrongSession, "queue_dropped", st.QueueDropped, "kernel_dropped", st.KernelDropped)
	if e.json {
		if err := e.printJSON(sum); err != nil {
			return err
		}
	}
	if f.strict && sum.Lost > 0 {
		return faultf("--strict: %s lost", count(sum.Lost, "message"))
	}
	return nil
}

// listener takes what the receiver delivers; the subscriber's goroutine owns
// it.
type listener struct {
	out   *messages
	limit uint64 // 0: none
	n     uint64
	stamp func() moldcast.Stamp
	stop  func()
	log   *slog.Logger
	err   error

	losses int // ranges that were lost
}

// maxLossLogs is how many ranges that are lost are logged one by one.
const maxLossLogs = 20

func (l *listener) message(seq moldcast.Seq, data []byte) {
	if l.err != nil || l.limit > 0 && l.n == l.limit {
		return
	}
	if err := l.out.write(seq, l.stamp(), data); err != nil {
		l.fail(seq, err)
		return
	}
	if l.n++; l.n == l.limit {
		l.stop()
	}
}

func (l *listener) lost(r gap.Range) {
	switch l.losses++; {
	case l.losses <= maxLossLogs:
		l.log.Warn("messages are lost", "range", r, "messages", r.Len())
	case l.losses == maxLossLogs+1:
		l.log.Warn("further losses are counted only")
	}
}

// idle brings what was delivered to whoever reads along.
func (l *listener) idle() {
	if l.err == nil {
		if err := l.out.flush(); err != nil {
			l.fail(0, err)
		}
	}
}

func (l *listener) close() error {
	if err := l.out.close(); err != nil && l.err == nil {
		l.fail(0, err)
	}
	return l.err
}

func (l *listener) fail(seq moldcast.Seq, err error) {
	if errors.Is(err, binaryfile.ErrEmpty) {
		l.err = faultf("message %d: %w (--format ndjson)", seq, err)
	} else {
		l.err = faultf("--output: %w", err)
	}
	l.stop()
}

// messages writes delivered messages in one of the formats.
type messages struct {
	file  io.Closer // nil: not ours
	bin   *binaryfile.Writer
	lines *bufio.Writer
	buf   []byte
}

// openMessages opens the output of listen.
func (e *env) openMessages(f *listenFlags) (*messages, error) {
	m := &messages{}
	var w io.Writer
	switch {
	case f.format == "none" || f.output == "":
		return m, nil
	case f.output == "-":
		w = e.stdout
	default:
		file, err := os.Create(f.output)
		if err != nil {
			return nil, faultf("--output: %w", err)
		}
		w, m.file = file, file
	}
	if f.format == "ndjson" {
		m.lines = bufio.NewWriterSize(w, 1<<16)
	} else {
		m.bin = binaryfile.NewWriter(w)
	}
	return m, nil
}

func (m *messages) write(seq moldcast.Seq, at moldcast.Stamp, data []byte) error {
	switch {
	case m.bin != nil:
		return m.bin.Write(data)
	case m.lines != nil:
		m.buf = ndjson.Append(m.buf[:0], ndjson.Message{Seq: seq, Time: at, Heard: at, Data: data})
		_, err := m.lines.Write(m.buf)
		return err
	}
	return nil
}

func (m *messages) flush() error {
	switch {
	case m.bin != nil:
		return m.bin.Flush()
	case m.lines != nil:
		return m.lines.Flush()
	}
	return nil
}

func (m *messages) close() error {
	err := m.flush()
	if m.file != nil {
		if closeErr := m.file.Close(); err == nil {
			err = closeErr
		}
	}
	return err
}
