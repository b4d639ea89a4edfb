package cli

import (
	"log/slog"
	"testing"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/store"
)

// What is said of the archive gets to it, the codec and its check too.
func TestCaptureOptions(t *testing.T) {
	e := &env{log: slog.New(slog.DiscardHandler)}
	n := config.Default()
	if o := e.captureOptions(&n); o.Codec != store.CodecAuto || o.NoVerify || o.Log != e.log || o.Node == "" {
		t.Errorf("by default: %v, unchecked %v, node %q", o.Codec, o.NoVerify, o.Node)
	}
	n.Codec, n.Verify, n.QueueBytes = "row", false, 1<<26
	if o := e.captureOptions(&n); o.Codec != store.CodecRow || !o.NoVerify || o.QueueBytes != 1<<26 {
		t.Errorf("%v, unchecked %v, queue %d", o.Codec, o.NoVerify, o.QueueBytes)
	}
}
