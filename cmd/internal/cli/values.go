package cli

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Flag values of the contract: durations are Go's plus d, sizes take KB MB GB
// (1000) and KiB MiB GiB (1024), probabilities are 0..1.

type durationValue struct{ d *time.Duration }

func (v durationValue) String() string {
	if v.d == nil {
		return "0s"
	}
	return v.d.String()
}
func (v durationValue) Type() string { return "DUR" }
func (v durationValue) Set(s string) error {
	d, err := parseDuration(s)
	if err == nil {
		*v.d = d
	}
	return err
}

// parseDuration reads Go's durations and whole or fractional days (90d); never negative.
func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		f, err := strconv.ParseFloat(days, 64)
		if err != nil || f < 0 || !(f*24 < math.MaxInt64/float64(time.Hour)) {
			return 0, fmt.Errorf("%q is no duration; want like 50ms, 1h30m or 90d", s)
		}
		return time.Duration(f * 24 * float64(time.Hour)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no duration; want like 50ms, 1h30m or 90d", s)
	}
	return d, nil
}

type sizeValue struct{ n *int64 }

func (v sizeValue) String() string {
	if v.n == nil {
		return "0"
	}
	for _, u := range []struct {
		name string
		n    int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if *v.n >= u.n && *v.n%u.n == 0 {
			return strconv.FormatInt(*v.n/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(*v.n, 10)
}
func (v sizeValue) Type() string { return "SIZE" }
func (v sizeValue) Set(s string) error {
	n, err := parseSize(s)
	if err == nil {
		*v.n = n
	}
	return err
}

// parseSize reads a size in bytes, never negative.
func parseSize(s string) (int64, error) {
	mul := 1.0
	num := s
	for _, u := range []struct {
		name string
		n    float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			num, mul = rest, u.n
			break
		}
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || !(f*mul < math.MaxInt64) {
		return 0, fmt.Errorf("%q is no size; want like 65536, 64MiB or 1GB", s)
	}
	return int64(f * mul), nil
}

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
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return usagef("%s %q: want host:port", flag, s)
	}
	if _, err := strconv.ParseUint(s[i+1:], 10, 16); err != nil {
		return usagef("%s %q: want host:port with a port 0..65535", flag, s)
	}
	return nil
}

// parseGroup reads an IPv4 multicast group a.b.c.d:port.
func parseGroup(flag, s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || !a.Addr().Is4() || !a.Addr().IsMulticast() {
		return netip.AddrPort{}, usagef("%s %q: want an IPv4 multicast group, like 239.255.0.1:26400", flag, s)
	}
	return a, nil
}
