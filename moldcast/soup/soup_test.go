package soup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// any chunking of the stream gives the same events, and keeps no more than a
// frame.
func TestAnyChunking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stream := appendFrame(nil, typeAccepted, "DAY1      "+fmt.Sprintf("%20d", rapid.Uint64Range(1, 100).Draw(t, "first")))
		for range rapid.IntRange(0, 30).Draw(t, "frames") {
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				stream = appendFrame(stream, typeBeat, "")
			case 1:
				stream = appendFrame(stream, typeDebug, rapid.StringMatching(`(hole |gap )?[0-9.]{0,8}`).Draw(t, "text"))
			case 2:
				if rapid.Bool().Draw(t, "empty") {
					stream = append(stream, 0, 0, 'S')
				}
				stream = append(stream, rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(t, "noise")...)
			case 3:
				stream = appendFrame(stream, typeSequenced, strings.Repeat("x", rapid.SampledFrom([]int{1000, 65534}).Draw(t, "long")))
			default:
				stream = appendFrame(stream, typeSequenced, rapid.StringN(0, 8, 20).Draw(t, "message"))
			}
		}
		if rapid.Bool().Draw(t, "end") {
			stream = appendFrame(stream, typeEnd, "")
		}
		var whole strings.Builder
		wantErr := drive(&whole, NewClient(0, Login{Session: Blank}), 0, stream)
		var cut strings.Builder
		var err error
		c := NewClient(0, Login{Session: Blank})
		for rest := stream; len(rest) > 0 && err == nil; {
			k := min(len(rest), rapid.SampledFrom([]int{1, 2, 3, 7, 100, 70000}).Draw(t, "chunk"))
			err = drive(&cut, c, 0, rest[:k])
			rest = rest[k:]
			if cap(c.in.buf) > 2*(HeaderSize+MaxMessage) {
				t.Fatalf("keeps %d bytes", cap(c.in.buf))
			}
		}
		if whole.String() != cut.String() || (err == nil) != (wantErr == nil) {
			t.Fatalf("whole:\n%s\ncut:\n%s", whole.String(), cut.String())
		}
	})
}

// What a server sends, a client takes: the messages, from the number accepted.
func TestServerToClient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Login{
			User: rapid.StringMatching(`[a-z]{0,6}`).Draw(t, "user"), Password: rapid.StringMatching(`[a-z]{0,10}`).Draw(t, "password"),
			Seq: moldcast.Seq(rapid.Uint64().Draw(t, "seq")), Timeout: rapid.IntRange(0, 99999).Draw(t, "timeout"),
		}
		copy(l.Session[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "session"))
		c, s := NewClient(0, l), NewServer(0)
		login := c.Output(0)
		if want := 49 + 5*min(l.Timeout, 1); len(login) != want {
			t.Fatalf("a login of %d bytes, want %d", len(login), want)
		}
		n, got, err := s.Receive(0, login)
		if err != nil || n != len(login) || got == nil || *got != l {
			t.Fatalf("took %d of %d: %+v, want %+v (%v)", n, len(login), got, l, err)
		}
		first := max(1, l.Seq)
		session := l.Session
		if session == Blank {
			session = moldcast.Session([]byte("CURRENT   "))
		}
		s.Accept(session, first)
		stream := bytes.Clone(s.Output(0))
		want := rapid.SliceOfN(rapid.StringN(0, 10, 20), 0, 20).Draw(t, "messages")
		if uint64(len(want)) > ^uint64(0)-uint64(first) {
			want = nil
		}
		var framed []byte
		for _, m := range want {
			framed = moldcast.AppendMessage(framed, []byte(m))
		}
		stream, sent := AppendData(stream, moldcast.MessagesOf(framed, len(want)))
		s.Sent(0, sent)
		s.End()
		stream = append(stream, s.Output(0)...)
		var out strings.Builder
		fmt.Fprintf(&out, "accepted %v at %d\n", session, first)
		for i, m := range want {
			fmt.Fprintf(&out, "%d %q\n", first+moldcast.Seq(i), m)
		}
		fmt.Fprintf(&out, "end at %d\n", first+moldcast.Seq(len(want)))
		var have strings.Builder
		if err := drive(&have, c, 0, stream); err != nil || have.String() != out.String() || c.Next() != s.Next() {
			t.Fatalf("got\n%swant\n%s%v", have.String(), out.String(), err)
		}
	})
}

// A message that no frame can carry ends the data before it.
func TestTooLong(t *testing.T) {
	framed := moldcast.AppendMessage(nil, []byte("short"))
	framed = moldcast.AppendMessage(framed, make([]byte, MaxMessage+1))
	if b, n := AppendData(nil, moldcast.MessagesOf(framed, 2)); n != 1 || len(b) != HeaderSize+5 {
		t.Errorf("%d messages, %d bytes", n, len(b))
	}
}

