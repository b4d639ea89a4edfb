package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

// closed writes ranges to a new session and closes it.
func closed(t testing.TB, a *Archive, name string, most int, rs ...moldcast.Range) Ref {
	t.Helper()
	w := writer(t, a, name)
	for _, r := range rs {
		fillRange(t, w, r, most)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Ref()
}

func TestAppendAnswers(t *testing.T) {
	for _, first := range starts {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			a := create(t, testOptions(vfs.NewMem()))
			r := moldcast.Range{First: first, Next: first + 2000}
			hole := moldcast.Range{First: r.Next, Next: r.Next + 10}
			r2 := moldcast.Range{First: hole.Next, Next: hole.Next + 50}
			w := writer(t, a, "S")
			fillRange(t, w, r, 5)
			fillRange(t, w, r2, 5)
			for _, state := range []string{"live", "sealed", "again"} {
				v := w.View()
				switch state {
				case "sealed":
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					v = view(t, a, w.Ref())
					if _, _, err := v.Append(nil, first+3, 5, 1472, false); !errors.Is(err, ErrCold) {
						t.Fatalf("cold: %v", err)
					}
				}
				if state == "again" {
					v = view(t, a, w.Ref())
					if _, n, err := v.Append(nil, first+3, 5, 1472, false); n != 5 || err != nil {
						t.Fatalf("a block read before is cold: %d %v", n, err)
					}
				}
				// Counts and sizes cut the answer; blocks and pieces do not.
				for _, q := range []moldcast.Seq{first, first + 1, first + 499, first + 1990, r2.First} {
					for _, count := range []int{1, 9, 5000} {
						for _, size := range []int{2, 60, 1452, 1 << 20} {
							out, n, err := v.Append([]byte("x"), q, count, size, true)
							if err != nil {
								t.Fatal(err)
							}
							var want []byte
							k := 0
							end := r.Next
							if q >= r2.First {
								end = r2.Next
							}
							for ; k < count && q+moldcast.Seq(k) < end; k++ {
								next := moldcast.AppendMessage(want, message(q+moldcast.Seq(k)))
								if len(next) > size && k > 0 {
									break
								}
								want = next
								if len(want) > size {
									k++
									break // alone
								}
							}
							if n != k || string(out) != "x"+string(want) {
								t.Fatalf("%s: %d count %d size %d: got %d messages, want %d", state, q, count, size, n, k)
							}
						}
					}
				}
				var he *moldcast.HoleError
				if _, n, err := v.Append(nil, hole.First, 1, 100, true); n != 0 || !errors.As(err, &he) || he.Hole.Range != hole {
					t.Fatalf("%s: at the hole: %d %v", state, n, err)
				}
				if _, n, err := v.Append(nil, hole.First+4, 1, 100, true); n != 0 || !errors.As(err, &he) || he.Hole.Range.Next != hole.Next {
					t.Fatalf("%s: in the hole: %d %v", state, n, err)
				}
				if _, n, err := v.Append(nil, r2.Next, 1, 100, true); n != 0 || err != ErrBeyond {
					t.Fatalf("%s: at the head: %d %v", state, n, err)
				}
				if _, n, err := v.Append(nil, ^moldcast.Seq(0), 1, 100, true); n != 0 || err != ErrBeyond {
					t.Fatalf("%s: at the end of sequences: %d %v", state, n, err)
				}
				if _, n, err := v.Append(nil, first-1, 1, 100, true); n != 0 || err != ErrBelow {
					t.Fatalf("%s: before the first: %d %v", state, n, err)
				}
				if f, h := v.Bounds(); f != first || h != r2.Next {
					t.Fatalf("%s: bounds %d %d", state, f, h)
				}
			}
		})
	}
}

