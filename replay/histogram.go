package replay

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets of a logarithmic scale: 32 to each
// power of two, so a quantile is right to 3 %. Its memory is fixed. The sender
// owns it.
type histogram struct {
	count   uint64
	max     uint64
	buckets [(64 - subBits + 1) << subBits]uint64
}

const subBits = 5

func bucketOf(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - subBits
	return (shift+1)<<subBits + int(v>>shift)&(1<<subBits-1)
}

// bucketTop is the largest value of bucket i.
func bucketTop(i int) uint64 {
	if i < 1<<subBits {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return (1<<subBits+uint64(i&(1<<subBits-1))+1)<<shift - 1
}

// add counts d; what is negative counts as 0.
func (h *histogram) add(d time.Duration) {
	v := uint64(max(d, 0))
	h.count++
	h.max = max(h.max, v)
	h.buckets[bucketOf(v)]++
}

// quantile is the smallest bucket top that at least the part q, 0..1, of what
// was counted does not exceed; never above the maximum. 0 when empty.
func (h *histogram) quantile(q float64) time.Duration {
	want := max(uint64(q*float64(h.count)+0.999999), 1)
	seen := uint64(0)
	for i, n := range h.buckets {
		seen += n
		if n > 0 && seen >= want {
			return time.Duration(min(bucketTop(i), h.max))
		}
	}
	return time.Duration(h.max)
}
