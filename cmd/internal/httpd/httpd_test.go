package httpd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
)

// fill gives every number of a struct another value.
func fill(v reflect.Value, from uint64) uint64 {
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Uint64 {
			from++
			f.SetUint(from)
		}
	}
	return from
}

// sample is a channel of which everything is told.
func sample(name string, from uint64) capture.Status {
	heard := time.Unix(1_700_000_000, 500_000_000).UTC()
	st := capture.Status{
		Channel: name, State: capture.StateDegraded, Since: &heard,
		Reasons: []capture.Degradation{{Reason: capture.ReasonGap, Since: heard, Text: "3 messages missing in 1 gap"}},
		Open:    &capture.OpenGaps{Gaps: 1, Messages: 3},
		Degraded: []capture.Degraded{
			{Reason: capture.ReasonGap, Now: true, Times: 4, Seconds: 2.5},
			{Reason: capture.ReasonStorage}, {Reason: capture.ReasonLineSilent}, {Reason: capture.ReasonNoPackets},
		},
		Lines: []capture.LineStatus{
			{Line: "A", Addr: "239.255.0.1:1", State: capture.LineLive, LastHeard: &heard},
			{Line: "B", Addr: "239.255.0.2:1", State: capture.LineSilent},
		},
		Sockets:  []capture.SocketStatus{{Addr: "239.255.0.1:1", Lines: []string{"A"}, Received: 9, RingDepth: 1, RingHigh: 7, RingSlots: 8192}},
		Storage:  capture.Storage{State: "ok", WaitingBytes: 77},
		Measured: &arbiter.SessionStats{Lines: make([]arbiter.LineStats, 2)},
		Sessions: []capture.SessionStatus{
			{Session: moldcast.Session{'D', 'A', 'Y', 0xFF}, Take: 2, State: "live", FirstSeq: 1, NextSeq: 90, DurableSeq: 80, HeadSeq: 100, Holes: 1, Lag: 20, LagSeconds: 0.25, Timing: &capture.Timing{Settle: 0.0002}},
			{Session: moldcast.Session{'O', 'L', 'D'}, Take: 1, State: "ended"},
		},
	}
	n := fill(reflect.ValueOf(&st.Counters).Elem(), from)
	n = fill(reflect.ValueOf(&st.Verdicts).Elem(), n)
	for i := range st.Lines {
		n = fill(reflect.ValueOf(&st.Lines[i]).Elem(), n)
	}
	for _, v := range []int64{900_000, 2_000_000, 3_000_000_000} {
		st.Measured.Repair.Add(v)
	}
	st.Measured.Wait.Add(1_500_000)
	for _, v := range []int64{2_000, 2_001, 70_000} {
		st.Measured.Lines[1].Skew.Add(v)
	}
	st.Measured.Lines[0].Disorder.Add(5)
	return st
}

