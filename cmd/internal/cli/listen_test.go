package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast/gap"
)

// Losses are logged one by one up to a bound.
func TestLossLogs(t *testing.T) {
	var b bytes.Buffer
	l := &listener{log: slog.New(slog.NewTextHandler(&b, nil))}
	for i := range gap.Seq(1000) {
		l.lost(gap.Range{First: 1 + 2*i, Next: 2 + 2*i})
	}
	if n := strings.Count(b.String(), "\n"); n != maxLossLogs+1 {
		t.Errorf("%d lines for 1000 losses, want %d", n, maxLossLogs+1)
	}
	if !strings.Contains(b.String(), "counted only") {
		t.Error(b.String())
	}
}
