package pace

import (
	"math"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

// send plays dues through a limiter as a sender does, in batches; a batch
// begun at now takes what cost says. It returns when each packet went.
func send(l *Limiter, dues []Instant, cost func(now Instant, n int) Instant) []Instant {
	var out []Instant
	now := Instant(0)
	for i := 0; i < len(dues); {
		now = max(now, dues[i])
		now = max(now, l.Release(dues[i]))
		n := 0
		for ; n < 64 && i < len(dues); n++ {
			if dues[i] > now || l.Release(dues[i]) > now {
				break
			}
			l.Sent(dues[i], now)
			out = append(out, now)
			i++
		}
		now += cost(now, n)
	}
	return out
}

// busiest is most of the times in any span of w.
func busiest(times []Instant, w Instant) (most int) {
	first := 0
	for i, t := range times {
		for t-times[first] >= w {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

func every(d Instant, n int) []Instant {
	out := make([]Instant, n)
	for i := range out {
		out[i] = Instant(sec) + Instant(i)*d
	}
	return out
}

// stall is a sender that takes 2 µs a call, and once, from at on, d.
func stall(at, d Instant) func(Instant, int) Instant {
	return func(now Instant, _ int) Instant {
		if at != 0 && now >= at {
			at = 0
			return d
		}
		return 2000
	}
}

// Ten packets a ms, and the sender is away for 20 ms: what is late comes at
// twice the pace of the recording, not in one heap, and after 40 ms all is on
// time again.
func TestCatchUpIsNoBurst(t *testing.T) {
	const step = Instant(100_000)
	dues := every(step, 2000)
	away, back := dues[500], dues[500]+20*Instant(ms)
	free, limited := Limiter{}, NewLimiter(2)
	if n := busiest(send(&free, dues, stall(away, 20*Instant(ms))), Instant(ms)); n < 200 {
		t.Fatalf("without a limit %d packets in a ms: the test shows nothing", n)
	}
	times := send(&limited, dues, stall(away, 20*Instant(ms)))
	if n := busiest(times, Instant(ms)); n > 24 {
		t.Errorf("%d packets in a ms, the recording has 10", n)
	}
	for i, at := range times {
		late := at - dues[i]
		if late < 0 || late > 3000 && (dues[i] < away || dues[i] > back+21*Instant(ms)) {
			t.Fatalf("packet %d went %d ns late", i, late)
		}
		if late > 21*Instant(ms) {
			t.Fatalf("packet %d went %d ns late", i, late)
		}
	}
}

// A burst of the recording stays a burst, late or not.
func TestCatchUpKeepsBursts(t *testing.T) {
	var dues []Instant
	for i := range Instant(50) {
		dues = append(dues, slices.Repeat([]Instant{Instant(sec) + i*10*Instant(ms)}, 40)...)
	}
	l := NewLimiter(2)
	times := send(&l, dues, stall(dues[400], 95*Instant(ms)))
	for i := 0; i < len(times); i += 40 {
		if d := times[i+39] - times[i]; d > 2000 {
			t.Errorf("burst %d takes %d ns", i/40, d)
		}
	}
	if late := times[len(times)-1] - dues[len(dues)-1]; late > 3000 {
		t.Errorf("%d ns late at the end", late)
	}
}

// A sender that is slower than the limit allows for, as on a machine that is
// busy with other things, does not fall behind for ever.
func TestCatchUpNeverFallsBehindForGood(t *testing.T) {
	for _, turn := range []Instant{300_000, Instant(ms), 5 * Instant(ms), 6 * Instant(ms)} {
		dues := every(100_000, 50_000) // 5 s
		l := NewLimiter(1.5)
		times := send(&l, dues, func(Instant, int) Instant { return turn })
		worst := Instant(0)
		for i := range times {
			worst = max(worst, times[i]-dues[i])
		}
		if worst > 12*turn {
			t.Errorf("calls that take %d ns: %d ns late", turn, worst)
		}
	}
}

// Taken off its core for 20 ms out of 25, a sender would be late for ever at
// twice the pace: it is allowed more in time.
func TestCatchUpOnABusyMachine(t *testing.T) {
	dues := every(100_000, 50_000) // 5 s
	l := NewLimiter(2)
	next := dues[0] + 5*Instant(ms)
	times := send(&l, dues, func(now Instant, _ int) Instant {
		if now >= next {
			next = now + 25*Instant(ms)
			return 20 * Instant(ms)
		}
		return 2000
	})
	worst := Instant(0)
	for i := range times {
		worst = max(worst, times[i]-dues[i])
	}
	if worst > 90*Instant(ms) {
		t.Errorf("%d ns late", worst)
	}
}

// The last packet of what is made up for and the first that is on time again
// keep their distance too; not so behind a seek.
func TestCatchUpEndsWithoutABurst(t *testing.T) {
	l := NewLimiter(2)
	a, away := Instant(sec), 900*Instant(1000)
	b := a + Instant(ms)
	l.Sent(a, a+away)
	if got, want := l.Release(b), a+away-slack+Instant(ms)/2; got != want {
		t.Errorf("released %d ns after its due time, want %d", got-b, want-b)
	}
	l.Forget()
	if got := l.Release(b); got != b {
		t.Errorf("released %d ns after its due time, and there is nothing before it", got-b)
	}
}

func TestCatchUpOff(t *testing.T) {
	for _, l := range []Limiter{{}, NewLimiter(math.Inf(1))} {
		l.Sent(5, 100)
		if got := l.Release(50); got != 50 {
			t.Errorf("released at %d, due at 50", got)
		}
	}
}

// Whatever the recording, the stall and the factor: nothing early, nothing out
// of order, on time again when it must be, and no span of the sending holds
// more than the schedule has in a span as long as the rule says.
func TestCatchUpProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom([]float64{1.1, 1.5, 2, 4}).Draw(t, "factor")
		dues := []Instant{Instant(sec)}
		for range rapid.IntRange(50, 600).Draw(t, "packets") {
			d := rapid.SampledFrom([]Instant{0, 0, 0, 5000, 40_000, 200_000, Instant(ms)}).Draw(t, "gap")
			dues = append(dues, dues[len(dues)-1]+d)
		}
		at := dues[rapid.IntRange(0, len(dues)-1).Draw(t, "stalls at")]
		d := Instant(rapid.Int64Range(0, 50*ms).Draw(t, "stall"))
		l := NewLimiter(k)
		times := send(&l, dues, stall(at, d))
		if !sort.SliceIsSorted(times, func(i, j int) bool { return times[i] < times[j] }) {
			t.Fatal("out of order")
		}
		again := at + d + Instant(float64(d)/(k-1)) + Instant(ms)
		for i := range times {
			if times[i] < dues[i] {
				t.Fatalf("packet %d went %d ns early", i, dues[i]-times[i])
			}
			if late := times[i] - dues[i]; times[i] > again && late > 100_000 {
				t.Fatalf("packet %d: still %d ns late", i, late)
			}
		}
		for _, w := range []Instant{100_000, Instant(ms), 10 * Instant(ms)} {
			// A call may go 2 µs after its release, so a span may seem shorter.
			span := Instant(k*float64(w+slack+4000)) + 1
			if got, most := busiest(times, w), busiest(dues, span); got > most {
				t.Fatalf("%d packets in %d ns; the schedule has %d in %d", got, w, most, span)
			}
		}
	})
}

func TestReleaseDoesNotAllocate(t *testing.T) {
	l := NewLimiter(2)
	now := Instant(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 1000
		_ = l.Release(now - 500)
		l.Sent(now-500, now)
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
