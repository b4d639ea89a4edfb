// Package repair fills the holes of one recorded session from others that
// hold its messages: request servers, and other archives.
//
// For each source in turn, two things are done. First what both sides hold at
// the edges of the holes is compared, byte by byte: all of the leaf (4096
// messages) that an edge lies in, and where the source has none of that, the
// nearest that both hold, as far as the source can tell. One difference ends
// the repair: the source has another take, and takes are never mixed. Then
// what is missing is fetched, stored where it belongs, and put on record with
// its source.
package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strings"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store"
	"github.com/moldtape/moldtape/store/block"
)

// Source has messages of the session.
type Source interface {
	// Name says where the messages come from: it goes on record.
	Name() string

	// Fetch gives fn what the source has of what is wanted; in any order, each
	// message once. A piece with Time 0 has no time of its own. An error of fn
	// ends it, and is returned.
	Fetch(ctx context.Context, w Want, fn func(moldcast.Piece) error) error

	// Coverage is what it holds, sorted and disjoint; ok is false where that
	// cannot be known beforehand.
	Coverage() (held []moldcast.Range, ok bool)
}

// Want is what a source is to give.
type Want struct {
	Ranges []moldcast.Range // sorted and disjoint

	// For sources that tell only by their answers. Rough: what lies behind a
	// message that the source lacks is looked for in few places, but where the
	// source has what comes after it. Signs are where it may have something, though it has
	// nothing of Ranges: they are asked for only to find whether it answers.
	Rough bool
	Signs []moldcast.Range
}

// Conflict says that a source holds other messages under the same sequences.
type Conflict struct {
	Session string
	Source  string
	Seq     moldcast.Seq
	Hole    moldcast.Range // that it was to fill
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("%s: message %d of %s is another one than the one held: it is another take, and nothing of it is mixed in (the hole is %v)",
		e.Session, e.Seq, e.Source, e.Hole)
}

// SourcesError says why sources failed.
type SourcesError struct{ Errs []error }

