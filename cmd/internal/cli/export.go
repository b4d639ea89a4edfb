package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/ndjson"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

type exportFlags struct {
	output     string
	format     string
	group      string
	allowHoles bool
	ranges     rangeFlags
}

func newExportCmd(e *env) *cobra.Command {
	var fl exportFlags
	c := &cobra.Command{
		Use:   "export SESSION -o FILE",
		Short: "Write a recorded session to a file",
		Long: `Write a recorded session, or a range of it, to a file: pcap and pcapng (with the
original packet boundaries and nanosecond times, to the recorded group and
port; an End of Session that is on record comes last), NASDAQ BinaryFILE, ndjson,
or raw payloads. A name that ends in .gz or .zst is compressed. The file appears under its name when it is complete; "-" is
stdout. A hole in the range is an error unless --allow-holes is given; damage in
the archive always is, and so is a segment that is missing or cannot be read,
unless both ends of the range are given and all of it is held elsewhere. An
ended session that lacks its tail has a hole there.`,
		Example: `  moldtape export 000007525B -o session.pcap
  moldtape export 233.54.12.111:26477/000007525B -o open.ndjson.zst --from-time 20:50:40 --to-time 20:50:50`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("export: want one SESSION, got %d; see `moldtape export --help`", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return e.export(c.Context(), args[0], fl) },
	}
	f := c.Flags()
	f.StringVarP(&fl.output, "output", "o", "", "`FILE` to write, - is stdout (required)")
	f.StringVar(&fl.format, "format", "", "pcap, pcapng, binaryfile, ndjson or raw (default: by the name; pcap on stdout)")
	f.StringVar(&fl.group, "group", "239.255.0.1:26400", "group and port `G:P` in a capture file, where none is on record")
	f.BoolVar(&fl.allowHoles, "allow-holes", false, "leave holes out in place of failing")
	fl.ranges.add(c)
	e.addArchive(c)
	e.addJSON(c, "print a summary as one JSON document (not with -o -)")
	return c
}

// exportSummary is `export --json`.
type exportSummary struct {
	Channel  string       `json:"channel"`
	Session  string       `json:"session"`
	Take     int          `json:"take"`
	File     string       `json:"file"`
	Format   string       `json:"format"`
	FirstSeq moldcast.Seq `json:"first_seq"` // of the range
	NextSeq  moldcast.Seq `json:"next_seq"`  // one past the range
	Packets  uint64       `json:"packets"`
	Messages uint64       `json:"messages"`
	Bytes    uint64       `json:"bytes"`  // of payloads
	Holes    int          `json:"holes"`  // left out
	Pruned   uint64       `json:"pruned"` // messages that retention removed from between others; left out
}

func (e *env) export(ctx context.Context, name string, fl exportFlags) error {
	format := fl.format
	switch format {
	case "":
		if format = formatOf(fl.output); format == "" {
			if fl.output != "-" && fl.output != "" {
				return usagef("-o %s: the name does not tell the format: want --format pcap, pcapng, binaryfile, ndjson or raw", fl.output)
			}
			format = formatPcap
		}
	case formatPcap, formatPcapng, formatBinaryFile, formatNDJSON, formatRaw:
	default:
		return usagef("--format %q: want pcap, pcapng, binaryfile, ndjson or raw", fl.format)
	}
	if fl.output == "" {
		return usagef("-o FILE is required; - is stdout")
	}
	if e.json && fl.output == "-" {
		return usagef("--json and -o - both want stdout: write to a FILE")
	}
	group, err := netip.ParseAddrPort(fl.group)
	if err != nil || group.Port() == 0 {
		return usagef("--group %q: want group:port, like 239.255.0.1:26400", fl.group)
	}
	if err := fl.ranges.check(); err != nil {
		return err
	}
	a, err := e.openArchive()
	if err != nil {
		return err
	}
	defer a.Close()
	ref, err := a.Find(name)
	if err != nil {
		return err
	}
	v, err := a.View(ref)
	if err != nil {
		return err
	}
	defer v.Close()
	info := v.Info()
	first, head := v.Bounds()
	held := moldcast.Range{First: first, Next: head}
	e.sayReadTo(info, held)
	end, ended := v.Ended()
	if ended {
		held.Next = max(held.Next, end) // a lost tail is a hole too
	}
	if held.Empty() {
		if err := lostSegments(v, held, &fl.ranges); err != nil {
			return err
		}
		return faultf("%v holds no message", ref)
	}
	day := time.Now()
	if info.FirstTime != nil {
		day = *info.FirstTime
	}
	want, err := fl.ranges.resolve(held, day, v.SeqAt)
	if err != nil {
		return err
	}
	if err := lostSegments(v, want, &fl.ranges); err != nil {
		return err
	}
	if want.Intersect(held).Empty() {
		return faultf("%s", fl.ranges.nothing(info, held))
	}
	lease, err := v.Lease(want)
	if err != nil {
		return err
	}
	defer lease.Close()
	out, err := createOutput(fl.output, e.stdout)
	if err != nil {
		return err
	}
	x := &exporter{
		sum: exportSummary{
			Channel: ref.Channel, Session: ref.Session.String(), Take: ref.Take,
			File: fl.output, Format: format, FirstSeq: want.First, NextSeq: want.Next,
		},
		session: ref.Session, want: want, held: held,
		allowHoles: fl.allowHoles, all: fl.ranges == rangeFlags{}, rising: v.Feed().Increments == moldcast.Rising, tick: func(int) {},
	}
	if ended && end == want.Next {
		x.finish = end
	}
	stop := e.exportProgress(x)
	err = x.sink(out.Writer, format, v.Groups(), group)
	if err == nil {
		err = x.run(ctx, v.Cursor)
	}
	stop()
	if err != nil {
		out.discard()
		if errors.Is(err, context.Canceled) {
			return errInterrupted
		}
		return fmt.Errorf("%v: %w", ref, err)
	}
	if err := out.commit(); err != nil {
		return err
	}
	if e.json {
		return e.printJSON(x.sum)
	}
	fmt.Fprintf(e.stderr, "%v  %v  %s in %s, %s\n", ref, want,
		count(x.sum.Messages, "message"), count(x.sum.Packets, "packet"), format)
	if x.sum.Pruned > 0 {
		fmt.Fprintf(e.stderr, "%v: retention has removed %s from between these: they are left out\n", ref, count(x.sum.Pruned, "message"))
	}
	return nil
}

