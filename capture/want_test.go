package capture

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// A channel that has ended, while its node goes on, says nothing any more of
// what servers have: that would be left to them for good.
func TestWindowEndsWithTheChannel(t *testing.T) {
	ch, err := New(Config{
		Channel: "test", Log: slog.New(slog.DiscardHandler), Lines: []Line{{Addr: netip.MustParseAddrPort("127.0.0.1:0")}},
	}, &memSink{})
	if err != nil {
		t.Fatal(err)
	}
	ch.windows.Store(&map[moldcast.Session]uint64{sess: 7})
	if ch.Window(sess) != 7 {
		t.Fatal(ch.Window(sess))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ch.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if n := ch.Window(sess); n != 0 {
		t.Error(n)
	}
}
