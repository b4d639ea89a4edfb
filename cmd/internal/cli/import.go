package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/importer"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/cmd/internal/ndjson"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// importMTU packs what comes without packet boundaries.
const importMTU = 1500

// maxFaultsListed bounds the faults that are listed; all are counted.
const maxFaultsListed = 100

type importFlags struct {
	format   string
	channel  string
	session  string
	firstSeq string
	rate     float64
	itch     bool
	filter   []string
	protocol string
	codec    string
	verify   bool
	lineLog  string
	strict   bool
}

func newImportCmd(e *env) *cobra.Command {
	var fl importFlags
	c := &cobra.Command{
		Use:   "import FILE...",
		Short: "Bring capture files and message files into the archive",
		Long: `Bring files into the archive: pcap and pcapng (plain, .gz or .zst), NASDAQ
BinaryFILE, and ndjson. MoldUDP64 and IEX-TP streams in a capture file are found
by themselves; lines with the same session are merged. Gaps that the files leave
are recorded as holes. Importing a file again adds nothing. "-" reads stdin.`,
		Example: `  moldtape import nasdaq.pcap
  moldtape import 12302019.NASDAQ_ITCH50.gz --session 20191230 --itch`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("import: want at least one FILE; see `moldtape import --help`")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			im := &importRun{env: e, flags: fl}
			if err := im.configure(c); err != nil {
				return err
			}
			return im.run(c.Context(), args)
		},
	}
	f := c.Flags()
	f.StringVar(&fl.format, "format", "", "pcap, pcapng, binaryfile or ndjson (default: by content, then by name)")
	f.StringVar(&fl.channel, "channel", "", "channel `NAME` to write to (default: the group and port of the stream; for files without one, default)")
	f.StringVar(&fl.session, "session", "", "session `NAME`: required for binaryfile and ndjson, which do not name it; of a capture file, the only one taken")
	f.StringVar(&fl.firstSeq, "first-seq", "1", "sequence `N` of the first message of a binaryfile, or of ndjson without seq")
	f.Float64Var(&fl.rate, "rate", 0, "space the times of a binaryfile, or of ndjson without time, at `MSGS_PER_S` from the file's time on")
	f.BoolVar(&fl.itch, "itch", false, "take the times of a binaryfile from its ITCH 5.0 timestamps, on the day (UTC) of the file's time")
	f.StringArrayVar(&fl.filter, "filter", nil, "take only the stream to `G:P` of capture files, however its sessions look (repeat for more)")
	f.StringVar(&fl.protocol, "protocol", "", "moldudp64 or iex-tp: look only for this (default: both)")
	f.StringVar(&fl.codec, "codec", store.CodecAuto.String(), config.CodecUsage)
	f.BoolVar(&fl.verify, "verify-blocks", true, config.VerifyUsage)
	f.StringVar(&fl.lineLog, "line-log", "off", "keep when and on which line each packet of a capture file came, for replay --as-heard, `off|on`; of sessions that the archive held nothing of")
	f.BoolVar(&fl.strict, "strict", false, "exit 1 if a session has holes")
	e.addArchive(c)
	e.addJSON(c, "print the summary as one JSON document")
	return c
}

// importFault is what could not be imported.
type importFault struct {
	File     string `json:"file"`
	Position int64  `json:"position"`        // byte, in the uncompressed file
	Frame    int64  `json:"frame,omitempty"` // of a capture file
	Line     int64  `json:"line,omitempty"`  // of a text file
	Reason   string `json:"reason"`
}

func (f importFault) String() string {
	s := fmt.Sprintf("%s: byte %d", f.File, f.Position)
	switch {
	case f.Frame > 0:
		s += fmt.Sprintf(" (frame %d)", f.Frame)
	case f.Line > 0:
		s += fmt.Sprintf(" (line %d)", f.Line)
	}
	return s + ": " + f.Reason
}

type importStream struct {
	Group     string   `json:"group"`
	Protocol  string   `json:"protocol"`
	Channel   string   `json:"channel"`
	Datagrams int64    `json:"datagrams"`
	Sessions  []string `json:"sessions"`
}

