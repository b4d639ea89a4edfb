package repair

import (
	"container/heap"
	"fmt"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"pgregory.net/rapid"
)

// world is a request server and the path to it, in virtual time.
type world struct {
	has   func(q moldcast.Seq, at time.Duration) bool
	each  int           // messages of an answer
	trip  time.Duration // there and back
	loss  float64       // of requests, and of answers
	most  int           // answers a second; 0: any number
	down  func(at time.Duration) bool
	rand  gap.Random
	now   time.Duration
	queue arrivals
	next  time.Duration // when it may answer again

	search   *search
	got      gap.Set
	requests int
	half     time.Duration // when 200 messages were brought
	last     time.Duration // when something was brought
	told     []told        // how long it says that it takes
}

type tester interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

type told struct{ at, atMost time.Duration }

type arrival struct {
	at time.Duration
	r  moldcast.Range
}

type arrivals []arrival

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at < a[j].at }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(arrival)) }
func (a *arrivals) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

func (w *world) lost() bool { return float64(w.rand.Next()>>11)/(1<<53) < w.loss }

func (w *world) request(r moldcast.Range) {
	w.requests++
	at := w.now + w.trip/2
	if w.lost() || w.down != nil && w.down(at) || !w.has(r.First, at) {
		return
	}
	if w.most > 0 {
		if at < w.next {
			return
		}
		w.next = at + time.Second/time.Duration(w.most)
	}
	end := r.First
	for end < r.Next && end < r.First+moldcast.Seq(w.each) && w.has(end, at) {
		end++
	}
	if !w.lost() {
		heap.Push(&w.queue, arrival{w.now + w.trip, moldcast.Range{First: r.First, Next: end}})
	}
}

// run goes on until the search is over.
func (w *world) run(t tester, s *search) {
	t.Helper()
	w.search = s
	if w.each == 0 {
		w.each = 40
	}
	if w.trip == 0 {
		w.trip = time.Millisecond
	}
	const origin = moldcast.Instant(5000)
	at := func() moldcast.Instant { return origin + moldcast.Instant(w.now) }
	idle := 0
	for {
		asked := 0
		for {
			r, ok := s.Poll(at())
			if !ok {
				break
			}
			if r.Empty() || r.Len() > moldcast.MaxCount {
				t.Fatalf("asks for %v", r)
			}
			if asked++; asked > 2*outstanding {
				t.Fatalf("%v: more than %d requests at once", w.now, asked)
			}
			w.request(r)
		}
		if n := len(w.told); n == 0 || w.now >= w.told[n-1].at+50*time.Millisecond {
			w.told = append(w.told, told{w.now, s.Progress().AtMost})
		}
		if s.Done() {
			return
		}
		next := time.Duration(s.Deadline() - origin)
		if len(w.queue) > 0 && w.queue[0].at <= next {
			x := heap.Pop(&w.queue).(arrival)
			w.now = max(w.now, x.at)
			w.arrive(t, x.r, at())
			idle = 0
			continue
		}
		if idle++; idle > 1_000_000 {
			t.Fatalf("%v: no end: %+v", w.now, s.Progress())
		}
		if next < w.now {
			next = w.now
		}
		w.now = next
	}
}

func (w *world) arrive(t tester, r moldcast.Range, now moldcast.Instant) {
	for in := r; !in.Empty(); {
		part, wanted := w.search.Wanted(in)
		if in.First = part.Next; !wanted {
			continue
		}
		if sub, held := w.got.Cut(part); held {
			t.Fatalf("%v came twice", sub)
		}
		w.got.Add(part)
		w.search.Took(part)
		if w.last = w.now; w.got.Count() <= 200 {
			w.half = w.now
		}
	}
	w.search.Answered(now, r)
}

// missed is what the server has of what is wanted, always, and was not brought.
func (w *world) missed(ranges []moldcast.Range) (out gap.Set) {
	for _, r := range ranges {
		for q := r.First; q < r.Next; q++ {
			if w.has(q, 0) && w.has(q, w.now) && !w.got.Contains(q) {
				out.Add(moldcast.Range{First: q, Next: q + 1})
			}
		}
	}
	return out
}

