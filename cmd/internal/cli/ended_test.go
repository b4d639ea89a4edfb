package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

func oneSession(t *testing.T, archive string) store.Info {
	t.Helper()
	code, out, errs := runCLI(t, archive, "sessions", "--json")
	var list []store.Info
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list) != 1 {
		t.Fatalf("exit %d, %v, %s %s", code, err, out, errs)
	}
	return list[0]
}

// A session that several files hold has ended where one of them says so, in
// whatever order they come; and so has what its export is imported to.
func TestImportEndedSet(t *testing.T) {
	a := captureFile(t, "a.pcap", dataTo(lineA, 1, 1, 3), dataTo(lineA, 2, 4, 3))
	b := captureFile(t, "b.pcap", dataTo(lineA, 3, 7, 3), control(lineA, 4, 10, moldcast.EndCount), control(lineA, 5, 10, moldcast.EndCount))
	for _, runs := range [][][]string{{{a, b}}, {{b, a}}, {{a}, {b}}, {{b}, {a}}, {{a, b}, {a}, {b}}} {
		ar := archiveDir(t)
		for _, files := range runs {
			importJSON(t, ar, 0, files...)
		}
		if s := oneSession(t, ar); s.State != store.Ended || s.Messages != 9 || s.Holes != 0 {
			t.Errorf("%v: %+v", runs, s)
		}
		out := filepath.Join(t.TempDir(), "x.pcap")
		if code, _, errs := runCLI(t, ar, "export", "S", "-o", out); code != 0 {
			t.Fatal(errs)
		}
		again := archiveDir(t)
		importJSON(t, again, 0, out)
		if s := oneSession(t, again); s.State != store.Ended || s.Messages != 9 {
			t.Errorf("%v exported: %+v", runs, s)
		}
	}
}

// A tail that was lost before the End of Session is a hole of the export.
func TestExportLostTail(t *testing.T) {
	ar := archiveDir(t)
	importJSON(t, ar, 0, captureFile(t, "a.pcap", dataTo(lineA, 1, 1, 3), control(lineA, 4, 10, moldcast.EndCount)))
	out := filepath.Join(t.TempDir(), "x.raw")
	if code, _, errs := runCLI(t, ar, "export", "S", "-o", out); code != 1 || !strings.Contains(errs, "hole 4..9") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if code, _, errs := runCLI(t, ar, "export", "S", "-o", out, "--allow-holes"); code != 0 {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// Beside a capture, what is read ends where it is sealed, and that is said.
func TestReadBesideCapture(t *testing.T) {
	ar := archiveDir(t)
	importJSON(t, ar, 0, captureFile(t, "a.pcap", dataTo(lineA, 1, 1, 3)))
	a, err := store.Open(ar, store.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ref, err := a.Find("S")
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.Writer(ref.Channel, ref.Session, ref.Take)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Append(moldcast.Piece{First: 4, Msgs: moldcast.MessagesOf(moldcast.AppendMessage(nil, []byte("m4")), 1), Time: t0, Heard: t0}); err != nil {
		t.Fatal(err)
	}
	want := "S is being captured: read up to its sealed end 3\n"
	code, out, errs := runCLI(t, ar, "export", "S", "-o", "-", "--format", "raw")
	if code != 0 || out != "m1m2m3" || !strings.Contains(errs, want) {
		t.Errorf("export: exit %d, %q, %s", code, out, errs)
	}
	code, _, errs = runCLI(t, ar, "replay", "S", "--group", "127.0.0.1:9", "--speed", "max", "--linger", "0s")
	if code != 0 || !strings.Contains(errs, want) {
		t.Errorf("replay: exit %d, %s", code, errs)
	}
}
