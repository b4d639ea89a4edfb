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

// scatter is the way back: row i, of w bytes, goes to dst[at[i]:].
func scatter(dst, planes []byte, at []uint32, w int) {
	n := len(at)
	i := 0
	for ; i+8 <= n; i += 8 {
		to := (*[8]uint32)(at[i:])
		j := 0
		for ; j+8 <= w; j += 8 {
			var r [8]uint64
			for k := range r {
				r[k] = binary.LittleEndian.Uint64(planes[(j+k)*n+i:])
			}
			turn(&r)
			for k := range r {
				binary.LittleEndian.PutUint64(dst[int(to[k])+j:], r[k])
			}
		}
		for ; j < w; j++ {
			in := planes[j*n+i:][:8]
			for k, v := range in {
				dst[int(to[k])+j] = v
			}
		}
	}
	for ; i < n; i++ {
		row := dst[at[i]:][:w]
		for j := range row {
			row[j] = planes[j*n+i]
		}
	}
}

// turn transposes 8 rows of 8 bytes.
func turn(r *[8]uint64) {
	for k := 0; k < 8; k += 2 {
		a, b := r[k], r[k+1]
		r[k] = a&0x00FF00FF00FF00FF | b&0x00FF00FF00FF00FF<<8
		r[k+1] = a>>8&0x00FF00FF00FF00FF | b&0xFF00FF00FF00FF00
	}
	for _, k := range [4]int{0, 1, 4, 5} {
		a, b := r[k], r[k+2]
		r[k] = a&0x0000FFFF0000FFFF | b&0x0000FFFF0000FFFF<<16
		r[k+2] = a>>16&0x0000FFFF0000FFFF | b&0xFFFF0000FFFF0000
	}
	for k := range 4 {
		a, b := r[k], r[k+4]
		r[k] = a&0xFFFFFFFF | b<<32
		r[k+4] = a>>32 | b&0xFFFFFFFF00000000
	}
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

// store is the way back; it writes n bytes and no more.
func store(b []byte, at, n int, little bool, v uint64) {
	if little {
		switch n {
		case 8:
			binary.LittleEndian.PutUint64(b[at:], v)
		case 4:
			binary.LittleEndian.PutUint32(b[at:], uint32(v))
		default:
			for i := range n {
				b[at+i] = byte(v >> (8 * i))
			}
		}
		return
	}
	switch n {
	case 8:
		binary.BigEndian.PutUint64(b[at:], v)
	case 4:
		binary.BigEndian.PutUint32(b[at:], uint32(v))
	case 6:
		binary.BigEndian.PutUint32(b[at:], uint32(v>>16))
		binary.BigEndian.PutUint16(b[at+4:], uint16(v))
	case 2:
		binary.BigEndian.PutUint16(b[at:], uint16(v))
	case 3:
		b = b[at : at+3]
		b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
	default:
		for i := range n {
			b[at+i] = byte(v >> (8 * (n - 1 - i)))
		}
	}
}

// fold maps differences of n bytes to numbers that are small where those are,
// in either direction: 0, -1, 1, -2 … to 0, 1, 2, 3 …; unfold is the way back.
func fold(d uint64, n int) uint64 {
	shift := uint(64 - 8*n)
	s := int64(d<<shift) >> shift
	return (uint64(s<<1) ^ uint64(s>>63)) << shift >> shift
}

func unfold(z uint64) uint64 { return z>>1 ^ -(z & 1) }
