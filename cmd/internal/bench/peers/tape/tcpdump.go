package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
)

func tcpdump() arm {
	return arm{
		name: "tcpdump",
		argv: func(dir string) []string {
			return []string{"tcpdump", "-i", receiveOn, "-n", "-s", "0", "-B", strconv.Itoa(bufferMiB << 10), "-Z", "root",
				"-w", filepath.Join(dir, "tcpdump.pcap"), "udp", "dst", "port", strconv.Itoa(int(group.Port()))}
		},
		ready:   "listening on",
		install: "tcpdump",
		// Its last block is not read when it is interrupted: what counts is
		// what the kernel kept for it, and that it was not behind.
		count: func(out []byte) (int, error) {
			got, err := received(out)
			if err != nil {
				return 0, err
			}
			lost, err := dropped(out)
			return got - lost, err
		},
	}
}

var (
	received = countOf(regexp.MustCompile(`(\d+) packets? received by filter`))
	dropped  = countOf(regexp.MustCompile(`(\d+) packets? dropped by kernel`))
)

// countOf finds the number in what a program says at its end.
func countOf(re *regexp.Regexp) func(out []byte) (int, error) {
	return func(out []byte) (int, error) {
		m := re.FindSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("it did not say %s", re)
		}
		return strconv.Atoi(string(m[1]))
	}
}