// bounded checks that from when nothing more came it took no longer than it said.
func (w *world) bounded(t tester) {
	t.Helper()
	for _, x := range w.told {
		if x.at > w.last && w.now > x.at+x.atMost+time.Second {
			t.Errorf("at %v, with nothing brought since %v, it said that it takes at most %v more; it took until %v", x.at, w.last, x.atMost, w.now)
			return
		}
	}
}

// everyNth is n holes of size messages, one every period, from 101 on.
func everyNth(n, size, period int) (out []moldcast.Range) {
	for i := range n {
		first := moldcast.Seq(101 + i*period)
		out = append(out, moldcast.Range{First: first, Next: first + moldcast.Seq(size)})
	}
	return out
}

func from(first moldcast.Seq) func(moldcast.Seq, time.Duration) bool {
	return func(q moldcast.Seq, _ time.Duration) bool { return q >= first }
}

// A ring that has the newest of 462 holes only: these come at once, the others
// are given up in seconds, whatever the budget.
func TestSearchShortRing(t *testing.T) {
	holes := everyNth(462, 4, 36)
	for _, budget := range []time.Duration{time.Second, 10 * time.Second} {
		w := &world{has: from(holes[362].First + 2)} // it begins in the middle of a hole
		w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, budget))
		if missed := w.missed(holes); missed.Len() > 0 || w.got.Count() != 99*4+2 {
			t.Errorf("budget %v: %d brought, %v missed", budget, w.got.Count(), missed.Ranges())
		}
		if w.half > 100*time.Millisecond || w.last > 2*time.Second || w.now > 7*time.Second {
			t.Errorf("budget %v: half came within %v, the last after %v, and it took %v", budget, w.half, w.last, w.now)
		}
		w.bounded(t)
	}
}

// So it is of many holes: those that it lacks are given up after three requests
// each, or little more, and what lies inside them is not looked for long.
func TestSearchShortRingOfMany(t *testing.T) {
	holes := everyNth(30_000, 4, 36)
	w := &world{has: from(holes[29_900].First)}
	w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, 5*time.Second))
	if missed := w.missed(holes); missed.Len() > 0 || w.last > time.Second || w.now > 105*time.Second {
		t.Errorf("missed %v, the last came after %v, and it took %v", missed.Ranges(), w.last, w.now)
	}
	w.bounded(t)
}

// The end of a ring is found within one long hole, to the message.
func TestSearchLongHole(t *testing.T) {
	hole := []moldcast.Range{{First: 1, Next: 1_000_001}}
	for _, first := range []moldcast.Seq{1, 2, 500_000, 934_465, 999_937, 1_000_000} {
		w := &world{has: from(first)}
		w.run(t, newSearch(new(peer), Want{Ranges: hole, Signs: hole}, 3*time.Second))
		want := moldcast.Range{First: first, Next: 1_000_001}
		if got := w.got.Ranges(); len(got) != 1 || got[0] != want {
			t.Errorf("from %d: %v", first, got)
		}
		if w.now > 10*time.Second+time.Duration(want.Len()/40)*time.Second/5000 {
			t.Errorf("from %d: it took %v", first, w.now)
		}
		if n := int(want.Len() / 40); w.requests > n+n/20+6000 {
			t.Errorf("from %d: %d requests for %d answers", first, w.requests, n)
		}
		w.bounded(t)
	}
}

// A server that has everything is asked little more than it answers, and fast.
func TestSearchWholeServer(t *testing.T) {
	for name, ranges := range map[string][]moldcast.Range{
		"long": {{First: 1, Next: 400_001}}, "many": everyNth(10_000, 40, 100),
	} {
		w := &world{has: from(1), trip: 200 * time.Microsecond}
		w.run(t, newSearch(new(peer), Want{Ranges: ranges}, time.Second))
		if w.got.Count() != 400_000 || w.requests > 10_300 || w.now > 3*time.Second {
			t.Errorf("%s: %d messages with %d requests in %v", name, w.got.Count(), w.requests, w.now)
		}
	}
}

