package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// sealedThrice is a recording of three sealed segments.
func sealedThrice(t *testing.T, fs vfs.FS) (*Archive, Ref) {
	t.Helper()
	o := testOptions(fs)
	o.SegmentSize, o.Node = 1<<20, "the node"
	a := create(t, o)
	var ref Ref
	for i := range moldcast.Seq(3) {
		ref = closed(t, a, "S", 5, moldcast.Range{First: 1 + 500*i, Next: 501 + 500*i})
	}
	return a, ref
}

// contents are the files of an archive that Mend may restore.
func contents(t *testing.T, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			path := fs.PathJoin(dir, name)
			if st, err := fs.Stat(path); err != nil {
				t.Fatal(err)
			} else if st.IsDir() {
				walk(path)
			} else if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, prunedSuffix) || strings.HasSuffix(name, leavesSuffix) {
				b, err := readFile(fs, path)
				if err != nil {
					t.Fatal(err)
				}
				out[path] = string(b)
			}
		}
	}
	walk(dir)
	return out
}

// reopened is the archive as another process finds it.
func reopened(t *testing.T, a *Archive) *Archive {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := Open(a.dir, a.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// One flipped bit in any of the files around the messages: found by verify,
// turned back by Mend to the byte, and in the audit log.
func TestMendBits(t *testing.T) {
	fs := vfs.NewMem()
	a, ref := sealedThrice(t, fs)
	if err := a.Hold(ref, "case", "me"); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(ref, "closed", "me"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Prune(t.Context(), Retention{Keep: -1, MaxBytes: 25_000}, false, "me"); err != nil {
		t.Fatal(err)
	}
	if err := a.Hold(ref, "another", "me"); err != nil {
		t.Fatal(err)
	}
	good := contents(t, fs, "archive")
	kinds := map[string]int{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for path, was := range good {
		for range 4 {
			a = reopened(t, a)
			b := []byte(was)
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			write := func() {
				if err := writeFile(fs, fs.PathDir(path), fs.PathBase(path), b); err != nil {
					t.Fatal(err)
				}
			}
			write()
			a = reopened(t, a)
			rep, err := a.Verify(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(rep.Faults) == 0 && !strings.Contains(string(b[:12]), `"sum"`) {
				write() // the flip hid the sum; nothing is wrong with the rest
			} else if len(rep.Faults) == 0 {
				t.Fatalf("%s: verify finds nothing in\n%s", path, b)
			}
			out, err := a.Mend(ref, "me")
			if err != nil {
				t.Fatal(err)
			}
			if now := contents(t, fs, "archive"); now[path] != was && len(rep.Faults) > 0 {
				t.Fatalf("%s is not as it was: %v\n%s\n%s", path, out, was, now[path])
			}
			if len(rep.Faults) > 0 && (len(out) != 1 || !out[0].Restored || !out[0].Proven || !strings.HasSuffix(path, out[0].File)) {
				t.Fatalf("%s: %+v", path, out)
			}
			verify(t, a)
			e, _, err := a.AuditLog()
			if err != nil || len(rep.Faults) > 0 && (e[len(e)-1].Event != AuditRepair || e[len(e)-1].File != out[0].File || e[len(e)-1].By != "me") {
				t.Fatalf("%v %+v", err, e[len(e)-1])
			}
			if err := writeFile(fs, fs.PathDir(path), fs.PathBase(path), []byte(was)); err != nil {
				t.Fatal(err)
			}
			kinds[fs.PathBase(path)]++
		}
	}
	if len(kinds) != 6 { // moldtape, session, hold, seal, pruned, leaves
		t.Errorf("%v", kinds)
	}
}

// Whatever is wrong with a seal, or all of it lost: it is made again from its
// segment.
func TestMendSeals(t *testing.T) {
	for _, hurt := range []struct {
		name string
		do   func(b []byte) []byte // nil: it is removed
	}{
		{"zeroed", func(b []byte) []byte { clear(b[len(b)/2:][:100]); return b }},
		{"hashes", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("1"), []byte("2")) }},
		{"cut", func(b []byte) []byte { return b[:len(b)*2/3] }},
		{"empty", func([]byte) []byte { return []byte{} }},
		{"gone", nil},
	} {
		for seg := 1; seg <= 3; seg++ {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprint(hurt.name, seg, lost), func(t *testing.T) {
					fs := vfs.NewMem()
					a, ref := sealedThrice(t, fs)
					dir := fs.PathJoin(a.sessionDir(ref), segmentName(seg))
					was, err := readFile(fs, fs.PathJoin(dir, sealFile))
					if err != nil {
						t.Fatal(err)
					}
					var left []byte
					if hurt.do == nil {
						err = fs.Remove(fs.PathJoin(dir, sealFile))
					} else {
						left = hurt.do(bytes.Clone(was))
						err = writeFile(fs, dir, sealFile, left)
					}
					if err == nil && lost {
						err = fs.Remove(fs.PathJoin(a.sessionDir(ref), sessionFile))
					}
					if err != nil {
						t.Fatal(err)
					}
					a = reopened(t, a)
					out, err := a.Mend(ref, "me")
					if err != nil {
						t.Fatal(err)
					}
					now, _ := readFile(fs, fs.PathJoin(dir, sealFile))
					proof := seg < 3 || !lost || ownSum(left) == ownSum(was)
					switch {
					case seg == 3 && lost && hurt.do == nil:
						if now != nil {
							t.Error("a segment of which nothing says that it was sealed has a seal")
						}
					case proof != bytes.Equal(now, was):
						t.Errorf("%v\n%s\n%s", out, was, now)
					case !out[0].Restored || out[0].Proven != proof:
						t.Errorf("%+v", out)
					}
					rep, err := a.Verify(t.Context(), nil, nil)
					if err != nil || len(rep.Faults) > 0 || rep.Messages != 1500 {
						t.Errorf("%v %+v", err, rep)
					}
					if notes := len(rep.Notes); !proof && hurt.do != nil != (notes == 1) {
						t.Errorf("%+v", rep.Notes)
					}
					a = reopened(t, a)
					closed(t, a, "S", 9, moldcast.Range{First: 1501, Next: 1601}) // the chain goes on
					verify(t, a)
				})
			}
		}
	}
}

// Where what a segment holds is not what was sealed, no seal is made for it.
func TestMendRefuses(t *testing.T) {
	fs := vfs.NewMem()
	a, ref := sealedThrice(t, fs)
	dir := fs.PathJoin(a.sessionDir(ref), segmentName(2))
	b, err := readFile(fs, fs.PathJoin(dir, sealFile))
	if err != nil {
		t.Fatal(err)
	}
	x, err := parseSeal(b)
	if err != nil {
		t.Fatal(err)
	}
	x.BlockHashes[0] = hex.EncodeToString(make([]byte, 32))
	b, err = x.encode()
	if err != nil {
		t.Fatal(err)
	}
	b[len(sealHead)] ^= 1
	if err := writeFile(fs, dir, sealFile, b); err != nil {
		t.Fatal(err)
	}
	third := fs.PathJoin(a.sessionDir(ref), segmentName(3))
	c, err := readFile(fs, fs.PathJoin(third, sealFile))
	if err != nil {
		t.Fatal(err)
	}
	y, err := parseSeal(c)
	if err != nil {
		t.Fatal(err)
	}
	y.Prev = strings.Repeat("ab", 32)
	if c, err = y.encode(); err == nil {
		err = writeFile(fs, third, sealFile, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	a = reopened(t, a)
	out, err := a.Mend(ref, "me")
	if err != nil || len(out) != 1 || out[0].Restored || !strings.Contains(out[0].How, "others name abab") {
		t.Errorf("%v %+v", err, out)
	}
	now, err := readFile(fs, fs.PathJoin(dir, sealFile))
	if err != nil || !bytes.Equal(now, b) {
		t.Errorf("it was changed: %v", err)
	}
}

// A hold of which nothing can be read is made again from the audit log; so is
// one that is missing. Without that it is named, and protects.
func TestMendHold(t *testing.T) {
	for _, b := range [][]byte{nil, {}, []byte(`{"reason":"x`)} {
		fs := vfs.NewMem()
		a, ref := sealedThrice(t, fs)
		if err := a.Hold(ref, "case 7", "me"); err != nil {
			t.Fatal(err)
		}
		dir := a.sessionDir(ref)
		was, err := a.readHold(ref)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			err = fs.Remove(fs.PathJoin(dir, holdFile))
		} else {
			err = writeFile(fs, dir, holdFile, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		rep, err := a.Verify(t.Context(), nil, nil)
		if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].Problem, holdFile) {
			t.Errorf("%v %+v", err, rep.Faults)
		}
		out, err := a.Mend(ref, "you")
		if err != nil || len(out) != 1 || !out[0].Restored || out[0].Proven {
			t.Errorf("%v %+v", err, out)
		}
		h, err := a.readHold(ref)
		if err != nil || h == nil || h.Reason != was.Reason || h.By != was.By || h.Time.Sub(was.Time).Abs() > time.Hour {
			t.Errorf("%v %+v, was %+v", err, h, was)
		}
		verify(t, a)
		if b == nil {
			continue
		}
		if err := fs.Remove(fs.PathJoin("archive", auditFile)); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(fs, dir, holdFile, b); err != nil {
			t.Fatal(err)
		}
		if out, err := a.Mend(ref, "you"); err != nil || len(out) != 1 || out[0].Restored {
			t.Errorf("%v %+v", err, out)
		}
		if h, err := a.readHold(ref); err != nil || h == nil || !h.damaged {
			t.Errorf("%v %+v", err, h)
		}
	}
}

// What of the audit log cannot be mended is acknowledged: verify names it, and
// is content; the log itself is not.
func TestMendAcknowledges(t *testing.T) {
	fs := vfs.NewMem()
	a, ref := sealedThrice(t, fs)
	for range 3 {
		if err := a.Audit(AuditEntry{Event: AuditSeal, Session: "c/old"}); err != nil {
			t.Fatal(err)
		}
	}
	path := fs.PathJoin("archive", auditFile)
	b, err := readFile(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(fs, "archive", auditFile, bytes.Replace(b, []byte("c/old"), []byte("c/new"), 1)); err != nil {
		t.Fatal(err)
	}
	if err := a.Audit(AuditEntry{Event: AuditSeal}); err != nil { // nobody was asked
		t.Fatal(err)
	}
	rep, err := a.Verify(t.Context(), nil, nil)
	if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].Problem, "audit.log line 2") {
		t.Errorf("%v %+v", err, rep.Faults)
	}
	if out, err := a.Mend(ref, "me"); err != nil || len(out) != 1 || out[0].Restored || !strings.Contains(out[0].How, "line 2") {
		t.Errorf("%v %+v", err, out)
	}
	if out, err := a.Mend(ref, "me"); err != nil || len(out) != 0 {
		t.Errorf("again: %v %+v", err, out)
	}
	rep, err = a.Verify(t.Context(), nil, nil)
	if err != nil || len(rep.Faults) != 0 || len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0].Problem, "acknowledged in line 6") {
		t.Errorf("%v %+v", err, rep)
	}
	if _, _, err := a.AuditLog(); !errors.As(err, new(*AuditError)) {
		t.Errorf("the log looks whole: %v", err)
	}
}

// A seal that is gone is made again, to the byte, by whoever opens the
// recording next: a segment that was sealed is never taken for one that was not.
func TestSealGone(t *testing.T) {
	for n := 1; n <= 3; n++ {
		for _, how := range []string{"read", "written"} {
			t.Run(fmt.Sprintf("%d %s", n, how), func(t *testing.T) {
				fs := vfs.NewMem()
				a, ref := sealedThrice(t, fs)
				path := fs.PathJoin(a.sessionDir(ref), segmentName(n), sealFile)
				was, err := readFile(fs, path)
				if err != nil {
					t.Fatal(err)
				}
				if err := fs.Remove(path); err != nil {
					t.Fatal(err)
				}
				a = reopened(t, a)
				r := moldcast.Range{First: 1, Next: 1501}
				if how == "written" {
					w := writer(t, a, "S")
					fillRange(t, w, moldcast.Range{First: 1501, Next: 1601}, 5)
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					r.Next = 1601
				}
				check(t, view(t, a, ref), r)
				if is, err := readFile(fs, path); err != nil || !bytes.Equal(is, was) {
					t.Errorf("%v\n%s\nwas\n%s", err, is, was)
				}
				verify(t, a)
			})
		}
	}
}
