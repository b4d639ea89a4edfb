package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

func TestOpenErrors(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	write := func(name, text string) {
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"other", "empty", "new", "broken"} {
		if err := fs.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("other/thesis.txt", "x")
	write("new/moldtape.json", `{"format":7}`)
	write("broken/moldtape.json", `{"for`)
	says := func(err error, want error, parts ...string) {
		t.Helper()
		if want != nil && !errors.Is(err, want) {
			t.Errorf("%v is not %v", err, want)
		}
		for _, p := range parts {
			if err == nil || !strings.Contains(err.Error(), p) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v does not say %q in one line", err, p)
			}
		}
	}
	_, err := Open("none", o)
	says(err, ErrNotArchive, "none", "does not exist", "--archive")
	_, err = Open("other", o)
	says(err, ErrNotArchive, "other", "moldtape.json")
	_, err = OpenOrCreate("other", o)
	says(err, ErrNotArchive, "other", "thesis.txt")
	_, err = Open("empty", o)
	says(err, ErrNotArchive)
	_, err = Open("broken", o)
	says(err, ErrNotArchive, "broken")
	_, err = Open("new", o)
	says(err, nil, "new", "7", "newer moldtape")
	var version *VersionError
	if !errors.As(err, &version) || version.Got != 7 || version.Want != FormatVersion {
		t.Errorf("%v", err)
	}
	a, err := OpenOrCreate("empty", o)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	_, err = Create("empty", o)
	says(err, ErrExists, "empty")
	if _, err := OpenOrCreate("deep/er/archive", o); err != nil {
		t.Error(err)
	}
	o.BlockSize = 5
	_, err = Open("empty", o)
	says(err, nil, "block size")
}

