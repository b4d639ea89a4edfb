package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// An archive keeps its identity, counts its starts, and survives the damage of
// both as another archive.
func TestIdentity(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	a := create(t, o)
	first, err := a.Identify()
	if err != nil || first.Starts != 1 || first.ID == [16]byte{} {
		t.Fatalf("%+v, %v", first, err)
	}
	b, err := Open(a.Dir(), o) // another process
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i, x := range []*Archive{b, a} {
		if id, err := x.Identify(); err != nil || id.ID != first.ID || id.Starts != uint64(i+2) {
			t.Fatalf("%+v, %v; want %x", id, err, first.ID)
		}
	}
	for _, bad := range []string{"", "{", `{"format":1,"id":"00","starts":7}`, `{"format":2,"id":"00112233445566778899aabbccddeeff","starts":7}`, `{"format":1,"id":"00112233445566778899aabbccddeeff"}`} {
		if err := writeFile(fs, a.Dir(), identityFile, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if id, err := a.Identify(); err != nil || id.ID == first.ID || id.Starts != 1 {
			t.Errorf("%q: %+v, %v", bad, id, err)
		}
	}
}

// Durable is up to the first hole, and moves only with what is synced.
func TestWriterDurable(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w, err := a.Writer("c", moldcast.Session{'S'}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if d := w.Durable(); !d.Empty() {
		t.Errorf("of nothing: %v", d)
	}
	w.Start(1)
	add := func(first, next moldcast.Seq) {
		var b []byte
		for q := first; q < next; q++ {
			b = moldcast.AppendMessage(b, []byte{byte(q)})
		}
		if _, err := w.Append(moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(b, int(next-first))}); err != nil {
			t.Fatal(err)
		}
	}
	add(5, 9)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := w.Durable(); d != (moldcast.Range{First: 1, Next: 1}) {
		t.Errorf("behind a gap: %v", d)
	}
	add(1, 5)
	if d := w.Durable(); d.Next > 9 || d.First != 1 {
		t.Errorf("%v", d)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := w.Durable(); d != (moldcast.Range{First: 1, Next: 9}) {
		t.Errorf("synced: %v", d)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if d := w.Durable(); d != (moldcast.Range{First: 1, Next: 9}) {
		t.Errorf("closed: %v", d)
	}
}
