package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Mended is a damaged file of an archive that Mend restored, or could not.
type Mended struct {
	File     string `json:"file"` // within the archive
	Restored bool   `json:"restored"`
	Proven   bool   `json:"proven"` // a hash that was kept elsewhere says that it is what was written
	How      string `json:"how"`    // what was done, and what is not known any more; or why it cannot be
}

func (m Mended) String() string { return m.File + ": " + m.How }

// Mend restores what is damaged of the files around the messages of a
// recording: moldtape.json, audit.log, and of the recording session.json,
// hold.json, the seals, what was kept of pruned segments, and the records of
// damage. A turned bit is found by the hashes that each of them is kept with.
// Else seal.json and session.json are made again from the segments, and
// hold.json from the audit log. A seal must come out as the next one names it;
// only of the newest there is no such proof, where session.json is lost too.
// Everything restored is in the audit log; by is who asks. It takes the lock
// of the recording: errors wrap ErrNotFound or ErrLocked, or are those of the
// disk. Of what cannot be restored Mended tells why.
func (a *Archive) Mend(r Ref, by string) ([]Mended, error) {
	m := &mending{a: a, s: a.newSession(r), ref: r, by: by}
	if _, err := a.o.FS.Stat(m.s.dir); isNotExist(err) {
		return nil, a.notFound(r.String(), ErrNotFound)
	}
	lock, err := m.s.lock(true)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for _, step := range []func() error{m.log, m.archive, m.hold, m.session, m.kept, m.seals, m.remake, m.damage} {
		if err := step(); err != nil {
			return m.out, fmt.Errorf("%v: %w", r, err)
		}
	}
	if slices.ContainsFunc(m.out, func(x Mended) bool { return x.Restored }) {
		a.forget(m.s)
		a.mu.Lock()
		delete(a.sessions, r)
		a.mu.Unlock()
	}
	return m.out, nil
}

// mending is one run of Mend.
type mending struct {
	a   *Archive
	s   *session
	ref Ref
	by  string
	out []Mended

	made     bool // session.json is to be made again
	unproven bool // a seal is not the one that session.json names
	lost     bool // only seals that are gone are made again
}

func (m *mending) fs() vfs.FS { return m.a.o.FS }

// restored tells of a file that was, and puts it on record.
func (m *mending) restored(file string, proven bool, how string) error {
	m.out = append(m.out, Mended{file, true, proven, how})
	m.a.o.Log.Warn("a damaged file was restored", "file", file, "how", how)
	return m.a.Audit(AuditEntry{Event: AuditRepair, Session: m.ref.String(), By: m.by, File: file, Reason: how})
}

func (m *mending) failed(file, why string) {
	m.out = append(m.out, Mended{File: file, How: why})
}

// name is that of a file of the recording within the archive.
func (m *mending) name(file string) string {
	return m.ref.Channel + "/" + recordingName(m.ref.Session, m.ref.Take) + "/" + file
}

const unflipped = "one bit was turned back; its hash is right again"

// log mends audit.log, or acknowledges what of it cannot be.
func (m *mending) log() error {
	lock, err := m.a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	path := m.fs().PathJoin(m.a.dir, auditFile)
	b, err := readFile(m.fs(), path)
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if mended := unflipAudit(b); len(mended) > 0 {
		if err := writeFile(m.fs(), m.a.dir, auditFile, b); err != nil {
			return err
		}
		for _, x := range mended {
			how := fmt.Sprintf("line %d (%s): one bit was turned back; it is proven by the lines around", x.Line, x.Problem)
			m.out = append(m.out, Mended{auditFile, true, true, how})
			if err := m.a.audit(AuditEntry{Event: AuditRepair, By: m.by, File: auditFile, Reason: how}); err != nil {
				return err
			}
		}
	}
	var lines []int
	for _, x := range readAudit(b).breaks {
		if x.Acknowledged == 0 {
			m.failed(auditFile, fmt.Sprintf("line %d: %s; what was written cannot be told any more, which is on record now", x.Line, x.Problem))
			lines = append(lines, x.Line)
		}
	}
	for ; len(lines) > 0; lines = lines[min(len(lines), maxBroken):] {
		e := AuditEntry{Event: AuditRepair, By: m.by, File: auditFile, Broken: lines[:min(len(lines), maxBroken)], Reason: "these lines are not what was written, and cannot be restored"}
		if err := m.a.audit(e); err != nil {
			return err
		}
	}
	return nil
}

