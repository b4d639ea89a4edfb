package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/pace"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

const (
	demoRate     = 100_000 // most messages a second that the demo publishes
	demoWindow   = 2       // seconds that the publisher's ring covers at least, for a busy machine to ask in
	demoRunLimit = 10 * time.Minute
	demoIface    = "lo"
)

type demoFlags struct {
	messages  int
	loss      float64
	duplicate float64
	reorder   float64
	seed      uint64
	requests  int
	speed     float64
}

func newDemoCmd(e *env) *cobra.Command {
	f := &demoFlags{loss: 0.02, duplicate: 0.01, reorder: 0.01}
	c := &cobra.Command{
		Use:   "demo",
		Short: "The whole main job in one process on lo: record, repair, serve, replay, compare",
		Long: `The whole main job in one process on the loopback interface, with nothing to set up: publishes messages over
multicast through a link that loses, duplicates and reorders packets; captures them into an archive and repairs all
gaps; answers requests for messages that the publisher has long forgotten; replays the session as fast as it goes, and
at a scaled speed. Every byte is compared at each step.`,
		Example: "  moldtape demo --messages 1000000 --loss 0.05 --seed 9",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case f.messages < 10 || f.messages > 100_000_000:
				return usagef("--messages %d: want 10 to 100000000", f.messages)
			case f.requests < 0:
				return usagef("--requests %d: want 0 or more", f.requests)
			case !(f.speed >= pace.MinSpeed && f.speed <= pace.MaxSpeed):
				return usagef("--speed %v: want %v to %v", f.speed, pace.MinSpeed, pace.MaxSpeed)
			case f.loss > 0.5 || f.duplicate > 0.5 || f.reorder > 0.5:
				return usagef("--loss, --duplicate and --reorder: want 0..0.5")
			}
			return runDemo(c.Context(), e, f)
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.IntVar(&f.messages, "messages", 200_000, "messages to publish, `N`")
	fs.Var(probabilityValue{&f.loss}, "loss", "share of packets that the link loses")
	fs.Var(probabilityValue{&f.duplicate}, "duplicate", "share of packets that come twice")
	fs.Var(probabilityValue{&f.reorder}, "reorder", "share of packets that come late")
	fs.Uint64Var(&f.seed, "seed", 1, "of messages, link and requests, `N`")
	fs.IntVar(&f.requests, "requests", 1000, "random requests for old messages, `N`")
	fs.Float64Var(&f.speed, "speed", 4, "of the second replay, times the original, `X`")
	fs.StringVar(&e.archive, "archive", "", "new archive `DIR` that is kept (default a temporary one)")
	e.addJSON(c, "print the report as one JSON object")
	return c
}

// demoReport is what a demo counted.
type demoReport struct {
	Published       uint64  `json:"published"` // messages
	LinkLost        uint64  `json:"link_lost"` // packets
	Recovered       uint64  `json:"recovered"` // messages that were asked for and came
	Stored          uint64  `json:"stored"`
	BytesPerMessage float64 `json:"bytes_per_message"` // on disk
	Requests        uint64  `json:"requests"`          // answered from the archive, all right
	Replayed        uint64  `json:"replayed"`          // messages of both replays, all right
	OK              bool    `json:"ok"`

	linkDuplicated, linkReordered uint64
	raw                           float64
	holes                         int
	capture, serve, fast, scaled  time.Duration
	report                        replay.Report
}

// demo runs one demo; its parts run one after another.
type demo struct {
	*env
	*demoFlags
	session moldcast.Session
	dir     string
	ring    int // messages that the publisher keeps
	rep     demoReport
}

func runDemo(ctx context.Context, e *env, f *demoFlags) error {
	d := &demo{env: e, demoFlags: f, dir: e.archive}
	d.session, _ = moldcast.ParseSession("DEMO")
	// The publisher forgets a third of the messages at least, so that old ones
	// are answered by nobody but the archive.
	d.ring = max(f.messages*2/3, 1)
	if d.dir == "" {
		tmp, err := os.MkdirTemp("", "moldtape-demo-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		d.dir = tmp + "/archive"
	}
	raiseProcs(4) // line, answers and requests
	ctx, cancel := context.WithTimeout(ctx, demoRunLimit)
	defer cancel()
	err := d.run(ctx)
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return errInterrupted
	}
	d.rep.OK = err == nil
	if e.json {
		if perr := e.printJSON(d.rep); err == nil {
			err = perr
		}
		return err
	}
	if err != nil {
		return err
	}
	d.print()
	fmt.Fprintln(e.stdout, "OK")
	return nil
}

