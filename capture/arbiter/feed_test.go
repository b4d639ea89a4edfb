package arbiter

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Where numbers only rise, everything that any line brought is stored once, in
// whatever order it came; nothing is asked for, missing or lost.
func TestRisingNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := newRecorder(t)
		rec.sent = func(_ moldcast.Session, q moldcast.Seq, data string) bool { return data == body(q) }
		a, err := New(Config{Lines: 2, Servers: 1, Feed: moldcast.Feed{Increments: moldcast.Rising}}, rec)
		if err != nil {
			t.Fatal(err)
		}
		first := starts.Draw(t, "first")
		var runs []moldcast.Range
		for at, n := first, rapid.IntRange(2, 40).Draw(t, "runs"); n > 0; n-- {
			r := moldcast.Range{First: at, Next: at + moldcast.Seq(rapid.IntRange(1, 4).Draw(t, "run"))}
			runs = append(runs, r)
			at = r.Next + moldcast.Seq(rapid.IntRange(0, 4).Draw(t, "skip"))
		}
		// Each line: some of the runs, disordered, some twice.
		var sent [2][]moldcast.Range
		var want gap.Set
		for line := range sent {
			for _, r := range runs {
				switch k := rapid.IntRange(0, 9).Draw(t, "fate"); {
				case k == 0:
				case k == 1:
					sent[line] = append(sent[line], r, r)
				default:
					sent[line] = append(sent[line], r)
				}
			}
			for i := range sent[line] {
				if rapid.IntRange(0, 4).Draw(t, "late") == 0 {
					j := min(len(sent[line])-1, i+rapid.IntRange(1, 5).Draw(t, "by"))
					r := sent[line][i]
					sent[line] = slices.Insert(slices.Delete(sent[line], i, i+1), j, r)
				}
			}
		}
		name := session("S")
		now, offered, messages := moldcast.Instant(0), uint64(0), uint64(0)
		for len(sent[0])+len(sent[1]) > 0 {
			line := rapid.IntRange(0, 1).Draw(t, "line")
			if len(sent[line]) == 0 {
				line = 1 - line
			}
			r := sent[line][0]
			sent[line] = sent[line][1:]
			want.Add(r)
			offered++
			messages += r.Len()
			a.Offer(now, epoch+moldcast.Stamp(now), line, sender, bodies(name, r))
			now += moldcast.Instant(rapid.IntRange(0, 3e6).Draw(t, "time"))
			if _, q, ok := a.Poll(now); ok {
				t.Fatalf("asks for %v", q.Range)
			}
		}
		if offered < 2 {
			return
		}
		k := rec.stored[name]
		if k == nil {
			t.Fatal("never taken up")
		}
		if !slices.Equal(k.set.Ranges(), want.Ranges()) {
			t.Fatalf("stored %v, want %v", k.set.Ranges(), want.Ranges())
		}
		c := a.Counters()
		if c.Packets != offered || c.Messages != want.Count() || c.Duplicates != messages-want.Count() ||
			c.InOrder+c.Filled != c.Messages || c.GapsOpened+c.MessagesLost+c.MessagesRecovered+c.NaksSent+c.Conflicts+c.Stale+c.Early != 0 {
			t.Fatalf("%d packets offered, %d messages, %d different: %+v", offered, messages, want.Count(), c)
		}
	})
}
