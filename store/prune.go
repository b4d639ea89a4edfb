package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Retention is how much an archive keeps.
type Retention struct {
	// Keep: segments sealed this long ago or longer are removed. Negative: age
	// removes nothing.
	Keep time.Duration

	// MaxBytes: the oldest segments are removed until what is left takes at
	// most so many bytes on disk, what cannot be removed included. Negative:
	// size removes nothing.
	MaxBytes int64
}

// PruneReason is why a segment is removed.
type PruneReason string

// The reasons.
const (
	PruneAge   PruneReason = "age"
	PruneSize  PruneReason = "size"
	PrunePatch PruneReason = "patch" // all it holds replaced blocks of segments that are removed
)

// PruneItem is one segment that is to be removed.
type PruneItem struct {
	Session  string       `json:"session"`
	Segment  string       `json:"segment"`
	FirstSeq moldcast.Seq `json:"first_seq"` // 0 where it holds no message
	LastSeq  moldcast.Seq `json:"last_seq"`  // inclusive
	Messages uint64       `json:"messages"`
	Bytes    uint64       `json:"bytes"` // on disk
	Sealed   time.Time    `json:"sealed"`
	Reason   PruneReason  `json:"reason"`
	Removed  bool         `json:"removed"`
	Left     string       `json:"left,omitempty"` // why it was not
}

// PruneReport is what Prune planned and did.
type PruneReport struct {
	DryRun      bool        `json:"dry_run"`
	Items       []PruneItem `json:"segments"`     // oldest first
	BytesBefore uint64      `json:"bytes_before"` // of all segments and snapshots
	BytesAfter  uint64      `json:"bytes_after"`  // in a dry run: as planned
	Removed     int         `json:"removed"`      // segments
	Left        int         `json:"left"`
	Held        []string    `json:"held"`       // sessions on hold
	Unreadable  []string    `json:"unreadable"` // segments whose seal is damaged: never removed

	// Over is by how much what is left takes more than MaxBytes, and Kept why:
	// what of it nothing of this Prune could remove. Both empty where it is
	// reached.
	Over uint64      `json:"over_bytes"`
	Kept []PruneKept `json:"kept"`

	// Snapshots that messages cannot be joined to any more: some at or after
	// their sequence are pruned.
	Snapshots []SnapshotItem `json:"snapshots"`
}

// KeptReason is why something is not removed, however old it is.
type KeptReason string

// The reasons.
const (
	KeptHold       KeptReason = "hold"       // its session is on hold
	KeptOpen       KeptReason = "open"       // it is not sealed: it is being written, or its writer was killed
	KeptUnreadable KeptReason = "unreadable" // its seal is damaged
	KeptLeft       KeptReason = "left"       // it was to be removed, and is in use; see PruneItem.Left
	KeptSnapshots  KeptReason = "snapshots"  // snapshots that messages can be joined to, or of a session on hold
)

// PruneKept is what stays in the archive for one reason.
type PruneKept struct {
	Reason   KeptReason `json:"reason"`
	Segments int        `json:"segments"`
	Bytes    uint64     `json:"bytes"`
}

// planSegment is what a plan needs to know of a sealed segment.
type planSegment struct {
	ref    Ref
	num    int
	sum    string // of its seal
	sealed time.Time
	bytes  uint64
	msgs   uint64
	cov    []moldcast.Range
	held   bool // its session is on hold
}

// planned is a segment to be removed. bases are the segments of its session,
// not yet removed, of which it replaces blocks: it goes after them, or not.
type planned struct {
	seg    planSegment
	reason PruneReason
	bases  []int // numbers
}

