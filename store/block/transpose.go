package block

import "encoding/binary"

// transpose makes w planes of n bytes of n rows of w: dst[j*n+i] = src[i*w+j].
func transpose(dst, src []byte, w, n int) {
	i := 0
	for ; i+8 <= n; i += 8 {
		tile := src[i*w : (i+8)*w]
		j := 0
		for ; j+8 <= w; j += 8 {
			var r [8]uint64
			for k := range r {
				r[k] = binary.LittleEndian.Uint64(tile[k*w+j:])
			}
			turn(&r)
			for k := range r {
				binary.LittleEndian.PutUint64(dst[(j+k)*n+i:], r[k])
			}
		}
		for ; j < w; j++ {
			out := dst[j*n+i:][:8]
			for k := range out {
				out[k] = tile[k*w+j]
			}
		}
	}
	for ; i < n; i++ {
		for j, v := range src[i*w : (i+1)*w] {
			dst[j*n+i] = v
		}
	}
}

// turn transposes 8 rows of 8 bytes, in registers.
func turn(r *[8]uint64) {
	const one, two, four = 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF
	a, b, c, d, e, f, g, h := r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]
	a, b = a&one|b&one<<8, a>>8&one|b&^one
	c, d = c&one|d&one<<8, c>>8&one|d&^one
	e, f = e&one|f&one<<8, e>>8&one|f&^one
	g, h = g&one|h&one<<8, g>>8&one|h&^one
	a, c = a&two|c&two<<16, a>>16&two|c&^two
	b, d = b&two|d&two<<16, b>>16&two|d&^two
	e, g = e&two|g&two<<16, e>>16&two|g&^two
	f, h = f&two|h&two<<16, f>>16&two|h&^two
	r[0], r[4] = a&four|e<<32, a>>32|e&^four
	r[1], r[5] = b&four|f<<32, b>>32|f&^four
	r[2], r[6] = c&four|g<<32, c>>32|g&^four
	r[3], r[7] = d&four|h<<32, d>>32|h&^four
}

// load is the number of n bytes at b[at:], 1 <= n <= 8.
func load(b []byte, at, n int, little bool) uint64 {
	if at+8 <= len(b) {
		if little {
			return binary.LittleEndian.Uint64(b[at:]) & (1<<(8*n) - 1)
		}
		return binary.BigEndian.Uint64(b[at:]) >> (64 - 8*n)
	}
	var v uint64
	if little {
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | uint64(b[at+i])
		}
		return v
	}
	for _, c := range b[at : at+n] {
		v = v<<8 | uint64(c)
	}
	return v
}

// fold maps differences of n bytes to numbers that are small where those are,
// in either direction: 0, -1, 1, -2 … to 0, 1, 2, 3 …; unfold is the way back.
func fold(d uint64, n int) uint64 {
	shift := uint(64 - 8*n)
	s := int64(d<<shift) >> shift
	return (uint64(s<<1) ^ uint64(s>>63)) << shift >> shift
}

func unfold(z uint64) uint64 { return z>>1 ^ -(z & 1) }
