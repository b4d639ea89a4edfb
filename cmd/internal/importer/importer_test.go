package importer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

func name(s string) moldcast.Session {
	x, err := moldcast.ParseSession(s)
	if err != nil {
		panic(err)
	}
	return x
}

func piece(first int, at moldcast.Stamp, texts ...string) moldcast.Piece {
	var b []byte
	for _, m := range texts {
		b = moldcast.AppendMessage(b, []byte(m))
	}
	return moldcast.Piece{First: moldcast.Seq(first), Msgs: moldcast.MessagesOf(b, len(texts)), Time: at, Heard: at}
}

func opener(dir string) func() (*store.Archive, error) {
	return func() (*store.Archive, error) {
		o := store.DefaultOptions()
		o.Wait = true
		return store.OpenOrCreate(dir, o)
	}
}

func finish(t *testing.T, im *Importer) []Result {
	t.Helper()
	r, err := im.Finish(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What any take holds adds nothing; what no take holds goes to the one that the
// line is at; what
// differs from all is a conflict.
func TestTakes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	a, err := opener(dir)()
	if err != nil {
		t.Fatal(err)
	}
	for take, texts := range map[int][]string{1: {"a1", "a2", "a3", "a4"}, 2: {"a1", "b2"}} {
		w, err := a.Writer("C", name("S"), take)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Append(piece(1, 5, texts...)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	im := New(opener(dir), time.Now)
	s, err := im.Session("C", name("S"))
	if err != nil {
		t.Fatal(err)
	}
	var conflict *Conflict
	for _, c := range []struct {
		p    moldcast.Piece
		seq  moldcast.Seq // of the conflict
		want string
	}{
		{piece(1, 9, "a1", "a2", "a3", "a4"), 0, "0 new 4 known 0 conflicts"},
		{piece(1, 9, "a1", "b2"), 0, "0 new 6 known 0 conflicts"},
		{piece(2, 9, "x2", "b3"), 2, "1 new 6 known 1 conflicts"},
		{piece(3, 9, "b3", "b4"), 0, "2 new 7 known 1 conflicts"},
	} {
		im.File(false) // each in a file of its own: none shows a restart
		err := s.Add(c.p, Place{})
		if c.seq == 0 && err != nil || c.seq != 0 && (!errors.As(err, &conflict) || conflict.Seq != c.seq) {
			t.Errorf("%v: %v", c.p.Range(), err)
		}
		var sum Result
		for _, k := range append(s.older, s.take) {
			sum.Messages += k.Messages
			sum.Duplicates += k.Duplicates
			sum.Conflicts += k.Conflicts
		}
		if got := fmt.Sprintf("%d new %d known %d conflicts", sum.Messages, sum.Duplicates, sum.Conflicts); got != c.want {
			t.Errorf("%v: %s, want %s", c.p.Range(), got, c.want)
		}
	}
	if r := finish(t, im); len(r) != 2 || r[0].Take != 1 || r[0].NextSeq != 5 || r[1].Take != 2 || r[1].NextSeq != 5 {
		t.Errorf("%+v", r)
	}
}

func TestBetween(t *testing.T) {
	im := New(opener(filepath.Join(t.TempDir(), "archive")), time.Now)
	s, err := im.Session("C", name("S"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Between(5, 77); got != 77 {
		t.Errorf("in an empty session: %d, want the time heard", got)
	}
	for _, p := range []moldcast.Piece{piece(10, 1000, "m"), piece(14, 5000, "m"), piece(20, 4000, "m")} {
		if err := s.Add(p, Place{}); err != nil {
			t.Fatal(err)
		}
	}
	for seq, want := range map[moldcast.Seq]moldcast.Stamp{11: 2000, 12: 3000, 13: 4000, 15: 5000, 19: 5000, 21: 4000, 1 << 60: 4000} {
		if got := s.Between(seq, 99); got != want {
			t.Errorf("%d: %d, want %d", seq, got, want)
		}
	}
	finish(t, im)
}

func TestBounds(t *testing.T) {
	opened := 0
	dir := filepath.Join(t.TempDir(), "archive")
	im := New(func() (*store.Archive, error) { opened++; return opener(dir)() }, time.Now)
	if opened != 0 {
		t.Error("opened before there was anything to write")
	}
	s, err := im.Session("C", name("S"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := im.Session("C", name("S")); again != s || err != nil || opened != 1 {
		t.Error(again, err, opened)
	}
	// More lines than a number can tell apart share the last.
	for i := range 300 {
		want := uint8(min(i, moldcast.AnswerLine-1))
		if got := s.Line(fmt.Sprintf("239.0.0.1:%d", 1000+i)); got != want {
			t.Fatalf("line %d is %d", i, got)
		}
	}
	if got := s.Line("239.0.0.1:1007"); got != 7 {
		t.Errorf("line 7 is %d", got)
	}
	im.order = append(im.order, make([]*Session, MaxSessions-1)...)
	if _, err := im.Session("C", name("T")); !errors.Is(err, ErrTooManySessions) {
		t.Error(err)
	}
	im.order = im.order[:1]
	finish(t, im)
	// Lines are found again.
	im = New(opener(dir), time.Now)
	if s, err = im.Session("C", name("S")); err != nil || s.Line("239.0.0.1:1009") != 9 {
		t.Error(err, s.Line("239.0.0.1:1009"))
	}
	finish(t, im)
	// A session that is being written is refused.
	a, err := opener(dir)()
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.Writer("C", name("S"), 0)
	if err != nil {
		t.Fatal(err)
	}
	im = New(opener(dir), time.Now)
	if _, err := im.Session("C", name("S")); !errors.Is(err, store.ErrLocked) {
		t.Error(err)
	}
	finish(t, im)
	if err := errors.Join(w.Close(), a.Close()); err != nil {
		t.Error(err)
	}
}
