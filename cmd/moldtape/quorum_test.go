package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// quorumRig is archives that acknowledge to publishers on one address.
type quorumRig struct {
	t                    *testing.T
	dir                  string
	group, requests, ack string
	nodes                map[string]*proc
	http                 map[string]string
}

func newQuorumRig(t *testing.T) *quorumRig {
	r := &quorumRig{t: t, dir: t.TempDir(), nodes: map[string]*proc{}, http: map[string]string{}}
	free := func() (addr string, port int) {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.LocalAddr().String(), c.LocalAddr().(*net.UDPAddr).Port
	}
	r.requests, _ = free()
	r.ack, _ = free()
	_, port := free()
	r.group = fmt.Sprintf("239.255.78.1:%d", port)
	return r
}

// capture starts a node into archive name.
func (r *quorumRig) capture(name string, args ...string) {
	p := moldtape(r.t, r.dir, append([]string{"capture", "--archive", name, "--interface", "lo", "--line", r.group, "--rerequest", r.requests,
		"--ack", r.ack, "--http", "127.0.0.1:0", "--start", "beginning", "--nak-budget", "1h"}, args...)...)
	r.nodes[name], r.http[name] = p, p.event("ready")["http"].(string)
}

// kill is kill -9. The result is up to where the archive held everything.
func (r *quorumRig) kill(name, session string) int {
	r.t.Helper()
	r.nodes[name].signal(syscall.SIGKILL)
	r.nodes[name].exit(-1)
	var list []map[string]any
	if err := json.Unmarshal([]byte(run(r.t, r.dir, 0, "sessions", "--archive", name, "--json")), &list); err != nil {
		r.t.Fatal(err)
	}
	for _, s := range list {
		if s["session"] == session {
			return num(r.t, s, "next_seq")
		}
	}
	r.t.Fatalf("archive %s has no %s: %v", name, session, list)
	return 0
}

// reach waits until a node holds a session durably up to seq, exclusive.
func (r *quorumRig) reach(name, session string, seq int) (s map[string]any) {
	r.t.Helper()
	waitStatus(r.t, r.http[name], func(c map[string]any) bool {
		for _, x := range c["sessions"].([]any) {
			if s = x.(map[string]any); s["session"] == session && num(r.t, s, "durable_seq") >= seq {
				return true
			}
		}
		return false
	})
	return s
}

// told waits until what a node holds durably by now has been acknowledged, which
// it is with the next but one at the latest.
func (r *quorumRig) told(name string) {
	r.t.Helper()
	sent, first := 0, true
	waitStatus(r.t, r.http[name], func(c map[string]any) bool {
		n := num(r.t, c["acks"].(map[string]any), "sent")
		if first {
			sent, first = n, false
		}
		return n >= sent+2
	})
}

// publish publishes what is given to the process by feed.
func (r *quorumRig) publish(session string, args ...string) *proc {
	p := launch(r.t, r.dir, true, append([]string{"publish", "--json", "--group", r.group, "--interface", "lo", "--session", session, "--input", "-",
		"--rate", "4000", "--retransmit-listen", r.requests, "--ack-listen", r.ack, "--gate", "--heartbeat", "100ms", "--linger", "0s"}, args...)...)
	if got := p.event("ready")["ack"]; got != r.ack {
		r.t.Fatalf("acknowledgements at %v, want %v", got, r.ack)
	}
	return p
}

// feed gives a publisher messages [first, next); the last ones end its input.
func (r *quorumRig) feed(p *proc, first, next, last int) {
	r.t.Helper()
	if _, err := p.in.Write(binaryFile(moldcast.Seq(first), moldcast.Seq(next))); err != nil {
		r.t.Fatal(err)
	}
	if next > last {
		p.in.Close()
	}
}

type published struct {
	Ended  bool
	Quorum struct {
		Seq      int `json:"quorum_seq"`
		Lag      int
		Archives []struct {
			State   string
			Silent  bool
			Durable int `json:"durable_seq"`
		}
	}
}

func (r *quorumRig) summary(p *proc, code int) (s published) {
	r.t.Helper()
	line := <-p.lines
	p.exit(code)
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		r.t.Fatalf("%q: %v", line, err)
	}
	return s
}

