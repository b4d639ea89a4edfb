package block

import (
	"math"
	"math/bits"
)

// columns makes payloads in columns, where those are smaller than rows.
type columns struct {
	*History
	own   History
	level Level
	split *splitter
	lags  *lagWriter

	finder repeatFinder

	zipped, tail []byte

	learns bool // by itself
}

// History is what an Encoder goes by that has encoded blocks of a recording
// before: its plans, and how well they did. The zero value knows nothing.
// Encoders keep their buffers, so that a few may serve many recordings, each
// of which has its own History of each level (Encoder.Follow).
type History struct {
	plans *Plans
	fresh bool // the plans have not been used

	ratio, tried float64 // stored bytes a raw one of rows, and of columns, when rows were last tried
	repeats      repeats // in the rows then, unless columns were no less by far
	mix          mix     // of the messages then
	blocks       int     // since then; 0: never
	best         float64 // the least stored bytes a raw one by these plans
	wants        bool
	age          int // blocks since these plans
	rest         int // before others are wanted: twice as long each time
}

// Rows are tried beside columns unless, since they were tried last, nothing shows
// that they take less: columns take about what they did, well below what rows
// did, of messages of the same shapes, and no more of them is repeated.
const (
	smallRaw  = 32 << 10 // blocks that cost nothing are always tried
	tryEvery  = 512      // blocks
	tryMuch   = 0.45     // of raw bytes that columns take: there is much that repeats may hide in
	tryLittle = 0.1      // … that rows may take: trying them costs next to nothing
	tryShort  = 12       // bytes of a message, on average
	tryAbove  = 0.85     // of what rows may take
	tryChange = 0.15     // of what columns take
	mixChange = 0.3

	pieceCost = 2 // bytes that what is repeated takes, at least

	// Times as lags take less than compressed, unless more of them is repeated.
	smallTimes = 2 << 10
	timesAgain = 0.05

	// LeastLearn is the fewest bytes of rows that teach anything.
	LeastLearn = 16 << 10

	worse               = 1.08 // than the best block that plans made: time for others
	leastRest, mostRest = 8, 512
)

func newColumns(o EncoderOptions) *columns {
	c := &columns{level: o.Level, split: newSplitter(), lags: newLagWriter(), learns: o.Learn}
	c.History = &c.own
	return c
}

// Follow has the next blocks encoded as those that go on behind h, which is of
// one recording and the level of e, until the next call.
func (e *Encoder) Follow(h *History) {
	if e.col != nil {
		e.col.History = h
	}
}

// UsePlans has the messages of the next blocks foretold by p, at level Dense.
func (h *History) UsePlans(p *Plans) {
	if h.plans == p {
		return
	}
	if h.plans != nil {
		h.rest = min(max(2*h.rest, leastRest), mostRest)
	}
	h.plans, h.fresh, h.wants = p, true, false
}

// KeepPlans says that for what WantsPlans asked for nothing better was found:
// it does not ask again soon.
func (h *History) KeepPlans() {
	h.rest = min(max(4*h.rest, leastRest), mostRest)
	h.fresh, h.wants = true, false
}

// Plans are those in use; nil: none.
func (h *History) Plans() *Plans { return h.plans }

// WantsPlans reports whether the last block shows that messages have changed
// so that it is worth while to learn from it (Learn).
func (h *History) WantsPlans() bool { return h.wants }

// UsePlans is that of the History that e follows.
func (e *Encoder) UsePlans(p *Plans) {
	if e.col != nil {
		e.col.UsePlans(p)
	}
}

// Plans are those of the History that e follows.
func (e *Encoder) Plans() *Plans {
	if e.col == nil {
		return nil
	}
	return e.col.plans
}

// WantsPlans is that of the History that e follows.
func (e *Encoder) WantsPlans() bool { return e.col != nil && e.col.wants }

// payload appends the payload section.
func (e *Encoder) payload(dst []byte, b *Block) []byte {
	c := e.col
	if c == nil {
		return e.section(dst, tagPayload, sectionRequired, b.rows)
	}
	if c.learns && len(b.rows) >= LeastLearn && (c.plans == nil || c.wants) {
		e.UsePlans(Learn(c.plans, b))
	}
	at := len(dst)
	dst = append(dst, make([]byte, sectionHeader)...)
	// Without plans, what columns have in common is found by zstd.
	codec, plain := Foretold, c.level != Dense || c.plans == nil
	switch {
	case c.level == Hasty:
		codec = PlanesS2
	case plain:
		codec = PlanesZstd
	}
	dst, ok := c.split.encode(dst, b.rows, c.plans, e.z, plain, c.level == Hasty)
	if !ok {
		return e.section(dst[:at], tagPayload, sectionRequired, b.rows)
	}
	stored, raw := len(dst)-at-sectionHeader, len(b.rows)
	if c.level == Dense {
		c.note(stored, raw)
	}
	try := c.level != Hasty && e.tryRows(stored, b.rows)
	dst = e.leastSection(dst, at, tagPayload, codec, b.rows, try)
	if try && raw > smallRaw {
		rows := min(float64(len(c.zipped))/float64(raw), entropy(b.rows))
		c.blocks, c.ratio, c.tried, c.mix = 1, rows, float64(stored)/float64(raw), c.split.mix()
		if c.tried <= tryAbove*rows { // else the next one is tried whatever it repeats
			c.repeats = c.finder.find(b.rows)
		}
	}
	return dst
}

