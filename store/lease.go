package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

// leaser hands out leases of sealed segments, on their seal.json: shared ones
// to readers, an exclusive one to who removes the segment. None is handed out
// of a file that is no longer at its path.
type leaser interface {
	// lease errors: errHeld where another's lease stands against it, and
	// os.ErrNotExist.
	lease(path string, exclusive bool) (io.Closer, error)
}

func leaserOf(fs vfs.FS) leaser {
	if vfs.Root(fs) == vfs.Default {
		return flockLeaser{}
	}
	return &memLeaser{fs: fs, held: map[string]int{}}
}

// flockLeaser is flock(2): a process that dies lets go of its leases.
type flockLeaser struct{}

func (flockLeaser) lease(path string, exclusive bool) (io.Closer, error) {
	f, err := flockPath(path, exclusive)
	if err != nil {
		return nil, err
	}
	// The directory may have been renamed between opening and locking.
	mine, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(path); err == nil && !os.SameFile(mine, there) {
			err = fmt.Errorf("%s: %w", path, os.ErrNotExist)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// flockPath opens a file or directory and locks it; the error is errHeld
// where another has it.
func flockPath(path string, exclusive bool) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, errHeld
		}
		return nil, fmt.Errorf("flock %s: %w", path, err)
	}
	return f, nil
}

// memLeaser holds the leases of a file system that is not the system's. mu
// guards held: readers by path, -1 for an exclusive lease.
type memLeaser struct {
	fs   vfs.FS
	mu   sync.Mutex
	held map[string]int
}

func (l *memLeaser) lease(path string, exclusive bool) (io.Closer, error) {
	l.mu.Lock()
	n := l.held[path]
	if n < 0 || n > 0 && exclusive {
		l.mu.Unlock()
		return nil, errHeld
	}
	if exclusive {
		l.held[path] = -1
	} else {
		l.held[path] = n + 1
	}
	l.mu.Unlock()
	m := &memLease{l: l, path: path}
	if _, err := l.fs.Stat(path); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

type memLease struct {
	l    *memLeaser
	path string
	once sync.Once
}

func (m *memLease) Close() error {
	m.once.Do(func() {
		m.l.mu.Lock()
		defer m.l.mu.Unlock()
		if n := m.l.held[m.path]; n > 1 {
			m.l.held[m.path] = n - 1
		} else {
			delete(m.l.held, m.path)
		}
	})
	return nil
}

// errGone: the segment is no longer in its place.
var errGone = errors.New("the segment is gone")

const (
	leaseRetry = 2 * time.Millisecond
	leaseTries = 5000
)

// share takes a reader's lease of g. While the segment is being removed, it
// waits for the outcome. c is nil for a segment that is not sealed: it cannot
// be removed. The error wraps errGone where the segment is not there.
func (g *segment) share(fs vfs.FS, l leaser) (c io.Closer, err error) {
	path := fs.PathJoin(g.dir, sealFile)
	for range leaseTries {
		c, err = l.lease(path, false)
		switch {
		case err == nil:
			return c, nil
		case isNotExist(err):
			if _, e := fs.Stat(g.dir); isNotExist(e) {
				return nil, errGone
			}
			return nil, nil
		case !errors.Is(err, errHeld):
			return nil, fmt.Errorf("lease: %w", notAllowed(err))
		}
		time.Sleep(leaseRetry)
	}
	return nil, fmt.Errorf("lease: %w", notAllowed(err))
}

// useLease is the lease of one open segment, held while anybody uses it. mu
// is held for the few system calls that take it, so that of two users who
// come at a time the second does not begin without it.
type useLease struct {
	mu sync.Mutex
	n  int
	c  io.Closer
}

func (u *useLease) take(fs vfs.FS, l leaser, g *segment) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == 0 {
		c, err := g.share(fs, l)
		if err != nil {
			return err
		}
		u.c = c
	}
	u.n++
	return nil
}

func (u *useLease) give() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 && u.c != nil {
		u.c.Close()
		u.c = nil
	}
}

// Lease keeps segments from being pruned while it is held.
type Lease struct {
	once sync.Once
	held []io.Closer
}

// Close lets go of it.
func (l *Lease) Close() error {
	l.once.Do(func() {
		for _, c := range l.held {
			c.Close()
		}
	})
	return nil
}

// Lease keeps every sealed segment that holds part of r from being pruned,
// also by other processes, until it is closed: for who reads a range to its
// end, or again and again. What is sealed later is not in it.
func (v *View) Lease(r moldcast.Range) (*Lease, error) {
	s := v.s
	out := &Lease{}
	have := map[*segment]bool{}
again:
	for {
		var want []*segment
		s.mu.Lock()
		for i := s.runAfter(r.First); i < len(s.runs) && s.runs[i].r.First < r.Next; i++ {
			if g := s.runs[i].seg; g.sealed && !have[g] && !slices.Contains(want, g) {
				want = append(want, g)
			}
		}
		s.mu.Unlock()
		for _, g := range want {
			c, err := g.share(s.a.o.FS, s.a.table.leaser)
			if s.vanished(g, err) {
				continue again // what is left is another
			}
			if err != nil {
				out.Close()
				return nil, fmt.Errorf("%s: %w", g.name, err)
			}
			have[g] = true
			if c != nil {
				out.held = append(out.held, c)
			}
		}
		return out, nil
	}
}
