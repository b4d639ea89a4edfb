package block

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// fseWriter writes what an fseReader reads (RFC 8878, 4.1). What it compresses
// was counted before. It keeps its tables.
type fseWriter struct {
	norm   [256]int16 // of each symbol, -1: less than one
	spread [1 << usualFSELog]uint8
	next   [1 << usualFSELog]uint16 // states, symbol by symbol
	codes  [256]fseCode
}

// fseCode is what takes a state to the next, of a symbol: bits + state, of which
// the upper 16 are how many bits are written; what is left of the state then, and
// states, are where the next one is.
type fseCode struct {
	bits   uint32
	states int32
}

const usualFSELog = 11 // accuracy, where there are enough symbols

// append appends a table, of at most most bits of accuracy, and the stream of p:
// of at least 3 bytes, at least two of them different. h is how often each is there,
// highest the highest of them.
func (w *fseWriter) append(dst, p []byte, h *[256]uint32, highest int, most int) []byte {
	n := len(p)
	log := min(most, bits.Len(uint(n-1))-3)
	log = max(log, min(bits.Len(uint(n-1)), bits.Len(uint(highest))+1), leastFSELog)
	w.normalize(h, highest, n, log)
	dst = slices.Grow(dst, 4+(highest+1)*(log+1)/8+n*log/8+16)
	dst = w.appendTable(dst, highest, log)
	w.build(highest, log)
	return w.appendStream(dst, p, log)
}

// roundUp says from which part of 2^20 on a likelihood of few states becomes one
// more: by what that costs, as in the reference encoder of zstd.
var roundUp = [8]uint64{0, 473195, 504333, 520860, 550000, 700000, 750000, 830000}

// normalize makes the likelihoods: 2^log in all.
func (w *fseWriter) normalize(h *[256]uint32, highest, n, log int) {
	scale := 62 - uint(log)
	each := uint64(1<<62) / uint64(n)
	low := uint32(n >> log)
	left := 1 << log
	largest := 0
	for s, c := range h[:highest+1] {
		switch {
		case c == 0:
			w.norm[s] = 0
			continue
		case c <= low:
			w.norm[s] = -1
			left--
			continue
		}
		x := uint64(c) * each
		v := x >> scale
		if v < 8 && x-v<<scale > roundUp[v]<<(scale-20) {
			v++
		}
		w.norm[s] = int16(v)
		left -= int(v)
		if v > uint64(max(w.norm[largest], 0)) {
			largest = s
		}
	}
	// What is left over, or missing, is that of the largest; of several, where
	// it would lose too much.
	for ; left < 0 && -left >= int(w.norm[largest])/2; left++ {
		w.norm[largest]--
		for s, v := range w.norm[:highest+1] {
			if v > w.norm[largest] {
				largest = s
			}
		}
	}
	w.norm[largest] += int16(left)
}

// appendTable appends the likelihoods.
func (w *fseWriter) appendTable(dst []byte, highest, log int) []byte {
	c, n := uint64(log-leastFSELog), uint(4)
	left := 1<<log + 1
	zeros := false // the one before was 0
	for s := 0; left > 1; s++ {
		if zeros {
			from := s
			for w.norm[s] == 0 {
				s++
			}
			more := s - from
			for ; more >= 3; more -= 3 {
				c |= 3 << n
				if n += 2; n > 32 {
					dst = binary.LittleEndian.AppendUint32(dst, uint32(c))
					c >>= 32
					n -= 32
				}
			}
			c |= uint64(more) << n
			n += 2
		}
		v := int(w.norm[s])
		// A value from 0 to left, in one bit less where it is low enough.
		width := bits.Len(uint(left))
		short := 1<<width - 1 - left
		left -= max(v, -v)
		zeros = v == 0
		if v++; v >= 1<<(width-1) {
			v += short
		}
		c |= uint64(v) << n
		n += uint(width)
		if v < short {
			n--
		}
		if n > 32 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(c))
			c >>= 32
			n -= 32
		}
	}
	for k := int(n); k > 0; k -= 8 {
		dst = append(dst, byte(c))
		c >>= 8
	}
	return dst
}

