package gap

// deque is an ordered list in one slice that is as cheap to change at its
// front as at its back: what lies between the change and the nearer end is
// moved. Gaps are filled oldest first and opened at the far end, so both ends
// are where the work is.
type deque[T any] struct {
	buf []T
	lo  int // buf[:lo] is room at the front
}

// items aliases the list until the next change.
func (d *deque[T]) items() []T { return d.buf[d.lo:] }

func (d *deque[T]) len() int { return len(d.buf) - d.lo }

func (d *deque[T]) push(v T) {
	if len(d.buf) == cap(d.buf) && d.lo > len(d.buf)/2 {
		d.buf = d.buf[:copy(d.buf, d.buf[d.lo:])]
		d.lo = 0
	}
	d.buf = append(d.buf, v)
}

// splice turns items()[i:j] into k items for the caller to set.
func (d *deque[T]) splice(i, j, k int) {
	n := d.len()
	by := k - (j - i)
	front := i < n-j
	switch {
	case by == 0:
	case by < 0 && front:
		copy(d.buf[d.lo-by:], d.buf[d.lo:d.lo+i])
		d.lo -= by
	case by < 0:
		copy(d.buf[d.lo+i+k:], d.buf[d.lo+j:])
		d.buf = d.buf[:len(d.buf)+by]
	case front && d.lo < by:
		lo := n/2 + 8
		buf := make([]T, lo+n+by, lo+2*n+by+8)
		copy(buf[lo:], d.buf[d.lo:d.lo+i])
		copy(buf[lo+i+k:], d.buf[d.lo+j:])
		d.buf, d.lo = buf, lo
	case front:
		copy(d.buf[d.lo-by:], d.buf[d.lo:d.lo+i])
		d.lo -= by
	default:
		for range by {
			var zero T
			d.push(zero)
		}
		copy(d.buf[d.lo+i+k:], d.buf[d.lo+j:len(d.buf)-by])
	}
}
