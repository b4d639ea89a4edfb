package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// Whether segments were merged before they were sealed shows in no export, nor
// in the root; it shows in what is told of the archive.
func TestExportOfMerged(t *testing.T) {
	session, err := moldcast.ParseSession("S")
	if err != nil {
		t.Fatal(err)
	}
	make := func(saves float64) string {
		ar := archiveDir(t)
		a, err := store.Create(ar, store.Options{MergeSaves: saves, BlockSize: 1 << 10, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		w, err := a.Writer("x", session, 0)
		if err != nil {
			t.Fatal(err)
		}
		w.Lines([]string{lineA.String(), lineB.String()})
		var late []moldcast.Piece
		put := func(p moldcast.Piece) {
			if _, err := w.Append(p); err != nil {
				t.Fatal(err)
			}
		}
		for q := moldcast.Seq(1); q < 6000; q += 3 {
			var b []byte
			for i := range 3 {
				b = moldcast.AppendMessage(b, fmt.Appendf(nil, "message %d", int(q)+i))
			}
			at := t0 + moldcast.Stamp(q)*1000
			p := moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(b, 3), Time: at, Heard: at, Line: uint8(q % 2)}
			if q%7 == 0 {
				p.Flags, p.Line, p.Heard = moldcast.Repaired, moldcast.AnswerLine, at+7
				late = append(late, p)
				continue
			}
			put(p)
			if len(late) > 50 {
				put(late[0])
				late = late[1:]
			}
		}
		for _, p := range late {
			put(p)
		}
		w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 6001, Stamp: t0 + 9000000})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		return ar
	}
	plain, merged := make(-1), make(0)
	run := func(ar string, args ...string) string {
		t.Helper()
		code, out, errs := runCLI(t, ar, args...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, errs)
		}
		return out
	}
	if a, b := run(plain, "verify", "S", "--root"), run(merged, "verify", "S", "--root"); a != b || a == "" {
		t.Errorf("roots %q, %q", a, b)
	}
	run(merged, "verify")
	for _, name := range []string{"x.pcap", "x.pcapng", "x.bin", "x.ndjson", "x.raw"} {
		t.Run(name, func(t *testing.T) {
			var files [2][]byte
			for i, ar := range []string{plain, merged} {
				out := filepath.Join(t.TempDir(), name)
				args := []string{"export", "S", "-o", out}
				switch filepath.Ext(name) {
				case ".bin":
					args = append(args, "--format", "binaryfile")
				case ".raw":
					args = append(args, "--format", "raw")
				}
				run(ar, args...)
				b, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				files[i] = b
			}
			if len(files[0]) == 0 || !bytes.Equal(files[0], files[1]) {
				t.Errorf("%d bytes, merged %d, or others", len(files[0]), len(files[1]))
			}
		})
	}
	if out := run(plain, "show", "S"); strings.Contains(out, "written once more") {
		t.Error(out)
	}
	if out := run(merged, "show", "S"); !strings.Contains(out, "1 of 1 segments") || !strings.Contains(out, "written once more; 0 left") {
		t.Error(out)
	}
	if out := run(merged, "sessions", "--json"); !strings.Contains(out, `"unmerged":0`) || strings.Contains(out, `"bytes_merged":0`) {
		t.Error(out)
	}
}