type importRefused struct {
	Group     string `json:"group"`
	Datagrams int64  `json:"datagrams"`
	Reason    string `json:"reason"`
}

type importFile struct {
	File    string `json:"file"`
	Format  string `json:"format"`
	Packets int64  `json:"packets"` // datagrams of streams taken; 0 for files without
}

// importSummary is `import --json`.
type importSummary struct {
	Files       []importFile      `json:"files"`
	Streams     []importStream    `json:"streams"`
	Refused     []importRefused   `json:"refused"`
	Sessions    []importer.Result `json:"sessions"`
	Messages    uint64            `json:"messages"`
	Duplicates  uint64            `json:"duplicates"`
	Conflicts   uint64            `json:"conflicts"`
	Holes       int               `json:"holes"`
	Faults      int64             `json:"faults"`
	FaultList   []importFault     `json:"fault_list"` // the first hundred
	Interrupted bool              `json:"interrupted"`
}

// importRun is one import.
type importRun struct {
	env      *env
	flags    importFlags
	session  *moldcast.Session // --session
	filter   []netip.AddrPort
	protocol capfile.Protocol
	codec    store.Codec
	nextSeq  moldcast.Seq // of the next message of a file without sequences
	index    int64        // how many such messages there were

	inputs []*input
	kinds  []string
	im     *importer.Importer
	sum    importSummary
	first  string // the first fault or conflict, for the last line
	more   int64
	tick   func(n int) // progress
}

