package admit

import (
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Verdict is what became of a request.
type Verdict uint8

// The verdicts. All but Admitted mean: no answer.
const (
	Admitted   Verdict = iota
	BadSource          // a source that is no unicast address and port
	NotAllowed         // outside the allow-list
	Repeated           // what it asks for was sent less than Linger ago
	ClientRate         // the client's budget is spent
	TotalRate          // the total budget is spent
	Verdicts           // number of verdicts
)

var verdictNames = [Verdicts]string{"admitted", "bad_source", "not_allowed", "repeated", "client_rate", "total_rate"}

func (v Verdict) String() string {
	if v < Verdicts {
		return verdictNames[v]
	}
	return "verdict(?)"
}

// lingered is how many answers to one client are remembered: what a receiver
// keeps in flight.
const lingered = 64

// answer is one that was sent, for linger.
type answer struct {
	at      moldcast.Instant
	request moldcast.Request // its count clamped
	next    moldcast.Seq     // one past what of it was sent
	host    [16]byte
	port    uint16
}

// client is one row of the table.
type client struct {
	key      netip.Addr
	account  account
	loopback bool
	ring     *[lingered]answer // made at the first answer
	newest   uint32            // ring[(newest-1)%lingered] is the newest
	kept     uint32            // answers in ring
}

// Admitter is the state of admission. It has one owner: its methods must not
// run at the same time.
type Admitter struct {
	cfg      Config
	client   budget
	loopback budget
	total    budget
	spent    account // of total

	rows   []client // 0 is shared by all that have no row
	byKey  map[netip.Addr]int32
	recent Recency // without 0
	stats  Stats
}

// Stats counts.
type Stats struct {
	Verdicts [Verdicts]uint64
	Clients  int    // in the table now, 0..Config.Clients
	Replaced uint64 // clients that gave their place to another
	Shared   uint64 // requests charged to the shared budget for want of a place
}

// New makes an Admitter. The error is Config.Validate's.
func New(cfg Config) (*Admitter, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	burst := cfg.Burst.Seconds()
	a := &Admitter{
		cfg:      cfg,
		client:   budgetOf(cfg.Client, burst),
		loopback: budgetOf(cfg.Loopback, burst),
		total:    budgetOf(cfg.Total, burst),
		rows:     make([]client, 1, min(cfg.Clients+1, 64)),
		byKey:    make(map[netip.Addr]int32),
	}
	// The origin of instants is arbitrary: these start full long ago.
	const past = -1 << 62
	a.spent.open(a.total, past)
	a.rows[0].account.open(a.client, past)
	return a, nil
}

// Config is the configuration in force, defaults filled in.
func (a *Admitter) Config() Config { return a.cfg }

// Stats is a copy of the counters.
func (a *Admitter) Stats() Stats {
	s := a.stats
	s.Clients = len(a.rows) - 1
	return s
}

// Admit judges a request that came from an address at now. When it is
// Admitted, the range is what may be answered of it: the request's, its count
// clamped. Answered must then be told of the answer, if there is one.
func (a *Admitter) Admit(now moldcast.Instant, from netip.AddrPort, r moldcast.Request) (moldcast.Range, Verdict) {
	rng, v := a.judge(now, from, r)
	a.stats.Verdicts[v]++
	return rng, v
}

func (a *Admitter) judge(now moldcast.Instant, from netip.AddrPort, r moldcast.Request) (moldcast.Range, Verdict) {
	addr := from.Addr().Unmap()
	if from.Port() == 0 || !unicast(addr) {
		return moldcast.Range{}, BadSource
	}
	if !a.Allowed(addr) {
		return moldcast.Range{}, NotAllowed
	}
	r.Count = min(r.Count, a.cfg.MaxCount)
	c := a.row(now, addr)
	if c == &a.rows[0] {
		a.stats.Shared++
	}
	if a.repeated(c, now, addr, from.Port(), r) {
		return moldcast.Range{}, Repeated
	}
	b := a.budget(c)
	c.account.fill(b, now)
	if !c.account.can(b) {
		return moldcast.Range{}, ClientRate
	}
	a.spent.fill(a.total, now)
	if !a.spent.can(a.total) {
		return moldcast.Range{}, TotalRate
	}
	c.account.requests.take(b.requests, 1)
	a.spent.requests.take(a.total.requests, 1)
	return r.Range(), Admitted
}

// Answered tells that an admitted request was answered, with messages up to
// before next, in a datagram of size bytes. It may come later than other
// requests of the same client.
func (a *Admitter) Answered(now moldcast.Instant, from netip.AddrPort, r moldcast.Request, next moldcast.Seq, size int) {
	addr := from.Addr().Unmap()
	c := a.row(now, addr)
	b := a.budget(c)
	c.account.fill(b, now)
	c.account.bytes.take(b.bytes, float64(size))
	a.spent.fill(a.total, now)
	a.spent.bytes.take(a.total.bytes, float64(size))
	if a.cfg.Linger <= 0 {
		return
	}
	r.Count = min(r.Count, a.cfg.MaxCount)
	if c.ring == nil {
		c.ring = new([lingered]answer)
	}
	c.ring[c.newest%lingered] = answer{at: now, request: r, next: next, host: addr.As16(), port: from.Port()}
	c.newest++
	c.kept = min(c.kept+1, lingered)
}

// repeated reports whether r was answered, or all that it asks for was sent, to
// the same address and port, less than Linger ago.
func (a *Admitter) repeated(c *client, now moldcast.Instant, addr netip.Addr, port uint16, r moldcast.Request) bool {
	if c.kept == 0 || a.cfg.Linger <= 0 {
		return false
	}
	host := addr.As16()
	for i := uint32(1); i <= c.kept; i++ {
		e := &c.ring[(c.newest-i)%lingered]
		if now-e.at >= moldcast.Instant(a.cfg.Linger) {
			return false
		}
		if e.request.First > r.First || e.port != port || e.host != host || e.request.Session != r.Session {
			continue
		}
		if r.Range().Next <= e.next || e.request == r {
			return true
		}
	}
	return false
}

// Wait is how long it takes until the budgets have room for a request from addr
// again; 0 where they have it.
func (a *Admitter) Wait(now moldcast.Instant, addr netip.Addr) time.Duration {
	i := a.byKey[key(addr)] // 0: the shared one
	if i == 0 && len(a.rows) <= a.cfg.Clients {
		return a.spent.wait(a.total, now)
	}
	c := &a.rows[i]
	return max(c.account.wait(a.budget(c), now), a.spent.wait(a.total, now))
}

// key names the client that addr belongs to.
func key(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if !addr.Is4() {
		p, _ := addr.Prefix(64)
		addr = p.Addr()
	}
	return addr
}

// row is the client's, made if there is a place for it, else the shared one.
func (a *Admitter) row(now moldcast.Instant, addr netip.Addr) *client {
	key := key(addr)
	if i, ok := a.byKey[key]; ok {
		a.recent.Use(i)
		return &a.rows[i]
	}
	var i int32
	if len(a.rows) <= a.cfg.Clients {
		a.rows = append(a.rows, client{})
		i = int32(len(a.rows) - 1)
	} else {
		i = a.recent.Oldest()
		c := &a.rows[i]
		b := a.budget(c)
		c.account.fill(b, now)
		if !c.account.full(b) || c.lingers(now, a.cfg) {
			return &a.rows[0]
		}
		delete(a.byKey, c.key)
		a.stats.Replaced++
	}
	c := &a.rows[i]
	c.key, c.loopback, c.kept = key, addr.IsLoopback(), 0
	c.account.open(a.budget(c), now)
	a.byKey[key] = i
	a.recent.Use(i)
	return c
}

func (c *client) lingers(now moldcast.Instant, cfg Config) bool {
	return c.kept > 0 && now-c.ring[(c.newest-1)%lingered].at < moldcast.Instant(cfg.Linger)
}

func (a *Admitter) budget(c *client) budget {
	if c.loopback {
		return a.loopback
	}
	return a.client
}

// Allowed reports whether the allow-list has addr.
func (a *Admitter) Allowed(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("") // a prefix contains no address with a zone
	for _, p := range a.cfg.Allow {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// unicast reports whether a datagram may be sent to addr at all. A directed
// broadcast of a subnet looks like any host; the system refuses those to
// sockets without SO_BROADCAST.
func unicast(addr netip.Addr) bool {
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return false
	}
	if addr.Is4() {
		b := addr.As4()
		return b[0] != 0 && b[0] < 240
	}
	return true
}
