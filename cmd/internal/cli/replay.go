package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/impair"
	"github.com/moldtape/moldtape/replay/pace"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

type replayFlags struct {
	groups    []string
	maps      []string
	multicast multicastFlags

	speed   string
	rate    float64
	maxIdle time.Duration
	startAt string
	loop    int

	ranges    rangeFlags
	asSession []string
	packets   string
	mtu       int
	onHole    string
	strict    bool

	heartbeat, linger time.Duration
	retransmitListen  string
	pacing            pacingFlags
	ring              uint64
	http              string

	impair  impairFlags
	asHeard bool
	stress  stressFlags
}

func newReplayCmd(e *env) *cobra.Command {
	f := replayFlags{heartbeat: time.Second, linger: 5 * time.Second}
	c := &cobra.Command{
		Use:   "replay SESSION...",
		Short: "Publish recorded sessions again, at their own rhythm or another",
		Long: `Publish recorded sessions again: the same messages under the same sequence
numbers, in their original packets, at the recorded rhythm or a scaled one.
Several sessions run on one clock.

Ends with End of Session, repeated for --linger. A replay that is interrupted
(exit 130), or that a hole stops (exit 1), sends none.

With --loop each round is a session of its own: the name of --as-session and the
number of the round, LOOP01 to LOOP12.

Keys on a terminal: space pauses, + and - double and halve the speed, left and
right seek 10 s, down and up a minute, . sends the next packet, q quits.`,
		Example: `  moldtape replay default/000010059B --group 239.255.0.1:26400 --speed 4 \
      --from-time 09:30:00 --to-time 09:45:00 --retransmit-listen 0.0.0.0:26401`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("replay: want at least one SESSION; `moldtape sessions` lists them")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return e.replay(c, args, &f) },
	}
	fl := c.Flags()
	fl.SortFlags = false
	e.addArchive(c)
	fl.StringArrayVar(&f.groups, "group", nil, "multicast group `G:P` to publish to (repeat, in the order of the sessions; one: for all of them)")
	fl.StringArrayVar(&f.maps, "map", nil, "publish the sessions of a channel to a group, `CHANNEL=G:P` (repeat; instead of --group)")
	f.multicast.add(c, true)
	fl.StringVar(&f.speed, "speed", "1", "`X`: 2 is twice as fast, 0.001..1000; max is no waiting")
	fl.Float64Var(&f.rate, "rate", 0, "`MSGS_PER_S`, instead of the recorded rhythm; 0 is as fast as it goes")
	fl.Var(config.Duration{P: &f.maxIdle}, "max-idle", "longest quiet time; longer ones are cut; 0: none is")
	fl.StringVar(&f.startAt, "start-at", "", "send the first packet at `TIME`: RFC 3339, or HH:MM:SS[.fraction] of today (UTC)")
	fl.IntVar(&f.loop, "loop", 1, "play `N` times, each time as a session of its own; needs --as-session")
	f.ranges.add(c)
	f.stress.add(c)
	fl.StringArrayVar(&f.asSession, "as-session", nil, "publish under this session `NAME` (repeat, in the order of the sessions)")
	fl.StringVar(&f.packets, "packets", "original", "original: the packets as they were; repack: filled up to the MTU")
	fl.IntVar(&f.mtu, "mtu", 1500, "most `BYTES` of an IP packet, for --packets repack and answers")
	fl.StringVar(&f.onHole, "on-hole", "skip", "skip: go on with the next message, at its time; stop: end before the hole, exit 1; wait: until it is filled")
	fl.BoolVar(&f.strict, "strict", false, "exit 1 if there were holes")
	fl.Var(config.Duration{P: &f.heartbeat}, "heartbeat", "silence after which a heartbeat is sent")
	fl.Var(config.Duration{P: &f.linger}, "linger", "how long End of Session is repeated, and requests are answered")
	fl.StringVar(&f.retransmitListen, "retransmit-listen", "", "answer requests on `ADDR`, for what was published so far")
	f.pacing.add(c)
	fl.Uint64Var(&f.ring, "ring", 0, "answer requests for the newest `N` messages only, as a sender with such a ring does; 0: for all")
	fl.StringVar(&f.http, "http", "", "status and control on `ADDR` (host:port), see README")
	fl.BoolVar(&f.asHeard, "as-heard", false, "replay line A and B as they were heard, with losses, repeats, order and heartbeats, of a session with a line log (capture --line-log); --line-b is where B goes")
	f.impair.add(c)
	e.addJSON(c, "print the summary as JSON on stdout")
	return c
}

