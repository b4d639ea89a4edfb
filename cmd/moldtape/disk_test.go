package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

// big is the seq-th message of the streams here: 1000 bytes that do not
// compress, so that disks fill.
func big(seq moldcast.Seq) []byte {
	r := rand.New(rand.NewPCG(uint64(seq), 12))
	b := make([]byte, 0, 1008)
	for len(b) < 1000 {
		x := r.Uint64()
		b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56))
	}
	return b
}

func bigPacket(first, next moldcast.Seq) []byte {
	b := moldcast.AppendHeader(nil, session, first, uint16(next-first))
	for q := first; q < next; q++ {
		b = moldcast.AppendMessage(b, big(q))
	}
	return b
}

func bigFile(next moldcast.Seq) []byte {
	var b []byte
	for q := moldcast.Seq(1); q < next; q++ {
		b = moldcast.AppendMessage(b, big(q))
	}
	return b
}

// nested says that the test runs in a namespace of its own, made by itself.
const nested = "MOLDTAPE_TEST_NESTED"

// tmpfs mounts a file system of so many bytes. Who may not mount runs the test
// again in namespaces of its own; ok is false in the outer one.
func tmpfs(t *testing.T, size int) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if err == nil {
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return dir, true
	}
	if !errors.Is(err, syscall.EPERM) || os.Getenv(nested) != "" {
		t.Fatalf("tmpfs: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), nested+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	switch exit := (*exec.ExitError)(nil); {
	case err == nil:
		t.Logf("in namespaces of its own:\n%s", out)
	case errors.As(err, &exit):
		t.Errorf("in namespaces of its own: %v\n%s", err, out)
	default:
		// The store's tests of a full disk, with a file system that fails, run
		// in any case.
		t.Logf("nothing can be mounted here: %v", err)
	}
	return "", false
}

// feed sends the stream of big messages.
type feed struct {
	t    *testing.T
	src  *source
	out  *net.UDPConn
	next moldcast.Seq
	pace pacer
}

// send sends the next n messages, but for every skip-th.
func (f *feed) send(n, skip int) {
	f.t.Helper()
	for i := range n {
		f.src.published(f.next + 1)
		if skip == 0 || i%skip != skip-1 {
			_, _ = f.out.Write(bigPacket(f.next, f.next+1))
		}
		f.next++
		f.pace.wait(f.next)
	}
}

// heartbeat says what comes next.
func (f *feed) heartbeat() {
	_, _ = f.out.Write(moldcast.AppendHeader(nil, session, f.next, 0))
}

// ballast fills a file system up.
func ballast(t *testing.T, name string, size int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	for n := 0; size == 0 || n < size; n += len(b) {
		if _, err := f.Write(b); err != nil {
			if size == 0 && errors.Is(err, syscall.ENOSPC) {
				return
			}
			t.Fatal(err)
		}
	}
}

func durableSeq(t *testing.T, s map[string]any) moldcast.Seq {
	t.Helper()
	return moldcast.Seq(num(t, s["sessions"].([]any)[0].(map[string]any), "durable_seq"))
}

// onlyChannel is the only channel of /status.
func onlyChannel(t *testing.T, addr string) map[string]any {
	t.Helper()
	return httpStatus(t, addr)["channels"].([]any)[0].(map[string]any)
}

