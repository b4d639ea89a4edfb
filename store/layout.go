package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// FormatVersion is the version of the archive's layout.
const FormatVersion = 1

// segmentFormat is the version of the store of a segment that is not sealed.
// 1: tail records are blocks of their own; 2: they are records of streams.
// Both are read, 2 is written.
const segmentFormat = 2

const (
	archiveFile = "moldtape.json"
	sessionFile = "session.json"
	sealFile    = "seal.json"
	segSuffix   = ".seg"
	tmpSuffix   = ".tmp"
)

// segmentName is the directory name of segment n, from 1.
func segmentName(n int) string { return fmt.Sprintf("%06d%s", n, segSuffix) }

// parseSegmentName is the inverse of segmentName.
func parseSegmentName(name string) (int, bool) {
	digits, ok := strings.CutSuffix(name, segSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0 && segmentName(n) == name
}

// recordingName is the directory name of a session and take.
func recordingName(s moldcast.Session, take int) string {
	return s.String() + "@" + strconv.Itoa(take)
}

// parseRecordingName is the inverse of recordingName.
func parseRecordingName(name string) (moldcast.Session, int, bool) {
	text, digits, ok := strings.Cut(name, "@")
	if !ok {
		return moldcast.Session{}, 0, false
	}
	s, err := moldcast.ParseSession(text)
	if err != nil {
		return moldcast.Session{}, 0, false
	}
	n, err := strconv.Atoi(digits)
	return s, n, err == nil && n > 0 && recordingName(s, n) == name
}

// Key ranges of a segment.
const (
	keyHeader  = 'h' // first u64: header of a block with messages
	keyBody    = 'b' // first u64: its body
	keyMarks   = 'm' // block id u64: a block of marks alone, header and body together
	keyHole    = 'o' // time u64, first u64: hole record
	keyFill    = 'f' // time u64, first u64: record of what was brought in later
	keyCapture = 'c' // began u64: what a capture measured
	keyTail    = 't' // block id, n, both as by appendOrdered: tail record
	keyMeta    = 'x' // name: facts of the segment
)

var (
	metaSegment = []byte("xsegment")
	metaFacts   = []byte("xfacts")
	metaLines   = []byte("xlines")
	metaMerged  = []byte("xmerged")
	metaSealed  = []byte("xsealed")
)

func seqKey(dst []byte, kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, kind), n)
}

// tailKey is the key of tail record n of a block, and tailsOf that before all
// of them: every byte of a key is in the log with each record.
func tailKey(id uint64, n uint32) []byte { return appendOrdered(tailsOf(id), uint64(n)) }

func tailsOf(id uint64) []byte { return appendOrdered([]byte{keyTail}, id) }

// tailBlock is the id of the block of a tail record.
func tailBlock(key []byte) (id uint64, ok bool) {
	if len(key) == 13 && key[1] == 0 { // format 1: id u64, n u32
		return seqOf(key[:9]), true
	}
	if len(key) < 2 || key[1] > 8 || len(key) < 2+int(key[1]) {
		return 0, false
	}
	for _, b := range key[2 : 2+key[1]] {
		id = id<<8 | uint64(b)
	}
	return id, true
}

// appendOrdered appends v so that bytes are in the order of numbers: the count
// of its bytes, then those, big-endian, without zeros before.
func appendOrdered(dst []byte, v uint64) []byte {
	n := (bits.Len64(v) + 7) / 8
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return append(append(dst, byte(n)), b[8-n:]...)
}

func holeKey(dst []byte, h holeRecord) []byte {
	return binary.BigEndian.AppendUint64(seqKey(dst, keyHole, uint64(h.Time)), uint64(h.First))
}

// joined is header and body under one key: the header's length as u32 before.
func joined(dst, header, body []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(header)))
	return append(append(dst, header...), body...)
}

var errJoined = errors.New("record is cut short")

func splitJoined(b []byte) (header, body []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errJoined
	}
	n := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(n) > uint64(len(b)) {
		return nil, nil, errJoined
	}
	return b[:n], b[n:], nil
}

// holeRecord says why a range is missing; a reason of holeFilled, that it no
// longer is. The newest record of a sequence holds.
type holeRecord struct {
	First  moldcast.Seq        `json:"first_seq"`
	Next   moldcast.Seq        `json:"next_seq"`
	Reason moldcast.HoleReason `json:"reason"`
	Time   moldcast.Stamp      `json:"time_ns"`
}

const holeFilled moldcast.HoleReason = "filled"

func (h holeRecord) rng() moldcast.Range { return moldcast.Range{First: h.First, Next: h.Next} }

// archiveInfo is moldtape.json.
type archiveInfo struct {
	Format int       `json:"format"`
	Node   string    `json:"node"`
	Made   time.Time `json:"made"`
}

