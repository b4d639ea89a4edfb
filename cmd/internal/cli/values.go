package cli

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/moldtape/moldtape/cmd/internal/config"
)

// Flag values of the contract beside those of package config: probabilities
// are 0..1.

type probabilityValue struct{ p *float64 }

func (v probabilityValue) String() string {
	if v.p == nil {
		return "0"
	}
	return strconv.FormatFloat(*v.p, 'g', -1, 64)
}
func (v probabilityValue) Type() string { return "P" }
func (v probabilityValue) Set(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("%q is no probability; want 0..1", s)
	}
	*v.p = f
	return nil
}

// count is n of what, in words for people.
func count[N int | uint64](n N, what string) string {
	s := humanize.Comma(int64(n)) + " " + what
	if n != 1 {
		s += "s"
	}
	return s
}

// parseHostPort reads a numeric or named host:port to listen on or send to;
// port 0 asks the system for one. The host may be empty (all addresses).
func parseHostPort(flag, s string) error {
	if err := config.HostPort(s); err != nil {
		return usagef("%s %v", flag, err)
	}
	return nil
}

// resolve4 reads host:port with a port that can be sent to.
func resolve4(flag, s string) (netip.AddrPort, error) {
	a, err := config.ResolveServer(s)
	if err != nil {
		return a, usagef("%s %v", flag, err)
	}
	return a, nil
}

// parseGroup reads an IPv4 multicast group a.b.c.d:port.
func parseGroup(flag, s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || !a.Addr().Is4() || !a.Addr().IsMulticast() {
		return netip.AddrPort{}, usagef("%s %q: want an IPv4 multicast group, like 239.255.0.1:26400", flag, s)
	}
	return a, nil
}