func (d *demo) run(ctx context.Context) error {
	step := func(p *time.Duration, run func(context.Context) error, what string) error {
		began := time.Now()
		if err := run(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		*p = time.Since(began)
		return nil
	}
	if err := step(&d.rep.capture, d.record, "capture"); err != nil {
		return err
	}
	archive, err := store.Open(d.dir, d.options())
	if err != nil {
		return err
	}
	defer closeQuietly(d.log, "archive", archive.Close)
	ref := store.Ref{Channel: "demo", Session: d.session, Take: 1}
	if err := d.measure(archive, ref); err != nil {
		return err
	}
	src := NewSource(archive, nil, d.log)
	defer closeQuietly(d.log, "views", src.Close)
	if err := src.Refresh(); err != nil {
		return err
	}
	conn, err := retransmit.Listen(netip.MustParseAddrPort("127.0.0.1:0"), d.log)
	if err != nil {
		return err
	}
	server, err := retransmit.New(retransmit.Config{Conn: conn, Source: src, Log: d.log})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.Background())
	var servers sync.WaitGroup
	servers.Go(func() { _ = server.Run(serving) })
	defer servers.Wait()
	defer stop()

	if err := step(&d.rep.serve, func(ctx context.Context) error { return d.ask(ctx, server.Addr()) }, "requests"); err != nil {
		return err
	}
	again := func(c pace.Config) func(context.Context) error {
		return func(ctx context.Context) error { return d.replay(ctx, archive, ref, server.Addr(), c) }
	}
	if err := step(&d.rep.fast, again(pace.Config{Max: true}), "replay at full speed"); err != nil {
		return err
	}
	return step(&d.rep.scaled, again(pace.Config{Speed: d.speed}), fmt.Sprintf("replay at speed %g", d.speed))
}

// expected compares a stream with what was published.
type expected struct {
	gen  *itch.Generator
	next moldcast.Seq
	err  error
}

func (d *demo) expect() *expected {
	return &expected{gen: itch.NewGenerator(d.messages, d.seed), next: 1}
}

// check takes the next message of the stream.
func (x *expected) check(seq moldcast.Seq, data []byte) {
	if x.err != nil {
		return
	}
	want, ok := x.gen.Next()
	switch {
	case !ok || seq != x.next:
		x.err = fmt.Errorf("message %d came where %d was expected", seq, x.next)
	case !bytes.Equal(want, data):
		x.err = fmt.Errorf("message %d is not what was published", seq)
	}
	x.next++
}

// done is the first difference; a stream must hold n messages.
func (x *expected) done(n int) error {
	if x.err == nil && x.next != moldcast.Seq(n)+1 {
		x.err = fmt.Errorf("the stream ends after message %d of %d", x.next-1, n)
	}
	return x.err
}

// generated is a Generator as a Publisher's source.
type generated struct{ *itch.Generator }

func (g generated) Next() ([]byte, error) {
	if b, ok := g.Generator.Next(); ok {
		return b, nil
	}
	return nil, io.EOF
}

// freeGroup is a multicast group with a port that nobody uses at the moment.
func freeGroup() (netip.AddrPort, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{239, 255, 0, 1}), port), nil
}

// options are those of a capture.
func (d *demo) options() store.Options {
	o := store.DefaultOptions()
	o.Log = d.log
	return o
}

