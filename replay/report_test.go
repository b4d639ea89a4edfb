package replay

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// The most in any window, against all windows, one by one.
func TestWindowProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := moldcast.Instant(rapid.IntRange(1, 50).Draw(t, "step"))
		w := window{step: step}
		var times []moldcast.Instant
		at := moldcast.Instant(rapid.Int64Range(1, 1000).Draw(t, "first"))
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			at += moldcast.Instant(rapid.SampledFrom([]int64{0, 0, 1, 7, 40, 300, 5000}).Draw(t, "gap"))
			times = append(times, at)
			w.add(at)
		}
		most := uint64(0)
		for from := times[0] - times[0]%step - 16*step; from <= at; from += step {
			n := uint64(0)
			for _, x := range times {
				if x >= from && x < from+windowSteps*step {
					n++
				}
			}
			most = max(most, n)
		}
		if w.most != most {
			t.Fatalf("most %d, want %d of %v in steps of %d", w.most, most, times, step)
		}
	})
}

// However long a replay is, its course fits, and loses no packet.
func TestTimelineProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l timeline
		due := moldcast.Instant(rapid.Int64Range(1, s1).Draw(t, "first"))
		n := rapid.IntRange(1, 300).Draw(t, "packets")
		origin, last, worst, sum := due, due, time.Duration(0), time.Duration(0)
		for range n {
			late := rapid.SampledFrom([]int64{0, 5, 70 * us, 3 * ms}).Draw(t, "late")
			l.add(due, due+moldcast.Instant(late))
			worst = max(worst, time.Duration(late))
			sum += time.Duration(late)
			last = max(last, due+moldcast.Instant(late))
			due += moldcast.Instant(rapid.SampledFrom([]int64{0, us, ms, 20 * ms, 3600 * s1}).Draw(t, "gap"))
		}
		spans := l.spans()
		var scheduled, sent uint64
		var most, mean time.Duration
		for i, s := range spans {
			scheduled += s.Scheduled
			sent += s.Sent
			most = max(most, s.Max)
			mean += s.Mean * time.Duration(s.Scheduled)
			if s.From != time.Duration(i)*s.Length {
				t.Fatalf("span %d begins at %v", i, s.From)
			}
		}
		end := spans[len(spans)-1]
		if scheduled != uint64(n) || sent != uint64(n) || most != worst || sum-mean < 0 || sum-mean > time.Duration(n) || len(spans) > maxSpans || end.From > time.Duration(last-origin) || end.From+end.Length <= time.Duration(last-origin) {
			t.Fatalf("%d packets: %d spans to %v, %d scheduled, %d sent, worst %v, sum %v", n, len(spans), end.From+end.Length, scheduled, sent, most, mean)
		}
	})
}

func TestDrift(t *testing.T) {
	r := newRecorder(true)
	for i := range moldcast.Instant(10_000) { // 100 s, 100 ppm slow
		due := moldcast.Instant(s1) + i*moldcast.Instant(10*ms)
		r.add(due, due+i*moldcast.Instant(us))
	}
	var rep Report
	r.fill(&rep)
	if rep.Drift < 0.0085 || rep.Drift > 0.0095 { // of the middle of the tenths
		t.Errorf("drift %v s, want 9 ms", rep.Drift)
	}
	if n := testing.AllocsPerRun(100, func() { r.add(moldcast.Instant(200*s1), moldcast.Instant(300*s1)) }); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
