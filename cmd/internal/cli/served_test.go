package cli

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// A segment that is destroyed is a fault of its session once it was read.
func TestServedDamage(t *testing.T) {
	f := feed{first: 1, n: 3000}
	s := testSession(t, "S1")
	dir := filepath.Join(t.TempDir(), "archive")
	a := testArchive(t, dir)
	for _, part := range [][2]moldcast.Seq{{1, 1000}, {1000, 2000}, {2000, f.head()}} {
		w := testWriter(t, a, "c", s, 0)
		f.write(t, w, part[0], part[1])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "c", "S1@1", "000002.seg", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, name := range tables {
		if err := os.Truncate(name, 100); err != nil {
			t.Fatal(err)
		}
	}
	if a, err = store.Open(dir, testOptions()); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	src := NewSource(a, nil, slog.New(slog.DiscardHandler))
	defer src.Close()
	if err := src.Refresh(); err != nil {
		t.Fatal(err)
	}
	v, ok := src.Lookup(s)
	if !ok {
		t.Fatal("not served")
	}
	if _, n, err := v.Append(nil, 1500, 1, 1500, true); err == nil {
		t.Fatalf("%d messages of a destroyed segment", n)
	}
	all := src.served()
	if len(all) != 1 || all[0].State != capture.StateDegraded {
		t.Fatalf("%+v", all)
	}
	if got := all[0].Sessions[0].Fault; !strings.HasPrefix(got, "1,000 messages damaged, not served: 1000..1999;") {
		t.Errorf("fault: %q", got)
	}
}

// What is wrong with the configuration is said before anything is served, and a
// channel of which there is nothing is told.
func TestRetransmitChecksFirst(t *testing.T) {
	f := feed{first: 1, n: 100}
	dir := filepath.Join(t.TempDir(), "archive")
	a := testArchive(t, dir)
	w := testWriter(t, a, "c", testSession(t, "S1"), 0)
	f.write(t, w, 1, f.head())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	users := tempFile(t, "users", []byte("this is no line of it\n"))
	var log bytes.Buffer
	e := &env{stdout: new(bytes.Buffer), stderr: &log, log: slog.New(slog.DiscardHandler)}
	root := newRoot(e)
	root.SetArgs([]string{"retransmit", "--archive", dir, "--channel", "c", "--channel", "nope", "--listen", "127.0.0.1:0", "--recovery-listen", "127.0.0.1:0", "--recovery-users", users})
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--recovery-users") {
		t.Errorf("error: %v", err)
	}
	if s := log.String(); strings.Contains(s, "msg=serving") || strings.Count(s, "holds nothing of a channel") != 1 || !strings.Contains(s, "channel=nope") {
		t.Errorf("log: %s", s)
	}
}
