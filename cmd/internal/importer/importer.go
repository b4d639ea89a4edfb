// Package importer writes what files hold into an archive: it opens a writer
// for each session when its first message comes, stores what is not held,
// compares what is, and at the end puts the gaps on record. What was imported
// before adds nothing.
package importer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
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

// Session is one session being written.
type Session struct {
	Result

	w      *store.Writer
	older  []*store.View // of the takes before the one that is written
	groups []string
	fresh  bool // nothing was held when it was opened
	ended  bool

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
	Messages   uint64       `json:"messages"`   // stored for the first time
	Duplicates uint64       `json:"duplicates"` // held already, the same
	Conflicts  uint64       `json:"conflicts"`  // held already, other bytes: not stored
	Heartbeats uint64       `json:"heartbeats"`
	Ended      bool         `json:"ended"`
	Holes      int          `json:"holes"`
	HoleList   []Hole       `json:"hole_list"`
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
	var older []*store.View
	if ref, ok := im.archive.Latest(channel, s); ok {
		for take := 1; take < ref.Take; take++ {
			v, err := im.archive.View(store.Ref{Channel: channel, Session: s, Take: take})
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			older = append(older, v)
		}
	}
	w, err := im.archive.Writer(channel, s, 0)
	if err != nil {
		return nil, err
	}
	held := w.Held()
	x := &Session{w: w, older: older, fresh: held.First == 0, ended: held.Ended}
	x.Channel, x.Session, x.Take = channel, s.String(), w.Ref().Take
	v := w.View()
	x.groups = slices.Clone(v.Groups())
	var first moldcast.Stamp
	if t := v.Info().FirstTime; t != nil {
		first = moldcast.StampOf(*t)
	}
	x.heard = newHeard(held, first)
	if err := v.Close(); err != nil {
		return nil, err
	}
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
		x.w.Lines(x.groups)
	}
	return uint8(i)
}

// Conflict is a message that the archive holds with other bytes.
type Conflict struct {
	Channel, Session string
	Seq              moldcast.Seq
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("%s/%s: message %d differs from the one in the archive", e.Channel, e.Session, e.Seq)
}

// Add stores of p what is not held. Messages that are held with other bytes
// are left as they are: the first of them is returned as a *Conflict, and the
// import may go on. Any other error ends it.
func (x *Session) Add(p moldcast.Piece) error {
	if len(x.older) == 0 {
		return x.add(p)
	}
	// With several takes each message is looked for in all of them first.
	var first error
	for seq, m := p.First, p.Msgs; m.Len() > 0; seq++ {
		one, rest := m.Split(1)
		m = rest
		same, err := x.inOlder(seq, one)
		if err != nil {
			return err
		}
		if same {
			x.known(1)
			continue
		}
		q := p
		q.First, q.Msgs = seq, one
		if err := x.add(q); err != nil {
			var c *Conflict
			if !errors.As(err, &c) {
				return err
			}
			if first == nil {
				first = err
			}
		}
	}
	return first
}

func (x *Session) inOlder(seq moldcast.Seq, one moldcast.Messages) (bool, error) {
	for _, v := range x.older {
		b, n, err := v.Append(x.scratch[:0], seq, 1, moldcast.MaxDatagram, true)
		x.scratch = b
		var hole *moldcast.HoleError
		switch {
		case errors.Is(err, store.ErrBeyond), errors.Is(err, store.ErrBelow), errors.As(err, &hole):
		case err != nil:
			return false, err
		case n == 1 && string(b) == string(one.Framed()):
			return true, nil
		}
	}
	return false, nil
}

func (x *Session) add(p moldcast.Piece) error {
	total := p.Msgs.Len()
	if p.Flags&moldcast.Repaired == 0 {
		x.heard.add(p.Range(), p.Time)
	}
	stored, err := x.w.Append(p)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", x.Channel, x.Session, err)
	}
	if stored > 0 {
		x.Messages += uint64(stored)
		x.decided, x.adding = true, 4096
		for _, m := range x.pending {
			x.w.Mark(m)
		}
		x.pending = x.pending[:0]
	}
	if stored == total {
		return nil
	}
	// The rest was there before. What was just stored compares as the same.
	var first error
	same := 0
	for seq, m := p.First, p.Msgs; m.Len() > 0; {
		at, differs, err := x.w.Compare(seq, m)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", x.Channel, x.Session, err)
		}
		if !differs {
			same += m.Len()
			break
		}
		x.Conflicts++
		if first == nil {
			first = &Conflict{x.Channel, x.Session, at}
		}
		same += int(at - seq)
		_, m = m.Split(int(at-seq) + 1)
		seq = at + 1
	}
	x.known(same - stored)
	return first
}

// known counts messages that were held already.
func (x *Session) known(n int) {
	x.Duplicates += uint64(max(0, n))
	if x.adding -= n; x.adding <= 0 {
		x.adding = 0
		x.pending = x.pending[:0]
	}
	x.decided = true
}

// Mark records a heartbeat or End of Session, unless the messages around it
// were imported before.
func (x *Session) Mark(m moldcast.Mark) {
	if m.Kind == moldcast.Heartbeat {
		x.Heartbeats++
	}
	switch {
	case m.Kind == moldcast.End && !x.ended:
		x.ended = true
		x.w.Mark(m)
	case x.fresh || x.decided && x.adding > 0:
		x.w.Mark(m)
	case len(x.pending) < maxPending:
		x.pending = append(x.pending, m)
	}
}

// Between is the time that belongs to a retransmission of seq: interpolated by
// sequence between the nearest messages heard live on both sides (one only: its
// time; none: heard).
func (x *Session) Between(seq moldcast.Seq, heard moldcast.Stamp) moldcast.Stamp {
	return x.heard.between(seq, heard)
}

// Sessions is every session opened, in order.
func (im *Importer) Sessions() []*Session { return im.order }

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
		held := x.w.Held()
		x.HoleList = make([]Hole, 0, len(held.Holes))
		for _, h := range held.Holes {
			if h.Time == 0 {
				h.Reason, h.Time = moldcast.NotCaptured, moldcast.StampOf(im.clock())
				x.w.Hole(h)
			}
			x.HoleList = append(x.HoleList, Hole{h.Range.First, h.Range.Next - 1, h.Reason})
		}
		x.FirstSeq, x.NextSeq, x.HeadSeq = held.First, held.Next, held.Head
		x.Holes, x.Ended = len(held.Holes), held.Ended
		results = append(results, x.Result)
		if err := x.w.Flush(ctx); err != nil {
			keep(fmt.Errorf("%s/%s: %w", x.Channel, x.Session, err))
		}
		keep(x.w.Close())
		for _, v := range x.older {
			keep(v.Close())
		}
	}
	if im.archive != nil {
		keep(im.archive.Close())
	}
	return results, first
}
