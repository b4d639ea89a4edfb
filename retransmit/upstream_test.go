package retransmit

import (
	"fmt"
	"sync"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// lacking is a blockless view that lacks [500, 600) until it is filled.
type lacking struct {
	*memView
	mu     sync.Mutex
	filled bool
}

func (v *lacking) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	v.mu.Lock()
	filled := v.filled
	v.mu.Unlock()
	if !filled && first >= 500 && first < 600 {
		return dst, 0, &moldcast.HoleError{Hole: moldcast.Hole{Range: moldcast.Range{First: first, Next: 600}, Reason: moldcast.Unrecoverable}}
	}
	if !filled && first < 500 {
		count = min(count, int(500-first))
	}
	return v.memView.Append(dst, first, count, size, cold)
}

func (v *lacking) fill() {
	v.mu.Lock()
	v.filled = true
	v.mu.Unlock()
}

// wishes is an Upstream that notes what is wanted.
type wishes struct {
	mu  sync.Mutex
	got []moldcast.Range
}

func (w *wishes) Want(_ moldcast.Session, r moldcast.Range) {
	w.mu.Lock()
	w.got = append(w.got, r)
	w.mu.Unlock()
}

func (w *wishes) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.got)
}

// However many clients ask for a hole, upstream hears of it once in 50 ms, and
// each is answered when it is filled.
func TestHoleIsWantedOnce(t *testing.T) {
	v := &lacking{memView: newMemView(100, 1000, func(int) int { return 40 })}
	up, clock := &wishes{}, &testClock{}
	r := run(t, Config{Source: memSource{s1: v}, Upstream: up, Clock: clock})
	for c := range 100 {
		r.send(ask(host(c), s1, 510, 30), ask(host(c), s1, moldcast.Seq(512+c%5), 3))
	}
	r.send(ask(host(0), s1, 510, 30))
	if got := up.all(); got != "[510..539]" {
		t.Fatal(got)
	}
	if st := r.Stats(); st.Pending != 200 || st.Unanswered[Repeated] != 1 || st.Wanted != 1 {
		t.Fatal(counted(st))
	}
	clock.now.Add(int64(wantEvery))
	r.send(ask(host(200), s1, 510, 30), ask(host(201), s1, 590, 30), ask(host(202), s1, 50, 100))
	if got := up.all(); got != "[510..539 510..539 590..599 50..99]" {
		t.Fatal(got)
	}
	v.fill()
	for range 202 {
		<-r.conn.out
	}
	clock.now.Add(int64(wantFor))
	for r.Stats().Pending > 0 {
		r.send()
	}
	st := r.Stats()
	checkConserved(t, st)
	if st.Answered != 202 || st.Arrived != 202 || st.Unanswered[BelowFirst] != 1 {
		t.Fatal(counted(st))
	}
}

// What does not come in time is counted as what it is; so is what waits when
// the server stops.
func TestHoleThatStays(t *testing.T) {
	v := &lacking{memView: newMemView(100, 1000, func(int) int { return 40 })}
	clock := &testClock{}
	r := run(t, Config{Source: memSource{s1: v}, Upstream: &wishes{}, Clock: clock})
	r.send(ask(host(0), s1, 510, 30), ask(host(1), s1, 99, 1))
	clock.now.Add(int64(wantFor))
	for r.Stats().Pending > 0 {
		r.send()
	}
	r.send(ask(host(0), s1, 510, 30))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	st := r.Stats()
	checkConserved(t, st)
	if st.Unanswered[Missing] != 1 || st.Unanswered[BelowFirst] != 1 || st.Unanswered[Stopped] != 1 || st.Pending != 0 {
		t.Fatal(counted(st))
	}
}

