package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
)

const (
	bursts = 5 // a run; the first does not count
	bound  = 60 * time.Second
)

// figures are what one run came to.
type figures struct {
	cpu    float64 // µs a datagram
	allocs float64 // a datagram
	lost   float64 // of those sent
}

// peer is one of the programs that are compared.
type peer struct {
	name string
	argv []string
}

// compare runs every peer, in turn, rounds times, receiver and sender each on
// a core of its own, and prints the goals of both sizes.
func compare(rounds int, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	peers := []peer{{"ring", []string{self, "ring"}}, {"udp", []string{self, "udp"}}, {"xnet", []string{self, "xnet"}}}
	if len(args) > 0 {
		peers = append(peers, peer{"c", []string{args[0], group.Addr().String(), strconv.Itoa(int(group.Port())), strconv.Itoa(buffer / 2)}})
	}
	cores, err := harness.TwoCores()
	if err != nil {
		return err
	}
	fmt.Printf("receive: load %s; %d bursts of %d datagrams a run, %d runs each, in turn; CPU of the receiver a datagram, medians\n\n", harness.Load(), bursts-1, burst, rounds)
	harness.Head()
	for _, size := range []int{200, 1400} {
		runs := make(map[string][]figures)
		for range rounds {
			for _, p := range peers {
				f, err := run(p, self, size, cores)
				if err != nil {
					return fmt.Errorf("%s at %d bytes: %w", p.name, size, err)
				}
				runs[p.name] = append(runs[p.name], f)
			}
		}
		report(size, runs)
	}
	return nil
}

// child is a program on a core of its own, driven by lines.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(core int, argv ...string) (*child, error) {
	argv = harness.OnCore(core, argv...)
	c := &child{cmd: exec.Command(argv[0], argv[1:]...)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := c.line(); err != nil { // "ready"
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

func (c *child) line() (string, error) { return c.out.ReadString('\n') }

// ask sends a line and waits for the answer.
func (c *child) ask() (string, error) {
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return "", err
	}
	return c.line()
}

func (c *child) end() error {
	c.in.Close()
	return c.cmd.Wait()
}

func run(p peer, self string, size int, cores [2]int) (f figures, err error) {
	rx, err := start(cores[0], p.argv...)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, rx.end()) }()
	defer time.AfterFunc(bound, func() { _ = rx.cmd.Process.Kill() }).Stop()
	tx, err := start(cores[1], self, "send", strconv.Itoa(size))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, tx.end()) }()
	var sum [3]float64
	for b := range bursts {
		line, err := burstOf(rx, tx)
		if err != nil {
			return f, err
		}
		for i, word := range strings.Fields(line)[:min(3, len(strings.Fields(line)))] {
			v, err := strconv.ParseFloat(word, 64)
			if err != nil {
				return f, err
			}
			if b > 0 {
				sum[i] += v
			}
		}
	}
	if sum[0] == 0 {
		return f, errors.New("it received nothing")
	}
	return figures{cpu: sum[1] / sum[0] * 1e6, allocs: sum[2] / sum[0], lost: 1 - sum[0]/(burst*(bursts-1))}, nil
}

// burstOf has one burst sent while the receiver is stopped, and then received;
// it is what the receiver printed.
func burstOf(rx, tx *child) (string, error) {
	if err := rx.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return "", err
	}
	_, err := tx.ask()
	err = errors.Join(err, rx.cmd.Process.Signal(syscall.SIGCONT))
	if err != nil {
		return "", err
	}
	return rx.ask()
}

func report(size int, runs map[string][]figures) {
	median := func(name string, of func(figures) float64) float64 {
		var v []float64
		for _, x := range runs[name] {
			v = append(v, of(x))
		}
		return harness.Median(v)
	}
	cpu := func(name string) float64 { return median(name, func(f figures) float64 { return f.cpu }) }
	row := func(n, what, a, b, sign string, want float64) {
		what = fmt.Sprintf("%s, %d B", what, size)
		if len(runs[b]) == 0 {
			harness.Alone(n, what, "%.3f µs", cpu(a), "no peer")
			return
		}
		ratio := cpu(a) / cpu(b)
		if sign == "≥" { // speed
			ratio = cpu(b) / cpu(a)
		}
		harness.Row(n, what, "%.3f µs", cpu(a), cpu(b), ratio, sign, want)
	}
	row("1", "ring : C recvmmsg(64), CPU", "ring", "c", "≤", 0.25)
	row("2", "udp : C recvmmsg(64), speed", "udp", "c", "≥", 0.9)
	row("2", "udp : x/net ReadBatch(64), speed", "udp", "xnet", "≥", 1.3)
	for _, name := range []string{"ring", "udp", "xnet", "c"} {
		if len(runs[name]) == 0 {
			continue
		}
		allocs := median(name, func(f figures) float64 { return f.allocs })
		what := fmt.Sprintf("%s: allocations a datagram, %d B", name, size)
		switch name {
		case "udp", "ring": // the measurement makes some itself
			harness.Alone("2", what, "%.4f", allocs, "0  "+harness.Reached(allocs < 0.001))
		case "xnet":
			harness.Alone("2", what, "%.4f", allocs, "")
		}
		if lost := median(name, func(f figures) float64 { return f.lost }); lost > 0 {
			fmt.Printf("     %s lost %.2f %% of %d B\n", name, 100*lost, size)
		}
	}
	fmt.Println()
}
