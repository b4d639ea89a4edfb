package rejoin

import (
	"errors"
	"fmt"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// Snapshot takes the snapshot that delivery begins with: an application's state
// after all messages below a sequence (package soup). Nothing is delivered
// before Done; then the messages from that sequence on are. The methods are
// called by the Machine; an error is final.
type Snapshot interface {
	// Begin announces a snapshot of so many bytes; what came of another before is
	// not wanted.
	Begin(seq moldcast.Seq, size uint64) error
	// Write brings what follows; b is valid until it returns.
	Write(b []byte) error
	// Done says that it is whole, and that the next message follows it.
	Done() error
}

// What a Machine ends with.
var (
	ErrNoSnapshot   = errors.New("no snapshot could be had")
	ErrSnapshotSize = errors.New("the snapshot is larger than is taken")
	ErrUnfollowed   = errors.New("the message after the snapshot is missing")
)

// snapping is how far a Machine is with its snapshot.
type snapping struct {
	wanted bool // none was taken yet
	at     moldcast.Seq
	whole  bool // it came, and whether the next message follows is open
	fails  int
	err    error // final
}

// Err is why the Machine gave up: ErrNoSnapshot, or an error of Snapshot. nil:
// it did not.
func (m *Machine) Err() error { return m.snap.err }

func (s *snapping) failed(tries int, err error) {
	s.whole = false
	if s.fails++; s.fails >= tries && s.err == nil {
		s.err = fmt.Errorf("%w in %d tries: %w", ErrNoSnapshot, tries, err)
	}
}

// askSnapshot logs in for one.
func (m *Machine) askSnapshot(now moldcast.Instant, session moldcast.Session) {
	c := &m.conn
	c.snaps = true
	m.snap.whole = false
	c.client = soup.NewClient(now, soup.Login{User: soup.SnapshotLogin(m.c.User), Password: m.c.Password, Session: session, Seq: m.c.SnapshotAt})
}

// snapshot takes an event of a connection that begins with a snapshot. on: it
// is to be taken as any other, since the snapshot was.
func (m *Machine) snapshot(now moldcast.Instant, e *soup.Event) (on bool) {
	c := &m.conn
	c.last = now
	var err error
	switch e.Kind {
	case soup.Snapshot:
		if e.Size > m.c.SnapshotBytes {
			m.fail(now, fmt.Errorf("%w: %d bytes, at most %d", ErrSnapshotSize, e.Size, m.c.SnapshotBytes))
			return false
		}
		m.snap.at = e.First
		err = m.c.Snapshot.Begin(e.First, e.Size)
	case soup.SnapshotBytes:
		m.progress, m.spent = now, false
		err = m.c.Snapshot.Write(e.Bytes)
	case soup.SnapshotDone:
		if m.snap.whole = true; !m.r.Waiting(m.snap.at).Empty() {
			m.taken(now)
		}
	case soup.NoSnapshot:
		m.noSnapshot(now)
	case soup.Hole, soup.Gap:
		if m.snap.whole {
			m.stats.SnapshotRestarts++
			m.tell(Notice{Kind: Unfollowed, Server: c.server, Range: e.Range})
			m.fail(now, fmt.Errorf("%w: %v", ErrUnfollowed, e.Range))
		}
	case soup.Data, soup.Alive, soup.End:
		if m.snap.whole {
			m.taken(now)
			return m.snap.err == nil
		}
	case soup.Debug:
		return true
	}
	if err != nil {
		m.snap.err = err
	}
	return false
}

// taken has delivery begin behind the snapshot. The connection goes on with what
// follows it.
func (m *Machine) taken(now moldcast.Instant) {
	if err := m.c.Snapshot.Done(); err != nil {
		m.snap.err = err
		return
	}
	m.stats.Snapshot = m.snap.at
	m.tell(Notice{Kind: Snapped, Server: m.conn.server, Range: moldcast.Range{First: m.snap.at, Next: m.snap.at + 1}})
	m.begin(now, m.snap.at)
	if !m.want.Empty() {
		m.fetches()
	}
}

// noSnapshot goes on without one where no server has any.
func (m *Machine) noSnapshot(now moldcast.Instant) {
	m.servers[m.conn.server].noSnap = true
	for i := range m.servers {
		if !m.servers[i].noSnap {
			m.turn = i
			m.leave(now)
			return
		}
	}
	at := max(m.c.SnapshotAt, 1)
	m.tell(Notice{Kind: Unsnapped, Range: moldcast.Range{First: at, Next: at + 1}})
	m.leave(now)
	m.begin(now, at)
}

func (m *Machine) begin(now moldcast.Instant, at moldcast.Seq) {
	m.snap.wanted = false
	m.conn.snaps = false
	m.r.Skip(now, at)
	m.r.Hold(now, false)
	m.scan(now)
}
