package store

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

// Where numbers only rise, what is not held is no hole: not in lists, for
// watermarks, cursors or verification, now or after a restart; and only there.
func TestRisingNumbers(t *testing.T) {
	for _, first := range starts {
		for _, increments := range []moldcast.Increments{moldcast.Rising, moldcast.Consecutive} {
			t.Run(string(increments), func(t *testing.T) { rising(t, first, increments == moldcast.Rising) })
		}
	}
}

func rising(t *testing.T, first moldcast.Seq, sparse bool) {
	o := testOptions(vfs.NewMem())
	o.Sync = time.Hour // nothing but Flush makes it durable
	a := create(t, o)
	w, err := a.Writer("c", sess(t, "S"), 0)
	if err != nil {
		t.Fatal(err)
	}
	feed := moldcast.Feed{Increments: moldcast.Consecutive, Snapshot: moldcast.SnapshotNext}
	if sparse {
		feed.Increments = moldcast.Rising
	}
	w.Feed(feed)
	pieces := []moldcast.Range{{First: first, Next: first + 10}, {First: first + 20, Next: first + 21}, {First: first + 30, Next: first + 35}}
	head := first + 35
	for _, i := range []int{0, 2, 1} { // one comes late
		if _, err := w.Append(piece(pieces[i].First, int(pieces[i].Len()))); err != nil {
			t.Fatal(err)
		}
	}
	if next, durable, got := w.Watermarks(); got != head || sparse && (next != head || durable > first) || !sparse && next != first+10 {
		t.Errorf("before a sync: next %d, durable %d, head %d", next, durable, got)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := first + 10
	holes := 2
	if sparse {
		want, holes = head, 0
	}
	check := func(v *View, when string) {
		t.Helper()
		info := v.Info()
		if info.NextSeq != want || info.DurableSeq != want || info.HeadSeq != head || info.Holes != holes || info.Messages != 16 || len(v.Holes()) != holes {
			t.Errorf("%s: %+v, %d holes; want next and durable %d, %d holes", when, info, len(v.Holes()), want, holes)
		}
		if d := cmp.Diff(pieces, v.Coverage()); d != "" {
			t.Errorf("%s: coverage: %s", when, d)
		}
		var got []moldcast.Seq
		met := 0
		c := v.Cursor(0)
		defer c.Close()
		for {
			p, err := c.Next()
			var hole *moldcast.HoleError
			switch {
			case errors.Is(err, io.EOF):
			case errors.As(err, &hole):
				met++
				continue
			case err != nil:
				t.Fatal(err)
			default:
				for m, q := p.Msgs, p.First; m.Len() > 0; q++ {
					if string(m.Next()) != string(message(q)) {
						t.Fatalf("%s: other bytes at %d", when, q)
					}
					got = append(got, q)
				}
				continue
			}
			break
		}
		if len(got) != 16 || met != holes {
			t.Errorf("%s: a cursor gives %d messages and %d holes, want 16 and %d", when, len(got), met, holes)
		}
		_, _, err := v.Append(nil, first+15, 1, 1000, true)
		var hole *moldcast.HoleError
		if !errors.As(err, &hole) || (hole.Hole.Reason == moldcast.Absent) != sparse {
			t.Errorf("%s: reading what nobody heard: %v", when, err)
		}
	}
	check(w.View(), "live")
	if next, durable, _ := w.Watermarks(); next != want || durable != want {
		t.Errorf("after a sync: next %d, durable %d, want %d", next, durable, want)
	}
	if h := w.Held(); len(h.Holes) != holes || h.Next != want {
		t.Errorf("held %+v", h)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a, err = Open("archive", o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ref := Ref{"c", sess(t, "S"), 1}
	v, err := a.View(ref)
	if err != nil {
		t.Fatal(err)
	}
	check(v, "opened again")
	d, err := a.Show(ref)
	if err != nil {
		t.Fatal(err)
	}
	if feed.EnsureDefaults(); d.Feed != feed || len(d.HoleList) != holes {
		t.Errorf("feed %+v, want %+v; holes %v", d.Feed, feed, d.HoleList)
	}
	rep, err := a.Verify(t.Context(), nil, nil)
	if err != nil || len(rep.Faults) > 0 {
		t.Errorf("verify: %v %v", err, rep.Faults)
	}
}

// What is held and not durable is found again however little is durable.
func TestFirm(t *testing.T) {
	o := testOptions(vfs.NewMem())
	a := create(t, o)
	defer a.Close()
	w, err := a.Writer("c", sess(t, "S"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Feed(moldcast.Feed{Increments: moldcast.Rising})
	for _, q := range []moldcast.Seq{100, 200, 300, 150, 50} {
		if _, err := w.Append(piece(q, 2)); err != nil {
			t.Fatal(err)
		}
		if _, durable, _ := w.Watermarks(); durable > q {
			t.Errorf("durable %d with %d not durable", durable, q)
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if next, durable, head := w.Watermarks(); durable != head || next != head {
			t.Errorf("after %d: next %d, durable %d, head %d", q, next, durable, head)
		}
	}
}
