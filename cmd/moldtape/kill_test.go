package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// durableAt is the durable watermark of the only session; 0 before there is
// one.
func durableAt(t *testing.T, http string) int {
	t.Helper()
	sessions, _ := httpStatus(t, http)["channels"].([]any)[0].(map[string]any)["sessions"].([]any)
	if len(sessions) != 1 {
		return 0
	}
	return num(t, sessions[0].(map[string]any), "durable_seq")
}

// Five kill -9 at random moments, while about 3 MB a second come and segments
// of 1 MiB are begun and sealed: after each, everything below the last durable
// watermark that was reported is there, byte for byte; in the end all is.
func TestFiveKillsUnderLoad(t *testing.T) {
	const (
		first = moldcast.Seq(484311999)
		rate  = 75_000 // messages of 38 bytes on average
	)
	n := moldcast.Seq(long(900_000, 300_000))
	last := first + n
	dir := t.TempDir()
	src := newSource(t, int(last), 0)
	src.published(first)
	line := "127.0.0.1:0"
	start := func() (*proc, string) {
		p := moldtape(t, dir, "capture", "--line", line, "--rerequest", src.addr(), "--start", "live", "--until-end",
			"--http", "127.0.0.1:0", "--segment-size", "1MiB", "--sync", "20ms", "--nak-budget", "1h", "--log-level", "warn")
		ready := p.event("ready")
		line = ready["channels"].([]any)[0].(map[string]any)["lines"].([]any)[0].(string)
		return p, ready["http"].(string)
	}
	capture, http := start()
	out := dial(t, line)
	stream := binaryFile(first, last)

	// The sender does not wait for anybody: what comes while no capture runs is
	// a gap.
	var feed sync.WaitGroup
	stop := make(chan struct{})
	defer feed.Wait()
	defer close(stop)
	sent := make(chan struct{}) // all of it
	feed.Add(1)
	go func() {
		defer feed.Done()
		p := pacer{rate: rate}
		end := moldcast.AppendHeader(nil, session, last, moldcast.EndCount)
		for q := first; q < last; {
			next := min(q+25, last)
			b := packet(q, next)
			src.published(next)
			_, _ = out.Write(b) // refused while nobody listens
			q = next
			p.wait(q - first)
			select {
			case <-stop:
				return
			default:
			}
		}
		close(sent)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			_, _ = out.Write(end)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()

	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	durable := int(first)
	for kill := range 5 {
		moment := time.After(time.Duration(50+rng.IntN(500)) * time.Millisecond)
		before := durable
	wait:
		for { // as a rule it gets on; the moment is random all the same
			select {
			case <-moment:
				if durable > before {
					break wait
				}
				moment = time.After(5 * time.Millisecond)
			default:
			}
			if d := durableAt(t, http); d != 0 {
				if d < durable {
					t.Fatalf("kill %d: durable went from %d to %d", kill, durable, d)
				}
				durable = d
			}
		}
		capture.signal(syscall.SIGKILL)
		capture.exit(-1)
		got := exported(t, dir, "E2E", "--to-seq", fmt.Sprint(durable-1))
		want := wantFile(stream, first, moldcast.Seq(durable))
		if !bytes.Equal(got, want) {
			t.Fatalf("kill %d: the export is not what was durable up to %d: %d bytes, want %d", kill, durable, len(got), len(want))
		}
		capture, http = start()
	}
	<-sent
	stopped := capture.event("stopped")
	capture.exit(0)
	if num(t, stopped, "holes") != 0 || num(t, stopped, "durable_seq") != int(last) {
		t.Errorf("stopped: %v", stopped)
	}
	if !bytes.Equal(exported(t, dir, "E2E"), stream) {
		t.Error("the export differs from what was published")
	}
	run(t, dir, 0, "verify")
	if segs := segmentDirs(t, dir); segs < 5 {
		t.Errorf("%d segments: the load was too small", segs)
	}
}

// wantFile is the part of stream, which begins at first, before next.
func wantFile(stream []byte, first, next moldcast.Seq) []byte {
	at := 0
	for range next - first {
		at += 2 + int(stream[at])<<8 + int(stream[at+1])
	}
	return stream[:at]
}

// Sessions that do not begin at 1, and of which nothing but heartbeats was
// heard, go on at the right sequence after a kill: nothing below is asked for
// or missing.
func TestKilledSessionsGoOnWhereTheyWere(t *testing.T) {
	for _, c := range []struct {
		name     string
		messages moldcast.Seq // before the kill
	}{{"messages", 200}, {"heartbeats", 0}} {
		t.Run(c.name, func(t *testing.T) {
			const first = moldcast.Seq(484311999)
			dir := t.TempDir()
			src := newSource(t, 1<<30, 0)
			line := "127.0.0.1:0"
			start := func() (*proc, string) {
				p := moldtape(t, dir, "capture", "--line", line, "--rerequest", src.addr(), "--start", "live", "--until-end",
					"--http", "127.0.0.1:0", "--sync", "5ms", "--nak-budget", "1h")
				ready := p.event("ready")
				line = ready["channels"].([]any)[0].(map[string]any)["lines"].([]any)[0].(string)
				return p, ready["http"].(string)
			}
			capture, http := start()
			out := dial(t, line)
			send := func(b []byte) { _, _ = out.Write(b) }
			q := first
			for q < first+c.messages {
				src.published(q + 10)
				send(packet(q, q+10))
				q += 10
			}
			src.published(q)
			until := time.Now().Add(hang)
			// That a mark is durable shows after the kill alone: where it came
			// too early, it is done again.
			for held := false; !held; {
				for durableAt(t, http) != int(q) {
					send(moldcast.AppendHeader(nil, session, q, 0))
					<-time.After(20 * time.Millisecond)
					if time.Now().After(until) {
						t.Fatalf("durable is %d, want %d", durableAt(t, http), q)
					}
				}
				<-time.After(50 * time.Millisecond)
				capture.signal(syscall.SIGKILL)
				capture.exit(-1)
				var show map[string]any
				if err := json.Unmarshal([]byte(run(t, dir, 0, "show", "E2E", "--json")), &show); err != nil {
					t.Fatal(err)
				}
				if held = num(t, show, "durable_seq") == int(q); !held {
					capture, http = start()
				}
			}

			capture, _ = start()
			q += 40 // what is lost meanwhile is a gap
			for range 20 {
				src.published(q + 10)
				send(packet(q, q+10))
				q += 10
			}
			stopped := capture.ended(q, out)
			capture.exit(0)
			if num(t, stopped, "holes") != 0 || num(t, stopped, "next_seq") != int(q) {
				t.Errorf("stopped: %v", stopped)
			}
			if !bytes.Equal(exported(t, dir, "E2E"), binaryFile(first, q)) {
				t.Error("the export differs from what was published")
			}
			run(t, dir, 0, "verify")
		})
	}
}

// segmentDirs counts the segments of an archive.
func segmentDirs(t *testing.T, dir string) int {
	t.Helper()
	segs, err := filepath.Glob(filepath.Join(dir, "archive", "default", "E2E@1", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	return len(segs)
}