// Of three archives one is killed: the quorum of two goes on. A second one is
// killed: it stops where that one was, and End of Session waits. Stopped then,
// the publisher sends none. An archive that is started again lets it go on.
func TestQuorumOfArchives(t *testing.T) {
	const n = 12_000
	r := newQuorumRig(t)
	for _, name := range []string{"a1", "a2", "a3"} {
		r.capture(name)
	}
	p := r.publish("Q1", "--quorum", "2")
	r.feed(p, 1, 4000, n)
	r.reach("a1", "Q1", 2000)
	first := r.kill("a1", "Q1")
	r.feed(p, 4000, 8000, n)
	for _, name := range []string{"a2", "a3"} {
		r.reach(name, "Q1", 8000)
		r.told(name)
	}
	second := r.kill("a2", "Q1")
	r.feed(p, 8000, n+1, n)
	r.reach("a3", "Q1", n+1)
	p.signal(syscall.SIGTERM)
	s := r.summary(p, 1)
	if s.Ended || len(s.Quorum.Archives) != 3 || s.Quorum.Lag != n+1-s.Quorum.Seq {
		t.Errorf("summary %+v", s)
	}
	if s.Quorum.Seq <= first || s.Quorum.Seq > second {
		t.Errorf("quorum at %d, archives at %d and %d", s.Quorum.Seq, first, second)
	}
	var told []int
	for _, a := range s.Quorum.Archives {
		if a.State != "whole" {
			t.Errorf("archive %+v", a)
		}
		told = append(told, a.Durable)
	}
	if slices.Sort(told); s.Quorum.Seq != told[len(told)-2] {
		t.Errorf("quorum at %d of %v", s.Quorum.Seq, told)
	}
	if x := r.reach("a3", "Q1", n+1); x["state"] != "live" {
		t.Errorf("a3 heard an end: %v", x)
	}

	// The same with two of two, and the killed one comes back.
	r.capture("a1")
	p = r.publish("Q2", "--quorum", "2")
	r.feed(p, 1, 4000, n)
	r.reach("a1", "Q2", 2000)
	r.kill("a1", "Q2")
	r.feed(p, 4000, n+1, n)
	r.reach("a3", "Q2", n+1)
	r.capture("a1")
	s = r.summary(p, 0)
	if !s.Ended || s.Quorum.Seq != n+1 || s.Quorum.Lag != 0 || len(s.Quorum.Archives) != 2 {
		t.Errorf("summary %+v", s)
	}
	if at := r.kill("a1", "Q2"); at != n+1 {
		t.Errorf("the quorum held everything, archive a1 up to %d", at)
	}
}

// An archive that restarts with less is not counted for what it lost: neither
// where its session is gone, nor where it is a new archive at the old place.
func TestQuorumOfLostArchive(t *testing.T) {
	const n = 6000
	for what, lose := range map[string]string{"session": "a1/default", "archive": "a1"} {
		t.Run(what, func(t *testing.T) {
			r := newQuorumRig(t)
			r.capture("a1")
			r.capture("a2")
			// What has left the ring, nobody has.
			p := r.publish("LOST", "--quorum", "2", "--ring", "1000", "--gate-timeout", "2s")
			// What it acknowledges is in the ring until the end, so that there is hope
			// until it comes back with less.
			const killed = 5600
			for at := 1; at < n; at += 400 { // nothing leaves the ring that they miss
				r.feed(p, at, at+400, n)
				r.reach("a2", "LOST", at+400)
				if at+400 <= killed+1 {
					r.reach("a1", "LOST", at+400)
				}
				if at+400 == killed+1 {
					r.told("a1")
					r.kill("a1", "LOST")
				}
			}
			if err := os.RemoveAll(filepath.Join(r.dir, lose)); err != nil {
				t.Fatal(err)
			}
			r.reach("a2", "LOST", n+1)
			r.capture("a1", "--rerequest", "127.0.0.1:9") // so that what is lost stays so
			waitStatus(t, r.http["a1"], func(c map[string]any) bool {
				a, _ := c["acks"].(map[string]any)
				return a != nil && num(t, a, "sent") > 0
			})
			// Nobody can bring it, and it is not waited for for ever.
			if s := r.summary(p, 1); s.Ended || s.Quorum.Seq != 1 || len(s.Quorum.Archives) != 2 {
				t.Errorf("summary %+v", s)
			}
		})
	}
}