// Nobody answers: it ends with the budget, and was asked no faster than at the
// beginning.
func TestSearchSilent(t *testing.T) {
	for _, n := range []int{1, 462, 50_000} {
		holes := everyNth(n, 4, 36)
		w := &world{has: func(moldcast.Seq, time.Duration) bool { return false }}
		w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, 2*time.Second))
		if !w.search.Silent() || w.now < 2*time.Second || w.now > 3500*time.Millisecond || w.requests > 3500 {
			t.Errorf("%d holes: %v, %d requests", n, w.now, w.requests)
		}
		if n == 1 && w.requests > 60 {
			t.Errorf("%d requests for one hole", w.requests)
		}
		w.bounded(t)
	}
}

// It answers for nothing but the inside of a hole of many, or one message:
// that is heard within the budget.
func TestSearchSigns(t *testing.T) {
	holes := everyNth(200, 1000, 2000)
	inside := moldcast.Range{First: holes[3].First + 600, Next: holes[3].First + 800}
	w := &world{has: func(q moldcast.Seq, _ time.Duration) bool { return inside.Contains(q) }}
	w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, 10*time.Second))
	if got := w.got.Ranges(); len(got) != 1 || got[0] != inside {
		t.Errorf("%v after %v, %d requests", got, w.now, w.requests)
	}
}

// A rough search finds what lies behind what the server lacks where that is
// little, and does not look long for it where it is much.
func TestSearchRough(t *testing.T) {
	w := &world{has: func(q moldcast.Seq, _ time.Duration) bool { return q > 130 && q < 180 || q == 4200 }}
	ranges := []moldcast.Range{{First: 101, Next: 201}, {First: 4100, Next: 4300}, {First: 6000, Next: 6100}}
	w.run(t, newSearch(new(peer), Want{Ranges: ranges, Signs: ranges, Rough: true}, time.Hour))
	if missed := w.missed(ranges); missed.Len() > 0 {
		t.Errorf("missed %v", missed.Ranges())
	}
	w.bounded(t)
	ranges = everyNth(462, 32, 36)
	w = &world{has: from(ranges[362].First + 20)}
	w.run(t, newSearch(new(peer), Want{Ranges: ranges, Signs: ranges, Rough: true}, time.Hour))
	if missed := w.missed(ranges); missed.Len() > 0 || w.now > 5*time.Second || w.requests > 4000 {
		t.Errorf("missed %v, %v, %d requests", missed.Ranges(), w.now, w.requests)
	}
	w.bounded(t)
}

// A path that loses much of what is asked and answered leaves nothing behind.
func TestSearchLossyPath(t *testing.T) {
	holes := append(everyNth(300, 4, 36), moldcast.Range{First: 50_000, Next: 60_000})
	lacks := func(q moldcast.Seq) bool { return q < 3000 || q/1000 == 7 || q > 53_333 && q < 55_555 }
	for seed := range 6 {
		for _, loss := range []float64{0.02, 0.1, 0.25} {
			w := &world{loss: loss, rand: gap.Random(seed), has: func(q moldcast.Seq, _ time.Duration) bool { return !lacks(q) }}
			w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, 10*time.Second))
			if missed := w.missed(holes); missed.Len() > 0 {
				t.Errorf("seed %d, loss %v: missed %v (%v, %d requests)", seed, loss, missed.Ranges(), w.now, w.requests)
			}
			if w.now > time.Minute {
				t.Errorf("seed %d, loss %v: %v", seed, loss, w.now)
			}
		}
	}
}

// A server that is away for a while, shorter than the budget, loses nothing by it.
func TestSearchOutage(t *testing.T) {
	holes := everyNth(2000, 4, 36)
	for _, begin := range []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		w := &world{
			has:  func(q moldcast.Seq, _ time.Duration) bool { return q/1000%2 == 0 },
			trip: 10 * time.Millisecond,
			down: func(at time.Duration) bool { return at >= begin && at < begin+4*time.Second },
		}
		w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, 5*time.Second))
		if missed := w.missed(holes); missed.Len() > 0 || w.search.Silent() {
			t.Errorf("away from %v on: missed %v", begin, missed.Ranges())
		}
	}
}

// One that goes away for good costs the budget.
func TestSearchGone(t *testing.T) {
	holes := everyNth(5000, 4, 36)
	w := &world{has: from(1), trip: 5 * time.Millisecond, down: func(at time.Duration) bool { return at > 300*time.Millisecond }}
	w.run(t, newSearch(new(peer), Want{Ranges: holes}, 2*time.Second))
	if !w.search.Silent() || w.got.Count() == 0 || w.now > 2500*time.Millisecond {
		t.Errorf("%v, %d brought, silent %v", w.now, w.got.Count(), w.search.Silent())
	}
	w.bounded(t)
}

