package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// diskOptions are those of onDisk: one segment a writer, bodies in blob files.
func diskOptions() Options {
	o := testOptions(nil)
	o.FS, o.BlockSize, o.SegmentSize = vfs.Default, 256<<10, 1<<30
	return o
}

func problems(t testing.TB, a *Archive) string {
	t.Helper()
	rep, err := a.Verify(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range rep.Faults {
		out = append(out, f.String())
	}
	return strings.Join(out, "\n")
}

// Whichever segment is lost, verification, views and lists name it; one that
// was pruned is not lost; and its number is not used again.
func TestSegmentLost(t *testing.T) {
	for n := 1; n <= 3; n++ {
		t.Run(segmentName(n), func(t *testing.T) {
			o := diskOptions()
			r := moldcast.Range{First: 1, Next: 601}
			dir, ref := onDisk(t, o, r)
			a := reopen(t, dir, o)
			if f := view(t, a, ref).Faults(); len(f) != 0 || problems(t, a) != "" {
				t.Fatalf("faults of a sound one: %v, %s", f, problems(t, a))
			}
			kept := filepath.Join(dir, "kept")
			if err := os.Rename(segmentDir(dir, n), kept); err != nil {
				t.Fatal(err)
			}
			lost := moldcast.Range{First: moldcast.Seq(n-1)*200 + 1, Next: moldcast.Seq(n)*200 + 1}
			seen := func(a *Archive) {
				t.Helper()
				if p := problems(t, a); !strings.Contains(p, segmentName(n)+": it is missing") {
					t.Errorf("verify: %q", p)
				}
				v := view(t, a, ref)
				f := v.Faults()
				if len(f) != 1 || f[0].Segment != "default/S@1/"+segmentName(n) {
					t.Errorf("faults %v", f)
				}
				if v.Holds(lost) || !v.Holds(moldcast.Range{First: lost.Next%600 + 1, Next: lost.Next%600 + 101}) {
					t.Error("what is held is not told from what is lost")
				}
				l, err := a.Sessions()
				if err != nil || len(l) != 1 || !strings.Contains(l[0].Fault, segmentName(n)) {
					t.Errorf("sessions: %+v, %v", l, err)
				}
				d, err := a.Show(ref)
				if err != nil || len(d.Faults) != 1 {
					t.Errorf("show: %v, %v", d.Faults, err)
				}
			}
			a = reopen(t, dir, o)
			seen(a)
			w := writer(t, a, "S")
			fillRange(t, w, moldcast.Range{First: 601, Next: 701}, 5)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			seen(reopen(t, dir, o))

			// It comes back, from a copy.
			if err := os.Rename(kept, segmentDir(dir, n)); err != nil {
				t.Fatal(err)
			}
			a = reopen(t, dir, o)
			if p := problems(t, a); p != "" {
				t.Errorf("after it was restored: %s", p)
			}
			r.Next = 701
			check(t, view(t, a, ref), r)

			if n == 1 {
				if err := os.Rename(segmentDir(dir, n), kept); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "default", "S@1", prunedRecord(1)), nil, 0o666); err != nil {
					t.Fatal(err)
				}
				if f := view(t, reopen(t, dir, o), ref).Faults(); len(f) != 0 {
					t.Errorf("pruned, and a fault: %v", f)
				}
			}
		})
	}
}

// A segment of which nothing can be told is a fault of the view, and of its
// session in the list, which lists all others.
func TestSegmentUnknown(t *testing.T) {
	o := diskOptions()
	dir, ref := onDisk(t, o, moldcast.Range{First: 1, Next: 601})
	a := reopen(t, dir, o)
	closed(t, a, "OTHER", 5, moldcast.Range{First: 1, Next: 100})
	seg := segmentDir(dir, 3)
	if err := os.Remove(filepath.Join(seg, sealFile)); err != nil {
		t.Fatal(err)
	}
	for _, p := range match(t, seg, ".sst") {
		if err := os.Truncate(p, 100); err != nil {
			t.Fatal(err)
		}
	}
	a = reopen(t, dir, o)
	if f := view(t, a, ref).Faults(); len(f) != 1 || f[0].Segment != "default/S@1/000003.seg" {
		t.Errorf("faults %v", f)
	}
	l, err := a.Sessions()
	if err != nil || len(l) != 2 || l[0].Fault != "" || !strings.Contains(l[1].Fault, "000003.seg") {
		t.Errorf("sessions: %+v, %v", l, err)
	}
}

