package pace

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast/gap"
)

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

func mustNew(t interface{ Fatal(...any) }, c Config) *Schedule {
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// dues runs a recording of one-message packets through a schedule that starts
// at 1000 and returns the due times less that.
func dues(s *Schedule, stamps ...int64) []int64 {
	s.Start(1000)
	var out []int64
	for _, t := range stamps {
		out = append(out, int64(s.Due(Stamp(t)))-1000)
		s.Sent(Stamp(t), 1)
	}
	return out
}

func TestDue(t *testing.T) {
	const day = int64(1_473_799_891_000_000_000) // stamps are ns since 1970
	tests := []struct {
		name   string
		cfg    Config
		stamps []int64
		want   []int64
	}{
		{"as recorded", Config{}, []int64{day, day + 5, day + sec}, []int64{0, 5, sec}},
		{"2 is twice as fast", Config{Speed: 2}, []int64{day, day + sec, day + 3*sec}, []int64{0, sec / 2, 3 * sec / 2}},
		{"half speed takes twice as long", Config{Speed: 0.5}, []int64{day, day + sec}, []int64{0, 2 * sec}},
		{"a tenth is exact", Config{Speed: 0.1}, []int64{0, 1, 7, 3600 * sec}, []int64{0, 10, 70, 36000 * sec}},
		{"slowest", Config{Speed: MinSpeed}, []int64{0, 1, sec}, []int64{0, 1000, 1000 * sec}},
		{"fastest", Config{Speed: MaxSpeed}, []int64{0, 999, 1000, sec}, []int64{0, 0, 1, sec / 1000}},
		{"gaps below a millisecond are kept", Config{}, []int64{0, 100, 200, 999_999}, []int64{0, 100, 200, 999_999}},
		{"equal stamps are due together", Config{}, []int64{5, 5, 5, 6}, []int64{0, 0, 0, 1}},
		{"a step back stalls nothing", Config{}, []int64{100, 200, 50, 150, 201}, []int64{0, 100, 100, 100, 101}},
		{"a step forward waits", Config{}, []int64{0, 10 * sec, 1, 10*sec + 1}, []int64{0, 10 * sec, 10 * sec, 10*sec + 1}},
		{"quiet times are cut", Config{MaxIdle: time.Second}, []int64{0, 60 * sec, 60*sec + 5, 200 * sec}, []int64{0, sec, sec + 5, 2*sec + 5}},
		{"a quiet time of exactly the cap stays", Config{MaxIdle: time.Second}, []int64{0, sec, 2*sec + 1}, []int64{0, sec, 2 * sec}},
		{"quiet times are cut in real time", Config{MaxIdle: time.Second, Speed: 10}, []int64{0, 9 * sec, 100 * sec}, []int64{0, 9 * sec / 10, 19 * sec / 10}},
		{"a step back is no quiet time", Config{MaxIdle: time.Second}, []int64{0, 2 * sec, 0, 2 * sec}, []int64{0, sec, sec, sec}},
		{"by rate", Config{Rate: 4}, []int64{9, 5, 5 * sec, 0}, []int64{0, sec / 4, sec / 2, 3 * sec / 4}},
		{"a third of a message a second", Config{Rate: 0.25}, []int64{0, 0, 0}, []int64{0, 4 * sec, 8 * sec}},
		{"no waiting", Config{Max: true}, []int64{0, sec, 3600 * sec}, []int64{0, 0, 0}},
		{"stamps from one end of time to the other", Config{}, []int64{math.MinInt64, 0, math.MaxInt64}, []int64{0, int64(gap.Never-1) - 1000, int64(gap.Never-1) - 1000}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := dues(mustNew(t, tt.cfg), tt.stamps...)
			for i := range got {
				if got[i] != tt.want[i] {
					t.Errorf("packet %d, stamp %d: due %d, want %d", i, tt.stamps[i], got[i], tt.want[i])
				}
			}
		})
	}
}

func TestRateCountsMessages(t *testing.T) {
	s := mustNew(t, Config{Rate: 1000})
	s.Start(0)
	for _, p := range []struct{ msgs, due int64 }{{3, 0}, {1, 3 * ms}, {46, 4 * ms}, {1, 50 * ms}} {
		if got := s.Due(0); int64(got) != p.due {
			t.Errorf("due %d, want %d", got, p.due)
		}
		s.Sent(0, int(p.msgs))
	}
}

func TestConfig(t *testing.T) {
	bad := []Config{
		{Speed: 0.0009}, {Speed: 1000.1}, {Speed: -1}, {Speed: math.NaN()}, {Speed: math.Inf(1)},
		{Rate: -1}, {Rate: math.NaN()}, {Rate: 2e9}, {Rate: 5, Max: true}, {MaxIdle: -1},
	}
	for _, c := range bad {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v, want an ErrConfig", c, err)
		}
	}
}

