package arbiter

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if set := false; true {
		flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
		checks := "1000"
		if os.Getenv("MOLDTAPE_LONG") != "" {
			checks = "8000"
		}
		if !set {
			_ = flag.Set("rapid.checks", checks)
		}
	}
	os.Exit(m.Run())
}

// TestGapsThatNobodyFills: one line without a server that loses every second
// packet, for long: everything that came is stored, each loss is on record,
// and memory does not grow.
func TestGapsThatNobodyFills(t *testing.T) {
	rec := newRecorder(t)
	holes, lost := 0, uint64(0)
	a, err := New(Config{
		Lines: 1, Start: Live,
		Gap: gap.Config{MaxGaps: 64, Budget: 10 * time.Millisecond},
	}, countHoles{rec, &holes, &lost})
	if err != nil {
		t.Fatal(err)
	}
	const packets = 5000
	var now moldcast.Instant
	var offered uint64
	offer := func(d []byte) {
		offered++
		a.Offer(now, epoch+moldcast.Stamp(now), 0, sender, d)
		for _, _, ok := a.Poll(now); ok; _, _, ok = a.Poll(now) {
		}
	}
	name := session("S")
	for i := range moldcast.Seq(packets) {
		now += 1_000_000
		offer(packet(name, moldcast.Range{First: 1 + 4*i, Next: 3 + 4*i}, false))
		if n := len(a.Sessions()); n > 0 {
			if n := len(a.Sessions()[0].missing.gaps); n > 64+64/8+8 {
				t.Fatalf("%d ranges on the ledger", n)
			}
		}
		checkLaws(t, a, offered)
	}
	now += 1_000_000_000
	offer(moldcast.AppendHeader(nil, name, 4*packets-1, moldcast.EndCount))
	now += 1_000_000_000
	a.Poll(now)
	c := a.Counters()
	if c.Messages != 2*packets || c.QueueDropped != 0 {
		t.Errorf("stored %d of %d messages, dropped %d", c.Messages, 2*packets, c.QueueDropped)
	}
	if holes != packets-1 || lost != 2*(packets-1) || c.MessagesLost != lost {
		t.Errorf("%d holes of %d messages, %d lost; want %d, %d", holes, lost, c.MessagesLost, packets-1, 2*(packets-1))
	}
	if !a.Done() {
		t.Error("not done")
	}
}

type countHoles struct {
	*recorder
	holes *int
	lost  *uint64
}

func (c countHoles) Hole(_ *Session, h moldcast.Hole) {
	*c.holes++
	*c.lost += h.Range.Len()
}

// TestForgedNamesCostLittle: a name of which two packets are forged costs a
// page of hashes, not the memory for all that could be compared.
func TestForgedNamesCostLittle(t *testing.T) {
	h := newHashes(1 << 20)
	for q := moldcast.Seq(1 << 60); q < 1<<60+4096; q++ {
		h.put(q, uint64(q))
	}
	pages := 0
	for _, p := range h.pages {
		if p != nil {
			pages++
		}
	}
	if pages != 1 || len(h.pages) != 256 {
		t.Errorf("%d of %d pages for 4096 messages", pages, len(h.pages))
	}
}

// TestHashes: the newest are remembered, wherever the sequences lie.
func TestHashes(t *testing.T) {
	for _, first := range []moldcast.Seq{1, 484311999, 1<<63 - 10_000, ^moldcast.Seq(0) - 30_000} {
		h := newHashes(2 * pageSize)
		const n = 20_000
		for q := first; q < first+n; q++ {
			h.put(q, uint64(q)*0x9E3779B97F4A7C15)
		}
		known := 0
		for q := first; q < first+n; q++ {
			if h.differs(q, uint64(q)*0x9E3779B97F4A7C15) {
				t.Fatalf("first %d: %d differs from itself", first, q)
			}
			if h.differs(q, 2) {
				known++
				if q < first+n-3*pageSize {
					t.Fatalf("first %d: %d is remembered", first, q)
				}
			} else if q >= first+n-pageSize {
				t.Fatalf("first %d: %d is not remembered", first, q)
			}
		}
		// An old one does not displace a newer one.
		h.put(first, 4)
		if h.differs(first, 2) || !h.differs(first+n-1, 2) {
			t.Errorf("first %d: an old hash displaced a newer one", first)
		}
	}
}

