package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// anyMerge merges whatever gets better by it.
const anyMerge = 1e-9

// kept is all that an archive knows of a session, but for how it is stored.
type kept struct {
	Pieces   []keptPiece
	Coverage []moldcast.Range
	Holes    []moldcast.Hole
	Fills    []FillInfo
	Captures []CaptureInfo
	Lines    []LineInfo
	Marks    []moldcast.Mark
	Log      [3][]moldcast.Heard // by line
	Root     []RunHash
	Groups   []string
	First    moldcast.Seq
	Head     moldcast.Seq
	End      *moldcast.Seq
	Packets  uint64
	Raw      uint64
}

type keptPiece struct {
	First       moldcast.Seq
	Framed      string
	Time, Heard moldcast.Stamp
	Line        uint8
	Flags       moldcast.PieceFlags
}

func keepPieces(t testing.TB, v *View) (out []keptPiece) {
	t.Helper()
	c := v.Cursor(0)
	defer c.Close()
	for {
		p, err := c.Next()
		if errors.As(err, new(*moldcast.HoleError)) {
			continue
		}
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, keptPiece{p.First, string(p.Msgs.Framed()), p.Time, p.Heard, p.Line, p.Flags})
	}
}

// keep reads all of a recording.
func keep(t testing.TB, a *Archive, r Ref) (k kept) {
	t.Helper()
	v := view(t, a, r)
	k.Pieces = keepPieces(t, v)
	d, err := a.Show(r)
	if err != nil {
		t.Fatal(err)
	}
	k.Captures = d.CaptureList
	k.Fills, k.Lines, k.Groups, k.End, k.Raw = d.FillList, d.Lines, d.Groups, d.EndSeq, d.BytesRaw
	slices.SortFunc(k.Fills, func(x, y FillInfo) int { return cmp.Or(x.Time.Compare(y.Time), cmp.Compare(x.FirstSeq, y.FirstSeq)) })
	k.Coverage, k.Holes = v.Coverage(), v.Holes()
	k.First, k.Head = v.Bounds()
	if k.Root, err = Root(t.Context(), v, moldcast.Range{First: 0, Next: ^moldcast.Seq(0)}); err != nil {
		t.Fatal(err)
	}
	if l, err := v.Log(); err == nil {
		for line := range k.Log {
			k.Log[line] = heardOn(t, l, line, 0)
		}
		if m := l.Missing(); len(m) > 0 {
			t.Fatalf("the log lacks %+v", m)
		}
	}
	dec, err := block.NewDecoder(block.DecoderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	var b block.Block
	for _, g := range v.s.segs {
		x, err := g.loadIndex(a.table)
		if err != nil {
			t.Fatal(err)
		}
		k.Packets += x.packets
		for _, ref := range x.blocks {
			if err := g.decode(a.table, ref.first, dec, &b); err != nil {
				t.Fatal(err)
			}
			k.Marks = append(k.Marks, b.Marks()...)
		}
		for _, ref := range x.marks {
			if err := g.decodeMarks(a.table, ref.id, dec, &b); err != nil {
				t.Fatal(err)
			}
			k.Marks = append(k.Marks, b.Marks()...)
		}
	}
	slices.SortFunc(k.Marks, func(x, y moldcast.Mark) int {
		return cmp.Or(cmp.Compare(x.Stamp, y.Stamp), cmp.Compare(x.Next, y.Next), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Kind, y.Kind))
	})
	return k
}

// merges counts the segments that were merged, and those that were left.
func merges(t testing.TB, a *Archive, r Ref) (merged, left []string) {
	t.Helper()
	for _, g := range view(t, a, r).s.segs {
		switch {
		case g.seal == nil || g.seal.Merge == nil:
		case g.seal.Merge.Left != "":
			left = append(left, g.seal.Merge.Left)
		default:
			merged = append(merged, g.name)
		}
	}
	return merged, left
}