func (e *SourcesError) Error() string {
	var b strings.Builder
	for i, err := range e.Errs {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

func (e *SourcesError) Unwrap() []error { return e.Errs }

// Filled is a range that was brought in.
type Filled struct {
	FirstSeq moldcast.Seq `json:"first_seq"`
	LastSeq  moldcast.Seq `json:"last_seq"`
	Source   string       `json:"source"`
}

// Hole is a range that is missing; both ends inclusive.
type Hole struct {
	FirstSeq moldcast.Seq        `json:"first_seq"`
	LastSeq  moldcast.Seq        `json:"last_seq"`
	Reason   moldcast.HoleReason `json:"reason"`
}

// Result is what a repair did.
type Result struct {
	Holes     int      `json:"holes"` // that there were
	Messages  uint64   `json:"messages"`
	Compared  uint64   `json:"compared"` // messages at the edges of holes, found the same
	Filled    []Filled `json:"filled"`
	Remaining []Hole   `json:"hole_list"` // that are left
}

// Run fills the holes of w from the sources, in turn. Errors: *Conflict, or
// those of reading and storing. After a source that fails otherwise the next
// one is asked; where holes are left in the end, it is a *SourcesError. The
// result is of use also with an error.
func Run(ctx context.Context, w *store.Writer, sources []Source, log *slog.Logger) (Result, error) {
	r := &run{w: w, log: log, res: Result{Filled: []Filled{}, Remaining: []Hole{}}}
	r.res.Holes = len(w.Held().Holes)
	var err error
	for _, src := range sources {
		if err = r.from(ctx, src); err != nil {
			break
		}
	}
	if err == nil {
		err = w.Flush(ctx)
	}
	for _, h := range w.Held().Holes {
		r.res.Remaining = append(r.res.Remaining, Hole{h.Range.First, h.Range.Next - 1, h.Reason})
	}
	if failed := (&SourcesError{r.failed}); err == nil && len(r.failed) > 0 {
		if len(r.res.Remaining) > 0 {
			err = failed
		} else {
			log.Warn("a source failed; others had all that was missing", "session", w.Ref(), "err", failed)
		}
	}
	return r.res, err
}

type run struct {
	w      *store.Writer
	log    *slog.Logger
	res    Result
	failed []error // of sources
}

// stop is an error that ends the repair, not only the source.
type stop struct{ error }

func (e stop) Unwrap() error { return e.error }

func (r *run) from(ctx context.Context, src Source) error {
	holes := joined(r.w.Held().Holes)
	if len(holes) == 0 {
		return nil
	}
	err := r.compare(ctx, src, holes)
	if err == nil {
		err = r.fill(ctx, src, holes)
	}
	var end stop
	switch {
	case errors.As(err, &end):
		return end.error
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.log.Debug("source failed", "session", r.w.Ref(), "source", src.Name(), "err", err)
		r.failed = append(r.failed, err)
	}
	return nil
}

// joined makes one of holes that adjoin, whatever their reasons.
func joined(in []moldcast.Hole) (out []moldcast.Hole) {
	for _, h := range in {
		if n := len(out); n > 0 && out[n-1].Range.Next == h.Range.First {
			out[n-1].Range.Next, out[n-1].After = h.Range.Next, h.After
			continue
		}
		out = append(out, h)
	}
	return out
}

// compare compares what both sides hold at the edges of holes.
func (r *run) compare(ctx context.Context, src Source, holes []moldcast.Hole) error {
	cov := r.w.View().Coverage()
	var common []moldcast.Range
	theirs, known := src.Coverage()
	if known {
		common = intersect(cov, theirs)
	}
	var left gap.Set // to be compared, and not yet
	signs := make([]moldcast.Range, len(holes))
	for i, h := range holes {
		signs[i] = h.Range
		lo, hi := h.Range.First, h.Range.Next
		if known { // the nearest that both hold
			lo, hi = nearest(common, h.Range)
		}
		for _, leaf := range []moldcast.Range{below(lo), above(hi)} {
			for _, part := range within(cov, leaf) {
				left.Add(part)
			}
		}
	}
	var same gap.Set
	asking, enough := context.WithCancel(ctx)
	defer enough()
	// It may answer for the holes alone, and that is not silence.
	err := src.Fetch(asking, Want{Ranges: slices.Clone(left.Ranges()), Rough: true, Signs: signs}, func(p moldcast.Piece) error {
		q, differs, err := r.w.Compare(p.First, p.Msgs)
		if err != nil {
			return stop{fmt.Errorf("comparing %v: %w", p.Range(), err)}
		}
		if differs {
			return stop{&Conflict{Session: r.w.Ref().String(), Source: src.Name(), Seq: q, Hole: closest(holes, q)}}
		}
		for _, part := range within(cov, p.Range()) {
			same.Add(part)
		}
		if left.Remove(p.Range()); left.Len() == 0 {
			enough()
		}
		return nil
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = nil
	}
	r.res.Compared += same.Count()
	if err == nil && same.Count() == 0 {
		r.log.Warn("nothing that both hold could be compared", "session", r.w.Ref(), "source", src.Name())
	}
	return err
}

// below is the part of a leaf that ends before next.
func below(next moldcast.Seq) moldcast.Range {
	if next <= 1 {
		return moldcast.Range{}
	}
	return moldcast.Range{First: max(1, (next-1)&^(block.LeafMessages-1)), Next: next}
}

// above is the part of a leaf that begins at first.
func above(first moldcast.Seq) moldcast.Range {
	end := (first | (block.LeafMessages - 1))
	if end != ^moldcast.Seq(0) {
		end++
	}
	return moldcast.Range{First: first, Next: end}
}

// nearest is the end of what lies in ranges below hole, and the beginning of
// what lies above.
func nearest(ranges []moldcast.Range, hole moldcast.Range) (lo, hi moldcast.Seq) {
	hi = ^moldcast.Seq(0)
	for _, c := range ranges {
		if c.First < hole.First {
			lo = min(c.Next, hole.First)
		}
		if c.Next > hole.Next {
			return lo, max(c.First, hole.Next)
		}
	}
	return lo, hi
}

func within(ranges []moldcast.Range, in moldcast.Range) (out []moldcast.Range) {
	for _, c := range ranges {
		if part := c.Intersect(in); !part.Empty() {
			out = append(out, part)
		}
	}
	return out
}

// intersect is what lies in both of a and b, sorted and disjoint each.
func intersect(a, b []moldcast.Range) (out []moldcast.Range) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if part := a[i].Intersect(b[j]); !part.Empty() {
			out = append(out, part)
		}
		if a[i].Next < b[j].Next {
			i++
		} else {
			j++
		}
	}
	return out
}

// closest is the hole that q lies nearest to.
func closest(holes []moldcast.Hole, q moldcast.Seq) moldcast.Range {
	best, far := moldcast.Range{}, ^moldcast.Seq(0)
	for _, h := range holes {
		d := moldcast.Seq(0)
		switch {
		case q < h.Range.First:
			d = h.Range.First - q
		case q >= h.Range.Next:
			d = q - h.Range.Next + 1
		}
		if d < far {
			best, far = h.Range, d
		}
	}
	return best
}

// fill fetches what is missing and stores it.
func (r *run) fill(ctx context.Context, src Source, holes []moldcast.Hole) error {
	want := make([]moldcast.Range, len(holes))
	for i, h := range holes {
		want[i] = h.Range
	}
	var got gap.Set
	err := src.Fetch(ctx, Want{Ranges: want, Signs: want}, func(p moldcast.Piece) error {
		if p.Time == 0 {
			p.Time = timeOf(holes, p.First, p.Heard)
		}
		n, err := r.w.Append(p)
		if err != nil {
			return stop{fmt.Errorf("storing %v: %w", p.Range(), err)}
		}
		r.res.Messages += uint64(n)
		if n > 0 {
			got.Add(p.Range())
		}
		return nil
	})
	r.filled(got.Ranges(), src.Name())
	return err
}

// filled puts on record what was filled.
func (r *run) filled(ranges []moldcast.Range, source string) {
	for _, f := range ranges {
		r.w.Filled(store.Fill{Range: f, By: "repair", Source: source})
		r.log.Debug("filled", "session", r.w.Ref(), "range", f, "messages", f.Len(), "source", source)
		r.res.Filled = append(r.res.Filled, Filled{f.First, f.Next - 1, source})
	}
}

// timeOf is the time of message q of a hole: interpolated by sequence between
// the messages on its sides; with one of them its time, with none when q was
// heard.
func timeOf(holes []moldcast.Hole, q moldcast.Seq, heard moldcast.Stamp) moldcast.Stamp {
	for _, h := range holes {
		if !h.Range.Contains(q) {
			continue
		}
		switch {
		case h.Before == 0 && h.After == 0:
			return heard
		case h.Before == 0:
			return h.After
		case h.After == 0:
			return h.Before
		}
		// The clock may have been set back between the two.
		from, to, sign := h.Before, h.After, moldcast.Stamp(1)
		if to < from {
			from, to, sign = to, from, -1
		}
		hi, lo := bits.Mul64(uint64(to)-uint64(from), uint64(q-h.Range.First)+1)
		d, _ := bits.Div64(hi, lo, h.Range.Len()+1) // q lies before the end: the quotient fits
		return h.Before + sign*moldcast.Stamp(d)
	}
	return heard
}
