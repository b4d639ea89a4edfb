package block

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/moldtape/moldtape/moldcast"
)

// clock is a field of messages of a shape that holds the feed's own time, in
// counts of 10^exp ns of any beginning. What a packet's stamp is later than
// that of its last message varies less than the stamps do.
type clock struct {
	shape  shapeOf
	at, n  uint8
	little bool
	exp    uint8
}

const (
	maxClocks  = 250
	lagShift   = 3 // of how many lags the mean is, as a power of 2, about
	leastLags  = 32
	lagSamples = 256
)

func powerOf10(exp uint8) (v uint64) {
	for v = 1; exp > 0; exp-- {
		v *= 10
	}
	return v
}

// read is the time in message m, in counts of unit ns.
func (c *clock) read(m []byte, unit uint64) uint64 {
	return load(m, int(c.at), int(c.n), c.little) * powerOf10(c.exp) / unit
}

// lagState foretells stamps.
type lagState struct {
	feed uint64 // the feed's time that was read last
	mean int64  // of lags
	last int64  // stamp
	some bool
}

// next is the difference of a stamp to what was expected; or, where join, the
// stamp of which d is that.
func (s *lagState) next(d int64, clocks, join bool) int64 {
	expected := s.last
	if clocks {
		expected = int64(s.feed) + s.mean
	}
	t := d
	if join {
		t = expected + d
	} else {
		d -= expected
	}
	switch {
	case !clocks:
	case s.some:
		s.mean += d >> lagShift
	default:
		s.mean += d
	}
	s.some, s.last = true, t
	if join {
		return t
	}
	return d
}

// lagWriter stores times as lags. It keeps its buffers.
type lagWriter struct {
	of    []uint8 // by shape: 1 + position in clocks; zero between calls
	buf   []uint64
	plane []byte
	used  []clock
	scale []uint64 // of each clock: what its counts are multiplied by
}

func newLagWriter() *lagWriter { return &lagWriter{of: make([]uint8, 1<<16)} }

// encode appends the stored form of the times of b, of which tail is what
// follows the times in the raw form.
func (l *lagWriter) encode(dst []byte, b *Block, clocks []clock, tail []byte, w *columnWriter, z *zstd.Encoder) []byte {
	exp, unit := b.unit()
	l.lags(b, clocks, int64(unit))
	if len(clocks) > 0 && (len(l.used) == 0 || widths(l.buf) >= deltaWidths(b.times, unit)) {
		l.lags(b, nil, int64(unit))
	}
	dst = append(dst, byte(len(l.used)))
	for _, c := range l.used {
		k := c.n
		if c.little {
			k |= 16
		}
		dst = append(dst, byte(c.shape>>8), byte(c.shape), k, c.at, c.exp)
	}
	dst = append(dst, exp)
	// The first says where it all is.
	dst = binary.AppendUvarint(dst, l.buf[0])
	all := uint64(0)
	for _, d := range l.buf[1:] {
		all |= d
	}
	width := (bits.Len64(all) + 7) / 8
	dst = append(dst, byte(width))
	dst = binary.AppendUvarint(dst, uint64(len(tail)))
	w.reset(false)
	n := len(l.buf) - 1
	l.plane = grow(l.plane, 2*n)
	above, plane, spare := []byte(nil), l.plane[:n], l.plane[n:]
	for k := width - 1; k >= 0; k-- {
		for i, d := range l.buf[1:] {
			plane[i] = byte(d >> (8 * k))
		}
		w.split(plane, above)
		above, plane, spare = plane, spare, plane
	}
	w.plane(tail)
	return w.append(dst, z, false)
}

// widths is about how many bits numbers take.
func widths(v []uint64) (n int) {
	for _, x := range v[1:] {
		n += bits.Len64(x)
	}
	return n
}

// deltaWidths are widths of the lags without clocks.
func deltaWidths(times []moldcast.Stamp, unit moldcast.Stamp) (n int) {
	before := times[0] / unit
	for _, t := range times[1:] {
		if unit > 1 {
			t /= unit
		}
		n += bits.Len64(fold(uint64(t-before), 8))
		before = t
	}
	return n
}