// One session that cannot be read at all does not hide the others.
func TestSessionsOneBroken(t *testing.T) {
	o := diskOptions()
	dir, _ := onDisk(t, o, moldcast.Range{First: 1, Next: 601})
	a := reopen(t, dir, o)
	closed(t, a, "OTHER", 5, moldcast.Range{First: 1, Next: 100})
	if err := os.WriteFile(filepath.Join(dir, "default", "S@1", sessionFile), []byte(`{"format":99}`), 0o666); err != nil {
		t.Fatal(err)
	}
	l, err := reopen(t, dir, o).Sessions()
	if err != nil || len(l) != 2 || l[0].Messages != 99 || !strings.Contains(l[1].Fault, "format version 99") {
		t.Errorf("sessions: %+v, %v", l, err)
	}
}

// unsealed is an archive with a session whose writer went without closing it.
func unsealed(t testing.TB, o Options, r moldcast.Range) (dir string, ref Ref) {
	t.Helper()
	from, ref := filepath.Join(t.TempDir(), "archive"), Ref{}
	a, err := OpenOrCreate(from, o)
	if err != nil {
		t.Fatal(err)
	}
	w := writer(t, a, "S")
	defer w.Close()
	ref = w.Ref()
	fillRange(t, w, r, 5)
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "archive")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir, ref
}

// A reader that holds the session's lock, as Verify does while it reads what
// is not sealed, is no writer: another reader sees all there is.
func TestReadersShareUnsealed(t *testing.T) {
	o := diskOptions()
	r := moldcast.Range{First: 1, Next: 601}
	dir, ref := unsealed(t, o, r)
	a := reopen(t, dir, o)
	lock, err := a.newSession(ref).lock(false)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	v := view(t, a, ref)
	check(t, v, r)
	if i := v.Info(); i.State != Opened || i.Messages != r.Len() {
		t.Errorf("%+v", i)
	}
}

// While sealed segments are verified, a writer may begin.
func TestVerifyLetsWrite(t *testing.T) {
	o := diskOptions()
	dir, _ := onDisk(t, o, moldcast.Range{First: 1, Next: 60001})
	a, b := reopen(t, dir, o), reopen(t, dir, o)
	tried := false
	_, err := a.Verify(t.Context(), nil, func(Progress) {
		if a.mu.Lock(); tried {
			a.mu.Unlock()
			return
		}
		tried = true
		a.mu.Unlock()
		w, err := b.Writer("default", sess(t, "S"), 0)
		if err != nil {
			t.Error(err)
			return
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil || !tried {
		t.Fatal(tried, err)
	}
}

// Several that make one archive at the same time all have it.
func TestCreateTogether(t *testing.T) {
	for range 20 {
		dir := filepath.Join(t.TempDir(), "a", "b")
		errs := make(chan error)
		for i := range 8 {
			go func() {
				a, err := OpenOrCreate(dir, diskOptions())
				if err == nil {
					var w *Writer
					if w, err = a.Writer("c"+string(rune('0'+i)), moldcast.Session{'S'}, 0); err == nil {
						err = w.Close()
					}
				}
				errs <- err
			}()
		}
		for range 8 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// syncLog notes which directories are synced.
type syncLog struct {
	vfs.FS
	dirs map[string]bool
}

type syncDirFile struct {
	vfs.File
	noted func()
}

func (f syncDirFile) Sync() error { f.noted(); return f.File.Sync() }

func (s syncLog) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	return syncDirFile{f, func() { s.dirs[name] = true }}, err
}

func TestMakeDirDurable(t *testing.T) {
	fs := syncLog{vfs.NewMem(), map[string]bool{}}
	if err := fs.MkdirAll("/a", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := makeDir(fs, "/a/b/c/d"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"/a", "/a/b", "/a/b/c"} {
		if !fs.dirs[d] {
			t.Errorf("%s is not synced: %v", d, fs.dirs)
		}
	}
	if fs.dirs["/"] {
		t.Error("what was there is synced")
	}
}

// A sealed segment takes the room of what it holds, not of its logs.
func TestSealedSize(t *testing.T) {
	dir, ref := onDisk(t, diskOptions(), moldcast.Range{First: 1, Next: 4})
	var allocated int64
	if err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Stat(p, &st); err != nil {
			return err
		}
		allocated += st.Blocks * 512
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if allocated > 3*100<<10 {
		t.Errorf("3 messages in 3 segments take %d KiB", allocated>>10)
	}
	if logs, _ := filepath.Glob(filepath.Join(segmentDir(dir, 1), "*.log")); len(logs) != 0 {
		t.Errorf("logs are left: %v", logs)
	}
	check(t, view(t, reopen(t, dir, diskOptions()), ref), moldcast.Range{First: 1, Next: 4})
}
