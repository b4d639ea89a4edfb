package retransmit

import (
	"container/list"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// The stream of a recording is encoded once, for all its readers: in chunks of
// whole frames, which never change. A chunk lies within a cell, cellMessages of
// consecutive numbers: so readers that began at different places come to share
// from the next cell on. Where the recording grows, the last chunk is continued:
// what was sent of it lies before what is appended.

const (
	cellMessages = 2048     // a power of two
	chunkBytes   = 96 << 10 // most, but for one message
	chunkSlack   = 2 << 10  // one that has no more room than this is not continued
)

// chunk is what goes over the wire for the messages of rng.
type chunk struct {
	rng  moldcast.Range
	wire []byte
	full bool // nothing is appended to it
}

// spot is where a message begins in the chunk that begins at first: the same
// in each one that does, however far it goes.
type spot struct {
	first, seq moldcast.Seq
	at         int
}

// from is the part of the chunk that begins with message q, which it holds or
// ends before. near is of a lower one; so it need not be looked for from the
// start.
func (c chunk) from(q moldcast.Seq, near spot) []byte {
	b, at := c.wire, c.rng.First
	if near.first == at && near.seq <= q && near.at <= len(b) {
		b, at = b[near.at:], near.seq
	}
	for ; at < q; at++ {
		b = b[frameSize(b):]
	}
	return b
}

// end is where what follows on the chunk begins.
func (c chunk) end() spot { return spot{c.rng.First, c.rng.Next, len(c.wire)} }

// frameSize is of the first frame in b.
func frameSize(b []byte) int { return 2 + int(binary.BigEndian.Uint16(b)) }

// cell is the chunks of cellMessages messages. Those who read or wait for one
// look it up again: it may be dropped, and made again, at any time.
type cell struct {
	key    cellKey
	chunks []chunk // in order, disjoint
	size   int64
	elem   *list.Element
	load   *load // under way; nil: none
}

type cellKey struct {
	feed *feed
	at   moldcast.Seq // of its first message, / cellMessages
}

// load is a read that several readers wait for. What follows done is written
// before that is closed.
type load struct {
	at   moldcast.Seq
	turn *ticket // in the line of the archive; nil: not yet
	done chan struct{}

	// Of the message at at, where no chunk came of it: missing, as yet or for
	// good; or the archive cannot be read.
	hole    moldcast.Range
	forGood bool
	err     error
}

// WireStats counts what became of the chunks that readers asked for.
type WireStats struct {
	Chunks   uint64 // given to a reader
	Encoded  uint64 // made
	Messages uint64 // encoded
	Reads    uint64 // for which the archive's disk was read
	Bytes    int64  // kept now
	Waiting  int    // reads that wait in line for the archive now
}

// add adds those of another server.
func (s *WireStats) add(o WireStats) {
	s.Chunks += o.Chunks
	s.Encoded += o.Encoded
	s.Messages += o.Messages
	s.Reads += o.Reads
	s.Bytes += o.Bytes
	s.Waiting += o.Waiting
}

// wire keeps chunks, up to a number of bytes, the least recently used cells
// going first.
type wire struct {
	max  int64
	line *line

	mu    sync.Mutex
	cells map[cellKey]*cell
	lru   list.List // of *cell, most recently used first
	stats WireStats

	bufs sync.Pool // *[]byte of messages as they are stored
}

func newWire(size int64, l *line) *wire {
	w := &wire{max: size, line: l, cells: map[cellKey]*cell{}}
	w.bufs.New = func() any { return new([]byte) }
	return w
}

// get is the chunk that holds the message at q, or the load that is waited for:
// it has ended where done is closed. Its outcome is that of q only if it is at
// q; else the reader asks again.
func (w *wire) get(f *feed, q moldcast.Seq) (chunk, *load) {
	w.mu.Lock()
	c := w.cell(f, q)
	if k, ok := c.find(q); ok {
		w.stats.Chunks++
		w.mu.Unlock()
		return k, nil
	}
	if l := c.load; l != nil {
		w.mu.Unlock()
		return chunk{}, l
	}
	l := &load{at: q, done: make(chan struct{})}
	c.load = l
	w.mu.Unlock()

	// Most of what is new is in memory: that waits for nobody.
	if w.fill(f, l, false) {
		w.mu.Lock()
		defer w.mu.Unlock()
		k, ok := w.cell(f, q).find(q)
		if ok {
			w.stats.Chunks++
			return k, nil
		}
		return chunk{}, l
	}
	j := w.line.put(func() {
		w.mu.Lock()
		w.stats.Reads++
		w.mu.Unlock()
		w.fill(f, l, true)
	})
	w.mu.Lock()
	l.turn = j
	w.mu.Unlock()
	return chunk{}, l
}

// place is how many reads go before that of l, and how many are in line in all;
// not ok: it is being read, or has ended.
func (w *wire) place(l *load) (ahead, all int, ok bool) {
	w.mu.Lock()
	j := l.turn
	w.mu.Unlock()
	if j == nil {
		return 0, 0, false
	}
	return w.line.place(j)
}

// cell is the one of q, made if there is none. REQUIRES: mu.
func (w *wire) cell(f *feed, q moldcast.Seq) *cell {
	key := cellKey{f, q / cellMessages}
	c := w.cells[key]
	if c == nil {
		c = &cell{key: key}
		c.elem = w.lru.PushFront(c)
		w.cells[key] = c
		return c
	}
	w.lru.MoveToFront(c.elem)
	return c
}

// find is the chunk that holds q.
func (c *cell) find(q moldcast.Seq) (chunk, bool) {
	for _, k := range c.chunks {
		if k.rng.Contains(q) {
			return k, true
		}
	}
	return chunk{}, false
}

// fill reads the chunk of l, and ends l. False: the disk would have to be read
// for it, which only cold allows.
func (w *wire) fill(f *feed, l *load, cold bool) bool {
	key := cellKey{f, l.at / cellMessages}
	w.mu.Lock()
	c := w.cells[key]
	if c == nil || c.load != l { // its readers have left
		w.mu.Unlock()
		close(l.done)
		return true
	}
	old, limit := c.room(l.at)
	w.mu.Unlock()

	k, hole, forGood, err := w.read(f.rec, old, l.at, limit, cold)
	if !cold && errors.Is(err, ErrCold) {
		return false
	}
	l.hole, l.forGood, l.err = hole, forGood, err
	w.mu.Lock()
	defer w.mu.Unlock()
	if !k.rng.Empty() {
		w.stats.Encoded++
		w.stats.Messages += k.rng.Len() - old.rng.Len()
		if w.cells[key] == c {
			w.put(c, k)
		}
	}
	c.load = nil
	close(l.done)
	return true
}

// room is the chunk that one from q on continues, if any, and where it ends at
// the latest. REQUIRES: wire.mu.
func (c *cell) room(q moldcast.Seq) (old chunk, limit moldcast.Seq) {
	base := c.key.at * cellMessages
	if limit = base + cellMessages; limit < base { // the last cell of all
		limit = ^moldcast.Seq(0)
	}
	for _, k := range c.chunks {
		switch {
		case k.rng.Next == q && !k.full:
			old = k
		case k.rng.First > q:
			limit = min(limit, k.rng.First)
		}
	}
	return old, limit
}

// put places k, which may continue one that is there. REQUIRES: mu.
func (w *wire) put(c *cell, k chunk) {
	at := 0
	for at < len(c.chunks) && c.chunks[at].rng.First < k.rng.First {
		at++
	}
	if at < len(c.chunks) && c.chunks[at].rng.First == k.rng.First {
		c.size -= int64(cap(c.chunks[at].wire))
		w.stats.Bytes -= int64(cap(c.chunks[at].wire))
		c.chunks[at] = k
	} else {
		c.chunks = slices.Insert(c.chunks, at, k)
	}
	c.size += int64(cap(k.wire))
	w.stats.Bytes += int64(cap(k.wire))
	for e := w.lru.Back(); e != nil && w.stats.Bytes > w.max; {
		last := e.Value.(*cell)
		e = e.Prev()
		if last != c && last.load == nil {
			w.drop(last)
		}
	}
}

// drop forgets a cell. REQUIRES: mu.
func (w *wire) drop(c *cell) {
	delete(w.cells, c.key)
	w.lru.Remove(c.elem)
	w.stats.Bytes -= c.size
}

// forget drops what is kept of a feed that nobody reads any more.
func (w *wire) forget(f *feed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := w.lru.Front(); e != nil; {
		c := e.Value.(*cell)
		if e = e.Next(); c.key.feed == f {
			w.drop(c)
		}
	}
}

// read reads messages from start on, which is right behind old, below limit.
// Where there is none, hole is what is missing there, as yet or for good.
func (w *wire) read(rec Recording, old chunk, start, limit moldcast.Seq, cold bool) (k chunk, hole moldcast.Range, forGood bool, err error) {
	room := max(chunkBytes-len(old.wire), 1) // a message at least
	count := int(min(uint64(limit-start), moldcast.MaxCount))
	buf := w.bufs.Get().(*[]byte)
	framed, n, err := rec.Append((*buf)[:0], start, count, room, cold)
	*buf = framed
	defer func() {
		if cap(framed) <= 2*chunkBytes {
			w.bufs.Put(buf)
		}
	}()
	if n == 0 {
		hole, forGood, err = missing(rec, start, err)
		return chunk{}, hole, forGood, err
	}
	k = old
	if k.rng.Empty() {
		k.rng = moldcast.Range{First: start, Next: start}
		k.wire = make([]byte, 0, len(framed)+n) // a byte each for the type
	}
	m := 0
	if k.wire, m = soup.AppendData(k.wire, moldcast.MessagesOf(framed, n)); m == 0 { // no frame can carry it
		return chunk{}, moldcast.Range{First: start, Next: start + 1}, true, nil
	}
	k.rng.Next += moldcast.Seq(m)
	k.full = len(k.wire) > chunkBytes-chunkSlack || k.rng.Next == limit
	return k, hole, false, nil
}

// first is the lowest sequence at or after q that is held, or may yet be.
func (w *wire) first(rec Recording, q moldcast.Seq) moldcast.Seq {
	end, ended := rec.Ended()
	first, head := rec.Bounds()
	if q == 0 && head > first {
		q = head - 1 // the most recent message
	}
	if ended {
		head = max(head, end)
	}
	q = min(max(q, first, 1), max(head, 1))
	for q < head {
		hole, forGood, err := w.probe(rec, q)
		if err != nil || !forGood || hole.Empty() {
			return q
		}
		q = hole.Next
	}
	return q
}

// probe reports what is missing at q, if anything is.
func (w *wire) probe(rec Recording, q moldcast.Seq) (hole moldcast.Range, forGood bool, err error) {
	buf := w.bufs.Get().(*[]byte)
	defer w.bufs.Put(buf)
	out, n, err := rec.Append((*buf)[:0], q, 1, 1, true)
	if cap(out) <= 2*chunkBytes {
		*buf = out
	}
	if n > 0 {
		return hole, false, nil
	}
	return missing(rec, q, err)
}

// missing is what an Append of nothing says of q.
func missing(rec Recording, q moldcast.Seq, err error) (hole moldcast.Range, forGood bool, _ error) {
	var m *moldcast.HoleError
	switch {
	case errors.As(err, &m):
		forGood = m.Hole.Reason != moldcast.NotCaptured || !rec.Growing()
		return moldcast.Range{First: q, Next: m.Hole.Range.Next}, forGood, nil
	case err == nil:
		err = io.ErrNoProgress
	}
	return hole, false, err
}

// Stats is a snapshot.
func (w *wire) Stats() WireStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.stats
	st.Waiting = w.line.waiting()
	return st
}
