package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

var day0 = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

// ticking is a clock that moves on by a minute with every look.
func ticking() func() time.Time {
	c := make(chan time.Time, 1)
	c <- day0
	return func() time.Time {
		t := <-c
		c <- t.Add(time.Minute)
		return t
	}
}

func ranges(pairs ...moldcast.Seq) (out []moldcast.Range) {
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, moldcast.Range{First: pairs[i], Next: pairs[i+1]})
	}
	return out
}

func TestPlan(t *testing.T) {
	x, y := Ref{Channel: "a", Take: 1}, Ref{Channel: "b", Take: 1}
	seg := func(r Ref, n, hour int, bytes uint64, cov ...moldcast.Seq) planSegment {
		return planSegment{ref: r, num: n, sealed: day0.Add(time.Duration(hour) * time.Hour), bytes: bytes, cov: ranges(cov...)}
	}
	held := func(g planSegment) planSegment { g.held = true; return g }
	now := day0.Add(100 * time.Hour)
	hours := func(h int) time.Duration { return time.Duration(h) * time.Hour }
	for _, c := range []struct {
		name   string
		segs   []planSegment
		pruned map[Ref][]moldcast.Range
		total  uint64
		r      Retention
		want   string
	}{
		{"nothing asked", []planSegment{seg(x, 1, 0, 10, 1, 9)}, nil, 10, Retention{-1, -1}, ""},
		{"by age, the bound included", []planSegment{seg(x, 1, 10, 10, 1, 9), seg(x, 2, 50, 10, 9, 20), seg(x, 3, 51, 10, 20, 30)}, nil, 30, Retention{hours(50), -1}, "a1:age a2:age"},
		{"by size, until it fits", []planSegment{seg(x, 1, 1, 10, 1, 9), seg(x, 2, 2, 10, 9, 20), seg(x, 3, 3, 10, 20, 30)}, nil, 35, Retention{-1, 20}, "a1:size a2:size"},
		{"it fits to the byte", []planSegment{seg(x, 1, 1, 10, 1, 9)}, nil, 20, Retention{-1, 20}, ""},
		{"what is not sealed counts", []planSegment{seg(x, 1, 1, 10, 1, 9)}, nil, 21, Retention{-1, 20}, "a1:size"},
		{"all that is sealed, and no more can be done", []planSegment{seg(x, 1, 1, 10, 1, 9)}, nil, 100, Retention{-1, 0}, "a1:size"},
		{"oldest first across sessions", []planSegment{seg(x, 1, 5, 10, 1, 9), seg(x, 2, 7, 10, 9, 20), seg(y, 1, 6, 10, 1, 9)}, nil, 30, Retention{-1, 10}, "a1:size b1:size"},
		{"number beats a clock that was set back", []planSegment{seg(x, 1, 9, 10, 1, 9), seg(x, 2, 3, 10, 9, 20)}, nil, 20, Retention{-1, 10}, "a1:size"},
		{"a hold is skipped, and counts", []planSegment{held(seg(x, 1, 1, 10, 1, 9)), seg(y, 1, 2, 10, 1, 9), seg(y, 2, 3, 10, 9, 12)}, nil, 30, Retention{-1, 15}, "b1:size b2:size"},
		{"a patch goes with what it patches", []planSegment{seg(x, 1, 1, 10, 1, 100), seg(x, 2, 2, 10, 100, 200), seg(x, 3, 90, 1, 20, 30)}, nil, 21, Retention{-1, 12}, "a1:size a3:patch(1)"},
		{"but not one that holds more", []planSegment{seg(x, 1, 1, 10, 1, 100), seg(x, 2, 2, 10, 100, 200), seg(x, 3, 90, 1, 20, 30, 200, 210)}, nil, 21, Retention{-1, 12}, "a1:size"},
		{"nor of another session", []planSegment{seg(x, 1, 1, 10, 1, 100), seg(y, 3, 90, 1, 20, 30)}, nil, 11, Retention{-1, 1}, "a1:size"},
		{"a patch of two", []planSegment{seg(x, 1, 1, 10, 1, 100), seg(x, 2, 2, 10, 100, 200), seg(x, 3, 90, 1, 90, 110)}, nil, 21, Retention{hours(98), -1}, "a1:age a2:age a3:patch(1,2)"},
		{"a patch that was left before", []planSegment{seg(x, 3, 90, 1, 20, 30)}, map[Ref][]moldcast.Range{x: ranges(1, 100)}, 1, Retention{hours(1000), -1}, "a3:patch"},
		{"marks alone are no patch", []planSegment{seg(x, 2, 90, 1)}, map[Ref][]moldcast.Range{x: ranges(1, 100)}, 1, Retention{hours(1000), -1}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, p := range plan(c.segs, c.pruned, nil, c.total, c.r, now) {
				s := fmt.Sprintf("%s%d:%s", p.seg.ref.Channel, p.seg.num, p.reason)
				if len(p.bases) > 0 {
					s += strings.ReplaceAll(strings.NewReplacer("[", "(", "]", ")").Replace(fmt.Sprint(p.bases)), " ", ",")
				}
				got = append(got, s)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Fatalf("plan %q, want %q", s, c.want)
			}
		})
	}
}

