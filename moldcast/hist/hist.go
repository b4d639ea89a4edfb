// Package hist counts values in log-linear buckets of fixed number: times in
// nanoseconds, depths in messages. Counting costs a few instructions and
// allocates nothing; a quantile is at most an eighth above the true one.
package hist

import (
	"math"
	"math/bits"
)

// Each power of two is split into perOctave buckets, values below perOctave
// have one each. What is beyond the last bucket, some 17 minutes in
// nanoseconds, counts there; Max knows it all the same.
const (
	subBits   = 3
	perOctave = 1 << subBits
	octaves   = 37
	Buckets   = perOctave * (octaves + 1)
)

// Bucket is where v counts; negative values are 0.
func Bucket(v int64) int {
	if v < perOctave {
		return int(max(v, 0))
	}
	e := bits.Len64(uint64(v)) - 1 - subBits // v>>e is in [perOctave, 2*perOctave)
	return min(perOctave*e+int(v>>e), Buckets-1)
}

// Top is the highest value of bucket i; math.MaxInt64 of the last.
func Top(i int) int64 {
	switch {
	case i < perOctave:
		return int64(i)
	case i >= Buckets-1:
		return math.MaxInt64
	}
	e := i/perOctave - 1
	return int64(perOctave+i%perOctave+1)<<e - 1
}

// Histogram of values. The zero value is empty. It is its owner's: not safe for
// use by several goroutines.
type Histogram struct {
	counts [Buckets]uint64
	n      uint64
	sum    uint64
	max    int64
}

// Add counts v; a negative one as 0.
func (h *Histogram) Add(v int64) {
	v = max(v, 0)
	h.counts[Bucket(v)]++
	h.n++
	h.sum += uint64(v)
	h.max = max(h.max, v)
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count is how many values were added.
func (h *Histogram) Count() uint64 { return h.n }

// Sum is that of all values.
func (h *Histogram) Sum() uint64 { return h.sum }

// Max is the highest value; 0 when empty.
func (h *Histogram) Max() int64 { return h.max }

// Quantile is a value that the share q (0..1) of all does not exceed: the top
// of its bucket, and never above Max. 0 when empty.
func (h *Histogram) Quantile(q float64) int64 {
	if h.n == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(h.n)))
	rank = min(max(rank, 1), h.n)
	seen := uint64(0)
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			return min(Top(i), h.max)
		}
	}
	return h.max
}

// Octaves calls fn with 2^k-1 for k in [from, to), and how many values are not
// above it: the cumulative buckets of a coarser histogram. to is at most 40.
func (h *Histogram) Octaves(from, to int, fn func(top int64, count uint64)) {
	i, seen := 0, uint64(0)
	for k := from; k < to; k++ {
		top := int64(1)<<k - 1
		for ; i < Buckets && Top(i) <= top; i++ {
			seen += h.counts[i]
		}
		fn(top, seen)
	}
}
