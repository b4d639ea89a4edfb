package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
)

// arm is a program that records the group.
type arm struct {
	name    string
	argv    func(dir string) []string // to record into dir
	ready   string                    // what a line of its output has when it receives
	install string                    // the Debian package, of a peer
	joins   bool                      // it joins the group itself
	// count reads from its output, once it has ended, how many packets it
	// recorded.
	count func(out []byte) (int, error)
}

// result is what one step came to.
type result struct {
	sent     sent
	recorded int
	cpu      time.Duration // from when it was warm until it had ended
	drain    time.Duration // how long it went on after the last packet
	out      []byte        // what the arm printed
}

// complete says whether everything was recorded, and nothing was left over
// for later: what is behind at the end would be lost sooner or later.
func (r result) complete() bool {
	return r.recorded == r.sent.packets && r.drain <= max(r.sent.took/8, 250*time.Millisecond)
}

func (r result) cpuPacket() float64 {
	return r.cpu.Seconds() * 1e6 / float64(r.sent.packets-r.sent.packets/warmUp)
}

// bench is where arms run.
type bench struct {
	cores [2]int // of the system, of the sender
	dir   string
	log   bool
	steps int
}

// missing says what is to be installed, or what else is the matter, if an arm
// does not run here.
func (b *bench) missing(a arm) string {
	argv := a.argv(b.dir)
	if _, err := exec.LookPath(argv[0]); err != nil {
		return fmt.Sprintf("no %s: apt-get install %s", a.name, a.install)
	}
	c, err := b.start(b.cores[0], a.ready, argv...)
	if err != nil {
		return fmt.Sprintf("left out: %v", err)
	}
	c.kill()
	return ""
}

// step has an arm record what the sender sends, at rate (0: as fast
// as it goes). With loss the arm ends by itself, at the end of the session.
func (b *bench) step(a arm, feed string, rate float64, packets int, loss float64) (r result, err error) {
	b.steps++
	dir, err := os.MkdirTemp(b.dir, "")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	if !a.joins {
		m, err := join()
		if err != nil {
			return r, err
		}
		defer m.Close()
	}
	rx, err := b.start(b.cores[0], a.ready, a.argv(dir)...)
	if err != nil {
		return r, err
	}
	defer rx.kill()
	if r, err = b.sendTo(rx, feed, rate, packets, loss); err != nil {
		return r, fmt.Errorf("%s: %w", a.name, err)
	}
	if r.recorded, err = a.count(r.out); err != nil {
		return r, fmt.Errorf("%s: %w\n%s", a.name, err, r.out)
	}
	if b.log {
		fmt.Fprintf(os.Stderr, "  %-9s %-4s %8.0f/s asked, %8.0f/s sent; %d of %d packets, drain %v, %.3f µs a packet\n", a.name, feed, rate,
			float64(packets)/r.sent.took.Seconds(), r.recorded, r.sent.packets, r.drain.Round(time.Millisecond), r.cpuPacket())
	}
	return r, nil
}

// join joins the group, and hears nothing. A program that only looks at what
// an interface receives needs somebody to do so; and the kernel's work with
// what is for a member of the group is on the sender's core, here.
func join() (io.Closer, error) {
	ifi, err := net.InterfaceByName(receiveOn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", receiveOn, err)
	}
	c, err := net.ListenMulticastUDP("udp4", ifi, net.UDPAddrFromAddrPort(group))
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return c, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	})
	return c, errors.Join(err, failed)
}

// sender is one that waits to be told.
func (b *bench) sender(feed string, rate float64, packets int, loss float64) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return b.start(b.cores[1], "ready", self, "send", feed, fmt.Sprint(rate), strconv.Itoa(packets), fmt.Sprint(loss), strconv.Itoa(b.steps))
}