// plan decides what is removed, and in which order: the oldest first, by the
// time at which segments were sealed, those of a session by number. total is
// the bytes of all segments, sealed or not, and of the snapshots in snaps, which
// go with what they begin before; pruned is what was removed of each session
// before. It depends on nothing else.
func plan(segs []planSegment, pruned map[Ref][]moldcast.Range, snaps map[Ref][]planSnapshot, total uint64, r Retention, now time.Time) []planned {
	byNumber := slices.Clone(segs)
	slices.SortFunc(byNumber, func(x, y planSegment) int {
		if c := compareRefs(x.ref, y.ref); c != 0 {
			return c
		}
		return x.num - y.num
	})
	// A step of the wall clock must not turn the order of a session around.
	age := make([]time.Time, len(byNumber))
	order := make([]int, len(byNumber))
	for i, g := range byNumber {
		age[i], order[i] = g.sealed, i
		if i > 0 && byNumber[i-1].ref == g.ref && age[i-1].After(age[i]) {
			age[i] = age[i-1]
		}
	}
	slices.SortStableFunc(order, func(x, y int) int { return age[x].Compare(age[y]) })

	gone := map[Ref]*gap.Set{}
	of := func(r Ref) *gap.Set {
		if gone[r] == nil {
			gone[r] = new(gap.Set)
			for _, x := range pruned[r] {
				gone[r].Add(x)
			}
		}
		return gone[r]
	}
	taken := make([]bool, len(byNumber))
	left := total
	behind := map[Ref]uint64{} // of snapshots, what is not part of left any more
	drop := func(r Ref) {
		if len(snaps[r]) > 0 && of(r).Len() > 0 {
			_, bytes := unjoined(snaps[r], of(r).Bounds().Next)
			left -= min(left, bytes-behind[r])
			behind[r] = bytes
		}
	}
	for r := range snaps {
		drop(r)
	}
	var out []planned
	take := func(i int, why PruneReason) {
		g := byNumber[i]
		p := planned{seg: g, reason: why}
		for _, b := range byNumber {
			if b.ref == g.ref && b.num < g.num && intersect(b.cov, g.cov) {
				p.bases = append(p.bases, b.num)
			}
		}
		taken[i] = true
		left -= min(left, g.bytes)
		for _, x := range g.cov {
			of(g.ref).Add(x)
		}
		drop(g.ref)
		out = append(out, p)
	}
	// follow takes the segments of a session all of which replaced what is gone.
	follow := func(r Ref) {
		for i, g := range byNumber {
			if g.ref == r && !taken[i] && !g.held && len(g.cov) > 0 && within(g.cov, of(r)) {
				take(i, PrunePatch)
			}
		}
	}
	for i, g := range byNumber {
		if i == 0 || byNumber[i-1].ref != g.ref {
			follow(g.ref) // what an earlier prune had to leave
		}
	}
	for _, i := range order {
		g := byNumber[i]
		if taken[i] || g.held {
			continue
		}
		switch {
		case r.Keep >= 0 && !age[i].Add(r.Keep).After(now):
			take(i, PruneAge)
		case r.MaxBytes >= 0 && left > uint64(r.MaxBytes):
			take(i, PruneSize)
		default:
			continue
		}
		follow(g.ref)
	}
	return out
}

func within(rs []moldcast.Range, set *gap.Set) bool {
	for _, r := range rs {
		if part, held := set.Cut(r); !held || part != r {
			return false
		}
	}
	return true
}