func server(t *testing.T, cfg Config) (*Server, string) {
	t.Helper()
	s := New(cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, "http://" + l.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
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

func always(st ...capture.Status) func(context.Context) ([]capture.Status, error) {
	return func(context.Context) ([]capture.Status, error) { return st, nil }
}

// value is that of the metric with these labels, given as name=value.
func value(t *testing.T, all map[string]*dto.MetricFamily, name string, labels ...string) *dto.Metric {
	t.Helper()
	f := all[name]
	if f == nil {
		t.Fatalf("no metric %s", name)
	}
next:
	for _, m := range f.Metric {
		for _, want := range labels {
			found := false
			for _, l := range m.Label {
				found = found || l.GetName()+"="+l.GetValue() == want
			}
			if !found {
				continue next
			}
		}
		return m
	}
	t.Fatalf("no %s with %v: %v", name, labels, f)
	return nil
}

// contract is every counter that the command line's reference names.
const contract = `packets messages bytes duplicates out_of_order gaps_opened gaps_recovered messages_recovered messages_lost stale
	queue_dropped kernel_dropped malformed implausible conflicts wrong_session naks_sent messages_streamed`

// TestMetrics: Prometheus' own parser reads them, its linter has nothing to
// say, and they say the same as /status.
func TestMetrics(t *testing.T) {
	var requests retransmit.Stats
	fill(reflect.ValueOf(&requests).Elem(), 500)
	requests.Unanswered[retransmit.Missing] = 13
	var streams retransmit.StreamStats
	fill(reflect.ValueOf(&streams).Elem(), 700)
	streams.Ends[retransmit.StreamStalled] = 17
	_, url := server(t, Config{
		Status: always(sample("x", 1000), sample("y", 2000)), Requests: func() retransmit.Stats { return requests },
		Streams: func() retransmit.StreamStats { return streams },
		Readers: func() []retransmit.ReaderInfo {
			return []retransmit.ReaderInfo{{State: retransmit.ReaderLive}, {State: retransmit.ReaderHistory, Lag: 70, Queued: 5}, {State: retransmit.ReaderHistory, Lag: 9, Queued: 6}}
		}, Archive: t.TempDir(), Version: "v1",
	})
	code, text := get(t, url+"/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}

	_, body := get(t, url+"/status")
	var doc map[string]any
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	channels := doc["channels"].([]any)
	if len(channels) != 2 || doc["state"] != "degraded" || doc["version"] != "v1" {
		t.Fatalf("%s", body)
	}
	for _, c := range channels {
		c := c.(map[string]any)
		label := "channel=" + c["channel"].(string)
		for _, name := range strings.Fields(contract) {
			m := value(t, all, "moldtape_"+name+"_total", label)
			if want, ok := c[name].(float64); !ok || m.GetCounter().GetValue() != want || want == 0 {
				t.Errorf("%s of %s is %v, status says %v", name, label, m.GetCounter().GetValue(), c[name])
			}
		}
		for name, n := range c["verdicts"].(map[string]any) {
			if m := value(t, all, "moldtape_verdicts_total", label, "verdict="+name); m.GetCounter().GetValue() != n {
				t.Errorf("verdict %s: %v, status says %v", name, m, n)
			}
		}
		for _, l := range c["lines"].([]any) {
			l := l.(map[string]any)
			line := "line=" + l["line"].(string)
			for _, name := range []string{"packets", "heartbeats", "messages", "bytes", "taken", "repeated", "lost", "compared", "first"} {
				if m := value(t, all, "moldtape_line_"+name+"_total", label, line); m.GetCounter().GetValue() != l[name] {
					t.Errorf("%s %s: %v, status says %v", line, name, m, l[name])
				}
			}
		}
	}
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"build_info", []string{"version=v1"}, 1},
		{"degraded", []string{"channel=x", "reason=gap"}, 1},
		{"degraded", []string{"channel=x", "reason=no_packets"}, 0},
		{"open_gap_messages", []string{"channel=x"}, 3},
		{"up", []string{"channel=x"}, 0},
		{"storage_up", []string{"channel=x"}, 1},
		{"line_up", []string{"channel=x", "line=A"}, 1},
		{"line_up", []string{"channel=x", "line=B"}, 0},
		{"line_last_heard_seconds", []string{"channel=x", "line=A"}, 1_700_000_000.5},
		{"ring_high", []string{"channel=y", "lines=A"}, 7},
		{"watermark_lag_messages", []string{"channel=y", "session=DAY%FF%00%00%00%00%00%00", "take=2"}, 20},
		{"watermark_lag_seconds", []string{"channel=y", "take=2"}, 0.25},
		{"session_holes", []string{"channel=y", "take=2"}, 1},
	} {
		if m := value(t, all, "moldtape_"+c.name, c.labels...); m.GetGauge().GetValue() != c.want {
			t.Errorf("%s %v: %v, want %v", c.name, c.labels, m, c.want)
		}
	}
	for name, want := range map[string]float64{
		"moldtape_requests_total": float64(requests.Requests), "moldtape_requests_answered_total": float64(requests.Answered), "moldtape_answer_bytes_total": float64(requests.Bytes),
		"moldtape_stream_connections_total": float64(streams.Connections), "moldtape_stream_messages_total": float64(streams.Messages), "moldtape_stream_bytes_total": float64(streams.Bytes),
	} {
		if got := value(t, all, name).GetCounter().GetValue(); got != want || want == 0 {
			t.Errorf("%s %v, want %v", name, got, want)
		}
	}
	if got := value(t, all, "moldtape_requests_refused_total", "reason=missing").GetCounter().GetValue(); got != 13 {
		t.Errorf("%v missing", got)
	}
	if got := value(t, all, "moldtape_stream_ended_total", "how=stalled").GetCounter().GetValue(); got != 17 {
		t.Errorf("%v stalled", got)
	}
	for name, want := range map[string]float64{"moldtape_stream_lag_messages": 70, "moldtape_stream_queued_bytes": 11} {
		if got := value(t, all, name).GetGauge().GetValue(); got != want {
			t.Errorf("%s %v, want %v", name, got, want)
		}
	}
	if got := value(t, all, "moldtape_stream_readers", "state=history").GetGauge().GetValue(); got != 2 {
		t.Errorf("%v readers of history", got)
	}
	if n := len(all["moldtape_stream_ended_total"].Metric); n != int(retransmit.StreamEnds) {
		t.Errorf("%d ends", n)
	}
	if n := len(all["moldtape_requests_refused_total"].Metric); n != int(retransmit.Reasons) {
		t.Errorf("%d reasons", n)
	}
	if n := len(all["moldtape_watermark_lag_messages"].Metric); n != 2 {
		t.Errorf("%d sessions: those that are closed too", n)
	}
	if all["go_goroutines"] == nil || all["process_resident_memory_bytes"] == nil {
		t.Error("nothing of the process")
	}

	repair := value(t, all, "moldtape_repair_seconds", "channel=x").GetHistogram()
	if repair.GetSampleCount() != 3 || math.Abs(repair.GetSampleSum()-3.0029) > 1e-9 {
		t.Errorf("repair %v", repair)
	}
	below := map[bool]uint64{}
	for _, b := range repair.Bucket {
		below[b.GetUpperBound() > 1] = max(below[b.GetUpperBound() > 1], b.GetCumulativeCount())
	}
	if below[false] != 2 || below[true] != 3 {
		t.Errorf("repair %v", repair)
	}
	if h := value(t, all, "moldtape_line_skew_seconds", "channel=x", "line=B").GetHistogram(); h.GetSampleCount() != 3 || h.GetSampleSum() < 74e-6 || h.GetSampleSum() > 74.1e-6 {
		t.Errorf("skew %v", h)
	}
	if h := value(t, all, "moldtape_line_disorder_messages", "channel=x", "line=A").GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 5 {
		t.Errorf("disorder %v", h)
	}
}

// The room on the disk is looked up beside the requests.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	d := &disk{dir: dir}
	if d.usage() != nil {
		t.Error("known before it was looked up")
	}
	d.look()
	if u := d.usage(); u == nil || u.SizeBytes == 0 || u.FreeBytes > u.SizeBytes {
		t.Errorf("%+v", u)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	d.look()
	if d.usage() != nil {
		t.Error("known of a disk that is not there")
	}
}

func TestHealthAndReadiness(t *testing.T) {
	bad := sample("bad", 0)
	bad.Storage = capture.Storage{State: "failing", Error: "no space left", Advice: "free room"}
	failed := sample("gone", 0)
	failed.State, failed.Error = capture.StateFailed, "the socket is gone"
	for _, c := range []struct {
		name              string
		channels          []capture.Status
		err               error
		healthz, readyz   int
		inHealth, inReady string
	}{
		{"degraded by a gap alone", []capture.Status{sample("x", 0)}, nil, 200, 200, `"status":"ok"`, `{"ready":true}`},
		{"an archive that fails", []capture.Status{sample("x", 0), bad}, nil, 503, 503, `"channel":"bad"`, `channel bad: the archive cannot be written: no space left`},
		{"a channel that failed", []capture.Status{failed, sample("x", 0)}, nil, 503, 503, `"channel":"gone","state":"failed","error":"the socket is gone"`, `channel gone has failed: the socket is gone`},
		{"an engine that is gone", nil, errors.New("channel x has stopped"), 503, 503, `"status":"stopping","error":"channel x has stopped"`, `not capturing: channel x has stopped`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, url := server(t, Config{Status: func(context.Context) ([]capture.Status, error) { return c.channels, c.err }})
			if code, body := get(t, url+"/healthz"); code != c.healthz || !strings.Contains(body, c.inHealth) {
				t.Errorf("healthz: %d %s", code, body)
			}
			if code, body := get(t, url+"/readyz"); code != c.readyz || !strings.Contains(body, c.inReady) {
				t.Errorf("readyz: %d %s", code, body)
			}
			if code, _ := get(t, url+"/metrics"); (code == 200) != (c.err == nil) {
				t.Errorf("metrics: %d", code)
			}
		})
	}
}

