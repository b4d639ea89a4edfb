package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// Sequences at which sessions of the tests begin: those where arithmetic
// goes wrong.
var starts = []moldcast.Seq{1, 484311999, ^moldcast.Seq(0) - 5000}

func sess(t testing.TB, name string) moldcast.Session {
	t.Helper()
	s, err := moldcast.ParseSession(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testOptions are those of the tests: small blocks, in memory, which no machine
// is too slow for: they are cut by size, not by age.
func testOptions(fs vfs.FS) Options {
	return Options{FS: fs, BlockSize: 4 << 10, BlockAge: time.Hour, SegmentSize: 16 << 10, Log: slog.New(slog.DiscardHandler), Node: "test"}
}

// message is the message that the tests store at q.
func message(q moldcast.Seq) []byte {
	n := int(q % 37)
	b := []byte(fmt.Sprintf("%d|", q))
	for i := range n {
		b = append(b, byte('a'+(int(q)+i)%26))
	}
	if q%53 == 0 {
		return nil
	}
	return b
}

// piece is n messages from first on.
func piece(first moldcast.Seq, n int) moldcast.Piece {
	var b []byte
	for i := range n {
		b = moldcast.AppendMessage(b, message(first+moldcast.Seq(i)))
	}
	at := moldcast.Stamp(1700000000_000000000) + moldcast.Stamp(first%1000000)*1000
	return moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(b, n), Time: at, Heard: at}
}

func create(t testing.TB, o Options) *Archive {
	t.Helper()
	a, err := OpenOrCreate("archive", o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func writer(t testing.TB, a *Archive, name string) *Writer {
	t.Helper()
	w, err := a.Writer("default", sess(t, name), 0)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func put(t testing.TB, w *Writer, p moldcast.Piece) int {
	t.Helper()
	n, err := w.Append(p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fillRange stores r in pieces of up to most messages.
func fillRange(t testing.TB, w *Writer, r moldcast.Range, most int) {
	t.Helper()
	for q := r.First; q < r.Next; {
		n := min(most, int(r.Next-q))
		put(t, w, piece(q, n))
		q += moldcast.Seq(n)
	}
}

func view(t testing.TB, a *Archive, r Ref) *View {
	t.Helper()
	v, err := a.View(r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// check reads v from first and wants exactly the messages of held, in order,
// with holes between.
func check(t testing.TB, v *View, held ...moldcast.Range) {
	t.Helper()
	c := v.Cursor(0)
	defer c.Close()
	i := 0
	var at moldcast.Seq
	if len(held) > 0 {
		at = held[0].First
	}
	for {
		p, err := c.Next()
		var hole *moldcast.HoleError
		switch {
		case errors.As(err, &hole):
			if i < len(held) && hole.Hole.Range.Next == held[i].First && at <= hole.Hole.Range.First {
				at = held[i].First // a hole before the first
				continue
			}
			if i+1 >= len(held) || hole.Hole.Range != (moldcast.Range{First: held[i].Next, Next: held[i+1].First}) || at != held[i].Next {
				t.Fatalf("at %d: hole %v, want ranges %v", at, hole.Hole, held)
			}
			i++
			at = held[i].First
			continue
		case err == io.EOF:
			if len(held) > 0 && (i != len(held)-1 || at != held[i].Next) {
				t.Fatalf("ended at %d, want ranges %v", at, held)
			}
			return
		case err != nil:
			t.Fatalf("at %d: %v", at, err)
		}
		if i >= len(held) || p.First != at {
			t.Fatalf("piece %v at %d, want ranges %v", p.Range(), at, held)
		}
		for m := p.Msgs; m.Len() > 0; at++ {
			if got := m.Next(); string(got) != string(message(at)) {
				t.Fatalf("message %d is %q, want %q", at, got, message(at))
			}
		}
		if at > held[i].Next {
			t.Fatalf("piece %v beyond %v", p.Range(), held[i])
		}
	}
}

func verify(t testing.TB, a *Archive) Report {
	t.Helper()
	rep, err := a.Verify(context.Background(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rep.Faults {
		t.Errorf("fault: %v", f)
	}
	return rep
}

func TestWriteCloseRead(t *testing.T) {
	for _, first := range starts {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			o := testOptions(vfs.NewMem())
			a := create(t, o)
			w := writer(t, a, "S1")
			r := moldcast.Range{First: first, Next: first + 5000}
			fillRange(t, w, r, 7)
			check(t, w.View(), r)
			if n := put(t, w, piece(first+10, 20)); n != 0 {
				t.Fatalf("stored %d messages again", n)
			}
			if err := w.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			if next, durable, head := w.Watermarks(); next != r.Next || durable != r.Next || head != r.Next {
				t.Fatalf("watermarks %d %d %d, want %d", next, durable, head, r.Next)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			rep := verify(t, a)
			if rep.Messages != 5000 || rep.Segments < 2 {
				t.Fatalf("%+v", rep)
			}
			check(t, view(t, a, w.Ref()), r)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			a = create(t, o)
			defer a.Close()
			check(t, view(t, a, w.Ref()), r)
			infos, err := a.Sessions()
			if err != nil || len(infos) != 1 || infos[0].Messages != 5000 || infos[0].State != Opened ||
				infos[0].NextSeq != r.Next || infos[0].Holes != 0 || infos[0].BytesDisk == 0 {
				t.Fatalf("%+v %v", infos, err)
			}
		})
	}
}
