package store

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/store/block"
)

// Runs that come in any order, many at once or one by one, end as the same map.
func TestRunsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segs := []*segment{{num: 1}, {num: 2}}
		var one, many session
		var x index
		free := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := range 200 {
				if !yield(i) {
					return
				}
			}
		})).Draw(t, "order")
		for len(free) > 0 {
			n := rapid.IntRange(1, min(len(free), 80)).Draw(t, "n")
			g := rapid.SampledFrom(segs).Draw(t, "segment")
			var set gap.Set
			for _, q := range free[:n] {
				set.Add(moldcast.Range{First: moldcast.Seq(q + 1), Next: moldcast.Seq(q + 2)})
			}
			free = free[n:]
			rs := slices.Clone(set.Ranges())
			for _, r := range rs {
				one.addRun(r, g)
			}
			many.addRuns(rs, g)
			x.add(&block.Header{Messages: n, Runs: rs, Times: make([]block.RunTimes, len(rs))}, 0)
			if d := cmp.Diff(flat(one.runs), flat(many.runs)); d != "" {
				t.Fatal(d)
			}
			if !slices.IsSortedFunc(x.runs, func(a, b runRef) int { return int(a.r.First) - int(b.r.First) }) {
				t.Fatalf("%v", x.runs)
			}
		}
		if got := x.coverage(); len(got) != 1 || got[0] != (moldcast.Range{First: 1, Next: 201}) {
			t.Fatal(got)
		}
	})
}

func flat(runs []segRun) (out []string) {
	for _, r := range runs {
		out = append(out, r.r.String()+" in "+segmentName(r.seg.num))
	}
	return out
}
