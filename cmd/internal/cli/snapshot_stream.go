package cli

import (
	"errors"
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

// damagedFor is how long a snapshot that turned out damaged is passed over.
const damagedFor = time.Minute

// damagedSnapshots are those of a recording that were found so while they were
// sent: who logs in again gets the one before.
type damagedSnapshots struct {
	mu    sync.Mutex
	until map[moldcast.Seq]time.Time
}

func (d *damagedSnapshots) add(q moldcast.Seq) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until == nil {
		d.until = map[moldcast.Seq]time.Time{}
	}
	for k, t := range d.until {
		if time.Now().After(t) {
			delete(d.until, k)
		}
	}
	d.until[q] = time.Now().Add(damagedFor)
}

func (d *damagedSnapshots) has(q moldcast.Seq) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.until[q])
}

var _ retransmit.Snapshots = (*recording)(nil)

// Snapshot implements retransmit.Snapshots: one that is damaged is passed over.
func (r *recording) Snapshot(q moldcast.Seq) (retransmit.Snapshot, error) {
	first, head := r.Bounds()
	if end, ok := r.Ended(); ok {
		head = max(head, end)
	}
	if q == 0 || q > head {
		q = head
	}
	archive := r.source.archive
	from, err := archive.Joinable(r.Ref())
	if err != nil {
		return nil, err
	}
	from = max(from, first, 1) // what lies before is not held
	for q >= from {
		s, err := archive.OpenSnapshot(r.Ref(), q)
		var bad *store.SnapshotError
		switch {
		case errors.Is(err, store.ErrNoSnapshot):
			return nil, retransmit.ErrNoSnapshot
		case errors.As(err, &bad):
			r.source.log.Error("a snapshot is damaged; the one before is sent", "err", err, "help", "`moldtape repair --from` restores it from another archive")
			q = bad.Seq - 1
			continue
		case err != nil:
			return nil, err
		case s.Seq() >= from && !r.damaged.has(s.Seq()):
			return &sentSnapshot{s, &r.damaged}, nil
		}
		s.Close()
		q = s.Seq() - 1
	}
	return nil, retransmit.ErrNoSnapshot
}

// sentSnapshot remembers that it was damaged.
type sentSnapshot struct {
	*store.SnapshotReader
	damaged *damagedSnapshots
}

func (s *sentSnapshot) Next(dst []byte) ([]byte, error) {
	dst, err := s.SnapshotReader.Next(dst)
	if errors.As(err, new(*store.SnapshotError)) {
		s.damaged.add(s.Seq())
	}
	return dst, err
}
