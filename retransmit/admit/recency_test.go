package admit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRecency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Recency
		var want []int32 // the oldest first
		for range rapid.IntRange(0, 40).Draw(t, "uses") {
			i := rapid.Int32Range(1, int32(len(want))+1).Draw(t, "row")
			want = append(slices.DeleteFunc(want, func(k int32) bool { return k == i }), i)
			r.Use(i)
			var got []int32
			for k := r.Oldest(); k != 0; k = r.Newer(k) {
				got = append(got, k)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("after %d: %v, want %v", i, got, want)
			}
		}
		if len(want) == 0 && r.Oldest() != 0 {
			t.Fatal("a row of none")
		}
	})
}
