package block

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Columns are planes of bytes, of which each is stored in the mode that suits
// it: a script says which, and how to read them; planes with repetitions go
// to one group, which is compressed together; the others are coded for
// themselves.

// Modes of a plane.
const (
	modeConst  = 0 // one byte, in the script
	modeRaw    = 1 // as it is
	modeGroup  = 2 // in the group
	modeHuff1  = 3 // Huffman, one stream
	modeHuff4  = 4 // Huffman, four
	modeFSE    = 5 // finite state entropy
	modeSparse = 6 // one byte but for few, in the script
	maxEntropy = 1 << 16
	leastHuff4 = 1 << 10
	leastCoded = 32  // shorter planes go to the group
	fewOf      = 128 // one of so many is few
)

// Compressors of script and group.
const (
	packNone = 0
	packZstd = 1
	packS2   = 2
)

const maxScript = 256 << 10

// columnWriter collects planes. It keeps its buffers.
type columnWriter struct {
	script, group, coded []byte

	plain  bool // all to the group: fast
	counts [256]uint32
	huff   huffWriter
	fse    fseWriter
	nlog   []float32 // -log2(i/4096)
	ctx    []byte
	buf    []byte
}

func newColumnWriter() *columnWriter {
	w := &columnWriter{nlog: make([]float32, 4097)}
	w.nlog[0] = 12
	for i := 1; i < len(w.nlog); i++ {
		w.nlog[i] = float32(12 - math.Log2(float64(i)))
	}
	return w
}

func (w *columnWriter) reset(plain bool) {
	w.script, w.group, w.coded, w.plain = w.script[:0], w.group[:0], w.coded[:0], plain
}

// append appends all that was collected.
func (w *columnWriter) append(dst []byte, z *zstd.Encoder, fast bool) []byte {
	head := len(dst)
	dst = append(dst, 0)
	dst = binary.AppendUvarint(dst, uint64(len(w.script)))
	dst = binary.AppendUvarint(dst, uint64(len(w.group)))
	var how byte
	for i, raw := range [2][]byte{w.script, w.group} {
		c := byte(packNone)
		out := raw
		if len(raw) > 0 {
			if fast {
				c = packS2
				if n := s2.MaxEncodedLen(len(raw)); cap(w.buf) < n {
					w.buf = make([]byte, n+n/2)
				}
				out = s2.Encode(w.buf[:cap(w.buf)], raw)
			} else {
				c = packZstd
				w.buf = z.EncodeAll(raw, w.buf[:0])
				out = w.buf
			}
			if len(out) >= len(raw) {
				c, out = packNone, raw
			}
		}
		how |= c << (4 * i)
		dst = binary.AppendUvarint(dst, uint64(len(out)))
		dst = append(dst, out...)
	}
	dst[head] = how
	return append(dst, w.coded...)
}

// split adds a plane, in two parts where by is not nil: the bytes at which by
// is 0, then the others.
func (w *columnWriter) split(p, by []byte) {
	if by == nil || w.plain {
		w.plane(p)
		return
	}
	if cap(w.ctx) < len(p) {
		w.ctx = make([]byte, len(p)+len(p)/2)
	}
	// From both ends, so that each byte is looked at once; the second part
	// comes out reversed, which is how it is stored.
	out := w.ctx[:len(p)]
	lo, hi := 0, len(p)-1
	for i, v := range p {
		other := (int(by[i]) + 255) >> 8 // 0 or 1: a branch would be guessed wrong half the time
		out[lo+(hi-lo)&-other] = v
		lo += 1 - other
		hi -= other
	}
	w.plane(out[:lo])
	w.plane(out[lo:])
}

