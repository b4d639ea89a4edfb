// Package importer writes what files hold into an archive: it opens a writer
// for each session when its first message comes, stores what is not held,
// compares what is, and at the end puts the gaps on record. What was imported
// before adds nothing.
//
// A message is compared with every take of its session: equal to any it is
// known, and tells which take the line is at; what is new goes there. One that
// differs from all is a conflict, unless the file shows by itself that the
// sender was restarted: the line goes back down, to sequences that the same file
// brought before with other bytes. Then a new take begins where the line went
// back to; what is the same in both is copied. Since a capture file can hold a
// forged packet, two in a row on a line must show it there.
package importer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store"
)

// MaxSessions is how many sessions one import may touch: each holds a writer.
const MaxSessions = 256

// ErrTooManySessions: the files hold more than MaxSessions sessions.
var ErrTooManySessions = fmt.Errorf("more than %d sessions in one import", MaxSessions)

// maxPending bounds the marks that wait for the message after them.
const maxPending = 4096

// Importer owns the writers of one import. It is not safe for concurrent use.
type Importer struct {
	open     func() (*store.Archive, error)
	clock    func() time.Time
	archive  *store.Archive
	sessions map[key]*Session
	order    []*Session
	file     int
	confirm  bool // of the file: see File

	// LineLog keeps a line log of the packets of sessions that the archive held
	// nothing of.
	LineLog bool
}

type key struct {
	channel string
	session moldcast.Session
}

// New makes an Importer. open gives the archive, and is called when there is a
// first session to write; Close closes what it gave.
func New(open func() (*store.Archive, error), clock func() time.Time) *Importer {
	return &Importer{open: open, clock: clock, sessions: make(map[key]*Session)}
}

// Session is one session being written: all its takes.
type Session struct {
	*take // the latest

	im     *Importer
	name   moldcast.Session
	older  []*take
	groups []string // by the numbers that Line gave

	turns       uint32  // datagrams in line logs
	file        int     // that what follows belongs to
	lines       []*line // by number; nil: it brought nothing of the file yet
	parts       []part  // scratch of judge
	seen        gap.Set // what the file brought since it went back to a new take
	unconfirmed []*Conflict
	end         ending
}

// take is one recording of a session. It is opened for writing when there is
// something to write.
type take struct {
	Result

	ref    store.Ref
	w      *store.Writer // nil: it was only read so far
	view   *store.View
	groups []string
	fresh  bool // nothing was held when it was opened
	ended  bool
	made   int // the file that began it; 0: it was there

	heard heard

	// A heartbeat has no sequence of its own by which a second import of it
	// could be told. It is recorded where the messages around it were new.
	adding  int // so many more known messages may come before that ends
	decided bool
	pending []moldcast.Mark

	scratch []byte
}

// Result is what an import did to one session: a value of `import --json`.
type Result struct {
	Channel    string       `json:"channel"`
	Session    string       `json:"session"`
	Take       int          `json:"take"`
	FirstSeq   moldcast.Seq `json:"first_seq"`
	NextSeq    moldcast.Seq `json:"next_seq"`
	HeadSeq    moldcast.Seq `json:"head_seq"`
	Messages   uint64       `json:"messages"`   // stored for the first time, and durable
	Duplicates uint64       `json:"duplicates"` // held already, the same
	Conflicts  uint64       `json:"conflicts"`  // held already, other bytes: not stored
	Heartbeats uint64       `json:"heartbeats"`
	Ended      bool         `json:"ended"`
	Holes      int          `json:"holes"`
	HoleList   []Hole       `json:"hole_list"`
	NotStored  uint64       `json:"not_stored"` // new, and not durable: the disk failed

	Lost []moldcast.Range `json:"-"` // what NotStored counts
}

// Hole is a missing range, both ends inclusive.
type Hole struct {
	FirstSeq moldcast.Seq        `json:"first_seq"`
	LastSeq  moldcast.Seq        `json:"last_seq"`
	Reason   moldcast.HoleReason `json:"reason"`
}

// Session opens a session for writing, at its latest take, or gives the one
// that is open.
func (im *Importer) Session(channel string, s moldcast.Session) (*Session, error) {
	if x := im.sessions[key{channel, s}]; x != nil {
		return x, nil
	}
	if len(im.order) == MaxSessions {
		return nil, ErrTooManySessions
	}
	if im.archive == nil {
		a, err := im.open()
		if err != nil {
			return nil, err
		}
		im.archive = a
	}
	x := &Session{im: im, name: s}
	latest := 1
	if ref, ok := im.archive.Latest(channel, s); ok {
		latest = ref.Take
		for n := 1; n < latest; n++ {
			t := newTake(store.Ref{Channel: channel, Session: s, Take: n})
			v, err := im.archive.View(t.ref)
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			t.view = v
			x.older = append(x.older, t)
		}
	}
	x.take = newTake(store.Ref{Channel: channel, Session: s, Take: latest})
	if err := x.take.open(im); err != nil {
		return nil, err
	}
	x.groups = slices.Clone(x.take.groups)
	im.sessions[key{channel, s}] = x
	im.order = append(im.order, x)
	return x, nil
}

