package retransmit

import "net/netip"

// fair is a bounded queue that serves clients in turn, one item of each, and
// the items of a client in their order. So a client with a deep queue delays
// another by one item, not by its queue. When it is full, who has most in it
// makes room for who has less. It has one owner; nothing but the first use
// of a client's address allocates.
type fair[T any] struct {
	items []fairItem[T] // 0 is none
	free  int32
	n     int

	rows     []fairRow // 0 heads the ring of those that have items: next is whose turn it is
	freeRow  int32
	byKey    map[netip.Addr]int32
	capacity int

	with    []int32 // how many rows have so many items
	most    int     // of any row
	longest int32   // a row that had most when an item was last put
}

type fairItem[T any] struct {
	v    T
	next int32
}

type fairRow struct {
	key         netip.Addr
	first, last int32 // items
	n           int
	prev, next  int32
}

func newFair[T any](capacity int) *fair[T] {
	f := &fair[T]{
		items: make([]fairItem[T], capacity+1), rows: make([]fairRow, capacity+1),
		byKey: make(map[netip.Addr]int32, capacity), capacity: capacity, with: make([]int32, capacity+1),
	}
	for i := range capacity {
		f.items[i+1].next, f.free = f.free, int32(i+1)
		f.rows[i+1].next, f.freeRow = f.freeRow, int32(i+1)
	}
	return f
}

func (f *fair[T]) len() int { return f.n }

// put queues v for a client. What had to go for it, the oldest of the client
// that has most, or v itself where nobody has more than this one, is dropped.
func (f *fair[T]) put(key netip.Addr, v T) (dropped T, drop bool) {
	r := f.byKey[key]
	if f.n == f.capacity {
		if dropped, drop = f.dropFor(key); !drop {
			return v, true
		}
		r = f.byKey[key] // the place is another's now, maybe
	}
	if r == 0 {
		r = f.freeRow
		row := &f.rows[r]
		f.freeRow = row.next
		*row = fairRow{key: key}
		f.byKey[key] = r
		f.link(r)
	}
	row := &f.rows[r]
	i := f.free
	f.free = f.items[i].next
	f.items[i] = fairItem[T]{v: v}
	if row.n == 0 {
		row.first = i
	} else {
		f.items[row.last].next = i
	}
	row.last = i
	f.count(row, 1)
	if row.n == f.most {
		f.longest = r
	}
	return dropped, drop
}

// dropFor takes out the oldest item of the client that has most, if that is
// more than what the client key would have with another.
func (f *fair[T]) dropFor(key netip.Addr) (dropped T, ok bool) {
	if f.most <= f.rows[f.byKey[key]].n+1 {
		return dropped, false
	}
	if f.rows[f.longest].n < f.most { // it was served since
		f.longest = f.rows[0].next
		for f.rows[f.longest].n < f.most {
			f.longest = f.rows[f.longest].next
		}
	}
	return f.take(f.longest), true
}

// count takes note that row has one more item, or one less.
func (f *fair[T]) count(row *fairRow, by int) {
	f.with[row.n]--
	row.n += by
	f.with[row.n]++
	f.n += by
	if row.n > f.most {
		f.most = row.n
	} else if f.with[f.most] == 0 {
		f.most--
	}
}

// pop is the next item.
func (f *fair[T]) pop() (v T, ok bool) {
	r := f.rows[0].next
	if r == 0 {
		return v, false
	}
	if f.rows[r].n > 1 {
		f.unlink(r)
		f.link(r)
	}
	return f.take(r), true
}

// take takes out the oldest item of row r.
func (f *fair[T]) take(r int32) T {
	row := &f.rows[r]
	i := row.first
	v := f.items[i].v
	row.first = f.items[i].next
	f.items[i] = fairItem[T]{next: f.free}
	f.free = i
	f.count(row, -1)
	if row.n == 0 {
		delete(f.byKey, row.key)
		f.unlink(r)
		*row = fairRow{next: f.freeRow}
		f.freeRow = r
	}
	return v
}

func (f *fair[T]) link(r int32) {
	last := f.rows[0].prev
	f.rows[r].prev, f.rows[r].next = last, 0
	f.rows[last].next = r
	f.rows[0].prev = r
}

func (f *fair[T]) unlink(r int32) {
	row := f.rows[r]
	f.rows[row.prev].next = row.next
	f.rows[row.next].prev = row.prev
}
