package gap

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	var c Config
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := Config{
		Lines: 1, Settle: ms1, SettleMin: 200 * time.Microsecond, SettleMax: 5 * ms1,
		RetryMin: 2 * ms1, RetryMax: 250 * ms1, Outstanding: 64,
		Budget: 10 * time.Second, SlowMin: time.Second, SlowMax: 10 * time.Second,
		MaxGaps: 65536, MaxRequest: 65534, RequestsPerSecond: 20_000, HeartbeatInterval: time.Second,
	}
	if !reflect.DeepEqual(c, want) {
		t.Fatalf("defaults %+v", c)
	}
	for field, bad := range map[string]Config{
		"Lines":             {Lines: 255},
		"Servers":           {Servers: -1},
		"Settle":            {Settle: -1},
		"SettleMin":         {SettleMin: time.Second},
		"RetryMin":          {RetryMin: time.Second},
		"Outstanding":       {Outstanding: -1},
		"Budget":            {Budget: -1},
		"SlowMin":           {SlowMin: time.Minute},
		"MaxGaps":           {MaxGaps: -1},
		"MaxRequest":        {MaxRequest: 65535},
		"RequestsPerSecond": {RequestsPerSecond: -1},
		"HeartbeatInterval": {HeartbeatInterval: -1},
	} {
		bad.EnsureDefaults()
		if err := bad.Validate(); err == nil || !strings.HasPrefix(err.Error(), "gap: "+field+" ") {
			t.Errorf("%s: %v", field, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: New takes it", field)
				}
			}()
			New(bad)
		}()
	}
}

const ms1 = time.Millisecond

func TestRange(t *testing.T) {
	for _, tc := range []struct {
		r     Range
		n     uint64
		print string
	}{
		{Range{1, 2}, 1, "1..1"},
		{Range{484311999, 484312010}, 11, "484311999..484312009"},
		{Range{0, ^Seq(0)}, ^uint64(0), "0..18446744073709551614"},
		{Range{5, 5}, 0, "none"},
		{Range{6, 5}, 0, "none"},
	} {
		if tc.r.Len() != tc.n || tc.r.Empty() != (tc.n == 0) || tc.r.String() != tc.print {
			t.Errorf("%v: Len %d Empty %v, want %d %s", tc.r, tc.r.Len(), tc.r.Empty(), tc.n, tc.print)
		}
	}
	r := Range{10, 20}
	for q, in := range map[Seq]bool{9: false, 10: true, 19: true, 20: false} {
		if r.Contains(q) != in {
			t.Errorf("Contains(%d)", q)
		}
	}
	for o, want := range map[Range]Range{
		{1, 15}:  {10, 15},
		{15, 30}: {15, 20},
		{12, 13}: {12, 13},
		{1, 30}:  {10, 20},
	} {
		if got := r.Intersect(o); got != want || o.Intersect(r) != want {
			t.Errorf("Intersect(%v) = %v", o, got)
		}
	}
	for _, o := range []Range{{1, 5}, {1, 10}, {20, 30}, {25, 30}} {
		if !r.Intersect(o).Empty() || !o.Intersect(r).Empty() {
			t.Errorf("Intersect(%v) is not empty", o)
		}
	}
}

func TestVerdictString(t *testing.T) {
	if got := fmt.Sprint(InOrder, Ahead, Fill, Duplicate, Stale, Below, Forgotten, Verdict(9)); got != "in order ahead fill duplicate stale below forgotten verdict(?)" {
		t.Fatal(got)
	}
}

// TestGivenUpIsForgotten: what was given up is remembered exactly up to a
// bound, then vaguely, up to another; it is never taken for held.
func TestGivenUpIsForgotten(t *testing.T) {
	m := New(Config{GiveUp: true})
	const n = 3*maxGiven + 10
	for i := range Seq(n) {
		take(m, 0, 0, Range{2 + 2*i, 3 + 2*i}, func(Range, Verdict) {})
	}
	for now := Instant(0); m.Deadline() != Never; now = m.Deadline() {
		m.Poll(now)
		for _, ok := m.Lost(); ok; _, ok = m.Lost() {
		}
	}
	if m.given.Len() != maxGiven || m.vague.Len() != maxGiven || m.Next() != m.Head() || m.Stats().MessagesLost != n {
		t.Fatalf("%d given up, next %d head %d", m.given.Len(), m.Next(), m.Head())
	}
	for q, want := range map[Seq]Verdict{
		1: Forgotten, 2: Forgotten, 2*(n-maxGiven) - 1: Forgotten, 2 * (n - maxGiven): Duplicate,
		2*(n-maxGiven) + 1: Stale, 2*n - 1: Stale, 2 * n: Duplicate,
	} {
		if _, v := m.Classify(Range{q, q + 1}); v != want {
			t.Errorf("%d is %v, want %v", q, v, want)
		}
	}
	seen := 0
	m.Gaps(func(Gap) bool { seen++; return true })
	if seen != 0 {
		t.Fatalf("%d gaps", seen)
	}
}

// TestGapsStops when it is told to.
func TestGapsStops(t *testing.T) {
	m := New(Config{})
	for i := range Seq(5) {
		take(m, 0, 0, Range{2 + 2*i, 3 + 2*i}, func(Range, Verdict) {})
	}
	seen := 0
	m.Gaps(func(Gap) bool { seen++; return seen < 3 })
	if seen != 3 {
		t.Fatalf("%d gaps", seen)
	}
}