// record publishes over a lossy link and captures.
func (d *demo) record(ctx context.Context) error {
	group, err := freeGroup()
	if err != nil {
		return err
	}
	archive, err := store.Create(d.dir, d.options())
	if err != nil {
		if errors.Is(err, store.ErrExists) {
			return usagef("--archive %s: %v; the demo wants a new one", d.dir, err)
		}
		return err
	}
	defer closeQuietly(d.log, "archive", archive.Close)
	requests, err := mcast.Listen(mcast.ListenConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Log: d.log})
	if err != nil {
		return err
	}
	src := NewSource(archive, nil, d.log)
	ch, err := capture.New(capture.Config{
		Channel: "demo", Lines: []capture.Line{{Addr: group}}, Interface: demoIface,
		Rerequest: []netip.AddrPort{requests.LocalAddr()}, UntilEnd: true, EndTimeout: time.Minute, Log: d.log, Seed: d.seed,
	}, &archiveSink{archive: archive, sources: []*Source{src}})
	if err != nil {
		requests.Close()
		return err
	}
	pub, err := d.publisher(group, requests)
	if err != nil {
		requests.Close()
		return err
	}
	publishing, stop := context.WithCancel(ctx)
	published := make(chan error, 1)
	go func() { published <- pub.Run(publishing, generated{itch.NewGenerator(d.messages, d.seed)}) }()
	status, err := ch.Run(ctx)
	stop() // the capture has everything: no need for the publisher to linger
	err = errors.Join(err, <-published)
	st := pub.Stats()
	d.rep.Published = uint64(pub.Sent() - 1)
	d.rep.LinkLost, d.rep.linkDuplicated, d.rep.linkReordered = st.Impair.Lost, st.Impair.Duplicated, st.Impair.Reordered
	d.rep.Recovered, d.rep.Stored, d.rep.holes = status.MessagesRecovered, status.Messages, status.Holes()
	switch {
	case err != nil:
		return err
	case d.rep.holes > 0 || status.MessagesLost > 0 || d.rep.Stored != uint64(d.messages):
		return faultf("%d of %d messages stored, %d holes", d.rep.Stored, d.messages, d.rep.holes)
	}
	return nil
}

func (d *demo) publisher(group netip.AddrPort, requests mcast.Socket) (*mcast.Publisher, error) {
	link, err := mcast.NewImpairment(mcast.Impair{Loss: d.loss, Duplicate: d.duplicate, Reorder: d.reorder, Depth: 4, Seed: d.seed})
	if err != nil {
		return nil, err
	}
	out, err := mcast.Dial(mcast.SendConfig{Addr: group, Interface: demoIface, Log: d.log})
	if err != nil {
		return nil, err
	}
	return mcast.NewPublisher(mcast.PublisherConfig{
		Sender: moldcast.SenderConfig{Session: d.session, Ring: d.ring, RingBytes: max(64<<10, 64*d.ring), PacketMessages: 4},
		Out:    out, Requests: requests, Impair: link, Rate: min(demoRate, max(float64(d.ring)/demoWindow, 1)), Linger: time.Minute, Log: d.log,
	})
}

// measure reads the archive back, message by message.
func (d *demo) measure(archive *store.Archive, ref store.Ref) error {
	view, err := archive.View(ref)
	if err != nil {
		return err
	}
	defer closeQuietly(d.log, "view", view.Close)
	x := d.expect()
	cur := view.Cursor(1)
	for {
		p, err := cur.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for m, seq := p.Msgs, p.First; m.Len() > 0; seq++ {
			x.check(seq, m.Next())
		}
	}
	info := view.Info()
	d.rep.BytesPerMessage = float64(info.BytesDisk) / float64(max(info.Messages, 1))
	d.rep.raw = float64(info.BytesRaw) / float64(max(info.Messages, 1))
	return x.done(d.messages)
}

// ask sends random requests for messages that have left the publisher's ring.
func (d *demo) ask(ctx context.Context, server netip.AddrPort) error {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return err
	}
	defer conn.Close()
	// What was published, once, so that any message can be compared.
	gone := max(d.messages-d.ring, 1)
	var all []byte
	starts := make([]int, 0, gone+1)
	for g := itch.NewGenerator(d.messages, d.seed); len(starts) < gone; {
		m, _ := g.Next()
		starts = append(starts, len(all))
		all = moldcast.AppendMessage(all, m)
	}
	starts = append(starts, len(all))

	rng := rand.New(rand.NewPCG(d.seed, 2))
	buf := make([]byte, moldcast.MaxDatagram)
	var request []byte
	for range d.requests {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		first := rng.IntN(gone)
		r := moldcast.Request{Session: d.session, First: moldcast.Seq(first + 1), Count: uint16(1 + rng.IntN(min(60, gone-first)))}
		request = moldcast.AppendRequest(request[:0], r)
		p, err := d.answer(conn, request, buf)
		if err != nil {
			return err
		}
		n := p.Msgs.Len()
		if p.Session != r.Session || p.First != r.First || n == 0 || n > int(r.Count) || !bytes.Equal(p.Msgs.Framed(), all[starts[first]:starts[first+n]]) {
			return faultf("the answer to %v is wrong: %v", r.Range(), p.Range())
		}
		d.rep.Requests++
	}
	return nil
}

