package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// marksOfMerge bounds the marks of a merged block.
const marksOfMerge = block.MaxMarks / 2

// merger writes all that a segment holds as tables beside its store: bodies,
// and last one with everything else. Memory: a window of decoded blocks, one
// block that is made, and the index of what was.
type merger struct {
	a     *Archive
	g     *segment
	db    *pebble.DB
	fence *fenceFS
	fs    vfs.FS
	x     *index // of what there is
	past  block.History
	dec   *block.Decoder

	window *window
	blocks map[int32]*block.Block // those in the window
	spare  []*block.Block
	taken  []bool // blocks whose marks were

	out   *block.Builder
	patch bool
	log   map[moldcast.Seq]block.LogPart // where the log of a block begins, by its key
	now   *block.LogPart                 // that of something in out
	bare  bool                           // something in out was heard and stored under no log
	marks []moldcast.Mark                // that wait for the block that is made, or the next
	logs  mergedLogs                     // likewise
	buf   []byte

	bodies  []string // tables
	body    *tableOut
	meta    *tableOut
	record  []byte // of the merge, that is yet to be written
	written uint64
	sum     mergeSum // of what went in
	idx     *index   // of what was read back

	bad *badBlock // that ended it
}

type badBlock struct {
	key moldcast.Seq
	r   moldcast.Range
}

func newMerger(a *Archive, g *segment, p *block.Plans) (*merger, error) {
	m := &merger{
		a: a, g: g, db: g.db, fence: g.fence, fs: g.fence, sum: newMergeSum(),
		window: newWindow(mergeWindow), blocks: map[int32]*block.Block{}, out: block.NewBuilder(g.id.Session),
	}
	m.window.drop = func(k int32) {
		if len(m.spare) < ownBlocks {
			m.spare = append(m.spare, m.blocks[k])
		}
		delete(m.blocks, k)
	}
	if p != nil {
		m.past.UsePlans(p)
	}
	var err error
	if m.dec, err = block.NewDecoder(block.DecoderOptions{Verify: true}); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *merger) close() { m.dec.Close() }

// path is that of the n-th table. It is removed by whoever opens the segment.
func (m *merger) path(n int) string {
	return m.fs.PathJoin(m.g.dir, fmt.Sprintf("%smerge-%d%s", tablePrefix, n, tmpSuffix))
}

// paths lists the tables.
func (m *merger) paths() []string {
	if m.meta == nil {
		return nil
	}
	return append(slices.Clone(m.bodies), m.meta.path)
}

// remove gives up. Of a store that failed, the tables are removed when it is
// opened again.
func (m *merger) remove() {
	if m.fence.up.Load() {
		return
	}
	for _, t := range []*tableOut{m.body, m.meta} {
		if t != nil {
			t.close()
		}
	}
	for _, p := range m.paths() {
		_ = m.fs.Remove(p)
	}
}

// write writes the tables, synced, and compares what is in them with what the
// segment holds.
func (m *merger) write(pace *mergePace) error {
	var err error
	if m.x, err = readIndex(m.db, m.g.id.Session, nil); err != nil {
		return err
	}
	m.taken = make([]bool, len(m.x.blocks))
	m.log = map[moldcast.Seq]block.LogPart{}
	for _, l := range m.x.logs {
		m.log[l.first] = block.LogPart{ID: l.parts[0].ID, Before: l.parts[0].Before}
	}
	if m.meta, err = m.table(0); err != nil {
		return err
	}
	// In the order of keys: bodies lie in tables of their own, and what lay
	// before them would overlap those.
	if err := iterate(m.db, nil, []byte{keyBody}, false, func(k, _ []byte) error {
		return fmt.Errorf("a record %x that is not known", k)
	}); err != nil {
		return err
	}
	if err := m.copy(keyBody, keyHeader); err != nil {
		return err
	}
	for i := range m.x.runs {
		if err := m.run(&m.x.runs[i], pace); err != nil {
			return err
		}
	}
	if err := m.cut(pace); err != nil {
		return err
	}
	if m.body != nil {
		if err := m.body.close(); err != nil {
			return err
		}
	}
	if err := m.looseMarks(); err != nil {
		return err
	}
	if err := m.copy(keyMarks, keyTail); err != nil {
		return err
	}
	err = scan(m.db, keyTail, func(_, _ []byte) error { return errMergeDamage }) // evidence
	if err != nil {
		return err
	}
	if m.record, err = json.Marshal(mergeRecord{
		Blocks: len(m.x.blocks) + len(m.x.marks), BytesStored: m.x.bytesStored, Written: m.written,
	}); err != nil {
		return err
	}
	err = m.copy(keyTail, 0xFF)
	if err == nil {
		err = m.meta.close()
	}
	if err != nil {
		return err
	}
	return m.readBack(pace)
}

