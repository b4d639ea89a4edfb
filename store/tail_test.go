package store

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// Keys of tail records are in the order of blocks and records, and those of a
// block lie between its bounds.
func TestTailKeys(t *testing.T) {
	id := rapid.OneOf(rapid.Uint64Range(1, 300), rapid.Uint64Range(1, 1<<56))
	n := rapid.OneOf(rapid.Uint32Range(0, 300), rapid.Uint32())
	rapid.Check(t, func(t *rapid.T) {
		a, b := id.Draw(t, "block"), id.Draw(t, "other block")
		i, k := n.Draw(t, "record"), n.Draw(t, "other record")
		key, other := tailKey(a, i), tailKey(b, k)
		want := 0
		switch {
		case a < b || a == b && i < k:
			want = -1
		case a > b || i > k:
			want = 1
		}
		if got := bytes.Compare(key, other); got != want {
			t.Fatalf("%x and %x compare %d, want %d", key, other, got, want)
		}
		if bytes.Compare(tailsOf(a), key) > 0 || bytes.Compare(key, tailsOf(a+1)) >= 0 {
			t.Fatalf("%x is not within %x..%x", key, tailsOf(a), tailsOf(a+1))
		}
		if got, ok := tailBlock(key); !ok || got != a {
			t.Fatalf("%x is of block %d, want %d", key, got, a)
		}
		old := []byte{keyTail, 0, 0, 0, 0, byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a), 0, 0, 0, byte(i)}
		if got, ok := tailBlock(old); !ok || got != a&0xffffffff {
			t.Fatalf("%x is of block %d, want %d", old, got, a&0xffffffff)
		}
	})
}

// goldenHeld is what testdata/format1 holds: messages of the tests, of a
// writer that was killed. Part is in tables, the rest in tail records as they
// were before there were streams.
var goldenHeld = []moldcast.Range{{First: 1, Next: 501}, {First: 511, Next: 1401}, {First: 1411, Next: 1501}}

