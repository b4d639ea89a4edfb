package retransmit

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

var s1 = session("S1")

const payload1500 = 1472

func TestAnswer(t *testing.T) {
	const top = ^moldcast.Seq(0)
	fixed := func(n int) func(int) int { return func(int) int { return n } }
	view := func(first moldcast.Seq, n, size int) *memView { return newMemView(first, n, fixed(size)) }
	holed := view(1, 100, 40)
	holed.missing = func(q moldcast.Seq) bool { return q >= 10 && q < 20 || q == 50 }
	big := newMemView(1, 10, func(i int) int { return []int{40, 3000, 40, moldcast.MaxMessage, 1450, 1451, 0, 0, 40, 40}[i] })
	chilly := view(1, 100, 40)
	chilly.cold = func(q moldcast.Seq) bool { return q < 50 }
	half := view(1, 100, 40)
	half.cold = func(q moldcast.Seq) bool { return q >= 50 }
	rng := func(first, next moldcast.Seq) moldcast.Range { return moldcast.Range{First: first, Next: next} }
	for _, c := range []struct {
		name string
		v    *memView
		r    moldcast.Range
		next moldcast.Seq // of the answer
		why  Reason
	}{
		{"one", view(1, 100, 40), rng(7, 8), 8, noReason},
		{"as many as asked", view(1, 100, 40), rng(1, 11), 11, noReason},
		{"as many as fit: 34 of 42 bytes", view(1, 100, 40), rng(1, 101), 35, noReason},
		{"to the byte: 33 of 44", view(1, 100, 42), rng(1, 101), 34, noReason},
		{"726 of nothing", view(1, 1000, 0), rng(1, 1001), 727, noReason},
		{"cut at head", view(1, 100, 40), rng(99, 200), 101, noReason},
		{"last", view(1, 100, 40), rng(100, 101), 101, noReason},
		{"at head", view(1, 100, 40), rng(101, 102), 0, BeyondHead},
		{"beyond head", view(1, 100, 40), rng(1000, 2000), 0, BeyondHead},
		{"far beyond head", view(1, 100, 40), rng(top-1, top), 0, BeyondHead},
		{"before first", view(50, 100, 40), rng(49, 60), 0, BelowFirst},
		{"first", view(50, 100, 40), rng(50, 51), 51, noReason},
		{"empty session", view(50, 0, 40), rng(50, 51), 0, BeyondHead},
		{"empty session, below", view(50, 0, 40), rng(1, 2), 0, BelowFirst},
		{"late join", view(484311999, 100, 40), rng(484311999, 484312001), 484312001, noReason},
		{"late join, 1", view(484311999, 100, 40), rng(1, 2), 0, BelowFirst},
		{"top", view(top-100, 100, 40), rng(top-3, top), top, noReason},
		{"before a hole", holed, rng(5, 30), 10, noReason},
		{"in a hole", holed, rng(10, 30), 0, Missing},
		{"at the end of a hole", holed, rng(19, 30), 0, Missing},
		{"behind a hole", holed, rng(20, 30), 30, noReason},
		{"over one message", holed, rng(45, 60), 50, noReason},
		{"larger than the MTU goes alone", big, rng(2, 10), 3, noReason},
		{"never joined with a larger one", big, rng(1, 10), 2, noReason},
		{"the largest", big, rng(4, 10), 5, noReason},
		{"exactly the MTU", big, rng(5, 10), 6, noReason},
		{"a byte more", big, rng(6, 10), 7, noReason},
		{"zero length", big, rng(7, 9), 9, noReason},
		{"cold", chilly, rng(10, 12), 0, isCold},
		{"hot beside cold", chilly, rng(50, 52), 52, noReason},
		{"not cut short where cold begins", half, rng(45, 60), 0, isCold},
		{"not cold within the MTU", half, rng(1, 100), 35, noReason},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, sent, why, err := answer(nil, c.v, s1, c.r, payload1500, false)
			if why != c.why || err != nil && why != Missing {
				t.Fatalf("%v %v, want %v", why, err, c.why)
			}
			if why != noReason {
				if len(out) != 0 || !sent.Empty() && why != isCold {
					t.Fatalf("%d bytes, %v for no answer", len(out), sent)
				}
				return
			}
			if sent != rng(c.r.First, c.next) {
				t.Fatalf("sent %v, want %v", sent, rng(c.r.First, c.next))
			}
			checkAnswer(t, out, c.v, s1, sent)
			if len(out) > payload1500 && sent.Len() != 1 {
				t.Fatalf("%d messages in %d bytes", sent.Len(), len(out))
			}
		})
	}
	t.Run("cold read", func(t *testing.T) {
		out, sent, why, err := answer(nil, chilly, s1, rng(10, 12), payload1500, true)
		if why != noReason || err != nil {
			t.Fatal(why, err)
		}
		checkAnswer(t, out, chilly, s1, sent)
	})
	t.Run("failed read", func(t *testing.T) {
		bad := view(1, 10, 40)
		bad.fail = errors.New("disk")
		if _, _, why, err := answer(nil, bad, s1, rng(1, 2), payload1500, true); why != ReadFailed || err != bad.fail {
			t.Fatal(why, err)
		}
	})
	t.Run("wrapped errors", func(t *testing.T) {
		for _, c := range []struct {
			err error
			why Reason
		}{
			{fmt.Errorf("store: %w", ErrCold), isCold},
			{fmt.Errorf("store: %w", &moldcast.HoleError{}), Missing},
			{errors.New("x"), ReadFailed},
		} {
			if _, _, why, _ := answer(nil, errView{c.err}, s1, rng(1, 2), payload1500, false); why != c.why {
				t.Errorf("%v: %v, want %v", c.err, why, c.why)
			}
		}
	})
	t.Run("partial with a hole error", func(t *testing.T) {
		v := partialView{view(1, 10, 40)}
		out, sent, why, err := answer(nil, v, s1, rng(1, 9), payload1500, false)
		if why != noReason || err != nil || sent != rng(1, 3) {
			t.Fatal(sent, why, err)
		}
		checkAnswer(t, out, v.memView, s1, sent)
	})
	t.Run("never beyond the head that was read", func(t *testing.T) {
		v := view(1, 100, 40)
		_, sent, why, err := answer(nil, growing{v, 10}, s1, rng(5, 30), payload1500, false)
		if why != noReason || err != nil || sent != rng(5, 10) {
			t.Fatal(sent, why, err)
		}
	})
	t.Run("nothing and no reason", func(t *testing.T) {
		if _, _, why, err := answer(nil, errView{nil}, s1, rng(1, 2), payload1500, false); why != ReadFailed || err == nil {
			t.Fatal(why, err)
		}
	})
	t.Run("larger than any datagram", func(t *testing.T) {
		v := view(1, 2, moldcast.MaxMessage+1)
		if _, _, why, err := answer(nil, v, s1, rng(1, 2), payload1500, false); why != ReadFailed || err == nil {
			t.Fatal(why, err)
		}
	})
}

