package main

import (
	"net"
	web "net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// What retransmit serves, and to whom, is told over HTTP and by `status`; an
// archive that goes away is told too, and mends.
func TestRetransmitHTTP(t *testing.T) {
	const n = 500
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.bin"), binaryFile(1, n+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{"feed", "other"} {
		run(t, dir, 0, "import", "in.bin", "--session", map[string]string{"feed": "E2E", "other": "BAD"}[channel], "--channel", channel)
	}
	p := moldtape(t, dir, "retransmit", "--listen", "127.0.0.1:0", "--recovery-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	ready := p.event("ready")
	http, ok := ready["http"].(string)
	if !ok {
		t.Fatalf("ready: %v", ready)
	}
	for _, path := range []string{"/readyz", "/healthz"} {
		if code, m := httpGet(t, http, path); code != 200 {
			t.Errorf("%s: %d %v", path, code, m)
		}
	}

	a := newAsker(t, ready["retransmit"].(string))
	held := moldcast.Request{Session: session, First: 7, Count: 3}
	if a.ask(held, held) == nil {
		t.Fatal("no answer")
	}
	if a.ask(moldcast.Request{Session: moldcast.Session([]byte("NOBODY    ")), First: 1, Count: 1}, moldcast.Request{Session: session, First: 9, Count: 1}) != nil {
		t.Fatal("an answer of no session")
	}
	reader, err := net.Dial("tcp", ready["recovery"].(string))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()

	await := func(what string, ok func(s map[string]any) bool) {
		t.Helper()
		var s map[string]any
		for deadline := time.Now().Add(hang); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
			if s = httpStatus(t, http); ok(s) {
				return
			}
		}
		t.Fatalf("%s: %v", what, s)
	}
	await("a reader", func(s map[string]any) bool { return num(t, s["streams"].(map[string]any), "readers") == 1 })
	s := httpStatus(t, http)
	feed := s["channels"].([]any)[0].(map[string]any)
	x := feed["sessions"].([]any)[0].(map[string]any)
	if s["role"] != "retransmit" || s["state"] != "ok" || feed["channel"] != "feed" || x["session"] != "E2E" || num(t, x, "head_seq") != n+1 || num(t, x, "messages") != n || num(t, x, "holes") != 0 {
		t.Errorf("status: %v", s)
	}
	q := s["requests"].(map[string]any)
	top := q["top_clients"].([]any)[0].(map[string]any)
	if num(t, q, "answered") < 2 || num(t, q["refused"].(map[string]any), "unknown_session") == 0 || top["client"] != "127.0.0.1" || num(t, top, "answered") != num(t, q, "answered") {
		t.Errorf("requests: %v", q)
	}
	if list := s["streams"].(map[string]any)["list"].([]any); len(list) != 1 || list[0].(map[string]any)["addr"] != reader.LocalAddr().String() || list[0].(map[string]any)["state"] != "login" {
		t.Errorf("readers: %v", list)
	}
	if got := metric(t, http, "moldtape_requests_answered_total"); int(got) != num(t, q, "answered") {
		t.Errorf("%v answered, status says %v", got, q["answered"])
	}
	for flag, want := range map[string]string{"--readers": reader.LocalAddr().String(), "--clients": "unknown_session", "--json": `"role":"retransmit"`, "--log-level=info": "feed"} {
		if out := run(t, dir, 0, "status", http, flag); !strings.Contains(out, want) {
			t.Errorf("status %s: %s", flag, out)
		}
	}

	if err := os.WriteFile(filepath.Join(dir, "state"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, dir, 0, "snapshot", "put", "feed/E2E", "--seq", "9", "state")
	run(t, dir, 0, "snapshot", "put", "other/BAD", "--seq", "9", "state")
	narrow := moldtape(t, dir, "retransmit", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--channel", "feed")
	of := narrow.event("ready")["http"].(string)
	for path, addr := range map[string]string{"other/BAD": http, "feed/E2E": of} {
		if code, _ := httpGet(t, addr, "/snapshots/"+path); code != 200 {
			t.Errorf("snapshot of %s: %d", path, code)
		}
	}
	if resp, err := web.Get("http://" + of + "/snapshots/other/BAD"); err != nil || resp.StatusCode != 404 {
		t.Errorf("a channel that is not served: %v %v", resp, err)
	}
	if resp, err := web.Post("http://"+of+"/status", "text/plain", nil); err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: %v %v", resp, err)
	}
	narrow.signal(syscall.SIGTERM)
	narrow.exit(0)

	archive, away := filepath.Join(dir, "archive"), filepath.Join(dir, "away")
	if err := os.Rename(archive, away); err != nil {
		t.Fatal(err)
	}
	await("an archive that is gone", func(s map[string]any) bool { return s["state"] == "degraded" })
	if code, m := httpGet(t, http, "/readyz"); code != 503 || !strings.Contains(m["reasons"].([]any)[0].(string), "archive") {
		t.Errorf("readyz: %d %v", code, m)
	}
	run(t, dir, 1, "status", http)
	if err := os.Rename(away, archive); err != nil {
		t.Fatal(err)
	}
	await("an archive that is back", func(s map[string]any) bool { return s["state"] == "ok" })

	// A damaged session is told, and no reason to start the process anew.
	if err := os.RemoveAll(filepath.Join(archive, "other", "BAD@1", "000001.seg")); err != nil {
		t.Fatal(err)
	}
	await("a session that is damaged", func(s map[string]any) bool {
		x := s["channels"].([]any)[1].(map[string]any)
		return x["state"] == "degraded" && x["sessions"].([]any)[0].(map[string]any)["fault"] != nil
	})
	if code, m := httpGet(t, http, "/healthz"); code != 200 {
		t.Errorf("healthz: %d %v", code, m)
	}
	if out := run(t, dir, 1, "status", http); !strings.Contains(out, "other/BAD") {
		t.Errorf("status: %s", out)
	}
	p.signal(syscall.SIGTERM)
	p.exit(0)
}
