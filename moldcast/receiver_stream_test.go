package moldcast

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast/gap"
)

func framed(r Range) Messages {
	var b []byte
	for q := r.First; q < r.Next; q++ {
		b = AppendMessage(b, body(q))
	}
	return MessagesOf(b, int(r.Len()))
}

// streaming is an ordered receiver with Recovery, from a sequence on, and what
// it has delivered and lost.
type streaming struct {
	*Receiver
	t    testing.TB
	at   Seq
	lost []Range
	end  Seq
}

func newStreaming(t testing.TB, from Seq, most uint64) *streaming {
	s := &streaming{t: t, at: from}
	r, err := NewReceiver(ReceiverConfig{
		Session: &testSession, From: from, Ordered: true, Recovery: true, BufferMessages: most, Gap: gap.Config{Budget: time.Minute},
		OnMessage: func(q Seq, data []byte) {
			if q != s.at || string(data) != string(body(q)) {
				t.Fatalf("message %d, %x, want %d", q, data, s.at)
			}
			s.at++
		},
		OnLost: func(r Range) {
			if r.First != s.at {
				t.Fatalf("lost %v at %d", r, s.at)
			}
			s.at = r.Next
			s.lost = append(s.lost, r)
		},
		OnEnd: func(q Seq) { s.end = q },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Receiver = r
	return s
}

func (s *streaming) line(first, last Seq) {
	s.Offer(1, 0, dataPacket(testSession, Range{First: first, Next: last + 1}))
	s.conserved()
}

func (s *streaming) stream(first, last Seq, beyond bool) StreamVerdict {
	v := s.OfferStream(1, first, framed(Range{First: first, Next: last + 1}), beyond)
	s.conserved()
	return v
}

func (s *streaming) conserved() {
	s.t.Helper()
	if st := s.Stats(); st.Received != st.Delivered+st.Duplicates+st.Stale+st.Unasked+st.Dropped+st.Buffered {
		s.t.Fatalf("messages are not conserved: %+v", st)
	}
}

func TestOfferStream(t *testing.T) {
	for _, first := range []Seq{1, 484311999, ^Seq(0) - 200} {
		s := newStreaming(t, first, 0)
		s.line(first+50, first+59)
		s.line(first+70, first+79)
		if v := s.stream(first, first+29, false); v != (StreamVerdict{Taken: 30, New: 30}) || s.at != first+30 {
			t.Fatalf("%+v, at %d", v, s.at)
		}
		if k := s.Kept(first + 30); k != first+30-Overlap {
			t.Errorf("kept from %d", k)
		}
		if r := s.Waiting(first + 50); r != (Range{First: first + 50, Next: first + 60}) {
			t.Errorf("waiting %v", r)
		}
		if r := s.Waiting(first + 49); !r.Empty() {
			t.Errorf("waiting %v", r)
		}
		// What overlaps is compared: 10 that a stream brought, and 10 heard.
		if v := s.stream(first+20, first+64, false); v != (StreamVerdict{Taken: 45, New: 25, Same: 10}) || s.at != first+65 {
			t.Fatalf("%+v, at %d", v, s.at)
		}
		// No more than the lines have shown, unless asked to.
		if v := s.stream(first+65, first+89, false); v != (StreamVerdict{Taken: 15, New: 5, Same: 10}) || s.at != first+80 {
			t.Fatalf("%+v, at %d", v, s.at)
		}
		if v := s.stream(first+80, first+89, false); v != (StreamVerdict{}) {
			t.Fatalf("%+v", v)
		}
		if v := s.stream(first+80, first+89, true); v != (StreamVerdict{Taken: 10, New: 10}) || s.at != first+90 {
			t.Fatalf("%+v, at %d", v, s.at)
		}
		s.line(first+80, first+89)
		if st := s.Stats(); st.Streamed != 70 || st.Duplicates != 40 || st.OutOfOrder != 0 || s.lost != nil {
			t.Errorf("%+v", st)
		}
		if s.StreamEnd(1, first+89) {
			t.Error("an end below the head is believed")
		}
		if !s.StreamEnd(1, first+90) || s.end != first+90 {
			t.Errorf("ended at %d", s.end)
		}
	}
}

// Any message that is held with other bytes is found, whether it waits or was
// delivered, and then nothing is taken.
func TestStreamDiffers(t *testing.T) {
	for q := Seq(5); q < 60; q++ {
		s := newStreaming(t, 1, 0)
		s.line(1, 20)
		s.line(30, 35)
		s.line(36, 40)
		s.line(45, 45)
		s.line(46, 60)
		m := framed(Range{First: 5, Next: 61})
		at := 0
		for i := Seq(5); i < q; i++ {
			at += 2 + len(body(i))
		}
		b := append([]byte(nil), m.Framed()...)
		if len(body(q)) == 0 {
			continue
		}
		b[at+2] ^= 1
		held := q <= 20 || q >= 30 && q <= 40 || q >= 45
		v := s.Compare(5, MessagesOf(b, m.Len()))
		want := Seq(0)
		if held {
			want = q
		}
		if v.Differs != want {
			t.Errorf("message %d: differs at %d, want %d", q, v.Differs, want)
		}
		if !held {
			continue
		}
		if v := s.OfferStream(1, 5, MessagesOf(b, m.Len()), true); v.Differs != q || v.Taken != 0 || s.at != 21 {
			t.Errorf("message %d: %+v, delivered up to %d", q, v, s.at)
		}
	}
}

func TestStartOver(t *testing.T) {
	s := newStreaming(t, 1, 20)
	s.Reserve(1, Range{First: 1, Next: 100})
	s.line(100, 109)
	s.line(110, 119)
	s.line(120, 129) // there is no room
	if st := s.Stats(); st.Restarts != 1 || st.Dropped != 20 || st.Buffered != 10 {
		t.Fatalf("%+v", st)
	}
	if s.Next() != 1 || s.Head() != 130 {
		t.Fatalf("%d..%d", s.Next(), s.Head())
	}
	s.stream(1, 124, false)
	if s.at != 130 || s.Stats().Lost != 0 {
		t.Errorf("delivered up to %d, %+v", s.at, s.Stats())
	}
	// Of what was lost and not reported the fetch begins anew.
	s = newStreaming(t, 1, 20)
	s.line(100, 109)
	s.line(115, 124)
	s.Lose(1, Range{First: 110, Next: 115})
	s.line(125, 125)
	if s.Stats().Lost != 0 || s.Stats().Restarts != 1 {
		t.Errorf("%+v", s.Stats())
	}
	s.stream(1, 125, false)
	if s.at != 126 || s.lost != nil {
		t.Errorf("delivered up to %d, lost %v", s.at, s.lost)
	}
}

func TestSkip(t *testing.T) {
	for _, to := range []Seq{1, 30, 50, 53, 60, 65, 70, 100} {
		s := newStreaming(t, 1, 0)
		s.line(50, 59)
		s.line(70, 79)
		s.Lose(1, Range{First: 20, Next: 25})
		s.at = to
		s.Skip(1, to)
		s.conserved()
		if to > 70 && to <= 79 || to == 50 || to == 53 || to == 70 {
			if s.at < 60 {
				t.Errorf("skip to %d: delivered up to %d", to, s.at)
			}
		}
		if to == 1 {
			s.stream(1, 19, false)
			if s.at != 25 {
				t.Errorf("delivered up to %d", s.at)
			}
			continue
		}
		s.stream(to, 120, true)
		if s.at != 121 || s.lost != nil && to > 25 {
			t.Errorf("skip to %d: delivered up to %d, lost %v", to, s.at, s.lost)
		}
	}
}

// With Recovery the order of arrival still does not allocate.
func TestRecoveryAllocs(t *testing.T) {
	s := newStreaming(t, 1, 0)
	var b []byte
	next := Seq(1)
	msgs := make([][]byte, 4096)
	for i := range msgs {
		msgs[i] = body(Seq(1 + i))
	}
	s.c.OnMessage = nil
	n := testing.AllocsPerRun(2000, func() {
		b = AppendHeader(b[:0], testSession, next, 3)
		for i := range 3 {
			b = AppendMessage(b, msgs[(int(next)+i)%len(msgs)])
		}
		next += 3
		s.Offer(Instant(next), 0, b)
	})
	if n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