// errView has messages and gives none.
type errView struct{ err error }

func (errView) Block(q moldcast.Seq) any           { return q }
func (errView) Bounds() (first, head moldcast.Seq) { return 1, 100 }
func (v errView) Append(dst []byte, _ moldcast.Seq, _, _ int, _ bool) ([]byte, int, error) {
	return dst, 0, v.err
}

// growing holds more than was published when its bounds were read.
type growing struct {
	*memView
	published moldcast.Seq
}

func (v growing) Bounds() (first, head moldcast.Seq) { return v.first, v.published }

// partialView names the hole along with what is held before it.
type partialView struct{ *memView }

func (v partialView) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	out, n, _ := v.memView.Append(dst, first, min(count, 2), size, cold)
	return out, n, &moldcast.HoleError{}
}

// checkAnswer checks a datagram to the byte.
func checkAnswer(t interface {
	Helper()
	Fatalf(string, ...any)
}, got []byte, v *memView, s moldcast.Session, sent moldcast.Range) {
	t.Helper()
	p, err := moldcast.Parse(got)
	if err != nil {
		t.Fatalf("answer does not parse: %v", err)
	}
	if p.Kind != moldcast.Data || p.Session != s || p.Range() != sent {
		t.Fatalf("answer is %v of %v, %v; want %v of %v", p.Kind, p.Session, p.Range(), sent, s)
	}
	if !bytes.Equal(p.Msgs.Framed(), v.blocks(sent.First, int(sent.Len()))) {
		t.Fatalf("answer %v differs from what is held", sent)
	}
}

