package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moldtape/moldtape/moldcast"
)

// sealRef names a seal.
type sealRef struct {
	Segment int    `json:"segment"`
	Sum     string `json:"sum"`
}

// SegmentFault is a segment that is not there, or of which it cannot be told
// what it holds. What it held shows as a hole, or not at all where it was the
// first or last of the session.
type SegmentFault struct {
	Segment string // directory of the segment, within the archive
	Err     error
}

func (f SegmentFault) Error() string {
	why, _ := strings.CutPrefix(f.Err.Error(), f.Segment+": ")
	return fmt.Sprintf("%s: %s; what it held is not known", f.Segment, why)
}

func (f SegmentFault) Unwrap() error { return f.Err }

var (
	errAbsent = errors.New("it is missing, and there is no record that it was pruned; restore it from a copy")
	errPartly = errors.New("part of its headers or tail records is damaged")
)

// numbers is a range of segment numbers, both ends inclusive.
type numbers struct{ first, last int }

func (n numbers) String() string {
	if n.first == n.last {
		return segmentName(n.first)
	}
	return segmentName(n.first) + " to " + segmentName(n.last)
}

// absent lists the segments up to the newest, there or on record, of which
// names, those of a recording's directory, has neither the directory nor a
// record that it was pruned.
func absent(names []string, newest int) (out []numbers) {
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
		if n, ok := parseSegmentName(name); ok {
			newest = max(newest, n)
		}
	}
	for n := 1; n <= newest; n++ {
		if there[segmentName(n)] || there[prunedRecord(n)] {
			continue
		}
		if k := len(out); k > 0 && out[k-1].last == n-1 {
			out[k-1].last = n
		} else {
			out = append(out, numbers{n, n})
		}
	}
	return out
}

// prunedRecord is the name of the file that says that a segment was pruned.
func prunedRecord(n int) string { return fmt.Sprintf("%06d.pruned", n) }

// noteSeal takes up which seal is the newest. REQUIRES: mu.
func (s *session) noteSeal(r sealRef) {
	if r.Segment > s.newest.Segment {
		s.newest = r
	}
}

// Faults lists the segments that are missing, or of which it cannot be told
// what they hold. What is known to be held by a segment that cannot be read is
// no matter of this: it is a *CorruptError when it is read.
func (v *View) Faults() []SegmentFault {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults()
}

// faults is Faults. REQUIRES: mu.
func (s *session) faults() (out []SegmentFault) {
	prefix := s.ref.Channel + "/" + recordingName(s.ref.Session, s.ref.Take) + "/"
	for _, n := range s.absent {
		out = append(out, SegmentFault{prefix + n.String(), errAbsent})
	}
	for _, g := range s.segs {
		if g.unknown != nil && g.seal == nil {
			out = append(out, SegmentFault{g.name, g.unknown})
		}
	}
	return out
}

// Holds reports whether r is held whole.
func (v *View) Holds(r moldcast.Range) bool {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if part, gone := s.gone.Cut(r); r.Empty() || gone || part != r {
		return false // part of it was pruned
	}
	return len(s.cov.Missing(r)) == 0
}
