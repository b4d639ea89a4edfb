package rejoin

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/soup"
)

type (
	seq     = moldcast.Seq
	rng     = moldcast.Range
	instant = moldcast.Instant
)

const ms = instant(time.Millisecond)

var name = moldcast.Session([]byte("REJOIN    "))

// body is message q of a session, different for each.
func body(session moldcast.Session, q seq) []byte {
	b := make([]byte, 8+q%29)
	binary.BigEndian.PutUint64(b, uint64(q))
	copy(b[8:], session[:])
	return b
}

// upstream is a recovery server in virtual time.
type upstream struct {
	session moldcast.Session
	first   seq
	head    func() seq // how far it is
	ended   bool
	holes   gap.Set // for good
	gaps    gap.Set // as yet
	rate    int     // messages a ms
	down    bool
	code    soup.Code
	other   bool // other bytes from otherAt on
	otherAt seq
	dieAt   seq   // the connection breaks before it; 0: never
	snaps   []seq // where snapshots are, the oldest first; nil: none
	broken  int   // so many of these break off
	logins  []seq
	asked   []seq // logins for a snapshot
	up      *uplink
}

// state is the snapshot at a sequence.
func state(q seq) []byte {
	b := make([]byte, 1+int(q%200_000))
	for i := range b {
		b[i] = byte(uint64(i) * uint64(q))
	}
	return b
}

// uplink is a connection to one.
type uplink struct {
	u    *upstream
	id   uint64
	m    *soup.Server
	in   []byte // on its way to the client
	said seq    // the gap that was told
	snap []byte // is to follow A

	began seq // what was accepted
	dead  bool
}

// world is a receiver, the line it hears and the servers it has, in steps of a
// millisecond of virtual time.
type world struct {
	t    fataler
	now  instant
	r    *moldcast.Receiver
	m    *Machine
	up   []*upstream
	conn *uplink
	rand *rand.Rand

	session moldcast.Session
	first   seq // of the session
	next    seq // that is published next
	rate    int // packets a ms
	loss    float64
	mute    bool // the line is down
	end     bool // has ended

	at        seq // that is to be delivered next
	delivered uint64
	lost      []rng
	taker     *taker
	endAt     seq
	notices   []Notice
	asked     int
}

type setup struct {
	from     seq
	first    seq
	next     seq
	servers  int
	requests int
	buffer   uint64
	config   Config
	seed     uint64
	budget   time.Duration
	session  bool // it is named
	snapshot bool
	most     seq // of it
}

// fataler is of testing and of rapid.
type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func newWorld(t fataler, s setup) *world {
	w := &world{t: t, now: 1, session: name, first: max(s.first, 1), rate: 1, rand: rand.New(rand.NewPCG(s.seed, 1))}
	w.next = max(s.next, w.first)
	w.at = s.from
	c := moldcast.ReceiverConfig{
		From: s.from, Ordered: true, Recovery: true, BufferMessages: s.buffer,
		Gap: gap.Config{Servers: s.requests, Budget: max(s.budget, 10*time.Second)},
		OnMessage: func(q seq, data []byte) {
			if w.at == 0 {
				w.at = q
			}
			if q != w.at {
				t.Fatalf("message %d, want %d", q, w.at)
			}
			if string(data) != string(body(w.session, q)) {
				t.Fatalf("message %d has other bytes", q)
			}
			w.at++
			w.delivered++
		},
		OnLost: func(r rng) {
			if r.First != w.at {
				t.Fatalf("lost %v at %d", r, w.at)
			}
			w.at = r.Next
			w.lost = append(w.lost, r)
		},
		OnEnd: func(q seq) { w.endAt = q },
	}
	if s.session {
		c.Session = &name
	}
	r, err := moldcast.NewReceiver(c)
	if err != nil {
		t.Fatal(err)
	}
	w.r = r
	s.config.Servers = max(s.servers, 1)
	s.config.Requests = time.Duration(s.requests) * 5 * time.Second
	if s.snapshot {
		w.taker = &taker{w: w}
		s.config.Snapshot, s.config.SnapshotAt = w.taker, s.most
	}
	if w.m, err = New(s.config, r); err != nil {
		t.Fatal(err)
	}
	for range s.config.Servers {
		w.up = append(w.up, &upstream{session: name, first: w.first, rate: 200, head: func() seq { return w.next }})
	}
	return w
}

// step is a millisecond.
func (w *world) step() {
	w.now += ms
	for range w.rate {
		w.publish()
	}
	if w.now/ms%50 == 0 {
		count := uint16(0)
		if w.end {
			count = moldcast.EndCount
		}
		w.line(moldcast.AppendHeader(nil, w.session, w.next, count))
	}
	for _, u := range w.up {
		w.serve(u)
	}
	w.poll()
	w.check()
}