// For any view and any request: an answer is exactly the longest prefix of
// what was asked that is published, held and fits; and where there is none,
// the reason is the true one.
func TestAnswerProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.SampledFrom([]moldcast.Seq{1, 2, 484311999, ^moldcast.Seq(0) - 60}).Draw(t, "first")
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 40, 40, 40, 700, 1450, 1451, 9000}), 0, 60).Draw(t, "sizes")
		v := newMemView(first, len(sizes), func(i int) int { return sizes[i] })
		holes := rapid.SliceOfN(rapid.Bool(), len(sizes), len(sizes)).Draw(t, "holes")
		many := rapid.Bool().Draw(t, "many holes")
		held := func(q moldcast.Seq) bool { i := int(q - first); return !holes[i] || !many && i%7 != 0 }
		v.missing = func(q moldcast.Seq) bool { return !held(q) }
		payload := moldcast.PayloadSize(rapid.SampledFrom([]int{128, 576, 1500, 9000, 65535}).Draw(t, "mtu"))
		at := first + moldcast.Seq(rapid.IntRange(-2, 62).Draw(t, "at"))
		if at == 0 || at > ^moldcast.Seq(0)-1 {
			at = first
		}
		r := moldcast.Request{First: at, Count: rapid.SampledFrom([]uint16{1, 2, 10, 64, 65534, 65535}).Draw(t, "count")}.Range()

		out, sent, why, err := answer(nil, v, s1, r, payload, false)
		if err != nil && why != Missing {
			t.Fatal(err)
		}
		switch {
		case r.First >= v.head:
			if why != BeyondHead {
				t.Fatalf("%v of %v: %v", r, v.head, why)
			}
			return
		case r.First < first:
			if why != BelowFirst {
				t.Fatalf("%v of %v: %v", r, first, why)
			}
			return
		case !held(r.First):
			if why != Missing {
				t.Fatalf("%v: %v", r, why)
			}
			return
		case why != noReason:
			t.Fatalf("%v: %v", r, why)
		}
		if sent.First != r.First || sent.Empty() || sent.Intersect(r) != sent || sent.Next > v.head {
			t.Fatalf("asked %v, sent %v, head %v", r, sent, v.head)
		}
		for q := sent.First; q < sent.Next; q++ {
			if !held(q) {
				t.Fatalf("sent %v, which is missing", q)
			}
		}
		checkAnswer(t, out, v, s1, sent)
		if len(out) > payload && sent.Len() > 1 {
			t.Fatalf("%d messages in %d bytes, payload %d", sent.Len(), len(out), payload)
		}
		if q := sent.Next; q < r.Next && q < v.head && held(q) && len(out)+len(v.blocks(q, 1)) <= payload {
			t.Fatalf("sent %v, and %v would fit", sent, q)
		}
	})
}

func TestParse(t *testing.T) {
	good := moldcast.AppendRequest(nil, moldcast.Request{Session: s1, First: 7, Count: 9})
	with := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	for _, c := range []struct {
		name string
		b    []byte
		why  Reason
	}{
		{"good", good, noReason},
		{"empty", nil, Empty},
		{"short", good[:19], Malformed},
		{"one byte", good[:1], Malformed},
		{"long", append(bytes.Clone(good), 0), Malformed},
		{"count 0", with(18, 0, 0), CountZero},
		{"sequence 0", with(10, 0, 0, 0, 0, 0, 0, 0, 0), SeqZero},
		{"count 65535", with(18, 255, 255), noReason},
	} {
		if _, why := parse(c.b); why != c.why {
			t.Errorf("%s: %v, want %v", c.name, why, c.why)
		}
	}
}
