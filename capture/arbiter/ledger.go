package arbiter

import (
	"math/bits"
	"sort"

	"github.com/moldtape/moldtape/moldcast"
)

// point is a message that is held, and its time. seq 0: none.
type point struct {
	seq  moldcast.Seq
	time moldcast.Stamp
}

// missing is a range that lies between First and Head of a session and is not
// held, with the nearest messages on both sides whose times are known: those
// around it, of whatever origin, so that what fills it lies between them.
type missing struct {
	moldcast.Range
	lo, hi point
}

// at is the time of a repaired message seq of g: interpolated by sequence
// between the neighbours; with one neighbour only its time, with none heard.
func (g *missing) at(seq moldcast.Seq, heard moldcast.Stamp) moldcast.Stamp {
	switch {
	case g.lo.seq == 0 && g.hi.seq == 0:
		return heard
	case g.lo.seq == 0:
		return g.hi.time
	case g.hi.seq == 0:
		return g.lo.time
	}
	// The clock may have been set back between the two.
	from, to, sign := g.lo.time, g.hi.time, moldcast.Stamp(1)
	if to < from {
		from, to, sign = to, from, -1
	}
	hi, lo := bits.Mul64(uint64(to)-uint64(from), uint64(seq-g.lo.seq))
	d, _ := bits.Div64(hi, lo, uint64(g.hi.seq-g.lo.seq)) // seq < g.hi.seq: the quotient fits
	return g.lo.time + sign*moldcast.Stamp(d)
}

// time is that of a repaired message seq, which was heard then.
func (l *ledger) time(seq moldcast.Seq, heard moldcast.Stamp) moldcast.Stamp {
	if i := l.find(seq); i < len(l.gaps) && l.gaps[i].Contains(seq) {
		return l.gaps[i].at(seq, heard)
	}
	return heard
}

// ledger is everything that is missing of a session: maximal ranges, sorted.
// It mirrors the gap machine, which knows when to ask, with what the machine
// does not know: the times around each range. What the machine evicts from a
// full table goes from here when prune comes by.
type ledger struct {
	gaps   []missing // base[front:]
	base   []missing
	front  int   // room there, so that the front is as cheap to change as the back
	top    point // the highest message held
	bottom point // the lowest
}

// find is the position of the range that holds seq, or of the first above it.
func (l *ledger) find(seq moldcast.Seq) int {
	return sort.Search(len(l.gaps), func(i int) bool { return seq < l.gaps[i].Next })
}

// open adds r, which begins at the head: nothing above was heard yet.
func (l *ledger) open(r moldcast.Range) {
	if n := len(l.gaps); n > 0 && l.gaps[n-1].Next == r.First {
		l.gaps[n-1].Next = r.Next
		return
	}
	l.push(missing{Range: r, lo: l.top})
}

// extend adds [first, old), where old was the lowest sequence wanted.
func (l *ledger) extend(first, old moldcast.Seq) {
	if len(l.gaps) > 0 && l.gaps[0].First == old {
		l.gaps[0].First = first
		return
	}
	l.insert(0, missing{Range: moldcast.Range{First: first, Next: old}, hi: l.bottom})
}

// hold adds a range as an archive tells it; in order of sequence.
func (l *ledger) hold(h moldcast.Hole) {
	g := missing{Range: h.Range}
	if h.Before != 0 {
		g.lo = point{h.Range.First - 1, h.Before}
	}
	if h.After != 0 {
		g.hi = point{h.Range.Next, h.After}
	}
	l.push(g)
}

// heard takes note of a live r at or beyond everything so far.
func (l *ledger) heard(r moldcast.Range, t moldcast.Stamp) {
	for i := len(l.gaps) - 1; i >= 0 && l.gaps[i].hi.seq == 0; i-- {
		l.gaps[i].hi = point{r.First, t}
	}
	l.top = point{r.Next - 1, t}
	if l.bottom.seq == 0 {
		l.bottom = point{r.First, t}
	}
}

