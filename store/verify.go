package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store/block"
)

// verifiers is how many segments are read at a time.
const verifiers = 2

// Progress is how far Verify has come, in bytes on disk.
type Progress struct{ Done, Total uint64 }

// Report is what Verify found.
type Report struct {
	Sessions int    `json:"sessions"`
	Segments int    `json:"segments"`
	Blocks   int    `json:"blocks"`
	Messages uint64 `json:"messages"` // that can be read, each once
	Bytes    uint64 `json:"bytes"`    // of stored blocks, also of those that others replace

	// Of what was not in a block when a capture was killed: the records in which
	// its newest messages are, until the session is opened for writing again.
	TailRecords  int    `json:"tail_records,omitempty"`
	TailBytes    uint64 `json:"tail_bytes,omitempty"`
	TailMessages uint64 `json:"tail_messages,omitempty"` // of Messages

	Snapshots     int    `json:"snapshots"`
	SnapshotBytes uint64 `json:"snapshot_bytes"`

	Skipped  []string `json:"skipped"` // segments that are being written
	Faults   []Fault  `json:"faults"`
	Replaced []Fault  `json:"replaced"` // damage of which good blocks hold every message
	Notes    []Fault  `json:"notes"`    // what was once wrong, cannot be made right, and was acknowledged by a repair
}

// Fault is one thing that is wrong.
type Fault struct {
	Session  string       `json:"session"`
	Segment  string       `json:"segment,omitempty"`
	FirstSeq moldcast.Seq `json:"first_seq,omitempty"` // with LastSeq: what is lost or in doubt; 0 where that is no range
	LastSeq  moldcast.Seq `json:"last_seq,omitempty"`
	Problem  string       `json:"problem"`
	Readable bool         `json:"readable,omitempty"` // the messages are there all the same, and served
}

func (f Fault) String() string {
	at := f.Session
	if at == "" {
		return f.Problem
	}
	if f.Segment != "" {
		at += "/" + f.Segment
	}
	if f.FirstSeq != 0 {
		at += " " + moldcast.Range{First: f.FirstSeq, Next: f.LastSeq + 1}.String()
	}
	return at + ": " + f.Problem
}

// verification is one run of Verify.
type verification struct {
	a        *Archive
	progress func(Progress)
	audit    []AuditEntry

	mu  sync.Mutex
	rep Report
	p   Progress
}

// Verify reads everything of the recordings named (none: of all), and checks
// every checksum and hash, what blocks hold against headers and seals, that no
// two blocks hold the same, and the chain of seals. What is being written is
// skipped, and said so. progress, where not nil, is called now and then, from
// any goroutine. The error is that of ctx or of listing; what is wrong with
// the archive is in the report.
func (a *Archive) Verify(ctx context.Context, refs []Ref, progress func(Progress)) (Report, error) {
	if len(refs) == 0 {
		var err error
		if refs, err = a.refs(); err != nil {
			return Report{}, err
		}
	}
	v := &verification{a: a, progress: progress, rep: Report{Skipped: []string{}, Faults: []Fault{}, Replaced: []Fault{}, Notes: []Fault{}}}
	for _, r := range refs {
		if _, err := a.o.FS.Stat(a.sessionDir(r)); isNotExist(err) {
			return Report{}, a.notFound(r.String(), ErrNotFound)
		}
	}
	if a.infoErr != nil {
		v.rep.Faults = append(v.rep.Faults, Fault{Problem: a.infoErr.Error() + "; `moldtape repair` restores it, or makes it again"})
	}
	if err := v.auditLog(); err != nil {
		return v.rep, err
	}
	var all []*checked
	for _, r := range refs {
		c, err := v.list(r)
		if err != nil {
			return v.rep, err
		}
		all = append(all, c)
		v.rep.Sessions++
		for _, s := range c.segs {
			v.p.Total += dirBytes(a.o.FS, s.g.dir)
		}
	}
	for _, c := range all {
		if err := v.session(ctx, c); err != nil {
			return v.rep, err
		}
		if err := v.snapshots(c); err != nil {
			return v.rep, err
		}
	}
	sortFaults(v.rep.Faults)
	sortFaults(v.rep.Replaced)
	return v.rep, nil
}

