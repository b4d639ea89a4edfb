package block

import (
	"encoding/binary"
	"math/bits"
)

const (
	leastFSELog, maxFSELog = 5, 12
)

// fseReader reads planes of finite state entropy (RFC 8878, 4.1). It keeps its
// tables. Streams are read from their end: where one is, is the number of bits left.
type fseReader struct {
	norm   [256]int16 // of each symbol, -1: less than one
	next   [256]uint16
	spread [1 << maxFSELog]uint8
	states [1 << maxFSELog]uint32 // next state<<16 | symbol<<8 | bits to add to it
}

// streamBits is how many bits a stream has: below the highest one that is set.
func streamBits(in []byte) (n int, ok bool) {
	if len(in) == 0 || in[len(in)-1] == 0 {
		return 0, false
	}
	return 8*len(in) - bits.LeadingZeros8(in[len(in)-1]) - 1, true
}

// topBits is the next bits of a stream of which n are left, from the highest bit on:
// at least 57, or all that there are, then zeros.
func topBits(in []byte, n int) uint64 {
	if n > 64 {
		end := (n + 7) >> 3
		return binary.LittleEndian.Uint64(in[end-8:end]) << uint(8*end-n)
	}
	var v uint64
	for i := min(len(in), 8) - 1; i >= 0; i-- {
		v = v<<8 | uint64(in[i])
	}
	return v << uint(64-n)
}

// decode reads a table and all symbols of a stream, at most len(dst); -1: they are not
// well formed.
func (r *fseReader) decode(dst, in []byte) (n int) {
	used, log := r.table(in)
	if used == 0 {
		return -1
	}
	in = in[used:]
	left, ok := streamBits(in)
	if left -= 2 * int(log); !ok || left < 0 {
		return -1
	}
	c := topBits(in, left+2*int(log))
	a := uint32(c >> (64 - log))
	b := uint32(c << log >> (64 - log))
	t := &r.states
	i := 0
	if end, skip := (left+7)>>3, uint32(-left&7); end >= 8 {
		// c is the bytes before end, of which skip bits were read.
		c = binary.LittleEndian.Uint64(in[end-8:end]) << skip
		for most := uint32(64 - 4*log); i+4 <= len(dst); i += 4 {
			if skip > most {
				end -= int(skip >> 3)
				skip &= 7
				if end < 8 {
					break
				}
				c = binary.LittleEndian.Uint64(in[end-8:end]) << skip
			}
			out := (*[4]byte)(dst[i:])
			e := t[a%(1<<maxFSELog)]
			f := t[b%(1<<maxFSELog)]
			a = e>>16 + uint32(c>>1>>(^e&63))
			c <<= e & 63
			b = f>>16 + uint32(c>>1>>(^f&63))
			c <<= f & 63
			out[0], out[1] = byte(e>>8), byte(f>>8)
			skip += e&63 + f&63
			e = t[a%(1<<maxFSELog)]
			f = t[b%(1<<maxFSELog)]
			a = e>>16 + uint32(c>>1>>(^e&63))
			c <<= e & 63
			b = f>>16 + uint32(c>>1>>(^f&63))
			c <<= f & 63
			out[2], out[3] = byte(e>>8), byte(f>>8)
			skip += e&63 + f&63
		}
		left = 8*end - int(skip)
	}
	whole := false // c holds all that is left
	for ; i+2 <= len(dst); i++ {
		if !whole {
			c, whole = topBits(in, left), left <= 64
		}
		e := t[a%(1<<maxFSELog)]
		dst[i] = byte(e >> 8)
		n := int(e & 63)
		if left == 0 && n > 0 {
			dst[i+1] = byte(t[b%(1<<maxFSELog)] >> 8)
			return i + 2
		}
		if left -= n; left < 0 {
			return -1
		}
		a, b = b, e>>16+uint32(c>>1>>(^e&63))
		c <<= e & 63
	}
	return -1
}

// table reads the likelihoods of symbols and makes the table of states. It
// answers with the bytes that it used; 0: they are not well formed.
func (r *fseReader) table(in []byte) (used int, log uint) {
	at := 4
	// Bits from the lowest on, zeros behind the end.
	peek := func() uint32 {
		if k := at >> 3; k+8 <= len(in) {
			return uint32(binary.LittleEndian.Uint64(in[k:]) >> (at & 7))
		}
		var v uint64
		for k := len(in) - 1; k >= at>>3; k-- {
			v = v<<8 | uint64(in[k])
		}
		return uint32(v >> (at & 7))
	}
	if len(in) < 4 {
		return 0, 0
	}
	log = uint(in[0]&15) + leastFSELog
	if log > maxFSELog {
		return 0, 0
	}
	size := 1 << log
	remaining, symbols := size, 0
	high := size // above it, states of symbols that are less than one
	for remaining > 0 {
		if symbols == len(r.norm) {
			return 0, 0
		}
		// A value from 0 to remaining+1, in one bit less where it is low enough.
		width := bits.Len(uint(remaining + 1))
		short := 1<<width - 2 - remaining
		v := int(peek()) & (1<<width - 1)
		if low := v & (1<<(width-1) - 1); low < short {
			v = low
			at += width - 1
		} else {
			if v >= 1<<(width-1) {
				v -= short
			}
			at += width
		}
		v--
		r.norm[symbols] = int16(v)
		symbols++
		switch {
		case v < 0:
			remaining--
			high--
			r.spread[high] = byte(symbols - 1)
			r.next[symbols-1] = 1
		case v > 0:
			remaining -= v
			r.next[symbols-1] = uint16(v)
		default: // and how many more there are of those, by threes
			for {
				n := int(peek() & 3)
				at += 2
				if symbols+n >= len(r.norm) {
					return 0, 0
				}
				clear(r.norm[symbols : symbols+n])
				symbols += n
				if n < 3 {
					break
				}
			}
		}
	}
	used = (at + 7) >> 3
	if symbols < 2 || used > len(in) {
		return 0, 0
	}
	mask := size - 1
	step := size>>1 + size>>3 + 3
	at = 0
	for s, n := range r.norm[:symbols] {
		for ; n > 0; n-- {
			r.spread[at&(1<<maxFSELog-1)] = byte(s)
			for at = (at + step) & mask; at >= high; at = (at + step) & mask {
			}
		}
	}
	t := r.states[:size]
	for u := range t {
		s := r.spread[u]
		n := uint32(r.next[s])
		r.next[s]++
		k := log + 1 - uint(bits.Len32(n))
		to := n<<k - uint32(size)
		if k == 0 && to == uint32(u) {
			return 0, 0 // for ever
		}
		t[u] = to<<16 | uint32(s)<<8 | uint32(k)
	}
	return used, log
}
