package block

import (
	"cmp"
	"math"
	"slices"
)

// What a learner looks at, and what it asks for.
const (
	learnRows   = 1024 // messages of a shape, and up to twice as many
	learnGlance = 200  // of those, to see whether more is worth while
	learnClose  = 6    // keys that are looked at closely
	leastLearn  = 48   // fewer tell nothing
	learnKeys   = 2    // lookups of a shape
)

// Learn finds out what the messages of b are best foretold by. What old, which
// may be nil, knows of shapes that b shows little of is kept. It takes some
// 100 ms, and is for a goroutine that nothing waits for.
func Learn(old *Plans, b *Block) *Plans {
	return LearnUntil(func() bool { return false }, old, b)
}

// LearnUntil is Learn that ends soon after stop says so, with nil.
func LearnUntil(stop func() bool, old *Plans, b *Block) *Plans {
	p := learn(stop, old, b.rows)
	if p != nil {
		p.clocks = learnClocks(b)
	}
	return p
}

func learn(stop func() bool, old *Plans, rows []byte) *Plans {
	l := newLearner(rows)
	l.stop = stop
	l.numbers = make([]float64, 4097)
	for i := 1; i < len(l.numbers); i++ {
		l.numbers[i] = float64(i) * math.Log2(float64(i))
	}
	// The shapes that matter most come first.
	order := make([]int, 0, len(l.shapes))
	for i := range l.shapes {
		if len(l.shapes[i].all) >= leastLearn {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return len(l.shapes[b].all)*l.shapes[b].width - len(l.shapes[a].all)*l.shapes[a].width
	})
	if len(order) > 48 {
		order = order[:48]
	}
	l.findKeys(order)
	p := &Plans{at: map[shapeOf]int{}}
	for _, i := range order {
		p.at[l.shapes[i].shape] = len(p.plans)
		p.plans = append(p.plans, plan{shape: l.shapes[i].shape})
	}
	l.position = make([]int, len(l.shapes))
	for i := range l.position {
		l.position[i] = -1
		if k, ok := p.at[l.shapes[i].shape]; ok {
			l.position[i] = k
		}
	}
	l.order = order
	for k, i := range order {
		if stop() {
			return nil
		}
		l.steps(p, k, &l.shapes[i])
	}
	l.splits(p, rows)
	p.keep(old)
	return p
}

// learner looks at one part.
type learner struct {
	stop    func() bool
	b       []byte
	at      []int32 // where each message begins
	of      []uint8 // its shape: position in shapes; 255: none
	shapes  []learnShape
	order   []int
	numbers []float64 // i*log2(i)
	keys    []*keyWay

	hist [8][256]int32

	position []int // of shapes in Plans, -1: none
}

type learnShape struct {
	shape shapeOf
	width int
	all   []int32   // its messages: positions in at
	rows  []int32   // those that are looked at, from all over the part
	own   []int32   // for each of these: where the message of its shape before begins, -1: none
	any   []int32   // … and the message before
	cost  []float64 // of each byte, foretold by how
	rough []float64 // … at a glance
	how   []uint8
}

func newLearner(rows []byte) *learner {
	l := &learner{b: rows}
	ids := map[shapeOf]uint8{}
	for at := 0; at < min(len(rows), 128<<10) && len(l.at) < partMessages; {
		n := frame(rows, at) - 2
		at += 2
		id := uint8(255)
		if n > 0 && n <= maxRow {
			s := shapeOf(n<<8) | shapeOf(rows[at])
			k, ok := ids[s]
			if !ok && len(l.shapes) < maxPartShape {
				k, ok = uint8(len(l.shapes)), true
				ids[s] = k
				l.shapes = append(l.shapes, learnShape{shape: s, width: n})
			}
			if ok {
				id = k
				l.shapes[k].all = append(l.shapes[k].all, int32(len(l.at)))
			}
		}
		l.at = append(l.at, int32(at))
		l.of = append(l.of, id)
		at += n
	}
	for i := range l.shapes {
		x := &l.shapes[i]
		every := max(len(x.all)/learnRows, 1)
		for k, i := range x.all {
			if k%every != 0 {
				continue
			}
			own, any := int32(-1), int32(-1)
			if k > 0 {
				own = l.at[x.all[k-1]]
			}
			if i > 0 {
				any = l.at[i-1]
			}
			x.rows, x.own, x.any = append(x.rows, i), append(x.own, own), append(x.any, any)
		}
	}
	return l
}

// bits is about what n bytes so distributed take; and what says so.
func (l *learner) bits(h *[256]int32, n int) (data, table float64) {
	if n == 0 {
		return 0, 0
	}
	data = float64(n) * math.Log2(float64(n))
	symbols := 0
	for _, c := range h {
		if c > 0 {
			symbols++
			data -= l.numbers[c]
		}
	}
	if symbols > 1 {
		table = float64(symbols) * 4
	}
	return data, table
}