// facts are what is known of a session beyond its messages.
type facts struct {
	Start  moldcast.Seq `json:"start_seq,omitempty"` // where it begins, when that was put on record
	Groups []string     `json:"groups,omitempty"`    // of its lines
	Ending *ending      `json:"ending,omitempty"`    // nil: what marks say
	// Feed is what its sender does; nil: not known, which is the default.
	Feed   *moldcast.Feed `json:"feed,omitempty"`
	Shared *shared        `json:"shared,omitempty"` // nil: nothing
}

// shared is what a take has in common with one before it, whose messages are to
// be copied from there.
type shared struct {
	Take   int               `json:"take"`
	Ranges [][2]moldcast.Seq `json:"ranges"` // inclusive
}

// ending is what is known of the end of a session beyond its marks. Of two, the
// one with the higher Rev holds.
type ending struct {
	Rev  int          `json:"rev"`
	Told bool         `json:"told,omitempty"`          // End is the end, whatever marks say: one of them was withdrawn
	End  moldcast.Seq `json:"end_seq,omitempty"`       // 0: none
	By   string       `json:"superseded_by,omitempty"` // what the sender went on as, without an End of Session
}

func (f *facts) merge(o facts) {
	if o.Start != 0 && (f.Start == 0 || o.Start < f.Start) {
		f.Start = o.Start
	}
	if len(o.Groups) > 0 {
		f.Groups = o.Groups
	}
	if o.Ending != nil && (f.Ending == nil || o.Ending.Rev > f.Ending.Rev) {
		f.Ending = o.Ending
	}
	if o.Feed != nil {
		f.Feed = o.Feed
	}
	if o.Shared != nil {
		f.Shared = o.Shared
	}
}

// identity says whose a file or segment is.
type identity struct {
	Channel string           `json:"channel"`
	Session moldcast.Session `json:"session"`
	Take    int              `json:"take"`
}

// sessionInfo is session.json. All of it stands in the segments too.
type sessionInfo struct {
	Format int `json:"format"`
	identity
	Made   time.Time `json:"made"`
	Newest *sealRef  `json:"newest_seal,omitempty"` // so that the loss of the last segments is noticed
	facts
}

// segmentInfo is the record "segment" of a segment.
type segmentInfo struct {
	Format int `json:"format"`
	identity
	Segment int       `json:"segment"`
	Node    string    `json:"node"`
	Opened  time.Time `json:"opened"`
}