func (m *merger) table(n int) (*tableOut, error) {
	w, err := openTable(m.fs, m.path(n), m.db.TableFormat())
	if err != nil {
		return nil, err
	}
	return &tableOut{w: w, path: m.path(n), written: &m.written}, nil
}

// copy copies the records of all kinds between two, whatever they are; that of
// the merge is put among them, in its place.
func (m *merger) copy(after, before byte) error {
	put := func() error {
		doc := m.record
		m.record = nil
		if doc == nil {
			return nil
		}
		return m.meta.set(metaMerged, doc)
	}
	err := iterate(m.db, []byte{after + 1}, []byte{before}, true, func(k, v []byte) error {
		if bytes.Compare(metaMerged, k) <= 0 {
			if err := put(); err != nil {
				return err
			}
		}
		if bytes.Equal(k, metaMerged) {
			return nil
		}
		m.sum.record(k, v)
		return m.meta.set(k, v)
	})
	if err != nil {
		return err
	}
	return put()
}

// run takes up one run of a block.
func (m *merger) run(r *runRef, pace *mergePace) error {
	b, err := m.block(r)
	if err != nil {
		return err
	}
	if patch := m.x.blocks[r.blk].patch; patch != m.patch {
		if err := m.cut(pace); err != nil {
			return err
		}
		m.patch = patch
	}
	i, held := b.Find(r.r.First)
	for ; held && i < b.Pieces(); i++ {
		p := b.PieceAt(i)
		if p.First >= r.r.Next {
			break
		}
		err := m.out.Append(p)
		if errors.Is(err, block.ErrFull) {
			if err := m.cut(pace); err != nil {
				return err
			}
			err = m.out.Append(p)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", p.Range(), err)
		}
		m.note(r)
		m.sum.piece(p)
		if m.out.RawSize() >= m.a.o.BlockSize || m.out.Pieces() >= m.a.o.BlockSize/8 || len(m.marks) >= marksOfMerge || m.logs.heard >= heardOfMerge {
			if err := m.cut(pace); err != nil {
				return err
			}
		}
	}
	return nil
}

// note takes note of under which log a piece of r was stored that lies in out.
func (m *merger) note(r *runRef) {
	b := &m.x.blocks[r.blk]
	if !r.times.Live {
		return
	}
	if l, ok := m.log[b.first]; ok && b.logged {
		m.now = &l
	} else {
		m.bare = true
	}
}

// block is the block of a run, decoded and checked.
func (m *merger) block(r *runRef) (*block.Block, error) {
	ref := &m.x.blocks[r.blk]
	if m.window.use(r.blk, ref.memory()) {
		return m.blocks[r.blk], nil
	}
	b := new(block.Block)
	if n := len(m.spare); n > 0 {
		b, m.spare = m.spare[n-1], m.spare[:n-1]
	}
	m.blocks[r.blk] = b
	if err := m.g.decode(m.a.table, ref.first, m.dec, b); err != nil {
		if isDamage(err) {
			m.bad = &badBlock{ref.first, r.r}
		}
		return nil, fmt.Errorf("block %d: %w", ref.first, err)
	}
	if !m.taken[r.blk] {
		m.taken[r.blk] = true
		m.marks = append(m.marks, b.Marks()...)
		m.logs.add(b)
	}
	return b, nil
}

// cut writes the block that is made. Its marks are in the order of their
// stamps: those of a fill come from a later block.
func (m *merger) cut(pace *mergePace) error {
	if m.out.Pieces() == 0 {
		return nil
	}
	raw := int64(m.out.RawSize())
	if err := m.takeMarks(); err != nil {
		return err
	}
	switch {
	case m.bare:
		m.out.BareLog()
	case m.now != nil && !m.out.Logged():
		if err := m.out.BeginLog(*m.now); err != nil {
			return err
		}
	}
	m.now, m.bare = nil, false
	h, header, body, err := m.encode()
	if err != nil {
		return err
	}
	if m.body == nil {
		if m.body, err = m.table(1 + len(m.bodies)); err != nil {
			return err
		}
		m.bodies = append(m.bodies, m.body.path)
	}
	key := uint64(h.First())
	if err := m.body.set(seqKey(nil, keyBody, key), body); err != nil {
		return err
	}
	if err := m.meta.set(seqKey(nil, keyHeader, key), header); err != nil {
		return err
	}
	if m.body.size >= mergeTable {
		err := m.body.close()
		m.body = nil
		if err != nil {
			return err
		}
	}
	return pace.did(raw)
}

