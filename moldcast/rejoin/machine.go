package rejoin

import (
	"errors"
	"fmt"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// Defaults of Config.
const (
	DefaultThreshold = 10_000
	DefaultBudget    = time.Minute

	DefaultSnapshotBytes = 1 << 30
	DefaultSnapshotTries = 20
)

const (
	stuckAfter  = moldcast.Instant(2 * time.Second)       // a gap that requests have not filled is fetched
	scanEvery   = moldcast.Instant(20 * time.Millisecond) // that gaps are looked at
	lingerFor   = moldcast.Instant(time.Second)           // a stream is read on without being of use
	muteAfter   = moldcast.Instant(10 * time.Second)      // without a message that is missing a server is of no use
	proofAfter  = moldcast.Instant(time.Second)           // without a message a server cannot be proven yet
	lackFor     = moldcast.Instant(30 * time.Second)      // a server is not asked again for a hole of it
	liarFor     = time.Minute                             // after other bytes than heard
	refusedFor  = 30 * time.Second                        // after "not authorised"
	quietAfter  = moldcast.Instant(3 * time.Second)       // three heartbeats: the lines are silent
	backoffMin  = 100 * time.Millisecond                  // after a failure, doubled each time, with jitter ×[0.5,1.5] …
	backoffMax  = 10 * time.Second                        // … up to this
	outFor      = moldcast.Instant(15 * time.Second)      // failing for so long, or so long a time before the next try: the server cannot be asked
	readOn      = 10_000                                  // messages that are read on over rather than logging in again
	disorder    = 1000                                    // messages that may be mere disorder before they settle
	maxLacks    = 1024                                    // ranges that a server is remembered to lack
	maxNotices  = 64
	noticeEvery = moldcast.Instant(10 * time.Second) // of failures of one server
	maxSaid     = 3                                  // debug packets of a connection that are noticed
	maxServers  = 64
)

// Why a stream is left.
var (
	ErrBehind  = errors.New("the server has not come that far")
	ErrOther   = errors.New("the server holds other messages under the same numbers")
	ErrMute    = errors.New("the server sends nothing that is missing")
	ErrWaiting = errors.New("the server waits for what is missing itself")
)

// Config configures a Machine.
type Config struct {
	Servers int // 1..64

	// Threshold is how many messages a gap has at most that is left to requests
	// at first. 0: every gap is fetched, as is right where there is nobody to ask.
	Threshold uint64

	// Requests is how long request servers are asked for what is a hole of all
	// streams, before it is lost. 0: there are none.
	Requests time.Duration

	// Budget is how long the streams may bring nothing that is missing before it
	// is left to requests, and lost in the end (1m).
	Budget time.Duration

	User, Password string // of a login; at most 6 (with Snapshot: 5) and 10 bytes

	// Snapshot, where not nil, has delivery begin with a snapshot: see Snapshot.
	// The Receiver's From is 1, it is ordered, and nothing was offered to it yet.
	Snapshot      Snapshot
	SnapshotAt    moldcast.Seq // the newest at or before this; 0: the newest
	SnapshotBytes uint64       // a larger one is not taken; default 1 GiB
	SnapshotTries int          // failures, of all servers, after which there is an error; default 20

	Seed uint64 // of jitter, and of which server is the first
}

// EnsureDefaults sets what is zero to its default; Threshold has none.
func (c *Config) EnsureDefaults() {
	if c.Budget == 0 {
		c.Budget = DefaultBudget
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = DefaultSnapshotBytes
	}
	if c.SnapshotTries == 0 {
		c.SnapshotTries = DefaultSnapshotTries
	}
}

// Validate reports what a Machine cannot work with, after EnsureDefaults.
func (c *Config) Validate() error {
	l := soup.Login{User: c.User, Password: c.Password}
	switch {
	case c.Servers < 1 || c.Servers > maxServers:
		return fmt.Errorf("rejoin: %d servers: want 1..%d", c.Servers, maxServers)
	case c.Requests < 0:
		return fmt.Errorf("rejoin: time for requests %v: want 0 or more", c.Requests)
	case c.Budget <= 0:
		return fmt.Errorf("rejoin: budget %v: want more than 0", c.Budget)
	case c.Snapshot != nil && len(c.User) > soup.MaxSnapshotName:
		return fmt.Errorf("rejoin: user %q: want at most %d bytes to ask for a snapshot", c.User, soup.MaxSnapshotName)
	case c.SnapshotTries < 1:
		return fmt.Errorf("rejoin: %d tries for a snapshot: want at least 1", c.SnapshotTries)
	}
	return l.Validate()
}

// Do is what a Machine has the shell do.
type Do uint8

// What there is to do.
const (
	Dial  Do = iota + 1 // Conn to Server: Connected or Broken says how it went
	Close               // Conn, after Bytes were sent; nothing more is heard of it
)

// Action is one thing to do.
type Action struct {
	Do     Do
	Conn   uint64 // counts from 1, never used again
	Server int
	Bytes  []byte // of Close: the last that is sent, if that is possible at once
}

// NoticeKind is what a Notice tells.
type NoticeKind uint8

// The kinds of a Notice.
const (
	Fetching   NoticeKind = iota + 1 // Range is fetched from Server
	Joined                           // nothing is missing that is to be fetched: Messages were, of Server
	Failed                           // Err; Server is left alone for After
	HasHole                          // Server lacks Range for good
	Waits                            // Server lacks Range as yet
	Lost                             // Range, which no server has
	Differs                          // message Range.First of Server is another than heard
	Said                             // Text
	Snapped                          // the snapshot at Range.First was taken; delivery begins there
	Unsnapped                        // no server has one; delivery begins at Range.First
	Unfollowed                       // by the message at Range.First; another snapshot is asked for
	SpentAll                         // Budget: Range is left to requests, or lost
)

// Notice is something that a log may want to tell.
type Notice struct {
	Kind     NoticeKind
	Server   int
	Range    moldcast.Range
	Messages uint64
	After    time.Duration
	Err      error
	Text     string
}

// Stats are a Machine's totals.
type Stats struct {
	Connections uint64 // that were made
	Reconnects  uint64 // of these, after one that broke off or could not be had
	Failures    uint64 // of connections, and to connect
	Conflicts   uint64 // messages of servers that were other than those heard
	Holes       uint64 // ranges that servers lacked for good

	Snapshot         moldcast.Seq // where that which was taken is; 0: none was
	SnapshotRestarts uint64       // snapshots that the next message did not follow
}

// Machine fetches what a Receiver lacks. It is owned by the Receiver's owner,
// and may call it. After everything that came from the lines, from a
// connection or by time, call Poll until it has nothing more, before the
// Receiver's Poll.
type Machine struct {
	c Config
	r *moldcast.Receiver

	servers []server
	turn    int
	conn    conn
	id      uint64 // of the latest connection
	closing uint64 // to be closed; 0: none
	bye     []byte

	want     moldcast.Range   // what is to be fetched, from the lowest that is missing
	progress moldcast.Instant // when something of it came, or it went missing
	spent    bool             // Budget
	leftAt   moldcast.Seq     // that no server has, and is left to requests …
	leftTill moldcast.Instant // … up to then
	scanAt   moldcast.Instant
	broken   bool // since the last connection was made
	fetching bool // was noticed
	brought  uint64

	began   moldcast.Instant // the first Poll
	polled  bool
	quiet   bool // the lines are silent: what the servers have is all there is to know
	snap    snapping
	notices []Notice
	stats   Stats
	rand    gap.Random
}

// server is what is known of one.
type server struct {
	fails    int              // in a row …
	failing  moldcast.Instant // … since then
	idle     int              // connections in a row that brought nothing
	retryAt  moldcast.Instant
	noticeAt moldcast.Instant
	lacks    gap.Set
	until    moldcast.Instant // that holds
	compared bool             // there was an attempt to prove it
	proven   bool             // it has what was heard
	noSnap   bool             // it has no snapshot
}

// conn is the connection.
type conn struct {
	state  connState
	told   bool // the shell was told to dial
	id     uint64
	server int
	client *soup.Client
	from   moldcast.Seq     // the login's
	snaps  bool             // it begins with a snapshot, which is not taken yet
	proves bool             // it only compares
	proof  moldcast.Range   // what is left of that
	last   moldcast.Instant // when something of use came
	got    uint64           // messages that were missing
	waits  moldcast.Range   // what the server waits for
	linger moldcast.Instant // when it is left; 0: it is fetching
	said   int

	// What came and waits for the lines to show that it exists.
	rest moldcast.Messages
	at   moldcast.Seq
	then soup.Event
	err  error
}

type connState uint8

const (
	idle connState = iota
	dialing
	open
)

// New makes a Machine for r, which was configured for Recovery. The error is
// Config.Validate's.
func New(c Config, r *moldcast.Receiver) (*Machine, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Machine{c: c, r: r, servers: make([]server, c.Servers), rand: gap.Random(c.Seed)}
	m.turn = int(m.rand.Next() % uint64(c.Servers))
	if c.Snapshot != nil {
		m.snap.wanted = true
		r.Hold(0, true)
	}
	return m, nil
}

// Stats is a copy.
func (m *Machine) Stats() Stats { return m.stats }

// Notice hands out what there is to tell; call it until it says false.
func (m *Machine) Notice() (Notice, bool) {
	if len(m.notices) == 0 {
		return Notice{}, false
	}
	n := m.notices[0]
	m.notices = m.notices[:copy(m.notices, m.notices[1:])]
	return n, true
}

func (m *Machine) tell(n Notice) {
	if len(m.notices) < maxNotices {
		m.notices = append(m.notices, n)
	}
}

// Poll says what to do next; call it until it says false.
func (m *Machine) Poll(now moldcast.Instant) (Action, bool) {
	if !m.polled {
		m.began, m.polled = now, true
	}
	m.look(now)
	if m.closing != 0 {
		a := Action{Do: Close, Conn: m.closing, Bytes: m.bye}
		m.closing, m.bye = 0, nil
		return a, true
	}
	if m.conn.state == dialing && !m.conn.told {
		m.conn.told = true
		return Action{Do: Dial, Conn: m.conn.id, Server: m.conn.server}, true
	}
	return Action{}, false
}

// Deadline is when Poll may have something, unless something comes first.
func (m *Machine) Deadline() moldcast.Instant {
	d := gap.Never
	if m.closing != 0 || m.conn.state == dialing && !m.conn.told {
		return 0
	}
	if m.r.Done() || m.snap.err != nil {
		return d
	}
	if m.missing() || m.snap.wanted && m.named() && m.conn.state == idle {
		d = m.scanAt
	}
	if m.named() && m.polled {
		switch at := m.quietAt(); m.conn.state {
		case idle:
			d = min(d, max(at, m.ready()))
		case open:
			if m.conn.rest.Len() > 0 && !m.quiet {
				d = min(d, at)
			}
		}
	}
	if c := &m.conn; c.state == open {
		d = min(d, c.client.Deadline())
		switch {
		case c.snaps:
			d = min(d, c.last+muteAfter)
		case c.proves:
			d = min(d, c.last+proofAfter)
		case c.linger != 0:
			d = min(d, c.linger)
		case c.waits.Empty():
			d = min(d, c.last+muteAfter)
		}
	}
	return d
}

// quietAt is from when on the lines are silent, if nothing comes.
func (m *Machine) quietAt() moldcast.Instant {
	at := m.began
	if heard, any := m.r.Heard(); any {
		at = max(at, heard)
	}
	return at + quietAfter
}

// ready is when the first server may be asked for what comes next.
func (m *Machine) ready() moldcast.Instant {
	first, at := m.first(), gap.Never
	for i := range m.servers {
		s := &m.servers[i]
		ready := s.retryAt
		if s.lacks.Contains(first) {
			ready = max(ready, s.until)
		}
		at = min(at, ready)
	}
	return at
}

// missing reports whether anything is, of a session that is known.
func (m *Machine) missing() bool { return m.named() && m.r.Next() < m.r.Head() }

// named reports whether the session is known, and has begun.
func (m *Machine) named() bool {
	_, named := m.r.Session()
	return named && m.r.Head() != 0
}

// look does what is due.
func (m *Machine) look(now moldcast.Instant) {
	if m.r.Done() || m.snap.err != nil {
		m.want = moldcast.Range{}
		m.leave(now)
		return
	}
	m.quiet = m.named() && now >= m.quietAt()
	m.feed(now)
	if now >= m.scanAt {
		m.scan(now)
	}
	m.watch(now)
	if m.conn.state == idle && m.closing == 0 && (!m.want.Empty() || m.snap.wanted && m.named() || m.quiet) {
		m.choose(now)
	}
}

// scan looks what is to be fetched, and reserves that.
func (m *Machine) scan(now moldcast.Instant) {
	had := !m.want.Empty()
	m.want = moldcast.Range{}
	if m.snap.wanted {
		m.scanAt = now + scanEvery
	}
	if m.missing() {
		m.scanAt = now + scanEvery
		m.want = m.pick(now)
	}
	switch {
	case m.want.Empty():
		m.r.Reserve(now, moldcast.Range{})
		if m.fetching {
			m.tell(Notice{Kind: Joined, Messages: m.brought})
			m.fetching, m.brought = false, 0
		}
		return
	case !had:
		m.progress, m.spent = now, false
	}
	if !m.spent && now-m.progress >= moldcast.Instant(m.c.Budget) {
		m.spent = true
		m.tell(Notice{Kind: SpentAll, Range: m.want, After: m.c.Budget})
	}
	r := m.want
	switch {
	case m.spent:
		r = moldcast.Range{}
	case m.c.Requests > 0:
		r.First = m.left(now, r).Next
	default:
		if hole := m.lacked(now, r); !hole.Empty() {
			m.lose(now, hole)
			r.First = hole.Next
		}
		if !r.Empty() {
			r.Next = ^moldcast.Seq(0) // nothing else brings what is missing above either: it waits for its turn
		}
	}
	m.r.Reserve(now, r)
}

// left is the beginning of r that is left to requests, since no server has it;
// once their time is over it is lost.
func (m *Machine) left(now moldcast.Instant, r moldcast.Range) moldcast.Range {
	r = m.lacked(now, r)
	switch {
	case r.Empty():
		m.leftAt = 0
	case m.leftAt != r.First:
		m.leftAt, m.leftTill = r.First, now+moldcast.Instant(m.c.Requests)
	case now >= m.leftTill:
		m.lose(now, r)
	}
	return r
}

func (m *Machine) lose(now moldcast.Instant, r moldcast.Range) {
	m.tell(Notice{Kind: Lost, Range: r})
	m.r.Lose(now, r)
	m.progress = now
}

// pick is what is to be fetched: up to the end of the lowest gap that is worth
// it. What is delivered in order is fetched from the lowest that is missing.
func (m *Machine) pick(now moldcast.Instant) (want moldcast.Range) {
	var run moldcast.Range // gaps that adjoin
	stuck := false
	settle := func() bool {
		if run.Empty() || run.Len() <= m.c.Threshold && !stuck {
			return false
		}
		want = run
		return true
	}
	done := false
	m.r.Gaps(func(g gap.Gap) bool {
		if !g.Settled && g.Len() <= max(m.c.Threshold, disorder) {
			return true
		}
		old := now-g.Opened >= stuckAfter
		if !run.Empty() && g.First == run.Next {
			run.Next, stuck = g.Next, stuck || old
			return true
		}
		if done = settle(); done {
			return false
		}
		run, stuck = g.Range, old
		return true
	})
	if !done {
		done = settle()
	}
	if done && m.r.Ordered() {
		want.First = m.r.Next()
	}
	return want
}

// lacked is the beginning of r that every server lacks for good; empty where
// one may have it. One that could not be asked for outFor, or half the budget, has
// no say: it must not hold up what is behind a hole. Until then it may be one that
// is started anew.
func (m *Machine) lacked(now moldcast.Instant, r moldcast.Range) moldcast.Range {
	none := moldcast.Range{First: r.First, Next: r.First}
	known := false
	out := min(outFor, moldcast.Instant(m.c.Budget/2))
	for i := range m.servers {
		s := &m.servers[i]
		part, lacks := s.lacks.Cut(r)
		switch {
		case lacks:
			r, known = part, true
		case (s.fails == 0 || now-s.failing < out) && s.retryAt-now < outFor:
			return none
		}
	}
	if !known {
		return none
	}
	return r
}

// choose dials the next server that may have what is wanted.
func (m *Machine) choose(now moldcast.Instant) {
	first := m.first()
	for k := range m.servers {
		i := (m.turn + k) % len(m.servers)
		s := &m.servers[i]
		if s.lacks.Len() > 0 && now >= s.until {
			s.lacks.Clear()
		}
		if now < s.retryAt || s.lacks.Contains(first) || m.snap.wanted && s.noSnap {
			continue
		}
		m.turn = i
		m.id++
		m.conn = conn{state: dialing, id: m.id, server: i, last: now}
		return
	}
}

// first is the lowest that is to be fetched.
func (m *Machine) first() moldcast.Seq {
	if m.want.Empty() {
		return m.r.Next()
	}
	return m.want.First
}

// Connected says that Dial succeeded.
func (m *Machine) Connected(now moldcast.Instant, id uint64) {
	c := &m.conn
	if c.id != id || c.state != dialing {
		return
	}
	m.stats.Connections++
	if m.broken {
		m.broken = false
		m.stats.Reconnects++
	}
	session, _ := m.r.Session()
	c.state, c.last = open, now
	if m.snap.wanted {
		m.askSnapshot(now, session)
		return
	}
	first := m.first()
	s := &m.servers[c.server]
	c.from = m.r.Kept(first)
	for at := c.from; at < first; {
		part, lacks := s.lacks.Cut(moldcast.Range{First: at, Next: first})
		if at = part.Next; lacks {
			c.from = at
		}
	}
	if !s.compared {
		s.compared = true
		c.proof = m.r.Waiting(m.want.Next)
		c.proof.Next = min(c.proof.Next, c.proof.First+moldcast.Overlap)
		if !c.proof.Empty() {
			c.proves, c.from = true, c.proof.First
		}
	}
	c.client = soup.NewClient(now, soup.Login{User: m.c.User, Password: m.c.Password, Session: session, Seq: c.from})
}

// Broken says that Dial failed, or that a connection ended.
func (m *Machine) Broken(now moldcast.Instant, id uint64, err error) {
	if m.conn.id == id && m.conn.state != idle {
		m.fail(now, err)
	}
}

// Output is what is to be sent on a connection; valid until the next call.
func (m *Machine) Output(now moldcast.Instant, id uint64) []byte {
	if m.conn.id != id || m.conn.state != open {
		return nil
	}
	return m.conn.client.Output(now)
}

// Receive takes bytes off b, which came on a connection, and says how many: the
// rest is to be offered again after something else came, or at Deadline. What
// comes on one that is closed, or to be closed, is taken and forgotten.
func (m *Machine) Receive(now moldcast.Instant, id uint64, b []byte) (n int) {
	for {
		c := &m.conn
		if c.id != id || c.state != open {
			return len(b)
		}
		if c.rest.Len() > 0 || n == len(b) {
			return n
		}
		k, events, err := c.client.Receive(now, b[n:])
		n += k
		for i := range events {
			if c.rest.Len() > 0 {
				c.then = events[i] // one at most is behind messages
				continue
			}
			m.event(now, &events[i])
			if c.id != id || c.state != open {
				return len(b)
			}
		}
		switch {
		case err == nil:
		case c.rest.Len() > 0:
			c.err = err
		default:
			m.fail(now, err)
		}
	}
}

// feed offers again what could not be taken.
func (m *Machine) feed(now moldcast.Instant) {
	c := &m.conn
	if c.state != open || c.rest.Len() == 0 {
		return
	}
	id := c.id
	m.data(now, c.at, c.rest)
	if c.state != open || c.id != id || c.rest.Len() > 0 {
		return
	}
	if e := c.then; e.Kind != 0 {
		c.then = soup.Event{}
		m.event(now, &e)
	}
	if err := c.err; err != nil && c.state == open && c.id == id {
		m.fail(now, err)
	}
}

// watch leaves a connection that is of no use.
func (m *Machine) watch(now moldcast.Instant) {
	c := &m.conn
	if c.state != open {
		return
	}
	if err := c.client.Poll(now); err != nil {
		m.fail(now, err)
		return
	}
	if c.snaps {
		if now >= c.last+muteAfter {
			m.fail(now, ErrMute)
		}
		return
	}
	if c.proves {
		if now >= c.last+proofAfter {
			m.leave(now)
		}
		return
	}
	at := c.client.Next()
	if c.rest.Len() > 0 {
		at = c.at
	}
	if m.want.First < at && !m.want.Empty() {
		m.scan(now)
	}
	if m.want.Empty() {
		if c.linger == 0 {
			c.linger = now + lingerFor
		}
		if now >= c.linger {
			m.leave(now)
		}
		return
	}
	if c.linger != 0 {
		c.linger, c.last = 0, now
	}
	switch accepted := at != 0; {
	case accepted && (m.want.First < at || m.want.First-at > readOn),
		!c.waits.Empty() && m.want.First >= c.waits.Next:
		m.leave(now) // to log in elsewhere
	case now >= c.last+muteAfter && c.waits.Empty():
		m.fail(now, ErrMute)
	}
}

// event takes one of the connection.
func (m *Machine) event(now moldcast.Instant, e *soup.Event) {
	c := &m.conn
	if c.snaps && !m.snapshot(now, e) {
		return
	}
	switch e.Kind {
	case soup.Accepted:
		m.accepted(now, e.First)
	case soup.Data:
		m.data(now, e.First, e.Msgs)
	case soup.Debug:
		if c.said++; c.said <= maxSaid {
			m.tell(Notice{Kind: Said, Server: c.server, Text: e.Text})
		}
	case soup.Gap:
		if c.proves {
			m.leave(now)
			return
		}
		c.waits = e.Range
		m.tell(Notice{Kind: Waits, Server: c.server, Range: e.Range})
		if len(m.servers) > 1 && !m.want.Empty() {
			m.fail(now, ErrWaiting)
		}
	case soup.Hole:
		if !c.proves {
			if m.quiet {
				m.r.StreamShows(now, e.Range.Next)
			}
			m.hole(now, e.Range)
		}
		m.leave(now)
	case soup.End:
		m.ended(now, e.First)
	}
}

// accepted takes note of where the stream begins.
func (m *Machine) accepted(now moldcast.Instant, first moldcast.Seq) {
	c := &m.conn
	c.last = now
	if c.proves {
		if first != c.proof.First {
			m.leave(now) // there is nothing to compare
		}
		return
	}
	if first < c.from {
		m.fail(now, ErrBehind)
		return
	}
	if next := m.r.Next(); m.want.Empty() && m.quiet && first > next {
		m.r.StreamShows(now, first)
		m.hole(now, moldcast.Range{First: next, Next: first})
		m.leave(now)
		return
	}
	if want := m.want; !want.Empty() {
		m.fetches()
		if first > want.First {
			m.hole(now, moldcast.Range{First: want.First, Next: first})
			if m.r.Next() < first {
				m.leave(now)
			}
		}
	}
}

func (m *Machine) fetches() {
	m.tell(Notice{Kind: Fetching, Server: m.conn.server, Range: m.want})
	m.fetching = true
}

// hole takes note that the server lacks r for good. What all do is lost, where
// there are no requests.
func (m *Machine) hole(now moldcast.Instant, r moldcast.Range) {
	s := &m.servers[m.conn.server]
	if s.lacks.Len() >= maxLacks {
		s.lacks.Clear()
	}
	s.lacks.Add(r)
	s.until = now + lackFor
	m.scanAt = now
	r = r.Intersect(moldcast.Range{First: m.r.Next(), Next: m.r.Head()})
	if r.Empty() {
		return
	}
	m.stats.Holes++
	m.tell(Notice{Kind: HasHole, Server: m.conn.server, Range: r})
	if r = m.lacked(now, r); m.c.Requests == 0 && !r.Empty() {
		m.lose(now, r)
		m.conn.got++ // it was of use
	}
}

// data takes messages, as far as they can be.
func (m *Machine) data(now moldcast.Instant, first moldcast.Seq, msgs moldcast.Messages) {
	c := &m.conn
	s := &m.servers[c.server]
	if c.proves {
		m.prove(now, first, msgs)
		return
	}
	v := m.r.OfferStream(now, first, msgs, s.proven || m.quiet)
	if v.Differs != 0 {
		m.differs(now, v.Differs)
		return
	}
	s.proven = s.proven || v.Same > 0
	if v.New > 0 {
		m.brought += uint64(v.New)
		c.got += uint64(v.New)
		c.last, c.waits = now, moldcast.Range{}
		m.progress, m.spent = now, false
		s.fails, s.idle = 0, 0
		if c.linger != 0 {
			c.linger = now + lingerFor
		}
	}
	_, c.rest = msgs.Split(v.Taken)
	c.at = first + moldcast.Seq(v.Taken)
	if m.want.Next <= c.at {
		m.scanAt = now
	}
	if next := m.r.Next(); m.want.First < next {
		m.want.First = min(next, m.want.Next)
	}
}

// prove compares messages that are held already.
func (m *Machine) prove(now moldcast.Instant, first moldcast.Seq, msgs moldcast.Messages) {
	c := &m.conn
	msgs, _ = msgs.Split(int(min(uint64(msgs.Len()), c.proof.Len())))
	v := m.r.Compare(first, msgs)
	if v.Differs != 0 {
		m.differs(now, v.Differs)
		return
	}
	if v.Same > 0 {
		m.servers[c.server].proven = true
	}
	if c.proof.First += moldcast.Seq(msgs.Len()); c.proof.Empty() {
		m.leave(now)
	}
}

func (m *Machine) differs(now moldcast.Instant, at moldcast.Seq) {
	m.stats.Conflicts++
	m.tell(Notice{Kind: Differs, Server: m.conn.server, Range: moldcast.Range{First: at, Next: at + 1}})
	m.fail(now, fmt.Errorf("%w: message %d", ErrOther, at))
}

// ended takes note that the server has no more than what is below end: so does
// the session, unless the lines have shown more.
func (m *Machine) ended(now moldcast.Instant, end moldcast.Seq) {
	if !m.conn.proves && !m.r.StreamEnd(now, end) {
		m.hole(now, moldcast.Range{First: end, Next: ^moldcast.Seq(0)})
	}
	m.leave(now)
}

// leave ends the connection, which has done what it was for.
func (m *Machine) leave(now moldcast.Instant) {
	c := &m.conn
	if c.state == idle {
		return
	}
	if s := &m.servers[c.server]; !c.proves && !c.snaps && c.got == 0 {
		s.retryAt = now + moldcast.Instant(m.backoff(s.idle))
		s.idle++
	}
	m.close(now)
}

func (m *Machine) close(now moldcast.Instant) {
	c := &m.conn
	if c.told { // else the shell knows nothing of it
		m.closing = c.id
	}
	if c.state == open {
		c.client.Logout()
		m.bye = append(m.bye[:0], c.client.Output(now)...)
	}
	*c = conn{}
}

// fail ends the connection, and leaves its server alone for a while.
func (m *Machine) fail(now moldcast.Instant, err error) {
	c := &m.conn
	i, s := c.server, &m.servers[c.server]
	wait := m.backoff(s.fails)
	var rejected *soup.RejectedError
	switch {
	case errors.Is(err, ErrOther):
		wait, s.proven, s.compared = liarFor, false, false
	case errors.As(err, &rejected) && rejected.Code == soup.NotAuthorised:
		wait = refusedFor
	}
	s.retryAt = now + moldcast.Instant(wait)
	if s.fails == 0 || now >= s.noticeAt {
		s.noticeAt = now + noticeEvery
		m.tell(Notice{Kind: Failed, Server: i, Messages: c.got, After: wait, Err: err, Range: m.want})
	}
	if s.fails++; s.fails == 1 {
		s.failing = now
	}
	m.stats.Failures++
	if m.broken = true; m.snap.wanted {
		m.snap.failed(m.c.SnapshotTries, err)
	}
	m.turn = (i + 1) % len(m.servers)
	m.close(now)
}

// backoff is a time after n failures, with jitter.
func (m *Machine) backoff(n int) time.Duration {
	d := min(backoffMin<<min(n, 10), backoffMax)
	return d/2 + time.Duration(m.rand.Next()%uint64(d))
}
