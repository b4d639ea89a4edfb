package soup

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// The timers of the protocol.
const (
	Beat         = time.Second      // after so long without sending, a heartbeat
	Silence      = 15 * time.Second // after so long without hearing, the other end is gone
	LoginTimeout = 30 * time.Second // a login must come within
)

// Kind is of an Event.
type Kind uint8

// The events of a Client.
const (
	Accepted Kind = iota + 1 // Session, First: lower than asked for where the server is not there yet
	Data                     // First, Msgs
	Alive                    // a heartbeat: the server has nothing to send
	Gap                      // Range: the server lacks it as yet, and waits for it
	Hole                     // Range: the server lacks it, and will close
	Debug                    // Text
	End                      // First: one past the last message of the session

	// To a login that WantsSnapshot, after Accepted and before the first Data:
	// NoSnapshot, or the others in this order.
	NoSnapshot    // the messages begin at the start of the session
	Snapshot      // First: the state after all messages below it; Size; Sum
	SnapshotBytes // Bytes: what follows those before
	SnapshotDone  // all came, with the hash announced
)

// Event is what a Client makes of what came. Msgs, Text and Bytes are valid
// until the next call of Receive.
type Event struct {
	Kind    Kind
	Session moldcast.Session
	First   moldcast.Seq
	Msgs    moldcast.Messages // consecutive, framed as MoldUDP64 frames them
	Range   moldcast.Range
	Text    string // printable ASCII, at most 1024 bytes

	Size  uint64   // of a snapshot, bytes
	Sum   [32]byte // its SHA-256
	Bytes []byte   // of it, 1 to MaxSnapshotData
}

// batchBytes is how much data an event gathers before it is handed out.
const batchBytes = 64 << 10

// Client is the receiving end. The owner sends what Output gives, hands what
// arrives to Receive, and calls Poll at Deadline. After any error the
// connection is of no more use.
type Client struct {
	login Login
	in    decoder
	out   []byte
	state clientState
	next  moldcast.Seq

	heard, sent moldcast.Instant

	msgs   []byte
	count  int
	events [2]Event

	snap struct {
		state    snapshotState
		at, size uint64
		sum      [32]byte
		hash     hash.Hash // nil: none was asked for
	}
}

type clientState uint8

const (
	asking clientState = iota
	streaming
	closed // Z or J came, or a logout was sent
)

// NewClient begins a connection: the login is the first output. It panics on
// a Login that does not validate.
func NewClient(now moldcast.Instant, l Login) *Client {
	if err := l.Validate(); err != nil {
		panic(err)
	}
	c := &Client{login: l, in: decoder{keep: MaxMessage}, out: appendLogin(nil, l), heard: now, sent: now}
	if l.WantsSnapshot() {
		c.snap.hash = sha256.New()
	}
	return c
}

// Output is what is to be sent, and is taken to be sent now. It is valid until
// the next call.
func (c *Client) Output(now moldcast.Instant) []byte {
	out := c.out
	c.out = c.out[:0]
	if len(out) > 0 {
		c.sent = now
	}
	return out
}

// Next is the sequence of the next message, once accepted.
func (c *Client) Next() moldcast.Seq { return c.next }

// Logout ends the connection: the server will close.
func (c *Client) Logout() {
	if c.state != closed {
		c.state = closed
		c.out = appendFrame(c.out, typeLogout, "")
	}
}

// Receive takes bytes off b, which arrived at now, and says how many; it is
// called again with the rest. The events, at most two, are in order and come
// before the error. Errors: *RejectedError; what wraps ErrProtocol.
func (c *Client) Receive(now moldcast.Instant, b []byte) (n int, events []Event, err error) {
	if n < len(b) {
		c.heard = max(c.heard, now)
	}
	c.msgs, c.count = c.msgs[:0], 0
	first := c.next
	var control Event
	for n < len(b) && len(c.msgs) < batchBytes && control.Kind == 0 && err == nil {
		f, k, ok, e := c.in.next(b[n:])
		n += k
		switch {
		case e != nil:
			err = e
		case ok:
			control, err = c.frame(f)
		}
	}
	k := 0
	if c.count > 0 {
		c.events[k] = Event{Kind: Data, First: first, Msgs: moldcast.MessagesOf(c.msgs, c.count)}
		k++
	}
	if control.Kind != 0 {
		c.events[k] = control
		k++
	}
	return n, c.events[:k], err
}

