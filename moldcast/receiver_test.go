package moldcast

import (
	"encoding/binary"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast/gap"
)

var testSession = Session{'T', 'E', 'S', 'T', ' ', ' ', ' ', ' ', ' ', ' '}

// body is the content of message q, different for each and of odd lengths,
// nothing included.
func body(q Seq) []byte {
	n := int(q*2654435761>>7) % 41
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint64(q) + uint64(i)*31)
	}
	if n >= 8 {
		binary.BigEndian.PutUint64(b, uint64(q))
	}
	return b
}

// dataPacket is a packet of the messages r.
func dataPacket(s Session, r Range) []byte {
	b := AppendHeader(nil, s, r.First, uint16(r.Len()))
	for q := r.First; q < r.Next; q++ {
		b = AppendMessage(b, body(q))
	}
	return b
}

// TestReceiverEndToEnd lets a Sender and a Receiver talk over links that lose,
// repeat and delay in both directions. Whatever happens, each message is
// delivered or reported lost once, with its own bytes, in order where that was
// asked for; and as long as the ring covers it, nothing is lost.
func TestReceiverEndToEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.SampledFrom([]Seq{1, 484311999, ^Seq(0) - 2000}).Draw(t, "first")
		total := rapid.IntRange(1, 900).Draw(t, "messages")
		ordered := rapid.Bool().Draw(t, "ordered")
		ring := rapid.SampledFrom([]int{1 << 16, 64}).Draw(t, "ring")
		loss := rapid.IntRange(0, 50).Draw(t, "loss%")
		s, err := NewSender(SenderConfig{
			Session: testSession, First: first, Ring: ring,
			MTU:            rapid.SampledFrom([]int{1500, 200}).Draw(t, "mtu"),
			PacketMessages: rapid.IntRange(1, 30).Draw(t, "packet"),
			Heartbeat:      20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		end := first + Seq(total)
		var delivered, lost gap.Set
		at, ended := first, 0
		budget := 300 * time.Millisecond
		if ring > 64 {
			budget = gap.Forever
		}
		r, err := NewReceiver(ReceiverConfig{
			From:    first,
			Ordered: ordered,
			Gap: gap.Config{
				Lines: 1, Servers: 1, Budget: budget,
				HeartbeatInterval: 20 * time.Millisecond,
				Seed:              rapid.Uint64().Draw(t, "seed"),
			},
			OnMessage: func(q Seq, data []byte) {
				if string(data) != string(body(q)) {
					t.Fatalf("message %d has other bytes", q)
				}
				if delivered.Contains(q) || lost.Contains(q) {
					t.Fatalf("message %d twice", q)
				}
				if ordered && q != at {
					t.Fatalf("message %d, want %d", q, at)
				}
				at = q + 1
				delivered.Add(Range{First: q, Next: q + 1})
			},
			OnLost: func(l Range) {
				if ordered && l.First != at {
					t.Fatalf("lost %v, want from %d", l, at)
				}
				for q := l.First; q < l.Next; q++ {
					if delivered.Contains(q) || lost.Contains(q) {
						t.Fatalf("message %d is lost, and was not", q)
					}
				}
				at = l.Next
				lost.Add(l)
			},
			OnEnd: func(q Seq) {
				ended++
				if q != end {
					t.Fatalf("end %d, want %d", q, end)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		type datagram struct {
			at     Instant
			answer bool
			b      []byte
		}
		now := Instant(1000)
		var wire []datagram
		chance := func(percent int, what string) bool { return rapid.IntRange(0, 99).Draw(t, what) < percent }
		put := func(answer bool, b []byte) {
			if chance(loss, "lost") {
				return
			}
			at := now + Instant(rapid.Int64Range(1, int64(time.Millisecond)).Draw(t, "delay"))
			wire = append(wire, datagram{at, answer, b})
			if chance(8, "again") {
				wire = append(wire, datagram{at + 100, answer, b})
			}
		}
		pump := func() {
			for {
				b, ok := s.Next(now, nil)
				if !ok {
					break
				}
				put(false, b)
			}
			if b, ok := s.Poll(now, nil); ok {
				put(false, b)
			}
			for {
				req, _, ok := r.Poll(now)
				if !ok {
					return
				}
				if b, err := s.Answer(nil, AppendRequest(nil, req)); err == nil && !chance(loss/2, "request lost") {
					put(true, b)
				}
			}
		}
		step := func(until Instant) {
			k := -1
			for i := range wire {
				if wire[i].at <= until && (k < 0 || wire[i].at < wire[k].at) {
					k = i
				}
			}
			if k < 0 {
				now = max(now, until)
				pump()
				return
			}
			d := wire[k]
			wire = append(wire[:k], wire[k+1:]...)
			now = max(now, d.at)
			if d.answer {
				r.OfferAnswer(now, 0, d.b)
			} else {
				r.Offer(now, 0, d.b)
			}
			pump()
		}
		for q := first; q < end; q++ {
			if err := s.Publish(body(q)); err != nil {
				if err != ErrRingFull {
					t.Fatal(err)
				}
				pump()
				q--
				continue
			}
			if chance(20, "pause") {
				s.Flush()
				pump()
				step(now + Instant(rapid.Int64Range(0, int64(time.Millisecond)).Draw(t, "gap")))
			}
		}
		s.Finish()
		for n := 0; !r.Done(); n++ {
			if n > 200000 {
				t.Fatalf("does not end: %+v %+v", r.Stats(), r.Gap())
			}
			d := min(s.Deadline(), r.Deadline())
			for i := range wire {
				d = min(d, wire[i].at)
			}
			step(max(now, d))
		}
		st := r.Stats()
		if delivered.Count()+lost.Count() != uint64(total) || ended != 1 || r.Next() != end {
			t.Fatalf("delivered %d lost %d of %d, ended %d", delivered.Count(), lost.Count(), total, ended)
		}
		if ring > 64 && lost.Len() > 0 {
			t.Fatalf("lost %v", lost.Ranges())
		}
		if st.Delivered != delivered.Count() || st.Lost != lost.Count() {
			t.Fatalf("stats %+v, delivered %d lost %d", st, delivered.Count(), lost.Count())
		}
		if st.Received != st.Delivered+st.Duplicates+st.Stale+st.Unasked+st.Dropped+st.Buffered || st.Buffered != 0 {
			t.Fatalf("not conserved: %+v", st)
		}
	})
}

func TestReceiverConfig(t *testing.T) {
	for _, c := range []ReceiverConfig{
		{BufferBytes: 100},
		{BufferBytes: -1},
		{From: ^Seq(0)},
		{Gap: gap.Config{Lines: 255}},
	} {
		if r, err := NewReceiver(c); err == nil || r != nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

// TestReceiverDoesNotAllocate: neither in order from two lines, nor with
// packets swapped and lost once the buffers are there.
func TestReceiverDoesNotAllocate(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		sum := 0
		r, err := NewReceiver(ReceiverConfig{
			Ordered:   ordered,
			Gap:       gap.Config{Lines: 2, Servers: 1, RequestsPerSecond: 1_000_000_000},
			OnMessage: func(_ Seq, data []byte) { sum += len(data) },
		})
		if err != nil {
			t.Fatal(err)
		}
		packet := make([]byte, 0, 400)
		small := func(first Seq) []byte {
			packet = AppendHeader(packet[:0], testSession, first, 3)
			for range 3 {
				packet = AppendMessage(packet, []byte("twenty bytes of data"))
			}
			return packet
		}
		q, now := Seq(1), Instant(0)
		round := func() {
			for range 20 {
				now += Instant(time.Microsecond)
				r.Offer(now, 0, small(q))
				r.Offer(now, 1, small(q))
				q += 3
				r.Poll(now)
				r.Deadline()
			}
			r.Offer(now, 0, small(q+3))
			r.Offer(now, 1, small(q))
			r.Offer(now, 1, small(q+12)) // q+6..q+11 are lost
			now += 10 * Instant(time.Millisecond)
			for {
				req, _, ok := r.Poll(now)
				if !ok {
					break
				}
				r.OfferAnswer(now, 0, small(req.First))
			}
			q += 15
		}
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Errorf("ordered=%v: %v allocations", ordered, n)
		}
		if st := r.Stats(); st.Lost+st.Dropped+st.Buffered > 0 || st.Delivered != uint64(q-1) || st.Gaps == 0 || st.OutOfOrder == 0 && ordered {
			t.Errorf("ordered=%v: %+v, next %d", ordered, st, q)
		}
	}
}

func BenchmarkReceiver(b *testing.B) {
	for _, v := range []struct {
		name    string
		lines   int
		ordered bool
	}{{"ordered/lines=1", 1, true}, {"ordered/lines=2", 2, true}, {"unordered/lines=1", 1, false}} {
		b.Run(v.name, func(b *testing.B) {
			b.ReportAllocs()
			r, err := NewReceiver(ReceiverConfig{Ordered: v.ordered, Gap: gap.Config{Lines: v.lines, Servers: 1}, OnMessage: func(Seq, []byte) {}})
			if err != nil {
				b.Fatal(err)
			}
			d := dataPacket(testSession, Range{First: 1, Next: 31})
			b.SetBytes(int64(len(d)))
			q, now := Seq(1), Instant(0)
			for b.Loop() {
				binary.BigEndian.PutUint64(d[SessionSize:], uint64(q))
				q += 30
				now += 1000
				for line := range v.lines {
					r.Offer(now, line, d)
				}
			}
		})
	}
}

// TestReceiverJumpIsForgotten: what seemed too far ahead is not confirmed by a
// packet that comes later than JumpWait, even when nobody has polled.
func TestReceiverJumpIsForgotten(t *testing.T) {
	for wait, want := range map[time.Duration]Seq{JumpWait: 1_000_021, JumpWait + 1: 2} {
		r, err := NewReceiver(ReceiverConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Head() != 0 || r.Next() != 0 {
			t.Fatal("a place before the first packet")
		}
		r.Offer(0, 0, dataPacket(testSession, Range{First: 1, Next: 2}))
		if _, ok := r.Session(); ok || r.Head() != 0 {
			t.Fatal("a place after one packet")
		}
		r.Offer(0, 0, AppendHeader(nil, testSession, 2, 0))
		r.Offer(1, 0, dataPacket(testSession, Range{First: 1_000_000, Next: 1_000_010}))
		r.Offer(1+Instant(wait), 0, dataPacket(testSession, Range{First: 1_000_020, Next: 1_000_021}))
		if s, ok := r.Session(); r.Head() != want || r.Next() != 2 || s != testSession || !ok {
			t.Errorf("after %v: head %d, want %d", wait, r.Head(), want)
		}
	}
}

// An answer that comes on the multicast socket is one: the round trip is
// learnt, and the rest of the request asked for at once.
func TestAnswerOnLine(t *testing.T) {
	r, err := NewReceiver(ReceiverConfig{From: 1, Gap: gap.Config{Servers: 2}})
	if err != nil {
		t.Fatal(err)
	}
	ms := Instant(time.Millisecond)
	small := func(q Seq) []byte {
		return AppendMessage(AppendHeader(nil, testSession, q, 1), []byte("message"))
	}
	r.Offer(0, 0, small(1))
	r.Offer(0, 0, small(2))
	r.Offer(0, 0, small(9))
	req, _, ok := r.Poll(2 * ms)
	if !ok || req.First != 3 || req.Count != 6 {
		t.Fatalf("asked for %+v", req)
	}
	answer := small(3)
	r.HeardAnswer(3*ms, 1, answer)
	r.Offer(3*ms, 0, answer)
	if st := r.Gap(); st.RoundTrip != time.Millisecond || st.MessagesRecovered != 1 {
		t.Errorf("%+v", st)
	}
	if req, server, ok := r.Poll(3 * ms); !ok || req.First != 4 || server != 1 {
		t.Errorf("asked server %d for %+v", server, req)
	}
}