// intersect reports whether two lists of ranges, in order, have a sequence in
// common.
func intersect(x, y []moldcast.Range) bool {
	for len(x) > 0 && len(y) > 0 {
		if !x[0].Intersect(y[0]).Empty() {
			return true
		}
		if x[0].Next < y[0].Next {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return false
}

func compareRefs(x, y Ref) int {
	if c := strings.Compare(x.Channel, y.Channel); c != 0 {
		return c
	}
	if c := strings.Compare(string(x.Session[:]), string(y.Session[:])); c != 0 {
		return c
	}
	return x.Take - y.Take
}

// keep counts what stays for one reason.
func (rep *PruneReport) keep(why KeptReason, segments int, bytes uint64) {
	i := slices.IndexFunc(rep.Kept, func(k PruneKept) bool { return k.Reason == why })
	if i < 0 {
		i = len(rep.Kept)
		rep.Kept = append(rep.Kept, PruneKept{Reason: why})
	}
	rep.Kept[i].Segments += segments
	rep.Kept[i].Bytes += bytes
}

// settle says whether, and why not, the target is reached.
func (rep *PruneReport) settle(r Retention) {
	if r.MaxBytes < 0 || rep.BytesAfter <= uint64(r.MaxBytes) {
		rep.Kept = []PruneKept{}
		return
	}
	rep.Over = rep.BytesAfter - uint64(r.MaxBytes)
	rest := rep.BytesAfter
	for _, k := range rep.Kept {
		rest -= min(rest, k.Bytes)
	}
	if rest > 0 && !slices.ContainsFunc(rep.Items, func(i PruneItem) bool { return i.Left == notReached }) {
		rep.keep(KeptSnapshots, 0, rest)
	}
}

// inventory lists what a plan is made of.
func (a *Archive) inventory(rep *PruneReport) (segs []planSegment, pruned map[Ref][]moldcast.Range, snaps map[Ref][]planSnapshot, err error) {
	refs, err := a.refs()
	if err != nil {
		return nil, nil, nil, err
	}
	pruned, snaps = map[Ref][]moldcast.Range{}, map[Ref][]planSnapshot{}
	for _, r := range refs {
		s := a.newSession(r)
		if err := s.load(); err != nil {
			return nil, nil, nil, fmt.Errorf("%v: %w", r, err)
		}
		hold, err := a.readHold(r)
		if err != nil {
			return nil, nil, nil, err
		}
		of, bytes, err := a.snapshotSizes(r, hold != nil)
		if err != nil {
			return nil, nil, nil, err
		}
		if rep.BytesBefore += bytes; bytes > 0 {
			snaps[r] = of
		}
		if hold != nil {
			rep.Held = append(rep.Held, r.String())
		}
		for _, t := range s.tombs {
			pruned[r] = append(pruned[r], t.ranges()...)
		}
		for _, g := range s.segs {
			if g.seal == nil {
				bytes := dirBytes(a.o.FS, g.dir)
				rep.BytesBefore += bytes
				if g.sealed {
					rep.Unreadable = append(rep.Unreadable, g.name)
					rep.keep(KeptUnreadable, 1, bytes)
				} else {
					rep.keep(KeptOpen, 1, bytes)
				}
				continue
			}
			rep.BytesBefore += g.seal.BytesDisk
			if hold != nil {
				rep.keep(KeptHold, 1, g.seal.BytesDisk)
			}
			segs = append(segs, planSegment{
				ref: r, num: g.num, sum: g.seal.Sum, sealed: g.seal.Sealed, bytes: g.seal.BytesDisk,
				msgs: g.seal.Messages, cov: g.seal.ranges(), held: hold != nil,
			})
		}
	}
	return segs, pruned, snaps, nil
}

// notReached is why a segment is left when the Prune ended before it.
const notReached = "not reached"

// errLeft is why a planned segment was left.
type errLeft string

func (e errLeft) Error() string { return string(e) }

// Prune removes the oldest sealed segments by r, and the snapshots that have no
// message to go on with then, or, in a dry run, only says which. It removes what it planned and nothing else; what is on hold or in
// use by then is left, and said. by is who asks, for the audit log. It works
// beside writers, readers and others that prune. The error is that of ctx, or
// of the file system; what was done until then is in the report, and what was
// begun is finished by the next Prune.
func (a *Archive) Prune(ctx context.Context, r Retention, dryRun bool, by string) (PruneReport, error) {
	rep := PruneReport{DryRun: dryRun, Items: []PruneItem{}, Snapshots: []SnapshotItem{}, Held: []string{}, Unreadable: []string{}, Kept: []PruneKept{}}
	if !dryRun {
		if err := a.finishPrunes(); err != nil {
			return rep, err
		}
	}
	segs, pruned, snaps, err := a.inventory(&rep)
	if err != nil {
		return rep, err
	}
	todo := plan(segs, pruned, snaps, rep.BytesBefore, r, a.o.Clock())
	rep.BytesAfter = rep.BytesBefore
	for _, p := range todo {
		i := PruneItem{
			Session: p.seg.ref.String(), Segment: segmentName(p.seg.num), Messages: p.seg.msgs,
			Bytes: p.seg.bytes, Sealed: p.seg.sealed, Reason: p.reason,
		}
		if n := len(p.seg.cov); n > 0 {
			i.FirstSeq, i.LastSeq = p.seg.cov[0].First, p.seg.cov[n-1].Next-1
		}
		rep.Items = append(rep.Items, i)
	}
	stay := map[string]bool{} // by name, what was planned and left
	for k, p := range todo {
		i := &rep.Items[k]
		if dryRun {
			rep.BytesAfter -= min(rep.BytesAfter, p.seg.bytes)
			continue
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			i.Left = notReached
			rep.Left++
			continue
		}
		e := a.pruneOne(ctx, p, stay, by)
		var left errLeft
		switch {
		case e == nil:
			i.Removed = true
			rep.Removed++
			rep.BytesAfter -= min(rep.BytesAfter, p.seg.bytes)
			a.o.Log.Info("segment pruned", "session", p.seg.ref, "segment", i.Segment, "messages", i.Messages, "bytes", i.Bytes, "reason", i.Reason)
			continue
		case errors.As(e, &left):
			i.Left = string(left)
		default:
			i.Left = e.Error()
			err = fmt.Errorf("%v/%s: %w", p.seg.ref, i.Segment, e)
		}
		rep.Left++
		rep.keep(KeptLeft, 1, i.Bytes)
		stay[i.Session+"/"+i.Segment] = true
		a.o.Log.Warn("segment is not pruned", "session", p.seg.ref, "segment", i.Segment, "why", i.Left)
	}
	if err == nil {
		err = a.pruneSnapshots(&rep, todo, snaps, by)
	}
	rep.settle(r)
	return rep, err
}

// pruneOne removes one segment. What is kept of it is made while it can still
// be read; then, under the lock of the archive, it is announced and renamed,
// from which moment on it is gone; then it is unlinked, and that told.
func (a *Archive) pruneOne(ctx context.Context, p planned, stay map[string]bool, by string) error {
	fs := a.o.FS
	ref, n := p.seg.ref, p.seg.num
	for _, b := range p.bases {
		if stay[ref.String()+"/"+segmentName(b)] || a.there(ref, b) {
			return errLeft("it replaces blocks of " + segmentName(b) + ", which is left")
		}
	}
	v, err := a.View(ref)
	if err != nil {
		return err
	}
	s := v.s
	if err := s.refreshPruned(); err != nil {
		return err
	}
	s.mu.Lock()
	var g *segment
	if i := slices.IndexFunc(s.segs, func(x *segment) bool { return x.num == n }); i >= 0 && s.segs[i].seal != nil {
		g = s.segs[i]
	}
	s.mu.Unlock()
	if g == nil {
		return errLeft("it is gone already")
	}
	sealPath := fs.PathJoin(g.dir, sealFile)
	probe, err := a.table.leaser.lease(sealPath, true)
	if err != nil {
		return leaseLeft(err)
	}
	probe.Close()
	if err := s.keep(ctx, g); err != nil {
		return err
	}

	a.table.forget(g)
	lease, err := a.table.leaser.lease(sealPath, true)
	if err != nil {
		return leaseLeft(err)
	}
	defer lease.Close()
	entry := AuditEntry{
		Session: ref.String(), By: by, Reason: string(p.reason), Segment: segmentName(n),
		SealSum: p.seg.sum, Messages: p.seg.msgs, Bytes: p.seg.bytes,
	}
	if k := len(p.seg.cov); k > 0 {
		entry.FirstSeq, entry.LastSeq = p.seg.cov[0].First, p.seg.cov[k-1].Next-1
	}
	if err := a.commitPrune(s, g, p, entry); err != nil {
		return err
	}
	if err := s.refreshPruned(); err != nil {
		return err
	}
	return a.unlink(s.dir, n, entry)
}

func leaseLeft(err error) error {
	switch {
	case errors.Is(err, errHeld):
		return errLeft("it is in use")
	case isNotExist(err):
		return errLeft("it is gone already")
	}
	return err
}

// there reports whether a segment is in its place.
func (a *Archive) there(r Ref, n int) bool {
	_, err := a.o.FS.Stat(a.o.FS.PathJoin(a.sessionDir(r), segmentName(n)))
	return !isNotExist(err)
}

// keep writes what outlives the segment: the leaves of its content hash, and
// the tombstone. Until the segment is renamed neither means anything.
func (s *session) keep(ctx context.Context, g *segment) error {
	fs := s.a.o.FS
	s.mu.Lock()
	held := s.heldOf(g)
	s.mu.Unlock()
	leaves, err := s.leavesOf(ctx, g, held)
	if err != nil {
		return err
	}
	t := tombstone{seal: *g.seal, SealSum: g.seal.Sum, Pruned: s.a.o.Clock().UTC(), Leaves: len(leaves)}
	t.BlockHashes, t.Coverage = []string{}, inclusive(held)
	if len(leaves) > 0 {
		b := encodeLeaves(leaves)
		sum := sha256.Sum256(b)
		t.LeavesSum = hex.EncodeToString(sum[:])
		if err := writeFile(fs, s.dir, leavesName(g.num), b); err != nil {
			return err
		}
	}
	b, err := t.encode()
	if err != nil {
		return err
	}
	return writeFile(fs, s.dir, prunedName(g.num), b)
}

// commitPrune announces the removal and renames the segment, unless its
// session was put on hold, or it is not what was planned.
func (a *Archive) commitPrune(s *session, g *segment, p planned, entry AuditEntry) error {
	fs := a.o.FS
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	if h, err := a.readHold(s.ref); err != nil {
		return err
	} else if h != nil {
		return errLeft("its session was put on hold: " + h.Reason)
	}
	b, err := readFile(fs, fs.PathJoin(g.dir, sealFile))
	if err != nil {
		return err
	}
	if now, err := parseSeal(b); err != nil || now.Sum != p.seg.sum {
		return errLeft("its seal is not the one that was planned with")
	}
	entry.Event = AuditPrune
	if err := a.audit(entry); err != nil {
		return err
	}
	err = fs.Rename(g.dir, fs.PathJoin(s.dir, goneName(g.num)))
	if err != nil {
		entry.Event = AuditCancelled
		return errors.Join(err, a.audit(entry))
	}
	// Nothing is unlinked before the new name is durable: a crash must not
	// bring back part of a segment under the old one.
	return syncDir(fs, s.dir)
}

// unlink deletes a renamed segment, and tells that it is done. Its seal.json,
// by whose lease others know that somebody is at it, goes last.
func (a *Archive) unlink(dir string, n int, entry AuditEntry) error {
	fs := a.o.FS
	gone := fs.PathJoin(dir, goneName(n))
	names, err := fs.List(gone)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == sealFile {
			continue
		}
		if err := fs.RemoveAll(fs.PathJoin(gone, name)); err != nil {
			return err
		}
	}
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := fs.RemoveAll(gone); err != nil {
		return err
	}
	if err := syncDir(fs, dir); err != nil {
		return err
	}
	entry.Event = AuditPruned
	return a.audit(entry)
}

// finishPrunes finishes what a crash left half done: segments that were
// renamed are unlinked, and the audit log says of every removal it announced
// what became of it.
func (a *Archive) finishPrunes() error {
	fs := a.o.FS
	entries, _, err := a.AuditLog()
	var broken *AuditError
	if err != nil && !errors.As(err, &broken) {
		return err
	}
	if broken != nil {
		a.o.Log.Error("the audit log is damaged", "err", err)
	}
	type place struct{ session, segment string }
	open := map[place]AuditEntry{}
	for _, e := range entries {
		k := place{e.Session, e.Segment}
		switch e.Event {
		case AuditPrune:
			open[k] = e
		case AuditPruned, AuditCancelled:
			delete(open, k)
		}
	}
	refs, err := a.refs()
	if err != nil {
		return err
	}
	for _, r := range refs {
		dir := a.sessionDir(r)
		names, err := fs.List(dir)
		if err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
		for _, name := range names {
			n, ok := parseGoneName(name)
			if !ok {
				continue
			}
			k := place{r.String(), segmentName(n)}
			e, known := open[k]
			if !known {
				e = AuditEntry{Session: k.session, Segment: k.segment}
			}
			lease, err := a.table.leaser.lease(fs.PathJoin(fs.PathJoin(dir, name), sealFile), true)
			if errors.Is(err, errHeld) {
				delete(open, k)
				continue // somebody is at it
			}
			if err == nil {
				defer lease.Close()
			}
			if err := a.unlink(dir, n, e); err != nil && !isNotExist(err) {
				return fmt.Errorf("%v: %w", r, err)
			}
			delete(open, k)
			a.o.Log.Info("a segment that was being pruned is removed", "session", r, "segment", k.segment)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return a.closeAnnounced()
}

// closeAnnounced tells what became of announced removals that nobody is at.
func (a *Archive) closeAnnounced() error {
	fs := a.o.FS
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	entries, _, err := a.AuditLog() // as it is under the lock
	var broken *AuditError
	if err != nil && !errors.As(err, &broken) {
		return err
	}
	refs, err := a.refs()
	if err != nil {
		return err
	}
	byName := map[string]Ref{}
	for _, r := range refs {
		byName[r.String()] = r
	}
	type place struct{ session, segment string }
	open := map[place]bool{}
	for _, e := range entries {
		if e.Event == AuditPrune || e.Event == AuditPruned || e.Event == AuditCancelled {
			open[place{e.Session, e.Segment}] = e.Event == AuditPrune
		}
	}
	for _, e := range slices.Backward(entries) {
		k := place{e.Session, e.Segment}
		if e.Event != AuditPrune || !open[k] {
			continue
		}
		open[k] = false
		e.Event = AuditPruned
		if r, ok := byName[e.Session]; ok {
			dir := a.sessionDir(r)
			if _, err := fs.Stat(fs.PathJoin(dir, e.Segment+goneSuffix)); !isNotExist(err) {
				continue // somebody is at it
			}
			if _, err := fs.Stat(fs.PathJoin(dir, e.Segment)); !isNotExist(err) {
				e.Event = AuditCancelled
			}
		}
		if err := a.audit(e); err != nil {
			return err
		}
	}
	return nil
}
