package retransmit

import (
	"net"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	denyAfter   = time.Second                      // a wrong password is answered so much later
	denyAtOnce  = 10 * moldcast.Instant(denyAfter) // so many of an address are looked at as they come, then one in denyAfter
	deniedAddrs = 1024                             // addresses that are told apart
)

// denials bounds how fast passwords can be tried, over however many connections
// from one address: ten, and one a second. What comes faster is not looked at,
// be it right or wrong. Where more addresses try than are told apart, the others
// count as one. It is pure, and bounded.
type denials struct {
	until  map[netip.Addr]moldcast.Instant // when all that was wrong is a second each ago
	others moldcast.Instant
}

// spent reports whether a login of an address is not to be looked at.
func (d *denials) spent(now moldcast.Instant, a netip.Addr) bool {
	t, ok := d.until[a]
	if !ok && len(d.until) >= deniedAddrs {
		t = d.others
	}
	return t-now >= denyAtOnce
}

// wrong takes note of a wrong password.
func (d *denials) wrong(now moldcast.Instant, a netip.Addr) {
	if d.until == nil {
		d.until = map[netip.Addr]moldcast.Instant{}
	}
	t, ok := d.until[a]
	if !ok && len(d.until) >= deniedAddrs {
		for x, t := range d.until {
			if t <= now {
				delete(d.until, x)
			}
		}
		if len(d.until) >= deniedAddrs {
			d.others = max(d.others, now) + moldcast.Instant(denyAfter)
			return
		}
	}
	d.until[a] = max(t, now) + moldcast.Instant(denyAfter)
}

// deniedAs is what a client counts as: its address, of IPv6 the network of 64
// bits, in which one host may take any.
func deniedAs(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{} // no network: in memory
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return ip
}
