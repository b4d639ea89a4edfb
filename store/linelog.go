package store

import (
	"math/bits"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

const (
	// heardIn is how many datagrams wait, without a lock, for what is stored or
	// marked next: they go to the block that is open then.
	heardIn = 256

	// heardAlone is from how many datagrams on a block without messages, which
	// has nothing else to be written for, is written when it is old.
	heardAlone = 4096

	// heardOfBlock is how many pieces' worth of datagrams cut a block: two lines
	// bring twice as many as are stored.
	heardOfBlock = 4

	heardOfMerge = block.MaxHeard / 4 // bounds the datagrams that wait in a merge
)

// heardLog is the line log that a Writer writes.
type heardLog struct {
	id   moldcast.Stamp // 0: there is none
	next uint64         // datagrams heard
	in   []moldcast.Heard
	lost uint64 // of those behind them, for which there was no room
}

// Heard takes a datagram into the line log, which begins with the first one.
// It is to be called before what of the datagram is stored. Nothing of it is
// durable before the block is that is open when it is taken up. Where memory is
// full it is counted, and missing in the log; with Options.Wait it waits.
func (w *Writer) Heard(h moldcast.Heard) {
	l := &w.heard
	if l.in == nil {
		l.in = make([]moldcast.Heard, 0, heardIn)
	}
	if l.in = append(l.in, h); len(l.in) == heardIn {
		w.s.mu.Lock()
		w.takeHeard()
		w.s.mu.Unlock()
	}
}

// takeHeard puts what was heard into the open block. REQUIRES: mu, and the
// owner's goroutine or one behind it.
func (w *Writer) takeHeard() {
	l := &w.heard
	if len(l.in) == 0 || w.closing {
		return
	}
	most := w.a.o.QueueBytes / 4 * 3 // messages come first
	for w.a.o.Wait && w.pending > most && w.err == nil {
		if !w.open.b.Empty() && w.pending == w.open.size() {
			w.cut() // everything waits in the open block
		}
		if w.done.Wait(); w.closing {
			return
		}
	}
	if l.id == 0 {
		l.id = moldcast.StampOf(w.a.o.Clock())
		if w.open.b.Pieces() > 0 { // stored under no log: it stays apart
			w.cut()
		}
	}
	if n := w.open.b.HeardCount(); n > 0 && n+len(l.in) > min(heardOfBlock*w.a.o.BlockSize/8, block.MaxHeard) {
		w.cut()
	}
	m := w.open
	w.logOf(m)
	if m.b.HeardCount() == 0 && m.b.Pieces() == 0 {
		m.begun = time.Now()
	}
	lost := uint64(0)
	for _, h := range l.in {
		if w.pending > most || m.b.Heard(h) != nil {
			lost++
			continue
		}
		w.pending += heardCost
	}
	if l.next += uint64(len(l.in)); lost > 0 {
		m.b.LoseHeard(lost)
		l.lost += lost
	}
	l.in = l.in[:0]
}

// logOf sees that m has a part of the log, where there is one: what a block
// holds that has none was not stored under a log. REQUIRES: mu.
func (w *Writer) logOf(m *memBlock) {
	if w.heard.id != 0 && !m.b.Logged() {
		_ = m.b.BeginLog(block.LogPart{ID: w.heard.id, Before: w.heard.next}) // it is the first
	}
}

// endLog says in the open block that the log ends. REQUIRES: mu, and that
// nobody stores any more.
func (w *Writer) endLog() {
	if w.takeHeard(); w.heard.id != 0 {
		w.logOf(w.open)
		w.open.b.EndLog()
	}
}

// mergedLogs are parts of line logs that wait for the block that a merge makes.
type mergedLogs struct {
	parts []mergedLog
	heard int
}

type mergedLog struct {
	block.LogPart
	list []moldcast.Heard // line by line
}

// add takes up what b has.
func (l *mergedLogs) add(b *block.Block) {
	for i := range b.LogParts() {
		p := mergedLog{LogPart: b.LogPart(i)}
		for line := range p.Lines {
			p.list = append(p.list, b.HeardOn(i, line)...)
		}
		l.parts = append(l.parts, p)
		l.heard += p.Heard
	}
}

// take puts parts into the block that is made, as many as it takes, and into
// the sum of what went in.
func (l *mergedLogs) take(out *block.Builder, sum *mergeSum) error {
	n := 0
	for ; n < len(l.parts); n++ {
		p := &l.parts[n]
		if out.HeardCount() > 0 && out.HeardCount()+p.Heard > block.MaxHeard {
			break
		}
		if err := out.BeginLog(p.LogPart); err == block.ErrFull && n > 0 {
			break
		} else if err != nil {
			return err
		}
		for _, h := range p.list {
			if err := out.Heard(h); err != nil {
				return err
			}
		}
		sum.heard.add(&p.LogPart, p.list)
		l.heard -= p.Heard
	}
	l.parts = slices.Delete(l.parts, 0, n)
	return nil
}

// heardSum is a sum of line logs that does not depend on how they are cut into
// parts.
type heardSum struct{ sum, heard, lost, ends uint64 }

func (s *heardSum) add(p *block.LogPart, list []moldcast.Heard) {
	mix := func(x, v uint64) uint64 {
		hi, lo := bits.Mul64(x^v, 0x9E3779B97F4A7C15)
		return hi ^ lo ^ bits.RotateLeft64(x, 29)
	}
	for _, h := range list {
		x := mix(mix(mix(uint64(p.ID), uint64(h.Stamp)), uint64(h.First)), uint64(h.Count)<<16|uint64(h.Line)<<8|uint64(h.Flags))
		s.sum += mix(x, 1)
	}
	s.heard += uint64(len(list))
	s.lost += p.Lost
	if p.Last {
		s.ends++
	}
}

// log takes in the line log of b.
func (s *mergeSum) log(b *block.Block) {
	for i := range b.LogParts() {
		p := b.LogPart(i)
		for line := range p.Lines {
			s.heard.add(&block.LogPart{ID: p.ID}, b.HeardOn(i, line))
		}
		s.heard.add(&p, nil)
	}
}
