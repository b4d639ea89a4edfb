package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/dustin/go-humanize"
	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/importer"
	"github.com/moldtape/moldtape/cmd/internal/ndjson"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// maxFaultsListed bounds the faults that are listed; all are counted.
const maxFaultsListed = 100

// importFault is what could not be imported.
type importFault struct {
	File     string `json:"file"`
	Position int64  `json:"position"`        // byte, in the uncompressed file
	Frame    int64  `json:"frame,omitempty"` // of a capture file
	Line     int64  `json:"line,omitempty"`  // of a text file
	Reason   string `json:"reason"`

	// Of messages that were not stored, which are of no one place.
	Session  string       `json:"session,omitempty"`
	FirstSeq moldcast.Seq `json:"first_seq,omitempty"`
	LastSeq  moldcast.Seq `json:"last_seq,omitempty"`
}

func (f importFault) String() string {
	if f.Session != "" {
		return fmt.Sprintf("%s: messages %d..%d were %s", f.Session, f.FirstSeq, f.LastSeq, f.Reason)
	}
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
	NotStored   uint64            `json:"not_stored"`
	Holes       int               `json:"holes"`
	Faults      int64             `json:"faults"`
	FaultList   []importFault     `json:"fault_list"` // the first hundred
	Interrupted bool              `json:"interrupted"`
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

// add stores a piece; a conflict is taken up and the import goes on.
func (r *importRun) add(s *importer.Session, p moldcast.Piece, in *input, pos, frame int64) error {
	takes := s.Take
	err := s.Add(p, importer.Place{File: in.name, Pos: pos, Frame: frame})
	r.unconfirmed(s, false)
	if s.Take != takes {
		r.env.log.Warn("NEW TAKE: the file shows that the session was restarted under its own name", "channel", s.Channel, "session", s.Session, "take", s.Take,
			"file", in.name, "byte", pos)
	}
	if err == nil {
		return nil
	}
	var c *importer.Conflict
	if errors.As(err, &c) {
		r.conflict(c)
		return nil
	}
	return err
}

func (r *importRun) conflict(c *importer.Conflict) {
	r.fault(importFault{File: c.Place.File, Position: c.Place.Pos, Frame: c.Place.Frame, Reason: c.Error()})
}

// unconfirmed takes up the conflicts that no second packet made a restart.
func (r *importRun) unconfirmed(s *importer.Session, end bool) {
	for _, c := range s.Unconfirmed(end) {
		r.conflict(c)
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
		name := resultName(s)
		held := "no message"
		if s.HeadSeq > s.FirstSeq {
			held = moldcast.Range{First: s.FirstSeq, Next: s.HeadSeq}.String()
		}
		line := fmt.Sprintf("%s  %s  %s new, %s known", name, held, humanize.Comma(int64(s.Messages)), humanize.Comma(int64(s.Duplicates)))
		if s.Conflicts > 0 {
			line += fmt.Sprintf(", %s in conflict", humanize.Comma(int64(s.Conflicts)))
		}
		if s.NotStored > 0 {
			line += fmt.Sprintf(", %s not stored", humanize.Comma(int64(s.NotStored)))
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

func resultName(s importer.Result) string {
	name := s.Channel + "/" + s.Session
	if s.Take != 1 {
		name += "@" + strconv.Itoa(s.Take)
	}
	return name
}

// lost takes up the messages that a failing disk did not take.
func (r *importRun) lost(s importer.Result) {
	for _, l := range s.Lost {
		r.fault(importFault{Session: resultName(s), FirstSeq: l.First, LastSeq: l.Next - 1, Reason: "not stored for certain: import the file again once the disk takes them"})
	}
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
