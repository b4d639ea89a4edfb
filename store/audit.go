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
	AuditRepair    AuditEvent = "repair"
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
}

// AuditError is the first line of an audit log that is not what was written.
type AuditError struct {
	Line    int // from 1
	Problem string
}

func (e *AuditError) Error() string {
	return fmt.Sprintf("%s line %d: %s", auditFile, e.Line, e.Problem)
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
func (a *Archive) audit(e AuditEntry) error {
	if err := a.appendAudit(e); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

func (a *Archive) appendAudit(e AuditEntry) error {
	fs := a.o.FS
	path := fs.PathJoin(a.dir, auditFile)
	last, end, torn, err := auditEnd(fs, path)
	if err != nil {
		return err
	}
	e.Prev, e.Time = "", a.o.Clock().UTC()
	if e.Node == "" {
		e.Node = a.o.Node
	}
	if last != nil {
		e.Prev = auditSum(last)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if len(line) >= maxAuditLine {
		return fmt.Errorf("an entry of %d bytes: want less than %d", len(line), maxAuditLine)
	}
	line = append(line, '\n')
	if end == 0 || torn {
		// A line that a crash cut short was never confirmed: it goes.
		var whole []byte
		if torn && end > 0 {
			if whole, err = readFile(fs, path); err != nil {
				return err
			}
			whole = whole[:end]
			a.o.Log.Warn("audit log: the last line was cut short by a crash and is dropped")
		}
		return writeFile(fs, a.dir, auditFile, append(whole, line...))
	}
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(line, end)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// auditEnd finds the last whole line of the log, nil without one, and where
// the next goes; torn is whether something lies behind that.
func auditEnd(fs vfs.FS, path string) (last []byte, end int64, torn bool, err error) {
	f, err := fs.Open(path)
	if isNotExist(err) {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, false, err
	}
	size := st.Size()
	from := max(0, size-2*maxAuditLine)
	b := make([]byte, size-from)
	if len(b) > 0 {
		if _, err := f.ReadAt(b, from); err != nil && err != io.EOF {
			return nil, 0, false, err
		}
	}
	k := bytes.LastIndexByte(b, '\n')
	if k < 0 {
		if from > 0 {
			return nil, 0, false, errors.New("its last line is longer than any that was written; `moldtape audit` says more")
		}
		return nil, 0, size > 0, nil
	}
	start := bytes.LastIndexByte(b[:k], '\n') + 1
	if start == 0 && from > 0 {
		return nil, 0, false, errors.New("its last line is longer than any that was written; `moldtape audit` says more")
	}
	return b[start:k], from + int64(k) + 1, k+1 < len(b), nil
}

func auditSum(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// AuditLog reads and checks the audit log; none is an empty one. torn is
// whether behind the last line lies one that a crash cut short before it was
// confirmed. The error is *AuditError for the first line that breaks the
// chain, with the entries before it. What the chain cannot show is that lines
// are missing at its end.
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
	prev := ""
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !whole {
			return entries, true, nil
		}
		n := len(entries) + 1
		var e AuditEntry
		d := json.NewDecoder(bytes.NewReader(line))
		if err := d.Decode(&e); err != nil || d.More() {
			return entries, false, &AuditError{Line: n, Problem: "it is no entry of the log"}
		}
		if e.Prev != prev {
			what := "the line before it is not the one it was written after"
			if n == 1 {
				what = "lines before it are missing"
			}
			return entries, false, &AuditError{Line: n, Problem: what}
		}
		if e.Event == "" || e.Time.IsZero() {
			return entries, false, &AuditError{Line: n, Problem: "it is no entry of the log"}
		}
		entries = append(entries, e)
		prev = auditSum(line)
		b = rest
	}
	return entries, false, nil
}
