package block

import (
	"cmp"
	"slices"
)

// The part of a learner that finds keys: fields by which a message repeats
// what another one says.

// keyWay is a way to look for another message: by the field at at of n bytes,
// as the messages of from have it at theirs.
type keyWay struct {
	at, n    int
	any      bool    // all messages that are long enough have it there; else those of the same shape
	shape    int     // only: those of this shape (position in shapes), -1 else
	from     int     // where they have it
	previous []int32 // for each message: where the one begins that is found, -1: none
	table    int     // in Plans, once it is used; -1
}

// newest is the newest message by key. A key may push out another.
type newest struct {
	keys []uint64
	at   []int32 // message + 1; 0: none
	n    int     // keys that were put
}

const newestBits = 15

func newNewest() *newest {
	return &newest{keys: make([]uint64, 1<<newestBits), at: make([]int32, 1<<newestBits)}
}

func (n *newest) reset() { clear(n.at); n.n = 0 }

func (n *newest) find(key uint64) int32 {
	k := key * hashMult >> (64 - newestBits)
	if n.keys[k] != key {
		return -1
	}
	return n.at[k] - 1
}

func (n *newest) put(key uint64, i int32) {
	k := key * hashMult >> (64 - newestBits)
	if n.at[k] == 0 || n.keys[k] != key {
		n.n++
	}
	n.keys[k], n.at[k] = key, i+1
}

// findKeys finds fields by which messages repeat others'.
func (l *learner) findKeys(order []int) {
	widest := 0
	for _, i := range order {
		widest = max(widest, l.shapes[i].width)
	}
	seen := newNewest()
	for _, n := range [3]int{2, 4, 8} {
		for at := 1; at+n <= widest && !l.stop(); at++ {
			for _, any := range [2]bool{true, false} {
				seen.reset()
				w := &keyWay{at: at, n: n, any: any, shape: -1, from: at, table: -1, previous: make([]int32, len(l.at))}
				hits := 0
				for i := range l.at {
					w.previous[i] = -1
					k := l.of[i]
					if k == 255 || at+n > l.shapes[k].width {
						continue
					}
					v := load(l.b, int(l.at[i])+at, n, false)
					if !any {
						v = v*hashMult + uint64(k) // of its shape alone
					}
					if j := seen.find(v); j >= 0 {
						w.previous[i] = l.at[j]
						hits++
					}
					seen.put(v, int32(i))
				}
				if seen.n > 2*len(order) && hits > len(l.at)/20 {
					l.keys = append(l.keys, w)
				}
			}
		}
	}
	l.findReferences(order, seen)
}

// findReferences finds fields that repeat one of another shape elsewhere: of
// numbers that are given to one message each.
func (l *learner) findReferences(order []int, seen *newest) {
	var more [][5]int
	for _, k := range order {
		from := &l.shapes[k]
		for _, n := range [2]int{8, 4} {
			for fa := 1; fa+n <= from.width; fa++ {
				seen.reset()
				for _, i := range from.rows {
					seen.put(load(l.b, int(l.at[i])+fa, n, false), i)
				}
				if seen.n < len(from.rows)*9/10 {
					continue
				}
				for _, j := range order {
					to := &l.shapes[j]
					for at := 1; at+n <= to.width; at++ {
						if at == fa {
							continue // the same field
						}
						step, hit, all := max(len(to.rows)/64, 1), 0, 0
						for r := 0; r < len(to.rows); r += step {
							if seen.find(load(l.b, int(l.at[to.rows[r]])+at, n, false)) >= 0 {
								hit++
							}
							all++
						}
						if hit*8 > all {
							more = append(more, [5]int{k, fa, j, at, n})
						}
					}
				}
			}
		}
	}
	for _, m := range more {
		l.keys = append(l.keys, l.reference(m[0], m[1], m[2], m[3], m[4], seen))
	}
}

