package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/store"
)

// That --max-bytes cannot be kept to is said when it begins, and when the
// reasons change; not each time.
func TestSayOver(t *testing.T) {
	var log bytes.Buffer
	e := &env{log: slog.New(slog.NewTextHandler(&log, nil))}
	r := store.Retention{Keep: -1, MaxBytes: 200}
	open := store.PruneKept{Reason: store.KeptOpen, Segments: 1, Bytes: 300}
	hold := store.PruneKept{Reason: store.KeptHold, Segments: 2, Bytes: 2048}
	was := ""
	for _, c := range []struct {
		rep  store.PruneReport
		said string // empty: nothing
	}{
		{store.PruneReport{BytesAfter: 100}, ""},
		{store.PruneReport{BytesAfter: 300, Over: 100, Kept: []store.PruneKept{open}}, "1 segment not sealed yet (300 B) cannot be removed"},
		{store.PruneReport{BytesAfter: 400, Over: 200, Kept: []store.PruneKept{open}}, ""},
		{store.PruneReport{BytesAfter: 2348, Over: 2148, Kept: []store.PruneKept{hold, open}}, "2 segments on hold (2.0 KiB), 1 segment not sealed yet (300 B) cannot be removed"},
		{store.PruneReport{BytesAfter: 200}, "no more than --max-bytes again"},
		{store.PruneReport{BytesAfter: 200}, ""},
	} {
		log.Reset()
		was = e.sayOver(was, c.rep, r)
		if got := log.String(); !strings.Contains(got, c.said) || (got == "") != (c.said == "") {
			t.Errorf("%+v: said %q, want %q", c.rep, got, c.said)
		}
	}
}
