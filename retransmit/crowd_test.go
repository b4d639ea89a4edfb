package retransmit

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// However many readers there are, and wherever they begin, each piece is read
// and encoded once; each gets its own.
func TestCrowdShares(t *testing.T) {
	const crowd, head, end = 30, 20_001, 26_001
	v := &tape{first: 1, head: head, cold: head, disk: 5 * time.Millisecond, growing: true}
	world(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
		var all sync.WaitGroup
		for i := range crowd {
			all.Go(func() {
				from := moldcast.Seq(1 + i*50) // in two cells
				c := connect(p, soup.Login{Session: day1, Seq: from}).run(nil)
				if c.check(t, from, end); c.end != end {
					t.Errorf("end %d", c.end)
				}
			})
		}
		for range 60 {
			<-time.After(10 * time.Millisecond)
			v.set(func() { v.head += 100 })
		}
		<-time.After(time.Second)
		for _, r := range s.Readers() {
			if r.State != ReaderLive || r.Lag != 0 || r.Next != end || r.Session != day1 {
				t.Errorf("%+v", r)
			}
		}
		v.set(func() { v.end = v.head })
		all.Wait()
		w := s.Stats().Wire
		// A cell that grew is read again; were it not shared, that would be crowd*cells.
		if cells := uint64(head/cellMessages + 1); w.Messages != end-1 || w.Reads > 2*cells || w.Chunks < crowd*cells {
			t.Errorf("%+v", w)
		}
	})
}

// Readers that want different pieces get them in turns, one each; who waits
// knows its place, and is kept alive. One that has all there is waits for no disk.
func TestCrowdInLine(t *testing.T) {
	const crowd = 20
	v := &tape{first: 1, head: 100*cellMessages + 1, cold: 100 * cellMessages, disk: 200 * time.Millisecond, growing: true}
	world(t, v, StreamConfig{Reads: 1}, func(t *testing.T, s *StreamServer, p *pipes) {
		live := connect(p, soup.Login{Session: day1, Seq: 0})
		var all sync.WaitGroup
		all.Go(func() { live.run(nil) })
		<-time.After(time.Second)
		var took [crowd]time.Duration
		var others sync.WaitGroup
		start := time.Now()
		for i := range crowd {
			c := connect(p, soup.Login{Session: day1, Seq: moldcast.Seq(1 + i*3*cellMessages)})
			others.Go(func() {
				c.run(func() bool { return len(c.got) >= 2*cellMessages+1 })
				took[i] = time.Since(start)
				place := slices.IndexFunc(c.debug, func(d string) bool { return strings.HasPrefix(d, "waits for the archive: place ") })
				if c.check(t, moldcast.Seq(1+i*3*cellMessages), c.m.Next()); i > 10 && (place < 0 || c.beats == 0) {
					t.Errorf("reader %d: %d heartbeats, told %q", i, c.beats, c.debug)
				}
			})
		}
		<-time.After(7 * time.Second)
		waiting := 0
		for _, r := range s.Readers() {
			if r.State == ReaderWaiting && r.Place > 0 {
				waiting++
			}
		}
		if waiting < crowd/2 {
			t.Errorf("%d wait: %+v", waiting, s.Readers())
		}
		synctest.Wait()
		told := len(live.got)
		v.set(func() { v.head += 10 })
		<-time.After(100 * time.Millisecond)
		synctest.Wait()
		if len(live.got) != told+10 {
			t.Errorf("the live reader got %d, not 10", len(live.got)-told)
		}
		others.Wait()
		if lo, hi := slices.Min(took[:]), slices.Max(took[:]); hi-lo > crowd*2*v.disk {
			t.Errorf("from %v to %v", lo, hi)
		}
		v.set(func() { v.end = v.head })
		all.Wait()
	})
}

