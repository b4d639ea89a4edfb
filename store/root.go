package store

import (
	"context"
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
// What is damaged is not held. Errors: those of reading and that of ctx.
func Root(ctx context.Context, v *View, r moldcast.Range) ([]RunHash, error) {
	var out []RunHash
	var h *block.Content
	end := func() {
		if h != nil {
			root := h.Root()
			out = append(out, RunHash{Range: root.Range, Hash: root.Hash})
			h = nil
		}
	}
	c := v.Cursor(r.First)
	defer c.Close()
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p, err := c.Next()
		if hole := (*moldcast.HoleError)(nil); asHole(err, &hole) || asDamage(err) {
			end()
			continue
		}
		if err == io.EOF || err == nil && p.First >= r.Next {
			end()
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if over := p.Range().Next; over > r.Next {
			p.Msgs, _ = p.Msgs.Split(int(r.Next - p.First))
		}
		if h == nil {
			h = block.NewContent(v.s.ref.Session, p.First, nil)
		}
		if err := h.Add(p.First, p.Msgs); err != nil {
			return nil, err
		}
	}
}

func asDamage(err error) bool {
	e, ok := err.(*CorruptError)
	return ok && isDamage(e.Err)
}

func asHole(err error, to **moldcast.HoleError) bool {
	e, ok := err.(*moldcast.HoleError)
	if ok {
		*to = e
	}
	return ok
}
