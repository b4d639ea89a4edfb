package capture

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// lockedBuffer is a log that is written and read at once.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// A store that cannot write shows in Status at once, and in the log once for
// each change, though nothing is received.
func TestStorageTroubleShows(t *testing.T) {
	var log lockedBuffer
	sink := &memSink{}
	r := start(t, 1, sink, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for q := moldcast.Seq(1); q < 30; q += 10 {
		r.send(0, packet(q, q+10))
	}
	st := r.until("the messages", func(s Status) bool { return s.Messages == 30 })
	if st.Storage.Degraded() || st.Storage.State != "ok" || st.Storage.Since != nil {
		t.Fatalf("storage %+v", st.Storage)
	}
	since := time.Now().Add(-time.Minute)
	sink.trouble.Store(&Trouble{Err: fmt.Errorf("segment: %w", syscall.ENOSPC), Since: since, Waiting: 4711})
	st = r.until("the trouble", func(s Status) bool { return s.Storage.Degraded() })
	s := st.Storage
	if s.State != "failing" || !s.Since.Equal(since) || s.WaitingBytes != 4711 ||
		!strings.Contains(s.Error, "no space left") || !strings.Contains(s.Advice, "free room") {
		t.Fatalf("storage %+v", s)
	}
	logged := func(what string, n int) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for log.count(what) < n {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("%q is not logged", what)
			}
		}
		if got := log.count(what); got != n {
			t.Fatalf("%q is logged %d times", what, got)
		}
	}
	logged("archive fails", 1)
	logged("free room", 1)
	logged("waiting_bytes=4711", 1)
	sink.trouble.Store(&Trouble{Err: fmt.Errorf("segment: %w", syscall.EROFS), Since: since})
	logged("mount it read-write", 1)
	sink.trouble.Store(nil)
	logged("archive works again", 1)
	logged("archive fails", 2)
	if st := r.until("it is well", func(s Status) bool { return !s.Storage.Degraded() }); st.Storage.Error != "" {
		t.Fatalf("storage %+v", st.Storage)
	}
}

// A session that cannot be opened is the archive's trouble too.
func TestOpenTroubleShows(t *testing.T) {
	sink := &memSink{openErr: fmt.Errorf("archive is gone: %w", fs.ErrNotExist)}
	r := start(t, 1, sink, nil)
	r.send(0, packet(1, 2))
	r.send(0, packet(2, 3))
	st := r.until("the trouble", func(s Status) bool { return s.Storage.Degraded() })
	if !strings.Contains(st.Storage.Advice, "mount") || st.Storage.Since == nil {
		t.Fatalf("storage %+v", st.Storage)
	}
	sink.mu.Lock()
	sink.openErr = nil
	sink.mu.Unlock()
	q := moldcast.Seq(3)
	r.until("the session", func(s Status) bool {
		r.send(0, packet(q, q+1))
		q++
		return !s.Storage.Degraded()
	})
}

// A stop does not wait for room in a store that fails.
func TestStopOnFailingStore(t *testing.T) {
	sink := &memSink{}
	var full sync.Once
	var tries atomic.Int64
	blocked := make(chan struct{})
	sink.refuse = func(p moldcast.Piece) bool {
		if p.First < 11 {
			return false
		}
		tries.Add(1)
		full.Do(func() {
			sink.trouble.Store(&Trouble{Err: syscall.ENOSPC, Since: time.Now()})
			close(blocked)
		})
		return true
	}
	r := start(t, 1, sink, func(c *Config) { c.ReorderWait = time.Minute })
	r.send(0, packet(1, 6))
	r.send(0, packet(6, 11))
	r.send(0, packet(21, 31)) // waits, and the store refuses it
	r.send(0, packet(11, 21))
	<-blocked
	before := tries.Load()
	r.cancel()
	r.wait()
	if n := tries.Load() - before; n > flushTries/2 {
		t.Errorf("the stop tried %d times", n)
	}
}

// What waits for an archive that fails is not given up at the end of the
// session: UntilEnd goes on until the trouble is over.
func TestUntilEndWaitsForFailingStore(t *testing.T) {
	sink := &memSink{}
	r := start(t, 1, sink, func(c *Config) { c.UntilEnd = true })
	sink.trouble.Store(&Trouble{Err: syscall.ENOSPC, Since: time.Now()})
	r.send(0, packet(1, 11))
	r.send(0, control(11, moldcast.EndCount))
	r.send(0, control(11, moldcast.EndCount))
	for range 3 { // the engine looks at the end between two answers
		r.until("the end", func(s Status) bool { return s.Packets == 3 && len(s.Sessions) == 1 && s.Sessions[0].State == "ended" })
	}
	select {
	case <-r.done:
		t.Fatal("the capture ends while the archive fails")
	default:
	}
	sink.trouble.Store(nil)
	r.wait()
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.exactly(1, 11)
}

func TestAdvice(t *testing.T) {
	seen := map[string]error{}
	for _, err := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EIO, syscall.ENODEV, syscall.EACCES, context.Canceled, io.ErrShortWrite} {
		a := advice(fmt.Errorf("x: %w", err))
		if other := seen[a]; a == "" || other != nil && err != io.ErrShortWrite {
			t.Errorf("%v: %q, as for %v", err, a, other)
		}
		seen[a] = err
	}
	if advice(syscall.EDQUOT) != advice(syscall.ENOSPC) {
		t.Error("a quota is a full disk")
	}
}
