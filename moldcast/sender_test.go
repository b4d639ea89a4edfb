package moldcast

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var senderSession = Session{'T', 'A', 'P', 'E', ' ', ' ', ' ', ' ', ' ', ' '}

func newTestSender(t testing.TB, c SenderConfig) *Sender {
	t.Helper()
	c.Session = senderSession
	s, err := NewSender(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustPublish(t testing.TB, s *Sender, msgs ...string) {
	t.Helper()
	for _, m := range msgs {
		if err := s.Publish([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
}

// drain is every packet that is ready, printed: "data 1 [a b]".
func drain(t testing.TB, s *Sender, now Instant) (out []string) {
	t.Helper()
	for {
		b, ok := s.Next(now, nil)
		if !ok {
			break
		}
		out = append(out, printPacket(t, b))
	}
	if b, ok := s.Poll(now, nil); ok {
		out = append(out, printPacket(t, b))
	}
	return out
}

func printPacket(t testing.TB, b []byte) string {
	t.Helper()
	p, err := Parse(b)
	if err != nil {
		t.Fatalf("%x: %v", b, err)
	}
	if p.Session != senderSession {
		t.Fatalf("session %v", p.Session)
	}
	if p.Kind != Data {
		return fmt.Sprintf("%v %d", p.Kind, p.First)
	}
	var msgs []string
	for p.Msgs.Len() > 0 {
		msgs = append(msgs, string(p.Msgs.Next()))
	}
	return fmt.Sprintf("data %d %v", p.First, msgs)
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func TestSenderPackets(t *testing.T) {
	// 64 - 28 - 20 leaves 16 bytes for framed messages.
	s := newTestSender(t, SenderConfig{MTU: 64})
	equal(t, "opening", drain(t, s, 1), []string{"heartbeat 1"})
	mustPublish(t, s, "abcd", "ef")
	equal(t, "not full yet", drain(t, s, 1), []string(nil))
	mustPublish(t, s, "ghijk") // 6 + 4 + 7 > 16
	equal(t, "full", drain(t, s, 2), []string{"data 1 [abcd ef]"})
	mustPublish(t, s, "lmnop12") // 7 + 9 = 16: exactly full
	equal(t, "exactly full", drain(t, s, 3), []string{"data 3 [ghijk lmnop12]"})
	mustPublish(t, s, "x", "longer than a packet of this MTU", "y")
	s.Flush()
	equal(t, "long message alone", drain(t, s, 4), []string{"data 5 [x]", "data 6 [longer than a packet of this MTU]", "data 7 [y]"})
	mustPublish(t, s, "")
	s.Flush()
	equal(t, "empty message", drain(t, s, 5), []string{"data 8 []"})
	s.Flush()
	equal(t, "nothing to flush", drain(t, s, 6), []string(nil))
}

func TestSenderPacketMessages(t *testing.T) {
	s := newTestSender(t, SenderConfig{PacketMessages: 2})
	mustPublish(t, s, "a", "b", "c")
	equal(t, "two a packet", drain(t, s, 1), []string{"data 1 [a b]"})
	s.Finish()
	equal(t, "end after the rest", drain(t, s, 2), []string{"data 3 [c]", "end 4"})
	if err := s.Publish(nil); !errors.Is(err, ErrFinished) {
		t.Errorf("Publish after Finish: %v", err)
	}
}

func TestSenderHeartbeats(t *testing.T) {
	const ms = Instant(time.Millisecond)
	s := newTestSender(t, SenderConfig{First: 484311999, Heartbeat: 50 * time.Millisecond})
	equal(t, "first of all", s.Deadline(), Instant(0))
	equal(t, "where it begins", drain(t, s, 10*ms), []string{"heartbeat 484311999"})
	equal(t, "deadline", s.Deadline(), 60*ms)
	equal(t, "before", drain(t, s, 60*ms-1), []string(nil))
	equal(t, "due", drain(t, s, 60*ms), []string{"heartbeat 484311999"})
	mustPublish(t, s, "a")
	s.Flush()
	equal(t, "data", drain(t, s, 70*ms), []string{"data 484311999 [a]"})
	mustPublish(t, s, "b")
	equal(t, "data put it off", drain(t, s, 119*ms), []string(nil))
	// What was published but not sent is not revealed.
	equal(t, "carries what was sent", drain(t, s, 120*ms), []string{"heartbeat 484312000"})
	s.Finish()
	equal(t, "end at once", drain(t, s, 121*ms), []string{"data 484312000 [b]", "end 484312001"})
	equal(t, "and repeated", drain(t, s, 170*ms), []string(nil))
	equal(t, "and repeated", drain(t, s, 171*ms), []string{"end 484312001"})
	equal(t, "stats", s.Stats(), SenderStats{Messages: 2, Bytes: 2, Packets: 2, Heartbeats: 3, Ends: 2})
}

func TestSenderEndOfEmptySession(t *testing.T) {
	s := newTestSender(t, SenderConfig{})
	s.Finish()
	equal(t, "deadline", s.Deadline(), Instant(0))
	equal(t, "end", drain(t, s, 5), []string{"end 1"})
}

func TestSenderAnswer(t *testing.T) {
	for _, first := range []Seq{1, 65530, 484311999, ^Seq(0) - 20} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			s := newTestSender(t, SenderConfig{First: first, Ring: 6, MTU: 64})
			ask := func(session Session, at Seq, count uint16) string {
				req := AppendHeader(nil, session, at, count)
				b, err := s.Answer([]byte("kept"), req)
				if !bytes.HasPrefix(b, []byte("kept")) {
					t.Fatalf("answer is not appended: %q", b)
				}
				if err != nil {
					if len(b) != 4 {
						t.Errorf("refused and answered: %x", b)
					}
					return err.Error()
				}
				return printPacket(t, b[4:])
			}
			equal(t, "nothing sent", ask(senderSession, first, 1), ErrRequestAhead)
			for i := range 10 {
				mustPublish(t, s, fmt.Sprintf("m%d", i))
				if i != 8 {
					s.Flush()
				}
				if i < 9 {
					drain(t, s, Instant(i))
				}
			}
			// 0..3 have left the ring, 4..7 were sent, 8 and 9 are packed but not sent.
			equal(t, "gone", ask(senderSession, first+3, 1), ErrRequestGone)
			equal(t, "oldest", ask(senderSession, first+4, 1), fmt.Sprintf("data %d [m4]", first+4))
			equal(t, "as many as fit", ask(senderSession, first+4, EndCount), fmt.Sprintf("data %d [m4 m5 m6 m7]", first+4))
			equal(t, "never what was not sent", ask(senderSession, first+7, 9), fmt.Sprintf("data %d [m7]", first+7))
			equal(t, "ahead", ask(senderSession, first+8, 1), ErrRequestAhead)
			drain(t, s, 99)
			equal(t, "sent now", ask(senderSession, first+8, 1), fmt.Sprintf("data %d [m8]", first+8))
			equal(t, "a part fits", ask(senderSession, first+4, 6), fmt.Sprintf("data %d [m4 m5 m6 m7]", first+4))
			equal(t, "other session", ask(Session{}, first+8, 1), ErrRequestSession)
			equal(t, "count 0", ask(senderSession, first+8, 0), ErrCountZero)
			equal(t, "sequence 0", ask(senderSession, 0, 1), ErrSeqZero)
			equal(t, "far ahead", ask(senderSession, ^Seq(0), EndCount), ErrRequestAhead)
			if _, err := s.Answer(nil, []byte("short")); !errors.Is(err, ErrRequestSize) {
				t.Errorf("short request: %v", err)
			}
			st := s.Stats()
			equal(t, "counts", []uint64{st.Requests, st.Answered, st.Malformed, st.OtherSession, st.Ahead, st.Gone, st.AnsweredMessages},
				[]uint64{13, 5, 3, 1, 3, 1, 11})
		})
	}
}

func TestSenderLimits(t *testing.T) {
	s := newTestSender(t, SenderConfig{Ring: 3})
	if err := s.Publish(make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
	mustPublish(t, s, "a", "b", "c")
	if err := s.Publish([]byte("d")); !errors.Is(err, ErrRingFull) {
		t.Errorf("unsent messages fill the ring: %v", err)
	}
	s.Flush()
	drain(t, s, 1)
	mustPublish(t, s, "d")
	equal(t, "kept", s.Kept(), Range{First: 2, Next: 4})

	s = newTestSender(t, SenderConfig{First: ^Seq(0) - 2})
	mustPublish(t, s, "x", "y")
	if err := s.Publish([]byte("z")); !errors.Is(err, ErrExhausted) {
		t.Errorf("last sequence: %v", err)
	}
	s.Finish()
	equal(t, "at the end of numbers", drain(t, s, 1),
		[]string{fmt.Sprintf("data %d [x y]", ^Seq(0)-2), fmt.Sprintf("end %d", ^Seq(0))})

	long := make([]byte, MaxMessage)
	s = newTestSender(t, SenderConfig{RingBytes: 64 << 10})
	for range 3 { // one at a time fits the ring
		if err := s.Publish(long); err != nil {
			t.Fatal(err)
		}
		b, ok := s.Next(1, nil)
		if !ok || len(b) != MaxDatagram {
			t.Fatalf("longest message: %d bytes, %v", len(b), ok)
		}
	}
	equal(t, "kept by bytes", s.Kept(), Range{First: 3, Next: 4})

	for _, c := range []SenderConfig{{Ring: -1}, {RingBytes: 100}, {MTU: 63}, {MTU: 70000}, {PacketMessages: EndCount}, {First: ^Seq(0)}, {Heartbeat: -1}} {
		if _, err := NewSender(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestSenderRing drives a Sender with random messages and checks each packet
// and each answer against a plain list of the messages.
func TestSenderRing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := Seq(rapid.SampledFrom([]uint64{1, 60000, 484311999, 1<<63 - 5, ^uint64(0) - 5000}).Draw(rt, "first"))
		c := SenderConfig{
			Session:        senderSession,
			First:          first,
			Ring:           rapid.IntRange(1, 40).Draw(rt, "ring"),
			RingBytes:      64 << 10,
			MTU:            rapid.IntRange(64, 400).Draw(rt, "mtu"),
			PacketMessages: rapid.IntRange(1, 9).Draw(rt, "perPacket"),
		}
		longest := rapid.SampledFrom([]int{3, 60, 500, 30000}).Draw(rt, "longest")
		s, err := NewSender(c)
		if err != nil {
			rt.Fatal(err)
		}
		var all [][]byte
		sent := first
		check := func(b []byte, alone int) Range {
			p, err := Parse(b)
			if err != nil {
				rt.Fatal(err)
			}
			if len(b) > PayloadSize(c.MTU) && p.Msgs.Len() != 1 {
				rt.Fatalf("%d messages in %d bytes", p.Msgs.Len(), len(b))
			}
			if p.Msgs.Len() > alone {
				rt.Fatalf("%d messages, want at most %d", p.Msgs.Len(), alone)
			}
			r := p.Range()
			for q := r.First; q < r.Next; q++ {
				if got := p.Msgs.Next(); !bytes.Equal(got, all[q-first]) {
					rt.Fatalf("message %d differs", q)
				}
			}
			return r
		}
		take := func() {
			for {
				b, ok := s.Next(1, nil)
				if !ok {
					return
				}
				r := check(b, c.PacketMessages)
				if r.First != sent {
					rt.Fatalf("packet %v after %d", r, sent)
				}
				sent = r.Next
			}
		}
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0, 1, 2:
				m := bytes.Repeat([]byte{byte(len(all))}, rapid.IntRange(0, longest).Draw(rt, "length"))
				err := s.Publish(m)
				if errors.Is(err, ErrRingFull) {
					s.Flush()
					take()
					err = s.Publish(m)
				}
				if err != nil {
					rt.Fatal(err)
				}
				all = append(all, m)
			case 3:
				s.Flush()
				take()
				if sent != first+Seq(len(all)) {
					rt.Fatalf("flushed to %d of %d", sent, first+Seq(len(all)))
				}
			case 4:
				take()
			case 5:
				at := first + Seq(rapid.IntRange(0, len(all)+1).Draw(rt, "ask"))
				count := uint16(rapid.SampledFrom([]int{1, 2, 10, EndCount}).Draw(rt, "count"))
				b, err := s.Answer(nil, AppendHeader(nil, senderSession, at, count))
				kept := s.Kept()
				if (err == nil) != kept.Contains(at) {
					rt.Fatalf("asked %d, kept %v: %v", at, kept, err)
				}
				if err == nil {
					if r := check(b, int(count)); r.First != at || r.Next > sent {
						rt.Fatalf("asked %d, got %v, sent to %d", at, r, sent)
					}
				}
			}
			if n := int(s.Published() - s.Kept().First); n > c.Ring {
				rt.Fatalf("%d messages in a ring of %d", n, c.Ring)
			}
			if longest <= 500 && len(all) >= c.Ring && int(s.Published()-s.Kept().First) < c.Ring {
				rt.Fatalf("ring of %d keeps %d", c.Ring, s.Published()-s.Kept().First)
			}
		}
	})
}

func FuzzSenderAnswer(f *testing.F) {
	f.Add(AppendHeader(nil, senderSession, 1, 5))
	f.Add(AppendHeader(nil, senderSession, 900, EndCount))
	f.Add([]byte{})
	s := newTestSender(f, SenderConfig{Ring: 64})
	for i := range 1000 {
		mustPublish(f, s, fmt.Sprint(i))
		s.Flush()
		drain(f, s, 1)
	}
	f.Fuzz(func(t *testing.T, req []byte) {
		b, err := s.Answer(nil, req)
		if err != nil {
			if len(b) != 0 {
				t.Fatalf("refused and answered %x", b)
			}
			return
		}
		p, err := Parse(b)
		if err != nil || p.Kind != Data || p.Range().Next > s.Sent() || len(b) > PayloadSize(DefaultMTU) {
			t.Fatalf("%x: %v", b, err)
		}
		asked, err := ParseRequest(req)
		if err != nil || p.Session != asked.Session || p.First != asked.First || p.Range().Next > asked.Range().Next {
			t.Fatalf("asked %x, answered %v: %v", req, p.Range(), err)
		}
		for q := p.First; p.Msgs.Len() > 0; q++ {
			if m := p.Msgs.Next(); string(m) != fmt.Sprint(q-1) {
				t.Fatalf("%d is %q", q, m)
			}
		}
	})
}

func TestSenderAllocs(t *testing.T) {
	s := newTestSender(t, SenderConfig{Ring: 1024, RingBytes: 64 << 10})
	msg := make([]byte, 40)
	req := AppendHeader(nil, senderSession, 0, 20)
	buf := make([]byte, 0, 2048)
	n := testing.AllocsPerRun(5000, func() {
		if err := s.Publish(msg); err != nil {
			t.Fatal(err)
		}
		if b, ok := s.Next(1, buf); ok && len(b) < 1000 {
			t.Fatal(len(b))
		}
		if at := s.Sent(); at > 1 {
			req = AppendHeader(req[:0], senderSession, at-1, 20)
			if _, err := s.Answer(buf, req); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

func BenchmarkSender(b *testing.B) {
	s := newTestSender(b, SenderConfig{})
	msg := make([]byte, 40)
	buf := make([]byte, 0, 2048)
	b.SetBytes(40)
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Publish(msg)
		s.Next(1, buf)
	}
}
