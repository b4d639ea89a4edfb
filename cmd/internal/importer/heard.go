package importer

import (
	"math/bits"
	"sort"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// heard is what of a session was heard live, and when at the edges of each
// range: what tells the time that belongs to a retransmission. In order a
// message costs O(1) and no allocation, elsewhere a search.
type heard struct {
	set     gap.Set
	first   map[moldcast.Seq]moldcast.Stamp // by the first of a range
	last    map[moldcast.Seq]moldcast.Stamp // by one past a range, but the highest
	topTime moldcast.Stamp                  // of the highest range's last message
}

// newHeard begins with what the archive holds; first is the time of its first
// message. A time of 0 is not known.
func newHeard(held moldcast.Held, first moldcast.Stamp) heard {
	h := heard{first: make(map[moldcast.Seq]moldcast.Stamp), last: make(map[moldcast.Seq]moldcast.Stamp)}
	from := held.First
	for _, x := range held.Holes {
		h.put(moldcast.Range{First: from, Next: x.Range.First}, first, x.Before)
		from, first = x.Range.Next, x.After
	}
	h.put(moldcast.Range{First: from, Next: held.Head}, first, held.HeadTime)
	return h
}

// put appends a range.
func (h *heard) put(r moldcast.Range, first, last moldcast.Stamp) {
	if r.First == 0 || r.Empty() {
		return
	}
	if n := h.set.Len(); n > 0 {
		h.last[h.set.Ranges()[n-1].Next] = h.topTime
	}
	h.set.Add(r)
	h.first[r.First], h.topTime = first, last
}

// add takes up r, heard at t.
func (h *heard) add(r moldcast.Range, t moldcast.Stamp) {
	rs := h.set.Ranges()
	n := len(rs)
	switch {
	case r.Empty():
		return
	case n == 0 || r.First > rs[n-1].Next:
		h.put(r, t, t)
		return
	case r.First >= rs[n-1].First:
		if r.Next > rs[n-1].Next {
			h.set.Add(r)
			h.topTime = t
		}
		return
	}
	// It touches ranges i up to, without, j.
	i := sort.Search(n, func(i int) bool { return rs[i].Next >= r.First })
	j := i + sort.Search(n-i, func(k int) bool { return rs[i+k].First > r.Next })
	first, last := t, t
	if i < j && rs[i].First <= r.First {
		first = h.first[rs[i].First]
	}
	if i < j && rs[j-1].Next >= r.Next {
		last = h.lastOf(j-1, n, rs[j-1].Next)
	}
	for _, x := range rs[i:j] {
		delete(h.first, x.First)
		delete(h.last, x.Next)
	}
	h.set.Add(r)
	rs = h.set.Ranges()
	h.first[rs[i].First] = first
	if i == len(rs)-1 {
		h.topTime = last
	} else {
		h.last[rs[i].Next] = last
	}
}

func (h *heard) lastOf(i, n int, next moldcast.Seq) moldcast.Stamp {
	if i == n-1 {
		return h.topTime
	}
	return h.last[next]
}

// between is the time that belongs to seq: interpolated by sequence between
// the nearest messages heard live on both sides; that of the one side where
// the other is not known; at without any, or where seq was heard itself.
func (h *heard) between(seq moldcast.Seq, at moldcast.Stamp) moldcast.Stamp {
	rs := h.set.Ranges()
	n := len(rs)
	i := sort.Search(n, func(i int) bool { return rs[i].Next > seq })
	var before, after moldcast.Stamp
	var r moldcast.Range
	if i < n {
		if rs[i].First <= seq {
			return at
		}
		r.Next, after = rs[i].First, h.first[rs[i].First]
	}
	if i > 0 {
		r.First, before = rs[i-1].Next, h.lastOf(i-1, n, rs[i-1].Next)
	}
	switch {
	case before == 0 && after == 0:
		return at
	case before == 0:
		return after
	case after <= before:
		return before
	}
	hi, lo := bits.Mul64(uint64(after-before), uint64(seq-r.First)+1)
	q, _ := bits.Div64(hi, lo, r.Len()+1) // seq lies in r, so this is less than after-before
	return before + moldcast.Stamp(q)
}
