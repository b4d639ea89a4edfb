package main

import (
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// narrow forwards connections to an address that may change, at most so many
// bytes a second from there, and none once what was allowed is used up.
type narrow struct {
	t    *testing.T
	l    net.Listener
	rate int

	mu      sync.Mutex
	to      string
	left    int // bytes
	allowed sync.Cond
}

// unlimited is more than there is.
const unlimited = 1 << 40

func newNarrow(t *testing.T, rate int) *narrow {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &narrow{t: t, l: l, rate: rate, left: unlimited}
	n.allowed.L = &n.mu
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); n.allow(unlimited); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { n.forward(in) })
		}
	})
	return n
}

func (n *narrow) forward(in net.Conn) {
	defer in.Close()
	n.mu.Lock()
	to := n.to
	n.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		defer out.Close()
		b := make([]byte, 4096)
		for {
			k, err := in.Read(b)
			if err != nil {
				return
			}
			if _, err := out.Write(b[:k]); err != nil {
				return
			}
		}
	}()
	b := make([]byte, 16<<10)
	for {
		k, err := out.Read(b)
		if err != nil {
			return
		}
		n.take(k)
		if _, err := in.Write(b[:k]); err != nil {
			return
		}
		<-time.After(time.Duration(float64(k) / float64(n.rate) * 1e9))
	}
}

// allow lets so many bytes more through, about, from now on.
func (n *narrow) allow(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left = bytes
	n.allowed.Broadcast()
}

// more lets so many bytes more through if nothing is left of what was allowed.
func (n *narrow) more(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.left == 0 {
		n.left = bytes
		n.allowed.Broadcast()
	}
}

func (n *narrow) take(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.left == 0 {
		n.allowed.Wait()
	}
	n.left = max(0, n.left-bytes)
}

func (n *narrow) set(to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.to = to
}

// feedNodes sends one stream on both lines of every node.
type feedNodes struct {
	mu    sync.Mutex
	lines map[string][]*net.UDPConn
	next  moldcast.Seq
	end   bool
}

func (f *feedNodes) run(src *source, stop <-chan struct{}) {
	p := pacer{rate: 15_000}
	f.next = 1
	for {
		select {
		case <-stop:
			return
		default:
		}
		f.mu.Lock()
		b := moldcast.AppendHeader(nil, session, f.next, moldcast.EndCount)
		if !f.end {
			b = packet(f.next, f.next+10)
			f.next += 10
			src.published(f.next)
		}
		for _, lines := range f.lines {
			for _, l := range lines {
				_, _ = l.Write(b) // refused while nobody listens
			}
		}
		ended := f.end
		next := f.next
		f.mu.Unlock()
		if ended {
			<-time.After(50 * time.Millisecond)
			continue
		}
		p.wait(next)
	}
}

func (f *feedNodes) head() moldcast.Seq {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next
}

