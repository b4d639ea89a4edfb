package capture

import (
	"errors"
	"io/fs"
	"syscall"
	"time"
)

// Trouble is why a session's messages cannot be made durable at the moment.
type Trouble struct {
	Err     error     // nil: all is well
	Since   time.Time // when it began
	Waiting int64     // bytes in memory on their way to the disk, also when all is well: their tail records may be durable
}

// Storage is how a channel's archive does: "ok", or "failing", with why, since
// when, how much waits in memory, and what a person can do. What does not fit
// into memory stays a gap and is repaired.
type Storage struct {
	State        string     `json:"state"`
	Since        *time.Time `json:"since,omitempty"`
	Error        string     `json:"error,omitempty"`
	Advice       string     `json:"advice,omitempty"`
	WaitingBytes int64      `json:"waiting_bytes"`
}

const (
	storageOK      = "ok"
	storageFailing = "failing"
)

// Degraded reports whether what is received cannot be stored.
func (s Storage) Degraded() bool { return s.State == storageFailing }

// add takes up the trouble of one session: the one that began first is told.
func (s *Storage) add(t Trouble) {
	s.WaitingBytes += t.Waiting
	if s.State == "" {
		s.State = storageOK
	}
	if t.Err == nil || s.Since != nil && !t.Since.Before(*s.Since) {
		return
	}
	since := t.Since.UTC()
	s.State, s.Since, s.Error, s.Advice = storageFailing, &since, t.Err.Error(), advice(t.Err)
}

// advice is what to do about err.
func advice(err error) string {
	is := func(errs ...error) bool {
		for _, e := range errs {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(syscall.ENOSPC, syscall.EDQUOT):
		return "free room on the file system of the archive; writing goes on by itself, and what is missing is asked for"
	case is(syscall.EROFS):
		return "see the kernel's log why the file system is read-only, and mount it read-write; writing goes on by itself"
	case is(fs.ErrNotExist, syscall.ENODEV, syscall.ENXIO, syscall.ESTALE, syscall.ENOTCONN):
		return "mount the file system of the archive again; writing goes on by itself"
	case is(syscall.EIO):
		return "see the kernel's log, and check the disk and its cabling; writing is tried again by itself"
	case is(fs.ErrPermission):
		return "let this user write to the archive; writing goes on by itself"
	}
	return "see the error; writing is tried again by itself"
}

// storage is how the archive does. Owner: the engine.
func (c *Channel) storage() Storage {
	var st Storage
	for _, s := range c.arb.Sessions() {
		if x, ok := s.Ref.(*session); ok {
			st.add(x.sink.Trouble())
		}
	}
	st.add(c.openTrouble)
	c.mu.Lock()
	st.add(c.mu.closeTrouble)
	c.mu.Unlock()
	return st
}

// look logs the state of the archive when it has changed.
func (c *Channel) look(st Storage) {
	last := c.lastStorage
	if st.Degraded() == last.Degraded() && st.Advice == last.Advice {
		return
	}
	c.lastStorage = st
	switch {
	case st.Degraded():
		c.cfg.Log.Error("archive fails: receiving goes on in memory, nothing of it is durable", "channel", c.cfg.Channel,
			"since", st.Since, "waiting_bytes", st.WaitingBytes, "err", st.Error, "do", st.Advice)
	case last.Degraded():
		c.cfg.Log.Warn("archive works again", "channel", c.cfg.Channel, "failed_for", time.Since(*last.Since).Round(time.Millisecond))
	}
}