func TestWorst(t *testing.T) {
	of := func(states ...string) (out []capture.Status) {
		for _, s := range states {
			out = append(out, capture.Status{State: s})
		}
		return out
	}
	for want, states := range map[string][]capture.Status{
		"ok": of("ended", "ok"), "ended": of("ended", "ended"), "degraded": of("ok", "degraded", "ended"),
		"failed": of("degraded", "failed", "ok", "stopped"),
	} {
		if got := Worst(states); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestPprofOnlyWhenAsked(t *testing.T) {
	for _, on := range []bool{false, true} {
		_, url := server(t, Config{Status: always(), Pprof: on})
		want := map[bool]int{false: 404, true: 200}[on]
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline"} {
			if code, _ := get(t, url+path); code != want {
				t.Errorf("%s: %d, want %d", path, code, want)
			}
		}
	}
}

// TestEngineIsSpared: whatever the number of clients, the engine is asked once
// in MaxAge.
func TestEngineIsSpared(t *testing.T) {
	var asked atomic.Int64
	_, url := server(t, Config{Status: func(context.Context) ([]capture.Status, error) {
		asked.Add(1)
		return []capture.Status{sample("x", 0)}, nil
	}})
	begin := time.Now()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 50 {
				if code, _ := get(t, url+[]string{"/status", "/metrics", "/healthz", "/readyz"}[i%4]); code != 200 {
					t.Errorf("%d", code)
				}
			}
		})
	}
	all.Wait()
	if most := int64(time.Since(begin)/MaxAge) + 1; asked.Load() > most {
		t.Errorf("the engine was asked %d times in %v", asked.Load(), time.Since(begin))
	}
}

