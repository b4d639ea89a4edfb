// Package harness is what the comparisons have in common: two cores, medians,
// and lines that say goal, figure, the peer's figure, ratio, reached or not.
package harness

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/cmd/internal/bench"
)

// TwoCores are the first two cores that this process may use: one is the
// system's, the other the sender's.
func TwoCores() (pair [2]int, err error) {
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

// OnCore is argv as it runs on one core.
func OnCore(core int, argv ...string) []string {
	return append([]string{"taskset", "-c", strconv.Itoa(core)}, argv...)
}

// Load is how loaded the machine is: runnable threads over 1, 5 and 15
// minutes.
func Load() string {
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%.14s", load)
}

// Median is bench.Median.
func Median(v []float64) float64 { return bench.Median(v) }

// Reached says whether a goal is.
func Reached(ok bool) string {
	if ok {
		return "reached"
	}
	return "NOT reached"
}

// Head is the heading of what Row prints.
func Head() {
	fmt.Printf("%-4s %-44s %13s %13s %6s\n", "goal", "what", "figure", "peer", "ratio")
}

// Row is one goal: figure and the peer's are printed with format, the ratio
// must not lie beyond want.
func Row(goal, what, format string, figure, peer, ratio float64, sign string, want float64) {
	ok := sign == "≤" && ratio <= want || sign == "≥" && ratio >= want
	fmt.Printf("%-4s %-44s %13s %13s %6.2f %s %.2f  %s\n", goal, what, fmt.Sprintf(format, figure), fmt.Sprintf(format, peer), ratio, sign, want, Reached(ok))
}

// Alone is a goal whose peer is missing.
func Alone(goal, what, format string, figure float64, why string) {
	fmt.Printf("%-4s %-44s %13s %s\n", goal, what, fmt.Sprintf(format, figure), why)
}

// Pin has this process run on one core.
func Pin(core int) error {
	var cores unix.CPUSet
	cores.Set(core)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &cores); err != nil {
			return err
		}
	}
	return nil
}
