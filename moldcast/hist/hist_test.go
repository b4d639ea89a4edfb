package hist

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBucketsAdjoin(t *testing.T) {
	for sub, buckets := range map[int]int{eighth: Buckets, thirtieth: fine} {
		for i := range buckets - 1 {
			end := top(i, sub)
			if bucket(end, sub) != i || bucket(end+1, sub) != i+1 {
				t.Fatalf("1/%d: bucket %d ends at %d, which is in %d; the next value in %d", 1<<sub, i, end, bucket(end, sub), bucket(end+1, sub))
			}
		}
		if bucket(math.MaxInt64, sub) != buckets-1 || bucket(-5, sub) != 0 || top(buckets-1, sub) != math.MaxInt64 {
			t.Fatal("the ends are not where they belong")
		}
		if lo := top(buckets-2, sub); lo < 17*60e9 {
			t.Fatalf("the last bucket begins at %d ns", lo)
		}
	}
	if Bucket(1000) != bucket(1000, eighth) || Top(50) != top(50, eighth) {
		t.Fatal("Bucket and Top are not a Histogram's")
	}
}

// TestQuantiles: against all values, sorted; merged from two as well.
func TestQuantiles(t *testing.T) {
	t.Run("1/8", func(t *testing.T) { quantiles[[Buckets]uint64](t, 1.125) })
	t.Run("1/32", func(t *testing.T) { quantiles[[fine]uint64](t, 1.03125) })
}

func quantiles[C Counts](t *testing.T, factor float64) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 1e12)), 1, 200).Draw(t, "values")
		cut := rapid.IntRange(0, len(values)).Draw(t, "cut")
		var h, o Of[C]
		var sum uint64
		for i, v := range values {
			sum += uint64(v)
			if i < cut {
				h.Add(v)
			} else {
				o.Add(v)
			}
		}
		h.Merge(&o)
		slices.Sort(values)
		if h.Count() != uint64(len(values)) || h.Sum() != sum || h.Max() != values[len(values)-1] {
			t.Fatalf("count %d, sum %d, max %d of %v", h.Count(), h.Sum(), h.Max(), values)
		}
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
			want := values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
			if got := h.Quantile(q); got < want || float64(got) > float64(want)*factor {
				t.Fatalf("quantile %v is %d, want %d", q, got, want)
			}
		}
		h.Octaves(0, 40, func(top int64, n uint64) {
			want, _ := slices.BinarySearch(values, top+1)
			if n != uint64(want) {
				t.Fatalf("%d values up to %d, want %d", n, top, want)
			}
		})
	})
}

func TestEmpty(t *testing.T) {
	var h Histogram
	if h.Quantile(0.99) != 0 || h.Max() != 0 || h.Count() != 0 {
		t.Fatal("not empty")
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	var h, o Histogram
	var f Fine
	if n := testing.AllocsPerRun(100, func() { h.Add(12345); o.Merge(&h); h.Quantile(0.99); f.Add(5); f.Quantile(0.5) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
