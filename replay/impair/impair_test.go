package impair

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

func mustNew(t interface{ Fatal(...any) }, c Config) *Line {
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// run offers n packets that carry their number, at instants of at, and keeps
// what came out.
type run struct {
	fates []Fate
	out   []int
	when  []moldcast.Instant // what came out came out at
}

func (r *run) emit(now moldcast.Instant) func([]byte) {
	return func(b []byte) {
		r.out = append(r.out, int(binary.BigEndian.Uint64(b)))
		r.when = append(r.when, now)
	}
}

func offer(l *Line, n int, at func(i int) moldcast.Instant) *run {
	r := new(run)
	var b [8]byte
	now := moldcast.Instant(0)
	for i := range n {
		next := at(i)
		for d := l.Deadline(); d <= next; d = l.Deadline() {
			now = max(now, d)
			l.Poll(now, r.emit(now))
		}
		now = next
		binary.BigEndian.PutUint64(b[:], uint64(i))
		r.fates = append(r.fates, l.Offer(now, b[:], r.emit(now)))
		clear(b[:]) // what is held is a copy
	}
	l.Settle(now, r.emit(now))
	for l.Waiting() > 0 {
		now = l.Deadline()
		l.Poll(now, r.emit(now))
	}
	return r
}

func together(int) moldcast.Instant { return 1 }

func TestRates(t *testing.T) {
	const n = 200_000
	tests := []struct {
		name                    string
		cfg                     Config
		lost, twice, late, slow float64
	}{
		{"nothing", Config{}, 0, 0, 0, 0},
		{"loss", Config{Loss: 0.05}, 0.05, 0, 0, 0},
		{"everything lost", Config{Loss: 1}, 1, 0, 0, 0},
		{"bursts", Config{BurstLoss: 0.01, BurstLen: 5}, 0.05 / 1.04, 0, 0, 0},
		{"a burst of one is a loss", Config{BurstLoss: 0.03, BurstLen: 1}, 0.03, 0, 0, 0},
		{"both losses", Config{Loss: 0.1, BurstLoss: 0.01, BurstLen: 10}, 0.1/1.09 + 0.1*(1-0.1/1.09), 0, 0, 0},
		{"duplicates", Config{Duplicate: 0.2}, 0, 0.2, 0, 0},
		{"disorder", Config{Reorder: 0.2, Depth: 3}, 0, 0, 0.2, 0},
		{"of what is not lost", Config{Loss: 0.5, Duplicate: 0.2, Reorder: 0.4}, 0.5, 0.1, 0.2, 0},
		{"jitter", Config{Jitter: time.Millisecond}, 0, 0, 0, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Seed = 7
			l := mustNew(t, tt.cfg)
			r := offer(l, n, together)
			var lost, twice, late, slow float64
			for _, f := range r.fates {
				if f.Lost != NotLost {
					lost++
				}
				if f.Duplicate {
					twice++
				}
				if f.Reorder > 0 {
					late++
				}
				if f.Delay > 0 {
					slow++
				}
			}
			for _, x := range []struct {
				what      string
				got, want float64
			}{{"lost", lost, tt.lost}, {"twice", twice, tt.twice}, {"late", late, tt.late}, {"slow", slow, tt.slow}} {
				// Bursts make the spread of the mean some times that of draws on their own.
				if math.Abs(x.got/n-x.want) > 5*math.Sqrt(x.want*(1-x.want)*10/n)+1e-5 {
					t.Errorf("%s: %v of the packets, want %v", x.what, x.got/n, x.want)
				}
			}
			c := l.Counters()
			if c.Offered != n || float64(c.Lost) != lost || float64(c.Duplicated) != twice || float64(c.Reordered) != late || len(r.out) != int(c.Offered-c.Lost+c.Duplicated) {
				t.Errorf("counters %+v, %d came out", c, len(r.out))
			}
		})
	}
}

func TestBurstLength(t *testing.T) {
	r := offer(mustNew(t, Config{BurstLoss: 0.01, BurstLen: 7, Seed: 3}), 50_000, together)
	length, bursts := 0, 0
	for _, f := range r.fates {
		if f.Lost == InBurst {
			length++
			continue
		}
		if length%7 != 0 {
			t.Fatalf("a burst of %d packets, want multiples of 7", length)
		}
		if length > 0 {
			bursts++
		}
		length = 0
	}
	if bursts < 300 {
		t.Errorf("%d bursts", bursts)
	}
}

// To change one probability changes no fate under another.
func TestFatesStandAlone(t *testing.T) {
	all := offer(mustNew(t, Config{Duplicate: 0.3, Reorder: 0.3, Jitter: time.Second, Seed: 5}), 2000, together)
	some := offer(mustNew(t, Config{Reorder: 0.3, Loss: 0.2, Seed: 5}), 2000, together)
	for i, f := range some.fates {
		if f.Lost == NotLost && f.Reorder != all.fates[i].Reorder {
			t.Fatalf("packet %d: %+v beside %+v", i, f, all.fates[i])
		}
	}
}

