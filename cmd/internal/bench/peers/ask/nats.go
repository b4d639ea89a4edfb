package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moldtape/moldtape/cmd/internal/bench/peers/jetstream"
)

// serveNATS keeps a stream of messages of one size in a file store.
func serveNATS(args []string) error {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	url, stop, err := jetstream.Serve(args[0], false)
	if err != nil {
		return err
	}
	defer stop()
	b := make([]byte, size)
	if err := jetstream.Publish(url, func() ([]byte, bool) {
		count--
		return b, count >= 0
	}); err != nil {
		return err
	}
	fmt.Println(url)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// askNATS asks by direct gets, window at a time, and returns gets a second.
func askNATS(url string, count, window int, d time.Duration) (float64, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	inbox := nc.NewInbox()
	answers := make(chan *nats.Msg, 2*window)
	sub, err := nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	rng := rand.New(rand.NewPCG(1, 2))
	get := func() error {
		return nc.PublishRequest("$JS.API.DIRECT.GET."+jetstream.Stream, inbox, fmt.Appendf(nil, `{"seq":%d}`, 1+rng.IntN(count)))
	}
	for range window {
		if err := get(); err != nil {
			return 0, err
		}
	}
	n := 0
	began := time.Now()
	stop := time.After(d)
	for {
		select {
		case m := <-answers:
			if m.Header.Get("Nats-Sequence") == "" {
				return 0, fmt.Errorf("no message: %v", m.Header)
			}
			n++
			if err := get(); err != nil {
				return 0, err
			}
		case <-stop:
			return float64(n) / time.Since(began).Seconds(), nil
		}
	}
}
