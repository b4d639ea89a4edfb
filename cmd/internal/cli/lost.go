package cli

import (
	"fmt"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// bounded reports whether both ends are asked for.
func (r *rangeFlags) bounded() bool {
	return (r.fromSeq != "" || r.fromTime != "") && (r.toSeq != "" || r.toTime != "")
}

// lostSegments is the fault of a recording of which segments are missing or
// cannot be read: any part of it may have been in those. It is nil for a range
// that was asked for by both its ends and is held whole.
func lostSegments(v *store.View, want moldcast.Range, ranges *rangeFlags) error {
	faults := v.Faults()
	if len(faults) == 0 || ranges.bounded() && v.Holds(want) {
		return nil
	}
	more := ""
	if n := len(faults) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Errorf("%w%s; a range that is held whole can be had: --from-seq N --to-seq N", faults[0], more)
}
