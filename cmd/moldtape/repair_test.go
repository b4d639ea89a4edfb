package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	holed     = 6000 // messages of an archive with holes, four a packet
	holeEvery = 40   // of which one packet in ten is missing
)

// missing reports whether q is in a hole.
func missing(q moldcast.Seq) bool { return (q-1)%holeEvery >= 20 && (q-1)%holeEvery < 24 }

// holedArchive is what a capture keeps that nobody answers, of 150 holes.
func holedArchive(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	capture := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--nak-budget", "20ms", "--until-end")
	line := lineAddrs(t, capture.event("ready"))[0]
	pc := pacer{rate: 30_000}
	for q := moldcast.Seq(1); q <= holed; q += 4 {
		if !missing(q) {
			_, _ = line.Write(packet(q, q+4))
		}
		pc.wait(q)
	}
	capture.ended(holed+1, line)
	capture.exit(0)
	return dir
}

// some answers requests for what it has; the others it only counts.
func some(t *testing.T, has func(moldcast.Seq) bool) (addr string, unanswered *atomic.Int64) {
	t.Helper()
	unanswered = new(atomic.Int64)
	conn := answers(t, func(q moldcast.Request) []byte {
		end := q.First
		for end < q.Range().Next && end < q.First+25 && has(end) {
			end++
		}
		if end == q.First {
			unanswered.Add(1)
			return nil
		}
		return packet(q.First, end)
	})
	return conn.LocalAddr().String(), unanswered
}

// report is `repair --json`.
type report struct {
	OK       bool
	Holes    int
	Messages int
	Left     []struct {
		First moldcast.Seq `json:"first_seq"`
		Last  moldcast.Seq `json:"last_seq"`
	} `json:"hole_list"`
}

func parseReport(t *testing.T, out string) (r report) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return r
}

// A server that has the newest of an archive's holes only, as a sender's ring
// does, fills these, and those that are left are exit 1, long before the budget
// of each could have run. One that lacks others has its own.
func TestRepairFromShortRing(t *testing.T) {
	dir := holedArchive(t)
	const from = 4503 // in the middle of a hole
	addr, unanswered := some(t, func(q moldcast.Seq) bool { return q >= from })
	r := parseReport(t, run(t, dir, 1, "repair", "E2E", "--from", addr, "--nak-budget", "1h", "--json"))
	if r.Holes != 150 || r.Messages != 37*4+2 || len(r.Left) != 113 || r.Left[0].First != 21 || r.Left[112].Last != 4502 {
		t.Fatalf("%+v", r)
	}
	// Three requests at least for each message, and no storm of them.
	if n := unanswered.Load(); n < 112*4*3 || n > 20_000 {
		t.Errorf("%d requests for what it lacks", n)
	}
	addr, _ = some(t, func(q moldcast.Seq) bool { return q < 3000 && q/500%2 == 0 || q > 4000 })
	r = parseReport(t, run(t, dir, 1, "repair", "E2E", "--from", addr, "--nak-budget", "1h", "--json"))
	for _, h := range r.Left {
		if h.First < 3000 && h.First/500%2 == 0 || h.First > 4000 {
			t.Errorf("%d..%d is left", h.First, h.Last)
		}
	}
	addr, _ = some(t, func(moldcast.Seq) bool { return true })
	if r = parseReport(t, run(t, dir, 0, "repair", "E2E", "--from", addr, "--json")); !r.OK || len(r.Left) > 0 {
		t.Fatalf("%+v", r)
	}
	if !bytes.Equal(exported(t, dir, "E2E"), binaryFile(1, holed+1)) {
		t.Error("what was repaired differs from what was sent")
	}
}

// Ctrl-C while a server does not answer any more: what it brought is kept.
func TestRepairInterrupted(t *testing.T) {
	dir := holedArchive(t)
	var left atomic.Int64
	left.Store(20) // holes that it answers for
	addr, unanswered := some(t, func(q moldcast.Seq) bool {
		if left.Load() <= 0 {
			return false
		}
		if missing(q) && !missing(q+1) {
			left.Add(-1)
		}
		return true
	})
	p := moldtape(t, dir, "repair", "E2E", "--from", addr, "--nak-budget", "1h", "--json")
	deadline := time.Now().Add(hang)
	for range 200 { // it asks on
		for was := unanswered.Load(); unanswered.Load() == was; {
			if time.Now().After(deadline) {
				t.Fatal("it asks no more")
			}
			<-time.After(time.Millisecond)
		}
	}
	p.signal(syscall.SIGINT)
	var out strings.Builder
	for line := range p.lines {
		fmt.Fprintln(&out, line)
	}
	p.lines = nil
	p.exit(130)
	r := parseReport(t, out.String())
	if r.OK || r.Messages == 0 || len(r.Left) == 0 || len(r.Left) >= 150 {
		t.Fatalf("%+v", r)
	}
	// Nothing of it is undone, and the rest comes next time.
	addr, _ = some(t, func(moldcast.Seq) bool { return true })
	again := parseReport(t, run(t, dir, 0, "repair", "E2E", "--from", addr, "--json"))
	if !again.OK || again.Holes != len(r.Left) || again.Messages+r.Messages != 150*4 {
		t.Fatalf("%+v, and then %+v", r, again)
	}
}