// A disk that fills up under a capture: it says so, receives and answers on,
// goes on by itself once there is room, and stops when there is none (how soon
// is for the tests of the store to say, without a clock); nothing below the durable watermark is lost, and the rest is repaired.
func TestFullDisk(t *testing.T) {
	const size = 64 << 20
	dir, ok := tmpfs(t, size)
	if !ok {
		return
	}
	work := t.TempDir()
	archive := filepath.Join(dir, "archive")
	src := newSourceOf(t, 1<<20, 0, 1, bigPacket)
	start := func(more ...string) (p *proc, ready map[string]any) {
		p = moldtape(t, work, append([]string{"capture", "--archive", archive, "--line", "127.0.0.1:0", "--rerequest", src.addr(),
			"--retransmit-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--segment-size", "1MiB", "--nak-budget", "1h"}, more...)...)
		return p, p.event("ready")
	}
	capture, ready := start()
	http := ready["http"].(string)
	f := &feed{t: t, src: src, out: lineAddrs(t, ready)[0], next: 1, pace: pacer{rate: 8000}}

	f.send(300, 0)
	waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "messages") == 300 && durableSeq(t, s) == 301 })
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(archive, "reserve"), &st); err != nil || st.Blocks*512 < 16<<20 {
		t.Errorf("the reserve has %d blocks: %v", st.Blocks, err)
	}
	if code, m := httpGet(t, http, "/healthz"); code != 200 || m["status"] != "ok" {
		t.Errorf("healthz: %d %v", code, m)
	}

	weight := filepath.Join(dir, "ballast")
	var room unix.Statfs_t
	if err := unix.Statfs(dir, &room); err != nil {
		t.Fatal(err)
	}
	ballast(t, weight, max(1, int(room.Bavail)*int(room.Bsize)-4<<20))
	// all waits until everything sent is held: what was dropped last is told with
	// the next.
	all := func(ok func(map[string]any) bool) {
		t.Helper()
		waitStatus(t, http, func(s map[string]any) bool {
			f.heartbeat()
			return num(t, s, "messages") == int(f.next-1) && ok(s)
		})
	}
	held := func(map[string]any) bool { return true }
	failing := func(s map[string]any) bool { return s["storage"].(map[string]any)["state"] == "failing" }
	for code := 0; code != 503; {
		f.send(100, 0)
		if f.next > 60_000 {
			t.Fatal("the disk does not fill")
		}
		var m map[string]any
		code, m = httpGet(t, http, "/healthz")
		if code == 503 && (m["status"] != "degraded" || m["channels"].([]any)[0].(map[string]any)["channel"] != "default") {
			t.Fatalf("healthz: %v", m)
		}
	}
	full := f.next
	f.send(1500, 11)
	all(held)
	s := onlyChannel(t, http)
	storage := s["storage"].(map[string]any)
	if !failing(s) || num(t, storage, "waiting_bytes") < 1000*1000 || storage["since"] == nil ||
		!strings.Contains(storage["error"].(string), "no ") || !strings.Contains(storage["advice"].(string), "free room") {
		t.Errorf("storage: %v", storage)
	}
	stuck := durableSeq(t, onlyChannel(t, http))
	if stuck > full {
		t.Errorf("durable_seq %d though the disk is full since about %d", stuck, full)
	}

	// What is held is served, from the disk and from memory.
	a := newAsker(t, ready["retransmit"].(string))
	for _, q := range []moldcast.Seq{1, stuck / 2, stuck - 1, stuck + 1, f.next - 1} {
		r := moldcast.Request{Session: session, First: q, Count: 1}
		p, err := moldcast.Parse(a.ask(r, r))
		if err != nil || p.First != q || !bytes.Equal(p.Msgs.Next(), big(q)) {
			t.Fatalf("answer for %d: %v", q, err)
		}
	}
	if len(capture.lines) > 0 {
		t.Fatal("the capture has stopped")
	}

	// Room: it goes on by itself.
	if err := os.Remove(weight); err != nil {
		t.Fatal(err)
	}
	f.send(500, 7)
	all(func(s map[string]any) bool { return !failing(s) && durableSeq(t, s) == f.next })
	if code, m := httpGet(t, http, "/healthz"); code != 200 {
		t.Errorf("healthz: %d %v", code, m)
	}

	// Full again, and stopped.
	ballast(t, weight, 0)
	for !failing(onlyChannel(t, http)) {
		f.send(100, 0)
	}
	f.send(long(40_000, 2000), 0)
	all(held)
	before := durableSeq(t, onlyChannel(t, http))
	begun := time.Now()
	capture.signal(syscall.SIGTERM)
	stopped := capture.event("stopped")
	took := time.Since(begun)
	durable := moldcast.Seq(num(t, stopped, "durable_seq"))
	if durable == f.next {
		capture.exit(0) // the reserve, and what seals freed, was enough
		if f.next > 40_000 {
			t.Error("more fit on the disk than it has room for")
		}
	} else {
		capture.exit(1)
		if said := capture.err.String(); !strings.Contains(said, "not durable") {
			t.Errorf("stderr does not say what is not durable: %s", said[max(0, len(said)-400):])
		}
	}
	if durable < before {
		t.Errorf("durable_seq fell from %d to %d", before, durable)
	}
	t.Logf("full at %d, stopped in %v with %d of %d durable, %d before", full, took.Round(time.Millisecond), durable-1, f.next-1, before-1)
	if n := strings.Count(capture.err.String(), "archive fails"); n < 2 || n > 4 {
		t.Errorf("the log says %d times that the archive fails", n)
	}
	export := func(next moldcast.Seq, args ...string) {
		t.Helper()
		file := filepath.Join(work, "out.bin")
		run(t, work, 0, append([]string{"export", "E2E", "--archive", archive, "-o", file, "--format", "binaryfile"}, args...)...)
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, bigFile(next)) {
			t.Fatalf("the export up to %d differs: %v", next-1, err)
		}
	}
	export(durable, "--to-seq", fmt.Sprint(durable-1))

	// The next capture repairs what is missing.
	if err := os.Remove(weight); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", 4*size)); err != nil {
		t.Fatal(err)
	}
	capture, ready = start("--until-end", "--strict")
	f.out = lineAddrs(t, ready)[0]
	f.send(100, 0)
	capture.ended(f.next, f.out)
	capture.exit(0)
	export(f.next)
	run(t, work, 0, "verify", "--archive", archive)
}