func (l *learner) reference(k, fa, j, at, n int, seen *newest) *keyWay {
	w := &keyWay{at: at, n: n, shape: k, from: fa, table: -1, previous: make([]int32, len(l.at))}
	seen.reset()
	for i := range l.at {
		w.previous[i] = -1
		if int(l.of[i]) == j {
			if p := seen.find(load(l.b, int(l.at[i])+at, n, false)); p >= 0 {
				w.previous[i] = l.at[p]
			}
		}
		if int(l.of[i]) == k {
			seen.put(load(l.b, int(l.at[i])+fa, n, false), int32(i))
		}
	}
	return w
}

// keyed is a key with the steps that it makes possible.
type keyed struct {
	way   *keyWay
	steps []candidate
	gain  float64
}

// tryKey is what a key saves, beside what is there; roughly, unless it is
// looked at closely.
func (l *learner) tryKey(x *learnShape, w *keyWay, numbers []candidate, taken []bool, closely bool) (out keyed) {
	n := float64(len(x.rows))
	out.way = w
	if w.at+w.n > x.width {
		return out
	}
	others := l.others(x, w)
	hits := 0
	for _, j := range others {
		if j >= 0 {
			hits++
		}
	}
	if hits < len(x.rows)/10 {
		return out
	}
	free := func(at, n int) bool {
		return (at >= w.at+w.n || at+n <= w.at) && !slices.Contains(taken[at:at+n], true)
	}
	cost, costOf := x.cost, func(s step) float64 { return l.costOf(x, &s, others, 1) }
	if !closely {
		cost, costOf = x.rough, func(s step) float64 { return l.glance(x, &s, others) }
	}
	// Byte by byte.
	single := make([]candidate, x.width)
	shift := 0
	for at := 1; at < x.width; at++ {
		if !free(at, 1) || cost[at] < n*0.05 {
			continue
		}
		s := step{kind: stepKey, at: uint8(at), n: 1, from: uint8(at)}
		if w.shape >= 0 {
			f := l.whence(x, w, others, at, shift)
			if f < 0 {
				continue
			}
			shift = f - at
			s.from = uint8(f)
		}
		if g := cost[at] - costOf(s); g > n*0.03 {
			single[at] = candidate{s, w, g}
		}
	}
	number := func(at, width int) (best candidate) {
		before := 0.0
		for j := at; j < at+width; j++ {
			before += cost[j]
		}
		for _, little := range [2]bool{false, true} {
			s := step{kind: stepKey, at: uint8(at), n: uint8(width), from: uint8(at), little: little}
			if w.shape >= 0 {
				f := at + shift
				if single[at].gain > 0 {
					f = int(single[at].s.from)
				}
				if f < 1 || f+width > l.shapes[w.shape].width {
					continue
				}
				s.from = uint8(f)
			}
			if g := before - costOf(s); g > best.gain {
				best = candidate{s, w, g}
			}
		}
		return best
	}
	// A number that is foretold otherwise is worth it only as a whole.
	inNumber := make([]bool, x.width)
	for _, c := range numbers {
		at, width := int(c.s.at), int(c.s.n)
		for j := at; j < at+width; j++ {
			inNumber[j] = true
		}
		if !free(at, width) {
			continue
		}
		bytes := 0.0
		for j := at; j < at+width; j++ {
			bytes += single[j].gain
		}
		whole := candidate{}
		if closely {
			whole = number(at, width)
		}
		has := c.gain
		if !closely {
			has *= 0.9
		}
		switch {
		case whole.gain > bytes && whole.gain > has+n*0.1:
			out.steps, out.gain = append(out.steps, whole), out.gain+whole.gain-c.gain
		case bytes > has+n*0.1:
			for j := at; j < at+width; j++ {
				if single[j].gain > 0 {
					out.steps = append(out.steps, single[j])
				}
			}
			out.gain += bytes - c.gain
		}
	}
	var all []candidate
	for at := 1; at < x.width; at++ {
		if !inNumber[at] && single[at].gain > 0 {
			all = append(all, single[at])
		}
	}
	for _, width := range [3]int{8, 4, 2} {
		for at := 1; at+width <= x.width && closely; at++ {
			bytes, before := 0.0, 0.0
			for j := at; j < at+width; j++ {
				bytes, before = bytes+single[j].gain, before+cost[j]
			}
			if before < n*0.7 || !free(at, width) || slices.Contains(inNumber[at:at+width], true) {
				continue
			}
			// What single bytes save counts against it.
			if c := number(at, width); c.gain > bytes+n*0.1 {
				all = append(all, c)
			}
		}
	}
	for _, c := range l.pick(all, slices.Clone(cost)) {
		out.steps, out.gain = append(out.steps, c), out.gain+c.gain
	}
	return out
}

