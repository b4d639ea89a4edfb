// Package hist counts values in log-linear buckets of fixed number: times in
// nanoseconds, depths in messages. Counting costs a few instructions and
// allocates nothing; a quantile is at most an eighth above the true one, or a
// thirty-second with Fine.
package hist

import (
	"math"
	"math/bits"
)

// Each power of two is split into 1<<sub buckets, values below that have one
// each. What is beyond the last bucket, 2^40 or some 18 minutes in nanoseconds,
// counts there; Max knows it all the same.
const (
	topBits   = 40
	eighth    = 3 // sub of a Histogram
	thirtieth = 5 // sub of a Fine

	// Buckets is how many a Histogram has.
	Buckets = (topBits - eighth + 1) << eighth
	fine    = (topBits - thirtieth + 1) << thirtieth
)

// Bucket is where v counts in a Histogram; negative values are 0.
func Bucket(v int64) int { return bucket(v, eighth) }

// Top is the highest value of bucket i of a Histogram; math.MaxInt64 of the
// last.
func Top(i int) int64 { return top(i, eighth) }

func bucket(v int64, sub int) int {
	if v < 1<<sub {
		return int(max(v, 0))
	}
	if v >= 1<<topBits {
		v = 1<<topBits - 1
	}
	e := bits.Len64(uint64(v)) - 1 - sub // v>>e is in [1<<sub, 2<<sub)
	return e<<sub + int(v>>e)
}

func top(i, sub int) int64 {
	switch {
	case i < 1<<sub:
		return int64(i)
	case i >= (topBits-sub+1)<<sub-1:
		return math.MaxInt64
	}
	e := i>>sub - 1
	return int64(1<<sub+i&(1<<sub-1)+1)<<e - 1
}

// Counts are the buckets of a histogram: how many there are to a power of two.
type Counts interface{ [Buckets]uint64 | [fine]uint64 }

// Histogram of values, with eight buckets to a power of two: 2.4 KB.
type Histogram = Of[[Buckets]uint64]

// Fine is a Histogram with 32 buckets to a power of two: 9.2 KB.
type Fine = Of[[fine]uint64]

// Of is a Histogram or a Fine. The zero value is empty. It is its owner's: not
// safe for use by several goroutines.
type Of[C Counts] struct {
	counts C
	n      uint64
	sum    uint64
	max    int64
}

// sub is the logarithm of how many buckets there are to a power of two.
func (h *Of[C]) sub() int {
	if len(h.counts) == Buckets {
		return eighth
	}
	return thirtieth
}

// Add counts v; a negative one as 0.
func (h *Of[C]) Add(v int64) {
	v = max(v, 0)
	h.counts[bucket(v, h.sub())]++
	h.n++
	h.sum += uint64(v)
	h.max = max(h.max, v)
}

// Merge adds what o has counted.
func (h *Of[C]) Merge(o *Of[C]) {
	if o.n == 0 {
		return
	}
	for i := range len(h.counts) {
		h.counts[i] += o.counts[i]
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count is how many values were added.
func (h *Of[C]) Count() uint64 { return h.n }

// Sum is that of all values.
func (h *Of[C]) Sum() uint64 { return h.sum }

// Max is the highest value; 0 when empty.
func (h *Of[C]) Max() int64 { return h.max }

// Quantile is a value that the share q (0..1) of all does not exceed: the top
// of its bucket, and never above Max. 0 when empty.
func (h *Of[C]) Quantile(q float64) int64 {
	if h.n == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(h.n)))
	rank = min(max(rank, 1), h.n)
	seen := uint64(0)
	for i := range len(h.counts) {
		if seen += h.counts[i]; seen >= rank {
			return min(top(i, h.sub()), h.max)
		}
	}
	return h.max
}

// Octaves calls fn with 2^k-1 for k in [from, to), and how many values are not
// above it: the cumulative buckets of a coarser histogram. to is at most 40.
func (h *Of[C]) Octaves(from, to int, fn func(top int64, count uint64)) {
	i, seen := 0, uint64(0)
	for k := from; k < to; k++ {
		most := int64(1)<<k - 1
		for ; i < len(h.counts) && top(i, h.sub()) <= most; i++ {
			seen += h.counts[i]
		}
		fn(most, seen)
	}
}
