package store

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// alter changes a sealed segment behind the archive's back.
func alter(t testing.TB, a *Archive, r Ref, n int, fn func(db *pebble.DB)) {
	t.Helper()
	s := a.newSession(r)
	dir := a.o.FS.PathJoin(s.dir, segmentName(n))
	db, err := openForWrite(dir, newFenceFS(a.o.FS), a.pebbleCache, &pebbleLog{log: a.o.Log})
	if err != nil {
		t.Fatal(err)
	}
	fn(db)
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// flip changes one bit of a value.
func flip(t testing.TB, db *pebble.DB, key []byte, at int) {
	t.Helper()
	v, c, err := db.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	b := append([]byte(nil), v...)
	c.Close()
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 4
	if err := db.Set(key, b, pebble.Sync); err != nil {
		t.Fatal(err)
	}
}

// keys lists the keys of a range.
func keys(t testing.TB, db *pebble.DB, kind byte) (out [][]byte) {
	t.Helper()
	if err := scan(db, kind, func(k, _ []byte) error {
		out = append(out, append([]byte(nil), k...))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// One flipped bit costs one block: it is named, never served, and everything
// around it is.
func TestDamagedBlock(t *testing.T) {
	for _, part := range []string{"body", "header", "no body", "swapped", "foreign"} {
		t.Run(part, func(t *testing.T) {
			o := testOptions(vfs.NewMem())
			o.noSalvage = true
			o.SegmentSize = 1 << 20
			a := create(t, o)
			r := moldcast.Range{First: 484311999, Next: 484311999 + 4000}
			ref := closed(t, a, "S", 5, r)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			a = create(t, o)
			alter(t, a, ref, 1, func(db *pebble.DB) {
				k := seqOf(keys(t, db, keyHeader)[3])
				switch part {
				case "body":
					flip(t, db, seqKey(nil, keyBody, k), 300)
				case "header":
					flip(t, db, seqKey(nil, keyHeader, k), 50)
				case "no body":
					if err := db.Delete(seqKey(nil, keyBody, k), pebble.Sync); err != nil {
						t.Fatal(err)
					}
				case "foreign": // sound, but of another session
					m := &memBlock{b: block.NewBuilder(sess(t, "OTHER"))}
					if err := m.b.Append(piece(moldcast.Seq(k), 20)); err != nil {
						t.Fatal(err)
					}
					enc, err := block.NewEncoder(block.EncoderOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if err := m.encode(enc, &tools{}); err != nil {
						t.Fatal(err)
					}
					b := db.NewBatch()
					if err := putBlock(b, m); err != nil {
						t.Fatal(err)
					}
					if err := b.Commit(pebble.Sync); err != nil {
						t.Fatal(err)
					}
				case "swapped":
					v, c, err := db.Get(seqKey(nil, keyBody, seqOf(keys(t, db, keyHeader)[4])))
					if err != nil {
						t.Fatal(err)
					}
					b := append([]byte(nil), v...)
					c.Close()
					if err := db.Set(seqKey(nil, keyBody, k), b, pebble.Sync); err != nil {
						t.Fatal(err)
					}
				}
			})
			v := view(t, a, ref)
			c := v.Cursor(0)
			at := r.First
			var lost moldcast.Range
			for {
				p, err := c.Next()
				var bad *CorruptError
				if errors.As(err, &bad) {
					if !lost.Empty() || bad.Range.First != at || !strings.HasSuffix(bad.Segment, "S@1/000001.seg") {
						t.Fatalf("at %d: %v", at, bad)
					}
					lost, at = bad.Range, bad.Range.Next
					continue
				}
				if err == io.EOF {
					break
				}
				if err != nil || p.First != at {
					t.Fatalf("at %d: %v %v", at, p.Range(), err)
				}
				for m := p.Msgs; m.Len() > 0; at++ {
					if got := m.Next(); string(got) != string(message(at)) {
						t.Fatalf("message %d is %q", at, got)
					}
				}
			}
			if at != r.Next || lost.Empty() || lost.Len() > 400 {
				t.Fatalf("lost %v, ended at %d", lost, at)
			}
			var bad *CorruptError
			if _, n, err := v.Append(nil, lost.First+1, 3, 1400, true); n != 0 || !errors.As(err, &bad) {
				t.Errorf("served %d of a damaged block: %v", n, err)
			}
			if _, n, err := v.Append(nil, lost.First-2, 30, 1400, true); n != 2 || err != nil {
				t.Errorf("before it: %d %v", n, err)
			}
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			named := false
			for _, f := range rep.Faults {
				named = named || f.FirstSeq == lost.First && f.LastSeq == lost.Next-1 && f.Segment == "000001.seg" && f.Session == "default/S"
			}
			if !named {
				t.Errorf("verification does not name %v: %v", lost, rep.Faults)
			}
		})
	}
}

// Verification sees what a checksum cannot: blocks exchanged, added, or
// removed whole, and seals that are not the ones written.
func TestVerifyCustody(t *testing.T) {
	build := func(t *testing.T) (*Archive, Ref, Options) {
		o := testOptions(vfs.NewMem())
		o.noSalvage = true
		o.SegmentSize = 1 << 20
		a := create(t, o)
		closed(t, a, "S", 5, moldcast.Range{First: 1, Next: 3000})
		closed(t, a, "S", 5, moldcast.Range{First: 3000, Next: 6000})
		ref := closed(t, a, "S", 5, moldcast.Range{First: 6000, Next: 9000})
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		return create(t, o), ref, o
	}
	faults := func(t *testing.T, a *Archive, parts ...string) {
		t.Helper()
		rep, err := a.Verify(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for _, f := range rep.Faults {
			all += f.String() + "\n"
		}
		for _, p := range parts {
			if !strings.Contains(all, p) {
				t.Errorf("no fault says %q:\n%s", p, all)
			}
		}
	}
	sealPath := func(a *Archive, ref Ref, n int) string {
		return a.o.FS.PathJoin(a.o.FS.PathJoin(a.sessionDir(ref), segmentName(n)), sealFile)
	}
	t.Run("block removed", func(t *testing.T) {
		a, ref, _ := build(t)
		alter(t, a, ref, 2, func(db *pebble.DB) {
			k := seqOf(keys(t, db, keyHeader)[1])
			for _, kind := range []byte{keyHeader, keyBody} {
				if err := db.Delete(seqKey(nil, kind, k), pebble.Sync); err != nil {
					t.Fatal(err)
				}
			}
		})
		faults(t, a, "000002.seg", "no block holds it", "not those that were sealed")
		v := view(t, a, ref)
		c := v.Cursor(0)
		n := 0
		for {
			_, err := c.Next()
			if err == io.EOF {
				break
			}
			var bad *CorruptError
			if errors.As(err, &bad) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d ranges reported", n)
		}
	})
	t.Run("seal replaced", func(t *testing.T) {
		a, ref, _ := build(t)
		b, err := readFile(a.o.FS, sealPath(a, ref, 1))
		if err != nil {
			t.Fatal(err)
		}
		s, err := parseSeal(b)
		if err != nil {
			t.Fatal(err)
		}
		s.Node = "mallory"
		if b, err = s.encode(); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(a.o.FS, a.o.FS.PathDir(sealPath(a, ref, 1)), sealFile, b); err != nil {
			t.Fatal(err)
		}
		faults(t, a, "000002.seg: the chain of seals is broken")
	})
	alone := func(t *testing.T, a *Archive, part string) {
		t.Helper()
		rep, err := a.Verify(t.Context(), nil, nil)
		if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].String(), part) {
			t.Errorf("%v, faults %v, want one: %q", err, rep.Faults, part)
		}
	}
	t.Run("seal missing", func(t *testing.T) {
		a, ref, _ := build(t)
		if err := a.o.FS.Remove(sealPath(a, ref, 2)); err != nil {
			t.Fatal(err)
		}
		alone(t, a, "000002.seg: its seal (seal.json) is missing: the seal of 000003.seg names ")
	})
	t.Run("seal may not be read", func(t *testing.T) {
		a, ref, o := build(t)
		fs := o.FS
		o.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead && strings.HasPrefix(op.Path, fs.PathDir(sealPath(a, ref, 2))) {
				return &os.PathError{Op: "open", Path: op.Path, Err: syscall.EACCES}
			}
			return nil
		}))
		var logged strings.Builder
		o.Log = slog.New(slog.NewTextHandler(&logged, nil))
		b := create(t, o)
		alone(t, b, "which is no damage")
		list, err := b.Sessions()
		if err != nil {
			t.Fatal(err)
		}
		if s := list[0].Fault; strings.Count(s, "000002.seg: ") != 1 || !strings.Contains(s, "permission denied") {
			t.Errorf("fault: %s", s)
		}
		if s := logged.String(); strings.Contains(s, "is damaged") || !strings.Contains(s, "segment cannot be read") {
			t.Errorf("log: %s", s)
		}
	})
	t.Run("seal damaged", func(t *testing.T) {
		a, ref, o := build(t)
		b, err := readFile(a.o.FS, sealPath(a, ref, 1))
		if err != nil {
			t.Fatal(err)
		}
		b[200] ^= 1
		if err := writeFile(a.o.FS, a.o.FS.PathDir(sealPath(a, ref, 1)), sealFile, b); err != nil {
			t.Fatal(err)
		}
		faults(t, a, "000001.seg: seal.json: its sum does not match")
		// What it says is in the headers too.
		check(t, view(t, a, ref), moldcast.Range{First: 1, Next: 9000})
		list, err := a.Sessions()
		if err != nil || list[0].Messages != 8999 {
			t.Errorf("%+v %v", list, err)
		}
		a.Close()
		a = create(t, o)
		w := writer(t, a, "S")
		if n := put(t, w, piece(1, 100)); n != 0 {
			t.Errorf("%d stored again", n)
		}
		put(t, w, piece(9000, 5))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if b2, err := readFile(a.o.FS, sealPath(a, ref, 1)); err != nil || string(b2) != string(b) {
			t.Errorf("the damaged seal was written over: %v", err)
		}
	})
	t.Run("session.json lost", func(t *testing.T) {
		a, ref, _ := build(t)
		w := writer(t, a, "S")
		w.Lines([]string{"239.1.1.1:5", "239.1.1.2:5"})
		put(t, w, piece(9000, 5))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := a.o.FS.PathJoin(a.sessionDir(ref), sessionFile)
		before, err := readFile(a.o.FS, path)
		if err != nil || !strings.Contains(string(before), "239.1.1.2:5") {
			t.Fatalf("%s %v", before, err)
		}
		if err := a.o.FS.Remove(path); err != nil {
			t.Fatal(err)
		}
		faults(t, a, "session.json")
		b, err := Open("archive", a.o)
		if err != nil {
			t.Fatal(err)
		}
		if g := view(t, b, ref).Groups(); len(g) != 2 {
			t.Errorf("groups %v", g)
		}
		writer(t, b, "S").Close()
		verify(t, b)
	})
}

// The files themselves, on the system's file system: any byte of the data may
// turn, and nothing wrong is ever served.
func TestFlippedFiles(t *testing.T) {
	t.Run("as stored", func(t *testing.T) { flippedFiles(t, -1) })
	t.Run("merged", func(t *testing.T) { flippedFiles(t, anyMerge) })
}

func flippedFiles(t *testing.T, saves float64) {
	dir := filepath.Join(t.TempDir(), "archive")
	o := testOptions(nil)
	o.SegmentSize, o.MergeSaves = 1<<30, saves
	a, err := OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	r := moldcast.Range{First: 1, Next: 5000}
	w := writer(t, a, "S")
	lateFills(t, w, r, 5, 4, 700)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	ref := w.Ref()
	if merged, _ := merges(t, a, ref); (len(merged) > 0) != (saves >= 0) {
		t.Fatalf("merged %v", merged)
	}
	a.Close()
	seg := filepath.Join(dir, "default", "S@1", "000001.seg")
	names, err := vfs.Default.List(seg)
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob") {
			continue
		}
		path := filepath.Join(seg, name)
		whole, err := readFile(vfs.Default, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []int{10, 40, 60, 95} {
			b := append([]byte(nil), whole...)
			b[len(b)*part/100] ^= 0x10
			if err := writeFile(vfs.Default, seg, name, b); err != nil {
				t.Fatal(err)
			}
			tried++
			a, err := Open(dir, o)
			if err != nil {
				t.Fatal(err)
			}
			faults := 0
			c := view(t, a, ref).Cursor(0)
			for {
				p, err := c.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					var bad *CorruptError
					if !errors.As(err, &bad) {
						t.Fatalf("%s at %d%%: %v", name, part, err)
					}
					faults++
					continue
				}
				at := p.First
				for m := p.Msgs; m.Len() > 0; at++ {
					if got := m.Next(); string(got) != string(message(at)) {
						t.Fatalf("%s at %d%%: message %d is %q", name, part, at, got)
					}
				}
			}
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if (len(rep.Faults) > 0) != (faults > 0) && faults > 0 {
				t.Errorf("%s at %d%%: reading meets %d faults, verification %v", name, part, faults, rep.Faults)
			}
			a.Close()
			if err := vfs.Default.RemoveAll(filepath.Join(dir, "default", "S@1", damageDir)); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeFile(vfs.Default, seg, name, whole); err != nil {
			t.Fatal(err)
		}
	}
	if tried == 0 {
		t.Fatal("no file of data")
	}
}
