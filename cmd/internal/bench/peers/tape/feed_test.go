package main

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// An answer carries what the packets did, as much of it as fits, across the
// end of the pool too.
func TestAnswers(t *testing.T) {
	s, err := moldcast.ParseSession(session)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range feeds {
		f, err := newFeed(name)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(3, 4))
		for i := range 400 {
			n := rng.IntN(3 * len(f.bodies))
			if i < 40 {
				n = len(f.bodies) - 20 + i
			}
			// The messages of some packets, from one within the first.
			first, count, _ := f.packet(n)
			skip := rng.IntN(int(count))
			var want [][]byte
			for k := range 8 {
				_, count, body := f.packet(n + k)
				msgs := moldcast.MessagesOf(body, int(count))
				for msgs.Len() > 0 {
					want = append(want, msgs.Next())
				}
			}
			want = want[skip:]
			r := moldcast.Range{First: first + moldcast.Seq(skip)}
			r.Next = r.First + moldcast.Seq(1+rng.IntN(len(want)))
			p, err := moldcast.Parse(f.answer(nil, s, r))
			if err != nil {
				t.Fatalf("%s: %v: %v", name, r, err)
			}
			if p.Session != s || p.First != r.First || p.Msgs.Len() == 0 || p.Range().Next > r.Next {
				t.Fatalf("%s: %v is answered with %v", name, r, p.Range())
			}
			size, got := moldcast.HeaderSize, p.Msgs.Len()
			for msgs := p.Msgs; msgs.Len() > 0; want = want[1:] {
				m := msgs.Next()
				if size += moldcast.LengthSize + len(m); !bytes.Equal(m, want[0]) {
					t.Fatalf("%s: %v: another message", name, r)
				}
			}
			if p.Range().Next < r.Next && size+moldcast.LengthSize+len(want[0]) <= payload {
				t.Fatalf("%s: %v is answered with %d messages, and has room for one more", name, r, got)
			}
		}
	}
}
