package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/moldtape/moldtape/retransmit"
)

// A node that serves without capturing says what it serves; what it does not
// know it leaves out.
func TestServing(t *testing.T) {
	at := time.Unix(1_700_000_000, 5).UTC()
	served := []Served{
		{Channel: "a", State: "ok", Sessions: []ServedSession{
			{Session: "OLD", Take: 1, State: "ended", FirstSeq: 1, NextSeq: 9, DurableSeq: 9, HeadSeq: 9, Messages: 8, Segments: 1, LastTime: &at},
			{Session: "NEW%01", Take: 2, State: SessionLive, FirstSeq: 1, NextSeq: 90, DurableSeq: 90, HeadSeq: 100, Messages: 98, Holes: 1, Segments: 3, LastTime: &at},
		}},
		{Channel: "b", State: "degraded", Sessions: []ServedSession{{Session: "BAD", Take: 1, State: "open", Fault: "a segment is missing"}}},
	}
	_, url := server(t, Config{
		Served:   func(context.Context) ([]Served, string, error) { return served, "", nil },
		Requests: func() retransmit.Stats { return retransmit.Stats{Requests: 7} },
	})
	_, body := get(t, url+"/status")
	var doc Serving
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Role != "retransmit" || doc.State != "degraded" || doc.Requests.Received != 7 || len(doc.Channels) != 2 || *doc.Channels[0].Sessions[0].LastTime != at {
		t.Errorf("%s", body)
	}
	if x := doc.Channels[0].Sessions[1]; x.Session != "NEW%01" || x.HeadSeq != 100 || x.Holes != 1 {
		t.Errorf("%+v", x)
	}
	if strings.Contains(body, "gaps_opened") || strings.Contains(body, "streams") {
		t.Errorf("says what it does not know: %s", body)
	}

	_, text := get(t, url+"/metrics")
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"archive_up", nil, 1},
		{"up", []string{"channel=a"}, 1},
		{"up", []string{"channel=b"}, 0},
		{"served_sessions", []string{"channel=a"}, 2},
		{"session_head_seq", []string{"channel=a", "session=NEW%01", "take=2"}, 100},
		{"session_holes", []string{"channel=a", "session=NEW%01", "take=2"}, 1},
	} {
		if m := value(t, all, "moldtape_"+c.name, c.labels...); m.GetGauge().GetValue() != c.want {
			t.Errorf("%s %v: %v, want %v", c.name, c.labels, m, c.want)
		}
	}
	if n := len(all["moldtape_session_head_seq"].Metric); n != 1 {
		t.Errorf("%d sessions have metrics: those at rest too", n)
	}
}

func TestServingHealth(t *testing.T) {
	faulty := []Served{{Channel: "b", State: "degraded", Sessions: []ServedSession{{Session: "BAD", Fault: "a segment is missing"}}}}
	for _, c := range []struct {
		name                        string
		trouble                     string
		err                         error
		status, healthz, readyz     int
		inStatus, inHealth, inReady string
	}{
		{"a session that is damaged", "", nil, 200, 200, 200, `"fault":"a segment is missing"`, `"status":"ok"`, `{"ready":true}`},
		{"an archive that is gone", "no such directory", nil, 200, 503, 503, `"state":"degraded","error":"no such directory"`, `"status":"degraded","error":"no such directory"`, `"reasons":["no such directory"]`},
		{"a disk that hangs", "", errors.New("the archive does not answer"), 503, 503, 503, `does not answer`, `"status":"stopping"`, `not serving: the archive does not answer`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, url := server(t, Config{Served: func(context.Context) ([]Served, string, error) { return faulty, c.trouble, c.err }})
			for _, x := range []struct {
				path, in string
				code     int
			}{{"/status", c.inStatus, c.status}, {"/healthz", c.inHealth, c.healthz}, {"/readyz", c.inReady, c.readyz}} {
				if code, body := get(t, url+x.path); code != x.code || !strings.Contains(body, x.in) {
					t.Errorf("%s: %d %s", x.path, code, body)
				}
			}
		})
	}
}
