package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// What is put beyond the end of a session is refused once that is known; what
// was put before is a fault of the list, and of Verify, from then on.
func TestSnapshotBeyondEnd(t *testing.T) {
	a := create(t, pruneOptions(vfs.NewMem()))
	defer a.Close()
	w := writer(t, a, "S")
	ref := w.Ref()
	fillRange(t, w, moldcast.Range{First: 1, Next: 101}, 7)
	for _, q := range []moldcast.Seq{50, 101, 900} {
		putSnapshot(t, a, ref, q, stateAt(q, 10)) // where it ends is not known yet
	}
	if _, known, err := a.EndOf(ref); known || err != nil {
		t.Errorf("known %v, %v", known, err)
	}
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 101, Stamp: 5})
	check := func(when string) {
		t.Helper()
		if _, err := a.PutSnapshot(ref, 901, strings.NewReader("x"), ""); !errors.Is(err, ErrSnapshotSeq) {
			t.Errorf("%s: put beyond the end: %v", when, err)
		}
		if end, known, err := a.EndOf(ref); end != 101 || !known || err != nil {
			t.Errorf("%s: ends at %d, %v, %v", when, end, known, err)
		}
		list, err := a.Snapshots(ref)
		if err != nil || len(list) != 3 || list[0].Fault != "" || list[1].Fault != "" || !strings.Contains(list[2].Fault, "ended with 100") {
			t.Errorf("%s: %+v, %v", when, list, err)
		}
	}
	check("captured")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check("sealed")
	rep, err := a.Verify(t.Context(), nil, nil)
	if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].Problem, "snapshot at 900") {
		t.Errorf("%+v, %v", rep.Faults, err)
	}
}
