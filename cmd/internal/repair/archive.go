package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store"
)

// Archive is another archive's recording as a Source: its pieces as they are
// there, with their times, boundaries, lines and flags.
type Archive struct {
	a    *store.Archive
	v    *store.View
	name string
	log  *slog.Logger
}

// OpenArchive looks for ref in a: the same channel, session and take, or the
// one recording that a has of the session. Errors wrap store.ErrNotFound or
// store.ErrAmbiguous.
func OpenArchive(a *store.Archive, ref store.Ref, log *slog.Logger) (*Archive, error) {
	v, err := a.View(ref)
	if errors.Is(err, store.ErrNotFound) {
		var all []store.Info
		if all, err = a.Sessions(); err != nil {
			return nil, err
		}
		var found []store.Ref
		for _, i := range all {
			if r := i.Ref(); r.Session == ref.Session {
				found = append(found, r)
			}
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("%w: %v in %s", store.ErrNotFound, ref, a.Dir())
		case 1:
			v, err = a.View(found[0])
		default:
			return nil, fmt.Errorf("%w: %s has %v, not %v", store.ErrAmbiguous, a.Dir(), found, ref)
		}
	}
	if err != nil {
		return nil, err
	}
	return &Archive{a: a, v: v, name: a.Dir() + ":" + v.Ref().String(), log: log}, nil
}

// Shared copies to w what a crash kept from being copied to it: what is on
// record as the same in an older take.
func Shared(ctx context.Context, w *store.Writer, a *store.Archive, log *slog.Logger) ([]Filled, error) {
	take, missing := w.Shared()
	if len(missing) == 0 {
		return nil, nil
	}
	ref := w.Ref()
	ref.Take = take
	v, err := a.View(ref)
	if err != nil {
		return nil, err
	}
	from := &Archive{a: a, v: v, name: ref.String(), log: log}
	r := &run{w: w, log: log}
	holes := joined(w.Held().Holes)
	var got gap.Set
	err = from.Fetch(ctx, Want{Ranges: missing}, func(p moldcast.Piece) error {
		// When it came again is not known any more.
		p.Time, p.Line = timeOf(holes, p.First, p.Heard), moldcast.AnswerLine
		p.Flags |= moldcast.Repaired
		if _, err := w.Append(p); err != nil {
			return fmt.Errorf("storing %v: %w", p.Range(), err)
		}
		got.Add(p.Range())
		return nil
	})
	r.filled(got.Ranges(), from.Name())
	return r.res.Filled, err
}

// Name implements Source.
func (s *Archive) Name() string { return s.name }

// Coverage implements Source.
func (s *Archive) Coverage() ([]moldcast.Range, bool) { return s.v.Coverage(), true }

// Fetch implements Source. What that archive lacks, or cannot read, is left.
func (s *Archive) Fetch(ctx context.Context, w Want, fn func(moldcast.Piece) error) error {
	for _, r := range w.Ranges {
		if err := s.fetch(ctx, r, fn); err != nil {
			return err
		}
	}
	return nil
}

func (s *Archive) fetch(ctx context.Context, r moldcast.Range, fn func(moldcast.Piece) error) error {
	c := s.v.Cursor(r.First)
	defer c.Close()
	for ctx.Err() == nil {
		p, err := c.Next()
		var hole *moldcast.HoleError
		var bad *store.CorruptError
		switch {
		case errors.As(err, &hole):
			if hole.Hole.Range.Next >= r.Next {
				return nil
			}
			continue
		case errors.As(err, &bad):
			s.log.Error("damaged messages are not taken", "source", s.name, "err", bad)
			if bad.Range.Next >= r.Next {
				return nil
			}
			continue
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case p.First >= r.Next:
			return nil
		}
		if over := p.Range().Next; over > r.Next {
			p.Msgs, _ = p.Msgs.Split(int(r.Next - p.First))
		}
		if err := fn(p); err != nil {
			return err
		}
	}
	return ctx.Err()
}
