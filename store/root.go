package store

import (
	"context"
	"errors"
	"io"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// RunHash is the content hash of one run of coverage: equal where two
// archives hold the same messages, whatever their blocks and stamps.
type RunHash struct {
	Range moldcast.Range
	Hash  [32]byte
}

// Root is the content hash of each run of what v holds within r, in order.
// What was pruned counts as held: its leaves were kept. Where they do not
// tell, since r cuts one of them, or a hole next to it was filled after it was
// pruned, a run is hashed in parts, without the messages that nothing is known
// of. What is damaged is not held. Errors: those of reading and that of ctx.
func Root(ctx context.Context, v *View, r moldcast.Range) ([]RunHash, error) {
	s := v.s
	s.refreshIfDue()
	w := &hasher{s: s, kept: s.keptLeaves(), cur: v.Cursor(r.First)}
	defer w.cur.Close()
	s.mu.Lock()
	cov := append([]moldcast.Range(nil), s.cov.Ranges()...)
	s.mu.Unlock()
	var out []RunHash
	for _, run := range cov {
		run = run.Intersect(r)
		for !run.Empty() {
			c := block.NewContent(s.ref.Session, run.First, nil)
			err := w.feed(ctx, c, run.Next)
			skip, ok := w.behind(c.Next(), run, err)
			if !ok {
				return nil, err
			}
			q := c.Next()
			if q > run.First {
				root := c.Root()
				out = append(out, RunHash{Range: root.Range, Hash: root.Hash})
			}
			run.First = max(skip, q)
		}
	}
	return out, nil
}

func asDamage(err error) bool {
	e, ok := err.(*CorruptError)
	return ok && isDamage(e.Err)
}

// hasher feeds content hashes from what is held and from the leaves that were
// kept. It belongs to one goroutine.
type hasher struct {
	s    *session
	kept leafBook
	cur  *Cursor
}

// feed adds to c up to next, all of which was held at one time. Errors:
// *PrunedError at a range that nothing is known of any more.
func (w *hasher) feed(ctx context.Context, c *block.Content, next moldcast.Seq) error {
	for n := 0; c.Next() < next; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		q := c.Next()
		if l, ok := w.kept.find(q, next); ok && c.Resume(l) == nil {
			continue
		}
		if w.cur.Seq() != q {
			w.cur.seek(q)
		}
		p, err := w.cur.Next()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if p.Range().Next > next {
			p.Msgs, _ = p.Msgs.Split(int(next - p.First))
		}
		if err := c.Add(p.First, p.Msgs); err != nil {
			return err
		}
	}
	return nil
}

// behind is where a hash of what follows can begin, when err ended one of run
// at q; ok is false where err is not about what is held. What begins at q
// itself is tried once more where something was hashed before it: a leaf that
// was kept may begin there.
func (w *hasher) behind(q moldcast.Seq, run moldcast.Range, err error) (next moldcast.Seq, ok bool) {
	if err == nil {
		return q, true
	}
	var gone *PrunedError
	var hole *moldcast.HoleError
	var bad *CorruptError
	switch {
	case errors.As(err, &gone):
		if q > run.First && len(w.kept[q]) > 0 {
			return q, true
		}
		next = gone.Range.Next
		for first := range w.kept {
			if q < first && first < next {
				next = first
			}
		}
	case asDamage(err) && errors.As(err, &bad):
		next = bad.Range.Next
	case errors.As(err, &hole):
		next = hole.Hole.Range.Next
	default:
		return 0, false
	}
	return max(next, q), next > q
}

// leavesOf is what is kept of the content hash when segment g is pruned: of
// each leaf that it holds part of, its hash, or, of one that ends beyond what
// the segment holds, the state of the hash there. What cannot be read has
// none. held is what is held of what it was sealed with.
func (s *session) leavesOf(ctx context.Context, g *segment, held []moldcast.Range) ([]block.Leaf, error) {
	w := &hasher{s: s, kept: s.keptLeaves(), cur: newView(s).Cursor(0)}
	defer w.cur.Close()
	s.mu.Lock()
	cov := s.cov.Clone()
	s.mu.Unlock()
	var out []block.Leaf
	for _, r := range held {
		run := runOf(cov.Ranges(), r.First)
		for q := max(run.First, r.First&^(block.LeafMessages-1)); q < r.Next; {
			c := block.NewContent(s.ref.Session, q, func(lr moldcast.Range, h [32]byte) {
				out = append(out, block.Leaf{Range: lr, Hash: h})
			})
			err := w.feed(ctx, c, r.Next)
			if l, ok := c.Begun(); ok && err == nil {
				out = append(out, l)
			}
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			leaf := max(q, c.Next()&^(block.LeafMessages-1))
			end := (leaf | (block.LeafMessages - 1)) + 1
			if ls := w.kept[leaf]; len(ls) > 0 && ls[0].Range.Next >= min(r.Next, end) {
				q = end // kept with a segment that held more of it
				if q == 0 {
					break
				}
				continue
			}
			s.a.o.Log.Warn("a leaf of the content hash is lost with what is pruned", "session", s.ref, "segment", g.name, "seq", c.Next(), "err", err)
			if q = end; q == 0 {
				break
			}
		}
	}
	return out, nil
}

// runOf is the range that holds q.
func runOf(rs []moldcast.Range, q moldcast.Seq) moldcast.Range {
	lo, hi := 0, len(rs)
	for lo < hi {
		if m := (lo + hi) / 2; rs[m].Next > q {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == len(rs) {
		return moldcast.Range{First: q, Next: q}
	}
	return rs[lo]
}