// lineCount is what one line brought first.
type lineCount struct {
	Line     uint8  `json:"line"`
	Pieces   uint64 `json:"pieces"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

func addLines(to []lineCount, add []lineCount) []lineCount {
next:
	for _, l := range add {
		for i := range to {
			if to[i].Line == l.Line {
				to[i].Pieces += l.Pieces
				to[i].Messages += l.Messages
				to[i].Bytes += l.Bytes
				continue next
			}
		}
		to = append(to, l)
	}
	return to
}

// seal is seal.json: what a sealed segment holds, and its link in the chain
// of custody. In the file a member "sum" stands before these: SHA-256 of
// everything after it, in hexadecimal.
type seal struct {
	Format int `json:"format"`
	identity
	Segment int       `json:"segment"`
	Node    string    `json:"node"`
	Opened  time.Time `json:"opened"`
	Sealed  time.Time `json:"sealed"`
	Prev    string    `json:"prev"` // sum of the seal before; empty in a first one

	Rebuilt *time.Time `json:"rebuilt,omitempty"` // when it was made again, and nothing proved that it is as it was
	facts
	Coverage    [][2]moldcast.Seq `json:"coverage"`          // inclusive
	Patches     [][2]moldcast.Seq `json:"patches,omitempty"` // of it, what blocks hold that replace damaged ones
	Messages    uint64            `json:"messages"`
	Packets     uint64            `json:"packets"`
	Marks       uint64            `json:"marks"`
	MarkMin     moldcast.Seq      `json:"mark_min_seq"`
	MarkMax     moldcast.Seq      `json:"mark_max_seq"`
	Ended       bool              `json:"ended"`
	End         moldcast.Seq      `json:"end_seq"`
	BytesRaw    uint64            `json:"bytes_raw"`
	BytesStored uint64            `json:"bytes_stored"`
	BytesDisk   uint64            `json:"bytes_disk"`
	FirstTime   moldcast.Stamp    `json:"first_time_ns"`
	LastTime    moldcast.Stamp    `json:"last_time_ns"`
	Holes       []holeRecord      `json:"holes"`
	Fills       []fillRecord      `json:"fills,omitempty"`
	Captures    []captureRecord   `json:"captures,omitempty"`
	Lines       []lineCount       `json:"lines"`
	Merge       *mergeRecord      `json:"merge,omitempty"`
	Blocks      int               `json:"blocks"`
	BlockHashes []string          `json:"block_hashes"` // digests, in key order: those with messages, then those of marks alone

	Sum string `json:"-"`
}

func (s *seal) ranges() []moldcast.Range { return exclusive(s.Coverage) }

func exclusive(in [][2]moldcast.Seq) []moldcast.Range {
	out := make([]moldcast.Range, len(in))
	for i, c := range in {
		out[i] = moldcast.Range{First: c[0], Next: c[1] + 1}
	}
	return out
}

const sealHead = `{"sum":"`

// encode is the file, and sets Sum.
func (s *seal) encode() (b []byte, err error) {
	b, s.Sum, err = encodeSeal(s)
	return b, err
}

// encodeSeal is the file of a seal or of a tombstone, whose members follow the
// sum of all behind it.
func encodeSeal(members any) (b []byte, sum string, err error) {
	doc, err := json.Marshal(members)
	if err != nil {
		return nil, "", err
	}
	rest := append([]byte(`",`), doc[1:]...)
	rest = append(rest, '\n')
	h := sha256.Sum256(rest)
	sum = hex.EncodeToString(h[:])
	return append([]byte(sealHead+sum), rest...), sum, nil
}

// parseSeal reads the file; it says what is wrong.
func parseSeal(b []byte) (*seal, error) {
	const n = len(sealHead)
	if len(b) < n+64 || string(b[:n]) != sealHead {
		return nil, errors.New(sealFile + ": not a seal")
	}
	sum := sha256.Sum256(b[n+64:])
	if hex.EncodeToString(sum[:]) != string(b[n:n+64]) {
		return nil, errors.New(sealFile + ": its sum does not match")
	}
	s := new(seal)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", sealFile, err)
	}
	s.Sum = string(b[n : n+64])
	if s.Format != FormatVersion {
		return nil, &VersionError{Path: sealFile, Got: s.Format, Want: FormatVersion}
	}
	var next moldcast.Seq
	for i, c := range s.Coverage {
		if !valid(c) || i > 0 && c[0] <= next {
			return nil, errors.New(sealFile + ": coverage is not in order")
		}
		next = c[1] + 1
	}
	for _, c := range s.Patches { // in the order of their blocks
		if !valid(c) {
			return nil, errors.New(sealFile + ": no range of patches")
		}
	}
	return s, nil
}

// valid reports whether an inclusive range is one of messages.
func valid(r [2]moldcast.Seq) bool {
	return r[0] > 0 && r[1] >= r[0] && r[1] < ^moldcast.Seq(0)
}

// readFile reads a small file whole.
func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// writeFile puts b at dir/name so that a crash leaves the old file or the new
// one: written beside it, synced, renamed, and the directory synced.
func writeFile(fs vfs.FS, dir, name string, b []byte) error {
	path := fs.PathJoin(dir, name)
	tmp := path + tmpSuffix
	err := writeSynced(fs, tmp, b)
	if err == nil {
		err = fs.Rename(tmp, path)
	}
	if err != nil {
		_ = fs.Remove(tmp)
		return err
	}
	return syncDir(fs, dir)
}

func writeSynced(fs vfs.FS, path string, b []byte) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte(nil), b...)) // Write may change its argument
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// sumHead begins a small file that carries a sum: SHA-256 in hexadecimal of
// all that comes after it and its closing quote. Older ones have none.
const sumHead = "{\n  \"sum\": \""

// writeSummed is writeJSON with a sum.
func writeSummed(fs vfs.FS, dir, name string, v any) error {
	b, err := encodeSummed(v)
	if err != nil {
		return err
	}
	return writeFile(fs, dir, name, b)
}

func encodeSummed(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	rest := append([]byte(","), b[1:]...)
	rest = append(rest, '\n')
	sum := sha256.Sum256(rest)
	return append([]byte(sumHead+hex.EncodeToString(sum[:])+"\""), rest...), nil
}

// writeArchiveInfo writes moldtape.json, which no lock guards: under a name of
// its own first. With fresh the error wraps ErrExists where another process
// was first.
func writeArchiveInfo(fs vfs.FS, dir string, info archiveInfo, fresh bool) error {
	b, err := encodeSummed(info)
	if err != nil {
		return err
	}
	path := fs.PathJoin(dir, archiveFile)
	tmp := fmt.Sprintf("%s.%d.%x", archiveFile, os.Getpid(), rand.Uint64())
	defer func() { _ = fs.Remove(fs.PathJoin(dir, tmp+tmpSuffix)) }()
	if err := writeSynced(fs, fs.PathJoin(dir, tmp+tmpSuffix), b); err != nil {
		return err
	}
	err = errors.ErrUnsupported
	if fresh {
		err = fs.Link(fs.PathJoin(dir, tmp+tmpSuffix), path)
	}
	switch {
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("%w: %s", ErrExists, dir)
	case err != nil: // no links here, or it is to be replaced
		if err := fs.Rename(fs.PathJoin(dir, tmp+tmpSuffix), path); err != nil {
			return err
		}
	}
	return syncDir(fs, dir)
}