// exportProgress starts a bar over the messages, on a terminal only.
func (e *env) exportProgress(x *exporter) (stop func()) {
	if !isTerminal(e.stderr) {
		return func() {}
	}
	p := mpb.New(mpb.WithOutput(e.stderr), mpb.WithWidth(48))
	bar := p.AddBar(int64(min(x.want.Len(), 1<<62)),
		mpb.PrependDecorators(decor.Name("export ")),
		mpb.AppendDecorators(decor.Percentage()),
		mpb.BarRemoveOnComplete())
	x.tick = func(n int) { bar.IncrBy(n) }
	return func() {
		bar.Abort(true)
		p.Wait()
	}
}

// exporter writes the pieces of a range.
type exporter struct {
	session    moldcast.Session
	want, held moldcast.Range
	allowHoles bool
	all        bool         // no range was asked for: what was pruned is not missed
	rising     bool         // numbers that are not held need not exist
	finish     moldcast.Seq // End of Session is written, carrying this, when not 0
	tick       func(n int)
	sum        exportSummary

	piece func(moldcast.Piece) error // writes one piece
	end   func() error               // writes what ends the file
}

// errHole is a range that is asked for and not held.
type errHole struct {
	r   moldcast.Range
	why string
}

func (e *errHole) Error() string {
	return fmt.Sprintf("hole %v (%s); --allow-holes leaves it out", e.r, e.why)
}

// errDamaged is a range that was stored, and that the disk gave back wrong.
type errDamaged struct{ r moldcast.Range }

func (e *errDamaged) Error() string {
	return fmt.Sprintf("%v is damaged; `moldtape verify` names all damage, `moldtape repair` mends it", e.r)
}

// errEmptyMessage is a message that BinaryFILE cannot carry: its zero length
// means the end of the file.
type errEmptyMessage struct{ seq moldcast.Seq }

func (e *errEmptyMessage) Error() string {
	return fmt.Sprintf("message %d has length 0, which a binaryfile cannot carry (it means the end); use --format ndjson or pcap", e.seq)
}

func (x *exporter) run(ctx context.Context, open func(moldcast.Seq) *store.Cursor) error {
	hole := func(r moldcast.Range, why string) error {
		if why == string(moldcast.Damaged) {
			return &errDamaged{r}
		}
		if why == string(moldcast.Pruned) && x.all {
			x.sum.Pruned += r.Len()
			x.tick(int(min(r.Len(), 1<<31)))
			return nil
		}
		if x.allowHoles {
			x.sum.Holes++
			x.tick(int(min(r.Len(), 1<<31)))
			return nil
		}
		return &errHole{r, why}
	}
	// What is asked for outside of what is held is a hole too.
	if x.want.First < x.held.First {
		if err := hole(moldcast.Range{First: x.want.First, Next: min(x.want.Next, x.held.First)}, "before the first message held, "+seqText(x.held.First)); err != nil {
			return err
		}
	}
	in := x.want.Intersect(x.held)
	at := in.First
	if !in.Empty() {
		c := open(in.First)
		for n := 0; at < in.Next; n++ {
			if n%256 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			p, err := c.Next()
			var he *moldcast.HoleError
			switch {
			case errors.As(err, &he):
				r := he.Hole.Range.Intersect(in)
				if r.Empty() {
					at = max(at, he.Hole.Range.Next)
					continue
				}
				if err := hole(r, string(he.Hole.Reason)); err != nil {
					return err
				}
				at = r.Next
				continue
			case err == io.EOF && x.rising:
				at = in.Next
				continue
			case err == io.EOF:
				return fmt.Errorf("ends at message %d, before %d: %w", at, in.Next, io.ErrUnexpectedEOF)
			case err != nil:
				return err
			}
			if x.rising && p.First > at {
				at = p.First
				if at >= in.Next {
					break
				}
			}
			p = clip(p, in)
			if p.Msgs.Len() == 0 {
				continue
			}
			if p.First != at {
				return fmt.Errorf("the archive gave message %d in place of %d", p.First, at)
			}
			if err := x.piece(p); err != nil {
				return err
			}
			at = p.Range().Next
			x.sum.Packets++
			x.sum.Messages += uint64(p.Msgs.Len())
			x.sum.Bytes += uint64(len(p.Msgs.Framed()) - moldcast.LengthSize*p.Msgs.Len())
			x.tick(p.Msgs.Len())
		}
	}
	if beyond := (moldcast.Range{First: max(x.want.First, x.held.Next), Next: x.want.Next}); !beyond.Empty() {
		if err := hole(beyond, "the last message held is "+seqText(x.held.Next-1)); err != nil {
			return err
		}
	}
	return x.end()
}

