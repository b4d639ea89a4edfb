//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

var (
	soakFor  = flag.Duration("soak", 2*time.Second, "how long TestSoak publishes to a node; that it is flat is judged from 1m on")
	soakRate = flag.Float64("soak-rate", 20_000, "messages a second that it publishes, on each of two lines")
)

// soakMessage is the seq-th message of a soak: 16 to 63 bytes that follow from
// seq and cannot be compressed.
func soakMessage(dst []byte, seq moldcast.Seq) []byte {
	x := uint64(seq)
	next := func() uint64 { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	end := len(dst) + 16 + int(next()%48)
	for len(dst) < end {
		dst = binary.BigEndian.AppendUint64(dst, next())
	}
	return dst[:end]
}

func soakPacket(first, next moldcast.Seq) []byte {
	b := moldcast.AppendHeader(make([]byte, 0, 1500), session, first, uint16(next-first))
	var m []byte
	for q := first; q < next; q++ {
		m = soakMessage(m[:0], q)
		b = moldcast.AppendMessage(b, m)
	}
	return b
}

// soakStream takes the stream of a soak in BinaryFILE framing, and fails at the
// first byte that differs.
type soakStream struct {
	next moldcast.Seq // message
	want []byte       // what is left of the one before
	msg  []byte
}

func (c *soakStream) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		if len(c.want) == 0 {
			c.msg = soakMessage(c.msg[:0], c.next)
			c.want = moldcast.AppendMessage(c.want[:0], c.msg)
			c.next++
		}
		n := min(len(rest), len(c.want))
		if !bytes.Equal(rest[:n], c.want[:n]) {
			return 0, fmt.Errorf("message %d differs from what was published", c.next-1)
		}
		rest, c.want = rest[n:], c.want[n:]
	}
	return len(b), nil
}

// exportIs checks that messages [first, next) are exported as they were
// published.
func exportIs(t *testing.T, dir string, first, next moldcast.Seq) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &soakStream{next: first}
	var said bytes.Buffer
	cmd := exec.Command(self, "export", "E2E", "-o", "-", "--format", "binaryfile", "--from-seq", fmt.Sprint(first), "--to-seq", fmt.Sprint(next-1))
	cmd.Args[0], cmd.Dir, cmd.Stdout, cmd.Stderr = "moldtape", dir, c, &said
	if err := cmd.Run(); err != nil || c.next != next || len(c.want) > 0 {
		t.Fatalf("export of %d..%d: %v at message %d: %s", first, next-1, err, c.next, said.String())
	}
}

// soak is a node under load: a sender that loses on both lines, a server that
// is deaf to a tenth of the requests, a reader of the recovery stream, one who
// asks for messages, and now and then an export and a verify beside it.
type soak struct {
	t   *testing.T
	dir string
	src *source

	segment int // bytes, of a segment

	node    *proc
	addrs   map[string]string // flag of the node: the address it has
	lines   []*net.UDPConn
	durable atomic.Uint64

	stop, done  chan struct{} // the sender ends the session; all is over
	busy        sync.WaitGroup
	end         moldcast.Seq // one past the last message, once the sender has ended
	cut         int          // packets lost on both lines
	followed    moldcast.Seq // where the reader is
	connections atomic.Int64 // it was given
	asked, got  int          // requests, and their answers
	fault       atomic.Pointer[string]
}

func (s *soak) failf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.fault.CompareAndSwap(nil, &text)
}

// start starts the node, at the addresses it had before.
func (s *soak) start() {
	args := []string{"capture", "--rerequest", s.src.addr(), "--until-end", "--strict", "--nak-budget", "1h",
		"--segment-size", fmt.Sprint(s.segment), "--sync", "20ms", "--log-level", "warn"}
	lines := []any{"127.0.0.1:0", "127.0.0.2:0"}
	if s.lines != nil {
		lines = []any{s.lines[0].RemoteAddr().String(), s.lines[1].RemoteAddr().String()}
	} else {
		s.addrs = map[string]string{"http": "127.0.0.1:0", "recovery": "127.0.0.1:0", "retransmit": "127.0.0.1:0"}
	}
	args = append(args, "--line", lines[0].(string), "--line", lines[1].(string), "--http", s.addrs["http"],
		"--recovery-listen", s.addrs["recovery"], "--retransmit-listen", s.addrs["retransmit"])
	s.node = moldtape(s.t, s.dir, args...)
	ready := s.node.event("ready")
	if s.lines == nil {
		s.lines = lineAddrs(s.t, ready)
		for k := range s.addrs {
			s.addrs[k] = ready[k].(string)
		}
	}
}

