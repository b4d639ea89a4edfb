package burst

import (
	"cmp"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Span is what is known of packets in a row without a look at each.
type Span struct {
	Min, Max moldcast.Stamp // of their stamps
	Messages uint64

	Packets, Bytes uint64 // both 0 where that is not known
}

// Read gives the packets of a span, in their order; bytes of messages only
// where they are wanted, else 0. It is false where they can't be read: they are
// then left out, as if the span were not there. An error ends the search.
type Read func(span int, bytes bool, each func(t moldcast.Stamp, messages, bytes int)) (ok bool, err error)

// firstLook is how many of n spans, those that may hold most, and of them the
// shortest, are read first, to learn how many messages there must be in a window
// for it to be among the busiest.
func firstLook(n int) int { return min(max(n/32, 4), 32) }

// FindPeaks is what NewPeaks, one for each of the lengths, would find of the
// packets of spans in a row. It reads only spans with windows that may be among
// the busiest, and those at their ends.
func FindPeaks(spans []Span, lengths []time.Duration, most int, read Read) ([][]Window, error) {
	s := &search{spans: slices.Clone(spans), read: read}
	for i := range spans {
		s.names = append(s.names, i)
	}
	for {
		s.place()
		out, err := s.find(lengths, most)
		if err == nil && !s.lost {
			for k := range out {
				if err := s.describe(out[k], moldcast.Stamp(lengths[k])); err != nil {
					return nil, err
				}
			}
		}
		if err != nil || !s.lost {
			return out, err
		}
	}
}

// search is of spans of which some are read.
type search struct {
	spans []Span
	names []int // of spans, for read
	read  Read
	lost  bool // some could not be read: they are empty now, and all is to be done again

	// Where stamps below an earlier one count as that, each span lies in
	// [lo, hi], in order.
	lo, hi []moldcast.Stamp

	packets []Window // each alone, of the span that is read
}

func (s *search) place() {
	s.lost = false
	n := 0
	for i, x := range s.spans {
		if x.Messages > 0 {
			s.spans[n], s.names[n] = x, s.names[i]
			n++
		}
	}
	s.spans, s.names = s.spans[:n], s.names[:n]
	s.lo, s.hi = s.lo[:0], s.hi[:0]
	for i, x := range s.spans {
		lo, hi := x.Min, x.Max
		if i > 0 {
			lo, hi = max(lo, s.hi[i-1]), max(hi, s.hi[i-1])
		}
		s.lo, s.hi = append(s.lo, lo), append(s.hi, hi)
	}
}

// each reads span i.
func (s *search) each(i int, bytes bool, fn func(t moldcast.Stamp, messages, bytes int)) error {
	ok, err := s.read(s.names[i], bytes, fn)
	if err == nil && !ok {
		s.spans[i], s.lost = Span{}, true
	}
	return err
}

// look is the search for the windows of one length.
type look struct {
	length moldcast.Stamp
	bounds []uint64 // by span: the most messages of a window that begins in it
	ranked []uint64 // bounds, the greatest first
	first  []bool   // spans of the first look; nil in those that follow
	least  uint64   // windows of fewer are none
	rounds int
	found  []Window // enough; nil: not yet
	peaks  *Peaks   // of the round
}

func (s *search) find(lengths []time.Duration, most int) ([][]Window, error) {
	looks := make([]*look, len(lengths))
	for k, d := range lengths {
		l := &look{length: moldcast.Stamp(d)}
		l.bounds = s.bounds(l.length)
		s.lookFirst(l)
		looks[k] = l
	}
	for {
		var open []*look
		for _, l := range looks {
			if l.found == nil {
				l.peaks = NewPeaks(time.Duration(l.length), most)
				open = append(open, l)
			}
		}
		if len(open) == 0 {
			break
		}
		if err := s.round(open); err != nil || s.lost {
			return nil, err
		}
		for _, l := range open {
			l.judge(l.peaks.Done(), most)
		}
	}
	out := make([][]Window, len(looks))
	for k, l := range looks {
		out[k] = l.found
	}
	return out, nil
}

// judge takes what a round has found. Windows of fewer messages than least play
// no part in which of the others are found, so what there is of those is final.
// Where it is too little the next round looks for windows of fewer: of as many
// as the worst of most windows has that are known.
func (l *look) judge(found []Window, most int) {
	n, _ := slices.BinarySearchFunc(found, l.least, func(w Window, least uint64) int {
		if w.Messages >= least {
			return -1
		}
		return 1
	})
	if n == most || l.least <= 1 {
		l.found = append([]Window{}, found[:n]...)
		return
	}
	l.first = nil
	l.rounds++
	switch {
	case len(found) < most:
		l.least = 0
		if n := firstLook(len(l.ranked)) << (2 * l.rounds); n < len(l.ranked) {
			l.least = l.ranked[n]
		}
	case l.rounds > 2: // it falls too slowly
		l.least = min(found[most-1].Messages, l.least/2)
	default:
		l.least = min(found[most-1].Messages, l.least)
	}
}

// lookFirst chooses the spans of the first look.
func (s *search) lookFirst(l *look) {
	order := make([]int, len(s.spans))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(-cmp.Compare(l.bounds[a], l.bounds[b]), cmp.Compare(apart(s.lo[a], s.hi[a]), apart(s.lo[b], s.hi[b])))
	})
	n := firstLook(len(order))
	if len(order) <= n {
		return // at all of them, once
	}
	l.first = make([]bool, len(s.spans))
	for _, i := range order[:n] {
		l.first[i] = true
	}
	l.least = l.bounds[order[n]] + 1
	for _, i := range order {
		l.ranked = append(l.ranked, l.bounds[i])
	}
}