// scatter is what a feed with losses and islands brings, to be stored in the
// same way again and again.
func scatter(t *rapid.T, first moldcast.Seq) (ops []func(w *Writer) error) {
	logged, late := rapid.Bool().Draw(t, "line log"), rapid.SampledFrom([]uint8{0, 1, 2}).Draw(t, "late line")
	put := func(p moldcast.Piece) {
		if h := heardAs(p); logged && p.Flags == 0 {
			ops = append(ops, func(w *Writer) error { w.Heard(h); return nil })
			if again := h; p.First%7 != 0 {
				again.Stamp, again.Line = h.Stamp+moldcast.Stamp(p.First%100), late
				defer func() { ops = append(ops, func(w *Writer) error { w.Heard(again); return nil }) }()
			}
		}
		ops = append(ops, func(w *Writer) error { _, err := w.Append(p); return err })
	}
	next := first
	at := moldcast.Stamp(1700000000_000000000)
	var lost []moldcast.Piece
	step := func(rt *rapid.T, name string, most int) int { return rapid.IntRange(1, most).Draw(rt, name) }
	for range rapid.IntRange(50, 600).Draw(t, "steps") {
		p := piece(next, step(t, "messages", 9))
		at += moldcast.Stamp(step(t, "time", 1000))
		p.Time, p.Heard, p.Line = at, at, uint8(rapid.IntRange(0, 2).Draw(t, "line"))
		if rapid.Bool().Draw(t, "whole µs") {
			p.Time -= p.Time % 1000
		}
		next = p.Range().Next
		now := at
		switch rapid.IntRange(0, 12).Draw(t, "what") {
		case 0:
			lost = append(lost, p)
			continue
		case 1:
			lost = append(lost, p)
			r := p.Range()
			ops = append(ops, func(w *Writer) error {
				w.Hole(moldcast.Hole{Range: r, Reason: moldcast.Unrecoverable, Time: now})
				return nil
			})
			continue
		case 2:
			k := moldcast.Mark{Kind: moldcast.Heartbeat, Next: next, Stamp: at, Line: p.Line}
			ops = append(ops, func(w *Writer) error { w.Mark(k); return nil })
		case 3, 4, 5:
			if len(lost) == 0 {
				break
			}
			i := rapid.IntRange(0, len(lost)-1).Draw(t, "fill")
			f := lost[i]
			lost = slices.Delete(lost, i, i+1)
			f.Flags, f.Line, f.Heard = moldcast.Repaired, moldcast.AnswerLine, at
			put(f)
			if rapid.Bool().Draw(t, "recorded") {
				ops = append(ops, func(w *Writer) error {
					w.Filled(Fill{Range: f.Range(), Time: now, By: "repair", Source: "there"})
					return nil
				})
			}
		case 6:
			stats := []byte(fmt.Sprintf(`{"next":%d,"text":%q}`, next, strings.Repeat("x", int(next%9)*1000)))
			ops = append(ops, func(w *Writer) error { w.Captured(now-1, now, stats); return nil })
		case 7:
			if rapid.IntRange(0, 3).Draw(t, "flush") == 0 {
				ops = append(ops, func(w *Writer) error { return w.Flush(t.Context()) })
			}
		}
		put(p)
	}
	if rapid.Bool().Draw(t, "end") {
		k := moldcast.Mark{Kind: moldcast.End, Next: next, Stamp: at, Line: 1}
		ops = append(ops, func(w *Writer) error { w.Mark(k); return nil })
	}
	return ops
}

// Whatever came, in whatever order: what is merged says the same, to the
// message, stamp, packet, flag, line, mark, hole and record, and hashes the
// same, as what never was.
func TestMergeKeepsEverything(t *testing.T) {
	most := 0
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SampledFrom(starts).Draw(rt, "first")
		ops := scatter(rt, first)
		o := testOptions(nil)
		o.Clock = func() time.Time { return time.Unix(1700000000, 0) }
		o.BlockSize = rapid.SampledFrom([]int{1 << 10, 4 << 10}).Draw(rt, "block")
		o.SegmentSize = rapid.SampledFrom([]int64{16 << 10, 1 << 20}).Draw(rt, "segment")
		o.Sync, o.Wait = time.Hour, true
		level := rapid.SampledFrom([]block.Level{block.Default, block.Fastest, block.Better, block.None}).Draw(rt, "level")
		store := func(saves float64) (kept, int) {
			o := o
			o.FS, o.MergeSaves = vfs.NewMem(), saves
			o.MergeLevel = level
			if saves >= 0 {
				o.BlockAge = time.Hour
			}
			a, err := OpenOrCreate("archive", o)
			if err != nil {
				rt.Fatal(err)
			}
			w, err := a.Writer("default", sess(t, "S"), 0)
			if err != nil {
				rt.Fatal(err)
			}
			w.Lines([]string{"239.1.1.1:1", "239.1.1.2:1"})
			w.Start(first)
			for _, op := range ops {
				if err := op(w); err != nil {
					rt.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				rt.Fatal(err)
			}
			verify(t, a)
			k := keep(t, a, w.Ref())
			merged, left := merges(t, a, w.Ref())
			for _, why := range left {
				if why != errMergeBehind.Error() {
					rt.Fatalf("left: %v", why)
				}
			}
			if saves < 0 && len(merged) > 0 {
				rt.Fatal("merged all the same")
			}
			if err := a.Close(); err != nil {
				rt.Fatal(err)
			}
			return k, len(merged)
		}
		never, _ := store(-1)
		some, n := store(0)
		if d := gocmp.Diff(never, some); d != "" {
			rt.Fatal(d)
		}
		all, m := store(anyMerge)
		if d := gocmp.Diff(never, all); d != "" {
			rt.Fatal(d)
		}
		most = max(most, n, m)
	})
	if most == 0 {
		t.Error("nothing was ever merged")
	}
}

