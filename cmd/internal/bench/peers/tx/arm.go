package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/harness"
)

type bench struct {
	core    int // of the judge
	dir     string
	program string
	log     bool
}

// arm is a program that sends a capture.
type arm struct {
	name    string
	argv    func(c capture) []string
	install string // the Debian package, of a peer
}

func (b *bench) replay(name string, more ...string) arm {
	return arm{name: name, argv: func(c capture) []string {
		return append([]string{b.program, "replay", "--archive", c.archive, "peers/" + session, "--group", group.String(), "--interface", sendOn,
			"--linger", "0s", "--log-level", "warn"}, more...)
	}}
}

func tcpreplay(more ...string) arm {
	return arm{name: "tcpreplay", install: "tcpreplay", argv: func(c capture) []string {
		return append(append([]string{"tcpreplay", "-q", "-i", sendOn}, more...), c.file)
	}}
}

// missing says what is to be installed.
func missing(program, pkg string) string {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Sprintf("no %s: apt-get install %s", program, pkg)
	}
	return ""
}

func (a arm) missing() string {
	if a.install == "" {
		return ""
	}
	return missing(a.name, a.install)
}

// run has an arm send.
func (b *bench) run(a arm, c capture) error {
	argv := a.argv(c)
	cmd := exec.Command(argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	defer time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, out.Bytes())
	}
	return nil
}

// course is how well one run kept to the recording, in µs.
type course struct {
	late50, late99 float64 // how far from its place in the schedule, that begins with the first packet
	gap50, gap99   float64 // by how much the distance to the packet before is another
	drift          float64 // how much later the last tenth is than the first, in the mean, as a part of the time between
	lost           float64 // part of the packets that the judge did not see
}

// judge has an arm send, and tcpdump say when the packets came.
func (b *bench) judge(a arm, c capture) (x course, err error) {
	file := b.path("judge.pcap")
	argv := harness.OnCore(b.core, "tcpdump", "-i", receiveOn, "-n", "-p", "--time-stamp-precision=nano", "-s", "128", "-B", "65536", "-Z", "root",
		"-w", file, "udp dst port "+strconv.Itoa(int(group.Port())))
	cmd := exec.Command(argv[0], argv[1:]...)
	errs, err := cmd.StderrPipe()
	if err != nil {
		return x, err
	}
	if err := cmd.Start(); err != nil {
		return x, err
	}
	defer func() { _ = cmd.Process.Kill() }()
	r := bufio.NewReader(errs)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return x, fmt.Errorf("tcpdump: %w", errors.Join(err, cmd.Wait()))
		}
		if strings.Contains(line, "listening on") {
			break
		}
	}
	if err := b.run(a, c); err != nil {
		return x, err
	}
	time.Sleep(1500 * time.Millisecond) // its blocks come late
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		return x, err
	}
	if err := cmd.Wait(); err != nil {
		return x, fmt.Errorf("tcpdump: %w", err)
	}
	got, err := seen(file)
	if err != nil {
		return x, err
	}
	if x, err = measure(c, got); err != nil {
		return x, err
	}
	if b.log {
		fmt.Fprintf(os.Stderr, "  %-10s schedule p50 %.2f p99 %.2f, gap p50 %.2f p99 %.2f µs, drift %.4f %%, lost %.2f %%\n", a.name, x.late50, x.late99, x.gap50, x.gap99, 100*x.drift, 100*x.lost)
	}
	return x, nil
}

// measure compares what came with what was recorded.
func measure(c capture, got map[uint64]int64) (x course, err error) {
	first := c.order[0]
	if _, ok := got[first]; !ok || len(got) < len(c.order)/2 {
		return x, fmt.Errorf("%d of %d packets were seen", len(got), len(c.order))
	}
	var late, gap, signed []float64
	lastWas, lastDue, before := int64(0), int64(0), false
	for i, q := range c.order {
		at, ok := got[q]
		if !ok {
			before = false
			continue
		}
		was, due := at-got[first], c.stamps[q]-c.stamps[first]
		signed = append(signed, float64(was-due))
		late = append(late, math.Abs(float64(was-due))/1e3)
		if before && i > 0 {
			gap = append(gap, math.Abs(float64((was-lastWas)-(due-lastDue)))/1e3)
		}
		lastWas, lastDue, before = was, due, true
	}
	tenth := max(len(signed)/10, 1)
	drift := (mean(signed[len(signed)-tenth:]) - mean(signed[:tenth])) / (0.9 * float64(lastDue))
	slices.Sort(late)
	slices.Sort(gap)
	q := func(v []float64, q float64) float64 { return v[int(q*float64(len(v)-1))] }
	return course{
		late50: q(late, 0.5), late99: q(late, 0.99), gap50: q(gap, 0.5), gap99: q(gap, 0.99),
		drift: math.Abs(drift), lost: 1 - float64(len(late))/float64(len(c.order)),
	}, nil
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// topSpeed is how many packets a second came over the pair, by the interface's
// own count, between the tenth and the last tenth of them.
func (b *bench) topSpeed(a arm, c capture) (float64, error) {
	type sample struct {
		at time.Time
		n  int
	}
	before := sentBy()
	done := make(chan error, 1)
	go func() { done <- b.run(a, c) }()
	var samples []sample
	for {
		select {
		case err := <-done:
			if err != nil {
				return 0, err
			}
			lo, hi := -1, -1
			for i, s := range samples {
				if lo < 0 && s.n >= len(c.order)/10 {
					lo = i
				}
				if s.n <= len(c.order)*9/10 {
					hi = i
				}
			}
			if lo < 0 || hi <= lo {
				return 0, fmt.Errorf("%d packets came, too fast to tell", sentBy()-before)
			}
			v := float64(samples[hi].n-samples[lo].n) / samples[hi].at.Sub(samples[lo].at).Seconds()
			if b.log {
				fmt.Fprintf(os.Stderr, "  %-10s %.0f packets/s\n", a.name, v)
			}
			return v, nil
		case <-time.After(2 * time.Millisecond):
			samples = append(samples, sample{time.Now(), sentBy() - before})
		}
	}
}

// sentBy is how many packets the interface has sent.
func sentBy() int {
	b, err := os.ReadFile("/proc/self/net/dev") // /sys may be of another namespace
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if name, rest, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == sendOn {
			if f := strings.Fields(rest); len(f) > 9 { // 8 of what was received, bytes
				n, _ := strconv.Atoi(f[9])
				return n
			}
		}
	}
	return 0
}