// send publishes until stop, and then says that the session has ended.
func (s *soak) send(rate float64) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := pacer{rate: rate}
	q := moldcast.Seq(1)
	burst := 0 // packets that line B loses yet
	for {
		select {
		case <-s.stop:
			s.end = q
			for {
				for _, l := range s.lines {
					_, _ = l.Write(moldcast.AppendHeader(nil, session, q, moldcast.EndCount))
				}
				select {
				case <-s.done:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		default:
		}
		next := q + 1 + moldcast.Seq(rng.IntN(20))
		b := soakPacket(q, next)
		s.src.published(next)
		if burst == 0 && rng.Float64() < 0.005 {
			burst = 1 + rng.IntN(20)
		}
		a := rng.Float64() >= 0.03
		if a {
			_, _ = s.lines[0].Write(b) // refused while nobody listens
		}
		if burst == 0 {
			_, _ = s.lines[1].Write(b)
		} else if burst--; !a {
			s.cut++
		}
		q = next
		p.wait(q)
	}
}

// ask asks the node for messages that it has said are durable.
func (s *soak) ask() {
	conn, err := net.Dial("udp4", s.addrs["retransmit"])
	if err != nil {
		s.failf("%v", err)
		return
	}
	defer conn.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, 65536)
	for {
		select {
		case <-s.done:
			return
		case <-time.After(5 * time.Millisecond):
		}
		head := s.durable.Load()
		if head < 2 {
			continue
		}
		q := moldcast.Request{Session: session, First: 1 + moldcast.Seq(rng.Uint64N(head-1)), Count: 20}
		_, err := conn.Write(moldcast.AppendRequest(nil, q))
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		for answered := false; err == nil && !answered; {
			var n int
			if n, err = conn.Read(buf); err != nil {
				break // late, or the node is down
			}
			p, bad := moldcast.Parse(buf[:n])
			if bad != nil || p.Msgs.Len() == 0 {
				s.failf("answer %x: %v", buf[:n], bad)
				return
			}
			if p.First != q.First {
				continue // of an earlier one
			}
			if !bytes.Equal(soakPacket(p.First, p.First+moldcast.Seq(p.Msgs.Len())), buf[:n]) {
				s.failf("the answer to %d differs from what was published", q.First)
			}
			s.got++
			answered = true
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			s.asked++ // of a node that is there
		}
	}
}

// follow reads the recovery stream from the first message to the end, over as
// many connections as it takes.
func (s *soak) follow() {
	s.followed = 1
	for {
		over, err := s.read()
		if over {
			return
		}
		select {
		case <-s.done:
			s.failf("the recovery stream ended at %d without an end: %v", s.followed, err)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// read is one connection of it. over: with the end of the session.
func (s *soak) read() (over bool, err error) {
	conn, err := net.Dial("tcp", s.addrs["recovery"])
	if err != nil {
		return false, err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "\x00\x2fL%-6s%-10s%-10s%20d", "", "", "E2E", s.followed)
	beats := make(chan struct{})
	defer close(beats)
	go func() {
		for {
			select {
			case <-beats:
				return
			case <-time.After(time.Second):
				_, _ = conn.Write([]byte{0, 1, 'R'})
			}
		}
	}()
	var head [3]byte
	var stream soakStream
	body := make([]byte, 65536)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(hang))
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return false, err
		}
		b := body[:int(binary.BigEndian.Uint16(head[:]))-1]
		if _, err := io.ReadFull(conn, b); err != nil {
			return false, err
		}
		switch head[2] {
		case 'A':
			// After a kill the node may be behind what it had sent.
			seq, err := strconv.ParseUint(strings.TrimSpace(string(b[10:])), 10, 64)
			if err != nil || moldcast.Seq(seq) > s.followed {
				s.failf("login at %d was accepted at %q: %v", s.followed, b, err)
				return true, err
			}
			stream.next = moldcast.Seq(seq)
			s.connections.Add(1)
		case 'S':
			if _, err := stream.Write(moldcast.AppendMessage(nil, b)); err != nil {
				s.failf("recovery stream: %v", err)
				return true, err
			}
			s.followed = max(s.followed, stream.next)
		case 'J':
			return false, fmt.Errorf("login rejected: %s", b)
		case 'Z':
			return true, nil
		}
	}
}

