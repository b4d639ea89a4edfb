package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// A node of 64 channels of two lossy lines each, in one process: all are
// complete, and `stopped` is the sum of them. They all
// share the port of line B, told apart by source. They ask one server, which on
// a busy machine may leave any of them without an answer for long: what it has
// is waited for.
func TestNodeOf64Channels(t *testing.T) {
	const channels = 64
	total := moldcast.Seq(long(20_000, 2000))
	dir := t.TempDir()
	src := newSource(t, int(total), 0)
	src.published(total + 1)

	shared, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	port := shared.LocalAddr().String()
	shared.Close()
	var file strings.Builder
	fmt.Fprintf(&file, "archive: a\nhttp: 127.0.0.1:0\nuntil_end: true\nstrict: true\nretransmit_listen: 127.0.0.1:0\ndefaults:\n  nak_budget: 1h\n  rerequest: [%s]\nchannels:\n", src.addr())
	sender := func(i int) net.IP { return net.IPv4(127, 0, 1, byte(i+1)) }
	for i := range channels {
		fmt.Fprintf(&file, "  - {name: c%02d, lines: ['127.0.0.1:0', '%s,source=%v']}\n", i, port, sender(i))
	}
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(file.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	p := moldtape(t, dir, "capture", "--config", "node.yaml", "--log-level", "warn")
	ready := p.event("ready")

	done := make(chan struct{})
	var senders sync.WaitGroup
	for i, c := range ready["channels"].([]any) {
		c := c.(map[string]any)
		if name := fmt.Sprintf("c%02d", i); c["channel"] != name {
			t.Fatalf("channel %v, want %s", c["channel"], name)
		}
		var conns []*net.UDPConn
		for _, l := range c["lines"].([]any) {
			to, err := net.ResolveUDPAddr("udp4", l.(string))
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: sender(i)}, to)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			conns = append(conns, conn)
		}
		senders.Go(func() {
			pace := pacer{rate: 4000}
			n := 0
			for q := moldcast.Seq(1); q <= total; n++ {
				next := min(q+moldcast.Seq(1+(n+i)%30), total+1)
				b := packet(q, next)
				for l, conn := range conns {
					if (n+i)%(7+2*l) != 0 { // every 63rd is lost on both
						_, _ = conn.Write(b)
					}
				}
				q = next
				pace.wait(q)
			}
			end := moldcast.AppendHeader(nil, session, total+1, moldcast.EndCount)
			for {
				for _, conn := range conns {
					_, _ = conn.Write(end)
				}
				select {
				case <-done:
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}
	stopped := p.event("stopped")
	close(done)
	senders.Wait()
	p.exit(0)

	sums := map[string]float64{}
	list := stopped["channels"].([]any)
	if len(list) != channels {
		t.Fatalf("%d channels", len(list))
	}
	counters := []string{"packets", "messages", "bytes", "duplicates", "gaps_opened", "gaps_recovered", "messages_recovered", "messages_lost", "queue_dropped", "kernel_dropped", "wrong_session", "naks_sent", "conflicts", "malformed"}
	for _, c := range list {
		c := c.(map[string]any)
		for _, k := range counters {
			sums[k] += c[k].(float64)
		}
		s := c["sessions"].([]any)[0].(map[string]any)
		if c["messages"] != float64(total) || s["durable_seq"] != float64(total+1) || s["state"] != "ended" || s["holes"] != 0.0 || c["wrong_session"] != 0.0 {
			t.Errorf("channel %v: %v messages, session %v", c["channel"], c["messages"], s)
		}
	}
	for _, k := range counters {
		if stopped[k] != sums[k] {
			t.Errorf("%s: %v, the sum over the channels is %v", k, stopped[k], sums[k])
		}
	}
	if sums["messages_recovered"] == 0 {
		t.Error("nothing was lost on both lines: the test shows little")
	}
	t.Logf("%v messages, %v recovered, %v requests, at most %d MiB", sums["messages"], sums["messages_recovered"], sums["naks_sent"], p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10)
	if rss := p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss; rss > 2<<20 {
		t.Errorf("the node took %d MiB", rss>>10)
	}

	var sessions []map[string]any
	if err := json.Unmarshal([]byte(run(t, dir, 0, "sessions", "--archive", "a", "--json")), &sessions); err != nil {
		t.Fatal(err)
	}
	if len(sessions) != channels {
		t.Errorf("%d sessions in the archive", len(sessions))
	}
	want := message(nil, total)
	for _, i := range []int{0, channels - 1} {
		raw := run(t, dir, 0, "export", fmt.Sprintf("c%02d/E2E", i), "--archive", "a", "-o", "-", "--format", "raw", "--from-seq", fmt.Sprint(total))
		if strings.TrimSuffix(raw, "\n") != strings.TrimSuffix(string(want), "\n") {
			t.Errorf("channel %d ends with %q, want %q", i, raw, want)
		}
	}
	run(t, dir, 0, "verify", "--archive", "a")
}

// A channel whose directory cannot be written is that channel's trouble: the
// others are recorded, and /status says which it is.
func TestChannelWithoutDisk(t *testing.T) {
	dir := t.TempDir()
	const file = "archive: a\nhttp: 127.0.0.1:0\ndefaults: {start: beginning}\nchannels:\n  - {name: bad, lines: ['127.0.0.1:0']}\n  - {name: good, lines: ['127.0.0.1:0']}\n"
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	p := moldtape(t, dir, "capture", "--config", "node.yaml", "--sync", "5ms")
	ready := p.event("ready")
	bad := filepath.Join(dir, "a", "bad")
	if err := os.RemoveAll(bad); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range ready["channels"].([]any) {
		conn := dial(t, c.(map[string]any)["lines"].([]any)[0].(string))
		for q := moldcast.Seq(1); q < 100; q++ {
			if _, err := conn.Write(packet(q, q+1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	get := func(path string) (code int, body string) {
		resp, err := http.Get("http://" + ready["http"].(string) + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	var st struct {
		Channels []struct {
			Storage  struct{ State, Error string }
			Sessions []struct {
				Durable moldcast.Seq `json:"durable_seq"`
			}
		}
	}
	for end := time.Now().Add(hang); ; {
		_, body := get("/status")
		if err := json.Unmarshal([]byte(body), &st); err != nil {
			t.Fatal(err)
		}
		b, g := st.Channels[0], st.Channels[1]
		if b.Storage.State == "failing" && g.Storage.State == "ok" && len(g.Sessions) == 1 && g.Sessions[0].Durable == 100 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("status %s", body)
		}
		<-time.After(5 * time.Millisecond)
	}
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"channel":"bad"`) || strings.Contains(body, `"channel":"good"`) {
		t.Errorf("/healthz %d %s", code, body)
	}
	p.signal(syscall.SIGTERM)
	stopped := p.event("stopped")
	if m := stopped["channels"].([]any)[1].(map[string]any)["messages"]; m != 99.0 {
		t.Errorf("%v messages of the good channel", m)
	}
	p.exit(0)
}