// A stream of data costs no allocation, neither to send nor to take.
func TestAllocations(t *testing.T) {
	framed := []byte{}
	for range 1000 {
		framed = moldcast.AppendMessage(framed, []byte("forty bytes of a message, more or less.."))
	}
	msgs := moldcast.MessagesOf(framed, 1000)
	c := NewClient(0, Login{Session: Blank})
	if _, _, err := c.Receive(0, appendFrame(nil, typeAccepted, "DAY1      "+fmt.Sprintf("%20d", 1))); err != nil {
		t.Fatal(err)
	}
	var wire []byte
	if n := testing.AllocsPerRun(10, func() {
		wire, _ = AppendData(wire[:0], msgs)
		for b := wire; len(b) > 0; {
			k := min(len(b), 4099)
			n, _, err := c.Receive(0, b[:k])
			if err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzClient(f *testing.F) {
	accepted := appendFrame(nil, typeAccepted, "DAY1      "+fmt.Sprintf("%20d", 7))
	accepted = accepted[:len(accepted):len(accepted)] // each seed has bytes of its own
	f.Add(accepted)
	f.Add(appendFrame(accepted, typeSequenced, "abc"))
	f.Add(appendFrame(accepted, typeDebug, "hole 7..9"))
	f.Add(appendFrame(accepted, typeEnd, ""))
	f.Add(appendFrame(nil, typeRejected, "S"))
	f.Add([]byte{0, 0, 'S', 0xFF, 0xFF, 'S'})
	f.Add(append(accepted, 0, 0, 'S'))
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole strings.Builder
		err := drive(&whole, NewClient(0, Login{Session: Blank, Seq: 7}), 0, b)
		if strings.Contains(whole.String(), "untyped") {
			t.Error(whole.String())
		}
		for first := range 5 { // so many bytes, then two at a time
			var cut strings.Builder
			c := NewClient(0, Login{Session: Blank, Seq: 7})
			k := min(first, len(b))
			errCut := drive(&cut, c, 0, b[:k])
			for i := k; i < len(b) && errCut == nil; i += 2 {
				errCut = drive(&cut, c, 0, b[i:min(len(b), i+2)])
			}
			if whole.String() != cut.String() || (err == nil) != (errCut == nil) {
				t.Errorf("whole:\n%s\ncut after %d:\n%s", whole.String(), first, cut.String())
			}
		}
	})
}

func FuzzServer(f *testing.F) {
	f.Add(appendLogin(nil, Login{Session: Blank, Seq: 1}))
	f.Add(appendLogin(nil, Login{Session: Blank, Seq: 1, Timeout: 5000}))
	f.Add(appendFrame(appendFrame(appendLogin(nil, Login{}), typeClientBeat, ""), typeLogout, ""))
	f.Add(appendFrame(nil, typeUnsequenced, strings.Repeat("x", 300)))
	f.Fuzz(func(t *testing.T, b []byte) {
		run := func(size int) (logins []Login, failed bool) {
			s := NewServer(0)
			for i := 0; i < len(b); {
				n, l, err := s.Receive(0, b[i:min(len(b), i+size)])
				if err != nil {
					if !errors.Is(err, ErrProtocol) {
						t.Fatalf("untyped: %v", err)
					}
					return logins, true
				}
				i += n
				if l != nil {
					logins = append(logins, *l)
				}
				if cap(s.in.buf) > 512 {
					t.Fatalf("keeps %d bytes", cap(s.in.buf))
				}
			}
			return logins, false
		}
		a, fa := run(len(b) + 1)
		for _, size := range []int{1, 2, 3, 5} {
			c, fc := run(size)
			if fmt.Sprint(a) != fmt.Sprint(c) || fa != fc {
				t.Errorf("whole %v %v, by %d bytes %v %v", a, fa, size, c, fc)
			}
		}
	})
}

// BenchmarkData frames messages for a stream, and takes them from it again.
func BenchmarkData(b *testing.B) {
	for _, size := range []int{40, 400} {
		var framed []byte
		for range 1000 {
			framed = moldcast.AppendMessage(framed, make([]byte, size))
		}
		msgs := moldcast.MessagesOf(framed, 1000)
		wire, _ := AppendData(nil, msgs)
		b.Run(fmt.Sprintf("append/msg=%d", size), func(b *testing.B) {
			b.SetBytes(int64(len(framed)))
			b.ReportAllocs()
			for b.Loop() {
				wire, _ = AppendData(wire[:0], msgs)
			}
		})
		b.Run(fmt.Sprintf("receive/msg=%d", size), func(b *testing.B) {
			c := NewClient(0, Login{Session: Blank})
			if _, _, err := c.Receive(0, appendFrame(nil, typeAccepted, "DAY1      "+fmt.Sprintf("%20d", 1))); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(framed)))
			b.ReportAllocs()
			for b.Loop() {
				for rest := wire; len(rest) > 0; {
					n, _, err := c.Receive(0, rest)
					if err != nil {
						b.Fatal(err)
					}
					rest = rest[n:]
				}
			}
		})
	}
}
