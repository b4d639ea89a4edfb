package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/store/block"
)

const (
	// learnedAfter is how many raw bytes a recording has to show before anything
	// is learned of it: small ones are not worth it.
	learnedAfter = 64 << 10

	// learnShare is how long a learner rests, as a multiple of what it took:
	// of one processor it takes a fifth at most.
	learnShare = 4

	// How long it rests where others want the processor, again and again, and how
	// often it looks whether they do.
	busyFirst, busyMost = 500 * time.Millisecond, time.Minute
	busyLook            = 10 * time.Millisecond

	// knownPlans is how many plans are remembered for other recordings.
	knownPlans = 8

	// What was learned of other messages will do where it knows the shapes of so
	// much, and takes for it at most so much more than for what it was learned of.
	fitsKnown, fitsRatio = 0.95, 1.2

	// better is what new plans must come to, of the bytes that old ones take.
	better = 0.98
)

// learner learns by what messages are foretold, for all recordings of an
// archive: of one block at a time, and of any only where nothing that was
// learned before will do.
type learner struct {
	turn sync.Mutex   // of who learns
	work *block.Block // that it learns from
	tool *tools       // its own; nil until needed
	size int          // of blocks

	mu    sync.Mutex
	known []knownPlan   // what was of use last comes first
	rest  time.Time     // until when
	busy  time.Duration // how long it rests when there is no time to spare the next time

	stop    atomic.Bool
	running sync.WaitGroup
	busyNow func(*stopwatch) bool // busyNow, but in tests
}

type knownPlan struct {
	*block.Plans
	home float64 // stored bytes a raw one, of what they were learned of
}

// plans are those by which the messages of a recording are foretold now.
type plans struct {
	newest atomic.Pointer[block.Plans]
	kept   atomic.Bool // nothing better was found
}

func newLearner(blockSize int) *learner {
	return &learner{work: new(block.Block), size: min(blockSize, block.MaxTarget), busyNow: busyNow}
}

// busyNow reports, every now and then, that others want the processor.
func busyNow(w *stopwatch) bool {
	if time.Since(w.begun) < busyLook {
		return false
	}
	defer w.begin()
	return !w.spare()
}

// close ends what runs, and waits for it.
func (l *learner) close() {
	l.stop.Store(true)
	l.running.Wait()
}

// recall is what is known that suits b best, nil where there is nothing; fits
// says whether that will do.
func (l *learner) recall(enc *block.Encoder, b *block.Block) (best *block.Plans, ratio float64, fits bool) {
	l.mu.Lock()
	known := slices.Clone(l.known)
	l.mu.Unlock()
	at := 0
	for i, k := range known {
		r, shapes := enc.Measure(k.Plans, b)
		if shapes > 0 && (best == nil || r < ratio) {
			best, ratio, at = k.Plans, r, i
			fits = shapes >= fitsKnown && r <= fitsRatio*k.home
		}
	}
	if at > 0 {
		l.remember(known[at])
	}
	return best, ratio, fits
}

// remember puts k before all others.
func (l *learner) remember(k knownPlan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = slices.DeleteFunc(l.known, func(o knownPlan) bool { return o.Plans == k.Plans })
	l.known = slices.Insert(l.known, 0, k)
	if len(l.known) > knownPlans {
		l.known = slices.Delete(l.known, knownPlans, len(l.known))
	}
}

// now finds plans for b, after which those of old are no longer right: what is
// known already, or what b teaches; old where neither is better, or stop says
// that it is to end.
func (l *learner) now(stop func() bool, enc *block.Encoder, old *block.Plans, b *block.Block) *block.Plans {
	most := 0.0 // that better ones may take
	if old != nil {
		most, _ = enc.Measure(old, b)
		most *= better
	}
	best, ratio, fits := l.recall(enc, b)
	if fits && (old == nil || ratio < most) {
		return best
	}
	p := block.LearnUntil(stop, old, b)
	if p == nil {
		return old
	}
	home, _ := enc.Measure(p, b)
	if old != nil && home >= most {
		return old
	}
	l.remember(knownPlan{p, home})
	return p
}

// learn learns of b what is to be done next, as soon as no other learns.
func (l *learner) learn(enc *block.Encoder, past *block.History, b *block.Block) {
	l.turn.Lock()
	defer l.turn.Unlock()
	if p := l.now(l.stop.Load, enc, past.Plans(), b); p != past.Plans() {
		past.UsePlans(p)
	} else {
		past.KeepPlans()
	}
}

// later has another goroutine learn for p of what b holds, unless one does, or
// rests. Unless it has to be, it ends, and rests longer, where there is no time
// to spare.
func (l *learner) later(p *plans, b *block.Builder, has bool) {
	if !l.turn.TryLock() {
		return
	}
	l.mu.Lock()
	rests := time.Now().Before(l.rest)
	l.mu.Unlock()
	if rests || l.stop.Load() || b.Freeze(l.work) != nil {
		l.turn.Unlock()
		return
	}
	l.running.Go(func() {
		defer l.turn.Unlock()
		start := time.Now()
		if l.tool == nil {
			l.tool = &tools{size: l.size, by: map[block.Level]*block.Encoder{}}
		}
		enc, err := l.tool.at(block.Dense)
		if err != nil {
			return // the options were checked
		}
		old := p.newest.Load()
		watch := startWatch()
		defer watch.stop()
		busy := false
		found := l.now(func() bool {
			busy = busy || !has && l.busyNow(watch)
			return busy || l.stop.Load()
		}, enc, old, l.work)
		switch {
		case found != old:
			p.newest.Store(found)
		case !busy:
			p.kept.Store(true)
		}
		end := time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		if !busy {
			l.rest, l.busy = end.Add(learnShare*end.Sub(start)), 0
			return
		}
		l.busy = min(max(2*l.busy, busyFirst), busyMost)
		l.rest = end.Add(l.busy)
	})
}
