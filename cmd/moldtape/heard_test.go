package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

// rawLine receives datagrams, and knows nothing of what they are.
type rawLine struct {
	conn  *net.UDPConn
	mu    sync.Mutex
	got   []string
	at    []time.Time
	takes int    // how often it was taken from
	over  string // the fence that was read last
}

// fence begins a datagram that a test sends behind all others.
const fence = "over"

func newRawLine(t *testing.T) *rawLine {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20)
	l := &rawLine{conn: conn}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			l.mu.Lock()
			if bytes.HasPrefix(buf[:n], []byte(fence)) {
				l.over = string(buf[:n])
			} else {
				l.got, l.at = append(l.got, string(buf[:n])), append(l.at, time.Now())
			}
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *rawLine) addr() string { return l.conn.LocalAddr().String() }

// take is what has come: all that was sent before.
func (l *rawLine) take(t *testing.T) (got []string, at []time.Time) {
	t.Helper()
	c := dial(t, l.addr())
	defer c.Close()
	l.takes++
	mine := fmt.Sprint(fence, l.takes)
	for end := time.Now().Add(hang); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		_, _ = c.Write([]byte(mine))
		l.mu.Lock()
		if l.over == mine {
			got, at = l.got, l.at
			l.got, l.at = nil, nil
			l.mu.Unlock()
			return got, at
		}
		l.mu.Unlock()
	}
	t.Fatal("nothing is read")
	return nil, nil
}

// describe says what a datagram is, for a difference that can be read.
func describe(all []string) (out []string) {
	for _, d := range all {
		out = append(out, fmt.Sprintf("%d +%d, %d bytes", binary.BigEndian.Uint64([]byte(d)[10:]), binary.BigEndian.Uint16([]byte(d)[18:]), len(d)))
	}
	return out
}

func mark(next moldcast.Seq, count uint16) []byte {
	return moldcast.AppendHeader(nil, session, next, count)
}

// lossyLine is what a line brings of a stream: some of it lost, repeated, and in
// another order, with heartbeats.
func lossyLine(rnd *rand.Rand, packets [][2]moldcast.Seq, keep func(i int) bool) (out [][]byte) {
	var late [][]byte
	for i, p := range packets {
		d := packet(p[0], p[1])
		switch {
		case !keep(i) && rnd.IntN(12) == 0:
		case rnd.IntN(15) == 0:
			late = append(late, d)
			continue
		default:
			out = append(out, d)
		}
		if rnd.IntN(20) == 0 {
			out = append(out, d)
		}
		if rnd.IntN(25) == 0 {
			out = append(out, mark(p[1], 0))
		}
		if rnd.IntN(3) == 0 {
			out = append(out, late...)
			late = nil
		}
	}
	return append(out, late...)
}