func TestStopped(t *testing.T) {
	s := mustNew(t, Config{})
	if d := s.Due(5); d != gap.Never {
		t.Errorf("due %d before the start", d)
	}
	s.Start(100)
	s.Sent(5, 1)
	s.Pause(100)
	if d := s.Due(6); d != gap.Never {
		t.Errorf("due %d in a pause", d)
	}
	if s.Running() {
		t.Error("runs in a pause")
	}
}

// A pause of any length shifts what follows by its length: neither jumped over
// nor made up for.
func TestPause(t *testing.T) {
	s := mustNew(t, Config{Speed: 2})
	s.Start(0)
	s.Sent(0, 1)
	s.Pause(Instant(1 * sec)) // at recorded 2 s
	s.Pause(Instant(2 * sec)) // already
	s.Start(Instant(61 * sec))
	s.Start(Instant(99 * sec)) // already
	for _, p := range []struct{ stamp, due int64 }{{1 * sec, 60*sec + sec/2}, {2 * sec, 61 * sec}, {3 * sec, 61*sec + sec/2}, {10 * sec, 65 * sec}} {
		if got := int64(s.Due(Stamp(p.stamp))); got != p.due {
			t.Errorf("stamp %d: due %d, want %d", p.stamp, got, p.due)
		}
	}
}

func TestScale(t *testing.T) {
	s := mustNew(t, Config{})
	s.Start(0)
	s.Sent(0, 1)
	s.Scale(Instant(10*sec), 4)
	if got := int64(s.Due(Stamp(14 * sec))); got != 11*sec {
		t.Errorf("due %d after the change, want 11 s", got)
	}
	s.Scale(Instant(11*sec), 0.5) // at recorded 14 s, speed 2
	if got := int64(s.Due(Stamp(15 * sec))); got != 11*sec+sec/2 {
		t.Errorf("due %d after the second change, want 11.5 s", got)
	}
	s.Scale(Instant(11*sec), 1e9)
	if s.Speed() != MaxSpeed {
		t.Errorf("speed %v", s.Speed())
	}
	s.Scale(Instant(11*sec), 0)
	s.Scale(Instant(11*sec), math.NaN())
	if s.Speed() != MaxSpeed {
		t.Errorf("speed %v after what is no factor", s.Speed())
	}

	r := mustNew(t, Config{Rate: 10})
	r.Start(0)
	for range 10 {
		r.Sent(0, 1)
	}
	r.Scale(Instant(sec), 2) // ten messages have gone, the eleventh is due now
	for i, want := range []int64{sec, sec + 50*ms, sec + 100*ms} {
		if got := int64(r.Due(0)); got != want {
			t.Errorf("rate, message %d: due %d, want %d", i, got, want)
		}
		r.Sent(0, 1)
	}
}

func TestSeek(t *testing.T) {
	s := mustNew(t, Config{MaxIdle: 5 * time.Second})
	s.Start(0)
	s.Sent(0, 1)
	s.Sent(Stamp(100*sec), 1)
	s.Seek(Instant(7*sec), Stamp(50*sec))
	if got := int64(s.Due(Stamp(51 * sec))); got != 8*sec {
		t.Errorf("due %d, want 8 s", got)
	}
	if got := int64(s.Due(Stamp(49 * sec))); got != 7*sec {
		t.Errorf("below the target: due %d, want 7 s", got)
	}
	s.Rewind(Instant(20 * sec))
	if got := int64(s.Due(Stamp(3 * sec))); got != 20*sec {
		t.Errorf("after a rewind: due %d, want 20 s", got)
	}
	s.Pause(Instant(20 * sec))
	s.Seek(Instant(30*sec), 5)
	if s.Running() {
		t.Error("a seek in a pause starts the clock")
	}
	s.Start(Instant(40 * sec))
	if got := int64(s.Due(6)); got != 40*sec+1 {
		t.Errorf("after a seek in a pause: due %d, want 40 s + 1", got)
	}
}

func TestStep(t *testing.T) {
	s := mustNew(t, Config{})
	s.Start(0)
	s.Sent(0, 1)
	s.Pause(Instant(sec))
	s.Step(Stamp(10 * sec))
	s.Sent(Stamp(10*sec), 1)
	s.Start(Instant(60 * sec))
	if got := int64(s.Due(Stamp(12 * sec))); got != 62*sec {
		t.Errorf("due %d, want 2 s behind the step", got)
	}
	s.Step(Stamp(12 * sec)) // runs: nothing happens
	if got := int64(s.Due(Stamp(12 * sec))); got != 62*sec {
		t.Errorf("due %d after a step of a running clock", got)
	}
}

