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

	open   []entry // in the window that ends at the newest
	from   int     // of open: what is before it is gone
	sum    Window  // of open
	newest moldcast.Stamp
	some   bool // there is a newest

	best  Window   // of those that overlap it
	found []Window // the busiest first, at most most
}

// entry is packets in a row: of one stamp, or of stamps up to to. A window
// begins with it where begins is set, which is then of one stamp.
type entry struct {
	Window
	to     moldcast.Stamp
	begins bool
}

// NewPeaks finds the most busiest windows of length, both above 0.
func NewPeaks(length time.Duration, most int) *Peaks {
	return &Peaks{length: moldcast.Stamp(length), most: most}
}

// Add takes the next packet.
func (p *Peaks) Add(t moldcast.Stamp, messages, bytes int) {
	p.add(t, t, &Window{Packets: 1, Messages: uint64(messages), Bytes: uint64(bytes)}, true)
}

// add takes the next packets, stamped from lo to hi. A window that begins with
// them is looked for where begins is set. Those that begin before them must hold
// all of them or none.
func (p *Peaks) add(lo, hi moldcast.Stamp, w *Window, begins bool) {
	if p.some {
		lo, hi = max(lo, p.newest), max(hi, p.newest)
	}
	p.some, p.newest = true, hi
	n := len(p.open)
	if n == p.from || p.open[n-1].From != lo || p.open[n-1].to != hi {
		p.until(lo)
		p.open = append(p.open, entry{Window: Window{From: lo}, to: hi, begins: begins})
	}
	p.open[len(p.open)-1].plus(w)
	p.sum.plus(w)
}

func (w *Window) plus(x *Window) {
	w.Packets += x.Packets
	w.Messages += x.Messages
	w.Bytes += x.Bytes
}

// until closes the windows that end at t or before.
func (p *Peaks) until(t moldcast.Stamp) {
	for p.from < len(p.open) && (!p.open[p.from].begins || apart(p.open[p.from].From, t) >= uint64(p.length)) {
		p.shift()
	}
	if p.from > len(p.open)/2 {
		p.open = p.open[:copy(p.open, p.open[p.from:])]
		p.from = 0
	}
}

// shift closes the window that begins with the oldest entry.
func (p *Peaks) shift() {
	first := p.open[p.from]
	w := p.sum
	w.From = first.From
	switch {
	case !first.begins:
	case p.best.Packets == 0:
		p.best = w
	case apart(p.best.From, w.From) >= uint64(p.length):
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
