package replay

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/burst"
)

// How the read-ahead is cut into chunks. A chunk is what the two sides hand
// over: a channel operation for some thousand packets, not for each.
const (
	chunks     = 16   // most chunks of a read-ahead
	chunkItems = 4096 // most items of a chunk
)

// item is a finished datagram, a hole or an end, ready for the sender.
type item struct {
	at, end     uint32 // of the datagram in the chunk's buffer
	bytes       uint32 // message data in it
	stream      uint16
	msgs        uint16
	count       uint16 // of a packet without messages
	kind        kind
	first, next moldcast.Seq
	time        moldcast.Stamp
	place       moldcast.Stamp // of the schedule: time, but for Config.Stress
	reason      moldcast.HoleReason
}

// chunk has one owner at a time: the read-ahead until it is ready, then the
// sender until it is free.
type chunk struct {
	buf   []byte
	items []item
}

// readAhead decodes into chunks until the sources end. One goroutine runs it;
// a seek or a new loop stops it and makes another.
type readAhead struct {
	cfg      *Config
	sessions []moldcast.Session // on the wire, by stream
	feeds    []*feed            // by stream
	size     int                // of a chunk's buffer
	warp     *burst.Warp        // nil: places are times
	paced    bool               // by the stamps alone: recorded heartbeats have their times

	ready chan *chunk // closed when nothing more comes; err is set before
	free  chan *chunk
	made  int
	cur   *chunk
	err   error

	full     atomic.Bool // the clock may start
	starving atomic.Bool // the sender has nothing: hand over what there is
	wake     func()      // the sender looks again

	stop context.CancelFunc
	gone chan struct{}
}

// startReadAhead begins to read each stream from from[stream] on, those that are
// replayed as heard from since on. warp, where there is one, is the read-ahead's
// alone.
func startReadAhead(cfg *Config, sessions []moldcast.Session, from func(stream int) moldcast.Seq, since moldcast.Stamp, speed float64, warp *burst.Warp, wake func()) *readAhead {
	ctx, cancel := context.WithCancel(context.Background())
	r := &readAhead{
		cfg: cfg, sessions: sessions, warp: warp, wake: wake, stop: cancel, gone: make(chan struct{}),
		size:  max(cfg.ReadAhead/chunks, 2*moldcast.MaxDatagram),
		ready: make(chan *chunk, chunks), free: make(chan *chunk, chunks),
	}
	r.paced = !cfg.Pace.Max && cfg.Pace.Rate == 0 && cfg.Pace.MaxIdle == 0 && warp == nil
	window := int64(math.MaxInt64)
	if !cfg.Pace.Max && cfg.Pace.Rate == 0 {
		window = int64(float64(cfg.RepackWait) * speed)
	}
	go func() {
		defer close(r.gone)
		defer wake()
		defer close(r.ready)
		defer r.full.Store(true)
		r.err = r.run(ctx, from, since, window)
		r.push(ctx) // what came before an error is sent
		for _, f := range r.feeds {
			closeSource(f.src)
			closeSource(f.heard)
			f.marks.close()
		}
	}()
	return r
}

// close stops r and waits until it has let go of its sources.
func (r *readAhead) close() {
	r.stop()
	<-r.gone
}

func (r *readAhead) run(ctx context.Context, from func(int) moldcast.Seq, since moldcast.Stamp, window int64) error {
	var m merge
	for i, s := range r.cfg.Streams {
		f := &feed{
			stream: i, pos: min(max(from(i), s.Range.First), s.Range.Next), limit: s.Range.Next, sparse: s.Sparse,
			size: moldcast.PayloadSize(r.cfg.MTU) - moldcast.HeaderSize, repack: r.cfg.Packets == Repack, window: window,
		}
		r.feeds = append(r.feeds, f)
		var err error
		if s.Heard != nil {
			f.pos = s.Range.First
			f.heard, err = s.Heard(since)
		} else if f.src, err = s.Open(f.pos); err == nil && s.Marks != nil && r.paced {
			f.marks.src, err = s.Marks(f.pos)
		}
		if err != nil {
			return fmt.Errorf("session %s: %w", s.Session, err)
		}
		if err := f.advance(); err != nil {
			return fmt.Errorf("session %s: %w", s.Session, err)
		}
		m = append(m, f)
	}
	heap.Init(&m)
	for len(m) > 0 {
		f := m[0]
		if !r.add(ctx, f) {
			return ctx.Err()
		}
		if f.head.kind == end {
			heap.Pop(&m)
			continue
		}
		if f.head.kind == hole && r.cfg.OnHole == Wait {
			if err := r.await(ctx, f); err != nil {
				return err
			}
		} else if err := f.advance(); err != nil {
			return fmt.Errorf("session %s: %w", r.cfg.Streams[f.stream].Session, err)
		}
		heap.Fix(&m, 0)
	}
	return nil
}

