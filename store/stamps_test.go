package store

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

type stampedPiece struct {
	r moldcast.Range
	t moldcast.Stamp
}

// piecesOf reads r by a cursor: whole pieces, with the bytes of their messages.
func piecesOf(t fataler, v *View, r moldcast.Range) (out []stampedPiece, bytes []int) {
	c := v.Cursor(r.First)
	defer c.Close()
	for {
		p, err := c.Next()
		switch {
		case err == io.EOF:
			return out, bytes
		case errors.As(err, new(*moldcast.HoleError)):
			continue
		case errors.As(err, new(*CorruptError)):
			continue
		case err != nil:
			t.Fatalf("%v", err)
		}
		in := p.Range().Intersect(r)
		if p.First >= r.Next {
			return out, bytes
		}
		m, _ := p.Msgs.Split(int(in.Len()))
		out = append(out, stampedPiece{in, p.Time})
		bytes = append(bytes, len(m.Framed())-m.Len()*moldcast.LengthSize)
	}
}

// fataler is what tests and properties have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkStamps compares what a Stamps tells of r with what a cursor reads of it.
func checkStamps(t fataler, v *View, r moldcast.Range) (spans int, stats StampsStats) {
	t.Helper()
	want, bytes := piecesOf(t, v, r)
	s := v.Stamps()
	defer s.Close()
	var all []Span
	if err := s.Spans(r, func(x Span) error { all = append(all, x); return nil }); err != nil {
		t.Fatalf("%v", err)
	}
	stats = s.Stats()
	var got []stampedPiece
	for _, x := range all {
		n := len(got)
		if err := s.Each(x.Range, func(r moldcast.Range, at moldcast.Stamp) { got = append(got, stampedPiece{r, at}) }); err != nil {
			t.Fatalf("%v: %v", x.Range, err)
		}
		part := got[n:]
		if len(part) == 0 || len(got) > len(want) || !slices.Equal(part, want[n:len(got)]) {
			t.Fatalf("%v: packets %v, want those of %v", x, part, want)
		}
		lo, hi, size := part[0].t, part[0].t, 0
		for i, p := range part {
			lo, hi = min(lo, p.t), max(hi, p.t)
			size += bytes[n+i]
		}
		if x.Min != lo || x.Max != hi || x.Packets != 0 && (x.Packets != len(part) || x.Bytes != size) {
			t.Fatalf("%+v: want times %d..%d, and if a whole block %d packets, %d bytes", x, lo, hi, len(part), size)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	return len(all), stats
}

// Of whatever came in whatever order, live, stored, damaged and mended, in any
// range: the stamps are those that a cursor reads.
func TestStampsAreTheCursors(t *testing.T) {
	patched, wholes := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SampledFrom(starts).Draw(rt, "first")
		ops := scatter(rt, first)
		o := testOptions(vfs.NewMem())
		o.noSalvage = true
		o.BlockSize = rapid.SampledFrom([]int{1 << 10, 4 << 10}).Draw(rt, "block")
		o.Sync, o.Wait, o.MergeSaves = time.Hour, true, -1
		a, err := OpenOrCreate("archive", o)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { a.Close() }()
		w, err := a.Writer("default", sess(t, "S"), 0)
		if err != nil {
			rt.Fatal(err)
		}
		w.Start(first)
		for _, op := range ops {
			if err := op(w); err != nil {
				rt.Fatal(err)
			}
		}
		lookAt := func(v *View) {
			lo, head := v.Bounds()
			r := moldcast.Range{First: lo, Next: head}
			checkStamps(rt, v, r)
			cut := func(name string) moldcast.Seq {
				return lo + moldcast.Seq(rapid.IntRange(0, int(r.Len())).Draw(rt, name))
			}
			x, y := cut("from"), cut("to")
			spans, _ := checkStamps(rt, v, moldcast.Range{First: min(x, y), Next: max(x, y)})
			wholes = max(wholes, spans)
		}
		lookAt(w.View())
		if err := w.Close(); err != nil {
			rt.Fatal(err)
		}
		ref := w.Ref()
		lookAt(view(t, a, ref))
		if !rapid.Bool().Draw(rt, "damage") {
			return
		}
		a.Close() // what it decoded is forgotten
		if a, err = OpenOrCreate("archive", o); err != nil {
			rt.Fatal(err)
		}
		damaged := rapid.IntRange(0, 100).Draw(rt, "block")
		alter(t, a, ref, 1, func(db *pebble.DB) {
			all := keys(t, db, keyHeader)
			flip(t, db, seqKey(nil, keyBody, seqOf(all[damaged%len(all)])), -9)
		})
		v := view(t, a, ref)
		lo, head := v.Bounds()
		all := moldcast.Range{First: lo, Next: head}
		before, _ := piecesOf(rt, v, all) // finds the damage
		lookAt(v)
		if w, err = a.Writer(ref.Channel, ref.Session, ref.Take); err != nil {
			rt.Fatal(err)
		}
		for _, h := range w.View().Holes() {
			if h.Reason != moldcast.Damaged {
				continue
			}
			patched++
			for q := h.Range.First; q < h.Range.Next; {
				p := piece(q, min(7, int(h.Range.Next-q)))
				if _, err := w.Append(p); err != nil {
					rt.Fatal(err)
				}
				q = p.Range().Next
			}
		}
		lookAt(w.View())
		if err := w.Close(); err != nil {
			rt.Fatal(err)
		}
		v = view(t, a, ref)
		lookAt(v)
		if after, _ := piecesOf(rt, v, all); len(after) <= len(before) {
			rt.Fatalf("%d pieces when mended, %d before", len(after), len(before))
		}
	})
	if patched == 0 || wholes < 5 {
		t.Errorf("%d patches, at most %d spans", patched, wholes)
	}
}

// Spans come from headers, but for the ends of a range.
func TestStampsReadHeaders(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	r := moldcast.Range{First: 5, Next: 20005}
	ref := closed(t, a, "S", 3, r)
	v := view(t, a, ref)
	spans, stats := checkStamps(t, v, r)
	if spans < 50 || stats.Blocks != 0 {
		t.Errorf("%d spans, for which %+v was read", spans, stats)
	}
	if _, stats = checkStamps(t, v, moldcast.Range{First: r.First + 2, Next: r.Next - 1}); stats.Blocks != 2 {
		t.Errorf("cut at both ends: read %+v", stats)
	}
}
