package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/moldtape/moldtape/moldcast"
)

// stateAt is a snapshot of size bytes.
func stateAt(q moldcast.Seq, size int) []byte {
	rng := rand.New(rand.NewPCG(uint64(q), uint64(size)))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func putSnapshot(t testing.TB, a *Archive, r Ref, q moldcast.Seq, b []byte) {
	t.Helper()
	if _, err := a.PutSnapshot(r, q, bytes.NewReader(b), "tester"); err != nil {
		t.Fatal(err)
	}
}

// getSnapshot is the newest at or before q.
func getSnapshot(a *Archive, r Ref, q moldcast.Seq) (moldcast.Seq, []byte, error) {
	sr, err := a.OpenSnapshot(r, q)
	if err != nil {
		return 0, nil, err
	}
	defer sr.Close()
	b, err := io.ReadAll(sr)
	return sr.Seq(), b, err
}

func snapshotsAt(t testing.TB, a *Archive, r Ref) (out []moldcast.Seq) {
	t.Helper()
	list, err := a.Snapshots(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		out = append(out, s.Seq)
	}
	return out
}

// What is stored is what is read, of whatever size; the newest at or before a
// sequence is found; nothing is overwritten; another take has its own.
func TestSnapshots(t *testing.T) {
	a := create(t, pruneOptions(vfs.NewMem()))
	defer a.Close()
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 1001}, 2)
	sizes := map[moldcast.Seq]int{1: 0, 50: 1, 100: SnapshotPiece - 1, 200: SnapshotPiece, 300: SnapshotPiece + 1, 1001: 5*SnapshotPiece + 77, 5000: snapshotSync + 1}
	for q, size := range sizes {
		if _, err := a.PutSnapshot(ref, q, iotest.HalfReader(bytes.NewReader(stateAt(q, size))), "tester"); err != nil {
			t.Fatal(err)
		}
	}
	for q, want := range map[moldcast.Seq]moldcast.Seq{0: 5000, 1: 1, 49: 1, 50: 50, 299: 200, 300: 300, 1000: 300, 1001: 1001, 4999: 1001, 1 << 60: 5000} {
		got, b, err := getSnapshot(a, ref, q)
		if err != nil || got != want || !bytes.Equal(b, stateAt(want, sizes[want])) {
			t.Errorf("at or before %d: %d, %d bytes, %v; want %d", q, got, len(b), err, want)
		}
	}
	list := show(t, a, ref).SnapshotList
	if len(list) != len(sizes) || list[1].Seq != 50 || list[1].Bytes != 1 || list[1].Time == nil || len(list[1].Sum) != 64 {
		t.Errorf("%+v", list)
	}
	if rep := verify(t, a); rep.Snapshots != len(sizes) || len(rep.Notes) != 0 {
		t.Errorf("%+v", rep)
	}

	log := func() int { return len(checkAudit(t, a)) }
	before := log()
	putSnapshot(t, a, ref, 50, stateAt(50, 1)) // the same: nothing changes
	if log() != before {
		t.Error("the same was put on record twice")
	}
	if _, err := a.PutSnapshot(ref, 50, strings.NewReader("other"), ""); !errors.Is(err, ErrSnapshotExists) {
		t.Errorf("another one: %v", err)
	}
	if _, b, _ := getSnapshot(a, ref, 50); !bytes.Equal(b, stateAt(50, 1)) {
		t.Errorf("%q", b)
	}
	for _, q := range []moldcast.Seq{0, ^moldcast.Seq(0)} {
		if _, err := a.PutSnapshot(ref, q, strings.NewReader("x"), ""); !errors.Is(err, ErrSnapshotSeq) {
			t.Errorf("at %d: %v", q, err)
		}
	}
	if _, err := a.PutSnapshot(Ref{Channel: "x", Session: ref.Session, Take: 1}, 1, strings.NewReader("x"), ""); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} { // the latter is an upload that breaks off
		if _, err := a.PutSnapshot(ref, 60, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)), ""); !errors.Is(err, broken) {
			t.Errorf("%v: %v", broken, err)
		}
	}

	take2 := ref
	take2.Take = 2
	w, err := a.Writer(take2.Channel, take2.Session, 2)
	if err != nil {
		t.Fatal(err)
	}
	put(t, w, piece(1, 5)) // beside a writer
	if _, _, err := getSnapshot(a, take2, 0); !errors.Is(err, ErrNoSnapshot) {
		t.Error(err)
	}
	putSnapshot(t, a, take2, 3, []byte("of the second"))
	if q, b, err := getSnapshot(a, take2, 0); q != 3 || string(b) != "of the second" || err != nil {
		t.Error(q, b, err)
	}
	w.Mark(moldcast.Mark{Kind: moldcast.End, Next: 6, Stamp: 9})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	putSnapshot(t, a, take2, 6, []byte("the last state"))
	if _, err := a.PutSnapshot(take2, 7, strings.NewReader("x"), ""); !errors.Is(err, ErrSnapshotSeq) {
		t.Errorf("beyond the end: %v", err)
	}

	if err := a.RemoveSnapshot(ref, 5000, "tester"); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveSnapshot(ref, 5000, "tester"); !errors.Is(err, ErrNoSnapshot) {
		t.Error(err)
	}
	if q, _, _ := getSnapshot(a, ref, 0); q != 1001 {
		t.Errorf("the newest is at %d", q)
	}
	if err := a.Hold(ref, "keep", ""); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveSnapshot(ref, 50, "tester"); !errors.Is(err, ErrOnHold) {
		t.Error(err)
	}
	verify(t, a)
}

