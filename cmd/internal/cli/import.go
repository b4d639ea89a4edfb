package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/importer"
	"github.com/moldtape/moldtape/cmd/internal/ndjson"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
	"github.com/spf13/cobra"
)

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
		r.sum.NotStored += s.NotStored
		r.sum.Holes += s.Holes
		r.lost(s)
	}
	r.sum.Interrupted = errors.Is(err, context.Canceled)
	if err != nil && r.more > 0 { // the last line is that of err
		r.env.log.Error("import", "fault", r.first)
	}
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
