package cli

import (
	"strings"
	"testing"

	"github.com/moldtape/moldtape/cmd/internal/httpd"
)

// It is said when a client may ask again, and of one that never may, that.
func TestClientsAgain(t *testing.T) {
	d := httpd.Node{Requests: &httpd.Requests{Top: []httpd.Client{
		{Client: "10.0.0.1", Allowed: true},
		{Client: "10.0.0.2", Allowed: true, AgainSeconds: 0.25},
		{Client: "8.8.8.8", Refused: map[string]uint64{"not_allowed": 3}},
	}}}
	var b strings.Builder
	if err := printClients(&b, d); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for i, want := range []string{" now ", " in ", " never "} {
		if !strings.Contains(lines[i+1], want) {
			t.Errorf("%q in %q", want, lines[i+1])
		}
	}
}