func sortFaults(fs []Fault) {
	slices.SortStableFunc(fs, func(x, y Fault) int {
		if x.Session != y.Session {
			return 0 // in the order of refs already
		}
		if x.Segment != y.Segment {
			if x.Segment < y.Segment {
				return -1
			}
			return 1
		}
		switch {
		case x.FirstSeq < y.FirstSeq:
			return -1
		case x.FirstSeq > y.FirstSeq:
			return 1
		}
		return 0
	})
}

// checked is one session under verification.
type checked struct {
	ref    Ref
	s      *session
	segs   []*checkedSegment
	newest sealRef      // by session.json
	tombs  []*tombstone // of segments that are gone, by number

	// Under the lock of the verification:
	raw    gap.Set            // what is found in the files of segments whose store does not give it
	good   gap.Set            // what sound blocks hold
	tail   gap.Set            // what is in no block yet
	sound  map[[2]uint64]bool // of blocks on record as damaged, by segment and key, those that are not
	damage []damage
	tails  []badTails
}

type checkedSegment struct {
	g       *segment
	seal    *seal // with its hashes
	sealErr error
	sealed  bool
	cov     []ownedRange
}

// ownedRange is a run of a block, for the check that no two overlap.
type ownedRange struct {
	r     moldcast.Range
	patch bool
	seg   string
}

func (v *verification) fault(c *checked, segment string, r moldcast.Range, format string, args ...any) {
	f := Fault{Session: c.ref.String(), Segment: segment, Problem: oneLine(fmt.Sprintf(format, args...))}
	if !r.Empty() {
		f.FirstSeq, f.LastSeq = r.First, r.Next-1
	}
	v.mu.Lock()
	v.rep.Faults = append(v.rep.Faults, f)
	v.mu.Unlock()
}

// lose notes that what one block holds cannot be read.
func (v *verification) lose(c *checked, seg int, block moldcast.Seq, ranges []moldcast.Range, also []Fault, format string, args ...any) {
	d := damage{seg: seg, block: block, ranges: slices.Clone(ranges), also: also}
	d.fault = Fault{
		Session: c.ref.String(), Segment: segmentName(seg), Problem: oneLine(fmt.Sprintf(format, args...)),
		FirstSeq: ranges[0].First, LastSeq: ranges[len(ranges)-1].Next - 1,
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	c.damage = append(c.damage, d)
}

// settle tells damage that other blocks make up for from faults, and puts all
// of it on record.
func (v *verification) settle(c *checked) {
	for _, d := range c.s.damage {
		if c.sound[[2]uint64{uint64(d.Segment), uint64(d.Block)}] {
			v.a.o.Log.Warn("block on record as damaged reads well again", "session", c.ref, "segment", segmentName(d.Segment), "block", d.Block)
			v.a.clearDamage(c.s.dir, d)
		}
	}
	for i := range c.damage {
		d := &c.damage[i]
		var readable, lost []moldcast.Range
		for _, r := range d.ranges {
			for _, miss := range c.good.Missing(r) {
				gone := c.raw.Missing(miss)
				lost = append(lost, gone...)
				var g gap.Set
				for _, x := range gone {
					g.Add(x)
				}
				readable = append(readable, g.Missing(miss)...)
			}
		}
		f := d.fault
		if len(readable)+len(lost) == 0 {
			f.Problem = "replaced by a good block: " + f.Problem
			v.rep.Replaced = append(v.rep.Replaced, f)
			lost = d.ranges // on record all the same
		}
		if n := len(readable); n > 0 {
			x := f
			x.FirstSeq, x.LastSeq, x.Readable = readable[0].First, readable[n-1].Next-1, true
			x.Problem += "; its messages are read from its files as they lie, until `moldtape repair` writes them anew"
			v.rep.Faults = append(v.rep.Faults, x)
		}
		if len(lost) == 0 {
			v.rep.Faults = append(v.rep.Faults, d.also...)
			continue
		}
		block := d.block
		if n := len(lost); len(c.good.Missing(lost[0])) > 0 {
			f.FirstSeq, f.LastSeq = lost[0].First, lost[n-1].Next-1
			v.rep.Faults = append(append(v.rep.Faults, f), d.also...)
			if lost[0].First > block {
				block = lost[0].First
			}
		}
		rec := damageRecord{
			Segment: d.seg, Block: block, Ranges: inclusive(lost), Problem: d.fault.Problem,
			Time: moldcast.StampOf(v.a.o.Clock()), Found: "verify",
		}
		if c.s.damageAt(rec.Segment, rec.Block) < 0 {
			c.s.damage = append(c.s.damage, rec)
			v.a.writeDamage(c.s.dir, rec)
		}
	}
}

// damages counts what of a segment is damaged so far.
func (v *verification) damages(c *checked, s *checkedSegment) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, d := range c.damage {
		if d.seg == s.g.num {
			n++
		}
	}
	return n
}

