package store

import (
	"runtime"
	"testing"

	"github.com/moldtape/moldtape/store/block"
)

// What was learned of one recording serves others of the same messages, from
// their first block on; those of other messages are learned for themselves.
func TestLearnedForOthers(t *testing.T) {
	first := testEncoders(t, Options{Codec: CodecAuto})
	a := &Archive{o: Options{Codec: CodecAuto}, box: first.box, learner: first.learner}
	known := func() int { return len(a.learner.known) }
	for i := range 2 {
		if note, err := encode(first, bookBlock(t, uint64(i)), 0); note != nil || err != nil {
			t.Fatal(note, err)
		}
	}
	if known() != 1 {
		t.Fatalf("%d plans are known", known())
	}
	second := a.newEncoders(new(plans))
	for i := range 5 {
		m := bookBlock(t, uint64(100+i))
		if note, err := encode(second, m, 0); note != nil || err != nil || m.parsed.Codec != block.Foretold {
			t.Errorf("block %d of another recording: %v, %v, %v", i, m.parsed.Codec, note, err)
		}
	}
	if known() != 1 || second.plans.newest.Load() != first.plans.newest.Load() {
		t.Errorf("%d plans are known, after the same messages twice", known())
	}
	a.learner.rest = a.learner.rest.AddDate(-1, 0, 0)
	third := a.newEncoders(new(plans))
	for i := range 2 {
		if note, err := encode(third, bookOf(t, uint64(i), 64<<10, "x"), 0); note != nil || err != nil {
			t.Fatal(note, err)
		}
	}
	if known() != 2 || third.plans.newest.Load() == first.plans.newest.Load() {
		t.Errorf("%d plans are known, after messages of other shapes", known())
	}
}

// Of a recording that is small, or at its end, nothing is learned; nor while
// another is learned of, or the learner rests.
func TestLearnsSeldom(t *testing.T) {
	for name, c := range map[string]struct {
		seen  int
		last  bool
		busy  func(l *learner)
		learn bool
	}{
		"enough":  {learnedAfter, false, func(*learner) {}, true},
		"small":   {0, false, func(*learner) {}, false},
		"ends":    {learnedAfter, true, func(*learner) {}, false},
		"another": {learnedAfter, false, func(l *learner) { l.turn.Lock() }, false},
		"rests":   {learnedAfter, false, func(l *learner) { l.rest = l.rest.AddDate(9000, 0, 0) }, false},
		"stopped": {learnedAfter, false, func(l *learner) { l.stop.Store(true) }, false},
	} {
		e := testEncoders(t, Options{Codec: CodecAuto})
		e.seen = c.seen
		c.busy(e.learner)
		m := bookOf(t, 1, block.LeastLearn, "")
		if note, err := e.encode(m, 0, c.last, nil); note != nil || err != nil {
			t.Fatal(note, err)
		}
		e.learner.running.Wait()
		if got := e.plans.newest.Load() != nil; got != c.learn {
			t.Errorf("%s: learned %v, want %v", name, got, c.learn)
		}
	}
}

// Where a block teaches nothing better, plans stay.
func TestLearnKeeps(t *testing.T) {
	e := testEncoders(t, Options{Codec: CodecAuto})
	if note, err := encode(e, bookBlock(t, 1), 0); note != nil || err != nil {
		t.Fatal(note, err)
	}
	old := e.plans.newest.Load()
	e.learner.rest = e.learner.rest.AddDate(-1, 0, 0)
	e.learner.later(e.plans, bookBlock(t, 2).b, false)
	e.learner.running.Wait()
	if e.plans.newest.Load() != old || !e.plans.kept.Load() || len(e.learner.known) != 1 {
		t.Errorf("learned of the same messages once more, %d plans are known", len(e.learner.known))
	}
}

// There are as many tools as processors, and those used last are lent first.
func TestToolbox(t *testing.T) {
	b := newToolbox(1 << 10)
	defer b.close()
	n := runtime.NumCPU()
	lent := map[*tools]bool{}
	for range n {
		lent[b.take()] = true
	}
	if len(lent) != n || len(b.turns) != cap(b.turns) || cap(b.turns) != n {
		t.Errorf("%d tools are lent to %d, of %d processors", len(lent), len(b.turns), n)
	}
	got := make(chan *tools)
	go func() { got <- b.take() }()
	for one := range lent {
		b.give(one)
		if two := <-got; two != one {
			t.Error("others are lent than those given back")
		}
		b.give(one)
		if b.take() != one {
			t.Error("those given back last are not lent first")
		}
		break
	}
}