// build makes the table of states.
func (w *fseWriter) build(highest, log int) {
	size := 1 << log
	var from [256]uint16 // in next, of each symbol
	high, total := size-1, 0
	for s, v := range w.norm[:highest+1] {
		from[s] = uint16(total)
		k := &w.codes[s]
		switch {
		case v == 0:
		case v == -1:
			w.spread[high] = byte(s)
			high--
			v = 1
			fallthrough
		case v == 1:
			k.bits, k.states = uint32(log<<16-size), int32(total-1)
		default:
			most := log + 1 - bits.Len(uint(v-1))
			k.bits, k.states = uint32(most<<16-int(v)<<most), int32(total-int(v))
		}
		total += int(v)
	}
	step, mask, at := size>>1+size>>3+3, size-1, 0
	for s, v := range w.norm[:highest+1] {
		for ; v > 0; v-- {
			w.spread[at&(len(w.spread)-1)] = byte(s)
			for at = (at + step) & mask; at > high; at = (at + step) & mask {
			}
		}
	}
	for i, s := range w.spread[:size] {
		w.next[from[s]&(1<<usualFSELog-1)] = uint16(size + i)
		from[s]++
	}
}

// first is the state of the first symbol of a stream.
func (w *fseWriter) first(s byte) uint32 {
	k := w.codes[s]
	n := (k.bits + 1<<15) >> 16
	return uint32(w.next[int32((n<<16-k.bits)>>n)+k.states])
}

// appendStream appends the symbols, from the last to the first: two states take
// turns. dst has room.
func (w *fseWriter) appendStream(dst, p []byte, log int) []byte {
	const states = 1<<usualFSELog - 1
	at := len(dst)
	out := dst[:cap(dst)]
	c, n := uint64(0), uint(0)
	i := len(p)
	var a, b uint32
	if i&1 != 0 {
		i--
		a = w.first(p[i])
	}
	i--
	b = w.first(p[i])
	if i--; len(p)&1 == 0 {
		a = w.first(p[i])
	} else {
		i++
	}
	if i&1 != 0 {
		i--
		k := w.codes[p[i]]
		m := (a + k.bits) >> 16 & 31
		c |= uint64(a&(1<<m-1)) << (n & 63)
		n += uint(m)
		a = uint32(w.next[uint32(int32(a>>m)+k.states)&states])
	}
	for i >= 4 {
		q := (*[4]byte)(p[i-4:])
		i -= 4
		k := w.codes[q[3]]
		m := (b + k.bits) >> 16 & 31
		c |= uint64(b&(1<<m-1)) << (n & 63)
		n += uint(m)
		b = uint32(w.next[uint32(int32(b>>m)+k.states)&states])
		k = w.codes[q[2]]
		m = (a + k.bits) >> 16 & 31
		c |= uint64(a&(1<<m-1)) << (n & 63)
		n += uint(m)
		a = uint32(w.next[uint32(int32(a>>m)+k.states)&states])
		k = w.codes[q[1]]
		m = (b + k.bits) >> 16 & 31
		c |= uint64(b&(1<<m-1)) << (n & 63)
		n += uint(m)
		b = uint32(w.next[uint32(int32(b>>m)+k.states)&states])
		k = w.codes[q[0]]
		m = (a + k.bits) >> 16 & 31
		c |= uint64(a&(1<<m-1)) << (n & 63)
		n += uint(m)
		a = uint32(w.next[uint32(int32(a>>m)+k.states)&states])
		// At most 44 bits were added to 7.
		binary.LittleEndian.PutUint64(out[at:], c)
		at += int(n >> 3)
		c >>= n &^ 7 & 63
		n &= 7
	}
	if i >= 2 {
		k := w.codes[p[1]]
		m := (b + k.bits) >> 16 & 31
		c |= uint64(b&(1<<m-1)) << (n & 63)
		n += uint(m)
		b = uint32(w.next[uint32(int32(b>>m)+k.states)&states])
		k = w.codes[p[0]]
		m = (a + k.bits) >> 16 & 31
		c |= uint64(a&(1<<m-1)) << (n & 63)
		n += uint(m)
		a = uint32(w.next[uint32(int32(a>>m)+k.states)&states])
	}
	low := uint32(1)<<log - 1
	c |= uint64(b&low) << n
	n += uint(log)
	c |= uint64(a&low) << n
	n += uint(log)
	return endBits(out[:at], c, n)
}

// endBits ends a stream, of at most 55 bits more: with a bit by which its end is
// found.
func endBits(dst []byte, c uint64, n uint) []byte {
	c |= 1 << n
	for n++; ; n -= 8 {
		dst = append(dst, byte(c))
		c >>= 8
		if n <= 8 {
			return dst
		}
	}
}