// publish sends a packet of 1 to 5 messages, unless the line loses it.
func (w *world) publish() {
	if w.end {
		return
	}
	n := 1 + w.rand.IntN(5)
	n = int(min(uint64(n), uint64(^seq(0)-w.next)))
	if n == 0 {
		return
	}
	b := moldcast.AppendHeader(nil, w.session, w.next, uint16(n))
	for range n {
		b = moldcast.AppendMessage(b, body(w.session, w.next))
		w.next++
	}
	w.line(b)
}

func (w *world) line(b []byte) {
	if w.mute || w.rand.Float64() < w.loss {
		return
	}
	w.r.Offer(w.now, 0, b)
	w.poll()
}

// serve lets a server send, and a client's bytes arrive.
func (w *world) serve(u *upstream) {
	c := u.up
	if c == nil {
		return
	}
	if u.down || c.dead {
		c.dead = true
		if len(c.in) == 0 {
			u.up = nil
			w.m.Broken(w.now, c.id, errors.New("connection reset"))
		} else {
			w.bytes(c)
		}
		return
	}
	_ = c.m.Poll(w.now)
	c.in = append(c.in, c.m.Output(w.now)...)
	c.in = append(c.in, c.snap...)
	if len(c.snap) > 0 && u.broken > 0 {
		u.broken--
		c.dead = true
		c.in = c.in[:len(c.in)-len(c.snap)/2]
	}
	if c.snap = nil; c.dead {
		return
	}
	if c.m.Serving() && len(c.in) < 64<<10 {
		w.stream(c)
	}
	c.in = append(c.in, c.m.Output(w.now)...)
	if c.m.Closing() {
		c.dead = true
	}
	w.bytes(c)
}

func (w *world) stream(c *uplink) {
	u := c.u
	for range u.rate {
		q := c.m.Next()
		if q >= u.head() {
			if u.ended {
				c.m.End()
			}
			return
		}
		if part, held := u.holes.Cut(rng{First: q, Next: u.head()}); held {
			c.m.Hole(part)
			return
		}
		if part, held := u.gaps.Cut(rng{First: q, Next: u.head()}); held {
			if c.said != q {
				c.said = q
				c.m.Gap(part)
			}
			return
		}
		if u.dieAt != 0 && q >= u.dieAt && c.began < u.dieAt {
			u.dieAt = 0
			c.dead = true
			return
		}
		data := body(u.session, q)
		if u.other && q >= u.otherAt {
			data[0] ^= 0x55
		}
		c.in, _ = soup.AppendData(c.in, moldcast.MessagesOf(moldcast.AppendMessage(nil, data), 1))
		c.m.Sent(w.now, 1)
	}
}

// bytes lets what is on its way arrive, in pieces.
func (w *world) bytes(c *uplink) {
	for len(c.in) > 0 {
		k := min(len(c.in), 1+w.rand.IntN(9000))
		n := w.m.Receive(w.now, c.id, c.in[:k])
		c.in = c.in[n:]
		w.poll()
		if n < k || c.u.up != c {
			return
		}
	}
}

func (w *world) poll() {
	for n := 0; ; n++ {
		if n > 1000 {
			w.t.Fatal("Poll does not end")
		}
		a, ok := w.m.Poll(w.now)
		if !ok {
			break
		}
		switch a.Do {
		case Dial:
			if w.conn != nil {
				w.t.Fatal("a second connection")
			}
			w.dial(a)
		case Close:
			if w.conn != nil && w.conn.id == a.Conn {
				w.conn.u.up = nil
				w.conn = nil
			}
		}
	}
	if c := w.conn; c != nil {
		w.send(c, w.m.Output(w.now, c.id))
	}
	for n, ok := w.m.Notice(); ok; n, ok = w.m.Notice() {
		w.notices = append(w.notices, n)
	}
	for {
		_, _, ok := w.r.Poll(w.now)
		if !ok {
			break
		}
		w.asked++
	}
	if d := w.m.Deadline(); d <= w.now && w.m.conn.rest.Len() == 0 {
		w.t.Fatalf("deadline %v at %v", d, w.now)
	}
}

func (w *world) dial(a Action) {
	u := w.up[a.Server]
	if u.down {
		w.m.Broken(w.now, a.Conn, errors.New("connection refused"))
		return
	}
	c := &uplink{u: u, id: a.Conn, m: soup.NewServer(w.now)}
	u.up, w.conn = c, c
	w.m.Connected(w.now, a.Conn)
}

// send is what the client sends.
func (w *world) send(c *uplink, b []byte) {
	for len(b) > 0 {
		n, login, err := c.m.Receive(w.now, b)
		b = b[n:]
		if err != nil {
			w.t.Fatal(err)
		}
		if login == nil {
			continue
		}
		u := c.u
		if login.WantsSnapshot() {
			w.sendSnapshot(c, login.Seq)
			continue
		}
		u.logins = append(u.logins, login.Seq)
		switch {
		case u.code != 0:
			c.m.Reject(u.code)
		case login.Session != u.session:
			c.m.Reject(soup.SessionNotAvailable)
		default:
			q := min(max(login.Seq, u.first), u.head())
			if part, held := u.holes.Cut(rng{First: q, Next: u.head()}); held {
				q = part.Next
			}
			c.began = q
			c.m.Accept(u.session, q)
		}
	}
}

