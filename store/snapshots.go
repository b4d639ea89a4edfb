package store

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/moldtape/moldtape/moldcast"
)

// PutSnapshot stores what src gives, to its end, as the snapshot of a recording
// at seq: the state of an application after all messages below seq. by is who
// asks, for the audit log. It works beside a writer of the recording, in
// whatever process: it takes the lock of the archive for a moment only. When it
// returns the snapshot is durable and on record; a crash before leaves all of it
// or nothing. Storing the same once more changes nothing.
//
// Errors wrap ErrNotFound, ErrSnapshotSeq (0, or beyond the end of the session),
// ErrPruned (messages from seq on were pruned: nothing could be joined to it) or
// ErrSnapshotExists, or are those of src and of the disk.
func (a *Archive) PutSnapshot(r Ref, seq moldcast.Seq, src io.Reader, by string) (SnapshotInfo, error) {
	h := snapshotHeader{ref: r, seq: seq, made: a.o.Clock()}
	err := a.storeSnapshot(&h, src, AuditEntry{Event: AuditSnapshot, By: by}, func(snapshotRecord, error) error { return nil })
	return h.info(), err
}

// RestoreSnapshot stores what from, of another archive, has, where this one
// holds no sound snapshot at that sequence, or never had one; source is the name
// of the other. restored false: there was nothing to do, since there is a sound
// one, or it was removed from here by retention or on demand. Errors wrap
// ErrSnapshotExists where another one is on record here, and are else those of
// PutSnapshot.
func (a *Archive) RestoreSnapshot(r Ref, from *SnapshotReader, by, source string) (restored bool, err error) {
	h := snapshotHeader{ref: r, seq: from.Seq(), made: from.h.made}
	entry := AuditEntry{Event: AuditSnapshot, By: by, Reason: "copied from " + source}
	err = a.storeSnapshot(&h, from, entry, func(rec snapshotRecord, there error) error {
		switch {
		case there == nil, rec.removed:
			return errSnapshotKept
		case rec.sum != "" && rec.sum != hex.EncodeToString(h.sum[:]):
			return fmt.Errorf("%w: by the audit log it is %s, %s has %x", ErrSnapshotExists, short(rec.sum), source, h.sum[:6])
		}
		return nil
	})
	if errors.Is(err, errSnapshotKept) || errors.Is(err, ErrPruned) {
		return false, nil
	}
	return err == nil, err
}

var errSnapshotKept = errors.New("nothing to restore")

// snapshotRecord is what the audit log says of one snapshot.
type snapshotRecord struct {
	sum     string // as it was stored last; empty: it never was
	removed bool   // it was removed since
}

// snapshotRecords are those of a recording.
func snapshotRecords(entries []AuditEntry, r Ref) map[moldcast.Seq]snapshotRecord {
	out := map[moldcast.Seq]snapshotRecord{}
	name := r.String()
	for _, e := range entries {
		if e.Session != name {
			continue
		}
		switch e.Event {
		case AuditSnapshot:
			out[e.FirstSeq] = snapshotRecord{sum: e.SHA256}
		case AuditSnapshotRemoved:
			for q, rec := range out {
				if e.FirstSeq <= q && q <= e.LastSeq {
					rec.removed = true
					out[q] = rec
				}
			}
		}
	}
	return out
}

