package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// damageDir is the directory of a recording with what is known to be damaged:
// one file a block. A sealed segment never changes, so it cannot say so
// itself; and whoever meets the damage, a reader without any lock perhaps,
// can write a file of its own.
const damageDir = "damaged"

// damageRecord is one block that failed its checks.
type damageRecord struct {
	Segment int               `json:"segment"`
	Block   moldcast.Seq      `json:"block"`  // its key; of what has no sound header its first sequence
	Ranges  [][2]moldcast.Seq `json:"ranges"` // inclusive
	Problem string            `json:"problem"`
	Time    moldcast.Stamp    `json:"time_ns"` // when it was found
	Found   string            `json:"found"`   // by: read or verify
}

func (d *damageRecord) name() string { return fmt.Sprintf("%06d-%d.json", d.Segment, d.Block) }

func (d *damageRecord) ranges() []moldcast.Range {
	out := make([]moldcast.Range, 0, len(d.Ranges))
	for _, r := range d.Ranges {
		if r[0] != 0 && r[0] <= r[1] && r[1] != ^moldcast.Seq(0) {
			out = append(out, moldcast.Range{First: r[0], Next: r[1] + 1})
		}
	}
	return out
}

func inclusive(rs []moldcast.Range) [][2]moldcast.Seq {
	out := make([][2]moldcast.Seq, len(rs))
	for i, r := range rs {
		out[i] = [2]moldcast.Seq{r.First, r.Next - 1}
	}
	return out
}

// lostSpan is a damaged range that nothing replaces yet.
type lostSpan struct {
	r   moldcast.Range
	seg *segment
	err error
}

// recordedDamage is what is wrong with a block by a record.
type recordedDamage struct{ problem string }

func (e recordedDamage) Error() string { return "on record as damaged: " + e.problem }

var (
	errWrongKey = errors.New("block under a wrong key")
	errNoBody   = errors.New("its body is missing")
)

// isDamage reports whether err says that bytes came back wrong, as opposed to
// not at all: a disk that cannot be read at the moment damages nothing.
func isDamage(err error) bool {
	var c *block.CorruptError
	return errors.As(err, &c) || pebble.IsCorruptionError(err) || errors.Is(err, pebble.ErrNotFound) ||
		errors.Is(err, errNoHeader) || errors.Is(err, errNotInBlock) || errors.Is(err, errWrongKey) || errors.Is(err, errNoBody) || errors.Is(err, errNothingLeft) || errors.Is(err, errPanic) ||
		errors.As(err, new(recordedDamage))
}

// readDamage reads the records of a recording that are not in known.
func (a *Archive) readDamage(dir string, known func(name string) bool) (out []damageRecord) {
	fs := a.o.FS
	dir = fs.PathJoin(dir, damageDir)
	names, err := fs.List(dir)
	if err != nil {
		return nil // there is none
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") || known(name) {
			continue
		}
		var d damageRecord
		b, err := readFile(fs, fs.PathJoin(dir, name))
		if err == nil {
			err = parseSummed(b, &d)
		}
		if err != nil || d.name() != name {
			a.o.Log.Warn("record of damage cannot be read; what it names is checked anew", "file", fs.PathJoin(dir, name), "err", err)
			continue
		}
		out = append(out, d)
	}
	return out
}

// writeDamage puts d on record, where something can be written.
func (a *Archive) writeDamage(dir string, d damageRecord) {
	fs := a.o.FS
	err := makeDir(fs, fs.PathJoin(dir, damageDir))
	if err == nil {
		err = writeSummed(fs, fs.PathJoin(dir, damageDir), d.name(), d)
	}
	if err != nil {
		a.o.Log.Warn("damage could not be put on record", "file", fs.PathJoin(dir, d.name()), "err", err)
	}
}

// clearDamage takes d off the record: the block reads well after all.
func (a *Archive) clearDamage(dir string, d damageRecord) {
	fs := a.o.FS
	if err := fs.Remove(fs.PathJoin(fs.PathJoin(dir, damageDir), d.name())); err != nil && !isNotExist(err) {
		a.o.Log.Warn("record of damage could not be removed", "file", d.name(), "err", err)
	}
}

// loadDamage reads what was put on record meanwhile.
func (s *session) loadDamage() []damageRecord {
	s.mu.Lock()
	known := map[string]bool{}
	for i := range s.damage {
		known[s.damage[i].name()] = true
	}
	s.mu.Unlock()
	return s.a.readDamage(s.dir, func(name string) bool { return known[name] })
}

// takeDamage takes up records. REQUIRES: mu.
func (s *session) takeDamage(ds []damageRecord) {
	for _, d := range ds {
		if s.damageAt(d.Segment, d.Block) < 0 {
			s.damage = append(s.damage, d)
		}
	}
	s.applyDamage()
}

func (s *session) damageAt(seg int, block moldcast.Seq) int {
	return slices.IndexFunc(s.damage, func(d damageRecord) bool { return d.Segment == seg && d.Block == block })
}

// applyDamage takes what is on record as damaged out of coverage, where the
// damaged block is still the one that holds it. REQUIRES: mu.
func (s *session) applyDamage() {
	for i := range s.damage {
		d := &s.damage[i]
		for _, r := range d.ranges() {
			for _, part := range s.dropRuns(r, d.Segment) {
				s.lose(part, d)
			}
		}
	}
}