// config checks all flags that need no archive.
func (f *replayFlags) config(c *cobra.Command) (replay.Config, error) {
	var cfg replay.Config
	fail := func(format string, args ...any) (replay.Config, error) { return cfg, usagef(format, args...) }
	switch {
	case c.Flags().Changed("rate"):
		if c.Flags().Changed("speed") {
			return fail("--rate and --speed are two ways to pace: give one of them")
		}
		if f.rate != 0 && !(f.rate >= pace.MinRate && f.rate <= pace.MaxRate) {
			return fail("--rate %v: want 0, or %v..%v messages a second", f.rate, pace.MinRate, float64(pace.MaxRate))
		}
		cfg.Pace.Rate, cfg.Pace.Max = f.rate, f.rate == 0
	case f.speed == "max":
		cfg.Pace.Max = true
	default:
		x, err := strconv.ParseFloat(f.speed, 64)
		if err != nil || !(x >= pace.MinSpeed && x <= pace.MaxSpeed) {
			return fail("--speed %q: want %v..%v, or max", f.speed, pace.MinSpeed, pace.MaxSpeed)
		}
		cfg.Pace.Speed = x
	}
	cfg.Pace.MaxIdle = f.maxIdle
	switch f.packets {
	case "original":
	case "repack":
		cfg.Packets = replay.Repack
	default:
		return fail("--packets %q: want original or repack", f.packets)
	}
	switch f.onHole {
	case "skip":
	case "stop":
		cfg.OnHole = replay.Stop
	case "wait":
		cfg.OnHole = replay.Wait
	default:
		return fail("--on-hole %q: want skip, stop or wait", f.onHole)
	}
	switch {
	case f.mtu < 128 || f.mtu > 65535:
		return fail("--mtu %d: want 128..65535", f.mtu)
	case f.heartbeat <= 0:
		return fail("--heartbeat %v: want more than 0", f.heartbeat)
	case f.loop < 1:
		return fail("--loop %d: want 1 or more", f.loop)
	case f.loop > 1 && len(f.asSession) == 0:
		return fail("--loop %d: a session must not begin again under its own name: give --as-session NAME too", f.loop)
	case f.ring > 0 && f.retransmitListen == "":
		return fail("--ring %d: nothing is answered without --retransmit-listen", f.ring)
	}
	if f.http != "" {
		if err := parseHostPort("--http", f.http); err != nil {
			return cfg, err
		}
	}
	if err := f.impair.check(); err != nil {
		return cfg, err
	}
	if err := f.stress.check(c); err != nil {
		return cfg, err
	}
	if err := f.checkHeard(c); err != nil {
		return cfg, err
	}
	if f.startAt != "" {
		t, err := parseTimeOn("--start-at", f.startAt, time.Now())
		if err != nil {
			return cfg, err
		}
		cfg.StartAt = moldcast.StampOf(t)
	}
	cfg.MTU, cfg.Heartbeat, cfg.Linger, cfg.Loop = f.mtu, f.heartbeat, f.linger, f.loop
	if err := f.pacing.config(&cfg); err != nil {
		return cfg, err
	}
	return cfg, f.ranges.check()
}

// sendTarget reads where to publish: a group, or a unicast address.
func sendTarget(flag, s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || !a.Addr().Is4() || a.Addr().IsUnspecified() || a.Port() == 0 {
		return netip.AddrPort{}, usagef("%s %q: want a group and port to send to, like 239.255.0.1:26400", flag, s)
	}
	return a, nil
}

