package importer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store"
)

// line is one line of a file.
type line struct {
	cur  *take        // that it is at
	pos  moldcast.Seq // one past the highest that it brought
	run  []known      // what it brought since it went back below that
	next moldcast.Seq // one past run; 0: there is none
	held []heldPiece  // that conflict, and await a second one
}

// known is a piece that a take held already.
type known struct {
	moldcast.Range
	time, heard moldcast.Stamp
	line        uint8
	flags       moldcast.PieceFlags
	in          *take
}

type heldPiece struct {
	moldcast.Piece
	place Place
	at    moldcast.Seq // the first message that conflicts
	n     int          // how many do
}

// maxKnown bounds the pieces of a run that are remembered one by one: with
// more, two and two become one.
const maxKnown = 1 << 19

// File says that what follows is of another file. packets: it holds packets of
// a network, of which one may be forged.
func (im *Importer) File(packets bool) {
	im.file++
	im.confirm = packets
}

// Unconfirmed gives the conflicts of pieces that awaited a second one, in
// vain. With end, nothing more comes of the file.
func (x *Session) Unconfirmed(end bool) []*Conflict {
	if end {
		for _, l := range x.lines {
			x.giveUp(l)
		}
	}
	out := x.unconfirmed
	x.unconfirmed = nil
	return out
}

// turn begins another file.
func (x *Session) turn() {
	if x.file == x.im.file {
		return
	}
	for _, l := range x.lines {
		x.giveUp(l)
	}
	x.file = x.im.file
	x.end = ending{}
	clear(x.lines)
	x.seen = gap.Set{}
}

func (x *Session) lineFor(number uint8) *line {
	if !x.im.confirm {
		number = 0 // of a file without packets all is one line
	}
	for int(number) >= len(x.lines) {
		x.lines = append(x.lines, nil)
	}
	l := x.lines[number]
	if l == nil {
		l = &line{cur: x.take}
		x.lines[number] = l
	}
	return l
}

// giveUp makes conflicts of the pieces that l, if not nil, holds back.
func (x *Session) giveUp(l *line) {
	if l == nil || len(l.held) == 0 {
		return
	}
	for _, h := range l.held {
		l.cur.Conflicts += uint64(h.n)
		l.cur.Duplicates += uint64(h.Msgs.Len() - h.n)
		x.unconfirmed = append(x.unconfirmed, x.conflict(h.at, h.place))
	}
	l.held = nil
}

func (x *Session) conflict(at moldcast.Seq, place Place) *Conflict {
	return &Conflict{Channel: x.ref.Channel, Session: x.name.String(), Seq: at, Place: place}
}

// ending is the End of Session that the file told last.
type ending struct {
	of  *take
	seq moldcast.Seq
	n   int // how often it was told
	at  moldcast.Stamp
}

// endSilence is after what silence an End of Session that was told once is
// believed: three heartbeats.
const endSilence = 3 * moldcast.Stamp(time.Second)

// stands reports whether t had ended by then: by more than one packet's word,
// or with nothing told since.
func (e *ending) stands(t *take, now moldcast.Stamp) bool {
	return e.of == t && t != nil && (e.n > 1 || now-e.at >= endSilence)
}

// ended takes note of an End of Session of t.
func (x *Session) ended(t *take, m moldcast.Mark) {
	if _, head := t.view.Bounds(); m.Next < head {
		return // what is held contradicts it
	}
	if x.end.of != t || x.end.seq != m.Next {
		x.end = ending{of: t, seq: m.Next}
	}
	x.end.n++
	x.end.at = m.Stamp
}

