package pacereport

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/replay"
)

// render is the page, which must be well formed and ask for nothing.
func render(t *testing.T, p Page) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	s := b.String()
	for _, word := range []string{"http:", "https:", "src=", "href=", "url(", "@import", "<script", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(s, word) {
			t.Errorf("the page contains %q", word)
		}
	}
	d := xml.NewDecoder(strings.NewReader(strings.NewReplacer("<!DOCTYPE html>", "", `<meta charset="utf-8">`, "").Replace(s)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return s
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, s)
		}
	}
}

func TestPage(t *testing.T) {
	r := &replay.Report{
		Packets: 30, Messages: 90, Bytes: 900, Elapsed: 2.048, Scheduled: 2.0479, PacketRate: 14.6,
		PacingError: replay.Errors{P50: 1.5e-6, P99: 0.00025, P999: 0.004, Max: 0.0041}, Drift: -2e-7,
		Busiest: []replay.Window{{Length: 0.001, Scheduled: 7, Sent: 8}},
		Timeline: []replay.Span{
			{Length: time.Second, Scheduled: 10, Sent: 9, Mean: time.Microsecond, Max: 4100 * time.Microsecond},
			{From: time.Second, Length: time.Second},
			{From: 2 * time.Second, Length: time.Second, Scheduled: 20, Sent: 21, Mean: time.Microsecond, Max: time.Microsecond},
		},
		Lateness: []replay.Share{{Most: 1023, Packets: 10}, {Most: 1 << 22, Packets: 30}},
	}
	s := render(t, Page{Sessions: []string{"nq/TAPE", "b/<T&PE>"}, How: "speed 1", Report: r})
	for _, want := range []string{
		"nq/TAPE, b/&lt;T&amp;PE&gt;: speed 1", "p50 1.5µs, p99 250µs, p99.9 4ms, most 4.1ms", "-200ns", "15 packets/s",
		"<td>1ms</td><td>7</td><td>8</td>", "21/s", "750ms",
	} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
	if n := strings.Count(s, "<svg"); n != 3 {
		t.Errorf("%d plots", n)
	}
	// 9 packets in the first second, of at most 21: at 10 + 180 * (1 - 9/21).
	if !strings.Contains(s, `points="206.7,112.9 480.0,190.0 753.3,10.0"`) {
		t.Error("the curve of what was sent is another")
	}
}

// A replay that sent nothing, or was not paced, is a page too.
func TestPageOfLittle(t *testing.T) {
	if s := render(t, Page{Report: new(replay.Report)}); strings.Contains(s, "<svg") {
		t.Error("a plot of nothing")
	}
	r := &replay.Report{Packets: 5, Busiest: []replay.Window{{Length: 1, Sent: 5}}, Timeline: []replay.Span{{Length: time.Millisecond, Scheduled: 5, Sent: 5}}}
	if s := render(t, Page{Report: r}); strings.Count(s, "<svg") != 1 || strings.Contains(s, "scheduled</span>") || !strings.Contains(s, "<td>1s</td><td>–</td><td>5</td>") {
		t.Errorf("a schedule of what had none:\n%s", s)
	}
}

func TestPerSecond(t *testing.T) {
	for n, want := range map[float64]string{0: "0/s", 21: "21/s", 999: "999/s", 27_800: "27.8k/s", 1_500_000: "1.5M/s"} {
		if got := perSecond(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}
