package capture

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast/mcast"
)

// busyRX is a receive thread that does not get to run for a while.
type busyRX struct {
	receiver
	looks int
}

func (b *busyRX) Idle() bool {
	b.looks++
	return b.looks > 3 && b.receiver.Idle()
}

// A stop waits for a receive thread that may not have read all there is,
// however long it has brought nothing.
func TestStopWaitsForReader(t *testing.T) {
	ch, err := New(Config{
		Channel: "test", Log: slog.New(slog.DiscardHandler), Lines: []Line{{Addr: netip.MustParseAddrPort("127.0.0.1:0")}},
	}, &memSink{})
	if err != nil {
		t.Fatal(err)
	}
	busy := &busyRX{receiver: ch.lines[0].rx}
	ch.lines[0].rx = busy
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ch.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if busy.looks <= 3 {
		t.Errorf("it stopped after %d looks", busy.looks)
	}
}

// Nor does the silence of a line end a capture while that is so: what came may
// wait in the kernel, as it does where a machine stood still.
func TestEndTimeoutWaitsForReader(t *testing.T) {
	ch, err := New(Config{
		Channel: "test", Log: slog.New(slog.DiscardHandler), Lines: []Line{{Addr: netip.MustParseAddrPort("127.0.0.1:0")}},
		EndTimeout: time.Millisecond,
	}, &memSink{})
	if err != nil {
		t.Fatal(err)
	}
	busy := &busyRX{receiver: ch.lines[0].rx}
	ch.lines[0].rx = busy
	if _, err := ch.Run(t.Context()); !errors.Is(err, ErrEndTimeout) {
		t.Fatalf("ended with %v, want ErrEndTimeout", err)
	}
	if busy.looks <= 3 {
		t.Errorf("it ended after %d looks", busy.looks)
	}
}

// stoodRX is a receive thread that has not read all for so many looks; during
// the first the machine stands still.
type stoodRX struct {
	receiver
	ring        *mcast.Ring
	busy, looks int
	stood       time.Duration
}

func (s *stoodRX) Ring() *mcast.Ring { return s.ring }

func (s *stoodRX) Idle() bool {
	if s.looks++; s.looks == 1 {
		time.Sleep(s.stood)
	}
	return s.looks > s.busy
}

// A stop on a machine that stood still gives the receive threads their time all
// the same, and no more than that.
func TestStopOnAMachineThatStoodStill(t *testing.T) {
	for _, busy := range []int{3, 1 << 30} {
		synctest.Test(t, func(t *testing.T) {
			rx := &stoodRX{ring: mcast.NewRing(8, 64), busy: busy, stood: 5 * stopLimit}
			ch := &Channel{wake: mcast.NewWake(), lines: []*tap{{rx: rx}}}
			began := time.Now()
			ch.readOut()
			if took := time.Since(began) - rx.stood; rx.looks <= 3 || took > stopLimit {
				t.Errorf("it stopped after %d looks, in %v", rx.looks, took)
			}
		})
	}
}