// forEach reads where each of n sessions goes: given once, all of them.
func forEach(flag string, values []string, n int) (out []netip.AddrPort, err error) {
	if len(values) > 1 && len(values) != n {
		return nil, usagef("%s given %d times for %d sessions: want one for each, or one for all", flag, len(values), n)
	}
	for _, v := range values {
		a, err := sendTarget(flag, v)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	if len(out) == 1 {
		out = slices.Repeat(out, n)
	}
	return out, nil
}

// targets reads --group and --map for n sessions: of a session by its place,
// or by its channel.
func (f *replayFlags) targets(n int) (byPlace []netip.AddrPort, byChannel map[string]netip.AddrPort, err error) {
	switch {
	case len(f.groups) > 0 && len(f.maps) > 0:
		return nil, nil, usagef("--group and --map are two ways to say where to: give one of them")
	case len(f.groups) == 0 && len(f.maps) == 0:
		return nil, nil, usagef("--group is required: a multicast group, like 239.255.0.1:26400; or --map CHANNEL=G:P for each channel")
	}
	if byPlace, err = forEach("--group", f.groups, n); err != nil {
		return nil, nil, err
	}
	byChannel = map[string]netip.AddrPort{}
	for _, m := range f.maps {
		channel, group, ok := strings.Cut(m, "=")
		if !ok || !store.ValidChannel(channel) {
			return nil, nil, usagef("--map %q: want CHANNEL=G:P, like default=239.255.0.1:26400", m)
		}
		if _, twice := byChannel[channel]; twice {
			return nil, nil, usagef("--map %s is given twice", channel)
		}
		if byChannel[channel], err = sendTarget("--map "+channel, group); err != nil {
			return nil, nil, err
		}
	}
	return byPlace, byChannel, nil
}

// names reads --as-session for n sessions.
func (f *replayFlags) names(n int) ([]moldcast.Session, error) {
	if len(f.asSession) != 0 && len(f.asSession) != n {
		return nil, usagef("--as-session given %d times for %d sessions: want one for each", len(f.asSession), n)
	}
	var out []moldcast.Session
	for _, s := range f.asSession {
		name, err := moldcast.ParseSession(s)
		if err != nil {
			return nil, usagef("--as-session: %v", err)
		}
		if _, err := replay.LoopSession(name, 1, f.loop); err != nil {
			return nil, usagef("--loop: %v", err)
		}
		out = append(out, name)
	}
	return out, nil
}

// replayStream is a stream with what its requests are answered from.
type replayStream struct {
	replay.Stream
	ref   store.Ref
	view  *store.View
	group netip.AddrPort
	lineB netip.AddrPort               // where there is one
	lines [len(lineNames)]*impair.Line // nil: harms nothing

	line int // with --as-heard: which

	damaged atomic.Uint64 // ranges that were read, and were not good
}

func (e *env) replay(c *cobra.Command, args []string, f *replayFlags) (err error) {
	cfg, err := f.config(c)
	if err != nil {
		return err
	}
	byPlace, byChannel, err := f.targets(len(args))
	if err != nil {
		return err
	}
	names, err := f.names(len(args))
	if err != nil {
		return err
	}
	linesB, err := forEach("--line-b", f.impair.lineB, len(args))
	if err != nil {
		return err
	}
	var listen netip.AddrPort
	if f.retransmitListen != "" {
		if listen, err = requestAddr("--retransmit-listen", f.retransmitListen); err != nil {
			return err
		}
	}
	archive, err := e.openArchive()
	if err != nil {
		return err
	}
	defer closeQuietly(e.log, "archive", archive.Close)

	var streams []*replayStream
	var empty []string
	channels := map[string]bool{}
	for i, name := range args {
		ref, err := archive.Find(name)
		if err != nil {
			return err
		}
		s := &replayStream{ref: ref}
		s.Session = ref.Session
		if len(names) > 0 {
			s.Session = names[i]
		}
		channels[ref.Channel] = true
		if len(byPlace) > 0 {
			s.group = byPlace[i]
		} else if s.group = byChannel[ref.Channel]; !s.group.IsValid() {
			return usagef("--map says nothing of channel %s: want %s=G:P", ref.Channel, ref.Channel)
		}
		if linesB != nil {
			s.lineB = linesB[i]
		}
		if s.view, err = archive.View(ref); err != nil {
			return err
		}
		defer closeQuietly(e.log, "view", s.view.Close)
		none, err := e.replayRange(s, &f.ranges)
		if err != nil {
			return err
		}
		if none != "" {
			empty = append(empty, none)
			continue
		}
		lease, err := s.view.Lease(s.Range)
		if err != nil {
			return err
		}
		defer lease.Close()
		streams = append(streams, s)
	}
	for ch := range byChannel {
		if !channels[ch] {
			return usagef("--map %s: no session of that channel is replayed", ch)
		}
	}
	if len(streams) == 0 {
		return faultf("nothing to replay: %s", strings.Join(empty, "; "))
	}
	for _, s := range empty {
		e.log.Warn("not replayed", "why", s)
	}
	if err := apart(streams, f); err != nil {
		return err
	}
	if idle := idleBetween(streams); idle >= idleSaid && cfg.Pace.MaxIdle == 0 && !cfg.Pace.Max && cfg.Pace.Rate == 0 {
		e.log.Warn("the sessions lie apart: nothing is sent between them for long; --max-idle cuts that", "between_them", idle.Round(time.Second))
	}
	if err := f.stress.apply(c.Context(), e, streams, &cfg); err != nil {
		return err
	}
	var missing []notHeard
	if f.asHeard {
		if streams, missing, err = e.asHeard(streams); err != nil {
			return err
		}
	}
	var harms *impairLog
	if f.impair.log != "" {
		if harms, err = newImpairLog(f.impair.log); err != nil {
			return err
		}
		defer func() {
			if lerr := harms.close(); err == nil {
				err = lerr
			}
		}()
	}
	closeSockets, err := e.replaySockets(streams, f, harms)
	defer closeSockets()
	if err != nil {
		return err
	}
	page, err := f.pacing.openPage()
	if err != nil {
		return err
	}
	defer page.discard()
	if cfg.StartAt != 0 && cfg.StartAt.Time().Before(time.Now()) {
		e.log.Warn("--start-at is past: started at once", "start_at", cfg.StartAt.Time())
	}
	cfg.Log = e.log
	raiseProcs(1) // for the sender's thread
	for _, s := range streams {
		cfg.Streams = append(cfg.Streams, s.Stream)
	}
	player, err := replay.New(cfg)
	if err != nil {
		return err
	}
	return e.play(c.Context(), player, cfg, streams, missing, f, listen, func(rep *replay.Report, ended error) error {
		return page.write(streams, f.how(&cfg, rep.TX, ended), rep)
	})
}

// idleSaid is how long nothing of several sessions has to be recorded, between
// them, for that to be said.
const idleSaid = time.Hour

// idleBetween is the longest time in the recordings between two sessions.
func idleBetween(streams []*replayStream) (idle time.Duration) {
	type span struct{ from, to time.Time }
	var spans []span
	for _, s := range streams {
		if info := s.view.Info(); info.FirstTime != nil && info.LastTime != nil {
			spans = append(spans, span{*info.FirstTime, *info.LastTime})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	for i := 1; i < len(spans); i++ {
		idle = max(idle, spans[i].from.Sub(spans[i-1].to))
		if spans[i].to.Before(spans[i-1].to) {
			spans[i].to = spans[i-1].to
		}
	}
	return idle
}

// replayRange finds what of a session is asked for; none says that it is
// nothing.
func (e *env) replayRange(s *replayStream, ranges *rangeFlags) (none string, err error) {
	info := s.view.Info()
	first, head := s.view.Bounds()
	held := moldcast.Range{First: first, Next: head}
	e.sayReadTo(info, held)
	if end, ok := s.view.Ended(); ok {
		held.Next = max(held.Next, end) // a lost tail is a hole too
	}
	if info.Messages == 0 || info.FirstTime == nil {
		if err := lostSegments(s.view, held, ranges); err != nil {
			return "", err
		}
		return fmt.Sprintf("%v holds no message", s.ref), nil
	}
	want, err := ranges.resolve(held, *info.FirstTime, s.view.SeqAt)
	if err != nil {
		return "", err
	}
	if ranges.fromSeq != "" && want.First < held.First {
		fmt.Fprintf(e.stderr, "moldtape: %v begins at %d: replayed from there\n", s.ref, held.First)
	}
	s.Range = want.Intersect(held)
	if s.Range.Empty() {
		return ranges.nothing(info, held), nil
	}
	if err := lostSegments(s.view, s.Range, ranges); err != nil {
		e.log.Error("the recording is not whole", "session", s.ref, "error", err)
		s.damaged.Add(1)
	}
	s.Sparse = s.view.Feed().Increments == moldcast.Rising
	s.Open = func(from moldcast.Seq) (replay.Source, error) {
		s.view.Bounds() // looks for segments that were sealed meanwhile
		return &recorded{cursor: s.view.Cursor(from), ref: s.ref, log: e.log, damaged: &s.damaged}, nil
	}
	s.SeqAt, s.Marks = s.view.SeqAt, e.marksOf(s)
	return "", nil
}

// recorded is a cursor as a Player wants it: a range that the disk gave back
// wrong is a hole.
type recorded struct {
	cursor interface {
		Next() (moldcast.Piece, error)
		Close() error
	}
	ref     store.Ref
	log     *slog.Logger
	damaged *atomic.Uint64 // ranges
}

func (r *recorded) Next() (moldcast.Piece, error) {
	p, err := r.cursor.Next()
	var bad *store.CorruptError
	if err != nil && errors.As(err, &bad) {
		r.log.Error("damaged messages are not replayed", "session", r.ref, "error", bad)
		r.damaged.Add(1)
		err = &moldcast.HoleError{Hole: moldcast.Hole{Range: bad.Range, Reason: moldcast.Damaged}}
	}
	return p, err
}

func (r *recorded) Close() error { return r.cursor.Close() }

// apart refuses two streams that are one session to those who hear them, or
// ask for them.
func apart(streams []*replayStream, f *replayFlags) error {
	for i, a := range streams {
		if a.lineB == a.group {
			return usagef("--line-b %v: line A goes there already", a.lineB)
		}
		for _, b := range streams[i+1:] {
			x, _ := replay.LoopSession(a.Session, f.loop, f.loop)
			y, _ := replay.LoopSession(b.Session, f.loop, f.loop)
			switch {
			case x != y:
			case a.group == b.group || a.group == b.lineB:
				return usagef("--group %v: %v and %v would both be session %s there: give --as-session NAME for each, or groups of their own", a.group, a.ref, b.ref, x)
			case a.lineB.IsValid() && (a.lineB == b.group || a.lineB == b.lineB):
				return usagef("--line-b %v: %v and %v would both be session %s there: give --as-session NAME for each, or groups of their own", a.lineB, a.ref, b.ref, x)
			case f.retransmitListen != "":
				return usagef("--retransmit-listen: %v and %v are both session %s, requests can't tell them apart: give --as-session NAME for each", a.ref, b.ref, x)
			}
		}
	}
	return nil
}

// replaySockets opens one socket a group.
func (e *env) replaySockets(streams []*replayStream, f *replayFlags, log *impairLog) (closeAll func(), err error) {
	var conns []mcast.InOrder
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	senders := map[netip.AddrPort]replay.Sender{}
	open := func(flag string, to netip.AddrPort) (replay.Sender, error) {
		if out, ok := senders[to]; ok {
			return out, nil
		}
		conn, err := f.pacing.dial(e, f.multicast.sendTo(e, to))
		if err != nil {
			return nil, socketError(flag, err)
		}
		conns = append(conns, conn)
		senders[to] = conn
		return senders[to], nil
	}
	for i, s := range streams {
		if s.Sender, err = open("--group", s.group); err != nil {
			return closeAll, err
		}
		if !s.lineB.IsValid() && f.impair.harmless() {
			continue
		}
		links := []replay.Link{{Name: lineNames[0], Next: s.Sender}}
		if s.lineB.IsValid() {
			b, err := open("--line-b", s.lineB)
			if err != nil {
				return closeAll, err
			}
			links = append(links, replay.Link{Name: lineNames[1], Next: b})
		}
		for k := range links {
			if s.lines[k], err = f.impair.line(i, k); err != nil {
				return closeAll, err
			}
			links[k].Line = s.lines[k]
		}
		s.Sender = replay.NewImpaired(links, log.noteOf(s.ref))
	}
	return closeAll, nil
}

// play runs the player, and beside it what answers requests and the terminal;
// done is called with what became of it, however it ended.
func (e *env) play(ctx context.Context, player *replay.Player, cfg replay.Config, streams []*replayStream, missing []notHeard, f *replayFlags, listen netip.AddrPort, done func(rep *replay.Report, ended error) error) error {
	up := ready{Event: "ready"}
	var server *retransmit.Server
	if f.retransmitListen != "" {
		conn, err := retransmit.Listen(listen, e.log)
		if err != nil {
			return socketError("--retransmit-listen", err)
		}
		source := &publishedSource{player: player, streams: streams, ring: f.ring}
		if server, err = retransmit.New(retransmit.Config{Conn: conn, Source: source, MTU: f.mtu, Clock: mcast.NewClock(), Log: e.log}); err != nil {
			conn.Close()
			return err
		}
		defer conn.Close()
		up.Retransmit = conn.LocalAddr().String()
	}
	web, err := e.listenHTTP(f.http, "whoever reaches this address drives the replay")
	if err != nil {
		return err
	}
	if web != nil {
		defer web.Close()
		up.HTTP = web.Addr().String()
	}
	if server != nil || web != nil {
		if err := e.printJSON(up); err != nil {
			return err
		}
	}
	beside, stop := context.WithCancel(context.Background())
	defer stop()
	var wg sync.WaitGroup
	var serverErr error
	if server != nil {
		wg.Go(func() { serverErr = server.Run(beside) })
	}
	var webErr error
	if web != nil {
		r := &remote{player: player, streams: streams, cfg: cfg, day: *streams[0].view.Info().FirstTime}
		wg.Go(func() { webErr = httpd.Serve(beside, web, r.handler(f.http), e.log) })
	}
	wg.Go(func() { e.console(beside, player) })
	rep, err := player.Run(ctx)
	stop()
	wg.Wait()
	if server != nil {
		rep.RequestsServed = server.Stats().Answered
	}
	rep.TX = f.pacing.by
	if e.json {
		sum := struct {
			replay.Report
			Impaired   []lineSummary `json:"impaired,omitempty"`
			NotAsHeard []notHeard    `json:"not_as_heard,omitempty"`
		}{rep, harmed(streams), missing}
		if perr := e.printJSON(sum); perr != nil {
			return perr
		}
	}
	derr := done(&rep, err)
	e.log.Info("replayed", "packets", rep.Packets, "messages", rep.Messages, "bytes", rep.Bytes, "seconds", rep.Elapsed,
		"scheduled", rep.Scheduled, "late_p50", seconds(rep.PacingError.P50), "late_p99", seconds(rep.PacingError.P99), "late_max", seconds(rep.PacingError.Max),
		"drift", seconds(rep.Drift), "holes", rep.Holes, "requests_served", rep.RequestsServed, "send_errors", rep.SendErrors, "starved", rep.Starved)
	for _, l := range harmed(streams) {
		e.log.Info("impaired", "session", l.Session, "line", l.Line, "packets", l.Packets, "lost", l.Lost, "duplicated", l.Duplicated, "reordered", l.Reordered, "delayed", l.Delayed)
	}
	switch {
	case errors.Is(err, replay.ErrInterrupted):
		return errInterrupted
	case err != nil:
		return err
	case derr != nil:
		return derr
	case webErr != nil:
		return fmt.Errorf("--http: %w", webErr)
	case serverErr != nil:
		return fmt.Errorf("--retransmit-listen: %w", serverErr)
	case f.strict && len(missing) > 0:
		return faultf("--strict: %s not replayed as heard", count(uint64(len(missing)), "range"))
	case damagedOf(streams) > 0:
		return faultf("%s of the recording not replayed: `moldtape verify` names them", count(damagedOf(streams), "damaged range"))
	case f.strict && rep.Holes > 0:
		return faultf("--strict: %s", count(rep.Holes, "hole"))
	}
	return f.pacing.tooLate(&rep)
}

func damagedOf(streams []*replayStream) (n uint64) {
	for _, s := range streams {
		n += s.damaged.Load()
	}
	return n
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// publishedSource serves what a player has published so far, under the names
// that it published it by.
type publishedSource struct {
	player  *replay.Player
	streams []*replayStream
	ring    uint64                           // messages; 0: all
	served  map[*replay.Space]*publishedView // of the server's goroutine
	shared  Source                           // lends its buffers
}

// Lookup implements retransmit.Source.
func (p *publishedSource) Lookup(s moldcast.Session) (retransmit.View, bool) {
	space, ok := p.player.Space(s)
	if !ok {
		return nil, false
	}
	v, ok := p.served[space]
	if !ok {
		if p.served == nil || len(p.served) > 4*len(p.streams) { // loops leave old ones behind
			p.served = map[*replay.Space]*publishedView{}
		}
		v = &publishedView{space: space, ring: moldcast.Seq(p.ring), view: &servedView{source: &p.shared, view: p.streams[space.Stream()].view}}
		p.served[space] = v
	}
	return v, true
}

// publishedView is a recording as far as it was published; with a ring, the
// newest of it.
type publishedView struct {
	space *replay.Space
	ring  moldcast.Seq // messages; 0: all
	view  *servedView
}

func (v *publishedView) Bounds() (first, head moldcast.Seq) {
	first, head = v.space.First(), v.space.Published()
	if v.ring > 0 && head-first > v.ring {
		first = head - v.ring
	}
	return first, head
}

func (v *publishedView) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	r := v.space.Clip(moldcast.Range{First: first, Next: first + moldcast.Seq(count)})
	if low, _ := v.Bounds(); first < low || r.Empty() {
		// Gone from the ring meanwhile, or passed over by a seek: as good as not there.
		return dst, 0, &moldcast.HoleError{Hole: moldcast.Hole{Range: moldcast.Range{First: first, Next: first + 1}, Reason: moldcast.NotCaptured}}
	}
	return v.view.Append(dst, first, int(r.Len()), size, cold)
}

func (v *publishedView) Block(q moldcast.Seq) any { return v.view.Block(q) }