func seqText(s moldcast.Seq) string { return fmt.Sprint(uint64(s)) }

// clip is what of p lies in r.
func clip(p moldcast.Piece, r moldcast.Range) moldcast.Piece {
	in := p.Range().Intersect(r)
	if in == p.Range() {
		return p
	}
	if in.Empty() {
		p.Msgs = moldcast.Messages{}
		return p
	}
	_, m := p.Msgs.Split(int(in.First - p.First))
	m, _ = m.Split(int(in.Len()))
	p.First, p.Msgs = in.First, m
	return p
}

// sink sets how pieces are written.
func (x *exporter) sink(w io.Writer, format string, groups []string, group netip.AddrPort) error {
	switch format {
	case formatPcap, formatPcapng:
		return x.captureSink(w, format, groups, group)
	case formatBinaryFile:
		b := binaryfile.NewWriter(w)
		x.piece = func(p moldcast.Piece) error {
			for seq, m := p.First, p.Msgs; m.Len() > 0; seq++ {
				d := m.Next()
				if len(d) == 0 {
					return &errEmptyMessage{seq}
				}
				if err := b.Write(d); err != nil {
					return err
				}
			}
			return nil
		}
		x.end = b.Flush
	case formatNDJSON:
		b := bufio.NewWriterSize(w, 1<<16)
		var line []byte
		x.piece = func(p moldcast.Piece) error {
			for seq, m := p.First, p.Msgs; m.Len() > 0; seq++ {
				d := m.Next()
				line = ndjson.Append(line[:0], ndjson.Message{
					Seq: seq, Time: p.Time, Heard: p.Heard, Line: p.Line, Flags: p.Flags, More: m.Len() > 0, Data: d,
				})
				if _, err := b.Write(line); err != nil {
					return err
				}
			}
			return nil
		}
		x.end = b.Flush
	case formatRaw:
		b := bufio.NewWriterSize(w, 1<<16)
		x.piece = func(p moldcast.Piece) error {
			for m := p.Msgs; m.Len() > 0; {
				if _, err := b.Write(m.Next()); err != nil {
					return err
				}
			}
			return nil
		}
		x.end = b.Flush
	}
	return nil
}

func (x *exporter) captureSink(w io.Writer, format string, groups []string, group netip.AddrPort) error {
	f := capfile.Pcap
	if format == formatPcapng {
		f = capfile.Pcapng
	}
	b, err := capfile.NewWriter(w, f)
	if err != nil {
		return err
	}
	dst := make([]netip.AddrPort, len(groups))
	for i, g := range groups {
		if a, err := netip.ParseAddrPort(g); err == nil && a.Port() != 0 {
			dst[i] = netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
		}
	}
	var head []byte
	var last moldcast.Stamp
	to := group
	x.piece = func(p moldcast.Piece) error {
		to = group
		// A retransmission goes to the first line, as the original would have.
		line := int(p.Line)
		if p.Line == moldcast.AnswerLine {
			line = 0
		}
		if line < len(dst) && dst[line].IsValid() {
			to = dst[line]
		}
		head = moldcast.AppendHeader(head[:0], x.session, p.First, uint16(p.Msgs.Len()))
		err := b.Write(p.Time, to, head, p.Msgs.Framed())
		if err != nil {
			return fmt.Errorf("message %d: %w", p.First, err)
		}
		last = max(last, p.Time)
		return nil
	}
	x.end = func() error {
		if x.finish != 0 && x.sum.Messages > 0 {
			head = moldcast.AppendHeader(head[:0], x.session, x.finish, moldcast.EndCount)
			if err := b.Write(last, to, head); err != nil {
				return fmt.Errorf("end of session: %w", err)
			}
		}
		return b.Flush()
	}
	return nil
}
