package gap

import (
	"testing"
	"time"
)

// TestRate: it grows only where requests have waited for it and answers came;
// silence and losses cut it, each to its bound; and rest makes it begin anew.
func TestRate(t *testing.T) {
	now := Instant(0)
	rtt := 200 * time.Microsecond
	base := rtt
	// window is one of them: answers and losses of a thousand requests.
	window := func(r *rate, waits bool, answers, lost, misses int) {
		r.asked(now)
		if waits {
			r.hold(now)
		}
		for range answers {
			r.answer(true)
		}
		for range lost {
			r.miss(true)
		}
		for range misses {
			r.miss(false)
		}
		now += Instant(max(rateWindow, 4*rtt))
		r.judge(now, rtt, base)
	}
	r := newRate(20_000)
	for range 20 {
		window(&r, false, 100, 0, 0)
	}
	if r.now != startRate {
		t.Errorf("%d/s though nothing waited", r.now)
	}
	for range 20 {
		window(&r, true, 0, 0, 3)
	}
	if r.now != startRate {
		t.Errorf("%d/s without answers", r.now)
	}
	n := 0
	for ; r.now < r.most; n++ {
		if n > 10 {
			t.Fatalf("%d/s after %d windows", r.now, n)
		}
		window(&r, true, 100, 1, 0)
	}
	window(&r, true, 100, 10, 0) // a little more is lost
	if r.now != r.most {
		t.Errorf("%d/s", r.now)
	}
	window(&r, true, 100, 20, 0)
	if r.now != r.most/2 {
		t.Errorf("%d/s after losses, want half of %d", r.now, r.most)
	}
	window(&r, true, 100, 0, 0)
	if want := r.most/2 + r.most/64 + 1; r.now != want {
		t.Errorf("%d/s, want %d", r.now, want)
	}
	for range 20 {
		window(&r, true, 100, 20, 0)
	}
	if r.now != startRate {
		t.Errorf("%d/s while much is lost, want %d", r.now, startRate)
	}
	for range 20 {
		window(&r, true, 0, 0, 10)
	}
	if r.now != leastRate {
		t.Errorf("%d/s in silence, want %d", r.now, leastRate)
	}
	window(&r, true, 100, 0, 0)
	if r.now <= leastRate {
		t.Errorf("%d/s when answers come again", r.now)
	}
	for r.now < r.most {
		window(&r, true, 100, 0, 0)
	}
	rtt = 10 * time.Millisecond // it is kept waiting
	window(&r, true, 100, 0, 0)
	if r.now != r.most {
		t.Errorf("%d/s", r.now)
	}
	rtt = 100 * time.Millisecond
	window(&r, true, 100, 0, 0)
	if r.now != r.most/2 {
		t.Errorf("%d/s when a round trip takes %v", r.now, rtt)
	}
	now += restPeriod + 1
	r.asked(now)
	if r.now != startRate {
		t.Errorf("%d/s after a rest", r.now)
	}
	for _, most := range []int{1, 100, 999} {
		r := newRate(most)
		for i := range 50 {
			window(&r, true, 100*(i%2), 0, 10)
			if r.now < 1 || r.now > most {
				t.Fatalf("%d/s of %d", r.now, most)
			}
		}
	}
}

// TestBudget: machines that share one send no more together, and each no more
// than its own.
func TestBudget(t *testing.T) {
	node := NewBudget(1000, nil)
	var all []*stream
	for i := range 4 {
		perS := 20_000
		if i == 0 {
			perS = 100
		}
		v := &ringServer{fits: 1, rtt: 200 * us}
		s := newStream(Config{Shared: NewBudget(perS, node)}, 1000, v)
		s.run(10, true)
		s.run(40_000, false)
		all = append(all, s)
	}
	const seconds = 10
	for range seconds * 1000 {
		for _, s := range all {
			s.run(1, true)
		}
	}
	total := 0
	for i, s := range all {
		t.Logf("%d: %d requests", i, s.requests)
		total += s.requests
		if i > 0 && s.requests < seconds*100 {
			t.Errorf("%d: only %d requests", i, s.requests)
		}
	}
	if n := all[0].requests; n > seconds*100+25 {
		t.Errorf("%d requests of %d", n, seconds*100)
	}
	if total < seconds*900 || total > seconds*1000+250 {
		t.Errorf("%d requests together, want about %d", total, seconds*1000)
	}
}

// TestBurstLoss: of 0.5 % of the packets, lost in bursts, each burst costs
// about one request, and next to nothing comes twice.
func TestBurstLoss(t *testing.T) {
	const packets, perPacket = 400_000, 4
	v := &ringServer{fits: 46, rtt: 300 * us}
	s := newStream(Config{}, 50_000, v)
	bursts, left, lost, twice := 0, 0, uint64(0), uint64(0)
	s.twice = &twice
	for range packets {
		s.due(s.now + interval(50_000))
		r := Range{s.head, s.head + perPacket}
		s.head = r.Next
		if left == 0 && s.rng.IntN(1200) == 0 {
			left = 1 + s.rng.IntN(11)
			bursts++
		}
		if left > 0 {
			left--
			lost += r.Len()
			continue
		}
		s.m.Passed(s.now, 0, r)
		take(s.m, s.now, 0, r, func(Range, Verdict) {})
		s.poll()
	}
	s.due(s.now + s1)
	st := s.m.Stats()
	t.Logf("%d bursts, %d messages lost, %d recovered, %d twice, %d requests", bursts, lost, st.MessagesRecovered, twice, s.requests)
	if bursts < 200 || st.MessagesRecovered != lost || st.MessagesMissing != 0 || st.GapsRecovered != st.GapsOpened || st.MessagesLost != 0 {
		t.Errorf("%+v", st)
	}
	if s.requests*10 > bursts*12 {
		t.Errorf("%d requests for %d bursts", s.requests, bursts)
	}
	if twice*20 > lost {
		t.Errorf("%d messages came twice, of %d", twice, lost)
	}
}

// TestEveryThird: every third message is lost, for long, at a rate at which
// each by itself could not be asked for: requests are shared, the table stays
// small, and all is repaired.
func TestEveryThird(t *testing.T) {
	v := &ringServer{fits: 50, rtt: 300 * us, keeps: 50_000}
	s := newStream(Config{}, 90_000, v)
	for i := range 600_000 {
		s.run(1, i%3 != 2)
		if n := s.m.Stats().Ranges; n > 20_000 {
			t.Fatalf("%d ranges", n)
		}
	}
	s.run(1, true)
	s.due(s.now + s1)
	st := s.m.Stats()
	t.Logf("%d gaps, %d requests, %d messages an answer", st.GapsOpened, s.requests, st.AnswerMessages)
	if st.MessagesMissing != 0 || st.MessagesRecovered != 200_000 || st.GapsRecovered != 200_000 || st.MessagesLost != 0 {
		t.Errorf("%+v", st)
	}
	if s.requests > 50_000 {
		t.Errorf("%d requests", s.requests)
	}
	s.check(t)
}
