// tape measures the whole capture, receive to disk, beside programs that only
// write what they receive to a file: goals 3, 4 and 16. On a veth pair in a
// network namespace of its own (../run.sh makes it); the system on one core,
// the sender on another.
//
//	tape compare -moldtape PROGRAM [flags]    runs all arms and prints the goals
//	tape send FEED RATE PACKETS LOSS SEED     the sender
package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Where it runs.
var (
	group    = netip.MustParseAddrPort("239.255.77.2:27710")
	source   = netip.MustParseAddr("10.77.0.2")           // the sender's, on a host that does not exist
	requests = netip.MustParseAddrPort("127.0.0.1:27711") // where it answers requests
)

const (
	sendOn    = "tx0" // the pair
	receiveOn = "rx0"
	session   = "PEERS"
	bufferMiB = 32 // what the kernel holds for an arm: the same for all
)

func main() {
	err := errors.New("want compare or send")
	if len(os.Args) > 1 {
		switch args := os.Args[2:]; os.Args[1] {
		case "compare":
			err = compare(args)
		case "send":
			err = send(args)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tape:", err)
		os.Exit(1)
	}
}
