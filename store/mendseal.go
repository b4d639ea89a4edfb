package store

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
)

// seals mends damaged seals, and makes those again that are lost, as others
// tell.
func (m *mending) seals() error {
	c, err := m.a.chainOf(m.s)
	if err != nil {
		return err
	}
	for i := range c {
		l := &c[i]
		if l.sum != "" || l.pruned || m.lost && l.file != nil {
			continue
		}
		want := "" // the sum that others name
		if i+1 < len(c) {
			want = c[i+1].prev
		}
		next := want != ""
		if info, err := readSessionInfo(m.a, m.s.dir); !next && err == nil && info.Newest != nil && info.Newest.Segment == l.num {
			want = info.Newest.Sum
		}
		if l.file == nil && want == "" {
			continue // not sealed yet, for all that is known
		}
		prev := ""
		if i > 0 {
			prev = c[i-1].sum
		}
		if err := m.seal(l, prev, want, next && i+1 < len(c)); err != nil {
			return err
		}
	}
	return nil
}

// remakeSeals makes seals again that are gone, where others name them, before
// their segments are taken for such as were never sealed: sealed anew they would
// come out otherwise. It reports whether there were any. REQUIRES: the lock of
// the recording.
func (s *session) remakeSeals() bool {
	open, _ := s.unsealed()
	if len(open) == 0 {
		return false
	}
	s.mu.Lock()
	newest := s.newest.Segment
	for _, g := range s.segs {
		if g.sealed {
			newest = max(newest, g.num)
		}
	}
	s.mu.Unlock()
	if open[0].num > newest {
		return false
	}
	m := &mending{a: s.a, s: s, ref: s.ref, by: "recovery", lost: true}
	if err := m.seals(); err != nil {
		s.a.o.Log.Error("a seal that is gone cannot be made again", "session", s.ref, "err", err)
	}
	for _, x := range m.out {
		if !x.Restored {
			s.a.o.Log.Error("a seal that is gone cannot be made again", "file", x.File, "why", x.How)
		}
	}
	return slices.ContainsFunc(m.out, func(x Mended) bool { return x.Restored })
}

// link is one seal of a recording, by what there is of it.
type link struct {
	num       int
	pruned    bool
	file      []byte // seal.json, nil without one
	prev, sum string // empty where it is damaged
}

