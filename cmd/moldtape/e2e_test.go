package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// long is n in the full run, and sample otherwise.
func long(n, sample int) int {
	if os.Getenv("MOLDTAPE_LONG") != "" {
		return n
	}
	return sample
}

// hang is how long a test waits for what must come. It tells a hang from a
// machine that is busy, or stands still for a while, and nothing else.
const hang = 5 * time.Minute

// proc is the built binary, running.
type proc struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser // stdin, where there is one
	lines chan string    // of stdout
	over  chan error
	err   bytes.Buffer // stderr
	once  sync.Once
}

// moldtape starts the binary in dir.
func moldtape(t *testing.T, dir string, args ...string) *proc {
	t.Helper()
	return launch(t, dir, false, args...)
}

// launch is moldtape with a stdin that the test writes to, or without.
func launch(t *testing.T, dir string, stdin bool, args ...string) *proc {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, lines: make(chan string, 64), over: make(chan error, 1)}
	p.cmd = exec.Command(self, args...)
	p.cmd.Args[0] = "moldtape" // the test binary is moldtape under that name
	p.cmd.Dir = dir
	p.cmd.Stderr = &p.err
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if stdin {
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			p.lines <- s.Text()
		}
		_, _ = io.Copy(io.Discard, out)
		p.over <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		p.once.Do(func() {
			for range p.lines {
			}
			<-p.over
		})
	})
	return p
}

// event waits for the next line of stdout, a JSON object with that event.
func (p *proc) event(name string) map[string]any {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("moldtape %v ended without %q: %s", p.cmd.Args[1:], name, p.err.String())
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil || m["event"] != name {
			p.t.Fatalf("stdout %q, want event %q", line, name)
		}
		return m
	case <-time.After(hang):
		p.t.Fatalf("no %q event from moldtape %v: %s", name, p.cmd.Args[1:], p.err.String())
	}
	return nil
}

// exit waits for the end and checks the code.
func (p *proc) exit(code int) {
	p.t.Helper()
	p.once.Do(func() {
		timeout := time.After(hang)
		for p.lines != nil {
			select {
			case _, ok := <-p.lines:
				if !ok {
					p.lines = nil
				}
			case <-timeout:
				p.t.Fatalf("moldtape %v does not end: %s", p.cmd.Args[1:], p.err.String())
			}
		}
		<-p.over
		if got := p.cmd.ProcessState.ExitCode(); got != code {
			p.t.Fatalf("moldtape %v: exit %d, want %d: %s", p.cmd.Args[1:], got, code, p.err.String())
		}
	})
}

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// run runs the binary to its end and returns stdout.
func run(t *testing.T, dir string, code int, args ...string) string {
	t.Helper()
	p := moldtape(t, dir, args...)
	var out strings.Builder
	for line := range p.lines {
		out.WriteString(line + "\n")
	}
	p.lines = nil
	p.exit(code)
	return out.String()
}