// Whatever is asked for: the same seed gives the same fates whenever packets
// come; what came out is what the fates say, at most Depth packets late, and
// not before its delay.
func TestWhatTheFatesSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := func(name string) float64 {
			return rapid.SampledFrom([]float64{0, 0.05, 0.5, 1}).Draw(rt, name)
		}
		c := Config{
			Loss: p("loss"), BurstLoss: p("burst") / 5, BurstLen: rapid.IntRange(1, 20).Draw(rt, "length"),
			Duplicate: p("duplicate"), Reorder: p("reorder"), Depth: rapid.IntRange(0, 12).Draw(rt, "depth"),
			Jitter: rapid.SampledFrom([]time.Duration{0, 1, time.Microsecond, time.Millisecond}).Draw(rt, "jitter"),
			Seed:   rapid.Uint64().Draw(rt, "seed"),
		}
		n := rapid.IntRange(1, 150).Draw(rt, "packets")
		step := moldcast.Instant(rapid.IntRange(0, 2000).Draw(rt, "step"))
		a := offer(mustNew(rt, c), n, func(i int) moldcast.Instant { return moldcast.Instant(i) * step })
		b := offer(mustNew(rt, c), n, together)
		if !slices.Equal(a.fates, b.fates) {
			rt.Fatal("fates depend on when packets come")
		}
		depth := c.Depth
		if depth == 0 {
			depth = DefaultDepth
		}
		copies := make([]int, n)
		overtaken := make([]int, n) // by packets of a higher number
		for i, k := range a.out {
			copies[k]++
			if c.Jitter > 0 {
				at := moldcast.Instant(k) * step
				if late := a.when[i] - at; late > moldcast.Instant(depth)*step+moldcast.Instant(c.Jitter) {
					rt.Fatalf("packet %d came out %d late", k, late)
				}
				continue
			}
			seen := map[int]bool{}
			for _, before := range a.out[:i] {
				if before > k && !seen[before] {
					seen[before] = true
					overtaken[k]++
				}
			}
		}
		for k, f := range a.fates {
			want := 1
			switch {
			case f.Lost != NotLost:
				want = 0
				if f.Duplicate || f.Reorder > 0 || f.Delay > 0 {
					rt.Fatalf("packet %d is lost and more: %+v", k, f)
				}
			case f.Duplicate:
				want = 2
			}
			if copies[k] != want {
				rt.Fatalf("packet %d came out %d times, its fate is %+v", k, copies[k], f)
			}
			if f.Reorder > depth || c.Jitter == 0 && overtaken[k] > depth {
				rt.Fatalf("packet %d: %+v, overtaken by %d, depth %d", k, f, overtaken[k], depth)
			}
			if c.Jitter == 0 && f.Reorder == 0 && overtaken[k] > 0 {
				rt.Fatalf("packet %d is overtaken, its fate is %+v", k, f)
			}
		}
		if !slices.IsSorted(a.when) {
			rt.Fatal("came out before others, and later")
		}
	})
}

func TestDelaysAreBounded(t *testing.T) {
	l := mustNew(t, Config{Jitter: MaxJitter, Seed: 1})
	r := new(run)
	b := make([]byte, 8)
	for i := range MaxDelayed + 100 {
		binary.BigEndian.PutUint64(b, uint64(i))
		l.Offer(1, b, r.emit(1))
	}
	if c := l.Counters(); l.Waiting() != MaxDelayed || c.Early != 100 || len(r.out) != 100 {
		t.Errorf("%d wait, %d came out, %+v", l.Waiting(), len(r.out), c)
	}
	l = mustNew(t, Config{Jitter: MaxJitter, Seed: 1})
	for range 2 * MaxDelayedBytes / 60000 {
		l.Offer(1, make([]byte, 60000), func([]byte) {})
	}
	if l.timed.bytes > MaxDelayedBytes || l.Counters().Early == 0 {
		t.Errorf("%d bytes wait, %+v", l.timed.bytes, l.Counters())
	}
	n := l.Waiting()
	l.Flush(func([]byte) { n-- })
	if n != 0 || l.Deadline() != gap.Never || l.timed.bytes != 0 {
		t.Errorf("%d are left of a flush, deadline %d", n, l.Deadline())
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Loss: -0.1}, {Loss: 1.1}, {Loss: math.NaN()}, {Duplicate: 2}, {Reorder: -1}, {BurstLoss: 2, BurstLen: 1},
		{BurstLoss: 0.1}, {BurstLoss: 0.1, BurstLen: MaxBurst + 1}, {Depth: -1}, {Depth: MaxDepth + 1}, {Jitter: -1}, {Jitter: MaxJitter + 1},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v, want an ErrConfig", c, err)
		}
	}
}

func TestOfferDoesNotAllocate(t *testing.T) {
	l := mustNew(t, Config{Loss: 0.1, BurstLoss: 0.01, BurstLen: 3, Duplicate: 0.1, Reorder: 0.3, Jitter: time.Millisecond, Seed: 9})
	pkt, emit, now := make([]byte, 1400), func([]byte) {}, moldcast.Instant(0)
	step := func() {
		now += 1000
		l.Poll(now, emit)
		l.Offer(now, pkt, emit)
	}
	for range 20_000 {
		step()
	}
	if n := testing.AllocsPerRun(20_000, step); n > 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// BenchmarkOffer is one packet through a line, with what it is to become of.
func BenchmarkOffer(b *testing.B) {
	for name, c := range map[string]Config{
		"none": {Seed: 9}, "loss": {Loss: 0.02, BurstLoss: 0.01, BurstLen: 3, Seed: 9}, "reorder": {Reorder: 0.1, Seed: 9}, "jitter": {Jitter: time.Millisecond, Seed: 9},
	} {
		b.Run("harm="+name, func(b *testing.B) {
			l, err := New(c)
			if err != nil {
				b.Fatal(err)
			}
			pkt, emit, now := make([]byte, 1400), func([]byte) {}, moldcast.Instant(0)
			b.ReportAllocs()
			for b.Loop() {
				now += 10_000
				l.Poll(now, emit)
				l.Offer(now, pkt, emit)
			}
		})
	}
}
