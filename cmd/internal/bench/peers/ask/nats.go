package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const stream = "PEERS"

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
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: args[0], NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(30 * time.Second) {
		return fmt.Errorf("the peer does not start")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		return err
	}
	// On a loaded machine it waits, and is not called off.
	js, err := nc.JetStream(nats.PublishAsyncMaxPending(512))
	if err != nil {
		return err
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: stream, Subjects: []string{"m"}, Storage: nats.FileStorage, AllowDirect: true}); err != nil {
		return err
	}
	b := make([]byte, size)
	for range count {
		if _, err := js.PublishAsync("m", b, nats.StallWait(time.Minute)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(5 * time.Minute):
		return fmt.Errorf("the peer does not store")
	}
	nc.Close()
	fmt.Println(s.ClientURL())
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
		return nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, fmt.Appendf(nil, `{"seq":%d}`, 1+rng.IntN(count)))
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