// ended repeats End of Session, of which any one may be lost, until the capture
// has stopped.
func (p *proc) ended(next moldcast.Seq, lines ...*net.UDPConn) (stopped map[string]any) {
	p.t.Helper()
	done := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(done)
	all.Go(func() {
		for {
			for _, l := range lines {
				_, _ = l.Write(moldcast.AppendHeader(nil, session, next, moldcast.EndCount))
			}
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return p.event("stopped")
}

// lines of a ready event, in order.
func lineAddrs(t *testing.T, ready map[string]any) []*net.UDPConn {
	t.Helper()
	var out []*net.UDPConn
	for _, l := range ready["channels"].([]any)[0].(map[string]any)["lines"].([]any) {
		out = append(out, dial(t, l.(string)))
	}
	return out
}

func dial(t *testing.T, addr string) *net.UDPConn {
	t.Helper()
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(a))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var session = moldcast.Session{'E', '2', 'E', ' ', ' ', ' ', ' ', ' ', ' ', ' '}

// message is the seq-th of the test stream: its length and bytes follow from seq.
func message(dst []byte, seq moldcast.Seq) []byte {
	r := rand.New(rand.NewPCG(uint64(seq), 11))
	n := 8 + r.IntN(40)
	dst = fmt.Appendf(dst, "%08d", seq)
	for range n {
		dst = append(dst, byte(r.Uint32()))
	}
	return dst
}

func packet(first, next moldcast.Seq) []byte {
	b := moldcast.AppendHeader(nil, session, first, uint16(next-first))
	for q := first; q < next; q++ {
		b = moldcast.AppendMessage(b, message(nil, q))
	}
	return b
}

// source is a sender whose datagrams and requests a test controls.
type source struct {
	t    *testing.T
	ring moldcast.Seq // how many of the newest it answers for; 0: none
	conn *net.UDPConn

	mu struct {
		sync.Mutex
		sent moldcast.Seq // one past the last published
		seen int          // requests
	}
}

// newSource answers requests for its ring, but for a share of them.
func newSource(t *testing.T, ring int, deaf float64) *source {
	t.Helper()
	return newSourceOf(t, ring, deaf, 25, packet)
}

// newSourceOf is newSource of other messages, of which most go into a packet.
func newSourceOf(t *testing.T, ring int, deaf float64, most moldcast.Seq, packet func(first, next moldcast.Seq) []byte) *source {
	t.Helper()
	s := &source{t: t, ring: moldcast.Seq(ring)}
	s.mu.sent = 1
	rng := rand.New(rand.NewPCG(5, 7))
	s.conn = answers(t, func(q moldcast.Request) []byte {
		s.mu.Lock()
		s.mu.seen++
		sent := s.mu.sent
		s.mu.Unlock()
		if rng.Float64() < deaf || q.First >= sent || q.First+s.ring < sent {
			return nil
		}
		return packet(q.First, min(q.Range().Next, sent, q.First+most))
	})
	return s
}

// answers reads requests until the test ends, and sends what of gives to each;
// nil: nothing.
func answers(t *testing.T, of func(moldcast.Request) []byte) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20) // many channels may ask at once
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			q, err := moldcast.ParseRequest(b[:n])
			if err != nil {
				continue
			}
			if d := of(q); d != nil {
				_, _ = conn.WriteToUDPAddrPort(d, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return conn
}

func (s *source) addr() string { return s.conn.LocalAddr().String() }

func (s *source) published(next moldcast.Seq) {
	s.mu.Lock()
	s.mu.sent = next
	s.mu.Unlock()
}

// pacer holds a test back so that it does not outrun two shared cores. Time in
// which the test did not run is not made up for by a burst.
type pacer struct {
	rate float64 // messages a second
	sent moldcast.Seq
	due  time.Time
}

func (p *pacer) wait(sent moldcast.Seq) {
	const slack = 20 * time.Millisecond
	if now := time.Now(); now.Sub(p.due) > slack {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(float64(sent-p.sent) / p.rate * 1e9))
	p.sent = sent
	if d := time.Until(p.due); d > time.Millisecond {
		<-time.After(d)
	}
}

// binaryFile is messages [first, next) in BinaryFILE framing, without an end.
func binaryFile(first, next moldcast.Seq) []byte {
	var b []byte
	for q := first; q < next; q++ {
		b = moldcast.AppendMessage(b, message(nil, q))
	}
	return b
}

func exported(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	file := filepath.Join(dir, "out.bin")
	run(t, dir, 0, append([]string{"export", name, "-o", file, "--format", "binaryfile"}, args...)...)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func num(t *testing.T, m map[string]any, key string) int {
	t.Helper()
	f, ok := m[key].(float64)
	if !ok {
		t.Fatalf("no number %q in %v", key, m)
	}
	return int(f)
}

// A feed that loses, repeats and reorders, and a request server that hears
// only four fifths of the requests: the archive is byte-identical.
func TestLossyFeedIsCapturedWhole(t *testing.T) {
	n := moldcast.Seq(long(60_000, 12_000))
	dir := t.TempDir()
	src := newSource(t, int(n), 0.2)
	capture := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.addr(), "--until-end", "--strict", "--nak-budget", "1h")
	out := lineAddrs(t, capture.event("ready"))[0]

	rng := rand.New(rand.NewPCG(9, 9))
	var late [][]byte
	p := pacer{rate: 30_000}
	send := func(b []byte) {
		if _, err := out.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	for q := moldcast.Seq(1); q <= n; {
		next := min(q+1+moldcast.Seq(rng.IntN(6)), n+1)
		b := packet(q, next)
		q = next
		src.published(q)
		switch x := rng.Float64(); {
		case x < 0.03:
		case x < 0.05:
			send(b)
			send(b)
		case x < 0.07:
			late = append(late, b)
			continue
		default:
			send(b)
		}
		for _, l := range late {
			send(l)
		}
		late = late[:0]
		p.wait(q)
	}
	for _, l := range late {
		send(l)
	}
	stopped := capture.ended(n+1, out)
	capture.exit(0)
	if num(t, stopped, "messages_lost") != 0 || num(t, stopped, "messages") != int(n) || num(t, stopped, "holes") != 0 {
		t.Errorf("stopped: %v", stopped)
	}
	if num(t, stopped, "gaps_recovered") == 0 || num(t, stopped, "duplicates") == 0 || num(t, stopped, "naks_sent") == 0 {
		t.Errorf("the feed was not impaired: %v", stopped)
	}
	if num(t, stopped, "durable_seq") != int(n)+1 {
		t.Errorf("durable_seq: %v", stopped["durable_seq"])
	}
	if !bytes.Equal(exported(t, dir, "E2E"), binaryFile(1, n+1)) {
		t.Error("the export differs from what was published")
	}
	run(t, dir, 0, "verify")
}

// Two lines that each lose 8 % of their packets, in different places, packed
// unlike, and nobody to ask.
func TestTwoLossyLinesNeedNoRequest(t *testing.T) {
	n := moldcast.Seq(long(60_000, 12_000))
	dir := t.TempDir()
	capture := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--line", "127.0.0.2:0", "--http", "127.0.0.1:0", "--until-end", "--strict", "--reorder-wait", "1s", "--nak-budget", "1h")
	ready := capture.event("ready")
	lines, http := lineAddrs(t, ready), ready["http"].(string)
	lost := [2]int{}
	at := [2]moldcast.Seq{1, 1}
	size := [2]moldcast.Seq{7, 11}
	var lostBy1 moldcast.Range // what B lost last
	sent := 0
	for at[0] <= n || at[1] <= n {
		l := 1
		if at[0]+20 < at[1] || at[1] > n { // B runs a little ahead
			l = 0
		}
		next := min(at[l]+size[l], n+1)
		r := moldcast.Range{First: at[l], Next: next}
		k := int(at[l]-1) / int(size[l])
		switch {
		case l == 1 && k%12 == 3:
			lost[1]++
			lostBy1 = r
		case l == 0 && k%12 == 5 && r.Intersect(lostBy1).Empty() && next < at[1]:
			lost[0]++
		default:
			if _, err := lines[l].Write(packet(r.First, r.Next)); err != nil {
				t.Fatal(err)
			}
			if sent++; sent%64 == 0 { // no more under way than the smallest buffer holds: nobody repairs
				waitStatus(t, http, func(s map[string]any) bool { return num(t, s, "packets") >= sent })
			}
		}
		at[l] = next
	}
	stopped := capture.ended(n+1, lines...)
	capture.exit(0)
	if lost[0]*7 < int(n)*6/100 || lost[1]*11 < int(n)*7/100 {
		t.Fatalf("lines lost %v packets: too few", lost)
	}
	if num(t, stopped, "naks_sent") != 0 || num(t, stopped, "messages") != int(n) || num(t, stopped, "messages_lost") != 0 {
		t.Errorf("stopped: %v", stopped)
	}
	if !bytes.Equal(exported(t, dir, "default/E2E"), binaryFile(1, n+1)) {
		t.Error("the export differs from what was published")
	}
}

// asker sends requests and reads the one answer to each.
type asker struct {
	t    *testing.T
	addr string
	c    *net.UDPConn
}

func newAsker(t *testing.T, addr string) *asker {
	t.Helper()
	return &asker{t, addr, dial(t, addr)}
}

// ask is the answer, nil where a later request is answered first: requests
// that must have no answer are followed by one that has.
func (a *asker) ask(r moldcast.Request, sentinel moldcast.Request) []byte {
	a.t.Helper()
	send := func(r moldcast.Request) {
		b := append(r.Session[:len(r.Session):len(r.Session)], make([]byte, 10)...)
		for i := range 8 {
			b[10+i] = byte(r.First >> (56 - 8*i))
		}
		b[18], b[19] = byte(r.Count>>8), byte(r.Count)
		if _, err := a.c.Write(b); err != nil {
			a.t.Fatal(err)
		}
	}
	buf := make([]byte, moldcast.MaxDatagram)
	for try, end := 0, time.Now().Add(hang); ; try++ {
		if time.Now().After(end) {
			a.t.Fatalf("no answer to %+v", sentinel)
		}
		send(r)
		if r != sentinel {
			send(sentinel)
		}
		_ = a.c.SetReadDeadline(time.Now().Add(time.Second))
		n, err := a.c.Read(buf)
		if err != nil {
			continue
		}
		if try > 0 { // what else comes is late, and no answer to what is asked next
			a.c.Close()
			a.c = dial(a.t, a.addr)
		}
		got := bytes.Clone(buf[:n])
		p, err := moldcast.Parse(got)
		if err != nil {
			a.t.Fatal(err)
		}
		if r != sentinel && p.Session == sentinel.Session && p.First == sentinel.First {
			return nil
		}
		return got
	}
}

// checkAnswers sends random requests over [1, head) and some that nobody may
// answer.
func checkAnswers(t *testing.T, addr string, requests int, head moldcast.Seq) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(head), 3))
	a := newAsker(t, addr)
	for range requests {
		r := moldcast.Request{Session: session, First: 1 + moldcast.Seq(rng.Uint64N(uint64(head-1))), Count: uint16(1 + rng.IntN(60))}
		p, err := moldcast.Parse(a.ask(r, r))
		if err != nil {
			t.Fatal(err)
		}
		if p.Session != session || p.First != r.First || p.Msgs.Len() == 0 || p.Msgs.Len() > int(r.Count) || p.Range().Next > head {
			t.Fatalf("answer %v %v to %+v, head %d", p.Session, p.Range(), r, head)
		}
		for q, m := p.First, p.Msgs; m.Len() > 0; q++ {
			if got := m.Next(); !bytes.Equal(got, message(nil, q)) {
				t.Fatalf("message %d is answered as %q", q, got)
			}
		}
	}
	other := moldcast.Session{'O', 'T', 'H', 'E', 'R'}
	for i, r := range []moldcast.Request{
		{Session: session, First: head, Count: 1},
		{Session: session, First: head + 5000, Count: 10},
		{Session: session, First: ^moldcast.Seq(0), Count: 0xFFFF},
		{Session: session, First: 0, Count: 1},
		{Session: session, First: 1, Count: 0},
		{Session: other, First: 1, Count: 1},
	} {
		sentinel := moldcast.Request{Session: session, First: moldcast.Seq(2 + i), Count: 3}
		if got := a.ask(r, sentinel); got != nil {
			t.Errorf("request %+v was answered: %x", r, got[:20])
		}
	}
}

// A sender with a ring of 500 messages; the archive answers for all that was
// published, while it captures and after a restart.
func TestArchiveAnswersBeyondTheRing(t *testing.T) {
	n := moldcast.Seq(long(50_000, 15_000))
	requests := long(300, 100)
	dir := t.TempDir()
	src := newSource(t, 500, 0)
	capture := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.addr(), "--retransmit-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--segment-size", "256KiB", "--nak-budget", "1h")
	ready := capture.event("ready")
	out := lineAddrs(t, ready)[0]
	for q, i := moldcast.Seq(1), 0; q <= n; i++ {
		next := min(q+5, n+1)
		src.published(next)
		if i%40 != 7 {
			if _, err := out.Write(packet(q, next)); err != nil {
				t.Fatal(err)
			}
		}
		q = next
		if i%60 == 59 { // not beyond what the ring can repair
			waitStatus(t, ready["http"].(string), func(s map[string]any) bool { return num(t, s, "messages") == int(q-1) })
		}
	}
	heartbeat := moldcast.AppendHeader(nil, session, n+1, 0)
	if _, err := out.Write(heartbeat); err != nil {
		t.Fatal(err)
	}
	waitStatus(t, ready["http"].(string), func(s map[string]any) bool { return num(t, s, "messages") == int(n) })
	checkAnswers(t, ready["retransmit"].(string), requests, n+1)

	// Rubbish at the request port and at the line ends nothing.
	junk := dial(t, ready["retransmit"].(string))
	for _, b := range [][]byte{{}, {1}, make([]byte, 19), make([]byte, 21), bytes.Repeat([]byte{0xFF}, 1400)} {
		_, _ = junk.Write(b)
		_, _ = out.Write(b)
	}
	checkAnswers(t, ready["retransmit"].(string), 5, n+1)
	capture.signal(syscall.SIGTERM)
	stopped := capture.event("stopped")
	capture.exit(0)
	if num(t, stopped, "messages") != int(n) || num(t, stopped, "malformed") == 0 {
		t.Errorf("stopped: %v", stopped)
	}

	server := moldtape(t, dir, "retransmit", "--listen", "127.0.0.1:0")
	addr := server.event("ready")["retransmit"].(string)
	checkAnswers(t, addr, requests, n+1)
	server.signal(syscall.SIGTERM)
	server.event("stopped")
	server.exit(0)
}

