package mcast

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// through sends n numbered packets over a link and gives what comes out.
func through(m *Impairment, n int) (out []int) {
	emit := func(b []byte) { out = append(out, int(binary.BigEndian.Uint32(b))) }
	buf := make([]byte, 4)
	for i := range n {
		binary.BigEndian.PutUint32(buf, uint32(i))
		m.Apply(buf, emit)
	}
	m.Flush(emit)
	return out
}

func TestImpairment(t *testing.T) {
	const n = 200000
	for _, c := range []struct {
		cfg                  Impair
		loss, twice, reorder float64
	}{
		{Impair{}, 0, 0, 0},
		{Impair{Loss: 0.05, Seed: 1}, 0.05, 0, 0},
		{Impair{Loss: 0.05, Burst: 10, Seed: 2}, 0.05, 0, 0},
		{Impair{Loss: 1, Burst: 3}, 1, 0, 0},
		{Impair{DropEvery: 9}, 1. / 9, 0, 0},
		{Impair{Duplicate: 0.02, Reorder: 0.03, Depth: 4, Seed: 3}, 0, 0.02, 0.03},
		{Impair{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Seed: 4}, 0.1, 0.09, 0.09},
	} {
		t.Run(fmt.Sprintf("%+v", c.cfg), func(t *testing.T) {
			m := must[*Impairment](t)(NewImpairment(c.cfg))
			out := through(m, n)
			st := m.Counters()
			near := func(what string, got uint64, share float64) {
				if math.Abs(float64(got)/n-share) > 0.005 {
					t.Errorf("%s: %d of %d, want a share of %.3f", what, got, n, share)
				}
			}
			near("lost", st.Lost, c.loss)
			near("duplicated", st.Duplicated, c.twice)
			near("reordered", st.Reordered, c.reorder)
			if st.Offered != n || uint64(len(out)) != n-st.Lost+st.Duplicated || m.Waiting() != 0 {
				t.Errorf("%d come out: %+v", len(out), st)
			}
			again := through(must[*Impairment](t)(NewImpairment(c.cfg)), n)
			if !slices.Equal(out, again) {
				t.Error("the same seed harms other packets")
			}
		})
	}
	for _, c := range []Impair{{Loss: -1}, {Loss: math.NaN()}, {Duplicate: 1.1}, {Depth: -1}, {DropEvery: -1}} {
		if _, err := NewImpairment(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

func TestDropEvery(t *testing.T) {
	out := through(must[*Impairment](t)(NewImpairment(Impair{DropEvery: 3})), 10)
	if want := []int{0, 1, 3, 4, 6, 7, 9}; !slices.Equal(out, want) {
		t.Errorf("%v", out)
	}
}

// TestReorderDepth: nothing comes more than Depth packets late, and nothing is
// invented.
func TestReorderDepth(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Impair{
			Reorder: rapid.Float64Range(0, 1).Draw(rt, "reorder"),
			Depth:   rapid.IntRange(1, 6).Draw(rt, "depth"),
			Seed:    rapid.Uint64().Draw(rt, "seed"),
		}
		m, err := NewImpairment(c)
		if err != nil {
			rt.Fatal(err)
		}
		const n = 300
		out := through(m, n)
		sorted := slices.Clone(out)
		slices.Sort(sorted)
		for i, v := range sorted {
			if v != i {
				rt.Fatalf("packet %d is missing", i)
			}
		}
		// Those that were not held back keep their order; a held one is passed
		// by at most Depth of them.
		passed := 0
		high := -1
		for i, v := range out {
			if v > high {
				high = v
				continue
			}
			passed = 0
			for _, w := range out[:i] {
				if w > v {
					passed++
				}
			}
			if heldToo := int(m.Counters().Reordered); passed > c.Depth+heldToo {
				rt.Fatalf("packet %d comes after %d later ones", v, passed)
			}
		}
	})
}

func TestBursts(t *testing.T) {
	out := through(must[*Impairment](t)(NewImpairment(Impair{Loss: 0.02, Burst: 5, Seed: 1})), 50000)
	runs := map[int]int{}
	for i := 1; i < len(out); i++ {
		if gap := out[i] - out[i-1] - 1; gap > 0 {
			runs[gap]++
		}
	}
	for length, n := range runs {
		if length%5 != 0 {
			t.Errorf("%d bursts of %d packets", n, length)
		}
	}
	if runs[5] < 100 {
		t.Errorf("bursts: %v", runs)
	}
}
