package block

import "encoding/binary"

// A stripe is eight columns of rows, which are written together.
type stripe struct {
	at   int               // the first column
	word uint64            // the bytes of those that are one byte in all rows
	few  [fewColumns]uint8 // the others, where there are no more; from at
	n    int               // of few; more than fewColumns: all columns are transposed
}

// fewColumns are written byte by byte.
const fewColumns = 2

// scatterer writes rows to where they lie. It keeps its buffers.
type scatterer struct {
	flat    [maxRow]bool // of each plane: it is one byte
	stripes []stripe
}

// scatter writes row i, of w bytes, of planes of len(at) bytes to dst[at[i]:].
func (s *scatterer) scatter(dst, planes []byte, at []uint32, w int) {
	n := len(at)
	i := 0
	if w >= 8 {
		s.plan(planes, w, n)
		for ; i+8 <= n; i += 8 {
			to := (*[8]uint32)(at[i:])
			for k := range s.stripes {
				s.stripes[k].write(dst, planes, to, i, n)
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

// plan finds the stripes of rows of w bytes, 8 or more. The last one lies over
// the one before rather than beyond the row.
func (s *scatterer) plan(planes []byte, w, n int) {
	s.stripes = s.stripes[:0]
	for end := 8; end < w+8; end += 8 {
		x := stripe{at: min(end, w) - 8}
		for j := range 8 {
			switch {
			case s.flat[x.at+j]:
				x.word |= uint64(planes[(x.at+j)*n]) << (8 * j)
				continue
			case x.n < fewColumns:
				x.few[x.n] = uint8(j)
			}
			x.n++
		}
		s.stripes = append(s.stripes, x)
	}
}

// write writes the stripe of rows i to i+7 of n.
func (x *stripe) write(dst, planes []byte, to *[8]uint32, i, n int) {
	if x.n > fewColumns {
		var r [8]uint64
		for k := range r {
			r[k] = binary.LittleEndian.Uint64(planes[(x.at+k)*n+i:])
		}
		turn(&r)
		for k := range r {
			binary.LittleEndian.PutUint64(dst[int(to[k])+x.at:], r[k])
		}
		return
	}
	word := x.word
	switch x.n {
	case 0:
		for _, o := range to {
			binary.LittleEndian.PutUint64(dst[int(o)+x.at:], word)
		}
	case 1:
		shift := 8 * x.few[0] & 63
		in := (*[8]byte)(planes[(x.at+int(x.few[0]))*n+i:])
		for k, o := range to {
			binary.LittleEndian.PutUint64(dst[int(o)+x.at:], word|uint64(in[k])<<shift)
		}
	case 2:
		shift, shift2 := 8*x.few[0]&63, 8*x.few[1]&63
		in := (*[8]byte)(planes[(x.at+int(x.few[0]))*n+i:])
		in2 := (*[8]byte)(planes[(x.at+int(x.few[1]))*n+i:])
		for k, o := range to {
			binary.LittleEndian.PutUint64(dst[int(o)+x.at:], word|uint64(in[k])<<shift|uint64(in2[k])<<shift2)
		}
	}
}
