package moldcast

import (
	"bytes"
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

var ackSession = Session{'A', 'C', 'K', ' ', ' ', ' ', ' ', ' ', ' ', ' '}

func someAck() Ack {
	return Ack{
		Session: ackSession, Node: NodeID{1, 2, 3}, Place: 4, Epoch: 5, Counter: 6,
		Held: Range{First: 1, Next: 484_311_999}, Checked: 484_311_998, Check: 0x0102030405060708,
	}
}

// TestAckLayout holds the layout of the package documentation to the byte.
func TestAckLayout(t *testing.T) {
	got := NewAckCodec(nil).Append([]byte{0xEE}, someAck())
	want := "ee" + "4d41" + "01" + "00" + hex.EncodeToString(ackSession[:]) + "01020300000000000000000000000000" +
		"0000000000000004" + "0000000000000005" + "0000000000000006" +
		"0000000000000001" + "000000001cde03bf" + "000000001cde03be" + "0102030405060708"
	if body := hex.EncodeToString(got[:len(got)-ackTag]); body != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
	if len(got) != 1+AckSize {
		t.Errorf("%d bytes", len(got)-1)
	}
}

func TestAckRefused(t *testing.T) {
	plain, keyed := NewAckCodec(nil), NewAckCodec([]byte("0123456789abcdef"))
	whole := plain.Append(nil, someAck())
	change := func(f func(*Ack)) []byte {
		a := someAck()
		f(&a)
		return plain.Append(nil, a)
	}
	retag := func(at int, v byte) []byte {
		b := bytes.Clone(whole)
		b[at] = v
		return append(b[:ackBody], plain.tag(b[:ackBody])...)
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrAckSize},
		{"short", whole[:AckSize-1], ErrAckSize},
		{"long", append(bytes.Clone(whole), 0), ErrAckSize},
		{"another key", keyed.Append(nil, someAck()), ErrAckTag},
		{"magic", retag(0, 1), ErrAckVersion},
		{"version", retag(2, 2), ErrAckVersion},
		{"reserved", retag(3, 1), ErrAckVersion},
		{"no epoch", change(func(a *Ack) { a.Epoch = 0 }), ErrAckRange},
		{"no counter", change(func(a *Ack) { a.Counter = 0 }), ErrAckRange},
		{"sequence 0", change(func(a *Ack) { a.Held.First = 0 }), ErrAckRange},
		{"backwards", change(func(a *Ack) { a.Held.Next, a.Checked, a.Check = 0, 0, 0 }), ErrAckRange},
		{"checked below", change(func(a *Ack) { a.Held.First, a.Checked = 9, 8 }), ErrAckRange},
		{"checked beyond", change(func(a *Ack) { a.Checked = a.Held.Next }), ErrAckRange},
		{"check of none", change(func(a *Ack) { a.Checked = 0 }), ErrAckRange},
	} {
		if _, err := plain.Parse(c.b); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if a, err := keyed.Parse(keyed.Append(nil, someAck())); err != nil || a != someAck() {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := keyed.Parse(whole); err != ErrAckTag {
		t.Errorf("without a key: %v", err)
	}
}

// TestAckDamage: no flip of a bit passes.
func TestAckDamage(t *testing.T) {
	c := NewAckCodec(nil)
	b := c.Append(nil, someAck())
	for i := range len(b) * 8 {
		b[i/8] ^= 1 << (i % 8)
		if _, err := c.Parse(b); err != ErrAckTag {
			t.Fatalf("bit %d: %v", i, err)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestAckRoundTrip(t *testing.T) {
	c := NewAckCodec([]byte("a key of some length"))
	rapid.Check(t, func(t *rapid.T) {
		a := Ack{
			Place: rapid.Uint64().Draw(t, "place"), Epoch: rapid.Uint64Min(1).Draw(t, "epoch"), Counter: rapid.Uint64Min(1).Draw(t, "counter"),
			Held: Range{First: Seq(rapid.Uint64Min(1).Draw(t, "first"))},
		}
		copy(a.Session[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "session"))
		copy(a.Node[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "node"))
		a.Held.Next = Seq(rapid.Uint64Min(uint64(a.Held.First)).Draw(t, "next"))
		if !a.Held.Empty() && rapid.Bool().Draw(t, "checked") {
			a.Checked = Seq(rapid.Uint64Range(uint64(a.Held.First), uint64(a.Held.Next-1)).Draw(t, "at"))
			a.Check = rapid.Uint64().Draw(t, "check")
		}
		if got, err := c.Parse(c.Append(nil, a)); err != nil || got != a {
			t.Fatalf("%+v, %v; want %+v", got, err, a)
		}
	})
}

// FuzzAck: whatever is parsed is valid, and appends to the same bytes.
func FuzzAck(f *testing.F) {
	c := NewAckCodec(nil)
	whole := c.Append(nil, someAck())
	f.Add(whole)
	f.Add(whole[:50])
	f.Add(c.Append(nil, Ack{Session: ackSession, Epoch: 1, Counter: 1, Held: Range{First: ^Seq(0), Next: ^Seq(0)}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = c.Parse(b)
		if len(b) < ackBody {
			return
		}
		b = append(bytes.Clone(b[:ackBody]), c.tag(b[:ackBody])...) // else hardly any passes
		a, err := c.Parse(b)
		if err != nil {
			return
		}
		if a.Held.First == 0 || a.Held.Next < a.Held.First || a.Checked != 0 && !a.Held.Contains(a.Checked) {
			t.Fatalf("%+v", a)
		}
		if again := c.Append(nil, a); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
