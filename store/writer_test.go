package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// A session that only ever heard heartbeats keeps its sequence.
func TestHeartbeatsOnly(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	if h := w.Held(); h.First != 0 || h.Next != 0 || h.Head != 0 {
		t.Fatalf("a new session holds %+v", h)
	}
	beat := moldcast.Mark{Kind: moldcast.Heartbeat, Next: 484311999, Stamp: 10, Line: 1}
	w.Mark(beat)
	test := func(w *Writer, ended bool) {
		t.Helper()
		i := w.View().Info()
		if i.FirstSeq != 484311999 || i.NextSeq != i.FirstSeq || i.HeadSeq != i.FirstSeq || i.DurableSeq != i.FirstSeq ||
			i.FirstTime != nil || i.LastTime != nil || i.Messages != 0 || i.Holes != 0 {
			t.Fatalf("%+v", i)
		}
		h := w.Held()
		if h.First != 484311999 || h.Next != h.First || h.Head != h.First || len(h.Holes) != 0 || h.Ended != ended {
			t.Fatalf("%+v", h)
		}
	}
	test(w, false)
	for range 3 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		list, err := a.Sessions()
		if err != nil || list[0].FirstSeq != 484311999 || list[0].NextSeq != 484311999 || list[0].State != Opened || list[0].Segments != 1 {
			t.Fatalf("%+v %v", list, err)
		}
		w = writer(t, a, "S")
		test(w, false)
		w.Mark(beat) // the same again, as from a file imported twice
	}
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 484311999, Stamp: 20})
	test(w, true)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	list, err := a.Sessions()
	if err != nil || list[0].State != Ended || list[0].NextSeq != 484311999 || list[0].Segments != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	verify(t, a)
}

// marks lists every mark that a recording holds.
func marks(t testing.TB, a *Archive, r Ref) (out []moldcast.Mark) {
	t.Helper()
	s, err := a.session(r)
	if err != nil {
		t.Fatal(err)
	}
	c := &committer{w: &Writer{s: s, a: a}}
	c.recorded(moldcast.Mark{})
	for q := moldcast.Seq(0); q < 3000; q++ {
		c.loadMarks(q)
	}
	for k := range c.w.markFilter.seen {
		out = append(out, k)
	}
	return out
}

func TestMarksAreKeptOnce(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	for round := range 2 {
		w := writer(t, a, "S")
		for q := moldcast.Seq(1); q < 2000; q += 10 {
			w.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: q, Stamp: moldcast.Stamp(q), Line: uint8(q % 2)})
			if n := put(t, w, piece(q, 10)); (n == 0) != (round == 1) {
				t.Fatalf("round %d: %d stored", round, n)
			}
		}
		w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 2001, Stamp: 5000})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := marks(t, a, Ref{"default", sess(t, "S"), 1}); len(got) != 201 {
		t.Errorf("%d marks, want 201", len(got))
	}
	d, err := a.Show(Ref{"default", sess(t, "S"), 1})
	if err != nil || !d.Ended || *d.EndSeq != 2001 || d.State != Ended {
		t.Fatalf("%+v %v", d, err)
	}
	n := d.Segments
	w := writer(t, a, "S")
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 2001, Stamp: 5000})
	w.Close()
	if d, _ := a.Show(w.Ref()); d.Segments != n {
		t.Errorf("a segment for a mark that was there")
	}
	// Data beyond the end takes it back.
	w = writer(t, a, "S")
	put(t, w, piece(2001, 5))
	if h := w.Held(); h.Ended {
		t.Errorf("%+v", h)
	}
	w.Close()
}

