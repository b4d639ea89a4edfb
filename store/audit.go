package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	auditFile = "audit.log"

	// maxAuditLine bounds a line, so that the last one is found by reading the
	// end of the file.
	maxAuditLine = 64 << 10

	// MaxReason is the longest reason of a hold, in bytes.
	MaxReason = 4096
)

// AuditEvent is what an AuditEntry tells.
type AuditEvent string

// The events of the audit log. A removal is announced before it is begun, and
// told again when it is done.
const (
	AuditPrune     AuditEvent = "prune"           // a segment is about to be removed
	AuditPruned    AuditEvent = "pruned"          // it is removed
	AuditCancelled AuditEvent = "prune_cancelled" // it was not, after all
	AuditHold      AuditEvent = "hold"
	AuditRelease   AuditEvent = "release"
	AuditSeal      AuditEvent = "seal"
	AuditRepair    AuditEvent = "repair" // a file was restored, messages were filled or written anew, or what of the log itself cannot be restored is acknowledged

	// A snapshot that is there and durable, and snapshots that are about to be
	// removed: all with a sequence from FirstSeq to LastSeq.
	AuditSnapshot        AuditEvent = "snapshot"
	AuditSnapshotRemoved AuditEvent = "snapshot_removed"

	// AuditBroken: lines before it, those in Broken, do not follow the line
	// before them. Nobody was asked: it is appended before what was to be.
	AuditBroken AuditEvent = "chain_broken"
)

// AuditEntry is one line of the audit log. Which of the members from Segment
// on are set depends on the event.
type AuditEntry struct {
	Prev    string     `json:"prev"` // SHA-256, in hexadecimal, of the line before, without its end; empty in the first
	Time    time.Time  `json:"time"`
	Event   AuditEvent `json:"event"`
	Session string     `json:"session"`      // CHANNEL/SESSION[@TAKE]
	By      string     `json:"by,omitempty"` // who asked for it
	Node    string     `json:"node,omitempty"`
	Reason  string     `json:"reason,omitempty"`

	Segment  string       `json:"segment,omitempty"`
	SealSum  string       `json:"seal_sum,omitempty"`
	FirstSeq moldcast.Seq `json:"first_seq,omitempty"`
	LastSeq  moldcast.Seq `json:"last_seq,omitempty"` // inclusive
	Messages uint64       `json:"messages,omitempty"`
	Bytes    uint64       `json:"bytes,omitempty"` // on disk

	File   string `json:"file,omitempty"`   // within the archive
	Broken []int  `json:"broken,omitempty"` // lines, from 1
	SHA256 string `json:"sha256,omitempty"` // of a snapshot, in hexadecimal; FirstSeq = LastSeq is its sequence, Bytes its own
}

// AuditBreak is a line of the audit log that is not what was written, or not
// what was written after the line before it.
type AuditBreak struct {
	Line         int    `json:"line"` // from 1
	Problem      string `json:"problem"`
	Recorded     int    `json:"recorded_line,omitempty"`     // the entry AuditBroken that names it; 0: none yet
	Acknowledged int    `json:"acknowledged_line,omitempty"` // the entry AuditRepair that does; 0: none
}

func (b AuditBreak) String() string {
	s := fmt.Sprintf("%s line %d: %s", auditFile, b.Line, b.Problem)
	if b.Recorded > 0 {
		s += fmt.Sprintf(" (on record in line %d)", b.Recorded)
	}
	return s
}

// AuditError is every break of the chain of an audit log, by line.
type AuditError struct{ Breaks []AuditBreak }

func (e *AuditError) Error() string {
	s := e.Breaks[0].String()
	if n := len(e.Breaks); n > 1 {
		s += fmt.Sprintf(", and %d more breaks of its chain", n-1)
	}
	return s
}

// Audit appends e to the audit log of the archive, and returns when it is
// durable. Prev and Time are set, Node where it is empty.
func (a *Archive) Audit(e AuditEntry) error {
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	return a.audit(e)
}

// lockAudit takes the lock of the archive directory: who has it may append to
// the audit log, and put sessions on hold or remove segments. It is held for
// moments only.
func (a *Archive) lockAudit() (io.Closer, error) {
	const retry, tries = 5 * time.Millisecond, 6000
	for range tries {
		c, err := a.locker.lock(a.dir, true)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, errHeld) {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		time.Sleep(retry)
	}
	return nil, fmt.Errorf("audit log: %s is locked by another process for %v", a.dir, retry*tries)
}