// What holds of every plan.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var segs []planSegment
		var total uint64
		for r := range rapid.IntRange(1, 3).Draw(t, "sessions") {
			ref := Ref{Channel: string(rune('a' + r)), Take: 1}
			held := rapid.IntRange(0, 3).Draw(t, "held") == 0
			next := moldcast.Seq(1)
			for n := range rapid.IntRange(0, 6).Draw(t, "segments") {
				g := planSegment{ref: ref, num: n + 1, held: held, bytes: rapid.Uint64Range(0, 50).Draw(t, "bytes")}
				g.sealed = day0.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "hour")) * time.Hour)
				switch k := moldcast.Seq(rapid.IntRange(1, 30).Draw(t, "count")); rapid.IntRange(0, 4).Draw(t, "kind") {
				case 0: // replaces some of what came before
					if next > 1 {
						f := moldcast.Seq(rapid.Uint64Range(1, uint64(next-1)).Draw(t, "first"))
						g.cov = ranges(f, min(next, f+k))
					}
				case 1: // leaves a hole
					g.cov = ranges(next+5, next+5+k)
					next += 5 + k
				default:
					g.cov = ranges(next, next+k)
					next += k
				}
				total += g.bytes
				segs = append(segs, g)
			}
		}
		total += rapid.Uint64Range(0, 50).Draw(t, "open")
		r := Retention{Keep: -1, MaxBytes: -1}
		if rapid.Bool().Draw(t, "by age") {
			r.Keep = time.Duration(rapid.IntRange(0, 60).Draw(t, "keep")) * time.Hour
		}
		if rapid.Bool().Draw(t, "by size") {
			r.MaxBytes = rapid.Int64Range(0, 400).Draw(t, "max")
		}
		now := day0.Add(50 * time.Hour)
		shuffled := rapid.Permutation(segs).Draw(t, "order")
		out := plan(shuffled, nil, nil, total, r, now)

		type id struct {
			ref Ref
			num int
		}
		taken := map[id]PruneReason{}
		gone := map[Ref]*gap.Set{}
		left := total
		for i, p := range out {
			g := p.seg
			if g.held {
				t.Fatalf("%v %d is on hold", g.ref, g.num)
			}
			if _, twice := taken[id{g.ref, g.num}]; twice {
				t.Fatalf("%v %d twice", g.ref, g.num)
			}
			if gone[g.ref] == nil {
				gone[g.ref] = new(gap.Set)
			}
			switch p.reason {
			case PruneSize:
				if left <= uint64(r.MaxBytes) {
					t.Fatalf("item %d: %d bytes are left already, of at most %d", i, left, r.MaxBytes)
				}
			case PruneAge:
				if r.Keep < 0 {
					t.Fatal("age was not asked for")
				}
			case PrunePatch:
				for _, c := range g.cov {
					if miss := gone[g.ref].Missing(c); len(miss) > 0 {
						t.Fatalf("%v %d holds %v, which is not pruned", g.ref, g.num, miss)
					}
				}
			}
			for _, b := range p.bases {
				if _, ok := taken[id{g.ref, b}]; !ok {
					t.Fatalf("%v %d before %d, which it patches", g.ref, g.num, b)
				}
			}
			// None older of the session stays, unless it goes as a patch.
			if p.reason != PrunePatch {
				for _, o := range segs {
					if _, ok := taken[id{o.ref, o.num}]; o.ref == g.ref && o.num < g.num && !ok {
						t.Fatalf("%v %d before the older %d", g.ref, g.num, o.num)
					}
				}
			}
			taken[id{g.ref, g.num}] = p.reason
			for _, c := range g.cov {
				gone[g.ref].Add(c)
			}
			left -= g.bytes
		}
		for _, g := range segs {
			if _, ok := taken[id{g.ref, g.num}]; ok || g.held {
				continue
			}
			if r.Keep >= 0 && !g.sealed.Add(r.Keep).After(now) {
				// Only a clock that was set back after an older one can excuse it.
				excused := slices.ContainsFunc(segs, func(o planSegment) bool {
					return o.ref == g.ref && o.num < g.num && o.sealed.Add(r.Keep).After(now)
				})
				if !excused {
					t.Fatalf("%v %d is old and stays", g.ref, g.num)
				}
			}
			if r.MaxBytes >= 0 && left > uint64(r.MaxBytes) {
				t.Fatalf("%v %d stays, and %d bytes are more than %d", g.ref, g.num, left, r.MaxBytes)
			}
		}
		again := plan(segs, nil, nil, total, r, now)
		if fmt.Sprint(again) != fmt.Sprint(out) {
			t.Fatal("the order in which segments are listed changes the plan")
		}
	})
}