// Holes: the complement of coverage, with reasons where they were recorded;
// a fill ends them; all of it survives restarts.
func TestHoles(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	type hole struct {
		First, Last moldcast.Seq
		Reason      moldcast.HoleReason
		Time        moldcast.Stamp
	}
	list := func(hs []moldcast.Hole) (out []hole) {
		for _, h := range hs {
			out = append(out, hole{h.Range.First, h.Range.Next - 1, h.Reason, h.Time})
		}
		return out
	}
	test := func(want ...hole) {
		t.Helper()
		for range 2 {
			if d := cmp.Diff(want, list(w.View().Holes())); d != "" {
				t.Fatal(d)
			}
			if h := w.Held(); cmp.Diff(want, list(h.Holes)) != "" {
				t.Fatalf("%+v", h.Holes)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, list(view(t, a, w.Ref()).Holes())); d != "" {
				t.Fatal(d)
			}
			w = writer(t, a, "S")
		}
	}
	put(t, w, piece(100, 50))
	put(t, w, piece(200, 50))
	test(hole{150, 199, moldcast.NotCaptured, 0})
	w.Hole(moldcast.Hole{Range: moldcast.Range{First: 160, Next: 180}, Reason: moldcast.Unrecoverable, Time: 77})
	w.Hole(moldcast.Hole{Range: moldcast.Range{First: 90, Next: 120}, Reason: moldcast.Unrecoverable, Time: 78}) // is held
	test(hole{150, 159, moldcast.NotCaptured, 0}, hole{160, 179, moldcast.Unrecoverable, 77}, hole{180, 199, moldcast.NotCaptured, 0})
	p := piece(155, 10)
	p.Flags = moldcast.Repaired
	put(t, w, p)
	w.Hole(moldcast.Hole{Range: moldcast.Range{First: 190, Next: 210}, Reason: moldcast.Damaged, Time: 79})
	test(hole{150, 154, moldcast.NotCaptured, 0}, hole{165, 179, moldcast.Unrecoverable, 77}, hole{180, 189, moldcast.NotCaptured, 0}, hole{190, 199, moldcast.Damaged, 79})
	w.Start(95)
	w.Start(97)
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 260, Stamp: 1})
	all := []hole{{95, 99, moldcast.Unrecoverable, 78}, {150, 154, moldcast.NotCaptured, 0}, {165, 179, moldcast.Unrecoverable, 77}, {180, 189, moldcast.NotCaptured, 0}, {190, 199, moldcast.Damaged, 79}, {250, 259, moldcast.NotCaptured, 0}}
	test(all...)
	if h := w.Held(); h.First != 95 || h.Next != 95 || h.Head != 260 || !h.Ended || h.End != 260 {
		t.Fatalf("%+v", h)
	}
	if next, durable, head := w.Watermarks(); next != 95 || durable != 95 || head != 250 {
		t.Fatalf("%d %d %d", next, durable, head)
	}
	for _, h := range all {
		put(t, w, piece(h.First, int(h.Last-h.First)+1))
	}
	test()
	if i := w.View().Info(); i.FirstSeq != 95 || i.NextSeq != 260 || i.Holes != 0 || i.Messages != 165 {
		t.Fatalf("%+v", i)
	}
	w.Close()
	verify(t, a)
}

