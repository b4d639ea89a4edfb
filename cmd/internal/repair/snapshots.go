package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// Restored is a snapshot that was copied from another archive.
type Restored struct {
	Seq    moldcast.Seq `json:"seq"`
	Bytes  uint64       `json:"bytes"`
	Source string       `json:"source"`
}

// Snapshots copies to ref of a the snapshots of the other archive that a lacks,
// or has damaged: not those that were removed from it. What of the other is
// damaged, or is another than what a has on record, is left, and is in the error
// beside what was copied.
func (s *Archive) Snapshots(ctx context.Context, a *store.Archive, ref store.Ref, by string) (done []Restored, err error) {
	from := s.v.Ref()
	list, err := s.a.Snapshots(from)
	if err != nil {
		return nil, err
	}
	var left []error
	for _, i := range list {
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		ok, err := s.snapshot(a, ref, i.Seq, by)
		var bad *store.SnapshotError
		switch {
		case errors.As(err, &bad), errors.Is(err, store.ErrSnapshotExists), errors.Is(err, store.ErrNoSnapshot), errors.Is(err, store.ErrSnapshotSeq):
			left = append(left, fmt.Errorf("%s: %w", s.name, err))
		case err != nil:
			return done, err
		case ok:
			done = append(done, Restored{i.Seq, i.Bytes, s.name})
			s.log.Info("snapshot restored", "session", ref, "seq", i.Seq, "source", s.name)
		}
	}
	return done, errors.Join(left...)
}

func (s *Archive) snapshot(a *store.Archive, ref store.Ref, q moldcast.Seq, by string) (bool, error) {
	r, err := s.a.OpenSnapshot(s.v.Ref(), q)
	if err != nil {
		return false, err
	}
	defer r.Close()
	if r.Seq() != q {
		return false, nil // it was removed meanwhile
	}
	return a.RestoreSnapshot(ref, r, by, s.name)
}