// audit is Audit. REQUIRES: lockAudit.
//
// A removal that is not on record is worse than a chain that is broken, and
// one that is broken must not look whole again: on a log whose chain is broken
// an entry that names the places goes first, and the chain goes on from there.
func (a *Archive) audit(e AuditEntry) error {
	if err := a.appendAudit(e); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

func (a *Archive) appendAudit(e AuditEntry) error {
	fs := a.o.FS
	path := fs.PathJoin(a.dir, auditFile)
	at, err := a.auditTail(path)
	if err != nil {
		return err
	}
	var add []byte
	put := func(e AuditEntry) error {
		e.Prev, e.Time = "", a.o.Clock().UTC()
		if e.Node == "" {
			e.Node = a.o.Node
		}
		if at.last != nil {
			e.Prev = auditSum(at.last)
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if len(line) >= maxAuditLine {
			return fmt.Errorf("an entry of %d bytes: want less than %d", len(line), maxAuditLine)
		}
		add, at.last = append(append(add, line...), '\n'), line
		return nil
	}
	for lines := unrecorded(at.breaks); len(lines) > 0; {
		a.o.Log.Error("the chain of the audit log is broken; that is put on record, and the chain goes on from there", "lines", lines)
		n := min(len(lines), maxBroken)
		if err := put(AuditEntry{Event: AuditBroken, Broken: lines[:n], Reason: "lines of this log are not what was written: what follows is chained anew"}); err != nil {
			return err
		}
		lines = lines[n:]
	}
	if err := put(e); err != nil {
		return err
	}
	if at.whole != nil || at.end == 0 {
		err = writeFile(fs, a.dir, auditFile, append(at.whole, add...))
	} else {
		err = appendSynced(fs, path, add, at.end)
	}
	return err
}

func appendSynced(fs vfs.FS, path string, b []byte, at int64) error {
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// maxBroken bounds the lines that one entry names.
const maxBroken = 1000

// unrecorded are the lines of breaks that no entry names.
func unrecorded(breaks []AuditBreak) (lines []int) {
	for _, b := range breaks {
		if b.Recorded == 0 {
			lines = append(lines, b.Line)
		}
	}
	return lines
}

// auditTail is the end of the log, that something is to be appended to.
type auditTail struct {
	last   []byte // the last line, nil without one
	end    int64  // where the next goes
	whole  []byte // not nil: the log is to be written anew with this before
	breaks []AuditBreak
}

// auditTail reads the log. REQUIRES: lockAudit.
func (a *Archive) auditTail(path string) (t auditTail, err error) {
	fs := a.o.FS
	b, err := readFile(fs, path)
	if isNotExist(err) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	if _, whole := links(b, true); whole && len(b) > 0 { // it is mostly, and that is fast
		n := len(b)
		last := b[bytes.LastIndexByte(b[:n-1], '\n')+1 : n-1]
		if _, problem := parseAuditLine(last); problem == "" {
			return auditTail{last: last, end: int64(n)}, nil
		}
	}
	log := readAudit(b)
	t = auditTail{last: log.last, end: int64(log.end), breaks: log.breaks}
	if log.end < len(b) {
		t.whole = b[:log.end:log.end]
		if log.endless {
			a.o.Log.Warn("audit log: the last line has no end; it is whole all the same")
			t.whole = append(append(t.whole, log.last...), '\n')
		} else {
			a.o.Log.Warn("audit log: the last line was cut short by a crash and is dropped")
		}
	}
	return t, nil
}

func auditSum(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// AuditLog reads and checks the audit log; none is an empty one. torn is
// whether behind the last line lies one that a crash cut short before it was
// confirmed. The error is *AuditError where the chain is broken; the entries
// are all that can be read, also behind a break. What the chain cannot show is
// that the last line was changed, or lines are missing at its end.
func (a *Archive) AuditLog() (entries []AuditEntry, torn bool, err error) {
	b, err := readFile(a.o.FS, a.o.FS.PathJoin(a.dir, auditFile))
	if isNotExist(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("audit log: %w", err)
	}
	return parseAudit(b)
}

func parseAudit(b []byte) (entries []AuditEntry, torn bool, err error) {
	log := readAudit(b)
	if len(log.breaks) > 0 {
		err = &AuditError{log.breaks}
	}
	return log.entries, log.end < len(b) && !log.endless, err
}

// auditLog is a log as it was read.
type auditLog struct {
	entries []AuditEntry
	breaks  []AuditBreak
	last    []byte // the last line
	end     int    // of what counts
	endless bool   // behind that lies a line that is whole but for its end; it counts
}

func readAudit(b []byte) (log auditLog) {
	prev, line := "", 0
	take := func(text []byte) {
		line++
		e, problem := parseAuditLine(text)
		if problem == "" && e.Prev != prev {
			problem = "the line before it is not the one it was written after"
			if line == 1 {
				problem = "lines before it are missing"
			}
		}
		if problem != "" {
			log.breaks = append(log.breaks, AuditBreak{Line: line, Problem: problem})
		}
		if e.Event != "" {
			log.entries = append(log.entries, e)
			for _, n := range e.Broken {
				for i := range log.breaks {
					switch x := &log.breaks[i]; {
					case x.Line != n || problem != "":
					case e.Event == AuditBroken && x.Recorded == 0:
						x.Recorded = line
					case e.Event == AuditRepair && x.Acknowledged == 0:
						x.Acknowledged = line
					}
				}
			}
		}
		prev, log.last = auditSum(text), text
	}
	for log.end < len(b) {
		n := bytes.IndexByte(b[log.end:], '\n')
		if n < 0 {
			log.endless = true
			switch text := b[log.end:]; {
			case follows(text, prev):
				take(text)
			case follows(text[:len(text)-1], prev): // its end is another byte
				take(text[:len(text)-1])
			case len(text) > maxAuditLine: // no crash left that
				take(text)
			default:
				log.endless = false
			}
			break
		}
		take(b[log.end : log.end+n])
		log.end += n + 1
	}
	return log
}

// follows reports whether text is an entry that was written after the line
// whose sum is prev.
func follows(text []byte, prev string) bool {
	e, problem := parseAuditLine(text)
	return problem == "" && e.Prev == prev
}

// parseAuditLine is an entry, or says why the line is none.
func parseAuditLine(text []byte) (e AuditEntry, problem string) {
	const none = "it is no entry of the log"
	if !utf8.Valid(text) { // which json takes for U+FFFD, and writes nowhere
		return AuditEntry{}, none
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&e); err != nil || d.More() || e.Event == "" || e.Time.IsZero() {
		return AuditEntry{}, none
	}
	return e, ""
}