// salvage looks in the files of a segment for what its store did not give.
func (v *verification) salvage(c *checked, s *checkedSegment, h *handle, dec *block.Decoder) {
	if v.damages(c, s) == 0 {
		return
	}
	raw, err := h.salvage(v.a.table)
	if err != nil {
		return
	}
	var b block.Block
	for first, r := range raw.blocks {
		err := raw.read(first, func(_, body []byte) error { return dec.Decode(r.h, body, &b) })
		if err != nil {
			continue
		}
		v.mu.Lock()
		for _, x := range r.h.Runs {
			c.raw.Add(x)
		}
		if h.db == nil {
			v.rep.Blocks++
			v.rep.Bytes += uint64(r.h.StoredLen)
		}
		v.mu.Unlock()
	}
}

func (v *verification) list(r Ref) (*checked, error) {
	a := v.a
	c := &checked{ref: r, s: a.newSession(r)}
	c.s.damage, c.sound = c.s.loadDamage(), map[[2]uint64]bool{}
	// Before the directory is listed: what it names is there by then.
	info, infoErr := readSessionInfo(a, c.s.dir)
	names, err := a.o.FS.List(c.s.dir)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	if infoErr != nil {
		v.fault(c, "", moldcast.Range{}, "%s: %v; `moldtape repair` restores it, or makes it again from the segments", sessionFile, infoErr)
	} else if info.Newest != nil {
		c.newest = *info.Newest
	}
	if err := v.hold(c); err != nil {
		return nil, err
	}
	for _, n := range absent(names, c.newest.Segment) {
		v.fault(c, n.String(), moldcast.Range{}, "%v", errAbsent)
	}
	for _, name := range names {
		if n, ok := parsePrunedName(name); ok && !slices.Contains(names, segmentName(n)) {
			v.tombstone(c, n)
		}
		n, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		g := newSegment(n, a.o.FS.PathJoin(c.s.dir, name), identity(r))
		s := &checkedSegment{g: g}
		b, err := readFile(a.o.FS, a.o.FS.PathJoin(g.dir, sealFile))
		if s.sealed = !isNotExist(err); s.sealed {
			if err == nil {
				s.seal, err = parseSeal(b)
			}
			if err == nil && (s.seal.identity != g.id || s.seal.Segment != n) {
				err = errors.New("it is the seal of another segment")
			}
			s.sealErr = notAllowed(err)
			if err == nil {
				g.sound.Store(s.seal)
			}
		}
		c.segs = append(c.segs, s)
	}
	slices.SortFunc(c.segs, func(x, y *checkedSegment) int { return x.g.num - y.g.num })
	return c, nil
}

// auditLog checks the chain of the audit log.
func (v *verification) auditLog() error {
	entries, _, err := v.a.AuditLog()
	v.audit = entries
	var broken *AuditError
	if err != nil && !errors.As(err, &broken) {
		return err
	}
	if broken == nil {
		return nil
	}
	for _, b := range broken.Breaks {
		if b.Acknowledged > 0 {
			v.rep.Notes = append(v.rep.Notes, Fault{Problem: fmt.Sprintf("%v; acknowledged in line %d", b, b.Acknowledged)})
		} else {
			v.rep.Faults = append(v.rep.Faults, Fault{Problem: b.String() + "; `moldtape repair` of any session restores it where the chain proves what it was"})
		}
	}
	return nil
}