// Who is not authorised is told so, not at once; who is reads.
func TestStreamUsers(t *testing.T) {
	v := &tape{first: 1, head: 10, end: 10}
	may := func(user, password string) bool { return user == "ann" && password == "secret" }
	world(t, v, StreamConfig{Authorise: may}, func(t *testing.T, s *StreamServer, p *pipes) {
		connect(p, soup.Login{User: "ann", Password: "secret", Session: day1, Seq: 1}).run(nil).check(t, 1, 10)
		start := time.Now()
		c := connect(p, soup.Login{User: "ann", Password: "Secret", Session: day1, Seq: 1}).run(nil)
		var r *soup.RejectedError
		if !errors.As(c.err, &r) || r.Code != soup.NotAuthorised || len(c.got) > 0 || time.Since(start) < denyAfter {
			t.Errorf("%v after %v", c.err, time.Since(start))
		}
		synctest.Wait()
		if st := s.Stats(); st.Ends[StreamUnauthorised] != 1 || st.Ends[StreamComplete] != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// ragged is a Recording of which any part may be missing, cold, or not yet
// there.
type ragged struct {
	tape
	frames func(q moldcast.Seq) []byte
}

func (v *ragged) Append(dst []byte, q moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	if !cold && q < v.cold {
		return dst, 0, ErrCold
	}
	base, n := len(dst), 0
	for ; n < count && q < v.head; q++ {
		for _, h := range v.holes {
			if h.Range.Contains(q) && n == 0 {
				return dst, 0, &moldcast.HoleError{Hole: h}
			} else if h.Range.Contains(q) {
				return dst, n, nil
			}
		}
		next := moldcast.AppendMessage(dst, v.frames(q))
		if n > 0 && len(next)-base > size {
			break
		}
		dst = next
		if n++; len(dst)-base > size {
			break
		}
	}
	return dst, n, nil
}

// Whatever is missing, whoever read before and whatever was dropped, a reader
// gets what a single one would: frame for frame, to the next hole or the head.
func TestWireAnyReaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{0, 30, 1400, 65000}).Draw(t, "size")
		v := &ragged{tape: tape{first: moldcast.Seq(rapid.IntRange(1, 3000).Draw(t, "first")), growing: true}}
		v.frames = func(q moldcast.Seq) []byte {
			return append(fmt.Appendf(nil, "%d", q), bytes.Repeat([]byte{'x'}, int(q*7)%(size+1))...)
		}
		most := 6000
		if size > 2000 {
			most = 60
		}
		v.head = v.first + moldcast.Seq(rapid.IntRange(1, most).Draw(t, "held"))
		for range rapid.IntRange(0, 3).Draw(t, "holes") {
			at := v.first + moldcast.Seq(rapid.IntRange(0, most).Draw(t, "hole"))
			v.holes = append(v.holes, moldcast.Hole{Range: moldcast.Range{First: at, Next: at + moldcast.Seq(rapid.IntRange(1, 50).Draw(t, "missing"))}, Reason: moldcast.Unrecoverable})
		}
		l := newLine(fixedClock{})
		w := newWire(rapid.SampledFrom([]int64{1, 200_000, 1 << 30}).Draw(t, "cache"), l)
		f := &feed{rec: v}
		type reader struct {
			at   moldcast.Seq
			near spot
		}
		var readers []*reader
		for range rapid.IntRange(1, 5).Draw(t, "readers") {
			readers = append(readers, &reader{at: v.first + moldcast.Seq(rapid.IntRange(0, int(v.head-v.first)-1).Draw(t, "from"))})
		}
		holed := func(q moldcast.Seq) bool {
			return slices.ContainsFunc(v.holes, func(h moldcast.Hole) bool { return h.Range.Contains(q) })
		}
		for step := 0; step < 150; step++ {
			if rapid.IntRange(0, 9).Draw(t, "grow") == 0 {
				v.head += moldcast.Seq(rapid.IntRange(1, 300).Draw(t, "more"))
			}
			v.cold = moldcast.Seq(rapid.Uint64Range(0, uint64(v.head)).Draw(t, "cold"))
			r := readers[rapid.IntRange(0, len(readers)-1).Draw(t, "reader")]
			if r.at >= v.head {
				continue
			}
			k, load := w.get(f, r.at)
			for load != nil {
				for l.waiting() > 0 { // what a worker does
					j := l.tickets[l.head]
					l.head++
					l.out++
					j.fn()
				}
				<-load.done
				if load.at != r.at {
					t.Fatalf("waits for %d at %d: there is nobody else", load.at, r.at)
				}
				if !load.hole.Empty() || load.err != nil {
					if !holed(r.at) || load.err != nil || load.hole.First != r.at {
						t.Fatalf("%v at %d (%v)", load.hole, r.at, load.err)
					}
					break
				}
				k, load = w.get(f, r.at)
			}
			if load != nil {
				r.at = load.hole.Next
				continue
			}
			if len(k.wire) > chunkBytes+size+30 || k.rng.First/cellMessages != (k.rng.Next-1)/cellMessages {
				t.Fatalf("a chunk of %d bytes: %v", len(k.wire), k.rng)
			}
			part := k.from(r.at, r.near)
			cut := rapid.IntRange(0, int(k.rng.Next-r.at)).Draw(t, "taken") // a write may be interrupted
			for range cut {
				n := frameSize(part)
				if want := append([]byte{'S'}, v.frames(r.at)...); !bytes.Equal(part[2:n], want) {
					t.Fatalf("message %d: %.30q, want %.30q", r.at, part[2:n], want)
				}
				part = part[n:]
				r.at++
			}
			r.near = spot{k.rng.First, r.at, len(k.wire) - len(part)}
			if r.at == k.rng.Next && r.near != k.end() {
				t.Fatalf("ends at %+v, not %+v", r.near, k.end())
			}
			if st := w.Stats(); st.Bytes > w.max+2*(chunkBytes+70_000)*cellMessages || len(w.cells) != w.lru.Len() {
				t.Fatalf("%+v of %d", st, w.max)
			}
		}
		w.forget(f)
		if st := w.Stats(); st.Bytes != 0 || len(w.cells) != 0 {
			t.Fatalf("keeps %+v", st)
		}
	})
}

