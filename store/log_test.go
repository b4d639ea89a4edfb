package store

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// logOf is the newest log in a directory, and what it holds.
func logOf(t testing.TB, fs vfs.FS, dir string) (path string, b []byte) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".log") && fs.PathJoin(dir, n) > path {
			path = fs.PathJoin(dir, n)
		}
	}
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err = io.ReadAll(f); err != nil {
		t.Fatal(err)
	}
	return path, b
}

// A flipped bit in the log of a segment that was not sealed costs a stream of
// tail records at most: what lies behind is held, so that what is not shows as a
// hole. Verify says so before anyone takes it up.
func TestFlippedLog(t *testing.T) {
	fs := newMemFS()
	o := testOptions(fs)
	o.BlockSize, o.SegmentSize = 256<<10, 1<<30
	a := create(t, o)
	w := writer(t, a, "S")
	ref := w.Ref()
	const step, last = 100, 6000
	for q := moldcast.Seq(1); q < last; q += step {
		fillRange(t, w, moldcast.Range{First: q, Next: q + step}, 7)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fs = fs.crash(0, nil)
	w.Close()
	a.Close()
	o.FS = fs
	dir := fs.PathJoin(a.sessionDir(ref), segmentName(1))
	path, b := logOf(t, fs, dir)
	if d, err := readDamagedLog(fs, dir); d != nil || err != nil {
		t.Fatal(d, err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	holes, named, noted := 0, 0, 0
	for range 40 {
		at := rng.IntN(len(b))
		o.FS = fs.crash(0, nil)
		bad := append([]byte(nil), b...)
		bad[at] ^= 1 << rng.IntN(8)
		f, err := o.FS.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bad); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		a := create(t, o)
		rep, err := a.Verify(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := writer(t, a, "S")
		v := view(t, a, ref)
		cov := v.Coverage()
		check(t, v, cov...)
		held, size := uint64(0), 0
		for _, r := range cov {
			held += r.Len()
		}
		lost := uint64(last) - held
		for q := range moldcast.Seq(last) {
			if !v.Holds(moldcast.Range{First: q + 1, Next: q + 2}) {
				size += moldcast.LengthSize + len(message(q+1))
			}
		}
		h := w.Held()
		if len(h.Holes) > 0 {
			holes++
		}
		switch {
		case size > 64<<10+4<<10:
			t.Errorf("bit at %d of %d: %d messages of %d bytes lost", at, len(b), lost, size)
		case lost > 2*step && len(rep.Faults) == 0:
			t.Errorf("bit at %d of %d: %d messages lost, and no fault", at, len(b), lost)
		case lost > 0 && len(h.Holes) == 0 && h.Head == last+1:
			t.Errorf("bit at %d of %d: %d messages lost, and no hole", at, len(b), lost)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		// Sealed by now. What could not be read is named until its hole is filled.
		faults := func() (out []Fault) {
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range rep.Faults {
				if strings.Contains(f.Problem, "tail records are damaged") {
					out = append(out, f)
				}
			}
			if len(out) == 0 && len(rep.Notes) > 0 {
				noted++
			}
			return out
		}
		if f := faults(); len(f) > 0 {
			named++
			if len(h.Holes) == 0 || f[0].FirstSeq != h.Holes[0].Range.First {
				t.Errorf("bit at %d: named as %v, holes %v", at, f, h.Holes)
			}
			w := writer(t, a, "S")
			for _, hole := range h.Holes {
				fillRange(t, w, hole.Range, 7)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if f := faults(); len(f) > 0 {
				t.Errorf("bit at %d: filled, and named as %v", at, f)
			}
		}
		a.Close()
	}
	t.Logf("%d with holes, %d named, %d noted", holes, named, noted)
	if named == 0 || noted == 0 {
		t.Error("unreadable tail records are not named")
	}
	if holes == 0 {
		t.Error("nothing was held behind any damage")
	}
}

// Both forms of chunks are read: a damaged one is found, and what lies behind
// it; a log that ends early, or in zeros, is not damaged.
func TestScanLog(t *testing.T) {
	fs := newMemFS()
	log := &pebbleLog{log: slog.New(slog.DiscardHandler)}
	for n, synced := range []bool{false, true} { // of a new store, of one that is opened again
		db, err := openForWrite("db", newFenceFS(fs), nil, log)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			if err := db.Set([]byte{byte(n), byte(i)}, bytes.Repeat([]byte{byte(i)}, 700), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
		path, b := logOf(t, fs, "db")
		num, err := strconv.Atoi(strings.TrimSuffix(fs.PathBase(path), ".log"))
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(b); at += 1009 {
			if d := scanLog(b[:at], uint32(num)); d != nil {
				t.Fatalf("cut at %d: %v", at, d)
			}
			if d := scanLog(append(bytes.Clone(b[:at]), make([]byte, 40<<10)...), uint32(num)); d != nil {
				t.Fatalf("zeros from %d: %v", at, d)
			}
			bad := bytes.Clone(b)
			bad[at] ^= 1
			d := scanLog(bad, uint32(num))
			if at >= len(b)-10*800 {
				continue // perhaps nothing lies behind, or nothing that says so
			}
			if d == nil || d.at > int64(at) || d.at < int64(at-800) || d.torn == synced {
				t.Fatalf("flipped at %d of %d: %+v", at, len(b), d)
			}
			if n, want := len(d.beyond), (len(b)-at)*200/len(b); n < want-2 || n > want+1 {
				t.Fatalf("flipped at %d of %d: %d records behind it, want %d", at, len(b), n, want)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// However little is written to a log, and however it ends, it keeps little of
// the disk: a small one has room to open the segment anew.
func TestLogKeepsLittleRoom(t *testing.T) {
	o := testOptions(nil)
	o.BlockSize, o.SegmentSize = 256<<10, 1<<30
	dir := filepath.Join(t.TempDir(), "archive")
	a, err := OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w := writer(t, a, "S")
	for q := moldcast.Seq(1); q < 100; q++ { // each a record of the log
		put(t, w, piece(q, 1))
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	logs, err := filepath.Glob(filepath.Join(dir, "default", "S@1", "*.seg", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	for _, name := range logs {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if room := st.Sys().(*syscall.Stat_t).Blocks * 512; room > st.Size()+(2<<20) {
			t.Errorf("%s: %d bytes of the disk for %d", name, room, st.Size())
		}
	}
}

// Room is set aside step by step, before it is written to, and never twice.
func TestLogRoomInSteps(t *testing.T) {
	rec := &roomFile{}
	f := &quietFile{File: rec, log: &pebbleLog{}}
	b := make([]byte, 300<<10)
	for n := range 20 {
		if n == 1 { // as Pebble does
			if err := f.Preallocate(0, 4*logStep+logStep/2); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		rec.written += int64(len(b))
		if n > 0 && rec.room < min(rec.written, 4*logStep+logStep/2) || rec.room > rec.written+logStep {
			t.Fatalf("room up to %d with %d written", rec.room, rec.written)
		}
	}
	if rec.room != 4*logStep+logStep/2 {
		t.Errorf("room up to %d", rec.room)
	}
}

// roomFile is a file that notes what is set aside for it.
type roomFile struct {
	vfs.File
	room, written int64
}

func (f *roomFile) Write(b []byte) (int, error) { return len(b), nil }
func (f *roomFile) Preallocate(at, n int64) error {
	if at != f.room {
		return errors.New("not in order")
	}
	f.room += n
	return nil
}
