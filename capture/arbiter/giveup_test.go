package arbiter

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// feeder offers packets of one line, and polls after each.
type feeder struct {
	t       *testing.T
	a       *Arbiter
	rec     *recorder
	now     moldcast.Instant
	offered uint64
}

func newFeeder(t *testing.T, cfg Config, held moldcast.Held) *feeder {
	f := &feeder{t: t, rec: newRecorder(t)}
	if held.First != 0 {
		k := &archived{bytes: map[moldcast.Seq]string{}}
		k.set.Add(moldcast.Range{First: held.First, Next: held.Head})
		for _, h := range held.Holes {
			k.set.Remove(h.Range)
		}
		f.rec.stored[session("S")] = k
		f.rec.held[session("S")] = held
	}
	a, err := New(cfg, f.rec)
	if err != nil {
		t.Fatal(err)
	}
	f.a = a
	return f
}

func (f *feeder) data(first, next moldcast.Seq) {
	f.offered++
	f.now += 100_000
	f.a.Offer(f.now, epoch+moldcast.Stamp(f.now), 0, sender, packet(session("S"), moldcast.Range{First: first, Next: next}, false))
	f.poll()
}

func (f *feeder) wait(d time.Duration) {
	f.now += moldcast.Instant(d)
	f.poll()
}

func (f *feeder) poll() {
	for _, _, ok := f.a.Poll(f.now); ok; _, _, ok = f.a.Poll(f.now) {
	}
}

func (f *feeder) session() *Session { return f.a.Sessions()[0] }

// everySecond are n holes of one message each, from 2 on.
func everySecond(n int) moldcast.Held {
	h := moldcast.Held{First: 1, Next: 2, Head: moldcast.Seq(2*n + 2), HeadTime: epoch}
	for i := range moldcast.Seq(n) {
		h.Holes = append(h.Holes, moldcast.Hole{Range: moldcast.Range{First: 2 + 2*i, Next: 3 + 2*i}, Before: epoch, After: epoch})
	}
	return h
}

// TestResumeOverMoreHolesThanTheTable: a capture that takes up an archive with
// more holes than it can keep keeps up with a lossy stream all the same, and
// drops nothing.
func TestResumeOverMoreHolesThanTheTable(t *testing.T) {
	const n, max, more = 100_000, 1000, 5000
	f := newFeeder(t, Config{Start: Live, Gap: gap.Config{MaxGaps: max, Budget: 20 * time.Millisecond}}, everySecond(n))
	q := moldcast.Seq(2*n + 2)
	f.data(q, q+1)
	rebuilt, before := 0, 0
	for i := range moldcast.Seq(more) {
		f.data(q+2*i+2, q+2*i+3)
		s := f.session()
		if len(s.missing.gaps) > max+max/8+8 {
			t.Fatalf("%d ranges on the ledger after %d", len(s.missing.gaps), i)
		}
		if len(s.missing.gaps) < before {
			rebuilt++
		}
		before = len(s.missing.gaps)
		if i%500 == 0 {
			checkLaws(t, f.a, f.offered)
		}
	}
	if rebuilt > 10+more*8/max {
		t.Errorf("the ledger was rebuilt %d times for %d gaps", rebuilt, more)
	}
	f.a.Flush(f.now)
	if c := f.a.Counters(); c.Messages != more+1 || c.QueueDropped != 0 {
		t.Errorf("stored %d of %d, dropped %d", c.Messages, more+1, c.QueueDropped)
	}
}

