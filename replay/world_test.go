package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
	s1 = int64(time.Second)

	// day0 is when the recordings of these tests begin: stamps are ns since
	// 1970.
	day0 = int64(1_473_799_891_000_000_000)
)

// tape is a recording. Sources of it may be open several at a time.
type tape struct {
	mu     sync.Mutex       // holes are filled while it is read
	pieces []moldcast.Piece // by sequence
	first  moldcast.Seq
	head   moldcast.Seq
	why    moldcast.HoleReason
	slow   time.Duration // virtual time that each piece takes to read
	fail   error         // what the end gives instead of io.EOF
	opened int
	closed int
}

// add puts a packet at seq of n messages at at ns after day0, each message
// with size bytes that say where they belong.
func (t *tape) add(seq moldcast.Seq, n int, at int64, size int) *tape {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b []byte
	for i := range n {
		b = moldcast.AppendMessage(b, body(seq+moldcast.Seq(i), size))
	}
	m, err := moldcast.ParseMessages(b, n)
	if err != nil {
		panic(err)
	}
	t.pieces = append(t.pieces, moldcast.Piece{First: seq, Msgs: m, Time: moldcast.Stamp(day0 + at), Heard: moldcast.Stamp(day0 + at)})
	slices.SortStableFunc(t.pieces, func(a, b moldcast.Piece) int { return int(a.First) - int(b.First) })
	if t.first == 0 {
		t.first = seq
	}
	t.head = max(t.head, seq+moldcast.Seq(n))
	return t
}

// body is the message of sequence seq.
func body(seq moldcast.Seq, size int) []byte {
	s := fmt.Sprintf("%d.", seq)
	for len(s) < size {
		s += s
	}
	return []byte(s[:size])
}

// train is a recording of single messages at the given ns after day0.
func train(at ...int64) *tape {
	t := new(tape)
	for i, a := range at {
		t.add(moldcast.Seq(i+1), 1, a, 12)
	}
	return t
}

func (t *tape) Range() moldcast.Range { return moldcast.Range{First: t.first, Next: t.head} }

func (t *tape) open(from moldcast.Seq) (Source, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened++
	return &reel{tape: t, pos: from}, nil
}

func (t *tape) seqAt(at moldcast.Stamp) moldcast.Seq {
	for _, p := range t.pieces {
		if p.Time >= at {
			return p.First
		}
	}
	return t.head
}

// reel is a Source. It gives its pieces in one buffer, which it overwrites, as
// a store may.
type reel struct {
	tape *tape
	pos  moldcast.Seq
	at   int
	buf  []byte
}

func (r *reel) Close() error {
	r.tape.mu.Lock()
	defer r.tape.mu.Unlock()
	r.tape.closed++
	return nil
}

func (r *reel) Next() (moldcast.Piece, error) {
	for i := range r.buf {
		r.buf[i] = 0xEE
	}
	if r.tape.slow > 0 {
		<-time.After(r.tape.slow)
	}
	r.tape.mu.Lock()
	defer r.tape.mu.Unlock()
	for r.at < len(r.tape.pieces) && r.tape.pieces[r.at].Range().Next <= r.pos {
		r.at++
	}
	if r.at == len(r.tape.pieces) {
		if r.pos < r.tape.head {
			h := moldcast.Range{First: r.pos, Next: r.tape.head}
			r.pos = h.Next
			return moldcast.Piece{}, &moldcast.HoleError{Hole: moldcast.Hole{Range: h, Reason: r.tape.reason()}}
		}
		if r.tape.fail != nil {
			return moldcast.Piece{}, r.tape.fail
		}
		return moldcast.Piece{}, io.EOF
	}
	p := r.tape.pieces[r.at]
	if p.First > r.pos {
		h := moldcast.Range{First: r.pos, Next: p.First}
		r.pos = p.First
		return moldcast.Piece{}, fmt.Errorf("reading on: %w", &moldcast.HoleError{Hole: moldcast.Hole{Range: h, Reason: r.tape.reason()}})
	}
	r.pos = p.Range().Next
	r.at++
	r.buf = append(r.buf[:0], p.Msgs.Framed()...)
	p.Msgs = moldcast.MessagesOf(r.buf, p.Msgs.Len())
	return p, nil
}