// tryRows reports whether it is in doubt that columns, which take so many
// stored bytes, take less than rows.
func (e *Encoder) tryRows(stored int, rows []byte) bool {
	h := e.col.History
	now := float64(stored) / float64(len(rows))
	columns := max(now, h.tried)
	if c := e.col.split; 2*c.text > len(rows) || len(rows) < tryShort*len(c.ids) {
		// To messages of no shape columns are what rows are; of very short ones what is
		// repeated lies across them, where it is not looked for.
		return true
	}
	if len(rows) <= smallRaw || h.blocks == 0 || h.blocks >= tryEvery || now > tryMuch || math.Abs(now/h.tried-1) > tryChange ||
		columns > tryAbove*h.ratio || e.col.split.mix().differs(h.mix) {
		return true
	}
	h.blocks++
	// What is repeated more than in those rows, or in fewer pieces, is taken from
	// what they took, and as much again, for what was not looked at. Where nearly
	// all is repeated, the rest is the most that rows may take.
	r := e.col.finder.find(rows)
	guess := h.ratio - 2*max(r.found-h.repeats.found, 0) - pieceCost*max(h.repeats.fresh-r.fresh, 0)
	guess = min(guess, 1-r.found+pieceCost*r.fresh)
	return guess < tryLittle || columns > tryAbove*guess
}

// mix is how many bytes of messages there are, of all: of each shape, and of none by
// how long those are on average. Several share a place.
type mix [16]float32

func (c *splitter) mix() (m mix) {
	all := float32(c.text)
	m[bits.Len(uint(c.text/max(c.others, 1)))%len(m)] = all
	for i := range c.shapes {
		s := c.shapes[i].shape
		n := float32(c.shapes[i].rows * s.width())
		m[int(s*0x9E37>>8)%len(m)] += n
		all += n
	}
	for i := range m {
		m[i] /= max(all, 1)
	}
	return m
}

// differs reports whether the messages of one are, in good part, others.
func (m mix) differs(o mix) bool {
	d := float32(0)
	for i := range m {
		d += max(m[i]-o[i], o[i]-m[i])
	}
	return d > mixChange
}

// entropy is how many bytes a raw one takes whatever is beside it. A compressor
// that finds nothing repeated may give up above that; it need not the next time.
func entropy(rows []byte) (n float64) {
	var counts [256]uint32
	histogram(&counts, rows)
	for _, k := range counts {
		if k > 0 {
			p := float64(k) / float64(len(rows))
			n -= p * math.Log2(p) / 8
		}
	}
	return n
}

// note says whether the plans still fit.
func (h *History) note(stored, raw int) {
	if raw < LeastLearn {
		return
	}
	now := float64(stored) / float64(raw)
	if h.fresh {
		h.fresh, h.best, h.age = false, now, 0
	}
	h.best = min(h.best, now)
	h.age++
	h.wants = h.plans == nil || now > worse*h.best && h.age >= h.rest
}

// times appends the section of times, whose raw form is in e.raw: as lags, or
// compressed where that takes less.
func (e *Encoder) times(dst []byte, b *Block) []byte {
	c := e.col
	if c.level != Dense {
		return e.section(dst, tagTimes, sectionRequired, e.raw)
	}
	var clocks []clock
	if c.plans != nil {
		clocks = c.plans.clocks
	}
	at := len(dst)
	dst = append(dst, make([]byte, sectionHeader)...)
	_, unit := b.unit()
	c.tail = b.appendHeard(c.tail[:0], unit)
	dst = c.lags.encode(dst, b, clocks, c.tail, c.split.w, e.z)
	return e.leastSection(dst, at, tagTimes, Lagged, e.raw, e.tryTimes(len(dst)-at-sectionHeader))
}

// tryTimes reports whether it is in doubt that times, which take so many stored
// bytes as lags, take less than their raw form compressed. That takes what its
// bytes are worth one by one, but for what is repeated.
func (e *Encoder) tryTimes(stored int) bool {
	return len(e.raw) <= smallTimes || e.col.finder.findNumbers(e.raw) > timesAgain ||
		float64(stored) > tryAbove*entropy(e.raw)*float64(len(e.raw))
}

// leastSection finishes the section at dst[at:], whose stored bytes are there:
// where try, it puts raw compressed in their place where that is shorter; and
// in any case raw as it is.
func (e *Encoder) leastSection(dst []byte, at int, t tag, codec Codec, raw []byte, try bool) []byte {
	c := e.col
	stored := len(dst) - at - sectionHeader
	if try {
		c.zipped = e.z.EncodeAll(raw, c.zipped[:0])
		if len(c.zipped) < stored {
			codec, stored = Zstd, len(c.zipped)
			dst = append(dst[:at+sectionHeader], c.zipped...)
		}
	}
	if stored >= len(raw) {
		codec = Stored
		dst = append(dst[:at+sectionHeader], raw...)
	}
	sealSection(dst[at:], t, sectionRequired, codec, len(raw))
	return dst
}
