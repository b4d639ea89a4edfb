package block

import (
	"encoding/binary"

	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/s2"
)

// The columns of the second reader: by the text of the documentation alone.

// secondColumns reads planes.
type secondColumns struct {
	r                    *secondReader
	script, group, coded []byte
}

func (r *secondReader) open(b []byte) *secondColumns {
	r.b = b
	how := r.u8()
	script, group := int(r.uv()), int(r.uv())
	unpack := func(how, raw int) []byte {
		b := r.take(int(r.uv()))
		var err error
		switch how {
		case 1:
			b, err = r.zstd.DecodeAll(b, nil)
		case 2:
			b, err = s2.Decode(nil, b)
		}
		if err != nil || len(b) != raw {
			r.t.Fatalf("second reader: %d bytes of columns, want %d: %v", len(b), raw, err)
		}
		return b
	}
	c := &secondColumns{r: r}
	c.script, c.group = unpack(how%16, script), unpack(how/16, group)
	c.coded = r.b
	return c
}

func (c *secondColumns) plane(n int) []byte {
	if n == 0 {
		return nil
	}
	c.r.b = c.script
	defer func() { c.script = c.r.b }()
	out := make([]byte, n)
	mode := c.r.u8()
	switch mode {
	case 0, 6:
		v := c.r.take(1)[0]
		for i := range out {
			out[i] = v
		}
		if mode == 6 {
			at := 0
			for k := c.r.uv(); k > 0; k-- {
				at += int(c.r.uv())
				out[at] = c.r.take(1)[0]
				at++
			}
		}
		return out
	case 1:
		out, c.coded = c.coded[:n], c.coded[n:]
		return out
	case 2:
		out, c.group = c.group[:n], c.group[n:]
		return out
	}
	size := int(c.r.uv())
	in := c.coded[:size]
	c.coded = c.coded[size:]
	var err error
	if mode == 5 {
		out, err = fse.Decompress(in, nil)
	} else {
		var s *huff0.Scratch
		if s, in, err = huff0.ReadTable(in, nil); err == nil {
			s.MaxDecodedSize = n
			if mode == 3 {
				out, err = s.Decompress1X(in)
			} else {
				out, err = s.Decompress4X(in, n)
			}
		}
	}
	if err != nil || len(out) != n {
		c.r.t.Fatalf("second reader: plane of mode %d: %v", mode, err)
	}
	return out
}

// split reads a plane that may be stored in two halves.
func (c *secondColumns) split(n int, by []byte) []byte {
	if by == nil {
		return c.plane(n)
	}
	zeros := 0
	for _, v := range by {
		if v == 0 {
			zeros++
		}
	}
	a, z := c.plane(zeros), c.plane(n-zeros)
	var out []byte
	for _, v := range by {
		if v == 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, z = append(out, z[len(z)-1]), z[:len(z)-1]
		}
	}
	return out
}

func number(b []byte, little bool) (v uint64) {
	for i := range b {
		if little {
			v = v<<8 | uint64(b[len(b)-1-i])
		} else {
			v = v<<8 | uint64(b[i])
		}
	}
	return v
}

func putNumber(b []byte, little bool, v uint64) {
	for i := range b {
		if little {
			b[i] = byte(v >> (8 * i))
		} else {
			b[len(b)-1-i] = byte(v >> (8 * i))
		}
	}
}

type secondShape struct {
	first  byte
	width  int
	rows   int
	steps  [][5]int // kind, at, bytes (+16: little), from, arg
	feeds  [][2]int
	by     map[int]int
	differ [][]byte // rows
	last   []byte
}

func (r *secondReader) columns(b []byte, raw int) (rows []byte) {
	for len(rows) < raw {
		r.b = b
		size, messages := int(r.uv()), int(r.uv())
		stored := r.take(int(r.u32()))
		b = r.b
		part := r.part(stored, messages)
		if len(part) != size {
			r.t.Fatalf("second reader: part of %d bytes, want %d", len(part), size)
		}
		rows = append(rows, part...)
	}
	return rows
}

