package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// importArgs imports messages [first, next) of a file written to dir.
func importArgs(t *testing.T, dir string, first, next moldcast.Seq) []string {
	t.Helper()
	file := filepath.Join(dir, fmt.Sprintf("%d-%d.bin", first, next))
	var b []byte
	for q := first; q < next; q++ {
		b = moldcast.AppendMessage(b, big(q))
	}
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"import", file, "--session", "E2E", "--first-seq", fmt.Sprint(first)}
}

// killed runs the binary for at most so long, and reports whether it was
// killed in the middle.
func killed(t *testing.T, dir string, after time.Duration, args ...string) bool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, args...)
	c.Args[0] = "moldtape"
	c.Dir = dir
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	err = c.Wait()
	if code := c.ProcessState.ExitCode(); code > 0 {
		t.Fatalf("exit %d: %v", code, err)
	}
	return err != nil
}

// kill -9 of an import at random moments, over and over on one archive: run
// again it completes, and the archive has the content of one undisturbed.
func TestKilledImportResumes(t *testing.T) {
	n := moldcast.Seq(long(30_000, 6000))
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	files := t.TempDir()
	a, b := importArgs(t, files, 1, n*2/3), importArgs(t, files, n/3, n+1)

	whole := t.TempDir()
	begun := time.Now()
	run(t, whole, 0, a...)
	took := time.Since(begun)
	run(t, whole, 0, b...)
	root := run(t, whole, 0, "verify", "--root")
	if !bytes.Equal(exported(t, whole, "E2E"), bigFile(n+1)) {
		t.Fatal("two files that overlap do not merge")
	}

	hits := 0
	const least = 3 // an import is killed, though the machine was slower when took was measured
	for round := 0; round < long(5, 2) || hits < least && round < 20; round++ {
		dir := t.TempDir()
		order := [][]string{a, b}
		if round%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		for _, args := range order {
			for range 4 {
				if killed(t, dir, time.Duration(rng.Int64N(int64(took))), args...) {
					hits++
				} else { // this machine is quicker now than it was
					took = took * 3 / 4
				}
			}
			run(t, dir, 0, args...)
		}
		if got := run(t, dir, 0, "verify", "--root"); got != root {
			t.Errorf("root after kills:\n%swant\n%s", got, root)
		}
		if !bytes.Equal(exported(t, dir, "E2E"), bigFile(n+1)) {
			t.Error("the export differs from what was imported")
		}
	}
	t.Logf("%d imports were killed, within %v", hits, took.Round(time.Millisecond))
	if hits < least {
		t.Error("hardly any import was killed")
	}
}