// hold checks that the hold of a session is as the audit log has it.
func (v *verification) hold(c *checked) error {
	h, err := v.a.readHold(c.ref)
	if err != nil {
		return err
	}
	_, held := holdIn(v.audit, c.ref)
	if h == nil && held { // it may have been released, or be on its way
		lock, err := v.a.lockAudit()
		if err != nil {
			return err
		}
		defer lock.Close()
		if _, held, err = v.a.holdOnRecord(c.ref); err == nil {
			h, err = v.a.readHold(c.ref)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case h != nil && h.damaged:
		v.fault(c, "", moldcast.Range{}, "%s: it is damaged; nothing is removed", holdFile)
	case h == nil && held:
		v.fault(c, "", moldcast.Range{}, "%s: it is missing, and by the audit log the session is on hold", holdFile)
	}
	return nil
}

// tombstone checks what was kept of a pruned segment.
func (v *verification) tombstone(c *checked, n int) {
	t, err := c.s.readTombstone(n)
	if err != nil {
		v.fault(c, segmentName(n), moldcast.Range{}, "pruned: %v", err)
		return
	}
	c.tombs = append(c.tombs, t)
	if _, err := c.s.readLeaves(t); err != nil {
		v.fault(c, segmentName(n), moldcast.Range{}, "pruned: its leaves of the content hash: %v", err)
	}
}

// chain checks that every seal, of a pruned segment too, names the one before.
// Where one is named that there is not, and between them is a segment whose seal
// cannot be read, that is told already; one without a seal has lost it.
func (v *verification) chain(c *checked) {
	type link struct {
		num       int
		prev, sum string
	}
	var links []link
	unread, unsealed := map[int]bool{}, []int{}
	for _, s := range c.segs {
		switch {
		case s.sealErr != nil:
			unread[s.g.num] = true
		case s.seal == nil:
			unsealed = append(unsealed, s.g.num)
		default:
			links = append(links, link{s.g.num, s.seal.Prev, s.seal.Sum})
		}
	}
	for _, t := range c.tombs {
		links = append(links, link{t.Segment, t.Prev, t.SealSum})
	}
	slices.SortFunc(links, func(x, y link) int { return x.num - y.num })
	prev, before := "", 0
	for _, l := range links {
		// The newest of those between: a seal names the one before it.
		lost, untold := 0, false
		for n := before + 1; n < l.num; n++ {
			if untold = untold || unread[n]; slices.Contains(unsealed, n) {
				lost = n
			}
		}
		switch {
		case l.prev == prev, untold:
		case lost != 0:
			v.fault(c, segmentName(lost), moldcast.Range{}, "its seal (%s) is missing: the seal of %s names %s before it, the newest there is %s; `moldtape repair` seals it again",
				sealFile, segmentName(l.num), short(l.prev), short(prev))
		default:
			v.fault(c, segmentName(l.num), moldcast.Range{}, "the chain of seals is broken: it names %s before it, there is %s", short(l.prev), short(prev))
		}
		prev, before = l.sum, l.num
	}
}

func (v *verification) session(ctx context.Context, c *checked) error {
	// What is not sealed can be read only where nobody writes it.
	lock, err := c.s.lock(false)
	locked := err != nil
	defer func() {
		if lock != nil {
			lock.Close()
		}
	}()

	for _, s := range c.segs {
		if s.sealErr != nil {
			v.fault(c, segmentName(s.g.num), moldcast.Range{}, "%v", s.sealErr)
		}
		if s.seal == nil {
			continue
		}
		if s.seal.Rebuilt != nil {
			v.mu.Lock()
			v.rep.Notes = append(v.rep.Notes, Fault{Session: c.ref.String(), Segment: segmentName(s.g.num),
				Problem: fmt.Sprintf("its seal was made again %s: nothing proves that it is what was written", s.seal.Rebuilt.Format(time.RFC3339))})
			v.mu.Unlock()
		}
		if s.g.num == c.newest.Segment && s.seal.Sum != c.newest.Sum {
			v.fault(c, segmentName(s.g.num), moldcast.Range{}, "its seal is not the one that %s names: %s, there %s", sessionFile, short(s.seal.Sum), short(c.newest.Sum))
		}
	}
	v.chain(c)
	var open, sealed []*checkedSegment
	for _, s := range c.segs {
		if s.sealed {
			sealed = append(sealed, s)
		} else {
			open = append(open, s)
		}
	}
	v.read(ctx, c, open, locked)
	if lock != nil {
		lock.Close() // sealed ones are read without
		lock = nil
	}
	v.read(ctx, c, sealed, locked)
	if err := ctx.Err(); err != nil {
		return err
	}
	v.overlaps(c)
	v.settle(c)
	v.count(c)
	v.settleTails(c, locked && len(open) > 0)
	return nil
}

// count counts each message that is held once: a sound block may hold what
// another replaces, and what is found in the files of a damaged segment may
// have been written anew.
func (v *verification) count(c *checked) {
	held := c.good.Clone()
	for _, r := range c.raw.Ranges() {
		held.Add(r)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	blocked := held.Count()
	for _, r := range c.tail.Ranges() {
		held.Add(r)
	}
	v.rep.Messages += held.Count()
	v.rep.TailMessages += held.Count() - blocked
}

// read reads segments, several at a time.
func (v *verification) read(ctx context.Context, c *checked, segs []*checkedSegment, locked bool) {
	todo := make(chan *checkedSegment)
	blocks, end := decodeAll()
	defer end()
	var wg sync.WaitGroup
	for range verifiers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			dec, err := block.NewDecoder(block.DecoderOptions{Verify: true})
			if err != nil {
				return
			}
			defer dec.Close()
			for s := range todo {
				if ctx.Err() != nil {
					continue
				}
				if !s.sealed && locked {
					v.mu.Lock()
					v.rep.Skipped = append(v.rep.Skipped, s.g.name)
					v.mu.Unlock()
					continue
				}
				v.segment(ctx, c, s, dec, blocks)
			}
		}()
	}
	for _, s := range segs {
		todo <- s
	}
	close(todo)
	wg.Wait()
}