// storeSnapshot writes beside its place what src gives, and moves it there under
// the lock of the archive, unless the rules or may say no. may is told what is on
// record, if there is a file, and what is wrong with that: os.ErrNotExist: none.
// Under that lock segments are pruned too, so that a snapshot is refused as below
// what was pruned, or is there for that Prune to remove.
func (a *Archive) storeSnapshot(h *snapshotHeader, src io.Reader, entry AuditEntry, may func(rec snapshotRecord, there error) error) error {
	fs, r := a.o.FS, h.ref
	fail := func(err error) error { return fmt.Errorf("%v: snapshot at %d: %w", r, h.seq, err) }
	sessionDir := a.sessionDir(r)
	if _, err := fs.Stat(sessionDir); isNotExist(err) {
		return a.notFound(r.String(), ErrNotFound)
	} else if err != nil {
		return fail(err)
	}
	if err := a.snapshotFits(r, h.seq); err != nil { // before a long upload
		return fail(err)
	}
	if end, known, err := a.EndOf(r); err != nil {
		return fail(err)
	} else if known && h.seq > end {
		return fail(fmt.Errorf("%w: the session ended with %d; its last state is that at %d", ErrSnapshotSeq, end-1, end))
	}
	room := func() error {
		n, known := a.free()
		if want := uint64(a.o.Reserve) + snapshotRoom; known && n < want {
			return fmt.Errorf("%w: %d MiB free, and %d MiB are left for what is captured; make room, or remove older snapshots", errNoRoom, n>>20, want>>20)
		}
		return nil
	}
	if err := room(); err != nil {
		return fail(err)
	}
	dir := fs.PathJoin(sessionDir, snapshotDir)
	if err := makeDir(fs, dir); err != nil {
		return fail(hint(err))
	}
	tmp, lease, err := a.beginSnapshot(dir)
	if err != nil {
		return fail(hint(err))
	}
	defer lease.Close()
	defer func() { _ = fs.Remove(tmp) }() // it is not there once renamed
	if err := writeSnapshot(fs, tmp, h, src, room); err != nil {
		return fail(hint(err))
	}

	lock, err := a.lockAudit()
	if err != nil {
		return fail(err)
	}
	defer lock.Close()
	if err := a.snapshotFits(r, h.seq); err != nil {
		return fail(err)
	}
	there := a.checkSnapshot(r, dir, h.seq)
	var rec snapshotRecord
	if !isNotExist(there.err) || entry.Reason != "" { // else the log is of no interest, and it may be long
		entries, _, err := a.AuditLog()
		if err != nil && !errors.As(err, new(*AuditError)) {
			return fail(err)
		}
		rec = snapshotRecords(entries, r)[h.seq]
	}
	sum := hex.EncodeToString(h.sum[:])
	if err := may(rec, there.err); err != nil {
		return fail(err)
	}
	name := snapshotName(h.seq)
	switch bad := (*SnapshotError)(nil); {
	case there.err == nil && there.info.Sum != sum:
		return fail(fmt.Errorf("%w, of SHA-256 %s", ErrSnapshotExists, short(there.info.Sum)))
	case there.err == nil && rec.sum == sum && !rec.removed:
		return nil
	case there.err == nil: // a crash kept it from being put on record
	case errors.As(there.err, &bad) && rec.sum != "" && rec.sum != sum && !rec.removed:
		return fail(fmt.Errorf("%w: it is damaged, and by the audit log it was another, of SHA-256 %s; remove it first", ErrSnapshotExists, short(rec.sum)))
	case errors.As(there.err, &bad), isNotExist(there.err):
		if err := fs.Rename(tmp, fs.PathJoin(dir, name)); err != nil {
			return fail(err)
		}
	default:
		return fail(there.err)
	}
	if err := syncDir(fs, dir); err != nil {
		return fail(err)
	}
	entry.Session, entry.File = r.String(), a.snapshotFile(r, h.seq)
	entry.FirstSeq, entry.LastSeq, entry.Bytes, entry.SHA256 = h.seq, h.seq, h.size, sum
	return a.audit(entry)
}

// snapshotFile is the name of a snapshot within the archive.
func (a *Archive) snapshotFile(r Ref, q moldcast.Seq) string {
	return r.Channel + "/" + recordingName(r.Session, r.Take) + "/" + snapshotDir + "/" + snapshotName(q)
}

// beginSnapshot makes a file of its own for a snapshot that is to be written.
// While its lease is held it is not taken for what a crash left.
func (a *Archive) beginSnapshot(dir string) (tmp string, lease io.Closer, err error) {
	lock, err := a.lockAudit()
	if err != nil {
		return "", nil, err
	}
	defer lock.Close()
	tmp = a.o.FS.PathJoin(dir, fmt.Sprintf("%d.%x%s", os.Getpid(), rand.Uint64(), tmpSuffix))
	f, err := a.o.FS.Create(tmp, "")
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		lease, err = a.table.leaser.lease(tmp, true)
	}
	return tmp, lease, err
}

// snapshotFits reports why no snapshot of r can be at q: ErrSnapshotSeq,
// ErrPruned, or a failure to read.
func (a *Archive) snapshotFits(r Ref, q moldcast.Seq) error {
	if q == 0 || q == ^moldcast.Seq(0) {
		return fmt.Errorf("%w: %d; want 1..%d", ErrSnapshotSeq, q, ^moldcast.Seq(0)-1)
	}
	from, err := a.Joinable(r)
	if err == nil && q < from {
		err = fmt.Errorf("%w: messages up to %d were removed; nothing could be joined to it", ErrPruned, from-1)
	}
	return err
}

// Joinable is the lowest sequence at and after which nothing of r was pruned:
// what is there of it can be joined to a snapshot from there on.
func (a *Archive) Joinable(r Ref) (from moldcast.Seq, err error) {
	s := a.newSession(r)
	names, err := a.o.FS.List(s.dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		n, ok := parsePrunedName(name)
		if !ok || slices.Contains(names, segmentName(n)) {
			continue
		}
		t, err := s.readTombstone(n)
		if err != nil {
			return 0, err
		}
		for _, x := range t.ranges() {
			from = max(from, x.Next)
		}
	}
	return from, nil
}

