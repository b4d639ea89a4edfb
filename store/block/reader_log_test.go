package block

import (
	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

// secondLog is a line log as it is stored.
type secondLog struct{ field, data []byte }

// agreeLog wants the second reader to read the line log that b has.
func (r *secondReader) agreeLog(pieces []flat, b *Block) {
	r.t.Helper()
	type part struct {
		LogPart
		Heard []moldcast.Heard
	}
	var want, got []part
	for i := range b.LogParts() {
		p := part{LogPart: b.LogPart(i)}
		for line := range p.Lines {
			p.Heard = append(p.Heard, b.HeardOn(i, line)...)
		}
		want = append(want, p)
	}
	if r.log != nil {
		r.b = r.log.field
		r.take(32)
		var id int64
		for n := r.uv(); n > 0; n-- {
			var p part
			id += r.sv()
			p.ID = moldcast.Stamp(id)
			p.Before, p.Lost = r.uv(), r.uv()
			flags := r.u8()
			p.Last, p.Bare = flags&1 != 0, flags&2 != 0
			p.Lines = r.u8()
			if p.LogPart.Heard = int(r.uv()); p.LogPart.Heard > 0 {
				p.From = moldcast.Stamp(id + r.sv())
				p.To = p.From + moldcast.Stamp(r.uv())
			}
			got = append(got, p)
		}
		r.b = r.log.data
		unit := map[int]int64{0: 1, 3: 1e3, 6: 1e6, 9: 1e9}[r.u8()]
		nOps, nRest, width := int(r.uv()), int(r.uv()), r.u8()
		c := r.open(r.b)
		rest := make([]uint64, nRest)
		var above []byte
		for range width {
			above = c.split(nRest, above)
			for i, v := range above {
				rest[i] = rest[i]<<8 | uint64(v)
			}
		}
		r.b = c.plane(nOps)
		starts := map[moldcast.Seq]*flat{}
		for i := range pieces {
			starts[pieces[i].First] = &pieces[i]
		}
		for i := range got {
			p := &got[i]
			for line := range p.Lines {
				r.logLine(p.From, unit, uint8(line), starts, &rest, &p.Heard)
			}
		}
		if len(r.b) > 0 || len(rest) > 0 {
			r.t.Error("second reader: line log goes on")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Error("second reader: line log: ", diff)
	}
}

func (r *secondReader) logLine(from moldcast.Stamp, unit int64, line uint8, starts map[moldcast.Seq]*flat, rest *[]uint64, out *[]moldcast.Heard) {
	var list []moldcast.Heard
	var next moldcast.Seq
	var before uint16
	took := func(h moldcast.Heard) {
		h.Line = line
		list = append(list, h)
		next = h.First
		if h.Count != 0 && h.Count != 0xFFFF {
			next, before = h.First+moldcast.Seq(h.Count), h.Count
		}
	}
	n := int(r.uv())
	for len(list) < n {
		for k := r.uv(); k > 0; k-- {
			h := moldcast.Heard{First: next, Count: before}
			if p := starts[next]; p != nil && p.N < 0xFFFF {
				h.Count = uint16(p.N)
			}
			took(h)
		}
		if len(list) < n {
			h := moldcast.Heard{First: next + moldcast.Seq(r.sv())}
			h.Count = uint16(r.uv())
			h.Flags = moldcast.HeardFlags(r.u8())
			took(h)
		}
	}
	odd := map[int]int64{}
	at := 0
	for k := r.uv(); k > 0; k-- {
		at += int(r.uv())
		odd[at] = r.sv()
		at++
	}
	last, mean, own := int64(from)/unit, int64(0), 0
	for i := range list {
		h := &list[i]
		var p *flat
		if h.Count != 0 && h.Count != 0xFFFF && h.Flags == 0 {
			if p = starts[h.First]; p != nil && p.Flags&1 != 0 {
				p = nil
			}
		}
		if p != nil && p.Line == line {
			last = int64(p.Heard)/unit + odd[own]
			own++
		} else {
			z := (*rest)[0]
			*rest = (*rest)[1:]
			d := int64(z / 2)
			if z%2 == 1 {
				d = -d - 1
			}
			if p != nil {
				last = int64(p.Heard)/unit + mean + d
				mean += d >> 3
			} else {
				last += d
			}
		}
		h.Stamp = moldcast.Stamp(last * unit)
	}
	*out = append(*out, list...)
}