func goldenArchive(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "archive")
	if err := os.CopyFS(dir, os.DirFS("testdata/format1")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What format 1 left unsealed is read as it is, taken up by the next writer,
// written on, and sealed.
func TestFormat1(t *testing.T) {
	o := testOptions(vfs.Default)
	a, err := OpenOrCreate(goldenArchive(t), o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ref := Ref{"default", sess(t, "GOLDEN"), 1}
	rep := verify(t, a)
	if rep.Messages != 500+890+90 {
		t.Fatalf("%d messages", rep.Messages)
	}
	if d, err := a.Show(ref); err != nil || d.Messages != rep.Messages { // reads without recovering
		t.Fatalf("%+v %v", d, err)
	}
	w := writer(t, a, "GOLDEN")
	check(t, w.View(), goldenHeld...)
	h := w.View().Holes()
	if len(h) != 2 || h[0].Reason != moldcast.Unrecoverable || h[1].Reason != moldcast.NotCaptured {
		t.Fatalf("holes %v", h)
	}
	if p, err := w.View().Cursor(1301).Next(); err != nil || p.Flags != moldcast.Repaired || p.Line != moldcast.AnswerLine || p.Heard != p.Time+5 {
		t.Fatalf("%+v %v", p, err)
	}
	if n := len(marks(t, a, ref)); n != 21 {
		t.Fatalf("%d marks", n)
	}
	put(t, w, piece(1401, 10))
	put(t, w, piece(1501, 100))
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := readSegmentInfo(w.committer.cur.db); err != nil || info.Format != segmentFormat {
		t.Fatalf("%+v %v: written to by a newer format, and does not say so", info, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, a)
	check(t, view(t, a, ref), goldenHeld[0], moldcast.Range{First: 511, Next: 1601})
}

// A segment of a format that is not known is neither read nor written to.
func TestNewerSegment(t *testing.T) { synctest.Test(t, newerSegment) }

func newerSegment(t *testing.T) {
	mem := newMemFS()
	o := testOptions(mem)
	a := create(t, o)
	defer a.Close()
	w := writer(t, a, "S")
	put(t, w, piece(1, 10))
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := w.committer.cur
	info, err := readSegmentInfo(g.db)
	if err != nil {
		t.Fatal(err)
	}
	info.Format = segmentFormat + 1
	if err := writeSegmentInfo(g.db, g.log, info); err != nil {
		t.Fatal(err)
	}
	o.FS = mem.crash(0, nil)
	_ = w.Close()
	begun := time.Now()
	a = create(t, o)
	defer a.Close()
	v := view(t, a, w.Ref())
	var version *VersionError
	if f := v.Faults(); len(f) != 1 || !errors.As(f[0], &version) || version.Got != segmentFormat+1 {
		t.Fatalf("faults %v", f)
	}
	version = nil
	if _, err := a.Writer("default", sess(t, "S"), 0); !errors.As(err, &version) || version.Got != segmentFormat+1 || version.Want != segmentFormat {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 0 {
		t.Errorf("it took %v", took)
	}
}

// tailed stores messages from 1 on, n to a tail record, and leaves them so: on
// the file system that is returned nothing but tail records holds them.
func tailed(t *testing.T, o *Options, records, n int) *memFS {
	t.Helper()
	mem := newMemFS()
	*o = testOptions(mem)
	o.BlockSize, o.SegmentSize, o.BlockAge, o.Sync = 1<<20, 1<<30, time.Hour, time.Hour
	a := create(t, *o)
	w := writer(t, a, "S")
	for i := range records {
		put(t, w, piece(moldcast.Seq(1+i*n), n))
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	killed := mem.crash(0, nil)
	_ = w.Close()
	_ = a.Close()
	o.FS = killed
	return killed
}

// segmentStore gives fn the store of the only segment.
func segmentStore(t *testing.T, fs vfs.FS, fn func(db *pebble.DB)) {
	t.Helper()
	db, err := pebble.Open("archive/default/S@1/000001.seg", pebbleOptions(fs, nil, &pebbleLog{log: slog.New(slog.DiscardHandler)}))
	if err != nil {
		t.Fatal(err)
	}
	fn(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// What only tail records hold is no block: it is counted apart, until who opens
// the session for writing has made blocks of it.
func TestTailRecordsAreNoBlocks(t *testing.T) {
	const records, n = 5, 20
	var o Options
	tailed(t, &o, records, n)
	a := create(t, o)
	defer a.Close()
	look := func() (Report, Detail) {
		t.Helper()
		rep, err := a.Verify(t.Context(), nil, nil)
		if err != nil || len(rep.Faults) > 0 {
			t.Fatal(rep.Faults, err)
		}
		d, err := a.Show(Ref{Channel: "default", Session: sess(t, "S"), Take: 1})
		if err != nil || d.Messages != records*n {
			t.Fatal(d, err)
		}
		return rep, d
	}
	rep, d := look()
	if rep.Blocks != 0 || rep.Bytes != 0 || rep.Messages != records*n || rep.TailRecords != records || rep.TailBytes == 0 || rep.TailMessages != records*n {
		t.Errorf("%+v", rep)
	}
	if d.TailMessages != records*n || d.SegmentList[0].Blocks != 0 {
		t.Errorf("%+v", d)
	}
	if err := writer(t, a, "S").Close(); err != nil {
		t.Fatal(err)
	}
	rep, d = look()
	if rep.Blocks != 1 || rep.Bytes == 0 || rep.Messages != records*n || rep.TailRecords != 0 || rep.TailMessages != 0 || d.TailMessages != 0 {
		t.Errorf("sealed: %+v %+v", rep, d)
	}
}

// A tail record that is damaged or missing costs what follows in its stream
// and nothing else, is said, and stays as evidence.
func TestDamagedTailRecord(t *testing.T) {
	const records, n, hit = 400, 20, 150
	for _, how := range []string{"flipped", "gone"} {
		t.Run(how, func(t *testing.T) {
			var o Options
			fs := tailed(t, &o, records, n)
			next := 0 // first record of the stream behind it
			segmentStore(t, fs, func(db *pebble.DB) {
				i := 0
				err := scan(db, keyTail, func(k, v []byte) (err error) {
					switch {
					case i == hit && how == "gone":
						err = db.Delete(k, pebble.Sync)
					case i == hit:
						v = bytes.Clone(v)
						v[len(v)/2] ^= 4
						err = db.Set(k, v, pebble.Sync)
					case i > hit && next == 0 && v[0]&1 != 0: // begins a stream
						next = i
					}
					i++
					return err
				})
				if err != nil || i != records || next == 0 {
					t.Fatalf("%d records, a stream begins at %d: %v", i, next, err)
				}
			})
			a := create(t, o)
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			lost := next - hit
			if how == "gone" {
				lost--
			}
			if len(rep.Faults) != lost {
				t.Fatalf("%d faults, want %d: %v", len(rep.Faults), lost, rep.Faults)
			}
			held := []moldcast.Range{{First: 1, Next: 1 + hit*n}, {First: moldcast.Seq(1 + next*n), Next: 1 + records*n}}
			w := writer(t, a, "S")
			check(t, w.View(), held...)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			check(t, view(t, a, w.Ref()), held...)
			segmentStore(t, fs, func(db *pebble.DB) {
				if k := keys(t, db, keyTail); len(k) != lost {
					t.Fatalf("%d tail records are left, want the %d that could not be read", len(k), lost)
				}
			})
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What a record that failed became of is not known: those after it do not
// build on it.
func TestTailsAfterFailure(t *testing.T) {
	b := &brokenFS{files: ".log"}
	mem := newMemFS()
	o := testOptions(b.wrap(mem))
	o.BlockSize, o.SegmentSize, o.BlockAge, o.Sync = 1<<20, 1<<30, time.Hour, time.Millisecond
	a := create(t, o)
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 1}
	more := func() {
		put(t, w, piece(r.Next, 5))
		r.Next += 5
	}
	for range 2 {
		for range 4 {
			more()
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		b.on.Store(true)
		more()
		until(t, "the disk fails", func() bool { return w.Err() != nil })
		b.on.Store(false)
		until(t, "it writes again", func() bool { return w.Err() == nil && w.Flush(t.Context()) == nil })
	}
	more()
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, d, _ := w.Watermarks(); d != r.Next {
		t.Fatalf("durable %d, want %d", d, r.Next)
	}
	o.FS = mem.crash(0, nil)
	_ = w.Close()
	_ = a.Close()
	a = create(t, o)
	verify(t, a)
	check(t, view(t, a, w.Ref()), r)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}
