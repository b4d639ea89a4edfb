package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Value is one setting: what a flag and a key of the file set alike. It is
// what package pflag wants of a flag's value.
type Value interface {
	String() string
	Set(string) error // one line that says the accepted form
	Type() string
	JSON() any // of `config check --json`
}

// list is a Value that Set adds to.
type list interface {
	Value
	clear()
}

// Duration is a Value: Go's durations and whole or fractional days (90d), not
// negative. In JSON it is seconds.
type Duration struct{ P *time.Duration }

func (v Duration) String() string {
	if v.P == nil {
		return "0s"
	}
	return v.P.String()
}

// Type is the word for it in help.
func (v Duration) Type() string { return "DUR" }

// JSON is in seconds.
func (v Duration) JSON() any { return v.P.Seconds() }

// Set parses s.
func (v Duration) Set(s string) error {
	d, err := ParseDuration(s)
	if err == nil {
		*v.P = d
	}
	return err
}

// ParseDuration reads Go's durations and whole or fractional days (90d); never
// negative.
func ParseDuration(s string) (time.Duration, error) {
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

// Size is a Value: bytes, with KB MB GB TB (1000) and KiB MiB GiB TiB (1024),
// not negative.
type Size struct{ P *int64 }

func (v Size) String() string {
	if v.P == nil {
		return "0"
	}
	for _, u := range []struct {
		name string
		n    int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if *v.P >= u.n && *v.P%u.n == 0 {
			return strconv.FormatInt(*v.P/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(*v.P, 10)
}

// Type is the word for it in help.
func (v Size) Type() string { return "SIZE" }

// JSON is in bytes.
func (v Size) JSON() any { return *v.P }

// Set parses s.
func (v Size) Set(s string) error {
	n, err := ParseSize(s)
	if err == nil {
		*v.P = n
	}
	return err
}

// ParseSize reads a size in bytes, never negative.
func ParseSize(s string) (int64, error) {
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

// Rate is a Value: requests a second, 0 for no limit.
type Rate struct{ P *float64 }

func (v Rate) String() string {
	if v.P == nil {
		return "0"
	}
	return strconv.FormatFloat(*v.P, 'g', -1, 64)
}

// Type is the word for it in help.
func (v Rate) Type() string { return "N" }

// JSON is a number.
func (v Rate) JSON() any { return *v.P }

// Set parses s.
func (v Rate) Set(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= math.MaxUint32) {
		return fmt.Errorf("%q is no rate; want requests a second like 20000, or 0 for no limit", s)
	}
	*v.P = f
	return nil
}

// integer is a Value of whole numbers; the range is for Validate.
type integer struct{ p *int }

func (v integer) String() string {
	if v.p == nil {
		return "0"
	}
	return strconv.Itoa(*v.p)
}
func (v integer) Type() string { return "N" }
func (v integer) JSON() any    { return *v.p }
func (v integer) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%q is no whole number", s)
	}
	*v.p = n
	return nil
}

type boolean struct{ p *bool }

func (v boolean) String() string {
	if v.p == nil {
		return "false"
	}
	return strconv.FormatBool(*v.p)
}
func (v boolean) Type() string { return "bool" }
func (v boolean) JSON() any    { return *v.p }
func (v boolean) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", s)
	}
	*v.p = b
	return nil
}

type text struct{ p *string }

func (v text) String() string {
	if v.p == nil {
		return ""
	}
	return *v.p
}
func (v text) Type() string { return "TEXT" }
func (v text) JSON() any    { return *v.p }
func (v text) Set(s string) error {
	*v.p = s
	return nil
}

type texts struct{ p *[]string }

func (v texts) String() string {
	if v.p == nil {
		return ""
	}
	return strings.Join(*v.p, " ")
}
func (v texts) Type() string { return "TEXT" }
func (v texts) JSON() any    { return append([]string{}, *v.p...) }
func (v texts) clear()       { *v.p = nil }
func (v texts) Set(s string) error {
	*v.p = append(slices.Clip(*v.p), s) // what another channel inherited is not written to
	return nil
}

// Optional is a Value that has no default; Unset tells that none was given.
type Optional struct {
	Value
	Unset func() bool
}

func (o Optional) String() string {
	if o.Unset == nil || o.Unset() {
		return ""
	}
	return o.Value.String()
}

// JSON is null where nothing was given.
func (o Optional) JSON() any {
	if o.Unset() {
		return nil
	}
	return o.Value.JSON()
}
