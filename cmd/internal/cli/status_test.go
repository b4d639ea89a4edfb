package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/moldcast"
)

var statusTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// degradedFor is a channel that has been degraded so long.
func degradedFor(name, reason string, d time.Duration) capture.Status {
	since := statusTime.Add(-d)
	st := capture.Status{Channel: name, State: capture.StateDegraded, Since: &since, Reasons: []capture.Degradation{{Reason: reason, Since: since, Text: "so it is"}}}
	if reason == capture.ReasonGap {
		next := statusTime.Add(2 * time.Millisecond)
		st.Open = &capture.OpenGaps{Gaps: 3, Messages: 7, NextTry: &next, Ranges: []capture.OpenGap{
			{Session: moldcast.Session{'D', 'A', 'Y', ' ', ' ', ' ', ' ', ' ', ' ', ' '}, Take: 1, FirstSeq: 4, LastSeq: 9, Tries: 2},
		}}
	}
	return st
}

func TestStatusExitCode(t *testing.T) {
	ok := capture.Status{Channel: "fine", State: capture.StateOK}
	ended := capture.Status{Channel: "done", State: capture.StateEnded}
	for _, c := range []struct {
		name     string
		channels []capture.Status
		err      string // empty: exit 0
	}{
		{"ok", []capture.Status{ok, ended}, ""},
		{"ended", []capture.Status{ended}, ""},
		{"a gap that is being repaired", []capture.Status{ok, degradedFor("g", capture.ReasonGap, 999*time.Millisecond)}, ""},
		{"a gap that stays", []capture.Status{ok, degradedFor("g", capture.ReasonGap, time.Second)}, "degraded: g (gap)"},
		{"one has failed, one has stopped", []capture.Status{ok, {Channel: "f", State: capture.StateFailed, Error: "socket"}, {Channel: "s", State: capture.StateStopped}}, "degraded: f (failed: socket)"},
		{"stopped", []capture.Status{ended, {Channel: "s", State: capture.StateStopped}}, ""},
		{"of a later version", []capture.Status{{Channel: "x", State: "elsewhere"}}, `degraded: x (state "elsewhere" is not known here)`},
		{"silent", []capture.Status{degradedFor("a", capture.ReasonNoPackets, 0), degradedFor("b", capture.ReasonLineSilent, 0)}, "degraded: a (no_packets); b (line_silent)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := httpd.Document{Node: httpd.Node{State: httpd.Worst(c.channels), Time: statusTime}, Channels: c.channels}
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(d)
			}))
			defer node.Close()
			addr := strings.TrimPrefix(node.URL, "http://")
			for _, asJSON := range []bool{false, true} {
				var out bytes.Buffer
				e := &env{stdout: &out, stderr: io.Discard, json: asJSON}
				checkExit(t, e.status(context.Background(), addr, false, false), c.err)
				if asJSON {
					var got httpd.Document
					if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Channels) != len(c.channels) {
						t.Errorf("%v: %s", err, out.Bytes())
					}
				} else if c.err != "" && !strings.Contains(out.String(), "so it is") && !strings.Contains(out.String(), "failed") && !strings.Contains(out.String(), "elsewhere") {
					t.Errorf("the reason is not shown:\n%s", out.String())
				}
			}
		})
	}
}

// What belongs to one reason stands with it, whichever comes last.
func TestStatusReasonsApart(t *testing.T) {
	c := degradedFor("two", capture.ReasonGap, time.Minute)
	c.Reasons = append(c.Reasons, capture.Degradation{Reason: capture.ReasonStorage, Since: statusTime, Text: "the disk is full"},
		capture.Degradation{Reason: capture.ReasonNoPackets, Since: statusTime, Text: "no packet on any line"})
	c.Storage.Advice = "free room"
	var out bytes.Buffer
	if err := printStatus(&out, httpd.Document{Node: httpd.Node{Time: statusTime}, Channels: []capture.Status{c}}, false); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "two: gap since ")
	for _, want := range []string{"so it is; next try ", "DAY@1 4..9, tried 2 times", "the disk is full; free room\n", "no packet on any line\n"} {
		_, rest, ok := strings.Cut(got, want)
		if !ok {
			t.Fatalf("no %q in its place:\n%s", want, out.String())
		}
		got = rest
	}
}

// checkExit: exit 1 with a text that holds want; none where that is empty.
func checkExit(t *testing.T, err error, want string) {
	t.Helper()
	var x *exitError
	switch {
	case want == "" && err != nil:
		t.Errorf("%v", err)
	case want != "" && (!errors.As(err, &x) || x.code != exitFault || !strings.Contains(err.Error(), want)):
		t.Errorf("%v, want exit 1 with %q", err, want)
	}
}

// What does not answer, or is no node, is exit 1 and said.
func TestStatusOfNoNode(t *testing.T) {
	answer := func(code int, body string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(srv.Close)
		return strings.TrimPrefix(srv.URL, "http://")
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, c := range []struct{ addr, want string }{
		{strings.TrimPrefix(closed.URL, "http://"), "no answer: dial tcp"},
		{answer(503, "channel x has stopped\n"), "the node does not do its work: channel x has stopped"},
		{answer(404, "nothing"), "no moldtape node: 404"},
		{answer(200, "<html>"), "no moldtape node"},
		{answer(200, "{}"), "no moldtape node"},
		{answer(302, ""), "no moldtape node: 302"},
	} {
		e := &env{stdout: io.Discard, stderr: io.Discard}
		checkExit(t, e.status(context.Background(), c.addr, false, false), c.want)
	}
}

// What a node says of itself cannot steer a terminal.
func TestStatusIsPlain(t *testing.T) {
	var out bytes.Buffer
	d := httpd.Document{Channels: []capture.Status{{Channel: "a\x1b[2Jb", State: capture.StateFailed, Error: "x\r\u009by"}}}
	if err := printStatus(plainWriter{&out}, d, true); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "a?[2Jb") || !strings.Contains(s, "x??y") || strings.ContainsAny(s, "\x1b\r\u009b") {
		t.Errorf("%q", s)
	}
}

