package gap

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// origins are the places where sequence arithmetic goes wrong: the start, a
// late join in the middle of a real day, and the end of the number space.
var origins = []Seq{1, 484311999, ^Seq(0) - 200}

func TestSetTable(t *testing.T) {
	for _, at := range origins {
		r := func(a, b Seq) Range { return Range{at + a, at + b} }
		for _, tc := range []struct {
			name        string
			add, remove []Range
			want        []Range
		}{
			{"empty", nil, nil, nil},
			{"empty ranges are nothing", []Range{r(3, 3), r(5, 4)}, nil, nil},
			{"in order", []Range{r(0, 3), r(3, 7)}, nil, []Range{r(0, 7)}},
			{"apart", []Range{r(0, 3), r(4, 7)}, nil, []Range{r(0, 3), r(4, 7)}},
			{"bridge", []Range{r(0, 3), r(4, 7), r(3, 4)}, nil, []Range{r(0, 7)}},
			{"before", []Range{r(5, 7), r(1, 2)}, nil, []Range{r(1, 2), r(5, 7)}},
			{"touches from below", []Range{r(5, 7), r(9, 10), r(3, 5)}, nil, []Range{r(3, 7), r(9, 10)}},
			{"swallows", []Range{r(1, 2), r(4, 5), r(7, 8), r(0, 9)}, nil, []Range{r(0, 9)}},
			{"swallowed", []Range{r(0, 9), r(3, 4), r(0, 2), r(7, 9)}, nil, []Range{r(0, 9)}},
			{"overlaps two", []Range{r(0, 4), r(6, 9), r(20, 21), r(3, 7)}, nil, []Range{r(0, 9), r(20, 21)}},
			{"remove middle", []Range{r(0, 9)}, []Range{r(3, 5)}, []Range{r(0, 3), r(5, 9)}},
			{"remove front", []Range{r(0, 9)}, []Range{r(0, 5)}, []Range{r(5, 9)}},
			{"remove back", []Range{r(0, 9)}, []Range{r(5, 12)}, []Range{r(0, 5)}},
			{"remove across", []Range{r(0, 3), r(5, 8), r(10, 13)}, []Range{r(2, 11)}, []Range{r(0, 2), r(11, 13)}},
			{"remove nothing", []Range{r(0, 3), r(5, 8)}, []Range{r(3, 5), r(9, 11), r(4, 4)}, []Range{r(0, 3), r(5, 8)}},
		} {
			t.Run(fmt.Sprintf("%d/%s", at, tc.name), func(t *testing.T) {
				var s Set
				for _, a := range tc.add {
					s.Add(a)
				}
				for _, d := range tc.remove {
					s.Remove(d)
				}
				if !slices.Equal(s.Ranges(), tc.want) {
					t.Fatalf("got %v, want %v", s.Ranges(), tc.want)
				}
				var n uint64
				for _, w := range tc.want {
					n += w.Len()
				}
				if s.Count() != n || s.Len() != len(tc.want) {
					t.Fatalf("Count %d Len %d, want %d %d", s.Count(), s.Len(), n, len(tc.want))
				}
			})
		}
	}
}

func TestSetWholeSpace(t *testing.T) {
	var s Set
	s.Add(Range{0, ^Seq(0)})
	s.Remove(Range{5, 6})
	if got, want := s.Count(), ^uint64(0)-1; got != want {
		t.Fatalf("Count %d, want %d", got, want)
	}
	if got := s.Bounds(); got != (Range{0, ^Seq(0)}) {
		t.Fatal(got)
	}
	s.Clear()
	if s.Len() != 0 || s.Count() != 0 || s.Bounds() != (Range{}) {
		t.Fatal("not empty after Clear")
	}
}