// waitStatus asks /status until the only channel's counters please ok.
func waitStatus(t *testing.T, addr string, ok func(map[string]any) bool) {
	t.Helper()
	deadline := time.Now().Add(hang)
	var last map[string]any
	for time.Now().Before(deadline) {
		last = httpStatus(t, addr)
		if ok(last["channels"].([]any)[0].(map[string]any)) {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatalf("status stays %v", last)
}

func httpStatus(t *testing.T, addr string) map[string]any {
	t.Helper()
	_, m := httpGet(t, addr, "/status")
	return m
}

func httpGet(t *testing.T, addr, path string) (code int, m map[string]any) {
	t.Helper()
	code, m, err := get(addr, path)
	if err != nil {
		t.Fatal(err)
	}
	return code, m
}

func get(addr, path string) (code int, m map[string]any, err error) {
	c, err := net.DialTimeout("tcp", addr, hang)
	if err != nil {
		return 0, nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(hang))
	fmt.Fprintf(c, "GET %s HTTP/1.0\r\nHost: x\r\n\r\n", path)
	b, err := io.ReadAll(c)
	if err != nil {
		return 0, nil, err
	}
	head, body, _ := bytes.Cut(b, []byte("\r\n\r\n"))
	if err := json.Unmarshal(body, &m); err != nil {
		return 0, nil, fmt.Errorf("%s: %q: %w", path, b, err)
	}
	if _, err := fmt.Sscanf(string(head), "HTTP/1.0 %d", &code); err != nil {
		return 0, nil, fmt.Errorf("%s: %q", path, head)
	}
	return code, m, nil
}

// What the kernel holds for a capture when it is told to stop is stored too.
func TestStopReadsOutTheSocket(t *testing.T) {
	const n = 3000
	dir := t.TempDir()
	capture := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--http", "127.0.0.1:0")
	ready := capture.event("ready")
	out := lineAddrs(t, ready)[0]
	send := func(first, next moldcast.Seq) {
		if _, err := out.Write(packet(first, next)); err != nil {
			t.Fatal(err)
		}
	}
	send(1, 2)
	send(2, 3)
	waitStatus(t, ready["http"].(string), func(s map[string]any) bool { return num(t, s, "messages") == 2 })
	capture.signal(syscall.SIGSTOP)
	for q := moldcast.Seq(3); q <= n; q += 2 {
		send(q, q+2)
	}
	capture.signal(syscall.SIGTERM)
	capture.signal(syscall.SIGCONT)
	stopped := capture.event("stopped")
	capture.exit(0)
	if num(t, stopped, "messages") != n || num(t, stopped, "kernel_dropped") != 0 {
		t.Errorf("stopped: %v", stopped)
	}
}

// kill -9 under load: what was durable is there, the capture resumes, and the
// rest is repaired.
func TestKilledCaptureResumes(t *testing.T) {
	const n = 12_000
	dir := t.TempDir()
	src := newSource(t, n, 0)
	start := func() (*proc, *net.UDPConn, string) {
		p := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.addr(), "--until-end", "--http", "127.0.0.1:0", "--segment-size", "256KiB", "--sync", "5ms", "--nak-budget", "1h")
		ready := p.event("ready")
		return p, lineAddrs(t, ready)[0], ready["http"].(string)
	}
	capture, out, http := start()
	pc := pacer{rate: 30_000}
	durable := 0
	for q := moldcast.Seq(1); q <= n; {
		next := min(q+4, n+1)
		src.published(next)
		_, _ = out.Write(packet(q, next))
		q = next
		pc.wait(q)
		if q == 6001 {
			waitStatus(t, http, func(s map[string]any) bool {
				sessions := s["sessions"].([]any)
				if len(sessions) == 1 {
					durable = num(t, sessions[0].(map[string]any), "durable_seq")
				}
				return durable > 3000
			})
			capture.signal(syscall.SIGKILL)
			capture.exit(-1)
			got := exported(t, dir, "E2E", "--to-seq", fmt.Sprint(durable-1))
			if !bytes.Equal(got, binaryFile(1, moldcast.Seq(durable))) {
				t.Fatalf("after the kill the archive is not what was durable up to %d", durable)
			}
			capture, out, http = start()
		}
	}
	capture.ended(n+1, out)
	capture.exit(0)
	if !bytes.Equal(exported(t, dir, "E2E"), binaryFile(1, n+1)) {
		t.Error("the export differs from what was published")
	}
	run(t, dir, 0, "verify")
}
