package block

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// Whatever of a range is kept as leaves and beginnings of leaves, the root is
// that of its messages.
func TestResumeGivesTheSameRoot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s moldcast.Session
		copy(s[:], "S         ")
		first := moldcast.Seq(rapid.SampledFrom([]uint64{1, 4095, 4096, 484311999, 1<<64 - 20000, 1<<64 - 12001}).Draw(t, "first"))
		n := rapid.IntRange(1, 12000).Draw(t, "messages")
		next := first + moldcast.Seq(n)
		msgs := func(a, b moldcast.Seq) moldcast.Messages {
			var buf []byte
			for q := a; q < b; q++ {
				buf = moldcast.AppendMessage(buf, []byte{byte(q), byte(q >> 8)}[:q%3])
			}
			return moldcast.MessagesOf(buf, int(b-a))
		}
		add := func(c *Content, to moldcast.Seq) {
			if err := c.Add(c.Next(), msgs(c.Next(), to)); err != nil {
				t.Fatal(err)
			}
		}
		whole := NewContent(s, first, nil)
		add(whole, next)
		want := whole.Root()

		cut := first + moldcast.Seq(rapid.IntRange(1, n).Draw(t, "cut"))
		var kept []Leaf
		c := NewContent(s, first, func(r moldcast.Range, h [32]byte) { kept = append(kept, Leaf{Range: r, Hash: h}) })
		add(c, cut)
		if l, ok := c.Begun(); ok {
			kept = append(kept, l)
		}
		again := NewContent(s, first, nil)
		for _, l := range kept {
			if err := again.Resume(l); err != nil {
				t.Fatalf("%v: %v", l.Range, err)
			}
		}
		if again.Next() != cut {
			t.Fatalf("kept up to %d, want %d", again.Next(), cut)
		}
		add(again, next)
		if got := again.Root(); got != want {
			t.Fatalf("root %x of %v, want %x of %v", got.Hash, got.Range, want.Hash, want.Range)
		}
	})
}

func TestResumeRefuses(t *testing.T) {
	c := NewContent(moldcast.Session{}, 10, nil)
	if err := c.Add(10, moldcast.MessagesOf(moldcast.AppendMessage(nil, []byte("a")), 1)); err != nil {
		t.Fatal(err)
	}
	l, ok := c.Begun()
	if !ok || l.Range != (moldcast.Range{First: 10, Next: 11}) || len(l.State) != LeafStateSize {
		t.Fatalf("%+v %v", l, ok)
	}
	for _, x := range []struct {
		name  string
		first moldcast.Seq
		l     Leaf
		want  error
	}{
		{"elsewhere", 11, l, ErrNotNext},
		{"not where the leaf begins", 10, Leaf{Range: moldcast.Range{First: 12, Next: 13}, State: l.State}, ErrNotNext},
		{"empty", 10, Leaf{Range: moldcast.Range{First: 10, Next: 10}, State: l.State}, ErrNotNext},
		{"a whole leaf with a state", 10, Leaf{Range: moldcast.Range{First: 10, Next: 4096}, State: l.State}, ErrNotNext},
		{"short", 10, Leaf{Range: l.Range, State: l.State[:50]}, ErrLeafState},
		{"no state", 10, Leaf{Range: l.Range, State: make([]byte, LeafStateSize)}, ErrLeafState},
	} {
		c := NewContent(moldcast.Session{}, x.first, nil)
		if err := c.Resume(x.l); !errors.Is(err, x.want) || c.Next() != x.first {
			t.Errorf("%s: %v, next %d", x.name, err, c.Next())
		}
	}
	if _, ok := NewContent(moldcast.Session{}, 10, nil).Begun(); ok {
		t.Error("a leaf begun without a message")
	}
}
