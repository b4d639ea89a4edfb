package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/retransmit/admit"
	"github.com/moldtape/moldtape/store"
)

// feed is a made-up session: what message q must be.
type feed struct {
	first moldcast.Seq
	n     int
	hole  moldcast.Range
}

func (f feed) head() moldcast.Seq { return f.first + moldcast.Seq(f.n) }

func (f feed) size(q moldcast.Seq) int {
	switch i := int(q - f.first); {
	case i%5000 == 4999:
		return 9000 // larger than any MTU
	case i%97 == 0:
		return 0
	default:
		return 20 + i*7%60
	}
}

func (f feed) message(dst []byte, q moldcast.Seq) []byte {
	dst = dst[:0]
	for len(dst) < f.size(q) {
		dst = binary.BigEndian.AppendUint64(dst, uint64(q)^uint64(len(dst)))
	}
	return dst[:f.size(q)]
}

// write appends [from, to), 7 messages a piece, without the hole.
func (f feed) write(t testing.TB, w *store.Writer, from, to moldcast.Seq) {
	t.Helper()
	var buf, msg []byte
	for q := from; q < to; {
		if f.hole.Contains(q) {
			q = f.hole.Next
			continue
		}
		buf = buf[:0]
		k := 0
		for k < 7 && q+moldcast.Seq(k) < to && !f.hole.Contains(q+moldcast.Seq(k)) {
			msg = f.message(msg, q+moldcast.Seq(k))
			buf = moldcast.AppendMessage(buf, msg)
			k++
		}
		stamp := moldcast.Stamp(1_700_000_000_000_000_000 + int64(q-f.first)*1000)
		n, err := w.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(buf, k), Time: stamp, Heard: stamp})
		if err != nil || n != k {
			t.Fatalf("append %d: %d of %d stored: %v", q, n, k, err)
		}
		q += moldcast.Seq(k)
	}
}

// answer is the datagram that is right for a request, by the rules alone; nil
// for none.
func (f feed) answer(s moldcast.Session, head moldcast.Seq, r moldcast.Request, payload int) []byte {
	next := min(head, r.Range().Next)
	if r.Session != s || r.First < f.first || f.hole.Contains(r.First) || r.First >= next {
		return nil
	}
	out := moldcast.AppendHeader(nil, s, r.First, 0)
	k := 0
	var msg []byte
	for q := r.First; q < next && !f.hole.Contains(q); q++ {
		msg = f.message(msg, q)
		if k > 0 && len(out)+moldcast.LengthSize+len(msg) > payload {
			break
		}
		out = moldcast.AppendMessage(out, msg)
		k++
	}
	binary.BigEndian.PutUint16(out[18:], uint16(k))
	return out
}

// testOptions make many blocks and segments of little data.
func testOptions() store.Options {
	o := store.DefaultOptions()
	o.BlockSize, o.SegmentSize, o.Wait = 8<<10, 128<<10, true
	o.TailBytes, o.CacheBytes = 64<<10, 256<<10
	return o
}

func testArchive(t testing.TB, dir string) *store.Archive {
	t.Helper()
	return testArchiveWith(t, dir, testOptions())
}