// Two lines that lose, repeat and reorder, each in its own way: replayed as they
// were heard they bring the same datagrams in the same order, to raw sockets and
// to another capture, which measures the same of them.
func TestAsHeard(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(7, 7))
	var packets [][2]moldcast.Seq
	next := moldcast.Seq(484311999)
	for range 400 {
		n := moldcast.Seq(1 + rnd.IntN(4))
		packets = append(packets, [2]moldcast.Seq{next, next + n})
		next += n
	}
	var lines [2][][]byte
	for l := range lines {
		lines[l] = lossyLine(rnd, packets, func(i int) bool { return i < 4 || i >= len(packets)-4 })
		lines[l] = append(lines[l], mark(next, 0), mark(next, moldcast.EndCount))
	}

	http := ""
	capture := func(archive string) (*proc, []*net.UDPConn) {
		p := moldtape(t, dir, "capture", "--archive", archive, "--channel", "ab", "--line", "127.0.0.1:0", "--line", "127.0.0.2:0",
			"--line-log", "on", "--start", "live", "--nak-budget", "300ms", "--until-end", "--http", "127.0.0.1:0")
		ready := p.event("ready")
		http = ready["http"].(string)
		return p, lineAddrs(t, ready)
	}
	cap, to := capture("first")
	sent := 0
	send := func(l int, b []byte) {
		if _, err := to[l].Write(b); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	most := max(len(lines[0]), len(lines[1])) - 1
	for i := range most {
		for l := range lines {
			if i < len(lines[l])-1 {
				send(l, lines[l][i])
			}
		}
		if i%32 == 31 || i == most-1 { // no more under way than the smallest buffer holds
			waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "packets") >= sent })
		}
	}
	for l := range lines { // with the second the capture ends
		send(l, lines[l][len(lines[l])-1])
	}
	cap.exit(0)

	a, b := newRawLine(t), newRawLine(t)
	out := run(t, dir, 0, "replay", "ab/E2E", "--archive", "first", "--as-heard", "--group", a.addr(), "--line-b", b.addr(), "--speed", "2", "--linger", "0s", "--strict", "--json")
	for l, raw := range []*rawLine{a, b} {
		var want []string
		for _, d := range lines[l] {
			want = append(want, string(d))
		}
		got, _ := raw.take(t)
		if !slices.Equal(want, got) {
			t.Fatalf("line %d: %s", l, cmp.Diff(describe(want), describe(got)))
		}
	}
	var rep map[string]any
	if err := json.Unmarshal([]byte(out), &rep); err != nil || num(t, rep, "packets") != len(lines[0])+len(lines[1]) || num(t, rep, "holes") != 0 {
		t.Fatalf("%v %s", err, out)
	}

	cap, to = capture("second")
	run(t, dir, 0, "replay", "ab/E2E", "--archive", "first", "--as-heard", "--group", to[0].RemoteAddr().String(), "--line-b", to[1].RemoteAddr().String(), "--linger", "0s")
	cap.exit(0)
	if diff := cmp.Diff(lineStats(t, dir, "first"), lineStats(t, dir, "second")); diff != "" {
		t.Fatal(diff)
	}

	// From a message on, what was heard since.
	from := packets[200][0]
	run(t, dir, 0, "replay", "ab/E2E", "--archive", "first", "--as-heard", "--group", a.addr(), "--line-b", b.addr(), "--speed", "max", "--linger", "0s", "--from-seq", fmt.Sprint(from))
	for l, raw := range []*rawLine{a, b} {
		got, _ := raw.take(t)
		all := lines[l]
		if n := len(got); n == 0 || n >= len(all) || string(all[len(all)-n]) != got[0] {
			t.Fatalf("line %d: %d of %d datagrams", l, n, len(all))
		}
	}

	for _, x := range []struct {
		code int
		args []string
	}{
		{2, []string{"--group", a.addr()}},
		{2, []string{"--group", a.addr(), "--line-b", b.addr(), "--loss", "0.1"}},
		{2, []string{"--group", a.addr(), "--line-b", b.addr(), "--packets", "repack"}},
	} {
		run(t, dir, x.code, append([]string{"replay", "ab/E2E", "--archive", "first", "--as-heard"}, x.args...)...)
	}
	run(t, dir, 0, "verify", "--archive", "first")
}

// lineStats is what the capture measured of each line, that does not hang on
// the time.
func lineStats(t *testing.T, dir, archive string) (out []map[string]any) {
	var show struct {
		Captures []struct {
			Stats struct {
				Lines []map[string]any `json:"lines"`
			} `json:"stats"`
		} `json:"capture_list"`
	}
	text := run(t, dir, 0, "show", "ab/E2E", "--archive", archive, "--json")
	if err := json.Unmarshal([]byte(text), &show); err != nil || len(show.Captures) != 1 || len(show.Captures[0].Stats.Lines) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	for _, l := range show.Captures[0].Stats.Lines {
		m := map[string]any{}
		for _, k := range []string{"packets", "heartbeats", "messages", "bytes", "repeated", "lost"} {
			if m[k] = l[k]; m[k] == nil {
				t.Fatalf("no %s in %v", k, l)
			}
		}
		out = append(out, m)
	}
	return out
}