// afterEnd reports whether p shows that the sender began anew: the take that l
// is at had ended, and p brings, beyond its end, what no take holds.
func (x *Session) afterEnd(l *line, p moldcast.Piece) (bool, error) {
	r := p.Range()
	if r.Next <= x.end.seq || !x.end.stands(l.cur, p.Time) {
		return false, nil
	}
	_, m := p.Msgs.Split(int(max(r.First, x.end.seq) - r.First))
	for q := max(r.First, x.end.seq); q < r.Next; q++ {
		var one moldcast.Messages
		one, m = m.Split(1)
		for _, t := range append(x.older[:len(x.older):len(x.older)], x.take) {
			held, _, err := t.look(q, one)
			if held || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// part is a range of a piece with one verdict.
type part struct {
	first moldcast.Seq
	msgs  moldcast.Messages
	in    *take // that holds it, or is to; nil: a conflict
}

// Add stores of p what is not held. Messages that are held with other bytes
// are left as they are: the first of them is returned as a *Conflict, and the
// import may go on; or they begin a new take. place is given back in a
// Conflict, also by Unconfirmed, which is to be asked after each Add. Any other
// error ends the import.
func (x *Session) Add(p moldcast.Piece, place Place) error {
	x.turn()
	l := x.lineFor(p.Line)
	answer := x.im.confirm && p.Flags&moldcast.Repaired != 0
	back := !answer && p.First < l.pos
	if !answer {
		after, err := x.afterEnd(l, p)
		if err != nil {
			return err
		}
		if after && x.take == x.end.of {
			x.giveUp(l)
			return x.fork(l, p)
		}
		if after {
			l.cur = x.take // another line began it
		}
	}
	parts, at, conflicts, err := x.judge(l, p, back)
	if err != nil {
		return err
	}
	if !answer {
		h := moldcast.Heard{Stamp: p.Heard, First: p.First, Count: uint16(p.Msgs.Len()), Line: p.Line}
		if conflicts > 0 {
			h.Flags = moldcast.Differs
		}
		l.cur.hear(x, h)
	}
	if conflicts > 0 && back && x.seen.Contains(at) {
		if x.im.confirm && len(l.held) == 0 {
			x.follow(l, p, nil)
			p.Msgs = moldcast.MessagesOf(slices.Clone(p.Msgs.Framed()), p.Msgs.Len())
			l.held = append(l.held, heldPiece{p, place, at, conflicts})
			return nil
		}
		x.follow(l, p, nil)
		return x.fork(l, p)
	}
	if conflicts == 0 && !answer {
		x.giveUp(l)
	}
	for _, q := range parts {
		if q.in == nil {
			l.cur.Conflicts += uint64(q.msgs.Len())
			continue
		}
		piece := p
		piece.First, piece.Msgs = q.first, q.msgs
		if err := q.in.put(x, piece); err != nil {
			return err
		}
	}
	if !answer {
		x.seen.Add(p.Range())
		x.follow(l, p, l.cur)
	}
	if conflicts > 0 {
		return x.conflict(at, place)
	}
	return nil
}

// judge compares p with the takes. at is the first of the messages in
// conflict. parts is valid until the next call.
func (x *Session) judge(l *line, p moldcast.Piece, back bool) (parts []part, at moldcast.Seq, conflicts int, err error) {
	parts = x.parts[:0]
	defer func() { x.parts = parts }()
	if len(x.older) == 0 {
		for seq, m := p.First, p.Msgs; m.Len() > 0; {
			q, differs, err := x.w.Compare(seq, m)
			if err != nil {
				return parts, 0, 0, fmt.Errorf("%v: %w", x.ref, err)
			}
			if !differs {
				parts = append(parts, part{seq, m, x.take})
				break
			}
			if conflicts++; conflicts == 1 {
				at = q
			}
			same, rest := m.Split(int(q - seq))
			if same.Len() > 0 {
				parts = append(parts, part{seq, same, x.take})
			}
			one, rest := rest.Split(1)
			parts = append(parts, part{q, one, nil})
			seq, m = q+1, rest
		}
		return parts, at, conflicts, nil
	}
	from := 0
	for i, m := 0, p.Msgs; m.Len() > 0; i++ {
		var one moldcast.Messages
		one, m = m.Split(1)
		seq := p.First + moldcast.Seq(i)
		in, err := x.find(l, seq, one, back)
		if err != nil {
			return parts, 0, 0, err
		}
		if in == nil {
			if conflicts++; conflicts == 1 {
				at = seq
			}
		} else {
			l.cur = in
		}
		if n := len(parts); n > 0 && parts[n-1].in == in {
			_, rest := p.Msgs.Split(from)
			parts[n-1].msgs, _ = rest.Split(i + 1 - from)
		} else {
			parts, from = append(parts, part{seq, one, in}), i
		}
	}
	return parts, at, conflicts, nil
}

// find is the take that holds a message, or the one that l is at where none
// does; nil where it is in conflict with what that holds.
func (x *Session) find(l *line, seq moldcast.Seq, one moldcast.Messages, back bool) (*take, error) {
	held, same, err := l.cur.look(seq, one)
	if err != nil || same {
		return l.cur, err
	}
	var room *take
	for _, t := range append(x.older[:len(x.older):len(x.older)], x.take) {
		if t == l.cur {
			continue
		}
		there, same, err := t.look(seq, one)
		if err != nil {
			return nil, err
		}
		if same {
			return t, nil
		}
		if !there && t.made == x.file && x.file != 0 && t.ref.Take > l.cur.ref.Take {
			room = t // another line of this file brought its beginning
		}
	}
	switch {
	case !held:
		return l.cur, nil
	case room != nil && back:
		return room, nil
	}
	return nil, nil
}

// follow takes note of where l is after p, and of what it brought since it
// went back; in nil: that is held back.
func (x *Session) follow(l *line, p moldcast.Piece, in *take) {
	r := p.Range()
	if r.First >= l.pos {
		l.pos = r.Next
		l.run, l.next = l.run[:0], 0
		return
	}
	if l.next == 0 || r.First < l.next {
		l.run = l.run[:0]
	}
	l.next = r.Next
	if in != nil {
		if len(l.run) == maxKnown {
			l.run = halve(l.run)
		}
		l.run = append(l.run, known{r, p.Time, p.Heard, p.Line, p.Flags, in})
	}
	if l.next >= l.pos && len(l.held) == 0 && in != nil && !x.end.stands(l.cur, p.Time) {
		l.pos = l.next
		l.run, l.next = l.run[:0], 0
	}
}

// halve joins neighbours.
func halve(run []known) []known {
	n := 0
	for i := 0; i < len(run); i++ {
		k := run[i]
		if i+1 < len(run) && run[i+1].First == k.Next && run[i+1].in == k.in {
			i++
			k.Next = run[i].Next
		}
		run[n] = k
		n++
	}
	return run[:n]
}

// fork begins a new take with what l brought since it went back, and p.
func (x *Session) fork(l *line, p moldcast.Piece) error {
	was := x.take
	t := newTake(store.Ref{Channel: was.ref.Channel, Session: x.name, Take: was.ref.Take + 1})
	t.made = x.file
	if err := t.open(x.im); err != nil {
		return err
	}
	x.older, x.take = append(x.older, was), t
	x.seen = gap.Set{}
	for _, k := range l.run {
		if err := t.copy(x, k); err != nil {
			return err
		}
		x.seen.Add(k.Range)
	}
	for _, h := range l.held {
		if err := t.put(x, h.Piece); err != nil {
			return err
		}
		x.seen.Add(h.Range())
	}
	if err := t.put(x, p); err != nil {
		return err
	}
	x.seen.Add(p.Range())
	*l = line{cur: t, pos: p.Range().Next}
	return x.join(t)
}

// join takes into a new take what other lines hold back and agrees with it.
func (x *Session) join(t *take) error {
	for _, l := range x.lines {
		if l == nil {
			continue
		}
		var left []heldPiece
		for _, h := range l.held {
			_, differs, err := t.w.Compare(h.First, h.Msgs)
			if err != nil {
				return fmt.Errorf("%v: %w", t.ref, err)
			}
			if differs {
				left = append(left, h)
				continue
			}
			if err := t.put(x, h.Piece); err != nil {
				return err
			}
			l.cur = t
		}
		l.held = left
	}
	return nil
}

func newTake(r store.Ref) *take {
	t := &take{ref: r}
	t.Channel, t.Session, t.Take = r.Channel, r.Session.String(), r.Take
	return t
}

// open opens t for writing.
func (t *take) open(im *Importer) error {
	w, err := im.archive.Writer(t.ref.Channel, t.ref.Session, t.ref.Take)
	if err != nil {
		return err
	}
	held := w.Held()
	t.w, t.view = w, w.View()
	t.fresh, t.ended = held.First == 0, held.Ended
	t.groups = slices.Clone(t.view.Groups())
	var first moldcast.Stamp
	if at := t.view.Info().FirstTime; at != nil {
		first = moldcast.StampOf(*at)
	}
	t.heard = newHeard(held, first)
	return nil
}

// lineOf is the number in t of a line of x.
func (t *take) lineOf(x *Session, number uint8) uint8 {
	if int(number) >= len(x.groups) {
		return number
	}
	group := x.groups[number]
	i := slices.Index(t.groups, group)
	if i < 0 {
		if len(t.groups) == moldcast.AnswerLine {
			return moldcast.AnswerLine - 1
		}
		i = len(t.groups)
		t.groups = append(t.groups, group)
		if t.w != nil {
			t.w.Lines(t.groups)
		}
	}
	return uint8(i)
}

// look compares a message with what t holds.
func (t *take) look(seq moldcast.Seq, one moldcast.Messages) (held, same bool, err error) {
	b, n, err := t.view.Append(t.scratch[:0], seq, 1, moldcast.MaxDatagram, true)
	t.scratch = b
	var hole *moldcast.HoleError
	switch {
	case errors.Is(err, store.ErrBeyond), errors.Is(err, store.ErrBelow), errors.As(err, &hole):
		return false, false, nil
	case err != nil:
		return false, false, fmt.Errorf("%v: %w", t.ref, err)
	}
	return n == 1, n == 1 && string(b) == string(one.Framed()), nil
}

// copy stores what another take holds as a piece of t.
func (t *take) copy(x *Session, k known) error {
	for r := k.Range; !r.Empty(); {
		b, n, err := k.in.view.Append(nil, r.First, int(min(r.Len(), moldcast.MaxCount)), moldcast.MaxDatagram-moldcast.HeaderSize, true)
		if err != nil {
			return fmt.Errorf("%v: %w", k.in.ref, err)
		}
		p := moldcast.Piece{First: r.First, Msgs: moldcast.MessagesOf(b, n), Time: k.time, Heard: k.heard, Line: k.line, Flags: k.flags}
		if err := t.put(x, p); err != nil {
			return err
		}
		r.First += moldcast.Seq(n)
	}
	return nil
}

// put stores what is new of p, of which nothing conflicts with t.
func (t *take) put(x *Session, p moldcast.Piece) error {
	stored := 0
	if t.w != nil || !t.holds(p) {
		if t.w == nil {
			if err := t.open(x.im); err != nil {
				return err
			}
		}
		if p.Flags&moldcast.Repaired == 0 {
			t.heard.add(p.Range(), p.Time)
		}
		if p.Line != moldcast.AnswerLine {
			p.Line = t.lineOf(x, p.Line)
		}
		var err error
		if stored, err = t.w.Append(p); err != nil {
			t.Messages += uint64(stored)
			return fmt.Errorf("%v: %w", t.ref, err)
		}
	}
	if stored > 0 {
		t.Messages += uint64(stored)
		t.decided, t.adding = true, 4096
		for _, m := range t.pending {
			t.w.Mark(m)
		}
		t.pending = t.pending[:0]
	}
	if n := p.Msgs.Len() - stored; n > 0 {
		t.known(n)
	}
	return nil
}

// holds reports whether t holds all of p.
func (t *take) holds(p moldcast.Piece) bool {
	for r := p.Range(); !r.Empty(); {
		b, n, err := t.view.Append(t.scratch[:0], r.First, int(r.Len()), 1<<30, true)
		t.scratch = b
		if err != nil || n == 0 {
			return false
		}
		r.First += moldcast.Seq(n)
	}
	return true
}

// known counts messages that were held already.
func (t *take) known(n int) {
	t.Duplicates += uint64(n)
	if t.adding -= n; t.adding <= 0 {
		t.adding = 0
		t.pending = t.pending[:0]
	}
	t.decided = true
}

// seen completes the result of a take that was only read.
func (t *take) seen() {
	i := t.view.Info()
	t.FirstSeq, t.NextSeq, t.HeadSeq = i.FirstSeq, i.NextSeq, i.HeadSeq
	holes := t.view.Holes()
	t.Holes, t.HoleList = len(holes), make([]Hole, 0, len(holes))
	for _, h := range holes {
		t.HoleList = append(t.HoleList, Hole{h.Range.First, h.Range.Next - 1, h.Reason})
	}
	_, t.Ended = t.view.Ended()
}
