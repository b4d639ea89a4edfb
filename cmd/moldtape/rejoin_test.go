package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// freePort is a UDP address that nobody has now.
func freePort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().String()
}

// A receiver that was away for the first half of a session, over a line that
// loses a fifth of all packets, without a request server: a capture's recovery
// stream brings the half, and what is lost since, while it listens. What it
// writes is the publisher's input, byte for byte; also where the capture dies
// by kill -9 in the midst of that, and one takes its place.
func TestListenJoinsLate(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("kill=%v", kill), func(t *testing.T) {
			total := long(150_000, 45_000)
			dir := t.TempDir()
			input, output := filepath.Join(dir, "in.bin"), filepath.Join(dir, "out.bin")
			if err := os.WriteFile(input, binaryFile(1, moldcast.Seq(total)+1), 0o666); err != nil {
				t.Fatal(err)
			}
			size := func() int {
				st, err := os.Stat(output)
				if err != nil {
					return 0
				}
				return int(st.Size())
			}
			wait := func(what string, ok func() bool) {
				t.Helper()
				for end := time.Now().Add(hang); !ok(); <-time.After(5 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("not %s", what)
					}
				}
			}
			line := "239.255.67.1:0"
			server := newNarrow(t, 1_500_000)
			answers := freePort(t)
			capture := func() (*proc, string) {
				p := moldtape(t, dir, "capture", "--interface", "lo", "--line", line, "--rerequest", answers,
					"--recovery-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--nak-budget", "1h", "--log-level", "warn")
				ready := p.event("ready")
				line = ready["channels"].([]any)[0].(map[string]any)["lines"].([]any)[0].(string)
				server.set(ready["recovery"].(string))
				return p, ready["http"].(string)
			}
			node, http := capture()
			head := func() int {
				for _, s := range httpStatus(t, http)["channels"].([]any)[0].(map[string]any)["sessions"].([]any) {
					return num(t, s.(map[string]any), "head_seq")
				}
				return 0
			}
			publisher := moldtape(t, dir, "publish", "--interface", "lo", "--group", line, "--session", "DAY1", "--input", input,
				"--rate", "15000", "--loss", "0.2", "--packet-messages", "3", "--ring", fmt.Sprint(total),
				"--retransmit-listen", answers, "--linger", "5m", "--log-level", "warn") // it answers until all is there
			publisher.event("ready")
			wait("half way", func() bool { return head() > total/2 })
			if kill {
				server.allow(total * 8) // about a quarter: it is in the midst of it until the capture dies
			}
			listen := moldtape(t, dir, "listen", "--interface", "lo", "--group", line, "--recovery", server.l.Addr().String(),
				"--recovery-budget", "1h", "--output", output, "--json", "--strict", "--log-level", "warn")
			listen.event("ready")
			if kill {
				wait("in the midst of it", func() bool { return size() > total*4 })
				node.signal(syscall.SIGKILL)
				node.exit(-1)
				node, _ = capture()
				server.allow(unlimited)
			}
			sum := map[string]any{}
			if err := json.Unmarshal([]byte(<-listen.lines), &sum); err != nil {
				t.Fatal(err)
			}
			listen.exit(0)
			publisher.signal(syscall.SIGTERM)
			publisher.exit(0)
			node.signal(syscall.SIGTERM)
			node.exit(0)
			got, err := os.ReadFile(output)
			if err != nil {
				t.Fatal(err)
			}
			want := binaryFile(1, moldcast.Seq(total)+1)
			if !bytes.Equal(got, want) {
				t.Fatalf("%d bytes were written, want %d: %v", len(got), len(want), sum)
			}
			if num(t, sum, "delivered") != total || num(t, sum, "lost") != 0 || num(t, sum, "streamed") < total/2 || num(t, sum, "conflicts") != 0 {
				t.Errorf("%v", sum)
			}
			if kill == (num(t, sum, "reconnects") == 0) {
				t.Errorf("killed %v: %v", kill, sum)
			}
		})
	}
}
