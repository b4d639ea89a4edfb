package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store/block"
)

// Sessions describes every recording, ordered by channel, session and take.
// One that another process writes is described up to its sealed end; of one
// that cannot be read Info says why.
func (a *Archive) Sessions() ([]Info, error) {
	refs, err := a.refs()
	if err != nil {
		return nil, err
	}
	out := make([]Info, 0, len(refs))
	for _, r := range refs {
		d, err := a.describe(r, false)
		if err != nil {
			d.Info = Info{Channel: r.Channel, Session: r.Session.String(), Take: r.Take, State: Opened, Fault: err.Error()}
		}
		out = append(out, d.Info)
	}
	return out, nil
}

// Show describes one recording in full. Errors wrap ErrNotFound.
func (a *Archive) Show(r Ref) (Detail, error) { return a.describe(r, true) }

// describe reads a recording without changing anything in it.
func (a *Archive) describe(r Ref, full bool) (Detail, error) {
	a.mu.Lock()
	s := a.sessions[r]
	a.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		live := s.w != nil
		s.mu.Unlock()
		if live {
			if err := s.refreshPruned(); err != nil {
				return Detail{}, fmt.Errorf("%v: %w", r, err)
			}
			return s.detail(Live, full)
		}
	}
	s = a.newSession(r)
	if _, err := a.o.FS.Stat(s.dir); isNotExist(err) {
		return Detail{}, a.notFound(r.String(), ErrNotFound)
	}
	if err := s.load(); err != nil {
		return Detail{}, fmt.Errorf("%v: %w", r, err)
	}
	open, damaged := s.unsealed()
	lock, err := s.lock(false)
	state := Opened
	switch {
	case errors.Is(err, ErrLocked):
		state = Live
	case err != nil:
		return Detail{}, err
	default:
		s.readUnsealed(open)
		lock.Close() // a writer that comes now is not in the way
	}
	s.readUnsealed(damaged)
	defer func() {
		for _, g := range s.segs { // they are of this look only
			a.table.forget(g)
		}
	}()
	return s.detail(state, full)
}

// Info describes the session as the view sees it.
func (v *View) Info() Info {
	s := v.s
	s.refreshIfDue()
	s.mu.Lock()
	state := Opened
	if s.w != nil {
		state = Live
	}
	s.mu.Unlock()
	if state != Live {
		if lock, err := s.lock(false); err == nil {
			lock.Close()
		} else if errors.Is(err, ErrLocked) {
			state = Live
		}
	}
	d, _ := s.detail(state, false) // without the list of rates no body is read
	return d.Info
}

