package store

import (
	"cmp"
	"errors"
	"io"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// ErrNoLog says that a recording has no line log.
var ErrNoLog = errors.New("store: recorded without a line log")

// Log is the line log of a recording, as far as its blocks hold it: every
// datagram that a line brought. It is what was there when it was asked for.
type Log struct {
	v       *View
	parts   []logPlace
	lines   int
	missing []LogMissing
}

// logPlace is where a part of a log lies.
type logPlace struct {
	blockPlace
	i    int // of the parts of the block
	part block.LogPart
}

// blockPlace is a block of a segment.
type blockPlace struct {
	seg   *segment
	first moldcast.Seq // its key; 0: id is that of one without messages
	id    uint64
}

func (p *blockPlace) decode(t *table, dec *block.Decoder, into *block.Block) error {
	if p.first != 0 {
		return p.seg.decode(t, p.first, dec, into)
	}
	return p.seg.decodeMarks(t, p.id, dec, into)
}

// LogMissing is what a line log lacks.
type LogMissing struct {
	Range     moldcast.Range // messages that were heard without a log; else empty
	From, To  moldcast.Stamp // when it was; 0: not known
	Datagrams uint64         // how many were heard; 0: not known
	Why       string
}

// Log is the line log of the recording. Errors: ErrNoLog; of reading.
func (v *View) Log() (*Log, error) {
	s := v.s
	s.refreshIfDue()
	l := &Log{v: v}
	var bare []LogMissing
	note := func(r moldcast.Range, from, to moldcast.Stamp) {
		bare = append(bare, LogMissing{Range: r, From: from, To: to, Why: "stored without a line log"})
	}
	s.mu.Lock()
	segs := slices.Clone(s.segs)
	for _, m := range s.mem {
		if m.state == blockDurable && m.b != nil && m.b.Pieces() > 0 && !m.b.Logged() && s.w == nil {
			from, to := m.b.Times()
			for _, r := range m.cov.Ranges() {
				note(r, from, to)
			}
		}
	}
	s.mu.Unlock()
	for _, g := range segs {
		if g.fault != nil {
			continue // its range is a hole, or damaged: that is said where it is read
		}
		x, err := g.loadIndex(s.a.table)
		if err != nil {
			if s.vanished(g, err) {
				return v.Log()
			}
			return nil, err
		}
		s.mu.Lock()
		for _, r := range x.logs {
			for i, p := range r.parts {
				l.parts = append(l.parts, logPlace{blockPlace{g, r.first, r.id}, i, p})
				l.lines = max(l.lines, p.Lines)
			}
		}
		for _, r := range x.runs {
			if b := &x.blocks[r.blk]; !b.logged && !b.patch && r.times.Live {
				note(r.r, r.times.Min, r.times.Max)
			}
		}
		s.mu.Unlock()
	}
	if len(l.parts) == 0 {
		return nil, ErrNoLog
	}
	slices.SortStableFunc(l.parts, func(a, b logPlace) int {
		return cmp.Or(cmp.Compare(a.part.ID, b.part.ID), cmp.Compare(a.part.Before, b.part.Before), cmp.Compare(a.part.Next(), b.part.Next()))
	})
	l.look(v.Info().State == Live)
	slices.SortFunc(bare, func(a, b LogMissing) int { return cmp.Compare(a.Range.First, b.Range.First) })
	n := len(l.missing)
	for _, m := range bare {
		if k := len(l.missing); k > n && m.Range.First <= l.missing[k-1].Range.Next {
			last := &l.missing[k-1]
			last.Range.Next = max(last.Range.Next, m.Range.Next)
			last.From, last.To = min(last.From, m.From), max(last.To, m.To)
			continue
		}
		l.missing = append(l.missing, m)
	}
	return l, nil
}

// look finds what is missing between the parts.
func (l *Log) look(live bool) {
	miss := func(from, to moldcast.Stamp, n uint64, why string) {
		l.missing = append(l.missing, LogMissing{From: from, To: to, Datagrams: n, Why: why})
	}
	const cut = "the log was cut short: its capture did not end in order"
	// Of the log that is looked at. A merge leaves parts without datagrams, that
	// only say of a block that it was stored under a log.
	var id, to moldcast.Stamp
	var next uint64
	ended := true
	for i := range l.parts {
		p := &l.parts[i].part
		if i == 0 || p.ID != id {
			if !ended {
				miss(to, p.ID, 0, cut)
			}
			if p.Before > 0 {
				miss(p.ID, p.From, p.Before, "the beginning of the log is not held")
			}
			id, next, ended = p.ID, p.Before, false
		}
		if next < p.Before {
			miss(to, p.From, p.Before-next, "a part of the log is not held")
		}
		if p.Lost > 0 {
			miss(p.From, p.To, p.Lost, "memory was full")
		}
		next, ended = max(next, p.Next()), ended || p.Last
		if p.Heard > 0 {
			to = p.To
		}
	}
	if !ended && !live {
		miss(to, 0, 0, cut)
	}
}

// Lines is one more than the highest line that brought anything.
func (l *Log) Lines() int { return l.lines }

// Missing is what of the session is not in the log.
func (l *Log) Missing() []LogMissing { return l.missing }

// Bounds are the lowest and the highest stamp.
func (l *Log) Bounds() (from, to moldcast.Stamp) {
	any := false
	for i := range l.parts {
		if p := &l.parts[i].part; p.Heard > 0 {
			if !any {
				from, to, any = p.From, p.To, true
			}
			from, to = min(from, p.From), max(to, p.To)
		}
	}
	return from, to
}

// Line reads what a line brought at or after from, in the order of hearing.
func (l *Log) Line(line int, from moldcast.Stamp) *LogCursor {
	return &LogCursor{log: l, line: line, from: from}
}

// LogCursor reads one line of a Log. It belongs to one goroutine.
type LogCursor struct {
	log  *Log
	line int
	from moldcast.Stamp
	next int // of the parts
	list []moldcast.Heard
	at   blockPlace // that b is
	b    block.Block
	dec  *block.Decoder
}

// Next is the next datagram. Errors: io.EOF at the end; *CorruptError for a
// part that cannot be read, behind which the next call goes on.
func (c *LogCursor) Next() (moldcast.Heard, error) {
	for {
		for len(c.list) > 0 {
			h := c.list[0]
			c.list = c.list[1:]
			if h.Stamp >= c.from {
				return h, nil
			}
		}
		if c.next == len(c.log.parts) {
			return moldcast.Heard{}, io.EOF
		}
		p := &c.log.parts[c.next]
		c.next++
		if p.part.Heard == 0 || p.part.To < c.from || c.line >= p.part.Lines {
			continue
		}
		if err := c.read(p); err != nil {
			return moldcast.Heard{}, err
		}
		c.list = c.b.HeardOn(p.i, c.line)
	}
}

func (c *LogCursor) read(p *logPlace) (err error) {
	if c.dec == nil {
		if c.dec, err = block.NewDecoder(block.DecoderOptions{Log: true}); err != nil {
			return err
		}
	}
	if c.at == p.blockPlace {
		return nil
	}
	c.at = blockPlace{}
	if err := p.decode(c.log.v.s.a.table, c.dec, &c.b); err != nil {
		return p.seg.corrupt(moldcast.Range{First: p.first, Next: p.first}, err)
	}
	if p.i >= c.b.LogParts() {
		return p.seg.corrupt(moldcast.Range{First: p.first, Next: p.first}, errNotInBlock)
	}
	c.at = p.blockPlace
	return nil
}

// Close lets go of what the cursor reads.
func (c *LogCursor) Close() error {
	if c.dec != nil {
		c.dec.Close()
		c.dec = nil
	}
	c.list, c.next, c.at = nil, len(c.log.parts), blockPlace{}
	return nil
}

// MarkCursor reads the heartbeats and ends of a recording, about in the order
// of hearing: those of a block in that order, blocks in the order of the
// sequences that their marks carry. It belongs to one goroutine.
type MarkCursor struct {
	v     *View
	refs  []markPlace
	marks []moldcast.Mark
	b     block.Block
	dec   *block.Decoder
}

type markPlace struct {
	blockPlace
	lo, hi moldcast.Seq
	mem    []moldcast.Mark // in memory
}

// Marks reads the marks that carry from or more.
func (v *View) Marks(from moldcast.Seq) (*MarkCursor, error) {
	s := v.s
	s.refreshIfDue()
	c := &MarkCursor{v: v}
	s.mu.Lock()
	segs := slices.Clone(s.segs)
	for _, m := range s.mem {
		if m.b != nil && len(m.b.Marks()) > 0 && (m.state < blockDurable || s.w == nil) {
			p := markPlace{mem: slices.Clone(m.b.Marks())}
			p.lo, p.hi = p.mem[0].Next, p.mem[0].Next
			for _, k := range p.mem {
				p.lo, p.hi = min(p.lo, k.Next), max(p.hi, k.Next)
			}
			c.refs = append(c.refs, p)
		}
	}
	s.mu.Unlock()
	for _, g := range segs {
		if g.fault != nil || g.seal != nil && g.seal.Marks == 0 {
			continue
		}
		x, err := g.loadIndex(s.a.table)
		if err != nil {
			if s.vanished(g, err) {
				return v.Marks(from)
			}
			return nil, err
		}
		s.mu.Lock()
		for i := range x.blocks {
			if b := &x.blocks[i]; b.markMin != 0 {
				c.refs = append(c.refs, markPlace{blockPlace: blockPlace{g, b.first, 0}, lo: b.markMin, hi: b.markMax})
			}
		}
		for _, m := range x.marks {
			if m.markMin != 0 {
				c.refs = append(c.refs, markPlace{blockPlace: blockPlace{g, 0, m.id}, lo: m.markMin, hi: m.markMax})
			}
		}
		s.mu.Unlock()
	}
	c.refs = slices.DeleteFunc(c.refs, func(p markPlace) bool { return p.hi < from })
	slices.SortStableFunc(c.refs, func(a, b markPlace) int { return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.hi, b.hi)) })
	return c, nil
}

// Next is the next mark. Errors: io.EOF; *CorruptError for a block that cannot
// be read, behind which the next call goes on.
func (c *MarkCursor) Next() (moldcast.Mark, error) {
	for len(c.marks) == 0 {
		if len(c.refs) == 0 {
			return moldcast.Mark{}, io.EOF
		}
		p := c.refs[0]
		c.refs = c.refs[1:]
		if p.mem != nil {
			c.marks = p.mem
			continue
		}
		if c.dec == nil {
			var err error
			if c.dec, err = block.NewDecoder(block.DecoderOptions{}); err != nil {
				return moldcast.Mark{}, err
			}
		}
		if err := p.decode(c.v.s.a.table, c.dec, &c.b); err != nil {
			return moldcast.Mark{}, p.seg.corrupt(moldcast.Range{First: p.lo, Next: p.lo}, err)
		}
		c.marks = c.b.Marks()
	}
	k := c.marks[0]
	c.marks = c.marks[1:]
	return k, nil
}

// Close lets go of what the cursor reads.
func (c *MarkCursor) Close() error {
	if c.dec != nil {
		c.dec.Close()
		c.dec = nil
	}
	c.refs, c.marks = nil, nil
	return nil
}
