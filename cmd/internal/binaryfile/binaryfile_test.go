package binaryfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func readAll(r *Reader) (msgs [][]byte, err error) {
	for {
		m, err := r.Next()
		if err != nil {
			return msgs, err
		}
		msgs = append(msgs, bytes.Clone(m))
	}
}

func TestRead(t *testing.T) {
	long := append([]byte{0xFF, 0xFF}, make([]byte, MaxMessage)...)
	for _, c := range []struct {
		name  string
		in    []byte
		msgs  int
		pos   int64
		ended bool
		err   error // nil: io.EOF
	}{
		{"nothing", nil, 0, 0, false, nil},
		{"end only", []byte{0, 0}, 0, 2, true, nil},
		{"two messages", []byte{0, 1, 'a', 0, 2, 'b', 'c'}, 2, 7, false, nil},
		{"with an end", []byte{0, 1, 'a', 0, 0}, 1, 5, true, nil},
		{"bytes after the end", []byte{0, 1, 'a', 0, 0, 9, 9}, 1, 5, true, nil},
		{"cut length", []byte{0, 1, 'a', 0}, 1, 3, false, ErrCut},
		{"cut message", []byte{0, 1, 'a', 0, 4, 'b', 'c'}, 1, 3, false, ErrCut},
		{"cut before its first byte", []byte{0, 1}, 0, 0, false, ErrCut},
		{"longest", long, 1, 65537, false, nil},
		{"longest, cut", long[:65536], 0, 0, false, ErrCut},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, in := range []io.Reader{bytes.NewReader(c.in), iotest.OneByteReader(bytes.NewReader(c.in)), iotest.DataErrReader(bytes.NewReader(c.in))} {
				r := NewReader(in)
				msgs, err := readAll(r)
				if len(msgs) != c.msgs || r.Pos() != c.pos || r.Ended() != c.ended {
					t.Errorf("%d messages, at byte %d, ended %v; want %d, %d, %v", len(msgs), r.Pos(), r.Ended(), c.msgs, c.pos, c.ended)
				}
				var at *Error
				switch {
				case c.err == nil && err != io.EOF:
					t.Errorf("got %v, want io.EOF", err)
				case c.err != nil && (!errors.Is(err, c.err) || !errors.As(err, &at) || at.Pos != c.pos):
					t.Errorf("got %v, want %v at byte %d", err, c.err, c.pos)
				}
				if _, again := r.Next(); again != err {
					t.Errorf("the error does not stay: %v", again)
				}
			}
		})
	}
	r := NewReader(bytes.NewReader([]byte{0, 0, 1, 2, 3}))
	_, _ = r.Next()
	if n, err := r.Rest(); n != 3 || err != nil {
		t.Errorf("rest: %d, %v", n, err)
	}
	broken := errors.New("broken")
	_, err := readAll(NewReader(io.MultiReader(bytes.NewReader([]byte{0, 1, 'a', 0}), iotest.ErrReader(broken))))
	if !errors.Is(err, broken) || err.Error() != "byte 3: broken" {
		t.Errorf("broken reader: %v", err)
	}
}

func TestWrite(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	if err := w.Write(nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
	if err := w.Write(make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
	if err := errors.Join(w.Write([]byte("a")), w.Write([]byte("bc")), w.Flush()); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != "\x00\x01a\x00\x02bc" {
		t.Errorf("%q", got)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		msgs := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 1, 300)).Draw(rt, "msgs")
		var b bytes.Buffer
		w := NewWriter(&b)
		for _, m := range msgs {
			if err := w.Write(m); err != nil {
				rt.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			rt.Fatal(err)
		}
		got, err := readAll(NewReader(iotest.HalfReader(&b)))
		if err != io.EOF || len(got) != len(msgs) {
			rt.Fatalf("%d of %d messages: %v", len(got), len(msgs), err)
		}
		for i := range msgs {
			if !bytes.Equal(got[i], msgs[i]) {
				rt.Fatalf("message %d differs", i)
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{0, 1, 'a', 0, 0})
	f.Add([]byte{0, 4, 'a'})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		msgs, err := readAll(r)
		n := 0
		var again []byte
		for _, m := range msgs {
			n += 2 + len(m)
			again = append(binary.BigEndian.AppendUint16(again, uint16(len(m))), m...)
		}
		if !bytes.HasPrefix(in, again) {
			t.Fatalf("%x was read of %x", again, in)
		}
		if bad := (*Error)(nil); err != io.EOF && (!errors.As(err, &bad) || bad.Pos != int64(n) || !errors.Is(err, ErrCut)) {
			t.Fatalf("%v at byte %d", err, n)
		}
		if r.Ended() {
			n += 2
		}
		if int64(n) != r.Pos() || n > len(in) {
			t.Fatalf("%d bytes of messages, position %d of %d", n, r.Pos(), len(in))
		}
		if err == io.EOF && !r.Ended() && n != len(in) {
			t.Fatalf("ends at %d of %d", n, len(in))
		}
	})
}

func TestAllocs(t *testing.T) {
	in := bytes.Repeat([]byte{0, 3, 1, 2, 3}, 5000)
	r := NewReader(bytes.NewReader(in))
	w := NewWriter(io.Discard)
	if n := testing.AllocsPerRun(4000, func() {
		m, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Write(m)
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