// TestBusyConnections: where one more connection comes, the oldest that only
// waits is closed, and none whose request is being answered; where all are, the
// new one is.
func TestBusyConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := &limited{Listener: inner, max: 2}
	pair := func() (client, server net.Conn) {
		client, server = net.Pipe()
		t.Cleanup(func() { client.Close() })
		return client, l.admit(server)
	}
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	ca, a := pair()
	cb, b := pair()
	a.(*limitedConn).set(true)
	cc, c := pair()
	if closed(ca) || !closed(cb) || closed(cc) {
		t.Error("not the oldest that waits was closed")
	}
	c.(*limitedConn).set(true)
	if _, d := pair(); d != nil {
		t.Error("one was admitted beside two that are busy")
	}
	b.Close() // it is no longer one of them
	a.Close()
	if _, d := pair(); d == nil {
		t.Error("a connection that was closed still counts")
	}
}

// TestEngineThatHangs: who asks is answered that it does, and nobody waits for
// longer than he likes.
func TestEngineThatHangs(t *testing.T) {
	s := New(Config{Status: func(ctx context.Context) ([]capture.Status, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/status", nil))
			if w.Code != 503 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	all.Wait()
}

// TestHostileClients: connections that say nothing, or too much, keep nobody
// else out, and none is served that should not be.
func TestHostileClients(t *testing.T) {
	_, url := server(t, Config{Status: always(sample("x", 0))})
	addr := strings.TrimPrefix(url, "http://")
	for i := range 3 * maxConns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			fmt.Fprintf(c, "GET /status HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		}
	}
	if code, _ := get(t, url+"/status"); code != 200 {
		t.Errorf("%d beside silent clients", code)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go fmt.Fprintf(c, "GET /status HTTP/1.1\r\nHost: x\r\nX-Long: %s\r\n\r\n", strings.Repeat("x", 1<<20)) // cut off on the way
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 1 MB: %s", resp.Status)
	}
	if code, _ := get(t, url+"/nothing"); code != 404 {
		t.Errorf("%d", code)
	}
	if resp, err := http.Post(url+"/status", "text/plain", strings.NewReader("x")); err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: %v %v", resp, err)
	}
}
