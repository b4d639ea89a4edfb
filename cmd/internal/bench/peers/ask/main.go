// ask measures how requests are answered beside others who keep a stream: goals
// 11 and 12, and what a storm of requests does to a capture. On lo in a network
// namespace of its own (../run.sh makes it); the server on one core, who asks on
// another.
//
//	ask compare -moldtape PROGRAM [-runs N] [-quick] [-dir DIR]
//	ask nats DIR COUNT SIZE      a JetStream of so many messages, file store
//	ask cold ARCHIVE             a request server that keeps one decoded block
//	ask alone ARCHIVE SEED N     reads and decodes N scattered blocks
//
// nats and cold say where they listen, and end with their input; cold then says
// how much processor time it took, in ns.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/cmd/internal/cli"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/retransmit/admit"
	"github.com/moldtape/moldtape/store"
)

func main() {
	err := errors.New("want compare, nats, cold or alone")
	if len(os.Args) > 1 {
		switch args := os.Args[2:]; os.Args[1] {
		case "compare":
			err = compare(args)
		case "nats":
			err = serveNATS(args)
		case "cold":
			err = serveCold(args)
		case "alone":
			err = alone(args)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
}

// coldArchive opens an archive that keeps one decoded block.
func coldArchive(dir string) (*store.Archive, error) {
	o := store.DefaultOptions()
	o.CacheBytes = 1
	return store.Open(dir, o)
}

func unlimited() admit.Config {
	none := admit.Rate{Requests: -1, Bytes: -1}
	return admit.Config{Client: none, Loopback: none, Total: none}
}

func serveCold(args []string) error {
	a, err := coldArchive(args[0])
	if err != nil {
		return err
	}
	defer a.Close()
	src := cli.NewSource(a, nil, slog.Default())
	defer src.Close()
	if err := src.Refresh(); err != nil {
		return err
	}
	conn, err := retransmit.Listen(netip.MustParseAddrPort("127.0.0.1:0"), slog.Default())
	if err != nil {
		return err
	}
	s, err := retransmit.New(retransmit.Config{Conn: conn, Source: src, Admit: unlimited()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	fmt.Println(s.Addr())
	before := bench.CPU()
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println((bench.CPU() - before).Nanoseconds())
	cancel()
	return <-done
}
