package cli

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/burst"
	"github.com/moldtape/moldtape/store"
)

// restless makes a recording of bursts and quiet times, with holes, late fills
// and a clock that steps back.
func restless(t *testing.T, seed uint64) (*store.Archive, *store.View) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 5))
	a, err := store.OpenOrCreate(t.TempDir(), store.Options{BlockSize: 4 << 10, SegmentSize: 64 << 10, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	s, _ := moldcast.ParseSession("TAPE")
	w, err := a.Writer("default", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := moldcast.StampOf(recordedDay)
	var late []moldcast.Piece
	put := func(p moldcast.Piece) {
		if _, err := w.Append(p); err != nil {
			t.Fatal(err)
		}
	}
	for q := moldcast.Seq(1); q < 12_000; {
		n := 1 + rng.IntN(5)
		var b []byte
		for range n {
			b = moldcast.AppendMessage(b, make([]byte, 10+rng.IntN(30)))
		}
		p := moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(b, n), Time: at, Heard: at}
		q += moldcast.Seq(n)
		switch x := rng.IntN(100); {
		case x < 2: // a hole
		case x < 5:
			p.Flags = moldcast.Repaired
			late = append(late, p)
		default:
			put(p)
		}
		if len(late) > 20 {
			for _, p := range late {
				put(p)
			}
			late = late[:0]
		}
		switch x := rng.IntN(1000); {
		case x < 3:
			at -= moldcast.Stamp(rng.IntN(2_000_000_000))
		case x < 20:
			at += moldcast.Stamp(rng.IntN(3_000_000_000))
		default:
			at += moldcast.Stamp(rng.IntN(700_000))
		}
	}
	if seed%3 > 0 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Cleanup(func() { w.Close() })
		return a, w.View() // of what is still written
	}
	v, err := a.View(w.Ref())
	if err != nil {
		t.Fatal(err)
	}
	return a, v
}

// packetsOf reads everything, as a replay does.
func packetsOf(t testing.TB, v *store.View, r moldcast.Range, each func(at moldcast.Stamp, messages, bytes int)) {
	t.Helper()
	c := v.Cursor(r.First)
	defer c.Close()
	for {
		p, err := c.Next()
		switch {
		case errors.As(err, new(*moldcast.HoleError)):
			continue
		case err == io.EOF, err == nil && p.First >= r.Next:
			return
		case err != nil:
			t.Fatal(err)
		}
		p.Msgs, _ = p.Msgs.Split(int(p.Range().Intersect(r).Len()))
		each(p.Time, p.Msgs.Len(), len(p.Msgs.Framed())-p.Msgs.Len()*moldcast.LengthSize)
	}
}

// What is found from headers and times, of a whole recording and a part of it,
// is what is found by reading everything.
func TestPeaksAreThoseOfAllMessages(t *testing.T) {
	e := &env{log: slog.New(slog.DiscardHandler)}
	lengths := []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second, 20 * time.Second}
	for seed := range uint64(4) {
		_, v := restless(t, seed)
		first, head := v.Bounds()
		for _, r := range []moldcast.Range{{First: first, Next: head}, {First: first + 1001, Next: head - 3007}} {
			s := &replayStream{view: v}
			s.Range = r
			spans, err := e.spansOf(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := burst.FindPeaks(spans.spans, lengths, 4, spans.read)
			if err != nil {
				t.Fatal(err)
			}
			var slow []*burst.Peaks
			for _, d := range lengths {
				slow = append(slow, burst.NewPeaks(d, 4))
			}
			var each []burst.Span
			packetsOf(t, v, r, func(at moldcast.Stamp, messages, bytes int) {
				for _, p := range slow {
					p.Add(at, messages, bytes)
				}
				each = append(each, burst.Span{Min: at, Max: at, Messages: uint64(messages)})
			})
			for k, p := range slow {
				if want := p.Done(); !slices.Equal(got[k], want) {
					t.Fatalf("seed %d, %v of %v:\n%+v, want\n%+v", seed, lengths[k], r, got[k], want)
				}
			}
			plan, err := burst.NewPlanner(spans.spans, spans.read).Plan(1.5)
			want, wantErr := burst.NewPlanner(each, nil).Plan(1.5)
			if plan != want || err != nil || wantErr != nil {
				t.Fatalf("seed %d, %v: plan %+v %v, want %+v %v", seed, r, plan, err, want, wantErr)
			}
			spans.close()
		}
	}
}

// BenchmarkPeaks finds peaks in 2 000 000 messages, 1.35 a packet, from headers
// and times, and by reading everything.
func BenchmarkPeaks(b *testing.B) {
	a, err := store.OpenOrCreate(b.TempDir(), store.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	s, _ := moldcast.ParseSession("TAPE")
	w, err := a.Writer("default", s, 0)
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 5))
	g := itch.NewGenerator(2_000_000, 1)
	at, quiet := moldcast.StampOf(recordedDay), 200_000
	var framed []byte
	for q := moldcast.Seq(1); ; {
		framed = framed[:0]
		n := 0
		for more := true; more && (n == 0 || rng.IntN(100) < 26); {
			var m []byte
			if m, more = g.Next(); more {
				framed = moldcast.AppendMessage(framed, m)
				n++
			}
		}
		if n == 0 {
			break
		}
		if _, err := w.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(framed, n), Time: at, Heard: at}); err != nil {
			b.Fatal(err)
		}
		q += moldcast.Seq(n)
		if rng.IntN(5000) == 0 { // a rush, or the end of one
			quiet = []int{400_000, 4_000_000, 1_000_000, 40_000}[rng.IntN(4)]
		}
		at += moldcast.Stamp(rng.IntN(quiet))
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	v, err := a.View(w.Ref())
	if err != nil {
		b.Fatal(err)
	}
	first, head := v.Bounds()
	all := moldcast.Range{First: first, Next: head}
	stored := float64(v.Info().BytesDisk)
	e := &env{log: slog.New(slog.DiscardHandler)}
	for _, x := range []struct {
		name    string
		lengths []time.Duration
		most    int
	}{
		{"1ms,10ms,100ms,1s", []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}, 10},
		{"1ms", []time.Duration{time.Millisecond}, 10},
		{"1s", []time.Duration{time.Second}, 10},
		{"10s", []time.Duration{10 * time.Second}, 1},
		{"1m", []time.Duration{time.Minute}, 1},
	} {
		b.Run("windows="+x.name+"/read=all", func(b *testing.B) {
			for b.Loop() {
				var slow []*burst.Peaks
				for _, d := range x.lengths {
					slow = append(slow, burst.NewPeaks(d, x.most))
				}
				packetsOf(b, v, all, func(at moldcast.Stamp, messages, bytes int) {
					for _, p := range slow {
						p.Add(at, messages, bytes)
					}
				})
			}
			b.ReportMetric(1, "of-bytes")
		})
		b.Run("windows="+x.name+"/read=headers", func(b *testing.B) {
			var read uint64
			for b.Loop() {
				s := &replayStream{view: v}
				s.Range = all
				spans, err := e.spansOf(b.Context(), s)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := burst.FindPeaks(spans.spans, x.lengths, x.most, spans.read); err != nil {
					b.Fatal(err)
				}
				read = spans.stamps[0].Stats().Bytes
				spans.close()
			}
			b.ReportMetric(float64(read)/stored, "of-bytes")
		})
	}
}