// lateFills stores r in packets of n messages, every lose-th of which comes so
// many packets later.
func lateFills(t testing.TB, w *Writer, r moldcast.Range, n, lose, later int) {
	t.Helper()
	var fills []moldcast.Piece
	i := 0
	for q := r.First; q < r.Next; q += moldcast.Seq(n) {
		p := piece(q, min(n, int(r.Next-q)))
		i++
		if i%lose == 0 {
			p.Flags, p.Line = moldcast.Repaired, moldcast.AnswerLine
			fills = append(fills, p)
		} else {
			put(t, w, p)
		}
		if len(fills) > 0 && len(fills)*lose > later {
			put(t, w, fills[0])
			fills = fills[1:]
		}
	}
	for _, p := range fills {
		put(t, w, p)
	}
}

// What is due is decided by what it saves, and no more.
func TestMergePlan(t *testing.T) {
	const target = 1000
	blocks := func(runs ...[]moldcast.Range) *index { // one message is one byte
		x := new(index)
		for _, rs := range runs {
			h := block.Header{Runs: rs, Times: make([]block.RunTimes, len(rs))}
			for _, r := range rs {
				h.Messages += int(r.Len())
			}
			h.RawLen = h.Messages
			x.add(&h, 0)
		}
		return x
	}
	r := func(first, next moldcast.Seq) moldcast.Range { return moldcast.Range{First: first, Next: next} }
	var whole, small, tiny, double, shifted [][]moldcast.Range
	for q := moldcast.Seq(1); q < 20001; q += 1000 {
		whole = append(whole, []moldcast.Range{r(q, q+1000)})
	}
	for q := moldcast.Seq(1); q < 20001; q += 500 {
		small = append(small, []moldcast.Range{r(q, q+500)})
	}
	for q := moldcast.Seq(1); q < 20001; q += 100 {
		tiny = append(tiny, []moldcast.Range{r(q, q+100)})
	}
	for q := moldcast.Seq(1); q < 20001; q += 1000 { // a backfill beside the live feed
		double = append(double, []moldcast.Range{r(q, q+500), r(q+100000, q+100500)}, []moldcast.Range{r(q+500, q+1000), r(q+100500, q+101000)})
	}
	for q := moldcast.Seq(1001); q < 20001; q += 1000 { // fills soon after
		shifted = append(shifted, []moldcast.Range{r(q-100, q-50), r(q, q+900), r(q+950, q+1000)})
	}
	var order []moldcast.Range // each message in another block than its neighbours
	for q := moldcast.Seq(1); q < 20001; q += 20 {
		order = append(order, r(q, q+1))
	}
	var scattered [][]moldcast.Range
	for i := range 20 {
		rs := make([]moldcast.Range, len(order))
		for k := range order {
			rs[k] = r(order[k].First+moldcast.Seq(i), order[k].Next+moldcast.Seq(i))
		}
		scattered = append(scattered, rs)
	}
	for _, c := range []struct {
		name  string
		x     *index
		saves float64 // about; less than 0: nothing
		due   bool    // by default
	}{
		{"nothing", blocks(), -1, false},
		{"whole", blocks(whole...), -1, false},
		{"one small", blocks([]moldcast.Range{r(1, 10)}), -1, false},
		{"a few small", blocks(tiny[:5]...), 0.4, false},
		{"half", blocks(small...), 0.1, false},
		{"tiny", blocks(tiny...), 0.5, true},
		{"backfill", blocks(double...), 0.5, true},
		{"fills soon after", blocks(shifted...), -1, false},
		{"scattered", blocks(scattered...), 0.98, true},
	} {
		p := planMerge(c.x, target)
		saves := -1.0
		if p.before > p.after {
			saves = float64(p.before-p.after) / float64(p.before)
		}
		if saves < c.saves-0.05 || saves > c.saves+0.05 && c.saves > 0 || c.saves < 0 && saves > 0 {
			t.Errorf("%s: saves %.2f, want %.2f (%+v)", c.name, saves, c.saves, p)
		}
		if p.due(DefaultMergeSaves) != c.due {
			t.Errorf("%s: due %v", c.name, !c.due)
		}
		if p.due(-1) {
			t.Errorf("%s: due though it is off", c.name)
		}
	}
	overlap := blocks([]moldcast.Range{r(1, 100)}, []moldcast.Range{r(50, 51), r(200, 5000)})
	if p := planMerge(overlap, 10); p.due(anyMerge) {
		t.Error("blocks that overlap are merged")
	}
}