// plane adds one plane. One without bytes leaves no trace.
func (w *columnWriter) plane(p []byte) {
	n := len(p)
	if n == 0 {
		return
	}
	if w.plain {
		w.script = append(w.script, modeGroup)
		w.group = append(w.group, p...)
		return
	}
	if bytes.Equal(p[1:], p[:n-1]) {
		w.script = append(w.script, modeConst, p[0])
		return
	}
	h := &w.counts
	same := histogram(h, p)
	var most uint32
	usual, highest := byte(0), 0
	scale := 4096 / float32(n)
	var total, iid float32
	for k, x := range h {
		if x == 0 {
			continue
		}
		highest = k
		if x > most {
			most, usual = x, byte(k)
		}
		f := float32(x)
		total += f * w.nlog[int(f*scale)]
		iid += f * f
	}
	if few := n - int(most); few <= n/fewOf && len(w.script) < maxScript/4 {
		w.sparse(p, usual, few)
		return
	}
	bits := total / float32(n) // a byte
	repeats := float32(same)*2/float32(n) - iid/float32(n)/float32(n)
	coded, mode := []byte(nil), byte(modeRaw)
	switch {
	case n < leastCoded || n > maxEntropy || repeats > 0.12:
		w.script = append(w.script, modeGroup)
		w.group = append(w.group, p...)
		return
	case bits > 7.9:
	case bits < 1.3 || n < 256:
		mode, coded = modeFSE, w.fse.append(w.coded, p, h, highest, usualFSELog)
	case n < leastHuff4:
		mode, coded = modeHuff1, w.huff.append(w.coded, p, h, highest, false)
	default:
		mode, coded = modeHuff4, w.huff.append(w.coded, p, h, highest, true)
	}
	if size := len(coded) - len(w.coded); coded != nil && size < n {
		w.script = append(w.script, mode)
		w.script = binary.AppendUvarint(w.script, uint64(size))
		w.coded = coded
		return
	}
	w.script = append(w.script, modeRaw)
	w.coded = append(w.coded, p...)
}

// histogram makes h how often p has each byte. It answers with how many bytes
// at even places have an equal one behind them.
func histogram(h *[256]uint32, p []byte) (same int) {
	var k [4][256]uint32 // so that equal bytes do not wait for one another
	const even = 0x00FF00FF00FF00FF
	other := uint64(0)
	i := 0
	for ; i+8 <= len(p); i += 8 {
		x := binary.LittleEndian.Uint64(p[i:])
		k[0][byte(x)]++
		k[1][byte(x>>8)]++
		k[2][byte(x>>16)]++
		k[3][byte(x>>24)]++
		k[0][byte(x>>32)]++
		k[1][byte(x>>40)]++
		k[2][byte(x>>48)]++
		k[3][byte(x>>56)]++
		d := ((x^x>>8)&even + even) >> 8 & 0x0001000100010001
		d += d >> 32
		other += (d + d>>16) & 7
	}
	same = i/2 - int(other)
	for ; i < len(p); i++ {
		k[0][p[i]]++
		if i%2 == 0 && i+1 < len(p) && p[i] == p[i+1] {
			same++
		}
	}
	for i := range h {
		h[i] = k[0][i] + k[1][i] + k[2][i] + k[3][i]
	}
	return same
}

// sparse adds a plane that is of one byte but for few.
func (w *columnWriter) sparse(p []byte, usual byte, few int) {
	w.script = append(w.script, modeSparse, usual)
	w.script = binary.AppendUvarint(w.script, uint64(few))
	next := 0
	for i, v := range p {
		if v != usual {
			w.script = binary.AppendUvarint(w.script, uint64(i-next))
			w.script = append(w.script, v)
			next = i + 1
		}
	}
}

// columnReader reads what a columnWriter wrote. The first fault sticks in s,
// and planes read after it are zeros.
type columnReader struct {
	s            scanner // of the script
	script       []byte
	group, coded []byte // what is left
	groupBuf     []byte

	huff *huff0.Scratch
	fse  fseReader
	ctx  []byte
}

// open reads everything but the planes: of a group of at most limit bytes.
func (r *columnReader) open(b []byte, limit int, z *zstd.Decoder) bool {
	s := scanner{b: b}
	how := s.byte()
	script, group := s.uvarint(), s.uvarint()
	if s.reason != "" || script > maxScript || group > uint64(limit) {
		return false
	}
	if !unpack(&r.script, how&15, s.bytes(s.uvarint()), int(script), z) ||
		!unpack(&r.groupBuf, how>>4, s.bytes(s.uvarint()), int(group), z) || s.reason != "" {
		return false
	}
	r.s, r.group, r.coded = scanner{b: r.script}, r.groupBuf, b[s.at:]
	return true
}

