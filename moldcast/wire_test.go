package moldcast

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// header is a downstream header by hand, so that the codec does not test
// itself.
func header(session string, first uint64, count uint16) []byte {
	b := []byte(session)
	for i := 56; i >= 0; i -= 8 {
		b = append(b, byte(first>>i))
	}
	return append(b, byte(count>>8), byte(count))
}

// span is the range [first, next).
func span(first, next Seq) Range { return Range{First: first, Next: next} }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestParse(t *testing.T) {
	const name = "000010059B"
	var s Session
	copy(s[:], name)
	const last = ^uint64(0)
	for _, tc := range []struct {
		name string
		b    []byte
		err  error
		kind Kind
		rng  Range
		msgs []string
	}{
		{"one message", join(header(name, 7, 1), []byte{0, 2, 'h', 'i'}), nil, Data, span(7, 8), []string{"hi"}},
		{"three messages", join(header(name, 484311999, 3), []byte{0, 1, 'a', 0, 0, 0, 2, 'b', 'c'}), nil, Data, span(484311999, 484312002), []string{"a", "", "bc"}},
		{"length in two bytes", join(header(name, 1, 1), []byte{1, 1}, make([]byte, 257)), nil, Data, span(1, 2), []string{string(make([]byte, 257))}},
		{"heartbeat", header(name, 9, 0), nil, Heartbeat, span(9, 9), nil},
		{"heartbeat at the end of the space", header(name, last, 0), nil, Heartbeat, span(^Seq(0), ^Seq(0)), nil},
		{"end is no count", header(name, 9, 0xFFFF), nil, End, span(9, 9), nil},
		{"end near the end of the space", header(name, last-3, 0xFFFF), nil, End, span(^Seq(0)-3, ^Seq(0)-3), nil},
		{"last sequence of the space", join(header(name, last-1, 1), []byte{0, 0}), nil, Data, span(^Seq(0)-1, ^Seq(0)), []string{""}},
		{"most messages", join(header(name, 1, 0xFFFE), make([]byte, 2*0xFFFE)), nil, Data, span(1, 0xFFFF), make([]string, 0xFFFE)},

		{"empty", nil, ErrShort, 0, Range{}, nil},
		{"19 bytes", header(name, 1, 0)[:19], ErrShort, 0, Range{}, nil},
		{"sequence 0", join(header(name, 0, 1), []byte{0, 0}), ErrSeqZero, 0, Range{}, nil},
		{"heartbeat at 0", header(name, 0, 0), ErrSeqZero, 0, Range{}, nil},
		{"end at 0", header(name, 0, 0xFFFF), ErrSeqZero, 0, Range{}, nil},
		{"sequence wraps", join(header(name, last, 1), []byte{0, 0}), ErrSeqOverflow, 0, Range{}, nil},
		{"sequence wraps by many", join(header(name, last-1, 2), []byte{0, 0, 0, 0}), ErrSeqOverflow, 0, Range{}, nil},
		{"count without blocks", header(name, 1, 1), ErrTruncated, 0, Range{}, nil},
		{"half a length", join(header(name, 1, 1), []byte{0}), ErrTruncated, 0, Range{}, nil},
		{"cut message", join(header(name, 1, 1), []byte{0, 3, 'a', 'b'}), ErrTruncated, 0, Range{}, nil},
		{"second block missing", join(header(name, 1, 2), []byte{0, 1, 'a'}), ErrTruncated, 0, Range{}, nil},
		{"count 65534 without blocks", join(header(name, 1, 0xFFFE), []byte{0, 0}), ErrTruncated, 0, Range{}, nil},
		{"trailing byte", join(header(name, 1, 1), []byte{0, 1, 'a', 0}), ErrTrailing, 0, Range{}, nil},
		{"heartbeat with a body", join(header(name, 1, 0), []byte{0, 0}), ErrTrailing, 0, Range{}, nil},
		{"count 65535 with a body", join(header(name, 1, 0xFFFF), []byte{0, 0}), ErrTrailing, 0, Range{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Parse(tc.b)
			if err != tc.err {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if err != nil {
				if diff := cmp.Diff(Packet{}, p, cmp.AllowUnexported(Messages{})); diff != "" {
					t.Fatalf("a packet in spite of the error:\n%s", diff)
				}
				return
			}
			if p.Session != s || p.Kind != tc.kind || p.Range() != tc.rng || p.Msgs.Len() != len(tc.msgs) {
				t.Fatalf("%+v, want %v %v", p, tc.kind, tc.rng)
			}
			m := p.Msgs
			for i, want := range tc.msgs {
				if got := string(m.Next()); got != want {
					t.Fatalf("message %d is %q, want %q", i, got, want)
				}
			}
			if m.Len() != 0 || len(m.Framed()) != 0 {
				t.Fatalf("%d messages, %d bytes left", m.Len(), len(m.Framed()))
			}
		})
	}
}

// TestMessageCannotGrow: what Next gives ends where the message ends, so that
// an append to it does not write over the next one.
func TestMessageCannotGrow(t *testing.T) {
	p, err := Parse(join(header("S         ", 1, 2), []byte{0, 1, 'a', 0, 1, 'b'}))
	if err != nil {
		t.Fatal(err)
	}
	_ = append(p.Msgs.Next(), "yyy"...)
	if got := string(p.Msgs.Next()); got != "b" {
		t.Fatalf("second message %q", got)
	}
}

func TestParseRequest(t *testing.T) {
	const name = "1567326030"
	for _, tc := range []struct {
		name string
		b    []byte
		err  error
		rng  Range
	}{
		{"one", header(name, 5, 1), nil, span(5, 6)},
		{"most", header(name, 484311999, 0xFFFE), nil, span(484311999, 484311999+0xFFFE)},
		{"65535 may be asked", header(name, 1, 0xFFFF), nil, span(1, 0x10000)},
		{"stops at the end of the space", header(name, ^uint64(0)-4, 100), nil, span(^Seq(0)-4, ^Seq(0))},
		{"empty", nil, ErrRequestSize, Range{}},
		{"short", header(name, 5, 1)[:19], ErrRequestSize, Range{}},
		{"long", join(header(name, 5, 1), []byte{0}), ErrRequestSize, Range{}},
		{"sequence 0", header(name, 0, 1), ErrSeqZero, Range{}},
		{"count 0", header(name, 5, 0), ErrCountZero, Range{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := ParseRequest(tc.b)
			if err != tc.err {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if err != nil {
				return
			}
			if string(r.Session[:]) != name || r.Range() != tc.rng {
				t.Fatalf("%+v is %v, want %v", r, r.Range(), tc.rng)
			}
		})
	}
}

// TestAppendRequestClips: 65535 is never asked for.
func TestAppendRequestClips(t *testing.T) {
	b := AppendRequest(nil, Request{First: 9, Count: 0xFFFF})
	if !bytes.Equal(b, header(string(make([]byte, 10)), 9, 0xFFFE)) {
		t.Fatalf("% x", b)
	}
}

func TestKindString(t *testing.T) {
	got := fmt.Sprint(Data, Heartbeat, End, Kind(9))
	if got != "data heartbeat end kind(9)" {
		t.Fatal(got)
	}
}

// drawMessages gives messages, most of them small and some empty.
func drawMessages(t *rapid.T, most int) [][]byte {
	return rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, most).Draw(t, "messages")
}

func drawSession(t *rapid.T) (s Session) {
	for i := range s {
		s[i] = rapid.Byte().Draw(t, "session")
	}
	return s
}

// TestPacketRoundTrip: what is encoded is parsed back, whole and in any two
// parts, and only a whole datagram is taken.
func TestPacketRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSession(t)
		msgs := drawMessages(t, 20)
		first := Seq(rapid.SampledFrom([]uint64{1, 484311999, ^uint64(0) - uint64(len(msgs))}).Draw(t, "first"))
		b := AppendHeader([]byte("before"), s, first, uint16(len(msgs)))
		for _, m := range msgs {
			b = AppendMessage(b, m)
		}
		b = b[len("before"):]
		p, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if p.Session != s || p.Kind != Data || p.Range() != (span(first, first+Seq(len(msgs)))) {
			t.Fatalf("%+v", p)
		}
		same := func(m Messages, want [][]byte) {
			if m.Len() != len(want) {
				t.Fatalf("%d messages, want %d", m.Len(), len(want))
			}
			again, err := ParseMessages(m.Framed(), m.Len())
			if err != nil || again.Len() != m.Len() {
				t.Fatalf("framed: %v", err)
			}
			for i := range want {
				if got := m.Next(); !bytes.Equal(got, want[i]) {
					t.Fatalf("message %d is %q, want %q", i, got, want[i])
				}
			}
		}
		same(p.Msgs, msgs)
		k := rapid.IntRange(0, len(msgs)).Draw(t, "k")
		head, tail := p.Msgs.Split(k)
		same(head, msgs[:k])
		same(tail, msgs[k:])
		if got := append(head.Framed(), tail.Framed()...); !bytes.Equal(got, b[HeaderSize:]) {
			t.Fatal("Split lost bytes")
		}
		size, count := rapid.IntRange(0, 200).Draw(t, "size"), rapid.IntRange(0, 25).Draw(t, "count")
		n := p.Msgs.Fit(count, size)
		fits := 0
		for i, total := 0, 0; i < len(msgs) && i < count; i++ {
			if total += LengthSize + len(msgs[i]); total <= size {
				fits++
			}
		}
		if n != fits {
			t.Fatalf("Fit(%d, %d) = %d, want %d", count, size, n, fits)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := Parse(b[:cut]); !errors.Is(err, ErrShort) && !errors.Is(err, ErrTruncated) {
			t.Fatalf("cut at %d of %d: %v", cut, len(b), err)
		}
		if _, err := Parse(append(b[:len(b):len(b)], 0)); err != ErrTrailing {
			t.Fatalf("one byte more: %v", err)
		}
	})
}

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Request{
			Session: drawSession(t),
			First:   Seq(rapid.Uint64Range(1, ^uint64(0)).Draw(t, "first")),
			Count:   uint16(rapid.IntRange(1, MaxCount).Draw(t, "count")),
		}
		b := AppendRequest(nil, r)
		if len(b) != RequestSize {
			t.Fatalf("%d bytes", len(b))
		}
		got, err := ParseRequest(b)
		if err != nil || got != r {
			t.Fatalf("%+v %v, want %+v", got, err, r)
		}
	})
}