func (c *Client) frame(f frame) (Event, error) {
	if f.typ == typeDebug {
		return c.debug(f)
	}
	if f.typ == typeBeat {
		if f.size != 0 {
			return Event{}, ErrFrameSize
		}
		return Event{Kind: Alive}, nil
	}
	switch {
	case c.state == asking && f.typ == typeAccepted:
		return c.accepted(f)
	case c.state == asking && f.typ == typeRejected:
		if f.size != 1 {
			return Event{}, ErrFrameSize
		}
		c.state = closed
		return Event{}, &RejectedError{Code(f.payload[0])}
	case c.state == streaming && f.typ == typeUnsequenced && c.snap.hash != nil:
		return c.snapshot(f)
	case c.state == streaming && c.snap.state != notAsked && (f.typ == typeSequenced || f.typ == typeEnd):
		return Event{}, fmt.Errorf("%w: %w", ErrSnapshot, errEarly)
	case c.state == streaming && f.typ == typeSequenced:
		if c.next == ^moldcast.Seq(0) {
			return Event{}, ErrSequence
		}
		c.msgs = moldcast.AppendMessage(c.msgs, f.payload)
		c.count++
		c.next++
		return Event{}, nil
	case c.state == streaming && f.typ == typeEnd:
		if f.size != 0 {
			return Event{}, ErrFrameSize
		}
		c.state = closed
		return Event{Kind: End, First: c.next}, nil
	case c.state == closed && (f.typ == typeSequenced || f.typ == typeUnsequenced && c.snap.hash != nil):
		return Event{}, nil // what was on its way when we logged out
	}
	return Event{}, fmt.Errorf("%w: %q", ErrType, f.typ)
}

func (c *Client) accepted(f frame) (Event, error) {
	if f.size != acceptedSize {
		return Event{}, ErrFrameSize
	}
	e := Event{Kind: Accepted}
	copy(e.Session[:], f.payload)
	if c.login.Session != Blank && e.Session != c.login.Session {
		return Event{}, fmt.Errorf("%w: %v, not %v", ErrSession, e.Session, c.login.Session)
	}
	seq, err := parseNumber(f.payload[10:], false)
	if err != nil {
		return Event{}, err
	}
	e.First = moldcast.Seq(seq)
	if e.First == 0 {
		return Event{}, fmt.Errorf("%w: accepted at 0", ErrSequence)
	}
	c.state, c.next = streaming, e.First
	if c.snap.hash != nil {
		c.snap.state = announced
	}
	return e, nil
}

func (c *Client) debug(f frame) (Event, error) {
	text := f.payload[:min(len(f.payload), maxDebug)]
	kind := Hole
	r, ok := parseRange(holeWord, text)
	if !ok {
		kind = Gap
		r, ok = parseRange(gapWord, text)
	}
	if ok && c.state == streaming {
		// Numbers are implied: a hole elsewhere than here is none.
		if r.First != c.next {
			return Event{}, fmt.Errorf("%w: %s at %d", ErrSequence, printable(text), c.next)
		}
		return Event{Kind: kind, Range: r}, nil
	}
	return Event{Kind: Debug, Text: printable(text)}, nil
}

// printable is text fit for a log.
func printable(text []byte) string {
	out := make([]byte, len(text))
	for i, b := range text {
		if b < ' ' || b > '~' {
			b = '.'
		}
		out[i] = b
	}
	return string(out)
}

// Poll does what is due: the error is ErrSilent when the server is gone.
func (c *Client) Poll(now moldcast.Instant) error {
	if now >= at(c.heard, Silence) {
		return ErrSilent
	}
	if c.state == streaming && len(c.out) == 0 && now >= at(c.sent, Beat) {
		c.out = appendFrame(c.out, typeClientBeat, "")
	}
	return nil
}

// Deadline is when Poll has something to do.
func (c *Client) Deadline() moldcast.Instant {
	d := at(c.heard, Silence)
	if c.state == streaming && len(c.out) == 0 {
		d = min(d, at(c.sent, Beat))
	}
	return d
}

// at is t + d, at most gap.Never.
func at(t moldcast.Instant, d time.Duration) moldcast.Instant {
	if s := t + moldcast.Instant(d); s >= t {
		return s
	}
	return gap.Never
}
