package block

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// huffWriter writes a Huffman tree description and one stream or four (RFC 8878,
// 4.2). What it compresses was counted before. It keeps its tables.
type huffWriter struct {
	fse     fseWriter
	codes   [256]uint32 // of each symbol: bits<<16 | code
	weights [256]uint8
	keys    [2][256]uint32 // count<<8 | symbol, sorted
	depth   [256]uint32
}

const (
	maxHuffBits   = 11
	weightsFSELog = 6
)

// append appends the tree and the stream, or the jump table and four, of p: of at least
// two different bytes, in four of at least leastHuff4. h is how often each is
// there, highest the highest of them. It is nil where there is no such form.
func (w *huffWriter) append(dst, p []byte, h *[256]uint32, highest int, four bool) []byte {
	dst = slices.Grow(dst, 1+highest+len(p)*maxHuffBits/8+6+4*16)
	if dst = w.appendTree(dst, w.build(h, highest, len(p)), highest); dst == nil {
		return nil
	}
	if !four {
		return w.appendStream(dst, p)
	}
	jump := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0)
	each := (len(p) + 3) / 4
	for i := range 3 {
		at := len(dst)
		dst = w.appendStream(dst, p[:each])
		p = p[each:]
		binary.LittleEndian.PutUint16(dst[jump+2*i:], uint16(len(dst)-at))
	}
	return w.appendStream(dst, p)
}

// build makes the codes, of n symbols. It answers with the bits of the longest.
func (w *huffWriter) build(h *[256]uint32, highest, n int) (longest int) {
	sorted := w.sort(h, highest)
	// Fewer lengths make a shorter tree, which for few symbols is worth more.
	most := max(bits.Len(uint(n-1))-2, min(bits.Len(uint(n)), bits.Len(uint(highest))+1), 5)
	lengths := w.lengths(sorted, min(most, maxHuffBits))
	// The most frequent, which come last, are the shortest. Codes of a length
	// begin behind those that are longer.
	var code [maxHuffBits + 2]uint32
	k := len(sorted) - 1
	for n := 1; n <= maxHuffBits; n++ {
		for range lengths[n] {
			w.codes[byte(sorted[k])] = uint32(n) << 16
			longest = n
			k--
		}
	}
	for n := longest; n > 1; n-- {
		code[n-1] = (code[n] + lengths[n]) >> 1
	}
	for s, c := range h[:highest+1] {
		if c == 0 {
			w.weights[s] = 0
			continue
		}
		n := w.codes[s] >> 16
		w.codes[s] |= code[n]
		code[n]++
		w.weights[s] = uint8(longest + 1 - int(n))
	}
	return longest
}

// sort is the symbols with their counts, the fewest first.
func (w *huffWriter) sort(h *[256]uint32, highest int) []uint32 {
	n := 0
	var lows, highs [256]uint16
	most := uint32(0)
	for s, c := range h[:highest+1] {
		if c != 0 {
			w.keys[0][n&255] = c<<8 | uint32(s)
			lows[byte(c)]++
			highs[byte(c>>8)]++
			most = max(most, c)
			n++
		}
	}
	a, b := w.keys[0][:n], w.keys[1][:n]
	pass := func(counts *[256]uint16, shift uint) {
		at := uint16(0)
		for i, c := range counts {
			counts[i] = at
			at += c
		}
		for _, k := range a {
			i := byte(k >> shift)
			b[counts[i]] = k
			counts[i]++
		}
		a, b = b, a
	}
	pass(&lows, 8)
	if most > 255 {
		pass(&highs, 16)
	}
	return a
}