// takeMarks puts marks and line logs into the block that is made, as many as it
// takes.
func (m *merger) takeMarks() error {
	slices.SortStableFunc(m.marks, func(x, y moldcast.Mark) int {
		switch {
		case x.Stamp < y.Stamp:
			return -1
		case x.Stamp > y.Stamp:
			return 1
		}
		return 0
	})
	n := min(len(m.marks), block.MaxMarks)
	for _, k := range m.marks[:n] {
		if err := m.out.Mark(k); err != nil {
			return err
		}
		m.sum.mark(k)
	}
	m.marks = m.marks[:copy(m.marks, m.marks[n:])]
	return m.logs.take(m.out, &m.sum)
}

// encode is the stored form of the block that is made, valid until the next.
func (m *merger) encode() (h block.Header, header, body []byte, err error) {
	if header, body, err = m.compress(); err == nil {
		m.buf = body
		h, err = block.ParseHeader(header)
	}
	m.out.Reset(m.g.id.Session)
	return h, header, body, err
}

// compress has the block that is made compressed: there is time.
func (m *merger) compress() (header, body []byte, err error) {
	t := m.a.box.take()
	defer m.a.box.give(t)
	level := m.a.o.MergeLevel
	if level == block.Default {
		level = m.a.o.Codec.level(0)
	}
	enc, err := t.at(level)
	if err != nil {
		return nil, nil, err
	}
	enc.Follow(&m.past)
	if level == block.Dense && m.out.RawSize() >= block.LeastLearn && (m.past.Plans() == nil || m.past.WantsPlans()) {
		if err := m.out.Freeze(t.checked); err != nil {
			return nil, nil, err
		}
		m.a.learner.learn(enc, &m.past, t.checked)
	}
	return enc.Encode(m.buf[:0], m.out, block.EncodeOptions{Patch: m.patch && m.out.Pieces() > 0})
}

// looseMarks writes the marks that lie in no block with messages.
func (m *merger) looseMarks() error {
	id := uint64(0)
	put := func() error {
		if err := m.takeMarks(); err != nil {
			return err
		}
		if m.out.Empty() {
			return nil
		}
		_, header, body, err := m.encode()
		if err != nil {
			return err
		}
		id++
		return m.meta.set(seqKey(nil, keyMarks, id), joined(nil, header, body))
	}
	var b block.Block
	for _, k := range m.x.marks {
		if err := m.g.decodeMarks(m.a.table, k.id, m.dec, &b); err != nil {
			return fmt.Errorf("marks %d: %w", k.id, err)
		}
		m.marks = append(m.marks, b.Marks()...)
		m.logs.add(&b)
		if len(m.marks) >= marksOfMerge || m.logs.heard >= heardOfMerge {
			if err := put(); err != nil {
				return err
			}
		}
	}
	for len(m.marks) > 0 || len(m.logs.parts) > 0 {
		if err := put(); err != nil {
			return err
		}
	}
	return nil
}

// readBack reads the tables, and compares all that is in them with what the
// segment holds.
func (m *merger) readBack(pace *mergePace) error {
	m.idx = new(index)
	sum := newMergeSum()
	bodies := tablesIn{m: m, paths: m.bodies}
	defer bodies.close()
	meta := tablesIn{m: m, paths: []string{m.meta.path}}
	defer meta.close()
	var b block.Block
	for {
		k, v, err := meta.next()
		if err != nil {
			return err
		}
		if k == nil {
			break
		}
		switch k[0] {
		case keyHeader, keyMarks:
			header, body, id := v, []byte(nil), seqOf(k)
			if k[0] == keyMarks {
				header, body, err = splitJoined(v)
			} else {
				var at []byte
				if at, body, err = bodies.next(); err == nil && (len(at) != 9 || seqOf(at) != id) {
					err = errNoBody
				}
			}
			if err != nil {
				return err
			}
			h, err := block.ParseHeader(header)
			if err != nil {
				return err
			}
			if err := m.dec.Decode(h, body, &b); err != nil {
				return err
			}
			for i := range b.Pieces() {
				sum.piece(b.PieceAt(i))
			}
			for _, x := range b.Marks() {
				sum.mark(x)
			}
			sum.log(&b)
			m.idx.add(&h, id)
			if err := pace.did(0); err != nil {
				return err
			}
		default:
			if !bytes.Equal(k, metaMerged) {
				sum.record(k, v)
			}
		}
	}
	if k, _, err := bodies.next(); k != nil || err != nil {
		return fmt.Errorf("bodies without headers, %w", err)
	}
	if err := sameContent(m.x, m.idx); err != nil {
		return fmt.Errorf("merged blocks do not hold the same: %w", err)
	}
	if !sum.equal(&m.sum) {
		return errors.New("merged blocks do not hold the same")
	}
	return nil
}

