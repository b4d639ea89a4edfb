package importer

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// An import of two lines keeps what each brought, once: again it adds nothing,
// and what came with other bytes is marked.
func TestLineLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	bring := func() {
		im := New(opener(dir), time.Now)
		im.LineLog = true
		im.File(true)
		s, err := im.Session("C", name("S"))
		if err != nil {
			t.Fatal(err)
		}
		a, b := s.Line("239.1.1.1:1"), s.Line("239.1.1.2:1")
		add := func(line uint8, first int, at moldcast.Stamp, texts ...string) {
			p := piece(first, at, texts...)
			p.Line = line
			if err := s.Add(p, Place{}); err != nil && !errors.As(err, new(*Conflict)) {
				t.Fatal(err)
			}
		}
		add(a, 1, 100, "one", "two")
		add(b, 1, 140, "one", "two")
		add(b, 3, 150, "three")
		add(a, 4, 200, "four")
		add(a, 3, 210, "other")
		if err := s.Mark(moldcast.Mark{Kind: moldcast.End, Next: 5, Stamp: 300, Line: b}); err != nil {
			t.Fatal(err)
		}
		finish(t, im)
	}
	want := [2][]moldcast.Heard{
		{{Stamp: 100, First: 1, Count: 2}, {Stamp: 200, First: 4, Count: 1}, {Stamp: 210, First: 3, Count: 1, Flags: moldcast.Differs}},
		{{Stamp: 140, First: 1, Count: 2, Line: 1}, {Stamp: 150, First: 3, Count: 1, Line: 1}, {Stamp: 300, First: 5, Count: moldcast.EndCount, Line: 1}},
	}
	for range 2 {
		bring()
		archive, err := store.Open(dir, store.DefaultOptions())
		if err != nil {
			t.Fatal(err)
		}
		v, err := archive.View(store.Ref{Channel: "C", Session: name("S"), Take: 1})
		if err != nil {
			t.Fatal(err)
		}
		log, err := v.Log()
		if err != nil || len(log.Missing()) > 0 {
			t.Fatal(err, log.Missing())
		}
		for line := range want {
			var got []moldcast.Heard
			c := log.Line(line, 0)
			for {
				h, err := c.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, h)
			}
			_ = c.Close()
			if diff := cmp.Diff(want[line], got); diff != "" {
				t.Fatalf("line %d: %s", line, diff)
			}
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
