package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

// crasher takes the state that the disk would have if the power went just
// before a certain change of a file.
type crasher struct {
	mem     *memFS
	at      int64 // of the changes; 0: never
	percent int
	rng     *rand.Rand
	n       atomic.Int64
	w       atomic.Pointer[Writer]
	once    sync.Once
	clone   *memFS
	durable moldcast.Seq // when it was taken
	done    atomic.Bool
}

func (c *crasher) fs() vfs.FS {
	return errorfs.Wrap(c.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && c.n.Add(1) == c.at {
			c.take()
		}
		return nil
	}))
}

func (c *crasher) take() {
	c.once.Do(func() {
		if w := c.w.Load(); w != nil {
			_, c.durable, _ = w.Watermarks() // before: what is durable by then must be there
		}
		c.clone = c.mem.crash(c.percent, c.rng)
		c.done.Store(true)
	})
}

// arrivals is what two lines bring of r: each in packets of its own, each
// without what it lost, out of order where they lie beside each other. What
// both lost is not in it.
func arrivals(rng *rand.Rand, r moldcast.Range) []moldcast.Piece {
	type arrival struct {
		at float64
		p  moldcast.Piece
	}
	var all []arrival
	for line := range uint8(1 + rng.IntN(2)) {
		most := []int{1, 5, 12, 40}[rng.IntN(4)]
		loss := []float64{0, 0.01, 0.2}[rng.IntN(3)]
		late := []float64{0, 3, 200}[rng.IntN(3)]
		lag := rng.Float64() * 50
		for q := r.First; q < r.Next; {
			n := min(1+rng.IntN(most), int(r.Next-q))
			p := piece(q, n)
			p.Line = line
			at := float64(q-r.First) + lag + late*rng.Float64()
			q += moldcast.Seq(n)
			switch {
			case rng.Float64() >= loss:
			case rng.IntN(3) > 0: // comes again, when it was asked for
				at += 400
				p.Flags = moldcast.Repaired
			default:
				continue
			}
			all = append(all, arrival{at, p})
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	out := make([]moldcast.Piece, len(all))
	for i, a := range all {
		out[i] = a.p
	}
	return out
}

// Whatever the options, the losses, the order and the framing of two lines,
// and at whatever change of a file the power goes, and goes again during
// recovery: what was durable is there, and when all has come in the end, the
// stream that is read is the same.
func TestCrashPoints(t *testing.T) {
	points := 60
	if crashes() > 60 {
		points = 500
	}
	var inFlight, recovering, closing atomic.Int64
	t.Run("points", func(t *testing.T) {
		for i := range points {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				crashPoint(t, uint64(i), &inFlight, &recovering, &closing)
			})
		}
	})
	t.Logf("%d crashes while writing, %d while recovering, %d while closing", inFlight.Load(), recovering.Load(), closing.Load())
	if inFlight.Load() < int64(points/4) || recovering.Load() == 0 || closing.Load() == 0 {
		t.Error("too few of them")
	}
}