func TestPosition(t *testing.T) {
	s := mustNew(t, Config{Speed: 2})
	if s.Position(5) != 0 {
		t.Error("a position before the first packet")
	}
	s.Start(0)
	s.Sent(100, 1)
	for _, p := range []struct {
		now  Instant
		want Stamp
	}{{0, 100}, {10, 120}, {1000, 2100}} {
		if got := s.Position(p.now); got != p.want {
			t.Errorf("at %d: %d, want %d", p.now, got, p.want)
		}
	}
	s.Pause(10)
	if got := s.Position(1000); got != 120 {
		t.Errorf("in a pause: %d, want 120", got)
	}
}

// Two hours of packets at about 50 Hz, each sent late by some µs, at any
// speed: the last is due where plain arithmetic on big numbers puts it.
func TestNoDriftOverHours(t *testing.T) {
	for _, speed := range []float64{1, 0.001, 0.3, 1.7, 3, 333.333, 1000} {
		s := mustNew(t, Config{Speed: speed})
		const start = Instant(12345)
		s.Start(start)
		stamp, x := int64(1_473_799_891_000_000_000), uint64(1)
		first := stamp
		for stamp-first < 2*3600*sec {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			due := s.Due(Stamp(stamp))
			if want := exact(stamp-first, speed); int64(due-start) != want {
				t.Fatalf("speed %v, %d ns in: due %d, want %d", speed, stamp-first, due-start, want)
			}
			s.Sent(Stamp(stamp), 1)
			stamp += int64(x % 40_000_000)
		}
	}
}

// exact is d/speed rounded down, for a speed in steps of 1e-9.
func exact(d int64, speed float64) int64 {
	n := new(big.Int).Mul(big.NewInt(d), big.NewInt(1e9))
	return n.Div(n, big.NewInt(int64(math.Round(speed*1e9)))).Int64()
}

// Whatever happens to the clock, due times do not fall, and a pause shifts them
// by its length.
func TestScheduleProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		speed := rapid.Float64Range(MinSpeed, MaxSpeed).Draw(t, "speed")
		idle := time.Duration(rapid.SampledFrom([]int64{0, 1, 1000, sec}).Draw(t, "idle"))
		s := mustNew(t, Config{Speed: speed, MaxIdle: idle})
		now := Instant(rapid.Int64Range(0, sec).Draw(t, "start"))
		s.Start(now)
		stamp := rapid.Int64Range(0, 1<<60).Draw(t, "first")
		last := now
		slack := Instant(2) // what rounding at re-bases may add, in ns
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			op := rapid.IntRange(0, 9).Draw(t, "op")
			if op < 2 {
				slack += 1 + Instant(1/s.Speed())
			}
			switch op {
			case 0:
				p := rapid.Int64Range(0, 3600*sec).Draw(t, "pause")
				before := s.Due(Stamp(stamp))
				s.Pause(now)
				s.Start(now + Instant(p))
				after := s.Due(Stamp(stamp))
				// Each re-base rounds the position down once: at most 1 ns of
				// recorded time, 1/speed of real time, and 1 of the due time.
				want := before + Instant(p)
				if diff := after - want; diff < -1 || float64(diff) > 1/speed+2 {
					t.Fatalf("pause of %d: due %d, want %d", p, after, want)
				}
				now += Instant(p)
				last = after
			case 1:
				s.Scale(now, rapid.SampledFrom([]float64{0.5, 2}).Draw(t, "by"))
				speed = s.Speed()
				slack += 1 + Instant(1/speed)
				last = s.Due(Stamp(stamp))
			case 2:
				s.Seek(now, Stamp(stamp))
				if s.Due(Stamp(stamp)) != now {
					t.Fatal("the target of a seek is not due at once")
				}
				last = now
			default:
				stamp += rapid.SampledFrom([]int64{0, 0, 1, 999, 50_000, sec, -5, -sec}).Draw(t, "delta")
				due := s.Due(Stamp(stamp))
				if due < last {
					t.Fatalf("due %d after %d", due, last)
				}
				if idle > 0 && due > max(last, now)+Instant(idle)+Instant(1/speed)+slack {
					t.Fatalf("due %d: more than %v after %d", due, idle, last)
				}
				s.Sent(Stamp(stamp), 1)
				last = due
				now = max(now, due)
			}
		}
	})
}

func TestDueDoesNotAllocate(t *testing.T) {
	s := mustNew(t, Config{Speed: 1.7, MaxIdle: time.Second})
	s.Start(0)
	var x Stamp
	if n := testing.AllocsPerRun(1000, func() {
		x += 777
		_ = s.Due(x)
		s.Sent(x, 3)
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

func BenchmarkDue(b *testing.B) {
	s := mustNew(b, Config{Speed: 1.7})
	s.Start(0)
	b.ReportAllocs()
	var x Stamp
	for b.Loop() {
		x += 777
		_ = s.Due(x)
		s.Sent(x, 3)
	}
}
