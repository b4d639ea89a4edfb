package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// onDisk is an archive on the system's file system with one closed session of
// three segments, and its directory.
func onDisk(t testing.TB, o Options, r moldcast.Range) (dir string, ref Ref) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "archive")
	a, err := OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range moldcast.Seq(3) {
		w := writer(t, a, "S")
		ref = w.Ref()
		third := moldcast.Seq(r.Len() / 3)
		fillRange(t, w, moldcast.Range{First: r.First + i*third, Next: r.First + (i+1)*third}, 5)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, ref
}

// segmentDir is a segment of the session of onDisk.
func segmentDir(dir string, n int) string {
	return filepath.Join(dir, "default", "S@1", segmentName(n))
}

func reopen(t testing.TB, dir string, o Options) *Archive {
	t.Helper()
	a, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// match is the files of a directory that end in suffix.
func match(t testing.TB, dir, suffix string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s in %s: %v", suffix, dir, err)
	}
	return names
}

// readWhole reads a session whole: the messages, which are those of the tests,
// and the ranges that are damaged.
func readWhole(t testing.TB, v *View) (messages int, damaged []*CorruptError) {
	t.Helper()
	c := v.Cursor(0)
	defer c.Close()
	for {
		p, err := c.Next()
		var bad *CorruptError
		var hole *moldcast.HoleError
		switch {
		case err == io.EOF:
			return messages, damaged
		case errors.As(err, &bad):
			damaged = append(damaged, bad)
			continue
		case errors.As(err, &hole):
			continue
		case err != nil:
			t.Fatal(err)
		}
		at := p.First
		for m := p.Msgs; m.Len() > 0; at++ {
			if got := m.Next(); string(got) != string(message(at)) {
				t.Fatalf("message %d is %q", at, got)
			}
			messages++
		}
	}
}

// bodies are the tables of bodies: headers are much smaller.
func bodies(t testing.TB, dir string) (out []string) {
	t.Helper()
	for _, p := range match(t, dir, ".sst") {
		if st, err := os.Stat(p); err != nil {
			t.Fatal(err)
		} else if st.Size() > 16<<10 {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no table of bodies in %s", dir)
	}
	return out
}

// A file of bodies that is missing, empty or cut costs the ranges of its
// blocks: they are named, and everything else is read on, as often as it is
// asked for.
func TestBodiesGone(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"missing": os.Remove,
		"empty":   func(p string) error { return os.Truncate(p, 0) },
		"half": func(p string) error {
			st, err := os.Stat(p)
			if err == nil {
				err = os.Truncate(p, st.Size()/2)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(nil)
			o.FS, o.BlockSize, o.SegmentSize = vfs.Default, 256<<10, 1<<30
			r := moldcast.Range{First: 1, Next: 60001}
			dir, ref := onDisk(t, o, r)
			for _, p := range bodies(t, segmentDir(dir, 2)) {
				if err := harm(p); err != nil {
					t.Fatal(err)
				}
			}
			a := reopen(t, dir, o)
			v := view(t, a, ref)
			for range 3 {
				n, damaged := readWhole(t, v)
				if len(damaged) == 0 || n == 0 {
					t.Fatalf("%d messages, %d damaged ranges", n, len(damaged))
				}
				lost := 0
				for _, d := range damaged {
					if d.Segment != "default/S@1/000002.seg" || strings.ContainsAny(d.Error(), "\n<") || strings.Contains(d.Error(), "nil") {
						t.Fatalf("fault %q", d.Error())
					}
					lost += int(d.Range.Len())
				}
				if n+lost != int(r.Len()) {
					t.Fatalf("%d messages and %d damaged, want %d", n, lost, r.Len())
				}
				_, _, err := v.Append(nil, damaged[0].Range.First, 10, 1400, true)
				var bad *CorruptError
				if !errors.As(err, &bad) {
					t.Fatalf("append: %v", err)
				}
				if _, k, err := v.Append(nil, r.First, 10, 1400, true); k == 0 || err != nil {
					t.Fatalf("append of what is well: %d, %v", k, err)
				}
			}
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil || len(rep.Faults) == 0 {
				t.Fatalf("verify: %v, %v", rep.Faults, err)
			}
			for _, f := range rep.Faults {
				if f.Segment != "000002.seg" || strings.ContainsAny(f.String(), "\n<") {
					t.Errorf("fault %v", f)
				}
			}
			if _, err := a.Show(ref); err != nil {
				t.Fatal(err)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A segment whose manifest was lost is never made anew over what is left of
// it, whoever opens it, and is named.
func TestManifestLost(t *testing.T) {
	o := testOptions(nil)
	o.FS, o.BlockSize, o.SegmentSize = vfs.Default, 256<<10, 1<<30
	dir, ref := onDisk(t, o, moldcast.Range{First: 1, Next: 60001})
	last := len(match(t, filepath.Join(dir, "default", "S@1"), ".seg"))
	seg := segmentDir(dir, last)
	for _, p := range append(match(t, seg, "seal.json"), match(t, seg, "000001")...) {
		if strings.Contains(p, "marker.manifest") || strings.HasSuffix(p, "seal.json") {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	files := match(t, seg, ".sst")
	a := reopen(t, dir, o)
	readWhole(t, view(t, a, ref))
	named := func() {
		t.Helper()
		rep, err := a.Verify(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range rep.Faults {
			if f.Segment == segmentName(last) && strings.Contains(f.Problem, "manifest") {
				return
			}
		}
		t.Fatalf("faults %v do not name %s", rep.Faults, segmentName(last))
	}
	named()
	w := writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 70000, Next: 70100}, 5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	named()
	for _, p := range files {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("%s is gone: %v", filepath.Base(p), err)
		}
	}
}

// Where the log can be written but nothing else can, closing says so and ends,
// and so does opening what it left; readers read it, and when there is room
// everything is there.
func TestNoRoomToFlush(t *testing.T) {
	b := &brokenFS{files: ".sst"}
	o := testOptions(b.wrap(newMemFS()))
	a := create(t, o)
	w := writer(t, a, "S")
	r := moldcast.Range{First: 1, Next: 1000}
	fillRange(t, w, r, 3)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.on.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- w.Close() }()
	wait := func(what string) {
		t.Helper()
		select {
		case err := <-ended:
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%s: %v", what, err)
			}
		case <-time.After(ever):
			t.Fatalf("%s does not end", what)
		}
	}
	wait("closing")
	go func() {
		_, err := a.Writer("default", sess(t, "S"), 0)
		ended <- err
	}()
	wait("opening")
	check(t, view(t, a, w.Ref()), r)
	b.on.Store(false)
	w = writer(t, a, "S")
	fillRange(t, w, moldcast.Range{First: 1000, Next: 2000}, 3)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r.Next = 2000
	check(t, view(t, a, w.Ref()), r)
	verify(t, a)
}
