package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
)

// stopped is what a capture says at its end.
type stopped struct {
	Event    string
	Packets  int
	Messages int
	Holes    int

	Duplicates        int
	Conflicts         int
	NaksSent          int `json:"naks_sent"`
	MessagesLost      int `json:"messages_lost"`
	MessagesRecovered int `json:"messages_recovered"`
	QueueDropped      int `json:"queue_dropped"`
	KernelDropped     int `json:"kernel_dropped"`
}

// moldtape is a capture, with more flags.
func moldtape(program string, more ...string) arm {
	return arm{
		name: "moldtape",
		argv: func(dir string) []string {
			return append([]string{program, "capture", "--log-level", "warn", "--archive", filepath.Join(dir, "archive"), "--rx", "ring",
				"--rx-ring", strconv.Itoa(bufferMiB) + "MiB", "--line", group.String() + ",interface=" + receiveOn}, more...)
		},
		joins: true,
		ready: `"event":"ready"`,
		count: func(out []byte) (int, error) {
			s, err := parseStopped(out)
			return s.Packets, err
		},
	}
}

func parseStopped(out []byte) (s stopped, err error) {
	at := bytes.Index(out, []byte(`{"event":"stopped"`))
	if at < 0 {
		return s, errors.New("it did not say what it did")
	}
	err = json.NewDecoder(bytes.NewReader(out[at:])).Decode(&s)
	return s, err
}