func (w *world) sendSnapshot(c *uplink, most seq) {
	u := c.u
	u.asked = append(u.asked, most)
	if u.code != 0 {
		c.m.Reject(u.code)
		return
	}
	at := seq(0)
	for _, q := range u.snaps {
		if most == 0 || q <= most {
			at = q
		}
	}
	if at == 0 {
		c.began = u.first
		c.m.Accept(u.session, u.first)
		c.snap = soup.AppendSnapshot(nil, soup.SnapshotPacket{Kind: soup.SnapshotNone})
		return
	}
	c.began = at
	c.m.Accept(u.session, at)
	b := state(at)
	size := uint64(len(b))
	c.snap = soup.AppendSnapshot(nil, soup.SnapshotPacket{Kind: soup.SnapshotBegin, Seq: at, Size: size, Sum: sha256.Sum256(b)})
	for done := uint64(0); len(b) > 0; {
		k := min(len(b), 5000)
		c.snap = soup.AppendSnapshot(c.snap, soup.SnapshotPacket{Kind: soup.SnapshotData, At: done, Data: b[:k]})
		b, done = b[k:], done+uint64(k)
	}
	c.snap = soup.AppendSnapshot(c.snap, soup.SnapshotPacket{Kind: soup.SnapshotEnd, Size: size})
}

// taker takes the snapshot of a world.
type taker struct {
	w     *world
	seq   seq
	size  uint64
	got   []byte
	begun int
	taken seq
	err   error
}

func (k *taker) Begin(q seq, size uint64) error {
	k.seq, k.size, k.got = q, size, nil
	k.begun++
	return k.err
}

func (k *taker) Write(b []byte) error {
	k.got = append(k.got, b...)
	return nil
}

func (k *taker) Done() error {
	if k.taken != 0 || uint64(len(k.got)) != k.size || string(k.got) != string(state(k.seq)) {
		k.w.t.Fatalf("snapshot at %d: %d bytes of %d, taken before at %d", k.seq, len(k.got), k.size, k.taken)
	}
	if k.w.delivered != 0 || k.w.lost != nil {
		k.w.t.Fatal("delivery began before the snapshot")
	}
	k.taken, k.w.at = k.seq, k.seq
	return nil
}

// check is what always holds.
func (w *world) check() {
	st := w.r.Stats()
	if st.Received != st.Delivered+st.Duplicates+st.Stale+st.Unasked+st.Dropped+st.Buffered {
		w.t.Fatalf("messages are not conserved: %+v", st)
	}
	if st.Delivered != w.delivered {
		w.t.Fatalf("%d delivered, %d counted", w.delivered, st.Delivered)
	}
	var lost uint64
	for _, r := range w.lost {
		lost += r.Len()
	}
	if st.Lost < lost {
		w.t.Fatalf("%d lost, %d counted", lost, st.Lost)
	}
}

// until steps until ok, at most for d.
func (w *world) until(d time.Duration, what string, ok func() bool) {
	w.t.Helper()
	for limit := w.now + instant(d); !ok(); w.step() {
		if w.now > limit {
			w.t.Fatalf("%s: not after %v: at %d of %d, stats %+v %+v, want %v, notices %s", what, d, w.at, w.next, w.r.Stats(), w.m.Stats(), w.m.want, w.said())
		}
	}
}

func (w *world) run(d time.Duration) {
	for limit := w.now + instant(d); w.now < limit; {
		w.step()
	}
}

// live is that all that was published but the newest is delivered.
func (w *world) live() bool { return w.at+20 >= w.next && w.m.want.Empty() }

// finish ends the session, and waits until it is over.
func (w *world) finish(d time.Duration) {
	w.t.Helper()
	w.end = true
	for _, u := range w.up {
		u.ended = true
	}
	w.until(d, "the end", func() bool { return w.endAt != 0 })
	if w.endAt != w.next || w.at != w.next {
		w.t.Fatalf("ended at %d, delivered up to %d, want %d", w.endAt, w.at, w.next)
	}
	w.run(50 * time.Millisecond)
	if w.conn != nil {
		w.t.Fatal("the connection stays open after the end")
	}
}

func (w *world) said() string {
	s := ""
	for _, n := range w.notices {
		s += fmt.Sprintf("\n  %d: server %d %v messages %d after %v %v %s", n.Kind, n.Server, n.Range, n.Messages, n.After, n.Err, n.Text)
	}
	return s
}

func (w *world) count(k NoticeKind) (n int) {
	for _, o := range w.notices {
		if o.Kind == k {
			n++
		}
	}
	return n
}