func TestParseDoesNotAllocate(t *testing.T) {
	good := dataPacket(testSession, span(1, 50))
	bad := good[:len(good)-1]
	request := AppendRequest(nil, Request{Session: testSession, First: 1, Count: 9})
	sum := 0
	if n := testing.AllocsPerRun(500, func() {
		p, err := Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		head, tail := p.Msgs.Split(10)
		for head.Len() > 0 {
			sum += len(head.Next())
		}
		for tail.Len() > 0 {
			sum += len(tail.Next())
		}
		if _, err := Parse(bad); err == nil {
			t.Fatal("cut packet taken")
		}
		if _, err := ParseRequest(request); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(header("000010059B", 1, 0))
	f.Add(header("000010059B", ^uint64(0), 0xFFFF))
	f.Add(header("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", ^uint64(0)-1, 2))
	f.Add(join(header("000010059B", 484311999, 2), []byte{0, 0, 0, 1, 'x'}))
	f.Add(join(header("000010059B", 1, 0xFFFF), []byte{0, 0}))
	f.Add(dataPacket(testSession, span(1, 40)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrShort) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrTrailing) &&
				!errors.Is(err, ErrSeqZero) && !errors.Is(err, ErrSeqOverflow) {
				t.Fatal(err)
			}
			return
		}
		if r := p.Range(); r.Next < r.First || r.Len() != uint64(p.Msgs.Len()) || (p.Kind == Data) == r.Empty() || r.First == 0 {
			t.Fatalf("%+v", p)
		}
		count := uint16(p.Msgs.Len())
		if p.Kind == End {
			count = EndCount
		}
		again := AppendHeader(nil, p.Session, p.First, count)
		for m := p.Msgs; m.Len() > 0; {
			again = AppendMessage(again, m.Next())
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("encodes as % x, was % x", again, b)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte{})
	f.Add(header("000010059B", 1, 1))
	f.Add(header("000010059B", ^uint64(0), 0xFFFF))
	f.Add(header("000010059B", 0, 1))
	f.Add(header("000010059B", 1, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRequest(b)
		if err != nil {
			if !errors.Is(err, ErrRequestSize) && !errors.Is(err, ErrSeqZero) && !errors.Is(err, ErrCountZero) {
				t.Fatal(err)
			}
			return
		}
		if rng := r.Range(); rng.First == 0 || rng.Next < rng.First || rng.Len() > uint64(r.Count) {
			t.Fatalf("%+v is %v", r, rng)
		}
		if r.Count <= MaxCount && !bytes.Equal(AppendRequest(nil, r), b) {
			t.Fatalf("%+v was % x", r, b)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1, 10, 50} {
		d := dataPacket(testSession, span(1, 1+Seq(n)))
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(d)))
			for b.Loop() {
				p, err := Parse(d)
				if err != nil {
					b.Fatal(err)
				}
				for p.Msgs.Len() > 0 {
					p.Msgs.Next()
				}
			}
		})
	}
}