var errSum = errors.New("its sum does not match")

// parseSummed reads what writeSummed wrote.
func parseSummed(b []byte, v any) error {
	const n = len(sumHead)
	if len(b) > n+65 && string(b[:n]) == sumHead {
		sum := sha256.Sum256(b[n+65:])
		if string(b[n:n+64]) != hex.EncodeToString(sum[:]) {
			return errSum
		}
	}
	return json.Unmarshal(b, v)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}

// makeDir makes a directory and what is missing above it, and the entry for
// each in its parent durable.
func makeDir(fs vfs.FS, dir string) error {
	var parents []string // of those that are made, the innermost first
	for d := dir; ; {
		if _, err := fs.Stat(d); err == nil {
			break
		}
		up := fs.PathDir(d)
		if up == d {
			break
		}
		parents = append(parents, up)
		d = up
	}
	if len(parents) == 0 {
		return nil
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range slices.Backward(parents) {
		if err := syncDir(fs, d); err != nil {
			// So that the next who asks makes and syncs it again, and does not
			// take it for durable. What is not empty stays.
			for i, d := 0, dir; i < len(parents); i++ {
				_ = fs.Remove(d)
				d = fs.PathDir(d)
			}
			return err
		}
	}
	return nil
}

// dirBytes is the size of the files of a directory.
func dirBytes(fs vfs.FS, dir string) (n uint64) {
	names, err := fs.List(dir)
	if err != nil {
		return 0
	}
	for _, name := range names {
		if st, err := fs.Stat(fs.PathJoin(dir, name)); err == nil && !st.IsDir() {
			n += uint64(st.Size())
		}
	}
	return n
}

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// holeMap is which records hold where: sorted, disjoint.
type holeMap struct{ recs []holeRecord }

// put lets h hold over its range.
func (m *holeMap) put(h holeRecord) {
	if h.Next <= h.First {
		return
	}
	i := m.after(h.First)
	j := i
	for j < len(m.recs) && m.recs[j].First < h.Next {
		j++
	}
	var in [3]holeRecord
	k := 0
	if i < j && m.recs[i].First < h.First {
		in[k] = m.recs[i]
		in[k].Next = h.First
		k++
	}
	if h.Reason != holeFilled {
		in[k] = h
		k++
	}
	if i < j && m.recs[j-1].Next > h.Next {
		in[k] = m.recs[j-1]
		in[k].First = h.Next
		k++
	}
	if by := j - i - k; by > 0 && i < len(m.recs)-j {
		// Holes are mostly filled from the front, of many: what is before is moved.
		copy(m.recs[by:], m.recs[:i])
		m.recs = m.recs[by:]
		copy(m.recs[i:], in[:k])
		return
	}
	m.recs = slices.Replace(m.recs, i, j, in[:k]...)
}

// overlaps reports whether a record holds within r.
func (m *holeMap) overlaps(r moldcast.Range) bool {
	i := m.after(r.First)
	return i < len(m.recs) && m.recs[i].First < r.Next
}

func (m *holeMap) after(q moldcast.Seq) int {
	lo, hi := 0, len(m.recs)
	for lo < hi {
		if k := (lo + hi) / 2; m.recs[k].Next > q {
			hi = k
		} else {
			lo = k + 1
		}
	}
	return lo
}

// cut splits the missing range r by the records that hold in it.
func (m *holeMap) cut(dst []moldcast.Hole, r moldcast.Range) []moldcast.Hole {
	for i := m.after(r.First); !r.Empty(); i++ {
		h := moldcast.Hole{Range: r, Reason: moldcast.NotCaptured}
		if i < len(m.recs) && m.recs[i].First < r.Next {
			rec := m.recs[i]
			if rec.First > r.First {
				h.Range.Next = rec.First
				dst = append(dst, h)
			}
			h = moldcast.Hole{Range: rec.rng().Intersect(r), Reason: rec.Reason, Time: rec.Time}
		}
		dst = append(dst, h)
		r.First = h.Range.Next
	}
	return dst
}

// seqOf is the number in a key of nine bytes.
func seqOf(k []byte) uint64 { return binary.BigEndian.Uint64(k[1:]) }