// lags makes buf the differences, folded, of the stamps of b to what was expected.
func (l *lagWriter) lags(b *Block, clocks []clock, unit int64) {
	l.used = l.used[:0]
	l.scale = l.scale[:0]
	for i := range clocks {
		l.of[clocks[i].shape] = uint8(i + 1)
		l.scale = append(l.scale, powerOf10(clocks[i].exp))
	}
	at1 := unit == 1
	var s lagState
	out := l.buf[:0]
	at, k := 0, uint32(0)
	for i, t := range b.times {
		if len(clocks) > 0 {
			last := at
			for end := b.ords[i+1]; k < end; k++ {
				last = at
				at += frame(b.rows, at)
			}
			m := b.rows[last+2 : at]
			if len(m) > 0 && len(m) <= maxRow {
				if id := l.of[len(m)<<8|int(m[0])]; id > 0 {
					c := &clocks[id-1]
					s.feed = load(m, int(c.at), int(c.n), c.little) * l.scale[id-1]
					if !at1 {
						s.feed /= uint64(unit)
					}
					l.use(c)
				}
			}
		}
		stamp := int64(t)
		if !at1 {
			stamp /= unit
		}
		out = append(out, fold(uint64(s.next(stamp, len(clocks) > 0, false)), 8))
	}
	for i := range clocks {
		l.of[clocks[i].shape] = 0
	}
	l.buf = out
}

func (l *lagWriter) use(c *clock) {
	for i := range l.used {
		if l.used[i].shape == c.shape {
			return
		}
	}
	l.used = append(l.used, *c)
}

// lagReader makes times of lags.
type lagReader struct {
	r      columnReader
	clocks []clock
	of     []uint8
	lags   []uint64
	plane  []byte
	tail   []byte
	scale  []uint64 // of each clock: what its counts are multiplied by
	read   int      // bytes of the raw form that are in the times of the block already
}

// decode appends the raw form of the times of b, whose rows and boundaries
// are read, to dst, and the times to those of b, unless they are none that it can
// have: who reads the raw form then says so. It answers with what is wrong.
func (l *lagReader) decode(dst, stored []byte, limit int, b *Block, z *zstd.Decoder) (raw []byte, reason string) {
	n := len(b.ords)
	if n == 0 {
		return nil, "times without boundaries"
	}
	s := scanner{b: stored}
	l.clocks = l.clocks[:0]
	for range s.byte() {
		c := clock{shape: shapeOf(s.byte())<<8 | shapeOf(s.byte())}
		k := s.byte()
		c.n, c.little, c.at, c.exp = k&15, k&16 != 0, s.byte(), s.byte()
		if s.reason != "" || k > 31 || c.n < 1 || c.n > 8 || int(c.at)+int(c.n) > c.shape.width() || c.exp > 9 {
			return nil, "clock that is no field of a message"
		}
		l.clocks = append(l.clocks, c)
	}
	exp := s.byte()
	first, width, tail := s.uvarint(), int(s.byte()), s.uvarint()
	if s.reason != "" || exp > 9 || width > 8 || tail > uint64(limit) {
		return nil, "lags cut short"
	}
	if !l.r.open(stored[s.at:], n*width+int(tail), z) {
		return nil, "columns do not open"
	}
	l.lags = append(l.lags[:0], first)
	for range n - 1 {
		l.lags = append(l.lags, 0)
	}
	l.plane = grow(l.plane, 2*(n-1))
	above, plane, spare := []byte(nil), l.plane[:n-1], l.plane[n-1:]
	for range width {
		l.r.split(plane, above)
		for i, v := range plane {
			l.lags[i+1] = l.lags[i+1]<<8 | uint64(v)
		}
		above, plane, spare = plane, spare, plane
	}
	l.tail = grow(l.tail, int(tail))
	l.r.plane(l.tail)
	if l.r.end(); l.r.s.reason != "" {
		return nil, l.r.s.reason
	}
	if raw, reason = l.join(append(dst, exp), powerOf10(exp), b); reason != "" {
		return nil, reason
	}
	l.read = len(raw)
	return append(raw, l.tail...), ""
}

