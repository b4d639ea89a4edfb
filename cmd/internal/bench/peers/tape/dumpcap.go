package main

import (
	"path/filepath"
	"regexp"
	"strconv"
)

func dumpcap() arm {
	return arm{
		name: "dumpcap",
		argv: func(dir string) []string {
			return []string{"dumpcap", "-q", "-i", receiveOn, "-B", strconv.Itoa(bufferMiB), "-w", filepath.Join(dir, "dumpcap.pcapng"),
				"-f", "udp dst port " + strconv.Itoa(int(group.Port()))}
		},
		ready:   "File: ",
		install: "wireshark-common",
		count:   countOf(regexp.MustCompile(`Packets captured: (\d+)`)),
	}
}
