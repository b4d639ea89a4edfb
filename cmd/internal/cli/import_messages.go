package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"time"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/importer"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/cmd/internal/ndjson"
	"github.com/moldtape/moldtape/moldcast"
)

// importMTU packs what comes without packet boundaries.
const importMTU = 1500

// packer makes pieces of messages that come one by one.
type packer struct {
	r     *importRun
	in    *input
	open  func() (*importer.Session, error) // with the first message
	s     *importer.Session
	p     moldcast.Piece
	buf   []byte
	n     int
	pos   int64 // of the first message
	size  int   // most framed bytes
	count int
}

func (k *packer) flush() error {
	if k.n == 0 {
		return nil
	}
	p := k.p
	p.Msgs = moldcast.MessagesOf(k.buf, k.n)
	k.n = 0
	if k.s == nil {
		s, err := k.open()
		if err != nil {
			return err
		}
		k.s = s
	}
	err := k.r.add(k.s, p, k.in, k.pos, 0)
	k.buf = k.buf[:0]
	return err
}

// add takes one message; it joins the piece where all but its sequence is the
// same, the sequence follows, and there is room.
func (k *packer) add(seq moldcast.Seq, like moldcast.Piece, data []byte, pos int64) error {
	if k.n > 0 && (seq != k.p.First+moldcast.Seq(k.n) || like.Time != k.p.Time || like.Heard != k.p.Heard ||
		like.Line != k.p.Line || like.Flags != k.p.Flags || k.n >= k.count ||
		len(k.buf)+moldcast.LengthSize+len(data) > k.size) {
		if err := k.flush(); err != nil {
			return err
		}
	}
	if k.n == 0 {
		k.p, k.p.First, k.pos = like, seq, pos
	}
	k.buf = moldcast.AppendMessage(k.buf, data)
	k.n++
	return nil
}

// messages imports a file of bare messages.
func (r *importRun) messages(ctx context.Context, in *input, read func(context.Context, *input, io.Reader, *packer) error) error {
	raw, err := in.rewind(r.tick)
	if err != nil {
		return err
	}
	content, _, closer, err := capfile.Decompress(raw)
	if err != nil {
		if errors.Is(err, capfile.ErrCompressed) {
			r.fault(importFault{File: in.name, Reason: err.Error()})
			return nil
		}
		return fmt.Errorf("%s: %w", in.name, err)
	}
	defer closer()
	channel := r.flags.channel
	if channel == "" {
		channel = "default"
	}
	open := func() (*importer.Session, error) { return r.im.Session(channel, *r.session) }
	faults := r.more
	k := &packer{r: r, in: in, open: open, size: moldcast.PayloadSize(importMTU) - moldcast.HeaderSize, count: moldcast.MaxCount}
	err = read(ctx, in, content, k)
	if ferr := k.flush(); err == nil {
		err = ferr
	}
	if err == nil && k.s == nil && r.more == faults {
		r.say(in.name + ": holds no message")
	}
	return err
}

// stamps gives the times of messages that bring none.
type stamps struct {
	base moldcast.Stamp
	rate float64
	itch bool
	day  moldcast.Stamp
	last moldcast.Stamp
}

func (r *importRun) stamps(in *input) *stamps {
	base := moldcast.StampOf(in.time)
	const day = moldcast.Stamp(24 * time.Hour)
	midnight := base - base%day
	return &stamps{base: base, rate: r.flags.rate, itch: r.flags.itch, day: midnight, last: midnight}
}

func (s *stamps) next(i int64, data []byte) moldcast.Stamp {
	switch {
	case s.rate > 0:
		return s.base + moldcast.Stamp(math.Round(float64(i)*(1e9/s.rate)))
	case s.itch:
		if d, ok := itch.Timestamp(data); ok {
			s.last = s.day + moldcast.Stamp(d)
		}
		return s.last // a message without one goes with its predecessor
	}
	return s.base
}

// isFileFault: err tells of the content of a file, not of reading it.
func isFileFault(err error) bool {
	var pe *fs.PathError
	return !errors.As(err, &pe)
}

// take gives the sequence of the next message of a file that names none.
func (r *importRun) take() (moldcast.Seq, bool) {
	seq := r.nextSeq
	if seq == ^moldcast.Seq(0) {
		return 0, false
	}
	r.nextSeq++
	return seq, true
}

var errSeqBeyond = errors.New("sequence beyond 2^64-2")

func (r *importRun) binary(ctx context.Context, in *input, content io.Reader, k *packer) error {
	x := binaryfile.NewReader(content)
	t := r.stamps(in)
	for ; ; r.index++ {
		if r.index%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		pos := x.Pos()
		data, err := x.Next()
		if err == io.EOF {
			if n, err := x.Rest(); err != nil || n > 0 {
				r.fault(importFault{File: in.name, Position: pos, Reason: fmt.Sprintf("%d bytes after the zero length that ends the file", n)})
			}
			return nil
		}
		var fe *binaryfile.Error
		if errors.As(err, &fe) && isFileFault(err) {
			r.fault(importFault{File: in.name, Position: fe.Pos, Reason: fe.Err.Error()})
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.name, err)
		}
		seq, ok := r.take()
		switch {
		case len(data) > moldcast.MaxMessage:
			err = fmt.Errorf("message of %d bytes, the longest is %d", len(data), moldcast.MaxMessage)
		case !ok:
			err = errSeqBeyond
		}
		if err != nil {
			r.fault(importFault{File: in.name, Position: pos, Reason: err.Error()})
			return nil
		}
		now := t.next(r.index, data)
		if err := k.add(seq, moldcast.Piece{Time: now, Heard: now}, data, pos); err != nil {
			return err
		}
	}
}

func (r *importRun) ndjson(ctx context.Context, in *input, content io.Reader, k *packer) error {
	// Boundaries are as the file says.
	k.size = moldcast.MaxMessage + moldcast.LengthSize
	x := ndjson.NewReader(content)
	t := r.stamps(in)
	for ; ; r.index++ {
		if r.index%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		pos, line := x.Pos()
		m, err := x.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			var lf *ndjson.LineError
			if !errors.As(err, &lf) && isFileFault(err) {
				err = &ndjson.LineError{Pos: pos, Line: line, Err: err}
			}
			return r.readFault(in, err)
		}
		seq, ok := m.Seq, true
		if seq == 0 {
			seq, ok = r.take()
		} else if seq == ^moldcast.Seq(0) {
			ok = false
		} else {
			r.nextSeq = seq + 1
		}
		switch {
		case len(m.Data) > moldcast.MaxMessage:
			err = fmt.Errorf("message of %d bytes, the longest is %d", len(m.Data), moldcast.MaxMessage)
		case !ok:
			err = errSeqBeyond
		}
		if err != nil {
			r.fault(importFault{File: in.name, Position: pos, Line: line, Reason: err.Error()})
			return nil
		}
		if m.Time == 0 {
			m.Time = t.next(r.index, m.Data)
			if m.Heard == 0 {
				m.Heard = m.Time
			}
		}
		if err := k.add(seq, moldcast.Piece{Time: m.Time, Heard: m.Heard, Line: m.Line, Flags: m.Flags}, m.Data, pos); err != nil {
			return err
		}
		if !m.More {
			if err := k.flush(); err != nil {
				return err
			}
		}
	}
}
