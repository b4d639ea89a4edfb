package block

import (
	"math"
	"math/bits"
	"slices"

	"github.com/klauspost/compress/s2"
)

// columns makes payloads in columns, where those are smaller than rows.
type columns struct {
	*History
	own   History
	level Level
	split *splitter
	lags  *lagWriter

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
	sample       float64 // … and of a sample of the rows; 0: unknown
	mix          mix     // of the messages then
	size         float64 // bytes of rows then
	blocks       int     // since then
	best         float64 // the least stored bytes a raw one by these plans
	wants        bool
	age          int  // blocks since these plans
	rest         int  // before others are wanted: twice as long each time
	rows         bool // were smaller when they were last tried

	stamped int  // blocks whose times were stored
	zips    bool // times took less compressed when that was last tried
}

// How often rows are tried where columns are well below what they took last;
// and what is well below.
const (
	tryEvery  = 64
	tryBelow  = 0.85
	tryChange = 0.1
	trySize   = 1.25
	tryLittle = 0.1      // of that little a sample says nothing, and trying costs next to nothing
	smallRaw  = 32 << 10 // blocks that cost nothing are always tried

	mixChange   = 0.3
	sampleRaw   = 16 << 10
	sampleBelow = 0.7 // is tryBelow, by what a sample says
	likeness    = 3.0 // … of what takes at most so many times as much, or as little

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
	dst = e.leastSection(dst, at, tagPayload, codec, b.rows, try, &c.rows)
	if try && raw > smallRaw {
		zipped := len(c.zipped)
		c.blocks, c.size, c.ratio, c.tried = 0, float64(raw), min(float64(zipped)/float64(raw), entropy(b.rows)), float64(stored)/float64(raw)
		if c.mix, c.History.sample = c.split.mix(), 0; float64(stored) <= tryBelow*float64(zipped) {
			c.History.sample = e.sample(b.rows)
		}
	}
	return dst
}

// tryRows reports whether it is in doubt that columns, which take so many
// stored bytes, take less than rows.
func (e *Encoder) tryRows(stored int, rows []byte) bool {
	h := e.col.History
	h.blocks++
	raw := float64(len(rows))
	now := float64(stored) / raw
	if len(rows) <= smallRaw || h.ratio == 0 || h.blocks >= tryEvery || e.col.split.mix().differs(h.mix) {
		return true
	}
	if raw > trySize*h.size || raw*trySize < h.size { // where all is repeated, rows take no more for more of it
		return true
	}
	change := now / h.tried
	if h.sample == 0 || change < 1/likeness || change > likeness {
		return true
	}
	// Rows may take less also where columns take what they took: a sample says so.
	below := sampleBelow
	if math.Abs(change-1) <= tryChange {
		below = tryBelow
	}
	like := e.sample(rows) / h.sample
	guess := h.ratio * like
	return like < 1/likeness || like > likeness || guess < tryLittle || now > below*guess
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

// sample is how many stored bytes a raw one some of rows takes, by S2, which is
// quick and sees what makes the difference to columns: what is repeated; never 0.
func (e *Encoder) sample(rows []byte) float64 {
	c := e.col
	n := min(sampleRaw, len(rows))
	at := (len(rows) - n) / 2
	c.zipped = slices.Grow(c.zipped[:0], s2.MaxEncodedLen(n))
	return float64(len(s2.Encode(c.zipped[:cap(c.zipped)], rows[at:at+n]))) / float64(n)
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
	c.stamped++
	try := c.stamped%tryEvery == 1 || len(e.raw) <= smallRaw/16
	if c.zips && !try {
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
	return e.leastSection(dst, at, tagTimes, Lagged, e.raw, try, &c.zips)
}

// leastSection finishes the section at dst[at:], whose stored bytes are there:
// where try, it puts raw compressed in their place where that is shorter, and
// says so in zips; and in any case raw as it is.
func (e *Encoder) leastSection(dst []byte, at int, t tag, codec Codec, raw []byte, try bool, zips *bool) []byte {
	c := e.col
	stored := len(dst) - at - sectionHeader
	if try {
		c.zipped = e.z.EncodeAll(raw, c.zipped[:0])
		if *zips = len(c.zipped) < stored; *zips {
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