// Those who store the same at one time agree; of those who store different
// bytes one is first, and the others are told.
func TestSnapshotsAtOneTime(t *testing.T) {
	o := pruneOptions(nil)
	o.FS, o.Clock = vfs.Default, nil
	dir := t.TempDir()
	a, err := OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 101}, 1)
	var wg sync.WaitGroup
	var stored, refused atomic.Int32
	for i := range 8 {
		wg.Go(func() {
			x, err := Open(dir, o) // as another process
			if err != nil {
				t.Error(err)
				return
			}
			defer x.Close()
			_, err = x.PutSnapshot(ref, 7, strings.NewReader(strings.Repeat(fmt.Sprint(i%2), 100_000)), "")
			switch {
			case err == nil:
				stored.Add(1)
			case errors.Is(err, ErrSnapshotExists):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if stored.Load() != 4 || refused.Load() != 4 {
		t.Errorf("%d stored, %d refused", stored.Load(), refused.Load())
	}
	verify(t, a)
	names, err := os.ReadDir(a.sessionDir(ref) + "/" + snapshotDir)
	if err != nil || len(names) != 1 {
		t.Errorf("%v %v", names, err)
	}
}

// Any flipped bit, and any cut, of the file of a snapshot is named, and none of
// it is given out; the older one is there all the same; another archive restores
// it.
func TestSnapshotDamage(t *testing.T) {
	base, peer := newMemFS(), newMemFS()
	var ref Ref
	good := stateAt(80, 2*SnapshotPiece+9)
	for _, fs := range []*memFS{base, peer} {
		a := create(t, pruneOptions(fs))
		ref = parts(t, a, "S", moldcast.Range{First: 1, Next: 101}, 1)
		putSnapshot(t, a, ref, 40, []byte("older"))
		putSnapshot(t, a, ref, 80, good)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	from := create(t, pruneOptions(peer))
	defer from.Close()
	path := from.o.FS.PathJoin(from.sessionDir(ref), snapshotDir, snapshotName(80))
	whole, err := readFile(peer, path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var cases [][]byte
	for at := range len(whole) {
		if at < snapshotHead || at > len(whole)-16 || rng.IntN(2000) == 0 {
			b := bytes.Clone(whole)
			b[at] ^= 1 << rng.IntN(8)
			cases = append(cases, b)
		}
	}
	for _, n := range []int{0, 1, snapshotHead - 1, snapshotHead, snapshotHead + 1, SnapshotPiece + snapshotHead, len(whole) - 1} {
		cases = append(cases, whole[:n])
	}
	cases = append(cases, append(bytes.Clone(whole), 0), nil)
	a := create(t, pruneOptions(base))
	defer a.Close()
	older, _ := readFile(peer, peer.PathJoin(from.sessionDir(ref), snapshotDir, snapshotName(40)))
	cases = append(cases, older) // a sound one, of another sequence
	for i, b := range cases {
		gone := b == nil
		if gone {
			if err := base.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else if err := writeSynced(base, path, b); err != nil {
			t.Fatal(err)
		}
		_, got, err := getSnapshot(a, ref, 90)
		var bad *SnapshotError
		switch {
		case gone:
			if err != nil || string(got) != "older" {
				t.Fatalf("case %d: %q %v", i, got, err)
			}
		case !errors.As(err, &bad) || bad.Seq != 80 || !bytes.HasPrefix(good, got) || len(got) == len(good) && len(b) == len(whole) && bytes.Equal(b[:snapshotHead], whole[:snapshotHead]):
			t.Fatalf("case %d: %d bytes, %v", i, len(got), err)
		}
		if _, got, err := getSnapshot(a, ref, 79); err != nil || string(got) != "older" {
			t.Fatalf("case %d: %q %v", i, got, err)
		}
		rep, err := a.Verify(context.Background(), nil, nil)
		if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].String(), "snapshots/00000000000000000080.snap (snapshot at 80)") {
			t.Fatalf("case %d: %v %v", i, rep.Faults, err)
		}
		if _, err := a.PutSnapshot(ref, 80, strings.NewReader("not what it was"), ""); !gone && !errors.Is(err, ErrSnapshotExists) {
			t.Fatalf("case %d: other bytes in its place: %v", i, err)
		} else if gone && err == nil { // it takes its place; both are in the log
			if err := a.RemoveSnapshot(ref, 80, ""); err != nil {
				t.Fatal(err)
			}
			putSnapshot(t, a, ref, 80, good)
			continue
		}
		sr, err := from.OpenSnapshot(ref, 80)
		if err != nil {
			t.Fatal(err)
		}
		restored, err := a.RestoreSnapshot(ref, sr, "tester", "peer")
		sr.Close()
		if err != nil || !restored {
			t.Fatalf("case %d: %v %v", i, restored, err)
		}
		if _, got, err := getSnapshot(a, ref, 0); err != nil || !bytes.Equal(got, good) {
			t.Fatalf("case %d: %d bytes %v", i, len(got), err)
		}
		verify(t, a)
	}
	if err := a.RemoveSnapshot(ref, 80, ""); err != nil {
		t.Fatal(err)
	}
	sr, err := from.OpenSnapshot(ref, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer sr.Close()
	if restored, err := a.RestoreSnapshot(ref, sr, "", "peer"); restored || err != nil {
		t.Errorf("what was removed on demand came back: %v", err)
	}
	// A file that nobody put there, and one that was exchanged, are named.
	fake := snapshotHeader{ref: ref, seq: 40, made: day0}
	if err := writeSnapshot(base, base.PathJoin(a.sessionDir(ref), snapshotDir, snapshotName(40)), &fake, strings.NewReader("forged"), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	rep, err := a.Verify(context.Background(), nil, nil)
	if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].Problem, "not what was stored") {
		t.Fatalf("%v %v", rep.Faults, err)
	}
}

// What is pruned takes with it the snapshots that it follows, and no other; a dry
// run says so; what cannot be joined is not taken.
func TestSnapshotsPruned(t *testing.T) {
	a := create(t, pruneOptions(newMemFS()))
	defer a.Close()
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 2401}, 6) // 400 each
	other := parts(t, a, "T", moldcast.Range{First: 1, Next: 101}, 1)
	for _, q := range []moldcast.Seq{1, 400, 401, 800, 801, 802, 2401} {
		putSnapshot(t, a, ref, q, stateAt(q, 10_000))
	}
	putSnapshot(t, a, other, 50, stateAt(1, 200_000))
	if err := a.Hold(other, "stays", ""); err != nil {
		t.Fatal(err)
	}
	segs := show(t, a, ref).SegmentList
	all, err := a.Prune(context.Background(), Retention{Keep: -1, MaxBytes: -1}, true, "")
	if err != nil || len(all.Items) != 0 {
		t.Fatalf("%+v %v", all, err)
	}
	// With the second segment four snapshots go, and their bytes are needed.
	limit := Retention{Keep: -1, MaxBytes: int64(all.BytesBefore - segs[0].BytesDisk - segs[1].BytesDisk - 3*10_000)}
	dry, err := a.Prune(context.Background(), limit, true, "")
	if err != nil || len(dry.Items) != 2 || len(dry.Snapshots) != 4 || dry.Snapshots[3].Seq != 800 || dry.Snapshots[0].Removed {
		t.Fatalf("%+v %v", dry, err)
	}
	if got := snapshotsAt(t, a, ref); len(got) != 7 {
		t.Fatalf("a dry run removed some: %v", got)
	}
	sr, err := a.OpenSnapshot(ref, 1) // a reader is not disturbed
	if err != nil {
		t.Fatal(err)
	}
	rep := prune(t, a, limit)
	if len(rep.Items) != 2 || len(rep.Snapshots) != 4 || !rep.Snapshots[0].Removed || rep.BytesAfter != dry.BytesAfter || rep.BytesAfter > uint64(limit.MaxBytes) {
		t.Fatalf("%+v, planned %+v", rep, dry)
	}
	if got := fmt.Sprint(snapshotsAt(t, a, ref)); got != "[801 802 2401]" {
		t.Fatalf("left are %v", got)
	}
	if b, err := io.ReadAll(sr); err != nil || !bytes.Equal(b, stateAt(1, 10_000)) {
		t.Error(err)
	}
	sr.Close()
	if _, err := a.PutSnapshot(ref, 800, strings.NewReader("x"), ""); !errors.Is(err, ErrPruned) {
		t.Errorf("one that cannot be joined: %v", err)
	}
	if got := snapshotsAt(t, a, other); len(got) != 1 {
		t.Errorf("one on hold was removed: %v", got)
	}
	verify(t, a)
	entries := checkAudit(t, a)
	last := entries[len(entries)-1]
	if last.Event != AuditSnapshotRemoved || last.FirstSeq != 1 || last.LastSeq != 800 || last.By != "tester" || last.Bytes == 0 {
		t.Errorf("%+v", last)
	}
}

// Whenever a put is killed, or the power goes, there is the whole snapshot or
// none; the archive is sound, the one before is there, and the same put, or the
// next prune, does what is left to do.
func TestSnapshotCrash(t *testing.T) {
	base := newMemFS()
	a := create(t, pruneOptions(base))
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 101}, 1)
	putSnapshot(t, a, ref, 40, []byte("before"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	state := stateAt(80, 3*SnapshotPiece+5)
	rng := rand.New(rand.NewPCG(5, 6))
	points, stored, noted := 0, 0, 0
	for after, done := int64(0), false; !done; after++ {
		for _, percent := range []int{0, 50, 100} {
			points++
			what := fmt.Sprintf("killed after %d writes, %d%% of the rest", after, percent)
			fs := base.crash(100, rng)
			a := create(t, pruneOptions(killed(fs, after)))
			_, err := a.PutSnapshot(ref, 80, bytes.NewReader(state), "")
			done = err == nil
			_ = a.Close()
			fs = fs.crash(percent, rng)

			a = create(t, pruneOptions(fs))
			q, b, err := getSnapshot(a, ref, 90)
			switch {
			case err != nil:
				t.Fatalf("%s: %v", what, err)
			case q == 80 && bytes.Equal(b, state):
				stored++
			case q == 40 && string(b) == "before" && !done:
			default:
				t.Fatalf("%s: %d, %d bytes (done %v)", what, q, len(b), done)
			}
			if len(verify(t, a).Notes) > 0 {
				noted++
			}
			if rng.IntN(2) == 0 {
				putSnapshot(t, a, ref, 80, state)
			}
			prune(t, a, Retention{Keep: -1, MaxBytes: -1})
			if rep := verify(t, a); len(rep.Notes) > 0 {
				t.Fatalf("%s: after a prune %v", what, rep.Notes)
			}
			names, err := fs.List(fs.PathJoin(a.sessionDir(ref), snapshotDir))
			if err != nil || strings.Contains(fmt.Sprint(names), tmpSuffix) {
				t.Fatalf("%s: after a prune there is %v %v", what, names, err)
			}
			checkAudit(t, a)
			_ = a.Close()
		}
	}
	if stored == 0 || noted == 0 {
		t.Errorf("of %d points %d have it and %d are noted: nothing is shown", points, stored, noted)
	}
	t.Logf("%d points: %d have it, %d not yet on record", points, stored, noted)
}

// The same of a removal, on demand and by a prune.
func TestSnapshotRemovalCrash(t *testing.T) {
	base := newMemFS()
	a := create(t, pruneOptions(base))
	ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 801}, 2)
	for _, q := range []moldcast.Seq{10, 20, 500} {
		putSnapshot(t, a, ref, q, stateAt(q, 100))
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	limit := Retention{Keep: -1, MaxBytes: 0}
	rng := rand.New(rand.NewPCG(7, 8))
	for after, done := int64(0), false; !done; after++ {
		what := fmt.Sprintf("killed after %d writes", after)
		fs := base.crash(100, rng)
		a := create(t, pruneOptions(killed(fs, after)))
		err := a.RemoveSnapshot(ref, 500, "")
		if err == nil {
			_, err = a.Prune(context.Background(), limit, false, "")
		}
		done = err == nil
		_ = a.Close()
		fs = fs.crash(rng.IntN(101), rng)
		a = create(t, pruneOptions(fs))
		verify(t, a)
		prune(t, a, Retention{Keep: -1, MaxBytes: -1})
		if rep := verify(t, a); len(rep.Notes) > 0 { // one that is on record as removed is there
			t.Fatalf("%s: %v", what, rep.Notes)
		}
		prune(t, a, limit)
		if q, _, err := getSnapshot(a, ref, 20); err == nil {
			t.Fatalf("%s: there is one at %d", what, q)
		}
		if rep := verify(t, a); len(rep.Notes) > 0 {
			t.Fatalf("%s: %v", what, rep.Notes)
		}
		checkAudit(t, a)
		_ = a.Close()
	}
}

// An error at any one write is told, and the same archive goes on.
func TestSnapshotFailedWrites(t *testing.T) {
	for n := int64(1); ; n++ {
		var at, count atomic.Int64
		fs := errorfs.Wrap(newMemFS(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if at.Load() > 0 && changes(op) && count.Add(1) == at.Load() {
				return errKilled
			}
			return nil
		}))
		a := create(t, pruneOptions(fs))
		ref := parts(t, a, "S", moldcast.Range{First: 1, Next: 101}, 1)
		at.Store(n)
		_, err := a.PutSnapshot(ref, 80, strings.NewReader("state"), "")
		failed := count.Load() >= n
		at.Store(0)
		if failed && err == nil && n < 4 {
			t.Errorf("write %d fails, and nothing is said", n)
		}
		verify(t, a)
		putSnapshot(t, a, ref, 80, []byte("state"))
		if _, b, err := getSnapshot(a, ref, 0); err != nil || string(b) != "state" {
			t.Fatalf("write %d fails: %q %v", n, b, err)
		}
		verify(t, a)
		_ = a.Close()
		if !failed {
			return
		}
	}
}