// usage is what the node takes of the system.
type usage struct{ at, rss, goroutines, files float64 }

func (s *soak) usage() usage {
	s.t.Helper()
	pid := strconv.Itoa(s.node.cmd.Process.Pid)
	b, err := os.ReadFile(filepath.Join("/proc", pid, "statm"))
	if err != nil {
		s.t.Fatal(err)
	}
	var size, rss float64
	_, _ = fmt.Sscan(string(b), &size, &rss)
	files, err := os.ReadDir(filepath.Join("/proc", pid, "fd"))
	if err != nil {
		s.t.Fatal(err)
	}
	return usage{rss: rss * float64(os.Getpagesize()) / (1 << 20), files: float64(len(files)), goroutines: metric(s.t, s.addrs["http"], "go_goroutines")}
}

// metric is a number of /metrics.
func metric(t *testing.T, addr, name string) float64 {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n")
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatalf("no %s in /metrics", name)
	return 0
}

// flat checks that a quantity does not grow, nor fall: the median slope between
// any two samples (Theil-Sen), over all the time, is at most a share of the
// median.
func flat(t *testing.T, name string, all []usage, of func(usage) float64, share, least float64) {
	t.Helper()
	var values, slopes []float64
	for i, a := range all {
		values = append(values, of(a))
		for _, b := range all[i+1:] {
			slopes = append(slopes, (of(b)-of(a))/(b.at-a.at))
		}
	}
	slices.Sort(values)
	slices.Sort(slopes)
	median := values[len(values)/2]
	growth := slopes[len(slopes)/2] * (all[len(all)-1].at - all[0].at)
	t.Logf("%s: %.0f at first, %.0f at last, median %.0f, %.0f to %.0f; growth %+.1f in %.0f s", name, of(all[0]), of(all[len(all)-1]), median, values[0], values[len(values)-1], growth, all[len(all)-1].at-all[0].at)
	if limit := max(share*median, least); growth > limit {
		t.Errorf("%s is not flat: %+.1f, of which %.1f may be", name, growth, limit)
	}
}

func TestSoak(t *testing.T) {
	t.Run("steady", func(t *testing.T) { runSoak(t, *soakFor, 0) })
	t.Run("restarts", func(t *testing.T) { runSoak(t, *soakFor/2, max(*soakFor/12, 500*time.Millisecond)) })
}

