package capture

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
)

// other is [first, next) as a restarted sender sends it: the messages below
// same as before.
func other(first, next, same moldcast.Seq) []byte {
	b := moldcast.AppendHeader(nil, sess, first, uint16(next-first))
	for q := first; q < next; q++ {
		text := body(q)
		if q >= same {
			text = "other " + text
		}
		b = moldcast.AppendMessage(b, []byte(text))
	}
	return b
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// whole checks that a take is [1, next), from same on of the other sender.
func whole(t *testing.T, x *memSession, next, same moldcast.Seq) {
	t.Helper()
	if x.set.Count() != uint64(next-1) || x.set.Bounds() != (moldcast.Range{First: 1, Next: next}) || x.twice != 0 || x.closed != 1 {
		t.Fatalf("take %d holds %v, %d twice, closed %d times; want [1, %d)", x.take, x.set.Ranges(), x.twice, x.closed, next)
	}
	for q := moldcast.Seq(1); q < next; q++ {
		want := body(q)
		if q >= same {
			want = "other " + want
		}
		if x.msgs[q] != want {
			t.Fatalf("take %d, message %d is %q", x.take, q, x.msgs[q])
		}
	}
}

// TestRestartedSender: on loopback, with the beginning the same, which is
// copied; the take before may be in the store from an earlier process, when
// no hash is remembered.
func TestRestartedSender(t *testing.T) {
	const n, same = 600, 201
	for name, earlier := range map[string]bool{"live": false, "after a restart of the process": true} {
		t.Run(name, func(t *testing.T) {
			sink, log := &memSink{}, &logBuffer{}
			if earlier {
				x := &memSession{sink: sink, take: 1, msgs: map[moldcast.Seq]string{}, held: moldcast.Held{First: 1, Next: n + 1, Head: n + 1}}
				for q := moldcast.Seq(1); q <= n; q++ {
					x.msgs[q] = body(q)
				}
				x.set.Add(moldcast.Range{First: 1, Next: n + 1})
				sink.sessions = map[moldcast.Session]*memSession{sess: x}
				sink.takes = []*memSession{x}
			}
			r := start(t, 1, sink, func(c *Config) {
				c.Start, c.UntilEnd = arbiter.Live, true
				c.Log = slog.New(slog.NewTextHandler(log, nil))
			})
			if !earlier {
				for q := moldcast.Seq(1); q <= n; q += 10 {
					r.send(0, packet(q, q+10))
				}
				r.until("the first take", func(s Status) bool { return s.Messages == n })
			}
			for q := moldcast.Seq(1); q <= n+200; q += 20 {
				r.send(0, other(q, q+20, same))
			}
			r.until("the end of the second take", func(s Status) bool {
				for _, x := range s.Sessions {
					if x.Take == 2 && x.NextSeq == n+201 {
						return true
					}
				}
				return false
			})
			r.send(0, control(n+201, moldcast.EndCount))
			st := r.wait()
			if r.err != nil {
				t.Fatal(r.err)
			}
			if len(sink.takes) != 2 {
				t.Fatalf("%d takes", len(sink.takes))
			}
			whole(t, sink.takes[0], n+1, 1<<62)
			whole(t, sink.takes[1], n+201, same)
			if len(st.Sessions) != 2 || st.Holes() != 0 || st.MessagesLost != 0 || st.Conflicts == 0 {
				t.Errorf("status %+v", st)
			}
			for _, x := range st.Sessions {
				if x.State != "ended" {
					t.Errorf("take %d is %s", x.Take, x.State)
				}
			}
			if by := sink.takes[0].by; by != "test/"+sess.String()+"@2" {
				t.Errorf("take 1 is superseded by %q", by)
			}
			if !strings.Contains(log.String(), "NEW TAKE") || !strings.Contains(log.String(), "source=127.0.0.1") {
				t.Errorf("not said:\n%s", log)
			}
		})
	}
}

// What a crash left of the copy of a beginning is copied when the take is taken
// up again.
func TestCopyIsResumed(t *testing.T) {
	const n, same, copied = 600, 201, 57
	sink := &memSink{}
	one := &memSession{sink: sink, take: 1, msgs: map[moldcast.Seq]string{}}
	two := &memSession{sink: sink, take: 2, msgs: map[moldcast.Seq]string{}, shareOf: 1, shared: []moldcast.Range{{First: 1, Next: same}}}
	for q := moldcast.Seq(1); q <= n; q++ {
		one.msgs[q] = body(q)
		if q < copied {
			two.msgs[q] = body(q)
		} else if q >= same && q <= n/2 {
			two.msgs[q] = "other " + body(q)
		}
	}
	one.set.Add(moldcast.Range{First: 1, Next: n + 1})
	two.set.Add(moldcast.Range{First: 1, Next: copied})
	two.set.Add(moldcast.Range{First: same, Next: n/2 + 1})
	two.held = moldcast.Held{First: 1, Next: copied, Head: n/2 + 1, Holes: []moldcast.Hole{{Range: moldcast.Range{First: copied, Next: same}}}}
	sink.sessions = map[moldcast.Session]*memSession{sess: two}
	sink.takes = []*memSession{one, two}
	r := start(t, 1, sink, func(c *Config) { c.Start, c.UntilEnd = arbiter.Live, true })
	r.send(0, other(n/2+1, n/2+11, same))
	r.send(0, other(n/2+11, n+1, same))
	r.until("the copy", func(s Status) bool { return len(s.Sessions) == 1 && s.Sessions[0].NextSeq == n+1 })
	r.send(0, control(n+1, moldcast.EndCount))
	if st := r.wait(); r.err != nil || st.Holes() != 0 || st.Copied != same-copied {
		t.Errorf("%v %+v", r.err, st)
	}
	whole(t, two, n+1, same)
}

// TestOneForgedPacketStartsNoTake: it is dropped and counted.
func TestOneForgedPacketStartsNoTake(t *testing.T) {
	sink := &memSink{}
	r := start(t, 1, sink, func(c *Config) { c.Start, c.UntilEnd = arbiter.Live, true })
	r.send(0, packet(1, 11))
	r.send(0, packet(11, 21))
	r.send(0, other(1, 6, 1))
	r.send(0, packet(21, 31))
	r.send(0, control(31, moldcast.EndCount))
	st := r.wait()
	r.exactly(1, 31)
	if len(sink.takes) != 1 || st.Conflicts != 5 || len(st.Sessions) != 1 || st.Sessions[0].Take != 1 {
		t.Errorf("%d takes, status %+v", len(sink.takes), st)
	}
}
