package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// tapeOf imports n messages from first on, step apart.
func tapeOf(t *testing.T, dir string, first moldcast.Seq, n int, step time.Duration) {
	t.Helper()
	var b strings.Builder
	at := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	for i := range n {
		line, err := json.Marshal(map[string]any{"seq": first + moldcast.Seq(i), "time": at.Add(time.Duration(i) * step), "data": message(nil, first+moldcast.Seq(i))})
		if err != nil {
			t.Fatal(err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	file := filepath.Join(dir, "tape.ndjson")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, 0, "import", file, "--archive", "a", "--channel", "ch", "--session", "TAPE")
}

// driven is a replay that is driven over HTTP and asked over UDP.
type driven struct {
	t          *testing.T
	proc       *proc
	http       string
	retransmit string
	asked      uint16
}

func drive(t *testing.T, dir string, args ...string) *driven {
	t.Helper()
	p := moldtape(t, dir, append([]string{"replay", "ch/TAPE", "--archive", "a", "--interface", "lo", "--http", "127.0.0.1:0", "--retransmit-listen", "127.0.0.1:0"}, args...)...)
	ready := p.event("ready")
	return &driven{t: t, proc: p, http: ready["http"].(string), retransmit: ready["retransmit"].(string)}
}

// post obeys once what was told before has been done.
func (d *driven) post(what string) map[string]any {
	d.t.Helper()
	res, err := http.Post("http://"+d.http+"/"+what, "", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	var m map[string]any
	if err := json.NewDecoder(res.Body).Decode(&m); err != nil || res.StatusCode != http.StatusOK {
		d.t.Fatalf("%s: %s, %v", what, res.Status, err)
	}
	return m
}

func name(t *testing.T, s string) moldcast.Session {
	t.Helper()
	n, err := moldcast.ParseSession(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// want asks for count messages from first on, and wants those up to next, or no
// answer where next is 0; held is a message that is answered.
func (d *driven) want(session string, first moldcast.Seq, count uint16, next moldcast.Seq, heldIn string, held moldcast.Seq) {
	d.t.Helper()
	r := moldcast.Request{Session: name(d.t, session), First: first, Count: count}
	sentinel := r
	if next == 0 {
		d.asked++ // one that is asked again at once has no answer
		sentinel = moldcast.Request{Session: name(d.t, heldIn), First: held, Count: d.asked}
	}
	got := newAsker(d.t, d.retransmit).ask(r, sentinel) // by a socket without late answers
	if next == 0 {
		if got != nil {
			d.t.Errorf("%s %d: answered with %x", session, first, got)
		}
		return
	}
	p, err := moldcast.Parse(got)
	if err != nil || p.Session != name(d.t, session) || p.First != first || p.Msgs.Len() != int(next-first) {
		d.t.Errorf("%s %d..: %v, %+v; want up to %d", session, first, err, p, next)
		return
	}
	for q := first; q < next; q++ {
		if string(p.Msgs.Next()) != string(message(nil, q)) {
			d.t.Errorf("%s %d: wrong bytes", session, q)
		}
	}
}

// Requests during a replay are answered for what was published so far, and only
// that: behind a seek back, a seek forward, and loop by loop.
func TestReplayAnswersForWhatWasPublished(t *testing.T) {
	dir := t.TempDir()
	const first, step = 484311999, 100 * time.Millisecond
	tapeOf(t, dir, first, 60, step)
	d := drive(t, dir, "--group", "239.255.78.1:26400", "--speed", "0.001", "--as-session", "LOOP", "--loop", "2", "--linger", "100ms")
	d.post("pause")
	told := d.post("step?packets=20")
	next := moldcast.Seq(told["sessions"].([]any)[0].(map[string]any)["next_seq"].(float64))
	if next != first+20 && next != first+21 { // the first may have gone before the pause
		t.Fatalf("told %v", told)
	}
	want := func(first moldcast.Seq, count uint16, next moldcast.Seq) {
		t.Helper()
		d.want("LOOP1", first, count, next, "LOOP1", 484312000)
	}
	want(first, 5, first+5)
	want(next-3, 10, next)
	want(next, 1, 0)
	want(first-1, 1, 0)
	d.want("TAPE", first, 1, 0, "LOOP1", 484312000)
	d.want("LOOP2", first, 1, 0, "LOOP1", 484312000)

	d.post(fmt.Sprint("seek?seq=", first+5))
	d.post("step?packets=2")
	want(next-1, 3, next) // it was published before
	want(next, 1, 0)
	d.post(fmt.Sprint("seek?seq=", first+50))
	d.post("step?packets=1")
	want(first+50, 4, first+51)
	want(next-2, 9, next)
	want(next, 1, 0) // passed over
	want(first+49, 1, 0)
	want(first+51, 1, 0)

	// The second loop is a session of its own, of which nothing is answered
	// before it was published; the first is answered for as long as the second.
	d.post("step?packets=9") // the last of the first loop
	d.post("resume")         // the first of the second goes at once, the next after 100 s
	for deadline := time.Now().Add(hang); num(t, httpStatus(t, d.http), "loop") != 2; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no second loop: %v", httpStatus(t, d.http))
		}
	}
	d.post("pause")
	told = d.post("step?packets=20")
	two := moldcast.Seq(told["sessions"].([]any)[0].(map[string]any)["next_seq"].(float64))
	if two <= first || two >= first+60 {
		t.Fatalf("told %v", told)
	}
	d.want("LOOP2", first, 60, two, "LOOP2", first)
	d.want("LOOP2", two, 1, 0, "LOOP2", first)
	d.want("LOOP1", first+59, 9, first+60, "LOOP2", first)
	d.want("LOOP1", first+49, 1, 0, "LOOP2", first)
	d.post("stop")
	d.proc.exit(130)
}

// With a ring only the newest are answered for, as by a sender with such a one.
func TestReplayAnswersFromARing(t *testing.T) {
	dir := t.TempDir()
	tapeOf(t, dir, 1, 60, time.Hour)
	d := drive(t, dir, "--group", "239.255.78.2:26400", "--ring", "10")
	d.post("pause")
	for _, n := range []int{5, 25} {
		told := d.post(fmt.Sprintf("step?packets=%d", n))
		next := moldcast.Seq(told["sessions"].([]any)[0].(map[string]any)["next_seq"].(float64))
		low := moldcast.Seq(1)
		if next > 11 {
			low = next - 10
			d.want("TAPE", low-1, 5, 0, "TAPE", low)
		}
		d.want("TAPE", low, 60, next, "TAPE", next-1)
		d.want("TAPE", next, 1, 0, "TAPE", low)
	}
	d.post("stop")
	d.proc.exit(130)
}