// One that answers few requests a second is asked for no more than it answers,
// nearly, and gives all the same.
func TestSearchSlowServer(t *testing.T) {
	holes := everyNth(600, 4, 36)
	w := &world{has: from(holes[100].First), most: 100}
	w.run(t, newSearch(new(peer), Want{Ranges: holes, Signs: holes}, 10*time.Second))
	if missed := w.missed(holes); missed.Len() > 0 {
		t.Errorf("missed %v", missed.Ranges())
	}
	if w.now > 60*time.Second || w.requests > 8000 {
		t.Errorf("%v, %d requests", w.now, w.requests)
	}
}

// A ring that goes on meanwhile: what is there at its turn comes, and it ends.
func TestSearchMovingRing(t *testing.T) {
	hole := []moldcast.Range{{First: 1, Next: 200_001}}
	w := &world{trip: 5 * time.Millisecond, has: func(q moldcast.Seq, at time.Duration) bool {
		return q > 100_000+moldcast.Seq(at.Seconds()*20_000)
	}}
	w.run(t, newSearch(new(peer), Want{Ranges: hole}, 2*time.Second))
	if w.got.Count() < 80_000 || w.now > 15*time.Second {
		t.Errorf("%d of 100000 brought in %v", w.got.Count(), w.now)
	}
}

// A machine that stood still for longer than the budget has asked no less.
func TestSearchStoodStill(t *testing.T) {
	s := newSearch(new(peer), Want{Ranges: everyNth(1, 4, 36)}, 10*time.Second)
	now := moldcast.Instant(1)
	for range 3 {
		for ok := true; ok; {
			_, ok = s.Poll(now)
		}
		now += moldcast.Instant(time.Hour)
	}
	if s.Poll(now); s.Done() {
		t.Error("given up")
	}
}

// From a path that loses nothing, whatever the server has comes, however it is
// scattered; each message once; and it ends as it said.
func TestSearchAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ranges []moldcast.Range
		at := moldcast.Seq(rapid.IntRange(1, 100).Draw(t, "at"))
		for range rapid.IntRange(1, 30).Draw(t, "ranges") {
			r := moldcast.Range{First: at, Next: at + moldcast.Seq(rapid.IntRange(1, 150).Draw(t, "len"))}
			ranges = append(ranges, r)
			at = r.Next + moldcast.Seq(rapid.IntRange(0, 100).Draw(t, "held"))
		}
		var has gap.Set
		for q := moldcast.Seq(1); q < at; {
			r := moldcast.Range{First: q, Next: q + moldcast.Seq(rapid.IntRange(1, 200).Draw(t, "has"))}
			has.Add(r)
			q = r.Next + moldcast.Seq(rapid.IntRange(1, 300).Draw(t, "lacks"))
		}
		w := &world{
			each: rapid.IntRange(1, 60).Draw(t, "each"), trip: time.Duration(rapid.IntRange(1, 300).Draw(t, "trip")) * time.Millisecond,
			has: func(q moldcast.Seq, _ time.Duration) bool { return has.Contains(q) },
		}
		w.run(t, newSearch(new(peer), Want{Ranges: ranges, Signs: ranges}, 10*time.Minute))
		if missed := w.missed(ranges); missed.Len() > 0 {
			t.Fatalf("missed %v", missed.Ranges())
		}
	})
}

func BenchmarkSearch(b *testing.B) {
	for _, n := range []int{1000, 60_000} {
		b.Run(fmt.Sprintf("holes=%d", n), func(b *testing.B) {
			holes := everyNth(n, 4, 36)
			for b.Loop() {
				s := newSearch(new(peer), Want{Ranges: holes}, time.Second)
				for now := moldcast.Instant(1); !s.Done(); now += moldcast.Instant(time.Millisecond) {
					r, ok := s.Poll(now)
					for ok {
						if part, wanted := s.Wanted(r); wanted {
							s.Took(part)
						}
						s.Answered(now, r)
						r, ok = s.Poll(now)
					}
				}
			}
		})
	}
}