// Line is the number of the line with that group and port; a new one is put on
// record.
func (x *Session) Line(group string) uint8 {
	i := slices.Index(x.groups, group)
	if i < 0 {
		if len(x.groups) == moldcast.AnswerLine {
			return moldcast.AnswerLine - 1
		}
		i = len(x.groups)
		x.groups = append(x.groups, group)
		x.take.lineOf(x, uint8(i))
	}
	return uint8(i)
}

// Conflict is a message that the archive holds with other bytes.
type Conflict struct {
	Channel, Session string
	Seq              moldcast.Seq
	Place            Place
}

// Place is where a piece is in a file.
type Place struct {
	File  string
	Pos   int64 // byte, in the uncompressed file
	Frame int64 // of a capture file
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("%s/%s: message %d differs from the one in the archive", e.Channel, e.Session, e.Seq)
}

// Mark records a heartbeat or End of Session, unless the messages around it
// were imported before.
func (x *Session) Mark(m moldcast.Mark) error {
	x.turn()
	t := x.lineFor(m.Line).cur
	if t.w == nil {
		if err := t.open(x.im); err != nil {
			return err
		}
	}
	t.hear(x, moldcast.Heard{Stamp: m.Stamp, First: m.Next, Count: countOf(m.Kind), Line: m.Line})
	m.Line = t.lineOf(x, m.Line)
	if m.Kind == moldcast.Heartbeat {
		t.Heartbeats++
	}
	if m.Kind == moldcast.End {
		x.ended(t, m)
	}
	switch {
	case m.Kind == moldcast.End && !t.ended:
		t.ended = true
		t.w.Mark(m)
	case t.fresh || t.decided && t.adding > 0:
		t.w.Mark(m)
	case len(t.pending) < maxPending:
		t.pending = append(t.pending, m)
	}
	return nil
}

// countOf is the count of a mark on the wire.
func countOf(k moldcast.Kind) uint16 {
	if k == moldcast.End {
		return moldcast.EndCount
	}
	return 0
}

// hear takes a datagram into the line log: of a take that this import began, and
// that it went on with. Importing a file twice adds nothing, and what a sender
// that began anew sent before that was known is in the log of another take.
func (t *take) hear(x *Session, h moldcast.Heard) {
	if !x.im.LineLog || !x.im.confirm || !t.fresh || t.made != 0 || t.w == nil || h.Line == moldcast.AnswerLine {
		return
	}
	h.Line = t.lineOf(x, h.Line)
	h.Turn = x.turns
	x.turns++
	t.w.Heard(h)
}

// Between is the time that belongs to a retransmission of seq: interpolated by
// sequence between the nearest messages heard live on both sides (one only: its
// time; none: heard).
func (x *Session) Between(seq moldcast.Seq, heard moldcast.Stamp) moldcast.Stamp {
	return x.heard.between(seq, heard)
}

// Sessions is every session opened, in order.
func (im *Importer) Sessions() []*Session { return im.order }

// fallBack leaves in the result of a take, whose writer failed, what is durable.
func (t *take) fallBack() {
	first, next, head, lost := t.w.Synced()
	if len(lost) == 0 {
		return
	}
	for _, r := range lost {
		t.NotStored += r.Len()
	}
	t.Lost = lost
	t.Messages -= min(t.Messages, t.NotStored)
	t.FirstSeq, t.NextSeq, t.HeadSeq, t.Ended = first, next, head, false
	t.HoleList = slices.DeleteFunc(t.HoleList, func(h Hole) bool { return h.FirstSeq >= head })
	t.Holes = len(t.HoleList)
}

// Finish puts the holes on record, makes everything durable, seals and closes.
// It closes all also where that fails, and gives the first error.
func (im *Importer) Finish(ctx context.Context) ([]Result, error) {
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	results := make([]Result, 0, len(im.order))
	for _, x := range im.order {
		for _, t := range append(x.older, x.take) {
			if t.w == nil {
				if t.Duplicates+t.Conflicts > 0 {
					t.seen()
					results = append(results, t.Result)
				}
				keep(t.view.Close())
				continue
			}
			held := t.w.Held()
			t.HoleList = make([]Hole, 0, len(held.Holes))
			for _, h := range held.Holes {
				if h.Time == 0 {
					h.Reason, h.Time = moldcast.NotCaptured, moldcast.StampOf(im.clock())
					t.w.Hole(h)
				}
				t.HoleList = append(t.HoleList, Hole{h.Range.First, h.Range.Next - 1, h.Reason})
			}
			t.FirstSeq, t.NextSeq, t.HeadSeq = held.First, held.Next, held.Head
			t.Holes, t.Ended = len(held.Holes), held.Ended
			err := t.w.Flush(ctx)
			if e := t.w.Close(); e != nil || ctx.Err() != nil { // else all is durable, if not at the first try
				if err != nil {
					err = fmt.Errorf("%v: %w", t.ref, err)
				} else {
					err = e
				}
				keep(err)
				t.fallBack()
			}
			results = append(results, t.Result)
		}
	}
	if im.archive != nil {
		keep(im.archive.Close())
	}
	return results, first
}
