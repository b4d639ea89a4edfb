package replay

import (
	"context"

	"github.com/moldtape/moldtape/moldcast"
)

// maxSteps bounds the packets, and the messages, of steps not yet taken.
const maxSteps = 1 << 30

// place is where a stream goes; no seq: nowhere.
type place struct {
	stream int
	seq    moldcast.Seq
}

// SetSpeed sets the speed (the rate, where that paces), within the bounds of
// package pace. It does nothing where nothing paces.
func (p *Player) SetSpeed(speed float64) {
	p.order(func(o *orders) { o.speed, o.scale = speed, 0 })
}

// SeekSeq moves stream to seq and the others to at, its recorded time; else as
// SeekBy.
func (p *Player) SeekSeq(stream int, seq moldcast.Seq, at moldcast.Stamp) {
	p.order(func(o *orders) {
		o.seek, o.seekTo, o.to, o.by, o.seq = true, true, at, 0, place{stream: stream, seq: seq}
	})
}

// Step pauses and sends the next packet at once.
func (p *Player) Step() { p.StepPackets(1) }

// StepPackets pauses and sends the next n packets at once; the end of a stream
// counts as one. Steps end with the loop.
func (p *Player) StepPackets(n int) {
	p.order(func(o *orders) {
		o.pause, o.resume, o.toggle = true, false, false
		o.steps = min(o.steps+min(n, maxSteps), maxSteps)
	})
}

// StepMessages pauses and sends at once as many whole packets as it takes to
// send n messages.
func (p *Player) StepMessages(n int) {
	p.order(func(o *orders) {
		o.pause, o.resume, o.toggle = true, false, false
		o.stepTo = min(o.stepTo+min(n, maxSteps), maxSteps)
	})
}

// Settled waits until what was ordered so far is done (a seek: begun), and Status shows it,
// or until the replay is over, or ctx is done: its error.
func (p *Player) Settled(ctx context.Context) error {
	p.mu.Lock()
	if p.mu.over {
		p.mu.Unlock()
		return nil
	}
	if p.mu.obeyed == nil {
		p.mu.obeyed = make(chan struct{})
	}
	ch := p.mu.obeyed
	p.mu.Unlock()
	p.awaited.Store(true)
	p.poke()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// obeyed lets go who waits in Settled, unless there are new orders.
func (p *Player) obeyed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ch := p.mu.obeyed; ch != nil && p.mu.orders == (orders{}) {
		close(ch)
		p.mu.obeyed = nil
		p.awaited.Store(false)
	}
}

// finish lets go who waits in Settled: Run is over.
func (p *Player) finish() {
	p.mu.Lock()
	p.mu.over, p.mu.orders = true, orders{}
	p.mu.Unlock()
	p.obeyed()
}
