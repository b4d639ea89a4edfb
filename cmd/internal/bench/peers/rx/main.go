// rx measures what it costs to receive: moldtape's two back ends beside
// golang.org/x/net's ReadBatch and a C program.
//
//	rx compare RUNS [C-PROGRAM]   runs all, in turn, so often, and prints the goals
//	rx ring|udp|xnet              one receiver
//	rx send SIZE                  the sender
//
// All but compare are driven by lines on stdin. The sender sends a burst for
// each, then says so. A receiver takes in a burst, and prints how many
// datagrams that was, the CPU seconds, and the allocations. It is stopped while
// the burst is sent, so that full batches are compared, and not how often who
// wakes on a machine that does other things, too.
package main

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"github.com/moldtape/moldtape/moldcast/mcast"
)

var (
	group = netip.MustParseAddrPort("239.255.77.1:27700")
	iface = "lo"
)

// buffer is the receive buffer of all, in bytes as the kernel accounts them.
const buffer = 128 << 20

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) >= 2 && args[0] == "compare":
		var runs int
		if runs, err = strconv.Atoi(args[1]); err == nil {
			err = compare(runs, args[2:])
		}
	case len(args) == 2 && args[0] == "send":
		err = send(args[1])
	case len(args) == 1:
		err = receive(args[0])
	default:
		err = fmt.Errorf("want compare RUNS [C-PROGRAM], send SIZE, ring, udp or xnet")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rx:", err)
		os.Exit(1)
	}
}

// burst is how many datagrams are sent at once; receive buffer and ring hold
// them.
const burst = 40000

func send(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	s, err := mcast.Dial(mcast.SendConfig{Addr: group, Interface: iface})
	if err != nil {
		return err
	}
	defer s.Close()
	batch := make([][]byte, 50)
	for i := range batch {
		batch[i] = make([]byte, n)
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); fmt.Println("sent") {
		for range burst/len(batch) - 1 {
			if _, err := s.Send(batch); err != nil {
				return err
			}
		}
		batch[len(batch)-1][0] = 'E'
		if _, err := s.Send(batch); err != nil {
			return err
		}
		batch[len(batch)-1][0] = 0
	}
	return nil
}