// configure reads the flags.
func (r *importRun) configure(c *cobra.Command) error {
	switch r.flags.format {
	case "", formatPcap, formatPcapng, formatBinaryFile, formatNDJSON:
	default:
		return usagef("--format %q: want pcap, pcapng, binaryfile or ndjson", r.flags.format)
	}
	switch r.flags.protocol {
	case "":
	case capfile.MoldUDP64.String():
		r.protocol = capfile.MoldUDP64
	case capfile.IEXTP.String():
		r.protocol = capfile.IEXTP
	default:
		return usagef("--protocol %q: want moldudp64 or iex-tp", r.flags.protocol)
	}
	if r.flags.channel != "" && !store.ValidChannel(r.flags.channel) {
		return usagef("--channel %q: want 1 to 64 of A-Z a-z 0-9 . _ : -", r.flags.channel)
	}
	if r.flags.session != "" {
		s, err := moldcast.ParseSession(r.flags.session)
		if err != nil {
			return usagef("--session: %v", err)
		}
		r.session = &s
	}
	seq, err := parseSeq("--first-seq", r.flags.firstSeq)
	if err != nil {
		return err
	}
	r.nextSeq = seq
	for _, s := range r.flags.filter {
		a, err := netip.ParseAddrPort(s)
		if err != nil || a.Port() == 0 {
			return usagef("--filter %q: want group:port, like 233.54.12.111:26477", s)
		}
		r.filter = append(r.filter, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	if f := r.flags.rate; c.Flags().Changed("rate") && !(f > 0 && f <= 1e9) {
		return usagef("--rate %v: want messages per second, more than 0 and at most 1e9", f)
	}
	if r.codec, err = store.ParseCodec(r.flags.codec); err != nil {
		return usagef("--codec %v", err)
	}
	if l := r.flags.lineLog; l != "on" && l != "off" {
		return usagef("--line-log %q: want off or on", l)
	}
	if r.flags.itch && c.Flags().Changed("rate") {
		return usagef("--itch and --rate both give the times: want one of them")
	}
	return nil
}

// run imports the files.
func (r *importRun) run(ctx context.Context, names []string) error {
	defer func() {
		for _, in := range r.inputs {
			in.close()
		}
	}()
	if err := r.openAll(names); err != nil {
		return err
	}
	r.im = importer.New(func() (*store.Archive, error) {
		o := r.env.storeOptions()
		o.Sync, o.Wait, o.Quiet = time.Second, true, true
		o.Codec, o.NoVerify = r.codec, !r.flags.verify
		return store.OpenOrCreate(r.env.archiveDir(), o)
	}, time.Now)
	r.im.LineLog = r.flags.lineLog == "on"
	stop := r.progress()
	err := r.all(ctx)
	stop()
	// What came is kept and made durable, however the import ended.
	results, ferr := r.im.Finish(context.WithoutCancel(ctx))
	if ferr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = ferr
	}
	r.sum.Sessions = results
	if err == nil && len(results) == 0 && r.session != nil && r.more == 0 {
		r.say(r.missing())
	}
	for _, s := range results {
		r.sum.Messages += s.Messages
		r.sum.Duplicates += s.Duplicates
		r.sum.Conflicts += s.Conflicts
		r.sum.Holes += s.Holes
	}
	r.sum.Interrupted = errors.Is(err, context.Canceled)
	if perr := r.print(); perr != nil && err == nil {
		err = perr
	}
	switch {
	case r.sum.Interrupted:
		return errInterrupted
	case err != nil:
		return err
	case r.more > 1:
		return faultf("%s; and %d more", r.first, r.more-1)
	case r.more == 1:
		return faultf("%s", r.first)
	case r.flags.strict && r.sum.Holes > 0:
		return faultf("--strict: %s left", count(r.sum.Holes, "hole"))
	}
	return nil
}

// missing says that --session names none of the sessions there are.
func (r *importRun) missing() string {
	var have []string
	for _, s := range r.sum.Streams {
		for _, n := range s.Sessions {
			if !slices.Contains(have, n) {
				have = append(have, n)
			}
		}
	}
	text := strings.Join(have[:min(len(have), 20)], ", ")
	if len(have) > 20 {
		text += fmt.Sprintf(" and %d more", len(have)-20)
	}
	return fmt.Sprintf("--session %v: no such session; there is %s", *r.session, text)
}

func (r *importRun) openAll(names []string) error {
	stdin := 0
	for _, name := range names {
		if name == "-" {
			stdin++
		}
	}
	if stdin > 1 {
		return usagef("- is stdin, which can be read once: it is named %d times", stdin)
	}
	for _, name := range names {
		in, err := openInput(name, r.env.stdin)
		if err != nil {
			return err
		}
		r.inputs = append(r.inputs, in)
		kind, err := r.kind(in)
		if err != nil {
			return err
		}
		r.kinds = append(r.kinds, kind)
		r.sum.Files = append(r.sum.Files, importFile{File: name, Format: kind})
	}
	var captures, others int
	for _, k := range r.kinds {
		if k == formatPcap || k == formatPcapng {
			captures++
		} else {
			others++
		}
	}
	switch {
	case others > 0 && r.session == nil:
		return usagef("--session NAME is required: binaryfile and ndjson do not name their session")
	case captures == 0 && (len(r.filter) > 0 || r.protocol != 0):
		return usagef("--filter and --protocol are for pcap and pcapng: no FILE is one")
	case others == 0 && (r.flags.rate > 0 || r.flags.itch || r.flags.firstSeq != "1"):
		return usagef("--rate, --itch and --first-seq are for binaryfile and ndjson: no FILE is one")
	}
	return nil
}

// kind tells the format of a file: as --format says, else by its first bytes,
// else by its name.
func (r *importRun) kind(in *input) (string, error) {
	if r.flags.format != "" {
		return r.flags.format, nil
	}
	raw, err := in.rewind(func(int) {})
	if err != nil {
		return "", err
	}
	byName := formatOf(in.name)
	content, _, closer, err := capfile.Decompress(raw)
	if err == nil {
		defer closer()
		b, _ := bufio.NewReaderSize(content, 64).Peek(4)
		b = bytes.TrimPrefix(b, []byte(ndjson.BOM))
		if k := capfile.Sniff(b); k != "" {
			return k, nil
		}
		if byName == "" && len(b) > 0 && b[0] == '{' {
			return formatNDJSON, nil
		}
	}
	if byName == "" || byName == formatRaw {
		return "", usagef("--format: %s is no pcap or pcapng and its name does not say what it is: want --format pcap, pcapng, binaryfile or ndjson", in.name)
	}
	return byName, nil
}

// progress starts a bar over all the reading, on a terminal only.
func (r *importRun) progress() (stop func()) {
	r.tick = func(int) {}
	if !isTerminal(r.env.stderr) {
		return func() {}
	}
	var total int64
	for i, in := range r.inputs {
		total += in.size
		if isCapture(r.kinds[i]) {
			total += in.size // read twice
		}
	}
	p := mpb.New(mpb.WithOutput(r.env.stderr), mpb.WithWidth(48))
	bar := p.AddBar(total,
		mpb.PrependDecorators(decor.Name("import ")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f")),
		mpb.BarRemoveOnComplete())
	r.tick = func(n int) { bar.IncrBy(n) }
	return func() {
		bar.Abort(true)
		p.Wait()
	}
}

func isCapture(kind string) bool { return kind == formatPcap || kind == formatPcapng }

// all imports every file: the captures after a first reading of all of them,
// which finds the streams.
func (r *importRun) all(ctx context.Context) error {
	var streams *streamSet
	for i, in := range r.inputs {
		var err error
		r.im.File(isCapture(r.kinds[i]))
		switch {
		case isCapture(r.kinds[i]):
			if streams == nil {
				if streams, err = r.survey(ctx); err != nil {
					return err
				}
			}
			err = r.capture(ctx, in, &r.sum.Files[i], streams)
		case r.kinds[i] == formatNDJSON:
			err = r.messages(ctx, in, r.ndjson)
		default:
			err = r.messages(ctx, in, r.binary)
		}
		for _, s := range r.im.Sessions() {
			r.unconfirmed(s, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fault takes up something that could not be imported.
func (r *importRun) fault(f importFault) {
	r.sum.Faults++
	if len(r.sum.FaultList) < maxFaultsListed {
		r.sum.FaultList = append(r.sum.FaultList, f)
	}
	r.say(f.String())
}

// say keeps a line for the end: the first is the error of the command, others
// are logged.
func (r *importRun) say(line string) {
	if r.more++; r.more == 1 {
		r.first = line
	} else if r.more <= maxFaultsListed {
		r.env.log.Error("import", "fault", line)
	}
}

// readFault sorts an error of reading a file: a fault of the file is taken up
// (nil), an error of the system is returned.
func (r *importRun) readFault(in *input, err error) error {
	var cf *capfile.FormatError
	var lf *ndjson.LineError
	switch {
	case errors.As(err, &cf):
		reason := cf.Err.Error()
		if cf.Detail != "" {
			reason += ": " + cf.Detail
		}
		r.fault(importFault{File: in.name, Position: cf.Pos, Frame: cf.Frame, Reason: reason})
	case errors.As(err, &lf):
		r.fault(importFault{File: in.name, Position: lf.Pos, Line: lf.Line, Reason: lf.Err.Error()})
	default:
		return fmt.Errorf("%s: %w", in.name, err)
	}
	return nil
}

// importPlace is where a piece is in a file.
type importPlace struct {
	in         *input
	pos, frame int64
}

// add stores a piece; a conflict is taken up and the import goes on.
func (r *importRun) add(s *importer.Session, p moldcast.Piece, in *input, pos, frame int64) error {
	takes := s.Take
	err := s.Add(p, importPlace{in, pos, frame})
	r.unconfirmed(s, false)
	if s.Take != takes {
		r.env.log.Warn("NEW TAKE: the file shows that the session was restarted under its own name", "channel", s.Channel, "session", s.Session, "take", s.Take,
			"file", in.name, "byte", pos)
	}
	var c *importer.Conflict
	if errors.As(err, &c) {
		r.conflict(c)
		return nil
	}
	return err
}

func (r *importRun) conflict(c *importer.Conflict) {
	at, _ := c.Place.(importPlace)
	r.fault(importFault{File: at.in.name, Position: at.pos, Frame: at.frame, Reason: c.Error()})
}

// unconfirmed takes up the conflicts that no second packet made a restart.
func (r *importRun) unconfirmed(s *importer.Session, end bool) {
	for _, c := range s.Unconfirmed(end) {
		r.conflict(c)
	}
}

// streamSet is what the first reading of the captures found.
type streamSet struct {
	survey *capfile.Survey
	target map[*capfile.Flow]target
}

type target struct {
	channel string
	group   string
	answer  bool // unicast beside a multicast line: retransmissions
}

// survey reads every capture once to find its streams. What is wrong with a
// file is said in the second reading.
func (r *importRun) survey(ctx context.Context) (*streamSet, error) {
	set := &streamSet{
		survey: capfile.NewSurvey(capfile.SurveyOptions{Only: r.filter, Protocol: r.protocol}),
		target: make(map[*capfile.Flow]target),
	}
	flowsOf := make(map[*input]map[netip.AddrPort]bool)
	damaged := make(map[*input]bool)
	for i, in := range r.inputs {
		if !isCapture(r.kinds[i]) {
			continue
		}
		flows := make(map[netip.AddrPort]bool)
		flowsOf[in] = flows
		var last netip.AddrPort
		err := r.packets(ctx, in, func(p capfile.Packet) error {
			set.survey.Add(p)
			if p.Dst != last && len(flows) < 1<<14 {
				flows[p.Dst], last = true, p.Dst
			}
			return nil
		})
		var cf *capfile.FormatError
		if errors.As(err, &cf) {
			damaged[in] = true
		} else if err != nil {
			return nil, err
		}
	}
	set.survey.Finish()
	for _, g := range set.survey.Channels() {
		multicast := false
		for _, f := range g {
			multicast = multicast || f.Dst.Addr().IsMulticast()
		}
		name := r.flags.channel
		for _, f := range g {
			if name == "" && (f.Dst.Addr().IsMulticast() || !multicast) {
				name = channelOf(f.Dst)
			}
		}
		for _, f := range g {
			set.target[f] = target{channel: name, group: f.Dst.String(), answer: multicast && !f.Dst.Addr().IsMulticast()}
		}
	}
	for _, f := range set.survey.Flows() {
		if f.Protocol == 0 {
			if len(r.sum.Refused) < maxFaultsListed {
				r.sum.Refused = append(r.sum.Refused, importRefused{Group: f.Dst.String(), Datagrams: f.Datagrams, Reason: f.Why})
			}
			continue
		}
		s := importStream{Group: f.Dst.String(), Protocol: f.Protocol.String(), Channel: set.target[f].channel, Datagrams: f.Datagrams}
		for _, n := range f.Sessions {
			s.Sessions = append(s.Sessions, n.String())
		}
		r.sum.Streams = append(r.sum.Streams, s)
	}
	// A file that has no stream at all is a fault, said in one line.
	for _, in := range r.inputs {
		if flowsOf[in] == nil {
			continue
		}
		r.noStream(in, set.survey, flowsOf[in], damaged[in])
	}
	return set, nil
}

// channelOf is a group and port as a channel: an IPv6 address without its
// brackets, which a channel cannot have.
func channelOf(a netip.AddrPort) string {
	if a.Addr().Is4() {
		return a.String()
	}
	return strings.NewReplacer("[", "", "]", "", "%", "-").Replace(a.String())
}

func (r *importRun) noStream(in *input, s *capfile.Survey, flows map[netip.AddrPort]bool, damaged bool) {
	var why []string
	for _, f := range s.Flows() {
		if !flows[f.Dst] {
			continue
		}
		if f.Protocol != 0 {
			return
		}
		why = append(why, fmt.Sprintf("%v: %s", f.Dst, f.Why))
	}
	line := in.name + ": no MoldUDP64 or IEX-TP stream"
	switch {
	case len(why) == 0 && damaged:
		return // what is wrong with the file says enough
	case len(why) == 0 && len(r.filter) > 0:
		line += " to " + strings.Join(r.flags.filter, ", ")
	case len(why) == 0:
		line += ": it holds no UDP over IP"
	default:
		line += " (" + strings.Join(why[:min(len(why), 3)], "; ")
		if len(why) > 3 {
			line += fmt.Sprintf("; and %d flows more", len(why)-3)
		}
		line += ")"
		if len(r.filter) == 0 {
			line += "; --filter G:P takes a flow all the same"
		}
	}
	r.say(line)
}

// packets reads one capture file.
func (r *importRun) packets(ctx context.Context, in *input, each func(capfile.Packet) error) error {
	raw, err := in.rewind(r.tick)
	if err != nil {
		return err
	}
	x, err := capfile.NewReader(raw, capfile.Options{Checksums: true})
	if err != nil {
		return err
	}
	defer x.Close()
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		p, err := x.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(p); err != nil {
			return err
		}
	}
}

// capture imports one capture file.
func (r *importRun) capture(ctx context.Context, in *input, sum *importFile, set *streamSet) error {
	type open struct {
		flow    *capfile.Flow
		session moldcast.Session
		s       *importer.Session
		line    uint8
	}
	var last open
	var scratch []byte
	err := r.packets(ctx, in, func(p capfile.Packet) error {
		flow, fault := set.survey.Judge(p)
		if flow == nil {
			return nil
		}
		bad := func(reason string) error {
			r.fault(importFault{File: in.name, Position: p.Pos, Frame: p.Frame, Reason: reason})
			return nil
		}
		if fault != capfile.Whole {
			return bad(fault.String())
		}
		pk, err := flow.Protocol.Parse(p.Payload, &scratch)
		if err != nil {
			return bad("malformed: " + err.Error())
		}
		if r.session != nil && pk.Session != *r.session {
			return nil
		}
		if len(r.filter) == 0 && !capfile.Plausible(pk.Session) {
			return bad(fmt.Sprintf("implausible session %x", pk.Session[:]))
		}
		if n := tooLong(pk.Msgs); n > 0 {
			return bad(fmt.Sprintf("message of %d bytes, the longest is %d", n, moldcast.MaxMessage))
		}
		sum.Packets++
		t := set.target[flow]
		if last.s == nil || flow != last.flow || pk.Session != last.session {
			s, err := r.im.Session(t.channel, pk.Session)
			if err != nil {
				return err
			}
			last = open{flow, pk.Session, s, moldcast.AnswerLine}
			if !t.answer {
				last.line = s.Line(t.group)
			}
		}
		stamp := p.Stamp
		if stamp == 0 {
			stamp = moldcast.StampOf(in.time)
		}
		if pk.Kind != moldcast.Data {
			return last.s.Mark(moldcast.Mark{Kind: pk.Kind, Next: pk.First, Stamp: stamp, Line: last.line})
		}
		piece := moldcast.Piece{First: pk.First, Msgs: pk.Msgs, Time: stamp, Heard: stamp, Line: last.line}
		if t.answer {
			piece.Flags, piece.Time = moldcast.Repaired, last.s.Between(pk.First, stamp)
		}
		return r.add(last.s, piece, in, p.Pos, p.Frame)
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	var cf *capfile.FormatError
	if errors.As(err, &cf) {
		return r.readFault(in, err)
	}
	return err
}

// tooLong is the length of the first message that no IPv4 datagram can carry;
// 0 where there is none.
func tooLong(m moldcast.Messages) int {
	if len(m.Framed()) <= moldcast.MaxMessage+moldcast.LengthSize {
		return 0
	}
	for m.Len() > 0 {
		if d := m.Next(); len(d) > moldcast.MaxMessage {
			return len(d)
		}
	}
	return 0
}

// packer makes pieces of messages that come one by one.
type packer struct {
	r     *importRun
	in    *input
	open  func() (*importer.Session, error) // with the first message
	s     *importer.Session
	p     moldcast.Piece
	buf   []byte
	n     int
	pos   int64 // of the first message
	size  int   // most framed bytes
	count int
}

func (k *packer) flush() error {
	if k.n == 0 {
		return nil
	}
	p := k.p
	p.Msgs = moldcast.MessagesOf(k.buf, k.n)
	k.n = 0
	if k.s == nil {
		s, err := k.open()
		if err != nil {
			return err
		}
		k.s = s
	}
	err := k.r.add(k.s, p, k.in, k.pos, 0)
	k.buf = k.buf[:0]
	return err
}

// add takes one message; it joins the piece where all but its sequence is the
// same, the sequence follows, and there is room.
func (k *packer) add(seq moldcast.Seq, like moldcast.Piece, data []byte, pos int64) error {
	if k.n > 0 && (seq != k.p.First+moldcast.Seq(k.n) || like.Time != k.p.Time || like.Heard != k.p.Heard ||
		like.Line != k.p.Line || like.Flags != k.p.Flags || k.n >= k.count ||
		len(k.buf)+moldcast.LengthSize+len(data) > k.size) {
		if err := k.flush(); err != nil {
			return err
		}
	}
	if k.n == 0 {
		k.p, k.p.First, k.pos = like, seq, pos
	}
	k.buf = moldcast.AppendMessage(k.buf, data)
	k.n++
	return nil
}

// messages imports a file of bare messages.
func (r *importRun) messages(ctx context.Context, in *input, read func(context.Context, *input, io.Reader, *packer) error) error {
	raw, err := in.rewind(r.tick)
	if err != nil {
		return err
	}
	content, _, closer, err := capfile.Decompress(raw)
	if err != nil {
		if errors.Is(err, capfile.ErrCompressed) {
			r.fault(importFault{File: in.name, Reason: err.Error()})
			return nil
		}
		return fmt.Errorf("%s: %w", in.name, err)
	}
	defer closer()
	channel := r.flags.channel
	if channel == "" {
		channel = "default"
	}
	open := func() (*importer.Session, error) { return r.im.Session(channel, *r.session) }
	faults := r.more
	k := &packer{r: r, in: in, open: open, size: moldcast.PayloadSize(importMTU) - moldcast.HeaderSize, count: moldcast.MaxCount}
	err = read(ctx, in, content, k)
	if ferr := k.flush(); err == nil {
		err = ferr
	}
	if err == nil && k.s == nil && r.more == faults {
		r.say(in.name + ": holds no message")
	}
	return err
}

// stamps gives the times of messages that bring none.
type stamps struct {
	base moldcast.Stamp
	rate float64
	itch bool
	day  moldcast.Stamp
	last moldcast.Stamp
}

func (r *importRun) stamps(in *input) *stamps {
	base := moldcast.StampOf(in.time)
	const day = moldcast.Stamp(24 * time.Hour)
	midnight := base - base%day
	return &stamps{base: base, rate: r.flags.rate, itch: r.flags.itch, day: midnight, last: midnight}
}

func (s *stamps) next(i int64, data []byte) moldcast.Stamp {
	switch {
	case s.rate > 0:
		return s.base + moldcast.Stamp(math.Round(float64(i)*(1e9/s.rate)))
	case s.itch:
		if d, ok := itch.Timestamp(data); ok {
			s.last = s.day + moldcast.Stamp(d)
		}
		return s.last // a message without one goes with its predecessor
	}
	return s.base
}

// isFileFault: err tells of the content of a file, not of reading it.
func isFileFault(err error) bool {
	var pe *fs.PathError
	return !errors.As(err, &pe)
}

// take gives the sequence of the next message of a file that names none.
func (r *importRun) take() (moldcast.Seq, bool) {
	seq := r.nextSeq
	if seq == ^moldcast.Seq(0) {
		return 0, false
	}
	r.nextSeq++
	return seq, true
}

var errSeqBeyond = errors.New("sequence beyond 2^64-2")

func (r *importRun) binary(ctx context.Context, in *input, content io.Reader, k *packer) error {
	x := binaryfile.NewReader(content)
	t := r.stamps(in)
	for ; ; r.index++ {
		if r.index%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		pos := x.Pos()
		data, err := x.Next()
		if err == io.EOF {
			if n, err := x.Rest(); err != nil || n > 0 {
				r.fault(importFault{File: in.name, Position: pos, Reason: fmt.Sprintf("%d bytes after the zero length that ends the file", n)})
			}
			return nil
		}
		var fe *binaryfile.Error
		if errors.As(err, &fe) && isFileFault(err) {
			r.fault(importFault{File: in.name, Position: fe.Pos, Reason: fe.Err.Error()})
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.name, err)
		}
		seq, ok := r.take()
		switch {
		case len(data) > moldcast.MaxMessage:
			err = fmt.Errorf("message of %d bytes, the longest is %d", len(data), moldcast.MaxMessage)
		case !ok:
			err = errSeqBeyond
		}
		if err != nil {
			r.fault(importFault{File: in.name, Position: pos, Reason: err.Error()})
			return nil
		}
		now := t.next(r.index, data)
		if err := k.add(seq, moldcast.Piece{Time: now, Heard: now}, data, pos); err != nil {
			return err
		}
	}
}

func (r *importRun) ndjson(ctx context.Context, in *input, content io.Reader, k *packer) error {
	// Boundaries are as the file says.
	k.size = moldcast.MaxMessage + moldcast.LengthSize
	x := ndjson.NewReader(content)
	t := r.stamps(in)
	for ; ; r.index++ {
		if r.index%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		pos, line := x.Pos()
		m, err := x.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			var lf *ndjson.LineError
			if !errors.As(err, &lf) && isFileFault(err) {
				err = &ndjson.LineError{Pos: pos, Line: line, Err: err}
			}
			return r.readFault(in, err)
		}
		seq, ok := m.Seq, true
		if seq == 0 {
			seq, ok = r.take()
		} else if seq == ^moldcast.Seq(0) {
			ok = false
		} else {
			r.nextSeq = seq + 1
		}
		switch {
		case len(m.Data) > moldcast.MaxMessage:
			err = fmt.Errorf("message of %d bytes, the longest is %d", len(m.Data), moldcast.MaxMessage)
		case !ok:
			err = errSeqBeyond
		}
		if err != nil {
			r.fault(importFault{File: in.name, Position: pos, Line: line, Reason: err.Error()})
			return nil
		}
		if m.Time == 0 {
			m.Time = t.next(r.index, m.Data)
			if m.Heard == 0 {
				m.Heard = m.Time
			}
		}
		if err := k.add(seq, moldcast.Piece{Time: m.Time, Heard: m.Heard, Line: m.Line, Flags: m.Flags}, m.Data, pos); err != nil {
			return err
		}
		if !m.More {
			if err := k.flush(); err != nil {
				return err
			}
		}
	}
}

// print writes the summary.
func (r *importRun) print() error {
	if r.env.json {
		for _, p := range []any{&r.sum.Streams, &r.sum.Refused, &r.sum.Sessions, &r.sum.FaultList} {
			notNull(p)
		}
		return r.env.printJSON(r.sum)
	}
	for _, s := range r.sum.Sessions {
		name := s.Channel + "/" + s.Session
		if s.Take != 1 {
			name += "@" + strconv.Itoa(s.Take)
		}
		held := "no message"
		if s.HeadSeq > s.FirstSeq {
			held = moldcast.Range{First: s.FirstSeq, Next: s.HeadSeq}.String()
		}
		line := fmt.Sprintf("%s  %s  %s new, %s known", name, held, humanize.Comma(int64(s.Messages)), humanize.Comma(int64(s.Duplicates)))
		if s.Conflicts > 0 {
			line += fmt.Sprintf(", %s in conflict", humanize.Comma(int64(s.Conflicts)))
		}
		switch s.Holes {
		case 0:
			line += ", no hole"
		case 1:
			line += ", 1 hole:"
		default:
			line += fmt.Sprintf(", %s holes:", humanize.Comma(int64(s.Holes)))
		}
		const most = 10
		for i, h := range s.HoleList {
			if i == most {
				line += " …"
				break
			}
			line += fmt.Sprintf(" %d..%d", h.FirstSeq, h.LastSeq)
		}
		if _, err := fmt.Fprintln(r.env.stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// notNull makes an empty list print as [].
func notNull(p any) {
	switch p := p.(type) {
	case *[]importStream:
		if *p == nil {
			*p = []importStream{}
		}
	case *[]importRefused:
		if *p == nil {
			*p = []importRefused{}
		}
	case *[]importer.Result:
		if *p == nil {
			*p = []importer.Result{}
		}
	case *[]importFault:
		if *p == nil {
			*p = []importFault{}
		}
	}
}