// others is for each sampled message of x where the other one begins that a
// way finds.
func (l *learner) others(x *learnShape, w *keyWay) []int32 {
	out := make([]int32, len(x.rows))
	for r, i := range x.rows {
		out[r] = w.previous[i]
	}
	return out
}

// costOf is what the field of s takes, in bits, of the sampled messages of x,
// foretold by those that begin at others (nil: by none), from every so many
// of them.
func (l *learner) costOf(x *learnShape, s *step, others []int32, every int) float64 {
	l.hist = [8][256]int32{}
	h := &l.hist
	n, at, end := int(s.n), int(s.at), int(s.from)+int(s.n)
	rows := 0
	for r := every - 1; r < len(x.rows); r += every {
		rows++
		m := -1
		if others != nil {
			if m = int(others[r]); m >= 0 && end > int(l.b[m-1])|int(l.b[m-2])<<8 {
				m = -1
			}
		}
		if n == 1 {
			v := l.b[int(l.at[x.rows[r]])+at]
			if m >= 0 {
				v -= l.b[m+int(s.from)]
			}
			h[0][v]++
			continue
		}
		v := load(l.b, int(l.at[x.rows[r]])+at, n, s.little)
		if m >= 0 {
			v -= load(l.b, m+int(s.from), n, s.little)
		}
		v = fold(v, n)
		for k := range n {
			h[k][byte(v>>(8*k))]++
		}
	}
	// What says how bytes are distributed is there once, of all messages.
	e, all := 0.0, float64(len(x.rows))
	for k := range n {
		data, table := l.bits(&h[k], rows)
		e += data*all/float64(rows) + table*all/float64(len(x.all))
	}
	return e
}

// glance is costOf of few messages, for all.
func (l *learner) glance(x *learnShape, s *step, others []int32) float64 {
	return l.costOf(x, s, others, max(len(x.rows)/learnGlance, 1))
}

// candidate is a step that saves so many bits.
type candidate struct {
	s    step
	way  *keyWay
	gain float64
}

// steps finds the steps of the k-th plan.
func (l *learner) steps(p *Plans, k int, x *learnShape) {
	n := float64(len(x.rows))
	x.cost, x.how = make([]float64, x.width), make([]uint8, x.width)
	for at := range x.cost {
		for kind, others := range [3][]int32{nil, stepOwn: x.own, stepAny: x.any} {
			s := step{kind: uint8(kind), at: uint8(at), from: uint8(at), n: 1}
			if e := l.costOf(x, &s, others, 1); kind == 0 || e < x.cost[at]-n*0.05 {
				x.cost[at], x.how[at] = e, uint8(kind)
			}
		}
	}
	x.rough = make([]float64, x.width)
	for at := range x.rough {
		s := step{kind: x.how[at], at: uint8(at), from: uint8(at), n: 1}
		x.rough[at] = l.glance(x, &s, [3][]int32{nil, stepOwn: x.own, stepAny: x.any}[s.kind])
	}
	numbers := l.numeric(x)
	// The keys that save most beside them.
	l.arrange(p, k, x, numbers, l.chooseKeys(x, numbers))
}

// numeric finds numbers that change little between messages.
func (l *learner) numeric(x *learnShape) []candidate {
	n := float64(len(x.rows))
	var lasts [][]int32
	var args []int
	for _, i := range l.order {
		if y := &l.shapes[i]; y != x && len(lasts) < 4 {
			lasts, args = append(lasts, l.lastOf(x, i)), append(args, i)
		}
	}
	var all []candidate
	for _, width := range [5]int{8, 6, 4, 3, 2} {
		for at := 1; at+width <= x.width; at++ {
			before := 0.0
			for j := at; j < at+width; j++ {
				before += x.cost[j]
			}
			if before < n {
				continue
			}
			for _, little := range [2]bool{false, true} {
				s := step{at: uint8(at), from: uint8(at), n: uint8(width), little: little}
				try := func(others []int32) {
					if before-l.glance(x, &s, others) < -n/4 {
						return
					}
					if g := before - l.costOf(x, &s, others, 1); g > n*0.2 {
						all = append(all, candidate{s: s, gain: g})
					}
				}
				s.kind = stepOwn
				try(x.own)
				s.kind = stepAny
				try(x.any)
				if width < 4 {
					continue
				}
				s.kind = stepShape
				for i, last := range lasts {
					if at+width <= l.shapes[args[i]].width {
						s.arg = uint8(l.position[args[i]])
						try(last)
					}
				}
			}
		}
	}
	return l.pick(all, slices.Clone(x.cost))
}

// pick takes candidates of disjoint fields, the best first; the bytes that
// they cover have no cost of their own then.
func (l *learner) pick(all []candidate, cost []float64) (out []candidate) {
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.gain, a.gain), cmp.Compare(a.s.n, b.s.n))
	})
	used := make([]bool, len(cost))
	for _, c := range all {
		field := used[c.s.at : c.s.at+c.s.n]
		if slices.Contains(field, true) {
			continue
		}
		for i := range field {
			field[i] = true
		}
		before := 0.0
		for j := c.s.at; j < c.s.at+c.s.n; j++ {
			before += cost[j]
		}
		for j := c.s.at; j < c.s.at+c.s.n; j++ {
			cost[j] = (before - c.gain) / float64(c.s.n)
		}
		out = append(out, c)
	}
	return out
}

