package burst

import (
	"cmp"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Window is what came in a window of a length.
type Window struct {
	From                     moldcast.Stamp // of its first packet
	Packets, Messages, Bytes uint64
}

// busier orders the busiest first, of equal ones the earliest.
func busier(a, b Window) int {
	return cmp.Or(-cmp.Compare(a.Messages, b.Messages), cmp.Compare(a.From, b.From))
}

// Peaks finds the busiest windows of one length. Its memory is that of the
// packets of one window.
type Peaks struct {
	length moldcast.Stamp
	most   int

	open []Window // one a stamp, in the window that ends at the newest; sums are of one stamp
	from int      // of open: what is before it is gone
	sum  Window   // of open

	best  Window   // of those that overlap it
	found []Window // the busiest first, at most most
}

// NewPeaks finds the most busiest windows of length, both above 0.
func NewPeaks(length time.Duration, most int) *Peaks {
	return &Peaks{length: moldcast.Stamp(length), most: most}
}

// Add takes the next packet.
func (p *Peaks) Add(t moldcast.Stamp, messages, bytes int) {
	if n := len(p.open); n == p.from || t > p.open[n-1].From {
		p.until(t)
		p.open = append(p.open, Window{From: t})
	}
	for _, w := range []*Window{&p.open[len(p.open)-1], &p.sum} {
		w.Packets++
		w.Messages += uint64(messages)
		w.Bytes += uint64(bytes)
	}
}

// until closes the windows that end at t or before.
func (p *Peaks) until(t moldcast.Stamp) {
	for p.from < len(p.open) && uint64(t)-uint64(p.open[p.from].From) >= uint64(p.length) {
		p.shift()
	}
	if p.from > len(p.open)/2 {
		p.open = p.open[:copy(p.open, p.open[p.from:])]
		p.from = 0
	}
}

// shift closes the window that begins with the oldest stamp.
func (p *Peaks) shift() {
	first := p.open[p.from]
	w := p.sum
	w.From = first.From
	switch {
	case p.best.Packets == 0:
		p.best = w
	case uint64(w.From)-uint64(p.best.From) >= uint64(p.length):
		p.keep()
		p.best = w
	case w.Messages > p.best.Messages:
		p.best = w
	}
	p.sum.Packets -= first.Packets
	p.sum.Messages -= first.Messages
	p.sum.Bytes -= first.Bytes
	p.from++
}

func (p *Peaks) keep() {
	i, _ := slices.BinarySearchFunc(p.found, p.best, busier)
	if i < p.most {
		p.found = slices.Insert(p.found, i, p.best)
		p.found = p.found[:min(len(p.found), p.most)]
	}
}

// Done is the busiest windows, the busiest first. Nothing may be added after.
func (p *Peaks) Done() []Window {
	for p.from < len(p.open) {
		p.shift()
	}
	if p.best.Packets > 0 {
		p.keep()
		p.best = Window{}
	}
	return p.found
}
