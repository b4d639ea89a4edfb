// Package bench measures moldtape on the machine it runs on, each part beside
// a limit that is measured in the same run: what `moldtape bench` prints, and
// what the benchmarks beside peers have in common with it. Times of this
// process and its threads are the processor's where it says CPU, the clock's
// elsewhere.
package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Median is the middle one of the values; of none, 0.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// CPU is the processor's time that this process has taken.
func CPU() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// ThreadCPU is the processor's time that the calling thread has taken; the
// goroutine must be locked to it.
func ThreadCPU() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err) // no Linux
	}
	return time.Duration(t.Nano())
}

// Written is how many bytes this process has passed to write calls (wchar).
func Written() (n int64, err error) {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "wchar: ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		return 0, fmt.Errorf("/proc/self/io: %w", err)
	}
	return n, nil
}
