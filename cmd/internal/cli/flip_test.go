package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// run is moldtape in this process.
func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

// flippable is an archive of a session in several segments, with a hole filled
// late, a repaired piece and an end: half of its bodies in blob files.
func flippable(t *testing.T, dir string, segment int64) {
	t.Helper()
	a, err := store.OpenOrCreate(dir, store.Options{BlockSize: 6 << 10, SegmentSize: segment, Wait: true, Node: "flip"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := moldcast.ParseSession("FLIP")
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.Writer("feed", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Lines([]string{"239.1.1.1:1000"})
	rnd := rand.New(rand.NewPCG(1, 2))
	at := moldcast.Stamp(1700000000_000000000)
	put := func(first moldcast.Seq, n int, f moldcast.PieceFlags) {
		var b []byte
		for i := range n {
			m := make([]byte, 5+rnd.IntN(40))
			for k := range m {
				m[k] = byte(rnd.Uint32())
			}
			if first%1000 < 500 { // compresses to less than a blob takes
				for k := range m {
					m[k] = byte('a' + i%4)
				}
			}
			b = moldcast.AppendMessage(b, m)
		}
		at += 1_000_000
		if _, err := w.Append(moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(b, n), Time: at, Heard: at, Flags: f}); err != nil {
			t.Fatal(err)
		}
	}
	for q := moldcast.Seq(1001); q < 6001; q += 8 {
		if q == 2001 || q == 4001 { // a segment each
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if w, err = a.Writer("feed", s, 0); err != nil {
				t.Fatal(err)
			}
		}
		if q < 3001 || q >= 3201 {
			put(q, 8, 0)
		}
		if q == 5001 {
			for q := moldcast.Seq(3001); q < 3201; q += 8 {
				put(q, 8, moldcast.Repaired)
			}
		}
	}
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 6001, Stamp: at})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		do := a.Hold
		if i == 1 {
			do = a.Release
		}
		if err := do(w.Ref(), fmt.Sprint("case ", i), "officer"); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// One bit of any file of an archive turns: nothing wrong comes out, verify
// fails where a message is affected, a block at most is lost, and repair from
// a good copy makes everything as it was.
func TestFlippedBits(t *testing.T) {
	tries := 40
	if os.Getenv("MOLDTAPE_LONG") != "" {
		tries = 200
	}
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	flippable(t, good, 40<<10)
	export := func(archive string, more ...string) (int, []byte, string) {
		out := filepath.Join(dir, "out.pcap")
		os.Remove(out)
		code, _, stderr := run(append([]string{"export", "FLIP", "--archive", archive, "-o", out}, more...)...)
		b, _ := os.ReadFile(out)
		return code, b, stderr
	}
	code, want, stderr := export(good)
	if code != 0 {
		t.Fatal(stderr)
	}
	first, all := messagesOf(t, good)
	var files []string
	var sizes []int
	total := 0
	err := filepath.WalkDir(good, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err != nil || i.Size() == 0 {
			return err
		}
		rel, err := filepath.Rel(good, path)
		files, sizes, total = append(files, rel), append(sizes, int(i.Size())), total+int(i.Size())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	goodLog, err := os.ReadFile(filepath.Join(good, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	lastLine := bytes.LastIndexByte(goodLog[:len(goodLog)-1], '\n') + 1
	rnd := rand.New(rand.NewPCG(7, 11))
	affected, loss := 0, map[string]int{}
	for try := range tries {
		// Half by size, half one file as likely as another: the bytes that
		// hold no messages are few, but matter most.
		k, at := 0, 0
		if try%2 == 0 {
			for at = rnd.IntN(total); at >= sizes[k]; k++ {
				at -= sizes[k]
			}
		} else {
			k = rnd.IntN(len(files))
			at = rnd.IntN(sizes[k])
		}
		bit := rnd.IntN(8)
		name := fmt.Sprintf("bit %d of byte %d of %s (%d bytes)", bit, at, files[k], sizes[k])
		bad := filepath.Join(dir, fmt.Sprint("bad", try))
		if err := os.CopyFS(bad, os.DirFS(good)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(bad, files[k])
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[at] ^= 1 << bit
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}

		// What comes out is right, or nothing does.
		code, got, _ := export(bad)
		switch {
		case code == 0 && !bytes.Equal(got, want):
			t.Fatalf("%s: export of %d bytes is not that of %d", name, len(got), len(want))
		case code != 0 && code != exitFault:
			t.Fatalf("%s: export exits %d", name, code)
		}
		_, shown, _ := run("show", "FLIP", "--archive", bad)
		vcode, faults, stderr := run("verify", "--archive", bad)
		if code != 0 {
			affected++
			if vcode != exitFault {
				t.Errorf("%s: affects messages, verify exits %d: %s", name, vcode, stderr)
			}
		}
		lost := 0
		f, msgs := messagesOf(t, bad)
		if f != first || len(msgs) != len(all) {
			t.Fatalf("%s: %d messages from %d, want %d from %d", name, len(msgs), f, len(all), first)
		}
		for i, m := range msgs {
			if m == nil {
				lost++
			} else if !bytes.Equal(m, all[i]) {
				t.Fatalf("%s: message %d is %x, want %x", name, int(first)+i, m, all[i])
			}
		}
		if lost > 700 {
			t.Errorf("%s: %d messages lost, no block has so many\n%s%s", name, lost, faults, shown)
		} else if lost > 0 {
			loss[filepath.Ext(files[k])]++
		}

		code, out, stderr := run("repair", "FLIP", "--archive", bad, "--from", good)
		if files[k] == "audit.log" && code == exitFault && at >= lastLine {
			os.RemoveAll(bad)
			continue // nothing proves what the last line was
		}
		if code != 0 {
			t.Fatalf("%s: repair exits %d: %s%s\nverify: %s", name, code, out, stderr, faults)
		}
		code, got, stderr = export(bad)
		if code != 0 || !bytes.Equal(got, want) {
			t.Fatalf("%s: after the repair export exits %d with %d bytes, want %d: %s\nverify: %s", name, code, len(got), len(want), stderr, faults)
		}
		code, left, stderr := run("verify", "--archive", bad)
		if code != 0 || strings.Contains(stderr, "level=ERROR") {
			t.Errorf("%s: after the repair verify exits %d:\n%s%s\nbefore:\n%s\nrepair:\n%s", name, code, left, stderr, faults, out)
		}
		if files[k] == "audit.log" {
			proven := goodLog
			if at >= lastLine {
				proven = goodLog[:lastLine] // another text of the last line is one that nothing contradicts
			}
			if b, _ := os.ReadFile(path); !bytes.HasPrefix(b, proven) {
				t.Errorf("%s: the log is not what it was:\n%s", name, b)
			}
		}
		os.RemoveAll(bad)
	}
	t.Logf("%d flips, %d affected an export, lost a block: %v", tries, affected, loss)
	if affected == 0 {
		t.Error("no flip affected anything")
	}
}

// messagesOf reads all messages of an archive that can be read.
func messagesOf(t *testing.T, dir string) (first moldcast.Seq, msgs [][]byte) {
	t.Helper()
	a, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ref, err := a.Find("FLIP")
	if err != nil {
		t.Fatal(err)
	}
	v, err := a.View(ref)
	if err != nil {
		t.Fatal(err)
	}
	first, head := v.Bounds()
	msgs = make([][]byte, head-first)
	c := v.Cursor(first)
	defer c.Close()
	for {
		p, err := c.Next()
		var bad *store.CorruptError
		switch {
		case err == io.EOF:
			return first, msgs
		case errors.As(err, &bad):
			continue
		case err != nil:
			t.Fatalf("%s: %v", dir, err)
		}
		for q := p.First; p.Msgs.Len() > 0; q++ {
			msgs[q-first] = bytes.Clone(p.Msgs.Next())
		}
	}
}

// A session that is being written is left to its capture.
func TestRepairBesideCapture(t *testing.T) {
	dir := t.TempDir()
	flippable(t, filepath.Join(dir, "a"), 1<<20)
	flippable(t, filepath.Join(dir, "b"), 1<<20)
	a, err := store.Open(filepath.Join(dir, "a"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	s, err := moldcast.ParseSession("FLIP")
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.Writer("feed", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run("repair", "FLIP", "--archive", filepath.Join(dir, "a"), "--from", filepath.Join(dir, "b"))
	if code != exitFault || !strings.Contains(stderr, "feed/FLIP is being captured: the capture itself asks") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run("repair", "FLIP", "--archive", filepath.Join(dir, "a"), "--from", filepath.Join(dir, "b")); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