// What an import reports as new is what is on the disk; what did not come there
// is told, and comes with another import.
func TestImportFullDisk(t *testing.T) {
	const next = 28_001 // 28 MB
	dir, ok := tmpfs(t, 24<<20)
	if !ok {
		return
	}
	work := t.TempDir()
	archive, file := filepath.Join(dir, "archive"), filepath.Join(work, "in.bin")
	if err := os.WriteFile(file, bigFile(next), 0o644); err != nil {
		t.Fatal(err)
	}
	var sum struct {
		Messages  int
		NotStored int `json:"not_stored"`
		Sessions  []map[string]any
		Faults    []map[string]any `json:"fault_list"`
	}
	run := func(code int, args ...string) string {
		t.Helper()
		return run(t, work, code, append(args, "--archive", archive)...)
	}
	if err := json.Unmarshal([]byte(run(1, "import", file, "--codec", "row", "--session", "E2E", "--json")), &sum); err != nil {
		t.Fatal(err)
	}
	s := sum.Sessions[0]
	if sum.Messages == 0 || sum.NotStored == 0 || num(t, s, "next_seq") != sum.Messages+1 || num(t, s, "head_seq") != sum.Messages+1 {
		t.Errorf("%d messages, %d not stored: %v", sum.Messages, sum.NotStored, s)
	}
	if f := sum.Faults; len(f) != 1 || f[0]["session"] != "default/E2E" || num(t, f[0], "first_seq") != sum.Messages+1 || num(t, f[0], "last_seq") != sum.Messages+sum.NotStored {
		t.Errorf("faults: %v", f)
	}
	out := filepath.Join(work, "out.bin")
	run(0, "export", "E2E", "-o", out, "--to-seq", fmt.Sprint(sum.Messages))
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, bigFile(moldcast.Seq(sum.Messages+1))) {
		t.Errorf("what was reported as new is not there: %v", err)
	}
	if text := run(1, "import", file, "--codec", "row", "--session", "E2F"); !strings.Contains(text, " not stored") {
		t.Errorf("not told: %s", text)
	}

	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=128m"); err != nil {
		t.Fatal(err)
	}
	run(0, "import", file, "--codec", "row", "--session", "E2E")
	run(0, "export", "E2E", "-o", out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, bigFile(next)) {
		t.Errorf("the second import is not complete: %v", err)
	}
}

// An archive that is not there any more, as after an unmount: nothing is made
// in its place, and once it is back the capture goes on.
func TestVanishedArchive(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "archive")
	src := newSource(t, 1<<20, 0)
	capture := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.addr(), "--http", "127.0.0.1:0", "--sync", "5ms", "--nak-budget", "1h")
	ready := capture.event("ready")
	http, out := ready["http"].(string), lineAddrs(t, ready)[0]
	q := moldcast.Seq(1)
	send := func() {
		src.published(q + 10)
		_, _ = out.Write(packet(q, q+10))
		q += 10
		<-time.After(2 * time.Millisecond)
	}
	state := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(hang); ; {
			send()
			storage := onlyChannel(t, http)["storage"].(map[string]any)
			if storage["state"] == want {
				if want == "failing" && !strings.Contains(storage["advice"].(string), "mount") {
					t.Errorf("storage: %v", storage)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("storage stays %v", storage)
			}
		}
	}
	for range 20 {
		send()
	}
	waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "messages") == 200 && durableSeq(t, s) == 201 })
	if err := os.Rename(archive, archive+".away"); err != nil {
		t.Fatal(err)
	}
	state("failing")
	for range 20 {
		send()
	}
	if _, err := os.Stat(archive); err == nil {
		t.Error("an archive was made where the old one was")
	}
	if err := os.Rename(archive+".away", archive); err != nil {
		t.Fatal(err)
	}
	state("ok")
	waitStatus(t, http, func(s map[string]any) bool {
		_, _ = out.Write(moldcast.AppendHeader(nil, session, q, 0))
		return num(t, s, "messages") == int(q-1) && durableSeq(t, s) == q
	})
	capture.signal(syscall.SIGTERM)
	capture.event("stopped")
	capture.exit(0)
	if !bytes.Equal(exported(t, dir, "E2E"), binaryFile(1, q)) {
		t.Error("the export differs from what was published")
	}
	run(t, dir, 0, "verify")
}