// lastOf is for each sampled message of x the newest one before it of shape k.
func (l *learner) lastOf(x *learnShape, k int) []int32 {
	out := make([]int32, len(x.rows))
	r, last := 0, int32(-1)
	for i := range l.of {
		if r == len(x.rows) {
			break
		}
		if x.rows[r] == int32(i) {
			out[r] = last
			r++
		}
		if int(l.of[i]) == k {
			last = l.at[i]
		}
	}
	return out
}

// arrange writes the plan down: first what needs no key, then each key and
// what it makes possible.
func (l *learner) arrange(p *Plans, k int, x *learnShape, numbers []candidate, ways []keyed) {
	covered := make([]bool, x.width)
	for _, w := range ways {
		for _, c := range w.steps {
			for j := c.s.at; j < c.s.at+c.s.n; j++ {
				covered[j] = true
			}
		}
	}
	free := func(s step) bool { return !slices.Contains(covered[s.at:s.at+s.n], true) }
	cover := func(s step) {
		for j := s.at; j < s.at+s.n; j++ {
			covered[j] = true
		}
	}
	pl := &p.plans[k]
	for _, c := range numbers {
		if free(c.s) {
			pl.steps = append(pl.steps, c.s)
			cover(c.s)
		}
	}
	for at := 1; at < x.width; at++ {
		s := step{kind: x.how[at], at: uint8(at), n: 1, from: uint8(at)}
		if s.kind != 0 && free(s) {
			pl.steps = append(pl.steps, s)
		}
	}
	// A key that another one foretells is looked up after it.
	slices.SortStableFunc(ways, func(a, b keyed) int {
		covers := func(a, b keyed) bool {
			return slices.ContainsFunc(a.steps, func(c candidate) bool {
				return int(c.s.at) < b.way.at+b.way.n && int(c.s.at+c.s.n) > b.way.at
			})
		}
		switch {
		case covers(a, b):
			return -1
		case covers(b, a):
			return 1
		}
		return 0
	})
	for _, w := range ways {
		t, ok := l.table(p, k, x, w.way)
		if !ok {
			continue
		}
		pl.steps = append(pl.steps, step{kind: stepLookup, at: uint8(w.way.at), n: uint8(w.way.n), arg: t})
		for _, c := range w.steps {
			pl.steps = append(pl.steps, c.s)
		}
	}
	if len(pl.steps) > maxSteps {
		pl.steps = pl.steps[:maxSteps]
	}
}

// splits finds planes that say much of others: it looks at the differences
// that the plans leave.
func (l *learner) splits(p *Plans, rows []byte) {
	c := newSplitter()
	end, messages := cutPart(rows, 0)
	rows = append(slices.Clip(rows[:end]), make([]byte, moveSlack)...)[:end]
	c.split(rows, messages, p, false)
	for i := range c.shapes {
		x := &c.shapes[i]
		k, ok := p.at[x.shape]
		if !ok {
			continue
		}
		w := x.shape.width()
		n := min(x.rows, 2*learnRows)
		mat := x.mat[(x.rows-n)*w:]
		by := make([]uint8, w)
		whole := make([]float64, w)
		for j := 1; j < w; j++ {
			var h [256]int32
			for r := 0; r < n; r++ {
				h[mat[r*w+j]]++
			}
			data, table := l.bits(&h, n)
			whole[j] = data + table
			if whole[j] < float64(n)*0.3 {
				continue
			}
			best := whole[j] - float64(n)*0.05 - 64
			for q := 1; q < j; q++ {
				if whole[q] == 0 {
					continue
				}
				var h [2][256]int32
				zeros := 0
				for r := 0; r < n; r++ {
					if mat[r*w+q] == 0 {
						h[0][mat[r*w+j]]++
						zeros++
					} else {
						h[1][mat[r*w+j]]++
					}
				}
				if zeros < 32 || n-zeros < 32 {
					continue
				}
				d0, t0 := l.bits(&h[0], zeros)
				d1, t1 := l.bits(&h[1], n-zeros)
				if e := d0 + t0 + d1 + t1; e < best {
					best, by[j] = e, uint8(q+1)
				}
			}
		}
		p.plans[k].by = by
	}
}

// keep adds what old knows and p does not, as far as it needs nothing else.
func (p *Plans) keep(old *Plans) {
	if old == nil {
		return
	}
	for _, o := range old.plans {
		if _, ok := p.at[o.shape]; ok || len(p.plans) == maxPartShape {
			continue
		}
		steps := slices.DeleteFunc(slices.Clone(o.steps), func(s step) bool {
			return s.kind != stepOwn && s.kind != stepAny
		})
		p.at[o.shape] = len(p.plans)
		p.plans = append(p.plans, plan{shape: o.shape, steps: steps, by: o.by})
	}
}