// lose takes a range out of coverage. REQUIRES: mu.
func (s *session) lose(r moldcast.Range, d *damageRecord) {
	k := slices.IndexFunc(s.segs, func(g *segment) bool { return g.num == d.Segment })
	if k < 0 {
		return
	}
	s.found(r)
	i, _ := slices.BinarySearchFunc(s.lost, r.First, func(l lostSpan, q moldcast.Seq) int {
		if l.r.First < q {
			return -1
		}
		return 1
	})
	s.lost = slices.Insert(s.lost, i, lostSpan{r: r, seg: s.segs[k], err: recordedDamage{d.Problem}})
	s.cov.Remove(r)
	s.synced.Remove(r)
	s.holes.put(holeRecord{First: r.First, Next: r.Next, Reason: moldcast.Damaged, Time: d.Time})
}

// found takes a range off the list of what is lost. REQUIRES: mu.
func (s *session) found(r moldcast.Range) {
	for i := 0; i < len(s.lost); i++ {
		l := s.lost[i]
		in := l.r.Intersect(r)
		if in.Empty() {
			continue
		}
		var rest []lostSpan
		if l.r.First < in.First {
			rest = append(rest, lostSpan{moldcast.Range{First: l.r.First, Next: in.First}, l.seg, l.err})
		}
		if in.Next < l.r.Next {
			rest = append(rest, lostSpan{moldcast.Range{First: in.Next, Next: l.r.Next}, l.seg, l.err})
		}
		s.lost = slices.Replace(s.lost, i, i+1, rest...)
		i += len(rest) - 1
	}
}

// lostAt is what is lost at q, or the first of it above. REQUIRES: mu.
func (s *session) lostAt(q moldcast.Seq) *lostSpan {
	lo, hi := 0, len(s.lost)
	for lo < hi {
		if m := (lo + hi) / 2; s.lost[m].r.Next > q {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == len(s.lost) {
		return nil
	}
	return &s.lost[lo]
}

// dropRuns takes out of the map of segments what of r lies in segment num (0:
// in any), and returns it. REQUIRES: mu.
func (s *session) dropRuns(r moldcast.Range, num int) (out []moldcast.Range) {
	for i := s.runAfter(r.First); i < len(s.runs) && s.runs[i].r.First < r.Next; {
		run := s.runs[i]
		if num != 0 && run.seg.num != num {
			i++
			continue
		}
		in := run.r.Intersect(r)
		out = append(out, in)
		var rest []segRun
		if run.r.First < in.First {
			rest = append(rest, segRun{moldcast.Range{First: run.r.First, Next: in.First}, run.seg})
		}
		if in.Next < run.r.Next {
			rest = append(rest, segRun{moldcast.Range{First: in.Next, Next: run.r.Next}, run.seg})
		}
		s.runs = slices.Replace(s.runs, i, i+1, rest...)
		i += len(rest)
	}
	return out
}

// addPatch takes up a range of a block of g that replaces what lies
// elsewhere. REQUIRES: mu.
func (s *session) addPatch(r moldcast.Range, g *segment) {
	s.dropRuns(r, 0)
	s.addRun(r, g)
	s.cov.Add(r)
	s.synced.Add(r)
	if len(s.lost) > 0 {
		s.found(r)
	}
	if s.holes.overlaps(r) {
		s.holes.put(holeRecord{First: r.First, Next: r.Next, Reason: holeFilled})
	}
}

// damaged puts on record that what a block holds cannot be read: it counts as
// a hole from then on, for every reader. first is the key of the block, whose
// ranges the index tells; without one only r is meant. An err that is no
// damage changes nothing.
func (s *session) damaged(g *segment, first moldcast.Seq, r moldcast.Range, err error) {
	if !isDamage(err) {
		return
	}
	written := g.isWritten()
	d := damageRecord{Segment: g.num, Block: first, Problem: oneLine(err.Error()), Time: moldcast.StampOf(s.a.o.Clock()), Found: "read"}
	s.mu.Lock()
	ranges := []moldcast.Range{r}
	if x := g.idx.Load(); x != nil && first != 0 {
		ranges = x.runsOf(first)
	}
	if first == 0 {
		d.Block = r.First
	}
	d.Ranges = inclusive(ranges)
	// A segment of this process whose store failed may be opened anew right now.
	unsettled := s.foreign(g) || !g.sealed && !written
	if s.damageAt(d.Segment, d.Block) >= 0 || !slices.Contains(s.segs, g) || unsettled {
		s.mu.Unlock()
		return
	}
	s.damage = append(s.damage, d)
	s.applyDamage()
	if s.w != nil {
		s.w.publish()
	}
	s.mu.Unlock()
	s.a.o.Log.Error("damaged: never served, counts as a hole; `moldtape repair` mends it from another source", "segment", g.name, "ranges", ranges, "err", err)
	s.a.writeDamage(s.dir, d)
}

// damagedSegment puts on record that nothing of g can be read.
func (s *session) damagedSegment(g *segment, err error) {
	if !isDamage(err) {
		return
	}
	s.mu.Lock()
	var all []moldcast.Range
	for _, run := range s.runs {
		if run.seg == g {
			all = append(all, run.r)
		}
	}
	s.mu.Unlock()
	for _, r := range all {
		s.damaged(g, 0, r, err)
	}
}

// damagedIn reports whether a block of segment num is on record as damaged.
// REQUIRES: mu.
func (s *session) damagedIn(num int) bool {
	return slices.ContainsFunc(s.damage, func(d damageRecord) bool { return d.Segment == num })
}

// runsOf are the runs of the block whose key is first.
func (x *index) runsOf(first moldcast.Seq) (out []moldcast.Range) {
	for i := range x.runs {
		if x.blocks[x.runs[i].blk].first == first {
			out = append(out, x.runs[i].r)
		}
	}
	return out
}