// A segment that needs more memory than a merge has is left as it is.
func TestMergeTooScattered(t *testing.T) {
	x := new(index)
	for i := range 64 { // of 1 MiB each, that alternate
		h := block.Header{RawLen: 1 << 20}
		for k := range 32 {
			q := moldcast.Seq(1 + i + 64*k)
			h.Runs = append(h.Runs, moldcast.Range{First: q, Next: q + 1})
			h.Times = append(h.Times, block.RunTimes{})
			h.Messages++
		}
		x.add(&h, 0)
	}
	if p := planMerge(x, 1<<20); !p.due(DefaultMergeSaves) || p.reads <= mergeReads*p.raw {
		t.Errorf("%+v", p)
	}
}

// A block that is damaged is never dropped: its segment stays as it is, whether
// that was known before or is found meanwhile.
func TestMergeLeavesDamage(t *testing.T) {
	for _, meanwhile := range []bool{false, true} {
		t.Run(fmt.Sprint("meanwhile=", meanwhile), func(t *testing.T) {
			var find func()
			var once sync.Once
			var tables atomic.Int64
			o := testOptions(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpCreate && strings.Contains(op.Path, mergeFiles) {
					tables.Add(1)
					once.Do(find)
				}
				return nil
			})))
			o.SegmentSize, o.BlockSize, o.MergeSaves, o.Wait = 1<<20, 1<<10, anyMerge, true
			o.BlockAge = time.Millisecond
			a := create(t, o)
			w := writer(t, a, "S")
			all := moldcast.Range{First: 1, Next: 6001}
			lateFills(t, w, all, 5, 4, 400)
			var g *segment
			var first moldcast.Seq
			until(t, "blocks are written", func() bool {
				w.s.mu.Lock()
				defer w.s.mu.Unlock()
				if len(w.s.segs) == 0 || len(w.s.segs[0].idx.Load().blocks) < 50 {
					return false
				}
				g = w.s.segs[0]
				first = g.idx.Load().blocks[30].first
				return true
			})
			find = func() { w.s.damaged(g, first, moldcast.Range{}, errNoBody) }
			if !meanwhile {
				find()
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			merged, left := merges(t, a, w.Ref())
			if len(merged) != 0 || len(left) != 1 || left[0] != errMergeDamage.Error() {
				t.Fatalf("merged %v, left %v", merged, left)
			}
			if (tables.Load() > 0) != meanwhile {
				t.Errorf("%d tables were written", tables.Load())
			}
			if h := view(t, a, w.Ref()).Holes(); len(h) == 0 || h[0].Reason != moldcast.Damaged {
				t.Fatalf("holes %v", h)
			}
		})
	}
}

// narrowFS has room for little.
type narrowFS struct {
	vfs.FS
	free uint64
}

func (f narrowFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free, TotalBytes: 1 << 40}, nil
}