func TestFind(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	for _, r := range []Ref{
		{"itch", sess(t, "S1"), 1}, {"itch", sess(t, "S1"), 2}, {"itch", sess(t, "S1"), 10},
		{"glimpse", sess(t, "S2"), 1}, {"itch", sess(t, "S2"), 1}, {"itch", sess(t, "%20"), 1}, {"itch", moldcast.Session{}, 1},
	} {
		w, err := a.Writer(r.Channel, r.Session, r.Take)
		if err != nil {
			t.Fatal(err)
		}
		if w.Ref() != r {
			t.Fatalf("%v, want %v", w.Ref(), r)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"S1": "itch/S1", "itch/S1": "itch/S1", "S1@2": "itch/S1@2", "itch/S1@10": "itch/S1@10", "itch/S2": "itch/S2",
		"%20": "itch/%20", "%00%00%00%00%00%00%00%00%00%00": "itch/%00%00%00%00%00%00%00%00%00%00",
	} {
		if r, err := a.Find(name); err != nil || r.String() != want {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	for name, want := range map[string]error{
		"S2": ErrAmbiguous, "S3": ErrNotFound, "none/S1": ErrNotFound, "S1@3": ErrNotFound, "": ErrNotFound, "itch/": ErrNotFound,
		"S1@0": ErrNotFound, "S1@01": ErrNotFound, "itch/S1/x": ErrNotFound, "muchtoolonganame": ErrNotFound,
	} {
		_, err := a.Find(name)
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
			continue
		}
		if !strings.Contains(err.Error(), "itch/S2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v does not list what there is", name, err)
		}
	}
	if r, ok := a.Latest("itch", sess(t, "S1")); !ok || r.Take != 10 {
		t.Errorf("latest %v %v", r, ok)
	}
	if w := writer2(t, a, "itch", "S1"); w.Ref().Take != 10 {
		t.Errorf("take 0 opened %v", w.Ref())
	} else {
		w.Close()
	}
	if _, err := a.Writer("a/b", sess(t, "S"), 0); err == nil {
		t.Error("a channel with a slash")
	}
	if _, err := a.View(Ref{"itch", sess(t, "S9"), 1}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	list, err := a.Sessions()
	if err != nil || len(list) != 7 {
		t.Fatalf("%d sessions, %v", len(list), err)
	}
	if list[0].Ref().String() != "glimpse/S2" || list[6].Ref().String() != "itch/S2" || list[5].Ref().Take != 10 {
		t.Errorf("%+v", list)
	}
}

func writer2(t testing.TB, a *Archive, channel, name string) *Writer {
	t.Helper()
	w, err := a.Writer(channel, sess(t, name), 0)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// On the system's file system: flock, bodies in tables of their own, and that what is
// sealed is read without a write.
func TestRealFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	o := testOptions(nil)
	o.SegmentSize = 1 << 20
	o.BlockSize = 32 << 10
	o.Sync = time.Hour // a slow machine must not write it all as tail records
	a, err := OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	w := writer(t, a, "S")
	if _, err := a.Writer("default", sess(t, "S"), 0); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second writer: %v", err)
	}
	r := moldcast.Range{First: 1, Next: 60000}
	fillRange(t, w, r, 9)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.s.mu.Lock()
	g := w.s.segs[0]
	w.s.mu.Unlock()
	if err := g.use(a.table, func(db *pebble.DB) error {
		levels, err := db.SSTables()
		bodies := 0
		for _, level := range levels {
			for _, table := range level {
				if low, high := table.Smallest.UserKey[0], table.Largest.UserKey[0]; low != high && low == keyBody {
					t.Errorf("a table from %c to %c", low, high)
				} else if low == keyBody {
					bodies++
				}
			}
		}
		if bodies == 0 {
			t.Error("no table of bodies")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "default", "S@1", "*.seg", "*.log"))
	if err != nil || len(logs) != 0 {
		t.Errorf("logs in sealed segments: %v, %v", logs, err)
	}
	list, err := a.Sessions()
	if err != nil || list[0].BytesDisk > list[0].BytesRaw {
		t.Errorf("takes %d bytes on disk for %d: %v", list[0].BytesDisk, list[0].BytesRaw, err)
	}
	before := listing(t, dir)
	a2, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	check(t, view(t, a2, w.Ref()), r)
	verify(t, a2)
	if _, err := a2.Show(w.Ref()); err != nil {
		t.Fatal(err)
	}
	if err := a2.Close(); err != nil {
		t.Fatal(err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("reading changed the archive:\n%s\n%s", before, after)
	}
	w = writer(t, a, "S")
	if n := put(t, w, piece(10, 50)); n != 0 {
		t.Errorf("%d stored again", n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("storing the same again changed the archive:\n%s\n%s", before, after)
	}
	a.Close()
}

// listing is names, sizes and times of every file.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + i.ModTime().String() + " ")
		b.WriteString(i.Mode().String() + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What nobody closed is recovered by the next reader, and where nothing can
// be written it is read as it is.
func TestUnsealed(t *testing.T) {
	for _, medium := range []string{"writable", "read only"} {
		t.Run(medium, func(t *testing.T) {
			mem := newMemFS()
			o := testOptions(mem)
			a := create(t, o)
			w := writer(t, a, "S")
			r := moldcast.Range{First: 484311999, Next: 484311999 + 7000}
			fillRange(t, w, r, 5)
			w.Mark(moldcast.Mark{Kind: moldcast.End, Next: r.Next, Stamp: 5})
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			mem = mem.crash(0, nil)
			o.FS = mem
			if medium == "read only" {
				o.FS = roMedium{mem}
			}
			b, err := Open("archive", o)
			if err != nil {
				t.Fatal(err)
			}
			list, err := b.Sessions()
			if err != nil || list[0].State != Ended || list[0].Messages != 7000 || list[0].NextSeq != r.Next || list[0].DurableSeq != r.Next {
				t.Fatalf("%+v %v", list, err)
			}
			v := view(t, b, w.Ref())
			check(t, v, r)
			if end, ok := v.Ended(); !ok || end != r.Next {
				t.Errorf("ended %v at %d", ok, end)
			}
			if _, n, err := v.Append(nil, r.Next-3, 10, 1400, true); n != 3 || err != nil {
				t.Errorf("answer from the tail: %d %v", n, err)
			}
			d, err := b.Show(w.Ref())
			if err != nil {
				t.Fatal(err)
			}
			last := d.SegmentList[len(d.SegmentList)-1]
			if last.Sealed != (medium == "writable") {
				t.Errorf("%+v", last)
			}
			verify(t, b)
			w.Close()
		})
	}
}
