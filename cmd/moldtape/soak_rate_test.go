//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// rated is a node of one line that a test publishes to at rates of its choice.
type rated struct {
	t    *testing.T
	node *proc
	http string
	src  *source
	line *mcast.Conn
	port int // of the line
	next moldcast.Seq

	hold bool // the node is stopped until the kernel drops
}

// rateStep is what came of publishing at a rate for a while.
type rateStep struct {
	rate    float64 // messages a second, as sent
	dropped int     // datagrams by the kernel, and messages by the node
	opened  int     // gaps
	cpu     float64 // of the node, ns a message
}

// lossWanted is how many messages a node that is stopped loses, about.
const lossWanted = 200_000

// publish sends at a rate, in messages a second, and waits until all is
// recorded.
func (r *rated) publish(rate float64, d time.Duration) (s rateStep) {
	r.t.Helper()
	before, cpu, first := r.channel(), r.cpu(), r.next
	began := time.Now()
	drops := r.kernelDrops()
	if r.hold {
		r.node.signal(syscall.SIGSTOP)
	}
	p := pacer{rate: rate}
	var full moldcast.Seq // where the kernel began to drop
	for held := r.hold; held || time.Since(began) < d; {
		var batch [][]byte
		for range 8 {
			batch = append(batch, soakPacket(r.next, r.next+20))
			r.next += 20
		}
		r.src.published(r.next)
		_, _ = r.line.Send(batch)
		if !held {
			p.wait(r.next - first)
		} else if full == 0 && r.kernelDrops() != drops {
			full = r.next
		} else if held = full == 0 || r.next-full < lossWanted; !held {
			r.node.signal(syscall.SIGCONT)
		} else if r.next-first > 50_000_000 {
			r.t.Fatal("no buffer is that large")
		}
	}
	s.rate = float64(r.next-first) / time.Since(began).Seconds()
	for end := time.Now().Add(2 * hang); ; <-time.After(20 * time.Millisecond) {
		_, _ = r.line.Send([][]byte{moldcast.AppendHeader(nil, session, r.next, 0)}) // what was dropped last is told with the next
		if x := r.session(); num(r.t, x, "next_seq") == int(r.next) && num(r.t, x, "durable_seq") == int(r.next) {
			break
		} else if time.Now().After(end) {
			r.t.Fatalf("%d were published, not repaired: %v, %v", r.next-1, x, r.channel()["open"])
		}
	}
	after := r.channel()
	grown := func(k string) int { return num(r.t, after, k) - num(r.t, before, k) }
	s.dropped, s.opened = grown("kernel_dropped")+grown("queue_dropped"), grown("gaps_opened")
	s.cpu = (r.cpu() - cpu) * 1e9 / float64(r.next-first)
	r.t.Logf("%7.0f messages a second wanted, %7.0f sent: %d dropped, %d gaps, %d recovered, %d requests, %.0f ns of the node's CPU a message",
		rate, s.rate, s.dropped, s.opened, grown("messages_recovered"), grown("naks_sent"), s.cpu)
	return s
}

func (r *rated) channel() map[string]any {
	r.t.Helper()
	return httpStatus(r.t, r.http)["channels"].([]any)[0].(map[string]any)
}

func (r *rated) session() map[string]any {
	r.t.Helper()
	if s := r.channel()["sessions"].([]any); len(s) == 1 {
		return s[0].(map[string]any)
	}
	return map[string]any{"next_seq": 0.0, "durable_seq": 0.0}
}

// kernelDrops is what the kernel dropped at the socket of the line, also while
// the node does not run.
func (r *rated) kernelDrops() string {
	r.t.Helper()
	b, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 2 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", r.port)) {
			return f[len(f)-1]
		}
	}
	r.t.Fatalf("the kernel lists no socket of port %d", r.port)
	return ""
}

// cpu is what the node has used, in seconds.
func (r *rated) cpu() float64 {
	r.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.node.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	rest := string(b)[strings.LastIndexByte(string(b), ')'):]
	var user, system float64
	f := strings.Fields(rest)
	_, _ = fmt.Sscan(f[12]+" "+f[13], &user, &system)
	return (user + system) / 100 // USER_HZ
}

// TestSoakRate finds the highest rate at which nothing is dropped, on one line,
// by steps; there no gap opens. At twice that much, or as fast as the sender
// can, what the kernel drops is asked for, and in the end all is recorded.
// Where the sender is no faster than the node, that is stopped for a moment.
func TestSoakRate(t *testing.T) {
	dir := t.TempDir()
	r := &rated{t: t, next: 1, src: newSourceOf(t, 1<<40, 0, 30, soakPacket)}
	r.node = moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", r.src.addr(), "--until-end", "--strict", "--nak-budget", "1h",
		"--http", "127.0.0.1:0", "--log-level", "warn")
	ready := r.node.event("ready")
	r.http = ready["http"].(string)
	line := lineAddrs(t, ready)[0].RemoteAddr().(*net.UDPAddr).AddrPort()
	r.port = int(line.Port())
	var err error
	if r.line, err = mcast.Dial(mcast.SendConfig{Addr: line}); err != nil {
		t.Fatal(err)
	}
	defer r.line.Close()

	const least, growth = 10_000, 1.5
	step := min(max(*soakFor/15, 100*time.Millisecond), 2*time.Second)
	r.publish(least, step) // the session is there, the rings are touched
	var none float64       // the highest rate without a drop
	for rate, slower := 4.0*least, 0; slower < 2; rate *= growth {
		s := r.publish(rate, step)
		if s.dropped > 0 {
			break
		}
		if none = max(none, s.rate); s.rate > 0.9*rate {
			slower = 0
		} else if slower++; slower == 2 {
			t.Logf("the sender is no faster than %.0f", none)
		}
	}
	// What a step was lucky with need not last.
	for ; none >= least; none /= growth {
		if s := r.publish(none, 2*step); s.dropped == 0 {
			if s.opened > 0 {
				t.Errorf("nothing was dropped, and %d gaps opened", s.opened)
			}
			break
		}
	}
	twice := r.publish(2*max(none, least), 2*step)
	stopped := ""
	if twice.dropped == 0 {
		// The sender is no faster than the node: that is held up.
		r.hold = true
		twice = r.publish(2*max(none, least), step)
		stopped = ", the node stopped until the kernel dropped,"
		if twice.dropped == 0 {
			t.Error("the kernel dropped, and the node does not say so")
		}
	}

	end := moldcast.AppendHeader(nil, session, r.next, moldcast.EndCount)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			_, _ = r.line.Send([][]byte{end})
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	sum := r.node.event("stopped")
	r.node.exit(0)
	if num(t, sum, "messages") != int(r.next-1) || num(t, sum, "messages_lost") != 0 || num(t, sum, "holes") != 0 || num(t, sum, "gaps_opened") != num(t, sum, "gaps_recovered") {
		t.Errorf("stopped %v; %d were published", sum, r.next-1)
	}
	exportIs(t, dir, 1, r.next)
	run(t, dir, 0, "verify")
	t.Logf("nothing dropped up to %.0f messages a second; at %.0f%s %d dropped, and all repaired", none, twice.rate, stopped, twice.dropped)
}