type fixedClock struct{}

func (fixedClock) Now() moldcast.Instant { return 1 }

// sink is a connection that takes all.
type sink struct{ net.Conn }

func (sink) Write(b []byte) (int, error)      { return len(b), nil }
func (sink) SetWriteDeadline(time.Time) error { return nil }
func (sink) RemoteAddr() net.Addr             { return &net.UnixAddr{Name: "sink"} }

// To send what was encoded for another reader costs no allocation, nor does
// what is half sent.
func TestSendAllocations(t *testing.T) {
	v := &tape{first: 1, head: 4*cellMessages + 1, end: 4*cellMessages + 1}
	s, err := NewStream(StreamConfig{Listener: &pipes{}, Recordings: v})
	if err != nil {
		t.Fatal(err)
	}
	f := &feed{s: s, name: day1, rec: v}
	f.mu.changed = make(chan struct{})
	f.look(false)
	r := newReader(s, sink{})
	if _, _, err := r.m.Receive(0, soup.NewClient(0, soup.Login{Session: day1, Seq: 1}).Output(0)); err != nil {
		t.Fatal(err)
	}
	r.feed = f
	r.m.Accept(day1, 1)
	r.m.Output(0)
	now := s.cfg.Clock.Now()
	start := *r.m
	pass := func() {
		*r.m, r.near = start, spot{}
		for r.m.Next() < v.head {
			k, _ := r.next(now)
			if k.rng.Empty() || !r.send(k) {
				t.Fatalf("nothing at %d", r.m.Next())
			}
		}
	}
	pass()
	if n := testing.AllocsPerRun(20, pass); n > 0 {
		t.Errorf("%v allocations for %d messages", n, v.head-1)
	}
	if st := s.Stats().Wire; st.Messages != uint64(v.head-1) {
		t.Errorf("%+v", st)
	}
}

// tcp runs a server on a socket.
func tcp(t *testing.T, cfg StreamConfig) *StreamServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	s, err := NewStream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := serving(s.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}