// archive mends moldtape.json.
func (m *mending) archive() error {
	a := m.a
	if a.infoErr == nil {
		return nil
	}
	b, err := readFile(m.fs(), m.fs().PathJoin(a.dir, archiveFile))
	if err != nil {
		return err
	}
	if unflip(b, func(b []byte) bool { return sumMatches(b, sumHead) }) && json.Unmarshal(b, &a.info) == nil {
		if err := writeFile(m.fs(), a.dir, archiveFile, b); err != nil {
			return err
		}
		a.infoErr = nil
		return m.restored(archiveFile, true, unflipped)
	}
	a.info = archiveInfo{Format: FormatVersion, Node: a.o.Node, Made: a.o.Clock().UTC()}
	if err := writeArchiveInfo(m.fs(), a.dir, a.info, false); err != nil {
		return err
	}
	a.infoErr = nil
	return m.restored(archiveFile, false, "made again; when the archive was made, and by which node, is not known any more")
}

// hold mends hold.json.
func (m *mending) hold() error {
	lock, err := m.a.lockAudit()
	if err != nil {
		return err
	}
	h, problem, proven, err := m.a.mendHold(m.ref, m.s.dir)
	lock.Close()
	switch {
	case err != nil:
		return err
	case problem == "":
		return nil
	case h == nil:
		m.failed(m.name(holdFile), problem)
		return nil
	}
	return m.restored(m.name(holdFile), proven, problem)
}

// mendHold mends hold.json; h is the hold as it was restored, nil where it
// could not be, and problem then why. REQUIRES: lockAudit.
func (a *Archive) mendHold(r Ref, dir string) (h *Hold, problem string, proven bool, err error) {
	path := a.o.FS.PathJoin(dir, holdFile)
	b, err := readFile(a.o.FS, path)
	gone := isNotExist(err)
	if err != nil && !gone {
		return nil, "", false, err
	}
	h = new(Hold)
	if !gone {
		if parseSummed(b, h) == nil {
			return nil, "", false, nil
		}
		if unflip(b, func(b []byte) bool { return sumMatches(b, sumHead) }) && json.Unmarshal(b, h) == nil {
			return h, unflipped, true, writeFile(a.o.FS, dir, holdFile, b)
		}
	}
	e, ok, err := a.holdOnRecord(r)
	switch {
	case err != nil:
		return nil, "", false, err
	case !ok && gone:
		return nil, "", false, nil
	case !ok:
		return nil, "it is damaged, and the audit log does not say why the session is on hold; nothing of it is removed: release it, and hold it again", false, nil
	}
	h = &Hold{Reason: e.Reason, By: e.By, Time: e.Time}
	return h, "made again as the audit log has it", false, writeSummed(a.o.FS, dir, holdFile, h)
}

// holdOnRecord is the entry of the audit log by which a session is on hold.
func (a *Archive) holdOnRecord(r Ref) (e AuditEntry, ok bool, err error) {
	entries, _, err := a.AuditLog()
	if err != nil && !errors.As(err, new(*AuditError)) {
		return e, false, err
	}
	e, ok = holdIn(entries, r)
	return e, ok, nil
}

func holdIn(entries []AuditEntry, r Ref) (e AuditEntry, ok bool) {
	for _, x := range slices.Backward(entries) {
		if x.Session == r.String() && (x.Event == AuditHold || x.Event == AuditRelease) {
			return x, x.Event == AuditHold
		}
	}
	return e, false
}