// TestForgottenIsNotHeld: late first copies of what was given up so long ago
// that it is forgotten are stored, and counted as stale; second copies, and
// what was stored before, are duplicates.
func TestForgottenIsNotHeld(t *testing.T) {
	const n, max = 20_000, 100
	f := newFeeder(t, Config{Start: Live, Gap: gap.Config{MaxGaps: max, Budget: 3 * time.Millisecond}}, moldcast.Held{})
	for i := range moldcast.Seq(n) {
		f.data(1+2*i, 2+2*i)
	}
	f.wait(time.Second)
	stored := f.a.Counters().Messages
	if stored != n || f.session().m.Stats().Evicted < n-2*max {
		t.Fatalf("stored %d, %+v", stored, f.session().m.Stats())
	}
	k := f.rec.stored[session("S")]
	const late = 1000
	for q := moldcast.Seq(1); q < 2*late; q += 20 { // ten stored, ten late
		f.data(q, q+20)
	}
	c := f.a.Counters()
	if c.Stale != late || c.Messages != n+late || c.Duplicates != late {
		t.Errorf("%+v", c)
	}
	if part, held := k.set.Cut(moldcast.Range{First: 1, Next: 2*late + 1}); !held || part.Len() != 2*late {
		t.Errorf("stored %v", part)
	}
	for q := moldcast.Seq(1); q < 2*late; q += 20 {
		f.data(q, q+20)
	}
	if c := f.a.Counters(); c.Duplicates != 3*late || c.Stale != late {
		t.Errorf("%+v", c)
	}
	// A store that is full drops it: it may come again.
	f.rec.busy = func(moldcast.Piece) bool { return true }
	f.data(2*late+1, 2*late+3)
	f.rec.busy = func(moldcast.Piece) bool { return false }
	if c := f.a.Counters(); c.QueueDropped != 1 {
		t.Errorf("%+v", c)
	}
	f.data(2*late+1, 2*late+3)
	if c := f.a.Counters(); c.Stale != late+1 {
		t.Errorf("%+v", c)
	}
	checkLaws(t, f.a, f.offered)
}

// TestDescending: a stream that goes down, with gaps, fills the gap table and
// is dropped from then on; each message costs the same.
func TestDescending(t *testing.T) {
	const top, n, max = 1_000_000_000, 30_000, 10_000
	f := newFeeder(t, Config{Start: Live, Gap: gap.Config{MaxGaps: max, Budget: time.Hour}}, moldcast.Held{})
	f.data(top, top+1)
	f.data(top+1, top+2)
	q := moldcast.Seq(top)
	for range n {
		q -= 2
		f.data(q, q+1)
	}
	c, s := f.a.Counters(), f.session()
	if len(s.missing.gaps) != max || s.First() != top-2*max || c.QueueDropped != n-max || c.Messages != max+2 {
		t.Errorf("%d gaps, first %d, %+v", len(s.missing.gaps), s.First(), c)
	}
	checkLaws(t, f.a, f.offered)
	// What goes on above still has its turn when the gaps are lost.
	f.now += moldcast.Instant(2 * time.Hour)
	f.poll()
	f.data(top+10, top+11)
	f.a.Flush(f.now)
	if d := f.a.Counters().QueueDropped - c.QueueDropped; d != 0 || s.Head() != top+11 {
		t.Errorf("dropped %d, head %d", d, s.Head())
	}
}

// TestLedgerEnds: the ledger is as cheap to change at its front as at its
// back, and says the same.
func TestLedgerEnds(t *testing.T) {
	var l ledger
	want := []missing{}
	at := func(i int) missing {
		return missing{Range: moldcast.Range{First: moldcast.Seq(i), Next: moldcast.Seq(i + 1)}}
	}
	random := uint64(1)
	next := func(n int) int {
		random = random*6364136223846793005 + 1442695040888963407
		return int(random>>33) % n
	}
	for i := range 20_000 {
		switch k := next(5); {
		case k < 3 || len(want) == 0:
			j := []int{0, len(want), next(len(want) + 1)}[next(3)]
			l.insert(j, at(i))
			want = append(want[:j], append([]missing{at(i)}, want[j:]...)...)
		case k == 3:
			l.push(at(i))
			want = append(want, at(i))
		default:
			j := []int{0, len(want) - 1, next(len(want))}[next(3)]
			to := min(len(want), j+1+next(3))
			l.remove(j, to)
			want = append(want[:j], want[to:]...)
		}
		if len(l.gaps) != len(want) {
			t.Fatalf("%d: %d ranges, want %d", i, len(l.gaps), len(want))
		}
		for _, j := range []int{0, len(want) / 2, len(want) - 1} {
			if j >= 0 && j < len(want) && l.gaps[j] != want[j] {
				t.Fatalf("%d: at %d %v, want %v", i, j, l.gaps[j], want[j])
			}
		}
	}
}
