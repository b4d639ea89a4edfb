package store

import (
	"errors"
	"fmt"
	"sync/atomic"

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

// encoders are those of a worker.
type encoders struct {
	codec   Codec
	learns  bool // before it encodes: nothing is lost for the time that it takes
	size    int
	by      map[block.Level]*block.Encoder // those that were needed
	plans   *plans
	check   *block.Decoder // nil: blocks are not checked
	checked *block.Block

	spoil func(body []byte) // tests: what a broken codec does
}

// plans are what was last learned of the messages of a recording, by which its
// workers have them foretold.
type plans struct {
	newest   atomic.Pointer[block.Plans]
	learning atomic.Bool
	run      func(func()) // starts a goroutine
}

func newEncoders(o *Options, p *plans) (*encoders, error) {
	e := &encoders{codec: o.Codec, size: min(o.BlockSize, block.MaxTarget), by: map[block.Level]*block.Encoder{}, plans: p, checked: new(block.Block)}
	if !o.NoVerify {
		check, err := block.NewDecoder(block.DecoderOptions{Verify: true})
		if err != nil {
			return nil, err
		}
		e.check = check
	}
	if o.Wait && e.codec == CodecAuto {
		e.codec = CodecDense // the queue is full, and nothing is lost for it
	}
	e.learns = o.Wait
	_, err := e.at(e.codec.level(0))
	return e, err
}

func (e *encoders) close() {
	if e.check != nil {
		e.check.Close()
	}
}

// at is the encoder of a level.
func (e *encoders) at(l block.Level) (*block.Encoder, error) {
	if enc := e.by[l]; enc != nil {
		return enc, nil
	}
	enc, err := block.NewEncoder(block.EncoderOptions{BlockSize: e.size, Level: l, Learn: e.learns})
	if err == nil {
		e.by[l] = enc
	}
	return enc, err
}

// pick is the encoder for a block behind which so many wait.
func (e *encoders) pick(waiting int) (*block.Encoder, error) {
	l := e.codec.level(waiting)
	enc, err := e.at(l)
	if err == nil && l == block.Dense && !e.learns {
		if p := e.plans.newest.Load(); p != nil {
			enc.UsePlans(p)
		}
	}
	return enc, err
}

// encode compresses m, behind which so many wait, and checks that it can be
// decoded again; where it cannot, it is stored as rows, and note is why.
func (e *encoders) encode(m *memBlock, waiting int) (note, err error) {
	enc, err := e.pick(waiting)
	if err == nil {
		err = m.encode(enc)
	}
	if err != nil {
		return nil, err
	}
	if e.spoil != nil {
		e.spoil(m.body)
	}
	if note = e.verify(m); note != nil {
		if enc, err = e.at(block.Default); err == nil {
			err = m.encode(enc)
		}
		if err == nil {
			err = e.verify(m)
		}
		return note, err
	}
	if !e.learns && e.codec.level(waiting) == block.Dense && enc.WantsPlans() {
		e.learn(m)
	}
	return nil, nil
}

// verify decodes m and compares what comes out with what went in, by the
// hashes that were made of that.
func (e *encoders) verify(m *memBlock) error {
	if e.check == nil {
		return nil
	}
	if err := e.check.Decode(m.parsed, m.body, e.checked); err != nil {
		return fmt.Errorf("%w: %w", errCodec, err)
	}
	return nil
}

// learn has another goroutine learn from m, unless one does.
func (e *encoders) learn(m *memBlock) {
	p := e.plans
	if !p.learning.CompareAndSwap(false, true) {
		return
	}
	from := e.checked
	if e.check == nil {
		if err := m.b.Freeze(from); err != nil {
			p.learning.Store(false)
			return
		}
	}
	e.checked = new(block.Block)
	old := p.newest.Load()
	p.run(func() {
		p.newest.Store(block.Learn(old, from))
		p.learning.Store(false)
	})
}
