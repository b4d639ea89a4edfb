package httpd

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// disk knows the room on a disk without ever waiting for it: a goroutine of
// its own asks.
type disk struct {
	dir  string
	last atomic.Pointer[Disk]
}

const diskEvery = 2 * time.Second

// usage is what was seen last; nil: nothing, or not lately.
func (d *disk) usage() *Disk { return d.last.Load() }

func (d *disk) watch(ctx context.Context) {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for {
		d.look()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (d *disk) look() {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		d.last.Store(nil)
		return
	}
	size := uint64(st.Bsize)
	d.last.Store(&Disk{FreeBytes: st.Bavail * size, SizeBytes: st.Blocks * size})
}