// chainOf reads the chain of seals, by number.
func (a *Archive) chainOf(s *session) (out []link, err error) {
	names, err := a.o.FS.List(s.dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if n, ok := parsePrunedName(name); ok && !slices.Contains(names, segmentName(n)) {
			l := link{num: n, pruned: true}
			if t, err := s.readTombstone(n); err == nil {
				l.prev, l.sum = t.Prev, t.SealSum
			}
			out = append(out, l)
		}
		n, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		l := link{num: n}
		l.file, err = readFile(a.o.FS, a.o.FS.PathJoin(a.o.FS.PathJoin(s.dir, name), sealFile))
		if err != nil && !isNotExist(err) {
			return nil, err
		}
		if x, err := parseSeal(l.file); err == nil && x.identity == identity(s.ref) && x.Segment == n {
			l.prev, l.sum = x.Prev, x.Sum
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(x, y link) int { return x.num - y.num })
	return out, nil
}

// seal mends one seal: prev is the sum of the one before, want its own as
// others have it, empty where none do; next is whether the next seal does.
func (m *mending) seal(l *link, prev, want string, next bool) error {
	g := newSegment(l.num, m.fs().PathJoin(m.s.dir, segmentName(l.num)), identity(m.ref))
	name := m.name(segmentName(l.num) + "/" + sealFile)
	b, sum, err := m.resealed(g, l, prev)
	if err == nil && want != "" && sum != want {
		err = fmt.Errorf("made again from the segment its sum is %s, others name %s", short(sum), short(want))
	}
	how, proven := "made again from the segment; it is what the next seal names", true
	switch {
	case err == nil && next:
	case err == nil && want != "":
		how = "made again from the segment; it is what " + sessionFile + " names"
	case err == nil && ownSum(l.file) == sum:
		how = "made again from the segment; its own sum is what it was"
	case m.unflipSeal(g, l.file, want):
		how, b = unflipped, l.file
		x, _ := parseSeal(b)
		sum = x.Sum
	case next || b == nil || m.lost:
		m.failed(name, fmt.Sprintf("%v; the messages are read by their headers, but that nothing was exchanged is not proven any more", err))
		return nil
	default:
		x, err := parseSeal(b)
		if err != nil {
			return err
		}
		at := m.a.o.Clock().UTC()
		x.Rebuilt = &at
		if b, err = x.encode(); err != nil {
			return err
		}
		how, proven, sum = "made again from the segment; it was the newest, and nothing proves that it is what was written: it says so itself", false, x.Sum
		m.unproven = true
	}
	if err := writeFile(m.fs(), g.dir, sealFile, b); err != nil {
		return err
	}
	l.sum = sum
	return m.restored(name, proven, how)
}

// ownSum is the sum that a damaged seal begins with.
func ownSum(b []byte) string {
	if n := len(sealHead); len(b) > n+64 {
		return string(b[n : n+64])
	}
	return ""
}

// unflipSeal turns back a bit of a seal, that must then be what others name.
func (m *mending) unflipSeal(g *segment, b []byte, want string) bool {
	return unflip(b, func(b []byte) bool {
		if !sumMatches(b, sealHead) || want != "" && ownSum(b) != want {
			return false
		}
		x, err := parseSeal(b)
		return err == nil && x.identity == g.id && x.Segment == g.num
	})
}

// resealed makes a seal again: from the store of the segment, and what it
// keeps of its seal; of older ones that do not, from what can be read of the
// damaged seal.
func (m *mending) resealed(g *segment, l *link, prev string) (b []byte, sum string, err error) {
	h, err := m.a.table.acquire(g)
	if err != nil {
		return nil, "", err
	}
	defer m.a.table.forget(g)
	defer m.a.table.release(h)
	if h.db == nil {
		return nil, "", h.openErr
	}
	s, x, err := g.describe(h.db, prev)
	if err != nil {
		return nil, "", err
	}
	if len(x.bad) > 0 {
		return nil, "", fmt.Errorf("its block %x is damaged too: %w", x.bad[0].key, x.bad[0].err)
	}
	var at sealedAt
	switch err := readMeta(h.db, metaSealed, &at); {
	case errors.Is(err, pebble.ErrNotFound):
		if fieldOf(l.file, "sealed", &at.Sealed); at.Sealed.IsZero() {
			at.Sealed = m.modified(g)
		}
		fieldOf(l.file, "node", &at.Node)
	case err != nil:
		return nil, "", err
	}
	s.Sealed, s.Node = at.Sealed, at.Node
	s.BytesDisk = dirBytes(m.fs(), g.dir)
	for _, name := range []string{sealFile, sealFile + tmpSuffix} { // neither was there
		if st, err := m.fs().Stat(m.fs().PathJoin(g.dir, name)); err == nil {
			s.BytesDisk -= uint64(st.Size())
		}
	}
	b, err = s.encode()
	return b, s.Sum, err
}

// fieldOf reads one member of a damaged object, where that is as it was.
func fieldOf(b []byte, name string, v any) {
	if _, rest, ok := bytes.Cut(b, []byte(`,"`+name+`":`)); ok {
		_ = json.NewDecoder(bytes.NewReader(rest)).Decode(v)
	}
}

// modified is when the seal of g was written, by the file system; else now.
func (m *mending) modified(g *segment) time.Time {
	if st, err := m.fs().Stat(m.fs().PathJoin(g.dir, sealFile)); err == nil {
		return st.ModTime().UTC()
	}
	return m.a.o.Clock().UTC()
}

// sealedAt is the record "sealed" of a segment: of its seal, what does not
// follow from what it holds.
type sealedAt struct {
	Sealed time.Time `json:"sealed"`
	Node   string    `json:"node"`
}

// describe is the seal of a segment by its store, without when and by whom it
// was sealed and its size on disk, and its index. prev is the sum of the seal
// before.
func (g *segment) describe(db *pebble.DB, prev string) (*seal, *index, error) {
	var digests [][32]byte
	x, err := readIndex(db, g.id.Session, &digests)
	if err != nil {
		return nil, nil, err
	}
	info, err := readSegmentInfo(db)
	if err != nil {
		return nil, nil, err
	}
	s := &seal{
		Format: FormatVersion, identity: g.id, Segment: g.num, Opened: info.Opened, Prev: prev,
		Messages: x.messages, Packets: x.packets, Marks: x.markCount, MarkMin: x.markMin, MarkMax: x.markMax,
		Ended: x.ended, End: x.end, BytesRaw: x.bytesRaw, BytesStored: x.bytesStored,
		FirstTime: x.minTime, LastTime: x.maxTime, Blocks: len(digests),
		Coverage: [][2]moldcast.Seq{}, Holes: []holeRecord{}, Lines: []lineCount{}, BlockHashes: make([]string, len(digests)),
	}
	for _, r := range x.coverage() {
		s.Coverage = append(s.Coverage, [2]moldcast.Seq{r.First, r.Next - 1})
	}
	s.Patches = inclusive(x.patches)
	for i, d := range digests {
		s.BlockHashes[i] = hex.EncodeToString(d[:])
	}
	holes, err := readHoles(db)
	if err != nil {
		return nil, nil, err
	}
	if s.Fills, err = readFills(db); err != nil {
		return nil, nil, err
	}
	if s.Captures, err = readCaptures(db); err != nil {
		return nil, nil, err
	}
	lines, err := readLines(db)
	if err != nil {
		return nil, nil, err
	}
	s.Holes, s.Lines = append(s.Holes, holes...), append(s.Lines, lines...)
	if s.Merge, err = readMerge(db); err != nil {
		return nil, nil, err
	}
	s.facts, err = readFacts(db)
	return s, x, err
}
