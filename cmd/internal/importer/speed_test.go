package importer

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// steady adds to a session what two lines bring in order.
type steady struct {
	s    *Session
	a, b moldcast.Piece
}

func newSteady(t testing.TB, lines bool) (*steady, *Importer) {
	t.Helper()
	im := New(func() (*store.Archive, error) {
		o := store.DefaultOptions()
		o.Sync, o.Wait = time.Minute, true
		return store.OpenOrCreate(filepath.Join(t.TempDir(), "archive"), o)
	}, time.Now)
	im.File(true)
	s, err := im.Session("C", name("S"))
	if err != nil {
		t.Fatal(err)
	}
	f := &steady{s: s, a: piece(1, 1_000_000, "a message of the size that feeds have", "and another")}
	f.a.Line, f.b = s.Line("239.1.1.1:1"), f.a
	if lines {
		f.b.Line = s.Line("239.1.1.2:1")
	}
	return f, im
}

// next adds the next packet of each line.
func (f *steady) next(t testing.TB) {
	if err := f.s.Add(f.a, Place{}); err != nil {
		t.Fatal(err)
	}
	if f.a.Line != f.b.Line {
		if err := f.s.Add(f.b, Place{}); err != nil {
			t.Fatal(err)
		}
	}
	f.a.First += 2
	f.b.First += 2
	f.a.Time += 1000
	f.a.Heard += 1000
}

func TestAddDoesNotAllocate(t *testing.T) {
	for _, lines := range []bool{false, true} {
		f, im := newSteady(t, lines)
		f.next(t)
		// The least of some turns: what runs beside it allocates too.
		n := testing.AllocsPerRun(1000, func() { f.next(t) })
		for tries := 0; n > 0 && tries < 10; tries++ {
			n = min(n, testing.AllocsPerRun(1000, func() { f.next(t) }))
		}
		if n != 0 {
			t.Errorf("two lines %v: %v allocations a packet", lines, n)
		}
		finish(t, im)
	}
}

func BenchmarkAdd(b *testing.B) {
	for name, lines := range map[string]bool{"lines=1": false, "lines=2": true} {
		b.Run(name, func(b *testing.B) {
			f, im := newSteady(b, lines)
			b.ReportAllocs()
			for b.Loop() {
				f.next(b)
			}
			if _, err := im.Finish(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
