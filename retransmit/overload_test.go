package retransmit

import (
	"context"
	"net"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// overloadConn is a testConn whose buffer is full at the start.
type overloadConn struct {
	*testConn
	batches [][]mcast.Datagram
}

func (c *overloadConn) TryReadBatch(ds []mcast.Datagram) (int, error) {
	if len(c.batches) == 0 {
		select {
		case <-c.closed:
			return 0, net.ErrClosed
		default:
			return 0, nil
		}
	}
	b := c.batches[0]
	c.batches = c.batches[1:]
	for i, d := range b {
		ds[i].Src, ds[i].Data = d.Src, append(ds[i].Data[:0], d.Data...)
	}
	return len(b), nil
}

func (c *overloadConn) ReadBatch(ds []mcast.Datagram) (int, error) {
	if len(c.batches) > 0 {
		return c.TryReadBatch(ds)
	}
	return c.testConn.ReadBatch(ds)
}

// A client whose requests fill the buffer delays another's by one answer, and
// what is too much is dropped of it, not of the other.
func TestOverloadTurns(t *testing.T) {
	v := newMemView(1, 10_000, func(int) int { return 40 })
	conn := &overloadConn{testConn: newTestConn()}
	conn.out = make(chan mcast.Datagram, 10_000)
	flood, n := host(1), 0
	for range crowdReads*2 + 70 {
		var b []mcast.Datagram
		for range mcast.BatchSize {
			n++
			b = append(b, ask(flood, s1, moldcast.Seq(1+n%9000), 1))
		}
		conn.batches = append(conn.batches, b)
	}
	last := len(conn.batches) - 1
	conn.batches[last][60] = ask(host(2), s1, 9999, 1)
	conn.batches[crowdReads-2][63] = ask(host(3), s1, 9998, 1)
	s, err := New(Config{Conn: conn, Source: memSource{s1: v}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	got, at := 0, -1
	for got < 2 {
		d := <-conn.out
		if at++; d.Dst == flood {
			continue
		}
		if d.Dst == host(3) && at > 2 {
			t.Errorf("answered as number %d", at)
		}
		got++
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	checkConserved(t, st)
	if st.Unanswered[Overload] == 0 {
		t.Error("nothing was dropped: ", counted(st))
	}
}

// What waits for its turn when the server stops is counted.
func TestOverloadStops(t *testing.T) {
	conn := &overloadConn{testConn: newTestConn()}
	b := make([]mcast.Datagram, mcast.BatchSize)
	for i := range b {
		b[i] = ask(host(i), s1, 1, 1)
	}
	conn.batches = [][]mcast.Datagram{b}
	conn.Close()
	s, err := New(Config{Conn: conn, Source: memSource{}})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.serve()
	st := s.Stats()
	checkConserved(t, st)
	if st.Unanswered[Stopped] != mcast.BatchSize {
		t.Error(counted(st))
	}
}

func TestStagedKeepsWhatParsingTells(t *testing.T) {
	s, err := New(Config{Conn: newTestConn(), Source: memSource{}})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]Reason{0: Empty, 19: Malformed, 20: SeqZero, 21: Malformed, 64: Malformed} {
		s.stage([]mcast.Datagram{{Src: client1, Data: make([]byte, n)}})
		if _, why := parse(s.nextTurn()[0].Data); why != want {
			t.Errorf("%d bytes: %v, want %v", n, why, want)
		}
	}
}
