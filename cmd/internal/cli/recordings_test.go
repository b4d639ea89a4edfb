package cli

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/moldtape/moldtape/moldcast/soup"
	"github.com/moldtape/moldtape/retransmit"
)

// A node runs for months: logins leave nothing behind, and of a recording that
// was removed nothing is kept.
func TestSourceForgets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	a := testArchive(t, dir)
	s := testSession(t, "S1")
	f := feed{first: 1, n: 100}
	for _, channel := range []string{"a", "b"} {
		w := testWriter(t, a, channel, s, 0)
		f.write(t, w, 1, f.head())
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	src := NewSource(a, nil, slog.New(slog.DiscardHandler))
	if err := src.Refresh(); err != nil {
		t.Fatal(err)
	}
	// Requests are answered from one of the two: the other is opened by logins.
	both := []*recordings{src.recordings("a"), src.recordings("b")}
	for _, k := range both {
		_, first, err := k.Recording(s)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, again, err := k.Recording(soup.Blank); err != nil || again != first {
				t.Fatalf("%v: a login opens the session anew, %v", k.channels, err)
			}
		}
		if len(k.views) != 1 {
			t.Errorf("%v: %d views of one session", k.channels, len(k.views))
		}
	}

	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := src.Refresh(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := both[0].Recording(s); !errors.Is(err, retransmit.ErrNoRecording) {
		t.Errorf("a removed session: %v", err)
	}
	for r := range src.opened {
		if r.Channel == "a" {
			t.Errorf("%v is removed, and held", r)
		}
	}
	for r := range src.mu.views {
		if r.Channel == "a" {
			t.Errorf("%v is removed, and held", r)
		}
	}
	if _, ok := src.Lookup(s); !ok {
		t.Error("the other channel's is not served")
	}
}