func testArchiveWith(t testing.TB, dir string, o store.Options) *store.Archive {
	t.Helper()
	a, err := store.OpenOrCreate(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func testSession(t testing.TB, name string) moldcast.Session {
	t.Helper()
	s, err := moldcast.ParseSession(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testWriter(t testing.TB, a *store.Archive, channel string, s moldcast.Session, take int) *store.Writer {
	t.Helper()
	w, err := a.Writer(channel, s, take)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// serveSource runs a server on a loopback socket until the function that it
// returns, or the test's end.
func serveSource(t *testing.T, src *Source) (netip.AddrPort, func() retransmit.Stats) {
	t.Helper()
	conn, err := retransmit.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	// Random ranges overlap: each is to be answered, whatever was sent before.
	server, err := retransmit.New(retransmit.Config{Conn: conn, Source: src, Admit: admit.Config{Linger: -1}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stop := sync.OnceValue(func() retransmit.Stats {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return server.Stats()
	})
	t.Cleanup(func() { stop() })
	return conn.LocalAddr(), stop
}

// asker asks over a socket of its own.
type asker struct {
	t testing.TB
	*net.UDPConn
	buf []byte
}

func newAsker(t testing.TB, to netip.AddrPort) *asker {
	t.Helper()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &asker{t, c, make([]byte, 1<<16)}
}

func (a *asker) ask(r moldcast.Request) {
	a.t.Helper()
	if _, err := a.Write(moldcast.AppendRequest(nil, r)); err != nil {
		a.t.Fatal(err)
	}
}

func (a *asker) expect(r moldcast.Request, want []byte) {
	a.t.Helper()
	if err := a.SetReadDeadline(time.Now().Add(ever)); err != nil {
		a.t.Fatal(err)
	}
	n, err := a.Read(a.buf)
	if err != nil {
		a.t.Fatalf("no answer to %v: %v", r.Range(), err)
	}
	if got := a.buf[:n]; !bytes.Equal(got, want) {
		p, err := moldcast.Parse(got)
		q, _ := moldcast.Parse(want)
		a.t.Fatalf("asked %v: answer of %d bytes, %v (%v); want %d bytes, %v", r.Range(), len(got), p.Range(), err, len(want), q.Range())
	}
}

// random asks n random requests, of which some have no answer, and checks
// that each is answered exactly right: the next datagram that comes is always
// the answer to the next request that has one. Nothing is asked for that was
// sent before as a whole: it might come while that answer lingers.
func (a *asker) random(f feed, s moldcast.Session, head moldcast.Seq, n int, seed uint64) {
	a.t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	seen := map[moldcast.Request]bool{}
	var sent []moldcast.Range
	for answered := 0; answered < n; {
		r := moldcast.Request{Session: s, First: f.first + moldcast.Seq(rnd.IntN(int(head-f.first))), Count: uint16(1 + rnd.IntN(64))}
		switch rnd.IntN(10) {
		case 0:
			r.Count = moldcast.MaxCount
		case 1:
			r.First = head + moldcast.Seq(rnd.IntN(3))
		case 2:
			r.Session[0] ^= 1
		case 3:
			r.Count = 0
		case 4:
			r.First = f.hole.First + moldcast.Seq(rnd.IntN(int(f.hole.Len())))
		case 5:
			r.First = f.hole.First - moldcast.Seq(rnd.IntN(10))
		case 6:
			r.First = head - moldcast.Seq(rnd.IntN(20))
		}
		if r.First == 0 || seen[r] || slices.ContainsFunc(sent, func(s moldcast.Range) bool { return s.First <= r.First && r.Range().Next <= s.Next }) {
			continue
		}
		seen[r] = true
		a.ask(r)
		if want := f.answer(s, head, r, 1472); r.Count > 0 && want != nil {
			a.expect(r, want)
			p, _ := moldcast.Parse(want)
			sent = append(sent, p.Range())
			answered++
		}
	}
}

// 50 000 messages in a real archive: 300 random requests are answered exactly
// right while the session is written, after it is closed, and from the archive
// as another process finds it, all of it cold.
func TestRandomRequestsFromArchive(t *testing.T) {
	for _, first := range []moldcast.Seq{1, 484311999} {
		f := feed{first: first, n: 50_000, hole: moldcast.Range{First: first + 20_000, Next: first + 20_100}}
		s := testSession(t, "S1")
		dir := filepath.Join(t.TempDir(), "archive")
		a := testArchive(t, dir)
		src := NewSource(a, nil, slog.New(slog.DiscardHandler))
		addr, stop := serveSource(t, src)
		c := newAsker(t, addr)
		w := testWriter(t, a, "feed", s, 0)
		src.Live(w.Ref(), w.View())
		for part := range 4 {
			from, to := first+moldcast.Seq(part*10_000), first+moldcast.Seq((part+1)*10_000)
			f.write(t, w, from, to)
			if to > f.hole.Next {
				c.random(f, s, to, 50, uint64(part))
			}
		}
		f.write(t, w, first+40_000, f.head())
		c.random(f, s, f.head(), 300, 10)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		src.Stored(w.Ref())
		c.random(f, s, f.head(), 100, 11)
		if st := stop(); st.Cold == 0 || st.Cold == st.Answered || st.Unanswered[retransmit.Missing] == 0 ||
			st.Unanswered[retransmit.BeyondHead] == 0 || st.Unanswered[retransmit.ReadFailed] != 0 {
			t.Errorf("not what was meant: %+v", st)
		}

		src = NewSource(testArchive(t, dir), nil, slog.New(slog.DiscardHandler))
		if err := src.Refresh(); err != nil {
			t.Fatal(err)
		}
		addr, stop = serveSource(t, src)
		newAsker(t, addr).random(f, s, f.head(), 300, 12)
		if st := stop(); st.Cold == 0 || st.Unanswered[retransmit.ReadFailed] != 0 {
			t.Errorf("not what was meant: %+v", st)
		}
	}
}

// An answer from memory is as full as one from disk: where the rest is cold,
// the whole of it is.
func TestSourceAnswersAcrossColdBlocks(t *testing.T) {
	f := feed{first: 1, n: 5000}
	s := testSession(t, "S1")
	dir := filepath.Join(t.TempDir(), "archive")
	w := testWriter(t, testArchive(t, dir), "feed", s, 0)
	f.write(t, w, 1, f.head())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	src := NewSource(testArchive(t, dir), nil, slog.New(slog.DiscardHandler))
	if err := src.Refresh(); err != nil {
		t.Fatal(err)
	}
	v, ok := src.Lookup(s)
	if !ok {
		t.Fatal("not served")
	}
	const size = 1452
	if _, n, err := v.Append(nil, 1, 100, size, false); n != 0 || !errors.Is(err, retransmit.ErrCold) {
		t.Fatalf("fresh archive: %d, %v", n, err)
	}
	if _, n, err := v.Append(nil, 1, 1, size, true); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	full, cold := 0, 0
	for q := moldcast.Seq(1); q < 1000; q++ {
		want := f.answer(s, f.head(), moldcast.Request{Session: s, First: q, Count: 100}, 20+size)[20:]
		got, n, err := v.Append(nil, q, 100, size, false)
		switch {
		case errors.Is(err, retransmit.ErrCold):
			if n >= 100 || len(got) != 0 { // n: of so many behind q it knows that they are in memory
				t.Fatalf("%d: cold with %d messages, %d bytes", q, n, len(got))
			}
			cold++
		case err != nil || !bytes.Equal(got, want):
			t.Fatalf("%d: %d messages, %d bytes, want %d: %v", q, n, len(got), len(want), err)
		default:
			full++
		}
	}
	if full == 0 || cold == 0 {
		t.Fatalf("%d full, %d cold", full, cold)
	}
}

// A hot answer through the source allocates nothing: from the tail of a
// session that is written, and from blocks in the cache.
func TestSourceDoesNotAllocate(t *testing.T) {
	f := feed{first: 1, n: 20_000}
	s := testSession(t, "S1")
	a := testArchive(t, filepath.Join(t.TempDir(), "archive"))
	src := NewSource(a, nil, slog.New(slog.DiscardHandler))
	w := testWriter(t, a, "feed", s, 0)
	defer w.Close()
	src.Live(w.Ref(), w.View())
	f.write(t, w, 1, f.head())
	dst := make([]byte, 0, 20_000)
	check := func(what string, first moldcast.Seq) {
		v, _ := src.Lookup(s)
		if _, _, err := v.Append(dst, first, 100, 1452, true); err != nil {
			t.Fatal(err)
		}
		q := first
		run := func() {
			v, ok := src.Lookup(s)
			if !ok {
				t.Fatal("not served")
			}
			if _, head := v.Bounds(); q >= head {
				t.Fatal("beyond head")
			}
			if _, n, err := v.Append(dst, q, 100, 1452, false); n == 0 || err != nil {
				t.Fatal(q, n, err)
			}
			if q++; q > first+20 {
				q = first
			}
		}
		// The writer allocates at the same time: what is ours is in every round.
		n := testing.AllocsPerRun(200, run)
		for range 9 {
			n = min(n, testing.AllocsPerRun(200, run))
		}
		if n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	check("tail", f.head()-200)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("cache", 100)
}

// ever is longer than any machine needs for what comes to pass at all.
const ever = 5 * time.Minute

// within polls until ok, or fails after a time that no machine needs.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(ever); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

// What another process records is served as it is sealed: new segments, new
// sessions, new takes, without anybody asking for a refresh.
func TestSourceKeepsUp(t *testing.T) {
	f := feed{first: 1, n: 50_500}
	s1, s2 := testSession(t, "S1"), testSession(t, "S2")
	dir := filepath.Join(t.TempDir(), "archive")
	o := testOptions()
	o.MergeSaves = -1 // a merge rests for as long as others want the processor
	writing, reading := testArchiveWith(t, dir, o), testArchive(t, dir)
	src := NewSource(reading, nil, slog.New(slog.DiscardHandler))
	if err := src.Refresh(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { src.Run(ctx) })
	defer running.Wait()
	defer cancel()
	head := func(s moldcast.Session) moldcast.Seq {
		v, ok := src.Lookup(s)
		if !ok {
			return 0
		}
		_, h := v.Bounds()
		return h
	}

	w := testWriter(t, writing, "feed", s1, 0)
	f.write(t, w, 1, 50_000)
	within(t, "a sealed segment", func() bool { return head(s1) > 1 })
	f.write(t, w, 50_000, f.head())
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := head(s1); h > 50_000 {
		t.Fatalf("head %d: the open segment of another process is served", h)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "the last segment", func() bool { return head(s1) == f.head() })

	w = testWriter(t, writing, "feed", s2, 0)
	f.write(t, w, 1, 100)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "a new session", func() bool { return head(s2) == 100 })

	w = testWriter(t, writing, "feed", s1, 2)
	f.write(t, w, 1, 200)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "a new take", func() bool { return head(s1) == 200 })
}

// Lookups go on while sessions come and go.
func TestSourceConcurrency(t *testing.T) {
	f := feed{first: 1, n: 1000}
	a := testArchive(t, filepath.Join(t.TempDir(), "archive"))
	src := NewSource(a, nil, slog.New(slog.DiscardHandler))
	names := []moldcast.Session{testSession(t, "S1"), testSession(t, "S2"), testSession(t, "S3")}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				s := names[i%len(names)]
				v, ok := src.Lookup(s)
				if !ok {
					continue
				}
				first, head := v.Bounds()
				if first >= head {
					continue
				}
				got, n, err := v.Append(nil, head-1, 1, 1452, true)
				if err != nil || n != 1 {
					t.Errorf("%v %d: %d, %v", s, head-1, n, err)
					return
				}
				if want := f.message(nil, head-1); !bytes.Equal(got[moldcast.LengthSize:], want) {
					t.Errorf("%v %d: wrong bytes", s, head-1)
					return
				}
			}
		})
	}
	var writers sync.WaitGroup
	for _, s := range names {
		writers.Go(func() {
			for take := 1; take <= 3; take++ {
				w, err := a.Writer("feed", s, take)
				if err != nil {
					t.Error(err)
					return
				}
				src.Live(w.Ref(), w.View())
				f.write(t, w, 1, f.head())
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				src.Stored(w.Ref())
			}
		})
	}
	for range 5 {
		if err := src.Refresh(); err != nil {
			t.Error(err)
		}
	}
	writers.Wait()
	if err := src.Refresh(); err != nil {
		t.Error(err)
	}
	cancel()
	all.Wait()
	if n := src.Sessions(); n != len(names) {
		t.Errorf("%d sessions served", n)
	}
}

// lines hands out what is written to it, line by line.
type lines struct {
	*io.PipeWriter
	next func() map[string]any
}

func newLines(t *testing.T) lines {
	r, w := io.Pipe()
	d := json.NewDecoder(r)
	return lines{w, func() map[string]any {
		t.Helper()
		var m map[string]any
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		return m
	}}
}

// The command from its flags to its last event.
func TestRetransmitCommand(t *testing.T) {
	f := feed{first: 1, n: 2000, hole: moldcast.Range{First: 500, Next: 600}}
	s := testSession(t, "S1")
	dir := filepath.Join(t.TempDir(), "archive")
	a := testArchive(t, dir)
	for channel, to := range map[string]moldcast.Seq{"old": 100, "new": f.head()} {
		w := testWriter(t, a, channel, s, 0)
		f.write(t, w, 1, to)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out := newLines(t)
	var log bytes.Buffer
	e := &env{stdout: out, stderr: &log, log: slog.New(slog.DiscardHandler)}
	root := newRoot(e)
	root.SetArgs([]string{"retransmit", "--archive", dir, "--listen", "127.0.0.1:0", "--mtu", "1500", "--allow", "127.0.0.0/8"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	ready := out.next()
	if ready["event"] != "ready" || len(ready) != 2 {
		t.Fatalf("%v", ready)
	}
	addr, err := netip.ParseAddrPort(ready["retransmit"].(string))
	if err != nil || addr.Port() == 0 {
		t.Fatalf("%v: %v", ready, err)
	}
	c := newAsker(t, addr)
	c.random(f, s, f.head(), 100, 1)
	cancel()
	stopped := out.next()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if stopped["event"] != "stopped" || stopped["answered"] != 100.0 || stopped["unknown_session"] == 0.0 || stopped["kernel_dropped"] != 0.0 {
		t.Errorf("%v", stopped)
	}
	sum := 0.0
	for k, v := range stopped {
		switch k {
		case "event", "requests", "messages", "bytes", "cold", "kernel_dropped":
		default:
			sum += v.(float64)
		}
	}
	if sum != stopped["requests"] {
		t.Errorf("%v fates of %v requests: %v", sum, stopped["requests"], stopped)
	}
	for _, want := range []string{"several channels hold a session", "from=new/S1", "msg=serving"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("not said: %s\n%s", want, &log)
		}
	}
}
