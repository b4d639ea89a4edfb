package store

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// ErrPruned is what a PrunedError is.
var ErrPruned = errors.New("pruned")

// PrunedError: the range was held, and was removed by retention. It is also a
// *moldcast.HoleError, so that who reads across holes reads across it, but
// nobody is to ask for it again.
type PrunedError struct {
	Range moldcast.Range
}

func (e *PrunedError) Error() string { return fmt.Sprintf("%v was pruned", e.Range) }

// Unwrap is ErrPruned and a *moldcast.HoleError.
func (e *PrunedError) Unwrap() []error {
	return []error{ErrPruned, &moldcast.HoleError{Hole: moldcast.Hole{Range: e.Range, Reason: moldcast.Pruned}}}
}

const (
	prunedSuffix = ".pruned" // 000001.pruned: what is kept of a segment that was pruned
	leavesSuffix = ".leaves" // 000001.leaves: leaves of the content hash over it
	goneSuffix   = ".gone"   // 000001.seg.gone: a pruned segment until it is unlinked
)

func prunedName(n int) string { return fmt.Sprintf("%06d%s", n, prunedSuffix) }
func leavesName(n int) string { return fmt.Sprintf("%06d%s", n, leavesSuffix) }
func goneName(n int) string   { return segmentName(n) + goneSuffix }

