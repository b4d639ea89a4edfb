package store

import (
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/store/block"
)

// Who has a processor for most of the time that it computes leaves others what
// they want; where too little passed to tell, nothing says otherwise.
func TestSpareAt(t *testing.T) {
	const look, begun, before = spareLook, time.Hour, 7 * time.Second
	w := stopwatch{begun: time.Time{}.Add(begun), used: before}
	for _, c := range []struct {
		took, used time.Duration
		want       bool
	}{
		{0, 0, true},
		{look - 1, 0, true},
		{look, 0, false},
		{look, look*3/4 - 1, false},
		{look, look * 3 / 4, true},
		{look, look, true},
		{look, look + 1, true}, // two clocks
		{3 * time.Second, 0, false},
		{3 * time.Second, look, false}, // of which most went by at once
		{3 * time.Second, 3 * time.Second, true},
		{time.Hour, 44 * time.Minute, false},
		{time.Hour, 46 * time.Minute, true},
	} {
		if got := w.spareAt(w.begun.Add(c.took), before+c.used); got != c.want {
			t.Errorf("a processor for %v of %v: spare %v", c.used, c.took, got)
		}
	}
}

// The watch measures this thread alone, from its begin on. Others run here too,
// and all stands still now and then: once without that is enough.
func TestStopwatch(t *testing.T) {
	compute := func(w *stopwatch) time.Duration {
		for threadTime()-w.used < 2*spareLook { // however long that takes
		}
		return threadTime() - w.used
	}
	w := startWatch()
	defer w.stop()
	compute(w)
	begun, used := time.Now(), threadTime()
	if w.begin(); w.begun.Before(begun) || w.used < used {
		t.Error("what was before counts")
	}
	once := func(what string, fn func() bool) {
		t.Helper()
		for tries := 0; !fn(); tries++ {
			if tries == 10_000 {
				t.Fatal("never ", what)
			}
		}
	}
	once("time to spare for who computes", func() bool {
		return spares(func() { compute(&stopwatch{used: threadTime()}) })
	})
	once("what others compute is not counted", func() bool {
		w.begin()
		theirs := make(chan time.Duration)
		go func() {
			w := startWatch()
			defer w.stop()
			theirs <- compute(w)
		}()
		return <-theirs > 2*(threadTime()-w.used)
	})
}

// forms compresses n blocks one after another, with so much time: d is dense, p
// planes.
func forms(t *testing.T, e *encoders, n int, spare, late bool) string {
	t.Helper()
	e.spares = func(fn func()) bool { fn(); return spare }
	var out strings.Builder
	for i := range n {
		m := bookBlock(t, uint64(i))
		if note, err := e.encode(m, 0, false, func() bool { return late }); note != nil || err != nil {
			t.Fatal(note, err)
		}
		e.learner.running.Wait()
		switch m.parsed.Codec {
		case block.Foretold:
			out.WriteByte('d')
		case block.PlanesZstd, block.PlanesS2:
			out.WriteByte('p')
		default:
			t.Fatalf("stored as %v", m.parsed.Codec)
		}
	}
	return out.String()
}

// Once there was no time to spare for a dense block, or others waited behind it,
// blocks are compressed fast for longer and longer, until there is; where all are
// to be dense they are.
func TestEncodersSpare(t *testing.T) {
	for _, c := range []struct{ spare, late bool }{{false, false}, {true, true}} {
		e := testEncoders(t, Options{Codec: CodecAuto})
		forms(t, e, 2, true, false) // learns
		for _, step := range []struct {
			ok   bool
			want string
		}{
			{true, "ddd"},
			{false, "d" + "pppp" + "d" + "pppppppp" + "d"},
			{true, strings.Repeat("p", 16) + "ddd"},
			{false, "dppppd"}, // rests less, the longer there was time
			{true, "pppppppp" + "d"},
		} {
			spare, late := c.spare || step.ok, c.late && !step.ok
			if got := forms(t, e, len(step.want), spare, late); got != step.want {
				t.Errorf("%+v, %v: %s, want %s", c, step.ok, got, step.want)
			}
		}
	}

	e := testEncoders(t, Options{Codec: CodecDense})
	forms(t, e, 2, false, true)
	if got := forms(t, e, 4, false, true); got != "dddd" {
		t.Errorf("dense, whatever waits: %s", got)
	}
}

// A turn to make a block dense is waited for only while nothing waits behind it.
func TestEncodersTurn(t *testing.T) {
	e := testEncoders(t, Options{Codec: CodecAuto})
	forms(t, e, 2, true, false)
	for range cap(e.dense) {
		e.dense <- struct{}{}
	}
	if got := forms(t, e, 2, true, true); got != "pp" {
		t.Errorf("without a turn: %s", got)
	}
	done := make(chan string)
	go func() { done <- forms(t, e, 1, true, false) }()
	<-e.dense
	if got := <-done; got != "d" || len(e.dense) != cap(e.dense)-1 {
		t.Errorf("with a turn: %s, %d of %d are out", got, len(e.dense), cap(e.dense))
	}
}

// Where others want the processor nothing is learned, and not soon tried again;
// nor is it taken for a sign that there is nothing better.
func TestLearnsWithTimeToSpare(t *testing.T) {
	l := newLearner(64 << 10)
	defer l.close()
	var p plans
	has := false
	learn := func(busy bool) (rest time.Duration) {
		l.rest = time.Time{}
		l.busyNow = func(*stopwatch) bool { return busy }
		begun := time.Now()
		l.later(&p, bookBlock(t, 1).b, has)
		l.running.Wait()
		return l.rest.Sub(begun)
	}
	var before time.Duration
	for i := range 4 {
		rest := learn(true)
		if p.newest.Load() != nil || p.kept.Load() || len(l.known) > 0 || rest < 2*before {
			t.Errorf("busy, %d: learned %v, rests %v after %v", i, p.newest.Load() != nil, rest, before)
		}
		before = busyFirst << i
	}
	if learn(false); p.newest.Load() == nil || l.busy != 0 {
		t.Errorf("with time to spare: learned %v, busy %v", p.newest.Load() != nil, l.busy)
	}
	l.known = nil
	p.newest.Store(nil)
	has = true // where all blocks are to be dense, it is not asked whether there is time
	if learn(true); p.newest.Load() == nil {
		t.Error("nothing is learned for blocks that have to be dense")
	}
}