// The boundaries of packets, both times, lines and flags come back as stored.
func TestPiecesComeBack(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	type facts struct {
		First       moldcast.Seq
		N           int
		Time, Heard moldcast.Stamp
		Line        uint8
		Flags       moldcast.PieceFlags
	}
	var want []facts
	q := moldcast.Seq(484311999)
	for i := range 3000 {
		p := piece(q, 1+i%9)
		p.Line = uint8(i % 3)
		p.Heard = p.Time
		if i%17 == 0 {
			p.Flags, p.Line, p.Heard = moldcast.Repaired, moldcast.AnswerLine, p.Time+moldcast.Stamp(time.Second)
		}
		want = append(want, facts{p.First, p.Msgs.Len(), p.Time, p.Heard, p.Line, p.Flags})
		put(t, w, p)
		q += moldcast.Seq(1 + i%9)
	}
	read := func(v *View, from moldcast.Seq) (got []facts) {
		c := v.Cursor(from)
		for {
			p, err := c.Next()
			if err == io.EOF {
				return got
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, facts{p.First, p.Msgs.Len(), p.Time, p.Heard, p.Line, p.Flags})
		}
	}
	if d := cmp.Diff(want, read(w.View(), 0)); d != "" {
		t.Fatal(d)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	v := view(t, a, w.Ref())
	if d := cmp.Diff(want, read(v, 0)); d != "" {
		t.Fatal(d)
	}
	// In the middle of a piece: it is cut.
	cut := want[1000:]
	cut[0].First += 1
	cut[0].N -= 1
	if d := cmp.Diff(cut, read(v, cut[0].First)); d != "" {
		t.Fatal(d)
	}
}

// A cursor at the head goes on when more comes.
func TestCursorFollows(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	defer w.Close()
	c := w.View().Cursor(1)
	for q := moldcast.Seq(1); q < 2000; q += 3 {
		if _, err := c.Next(); err != io.EOF {
			t.Fatalf("at %d: %v", q, err)
		}
		put(t, w, piece(q, 3))
		if p, err := c.Next(); err != nil || p.First != q || p.Msgs.Len() != 3 {
			t.Fatalf("at %d: %v %v", q, p.Range(), err)
		}
	}
}

// Where every other message was filled late, the runs of the first blocks and
// of those with the fills alternate: each block is decoded about once all the same.
func TestCursorOverFills(t *testing.T) {
	const n = 4000
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	for from := moldcast.Seq(1); from <= 2; from++ {
		for q := from; q <= n; q += 2 {
			put(t, w, piece(q, 1))
		}
		if err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	v := view(t, a, w.Ref())
	check(t, v, moldcast.Range{First: 1, Next: n + 1})
	c := v.Cursor(1)
	for {
		if _, err := c.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	d, err := a.Show(w.Ref())
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, g := range d.SegmentList {
		blocks += g.Blocks
	}
	if blocks < 10 || c.read > blocks+2 { // one block reaches over both rounds
		t.Errorf("decoded %d times to read %d blocks", c.read, blocks)
	}
}

func TestSeqAt(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	const n = 3000
	base := moldcast.Stamp(1700000000_000000000)
	at := func(i int) moldcast.Stamp {
		s := base + moldcast.Stamp(i)*1000
		if i > 2000 && i < 2100 {
			s -= 500 * 1000 // the wall clock was set back for a while
		}
		return s
	}
	stored := func(i int) bool { return i < 500 || i >= 520 }
	for i := range n {
		if !stored(i) {
			continue
		}
		p := piece(moldcast.Seq(100+i*2), 2)
		p.Time, p.Heard = at(i), at(i)
		put(t, w, p)
	}
	test := func(v *View) {
		t.Helper()
		first, head := v.Bounds()
		for _, c := range []struct {
			t    moldcast.Stamp
			want moldcast.Seq
		}{
			{0, first}, {base - 1, first}, {base, first}, {base + 1, first + 2},
			{at(700), 100 + 1400}, {at(700) - 1, 100 + 1400}, {at(700) + 1, 100 + 1402},
			{at(510), 100 + 520*2}, // in a hole
			{at(499) + 1, 100 + 520*2},
			{at(1990), 100 + 1990*2}, {base + 2050*1000, 100 + 2100*2}, // the step back
			{at(n - 1), head - 2}, {at(n-1) + 1, head}, {1 << 62, head},
		} {
			if got := v.SeqAt(c.t); got != c.want {
				t.Errorf("SeqAt(%d) = %d, want %d", c.t-base, got, c.want)
			}
		}
		for i := 0; i < n; i += 37 {
			want := head
			for k := range n {
				if stored(k) && at(k) >= at(i) {
					want = moldcast.Seq(100 + 2*k)
					break
				}
			}
			if got := v.SeqAt(at(i)); got != want {
				t.Errorf("SeqAt of %d = %d, want %d", i, got, want)
			}
		}
	}
	test(w.View())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	test(view(t, a, w.Ref()))
}

// One process writes, another reads what is sealed, and sees within a second
// what is sealed later.
func TestReadBesideWriter(t *testing.T) {
	fs := vfs.NewMem()
	a := create(t, testOptions(fs))
	w := writer(t, a, "S")
	o := testOptions(fs)
	b := create(t, o)
	defer b.Close()
	if _, err := b.Writer("default", sess(t, "S"), 0); !errors.Is(err, ErrLocked) {
		t.Fatalf("second writer: %v", err)
	}
	v := view(t, b, w.Ref())
	check(t, v)
	if i := v.Info(); i.State != Live || i.Messages != 0 {
		t.Fatalf("%+v", i)
	}
	r := moldcast.Range{First: 5, Next: 5}
	sealed := func() bool { // at least one segment
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		return len(w.s.segs) > 1 && w.s.segs[0].sealed
	}
	until(t, "a segment is sealed", func() bool {
		for range 20 { // and no more than is written meanwhile
			put(t, w, piece(r.Next, 9))
			r.Next += 9
		}
		return sealed()
	})
	var head moldcast.Seq
	until(t, "the reader sees the sealed segment", func() bool {
		_, head = v.Bounds()
		return head > 5
	})
	check(t, v, moldcast.Range{First: 5, Next: head})
	if i := v.Info(); i.State != Live {
		t.Fatalf("%+v", i)
	}
	list, err := b.Sessions()
	if err != nil || len(list) != 1 || list[0].State != Live || list[0].NextSeq < head { // more may have been sealed since
		t.Fatalf("%+v %v", list, err)
	}
	if rep := verify(t, b); rep.Segments == 0 || len(rep.Skipped) == 0 {
		t.Fatalf("%+v", rep)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the reader sees all", func() bool {
		_, head = v.Bounds()
		return head == r.Next
	})
	check(t, v, r)
	if i := v.Info(); i.State != Opened || i.NextSeq != r.Next {
		t.Fatalf("%+v", i)
	}
}

// anyOpen is a sealed segment that is open.
func anyOpen(t *testing.T, a *Archive) *handle {
	t.Helper()
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	for _, h := range a.table.open {
		return h
	}
	t.Fatal("no segment is open")
	return nil
}

// Many more segments than may be open at a time.
func TestManySegments(t *testing.T) {
	o := testOptions(vfs.NewMem())
	a := create(t, o)
	r := moldcast.Range{First: 1, Next: 1}
	for i := range maxOpenSegments + 10 {
		w := writer(t, a, "S")
		n := moldcast.Seq(20 + i%7)
		fillRange(t, w, moldcast.Range{First: r.Next, Next: r.Next + n}, 3)
		r.Next += n
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	v := view(t, a, Ref{"default", sess(t, "S"), 1})
	check(t, v, r)
	a.table.mu.Lock()
	open := a.table.lru.Len()
	a.table.mu.Unlock()
	if open > maxOpenSegments {
		t.Fatalf("%d segments are open", open)
	}
	// They share one bound of open files, so not one has files of its own.
	if m := anyOpen(t, a).db.Metrics().FileCache; m.TableCount < int64(open)/2 || m.TableCount > maxOpenFiles {
		t.Fatalf("%d tables are open in %d segments", m.TableCount, open)
	}
	if i := v.Info(); i.Segments != maxOpenSegments+10 {
		t.Fatalf("%+v", i)
	}
	if rep := verify(t, a); rep.Segments != maxOpenSegments+10 {
		t.Fatalf("%+v", rep)
	}
	check(t, v, r)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// Readers of every kind beside a writer, over rolls and fills.
func TestReadersBesideAppend(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.TailBytes = 8 << 10
	o.CacheBytes = 16 << 10
	a := create(t, o)
	w := writer(t, a, "S")
	v := w.View()
	const n = 6000
	var wg sync.WaitGroup
	done := make(chan struct{})
	for k := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c := v.Cursor(1)
			buf := make([]byte, 0, 4096)
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				p, err := c.Next()
				var hole *moldcast.HoleError
				if err == io.EOF {
					c = v.Cursor(moldcast.Seq(1 + i%n))
					continue
				}
				if errors.As(err, &hole) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				at := p.First
				for m := p.Msgs; m.Len() > 0; at++ {
					if got := m.Next(); string(got) != string(message(at)) {
						t.Errorf("message %d is %q", at, got)
						return
					}
				}
				out, got, err := v.Append(buf, p.First, 7, 1400, k != 0)
				if err != nil && err != ErrCold {
					t.Error(err)
					return
				}
				at = p.First
				for m := moldcast.MessagesOf(out, got); m.Len() > 0; at++ {
					if b := m.Next(); string(b) != string(message(at)) {
						t.Errorf("answer %d is %q", at, b)
						return
					}
				}
				if i%100 == 0 {
					v.Info()
					v.Holes()
					v.SeqAt(p.Time)
				}
			}
		}()
	}
	for q := moldcast.Seq(1); q < n; q += 4 {
		if q%16 != 5 {
			put(t, w, piece(q, 4))
		}
	}
	for q := moldcast.Seq(5); q < n; q += 16 {
		put(t, w, piece(q, 4))
	}
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	close(done)
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, w.Ref()), moldcast.Range{First: 1, Next: n + 1})
	verify(t, a)
}