// What was recorded without a line log is not replayed as heard.
func TestAsHeardNeedsALog(t *testing.T) {
	dir := t.TempDir()
	p := moldtape(t, dir, "capture", "--archive", "rec", "--channel", "ab", "--line", "127.0.0.1:0", "--line", "127.0.0.2:0", "--start", "live", "--until-end")
	to := lineAddrs(t, p.event("ready"))
	for _, d := range [][]byte{packet(1, 2), packet(2, 3), mark(3, moldcast.EndCount), mark(3, moldcast.EndCount)} {
		_, _ = to[0].Write(d)
	}
	p.exit(0)
	r := moldtape(t, dir, "replay", "ab/E2E", "--archive", "rec", "--as-heard", "--group", "127.0.0.1:9", "--line-b", "127.0.0.1:10")
	r.exit(1)
	if want := "recorded without a line log: `capture --line-log on` keeps one"; !bytes.Contains(r.err.Bytes(), []byte(want)) {
		t.Fatal(r.err.String())
	}
}

// Heartbeats that were recorded go out at their times, once, though two lines
// brought them; what was repaired goes out where it belongs, by its sequence and
// by its time.
func TestReplayOfHeartbeatsAndRepairs(t *testing.T) {
	dir := t.TempDir()
	begun := time.Now()
	const step = 80 * time.Millisecond
	seq, lost := moldcast.Seq(0), moldcast.Seq(0) // nobody brings that one
	archive := ""
	// record sends a step apart, and reports whether that was so: a busy machine
	// may delay any.
	record := func(archive string) bool {
		src := newSource(t, 1000, 0)
		p := moldtape(t, dir, "capture", "--archive", archive, "--channel", "ab", "--line", "127.0.0.1:0", "--line", "127.0.0.2:0", "--rerequest", src.addr(), "--start", "live", "--until-end", "--nak-budget", "1h")
		to := lineAddrs(t, p.event("ready"))
		due, regular := time.Now(), true
		send := func(d []byte) {
			<-time.After(time.Until(due))
			for _, c := range to {
				_, _ = c.Write(d)
			}
			regular = regular && time.Since(due) < step/4
			due = due.Add(step)
		}
		for seq = 1; seq <= 4; seq++ {
			src.published(seq + 1)
			send(packet(seq, seq+1))
		}
		for range 3 {
			send(mark(seq, 0))
		}
		lost = seq
		src.published(lost + 2)
		due = due.Add(step)
		send(packet(lost+1, lost+2))
		seq = lost + 2
		src.published(seq)
		send(mark(seq, moldcast.EndCount))
		p.ended(seq, to...)
		p.exit(0)
		return regular
	}
	for n := 0; ; n++ {
		if archive = fmt.Sprint("rec", n); record(archive) {
			break
		}
		if time.Since(begun) > hang {
			t.Fatal("nothing is sent at its time")
		}
	}

	raw := newRawLine(t)
	want := []string{string(mark(1, 0))} // a session opens with one
	for q := moldcast.Seq(1); q < lost; q++ {
		want = append(want, string(packet(q, q+1)))
	}
	beats := len(want)
	// What was lost belongs half way between its neighbours, before the third
	// heartbeat, which then says what is next.
	want = append(want, string(mark(lost, 0)), string(mark(lost, 0)), string(packet(lost, lost+1)), string(mark(lost+1, 0)),
		string(packet(lost+1, lost+2)), string(mark(seq, moldcast.EndCount)))
	at := time.Duration(0)
	for try := 0; time.Since(begun) < 2*hang; try++ { // a busy machine may delay any one
		out := run(t, dir, 0, "replay", "ab/E2E", "--archive", archive, "--group", raw.addr(), "--speed", "0.5", "--heartbeat", "5s", "--linger", "0s", "--json")
		got, times := raw.take(t)
		if !slices.Equal(want, got) {
			t.Fatal(cmp.Diff(describe(want), describe(got)))
		}
		var rep map[string]any
		if err := json.Unmarshal([]byte(out), &rep); err != nil || num(t, rep, "heartbeats") != 4 {
			t.Fatalf("%v %s", err, out)
		}
		before, mine, after := times[beats-1], times[beats+2], times[beats+4]
		share := float64(mine.Sub(before)) / float64(after.Sub(before))
		at = times[beats].Sub(before)
		if share > 0.4 && share < 0.6 && at > step && at < 4*step {
			return
		}
		t.Logf("try %d: the repaired message at %.2f between its neighbours, the heartbeat after %v", try, share, at)
	}
	t.Fatal("what was repaired, or heartbeats, do not go out at their times")
}
