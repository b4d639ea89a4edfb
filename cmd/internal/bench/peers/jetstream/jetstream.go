// Package jetstream is the peer that keeps a stream of messages.
package jetstream

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Stream is the name of the stream of JetStream, Subject where it is published.
const (
	Stream  = "PEERS"
	Subject = "m"
)

// Serve starts a server in this process that keeps a stream in files,
// compressed by S2 or not; stop ends it.
func Serve(dir string, s2 bool) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return "", nil, err
	}
	s.Start()
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
	}
	config := nats.StreamConfig{Name: Stream, Subjects: []string{Subject}, Storage: nats.FileStorage, AllowDirect: true}
	if s2 {
		config.Compression = nats.S2Compression
	}
	if !s.ReadyForConnections(30 * time.Second) {
		stop()
		return "", nil, fmt.Errorf("the peer does not start")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err == nil {
		defer nc.Close()
		var js nats.JetStreamContext
		if js, err = nc.JetStream(); err == nil {
			_, err = js.AddStream(&config)
		}
	}
	if err != nil {
		stop()
		return "", nil, err
	}
	return s.ClientURL(), stop, nil
}

// Publish publishes what next says, until it says false, and waits until all
// is stored.
func Publish(url string, next func() ([]byte, bool)) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	// On a loaded machine it waits, and is not called off.
	js, err := nc.JetStream(nats.PublishAsyncMaxPending(512))
	if err != nil {
		return err
	}
	for b, ok := next(); ok; b, ok = next() {
		if _, err := js.PublishAsync(Subject, b, nats.StallWait(time.Minute)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-time.After(5 * time.Minute):
		return fmt.Errorf("the peer does not store")
	}
}