func short(sum string) string {
	if sum == "" {
		return "none"
	}
	return sum[:min(12, len(sum))] + "…"
}

// segment reads one segment whole; the blocks of its store are decoded by those
// who take them from todo.
func (v *verification) segment(ctx context.Context, c *checked, s *checkedSegment, dec *block.Decoder, todo chan<- *decoding) {
	name := segmentName(s.g.num)
	bad := func(r moldcast.Range, format string, args ...any) { v.fault(c, name, r, format, args...) }
	defer v.a.table.forget(s.g)
	h, err := v.a.table.acquire(s.g)
	if !s.sealed && s.g.notMade(v.a.o.FS, err) {
		return
	}
	if errors.Is(err, errGone) {
		if t, e := c.s.readTombstone(s.g.num); e == nil && s.seal != nil && t.SealSum == s.seal.Sum {
			return // pruned after it was listed
		}
	}
	if err != nil && errors.Is(err, os.ErrPermission) && errors.Is(s.sealErr, os.ErrPermission) {
		return // told of its seal
	}
	if err != nil {
		if s.seal != nil && len(s.seal.Coverage) > 0 {
			rs := s.seal.ranges()
			if isDamage(err) {
				v.lose(c, s.g.num, rs[0].First, rs, nil, "it cannot be opened: %v", err)
				return
			}
			bad(moldcast.Range{First: rs[0].First, Next: rs[len(rs)-1].Next}, "it cannot be opened: %v", err)
			return
		}
		bad(moldcast.Range{}, "it cannot be opened: %v", err)
		return
	}
	defer v.a.table.release(h)
	if h.db == nil {
		rs := s.seal.ranges()
		if len(rs) > 0 {
			v.lose(c, s.g.num, rs[0].First, rs, nil, "it cannot be opened: %v", h.openErr)
		} else {
			bad(moldcast.Range{}, "it cannot be opened: %v", h.openErr)
		}
		v.salvage(c, s, h, dec)
		v.mu.Lock()
		v.rep.Segments++
		v.mu.Unlock()
		return
	}

	var hashes []string
	var cov gap.Set
	bodies := map[uint64]bool{}
	var headless []badHeader // blocks with messages
	q := &decodings{todo: todo}
	blocks, stored := 0, uint64(0)
	records, inRecords := 0, uint64(0)
	var unblocked []moldcast.Range
	note := func(n int) {
		v.mu.Lock()
		v.p.Done += uint64(n)
		p := v.p
		v.mu.Unlock()
		if v.progress != nil {
			v.progress(p)
		}
	}
	check := func(k, header []byte, body func(dst []byte, first uint64) ([]byte, error)) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		hd, err := block.ParseHeader(header)
		switch {
		case err != nil:
		case hd.Session != c.ref.Session:
			err = fmt.Errorf("block of session %v", hd.Session)
		case k[0] == keyHeader && (hd.Messages == 0 || string(k) != string(seqKey(nil, keyHeader, uint64(hd.First())))):
			err = errWrongKey
		}
		if err != nil && k[0] == keyHeader && len(k) == 9 && s.seal != nil {
			bodies[seqOf(k)] = true
			headless = append(headless, badHeader{slices.Clone(k), err})
			return nil
		}
		if err != nil {
			bad(moldcast.Range{}, "block %x: %v", k, err)
			return nil
		}
		blocks++
		d := hd.Digest()
		hashes = append(hashes, hex.EncodeToString(d[:]))
		q.add(hd, func(dst []byte) ([]byte, error) {
			b, err := body(dst, uint64(hd.First()))
			if err == nil {
				stored += uint64(len(b))
				note(len(b))
			}
			return b, err
		}, func(err error) {
			switch {
			case err == nil:
				v.mu.Lock()
				for _, r := range hd.Runs {
					c.good.Add(r)
				}
				if len(hd.Runs) > 0 && c.s.damageAt(s.g.num, hd.First()) >= 0 {
					c.sound[[2]uint64{uint64(s.g.num), uint64(hd.First())}] = true
				}
				v.mu.Unlock()
			case len(hd.Runs) > 0 && isDamage(err):
				v.lose(c, s.g.num, hd.First(), hd.Runs, nil, "%v", err)
			default:
				bad(hd.Range(), "%v", err)
			}
			for _, r := range hd.Runs {
				if part, held := cov.Cut(r); held {
					bad(part, "two blocks of the segment hold it")
				}
				cov.Add(r)
				s.cov = append(s.cov, ownedRange{r, hd.Patch, name})
			}
		})
		return nil
	}
	err = scan(h.db, keyHeader, func(k, header []byte) error {
		return check(k, header, func(dst []byte, first uint64) ([]byte, error) {
			bodies[first] = true
			err := s.g.value(h.db, seqKey(nil, keyBody, first), func(v []byte) error {
				dst = append(dst, v...)
				return nil
			})
			if errors.Is(err, pebble.ErrNotFound) {
				err = errNoBody
			}
			return dst, err
		})
	})
	if err == nil {
		err = scan(h.db, keyMarks, func(k, joined []byte) error {
			header, body, err := splitJoined(joined)
			if err != nil {
				bad(moldcast.Range{}, "marks %x: %v", k, err)
				return nil
			}
			return check(k, header, func(dst []byte, _ uint64) ([]byte, error) { return append(dst, body...), nil })
		})
	}
	q.settle()
	var stray []string
	if err == nil && s.sealed { // before, it may be what a crash left, and goes when it is recovered
		stray, err = v.strays(h.db, bodies)
	}
	if err == nil && !s.sealed {
		if u, err := findUnmarked(v.a.o.FS, s.g.dir); err == nil && u != nil {
			bad(moldcast.Range{}, "%v", u)
		}
		// Who opens it for writing takes up what lies behind.
		if d, err := readDamagedLog(v.a.o.FS, s.g.dir); err == nil && d != nil {
			bad(moldcast.Range{}, "%v", d)
		}
		var tails []tailRecord
		if tails, err = readTails(h.db, c.ref.Session, dec); err == nil {
			for _, t := range tails {
				if t.err != nil {
					bad(moldcast.Range{}, "tail record %x: %v", t.key, t.err)
					continue
				}
				records++
				inRecords += uint64(t.size)
				for _, r := range t.block.Runs() {
					for _, m := range cov.Missing(r) { // the rest is in blocks by now
						unblocked = append(unblocked, m)
						cov.Add(m)
					}
				}
			}
		}
	}
	if err == nil && s.sealed {
		// Kept by who recovered it, since they could not be read.
		err = v.tails(c, s, h.db, dec)
	}
	partly := err != nil && ctx.Err() == nil && isDamage(err) && s.seal != nil && len(s.seal.Coverage) > 0
	if partly {
		// What was not come to is missing, or accounted for already.
		before := v.damages(c, s)
		v.compare(c, s, &cov, hashes, headless, stray, err, bad)
		partly = v.damages(c, s) > before || before > 0
	}
	if err != nil && ctx.Err() == nil && !partly {
		bad(moldcast.Range{}, "reading stopped: %v", err)
	}
	if s.seal != nil && err == nil {
		v.compare(c, s, &cov, hashes, headless, stray, nil, bad)
	} else if !partly {
		for _, problem := range stray {
			bad(moldcast.Range{}, "%s", problem)
		}
	}
	v.salvage(c, s, h, dec)
	v.mu.Lock()
	v.rep.Segments++
	v.rep.Blocks += blocks
	v.rep.Bytes += stored
	v.rep.TailRecords += records
	v.rep.TailBytes += inRecords
	for _, r := range unblocked {
		c.tail.Add(r)
	}
	v.mu.Unlock()
}