func crashPoint(t *testing.T, seed uint64, inFlight, recovering, closing *atomic.Int64) {
	rng := rand.New(rand.NewPCG(seed, 77))
	o := Options{Node: "test"}
	vary := func() {
		o.BlockSize = []int{1 << 10, 4 << 10, 16 << 10, 256 << 10}[rng.IntN(4)]
		o.SegmentSize = []int64{16 << 10, 64 << 10, 1 << 20}[rng.IntN(3)]
		o.Sync = []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond}[rng.IntN(4)]
		o.BlockAge = []time.Duration{5 * time.Millisecond, 30 * time.Second}[rng.IntN(2)]
		o.SegmentTime = []time.Duration{0, 20 * time.Millisecond}[rng.IntN(2)]
		o.TailBytes = []int64{0, 16 << 10}[rng.IntN(2)]
		o.QueueBytes = []int64{128 << 10, 8 << 20}[rng.IntN(2)]
		o.Workers = 1 + rng.IntN(2)
		o.MergeSaves = []float64{-1, anyMerge, 0, 0.6}[rng.IntN(4)]
		o.Wait = true
	}
	first := []moldcast.Seq{1, 484311999, ^moldcast.Seq(0) - 1<<20}[rng.IntN(3)]
	r := moldcast.Range{First: first, Next: first + moldcast.Seq(1500+rng.IntN(2500))}
	feed := arrivals(rng, r)

	mem := newMemFS()
	least := moldcast.Range{First: first, Next: first} // durable, at the last crash
	lowest := ^moldcast.Seq(0)                         // of what is stored
	from := 0
	for crash := range 1 + rng.IntN(3) {
		vary()
		c := &crasher{mem: mem, percent: []int{0, 30, 100}[rng.IntN(3)], rng: rand.New(rand.NewPCG(seed, uint64(crash))), at: 1 + int64(rng.IntN(400))}
		if crash > 0 {
			c.at = 1 + int64(rng.IntN(60)) // often while it recovers
		}
		o.FS = c.fs()
		a := create(t, o)
		w, err := a.Writer("default", sess(t, "S"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if c.done.Load() {
			recovering.Add(1)
		} else {
			if _, d, _ := w.Watermarks(); !least.Empty() && d < least.Next {
				t.Fatalf("%d was durable, after recovery %d is", least.Next, d)
			}
			lowest = ^moldcast.Seq(0)
			if cov := w.View().Coverage(); len(cov) > 0 {
				lowest = cov[0].First
			}
			c.w.Store(w)
			w.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: r.Next, Stamp: moldcast.Stamp(crash + 1)})
			for ; from < len(feed) && !c.done.Load(); from++ {
				if _, err := w.Append(feed[from]); err != nil {
					t.Fatal(err)
				}
				lowest = min(lowest, feed[from].First)
				if rng.IntN(25) == 0 {
					if err := w.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if c.done.Load() {
				inFlight.Add(1)
			}
		}
		crashed := c.done.Load()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if !crashed && c.done.Load() {
			closing.Add(1)
		}
		_ = a.Close()
		c.take() // where there were fewer changes
		mem = c.clone
		if c.durable > least.Next && lowest == first {
			least.Next = c.durable
		}
		from = max(0, from-rng.IntN(100)) // what was on its way comes again, or is a gap
	}

	vary()
	o.FS = mem
	a := create(t, o)
	if _, err := a.Sessions(); err != nil {
		t.Fatal(err)
	}
	w := writer(t, a, "S")
	if cov := w.View().Coverage(); !least.Empty() && (len(cov) == 0 || cov[0].First != least.First || cov[0].Next < least.Next) {
		t.Fatalf("%v was durable, %v is there", least, cov)
	}
	for _, p := range feed[from:] {
		put(t, w, p)
	}
	w.Start(first)
	if _, _, head := w.Watermarks(); head < r.Next {
		put(t, w, piece(r.Next-1, 1))
	}
	for _, h := range w.View().Holes() {
		put(t, w, piece(h.Range.First, int(h.Range.Len())))
	}
	check(t, w.View(), r)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, a); rep.Messages != r.Len() {
		t.Fatalf("verify counts %d messages, want %d", rep.Messages, r.Len())
	}
	check(t, view(t, a, w.Ref()), r)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// One operation on a file fails, each in its turn: what is below the durable
// watermark is on the disk, and the writer goes on by itself, or says what is
// wrong; then the next finds all that was durable.
func TestEveryOperationFailsOnce(t *testing.T) {
	r := moldcast.Range{First: 484311999, Next: 484311999 + 3000}
	// run returns how many operations there were, and on which one failed.
	run := func(t *testing.T, at int64) (ops int64, what string) {
		mem := newMemFS()
		var n atomic.Int64
		var failed atomic.Pointer[string]
		defer func() {
			if s := failed.Load(); s != nil && t.Failed() {
				t.Log(*s)
			}
		}()
		o := testOptions(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if n.Add(1) == at {
				s := fmt.Sprintf("%v %s", op.Kind, op.Path)
				failed.Store(&s)
				return syscall.EIO
			}
			return nil
		})))
		o.Wait = true
		reported := func(err error) {
			t.Helper()
			if failed.Load() == nil {
				t.Fatalf("%v, though nothing failed", err)
			}
		}
		a, err := OpenOrCreate("archive", o)
		if err != nil {
			reported(err)
			a = create(t, o)
		}
		w, err := a.Writer("default", sess(t, "S"), 0)
		if err != nil {
			reported(err)
			w = writer(t, a, "S")
		}
		for q := r.First; q < r.Next; q += 6 {
			for {
				_, err := w.Append(piece(q, 6))
				if err == nil {
					break
				}
				reported(err)
				until(t, "it writes again", func() bool { return w.Err() == nil })
			}
			if q%300 == 3 {
				if err := w.Flush(t.Context()); err != nil {
					reported(err)
				}
			}
		}
		check(t, w.View(), r)
		until(t, "all is durable", func() bool { return w.Flush(t.Context()) == nil })
		_, durable, _ := w.Watermarks()
		if durable != r.Next {
			t.Fatalf("durable %d, want %d", durable, r.Next)
		}
		o.FS = mem.crash(0, nil) // what is on the disk, and no more
		if err := w.Close(); err != nil {
			reported(err)
		}
		ops = n.Load()
		_ = a.Close()
		b := create(t, o)
		if _, err := b.Sessions(); err != nil {
			t.Fatal(err)
		}
		check(t, view(t, b, w.Ref()), r)
		verify(t, b)
		_ = b.Close()
		o.FS = mem
		b = create(t, o)
		check(t, view(t, b, w.Ref()), r)
		verify(t, b)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if s := failed.Load(); s != nil {
			what = *s
		}
		return ops, what
	}
	ops, _ := run(t, 0)
	step := int64(1)
	if crashes() <= 60 {
		step = max(1, ops/60)
	}
	var missed atomic.Int64
	t.Run("op", func(t *testing.T) {
		for at := int64(1) + ops%step; at <= ops; at += step {
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				t.Parallel()
				if _, what := run(t, at); what == "" {
					missed.Add(1) // this run had fewer
				}
			})
		}
	})
	if missed.Load() > ops/step/2 {
		t.Errorf("%d of %d runs had no failure", missed.Load(), ops/step)
	}
}
