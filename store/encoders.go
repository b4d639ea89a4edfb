package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/moldtape/moldtape/store/block"
)

// How many blocks wait when the next is compressed fast rather than well: the
// writer is behind, and what it never catches up with is lost; and when it is
// compressed as fast as can be.
const (
	hurry = 4
	rush  = 32
)

// errCodec says that a block, decoded, was not what it was made from.
var errCodec = errors.New("store: a block does not decode to what it was made from")

// encoders are what a worker has blocks of a recording compressed by.
type encoders struct {
	codec   Codec
	learns  bool // before it encodes: nothing is lost for the time that it takes
	checks  bool // blocks are decoded and compared
	box     *toolbox
	dense   chan struct{} // turns
	time    spareTime
	learner *learner
	plans   *plans // of all workers of the recording
	past    [block.Hasty + 1]block.History
	seen    int  // raw bytes
	unsure  bool // the plans are of other messages, and do worse than there

	spares func(fn func()) bool // spares, but in tests
	spoil  func(body []byte)    // tests: what a broken codec does
}

func (a *Archive) newEncoders(p *plans) *encoders {
	e := &encoders{codec: a.o.Codec, learns: a.o.Wait, checks: !a.o.NoVerify, box: a.box, dense: a.dense, spares: spares, learner: a.learner, plans: p}
	if e.learns && e.codec == CodecAuto {
		e.codec = CodecDense // the queue is full, and nothing is lost for it
	}
	return e
}

// pick is the encoder for m at a level.
func (e *encoders) pick(t *tools, m *memBlock, l block.Level) (*block.Encoder, *block.History, error) {
	enc, err := t.at(l)
	if err != nil {
		return nil, nil, err
	}
	past := &e.past[l]
	enc.Follow(past)
	if l != block.Dense {
		return enc, past, nil
	}
	if e.plans.kept.Swap(false) {
		e.unsure = false
		past.KeepPlans()
	}
	if p := e.plans.newest.Load(); p != nil && p != past.Plans() {
		e.unsure = false
		past.UsePlans(p)
	}
	if m.b.RawSize() >= block.LeastLearn && (past.Plans() == nil || e.learns && past.WantsPlans()) {
		err = e.prepare(t, enc, past, m)
	}
	return enc, past, err
}

// prepare finds plans for m: what is known, and in an import what m teaches.
func (e *encoders) prepare(t *tools, enc *block.Encoder, past *block.History, m *memBlock) error {
	if err := m.b.Freeze(t.checked); err != nil {
		return err
	}
	if e.learns {
		e.learner.learn(enc, past, t.checked)
	} else if p, _, fits := e.learner.recall(enc, t.checked); p != nil {
		past.UsePlans(p)
		e.unsure = !fits
	}
	e.plans.newest.Store(past.Plans())
	return nil
}

// encode compresses m, behind which so many wait, and checks that it can be
// decoded again; where it cannot, it is stored as rows, and note is why. The
// last block of a recording teaches nothing. Blocks are dense where there is time
// for it: late reports whether too many wait by now; nil: nobody does.
func (e *encoders) encode(m *memBlock, waiting int, last bool, late func() bool) (note, err error) {
	l := e.codec.level(waiting)
	work := func() {
		t := e.box.take()
		defer e.box.give(t)
		note, err = e.encodeAt(l, t, m, last)
	}
	if l != block.Dense || e.codec != CodecAuto || late == nil {
		work()
		return note, err
	}
	if !e.time.try() || !e.turn(late) {
		l = block.Planes
		work()
		return note, err
	}
	there := e.spares(work)
	<-e.dense
	e.time.tried(there && !late())
	return note, err
}

// turn waits for a turn to make a block dense. False: it is too late for that.
func (e *encoders) turn(late func() bool) bool {
	select {
	case e.dense <- struct{}{}:
		return true
	default:
	}
	look := time.NewTicker(turnLook)
	defer look.Stop()
	for !late() {
		select {
		case e.dense <- struct{}{}:
			return true
		case <-look.C:
		}
	}
	return false
}

// encodeAt is encode at a level.
func (e *encoders) encodeAt(l block.Level, t *tools, m *memBlock, last bool) (note, err error) {
	defer m.keep()
	enc, past, err := e.pick(t, m, l)
	if err == nil {
		err = m.encode(enc, t)
	}
	if err != nil {
		return nil, err
	}
	if e.spoil != nil {
		e.spoil(m.body)
	}
	if note = e.verify(t, m); note != nil {
		if enc, err = t.at(block.Default); err == nil {
			err = m.encode(enc, t)
		}
		if err == nil {
			err = e.verify(t, m)
		}
		return note, err
	}
	e.seen += m.parsed.RawLen
	if wants := l == block.Dense && (past.WantsPlans() || e.unsure); wants && !last && !e.learns && e.seen >= learnedAfter {
		e.learner.later(e.plans, m.b, e.codec == CodecDense)
	}
	return nil, nil
}

// verify decodes m and compares what comes out with what went in.
func (e *encoders) verify(t *tools, m *memBlock) error {
	if !e.checks {
		return nil
	}
	check, err := t.decoder()
	if err != nil {
		return err
	}
	if err := check.Check(m.parsed, m.body, m.b, t.checked); err != nil {
		return fmt.Errorf("%w: %w", errCodec, err)
	}
	return nil
}