// strays looks for bodies that no header speaks for, and says what is wrong
// with each.
func (v *verification) strays(db *pebble.DB, known map[uint64]bool) (problems []string, err error) {
	// Keys only: bodies are not read again.
	err = iterate(db, []byte{keyBody}, []byte{keyBody + 1}, false, func(k, _ []byte) error {
		if len(k) != 9 || !known[seqOf(k)] {
			problems = append(problems, fmt.Sprintf("body %x has no sound header", k))
		}
		return nil
	})
	return problems, err
}

// compare compares what a segment holds with its seal. headless are the blocks
// whose header is damaged: what they hold only the seal tells. stray is what is
// wrong with bodies that have none. stopped is why not all was read, if so.
func (v *verification) compare(c *checked, s *checkedSegment, cov *gap.Set, hashes []string, headless []badHeader, stray []string, stopped error, bad func(moldcast.Range, string, ...any)) {
	var sealed gap.Set
	var missing []moldcast.Range
	for _, r := range s.seal.ranges() {
		sealed.Add(r)
		missing = append(missing, cov.Missing(r)...)
	}
	for _, r := range cov.Ranges() {
		for _, miss := range sealed.Missing(r) {
			bad(miss, "a block holds what was not sealed")
		}
	}
	var also []Fault
	if !slices.Equal(hashes, s.seal.BlockHashes) {
		also = append(also, Fault{
			Session: c.ref.String(), Segment: segmentName(s.g.num),
			Problem: fmt.Sprintf("its blocks are not those that were sealed: %d, sealed %d, or their hashes differ", len(hashes), len(s.seal.BlockHashes)),
		})
	}
	// Blocks that are no longer there explain it, others in their place do not.
	explained := len(missing) > 0 && subsequence(hashes, s.seal.BlockHashes)
	if len(also) > 0 && !explained {
		bad(moldcast.Range{}, "%s", also[0].Problem)
		also = nil
	}
	if len(missing) == 0 {
		for _, problem := range stray {
			bad(moldcast.Range{}, "%s", problem)
		}
		for _, h := range headless {
			bad(moldcast.Range{}, "block %x: %v", h.key, h.err)
		}
		return
	}
	for _, problem := range stray { // of the blocks that are missing
		also = append(also, Fault{Session: c.ref.String(), Segment: segmentName(s.g.num), Problem: problem})
	}
	problem := "sealed, but no block holds it"
	for _, r := range missing {
		why := problem
		if stopped != nil {
			why += ": " + stopped.Error()
		}
		for _, h := range headless {
			if moldcast.Seq(seqOf(h.key)) <= r.First {
				why = problem + ": " + h.err.Error()
			}
		}
		v.lose(c, s.g.num, r.First, []moldcast.Range{r}, also, "%s", why)
		also = nil
	}
}

// subsequence reports whether b without some of its members is a.
func subsequence(a, b []string) bool {
	for len(a) > 0 {
		i := slices.Index(b, a[0])
		if i < 0 {
			return false
		}
		a, b = a[1:], b[i+1:]
	}
	return true
}

// overlaps checks that no two segments hold the same, but for blocks that
// replace damaged ones.
func (v *verification) overlaps(c *checked) {
	var all []ownedRange
	for _, s := range c.segs {
		for _, o := range s.cov {
			if !o.patch {
				all = append(all, o)
			}
		}
	}
	slices.SortFunc(all, func(x, y ownedRange) int {
		switch {
		case x.r.First < y.r.First:
			return -1
		case x.r.First > y.r.First:
			return 1
		}
		return 0
	})
	for i := 1; i < len(all); i++ {
		x, y := all[i-1], all[i]
		if part := x.r.Intersect(y.r); !part.Empty() && x.seg != y.seg {
			v.fault(c, y.seg, part, "%s holds it too", x.seg)
		}
	}
}
