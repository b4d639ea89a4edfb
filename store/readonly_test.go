package store

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// A file system that turns read-only under a capture, as after an error of the
// disk: what comes is taken up to the bound and served, then refused; other
// processes read; nothing else that writes pretends to. When it can be written
// again, all goes on by itself; and if not, what was durable is there.
func TestReadOnlyRemount(t *testing.T) {
	for _, back := range []bool{true, false} {
		b := &brokenFS{err: syscall.EROFS}
		fs := newMemFS()
		o := testOptions(b.wrap(fs))
		o.QueueBytes = 128 << 10
		a := create(t, o)
		sealed := closed(t, a, "OLD", 5, moldcast.Range{First: 1, Next: 501})
		w := writer(t, a, "S")
		r := moldcast.Range{First: 100, Next: 1100}
		fillRange(t, w, r, 5)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.on.Store(true)
		durable := r.Next
		for {
			n, err := w.Append(piece(r.Next, 5))
			if r.Next += moldcast.Seq(n); errors.Is(err, ErrBusy) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		until(t, "it shows", func() bool { return errors.Is(w.Err(), syscall.EROFS) })
		if _, d, head := w.Watermarks(); d < durable || d >= head || head != r.Next {
			t.Fatalf("durable %d, head %d; it was %d", d, head, durable)
		}
		check(t, w.View(), r)
		if err := a.Hold(sealed, "case", "me"); !errors.Is(err, syscall.EROFS) {
			t.Errorf("hold: %v", err)
		}
		if _, err := a.Prune(t.Context(), Retention{Keep: 0, MaxBytes: -1}, false, "me"); !errors.Is(err, syscall.EROFS) {
			t.Errorf("prune: %v", err)
		}
		check(t, view(t, a, sealed), moldcast.Range{First: 1, Next: 501})

		if back {
			b.on.Store(false)
			until(t, "it is written again", func() bool { return w.Err() == nil && w.Flush(t.Context()) == nil })
			fillRange(t, w, moldcast.Range{First: r.Next, Next: r.Next + 500}, 7)
			r.Next += 500
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			check(t, view(t, a, w.Ref()), r)
			verify(t, a)
			continue
		}
		if err := w.Close(); !errors.Is(err, syscall.EROFS) {
			t.Errorf("close: %v", err)
		}
		// Whoever opens it reads what is durable, as it lies there; nobody writes.
		other := create(t, o)
		v := view(t, other, w.Ref())
		if first, head := v.Bounds(); first != r.First || head < durable {
			t.Errorf("%d..%d is there, %d was durable", first, head-1, durable)
		}
		readAll(t, v)
		if _, err := other.Writer("default", sess(t, "S"), 0); !errors.Is(err, syscall.EROFS) {
			t.Errorf("writer: %v", err)
		}
		rep, err := other.Verify(t.Context(), nil, nil)
		if err != nil || len(rep.Faults) > 0 {
			t.Errorf("%v %+v", err, rep.Faults)
		}
		b.on.Store(false)
		third := create(t, o)
		w = writer(t, third, "S")
		next, d, _ := w.Watermarks()
		if next < durable || next != d {
			t.Errorf("next %d, durable %d of %d", next, d, durable)
		}
		fillRange(t, w, moldcast.Range{First: next, Next: r.Next}, 5)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		check(t, view(t, third, w.Ref()), r)
		verify(t, third)
	}
}

// breakTables cuts off the last bytes of every table of a segment: its store
// cannot be opened any more.
func breakTables(t *testing.T, fs vfs.FS, dir string) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range names {
		if len(name) < 4 || name[len(name)-4:] != ".sst" {
			continue
		}
		path := fs.PathJoin(dir, name)
		b, err := readFile(fs, path)
		if err != nil {
			t.Fatal(err)
		}
		clear(b[len(b)-40:])
		if err := writeFile(fs, dir, name, b); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n == 0 {
		t.Fatal("the segment has no table")
	}
}

// hitBody turns a bit in the middle of the largest file of a segment, which is
// a table of bodies.
func hitBody(t *testing.T, fs vfs.FS, dir string) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var most []byte
	at := ""
	for _, name := range names {
		b, err := readFile(fs, fs.PathJoin(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > len(most) {
			most, at = b, name
		}
	}
	most[len(most)/2] ^= 16
	if err := writeFile(fs, dir, at, most); err != nil {
		t.Fatal(err)
	}
}

// A sealed segment whose store cannot be opened is read from its files, block
// by block; one that is damaged too costs what it holds, no more. Written anew,
// nothing is wrong any more. Without its seal nothing vouches for the blocks.
func TestSalvage(t *testing.T) {
	for _, also := range []string{"", "a body", "a seal"} {
		t.Run(also, func(t *testing.T) {
			fs := vfs.NewMem()
			o := testOptions(fs)
			o.SegmentSize = 1 << 20
			a := create(t, o)
			r := moldcast.Range{First: 484311999, Next: 484311999 + 3000}
			ref := closed(t, a, "S", 5, r)
			want := contentRoots(t, view(t, a, ref))
			dir := fs.PathJoin(a.sessionDir(ref), segmentName(1))
			if also == "a body" {
				hitBody(t, fs, dir)
			}
			breakTables(t, fs, dir)
			if also == "a seal" {
				if err := fs.Remove(fs.PathJoin(dir, sealFile)); err != nil {
					t.Fatal(err)
				}
			}
			a = reopened(t, a)
			v := view(t, a, ref)
			if also == "a seal" {
				if len(v.Faults()) != 1 || len(v.Coverage()) != 0 {
					t.Errorf("%v of a segment of which nothing is known: %v", v.Coverage(), v.Faults())
				}
				return
			}
			lost := readAll(t, v)
			var n uint64
			for _, x := range lost {
				n += x.Len()
			}
			if broken := also != ""; broken != (len(lost) == 1) || n > 400 {
				t.Fatalf("lost %v", lost)
			}
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil || len(rep.Faults) == 0 {
				t.Fatalf("%v %+v", err, rep)
			}
			w := writer(t, a, "S")
			for _, f := range rep.Faults {
				if !f.Readable {
					continue
				}
				if _, err := w.Rewrite(f.Segment, moldcast.Range{First: f.FirstSeq, Next: f.LastSeq + 1}); err != nil {
					t.Fatal(err)
				}
			}
			for _, x := range lost {
				fillRange(t, w, x, 5)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			a = reopened(t, a)
			check(t, view(t, a, ref), r)
			if got := contentRoots(t, view(t, a, ref)); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if rep := verify(t, a); len(rep.Replaced) == 0 {
				t.Errorf("%+v", rep)
			}
		})
	}
}

// A segment whose only use is to replace a block goes with the one that has the
// block; one that holds more stays. Then all is as if nothing had been damaged.
func TestPruneOfPatches(t *testing.T) {
	for _, more := range []bool{false, true} {
		fs := vfs.NewMem()
		o := pruneOptions(fs)
		o.noSalvage, o.SegmentSize = true, 1<<20
		a := create(t, o)
		all := moldcast.Range{First: 101, Next: 6101}
		ref := parts(t, a, "S", all, 3)
		want := contentRoots(t, view(t, a, ref))
		a = reopened(t, a)
		alter(t, a, ref, 1, func(db *pebble.DB) {
			flip(t, db, seqKey(nil, keyBody, seqOf(keys(t, db, keyHeader)[3])), 300)
		})
		lost := readAll(t, view(t, a, ref))
		if len(lost) != 1 {
			t.Fatalf("lost %v", lost)
		}
		w := writer(t, a, "S")
		fillRange(t, w, lost[0], 5)
		if more {
			fillRange(t, w, moldcast.Range{First: all.Next, Next: all.Next + 50}, 5)
			all.Next += 50
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		a = reopened(t, a)
		check(t, view(t, a, ref), all)
		d := show(t, a, ref)
		if d.Segments != 4 {
			t.Fatalf("%d segments", d.Segments)
		}
		one := d.SegmentList[0]
		rep := prune(t, a, Retention{Keep: -1, MaxBytes: int64(d.BytesDisk - 1)})
		gone := 1
		if !more {
			gone = 2
			if rep.Removed == 2 && (rep.Items[1].Segment != segmentName(4) || rep.Items[1].Reason != PrunePatch) {
				t.Errorf("%+v", rep.Items)
			}
		}
		if rep.Removed != gone || rep.Items[0].Segment != one.Segment {
			t.Fatalf("%+v", rep)
		}
		for range 2 {
			d = show(t, a, ref)
			// What only replaced is held on where its segment stays.
			first := one.LastSeq + 1
			held := []moldcast.Range{{First: first, Next: all.Next}}
			if more {
				first = lost[0].First
				held = []moldcast.Range{lost[0], {First: one.LastSeq + 1, Next: all.Next}}
			}
			if d.FirstSeq != first || d.HeadSeq != all.Next || d.Holes != 0 || d.Segments != 4-gone {
				t.Errorf("%+v", d.Info)
			}
			if got := view(t, a, ref).Coverage(); !slices.Equal(got, held) {
				t.Errorf("holds %v, want %v", got, held)
			}
			for _, h := range held {
				b, n, err := view(t, a, ref).Append(nil, h.First, 1, 1400, true)
				if n != 1 || err != nil || string(b[moldcast.LengthSize:]) != string(message(h.First)) {
					t.Errorf("%d: %v", h.First, err)
				}
			}
			if got := contentRoots(t, view(t, a, ref)); !more && !slices.Equal(got, want) {
				t.Errorf("roots %v, want %v", got, want)
			}
			verify(t, a)
			checkAudit(t, a)
			a = reopened(t, a)
		}
	}
}
