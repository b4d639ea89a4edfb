package mcast

import (
	"fmt"
	"math/rand/v2"
)

// Impair says how a link harms packets. Probabilities are 0..1 per packet and
// drawn independently; the zero value harms nothing.
type Impair struct {
	Loss      float64 // not emitted
	Burst     int     // a loss takes this many packets in a row (0, 1: one); Loss stays the mean share
	DropEvery int     // every N-th packet is lost, counted from 1; 0: none
	Duplicate float64 // emitted twice
	Reorder   float64 // held back and emitted after 1..Depth later packets
	Depth     int     // default 8
	Seed      uint64  // the same seed harms the same packets
}

// Validate checks the ranges of i.
func (i Impair) Validate() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", i.Loss}, {"duplicate", i.Duplicate}, {"reorder", i.Reorder}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("%s %v: want a probability 0..1", p.name, p.v)
		}
	}
	if i.Burst < 0 || i.DropEvery < 0 || i.Depth < 0 {
		return fmt.Errorf("burst %d, drop every %d, reorder depth %d: want none below 0", i.Burst, i.DropEvery, i.Depth)
	}
	return nil
}

// Impairment is a link that harms packets by an Impair. It is pure: what it
// does depends on the seed and the order of packets alone. One goroutine owns
// it.
type Impairment struct {
	cfg   Impair
	rng   *rand.Rand
	seen  uint64
	burst int       // packets of a loss burst still to come
	held  []delayed // in the order they were held
	free  [][]byte
	count ImpairCounters
}

type delayed struct {
	pkt   []byte
	after int // emitted packets to let by
}

// ImpairCounters: Offered = Lost + emitted - Duplicated + waiting.
type ImpairCounters struct {
	Offered, Lost, Duplicated, Reordered uint64
}

// NewImpairment makes a link.
func NewImpairment(cfg Impair) (*Impairment, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Depth == 0 {
		cfg.Depth = 8
	}
	if cfg.Burst == 0 {
		cfg.Burst = 1
	}
	return &Impairment{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6d6f6c6463617374))}, nil
}

// Apply offers a packet. emit is called for each packet that comes out, in
// order; what it is given is valid during the call.
func (m *Impairment) Apply(pkt []byte, emit func([]byte)) {
	m.seen++
	m.count.Offered++
	// Every draw is made for every packet, so that changing one probability
	// does not change the fate of packets under another.
	lose, twice, late := m.rng.Float64(), m.rng.Float64(), m.rng.Float64()
	after := 1 + m.rng.IntN(m.cfg.Depth)
	if m.lost(lose) {
		m.count.Lost++
		return
	}
	if late < m.cfg.Reorder {
		m.count.Reordered++
		m.hold(pkt, after)
	} else {
		emit(pkt)
		m.passed(emit)
	}
	if twice < m.cfg.Duplicate {
		m.count.Duplicated++
		emit(pkt)
		m.passed(emit)
	}
}

func (m *Impairment) lost(draw float64) bool {
	if m.cfg.DropEvery > 0 && m.seen%uint64(m.cfg.DropEvery) == 0 {
		return true
	}
	if m.burst > 0 {
		m.burst--
		return true
	}
	// A burst of n that starts with probability p at each packet outside of
	// one loses the share np/(1+(n-1)p): solved for p.
	n, share := float64(m.cfg.Burst), m.cfg.Loss
	if share < 1 {
		share /= n - (n-1)*share
	}
	if draw < share {
		m.burst = m.cfg.Burst - 1
		return true
	}
	return false
}

func (m *Impairment) hold(pkt []byte, after int) {
	var b []byte
	if n := len(m.free); n > 0 {
		b, m.free = m.free[n-1], m.free[:n-1]
	}
	m.held = append(m.held, delayed{pkt: append(b[:0], pkt...), after: after})
}

// passed lets what is held know that a packet went by. A held packet that
// comes out does not count as one: it can't free others.
func (m *Impairment) passed(emit func([]byte)) {
	kept := m.held[:0]
	for _, d := range m.held {
		if d.after--; d.after > 0 {
			kept = append(kept, d)
			continue
		}
		emit(d.pkt)
		m.free = append(m.free, d.pkt)
	}
	m.held = kept
}

// Flush emits what is held back: the link went quiet.
func (m *Impairment) Flush(emit func([]byte)) {
	for _, d := range m.held {
		emit(d.pkt)
		m.free = append(m.free, d.pkt)
	}
	m.held = m.held[:0]
}

// Waiting is how many packets are held back.
func (m *Impairment) Waiting() int { return len(m.held) }

// Counters is a snapshot.
func (m *Impairment) Counters() ImpairCounters { return m.count }