// fill removes r, whose first and last messages are of those times. It becomes
// the neighbour of what is missing around it.
func (l *ledger) fill(r moldcast.Range, first, last moldcast.Stamp) {
	i := l.find(r.First)
	j := i
	for j < len(l.gaps) && l.gaps[j].First < r.Next {
		j++
	}
	if i < j {
		below, above := l.gaps[i], l.gaps[j-1]
		below.Next, above.First = r.First, r.Next
		switch {
		case below.Empty() && above.Empty():
			l.remove(i, j)
		case below.Empty():
			l.gaps[j-1] = above
			l.remove(i, j-1)
		case above.Empty():
			l.gaps[i] = below
			l.remove(i+1, j)
		case j-i > 1:
			l.gaps[i], l.gaps[j-1] = below, above
			l.remove(i+1, j-1)
		default:
			l.gaps[i] = below
			l.insert(i+1, above)
		}
	}
	// Not only what is left of g: ranges farther away may have had no nearer
	// neighbour either.
	for j := l.find(r.Next); j < len(l.gaps) && l.gaps[j].lo.seq < r.First; j++ {
		l.gaps[j].lo = point{r.Next - 1, last}
	}
	for j := l.find(r.First) - 1; j >= 0; j-- {
		if hi := l.gaps[j].hi.seq; hi != 0 && hi < r.Next {
			break
		}
		l.gaps[j].hi = point{r.First, first}
	}
	if r.Next-1 > l.top.seq {
		l.top = point{r.Next - 1, last}
	}
	if l.bottom.seq == 0 || r.First < l.bottom.seq {
		l.bottom = point{r.First, first}
	}
}

// set puts gaps in place of what was there.
func (l *ledger) set(gaps []missing) { l.gaps, l.base, l.front = gaps, gaps, 0 }

func (l *ledger) push(g missing) {
	if len(l.base) == cap(l.base) && l.front > len(l.gaps) {
		l.base = l.base[:copy(l.base, l.gaps)]
		l.front = 0
	}
	l.base = append(l.base, g)
	l.gaps = l.base[l.front:]
}

// insert puts g at i; what lies between i and the nearer end is moved.
func (l *ledger) insert(i int, g missing) {
	n := len(l.gaps)
	if i >= n-i {
		l.push(missing{})
		copy(l.gaps[i+1:], l.gaps[i:n])
		l.gaps[i] = g
		return
	}
	if l.front == 0 {
		front := n/2 + 8
		base := make([]missing, front+n, front+n+n/2)
		copy(base[front:], l.gaps)
		l.base, l.front = base, front
	}
	l.front--
	l.gaps = l.base[l.front:]
	copy(l.gaps, l.gaps[1:i+1])
	l.gaps[i] = g
}

// remove takes out [i, j), likewise.
func (l *ledger) remove(i, j int) {
	n := len(l.gaps)
	if i < n-j {
		copy(l.gaps[j-i:], l.gaps[:i])
		l.front += j - i
		l.gaps = l.base[l.front:]
		return
	}
	l.base = l.base[:l.front+i+copy(l.gaps[i:], l.gaps[j:])]
	l.gaps = l.base[l.front:]
}

// cut drops everything at or above head.
func (l *ledger) cut(head moldcast.Seq) {
	i := l.find(head)
	if i < len(l.gaps) && l.gaps[i].First < head {
		l.gaps[i].Next = head
		i++
	}
	if i < len(l.gaps) {
		l.remove(i, len(l.gaps))
	}
}

// keep drops what is not in ranges, which are sorted.
func (l *ledger) keep(ranges []moldcast.Range) {
	kept := make([]missing, 0, len(ranges))
	for _, r := range ranges {
		i := l.find(r.First)
		if i == len(l.gaps) || !l.gaps[i].Contains(r.First) {
			continue
		}
		g := l.gaps[i]
		g.Range = r
		if n := len(kept); n > 0 && kept[n-1].Next == r.First {
			kept[n-1].Next = r.Next
			continue
		}
		kept = append(kept, g)
	}
	l.set(kept)
}