// parsePrunedName is the inverse of prunedName.
func parsePrunedName(name string) (int, bool) {
	digits, ok := strings.CutSuffix(name, prunedSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0 && prunedName(n) == name
}

// parseGoneName is the inverse of goneName.
func parseGoneName(name string) (int, bool) {
	seg, ok := strings.CutSuffix(name, goneSuffix)
	if !ok {
		return 0, false
	}
	return parseSegmentName(seg)
}

// tombstone is NNNNNN.pruned: what is kept of a segment that was pruned. It is
// its seal without the hashes of its blocks, and without what was damaged, in
// the same form, and holds where there is no directory of the segment: it is
// written before that is removed.
type tombstone struct {
	seal
	SealSum   string    `json:"seal_sum"` // of the seal.json that was
	Pruned    time.Time `json:"pruned"`
	Leaves    int       `json:"leaves"`
	LeavesSum string    `json:"leaves_sum"` // SHA-256 of NNNNNN.leaves; empty without one
}

func (t *tombstone) encode() ([]byte, error) {
	b, _, err := encodeSeal(t)
	return b, err
}

func parseTombstone(b []byte) (*tombstone, error) {
	s, err := parseSeal(b) // it is one, but for what it is the sum of
	if err != nil {
		return nil, err
	}
	t := new(tombstone)
	if err := json.Unmarshal(b, t); err != nil {
		return nil, err
	}
	t.seal = *s
	t.Sum = t.SealSum
	return t, nil
}

// readTombstone reads what is kept of segment n.
func (s *session) readTombstone(n int) (*tombstone, error) {
	fs := s.a.o.FS
	path := fs.PathJoin(s.dir, prunedName(n))
	s.a.mu.Lock()
	t := s.a.tombs[path]
	s.a.mu.Unlock()
	if t != nil {
		return t, nil
	}
	b, err := readFile(fs, path)
	if err == nil {
		t, err = parseTombstone(b)
	}
	if err == nil && (t.identity != identity(s.ref) || t.Segment != n) {
		err = errors.New("it is of another segment")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", prunedName(n), err)
	}
	t.BlockHashes = nil
	return t, nil
}

// heldOf is what is held of what g was sealed with: all but what is damaged,
// unless it was replaced. REQUIRES: mu.
func (s *session) heldOf(g *segment) (out []moldcast.Range) {
	for _, r := range g.seal.ranges() {
		for !r.Empty() {
			part, held := s.cov.Cut(r)
			if held {
				out = append(out, part)
			}
			r.First = part.Next
		}
	}
	return out
}

// bury takes up that a segment was pruned: what it held and nothing else
// holds is gone. g is the segment where it is known, else nil. REQUIRES: mu.
func (s *session) bury(t *tombstone, g *segment) {
	if slices.ContainsFunc(s.tombs, func(x *tombstone) bool { return x.Segment == t.Segment }) {
		return
	}
	i, _ := slices.BinarySearchFunc(s.tombs, t.Segment, func(x *tombstone, n int) int { return x.Segment - n })
	s.tombs = slices.Insert(s.tombs, i, t)
	if g != nil {
		s.segs = slices.DeleteFunc(s.segs, func(x *segment) bool { return x == g })
		s.runs = slices.DeleteFunc(s.runs, func(r segRun) bool { return r.seg == g })
		// What another segment holds of it too is read from there from now on.
		for _, o := range s.segs {
			s.retake(o)
		}
		s.lost = slices.DeleteFunc(s.lost, func(l lostSpan) bool { return l.seg == g })
		s.applyDamage()
	} else {
		if t.Marks > 0 {
			s.noteMark(t.MarkMin)
		}
		if t.Ended {
			s.noteEnd(t.End)
		}
		for _, h := range t.Holes {
			s.holes.put(h)
		}
		s.facts.merge(t.facts)
	}
	for _, r := range t.ranges() {
		s.cov.Add(r)
		s.synced.Add(r)
		s.gone.Add(r)
	}
	for _, run := range s.runs {
		s.gone.Remove(run.r)
	}
	if s.w != nil {
		s.w.publish()
		s.w.raiseFloor()
	}
}

// retake maps to o what it holds and no other is mapped to. REQUIRES: mu.
func (s *session) retake(o *segment) {
	switch x := o.idx.Load(); {
	case o.seal != nil:
		for _, r := range o.seal.ranges() {
			s.addDurable(r, o)
		}
	case x != nil:
		for _, r := range x.coverage() {
			s.addDurable(r, o)
		}
	}
}

// findPruned takes up what was pruned, by whomever: names are those of the
// session's directory.
func (s *session) findPruned(names []string) {
	for _, name := range names {
		n, ok := parsePrunedName(name)
		if !ok || slices.Contains(names, segmentName(n)) {
			continue
		}
		s.mu.Lock()
		known := slices.ContainsFunc(s.tombs, func(x *tombstone) bool { return x.Segment == n })
		s.mu.Unlock()
		if known {
			continue
		}
		t, err := s.readTombstone(n)
		if err != nil {
			s.a.o.Log.Error("what was kept of a pruned segment cannot be read", "session", s.ref, "err", err)
			continue
		}
		s.a.mu.Lock()
		s.a.tombs[s.a.o.FS.PathJoin(s.dir, name)] = t
		s.a.mu.Unlock()
		s.mu.Lock()
		var g *segment
		if i := slices.IndexFunc(s.segs, func(x *segment) bool { return x.num == n }); i >= 0 {
			g = s.segs[i]
		}
		s.bury(t, g)
		s.mu.Unlock()
		if g != nil {
			s.a.table.forget(g)
			s.a.cache.forget(g)
		}
	}
}

// refreshPruned looks for what was pruned.
func (s *session) refreshPruned() error {
	names, err := s.a.o.FS.List(s.dir)
	if err == nil {
		s.findPruned(names)
	}
	return err
}

// vanished looks whether err came of reading a segment that was pruned, or
// merged, meanwhile; true means that the session knows now.
func (s *session) vanished(g *segment, err error) bool {
	if g.isMoved() {
		return true
	}
	s.mu.Lock()
	foreign := s.foreign(g)
	s.mu.Unlock()
	look := s.refreshPruned
	switch {
	case errors.Is(err, errGone):
	case isDamage(err) && foreign:
		look = s.refresh
	default:
		return false
	}
	if look() != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.Contains(s.segs, g)
}

// foreign reports whether g is not sealed and this process does not write it:
// it was read as it lay there, and a writer that came since may have merged
// it. REQUIRES: mu.
func (s *session) foreign(g *segment) bool { return s.w == nil && !g.sealed }

// retained is the first sequence that is held or damaged, or the head where
// nothing is any more. REQUIRES: mu; something was pruned.
func (s *session) retained() moldcast.Seq {
	q := s.cov.Bounds().First
	if len(s.lost) > 0 {
		q = min(q, s.lost[0].r.First)
	}
	for {
		part, gone := s.gone.Cut(moldcast.Range{First: q, Next: ^moldcast.Seq(0)})
		if !gone {
			held, ok := s.cov.Cut(part)
			l := s.lostAt(q)
			switch {
			case ok:
				return q
			case l != nil && l.r.First < held.Next:
				return max(q, l.r.First)
			case held.Next == ^moldcast.Seq(0):
				return s.cov.Bounds().Next
			}
			part = held
		}
		q = part.Next
	}
}

// floor is Writer.Floor as it is now. REQUIRES: mu.
func (s *session) floor() moldcast.Seq {
	if s.gone.Len() == 0 {
		return 0
	}
	first, gone := s.first(), s.gone.Ranges()
	for i := len(gone) - 1; i >= 0; i-- {
		if gone[i].Next <= first {
			return gone[i].Next
		}
	}
	return 0
}

// heldRanges is coverage without what was pruned. REQUIRES: mu.
func (s *session) heldRanges() []moldcast.Range {
	if s.gone.Len() == 0 {
		return s.cov.Ranges()
	}
	held := s.cov.Clone()
	for _, r := range s.gone.Ranges() {
		held.Remove(r)
	}
	return held.Ranges()
}

// encodeLeaves is NNNNNN.leaves: "MTLEAF1\n", then of each leaf its first
// and next sequence u64, the length u8 of what follows, and the hash of the
// leaf (32 bytes) or the state of its beginning (block.LeafStateSize).
func encodeLeaves(leaves []block.Leaf) []byte {
	b := []byte(leavesHead)
	for _, l := range leaves {
		b = binary.BigEndian.AppendUint64(b, uint64(l.Range.First))
		b = binary.BigEndian.AppendUint64(b, uint64(l.Range.Next))
		data := l.State
		if data == nil {
			data = l.Hash[:]
		}
		b = append(append(b, byte(len(data))), data...)
	}
	return b
}

const leavesHead = "MTLEAF1\n"

func parseLeaves(b []byte) ([]block.Leaf, error) {
	bad := errors.New("leaves are damaged")
	rest, ok := strings.CutPrefix(string(b), leavesHead)
	if !ok {
		return nil, bad
	}
	var out []block.Leaf
	for b = []byte(rest); len(b) > 0; {
		if len(b) < 17 || len(b) < 17+int(b[16]) {
			return nil, bad
		}
		l := block.Leaf{Range: moldcast.Range{First: moldcast.Seq(binary.BigEndian.Uint64(b)), Next: moldcast.Seq(binary.BigEndian.Uint64(b[8:]))}}
		switch data := b[17 : 17+int(b[16])]; len(data) {
		case 32:
			copy(l.Hash[:], data)
		case block.LeafStateSize:
			l.State = data
		default:
			return nil, bad
		}
		if l.Range.Empty() || l.Range.First == 0 {
			return nil, bad
		}
		out = append(out, l)
		b = b[17+int(b[16]):]
	}
	return out, nil
}

// readLeaves reads and checks the leaves kept with t.
func (s *session) readLeaves(t *tombstone) ([]block.Leaf, error) {
	if t.LeavesSum == "" {
		return nil, nil
	}
	b, err := readFile(s.a.o.FS, s.a.o.FS.PathJoin(s.dir, leavesName(t.Segment)))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != t.LeavesSum {
		return nil, fmt.Errorf("%s: its sum does not match", leavesName(t.Segment))
	}
	return parseLeaves(b)
}

// leafBook is the leaves, and beginnings of leaves, that were kept of what was
// pruned, by where they begin, the longest first.
type leafBook map[moldcast.Seq][]block.Leaf

// find is the longest that begins at q and ends at most at next.
func (b leafBook) find(q, next moldcast.Seq) (block.Leaf, bool) {
	for _, l := range b[q] {
		if l.Range.Next <= next {
			return l, true
		}
	}
	return block.Leaf{}, false
}

// keptLeaves reads the leaves that were kept.
func (s *session) keptLeaves() leafBook {
	s.mu.Lock()
	tombs := slices.Clone(s.tombs)
	s.mu.Unlock()
	out := leafBook{}
	for _, t := range tombs {
		leaves, err := s.readLeaves(t)
		if err != nil {
			s.a.o.Log.Error("the content hash of what was pruned is lost", "session", s.ref, "segment", segmentName(t.Segment), "err", err)
			continue
		}
		for _, l := range leaves {
			out[l.Range.First] = append(out[l.Range.First], l)
		}
	}
	for _, ls := range out {
		slices.SortFunc(ls, func(x, y block.Leaf) int { return cmp.Compare(y.Range.Next, x.Range.Next) })
	}
	return out
}