// What a fill's time is made from: the messages on both sides, repaired ones
// too, so that it lies between them.
func TestHeldNeighbours(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	at := func(first moldcast.Seq, n int, s moldcast.Stamp, f moldcast.PieceFlags) {
		p := piece(first, n)
		p.Time, p.Heard, p.Flags = s, s, f
		put(t, w, p)
	}
	at(10, 5, 1000, 0)
	at(15, 5, 2000, 0)
	at(20, 5, 2500, moldcast.Repaired)
	// 25..29 missing
	at(30, 5, 4000, moldcast.Repaired)
	at(35, 5, 5000, 0)
	// 40..49 missing
	at(50, 5, 6000, moldcast.Repaired)
	for range 3 {
		h := w.Held()
		if len(h.Holes) != 2 {
			t.Fatalf("%+v", h)
		}
		if x := h.Holes[0]; x.Before != 2500 || x.After != 4000 {
			t.Errorf("%+v", x)
		}
		if x := h.Holes[1]; x.Before != 5000 || x.After != 6000 {
			t.Errorf("%+v", x)
		}
		if h.HeadTime != 6000 {
			t.Errorf("the highest message is of %d, want 6000", h.HeadTime)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w = writer(t, a, "S")
	}
	at(55, 5, 7000, 0)
	if h := w.Held(); h.HeadTime != 7000 {
		t.Errorf("the highest message is of %d, want 7000", h.HeadTime)
	}
	w.Close()
}

func TestCompare(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 3000}, 7)
	fillRange(t, w, moldcast.Range{First: 3100, Next: 3200}, 7)
	for range 2 {
		for _, r := range []moldcast.Range{{First: 1, Next: 3200}, {First: 2990, Next: 3300}, {First: 5000, Next: 5010}} {
			if q, differs, err := w.Compare(r.First, piece(r.First, int(r.Len())).Msgs); differs || err != nil {
				t.Fatalf("%v: differs at %d, %v", r, q, err)
			}
		}
		p := piece(2900, 250)
		b := append([]byte(nil), p.Msgs.Framed()...)
		m := moldcast.MessagesOf(b, 250)
		at, _ := m.Split(210)
		i := len(at.Framed()) + 4
		b[i] ^= 1 // of message 3110
		if q, differs, err := w.Compare(2900, m); !differs || q != 3110 || err != nil {
			t.Fatalf("differs %v at %d, %v", differs, q, err)
		}
		b[i] ^= 1
		at, _ = m.Split(140)
		b[len(at.Framed())+4] ^= 1 // of message 3040, which is not held
		if _, differs, err := w.Compare(2900, m); differs || err != nil {
			t.Fatal(differs, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w = writer(t, a, "S")
	}
	w.Close()
}

// Blocks are cut by age, segments by age; a flush cuts nothing.
func TestAges(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.BlockAge = 20 * time.Millisecond
	a := create(t, o)
	w := writer(t, a, "S")
	put(t, w, piece(1, 3))
	blocks := func() (n int) {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		for _, g := range w.s.segs {
			if x := g.idx.Load(); x != nil {
				n += len(x.blocks)
			} else if g.seal != nil {
				n += g.seal.Blocks
			}
		}
		return n
	}
	until(t, "the block is cut", func() bool { return blocks() == 1 })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	o = testOptions(vfs.NewMem())
	o.SegmentTime = 30 * time.Millisecond
	o.BlockAge = 10 * time.Millisecond
	a = create(t, o)
	w = writer(t, a, "S")
	put(t, w, piece(1, 3))
	until(t, "the segment is sealed", func() bool {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		return w.s.segs != nil && w.s.segs[0].sealed
	})
	put(t, w, piece(4, 3))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, a); rep.Segments != 2 {
		t.Fatalf("%+v", rep)
	}

	a = create(t, testOptions(vfs.NewMem()))
	w = writer(t, a, "S")
	for q := moldcast.Seq(1); q < 100; q += 3 {
		put(t, w, piece(q, 3))
		if err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, d, _ := w.Watermarks(); d != q+3 {
			t.Fatalf("durable %d after a flush at %d", d, q+3)
		}
	}
	if n := blocks(); n != 0 {
		t.Errorf("%d blocks", n)
	}
	w.Close()
}