// send tells a sender to begin, calls warm a third on, and is what it sent.
func (c *child) send(warm func()) (s sent, err error) {
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return s, err
	}
	if _, err := c.line("warm", ending); err != nil {
		return s, fmt.Errorf("sender: %w", err)
	}
	warm()
	line, err := c.line("sent ", ending)
	if err != nil {
		return s, fmt.Errorf("sender: %w", err)
	}
	var took float64
	if _, err := fmt.Sscanf(line, "sent %d %d %d %d %d %f", &s.packets, &s.messages, &s.lost, &s.bursts, &s.fewest, &took); err != nil {
		return s, fmt.Errorf("sender said %q: %w", line, err)
	}
	s.took = time.Duration(took * 1e9)
	return s, nil
}

// sendTo sends to an arm that receives, and waits for it to end.
func (b *bench) sendTo(rx *child, feed string, rate float64, packets int, loss float64) (r result, err error) {
	tx, err := b.sender(feed, rate, packets, loss)
	if err != nil {
		return r, err
	}
	defer tx.kill()
	var before time.Duration
	if r.sent, err = tx.send(func() { before = rx.cpu() }); err != nil {
		return r, err
	}
	if ended := time.Now(); loss == 0 {
		r.drain = rx.idle().Sub(ended)
		if err := rx.cmd.Process.Signal(syscall.SIGINT); err != nil {
			return r, err
		}
	}
	if err := rx.wait(); err != nil {
		return r, fmt.Errorf("%w: %s", err, rx.out.bytes())
	}
	p := rx.cmd.ProcessState
	r.cpu, r.out = p.UserTime()+p.SystemTime()-before, rx.out.bytes()
	return r, nil
}

// child is a program on a core of its own.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *output
	from  int // where line looks
	ended chan struct{}
	err   error // once it has ended
}

func (b *bench) start(core int, ready string, argv ...string) (*child, error) {
	argv = harness.OnCore(core, argv...)
	c := &child{cmd: exec.Command(argv[0], argv[1:]...), out: &output{more: make(chan struct{}, 1)}, ended: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.Dir = b.dir
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	if _, err := c.line(ready, 20*time.Second); err != nil {
		c.kill()
		return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	c.from = len(c.out.bytes())
	return c, nil
}

const ending = 60 * time.Second

func (c *child) wait() error {
	c.in.Close()
	defer time.AfterFunc(ending, func() { _ = c.cmd.Process.Kill() }).Stop()
	<-c.ended
	return c.err
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// line waits for a line that has the text.
func (c *child) line(text string, most time.Duration) (string, error) {
	late := time.After(most)
	for end := false; ; {
		s := bufio.NewScanner(bytes.NewReader(c.out.bytes()[c.from:]))
		for s.Scan() {
			if strings.Contains(s.Text(), text) {
				return s.Text(), nil
			}
		}
		if end {
			return "", fmt.Errorf("it ended: %w: %s", cmp.Or(c.err, io.EOF), bytes.TrimSpace(c.out.bytes()))
		}
		select {
		case <-c.out.more:
		case <-c.ended:
			end = true
		case <-late:
			return "", fmt.Errorf("no line with %q in %v: %s", text, most, bytes.TrimSpace(c.out.bytes()))
		}
	}
}

// cpu is what a running program has used; the kernel tells it to 10 ms.
func (c *child) cpu() time.Duration {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.cmd.Process.Pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte(") ")) // from the third field on
	f := strings.Fields(string(rest))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// idle waits until the program has nothing more to do: it uses less than a
// fifth of its core; and says since when. So long a reader may leave a block
// that is not full with the kernel.
func (c *child) idle() time.Time {
	const window, look = 300 * time.Millisecond, 10 * time.Millisecond
	began := time.Now()
	since, used := began, c.cpu()
	for time.Since(began) < ending {
		time.Sleep(look)
		if now := c.cpu(); now-used > window/5 {
			since, used = time.Now(), now
		}
		if time.Since(since) > window {
			break
		}
	}
	return since
}

// output keeps what a program prints.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
	return o.buf.Write(p)
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.buf.Bytes())
}
