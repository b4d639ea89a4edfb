package replay

import (
	"context"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/pace"
)

// endless is a Source of packets 1 µs apart, one piece again and again.
type endless struct {
	next moldcast.Seq
	msgs moldcast.Messages
}

func (e *endless) Next() (moldcast.Piece, error) {
	p := moldcast.Piece{First: e.next, Msgs: e.msgs, Time: moldcast.Stamp(e.next) * 1000}
	e.next = p.Range().Next
	return p, nil
}

// drain is a Sender that takes everything.
type drain struct{ packets int }

func (d *drain) Send(b [][]byte) (int, error) { d.packets += len(b); return len(b), nil }

// jump is a Waiter whose clock jumps to where it is asked to wait for.
type jump struct{ now moldcast.Instant }

func (j *jump) Now() moldcast.Instant { return j.now }
func (j *jump) Wall() moldcast.Stamp  { return 1 }
func (j *jump) Until(t moldcast.Instant, wake <-chan struct{}) {
	j.now = max(j.now, t)
}

func endlessStream(s Sender) Stream {
	var b []byte
	for range 4 {
		b = moldcast.AppendMessage(b, make([]byte, 30))
	}
	return Stream{
		Session: sessionA, Sender: s, Range: moldcast.Range{First: 1, Next: ^moldcast.Seq(0)},
		Open: func(from moldcast.Seq) (Source, error) {
			return &endless{next: from, msgs: moldcast.MessagesOf(b, 4)}, nil
		},
	}
}

// runningConductor is the sender's end of a replay whose read-ahead is full.
func runningConductor(t testing.TB, c Config) *conductor {
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	sched, err := pace.New(p.cfg.Pace)
	if err != nil {
		t.Fatal(err)
	}
	cd := newConductor(p, sched)
	cd.begin(cd.w.Now())
	for !cd.ra.full.Load() {
		<-p.wake
	}
	t.Cleanup(cd.ra.close)
	return cd
}

// From the queue to the batch, and in the read-ahead behind it, nothing is
// allocated: paced and not, packets as they were and repacked.
func TestSendingDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates: counted without it")
		return
	}
	for _, c := range []Config{
		{Pace: pace.Config{Speed: 1}}, {Pace: pace.Config{Max: true}}, {Pace: pace.Config{Rate: 1e6}},
		{Pace: pace.Config{Max: true}, Packets: Repack},
	} {
		d := new(drain)
		c.Streams = []Stream{endlessStream(d)}
		c.Waiter, c.Heartbeat, c.ReadAhead = &jump{}, time.Hour, 1<<20
		cd := runningConductor(t, c)
		ctx := context.Background()
		turns := func() {
			for range 20_000 {
				if done, err := cd.turn(ctx); done || err != nil {
					t.Fatalf("ended: %v", err)
				}
			}
		}
		turns()
		if n := testing.AllocsPerRun(5, turns); n != 0 {
			t.Errorf("%+v, packets %d: %v allocations in 20000 turns", c.Pace, c.Packets, n)
		}
		if d.packets < 10_000 {
			t.Errorf("%d packets sent", d.packets)
		}
	}
}

func BenchmarkSend(b *testing.B) {
	for _, m := range []struct {
		name string
		c    Config
	}{
		{"pace=max/packets=original", Config{Pace: pace.Config{Max: true}}},
		{"pace=max/packets=repack", Config{Pace: pace.Config{Max: true}, Packets: Repack}},
		{"pace=stamps/packets=original", Config{Pace: pace.Config{Speed: 1}}},
	} {
		b.Run(m.name, func(b *testing.B) {
			d := new(drain)
			m.c.Streams = []Stream{endlessStream(d)}
			m.c.Waiter, m.c.Heartbeat = &jump{}, time.Hour
			cd := runningConductor(b, m.c)
			ctx := context.Background()
			b.ReportAllocs()
			b.ResetTimer()
			for d.packets < b.N {
				if _, err := cd.turn(ctx); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(cd.rep.Bytes) / int64(max(d.packets, 1)))
		})
	}
}
