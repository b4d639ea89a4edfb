package replay

import (
	"runtime"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Until never returns early, however long the wait, and adapts within bounds.
func TestSystemWaiterIsNeverEarly(t *testing.T) {
	for i, spin := range []Spin{SpinAuto, SpinAlways, SpinNever, SpinAuto, SpinAlways} {
		w := NewWaiter(spin)
		w.single = i > 2
		if w.Now() <= 0 || w.Wall() < moldcast.StampOf(time.Now().Add(-time.Minute)) {
			t.Errorf("now %d, wall %d", w.Now(), w.Wall())
		}
		wake := make(chan struct{})
		for _, d := range []time.Duration{-time.Second, 0, 1, time.Microsecond, 100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 45 * time.Millisecond} {
			at := w.Now() + moldcast.Instant(d)
			if w.Until(at, wake); w.Now() < at {
				t.Errorf("%v: %d ns early", d, at-w.Now())
			}
			if w.lead < minLead || w.lead > maxLead {
				t.Errorf("a lead of %v", w.lead)
			}
		}
	}
}

func TestSystemWaiterWakes(t *testing.T) {
	for _, spin := range []Spin{SpinAuto, SpinAlways, SpinNever} {
		for _, d := range []time.Duration{longest / 2, time.Hour} {
			w := NewWaiter(spin)
			wake := make(chan struct{}, 1)
			wake <- struct{}{}
			at := w.Now() + moldcast.Instant(d)
			if w.Until(at, wake); w.Now() >= at {
				t.Errorf("spin %d: slept through", spin)
			}
			done := make(chan struct{})
			go func() { w.Until(at, wake); close(done) }()
			wake <- struct{}{}
			<-done
		}
	}
}

// The lead rises at once with late sleeps, by half at most, and falls slowly
// with good ones.
func TestLead(t *testing.T) {
	w := NewWaiter(SpinAuto)
	first := w.lead
	w.learn(first)
	if w.lead != first+first/4 {
		t.Errorf("lead %v after a sleep that was %v late", w.lead, first)
	}
	if w.learn(time.Second); w.lead > 2*first {
		t.Errorf("lead %v after one sleep that was a second late", w.lead)
	}
	for range 20 {
		w.learn(2 * time.Millisecond)
	}
	if w.lead != maxLead {
		t.Errorf("lead %v, want the bound", w.lead)
	}
	if w.learn(0); w.lead < maxLead/2 {
		t.Errorf("lead %v after one good sleep", w.lead)
	}
	for range 200 {
		w.learn(20 * time.Microsecond)
	}
	if w.lead > 100*time.Microsecond {
		t.Errorf("lead %v after many good sleeps", w.lead)
	}
	for range 1000 {
		w.learn(-time.Second) // a signal cut the sleep short
	}
	if w.lead != minLead {
		t.Errorf("lead %v, want the least", w.lead)
	}
}

// Where packets are closer than the lead there is no sleep to learn from: the
// lead falls all the same, until it sleeps again.
func TestLeadDoesNotStick(t *testing.T) {
	w := NewWaiter(SpinAuto)
	w.lead = maxLead
	for i := 0; w.lead > 100*time.Microsecond; i++ {
		if i > 10_000 {
			t.Fatalf("lead %v", w.lead)
		}
		w.rest = 0 // as on a machine that is quiet
		w.Until(w.Now()+moldcast.Instant(5*time.Microsecond), nil)
	}
}

// A thread that lost its core while it was spinning only sleeps for a while.
func TestRest(t *testing.T) {
	w := NewWaiter(SpinAuto)
	w.origin = time.Now().Add(-time.Hour)
	stopped := 0
	for deadline := time.Now().Add(20 * time.Second); w.rest == 0 && time.Now().Before(deadline); stopped++ {
		w.single = true // Gosched: lets the other goroutine have the core
		done := make(chan struct{})
		go func() {
			for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
			}
			close(done)
		}()
		old := runtime.GOMAXPROCS(1)
		w.burn(w.Now()+moldcast.Instant(5*time.Millisecond), nil)
		<-done
		runtime.GOMAXPROCS(old)
	}
	if w.rest == 0 {
		t.Fatal("it never noticed that it was not running")
	}
	w.rest = w.Now() + moldcast.Instant(time.Hour)
	w.lead = maxLead
	before := w.lead
	at := w.Now() + moldcast.Instant(100*time.Microsecond)
	if w.Until(at, nil); w.Now() < at || w.lead == before-before/1024 {
		t.Error("it spun while it was to rest")
	}
}