func (r *secondReader) part(stored []byte, messages int) (rows []byte) {
	c := r.open(stored)
	r.b = c.script
	shapes := make([]secondShape, r.uv())
	tables := make([]struct {
		width, bits, rows int
		slots             []uint64
		found             [][]byte
	}, r.uv())
	for i := range tables {
		tables[i].width = r.u8()
	}
	others := messages
	for i := range shapes {
		x := &shapes[i]
		x.width, x.first, x.rows, x.by = r.u8(), byte(r.u8()), int(r.uv()), map[int]int{}
		others -= x.rows
		for n := r.u8(); n > 0; n-- {
			k := r.u8()
			s := [5]int{k >> 5, r.u8(), k & 31}
			s[3] = s[1]
			switch s[0] {
			case 3:
				s[3], s[4] = r.u8(), r.u8()
			case 4:
				s[3] = r.u8()
			case 5:
				s[4] = r.u8()
			}
			x.steps = append(x.steps, s)
		}
		for n := r.u8(); n > 0; n-- {
			f := [2]int{r.u8(), r.u8()}
			x.feeds = append(x.feeds, f)
			tables[f[0]].rows += x.rows
		}
		for n := r.u8(); n > 0; n-- {
			j := r.u8()
			x.by[j] = r.u8()
		}
	}
	for i := range tables {
		t := &tables[i]
		for t.bits = 6; t.bits < 14 && 1<<(t.bits-1) <= t.rows; t.bits++ {
		}
		t.slots, t.found = make([]uint64, 1<<t.bits), make([][]byte, 1<<t.bits)
	}
	c.script = r.b
	ids := make([]byte, messages)
	if len(shapes) > 0 {
		ids = c.plane(messages)
	}
	high, low := c.plane(others), c.plane(others)
	size := 0
	for i := range high {
		size += int(high[i])<<8 | int(low[i])
	}
	text := c.plane(size)
	for i := range shapes {
		x := &shapes[i]
		x.differ = make([][]byte, x.rows)
		planes := [][]byte{nil}
		for j := 1; j < x.width; j++ {
			var by []byte
			if k, ok := x.by[j]; ok {
				if by = planes[k]; k == 0 {
					by = make([]byte, x.rows)
					for i := range by {
						by[i] = x.first
					}
				}
			}
			planes = append(planes, c.split(x.rows, by))
		}
		for k := range x.differ {
			x.differ[k] = []byte{x.first}
			for j := 1; j < x.width; j++ {
				x.differ[k] = append(x.differ[k], planes[j][k])
			}
		}
	}
	var before []byte
	for _, id := range ids {
		if int(id) == len(shapes) {
			n := int(high[0])<<8 | int(low[0])
			high, low = high[1:], low[1:]
			before, text = text[:n], text[n:]
			rows = append(binary.BigEndian.AppendUint16(rows, uint16(n)), before...)
			continue
		}
		x := &shapes[id]
		m := x.differ[0]
		x.differ = x.differ[1:]
		var found []byte
		slot := func(table int, at int) (*uint64, *[]byte, uint64) {
			t := &tables[table]
			h := number(m[at:at+t.width], false) * 0x9E3779B97F4A7C15
			k := h >> (64 - t.bits)
			return &t.slots[k], &t.found[k], h >> (64 - t.bits - 11) % 2048
		}
		for _, s := range x.steps {
			at, n, little := s[1], s[2]%16, s[2] >= 16
			var other []byte
			switch s[0] {
			case 1:
				other = x.last
			case 2:
				other = before
			case 3:
				other = shapes[s[4]].last
			case 4:
				other = found
			case 5:
				tag, row, want := slot(s[4], at)
				if found = *row; *tag != want {
					found = nil
				}
				continue
			}
			if s[3]+n > len(other) {
				other = make([]byte, s[3]+n)
			}
			if n == 1 {
				m[at] += other[s[3]]
				continue
			}
			z := number(m[at:at+n], false)
			d := z >> 1
			if z&1 == 1 {
				d = ^d
			}
			putNumber(m[at:at+n], little, d+number(other[s[3]:s[3]+n], little))
		}
		for _, f := range x.feeds {
			tag, row, is := slot(f[0], f[1])
			*tag, *row = is, m
		}
		x.last, before = m, m
		rows = append(binary.BigEndian.AppendUint16(rows, uint16(len(m))), m...)
	}
	return rows
}

// lagged makes the raw bytes of the times.
func (r *secondReader) lagged(b, payload, boundaries []byte) (raw []byte) {
	type clock struct {
		at, n  int
		little bool
		unit   uint64
	}
	power := func(e int) (v uint64) {
		for v = 1; e > 0; e-- {
			v *= 10
		}
		return v
	}
	clocks := map[[2]int]clock{}
	r.b = b
	n := r.u8()
	for range n {
		shape := [2]int{r.u8(), r.u8()}
		k := r.u8()
		clocks[shape] = clock{at: r.u8(), n: k % 16, little: k >= 16, unit: power(r.u8())}
	}
	exp := r.u8()
	unit := power(exp)
	unfold := func(z uint64) int64 { return int64(z>>1) ^ -int64(z&1) }
	lags := []uint64{r.uv()}
	width, tail := r.u8(), int(r.uv())
	columns := r.b
	var count []int
	r.b = boundaries
	for k := r.uv(); k > 0; k-- {
		r.uv()
		for k := r.uv(); k > 0; k-- {
			count = append(count, int(r.uv()))
		}
	}
	for len(lags) < len(count) {
		lags = append(lags, 0)
	}
	c := r.open(columns)
	var above []byte
	for range width {
		above = c.split(len(count)-1, above)
		for i, v := range above {
			lags[i+1] = lags[i+1]<<8 | uint64(v)
		}
	}
	rest := c.plane(tail)
	raw = append(raw, byte(exp))
	var feed uint64
	var mean, last int64
	for i := range count {
		var m []byte
		for range count[i] {
			size := 2 + int(binary.BigEndian.Uint16(payload))
			m, payload = payload[2:size], payload[size:]
		}
		d := unfold(lags[i])
		t := last + d
		if n > 0 {
			if len(m) > 0 {
				if k, ok := clocks[[2]int{len(m), int(m[0])}]; ok {
					feed = number(m[k.at:k.at+k.n], k.little) * k.unit / unit
				}
			}
			if t = int64(feed) + mean + d; i == 0 {
				mean = d
			} else {
				mean += d >> 3
			}
		}
		raw = binary.AppendVarint(raw, t-last)
		last = t
	}
	return append(raw, rest...)
}
