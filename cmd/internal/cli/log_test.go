package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// traced is an error that gives more than its message where it is asked to.
type traced struct{}

func (traced) Error() string { return "it failed" }

func (t traced) Format(f fmt.State, verb rune) {
	fmt.Fprint(f, t.Error())
	if verb == 'v' && f.Flag('+') {
		fmt.Fprint(f, "\n(1) attached stack trace")
	}
}

// An error in the log is its message, in every format.
func TestLogErrors(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		e := &env{stderr: &out, logLevel: "info", logFormat: format}
		if err := e.setLogger(); err != nil {
			t.Fatal(err)
		}
		e.log.Error("x", "err", traced{})
		e.log.With("error", fmt.Errorf("outer: %w", traced{})).Error("y")
		if s := out.String(); strings.Count(s, "it failed") != 2 || strings.Contains(s, "trace") {
			t.Errorf("%s: %s", format, s)
		}
	}
}