// What a cursor gave stays as it was, whatever becomes of the block it lies in.
func TestCursorPins(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.TailBytes = 1
	a := create(t, o)
	w := writer(t, a, "S")
	defer w.Close()
	// Blocks come and go, so that they are as large as they get.
	on := func(r moldcast.Range) {
		for q := r.First; q < r.Next; q += 100 {
			fillRange(t, w, moldcast.Range{First: q, Next: q + 100}, 5)
			if err := w.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	on(moldcast.Range{First: 1, Next: 6001})
	w.s.mu.Lock()
	first := w.open.b.Bounds().First
	w.s.mu.Unlock()
	if first == 0 {
		first = 6001
	}
	put(t, w, piece(6001, 5))
	c := w.View().Cursor(first)
	p, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	on(moldcast.Range{First: 6006, Next: 9006})
	until(t, "its block is no longer in memory", func() bool {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		return w.s.locate(first).where == inBlock
	})
	for at := first; at < 9000; {
		for m := p.Msgs; m.Len() > 0; at++ {
			if got := m.Next(); string(got) != string(message(at)) {
				t.Fatalf("message %d is %q", at, got)
			}
		}
		if p, err = c.Next(); err != nil {
			t.Fatal(err)
		}
	}
}

// An index that was dropped while its segment is open for reading comes back.
func TestIndexComesBack(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	ref := closed(t, a, "S", 5, moldcast.Range{First: 1, Next: 500})
	v := view(t, a, ref)
	check(t, v, moldcast.Range{First: 1, Next: 500})
	g := v.s.segs[0]
	g.idx.Store(nil)
	if _, err := g.loadIndex(a.table); err != nil || g.idx.Load() == nil {
		t.Fatalf("no index: %v", err)
	}
}

// Tail records go with their block.
func TestNoTailRecordsLeft(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.SegmentSize = 1 << 20
	a := create(t, o)
	w := writer(t, a, "S")
	for q := moldcast.Seq(1); q < 2000; q += 50 {
		fillRange(t, w, moldcast.Range{First: q, Next: q + 50}, 5)
		if err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g := view(t, a, w.Ref()).s.segs[0]
	if err := g.use(a.table, func(db *pebble.DB) error {
		if k := keys(t, db, keyTail); len(k) > 0 {
			t.Errorf("%d tail records are left", len(k))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
