package burst

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	binWidth = 10 * time.Millisecond
	maxBins  = 1 << 22
	farthest = moldcast.Stamp(1 << 61)
)

// Planner counts the messages of all packets to be replayed in bins, the first
// of which begins with the earliest stamp. Of spans that reach over several bins
// it reads those on which the answer hangs.
type Planner struct {
	spans []Span
	read  Read
	width int64 // of a bin, ns
	base  int64 // stamp of the first bin
	bins  []uint32
	total uint64
	open  []wide // spans that were not read, by a
}

// wide is a span over the bins from a to b, both with some of it; a < b.
type wide struct {
	span     int
	a, b     int
	messages uint64
}

// NewPlanner takes the spans of all sessions, in any order.
func NewPlanner(spans []Span, read Read) *Planner {
	p := &Planner{spans: spans, read: read, width: int64(binWidth)}
	lo, hi := int64(math.MaxInt64), int64(math.MinInt64)
	for _, x := range spans {
		if x.Messages > 0 {
			lo, hi = min(lo, clamp(x.Min)), max(hi, clamp(x.Max))
			p.total += x.Messages
		}
	}
	if p.total == 0 {
		return p
	}
	for (hi-lo)/p.width >= maxBins {
		p.width *= 2
	}
	p.base = lo
	p.bins = make([]uint32, (hi-lo)/p.width+1)
	for i, x := range spans {
		switch a, b := p.bin(x.Min), p.bin(x.Max); {
		case x.Messages == 0:
		case a == b:
			p.count(a, x.Messages)
		default:
			p.open = append(p.open, wide{i, a, b, x.Messages})
		}
	}
	slices.SortFunc(p.open, func(x, y wide) int { return x.a - y.a })
	return p
}

func clamp(t moldcast.Stamp) int64 { return int64(min(max(t, -farthest), farthest)) } // differences stay in range

func (p *Planner) bin(t moldcast.Stamp) int { return int((clamp(t) - p.base) / p.width) }

func (p *Planner) count(bin int, messages uint64) {
	p.bins[bin] = uint32(min(uint64(p.bins[bin])+messages, math.MaxUint32))
}

// second is a second in bins.
func (p *Planner) second() int { return max(int(int64(Second)/p.width), 1) }

// windows calls fn for each n bins in a row, by the last one, with the least and
// the most messages that they can hold; those at the beginning hold fewer bins.
func (p *Planner) windows(n int, fn func(last int, least, most uint64)) {
	byA, byB := p.open, slices.Clone(p.open)
	slices.SortFunc(byB, func(x, y wide) int { return x.b - y.b })
	// Of spans: which first bins and which last bins the window came to, and
	// which it left behind.
	var inA, inB, outA, outB int
	var sum, some, all uint64
	for last, c := range p.bins {
		first := last - n + 1
		sum += uint64(c)
		if first > 0 {
			sum -= uint64(p.bins[first-1])
		}
		for ; inA < len(byA) && byA[inA].a <= last; inA++ {
			some += byA[inA].messages
		}
		for ; outB < len(byB) && byB[outB].b < first; outB++ {
			some -= byB[outB].messages
		}
		for ; outA < len(byA) && byA[outA].a < first; outA++ {
			if byA[outA].b < last {
				all -= byA[outA].messages
			}
		}
		for ; inB < len(byB) && byB[inB].b <= last; inB++ {
			if byB[inB].a >= first {
				all += byB[inB].messages
			}
		}
		fn(last, sum+all, sum+some)
	}
}

// look reads the spans that lie partly in windows of n bins that may hold
// wanted messages or more.
func (p *Planner) look(n int, wanted uint64) error {
	var lasts [][2]int // of those windows: from, to, inclusive
	p.windows(n, func(last int, _, most uint64) {
		switch k := len(lasts); {
		case most < wanted:
		case k > 0 && lasts[k-1][1] == last-1:
			lasts[k-1][1] = last
		default:
			lasts = append(lasts, [2]int{last, last})
		}
	})
	holds := func(from, to int) bool {
		i := sort.Search(len(lasts), func(i int) bool { return lasts[i][1] >= from })
		return from <= to && i < len(lasts) && lasts[i][0] <= to
	}
	kept := p.open[:0]
	for i, x := range p.open {
		// Windows that end from a to b+n-1 have some of it, from b to a+n-1 all.
		partly := holds(x.a, x.b+n-1)
		if x.b < x.a+n {
			partly = holds(x.a, x.b-1) || holds(x.a+n, x.b+n-1)
		}
		if !partly {
			kept = append(kept, x)
			continue
		}
		ok, err := p.read(x.span, false, func(t moldcast.Stamp, messages, _ int) {
			p.count(min(max(p.bin(t), x.a), x.b), uint64(messages))
		})
		if err != nil {
			p.open = append(kept, p.open[i:]...)
			return err
		}
		if !ok {
			p.total -= x.messages
		}
	}
	p.open = kept
	return nil
}

// Peak is the most messages in a second, 0 where there are none. Errors are
// those of the Read.
func (p *Planner) Peak() (uint64, error) {
	for {
		var peak, most uint64
		p.windows(p.second(), func(_ int, least, may uint64) { peak, most = max(peak, least), max(most, may) })
		if most <= peak {
			return peak, nil
		}
		if err := p.look(p.second(), peak+1); err != nil {
			return 0, err
		}
	}
}

// reaches reports whether n bins in a row hold want messages.
func (p *Planner) reaches(n int, want uint64) (bool, error) {
	for {
		var sure, maybe bool
		p.windows(n, func(_ int, least, most uint64) { sure, maybe = sure || least >= want, maybe || most >= want })
		if sure || !maybe {
			return sure, nil
		}
		if err := p.look(n, want); err != nil {
			return false, err
		}
	}
}

// Plan is how to reach factor times the Peak. Its errors wrap ErrPlan, or are
// those of the Read.
func (p *Planner) Plan(factor float64) (Plan, error) {
	if !(factor >= 1 && factor <= MaxFactor) {
		return Plan{}, fmt.Errorf("%w: factor %v: want 1..%v", ErrPlan, factor, MaxFactor)
	}
	peak, err := p.Peak()
	if err != nil {
		return Plan{}, err
	}
	want := uint64(math.Ceil(factor * float64(peak)))
	low, high := 0, len(p.bins) // high bins are enough, low are not
	for high-low > 1 && want <= p.total {
		mid := low + (high-low)/2
		enough, err := p.reaches(mid, want)
		if err != nil {
			return Plan{}, err
		}
		if enough {
			high = mid
		} else {
			low = mid
		}
	}
	if want > p.total { // in the end: spans that can't be read count no more
		return Plan{}, fmt.Errorf("%w: the busiest second has %d of %d messages: want a factor of at most %.4g", ErrPlan, peak, p.total, math.Floor(1000*float64(p.total)/float64(max(peak, 1)))/1000)
	}
	return Plan{Factor: factor, Speedup: max(factor, float64(high)/float64(p.second()))}, nil
}