// Closing does not take long for a merge, and a disk is not filled by one.
func TestMergeLeft(t *testing.T) {
	for _, c := range []struct {
		why     error
		free    uint64
		atClose int64
	}{{errMergeClosing, 1 << 40, 1000}, {errMergeRoom, mergeSpare, mergeAtClose}, {nil, mergeSpare + 1<<20, mergeAtClose}} {
		o := mergeOptions(narrowFS{vfs.NewMem(), c.free})
		a := create(t, o)
		w := writer(t, a, "S")
		w.mergeAtClose = c.atClose
		lateFills(t, w, mergedRange, 5, 4, 300)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		merged, left := merges(t, a, w.Ref())
		if c.why == nil && len(merged) != 1 || c.why != nil && (len(left) != 1 || left[0] != c.why.Error()) {
			t.Errorf("merged %v, left %v, want %v", merged, left, c.why)
		}
		check(t, view(t, a, w.Ref()), mergedRange)
		verify(t, a)
		a.Close()
	}
}

// A segment that was sealed once, and lost its seal, is sealed with the same
// blocks: others name what they were.
func TestMergeNotSealed(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.SegmentSize, o.MergeSaves, o.BlockSize, o.Wait = 1<<20, -1, 1<<10, true
	a := create(t, o)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 3001}
	lateFills(t, w, all, 5, 4, 300)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g := view(t, a, w.Ref()).s.segs[0]
	a.Close()
	// Nothing else names the seal, with which it would be made again as it was.
	for _, path := range []string{o.FS.PathJoin(g.dir, sealFile), o.FS.PathJoin(o.FS.PathDir(g.dir), sessionFile)} {
		if err := o.FS.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	o.MergeSaves = anyMerge
	a = create(t, o)
	if err := writer(t, a, "S").Close(); err != nil {
		t.Fatal(err)
	}
	if merged, left := merges(t, a, w.Ref()); len(merged) != 0 || len(left) != 1 || left[0] != errMergeSealed.Error() {
		t.Errorf("merged %v, left %v", merged, left)
	}
	check(t, view(t, a, w.Ref()), all)
}

// What replaces a damaged block of another segment does so after it was merged.
func TestMergePatches(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.SegmentSize, o.MergeSaves, o.BlockSize, o.noSalvage = 1<<20, -1, 1<<10, true
	a := create(t, o)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 4001}
	fillRange(t, w, all, 5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := keepPieces(t, view(t, a, w.Ref()))
	a.Close()
	a = create(t, o)
	alter(t, a, w.Ref(), 1, func(db *pebble.DB) {
		for i, k := range keys(t, db, keyHeader) {
			if i%3 == 2 {
				flip(t, db, seqKey(nil, keyBody, seqOf(k)), 100)
			}
		}
	})
	lost := readAll(t, view(t, a, w.Ref()))
	if len(lost) < 10 {
		t.Fatalf("lost %v", lost)
	}
	a.Close()
	o.MergeSaves, o.BlockAge = anyMerge, time.Millisecond
	a = create(t, o)
	w = writer(t, a, "S")
	next := all.Next
	rng := rand.New(rand.NewPCG(1, 1))
	rng.Shuffle(len(lost), func(i, k int) { lost[i], lost[k] = lost[k], lost[i] })
	for _, r := range lost { // patches and the live feed, in small blocks
		for q := r.First; q < r.Next; {
			n := min(5-int((q-1)%5), int(r.Next-q))
			if put(t, w, piece(q, n)) != n {
				t.Fatalf("%d is not stored", q)
			}
			q += moldcast.Seq(n)
		}
		put(t, w, piece(next, 5))
		next += 5
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		until(t, "the block is cut", func() bool {
			w.signal()
			w.s.mu.Lock()
			defer w.s.mu.Unlock()
			return w.open.b.Empty()
		})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	merged, left := merges(t, a, w.Ref())
	if len(merged) != 1 || len(left) != 0 {
		t.Fatalf("merged %v, left %v", merged, left)
	}
	a.Close()
	a = create(t, o)
	got := keepPieces(t, view(t, a, w.Ref()))
	if d := gocmp.Diff(want, got[:len(want)]); d != "" {
		t.Error(d)
	}
	check(t, view(t, a, w.Ref()), moldcast.Range{First: all.First, Next: next})
	d, err := a.Show(w.Ref())
	if s := d.SegmentList; err != nil || d.BytesMerged == 0 || d.Unmerged != 0 || s[0].Merged != 0 || s[1].Merged <= s[1].Blocks || s[1].BytesMerged != d.BytesMerged {
		t.Errorf("%+v %v", d, err)
	}
	if rep := verify(t, a); len(rep.Replaced) != len(lost) {
		t.Errorf("%d were damaged, %d are replaced", len(lost), len(rep.Replaced))
	}
}