// add puts the head of f into the current chunk.
func (r *readAhead) add(ctx context.Context, f *feed) bool {
	e := &f.head
	need := 0
	if e.kind == packet {
		need = moldcast.HeaderSize + len(e.framed)
	}
	if r.cur != nil && (len(r.cur.items) == chunkItems || len(r.cur.buf)+need > cap(r.cur.buf)) && !r.push(ctx) {
		return false
	}
	if r.cur == nil && !r.get(ctx) {
		return false
	}
	c := r.cur
	it := item{kind: e.kind, stream: uint16(f.stream), first: e.first, next: e.next, time: e.time, place: e.time, reason: e.reason}
	if r.warp != nil {
		it.place = r.warp.At(e.time)
	}
	if e.kind == packet {
		n := int(e.next - e.first)
		it.msgs, it.count = uint16(n), uint16(n)
		if n == 0 {
			it.count = e.count
		}
		it.bytes = uint32(len(e.framed) - n*moldcast.LengthSize)
		it.at = uint32(len(c.buf))
		c.buf = moldcast.AppendHeader(c.buf, r.sessions[f.stream], e.first, it.count)
		c.buf = append(c.buf, e.framed...)
		it.end = uint32(len(c.buf))
	}
	c.items = append(c.items, it)
	if r.starving.Load() {
		return r.push(ctx)
	}
	return true
}

// get takes an empty chunk. That there is none means that the read-ahead is
// full.
func (r *readAhead) get(ctx context.Context) bool {
	select {
	case r.cur = <-r.free:
	default:
		if r.made < chunks {
			r.made++
			r.cur = &chunk{buf: make([]byte, 0, r.size), items: make([]item, 0, chunkItems)}
			return ctx.Err() == nil
		}
		r.fill()
		select {
		case r.cur = <-r.free:
		case <-ctx.Done():
			return false
		}
	}
	r.cur.buf, r.cur.items = r.cur.buf[:0], r.cur.items[:0]
	return ctx.Err() == nil
}

func (r *readAhead) fill() {
	if !r.full.Swap(true) {
		r.wake()
	}
}

// push hands the current chunk over. There is always room: ready holds every
// chunk that there is.
func (r *readAhead) push(ctx context.Context) bool {
	if r.cur != nil && len(r.cur.items) > 0 {
		r.starving.Store(false)
		r.ready <- r.cur
		r.cur = nil
		r.wake()
	}
	return ctx.Err() == nil
}

// await reads f again from the hole at its head until messages are there.
func (r *readAhead) await(ctx context.Context, f *feed) error {
	if !r.push(ctx) {
		return ctx.Err()
	}
	r.fill()
	at, s := f.head.first, r.cfg.Streams[f.stream]
	t := time.NewTimer(r.cfg.HolePoll)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			t.Reset(r.cfg.HolePoll)
		}
		src, err := s.Open(at)
		if err != nil {
			return fmt.Errorf("session %s: %w", s.Session, err)
		}
		closeSource(f.src)
		f.src, f.pos, f.rest, f.pending, f.known = src, at, moldcast.Messages{}, false, false
		if err := f.advance(); err != nil {
			return fmt.Errorf("session %s: %w", s.Session, err)
		}
		if f.head.kind == packet || f.head.kind == heartbeat {
			return nil
		}
	}
}
