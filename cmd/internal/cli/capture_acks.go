package cli

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"time"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// identifyEvery is how often an identity is asked for that an archive cannot
// give: a disk that is full takes no new start.
const identifyEvery = 10 * time.Second

// acknowledge lets the channels acknowledge in the archive's name.
func (n *captureNode) acknowledge(archive *store.Archive) {
	n.background(func(ctx context.Context) error {
		for {
			id, err := archive.Identify()
			if err == nil {
				node := &capture.AckNode{ID: moldcast.NodeID(id.ID), Place: placeOf(archive.Dir()), Epoch: id.Starts}
				for _, ch := range n.channels {
					ch.Acknowledge(node)
				}
				n.env.log.Info("acknowledging", "node", node.ID, "start", node.Epoch)
				return nil
			}
			n.env.log.Error("nothing is acknowledged until the archive can note its start; retried", "err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(identifyEvery):
			}
		}
	}, "identity")
}

// placeOf is the place of an archive, by machine and directory: never 0.
func placeOf(dir string) uint64 {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	machine, _ := os.ReadFile("/etc/machine-id")
	host, _ := os.Hostname()
	h := sha256.New()
	for _, s := range []string{"moldtape archive", string(machine), host, dir} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return binary.BigEndian.Uint64(h.Sum(nil)) | 1
}
