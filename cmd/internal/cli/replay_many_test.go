package cli

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/pace"
	"github.com/moldtape/moldtape/store"
)

// keep is a Sender that keeps which message of which session went, in order.
type keep struct{ went []string }

func (k *keep) Send(batch [][]byte) (int, error) {
	for _, b := range batch {
		if p, err := moldcast.Parse(b); err == nil && p.Kind == moldcast.Data {
			k.went = append(k.went, fmt.Sprintf("%s %d %s", p.Session, p.First, p.Msgs.Next()))
		}
	}
	return len(batch), nil
}

// text is the message that channel has at seq: noise, so that it takes room.
func text(channel int, seq moldcast.Seq) string {
	rng := rand.New(rand.NewPCG(uint64(channel), uint64(seq)))
	return fmt.Sprintf("%d.%d %x%x%x%x", channel, seq, rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64())
}

// Many recorded channels (64; 12 in a short run), each of several segments, some with next to nothing in
// them, twice: all messages in order of their stamps, equal ones in the order of
// the channels, from the disk as from memory.
func TestReplayOfManyChannelsInSegments(t *testing.T) {
	channels := 12
	if os.Getenv("MOLDTAPE_LONG") != "" {
		channels = 64
	}
	a, err := store.OpenOrCreate(t.TempDir(), store.Options{BlockSize: 4 << 10, SegmentSize: 16 << 10, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	e := &env{stderr: io.Discard, log: slog.New(slog.DiscardHandler)}
	out := new(keep)
	cfg := replay.Config{Pace: pace.Config{Max: true}, Loop: 2}
	type message struct {
		ms      int // since the day began
		channel int
		seq     moldcast.Seq
	}
	var all []message
	segments := 0
	for ch := range channels {
		name, err := moldcast.ParseSession(fmt.Sprintf("CH%02d", ch))
		if err != nil {
			t.Fatal(err)
		}
		w, err := a.Writer(fmt.Sprintf("c%02d", ch), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		n, step := 3, 7000
		if ch%8 == 0 {
			n, step = 3000, 7
		}
		for i := range n {
			m := message{ms: ch%4 + i*step, channel: ch, seq: moldcast.Seq(i + 1)}
			b := moldcast.AppendMessage(nil, []byte(text(ch, m.seq)))
			at := moldcast.StampOf(recordedDay.Add(time.Duration(m.ms) * time.Millisecond))
			if _, err := w.Append(moldcast.Piece{First: m.seq, Msgs: moldcast.MessagesOf(b, 1), Time: at, Heard: at}); err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
			if i%400 == 399 { // segments are begun beside the writing
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				within(t, fmt.Sprintf("%d segments", i/800), func() bool { return w.Segments() >= i/800 })
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s := &replayStream{ref: w.Ref()}
		s.Session, s.Sender = name, out
		if s.view, err = a.View(s.ref); err != nil {
			t.Fatal(err)
		}
		defer s.view.Close()
		if none, err := e.replayRange(s, new(rangeFlags)); err != nil || none != "" {
			t.Fatal(none, err)
		}
		d, err := a.Show(s.ref)
		if err != nil {
			t.Fatal(err)
		}
		segments = max(segments, len(d.SegmentList))
		cfg.Streams = append(cfg.Streams, s.Stream)
	}
	if segments < 3 {
		t.Fatalf("%d segments: no test of several", segments)
	}
	p, err := replay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(out.went) != 2*len(all) {
		t.Fatalf("%d messages went, want twice %d", len(out.went), len(all))
	}
	at := map[string]message{}
	for _, m := range all {
		for loop := 1; loop <= 2; loop++ {
			at[fmt.Sprintf("CH%02d%d %d %s", m.channel, loop, m.seq, text(m.channel, m.seq))] = m
		}
	}
	last := message{ms: -1}
	for i, w := range out.went {
		m, ok := at[w]
		if !ok {
			t.Fatalf("message %d is %q: never recorded, or sent twice", i, w)
		}
		delete(at, w)
		if i == len(all) {
			last = message{ms: -1}
		}
		if m.ms < last.ms || m.ms == last.ms && m.channel <= last.channel {
			t.Fatalf("message %d, %+v, comes behind %+v", i, m, last)
		}
		last = m
	}
}