// lengths is how many symbols have codes of each length, where sorted are their
// counts: Huffman's, by A. Moffat and J. Katajainen, In-place calculation of
// minimum-redundancy codes (1995); cut to most bits.
func (w *huffWriter) lengths(sorted []uint32, most int) (out [maxHuffBits + 1]uint32) {
	n := len(sorted)
	a := w.depth[:n]
	for i, k := range sorted {
		a[i] = k >> 8
	}
	// Nodes, each of two leaves or nodes; in place of a node that was taken is
	// its parent.
	a[0] += a[1]
	root, leaf := 0, 2
	for next := 1; next < n-1; next++ {
		if leaf >= n || a[root] < a[leaf] {
			a[next] = a[root]
			a[root] = uint32(next)
			root++
		} else {
			a[next] = a[leaf]
			leaf++
		}
		if leaf >= n || root < next && a[root] < a[leaf] {
			a[next] += a[root]
			a[root] = uint32(next)
			root++
		} else {
			a[next] += a[leaf]
			leaf++
		}
	}
	a[n-2] = 0
	for next := n - 3; next >= 0; next-- {
		a[next] = a[a[next]] + 1
	}
	// At each depth, places that no node takes are leaves.
	places, node := 1, n-2
	for depth := uint32(0); places > 0; depth++ {
		nodes := 0
		for ; node >= 0 && a[node] == depth; node-- {
			nodes++
		}
		out[min(int(depth), most)] += uint32(places - nodes)
		places = 2 * nodes
	}
	// Those that were cut take more room than there is. One of length k, the
	// least frequent, that becomes longer makes place for it and for one of those
	// that were cut: where that costs least.
	all := uint32(0)
	for k, c := range out[:most+1] {
		all += c << (most - k)
	}
	for ; all > 1<<most; all-- {
		longer := out[most] // how many codes are
		cut := int(sorted[longer-1] >> 8)
		best, least := 0, math.MaxInt
		for k := most - 1; k > 0; k-- {
			if out[k] > 0 {
				if cost := int(sorted[longer]>>8) - (most-k-1)*cut; cost < least {
					best, least = k, cost
				}
			}
			longer += out[k]
		}
		out[best]--
		out[best+1] += 2
		out[most]--
	}
	return out
}

// appendTree appends the weights of all symbols but the highest; nil: there is no
// form of them.
func (w *huffWriter) appendTree(dst []byte, longest, highest int) []byte {
	weights := w.weights[:highest]
	at := len(dst)
	if highest > 2 {
		var h [256]uint32
		most, top := uint32(0), 0
		for _, v := range weights {
			h[v]++
		}
		for v, c := range h[:maxHuffBits+1] {
			if c > 0 {
				most, top = max(most, c), v
			}
		}
		if int(most) < highest && most > 1 {
			dst = w.fse.append(append(dst, 0), weights, &h, top, weightsFSELog)
			if n := len(dst) - at - 1; n < (highest+1)/2 {
				dst[at] = byte(n)
				return dst
			}
			dst = dst[:at]
		}
	}
	if highest > 128 {
		return nil
	}
	dst = append(dst, byte(127+highest))
	w.weights[highest] = 0
	for i := 0; i < highest; i += 2 {
		dst = append(dst, w.weights[i]<<4|w.weights[i+1])
	}
	return dst
}

// appendStream appends the symbols, from the last to the first. dst has room.
func (w *huffWriter) appendStream(dst, p []byte) []byte {
	at := len(dst)
	out := dst[:cap(dst)]
	c, n := uint64(0), uint(0)
	i := len(p)
	for ; i&3 != 0; i-- {
		k := w.codes[p[i-1]]
		c |= uint64(k&0xFFFF) << (n & 63)
		n += uint(k >> 16)
	}
	for ; i > 0; i -= 4 {
		// At most 33 bits, or 7, are there: the former once.
		binary.LittleEndian.PutUint64(out[at:], c)
		at += int(n >> 3)
		c >>= n &^ 7 & 63
		n &= 7
		q := (*[4]byte)(p[i-4:])
		k3, k2, k1, k0 := w.codes[q[3]], w.codes[q[2]], w.codes[q[1]], w.codes[q[0]]
		c |= uint64(k3&0xFFFF) << (n & 63)
		n += uint(k3 >> 16)
		c |= uint64(k2&0xFFFF) << (n & 63)
		n += uint(k2 >> 16)
		c |= uint64(k1&0xFFFF) << (n & 63)
		n += uint(k1 >> 16)
		c |= uint64(k0&0xFFFF) << (n & 63)
		n += uint(k0 >> 16)
	}
	return endBits(out[:at], c, n)
}