// runSoak soaks a node for d; restart > 0: it is killed, or stopped, that often.
func runSoak(t *testing.T, d, restart time.Duration) {
	s := &soak{t: t, dir: t.TempDir(), stop: make(chan struct{}), done: make(chan struct{})}
	s.src = newSourceOf(t, 1<<40, 0.1, 20, soakPacket)
	// An archive keeps 64 sealed segments open: there are as many, and all else
	// that fills once has, before it is to be flat.
	s.segment = max(int(*soakRate*40*d.Seconds()/4/64), 256<<10)
	s.start()
	var over sync.Once
	finish := func() { over.Do(func() { close(s.done) }); s.busy.Wait() }
	var end sync.Once
	stop := func() { end.Do(func() { close(s.stop) }) }
	defer finish()
	defer stop()
	s.busy.Go(func() { s.send(*soakRate) })
	s.busy.Go(s.ask)
	followed := make(chan struct{})
	s.busy.Go(func() { defer close(followed); s.follow() })

	began := time.Now()
	since := func() time.Duration { return time.Since(began) }
	tick := min(max(d/300, 100*time.Millisecond), 2*time.Second)
	beside := max(d/10, time.Second)
	var samples []usage
	nextBeside, nextRestart, restarts, exports := beside, restart, 0, 0
	rng := rand.New(rand.NewPCG(5, 6))
	for since() < d && s.fault.Load() == nil {
		<-time.After(tick)
		u := s.usage()
		u.at = since().Seconds()
		samples = append(samples, u)
		s.durable.Store(max(s.durable.Load(), uint64(durableAt(t, s.addrs["http"]))))
		if since() >= nextBeside {
			exports += s.beside(rng)
			nextBeside = since() + beside
		}
		if restart > 0 && since() >= nextRestart {
			if restarts++; restarts%2 == 1 {
				s.node.signal(syscall.SIGKILL)
				s.node.exit(-1)
			} else {
				s.node.signal(syscall.SIGTERM)
				st := s.node.event("stopped")
				if num(t, st, "messages_lost") != 0 {
					t.Errorf("stopped %v", st)
				}
				s.node.exit(min(num(t, st, "holes"), 1)) // strict
			}
			// The reader has seen the node, however short what is left of its life is.
			before := s.connections.Load()
			s.start()
			for end := time.Now().Add(hang); s.connections.Load() == before && s.fault.Load() == nil; <-time.After(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the reader does not come back")
				}
			}
			nextRestart = since() + restart
		}
	}
	stop()
	stopped := s.node.event("stopped")

	s.node.exit(0)
	select {
	case <-followed:
	case <-time.After(hang):
	}
	finish()
	if f := s.fault.Load(); f != nil {
		t.Fatal(*f)
	}

	// Complete, and to the byte.
	total := int(s.end - 1)
	if num(t, stopped, "durable_seq") != int(s.end) || num(t, stopped, "holes") != 0 {
		t.Errorf("stopped %v; %d were published", stopped, total)
	}
	exportIs(t, s.dir, 1, s.end)
	run(t, s.dir, 0, "verify")
	for _, k := range []string{"messages_lost", "stale", "malformed", "implausible", "wrong_session", "conflicts"} {
		if n := num(t, stopped, k); n != 0 {
			t.Errorf("%d %s", n, k)
		}
	}
	if o, r := num(t, stopped, "gaps_opened"), num(t, stopped, "gaps_recovered"); o != r {
		t.Errorf("%d gaps opened, %d recovered", o, r)
	}
	if restart == 0 && (num(t, stopped, "messages") != total || s.followed != s.end || s.connections.Load() != 1) {
		t.Errorf("%d messages of %d; the reader got to %d over %d connections", num(t, stopped, "messages"), total, s.followed, s.connections.Load())
	}
	t.Logf("%d messages in %v, %d packets lost on both lines, %d requests, %d recovered, %d dropped by the kernel, %d by the node; the reader got to %d over %d connections; %d of %d questions answered; %d exports beside it; %d restarts",
		total, since().Truncate(time.Second), s.cut, num(t, stopped, "naks_sent"), num(t, stopped, "messages_recovered"),
		num(t, stopped, "kernel_dropped"), num(t, stopped, "queue_dropped"), s.followed, s.connections.Load(), s.got, s.asked, exports, restarts)
	if s.cut == 0 || num(t, stopped, "naks_sent") == 0 || s.got < s.asked/2 {
		t.Error("that shows little")
	}
	if restart > 0 {
		return
	}
	if d < time.Minute {
		for _, u := range samples {
			if u.rss > 1024 || u.goroutines > 500 || u.files > 500 {
				t.Fatalf("the node took %+v", u)
			}
		}
		return
	}
	warm := samples[len(samples)/2:]
	flat(t, "resident MiB", warm, func(u usage) float64 { return u.rss }, 0.1, 8)
	flat(t, "goroutines", warm, func(u usage) float64 { return u.goroutines }, 0.1, 5)
	flat(t, "files", warm, func(u usage) float64 { return u.files }, 0.1, 5)
}

// beside exports a part of what other processes can read by now, and verifies
// all of it. It returns how many exports there were.
func (s *soak) beside(rng *rand.Rand) int {
	t := s.t
	var list []struct {
		First   moldcast.Seq `json:"first_seq"`
		Durable moldcast.Seq `json:"durable_seq"`
	}
	if err := json.Unmarshal([]byte(run(t, s.dir, 0, "sessions", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Durable < list[0].First+2 {
		return 0 // no segment is sealed yet
	}
	first := list[0].First + moldcast.Seq(rng.Uint64N(uint64(list[0].Durable-list[0].First)-1))
	exportIs(t, s.dir, first, min(first+50_000, list[0].Durable))
	run(t, s.dir, 0, "verify")
	return 1
}
