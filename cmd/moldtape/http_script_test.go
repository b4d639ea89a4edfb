package main

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// httpCall METHOD URL CODE [REGEXP] makes one request and checks the status of
// the answer, and its body, of one line. UNTIL is a GET that is made until the
// body matches.
func httpCall(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: http METHOD URL CODE [REGEXP]")
	}
	method, until := args[0], args[0] == "UNTIL"
	if until {
		method = http.MethodGet
	}
	client := http.Client{Timeout: hang}
	for deadline := time.Now().Add(hang); ; {
		req, err := http.NewRequest(method, args[1], nil)
		ts.Check(err)
		res, err := client.Do(req)
		ts.Check(err)
		all, err := io.ReadAll(res.Body)
		res.Body.Close()
		ts.Check(err)
		body := bytes.TrimSpace(all)
		if strconv.Itoa(res.StatusCode) != args[2] {
			ts.Fatalf("%s %s: %s, want %s: %s", method, args[1], res.Status, args[2], body)
		}
		if len(args) > 3 && !regexp.MustCompile(args[3]).Match(body) {
			if until && time.Now().Before(deadline) {
				<-time.After(5 * time.Millisecond)
				continue
			}
			ts.Fatalf("%s %s: want match of %s, got %s", method, args[1], args[3], body)
		}
		if n := bytes.Count(body, []byte("\n")); n > 0 {
			ts.Fatalf("%s %s: %d lines: %s", method, args[1], n+1, body)
		}
		return
	}
}
