package store

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// A hole on record that is filled message by message does not leave a record of
// each: the seal of a mended segment, or of an hour that came late, stays small.
func TestFilledOnRecordInFewRecords(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Sync, o.BlockSize, o.SegmentSize = 10*time.Second, 256<<10, 1<<30
	a := create(t, o)
	w := writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1, Next: 100}, 7)
	hole := moldcast.Range{First: 100, Next: 4100}
	w.Hole(moldcast.Hole{Range: hole, Reason: moldcast.Unrecoverable, Time: 77})
	fillRange(t, w, moldcast.Range{First: hole.Next, Next: 5000}, 7)
	fillRange(t, w, moldcast.Range{First: 2000, Next: hole.Next}, 1)
	fillRange(t, w, moldcast.Range{First: hole.First, Next: 2000}, 1)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	v := view(t, a, w.Ref())
	check(t, v, moldcast.Range{First: 1, Next: 5000})
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if n := len(v.s.segs[0].seal.Holes); n > 100 || n < 2 {
		t.Errorf("%d records of %d messages that filled a hole, want a few", n, hole.Len())
	}
	if len(v.s.holes.recs) != 0 {
		t.Errorf("still on record: %+v", v.s.holes.recs)
	}
}
