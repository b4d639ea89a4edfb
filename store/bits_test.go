package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A flipped bit of an audit log, wherever it is, is turned back where the line
// after it proves that; in the last line it is not, and nothing else is made up.
func TestUnflipAudit(t *testing.T) {
	fs := vfs.NewMem()
	a := create(t, pruneOptions(fs))
	defer a.Close()
	for i := range 4 { // the first, those between, and the last
		if err := a.Audit(AuditEntry{Event: AuditHold, Session: fmt.Sprint("J*/S", i), Reason: "a reason", By: "JJ"}); err != nil {
			t.Fatal(err)
		}
	}
	good, err := readFile(fs, fs.PathJoin("archive", auditFile))
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(good[:len(good)-1], '\n') + 1
	every := 7
	switch {
	case raceEnabled:
		every = 61 // one goroutine
	case os.Getenv("MOLDTAPE_LONG") != "":
		every = 1
	}
	for at := range good {
		for bit := range 8 {
			if (8*at+bit)%every != 0 {
				continue
			}
			b := bytes.Clone(good)
			b[at] ^= 1 << bit
			_, torn, err := parseAudit(b)
			lines := unflipAudit(b)
			switch {
			case at < last && (err == nil || len(lines) == 0 || !bytes.Equal(b, good)):
				t.Fatalf("byte %d bit %d: %v, mended %v", at, bit, err, lines)
			case at >= last && len(lines) > 0 && !bytes.Equal(b, good):
				t.Fatalf("byte %d bit %d of the last line: %v, mended %v", at, bit, err, lines)
			case torn && at < last:
				t.Fatalf("byte %d bit %d: torn", at, bit)
			}
		}
	}
	// More than one bit is nothing that it could prove.
	b := bytes.Replace(good, []byte("S2"), []byte("S5"), 1)
	bad := bytes.Clone(b)
	if lines := unflipAudit(b); len(lines) > 0 || !bytes.Equal(b, bad) {
		t.Errorf("an edited line is mended: %v", lines)
	}
}

// On a broken log everything is recorded all the same, the break is named in
// it once, and stays visible.
func TestAuditOfBrokenLog(t *testing.T) {
	fs := vfs.NewMem()
	a := create(t, pruneOptions(fs))
	defer a.Close()
	for i := range 4 {
		if err := a.Audit(AuditEntry{Event: AuditHold, Session: fmt.Sprint("c/S", i)}); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := readFile(fs, fs.PathJoin("archive", auditFile))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte{'\n'})[:4]
	long := bytes.Repeat([]byte{'x'}, 2*maxAuditLine)
	for _, c := range []struct {
		name string
		b    [][]byte
		line []int
	}{
		{"edited", [][]byte{lines[0], bytes.Replace(lines[1], []byte("S1"), []byte("S7"), 1), lines[2], lines[3]}, []int{3}},
		{"removed", [][]byte{lines[0], lines[2], lines[3]}, []int{2}},
		{"no entry", [][]byte{lines[0], lines[1], lines[2], []byte("what\n"), lines[3]}, []int{4, 5}},
		{"last no entry", [][]byte{lines[0], lines[1], []byte("what\n")}, []int{3}},
		{"last no text", [][]byte{lines[0], lines[1], bytes.Replace(lines[2], []byte("S2"), []byte("\xd32"), 1)}, []int{3}},
		{"endless", [][]byte{lines[0], long}, []int{2}},
		{"long", [][]byte{lines[0], long, {'\n'}}, []int{2}},
	} {
		if err := writeFile(fs, "archive", auditFile, bytes.Join(c.b, nil)); err != nil {
			t.Fatal(err)
		}
		was, _, err := a.AuditLog()
		if err == nil {
			t.Fatalf("%s: the chain is whole", c.name)
		}
		for _, s := range []string{"c/new", "c/newer"} {
			if err := a.Audit(AuditEntry{Event: AuditPrune, Session: s}); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		e, torn, err := a.AuditLog()
		var broken *AuditError
		if !errors.As(err, &broken) || torn {
			t.Fatalf("%s: %v", c.name, err)
		}
		if n := len(was); len(e) != n+3 || e[n].Event != AuditBroken || fmt.Sprint(e[n].Broken) != fmt.Sprint(c.line) || e[n+1].Session != "c/new" || e[n+2].Session != "c/newer" {
			t.Errorf("%s: %+v", c.name, e[n:])
		}
		for i, b := range broken.Breaks {
			if b.Line != c.line[i] || b.Recorded == 0 || b.Acknowledged != 0 {
				t.Errorf("%s: %+v", c.name, b)
			}
		}
		// A second break is another.
		now, err := readFile(fs, fs.PathJoin("archive", auditFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := writeFile(fs, "archive", auditFile, bytes.Replace(now, []byte(`"c/new"`), []byte(`"c/old"`), 1)); err != nil {
			t.Fatal(err)
		}
		if err := a.Audit(AuditEntry{Event: AuditPruned}); err != nil {
			t.Fatal(err)
		}
		more, _, err := a.AuditLog()
		if n := len(e); len(more) != n+2 || more[n].Event != AuditBroken || len(more[n].Broken) != 1 || !errors.As(err, &broken) || len(broken.Breaks) != len(c.line)+1 {
			t.Errorf("%s: %v, %+v", c.name, err, more[n:])
		}
	}
}
