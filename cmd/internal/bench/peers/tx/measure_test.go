package main

import (
	"math"
	"testing"
)

// A run that is 10 µs late from its second packet on, one that is 1 % slow, and
// one of which packets were not seen.
func TestMeasure(t *testing.T) {
	c := capture{stamps: map[uint64]int64{}}
	for i := range uint64(1001) {
		c.order = append(c.order, i+1)
		c.stamps[i+1] = day + int64(i)*100_000
	}
	run := func(at func(i int64) int64, skip uint64) course {
		got := map[uint64]int64{}
		for _, q := range c.order {
			if q == 1 || skip == 0 || q%skip != 0 {
				got[q] = 55 + at(int64(q)-1)
			}
		}
		x, err := measure(c, got)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9+math.Abs(want)/1e3 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	x := run(func(i int64) int64 { return i*100_000 + min(i, 1)*10_000 }, 0)
	near("schedule error", x.late50, 10)
	near("gap error", x.gap99, 0)
	near("drift", x.drift, 1e-7/0.09) // but for the first packet of the tenth
	x = run(func(i int64) int64 { return i * 101_000 }, 0)
	near("schedule error", x.late50, 500)
	near("schedule error", x.late99, 990)
	near("gap error", x.gap50, 1)
	near("drift", x.drift, 0.010011)
	x = run(func(i int64) int64 { return i * 100_000 }, 10)
	near("lost", x.lost, 100.0/1001)
	near("gap error", x.gap99, 0)
	if _, err := measure(c, map[uint64]int64{2: 5}); err == nil {
		t.Error("a run of which next to nothing was seen is measured")
	}
}
