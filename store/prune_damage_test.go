package store

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// What is damaged where a pruned session begins is a hole of it like any
// other: it is no part of what was pruned.
func TestDamageBehindWhatWasPruned(t *testing.T) {
	for _, all := range []bool{false, true} {
		o := pruneOptions(vfs.NewMem())
		o.noSalvage = true
		a := create(t, o)
		r := moldcast.Range{First: 1, Next: 4001}
		ref := parts(t, a, "S", r, 4)
		rep := prune(t, a, Retention{Keep: -1, MaxBytes: int64(show(t, a, ref).BytesDisk * 3 / 5)})
		first := rep.Items[len(rep.Items)-1].LastSeq + 1
		if rep.Removed == 0 || first >= 3001 {
			t.Fatalf("%+v", rep)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		a = create(t, o)
		for n := 1 + rep.Removed; n <= 4; n++ {
			alter(t, a, ref, n, func(db *pebble.DB) {
				for i, k := range keys(t, db, keyBody) {
					if all || n == 1+rep.Removed && i == 0 {
						flip(t, db, k, -1)
					}
				}
			})
		}
		lost := moldcast.Range{First: first, Next: r.Next}
		c := view(t, a, ref).Cursor(0)
		var bad *CorruptError
		if _, err := c.Next(); !errors.As(err, &bad) || bad.Range.First != first {
			t.Fatalf("the first read behind what was pruned: %v, want damage from %d", err, first)
		}
		c.Close()
		if !all {
			lost.Next = bad.Range.Next
		}
		if rep, err := a.Verify(t.Context(), nil, nil); err != nil || len(rep.Faults) == 0 {
			t.Fatal(rep.Faults, err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		a = create(t, o) // another process
		if d := show(t, a, ref); d.FirstSeq != first || d.NextSeq != first || d.HeadSeq != r.Next || d.Holes == 0 {
			t.Fatalf("all %v: first %d, next %d, head %d, %d holes; want %d, %d, %d, and some", all, d.FirstSeq, d.NextSeq, d.HeadSeq, d.Holes, first, first, r.Next)
		}
		w := writer(t, a, "S")
		if h := w.Held(); h.First != first || len(h.Holes) == 0 || h.Holes[0].Range.First != first || h.Holes[0].Reason != moldcast.Damaged {
			t.Fatalf("held %+v", h)
		}
		fillRange(t, w, lost, 7)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if d := show(t, a, ref); d.FirstSeq != first || d.NextSeq != r.Next || d.Holes != 0 {
			t.Fatalf("mended: %+v", d)
		}
		check(t, view(t, a, ref), moldcast.Range{First: first, Next: r.Next})
	}
}