// begins reports whether windows that begin in span i are looked for.
func (l *look) begins(i int) bool {
	if l.first != nil {
		return l.first[i]
	}
	return l.bounds[i] >= l.least
}

// bounds is for each span the messages of all spans of which any may lie in
// a window that begins in it.
func (s *search) bounds(length moldcast.Stamp) []uint64 {
	out := make([]uint64, len(s.spans))
	var sum uint64
	end := 0
	for i := range s.spans {
		for end < len(s.spans) && (end <= i || apart(s.hi[i], s.lo[end]) < uint64(length)) {
			sum += s.spans[end].Messages
			end++
		}
		out[i] = sum
		sum -= s.spans[i].Messages
	}
	return out
}

// apart is how much later b is than a, which is no later.
func apart(a, b moldcast.Stamp) uint64 { return uint64(b) - uint64(a) }

// round gives the windows that begin in spans that may hold enough to the
// peaks of looks; or all windows, where it must read most spans for them.
func (s *search) round(looks []*look) error {
	needed := make([]bool, len(s.spans))
	count := 0
	for _, l := range looks {
		count += s.mark(needed, l)
	}
	if count > len(s.spans)/2 {
		for _, l := range looks {
			l.least, l.first = 0, nil
			s.mark(needed, l)
		}
	}
	for i, x := range s.spans {
		if !needed[i] {
			for _, l := range looks {
				l.peaks.add(s.lo[i], s.hi[i], &Window{Packets: 1, Messages: x.Messages}, s.lo[i] == s.hi[i] && l.begins(i))
			}
			continue
		}
		s.packets = s.packets[:0]
		err := s.each(i, false, func(t moldcast.Stamp, messages, _ int) {
			s.packets = append(s.packets, Window{From: t, Packets: 1, Messages: uint64(messages)})
		})
		if err != nil {
			return err
		}
		for _, l := range looks {
			begins := l.begins(i)
			for k := range s.packets {
				p := &s.packets[k]
				l.peaks.add(p.From, p.From, p, begins)
			}
		}
	}
	return nil
}

// mark marks the spans that must be read for l, and answers with how many it
// has marked.
func (s *search) mark(needed []bool, l *look) (count int) {
	mark := func(i int) {
		if !needed[i] && s.lo[i] != s.hi[i] {
			needed[i] = true
			count++
		}
	}
	first, until := 0, 0 // spans from first on may reach over the end of the window; until: they are marked
	for i := range s.spans {
		if !l.begins(i) {
			continue
		}
		mark(i)
		for first < len(s.spans) && (first <= i || apart(s.lo[i], s.hi[first]) < uint64(l.length)) {
			first++
		}
		for until = max(until, first); until < len(s.spans) && apart(s.hi[i], s.lo[until]) < uint64(l.length); until++ {
			mark(until)
		}
	}
	return count
}

// describe counts the packets and bytes of windows.
func (s *search) describe(windows []Window, length moldcast.Stamp) error {
	for k := range windows {
		w := &windows[k]
		w.Packets, w.Bytes = 0, 0
		i, _ := slices.BinarySearchFunc(s.hi, w.From, func(hi, from moldcast.Stamp) int {
			if hi < from {
				return -1
			}
			return 1
		})
		for ; i < len(s.spans) && (s.lo[i] <= w.From || apart(w.From, s.lo[i]) < uint64(length)); i++ {
			x := s.spans[i]
			if x.Packets > 0 && s.lo[i] >= w.From && apart(w.From, s.hi[i]) < uint64(length) {
				w.Packets += x.Packets
				w.Bytes += x.Bytes
				continue
			}
			top := s.lo[i]
			err := s.each(i, true, func(t moldcast.Stamp, _, bytes int) {
				top = max(top, t)
				if top >= w.From && apart(w.From, top) < uint64(length) {
					w.Packets++
					w.Bytes += uint64(bytes)
				}
			})
			if err != nil || s.lost {
				return err
			}
		}
	}
	return nil
}