// pruneOptions are those of the tests, with a clock that moves.
func pruneOptions(fs vfs.FS) Options {
	o := testOptions(fs)
	o.Clock = ticking()
	return o
}

// parts stores r in n segments of equal size, and leaves them sealed.
func parts(t testing.TB, a *Archive, name string, r moldcast.Range, n int) Ref {
	t.Helper()
	var ref Ref
	for i := range n {
		w := writer(t, a, name)
		part := moldcast.Range{First: r.First + moldcast.Seq(int(r.Len())*i/n), Next: r.First + moldcast.Seq(int(r.Len())*(i+1)/n)}
		fillRange(t, w, part, 7)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		ref = w.Ref()
	}
	return ref
}

func prune(t testing.TB, a *Archive, r Retention) PruneReport {
	t.Helper()
	rep, err := a.Prune(context.Background(), r, false, "tester")
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func contentRoots(t testing.TB, v *View) []RunHash {
	t.Helper()
	out, err := Root(context.Background(), v, moldcast.Range{First: 1, Next: ^moldcast.Seq(0)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func show(t testing.TB, a *Archive, r Ref) Detail {
	t.Helper()
	d, err := a.Show(r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// half is a retention by which about half of a session goes.
func half(t testing.TB, a *Archive, r Ref) Retention {
	t.Helper()
	return Retention{Keep: -1, MaxBytes: int64(show(t, a, r).BytesDisk / 2)}
}

func TestPruneKeepsWhatItMust(t *testing.T) {
	for _, first := range starts {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			o := pruneOptions(vfs.NewMem())
			a := create(t, o)
			all := moldcast.Range{First: first, Next: first + 5000}
			parts(t, a, "S", moldcast.Range{First: first, Next: first + 4000}, 5)
			w := writer(t, a, "S")
			fillRange(t, w, moldcast.Range{First: first + 4000, Next: all.Next}, 7)
			w.Mark(moldcast.Mark{Kind: moldcast.End, Next: all.Next, Stamp: 5})
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			ref := w.Ref()
			want := contentRoots(t, view(t, a, ref))
			before := show(t, a, ref)

			dry, err := a.Prune(context.Background(), half(t, a, ref), true, "tester")
			if err != nil || len(dry.Items) == 0 || dry.Removed != 0 {
				t.Fatalf("%+v %v", dry, err)
			}
			if d := show(t, a, ref); d.Segments != before.Segments {
				t.Fatal("a dry run removed something")
			}
			rep := prune(t, a, half(t, a, ref))
			if rep.Removed != len(dry.Items) || rep.Left != 0 || rep.BytesAfter != dry.BytesAfter {
				t.Fatalf("%+v, planned %+v", rep, dry)
			}
			kept := rep.Items[len(rep.Items)-1].LastSeq + 1
			check2 := func(a *Archive) {
				t.Helper()
				d := show(t, a, ref)
				if d.FirstSeq != kept || d.NextSeq != all.Next || d.HeadSeq != all.Next || d.Holes != 0 || !d.Ended ||
					d.Messages != uint64(all.Next-kept) || d.PrunedMessages != uint64(kept-first) ||
					d.Segments != before.Segments-rep.Removed || d.BytesDisk != rep.BytesAfter {
					t.Fatalf("%+v", d)
				}
				v := view(t, a, ref)
				check(t, v, moldcast.Range{First: kept, Next: all.Next})
				if got := contentRoots(t, v); !slices.Equal(got, want) {
					t.Fatalf("roots %v, want %v", got, want)
				}
				verify(t, a)
			}
			check2(a)

			v := view(t, a, ref)
			var gone *PrunedError
			if _, _, err := v.Append(nil, first+3, 10, 1<<16, true); !errors.As(err, &gone) || gone.Range != (moldcast.Range{First: first + 3, Next: kept}) {
				t.Fatalf("reading what was pruned: %v", err)
			}
			c := v.Cursor(first)
			var hole *moldcast.HoleError
			if _, err := c.Next(); !errors.Is(err, ErrPruned) || !errors.As(err, &hole) || hole.Hole.Reason != moldcast.Pruned {
				t.Fatalf("a cursor at what was pruned: %v", err)
			}
			if p, err := c.Next(); err != nil || p.First != kept {
				t.Fatalf("behind it: %v %v", p.Range(), err)
			}
			c.Close()
			if q := v.SeqAt(0); q != kept {
				t.Fatalf("the first message by time is %d, want %d", q, kept)
			}

			// Another process, which captures on: nothing of it is asked for, and
			// what comes again is not stored again.
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			a = create(t, o)
			check2(a)
			w = writer(t, a, "S")
			if h := w.Held(); h.First != kept || h.Next != all.Next || h.Head != all.Next || len(h.Holes) != 0 {
				t.Fatalf("held %+v", h)
			}
			if n := put(t, w, piece(first, int(kept-first)+5)); n != 0 {
				t.Fatalf("%d messages that were pruned are stored again", n)
			}
			if _, differs, err := w.Compare(first, piece(first, 50).Msgs); differs || err != nil {
				t.Fatal(differs, err)
			}
			more := moldcast.Range{First: all.Next, Next: all.Next + 0}
			if all.Next+600 > all.Next {
				more.Next += 600
				fillRange(t, w, more, 11)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			verify(t, a)

			// Everything: the session is still known, and goes on where it ended.
			rep = prune(t, a, Retention{Keep: 0, MaxBytes: -1})
			if d := show(t, a, ref); d.Segments != 0 || d.FirstSeq != more.Next || d.HeadSeq != more.Next || d.NextSeq != more.Next || d.Messages != 0 {
				t.Fatalf("%+v", d)
			}
			verify(t, a)
			if got := contentRoots(t, view(t, a, ref)); len(got) != 1 || got[0].Range != (moldcast.Range{First: first, Next: more.Next}) {
				t.Fatalf("roots %v", got)
			}
			w = writer(t, a, "S")
			if h := w.Held(); h.First != more.Next || h.Head != more.Next || len(h.Holes) != 0 {
				t.Fatalf("held %+v", h)
			}
			w.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: more.Next, Stamp: 77})
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if d := show(t, a, ref); len(d.SegmentList) != 1 || d.SegmentList[0].Segment <= rep.Items[len(rep.Items)-1].Segment {
				t.Fatalf("a number was used again: %+v", d.SegmentList)
			}
			verify(t, a)
			checkAudit(t, a)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// checkAudit wants a log that is whole, and in it for every removal that was
// announced what became of it.
func checkAudit(t testing.TB, a *Archive) []AuditEntry {
	t.Helper()
	entries, torn, err := a.AuditLog()
	if err != nil || torn {
		t.Fatalf("audit log: torn %v, %v", torn, err)
	}
	open := map[string]bool{}
	for _, e := range entries {
		k := e.Session + "/" + e.Segment
		switch e.Event {
		case AuditPrune:
			open[k] = true
		case AuditPruned, AuditCancelled:
			if !open[k] {
				t.Errorf("%s of %s was not announced", e.Event, k)
			}
			delete(open, k)
		}
	}
	for k := range open {
		t.Errorf("what became of %s is not told", k)
	}
	return entries
}

// The feed of a session with holes and late fills, pruned again and again
// while it is written: at the end the content hash is that of an archive that
// was never pruned.
func TestPruneWhileWritten(t *testing.T) {
	plain, pruned := pruneOptions(vfs.NewMem()), pruneOptions(vfs.NewMem())
	a, b := create(t, plain), create(t, pruned)
	wa, wb := writer(t, a, "S"), writer(t, b, "S")
	both := func(p moldcast.Piece) {
		put(t, wa, p)
		put(t, wb, p)
	}
	const first, total = 3000, 30000
	removed := 0
	for q := moldcast.Seq(first); q < first+total; q += 100 {
		if q%3 == 0 { // late, but before it is pruned
			both(piece(q+50, 50))
			both(piece(q, 50))
		} else {
			both(piece(q, 100))
		}
		if q%2000 == 0 {
			if err := wb.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			removed += prune(t, b, Retention{Keep: 0, MaxBytes: -1}).Removed
			if next, _, head := wb.Watermarks(); next != q+100 || head != q+100 {
				t.Fatalf("next %d, head %d after a prune, want %d", next, head, q+100)
			}
		}
	}
	until(t, "segments were sealed and pruned", func() bool {
		removed += prune(t, b, Retention{Keep: 0, MaxBytes: -1}).Removed
		return removed >= 2
	})
	if h := wb.Held(); len(h.Holes) != 0 || h.Next != first+total {
		t.Fatalf("held %+v", h)
	}
	want := contentRoots(t, wa.View())
	if got := contentRoots(t, wb.View()); !slices.Equal(got, want) || len(want) != 1 {
		t.Fatalf("roots %v, want %v", got, want)
	}
	for _, w := range []*Writer{wa, wb} {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	prune(t, b, Retention{Keep: 0, MaxBytes: -1})
	if got := contentRoots(t, view(t, b, wb.Ref())); !slices.Equal(got, want) {
		t.Fatalf("roots %v, want %v", got, want)
	}
	verify(t, b)
	checkAudit(t, b)
}

// Nothing below what was removed is wanted; what is missing right behind it may
// be a gap of this moment.
func TestFloor(t *testing.T) {
	for _, c := range []struct {
		name        string
		held, gone  []moldcast.Range
		first, want moldcast.Seq
	}{
		{"nothing removed", ranges(5, 100), nil, 5, 0},
		{"a part", ranges(1, 200), ranges(1, 100), 100, 100},
		{"all", ranges(1, 100), ranges(1, 100), 100, 100},
		{"around a hole", ranges(1, 50, 60, 200), ranges(1, 50, 60, 100), 100, 100},
		{"a gap right behind", ranges(1, 100, 110, 120), ranges(1, 100), 110, 100},
		{"one behind all", ranges(1, 50, 60, 100, 110, 120), ranges(1, 50, 60, 100), 110, 100},
		{"a late message below", ranges(1, 200), ranges(1, 50, 51, 100), 50, 50},
		{"what is lowest is still in use", ranges(1, 200), ranges(50, 100), 1, 0},
	} {
		var s session
		for _, r := range c.held {
			s.cov.Add(r)
		}
		for _, r := range c.gone {
			s.gone.Add(r)
		}
		if first, got := s.first(), s.floor(); first != c.first || got != c.want {
			t.Errorf("%s: first %d, floor %d, want %d, %d", c.name, first, got, c.first, c.want)
		}
	}
}

// Where what lies around holes is pruned, they are none any more: the
// watermarks go on from what is left, which is the floor.
func TestPruneAroundHoles(t *testing.T) {
	a := create(t, pruneOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	if f := w.Floor(); f != 0 {
		t.Fatalf("floor %d of nothing pruned", f)
	}
	q := moldcast.Seq(100)
	for ; q < 2000; q += 100 {
		put(t, w, piece(q, 90)) // ten are missing
	}
	until(t, "what lies around the holes is pruned", func() bool {
		put(t, w, piece(q, 100))
		q += 100
		if err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		prune(t, a, Retention{Keep: 0, MaxBytes: -1})
		return w.Held().First >= 2000
	})
	h := w.Held()
	next, durable, head := w.Watermarks()
	if f := w.Floor(); next != q || durable != q || head != q || f > h.First || f < 2000-10 || f != h.Floor || len(h.Holes) != 0 || h.Next != q {
		t.Errorf("next %d, durable %d, head %d of %d; floor %d, held %+v", next, durable, head, q, f, h)
	}
	put(t, w, piece(q, 10))
	if next, _, _ := w.Watermarks(); next != q+10 {
		t.Errorf("next %d, want %d", next, q+10)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := view(t, a, w.Ref()).Info(); got.Holes != 0 || got.FirstSeq != h.First || got.NextSeq != q+10 || got.DurableSeq != q+10 || got.Messages != uint64(q+10-h.First) {
		t.Errorf("%+v", got)
	}
}

func TestPrunePutsNothingInPlaceOfWhatIsInUse(t *testing.T) {
	o := pruneOptions(vfs.NewMem())
	a := create(t, o)
	defer a.Close()
	all := moldcast.Range{First: 1, Next: 4001}
	const n = 5
	ref := parts(t, a, "S", all, n)
	v := view(t, a, ref)
	lease, err := v.Lease(moldcast.Range{First: 1, Next: 2})
	if err != nil {
		t.Fatal(err)
	}
	rep := prune(t, a, Retention{Keep: 0, MaxBytes: -1})
	if rep.Items[0].Removed || rep.Items[0].Left != "it is in use" || rep.Removed != n-1 || rep.Left != 1 {
		t.Fatalf("%+v", rep)
	}
	if buf, k, err := v.Append(nil, 1, 3, 1<<16, true); err != nil || k != 3 || len(buf) == 0 {
		t.Fatalf("%d messages, %v", k, err)
	}
	if d := show(t, a, ref); d.FirstSeq != 1 || d.Holes != 0 || d.NextSeq != all.Next {
		t.Fatalf("%+v", d)
	}
	lease.Close()
	lease.Close()
	if rep := prune(t, a, Retention{Keep: 0, MaxBytes: -1}); rep.Removed != 1 {
		t.Fatalf("%+v", rep)
	}
	if _, _, err := v.Append(nil, 1, 3, 1<<16, true); !errors.Is(err, ErrPruned) {
		t.Fatal(err)
	}
	verify(t, a)
	checkAudit(t, a)
}

// On the file system of the system leases hold between archives, as between
// processes; and readers learn of what another one prunes.
func TestPruneBesideOthers(t *testing.T) {
	o := pruneOptions(nil)
	dir := t.TempDir()
	open := func() *Archive {
		a, err := OpenOrCreate(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := open()
	parts(t, a, "S", moldcast.Range{First: 1, Next: 3001}, 5)
	w := writer(t, a, "S")
	all := moldcast.Range{First: 1, Next: 4001}
	fillRange(t, w, moldcast.Range{First: 3001, Next: all.Next}, 9)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}

	b, c := open(), open()
	defer b.Close()
	defer c.Close()
	live := w.View()
	reader := view(t, b, w.Ref())
	sealed := show(t, b, w.Ref())
	if sealed.State != Live || sealed.Segments < 4 {
		t.Fatalf("%+v", sealed)
	}
	if _, _, err := reader.Append(nil, 1, 1, 1<<16, true); err != nil { // it is kept open by b
		t.Fatal(err)
	}
	second := sealed.SegmentList[1]
	lease, err := reader.Lease(moldcast.Range{First: second.FirstSeq, Next: second.FirstSeq + 1})
	if err != nil {
		t.Fatal(err)
	}
	rep := prune(t, c, Retention{Keep: 0, MaxBytes: -1})
	for _, i := range rep.Items {
		if i.Segment == second.Segment && (i.Removed || i.Left != "it is in use") || i.Segment != second.Segment && !i.Removed {
			t.Fatalf("%+v", i)
		}
	}
	if rep.Removed < 3 {
		t.Fatalf("%+v", rep)
	}
	for name, v := range map[string]*View{"the writer": live, "a reader": reader} {
		if _, _, err := v.Append(nil, second.LastSeq+1, 1, 1<<16, true); name == "a reader" && !errors.Is(err, ErrPruned) {
			t.Fatalf("%s reads what was pruned: %v", name, err)
		}
		got, k, err := v.Append(nil, second.FirstSeq, 1, 1<<16, true)
		if err != nil || k != 1 || !bytes.Equal(got, piece(second.FirstSeq, 1).Msgs.Framed()) {
			t.Fatalf("%s: %d %v", name, k, err)
		}
	}
	lease.Close()
	if rep := prune(t, c, Retention{Keep: 0, MaxBytes: -1}); rep.Removed < 1 {
		t.Fatalf("%+v", rep)
	}
	// The capture goes on; nothing is asked for again.
	more := moldcast.Range{First: all.Next, Next: all.Next + 1000}
	fillRange(t, w, more, 9)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a = open()
	defer a.Close()
	w = writer(t, a, "S")
	if h := w.Held(); len(h.Holes) != 0 || h.Next != more.Next {
		t.Fatalf("held %+v", h)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	checkAudit(t, a)
}

func TestHold(t *testing.T) {
	a := create(t, pruneOptions(vfs.NewMem()))
	defer a.Close()
	var refs []Ref
	for _, name := range []string{"S1", "S2"} {
		w := writer(t, a, name)
		fillRange(t, w, moldcast.Range{First: 1, Next: 2000}, 9)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		refs = append(refs, w.Ref())
	}
	if err := a.Hold(refs[0], "", "me"); !errors.Is(err, ErrReason) {
		t.Fatal(err)
	}
	if err := a.Hold(Ref{Channel: "x", Take: 1}, "why", "me"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if err := a.Release(refs[0], "why", "me"); !errors.Is(err, ErrNotOnHold) {
		t.Fatal(err)
	}
	if err := a.Hold(refs[0], "case 17", "me"); err != nil {
		t.Fatal(err)
	}
	if err := a.Hold(refs[0], "again", "me"); !errors.Is(err, ErrOnHold) || !strings.Contains(err.Error(), "case 17") {
		t.Fatal(err)
	}
	if h := show(t, a, refs[0]).Hold; h == nil || h.Reason != "case 17" || h.By != "me" {
		t.Fatalf("%+v", h)
	}
	rep := prune(t, a, Retention{Keep: 0, MaxBytes: 0})
	if !slices.Equal(rep.Held, []string{"default/S1"}) || rep.Removed == 0 {
		t.Fatalf("%+v", rep)
	}
	check(t, view(t, a, refs[0]), moldcast.Range{First: 1, Next: 2000})
	check(t, view(t, a, refs[1]))
	if err := a.Release(refs[0], "closed", "you"); err != nil {
		t.Fatal(err)
	}
	if h := show(t, a, refs[0]).Hold; h != nil {
		t.Fatalf("%+v", h)
	}
	if rep := prune(t, a, Retention{Keep: 0, MaxBytes: -1}); rep.Removed == 0 || rep.Left != 0 {
		t.Fatalf("%+v", rep)
	}
	entries := checkAudit(t, a)
	if e := entries[0]; e.Event != AuditHold || e.Reason != "case 17" || e.Session != "default/S1" || e.By != "me" || e.Node != "test" {
		t.Fatalf("%+v", e)
	}
	verify(t, a)
}

// A hold that comes between the plan and the removal stops it.
func TestHoldAfterThePlan(t *testing.T) {
	a := create(t, pruneOptions(vfs.NewMem()))
	defer a.Close()
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 2000}, 2)
	var rep PruneReport
	segs, pruned, _, err := a.inventory(&rep)
	if err != nil {
		t.Fatal(err)
	}
	todo := plan(segs, pruned, nil, rep.BytesBefore, Retention{Keep: 0, MaxBytes: -1}, a.o.Clock())
	if err := a.Hold(ref, "wait", ""); err != nil {
		t.Fatal(err)
	}
	var left errLeft
	if err := a.pruneOne(context.Background(), todo[0], nil, ""); !errors.As(err, &left) || !strings.Contains(err.Error(), "wait") {
		t.Fatal(err)
	}
	if err := a.Release(ref, "go", ""); err != nil {
		t.Fatal(err)
	}
	other := todo[0]
	other.seg.sum = "of another"
	if err := a.pruneOne(context.Background(), other, nil, ""); !errors.As(err, &left) {
		t.Fatal(err)
	}
	check(t, view(t, a, ref), moldcast.Range{First: 1, Next: 2000})
	if err := a.pruneOne(context.Background(), todo[0], nil, ""); err != nil {
		t.Fatal(err)
	}
	if err := a.pruneOne(context.Background(), todo[0], nil, ""); !errors.As(err, &left) {
		t.Fatal(err)
	}
	verify(t, a)
	checkAudit(t, a)
}

// The chain of seals shows a segment that was removed otherwise, or whose
// tombstone was.
func TestVerifyMissesWhatWasNotPruned(t *testing.T) {
	fs := vfs.NewMem()
	o := pruneOptions(fs)
	a := create(t, o)
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 3000}, 4)
	prune(t, a, half(t, a, ref))
	verify(t, a)
	dir := a.sessionDir(ref)
	damage := func(name string, want string, do func(path string)) {
		t.Helper()
		path := fs.PathJoin(dir, name)
		old, err := readFile(fs, path)
		if err != nil {
			t.Fatal(err)
		}
		do(path)
		b, err := Open("archive", o)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		rep, err := b.Verify(context.Background(), nil, nil)
		if err != nil || len(rep.Faults) == 0 || !strings.Contains(fmt.Sprint(rep.Faults), want) {
			t.Errorf("%s: %v %v, want %q", name, rep.Faults, err, want)
		}
		if _, err := b.Sessions(); err != nil {
			t.Error(err)
		}
		if err := writeFile(fs, dir, name, old); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) { _ = fs.Remove(path) }
	flip := func(path string) {
		b, _ := readFile(fs, path)
		b[len(b)/2] ^= 1
		if err := writeFile(fs, fs.PathDir(path), fs.PathBase(path), b); err != nil {
			t.Fatal(err)
		}
	}
	damage(prunedName(1), "the chain of seals is broken", remove)
	damage(prunedName(1), "pruned", flip)
	damage(leavesName(1), "leaves of the content hash", remove)
	damage(leavesName(1), "leaves of the content hash", flip)
	a.Close()
	b, err := Open("archive", o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	verify(t, b)
}

func TestAuditLog(t *testing.T) {
	fs := vfs.NewMem()
	a := create(t, pruneOptions(fs))
	defer a.Close()
	if e, torn, err := a.AuditLog(); len(e) != 0 || torn || err != nil {
		t.Fatal(e, torn, err)
	}
	for i := range 5 {
		if err := a.Audit(AuditEntry{Event: AuditRepair, Session: fmt.Sprint("c/S", i), Reason: strings.Repeat("é", i*1000)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Audit(AuditEntry{Event: AuditRepair, Reason: strings.Repeat("x", maxAuditLine)}); err == nil {
		t.Fatal("a line without bound was taken")
	}
	whole, err := readFile(fs, fs.PathJoin("archive", auditFile))
	if err != nil {
		t.Fatal(err)
	}
	if e, torn, err := parseAudit(whole); len(e) != 5 || torn || err != nil {
		t.Fatal(len(e), torn, err)
	}
	lines := bytes.SplitAfter(whole, []byte{'\n'})[:5]
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	edited := bytes.Replace(lines[2], []byte("c/S2"), []byte("c/S9"), 1)
	for _, c := range []struct {
		name string
		b    []byte
		line int
	}{
		{"edited", join(lines[0], lines[1], edited, lines[3], lines[4]), 4},
		{"removed", join(lines[0], lines[2]), 2},
		{"first removed", join(lines[1:]...), 1},
		{"swapped", join(lines[0], lines[2], lines[1]), 2},
		{"inserted", join(lines[0], lines[0], lines[1]), 2},
		{"no JSON", join(lines[0], []byte("what\n"), lines[1]), 2},
		{"two on a line", join(lines[0], []byte("{} {}\n")), 2},
	} {
		var broken *AuditError
		e, _, err := parseAudit(c.b)
		if !errors.As(err, &broken) || broken.Breaks[0].Line != c.line || len(e) < c.line-1 {
			t.Errorf("%s: %d entries, %v; want line %d", c.name, len(e), err, c.line)
		}
	}
	// A line that a crash cut short is dropped, at whatever byte, and the chain
	// goes on.
	for _, cut := range []int{0, 1, 20, len(lines[4]) - 2} {
		if err := writeFile(fs, "archive", auditFile, join(join(lines[:4]...), lines[4][:cut])); err != nil {
			t.Fatal(err)
		}
		if e, torn, err := a.AuditLog(); len(e) != 4 || torn != (cut > 0) || err != nil {
			t.Fatal(cut, len(e), torn, err)
		}
		if err := a.Audit(AuditEntry{Event: AuditSeal, Session: "c/new"}); err != nil {
			t.Fatal(err)
		}
		if e, torn, err := a.AuditLog(); len(e) != 5 || e[4].Session != "c/new" || torn || err != nil {
			t.Fatal(cut, len(e), torn, err)
		}
	}
	if err := writeFile(fs, "archive", auditFile, []byte("{")); err != nil { // the first line, cut short
		t.Fatal(err)
	}
	if err := a.Audit(AuditEntry{Event: AuditSeal, Session: "c/new"}); err != nil {
		t.Fatal(err)
	}
	checkAudit(t, a)
}

// Where the size that was asked for cannot be reached, the report says by how
// much, and what stands in the way.
func TestPruneSaysWhatStays(t *testing.T) {
	o := testOptions(newMemFS())
	a := create(t, o)
	held := closed(t, a, "H", 5, moldcast.Range{First: 1, Next: 2000})
	free := closed(t, a, "S", 5, moldcast.Range{First: 1, Next: 2000})
	w := writer(t, a, "O")
	fillRange(t, w, moldcast.Range{First: 1, Next: 2000}, 5)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if rep, err := a.Prune(t.Context(), Retention{Keep: -1, MaxBytes: 1 << 40}, false, "t"); err != nil || rep.Over != 0 || len(rep.Kept) != 0 {
		t.Fatalf("reached: %+v %v", rep, err)
	}
	if err := a.Hold(held, "case", "t"); err != nil {
		t.Fatal(err)
	}
	lease, err := view(t, a, free).Lease(moldcast.Range{First: 1, Next: 2})
	if err != nil {
		t.Fatal(err)
	}
	reasons := func(want ...KeptReason) {
		t.Helper()
		rep, err := a.Prune(t.Context(), Retention{Keep: -1, MaxBytes: 1}, false, "t")
		if err != nil || rep.Over != rep.BytesAfter-1 {
			t.Fatalf("%+v %v", rep, err)
		}
		var got []KeptReason
		sum := uint64(0)
		for _, k := range rep.Kept {
			got = append(got, k.Reason)
			sum += k.Bytes
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) || sum != rep.BytesAfter {
			t.Errorf("kept %+v of %d, want %v", rep.Kept, rep.BytesAfter, want)
		}
	}
	reasons(KeptHold, KeptOpen, KeptLeft)
	lease.Close()
	reasons(KeptHold, KeptOpen)
}