// unpack decompresses stored into buf, which becomes raw bytes long.
func unpack(buf *[]byte, how byte, stored []byte, raw int, z *zstd.Decoder) bool {
	if how == packNone {
		*buf = append((*buf)[:0], stored...)
		return len(stored) == raw
	}
	if cap(*buf) < raw+slack {
		*buf = make([]byte, 0, raw+raw/4+slack)
	}
	switch how {
	case packZstd:
		// The limit is the capacity given, so that a frame that lies about
		// its size stops there.
		out, err := z.DecodeAll(stored, (*buf)[:0:raw+slack])
		if err != nil || len(out) != raw || raw == 0 {
			return false
		}
		if &out[0] == &(*buf)[:1][0] {
			out = (*buf)[:raw] // with all of its capacity
		}
		*buf = out
		return true
	case packS2:
		n, err := s2.DecodedLen(stored)
		if err != nil || n != raw {
			return false
		}
		out, err := s2.Decode((*buf)[:raw], stored)
		if err != nil || len(out) != raw {
			return false
		}
		*buf = (*buf)[:raw]
		return true
	}
	return false
}

// end wants everything read.
func (r *columnReader) end() {
	r.s.end()
	if len(r.group) > 0 || len(r.coded) > 0 {
		r.s.fail("planes go on behind the last one")
	}
}

// split reads a plane that was split by another; flat: it is all one byte.
func (r *columnReader) split(dst, by []byte) (flat bool) {
	if by == nil {
		return r.plane(dst)
	}
	if cap(r.ctx) < len(dst) {
		r.ctx = make([]byte, len(dst)+len(dst)/2)
	}
	in, by := r.ctx[:len(dst)], by[:len(dst)]
	zeros := bytes.Count(by, []byte{0})
	if zeros == len(dst) {
		return r.plane(dst)
	}
	r.plane(in[:zeros])
	r.plane(in[zeros:])
	lo, left := 0, len(in) // of the first part, where we are; of both
	for i, v := range by {
		left--
		other := (int(v) + 255) >> 8 // 0 or 1
		dst[i] = in[lo+left&-other]
		lo += 1 - other
	}
	return false
}

// plane reads len(dst) bytes; flat: they are all one.
func (r *columnReader) plane(dst []byte) (flat bool) {
	n := len(dst)
	if n == 0 {
		return false
	}
	switch mode := r.s.byte(); mode {
	case modeConst:
		fillPlane(dst, r.s.byte())
		flat = true
	case modeSparse:
		fillPlane(dst, r.s.byte())
		next := uint64(0)
		for range r.s.uvarint() {
			gap, v := r.s.uvarint(), r.s.byte()
			if gap >= uint64(n)-next {
				r.s.fail("plane cut short")
				break
			}
			dst[next+gap] = v
			next += gap + 1
		}
	case modeRaw:
		if len(r.coded) < n {
			r.s.fail("plane cut short")
			break
		}
		r.coded = r.coded[copy(dst, r.coded):]
	case modeGroup:
		if len(r.group) < n {
			r.s.fail("group cut short")
			break
		}
		r.group = r.group[copy(dst, r.group):]
	case modeHuff1, modeHuff4, modeFSE:
		l := r.s.uvarint()
		if n > maxEntropy || l > uint64(len(r.coded)) {
			r.s.fail("plane cut short")
			break
		}
		in := r.coded[:l]
		r.coded = r.coded[l:]
		if !r.decode(mode, dst, in) {
			r.s.fail("plane does not decode to its length")
		}
	default:
		r.s.fail("mode of a plane is not known")
	}
	if r.s.reason != "" {
		clear(dst)
	}
	return flat
}

func fillPlane(dst []byte, v byte) {
	if v == 0 || len(dst) == 0 {
		clear(dst)
		return
	}
	dst[0] = v
	for n := 1; n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}

func (r *columnReader) decode(mode byte, dst, in []byte) bool {
	if mode == modeFSE {
		return r.fse.decode(dst, in) == len(dst)
	}
	s, in, err := huff0.ReadTable(in, r.huff)
	if err != nil {
		return false
	}
	r.huff = s
	var out []byte
	if mode == modeHuff1 {
		out, err = s.Decoder().Decompress1X(dst[:0:len(dst)], in)
	} else {
		out, err = s.Decoder().Decompress4X(dst[:0:len(dst)], in)
	}
	if err != nil || len(out) != len(dst) {
		return false
	}
	if &out[0] != &dst[0] {
		copy(dst, out)
	}
	return true
}
