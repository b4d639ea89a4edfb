package capfile

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"
)

const (
	// maxPartial bounds the datagrams that wait for fragments: 64 KiB each at
	// most. The oldest goes when one more comes.
	maxPartial = 128

	// partialAge is how far apart the fragments of a datagram may be: beyond
	// it the identification was used again (RFC 791 gives a datagram 15 s to
	// RFC 8200's 60 s).
	partialAge = 30 * time.Second
)

type fragKey struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
}

// partial is a datagram of which some fragments are missing.
type partial struct {
	p     Packet // of the first fragment that came
	key   fragKey
	buf   []byte
	spans []span // held, sorted, apart
	total int    // length of all, -1 until the last fragment came
	bad   bool   // fragments overlap and disagree
}

type span struct{ from, to int }

// defrag reassembles IPv4 and IPv6 fragments. Zero value is ready. It is by hand:
// ip4defrag bounds neither datagrams nor bytes, keeps the caller's memory, joins
// fragments that overlap and disagree, never completes a datagram with a
// fragment that came twice, and adds offsets in 16 bits, which wrap.
type defrag struct {
	byKey map[fragKey]*partial
	order []*partial // oldest first
	out   []Packet   // incomplete ones that had to go
	free  []*partial
}

// add offers one fragment. true: the datagram that it completes, its payload
// the UDP header and all behind it, valid until the next call.
func (d *defrag) add(p Packet, k fragKey, off int, more bool, body []byte) (Packet, bool) {
	if d.byKey == nil {
		d.byKey = make(map[fragKey]*partial)
	}
	x := d.byKey[k]
	if x != nil && time.Duration(p.Stamp-x.p.Stamp).Abs() > partialAge {
		d.drop(x)
		x = nil
	}
	if x == nil {
		if len(d.order) == maxPartial {
			d.drop(d.order[0])
		}
		if n := len(d.free); n > 0 {
			x, d.free = d.free[n-1], d.free[:n-1]
		} else {
			x = new(partial)
		}
		*x = partial{p: p, key: k, buf: x.buf[:0], spans: x.spans[:0], total: -1}
		d.byKey[k] = x
		d.order = append(d.order, x)
	}
	if p.Dst.Port() != 0 {
		x.p.Src, x.p.Dst = p.Src, p.Dst
	}
	x.put(off, more, body)
	if x.total < 0 || len(x.spans) != 1 || x.spans[0] != (span{0, x.total}) {
		return Packet{}, false
	}
	d.remove(x)
	whole := p
	whole.Src, whole.Dst = x.p.Src, x.p.Dst
	whole.Payload = x.buf[:x.total]
	if x.bad {
		whole.Fault = Disagree
		whole.Payload = nil
	}
	return whole, true
}

func (x *partial) put(off int, more bool, body []byte) {
	end := off + len(body)
	if !more {
		if x.total >= 0 && x.total != end {
			x.bad = true
		}
		x.total = max(x.total, end)
	}
	if end == off {
		return
	}
	for len(x.buf) < end {
		x.buf = append(x.buf, make([]byte, end-len(x.buf))...)
	}
	at := 0
	merged := span{off, end}
	var kept [1 << 4]span
	out := kept[:0]
	for ; at < len(x.spans); at++ {
		s := x.spans[at]
		if s.to < merged.from {
			out = append(out, s)
			continue
		}
		if s.from > merged.to {
			break
		}
		if lo, hi := max(s.from, off), min(s.to, end); lo < hi && !bytes.Equal(x.buf[lo:hi], body[lo-off:hi-off]) {
			x.bad = true
		}
		merged = span{min(merged.from, s.from), max(merged.to, s.to)}
	}
	out = append(out, merged)
	out = append(out, x.spans[at:]...)
	x.spans = append(x.spans[:0], out...)
	copy(x.buf[off:], body)
	if x.total >= 0 && len(x.buf) > x.total {
		x.bad = true
		x.total = len(x.buf)
	}
}

func (d *defrag) remove(x *partial) {
	delete(d.byKey, x.key)
	for i, o := range d.order {
		if o == x {
			d.order = append(d.order[:i], d.order[i+1:]...)
			break
		}
	}
	d.free = append(d.free, x)
}

// drop gives up on x.
func (d *defrag) drop(x *partial) {
	d.out = append(d.out, x.incomplete())
	d.remove(x)
}

func (x *partial) incomplete() Packet {
	p := x.p
	p.Fault, p.Payload = Incomplete, nil
	if len(x.spans) > 0 && x.spans[0].from == 0 && x.spans[0].to >= 8 {
		p.Src = netip.AddrPortFrom(p.Src.Addr(), binary.BigEndian.Uint16(x.buf))
		p.Dst = netip.AddrPortFrom(p.Dst.Addr(), binary.BigEndian.Uint16(x.buf[2:]))
	}
	return p
}

// evicted gives a datagram that was given up.
func (d *defrag) evicted() (Packet, bool) {
	if len(d.out) == 0 {
		return Packet{}, false
	}
	p := d.out[0]
	d.out = d.out[1:]
	return p, true
}

// oldest gives up the oldest datagram that still waits.
func (d *defrag) oldest() (Packet, bool) {
	if len(d.order) == 0 {
		return Packet{}, false
	}
	x := d.order[0]
	p := x.incomplete()
	d.remove(x)
	return p, true
}
