package retransmit

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// BenchmarkHotAnswer is a request from memory to its datagram, in batches,
// without a socket.
func BenchmarkHotAnswer(b *testing.B) {
	for _, msg := range []int{40, 400} {
		for _, count := range []int{1, 64} {
			for _, batch := range []int{1, 64} {
				b.Run(fmt.Sprintf("msg=%d/count=%d/batch=%d", msg, count, batch), func(b *testing.B) {
					benchmarkHot(b, msg, count, batch)
				})
			}
		}
	}
}

func benchmarkHot(b *testing.B, msg, count, batch int) {
	const n = 100_000
	v := newMemView(1, n, func(int) int { return msg })
	conn := newTestConn()
	conn.out = nil
	clock := &testClock{}
	s, err := New(Config{Conn: conn, Source: memSource{s1: v}, Clock: clock,
		Admit: admit.Config{Client: admit.Rate{Requests: -1, Bytes: -1}, Total: admit.Rate{Requests: -1, Bytes: -1}}})
	if err != nil {
		b.Fatal(err)
	}
	in := make([]mcast.Datagram, batch)
	seq := moldcast.Seq(1)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += batch {
		clock.now.Add(10_000 * int64(batch))
		for k := range in {
			in[k].Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(k % 8)}), 5000)
			in[k].Data = moldcast.AppendRequest(in[k].Data[:0], moldcast.Request{Session: s1, First: seq, Count: uint16(count)})
			if seq += moldcast.Seq(count); seq > n-100 {
				seq = 1
			}
		}
		s.batch(in)
	}
	b.StopTimer()
	if st := s.Stats(); st.Answered != st.Requests {
		b.Fatal(counted(st))
	}
	b.SetBytes(int64(s.bytes.Load() / s.answered.Load()))
}
