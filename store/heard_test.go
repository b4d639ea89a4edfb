package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

// heardAs is the datagram that brought p.
func heardAs(p moldcast.Piece) moldcast.Heard {
	return moldcast.Heard{Stamp: p.Heard, First: p.First, Count: uint16(p.Msgs.Len()), Line: p.Line}
}

func heardOn(t testing.TB, l *Log, line int, from moldcast.Stamp) (out []moldcast.Heard) {
	t.Helper()
	c := l.Line(line, from)
	defer c.Close()
	for {
		h, err := c.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h)
	}
}

// twoLines stores n packets as A brings them, every ninth of which only B does,
// later, and both twice now and then; it returns what each brought.
func twoLines(t testing.TB, w *Writer, first moldcast.Seq, n int) (out [2][]moldcast.Heard) {
	turn := uint32(0)
	hear := func(p moldcast.Piece, line uint8, after moldcast.Stamp) {
		h := heardAs(p)
		h.Stamp, h.Line, h.Turn = h.Stamp+after, line, turn
		turn++
		w.Heard(h)
		h.Turn = 0
		out[line] = append(out[line], h)
		if p.Line == line && after == 0 {
			put(t, w, p)
		}
	}
	q := first
	for i := range n {
		p := piece(q, 1+i%4)
		q = p.Range().Next
		if i%9 == 4 {
			p.Line = 1
			hear(p, 1, 0)
			continue
		}
		hear(p, 0, 0)
		hear(p, 1, moldcast.Stamp(500+i%77))
		if i%50 == 7 {
			hear(p, 0, 900)
		}
		if i%40 == 0 {
			m := moldcast.Mark{Kind: moldcast.Heartbeat, Next: q, Stamp: p.Heard + 2000, Line: 1}
			h := moldcast.Heard{Stamp: m.Stamp, First: q, Line: 1, Turn: turn}
			w.Heard(h)
			w.Mark(m)
			h.Turn = 0
			out[1] = append(out[1], h)
		}
	}
	return out
}

func wantLog(t testing.TB, a *Archive, r Ref, want [2][]moldcast.Heard) *Log {
	t.Helper()
	l, err := view(t, a, r).Log()
	if err != nil {
		t.Fatal(err)
	}
	for line := range want {
		if diff := cmp.Diff(want[line], heardOn(t, l, line, 0)); diff != "" {
			t.Fatalf("line %d: %s", line, diff)
		}
	}
	return l
}

// What each line brought is read again, over blocks, segments and captures,
// also what came after the block of its messages was cut, and from any time on.
func TestLineLog(t *testing.T) {
	for _, first := range starts {
		o := testOptions(vfs.NewMem())
		o.Wait = true
		a := create(t, o)
		w := writer(t, a, "S")
		want := twoLines(t, w, first, 1500)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		l := wantLog(t, a, w.Ref(), want)
		if len(l.Missing()) > 0 || l.Lines() != 2 {
			t.Fatalf("missing %+v, %d lines", l.Missing(), l.Lines())
		}
		from := want[0][700].Stamp
		var since []moldcast.Heard
		for _, h := range want[0] {
			if h.Stamp >= from {
				since = append(since, h)
			}
		}
		if diff := cmp.Diff(since, heardOn(t, l, 0, from)); diff != "" {
			t.Fatal(diff)
		}
		// Another capture brings all of it once more, and stores none.
		w = writer(t, a, "S")
		again := twoLines(t, w, first, 1500)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for line := range want {
			want[line] = append(want[line], again[line]...)
		}
		if l = wantLog(t, a, w.Ref(), want); len(l.Missing()) > 0 {
			t.Fatalf("missing %+v", l.Missing())
		}
		verify(t, a)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What has no log, or lost part of it, says so: a recording without, a capture
// that was killed, one without before it, memory that was full, and what was
// pruned.
func TestLineLogMissing(t *testing.T) {
	fs := newMemFS()
	o := testOptions(fs)
	o.Wait, o.Sync = true, time.Millisecond
	a := create(t, o)
	w := writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 101}, 4)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := view(t, a, w.Ref()).Log(); err != ErrNoLog {
		t.Fatal(err)
	}
	w = writer(t, a, "S")
	heard := twoLines(t, w, 101, 400)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // little: it comes to a tail record
		p := piece(w.Held().Head, 1)
		h := heardAs(p)
		heard[0] = append(heard[0], h)
		h.Turn = 1<<20 + uint32(i) // behind those before, also in one block with them
		w.Heard(h)
		put(t, w, p)
	}
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	killed := fs.crash(0, rand.New(rand.NewPCG(1, 2)))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l := wantLog(t, a, w.Ref(), heard)
	if m := l.Missing(); len(m) != 1 || m[0].Range != (moldcast.Range{First: 1, Next: 101}) || m[0].From == 0 || m[0].Why != "stored without a line log" {
		t.Fatalf("%+v", m)
	}

	o.FS = killed
	b := create(t, o)
	if l, err := view(t, b, w.Ref()).Log(); err == nil {
		m := l.Missing()
		if n := len(heardOn(t, l, 0, 0)); n >= len(heard[0]) || len(m) < 2 || m[0].Why != "the log was cut short: its capture did not end in order" {
			t.Fatalf("%d of %d, missing %+v", n, len(heard[0]), m)
		}
		_, head := view(t, b, w.Ref()).Bounds()
		if last := m[len(m)-1]; last.Range.Next != head {
			t.Fatalf("messages from a tail to %d without a log: %+v", head, m)
		}
	} else {
		t.Fatal(err)
	}
}

