package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// recordTwo writes messages 1..10 as one segment, 11..20 as the next, and
// End of Session for end where it is not 0.
func recordTwo(t *testing.T, end moldcast.Seq) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "a")
	a, err := store.OpenOrCreate(dir, store.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	s, err := moldcast.ParseSession("S")
	if err != nil {
		t.Fatal(err)
	}
	for first := moldcast.Seq(1); first <= 11; first += 10 {
		w, err := a.Writer("c", s, 0)
		if err != nil {
			t.Fatal(err)
		}
		for q := first; q < first+10; q++ {
			p := moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(moldcast.AppendMessage(nil, []byte("m")), 1), Time: 1700000000e9, Heard: 1700000000e9}
			if _, err := w.Append(p); err != nil {
				t.Fatal(err)
			}
		}
		if end != 0 && first == 11 {
			w.Mark(moldcast.Mark{Kind: moldcast.End, Next: end, Stamp: 1700000001e9})
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runMain(args ...string) (code int, stdout, stderr string) {
	var o, e bytes.Buffer
	code = Main(args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// The tail that an ended session lacks is a hole.
func TestExportWithoutTail(t *testing.T) {
	dir := recordTwo(t, 25)
	code, _, stderr := runMain("export", "S", "--archive", dir, "-o", "-", "--format", "raw")
	if code != exitFault || !strings.Contains(stderr, "hole 21..24") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if code, stdout, stderr := runMain("export", "S", "--archive", dir, "-o", "-", "--format", "raw", "--allow-holes"); code != 0 || len(stdout) != 20 {
		t.Errorf("with --allow-holes: exit %d, %d bytes: %s", code, len(stdout), stderr)
	}
	if code, stdout, stderr := runMain("export", "S", "--archive", recordTwo(t, 21), "-o", "-", "--format", "raw"); code != 0 || len(stdout) != 20 {
		t.Errorf("of a whole one: exit %d, %d bytes: %s", code, len(stdout), stderr)
	}
}

// A segment that is missing, or cannot be read, fails what may have needed it.
func TestExportWithoutSegment(t *testing.T) {
	for name, harm := range map[string]func(seg string) error{
		"missing": os.RemoveAll,
		"no manifest": func(seg string) error {
			marks, err := filepath.Glob(filepath.Join(seg, "marker.manifest*"))
			if err != nil || len(marks) != 1 {
				t.Fatal(marks, err)
			}
			if err := os.Remove(filepath.Join(seg, "seal.json")); err != nil {
				return err
			}
			return os.Remove(marks[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := recordTwo(t, 0)
			if err := harm(filepath.Join(dir, "c", "S@1", "000002.seg")); err != nil {
				t.Fatal(err)
			}
			for _, more := range [][]string{nil, {"--allow-holes"}, {"--from-seq", "5"}, {"--from-seq", "5", "--to-seq", "12"}} {
				code, _, stderr := runMain(append([]string{"export", "S", "--archive", dir, "-o", filepath.Join(t.TempDir(), "x.raw")}, more...)...)
				if code != exitFault || !strings.Contains(stderr, "c/S@1/000002.seg: it") {
					t.Errorf("export %v: exit %d: %s", more, code, stderr)
				}
			}
			if code, stdout, stderr := runMain("export", "S", "--archive", dir, "-o", "-", "--format", "raw", "--from-seq", "2", "--to-seq", "10"); code != 0 || len(stdout) != 9 {
				t.Errorf("export of what is held: exit %d, %d bytes: %s", code, len(stdout), stderr)
			}
			if code, _, stderr := runMain("replay", "S", "--archive", dir, "--group", "127.0.0.1:9", "--interface", "lo", "--speed", "max", "--linger", "0s"); code != exitFault || !strings.Contains(stderr, "000002.seg") {
				t.Errorf("replay: exit %d: %s", code, stderr)
			}
			if code, _, stderr := runMain("sessions", "--archive", dir); code != 0 || !strings.Contains(stderr, "000002.seg") {
				t.Errorf("sessions: exit %d: %s", code, stderr)
			}
			if code, _, stderr := runMain("show", "S", "--archive", dir); code != 0 || !strings.Contains(stderr, "000002.seg") {
				t.Errorf("show: exit %d: %s", code, stderr)
			}
		})
	}
}
