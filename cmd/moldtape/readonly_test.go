package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

// A capture is killed, and its file system comes back read-only: all that reads
// does, what was not sealed included; all that writes says why not. (A kernel
// lets nobody turn it read-only under a capture that writes; what does, an
// error of the disk, is simulated in package store.) Writable again, the
// capture goes on and repairs the rest.
func TestReadOnlyArchive(t *testing.T) {
	dir, ok := tmpfs(t, 256<<20)
	if !ok {
		return
	}
	work, archive := t.TempDir(), filepath.Join(dir, "archive")
	src := newSourceOf(t, 1<<20, 0, 1, bigPacket)
	start := func(more ...string) (p *proc, ready map[string]any) {
		p = moldtape(t, work, append([]string{"capture", "--archive", archive, "--line", "127.0.0.1:0", "--rerequest", src.addr(),
			"--http", "127.0.0.1:0", "--segment-size", "512KiB", "--sync", "5ms", "--nak-budget", "1h"}, more...)...)
		return p, p.event("ready")
	}
	capture, ready := start()
	f := &feed{t: t, src: src, out: lineAddrs(t, ready)[0], next: 1, pace: pacer{rate: 4000}}
	f.send(1500, 9)
	waitStatus(t, ready["http"].(string), func(s map[string]any) bool {
		f.heartbeat()
		return num(t, s, "messages") == 1500 && durableSeq(t, s) == 1501
	})
	remount := func(flags uintptr) error { return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, "") }
	if err := remount(unix.MS_RDONLY); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("read-only under a capture: %v", err)
	}
	capture.signal(syscall.SIGKILL)
	capture.exit(-1)
	if err := remount(unix.MS_RDONLY); err != nil {
		t.Fatal(err)
	}

	export := func(next moldcast.Seq) {
		t.Helper()
		file := filepath.Join(work, "out.bin")
		run(t, work, 0, "export", "E2E", "--archive", archive, "-o", file, "--format", "binaryfile")
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, bigFile(next)) {
			t.Fatalf("the export differs: %v", err)
		}
	}
	export(1501)
	if out := run(t, work, 0, "sessions", "--archive", archive, "--json"); !strings.Contains(out, `"next_seq":1501`) || !strings.Contains(out, `"state":"open"`) {
		t.Errorf("sessions: %s", out)
	}
	run(t, work, 0, "show", "E2E", "--archive", archive)
	run(t, work, 0, "verify", "--archive", archive)
	run(t, work, 0, "audit", "--archive", archive)
	input := filepath.Join(work, "in.bin")
	if err := os.WriteFile(input, bigFile(10), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"capture", "--line", "127.0.0.1:0", "--until-end", "--end-timeout", "2s"},
		{"import", input, "--session", "NEW", "--channel", "new"},
		{"hold", "E2E", "--reason", "case"},
		{"prune", "--keep", "0"},
	} {
		p := moldtape(t, work, append(args, "--archive", archive)...)
		if args[0] == "capture" {
			p.event("ready") // it finds out at the first packet, and there is none
		}
		p.exit(1)
		if said := p.err.String(); args[0] != "capture" && !strings.Contains(said, "read-only file system") {
			t.Errorf("%v: %s", args, said)
		}
	}

	if err := remount(0); err != nil {
		t.Fatal(err)
	}
	capture, ready = start("--until-end", "--strict")
	f.out = lineAddrs(t, ready)[0]
	f.send(500, 9)
	capture.ended(f.next, f.out)
	capture.exit(0)
	export(f.next)
	run(t, work, 0, "verify", "--archive", archive)
}

// A disk that is full for longer than the memory for it lasts: what comes then
// is refused and counted, no more is held than the bound, what is held is
// served; with room, it is written, and what was refused is repaired.
func TestBackpressure(t *testing.T) {
	const queue = 4 << 20
	dir, ok := tmpfs(t, 256<<20)
	if !ok {
		return
	}
	work, archive := t.TempDir(), filepath.Join(dir, "archive")
	src := newSourceOf(t, 1<<20, 0, 1, bigPacket)
	config := fmt.Sprintf("archive: %s\nhttp: 127.0.0.1:0\nsegment_size: 1MiB\nqueue_bytes: %d\ndefaults:\n  rerequest: [%s]\n  nak_budget: 1h\n  reorder_bytes: 2MiB\nchannels:\n  - {name: default, lines: ['127.0.0.1:0']}\n", archive, queue, src.addr())
	if err := os.WriteFile(filepath.Join(work, "node.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	capture := moldtape(t, work, "capture", "--config", "node.yaml")
	ready := capture.event("ready")
	http := ready["http"].(string)
	f := &feed{t: t, src: src, out: lineAddrs(t, ready)[0], next: 1, pace: pacer{rate: 6000}}
	f.send(300, 0)
	waitStatus(t, http, func(s map[string]any) bool { return durableSeq(t, s) == 301 })
	weight := filepath.Join(dir, "ballast")
	ballast(t, weight, 0)
	f.send(3*queue/1000, 0)
	var refused float64
	waitStatus(t, http, func(s map[string]any) bool {
		f.heartbeat()
		storage := s["storage"].(map[string]any)
		if waiting := num(t, storage, "waiting_bytes"); waiting > queue {
			t.Fatalf("%d bytes wait, the bound is %d", waiting, queue)
		}
		refused = s["queue_dropped"].(float64)
		return storage["state"] == "failing" && refused > 0
	})
	if got := num(t, onlyChannel(t, http), "messages"); got >= int(f.next)-1 || got < queue/1500 {
		t.Errorf("%d messages are held of %d", got, f.next-1)
	}
	if err := os.Remove(weight); err != nil {
		t.Fatal(err)
	}
	f.send(100, 0)
	waitStatus(t, http, func(s map[string]any) bool {
		f.heartbeat()
		return num(t, s, "messages") == int(f.next-1) && durableSeq(t, s) == f.next
	})
	capture.signal(syscall.SIGTERM)
	stopped := capture.event("stopped")
	capture.exit(0)
	if num(t, stopped, "messages_lost") != 0 || num(t, stopped, "holes") != 0 {
		t.Errorf("%v", stopped)
	}
	t.Logf("%v messages refused, all repaired", refused)
	file := filepath.Join(work, "out.bin")
	run(t, work, 0, "export", "E2E", "--archive", archive, "-o", file, "--format", "binaryfile")
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, bigFile(f.next)) {
		t.Fatalf("the export differs: %v", err)
	}
	run(t, work, 0, "verify", "--archive", archive)
}
