package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	rounds = 5
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
func compare(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	peers := []peer{{"ring", []string{self, "ring"}}, {"udp", []string{self, "udp"}}, {"xnet", []string{self, "xnet"}}}
	if len(args) > 0 {
		peers = append(peers, peer{"c", []string{args[0], group.Addr().String(), strconv.Itoa(int(group.Port())), strconv.Itoa(buffer / 2)}})
	}
	cores, err := twoCores()
	if err != nil {
		return err
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("load %.14s; %d bursts of %d datagrams a run, %d runs each, in turn; CPU of the receiver, medians\n\n", load, bursts-1, burst, rounds)
	fmt.Printf("%-4s %-40s %11s %11s %14s\n", "goal", "what", "figure", "peer", "ratio")
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

func twoCores() (pair [2]int, err error) {
	var cores unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cores); err != nil {
		return pair, err
	}
	if cores.Count() < 2 {
		return pair, errors.New("two cores are needed: one receives, one sends")
	}
	n := 0
	for c := 0; n < 2; c++ {
		if cores.IsSet(c) {
			pair[n] = c
			n++
		}
	}
	return pair, nil
}

// child is a program on a core of its own, driven by lines.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(core int, argv ...string) (*child, error) {
	c := &child{cmd: exec.Command("taskset", append([]string{"-c", strconv.Itoa(core)}, argv...)...)}
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

func median(f []figures, of func(figures) float64) float64 {
	var v []float64
	for _, x := range f {
		v = append(v, of(x))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func report(size int, runs map[string][]figures) {
	cpu := func(name string) float64 { return median(runs[name], func(f figures) float64 { return f.cpu }) }
	verdict := func(ok bool) string {
		if ok {
			return "reached"
		}
		return "NOT reached"
	}
	row := func(n, what, a, b string, ratio func(a, b float64) float64, want string, ok func(r float64) bool) {
		what = fmt.Sprintf("%s, %d B", what, size)
		if len(runs[b]) == 0 {
			fmt.Printf("%-4s %-40s %8.3f µs %11s\n", n, what, cpu(a), "no peer")
			return
		}
		r := ratio(cpu(a), cpu(b))
		fmt.Printf("%-4s %-40s %8.3f µs %8.3f µs %6.2f %s  %s\n", n, what, cpu(a), cpu(b), r, want, verdict(ok(r)))
	}
	less := func(a, b float64) float64 { return a / b }
	more := func(a, b float64) float64 { return b / a }
	row("1", "ring : C recvmmsg(64), CPU", "ring", "c", less, "≤ 0.25", func(r float64) bool { return r <= 0.25 })
	row("2", "udp : C recvmmsg(64), speed", "udp", "c", more, "≥ 0.90", func(r float64) bool { return r >= 0.9 })
	row("2", "udp : x/net ReadBatch(64), speed", "udp", "xnet", more, "≥ 1.30", func(r float64) bool { return r >= 1.3 })
	for _, name := range []string{"ring", "udp", "xnet", "c"} {
		f := runs[name]
		if len(f) == 0 {
			continue
		}
		allocs, want := median(f, func(f figures) float64 { return f.allocs }), ""
		if name == "udp" || name == "ring" { // the measurement makes some itself
			want = "0  " + verdict(allocs < 0.001)
		}
		if name != "c" {
			fmt.Printf("%-4s %-40s %11.4f %11s %6s %s\n", "2", fmt.Sprintf("%s: allocations a datagram, %d B", name, size), allocs, "", "", want)
		}
		if lost := median(f, func(f figures) float64 { return f.lost }); lost > 0 {
			fmt.Printf("     %s lost %.2f %% of %d B\n", name, 100*lost, size)
		}
	}
	fmt.Println()
}
