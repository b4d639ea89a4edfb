package store

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// statsOf is what Show tells of captures.
func statsOf(t *testing.T, a *Archive, ref Ref) (out []string) {
	t.Helper()
	d, err := a.Show(ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.CaptureList {
		if c.Node != "test" || c.Until.Before(c.Began) {
			t.Fatalf("%+v", c)
		}
		out = append(out, string(c.Stats))
	}
	return out
}

// TestCaptured: what each capture measured survives its end, a crash, and that
// it was written again into another segment; the newest of each holds.
func TestCaptured(t *testing.T) {
	mem := newMemFS()
	o := testOptions(mem)
	a := create(t, o)
	w := writer(t, a, "S")
	w.Captured(1000, 2000, []byte(`{"v":1}`))
	flush := func() {
		t.Helper()
		if err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for q := moldcast.Seq(1); w.Segments() < 2; q += 500 {
		if q > 100_000 {
			t.Fatal("no second segment: nothing is tested")
		}
		fillRange(t, w, moldcast.Range{First: q, Next: q + 500}, 5)
		flush()
	}
	w.Captured(1000, 3000, []byte(`{"v":2}`))
	flush()
	w.Captured(1000, 4000, []byte(`{"v":3}`)) // not flushed
	ref := w.Ref()

	o.FS = mem.crash(0, rand.New(rand.NewPCG(1, 1)))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`{"v":3}`}, statsOf(t, a, ref)); diff != "" {
		t.Fatal(diff)
	}
	a.Close()

	a = create(t, o)
	got := statsOf(t, a, ref)
	if len(got) != 1 || got[0] != `{"v":2}` && got[0] != `{"v":3}` {
		t.Fatalf("after a crash: %v", got)
	}
	w = writer(t, a, "S")
	w.Captured(500, 600, []byte(`"earlier"`))
	w.Captured(5000, 6000, []byte(`"later"`))
	w.Captured(5000, 5500, []byte(`"last"`)) // the clock was set back
	w.Captured(7000, 8000, []byte(`{`))      // no JSON
	w.Captured(7000, 8000, []byte(`"`+strings.Repeat("x", maxStats)+`"`))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{`"earlier"`, got[0], `"last"`}
	if diff := cmp.Diff(want, statsOf(t, a, ref)); diff != "" {
		t.Fatal(diff)
	}
	a.Close()
	a = create(t, o)
	if diff := cmp.Diff(want, statsOf(t, a, ref)); diff != "" {
		t.Fatalf("read again: %s", diff)
	}
	if rep, err := a.Verify(t.Context(), nil, nil); err != nil || len(rep.Faults) > 0 {
		t.Fatalf("%+v, %v", rep.Faults, err)
	}
}

// TestAddCaptures: in whatever order records are found, each capture is there
// once, with its newest.
func TestAddCaptures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type key struct {
			began moldcast.Stamp
			node  string
		}
		newest := map[key]moldcast.Stamp{}
		var all []captureRecord
		for range rapid.IntRange(0, 30).Draw(t, "records") {
			c := captureRecord{
				Began: moldcast.Stamp(rapid.IntRange(1, 5).Draw(t, "began")), Until: moldcast.Stamp(rapid.IntRange(6, 20).Draw(t, "until")),
				Node: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node"), Stats: json.RawMessage("1"),
			}
			k := key{c.Began, c.Node}
			newest[k] = max(newest[k], c.Until)
			all = addCaptures(all, []captureRecord{c})
		}
		if len(all) != len(newest) {
			t.Fatalf("%d of %d: %v", len(all), len(newest), all)
		}
		for i, c := range all {
			if newest[key{c.Began, c.Node}] != c.Until || i > 0 && all[i-1].Began > c.Began {
				t.Fatalf("%v", all)
			}
		}
	})
}