// foundSnapshot is one that was looked at; err is what is wrong with it.
type foundSnapshot struct {
	info SnapshotInfo
	err  error
}

// checkSnapshot reads all of one.
func (a *Archive) checkSnapshot(r Ref, dir string, q moldcast.Seq) foundSnapshot {
	sr, err := openSnapshot(a.o.FS, r, dir, q)
	if err != nil {
		return foundSnapshot{info: SnapshotInfo{Seq: q}, err: err}
	}
	defer sr.Close()
	var buf []byte
	for err == nil {
		buf, err = sr.Next(buf[:0])
	}
	if err == io.EOF {
		err = nil
	}
	return foundSnapshot{info: sr.Info(), err: err}
}

// snapshotSeqs are the sequences of the snapshots of a recording, in order.
func (a *Archive) snapshotSeqs(r Ref) ([]moldcast.Seq, error) {
	names, err := a.o.FS.List(a.o.FS.PathJoin(a.sessionDir(r), snapshotDir))
	if isNotExist(err) {
		return nil, nil
	}
	var out []moldcast.Seq
	for _, name := range names {
		if q, ok := parseSnapshotName(name); ok {
			out = append(out, q)
		}
	}
	slices.Sort(out)
	return out, err
}

// EndOf is one past the last message of a recording, where its End of Session is
// on record as this process sees it: of one that another process writes, in a
// sealed segment. Errors wrap ErrNotFound, or say what cannot be read.
func (a *Archive) EndOf(r Ref) (end moldcast.Seq, known bool, err error) {
	d, err := a.describe(r, false)
	if err != nil || !d.Ended {
		return 0, false, err
	}
	return *d.EndSeq, true, nil
}

// beyondEnd says what is wrong with a snapshot at q of a session that ended with
// end: it was stored before that was on record.
func beyondEnd(q, end moldcast.Seq) string {
	return fmt.Sprintf("no state of the session: that ended with %d; `moldtape snapshot rm --seq %d` removes it", end-1, q)
}

// Snapshots describes the snapshots of a recording by their headers, in the
// order of sequences; of one whose header is damaged, or that lies beyond the end
// of the session, Fault says so. Errors wrap ErrNotFound.
func (a *Archive) Snapshots(r Ref) ([]SnapshotInfo, error) {
	dir := a.sessionDir(r)
	if _, err := a.o.FS.Stat(dir); isNotExist(err) {
		return nil, a.notFound(r.String(), ErrNotFound)
	}
	seqs, err := a.snapshotSeqs(r)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	out := make([]SnapshotInfo, 0, len(seqs))
	var end moldcast.Seq
	ended := false
	if len(seqs) > 0 {
		if end, ended, err = a.EndOf(r); err != nil {
			a.o.Log.Warn("where a session ended is not known; its snapshots are not compared with that", "session", r, "err", err)
		}
	}
	for _, q := range seqs {
		sr, err := openSnapshot(a.o.FS, r, a.o.FS.PathJoin(dir, snapshotDir), q)
		switch {
		case isNotExist(err): // removed meanwhile
			continue
		case err != nil:
			out = append(out, SnapshotInfo{Seq: q, Fault: err.Error()})
			continue
		}
		info := sr.Info()
		sr.Close()
		if ended && q > end {
			info.Fault = beyondEnd(q, end)
		}
		out = append(out, info)
	}
	return out, nil
}

// OpenSnapshot opens the newest snapshot of a recording at or before q; 0: the
// newest. Errors wrap ErrNotFound or ErrNoSnapshot, or are *SnapshotError: then
// an older one can be asked for.
func (a *Archive) OpenSnapshot(r Ref, q moldcast.Seq) (*SnapshotReader, error) {
	dir := a.sessionDir(r)
	if _, err := a.o.FS.Stat(dir); isNotExist(err) {
		return nil, a.notFound(r.String(), ErrNotFound)
	}
	for {
		seqs, err := a.snapshotSeqs(r)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", r, err)
		}
		i := len(seqs) - 1
		for q != 0 && i >= 0 && seqs[i] > q {
			i--
		}
		if i < 0 {
			return nil, fmt.Errorf("%v: %w%s", r, ErrNoSnapshot, snapshotsText(seqs, q))
		}
		sr, err := openSnapshot(a.o.FS, r, a.o.FS.PathJoin(dir, snapshotDir), seqs[i])
		if !isNotExist(err) {
			return sr, err
		}
	}
}

