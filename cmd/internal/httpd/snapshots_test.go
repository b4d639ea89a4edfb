package httpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// recorded is an archive that holds messages 1 to 9 of c/S.
func recorded(t *testing.T) (*store.Archive, store.Ref) {
	t.Helper()
	a, err := store.OpenOrCreate(filepath.Join(t.TempDir(), "a"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	w, err := a.Writer("c", moldcast.Session([]byte("S         ")), 1)
	if err != nil {
		t.Fatal(err)
	}
	var framed []byte
	for range 9 {
		framed = moldcast.AppendMessage(framed, []byte("m"))
	}
	if _, err := w.Append(moldcast.Piece{First: 1, Msgs: moldcast.MessagesOf(framed, 9), Heard: 1, Time: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return a, w.Ref()
}

func do(t *testing.T, method, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp, string(b)
}

// A snapshot that is put is got, and listed; what cannot be is told by a status
// and a reason; nothing is taken where none is to be.
func TestSnapshotsOverHTTP(t *testing.T) {
	a, ref := recorded(t)
	_, url := server(t, Config{Status: always(), Snapshots: &Snapshots{Archive: a, Max: 1 << 20}})
	_, closed := server(t, Config{Status: always(), Snapshots: &Snapshots{Archive: a}})
	at := url + "/snapshots/c/S"
	state := bytes.Repeat([]byte("state"), 100_000)
	resp, text := do(t, "PUT", at+"?seq=7", bytes.NewReader(state))
	if resp.StatusCode != 200 || !strings.Contains(text, `"session":"c/S","seq":7,"bytes":500000,`) {
		t.Fatal(resp.Status, text)
	}
	for _, c := range []struct {
		method, url, body string
		code              int
		want              string
	}{
		{"PUT", at + "?seq=3", "old", 200, `"seq":3`},
		{"PUT", at + "?seq=3", "old", 200, `"seq":3`},
		{"PUT", at + "?seq=3", "other", 409, "another snapshot"},
		{"PUT", at, "x", 400, "want a sequence"},
		{"PUT", at + "?seq=0", "x", 400, "want a sequence"},
		{"PUT", at + "?seq=8", strings.Repeat("x", 1<<20+1), 413, "1048576 at most"},
		{"PUT", url + "/snapshots/c/T?seq=8", "x", 404, "no such session"},
		{"PUT", url + "/snapshots/c/..%2f..%2fetc?seq=8", "x", 404, "no such session"},
		{"PUT", closed + "/snapshots/c/S?seq=8", "x", 403, "--snapshot-max"},
		{"GET", at + "?seq=6", "", 200, "old"},
		{"GET", at + "?seq=2", "", 404, "no snapshot at or before 2"},
		{"GET", at + "?seq=x", "", 400, "want a sequence"},
		{"GET", closed + "/snapshots/c/S?seq=3", "", 200, "old"},
		{"GET", url + "/snapshots/c/T", "", 404, "no such session"},
		{"DELETE", at + "?seq=3", "", 405, ""},
	} {
		resp, text := do(t, c.method, c.url, strings.NewReader(c.body))
		if resp.StatusCode != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %s %q, want %d %q", c.method, c.url, resp.Status, text, c.code, c.want)
		}
	}
	// One whose length is not told is cut where it is too long.
	if resp, text := do(t, "PUT", at+"?seq=8", io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), strings.NewReader("x"))); resp.StatusCode != 413 {
		t.Error(resp.Status, text)
	}
	// One that breaks off is the client's fault, and not stored.
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT /snapshots/c/S?seq=9 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nstate")
	_ = conn.(*net.TCPConn).CloseWrite()
	if b, _ := io.ReadAll(conn); !bytes.HasPrefix(b, []byte("HTTP/1.1 400 ")) || !bytes.Contains(b, []byte("the upload broke off")) {
		t.Errorf("%q", b)
	}
	resp, text = do(t, "GET", at, nil)
	if resp.Header.Get("Moldtape-Seq") != "7" || text != string(state) || len(resp.Header.Get("Moldtape-Sha256")) != 64 {
		t.Errorf("%v, %d bytes", resp.Header, len(text))
	}
	var list []store.SnapshotInfo
	_, text = do(t, "GET", at+"/list", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 2 || list[0].Seq != 3 || list[1].Bytes != 500_000 {
		t.Errorf("%s %v", text, err)
	}

	// What is damaged behind what was sent is cut short, before it with a reason.
	name := filepath.Join(a.Dir(), "c", "S@1", "snapshots", fmt.Sprintf("%020d.snap", 7))
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ at, code int }{{300_000, 200}, {200, 500}, {20, 500}} {
		bad := bytes.Clone(b)
		bad[c.at] ^= 4
		if err := os.WriteFile(name, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		resp, text := do(t, "GET", at, nil)
		if resp.StatusCode != c.code || len(text) >= len(state) || c.code == 200 && !bytes.HasPrefix(state, []byte(text)) || c.code != 200 && !strings.Contains(text, "snapshot at 7") {
			t.Errorf("flipped at %d: %s, %d bytes", c.at, resp.Status, len(text))
		}
	}
	if list, err := a.Snapshots(ref); err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
}

// Uploads that get nowhere hold a place each, no more, and leave nothing; there
// is one again when they go.
func TestSnapshotUploadsAreFew(t *testing.T) {
	a, _ := recorded(t)
	_, url := server(t, Config{Status: always(), Snapshots: &Snapshots{Archive: a, Max: 1 << 30, patience: time.Hour}})
	dir := filepath.Join(a.Dir(), "c", "S@1", "snapshots")
	var conns []net.Conn
	for i := range maxUploads {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "PUT /snapshots/c/S?seq=%d HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nhalf", i+1)
		conns = append(conns, c)
	}
	eventually(t, func() bool { names, _ := os.ReadDir(dir); return len(names) == maxUploads })
	if resp, text := do(t, "PUT", url+"/snapshots/c/S?seq=9", strings.NewReader("x")); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Error(resp.Status, text)
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, func() bool {
		resp, _ := do(t, "PUT", url+"/snapshots/c/S?seq=9", strings.NewReader("x"))
		return resp.StatusCode == 200
	})
	eventually(t, func() bool { names, _ := os.ReadDir(dir); return len(names) == 1 })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time")
		}
	}
}