// ingest puts the tables in the place of all that there is.
func (m *merger) ingest(db *pebble.DB) error {
	span := pebble.KeyRange{Start: []byte{0}, End: []byte{0xFF}}
	_, err := db.IngestAndExcise(context.Background(), m.paths(), nil, nil, span)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}

// mergeSum is hashes of pieces, marks and records, each in their order. That
// of pieces covers all that is stored of them.
type mergeSum struct {
	content, others hash.Hash
	heard           heardSum
}

func newMergeSum() mergeSum { return mergeSum{content: sha256.New(), others: sha256.New()} }

func (s *mergeSum) piece(p moldcast.Piece) {
	var b [31]byte
	b[0] = 'p'
	binary.BigEndian.PutUint64(b[1:], uint64(p.First))
	binary.BigEndian.PutUint64(b[9:], uint64(p.Time))
	binary.BigEndian.PutUint64(b[17:], uint64(p.Heard))
	binary.BigEndian.PutUint32(b[25:], uint32(p.Msgs.Len()))
	b[29], b[30] = p.Line, byte(p.Flags)
	s.content.Write(b[:])
	s.content.Write(p.Msgs.Framed())
}

func (s *mergeSum) mark(k moldcast.Mark) {
	var b [19]byte
	b[0] = 'm'
	binary.BigEndian.PutUint64(b[1:], uint64(k.Next))
	binary.BigEndian.PutUint64(b[9:], uint64(k.Stamp))
	b[17], b[18] = byte(k.Kind), k.Line
	s.content.Write(b[:])
}

func (s *mergeSum) record(k, v []byte) {
	s.others.Write(joined(nil, k, v))
}

func (s *mergeSum) equal(o *mergeSum) bool {
	return s.heard == o.heard && bytes.Equal(s.content.Sum(nil), o.content.Sum(nil)) && bytes.Equal(s.others.Sum(nil), o.others.Sum(nil))
}

// tableOut is a table that is written.
type tableOut struct {
	w       *sstable.Writer
	path    string
	size    int
	written *uint64
	closed  bool
}

func (t *tableOut) set(k, v []byte) error {
	t.size += len(v)
	*t.written += uint64(len(k) + len(v))
	return t.w.Set(k, v)
}

func (t *tableOut) close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	return t.w.Close()
}

// tablesIn reads tables one after another.
type tablesIn struct {
	m     *merger
	paths []string
	r     *sstable.Reader
	it    sstable.Iterator
}

// next is the next record, valid until the one after it; nil at the end.
func (t *tablesIn) next() (k, v []byte, err error) {
	for {
		first := t.it == nil
		if first {
			if len(t.paths) == 0 {
				return nil, nil, nil
			}
			if err := t.open(t.paths[0]); err != nil {
				return nil, nil, err
			}
			t.paths = t.paths[1:]
		}
		kv := t.it.Next
		if first {
			kv = t.it.First
		}
		if x := kv(); x != nil {
			v, _, err := x.Value(nil)
			return x.K.UserKey, v, err
		}
		err := t.it.Error()
		if e := t.close(); err == nil {
			err = e
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

func (t *tablesIn) open(path string) error {
	f, err := t.m.fs.Open(path)
	if err != nil {
		return err
	}
	in, err := sstable.NewSimpleReadable(f)
	if err != nil {
		_ = f.Close()
		return err
	}
	o := pebbleOptions(t.m.fs, nil, pebble.DefaultLogger)
	o.EnsureDefaults()
	if t.r, err = sstable.NewReader(context.Background(), in, o.MakeReaderOptions()); err != nil {
		return errors.Join(err, in.Close())
	}
	t.it, err = t.r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	return err
}

func (t *tablesIn) close() (err error) {
	if t.it != nil {
		err = t.it.Close()
		t.it = nil
	}
	if t.r != nil {
		if e := t.r.Close(); err == nil {
			err = e
		}
		t.r = nil
	}
	return err
}