// TestHashesAreForgotten: a page that is used again knows nothing of before.
func TestHashesAreForgotten(t *testing.T) {
	h := newHashes(pageSize)
	h.put(5, 4)
	h.put(pageSize+6, 4)
	if h.differs(pageSize+5, 2) || !h.differs(pageSize+6, 2) || h.differs(pageSize+6, 4) {
		t.Error("a hash of an older message is taken for that of a newer one")
	}
}

// TestGapOfTheTakeUp: what lies between the first two packets is missing like
// anything after, not before the start.
func TestGapOfTheTakeUp(t *testing.T) {
	a, err := New(Config{Start: Live}, newRecorder(t))
	if err != nil {
		t.Fatal(err)
	}
	a.Offer(0, epoch, 0, sender, packet(session("S"), moldcast.Range{First: 10, Next: 12}, false))
	a.Offer(1, epoch, 0, sender, packet(session("S"), moldcast.Range{First: 20, Next: 22}, false))
	n := 0
	a.Sessions()[0].m.Gaps(func(g gap.Gap) bool {
		n++
		if g.Range != (moldcast.Range{First: 12, Next: 20}) || g.Background {
			t.Errorf("gap %+v", g)
		}
		return true
	})
	if n != 1 {
		t.Errorf("%d gaps", n)
	}
}

func TestConfig(t *testing.T) {
	var c Config
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.Start != Live || c.ReorderWait != 2*time.Millisecond || c.ReorderBytes != 64<<20 || c.Limits.Jump != 100_000 {
		t.Errorf("defaults: %+v", c)
	}
	for name, c := range map[string]Config{
		"lines":         {Lines: 255},
		"servers":       {Servers: -1},
		"start":         {Start: 7},
		"on loss":       {OnLoss: 7},
		"reorder bytes": {ReorderBytes: 1000},
		"held":          {Limits: Limits{HeldPackets: 1}},
		"times":         {Limits: Limits{JumpWait: -1}},
		"retry":         {Limits: Limits{OpenRetry: time.Minute}},
		"gap":           {Gap: gap.Config{MaxRequest: 70_000}},
	} {
		if _, err := New(c, &discard{}); err == nil {
			t.Errorf("%s: %+v is taken", name, c)
		}
	}
}

// An answer that comes on a line's socket is one: the round trip is learnt.
func TestAnswerOnLine(t *testing.T) {
	a, err := New(Config{Servers: 1, Start: Live}, &discard{})
	if err != nil {
		t.Fatal(err)
	}
	ms := moldcast.Instant(time.Millisecond)
	name := session("A")
	for _, q := range []moldcast.Seq{1, 2, 9} {
		a.Offer(0, epoch, 0, sender, bodies(name, moldcast.Range{First: q, Next: q + 1}))
	}
	if _, q, ok := a.Poll(2 * ms); !ok || q.Range.First != 3 {
		t.Fatalf("asked for %+v", q)
	}
	d := bodies(name, moldcast.Range{First: 3, Next: 4})
	a.HeardAnswer(3*ms, 0, d)
	a.Offer(3*ms, epoch, 0, sender, d)
	if st := a.Sessions()[0].Stats(); st.RoundTrip != time.Millisecond || st.MessagesRecovered != 1 {
		t.Errorf("%+v", st)
	}
	if _, q, ok := a.Poll(3 * ms); !ok || q.Range.First != 4 {
		t.Errorf("asked for %+v", q)
	}
}
