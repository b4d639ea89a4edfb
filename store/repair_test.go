package store

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

// A damaged block is a hole with its reason from the first read on, in every
// process; what is stored in its place is a patch in another segment, and from
// then on all is well, but the damage stays listed.
func TestDamageIsReplaced(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.noSalvage = true
	o.SegmentSize = 1 << 20
	all := moldcast.Range{First: 101, Next: 4101}
	a := create(t, o)
	ref := closed(t, a, "S", 5, all)
	whole, err := Root(t.Context(), view(t, a, ref), all)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	a = create(t, o)
	alter(t, a, ref, 1, func(db *pebble.DB) {
		flip(t, db, seqKey(nil, keyBody, seqOf(keys(t, db, keyHeader)[3])), 300)
	})
	other := create(t, o) // another process, which has not met the damage
	theirs := view(t, other, ref)

	v := view(t, a, ref)
	lost := readAll(t, v)
	if len(lost) != 1 || lost[0].Len() > 400 {
		t.Fatalf("lost %v", lost)
	}
	r := lost[0]
	halves := []moldcast.Range{{First: all.First, Next: r.First}, {First: r.Next, Next: all.Next}}
	isHole := func(v *View) {
		t.Helper()
		hs := v.Holes()
		if len(hs) != 1 || hs[0].Range != r || hs[0].Reason != moldcast.Damaged || hs[0].Time == 0 {
			t.Fatalf("holes %v, want %v damaged", hs, r)
		}
		if diff := cmp.Diff(halves, v.Coverage()); diff != "" {
			t.Fatal(diff)
		}
		if first, head := v.Bounds(); first != all.First || head != all.Next {
			t.Fatalf("bounds %d %d", first, head)
		}
		if again := readAll(t, v); cmp.Diff(lost, again) != "" {
			t.Fatalf("then lost %v", again)
		}
		runs, err := Root(t.Context(), v, all)
		if err != nil || len(runs) != 2 || runs[0].Range != halves[0] {
			t.Fatalf("%v %v", runs, err)
		}
	}
	isHole(v)
	third := create(t, o)
	isHole(view(t, third, ref)) // by the record
	if list, err := third.Sessions(); err != nil || list[0].Holes != 1 || list[0].HeadSeq != all.Next || list[0].NextSeq != r.First {
		t.Fatalf("%+v %v", list, err)
	}
	third.Close()

	w, err := a.Writer(ref.Channel, ref.Session, ref.Take)
	if err != nil {
		t.Fatal(err)
	}
	if h := w.Held().Holes; len(h) != 1 || h[0].Range != r || h[0].Before == 0 || h[0].After == 0 {
		t.Fatalf("%+v", h)
	}
	// Twice, so that the second block is of the same segment and none of them
	// overlaps; what is around it is held already.
	mid := r.First + moldcast.Seq(r.Len()/2)
	n := put(t, w, piece(r.First-3, int(mid-r.First)+3))
	if n != int(mid-r.First) {
		t.Fatalf("stored %d", n)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, w.View()); len(got) != 1 || got[0] != (moldcast.Range{First: mid, Next: r.Next}) {
		t.Fatalf("lost %v", got)
	}
	n += put(t, w, piece(mid, int(r.Next-mid)+10))
	put(t, w, piece(all.Next, 20)) // beside it, in the same block
	if n != int(r.Len()) {
		t.Fatalf("stored %d of %d", n, r.Len())
	}
	all.Next += 20
	check(t, w.View(), all)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a, ref), all)
	fixed := func(a *Archive) {
		t.Helper()
		v := view(t, a, ref)
		check(t, v, all)
		if h := v.Holes(); len(h) != 0 {
			t.Fatalf("holes %v", h)
		}
		rep := verify(t, a)
		if len(rep.Replaced) == 0 || rep.Replaced[0].FirstSeq != r.First || rep.Replaced[0].LastSeq != r.Next-1 || rep.Replaced[0].Segment != "000001.seg" {
			t.Fatalf("replaced: %v", rep.Replaced)
		}
		runs, err := Root(t.Context(), v, moldcast.Range{First: all.First, Next: all.Next - 20})
		if diff := cmp.Diff(whole, runs); err != nil || diff != "" {
			t.Fatal(diff, err)
		}
		for _, at := range []moldcast.Seq{r.First, mid, r.Next - 1} {
			b, n, err := v.Append(nil, at, 1, 1400, true)
			if n != 1 || err != nil || string(b[2:]) != string(message(at)) {
				t.Fatalf("%d %v", n, err)
			}
		}
	}
	fixed(a)
	a.Close()
	// The one that had the session open all the while.
	theirs.s.mu.Lock()
	theirs.s.loaded = time.Time{}
	theirs.s.mu.Unlock()
	theirs.Bounds()
	check(t, theirs, all)
	other.Close()
	a = create(t, o)
	fixed(a)
	a.Close()
}

// What reads well again is taken off the record by a verification.
func TestDamageWithdrawn(t *testing.T) {
	o := testOptions(vfs.NewMem())
	a := create(t, o)
	all := moldcast.Range{First: 1, Next: 3000}
	ref := closed(t, a, "S", 5, all)
	s := view(t, a, ref).s
	x, err := s.segs[0].loadIndex(a.table)
	if err != nil {
		t.Fatal(err)
	}
	s.damaged(s.segs[0], x.blocks[1].first, moldcast.Range{}, errNotInBlock)
	if lost := readAll(t, view(t, a, ref)); len(lost) != 1 {
		t.Fatalf("lost %v", lost)
	}
	a.Close()
	a = create(t, o)
	if lost := readAll(t, view(t, a, ref)); len(lost) != 1 {
		t.Fatalf("lost %v", lost)
	}
	verify(t, a)
	a.Close()
	a = create(t, o)
	check(t, view(t, a, ref), all)
	a.Close()
}

// A failing read that is no damage puts nothing on record.
func TestNoDamageOfErrors(t *testing.T) {
	o := testOptions(vfs.NewMem())
	a := create(t, o)
	ref := closed(t, a, "S", 5, moldcast.Range{First: 1, Next: 3000})
	s := view(t, a, ref).s
	for _, err := range []error{io.ErrUnexpectedEOF, errors.New("input/output error"), ErrClosed} {
		s.damaged(s.segs[0], 1, moldcast.Range{First: 1, Next: 10}, err)
	}
	check(t, view(t, a, ref), moldcast.Range{First: 1, Next: 3000})
	if _, err := o.FS.Stat(o.FS.PathJoin(s.dir, damageDir)); !isNotExist(err) {
		t.Errorf("a record was made: %v", err)
	}
	a.Close()
}

// readAll reads v whole, checks every message, and lists what is damaged.
func readAll(t testing.TB, v *View) (lost []moldcast.Range) {
	t.Helper()
	c := v.Cursor(0)
	defer c.Close()
	for {
		p, err := c.Next()
		var bad *CorruptError
		switch {
		case err == io.EOF:
			return lost
		case errors.As(err, &bad):
			if n := len(lost); n > 0 && lost[n-1].Next == bad.Range.First {
				lost[n-1].Next = bad.Range.Next
				continue
			}
			lost = append(lost, bad.Range)
			continue
		case err != nil:
			t.Fatal(err)
		}
		at := p.First
		for m := p.Msgs; m.Len() > 0; at++ {
			if got := m.Next(); string(got) != string(message(at)) {
				t.Fatalf("message %d is %q", at, got)
			}
		}
	}
}
