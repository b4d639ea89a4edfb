package soup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// acceptedFrame is A.
func acceptedFrame(seq uint64) []byte {
	return appendFrame(nil, typeAccepted, "DAY1      "+fmt.Sprintf("%20d", seq))
}

// snapshotFrames is a snapshot as a server sends it, in pieces of step bytes.
func snapshotFrames(dst []byte, seq moldcast.Seq, b []byte, step int) []byte {
	dst = AppendSnapshot(dst, SnapshotPacket{Kind: SnapshotBegin, Seq: seq, Size: uint64(len(b)), Sum: sha256.Sum256(b)})
	for at := 0; at < len(b); at += step {
		dst = AppendSnapshot(dst, SnapshotPacket{Kind: SnapshotData, At: uint64(at), Data: b[at:min(len(b), at+step)]})
	}
	return AppendSnapshot(dst, SnapshotPacket{Kind: SnapshotEnd, Size: uint64(len(b))})
}

// What a server sends of a snapshot is what the client gets, however the stream
// is cut; then come the messages, from its sequence.
func TestSnapshotToClient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "state")
		if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
			state = bytes.Repeat([]byte("state"), 40_000)
		}
		seq := moldcast.Seq(rapid.Uint64Range(1, 1<<62).Draw(t, "seq"))
		stream := acceptedFrame(uint64(seq))
		stream = snapshotFrames(stream, seq, state, rapid.SampledFrom([]int{1 + len(state)/7, 4096, MaxSnapshotData}).Draw(t, "step"))
		stream = appendFrame(stream, typeBeat, "")
		stream = appendFrame(stream, typeSequenced, "next")
		c := NewClient(0, Login{User: SnapshotUser, Session: Blank})
		var got []byte
		var order []Kind
		for len(stream) > 0 {
			k := min(len(stream), rapid.SampledFrom([]int{1, 7, 1000, 70_000}).Draw(t, "chunk"))
			b := stream[:k]
			stream = stream[k:]
			for len(b) > 0 {
				n, events, err := c.Receive(0, b)
				if err != nil {
					t.Fatal(err)
				}
				b = b[n:]
				for _, e := range events {
					if e.Kind != Alive && e.Kind != SnapshotBytes && e.First != seq {
						t.Fatalf("%v at %d, want %d", e.Kind, e.First, seq)
					}
					if e.Kind == SnapshotBytes {
						got = append(got, e.Bytes...)
						continue
					}
					order = append(order, e.Kind)
				}
			}
		}
		if want := []Kind{Accepted, Snapshot, SnapshotDone, Alive, Data}; fmt.Sprint(order) != fmt.Sprint(want) || !bytes.Equal(got, state) {
			t.Fatalf("%v and %d bytes, want %v and %d", order, len(got), want, len(state))
		}
	})
}

// Who asks for a snapshot keeps the name by which a server knows it.
func TestSnapshotLogin(t *testing.T) {
	for _, tc := range []struct {
		user, name string
		wants      bool
	}{
		{SnapshotLogin(""), "SNAP", true}, {SnapshotLogin("ann"), "ann", true}, {SnapshotLogin("annie"), "annie", true},
		{"", "", false}, {"ann", "ann", false}, {"+", "+", false}, {"+ann", "+ann", false}, {"snap", "snap", false},
	} {
		l, err := parseLogin(frame{typeLogin, appendLogin(nil, Login{User: tc.user, Session: Blank})[HeaderSize:], loginSize})
		if err != nil || l.User != tc.user || l.Name() != tc.name || l.WantsSnapshot() != tc.wants {
			t.Errorf("%q: %v, %q, name %q, wants %v", tc.user, err, l.User, l.Name(), l.WantsSnapshot())
		}
	}
}

