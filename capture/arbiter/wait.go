package arbiter

import (
	"slices"
	"sort"

	"github.com/moldtape/moldtape/moldcast"
)

// early is a piece that came before its predecessor, with its own copy of the
// messages. The gap machine counts it as held.
type early struct {
	moldcast.Piece
	since, until moldcast.Instant // when it came, and when it is stored as an island
	buf          []byte
	older, newer *early // in order of arrival within the session
}

func (e *early) next() moldcast.Seq { return e.Range().Next }

func (e *early) size() int { return len(e.buf) + WaitOverhead }

// waiting is what waits of one session: in order of sequence, and linked in
// order of arrival, which is that of the deadlines.
type waiting struct {
	bySeq          []*early
	oldest, newest *early
	retry          moldcast.Instant // the store refused some: not offered again before
	overdue        bool             // some of that waits for nothing but the store
}

// from is the position of the first piece at or above seq.
func (w *waiting) from(seq moldcast.Seq) int {
	return sort.Search(len(w.bySeq), func(i int) bool { return seq <= w.bySeq[i].First })
}

// endsAt reports whether the message before seq waits as the last of a piece.
func (w *waiting) endsAt(seq moldcast.Seq) bool {
	i := w.from(seq)
	return i > 0 && w.bySeq[i-1].next() == seq
}

// run is the position behind the piece at i and all that follow it without a
// gap.
func (w *waiting) run(i int) int {
	for i++; i < len(w.bySeq) && w.bySeq[i].First == w.bySeq[i-1].next(); i++ {
	}
	return i
}

func (w *waiting) add(e *early) {
	w.bySeq = slices.Insert(w.bySeq, w.from(e.First), e)
	e.older, e.newer = w.newest, nil
	if w.newest != nil {
		w.newest.newer = e
	} else {
		w.oldest = e
	}
	w.newest = e
}

// remove takes off the pieces at [from, to).
func (w *waiting) remove(from, to int) {
	for _, e := range w.bySeq[from:to] {
		if e.older != nil {
			e.older.newer = e.newer
		} else {
			w.oldest = e.newer
		}
		if e.newer != nil {
			e.newer.older = e.older
		} else {
			w.newest = e.older
		}
		e.older, e.newer = nil, nil
	}
	if from == 0 && to < len(w.bySeq) {
		clear(w.bySeq[:to])
		w.bySeq = w.bySeq[to:]
		return
	}
	w.bySeq = slices.Delete(w.bySeq, from, to)
}

// pool keeps what waited for reuse, so that waiting does not allocate in the
// long run. It is bounded by poolPieces of poolBytes.
type pool []*early

const (
	poolPieces = 4096
	poolBytes  = 2048
)

func (p *pool) get(framed []byte) *early {
	var e *early
	if n := len(*p); n > 0 {
		e = (*p)[n-1]
		(*p)[n-1] = nil
		*p = (*p)[:n-1]
	} else {
		e = &early{buf: make([]byte, 0, max(poolBytes, len(framed)))}
	}
	e.buf = append(e.buf[:0], framed...)
	return e
}

func (p *pool) put(e *early) {
	if len(*p) < poolPieces && cap(e.buf) <= poolBytes {
		e.Piece = moldcast.Piece{}
		*p = append(*p, e)
	}
}

// predecessorStored reports whether the message before seq is in the store,
// or not wanted.
func (s *Session) predecessorStored(seq moldcast.Seq) bool {
	if seq <= s.m.First() {
		return true
	}
	if len(s.wait.bySeq) > 0 && s.wait.endsAt(seq) {
		return false
	}
	return s.holds(seq - 1)
}

// room makes room for an early piece of the given size: what has waited
// longest becomes an island. False: the store refuses, so there is none.
func (a *Arbiter) room(now moldcast.Instant, size int) bool {
	for a.waitBytes+size > a.cfg.ReorderBytes {
		var longest *Session
		for _, s := range a.order {
			if s.wait.oldest != nil && s.wait.retry <= now &&
				(longest == nil || s.wait.oldest.until < longest.wait.oldest.until) {
				longest = s
			}
		}
		if longest == nil {
			return false
		}
		a.island(now, longest)
	}
	return true
}

// island stores what has waited longest in s, with all that waits below it
// and what follows it without a gap.
func (a *Arbiter) island(now moldcast.Instant, s *Session) {
	a.store(now, s, 0, s.wait.run(s.wait.from(s.wait.oldest.First)))
}

// follow stores what waited for a message below next, without a gap between.
// ooo: that was no gap, only disorder.
func (a *Arbiter) follow(now moldcast.Instant, s *Session, next moldcast.Seq, ooo bool) {
	i := s.wait.from(next)
	if i == len(s.wait.bySeq) || s.wait.bySeq[i].First != next {
		return
	}
	to := s.wait.run(i)
	if ooo {
		a.c.OutOfOrder += uint64(s.wait.bySeq[to-1].next() - next)
	}
	a.store(now, s, i, to)
}

// store gives the waiting pieces at [from, to) to the store, as far as it
// takes them; the rest goes on waiting.
func (a *Arbiter) store(now moldcast.Instant, s *Session, from, to int) {
	i := from
	for ; i < to; i++ {
		e := s.wait.bySeq[i]
		if !a.out.Append(s, e.Piece) {
			s.wait.retry = now + moldcast.Instant(a.cfg.Limits.StoreRetry)
			a.fullAt(now, s)
			break
		}
		a.stored(e.Piece)
		s.waited.Add(int64(now - e.since))
		a.waitBytes -= e.size()
		a.waitMessages -= uint64(e.Msgs.Len())
		a.pool.put(e)
	}
	s.wait.remove(from, i)
}

// behind stores what waits at seq, and what follows it: what lies before was
// given up, so that nothing is left to wait for.
func (a *Arbiter) behind(now moldcast.Instant, s *Session, seq moldcast.Seq) {
	i := s.wait.from(seq)
	if i == len(s.wait.bySeq) || s.wait.bySeq[i].First != seq {
		return
	}
	n, to := len(s.wait.bySeq), s.wait.run(i)
	a.store(now, s, i, to)
	if n-len(s.wait.bySeq) < to-i {
		s.wait.overdue = true
	}
}

// expire makes islands of what has waited long enough.
func (a *Arbiter) expire(now moldcast.Instant, s *Session) {
	if s.wait.overdue && s.wait.retry <= now {
		a.store(now, s, 0, len(s.wait.bySeq))
		s.wait.overdue = len(s.wait.bySeq) > 0
	}
	for s.wait.oldest != nil && s.wait.oldest.until <= now && s.wait.retry <= now {
		a.island(now, s)
	}
}

// fullAt takes note that the store took nothing: what is missing is not asked
// for, and its budget does not run, until it has room.
func (a *Arbiter) fullAt(now moldcast.Instant, s *Session) {
	s.full, s.roomAt = true, now+moldcast.Instant(a.cfg.Limits.StoreRetry)
	s.m.Hold(now, true)
}

// look asks the store whether it has room again.
func (a *Arbiter) look(now moldcast.Instant, s *Session) {
	if !a.out.Room(s) {
		a.fullAt(now, s)
		return
	}
	s.full = false
	s.m.Hold(now, false)
}
