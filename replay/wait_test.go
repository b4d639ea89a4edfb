package replay

import (
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

// The lead rises at once with late sleeps and falls slowly with good ones.
func TestLead(t *testing.T) {
	w := NewWaiter(SpinAuto)
	w.learn(time.Millisecond)
	if w.lead < time.Millisecond {
		t.Errorf("lead %v after a sleep that was 1 ms late", w.lead)
	}
	w.learn(0)
	if w.lead < time.Millisecond {
		t.Errorf("lead %v after one good sleep", w.lead)
	}
	for range 200 {
		w.learn(20 * time.Microsecond)
	}
	if w.lead > 100*time.Microsecond {
		t.Errorf("lead %v after many good sleeps", w.lead)
	}
	w.learn(time.Second)
	if w.lead != maxLead {
		t.Errorf("lead %v, want the bound", w.lead)
	}
	for range 1000 {
		w.learn(-time.Second) // a signal cut the sleep short
	}
	if w.lead != minLead {
		t.Errorf("lead %v, want the least", w.lead)
	}
}