// What is no snapshot as announced is an error, of one type, and never done.
func TestSnapshotWrong(t *testing.T) {
	begin := SnapshotPacket{Kind: SnapshotBegin, Seq: 7, Size: 4, Sum: sha256.Sum256([]byte("abcd"))}
	data := func(at uint64, s string) SnapshotPacket {
		return SnapshotPacket{Kind: SnapshotData, At: at, Data: []byte(s)}
	}
	end := SnapshotPacket{Kind: SnapshotEnd, Size: 4}
	none := SnapshotPacket{Kind: SnapshotNone}
	other := begin
	other.Seq = 8
	for name, ps := range map[string][]SnapshotPacket{
		"other bytes":       {begin, data(0, "abcx"), end},
		"too few":           {begin, data(0, "abc"), end},
		"too many":          {begin, data(0, "abcde")},
		"beyond":            {begin, data(0, "abcd"), data(4, "e")},
		"a gap":             {begin, data(0, "a"), data(2, "cd")},
		"a repeat":          {begin, data(0, "ab"), data(1, "bc")},
		"another end":       {begin, data(0, "abcd"), {Kind: SnapshotEnd, Size: 5}},
		"another sequence":  {other},
		"begun twice":       {begin, begin},
		"none, then one":    {none, begin},
		"data first":        {data(0, "abcd")},
		"end first":         {end},
		"none after begin":  {begin, none},
		"after the end":     {begin, data(0, "abcd"), end, data(4, "x")},
		"no known kind":     {{Kind: 'x'}},
		"an offset of 2^64": {begin, data(^uint64(0), "abcd")},
	} {
		stream := acceptedFrame(7)
		for _, p := range ps {
			stream = AppendSnapshot(stream, p)
		}
		c := NewClient(0, Login{User: SnapshotUser, Session: Blank})
		var out strings.Builder
		err := drive(&out, c, 0, stream)
		if !errors.Is(err, ErrSnapshot) || !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
		if done := strings.Contains(out.String(), "done"); done != (name == "after the end") {
			t.Errorf("%s: done is %v", name, done)
		}
	}
	for name, frame := range map[string][]byte{"a message": appendFrame(nil, typeSequenced, "x"), "the end": appendFrame(nil, typeEnd, "")} {
		for _, before := range [][]byte{nil, AppendSnapshot(nil, begin)} {
			var out strings.Builder
			err := drive(&out, NewClient(0, Login{User: SnapshotUser, Session: Blank}), 0, append(append(acceptedFrame(7), before...), frame...))
			if !errors.Is(err, ErrSnapshot) {
				t.Errorf("%s before the snapshot is whole: %v", name, err)
			}
		}
	}
	// To who did not ask, an unsequenced packet is out of turn, as ever.
	var out strings.Builder
	if err := drive(&out, NewClient(0, Login{Session: Blank}), 0, AppendSnapshot(acceptedFrame(7), begin)); !errors.Is(err, ErrType) {
		t.Errorf("not asked: %v", err)
	}
}

// A snapshot is taken without an allocation a packet.
func TestSnapshotAllocations(t *testing.T) {
	c := NewClient(0, Login{User: SnapshotUser, Session: Blank})
	if _, _, err := c.Receive(0, acceptedFrame(7)); err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, 8000)
	if _, _, err := c.Receive(0, AppendSnapshot(nil, SnapshotPacket{Kind: SnapshotBegin, Seq: 7, Size: 1 << 40})); err != nil {
		t.Fatal(err)
	}
	var wire []byte
	at := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		wire = AppendSnapshot(wire[:0], SnapshotPacket{Kind: SnapshotData, At: at, Data: piece})
		at += uint64(len(piece))
		if _, _, err := c.Receive(0, wire); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// What is parsed is what was appended, and nothing else is taken.
func FuzzSnapshot(f *testing.F) {
	for _, p := range []SnapshotPacket{
		{Kind: SnapshotNone}, {Kind: SnapshotBegin, Seq: 7, Size: 9, Sum: [32]byte{1, 31: 2}},
		{Kind: SnapshotData, At: 3, Data: []byte("state")}, {Kind: SnapshotEnd, Size: 9},
	} {
		f.Add(AppendSnapshot(nil, p)[HeaderSize:])
	}
	f.Add([]byte{})
	f.Add([]byte("D12345678"))
	f.Add(append([]byte("B"), make([]byte, snapshotBeginSize-1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), MaxMessage)]
		p, err := ParseSnapshot(b)
		if err != nil {
			if !errors.Is(err, ErrSnapshot) {
				t.Fatalf("untyped: %v", err)
			}
			return
		}
		frame := AppendSnapshot(nil, p)
		if !bytes.Equal(frame[HeaderSize:], b) || frame[2] != typeUnsequenced || int(frame[0])<<8|int(frame[1]) != len(frame)-2 {
			t.Fatalf("%q came of %q", frame, b)
		}
		var out strings.Builder
		_ = drive(&out, NewClient(0, Login{User: SnapshotUser, Session: Blank}), 0, append(acceptedFrame(7), frame...))
		if strings.Contains(out.String(), "untyped") {
			t.Error(out.String())
		}
	})
}