func (t *tape) reason() moldcast.HoleReason {
	if t.why == "" {
		return moldcast.NotCaptured
	}
	return t.why
}

// sent is a datagram as it went.
type sent struct {
	at  time.Duration // since the bubble began
	pkt moldcast.Packet
	raw []byte
}

// wire is a Sender that keeps what went.
type wire struct {
	t     *testing.T
	since time.Time
	mu    sync.Mutex // of out, which is looked at meanwhile
	out   []sent
	sizes []int // of batches
	takes time.Duration
	fails func(n int) (int, error) // of the n-th call
	calls int
}

func newWire(t *testing.T) *wire { return &wire{t: t, since: time.Now()} }

func (w *wire) Send(batch [][]byte) (int, error) {
	n, err := len(batch), error(nil)
	if w.fails != nil {
		if k, e := w.fails(w.calls); e != nil {
			n, err = min(k, n-1), e // an error says why n is short
		}
	}
	w.calls++
	if w.takes > 0 {
		<-time.After(w.takes)
	}
	w.sizes = append(w.sizes, n)
	for _, b := range batch[:n] {
		raw := slices.Clone(b)
		p, perr := moldcast.Parse(raw)
		if perr != nil {
			w.t.Errorf("sent a packet that does not parse: %v: %x", perr, raw)
		}
		w.mu.Lock()
		w.out = append(w.out, sent{at: time.Since(w.since), pkt: p, raw: raw})
		w.mu.Unlock()
	}
	return n, err
}

func (w *wire) of(k moldcast.Kind) []sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []sent
	for _, s := range w.out {
		if s.pkt.Kind == k {
			out = append(out, s)
		}
	}
	return out
}

func (w *wire) data() []sent { return w.of(moldcast.Data) }

// times is when data went, in ns after the first.
func (w *wire) times() []int64 {
	var out []int64
	data := w.data()
	for _, s := range data {
		out = append(out, int64(s.at-data[0].at))
	}
	return out
}

func (w *wire) firsts() []moldcast.Seq {
	var out []moldcast.Seq
	for _, s := range w.data() {
		out = append(out, s.pkt.First)
	}
	return out
}

// virtual is a Waiter in the time of a synctest bubble.
type virtual struct{ origin time.Time }

func (v virtual) Now() moldcast.Instant { return moldcast.Instant(time.Since(v.origin)) + 1 }
func (v virtual) Wall() moldcast.Stamp  { return moldcast.StampOf(time.Now()) }
func (v virtual) Until(t moldcast.Instant, wake <-chan struct{}) {
	timer := time.NewTimer(min(time.Duration(t-v.Now()), time.Hour))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	}
}

var sessionA = name("SESSIONA")

func name(s string) moldcast.Session {
	n, err := moldcast.ParseSession(s)
	if err != nil {
		panic(err)
	}
	return n
}

// stream is a Stream of t into w.
func (t *tape) stream(w Sender) Stream {
	return Stream{Session: sessionA, Sender: w, Range: t.Range(), Open: t.open, SeqAt: t.seqAt}
}

// start makes a Player and runs it; result waits for its end.
func start(t *testing.T, c Config) (p *Player, result func() (Report, error), cancel func()) {
	t.Helper()
	c.Waiter = virtual{time.Now()}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	type outcome struct {
		rep Report
		err error
	}
	ch := make(chan outcome, 1)
	go func() {
		rep, err := p.Run(ctx)
		ch <- outcome{rep, err}
	}()
	return p, func() (Report, error) {
		o := <-ch
		cancel()
		return o.rep, o.err
	}, cancel
}

// play runs c to its end.
func play(t *testing.T, c Config) Report {
	t.Helper()
	_, result, _ := start(t, c)
	rep, err := result()
	if err != nil {
		t.Fatalf("replay: %v", err)
	}
	return rep
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// after waits d of virtual time, until everything else has come to rest.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var errBroken = errors.New("cable pulled")