// TestSetModel compares a Set with a map, operation by operation.
func TestSetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const span = 120
		at := rapid.SampledFrom(origins).Draw(t, "at")
		var s Set
		var model [span]bool
		draw := func() (int, int) {
			a := rapid.IntRange(0, span).Draw(t, "a")
			b := min(span, a+rapid.IntRange(0, 20).Draw(t, "len"))
			return a, b
		}
		for range rapid.IntRange(1, 60).Draw(t, "ops") {
			a, b := draw()
			r := Range{at + Seq(a), at + Seq(b)}
			add := rapid.Bool().Draw(t, "add")
			if add {
				s.Add(r)
			} else {
				s.Remove(r)
			}
			for i := a; i < b; i++ {
				model[i] = add
			}
			checkSet(t, &s, at, model[:])
			a, b = draw()
			r = Range{at + Seq(a), at + Seq(b)}
			part, held := s.Cut(r)
			if a < b {
				n := a
				for n < b && model[n] == model[a] {
					n++
				}
				if part != (Range{r.First, at + Seq(n)}) || held != model[a] {
					t.Fatalf("Cut(%v) = %v %v", r, part, held)
				}
			}
			var missing []Range
			for i := a; i < b; i++ {
				switch q := at + Seq(i); {
				case model[i]:
				case i > a && !model[i-1]:
					missing[len(missing)-1].Next++
				default:
					missing = append(missing, Range{q, q + 1})
				}
			}
			if got := s.Missing(r); !slices.Equal(got, missing) {
				t.Fatalf("Missing(%v) = %v, want %v", r, got, missing)
			}
		}
		c := s.Clone()
		s.Add(Range{at, at + span})
		checkSet(t, &c, at, model[:])
	})
}

func checkSet(t *rapid.T, s *Set, at Seq, model []bool) {
	var want []Range
	n := uint64(0)
	for i, in := range model {
		q := at + Seq(i)
		if in != s.Contains(q) {
			t.Fatalf("Contains(%d) = %v", q, !in)
		}
		if !in {
			continue
		}
		n++
		if len(want) > 0 && want[len(want)-1].Next == q {
			want[len(want)-1].Next++
		} else {
			want = append(want, Range{q, q + 1})
		}
	}
	if !slices.Equal(s.Ranges(), want) {
		t.Fatalf("ranges %v, want %v", s.Ranges(), want)
	}
	if s.Count() != n {
		t.Fatalf("Count %d, want %d", s.Count(), n)
	}
	bounds := Range{}
	if len(want) > 0 {
		bounds = Range{want[0].First, want[len(want)-1].Next}
	}
	if s.Bounds() != bounds {
		t.Fatalf("Bounds %v, want %v", s.Bounds(), bounds)
	}
}

func TestSetInOrderDoesNotAllocate(t *testing.T) {
	var s Set
	q := Seq(1)
	if n := testing.AllocsPerRun(1000, func() {
		s.Add(Range{q, q + 10})
		q += 10
	}); n != 0 {
		t.Fatalf("%v allocations for an Add in order", n)
	}
	if s.Len() != 1 {
		t.Fatalf("%d ranges", s.Len())
	}
}

func BenchmarkSet(b *testing.B) {
	b.Run("add=in-order", func(b *testing.B) {
		b.ReportAllocs()
		var s Set
		q := Seq(1)
		for b.Loop() {
			s.Add(Range{q, q + 10})
			q += 10
		}
	})
	for _, n := range []int{1000, 65536} {
		b.Run(fmt.Sprintf("fill=oldest/ranges=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var s Set
			for range b.N {
				if s.Len() <= 1 {
					s.Clear()
					for i := range Seq(n) {
						s.Add(Range{i * 10, i*10 + 5})
					}
				}
				first := s.Ranges()[0]
				s.Remove(first)
			}
		})
		b.Run(fmt.Sprintf("fill=middle/ranges=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var s Set
			for range b.N {
				if s.Len() <= n/2 {
					s.Clear()
					for i := range Seq(n) {
						s.Add(Range{i * 10, i*10 + 5})
					}
				}
				s.Remove(s.Ranges()[s.Len()/2])
			}
		})
	}
}
