package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Orders are taken by address or by the name that --http gives, not by one that
// another site has resolve to here; to ask is free.
func TestReplayOwnHost(t *testing.T) {
	for _, c := range []struct {
		http, host string
		ok         bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "10.1.2.3", true},
		{"[::1]:80", "[::1]:80", true},
		{"[::1]:80", "[::1]", true},
		{":80", "localhost:80", true},
		{":80", "LocalHost.", true},
		{":80", "", true},
		{"tape.example:80", "Tape.Example:80", true},
		{"tape.example:80", "tape.example", true},
		{":80", "evil.example", false},
		{"127.0.0.1:80", "evil.example:80", false},
		{"tape.example:80", "tape.example.evil:80", false},
		{"tape.example:80", "127.0.0.1.evil.example", false},
	} {
		h := ownHost(c.http, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for method, ok := range map[string]bool{http.MethodPost: c.ok, http.MethodGet: true} {
			q := httptest.NewRequest(method, "/pause", nil)
			q.Host = c.host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			if got := w.Code == http.StatusOK; got != ok || !ok && !strings.Contains(w.Body.String(), "localhost") {
				t.Errorf("--http %s, %s, Host %q: %d %s", c.http, method, c.host, w.Code, w.Body)
			}
		}
	}
}