// hasClocks reports whether lags are to times in the messages.
func hasClocks(stored []byte) bool { return len(stored) > 0 && stored[0] > 0 }

// join makes stamps of lags.
func (l *lagReader) join(raw []byte, unit uint64, b *Block) ([]byte, string) {
	if l.of == nil {
		l.of = make([]uint8, 1<<16)
	}
	for i := range l.clocks {
		l.of[l.clocks[i].shape] = uint8(i + 1)
	}
	defer func() {
		for i := range l.clocks {
			l.of[l.clocks[i].shape] = 0
		}
	}()
	l.scale = l.scale[:0]
	for i := range l.clocks {
		l.scale = append(l.scale, powerOf10(l.clocks[i].exp))
	}
	lo, hi := stampBounds(int64(unit))
	fits := knownUnit(unit)
	b.times = slices.Grow(b.times, len(l.lags))
	var st lagState
	at, k, before := 0, 0, int64(0)
	for i, d := range l.lags {
		if len(l.clocks) > 0 {
			end := b.msgs
			if i+1 < len(b.ords) {
				end = int(b.ords[i+1])
			}
			last := at
			for ; k < end; k++ {
				last = at
				if at+moldcast.LengthSize > len(b.rows) {
					return nil, "lags of messages that are not there"
				}
				if at += frame(b.rows, at); at > len(b.rows) {
					return nil, "lags of messages that are not there"
				}
			}
			if m := b.rows[last+2 : at]; len(m) > 0 && len(m) <= maxRow {
				if id := l.of[len(m)<<8|int(m[0])]; id > 0 {
					c := &l.clocks[id-1]
					st.feed = load(m, int(c.at), int(c.n), c.little) * l.scale[id-1]
					if unit > 1 {
						st.feed /= unit
					}
				}
			}
		}
		t := st.next(int64(unfold(d)), len(l.clocks) > 0, true)
		raw = binary.AppendVarint(raw, t-before)
		before = t
		fits = fits && t >= lo && t <= hi
		b.times = append(b.times, moldcast.Stamp(t*int64(unit)))
	}
	if !fits {
		b.times = b.times[:0]
	}
	return raw, ""
}

// learnClocks finds the fields that hold the feed's time.
func learnClocks(b *Block) (out []clock) {
	type sample struct {
		t int64
		m []byte
	}
	last := map[shapeOf][]sample{}
	for i := range b.times {
		at, end := int(b.ats[i]), int(b.ats[i+1])
		from := at
		for at < end {
			from = at
			at += frame(b.rows, at)
		}
		if n := at - from - 2; n > 0 && n <= maxRow {
			s := shapeOf(n<<8) | shapeOf(b.rows[from+2])
			last[s] = append(last[s], sample{int64(b.times[i]), b.rows[from+2 : at]})
		}
	}
	for s, list := range last {
		if len(list) < leastLags {
			continue
		}
		list = list[max(len(list)-lagSamples, 0):]
		cost := func(c *clock) (n int) {
			lag := func(i int) int64 {
				if c == nil {
					return list[i].t
				}
				return list[i].t - int64(c.read(list[i].m, 1))
			}
			for i := 1; i < len(list); i++ {
				n += bits.Len64(fold(uint64(lag(i)-lag(i-1)), 8))
			}
			return n
		}
		best, found := cost(nil)-len(list), clock{}
		for _, n := range [4]uint8{8, 6, 4, 5} {
			for at := 1; at+int(n) <= s.width(); at++ {
				for _, little := range [2]bool{false, true} {
					for _, exp := range [4]uint8{0, 3, 6, 9} {
						c := clock{shape: s, at: uint8(at), n: n, little: little, exp: exp}
						if v := cost(&c); v < best {
							best, found = v, c
						}
					}
				}
			}
		}
		if found.n > 0 && len(out) < maxClocks {
			out = append(out, found)
		}
	}
	// In one order, whatever that of a map.
	slices.SortFunc(out, func(a, b clock) int { return int(a.shape) - int(b.shape) })
	return out
}
