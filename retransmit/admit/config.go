package admit

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Rate is a budget a second. In both fields 0 takes the default and a negative
// value means no limit.
type Rate struct {
	Requests float64 // requests a second
	Bytes    float64 // answered UDP payload bytes a second; default Requests × 1500
}

// Config is what an Admitter is made of. The zero value takes all defaults.
type Config struct {
	// Allow lists the networks that are answered; nil takes DefaultAllow.
	Allow []netip.Prefix

	// Client is the budget of one client. Default 20 000 requests a second: a
	// receiver that asks for a long gap keeps 64 requests in flight, which at
	// a round trip of 3.2 ms is this many, and at most 240 Mbit/s.
	Client Rate

	// Loopback is the budget of one client on this machine. Default 200 000
	// requests a second: such a client takes no network, and could take the
	// processor anyway, so this only stops one that has run wild.
	Loopback Rate

	// Total is the budget of all together. Default 200 000 requests a second:
	// what one core answers from memory, so that a storm delays answers by
	// milliseconds, not by a socket buffer's worth of seconds.
	Total Rate

	// Burst is how much of a budget may be spent at once: default 250 ms of
	// it, so that 100 000 messages of 40 bytes (3000 answers) are recovered at
	// the speed of any network. It is at least 64 requests (what a receiver
	// keeps in flight) or one second's worth, whichever is less, and one
	// largest datagram.
	Burst time.Duration

	// MaxCount clamps the count of a request: 1..65534. Default 65534, the
	// most that is a count on the wire; the size of one packet bounds an
	// answer long before.
	MaxCount uint16

	// Linger is how long what was sent is not sent there again. Default
	// 1 ms: receivers retry after 2 ms at the least (moldcast/gap), so a
	// retry is always answered; copies made by the network come within
	// microseconds. Negative: none.
	Linger time.Duration

	// Clients bounds the table, 1..1<<20. Default 4096, at most 14 MB.
	Clients int
}

// DefaultAllow is loopback, private (RFC 1918), shared (RFC 6598), link-local
// and unique local (RFC 4193) addresses.
func DefaultAllow() []netip.Prefix {
	var p []netip.Prefix
	for _, s := range []string{
		"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
		"::1/128", "fc00::/7", "fe80::/10",
	} {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

// What a request may ask for at most in flight, by protocol: the least burst.
const leastBurst = 64

// EnsureDefaults fills in what is zero.
func (c *Config) EnsureDefaults() {
	if c.Allow == nil {
		c.Allow = DefaultAllow()
	}
	c.Client.ensure(20_000)
	c.Loopback.ensure(200_000)
	c.Total.ensure(200_000)
	if c.Burst == 0 {
		c.Burst = 250 * time.Millisecond
	}
	if c.MaxCount == 0 {
		c.MaxCount = moldcast.MaxCount
	}
	if c.Linger == 0 {
		c.Linger = time.Millisecond
	}
	if c.Clients == 0 {
		c.Clients = 4096
	}
}

func (r *Rate) ensure(requests float64) {
	if r.Requests == 0 {
		r.Requests = requests
	}
	if r.Bytes == 0 {
		// A full packet for each request: this budget is felt only where
		// messages larger than the MTU are asked for.
		r.Bytes = r.Requests * 1500
	}
}

// Validate reports the first value out of range. EnsureDefaults comes before.
func (c *Config) Validate() error {
	for _, p := range c.Allow {
		if !p.IsValid() {
			return fmt.Errorf("admit: Allow: invalid prefix")
		}
	}
	for _, r := range []Rate{c.Client, c.Loopback, c.Total} {
		if r.Requests != r.Requests || r.Bytes != r.Bytes {
			return fmt.Errorf("admit: rate is not a number")
		}
	}
	switch {
	case c.Burst < 0 || c.Burst > time.Minute:
		return fmt.Errorf("admit: Burst %v: want 0..1m", c.Burst)
	case c.MaxCount > moldcast.MaxCount:
		return fmt.Errorf("admit: MaxCount %d: want 1..%d", c.MaxCount, moldcast.MaxCount)
	case c.Linger > time.Second:
		return fmt.Errorf("admit: Linger %v: want at most 1s", c.Linger)
	case c.Clients < 1 || c.Clients > 1<<20:
		return fmt.Errorf("admit: Clients %d: want 1..%d", c.Clients, 1<<20)
	}
	return nil
}