// What is read as a header is one, and reads back as it was.
func FuzzSnapshotHeader(f *testing.F) {
	h := snapshotHeader{ref: Ref{Channel: "itch", Session: sess(f, "S"), Take: 2}, seq: 7, made: day0, size: 9}
	b := h.encode()
	f.Add(b)
	f.Add(b[:40])
	f.Add([]byte(hex.EncodeToString(b)))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseSnapshotHeader(b)
		if b = bytes.Clone(b); len(b) >= snapshotHead { // else hardly any passes
			binary.BigEndian.PutUint32(b[snapshotHead-4:], crc32.Checksum(b[:snapshotHead-4], castagnoli()))
		}
		h, err := parseSnapshotHeader(b)
		if err != nil {
			if v := (*VersionError)(nil); !errors.Is(err, errSnapshotDamaged) && !errors.As(err, &v) {
				t.Fatalf("untyped: %v", err)
			}
			return
		}
		if ValidChannel(h.ref.Channel) && !bytes.Equal(h.encode(), b[:snapshotHead]) {
			t.Fatalf("%x came of %x", h.encode(), b[:snapshotHead])
		}
	})
}

func TestSnapshotNames(t *testing.T) {
	for _, q := range []moldcast.Seq{1, 484311999, 1 << 63, ^moldcast.Seq(0)} {
		if got, ok := parseSnapshotName(snapshotName(q)); !ok || got != q {
			t.Errorf("%d is %q is %d", q, snapshotName(q), got)
		}
	}
	for _, s := range []string{"", "1.snap", "00000000000000000000.snap", "18446744073709551616.snap", "99999999999999999999.snap", "0000000000000000000x.snap", "00000000000000000001.tmp"} {
		if q, ok := parseSnapshotName(s); ok {
			t.Errorf("%q is %d", s, q)
		}
	}
}