// session turns back a bit of session.json. What can be made again is, once
// the seals are right.
func (m *mending) session() error {
	_, err := readSessionInfo(m.a, m.s.dir)
	var version *VersionError
	if err == nil || errors.As(err, &version) {
		return err
	}
	m.made = true
	if isNotExist(err) {
		return nil
	}
	b, err := readFile(m.fs(), m.fs().PathJoin(m.s.dir, sessionFile))
	if err != nil {
		return err
	}
	if !unflip(b, func(b []byte) bool { return sumMatches(b, sumHead) }) {
		return nil
	}
	if err := writeFile(m.fs(), m.s.dir, sessionFile, b); err != nil {
		return err
	}
	m.made = false
	return m.restored(m.name(sessionFile), true, unflipped)
}

// kept mends what was kept of pruned segments.
func (m *mending) kept() error {
	names, err := m.fs().List(m.s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		n, ok := parsePrunedName(name)
		if !ok || slices.Contains(names, segmentName(n)) {
			continue
		}
		b, err := readFile(m.fs(), m.fs().PathJoin(m.s.dir, name))
		if err != nil {
			return err
		}
		if _, err := parseTombstone(b); err != nil {
			if !unflip(b, func(b []byte) bool { return sumMatches(b, sealHead) }) {
				m.failed(m.name(name), err.Error()+"; the segment itself was removed: what it held is not known any more, restore this file from a copy")
				continue
			}
			if err := m.put(name, b); err != nil {
				return err
			}
		}
		t, err := parseTombstone(b)
		if err != nil {
			continue // Verify says what is wrong
		}
		if _, err := m.s.readLeaves(t); err == nil {
			continue
		}
		name = leavesName(n)
		b, err = readFile(m.fs(), m.fs().PathJoin(m.s.dir, name))
		if err != nil && !isNotExist(err) {
			return err
		}
		if !unflip(b, func(b []byte) bool { return auditSum(b) == t.LeavesSum }) {
			m.failed(m.name(name), "it is damaged, and the segment was removed: the content hash of what it held is lost")
			continue
		}
		if err := m.put(name, b); err != nil {
			return err
		}
	}
	return nil
}

// put writes a file of which one bit was turned back.
func (m *mending) put(name string, b []byte) error {
	if err := writeFile(m.fs(), m.s.dir, name, b); err != nil {
		return err
	}
	return m.restored(m.name(name), true, unflipped)
}

// remake makes session.json again, from the segments.
func (m *mending) remake() error {
	if !m.made && !m.unproven {
		return nil
	}
	s := m.a.newSession(m.ref)
	if err := s.load(); err != nil {
		return err
	}
	open, damaged := s.unsealed()
	s.readUnsealed(append(open, damaged...))
	s.mu.Lock()
	if n := len(s.segs); m.unproven && n > 0 && s.segs[n-1].seal != nil {
		s.newest = sealRef{s.segs[n-1].num, s.segs[n-1].seal.Sum}
	}
	for _, g := range s.segs {
		opened := g.opened
		if g.seal != nil {
			opened = g.seal.Opened
		}
		if !opened.IsZero() && (s.made.IsZero() || opened.Before(s.made)) {
			s.made = opened.UTC().Truncate(time.Second)
		}
	}
	for _, g := range s.segs {
		m.a.table.forget(g)
	}
	s.mu.Unlock()
	if err := s.writeSessionInfo(); err != nil {
		return err
	}
	if !m.made {
		return nil // the seal is on record
	}
	return m.restored(m.name(sessionFile), false, "made again from the segments; whether the last ones are lost it cannot tell")
}

// damage removes records of damage that cannot be read: Verify finds again
// what they named.
func (m *mending) damage() error {
	dir := m.fs().PathJoin(m.s.dir, damageDir)
	names, err := m.fs().List(dir)
	if err != nil {
		return nil // there is none
	}
	sound := map[string]bool{}
	for _, d := range m.a.readDamage(m.s.dir, func(string) bool { return false }) {
		sound[d.name()] = true
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") || sound[name] {
			continue
		}
		if err := m.fs().Remove(m.fs().PathJoin(dir, name)); err != nil {
			return err
		}
		if err := m.restored(m.name(damageDir+"/"+name), false, "removed; what it named is checked anew"); err != nil {
			return err
		}
	}
	return nil
}
