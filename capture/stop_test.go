package capture

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
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