// What was stored under a log and what was not can be told after a merge, which
// mixes them; it may call without a log what lies in a block with such, never the
// other way.
func TestLineLogMergedWithout(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Wait, o.Sync, o.MergeSaves, o.SegmentSize, o.BlockAge = true, time.Hour, anyMerge, 1<<20, time.Hour
	a := create(t, o)
	w := writer(t, a, "S")
	var heard [2][]moldcast.Heard
	for k := range moldcast.Seq(10) { // every tenth, again and again
		for q := k + 1; q < 4000; q += 10 {
			p := piece(q, 1)
			if k > 4 {
				w.Heard(heardAs(p))
				heard[0] = append(heard[0], heardAs(p))
			}
			put(t, w, p)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if merged, _ := merges(t, a, w.Ref()); len(merged) != 1 {
		t.Fatalf("%v merged", merged)
	}
	l := wantLog(t, a, w.Ref(), heard)
	m := l.Missing()
	if len(m) != 1 || m[0].Range.First != 1 || m[0].Range.Next < 3000 {
		t.Fatalf("%+v", m)
	}
	verify(t, a)
}

// A capture that goes on in the segment that a killed one left has a log, what
// came back from tail records has none, and a log that began behind messages
// without one does not speak for them.
func TestLineLogAfterACrash(t *testing.T) {
	for _, saves := range []float64{-1, anyMerge} {
		fs := newMemFS()
		o := testOptions(fs)
		o.Wait, o.Sync, o.MergeSaves, o.BlockSize, o.SegmentSize, o.BlockAge = true, time.Millisecond, saves, 64<<10, 1<<20, time.Hour
		a := create(t, o)
		w := writer(t, a, "S")
		twoLines(t, w, 1, 100)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, durable, _ := w.Watermarks()
		o.FS = fs.crash(0, rand.New(rand.NewPCG(1, 2)))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b := create(t, o)
		w = writer(t, b, "S")
		fillRange(t, w, moldcast.Range{First: durable + 10, Next: durable + 20}, 3) // before anything is heard
		heard := twoLines(t, w, durable+20, 400)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		l := wantLog(t, b, w.Ref(), heard)
		var bare []moldcast.Range
		for _, m := range l.Missing() {
			bare = append(bare, m.Range)
		}
		want := []moldcast.Range{{First: 1, Next: durable}, {First: durable + 10, Next: durable + 20}}
		if diff := cmp.Diff(want, bare); diff != "" {
			t.Fatalf("merged from %v: %s", saves, diff)
		}
		verify(t, b)
	}
}

// The bound of memory is for messages first: what of the log has no room is
// counted, and said.
func TestLineLogOverflow(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.QueueBytes, o.Sync, o.BlockAge, o.BlockSize = int64(moldcast.MaxDatagram), time.Hour, time.Hour, 1<<20
	a := create(t, o)
	w := writer(t, a, "S")
	n := uint64(0)
	var q moldcast.Seq = 1
	for ; w.Room(); q++ {
		p := piece(q, 1)
		w.Heard(heardAs(p))
		put(t, w, p)
		n++
	}
	for range 300 {
		w.Heard(heardAs(piece(1, 1)))
		n++
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := view(t, a, w.Ref()).Log()
	if err != nil {
		t.Fatal(err)
	}
	m := l.Missing()
	got := uint64(len(heardOn(t, l, 0, 0)))
	if len(m) != 1 || m[0].Datagrams == 0 || m[0].Why != "memory was full" || got+m[0].Datagrams != n {
		t.Fatalf("%d of %d, missing %+v", got, n, m)
	}
}

// A part that cannot be read, and one that was pruned, are missing, not made up.
func TestLineLogOfPruned(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Wait = true
	a := create(t, o)
	w := writer(t, a, "S")
	heard := 0
	for q := moldcast.Seq(1); w.Segments() < 4 && q < 1e6; q = w.Held().Head {
		h := twoLines(t, w, q, 500)
		heard += len(h[0]) + len(h[1])
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	disk := int64(view(t, a, w.Ref()).Info().BytesDisk)
	if _, err := a.Prune(t.Context(), Retention{Keep: -1, MaxBytes: disk * 2 / 3}, false, "test"); err != nil {
		t.Fatal(err)
	}
	l, err := view(t, a, w.Ref()).Log()
	if err != nil {
		t.Fatal(err)
	}
	m := l.Missing()
	got := uint64(len(heardOn(t, l, 0, 0)) + len(heardOn(t, l, 1, 0)))
	if len(m) != 1 || m[0].Why != "the beginning of the log is not held" || got+m[0].Datagrams != uint64(heard) {
		t.Fatalf("%d left, missing %+v", got, m)
	}
}

// A datagram costs no allocation and, but for one in 256, no lock.
func TestHeardDoesNotAllocate(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Sync, o.BlockAge, o.BlockSize = time.Hour, time.Hour, 1<<20
	w := writer(t, create(t, o), "S")
	defer w.Close()
	h := heardAs(piece(1, 1))
	for range 20_000 { // the builder grows
		w.Heard(h)
	}
	// The least of some turns: what runs beside it allocates too.
	n := 2.0
	for range 5 {
		n = min(n, testing.AllocsPerRun(10, func() {
			for range 200 {
				w.Heard(h)
			}
		}))
	}
	if n > 1 {
		t.Fatalf("%v allocations", n)
	}
}

// Marks are read in the order of hearing, from memory and from blocks.
func TestMarkCursor(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Wait = true
	a := create(t, o)
	w := writer(t, a, "S")
	var want []moldcast.Mark
	for q := moldcast.Seq(1); q < 2000; q += 4 {
		put(t, w, piece(q, 4))
		if q%16 == 1 {
			m := moldcast.Mark{Kind: moldcast.Heartbeat, Next: q + 4, Stamp: piece(q, 1).Time + 500}
			want = append(want, m)
			w.Mark(m)
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(from moldcast.Seq) (out []moldcast.Mark) {
		c, err := view(t, a, w.Ref()).Marks(from)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for {
			m, err := c.Next()
			if errors.Is(err, io.EOF) {
				return out
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.Next >= from {
				out = append(out, m)
			}
		}
	}
	if diff := cmp.Diff(want, read(0)); diff != "" {
		t.Fatal(diff)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i, from := range []moldcast.Seq{0, 1, want[40].Next} {
		if diff := cmp.Diff(want[[]int{0, 0, 40}[i]:], read(from)); diff != "" {
			t.Fatal(fmt.Sprint(from), diff)
		}
	}
}
