package store

import (
	"errors"
	"fmt"
	"time"
)

const holdFile = "hold.json"

// Errors of Hold and Release.
var (
	ErrOnHold    = errors.New("the session is on hold already")
	ErrNotOnHold = errors.New("the session is not on hold")
	ErrReason    = errors.New("want a reason of 1 to 4096 bytes")
)

// Hold is why nothing of a session may be removed: hold.json in its directory.
type Hold struct {
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Time   time.Time `json:"time"`

	damaged bool // the file says nothing
}

// readHold is the hold of a recording, nil without one.
func (a *Archive) readHold(r Ref) (*Hold, error) {
	b, err := readFile(a.o.FS, a.o.FS.PathJoin(a.sessionDir(r), holdFile))
	if isNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	h := new(Hold)
	if err := parseSummed(b, h); err != nil {
		// It is there: nothing is removed.
		return &Hold{Reason: holdFile + " is damaged", damaged: true}, nil
	}
	return h, nil
}

// Hold keeps everything of a recording from being removed, until Release. It
// is on record in the audit log; by is who asks. Errors wrap ErrNotFound,
// ErrOnHold or ErrReason.
func (a *Archive) Hold(r Ref, reason, by string) error {
	if err := a.reasoned(r, reason); err != nil {
		return err
	}
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := a.readHold(r)
	if err != nil {
		return err
	}
	if h != nil {
		return fmt.Errorf("%v: %w: %s", r, ErrOnHold, h.Reason)
	}
	// The hold first: one that is not on record protects all the same.
	n := Hold{Reason: reason, By: by, Time: a.o.Clock().UTC()}
	if err := writeSummed(a.o.FS, a.sessionDir(r), holdFile, n); err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	return a.audit(AuditEntry{Event: AuditHold, Session: r.String(), Reason: reason, By: by})
}

// Release ends a hold. Errors wrap ErrNotFound, ErrNotOnHold or ErrReason.
func (a *Archive) Release(r Ref, reason, by string) error {
	if err := a.reasoned(r, reason); err != nil {
		return err
	}
	lock, err := a.lockAudit()
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := a.readHold(r)
	if err != nil {
		return err
	}
	if h == nil {
		return fmt.Errorf("%v: %w", r, ErrNotOnHold)
	}
	if err := a.audit(AuditEntry{Event: AuditRelease, Session: r.String(), Reason: reason, By: by}); err != nil {
		return err
	}
	fs, dir := a.o.FS, a.sessionDir(r)
	if err := fs.Remove(fs.PathJoin(dir, holdFile)); err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	return syncDir(fs, dir)
}

func (a *Archive) reasoned(r Ref, reason string) error {
	if len(reason) == 0 || len(reason) > MaxReason {
		return fmt.Errorf("%v: %w", r, ErrReason)
	}
	if _, err := a.o.FS.Stat(a.sessionDir(r)); isNotExist(err) {
		return a.notFound(r.String(), ErrNotFound)
	} else if err != nil {
		return err
	}
	return nil
}