func TestAfterClose(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	v := w.View()
	fillRange(t, w, moldcast.Range{First: 1, Next: 500}, 9)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(piece(500, 3)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := w.Close(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 500})
	w.Hole(moldcast.Hole{Range: moldcast.Range{First: 1, Next: 3}})
	w.Start(1)
	w.Lines([]string{"x"})
	check(t, v, moldcast.Range{First: 1, Next: 500}) // a view outlives its writer
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.View(w.Ref()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := v.Cursor(1).Next(); !errors.Is(err, ErrClosed) {
		t.Errorf("reading a closed archive: %v", err)
	}
	if _, err := w.Append(moldcast.Piece{}); err == nil {
		t.Error("an empty piece")
	}
}

// A segment that is written for long stays within its bounds of memory.
func TestWaitForRoom(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.QueueBytes = 80 << 10
	o.Wait = true
	a := create(t, o)
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 30000}
	for q := r.First; q < r.Next; q += 10 {
		put(t, w, piece(q, min(10, int(r.Next-q))))
		w.s.mu.Lock()
		if w.pending > o.QueueBytes {
			t.Errorf("%d bytes wait", w.pending)
		}
		w.s.mu.Unlock()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), r)

	// One block is as large as all that may wait.
	o = testOptions(vfs.NewMem())
	o.BlockSize = 16 << 20
	o.QueueBytes = 70 << 10
	o.Wait = true
	a = create(t, o)
	w = writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 8000}, 10)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), moldcast.Range{First: 1, Next: 8000})
}

// The same messages in any order and pieces, with any sizes and restarts,
// read the same.
func TestMetamorphic(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SampledFrom(starts).Draw(rt, "first")
		const n = 1200
		o := testOptions(vfs.NewMem())
		o.BlockSize = rapid.SampledFrom([]int{1 << 10, 3 << 10, 16 << 10}).Draw(rt, "block")
		o.SegmentSize = rapid.SampledFrom([]int64{16 << 10, 1 << 20}).Draw(rt, "segment")
		o.Sync = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Hour}).Draw(rt, "sync")
		o.TailBytes = rapid.SampledFrom([]int64{1, 4 << 10, 1 << 20}).Draw(rt, "tail")
		o.Workers = rapid.IntRange(1, 3).Draw(rt, "workers")
		holes := rapid.Bool().Draw(rt, "holes")
		a := create(t, o)
		w := writer(t, a, "S")
		// Chunks in a random order of limited disorder, cut into pieces.
		var chunks []moldcast.Range
		for q := moldcast.Seq(0); q < n; {
			k := moldcast.Seq(rapid.IntRange(1, 60).Draw(rt, "chunk"))
			chunks = append(chunks, moldcast.Range{First: first + q, Next: first + min(q+k, n)})
			q += k
		}
		for i := range chunks {
			j := min(len(chunks)-1, i+rapid.IntRange(0, 4).Draw(rt, "swap"))
			chunks[i], chunks[j] = chunks[j], chunks[i]
		}
		want := moldcast.Range{First: first, Next: first + n}
		var missing moldcast.Range
		if holes {
			missing = moldcast.Range{First: first + 300, Next: first + 400}
		}
		for i, c := range chunks {
			size := rapid.IntRange(1, 20).Draw(rt, "piece")
			// Some of what is held comes again with it.
			c.First -= min(c.First-first, moldcast.Seq(rapid.IntRange(0, 5).Draw(rt, "overlap")))
			for q := c.First; q < c.Next; q += moldcast.Seq(size) {
				p := piece(q, min(size, int(c.Next-q)))
				if x := p.Range().Intersect(missing); !x.Empty() {
					if p.First >= missing.First {
						continue
					}
					p = piece(q, int(missing.First-q))
				}
				if _, err := w.Append(p); err != nil {
					rt.Fatal(err)
				}
			}
			if i%16 == 15 && rapid.IntRange(0, 3).Draw(rt, "restart") == 0 {
				if err := w.Close(); err != nil {
					rt.Fatal(err)
				}
				w = writer(t, a, "S")
			}
		}
		var got gapSet
		read := func(v *View) {
			got = gapSet{}
			c := v.Cursor(0)
			at := first
			for {
				p, err := c.Next()
				var he *moldcast.HoleError
				if errors.As(err, &he) {
					at = he.Hole.Range.Next
					continue
				}
				if err == io.EOF {
					break
				}
				if err != nil {
					rt.Fatal(err)
				}
				if p.First != at {
					rt.Fatalf("piece at %d, want %d", p.First, at)
				}
				for m := p.Msgs; m.Len() > 0; at++ {
					if b := m.Next(); string(b) != string(message(at)) {
						rt.Fatalf("message %d is %q", at, b)
					}
				}
				got = got.add(p.Range())
			}
			held := gapSet{want}
			if holes {
				// What pieces beyond the hole were cut short by is missing too.
				if len(got) < 2 || got[0].First != want.First || got[0].Next != missing.First || got[len(got)-1].Next != want.Next {
					rt.Fatalf("held %v", got)
				}
				return
			}
			if d := cmp.Diff(held, got); d != "" {
				rt.Fatal(d)
			}
		}
		read(w.View())
		live := fmt.Sprint(got)
		if err := w.Close(); err != nil {
			rt.Fatal(err)
		}
		read(view(t, a, w.Ref()))
		if s := fmt.Sprint(got); s != live {
			rt.Fatalf("live %s, sealed %s", live, s)
		}
		rep, err := a.Verify(context.Background(), nil, nil)
		if err != nil || len(rep.Faults) > 0 {
			rt.Fatal(rep.Faults, err)
		}
		if !holes {
			h, err := Root(context.Background(), view(t, a, w.Ref()), want)
			if err != nil || len(h) != 1 || h[0].Range != want {
				rt.Fatal(h, err)
			}
			if r, ok := roots[first]; ok && r != h[0].Hash {
				rt.Fatal("the content hash depends on how it was stored")
			}
			roots[first] = h[0].Hash
		}
		a.Close()
	})
}