// A node that starts when the sender has long forgotten the beginning, and a
// peer that has all of it, over a slow connection: kill -9 of the node in the
// middle, then of the peer, while both lines go on. The node ends with the
// complete session; so does the peer, which fetches what it missed from the
// node.
func TestLateNodeIsComplete(t *testing.T) {
	dirs := map[string]string{"early": t.TempDir(), "late": t.TempDir()}
	src := newSource(t, 2000, 0)
	feed := &feedNodes{lines: map[string][]*net.UDPConn{}}
	rate := long(200_000, 300_000)
	toEarly, toLate := newNarrow(t, rate), newNarrow(t, rate)
	lines := map[string][]any{}
	start := func(name string, peer, of *narrow) (*proc, string) {
		args := []string{"capture", "--rerequest", src.addr(), "--recovery-listen", "127.0.0.1:0", "--recovery", peer.l.Addr().String(),
			"--recovery-threshold", "1000", "--nak-budget", "1h", "--http", "127.0.0.1:0", "--sync", "20ms", "--log-level", "warn"}
		if lines[name] == nil {
			lines[name] = []any{"127.0.0.1:0", "127.0.0.2:0"}
		}
		for _, l := range lines[name] {
			args = append(args, "--line", l.(string))
		}
		p := moldtape(t, dirs[name], args...)
		ready := p.event("ready")
		lines[name] = ready["channels"].([]any)[0].(map[string]any)["lines"].([]any)
		of.set(ready["recovery"].(string))
		var conns []*net.UDPConn
		for _, l := range lines[name] {
			conns = append(conns, dial(t, l.(string)))
		}
		feed.mu.Lock()
		feed.lines[name] = conns
		feed.mu.Unlock()
		return p, ready["http"].(string)
	}
	early, earlyHTTP := start("early", toLate, toEarly)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { defer close(stopped); feed.run(src, stop) }()
	defer func() { close(stop); <-stopped }()
	channel := func(http string) map[string]any {
		return httpStatus(t, http)["channels"].([]any)[0].(map[string]any)
	}
	// what is left of the beginning, and how much a stream has brought of it.
	recovering := func(http string) (left, got int) {
		for _, r := range channel(http)["recovering"].([]any) {
			r := r.(map[string]any)
			return num(t, r, "last_seq") - num(t, r, "first_seq") + 1, num(t, r, "messages")
		}
		return 0, 0
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(hang); !ok(); <-time.After(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not %s: early %v\nlate %v", what, channel(earlyHTTP), "")
			}
		}
	}
	wait("sent enough", func() bool { return feed.head() > 30_000 })
	const part = 150_000 // bytes: it stays in the middle until it is killed
	toEarly.allow(part)
	late, lateHTTP := start("late", toEarly, toLate)
	middle := func() bool {
		left, got := recovering(lateHTTP)
		if got > 1000 && left > 5000 {
			return true
		}
		toEarly.more(part) // a connection that is dead took some, or what was sent while the node was
		return false
	}
	wait("in the middle of it", middle)
	late.signal(syscall.SIGKILL)
	late.exit(-1)
	toEarly.allow(part)
	late, lateHTTP = start("late", toEarly, toLate)

	wait("in the middle of it again", middle)
	early.signal(syscall.SIGKILL)
	early.exit(-1)
	toEarly.allow(unlimited)
	from := feed.head()
	wait("sent more", func() bool { return feed.head() > from+5000 })
	early, earlyHTTP = start("early", toLate, toEarly)

	whole := func(http string) bool {
		for _, s := range channel(http)["sessions"].([]any) {
			s := s.(map[string]any)
			return num(t, s, "first_seq") == 1 && num(t, s, "next_seq")+5000 > int(feed.head())
		}
		return false
	}
	wait("the late node whole", func() bool { return whole(lateHTTP) })
	wait("the early node whole", func() bool { return whole(earlyHTTP) })
	feed.mu.Lock()
	feed.end = true
	feed.mu.Unlock()
	ended := func(http string) bool {
		s := channel(http)["sessions"].([]any)
		return len(s) == 1 && s[0].(map[string]any)["state"] == "ended" && num(t, s[0].(map[string]any), "durable_seq") == int(feed.head())
	}
	wait("both ended", func() bool { return ended(lateHTTP) && ended(earlyHTTP) })
	var roots []string
	for name, p := range map[string]*proc{"early": early, "late": late} {
		p.signal(syscall.SIGTERM)
		s := p.event("stopped")
		p.exit(0)
		if num(t, s, "messages_lost") != 0 || num(t, s, "holes") != 0 || num(t, s, "messages_streamed") == 0 || num(t, s, "conflicts") != 0 {
			t.Errorf("%s: %v", name, s)
		}
		run(t, dirs[name], 0, "verify")
		roots = append(roots, run(t, dirs[name], 0, "verify", "--root"))
	}
	if roots[0] != roots[1] || roots[0] == "" {
		t.Errorf("the archives differ:\n%s\n%s", roots[0], roots[1])
	}
}
