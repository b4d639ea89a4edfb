package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/store"
)

func message(q moldcast.Seq) string { return fmt.Sprint("message ", q) }

func framed(first moldcast.Seq, n int, text func(moldcast.Seq) string) moldcast.Messages {
	var b []byte
	for i := range n {
		b = moldcast.AppendMessage(b, []byte(text(first+moldcast.Seq(i))))
	}
	return moldcast.MessagesOf(b, n)
}

const second = moldcast.Stamp(time.Second)

// holed is a recording of 1..200 without 51..149: its message q is of second q.
func holed(t *testing.T) *store.Writer {
	t.Helper()
	a, err := store.OpenOrCreate(t.TempDir(), store.Options{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := moldcast.ParseSession("S")
	w, err := a.Writer("c", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); a.Close() })
	for q := moldcast.Seq(1); q <= 200; q++ {
		if q == 51 {
			q = 150
		}
		at := moldcast.Stamp(q) * second
		if _, err := w.Append(moldcast.Piece{First: q, Msgs: framed(q, 1, message), Time: at, Heard: at}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// answer is a request server that answers by fn, which is given each request
// and returns datagrams. It counts the requests.
func answer(t *testing.T, fn func(moldcast.Request) [][]byte) *Server {
	t.Helper()
	sock, err := mcast.Listen(mcast.ListenConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	return answerOn(t, sock, fn)
}

// answerInBubble is answer on a network of its own: in a bubble, where no time
// passes but by waiting, a budget is used up by nothing else.
func answerInBubble(t *testing.T, fn func(moldcast.Request) [][]byte) *Server {
	t.Helper()
	network, err := mcast.NewNetwork(mcast.NetworkConfig{Latency: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sock, err := network.Listen(mcast.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := answerOn(t, sock, fn)
	s.Listen = func(c mcast.ListenConfig) (mcast.Socket, error) { return network.Listen(c) }
	return s
}

func answerOn(t *testing.T, sock mcast.Socket, fn func(moldcast.Request) [][]byte) *Server {
	t.Cleanup(func() { sock.Close() })
	go func() {
		ds := make([]mcast.Datagram, 1)
		for {
			if _, err := sock.ReadBatch(ds); err != nil {
				return
			}
			if r, err := moldcast.ParseRequest(ds[0].Data); err == nil {
				for _, d := range fn(r) {
					_, _ = sock.WriteBatch([]mcast.Datagram{{Data: d, Dst: ds[0].Src}})
				}
			}
		}
	}()
	s, _ := moldcast.ParseSession("S")
	return &Server{Session: s, Addr: sock.LocalAddr(), Budget: 500 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
}

// counted counts how often a Source is asked.
type counted struct {
	Source
	n int
}

func (c *counted) Fetch(ctx context.Context, w Want, fn func(moldcast.Piece) error) error {
	c.n++
	return c.Source.Fetch(ctx, w, fn)
}

// A server that has forgotten what is next to the hole fills it all the same;
// one that has nothing of the hole costs one budget.
func TestForgetfulServer(t *testing.T) {
	for _, test := range []struct {
		from, next moldcast.Seq
		left       int
	}{{51, 150, 0}, {1, 51, 1}} {
		synctest.Test(t, func(t *testing.T) {
			src := answerInBubble(t, func(r moldcast.Request) [][]byte {
				if r.First < test.from || r.First >= test.next {
					return nil
				}
				return [][]byte{packet(r.Session, r.First, min(int(r.Count), 7, int(test.next-r.First)), message)}
			})
			res, err := Run(t.Context(), holed(t), []Source{src}, slog.New(slog.DiscardHandler))
			if err != nil || len(res.Remaining) != test.left {
				t.Errorf("%d..%d: %+v %v", test.from, test.next-1, res, err)
			}
		})
	}
}

func packet(s moldcast.Session, first moldcast.Seq, n int, text func(moldcast.Seq) string) []byte {
	return append(moldcast.AppendHeader(nil, s, first, uint16(n)), framed(first, n, text).Framed()...)
}

func TestFromServer(t *testing.T) { synctest.Test(t, fromServer) }

func fromServer(t *testing.T) {
	w := holed(t)
	stranger, _ := moldcast.ParseSession("OTHER")
	lie := func(moldcast.Seq) string { return "lie" }
	src := answerInBubble(t, func(r moldcast.Request) [][]byte {
		n := min(int(r.Count), 7)
		if r.First <= 100 && 100 < r.First+moldcast.Seq(n) {
			n = int(100 - r.First) // it has lost message 100
		}
		out := [][]byte{
			packet(stranger, r.First, 3, lie),
			packet(r.Session, 5000, 3, lie), // not asked for
			{1, 2, 3},
		}
		if n > 0 {
			// More than was asked for, on both sides: those are held. But never 100,
			// wherever the requests happen to begin.
			before := min(2, r.First-1)
			if r.First > 100 {
				before = min(before, r.First-101)
			}
			out = append(out, packet(r.Session, r.First-before, n+int(before), message))
		}
		return out
	})
	res, err := Run(t.Context(), w, []Source{src}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if res.Holes != 1 || res.Messages != 98 || len(res.Remaining) != 1 || res.Remaining[0] != (Hole{100, 100, moldcast.NotCaptured}) {
		t.Fatalf("%+v", res)
	}
	if res.Compared != 101 {
		t.Errorf("compared %d messages, want the 101 that were held", res.Compared)
	}
	c := w.View().Cursor(1)
	defer c.Close()
	for at := moldcast.Seq(1); at <= 200; {
		p, err := c.Next()
		if hole := (*moldcast.HoleError)(nil); errors.As(err, &hole) {
			at = hole.Hole.Range.Next
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if filled := at > 50 && at < 150; filled != (p.Flags&moldcast.Repaired != 0) || filled != (p.Line == moldcast.AnswerLine) {
			t.Errorf("message %d: flags %d, line %d", at, p.Flags, p.Line)
		}
		if p.Time != moldcast.Stamp(at)*second {
			t.Errorf("message %d is of %v, want second %d", at, p.Time.Time(), at)
		}
		for ; p.Msgs.Len() > 0; at++ {
			if got := string(p.Msgs.Next()); got != message(at) {
				t.Fatalf("message %d is %q", at, got)
			}
		}
	}
}

// One message next to the hole differs: another take, and nothing is stored.
func TestFromOtherTake(t *testing.T) { synctest.Test(t, fromOtherTake) }

func fromOtherTake(t *testing.T) {
	w := holed(t)
	src := answerInBubble(t, func(r moldcast.Request) [][]byte {
		return [][]byte{packet(r.Session, r.First, min(int(r.Count), 9), func(q moldcast.Seq) string {
			if q == 150 {
				return "another"
			}
			return message(q)
		})}
	})
	res, err := Run(t.Context(), w, []Source{src}, slog.New(slog.DiscardHandler))
	var c *Conflict
	if !errors.As(err, &c) || c.Seq != 150 || c.Hole != (moldcast.Range{First: 51, Next: 150}) {
		t.Fatalf("%v", err)
	}
	if res.Messages != 0 || len(res.Remaining) != 1 {
		t.Errorf("%+v", res)
	}
}

// Who does not answer costs the budget, and the next source is asked.
func TestSilentServer(t *testing.T) {
	w := holed(t)
	silent := answer(t, func(moldcast.Request) [][]byte { return nil })
	silent.Budget = 50 * time.Millisecond
	good := answer(t, func(r moldcast.Request) [][]byte {
		return [][]byte{packet(r.Session, r.First, min(int(r.Count), 20), message)}
	})
	good.Budget = 5 * time.Minute // not used up: it answers for all
	res, err := Run(t.Context(), w, []Source{silent, good}, slog.New(slog.DiscardHandler))
	if err != nil || len(res.Remaining) != 0 || res.Messages != 99 || res.Filled[0].Source != good.Addr.String() {
		t.Fatalf("%+v %v", res, err)
	}
	// Alone, it fails after one budget, in so many words.
	silent = answer(t, func(moldcast.Request) [][]byte { return nil })
	silent.Budget = 50 * time.Millisecond
	once := &counted{Source: silent}
	res, err = Run(t.Context(), holed(t), []Source{once}, slog.New(slog.DiscardHandler))
	if s := (*SilentError)(nil); !errors.As(err, &s) || s.Addr != silent.Addr || len(res.Remaining) != 1 || once.n != 1 {
		t.Errorf("%+v %v, asked %d times", res, err, once.n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, holed(t), []Source{silent}, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// What a crash kept from being copied from an older take is, without a source.
func TestShared(t *testing.T) {
	a, err := store.OpenOrCreate(t.TempDir(), store.Options{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	s, _ := moldcast.ParseSession("S")
	write := func(take int, variant string, first, next moldcast.Seq) *store.Writer {
		w, err := a.Writer("c", s, take)
		if err != nil {
			t.Fatal(err)
		}
		text := func(q moldcast.Seq) string { return variant + message(q) }
		at := moldcast.Stamp(take*1000) * second
		if _, err := w.Append(moldcast.Piece{First: first, Msgs: framed(first, int(next-first), text), Time: at, Heard: at}); err != nil {
			t.Fatal(err)
		}
		return w
	}
	if err := write(1, "", 1, 101).Close(); err != nil {
		t.Fatal(err)
	}
	w := write(2, "other ", 51, 101)
	if err := w.Share(1, []moldcast.Range{{First: 1, Next: 51}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = a.Writer("c", s, 2); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	filled, err := Shared(t.Context(), w, a, slog.New(slog.DiscardHandler))
	if err != nil || len(filled) != 1 || filled[0] != (Filled{1, 50, "c/S"}) {
		t.Fatalf("%+v %v", filled, err)
	}
	for _, c := range []struct {
		first moldcast.Seq
		text  string
	}{{1, message(1)}, {50, message(50)}, {51, "other " + message(51)}} {
		b, n, err := w.View().Append(nil, c.first, 1, 1000, true)
		if err != nil || n != 1 || string(b[moldcast.LengthSize:]) != c.text {
			t.Errorf("message %d: %q %v", c.first, b, err)
		}
	}
	if filled, err := Shared(t.Context(), w, a, slog.New(slog.DiscardHandler)); err != nil || len(filled) != 0 {
		t.Errorf("again: %+v %v", filled, err)
	}
}