func TestStatusTable(t *testing.T) {
	since := statusTime
	d := httpd.Document{Channels: []capture.Status{
		{
			Channel: "itch", State: capture.StateOK, Rate: capture.Rate{Messages: 12345.6},
			Lines: []capture.LineStatus{
				{Line: "A", Addr: "239.0.0.1:1", State: "live", Packets: 1500, Messages: 2000, Repeated: 10, Lost: 10, Compared: 1000, First: 750, Skew: capture.Seconds{Count: 250, P50: 12e-6, P99: 345.6e-6, Max: 0.0123}},
				{Line: "B", Addr: "239.0.0.2:1", State: "silent"},
			},
			Sessions: []capture.SessionStatus{
				{Session: moldcast.Session{'O', 'L', 'D'}, Take: 1, State: "ended"},
				{Session: moldcast.Session{'D', 'A', 'Y', ' ', ' ', ' ', ' ', ' ', ' ', ' '}, Take: 2, HeadSeq: 900, NextSeq: 800, DurableSeq: 700, Holes: 1, LagSeconds: 0.05, Timing: &capture.Timing{}},
			},
		},
		degradedFor("slow", capture.ReasonGap, time.Minute),
	}}
	d.Channels[1].Since = &since
	d.Time = statusTime
	d.Streams = &httpd.Streams{Readers: 2, States: map[string]int{"live": 1, "waiting": 1, "gap": 0}, List: []httpd.Reader{
		{Addr: "10.0.0.1:5", User: "ann", Session: moldcast.Session([]byte("DAY1      ")), State: "waiting", Place: 3, NextSeq: 7, Lag: 93, Queued: 2048, Since: statusTime.Add(-time.Minute)},
	}}
	d.Channels[0].Recovering = []capture.Recovering{{Session: moldcast.Session{'D', 'A', 'Y', ' ', ' ', ' ', ' ', ' ', ' ', ' '}, Peer: "10.0.0.1:9", State: "streaming", FirstSeq: 5, LastSeq: 99, Messages: 1}}
	var out bytes.Buffer
	if err := printStatus(&out, d, true); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"2 readers of recovery streams: 1 live, 1 waiting",
		"10.0.0.1:5 ann DAY1 waiting (3) 7 93 2.0 KiB 1m0s",
		"itch ok DAY@2 900 800 700 1 50ms 12,346 0",
		"itch A 239.0.0.1:1 live 1,500 2,000 10 (0.5%) 75.0% 12µs 346µs 12.3ms 0",
		"itch B 239.0.0.2:1 silent 0 0 0 - - - - 0",
		"itch: DAY 5..99 is fetched from 10.0.0.1:9 (streaming): 1 message so far",
		"slow degraded - - - - - - 0 0",
		"slow: gap since 2026-01-02T03:03:05.000000Z: so it is; next try 2026-01-02T03:04:05.002000Z DAY@1 4..9, tried 2 times … and 2 more",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// With --readers and --clients it is said that there is none.
func TestStatusOfNobody(t *testing.T) {
	for _, c := range []struct {
		streams *httpd.Streams
		each    bool
		want    string
	}{
		{nil, true, "the node serves no recovery stream (--recovery-listen)"},
		{new(httpd.Streams), true, "no reader of a recovery stream is connected"},
		{nil, false, ""},
		{new(httpd.Streams), false, ""},
	} {
		var out bytes.Buffer
		if err := printStreams(&out, c.streams, statusTime, c.each); err != nil || strings.TrimSpace(out.String()) != c.want {
			t.Errorf("%+v: %q %v", c, out.String(), err)
		}
	}
	var out bytes.Buffer
	if err := printClients(&out, httpd.Node{Requests: new(httpd.Requests)}); err != nil || out.String() != "no client has asked for anything yet\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestStatusOfServing(t *testing.T) {
	d := httpd.Serving{Node: httpd.Node{Error: "archive\x1b gone", Requests: &httpd.Requests{Received: 9, Answered: 6, Refused: map[string]uint64{"missing": 1, "repeated": 2, "empty": 0}}}}
	many := httpd.Served{Channel: "many", State: capture.StateOK}
	for i := range shownServed + 3 {
		many.Sessions = append(many.Sessions, httpd.ServedSession{Session: fmt.Sprintf("S%d", i), Take: 1, State: "ended", HeadSeq: 1234})
	}
	d.Channels = []httpd.Served{many, {Channel: "bad", State: capture.StateDegraded, Sessions: []httpd.ServedSession{{Session: "B", Take: 2, State: "open", Fault: "a segment is missing"}}}}
	var out bytes.Buffer
	if err := printServing(plainWriter{&out}, d, true); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"many ok S3 ended 0 0 1234", "S12 ended", "and 3 older", "bad degraded B@2 open", "bad/B@2: a segment is missing", "archive? gone", "9 requests: 6 answered, refused: repeated 2, missing 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(got, "S2 ") || strings.Contains(got, "empty") {
		t.Errorf("too much:\n%s", out.String())
	}
	if bad := strings.Join(failingServed(d), "; "); bad != "archive\x1b gone; bad (B@2)" {
		t.Errorf("%q", bad)
	}
	d.Error, d.Channels = "", d.Channels[:1]
	if bad := failingServed(d); bad != nil {
		t.Errorf("%q", bad)
	}
}
