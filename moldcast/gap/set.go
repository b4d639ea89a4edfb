package gap

import "slices"

// Set is a set of sequences, kept as sorted, disjoint ranges that never touch:
// the coverage of an archive, or what is missing. The zero value is empty.
// Not for use by several goroutines at once.
//
// Adding in order costs O(1) and does not allocate; elsewhere a binary search,
// and moving what lies between the change and the nearer end.
type Set struct {
	list  deque[Range]
	count uint64
}

// after is the index of the first range that ends beyond q.
func (s *Set) after(q Seq) int {
	rs := s.list.items()
	lo, hi := 0, len(rs)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if rs[mid].Next > q {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// Add puts r into s, merging it with what it overlaps or touches.
func (s *Set) Add(r Range) {
	if r.Empty() {
		return
	}
	rs := s.list.items()
	n := len(rs)
	if n == 0 || rs[n-1].Next < r.First {
		s.list.push(r)
		s.count += r.Len()
		return
	}
	if last := &rs[n-1]; last.First <= r.First {
		if r.Next > last.Next {
			s.count += uint64(r.Next - last.Next)
			last.Next = r.Next
		}
		return
	}
	i := s.after(r.First - min(r.First, 1)) // the first that overlaps or touches
	j := i
	for ; j < n && rs[j].First <= r.Next; j++ {
		s.count -= rs[j].Len()
	}
	if i < j {
		r.First = min(r.First, rs[i].First)
		r.Next = max(r.Next, rs[j-1].Next)
	}
	s.list.splice(i, j, 1)
	s.list.items()[i] = r
	s.count += r.Len()
}

// Remove takes r out of s.
func (s *Set) Remove(r Range) {
	if r.Empty() {
		return
	}
	rs := s.list.items()
	i := s.after(r.First)
	j := i
	for ; j < len(rs) && rs[j].First < r.Next; j++ {
		s.count -= rs[j].Len()
	}
	if i == j {
		return
	}
	var keep [2]Range
	k := 0
	for _, p := range [2]Range{{rs[i].First, r.First}, {r.Next, rs[j-1].Next}} {
		if !p.Empty() {
			keep[k] = p
			k++
			s.count += p.Len()
		}
	}
	s.list.splice(i, j, k)
	copy(s.list.items()[i:], keep[:k])
}

// Contains reports whether q is in s.
func (s *Set) Contains(q Seq) bool {
	i := s.after(q)
	rs := s.list.items()
	return i < len(rs) && rs[i].First <= q
}

// Cut is the leading part of r that is wholly in s (held) or wholly outside.
// It is not empty unless r is.
func (s *Set) Cut(r Range) (part Range, held bool) {
	if r.Empty() {
		return r, false
	}
	i := s.after(r.First)
	rs := s.list.items()
	switch {
	case i == len(rs):
		return r, false
	case rs[i].First <= r.First:
		return Range{r.First, min(r.Next, rs[i].Next)}, true
	}
	return Range{r.First, min(r.Next, rs[i].First)}, false
}

// Len is the number of ranges.
func (s *Set) Len() int { return s.list.len() }

// Count is the number of sequences.
func (s *Set) Count() uint64 { return s.count }

// Ranges lists the ranges in order. They alias s: read only, valid until s
// changes.
func (s *Set) Ranges() []Range { return s.list.items() }

// Bounds runs from the lowest sequence to one past the highest; the zero Range
// when s is empty.
func (s *Set) Bounds() Range {
	rs := s.list.items()
	if len(rs) == 0 {
		return Range{}
	}
	return Range{rs[0].First, rs[len(rs)-1].Next}
}

// Missing lists, in order and in a new slice, the parts of in that s lacks.
func (s *Set) Missing(in Range) []Range {
	var out []Range
	for !in.Empty() {
		part, held := s.Cut(in)
		if !held {
			out = append(out, part)
		}
		in.First = part.Next
	}
	return out
}

// Clone is an independent copy of s.
func (s *Set) Clone() Set {
	return Set{list: deque[Range]{buf: slices.Clone(s.list.items())}, count: s.count}
}

// Clear empties s and keeps its memory.
func (s *Set) Clear() {
	s.list.buf, s.list.lo, s.count = s.list.buf[:0], 0, 0
}
