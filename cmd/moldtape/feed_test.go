package main

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// A feed whose numbers only rise, over two lines that lose and disorder: what
// any of them brought is recorded, nothing is a hole, and a replay that stops
// at holes sends all of it under its numbers.
func TestRisingFeed(t *testing.T) {
	dir := t.TempDir()
	asked, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	p := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--line", "127.0.0.2:0", "--increments", "rising", "--snapshot", "last",
		"--rerequest", asked.LocalAddr().String(), "--archive", "a", "--until-end", "--strict", "--sync", "5ms")
	lines := lineAddrs(t, p.event("ready"))

	var want []moldcast.Seq
	for i := range moldcast.Seq(300) {
		first := 1000 + 7*i
		next := first + 1 + i%3
		b := packet(first, next)
		for q := first; q < next; q++ {
			want = append(want, q)
		}
		if i%5 != 0 {
			_, _ = lines[0].Write(b)
		}
		if i%5 == 0 || i%3 == 0 {
			_, _ = lines[1].Write(b) // as it happens, later or earlier than what follows on the other
		}
		if i%50 == 49 {
			<-time.After(time.Millisecond)
		}
	}
	stopped := p.ended(4000, lines...)
	p.exit(0)
	if stopped["messages"] != float64(len(want)) || stopped["holes"] != 0.0 || stopped["gaps_opened"] != 0.0 || stopped["naks_sent"] != 0.0 || stopped["durable_seq"] != 4000.0 {
		t.Errorf("stopped %v", stopped)
	}
	feed := stopped["channels"].([]any)[0].(map[string]any)["feed"].(map[string]any)
	if feed["increments"] != "rising" || feed["snapshot"] != "last" || feed["heartbeats"] != "next" {
		t.Errorf("feed %v", feed)
	}
	var show struct {
		State    string
		Holes    int
		Messages int
		HoleList []any         `json:"hole_list"`
		Feed     moldcast.Feed `json:"feed"`
	}
	if err := json.Unmarshal([]byte(run(t, dir, 0, "show", "E2E", "--archive", "a", "--json")), &show); err != nil {
		t.Fatal(err)
	}
	if show.Holes != 0 || len(show.HoleList) != 0 || show.Messages != len(want) || show.State != "ended" || show.Feed.Increments != moldcast.Rising || show.Feed.Snapshot != moldcast.SnapshotLast {
		t.Errorf("show %+v", show)
	}
	run(t, dir, 0, "verify", "--archive", "a")

	// What is exported, without --allow-holes.
	var got []moldcast.Seq
	for line := range strings.Lines(run(t, dir, 0, "export", "E2E", "--archive", "a", "-o", "-", "--format", "ndjson")) {
		var m struct {
			Seq  moldcast.Seq
			Data []byte
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if string(m.Data) != string(message(nil, m.Seq)) {
			t.Fatalf("other bytes at %d", m.Seq)
		}
		got = append(got, m.Seq)
	}
	if !slices.Equal(got, want) {
		t.Errorf("exported %d messages, want %d", len(got), len(want))
	}

	for _, packets := range []string{"original", "repack"} {
		t.Run(packets, func(t *testing.T) { replayRising(t, dir, packets, want) })
	}
	_ = asked.SetReadDeadline(time.Now())
	if n, err := asked.Read(make([]byte, 64)); err == nil {
		t.Errorf("%d bytes were asked for", n)
	}
}

// replayRising replays the session to a socket: its messages are want.
func replayRising(t *testing.T, dir, packets string, want []moldcast.Seq) {
	to, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	_ = to.SetReadBuffer(4 << 20) // for all of it, should nobody read for a while
	replayed := make(chan []moldcast.Seq, 1)
	go func() {
		var got []moldcast.Seq
		b := make([]byte, 2048)
		for {
			n, err := to.Read(b)
			if err != nil {
				return
			}
			p, err := moldcast.Parse(b[:n])
			if err == nil && p.Kind == moldcast.End {
				replayed <- got
				return
			}
			for q := p.First; err == nil && p.Msgs.Len() > 0; q++ {
				if string(p.Msgs.Next()) != string(message(nil, q)) {
					replayed <- nil
					return
				}
				got = append(got, q)
			}
		}
	}()
	run(t, dir, 0, "replay", "E2E", "--archive", "a", "--group", to.LocalAddr().String(), "--packets", packets, "--rate", "5000", "--on-hole", "stop", "--strict", "--linger", "0s")
	select {
	case got := <-replayed:
		if !slices.Equal(got, want) {
			t.Errorf("replayed %d messages, want %d", len(got), len(want))
		}
	case <-time.After(hang):
		t.Fatal("the replay did not end")
	}
}

// Lines with numbers of their own are recorded apart.
func TestSequencePerLine(t *testing.T) {
	dir := t.TempDir()
	p := moldtape(t, dir, "capture", "--channel", "x", "--line", "127.0.0.1:0", "--line", "127.0.0.2:0", "--sequence-covers", "line", "--archive", "a", "--until-end", "--strict")
	ready := p.event("ready")
	list := ready["channels"].([]any)
	if len(list) != 2 {
		t.Fatalf("%v, want a channel for each line", ready)
	}
	var conns []*net.UDPConn
	for i, c := range list {
		c := c.(map[string]any)
		if want := []string{"x.A", "x.B"}[i]; c["channel"] != want {
			t.Errorf("channel %v, want %s", c["channel"], want)
		}
		conns = append(conns, dial(t, c["lines"].([]any)[0].(string)))
	}
	for q := moldcast.Seq(1); q <= 20; q++ {
		_, _ = conns[0].Write(packet(q, q+1))
		if q <= 10 {
			_, _ = conns[1].Write(packet(q, q+1))
		}
	}
	done := make(chan struct{})
	go func() {
		for {
			_, _ = conns[0].Write(moldcast.AppendHeader(nil, session, 21, moldcast.EndCount))
			_, _ = conns[1].Write(moldcast.AppendHeader(nil, session, 11, moldcast.EndCount))
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	stopped := p.event("stopped")
	close(done)
	p.exit(0)
	if stopped["messages"] != 30.0 || stopped["duplicates"] != 0.0 {
		t.Errorf("%v messages, %v duplicates", stopped["messages"], stopped["duplicates"])
	}
}