func snapshotsText(seqs []moldcast.Seq, q moldcast.Seq) string {
	if len(seqs) == 0 {
		return ""
	}
	return fmt.Sprintf(" at or before %d; the first is at %d", q, seqs[0])
}

// RemoveSnapshot removes the snapshot at seq; by is who asks, for the audit log.
// Errors wrap ErrNotFound, ErrNoSnapshot or ErrOnHold.
func (a *Archive) RemoveSnapshot(r Ref, seq moldcast.Seq, by string) error {
	seqs, err := a.snapshotSeqs(r)
	if _, e := a.o.FS.Stat(a.sessionDir(r)); isNotExist(e) {
		return a.notFound(r.String(), ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	if !slices.Contains(seqs, seq) {
		return fmt.Errorf("%v: %w at %d", r, ErrNoSnapshot, seq)
	}
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	return a.removeSnapshots(r, []moldcast.Seq{seq}, AuditEntry{By: by, Reason: "asked for"})
}

// removeSnapshots removes snapshots, which are all there are between the first
// and the last, and syncs: the entry of the audit log first. REQUIRES: lockAudit.
func (a *Archive) removeSnapshots(r Ref, seqs []moldcast.Seq, e AuditEntry) error {
	fs, dir := a.o.FS, a.o.FS.PathJoin(a.sessionDir(r), snapshotDir)
	if h, err := a.readHold(r); err != nil {
		return err
	} else if h != nil {
		return fmt.Errorf("%v: %w: %s", r, ErrOnHold, h.Reason)
	}
	e.Event, e.Session, e.FirstSeq, e.LastSeq = AuditSnapshotRemoved, r.String(), seqs[0], seqs[len(seqs)-1]
	for _, q := range seqs {
		if st, err := fs.Stat(fs.PathJoin(dir, snapshotName(q))); err == nil {
			e.Bytes += uint64(st.Size())
		}
	}
	if err := a.audit(e); err != nil {
		return err
	}
	for _, q := range seqs {
		if err := fs.Remove(fs.PathJoin(dir, snapshotName(q))); err != nil && !isNotExist(err) {
			return fmt.Errorf("%v: %w", r, err)
		}
	}
	return syncDir(fs, dir)
}

// SnapshotItem is a snapshot that is to be removed: messages at or after its
// sequence are, or were.
type SnapshotItem struct {
	Session string       `json:"session"`
	Seq     moldcast.Seq `json:"seq"`
	Bytes   uint64       `json:"bytes"` // on disk
	Removed bool         `json:"removed"`
	Left    string       `json:"left,omitempty"` // why it was not
}

// planSnapshot is what a plan needs to know of a snapshot.
type planSnapshot struct {
	seq   moldcast.Seq
	bytes uint64
	held  bool // its session is on hold
}

// unjoined are those that nothing can be joined to once what is below from was
// pruned, and what they take.
func unjoined(snaps []planSnapshot, from moldcast.Seq) (n int, bytes uint64) {
	for n < len(snaps) && snaps[n].seq < from && !snaps[n].held {
		bytes += snaps[n].bytes
		n++
	}
	return n, bytes
}

// snapshotSizes lists the snapshots of a recording for a plan; bytes are of all
// files beside each other there, those that are being written included.
func (a *Archive) snapshotSizes(r Ref, held bool) (out []planSnapshot, bytes uint64, err error) {
	dir := a.o.FS.PathJoin(a.sessionDir(r), snapshotDir)
	names, err := a.o.FS.List(dir)
	if isNotExist(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%v: %w", r, err)
	}
	for _, name := range names {
		st, err := a.o.FS.Stat(a.o.FS.PathJoin(dir, name))
		if err != nil {
			continue // gone meanwhile
		}
		bytes += uint64(st.Size())
		if q, ok := parseSnapshotName(name); ok {
			out = append(out, planSnapshot{seq: q, bytes: uint64(st.Size()), held: held})
		}
	}
	slices.SortFunc(out, func(x, y planSnapshot) int { return cmp.Compare(x.seq, y.seq) })
	return out, bytes, nil
}

// pruneSnapshots removes, of every recording in snaps, the snapshots that
// nothing can be joined to any more, and finishes what crashes left. In a dry run
// it says what todo would come to.
func (a *Archive) pruneSnapshots(rep *PruneReport, todo []planned, snaps map[Ref][]planSnapshot, by string) error {
	from := map[Ref]moldcast.Seq{}
	for _, p := range todo {
		for _, x := range p.seg.cov {
			from[p.seg.ref] = max(from[p.seg.ref], x.Next)
		}
	}
	entries, _, err := a.AuditLog()
	if err != nil && !errors.As(err, new(*AuditError)) {
		return err
	}
	refs := make([]Ref, 0, len(snaps))
	for r := range snaps {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, compareRefs)
	for _, r := range refs {
		bound, err := a.Joinable(r)
		if err != nil {
			a.o.Log.Error("what was pruned of a session is not known; its snapshots stay", "session", r, "err", err)
			continue
		}
		if rep.DryRun {
			n, bytes := unjoined(snaps[r], max(bound, from[r]))
			rep.Snapshots = append(rep.Snapshots, snapshotItems(r, snaps[r][:n])...)
			rep.BytesAfter -= min(rep.BytesAfter, bytes)
			continue
		}
		items, err := a.pruneSnapshotsOf(r, bound, entries, by)
		for _, i := range items {
			if i.Removed {
				rep.BytesAfter -= min(rep.BytesAfter, i.Bytes)
			}
		}
		rep.Snapshots = append(rep.Snapshots, items...)
		if err != nil {
			return err
		}
	}
	return nil
}

func snapshotItems(r Ref, snaps []planSnapshot) (out []SnapshotItem) {
	for _, s := range snaps {
		out = append(out, SnapshotItem{Session: r.String(), Seq: s.seq, Bytes: s.bytes})
	}
	return out
}

// pruneSnapshotsOf removes what lies below bound; entries are those of the audit
// log, of a moment ago.
func (a *Archive) pruneSnapshotsOf(r Ref, bound moldcast.Seq, entries []AuditEntry, by string) ([]SnapshotItem, error) {
	lock, err := a.lockAudit()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := a.tidySnapshots(r, entries, by); err != nil {
		return nil, err
	}
	hold, err := a.readHold(r)
	if err != nil {
		return nil, err
	}
	snaps, _, err := a.snapshotSizes(r, hold != nil)
	if err != nil {
		return nil, err
	}
	n, _ := unjoined(snaps, bound)
	if n == 0 {
		return nil, nil
	}
	items := snapshotItems(r, snaps[:n])
	seqs := make([]moldcast.Seq, n)
	for i := range items {
		seqs[i] = items[i].Seq
	}
	err = a.removeSnapshots(r, seqs, AuditEntry{By: by, Reason: fmt.Sprintf("messages up to %d are pruned", bound-1)})
	for i := range items {
		if items[i].Removed = err == nil; err != nil {
			items[i].Left = err.Error()
		}
	}
	if err == nil {
		a.o.Log.Info("snapshots pruned", "session", r, "snapshots", n, "below", bound)
	}
	return items, err
}

// tidySnapshots finishes what crashes left: files that were being written are
// removed, those that are removed by the audit log too, and those that are not on
// record are put there. REQUIRES: lockAudit.
func (a *Archive) tidySnapshots(r Ref, entries []AuditEntry, by string) error {
	fs, dir := a.o.FS, a.o.FS.PathJoin(a.sessionDir(r), snapshotDir)
	names, err := fs.List(dir)
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	recs := snapshotRecords(entries, r)
	var doubtful []moldcast.Seq
	for _, name := range names {
		if q, ok := parseSnapshotName(name); ok && (recs[q].sum == "" || recs[q].removed) {
			doubtful = append(doubtful, q)
		}
		if !strings.HasSuffix(name, tmpSuffix) {
			continue
		}
		lease, err := a.table.leaser.lease(fs.PathJoin(dir, name), true)
		if err != nil {
			continue // somebody writes it
		}
		err = fs.Remove(fs.PathJoin(dir, name))
		lease.Close()
		if err != nil {
			return err
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	entries, _, err = a.AuditLog() // as it is under the lock
	if err != nil && !errors.As(err, new(*AuditError)) {
		return err
	}
	recs = snapshotRecords(entries, r)
	for _, q := range doubtful {
		switch rec := recs[q]; {
		case rec.removed:
			err = fs.Remove(fs.PathJoin(dir, snapshotName(q)))
		case rec.sum == "":
			found := a.checkSnapshot(r, dir, q)
			if found.err != nil {
				continue // Verify names it
			}
			err = a.audit(AuditEntry{
				Event: AuditSnapshot, Session: r.String(), By: by, File: a.snapshotFile(r, q), FirstSeq: q, LastSeq: q,
				Bytes: found.info.Bytes, SHA256: found.info.Sum, Reason: "found; a crash kept it from being put on record",
			})
		}
		if err != nil {
			return err
		}
	}
	return syncDir(fs, dir)
}
