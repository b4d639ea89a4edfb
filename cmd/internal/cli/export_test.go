package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// exportArchive holds 3000 messages, and a hole at 2001..2010.
func exportArchive(t testing.TB, args ...string) string {
	var ds []dgram
	for i := 1; i <= 3000; i += 10 {
		if i != 2001 {
			ds = append(ds, dataTo(lineA, moldcast.Stamp(i), i, 10))
		}
	}
	ar := archiveDir(t)
	importJSON(t, ar, 0, append(args, captureFile(t, "x.pcap", ds...))...)
	return ar
}

func TestExportClipsPackets(t *testing.T) {
	ar := exportArchive(t)
	out := filepath.Join(t.TempDir(), "x.pcap")
	if code, _, errs := runCLI(t, ar, "export", "S", "-o", out, "--from-seq", "19", "--to-seq", "32"); code != 0 {
		t.Fatal(errs)
	}
	var got []moldcast.Range
	for _, p := range readPackets(t, out) {
		m, err := moldcast.Parse(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.Range())
		if want := t0 + moldcast.Stamp(m.First-1)/10*10 + 1; p.Stamp != want {
			t.Errorf("%v at %d, want %d", m.Range(), p.Stamp, want)
		}
	}
	want := []moldcast.Range{{First: 19, Next: 21}, {First: 21, Next: 31}, {First: 31, Next: 33}}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v, want %v", got, want)
	}
}

// A damaged archive fails an export whatever is allowed, and the range is named.
func TestExportDamaged(t *testing.T) {
	ar := exportArchive(t, "--codec", "row") // so that bodies are what takes most
	most, body := 0, ""
	err := filepath.WalkDir(ar, func(path string, d os.DirEntry, err error) error {
		if ext := filepath.Ext(path); err != nil || ext != ".blob" && ext != ".sst" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(b) > most {
			most, body = len(b), path
		}
		return nil
	})
	if err != nil || body == "" {
		t.Fatal(err)
	}
	// The middle of the largest file is of the messages.
	b, err := os.ReadFile(body)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x10
	if err := os.WriteFile(body, b, 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "x.raw")
	for _, args := range [][]string{{"--to-seq", "2000"}, {"--allow-holes"}, {"--allow-holes"}} {
		code, _, errs := runCLI(t, ar, append([]string{"export", "S", "-o", out}, args...)...)
		// The log says why, the last line what.
		lines := strings.Split(strings.TrimSpace(errs), "\n")
		if last := lines[len(lines)-1]; code != 1 || !strings.HasPrefix(last, "moldtape: ") || !strings.Contains(last, "damaged") {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: something was written", args)
		}
	}
}

func TestExportInterrupted(t *testing.T) {
	ar := exportArchive(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "x.pcap")
	if err := os.WriteFile(out, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := &env{stdout: io.Discard, stderr: io.Discard, archive: ar, log: slog.New(slog.DiscardHandler)}
	err := e.export(&countdown{context.Background(), 0}, "S", exportFlags{output: out, group: "239.255.0.1:26400", allowHoles: true})
	if !errors.Is(err, errInterrupted) {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != "before" {
		t.Errorf("%q, %v", b, err)
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 1 {
		t.Errorf("%v, %v", l, err)
	}
}

func TestExportTo(t *testing.T) {
	ar := exportArchive(t)
	args := []string{"export", "S", "--format", "raw", "--to-seq", "100"}
	code, want, errs := runCLI(t, ar, append(args, "-o", "-")...)
	if code != 0 || len(want) == 0 {
		t.Fatal(code, errs)
	}
	// A link stays a link.
	dir := t.TempDir()
	if err := os.Symlink("target", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "target"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runCLI(t, ar, append(args, "-o", filepath.Join(dir, "link"))...); code != 0 {
		t.Fatal(errs)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "target")); err != nil || !bytes.Equal(b, []byte(want)) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	// A device is written to as it is.
	if code, _, errs := runCLI(t, ar, append(args, "-o", os.DevNull)...); code != 0 {
		t.Error(errs)
	}
	if st, err := os.Stat(os.DevNull); err != nil || st.Mode().IsRegular() {
		t.Fatal("the device is gone")
	}
	for name, text := range map[string]string{dir: "directory", filepath.Join(dir, "none", "x"): "no such file"} {
		if code, _, errs := runCLI(t, ar, append(args, "-o", name)...); code != 1 || !strings.Contains(errs, text) {
			t.Errorf("%s: exit %d, %s", name, code, errs)
		}
	}
}