// detail describes s. state is Live or Opened.
func (s *session) detail(state State, full bool) (Detail, error) {
	s.mu.Lock()
	d := Detail{
		Info: Info{
			Channel: s.ref.Channel, Session: s.ref.Session.String(), Take: s.ref.Take, State: state,
			FirstSeq: s.first(), NextSeq: s.next(), DurableSeq: s.durable(), HeadSeq: s.head(),
			Messages: s.cov.Count() - s.gone.Count(), PrunedMessages: s.gone.Count(),
		},
		Groups:   append([]string{}, s.facts.Groups...),
		HoleList: []HoleInfo{}, PrunedList: []PrunedInfo{}, FillList: []FillInfo{}, SegmentList: []SegmentInfo{}, Rates: []Rate{}, Lines: []LineInfo{},
	}
	if s.facts.Feed != nil {
		d.Feed = *s.facts.Feed
	}
	d.Feed.EnsureDefaults()
	if end, ok := s.endSeq(); ok {
		d.Ended, d.EndSeq = true, &end
	}
	if e := s.facts.Ending; e != nil && !d.Ended {
		d.SupersededBy = e.By
	}
	for _, h := range s.missing() {
		d.HoleList = append(d.HoleList, HoleInfo{
			FirstSeq: h.Range.First, LastSeq: h.Range.Next - 1, Reason: h.Reason, Time: timeOf(h.Time),
		})
	}
	d.Holes = len(d.HoleList)
	for _, f := range s.fills {
		d.FillList = append(d.FillList, FillInfo{
			FirstSeq: f.First, LastSeq: f.Next - 1, Time: f.Time.Time(), Node: f.Node, By: f.By, Source: f.Source,
		})
	}
	d.CaptureList = captureInfos(s.captures)
	for _, r := range s.gone.Ranges() {
		d.PrunedList = append(d.PrunedList, PrunedInfo{FirstSeq: r.First, LastSeq: r.Next - 1})
	}
	var later gap.Set
	if full {
		later, d.FilledList = s.filledLater()
	}
	var lines, mended []lineCount // mended: those of lines that were brought in later
	var span times
	segs := slices.Clone(s.segs)
	var sizes []*segment // of which the size on disk is to be looked up
	served := s.servedFrom()
	partly := map[int]bool{} // of which not all is served
	for k, g := range segs {
		i := SegmentInfo{Segment: segmentName(g.num), Sealed: g.sealed}
		if g.fault != nil {
			i.Fault = g.fault.Error()
		}
		var rs []moldcast.Range
		var t times
		x := g.idx.Load()
		switch {
		case g.seal != nil:
			rs = g.seal.ranges()
			i.Blocks, i.Messages, i.BytesRaw, i.BytesDisk = g.seal.Blocks, g.seal.Messages, g.seal.BytesRaw, g.seal.BytesDisk
			if i.Messages > 0 {
				t.add(g.seal.FirstTime, g.seal.LastTime)
			}
			if m := g.seal.Merge; m != nil {
				if i.Unmerged = m.Left; m.Left == "" {
					i.Merged, i.BytesMerged = m.Blocks, m.Written
					d.BytesMerged += m.Written
				} else {
					d.Unmerged++
				}
			}
			i.Node, i.Opened, i.SealedAt = g.seal.Node, clockTime(g.seal.Opened), clockTime(g.seal.Sealed)
		case x != nil:
			rs = x.coverage()
			i.Blocks, i.Messages, i.BytesRaw = len(x.blocks)+len(x.marks), x.messages, x.bytesRaw
			if i.Messages > 0 {
				t.add(x.minTime, x.maxTime)
			}
			i.Node, i.Opened = g.node, clockTime(g.opened)
			sizes = append(sizes, g)
		default:
			sizes = append(sizes, g)
		}
		if n := len(rs); n > 0 {
			i.FirstSeq, i.LastSeq, i.Runs = rs[0].First, rs[n-1].Next-1, n
		}
		i.FirstTime, i.LastTime = t.bounds()
		span.join(t)
		if g.seal != nil || x != nil {
			n := countOf(served[g])
			if partly[k] = n != i.Messages; partly[k] && i.Messages > 0 { // until the blocks are looked at
				i.BytesRaw = uint64(float64(i.BytesRaw) * float64(n) / float64(i.Messages))
			}
			i.Messages = n
		}
		if !partly[k] {
			counts := g.lines
			if g.seal != nil {
				counts = g.seal.Lines
			}
			lines = addLines(lines, counts)
			if later.Len() > 0 && allIn(served[g], &later) {
				mended = addLines(mended, counts)
			}
		}
		d.SegmentList = append(d.SegmentList, i)
	}
	rates, tailRaw := map[int64]*Rate{}, uint64(0)
	for _, m := range s.mem {
		if m.b == nil || m.state == blockDurable && s.w != nil || m.b.Pieces() == 0 {
			continue
		}
		tailRaw += uint64(m.b.RawSize())
		d.TailMessages += m.cov.Count()
		span.add(m.b.Times())
		m.b.PiecesFrom(0, func(p moldcast.Piece) bool {
			n, size := uint64(p.Msgs.Len()), uint64(len(p.Msgs.Framed()))
			lines = addLines(lines, []lineCount{{Line: p.Line, Pieces: 1, Messages: n, Bytes: size}})
			if later.Len() > 0 {
				if n, size := partOf(p, partsIn([]moldcast.Range{p.Range()}, &later)); n > 0 {
					mended = addLines(mended, []lineCount{{Line: p.Line, Pieces: 1, Messages: n, Bytes: size}})
				}
			}
			if full {
				addRate(rates, p.Time, n, size)
			}
			return true
		})
	}
	faults := s.faults()
	s.mu.Unlock()

	for _, f := range faults {
		if d.Faults = append(d.Faults, f.Error()); d.Fault == "" {
			d.Fault = f.Error()
		}
	}
	if d.SupersededBy == "" && !d.Ended {
		next := s.ref
		next.Take++
		if _, err := s.a.o.FS.Stat(s.a.sessionDir(next)); err == nil {
			d.SupersededBy = next.String()
		}
	}
	if state == Opened && (d.Ended || d.SupersededBy != "") {
		d.State = Ended
	}
	hold, err := s.a.readHold(s.ref)
	if err != nil {
		return d, err
	}
	d.Hold = hold
	d.Segments = len(segs)
	d.FirstTime, d.LastTime = span.bounds()
	for _, g := range sizes {
		k := slices.Index(segs, g)
		d.SegmentList[k].BytesDisk = dirBytes(s.a.o.FS, g.dir)
	}
	for k, g := range segs {
		if !partly[k] || d.SegmentList[k].Messages == 0 {
			continue
		}
		x, err := g.loadIndex(s.a.table)
		if err != nil {
			lines = addLines(lines, []lineCount{{Line: unknownLine, Messages: d.SegmentList[k].Messages}})
			continue // it is told below
		}
		var t tally
		if full {
			t.rates = rates
		}
		runs, blocks := s.blocksOf(x)
		if err := t.count(g, s.a.table, runs, blocks, served[g], full); err != nil {
			return d, err
		}
		i := &d.SegmentList[k]
		if n := i.Messages - t.messages; n > 0 { // no header tells of them
			t.lines = addLines(t.lines, []lineCount{{Line: unknownLine, Messages: n}})
		}
		i.BytesRaw = t.raw
		lines = addLines(lines, t.lines)
	}
	d.BytesRaw = tailRaw
	for _, i := range d.SegmentList {
		d.BytesRaw += i.BytesRaw
		d.BytesDisk += i.BytesDisk
	}
	if later.Len() > 0 {
		for k, g := range segs {
			parts := partsIn(served[g], &later)
			if len(parts) == 0 || !partly[k] && countOf(parts) == d.SegmentList[k].Messages {
				continue // none, or counted above
			}
			x, err := g.loadIndex(s.a.table)
			if err != nil {
				continue
			}
			var t tally
			runs, blocks := s.blocksOf(x)
			if err := t.count(g, s.a.table, runs, blocks, parts, true); err != nil {
				return d, err
			}
			mended = addLines(mended, t.lines)
		}
	}
	slices.SortFunc(lines, func(a, b lineCount) int { return int(a.Line) - int(b.Line) })
	for _, l := range lines {
		i := LineInfo{Line: lineName(l.Line), Pieces: l.Pieces, Messages: l.Messages, Bytes: l.Bytes}
		for _, m := range mended {
			if m.Line == l.Line {
				i.Filled = m.Messages
			}
		}
		d.Lines = append(d.Lines, i)
	}
	if !full {
		return d, nil
	}
	if d.SnapshotList, err = s.a.Snapshots(s.ref); err != nil {
		return d, err
	}
	for k, g := range segs {
		x, err := g.loadIndex(s.a.table)
		if err != nil {
			if d.SegmentList[k].Fault == "" && g.sealed {
				d.SegmentList[k].Fault = err.Error()
			}
			continue
		}
		if partly[k] {
			continue // counted above
		}
		_, blocks := s.blocksOf(x)
		for _, b := range blocks {
			if err := g.addRates(rates, s.a.table, b); err != nil {
				return d, err
			}
		}
	}
	for _, r := range rates {
		d.Rates = append(d.Rates, *r)
	}
	slices.SortFunc(d.Rates, func(a, b Rate) int { return a.Minute.Compare(b.Minute) })
	return d, nil
}