// answer sends a request until it is answered.
func (d *demo) answer(conn *net.UDPConn, request, buf []byte) (moldcast.Packet, error) {
	for range 50 {
		if _, err := conn.Write(request); err != nil {
			return moldcast.Packet{}, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return moldcast.Packet{}, err
		}
		n, err := conn.Read(buf)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			continue
		}
		if err != nil {
			return moldcast.Packet{}, err
		}
		return moldcast.Parse(buf[:n])
	}
	return moldcast.Packet{}, faultf("no answer")
}

// replay republishes the session into a receiver, which may ask the archive.
func (d *demo) replay(ctx context.Context, archive *store.Archive, ref store.Ref, server netip.AddrPort, how pace.Config) error {
	group, err := freeGroup()
	if err != nil {
		return err
	}
	view, err := archive.View(ref)
	if err != nil {
		return err
	}
	defer closeQuietly(d.log, "view", view.Close)
	first, head := view.Bounds()
	out, err := mcast.DialInOrder(mcast.SendConfig{Addr: group, Interface: demoIface, Log: d.log})
	if err != nil {
		return err
	}
	defer out.Close()
	player, err := replay.New(replay.Config{
		Streams: []replay.Stream{{
			Session: d.session, Sender: out, Range: moldcast.Range{First: first, Next: head},
			Open: func(from moldcast.Seq) (replay.Source, error) { return view.Cursor(from), nil },
		}},
		Pace: how, Heartbeat: 100 * time.Millisecond, Linger: time.Minute, Log: d.log,
	})
	if err != nil {
		return err
	}
	line, err := mcast.Listen(mcast.ListenConfig{Addr: group, Interface: demoIface, RecvBuffer: 32 << 20, Log: d.log})
	if err != nil {
		return err
	}
	asks, err := mcast.Listen(mcast.ListenConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), RecvBuffer: 32 << 20, Log: d.log})
	if err != nil {
		line.Close()
		return err
	}
	x := d.expect()
	sub, err := mcast.NewSubscriber(mcast.SubscriberConfig{
		Receiver: moldcast.ReceiverConfig{
			Session: &d.session, From: 1, Ordered: true, OnMessage: x.check,
			Gap: gap.Config{Budget: time.Minute, RequestsPerSecond: 20_000, Seed: d.seed},
		},
		Lines: []mcast.Socket{line}, Requests: asks, Servers: []netip.AddrPort{server}, Log: d.log,
	})
	if err != nil {
		return err
	}
	playing, stop := context.WithCancel(ctx)
	var report replay.Report
	played := make(chan error, 1)
	go func() {
		r, err := player.Run(playing)
		report = r
		played <- err
	}()
	err = sub.Run(ctx)
	stop() // everything is here: no need to linger
	if perr := <-played; perr != nil && !errors.Is(perr, context.Canceled) {
		err = errors.Join(err, perr)
	}
	if err = errors.Join(err, x.done(d.messages)); err != nil {
		return err
	}
	d.rep.Replayed += uint64(x.next - 1)
	d.rep.report = report
	return nil
}

func (d *demo) print() {
	r := &d.rep
	n := func(v uint64) string { return humanize.Comma(int64(v)) }
	w := tabwriter.NewWriter(d.stdout, 0, 0, 2, ' ', 0)
	row := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", what, fmt.Sprintf(format, args...))
	}
	row("published", "%s messages; the link lost %s packets, repeated %s and delayed %s", n(r.Published), n(r.LinkLost), n(r.linkDuplicated), n(r.linkReordered))
	row("captured", "%s messages stored in %.1f s, %s of them asked for again; %d holes", n(r.Stored), r.capture.Seconds(), n(r.Recovered), r.holes)
	row("archive", "%.1f bytes a message on disk, of %.1f framed", r.BytesPerMessage, r.raw)
	row("requests", "%s random requests for what the publisher had forgotten, answered right in %.1f s", n(r.Requests), r.serve.Seconds())
	row("replayed", "%s messages, every byte as published: in %.1f s at full speed, in %.1f s at speed %g", n(r.Replayed), r.fast.Seconds(), r.scaled.Seconds(), d.speed)
	if r.report.Packets > 0 {
		row("pacing error", "median %.0f µs, p99 %.0f µs over %s packets", r.report.PacingError.P50*1e6, r.report.PacingError.P99*1e6, n(r.report.Packets))
	}
	w.Flush()
}