// A client that asks for ever other holes has so many wanted a second, and so
// many wait; another is not kept from its one.
func TestWantsAreBounded(t *testing.T) {
	w := newWants()
	now := moldcast.Instant(0)
	asked := map[int]int{}
	try := func(c, first int) Reason {
		r := moldcast.Request{Session: s1, First: moldcast.Seq(first), Count: 1}
		ask, why := w.add(now, job{from: host(c), request: r, asked: r.Range()}, r.Range(), Missing)
		if ask {
			asked[c]++
		}
		return why
	}
	n := 0
	for range 10_000 { // a second
		now += 100_000
		n++
		try(1, n)
		if n%100 == 0 {
			n++
			try(2, n)
		}
		w.due(now, nil)
		if len(w.list) > maxWants || len(w.pending) > maxWaiters || w.clients[host(1).Addr()] > ofOne {
			t.Fatal(len(w.list), len(w.pending), w.clients)
		}
	}
	if asked[1] > 2*wantPerClient+1 || asked[2] < wantPerClient {
		t.Fatal(asked)
	}
	// Many clients: so many in all.
	clear(asked)
	for i := range 10_000 {
		now += 100_000
		try(10+i%1000, 100_000+i)
		w.due(now, nil)
	}
	sum := 0
	for _, k := range asked {
		sum += k
	}
	if sum > 2*wantTotal+1 || sum < wantTotal/2 {
		t.Fatal(sum)
	}
	now += moldcast.Instant(wantFor)
	w.due(now, nil)
	if len(w.pending) != 0 || len(w.clients) != 0 {
		t.Fatal(w.pending, w.clients)
	}
}

// A number that no message has is not wanted.
func TestAbsentIsNotWanted(t *testing.T) {
	up := &wishes{}
	v := absentView{newMemView(1, 100, func(int) int { return 40 })}
	r := run(t, Config{Source: memSource{s1: v}, Upstream: up})
	r.send(ask(host(0), s1, 10, 1))
	if st := r.Stats(); st.Unanswered[Missing] != 1 || up.all() != "[]" {
		t.Fatal(counted(st), up.all())
	}
}

type absentView struct{ *memView }

func (absentView) Append(dst []byte, first moldcast.Seq, _, _ int, _ bool) ([]byte, int, error) {
	return dst, 0, &moldcast.HoleError{Hole: moldcast.Hole{Range: moldcast.Range{First: first, Next: first + 1}, Reason: moldcast.Absent}}
}

// What retention removed is not fetched again because somebody asks for it.
func TestPrunedIsNotWanted(t *testing.T) {
	up := &wishes{}
	v := prunedView{newMemView(50, 100, func(int) int { return 40 })}
	r := run(t, Config{Source: memSource{s1: v}, Upstream: up})
	r.send(ask(host(0), s1, 60, 1), ask(host(0), s1, 10, 100), ask(host(0), s1, 49, 1))
	if st := r.Stats(); st.Unanswered[Missing] != 1 || st.Unanswered[BelowFirst] != 2 || up.all() != "[]" {
		t.Fatal(counted(st), up.all())
	}
}

type prunedView struct{ *memView }

func (prunedView) Append(dst []byte, first moldcast.Seq, _, _ int, _ bool) ([]byte, int, error) {
	return dst, 0, &moldcast.HoleError{Hole: moldcast.Hole{Range: moldcast.Range{First: first, Next: first + 1}, Reason: moldcast.Pruned}}
}

// slowLook is a view that takes its time to tell that what was wanted has come.
type slowLook struct {
	*lacking
	entered, leave chan struct{}
}

func (v *slowLook) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	if size == 0 {
		v.entered <- struct{}{}
		<-v.leave
	}
	return v.lacking.Append(dst, first, count, size, cold)
}

// To look whether what is wanted has come holds up nobody who asks.
func TestLookingDelaysNobody(t *testing.T) {
	v := &slowLook{&lacking{memView: newMemView(100, 1000, func(int) int { return 40 })}, make(chan struct{}), make(chan struct{})}
	r := run(t, Config{Source: memSource{s1: v}, Upstream: &wishes{}, Clock: &testClock{}})
	r.send(ask(host(0), s1, 510, 30))
	<-v.entered
	r.send(ask(host(1), s1, 520, 30), ask(host(1), s1, 100, 1))
	<-r.conn.out
	if st := r.Stats(); st.Pending != 2 || st.Answered != 1 {
		t.Error(counted(st))
	}
	go func() {
		for range v.entered {
		}
	}()
	close(v.leave)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	close(v.entered)
}