// whence is the byte of the message found that most often equals that at at;
// among several the one as far away as shift; -1: none does.
func (l *learner) whence(x *learnShape, w *keyWay, others []int32, at, shift int) int {
	var equal [maxRow]int
	found := 0
	width := l.shapes[w.shape].width
	for r, i := range x.rows {
		if j := others[r]; j >= 0 {
			found++
			m, v := l.b[j:], l.b[int(l.at[i])+at]
			for k := 1; k < width; k++ {
				if m[k] == v {
					equal[k]++
				}
			}
		}
	}
	best := -1
	for k := 1; k < width; k++ {
		if best < 0 || equal[k] > equal[best] || equal[k] == equal[best] && k == at+shift {
			best = k
		}
	}
	// Where it is as good as the best nearly, what lies in line is meant.
	if k := at + shift; best >= 0 && k > 0 && k < width && equal[k]*20 >= equal[best]*19 {
		best = k
	}
	if best < 0 || equal[best]*2 < found {
		return -1
	}
	return best
}

// chooseKeys takes the keys that save most, one after the other.
func (l *learner) chooseKeys(x *learnShape, numbers []candidate) (out []keyed) {
	n := float64(len(x.rows))
	taken := make([]bool, x.width) // by a key's steps, or as a key
	for len(out) < learnKeys {
		var promising []keyed
		for _, w := range l.keys {
			if k := l.tryKey(x, w, numbers, taken, false); k.gain > n*0.2 {
				promising = append(promising, k)
			}
		}
		slices.SortStableFunc(promising, func(a, b keyed) int { return cmp.Compare(b.gain, a.gain) })
		best := keyed{gain: n * 0.25}
		for _, k := range promising[:min(len(promising), learnClose)] {
			if k = l.tryKey(x, k.way, numbers, taken, true); k.gain > best.gain {
				best = k
			}
		}
		if best.way == nil {
			break
		}
		out = append(out, best)
		take := func(at, n int) {
			for j := at; j < at+n; j++ {
				taken[j] = true
			}
		}
		for _, c := range best.steps {
			take(int(c.s.at), int(c.s.n))
		}
		take(best.way.at, best.way.n)
		// A number of which bytes are taken is one no longer.
		numbers = slices.DeleteFunc(slices.Clone(numbers), func(c candidate) bool {
			lost := slices.ContainsFunc(best.steps, func(b candidate) bool {
				return b.s.at < c.s.at+c.s.n && b.s.at+b.s.n > c.s.at
			})
			if lost {
				take(int(c.s.at), int(c.s.n))
			}
			return lost
		})
	}
	return out
}

// table is the table in which w looks for messages; whose fields it holds is
// put into their plans.
func (l *learner) table(p *Plans, k int, x *learnShape, w *keyWay) (uint8, bool) {
	if w.table >= 0 && (w.any || w.shape >= 0) {
		return uint8(w.table), true
	}
	if len(p.widths) == maxTables {
		return 0, false
	}
	t := uint8(len(p.widths))
	p.widths = append(p.widths, uint8(w.n))
	w.table = int(t)
	feeds := func(k int, at int) {
		if len(p.plans[k].feeds) < maxFeeds {
			p.plans[k].feeds = append(p.plans[k].feeds, feed{t, uint8(at)})
		}
	}
	switch {
	case w.shape >= 0:
		feeds(l.position[w.shape], w.from)
	case w.any:
		for k := range p.plans {
			if w.at+w.n <= p.plans[k].shape.width() {
				feeds(k, w.at)
			}
		}
	default:
		feeds(k, w.at)
	}
	return t, true
}