func lineName(l uint8) string {
	switch {
	case l == moldcast.AnswerLine:
		return "answer"
	case l == unknownLine:
		return "unknown"
	case l < 26:
		return string(rune('A' + l))
	}
	return fmt.Sprint(l)
}

func clockTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func timeOf(s moldcast.Stamp) *time.Time {
	if s == 0 {
		return nil
	}
	t := s.Time()
	return &t
}

// times is the span of the times of messages.
type times struct {
	any    bool
	lo, hi moldcast.Stamp
}

func (t *times) add(lo, hi moldcast.Stamp) {
	if !t.any {
		t.any, t.lo, t.hi = true, lo, hi
	}
	t.lo, t.hi = min(t.lo, lo), max(t.hi, hi)
}

func (t *times) join(o times) {
	if o.any {
		t.add(o.lo, o.hi)
	}
}

func (t *times) bounds() (lo, hi *time.Time) {
	if !t.any {
		return nil, nil
	}
	a, b := t.lo.Time(), t.hi.Time()
	return &a, &b
}

const minute = moldcast.Stamp(time.Minute)

// addRates adds a block. One that lies within a minute is known from its
// header; others are read. What cannot be read counts where it begins.
func (g *segment) addRates(rates map[int64]*Rate, t *table, b blockRef) error {
	if b.minTime/minute != b.maxTime/minute {
		dec, err := block.NewDecoder(block.DecoderOptions{})
		if err != nil {
			return err
		}
		defer dec.Close()
		var blk block.Block
		if err := g.decode(t, b.first, dec, &blk); err == nil {
			blk.PiecesFrom(0, func(p moldcast.Piece) bool {
				addRate(rates, p.Time, uint64(p.Msgs.Len()), uint64(len(p.Msgs.Framed())))
				return true
			})
			return nil
		}
	}
	addRate(rates, b.minTime, uint64(b.messages), uint64(b.raw))
	return nil
}

func addRate(rates map[int64]*Rate, at moldcast.Stamp, messages, size uint64) {
	m := int64(at / minute)
	r := rates[m]
	if r == nil {
		r = &Rate{Minute: time.Unix(m*60, 0).UTC()}
		rates[m] = r
	}
	r.Messages += messages
	r.Bytes += size
}
