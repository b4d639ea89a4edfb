package cli

import (
	"context"
	"errors"
	"io"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/burst"
	"github.com/moldtape/moldtape/store"
)

// streamSpans are the spans of streams, one stream after the other, and read
// them for a search of package burst.
type streamSpans struct {
	e     *env
	ctx   context.Context
	spans []burst.Span
	parts []spanPart // of spans

	streams []*replayStream
	stamps  []*store.Stamps // of streams
}

// spanPart is where a span lies.
type spanPart struct {
	r      moldcast.Range
	stream int
}

// spansOf finds the spans of the ranges of streams.
func (e *env) spansOf(ctx context.Context, streams ...*replayStream) (*streamSpans, error) {
	s := &streamSpans{e: e, ctx: ctx, streams: streams}
	for i, x := range streams {
		stamps := x.view.Stamps()
		s.stamps = append(s.stamps, stamps)
		err := stamps.Spans(x.Range, func(sp store.Span) error {
			s.spans = append(s.spans, burst.Span{Min: sp.Min, Max: sp.Max, Messages: sp.Range.Len(), Packets: uint64(sp.Packets), Bytes: uint64(sp.Bytes)})
			s.parts = append(s.parts, spanPart{sp.Range, i})
			if ctx.Err() != nil {
				return errInterrupted
			}
			return nil
		})
		if err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *streamSpans) close() {
	var read store.StampsStats
	for _, x := range s.stamps {
		st := x.Stats()
		read.Blocks += st.Blocks
		read.Whole += st.Whole
		read.Bytes += st.Bytes
		x.Close()
	}
	s.e.log.Debug("searched", "spans", len(s.spans), "blocks_read", read.Blocks, "with_messages", read.Whole, "bytes_read", read.Bytes)
}

// read is a burst.Read.
func (s *streamSpans) read(i int, bytes bool, each func(t moldcast.Stamp, messages, bytes int)) (ok bool, err error) {
	if s.ctx.Err() != nil {
		return false, errInterrupted
	}
	p := s.parts[i]
	if bytes {
		err = s.readWhole(p, each)
	} else {
		err = s.stamps[p.stream].Each(p.r, func(r moldcast.Range, t moldcast.Stamp) { each(t, int(r.Len()), 0) })
	}
	if bad := new(store.CorruptError); errors.As(err, &bad) {
		s.e.log.Error("damaged messages are not counted", "session", s.streams[p.stream].ref, "error", bad)
		return false, nil
	}
	return err == nil, err
}

// readWhole reads a part with its messages.
func (s *streamSpans) readWhole(p spanPart, each func(t moldcast.Stamp, messages, bytes int)) error {
	cursor := s.streams[p.stream].view.Cursor(p.r.First)
	defer cursor.Close()
	for {
		x, err := cursor.Next()
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, new(*moldcast.HoleError)):
			continue
		case err != nil:
			return err
		}
		if x.First >= p.r.Next {
			return nil
		}
		if n := x.Range().Intersect(p.r).Len(); n < uint64(x.Msgs.Len()) {
			x.Msgs, _ = x.Msgs.Split(int(n))
		}
		each(x.Time, x.Msgs.Len(), len(x.Msgs.Framed())-x.Msgs.Len()*moldcast.LengthSize)
	}
}