// roots are the content hashes that TestMetamorphic met.
var roots = map[moldcast.Seq][32]byte{}

// gapSet is a list of ranges, merged as they come in order.
type gapSet []moldcast.Range

func (s gapSet) add(r moldcast.Range) gapSet {
	if n := len(s); n > 0 && s[n-1].Next == r.First {
		s[n-1].Next = r.Next
		return s
	}
	return append(s, r)
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		return // the race detector allocates by itself
	}
	o := testOptions(vfs.NewMem())
	o.BlockSize = 1 << 20
	o.SegmentSize = 1 << 30
	o.QueueBytes = 1 << 30
	o.Sync = time.Hour
	a := create(t, o)
	w := writer(t, a, "S")
	q := moldcast.Seq(1)
	p := piece(1, 4)
	// The least of some turns: what runs beside it allocates too.
	allocs := func(runs int, fn func()) float64 {
		n := testing.AllocsPerRun(runs, fn)
		for tries := 0; n > 0 && tries < 100; tries++ {
			n = min(n, testing.AllocsPerRun(runs, fn))
		}
		return n
	}
	in := func() {
		p.First = q
		if n, err := w.Append(p); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		q += 4
	}
	// Twice around, so that builders are used again.
	for range 60000 {
		in()
	}
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	// The open block grows to what it had before: measure within that.
	if n := allocs(100, in); n > 0 {
		t.Errorf("Append in order: %v allocations", n)
	}
	buf := make([]byte, 0, 2048)
	v := w.View()
	hot := func(v *View, q moldcast.Seq) {
		t.Helper()
		if _, n, err := v.Append(buf, q, 20, 1400, true); n == 0 || err != nil {
			t.Fatal(n, err)
		}
		if n := allocs(200, func() {
			if _, n, err := v.Append(buf, q, 20, 1400, false); n == 0 || err != nil {
				t.Fatal(n, err)
			}
		}); n > 0 {
			t.Errorf("answer at %d: %v allocations", q, n)
		}
	}
	hot(v, q-100)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	v = view(t, a, w.Ref())
	hot(v, 1)
	hot(v, q/2)
	if n := allocs(100, func() { w.Watermarks() }); n > 0 {
		t.Errorf("watermarks: %v allocations", n)
	}
}
