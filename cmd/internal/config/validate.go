package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit/admit"
	"github.com/moldtape/moldtape/store"
)

// Bounds of what Validate accepts.
const (
	MaxChannels = 256
	maxNakRetry = 250 * time.Millisecond // where the back-off of requests ends
	maxNakRate  = 1_000_000
	defNakRate  = 20_000
	maxRing     = 1 << 30
	maxName     = 64 // of a channel, in bytes
)

var (
	defaultPerClient = admitDefaults().Client.Requests
	defaultTotal     = admitDefaults().Total.Requests
)

func admitDefaults() (c admit.Config) {
	c.EnsureDefaults()
	return c
}

// Problem is one thing that is wrong with a Node: which setting, by the keys
// of the file, like channels[2].lines[0], and what about it.
type Problem struct {
	Path string
	Text string // follows the setting's name: ` 0: want …`, ` is required: …`; {key} is another setting
}

var reference = regexp.MustCompile(`\{([a-z_]+)\}`)

// AsFlags says p in the words of the command line.
func (p Problem) AsFlags() string {
	n, c := &Node{}, &Channel{}
	fields := append(c.Fields(), n.Fields()...)
	name := func(key string) string {
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Key == key && f.Flag != "" })
		if i < 0 {
			return key
		}
		return "--" + fields[i].Flag
	}
	return name(p.key()) + reference.ReplaceAllStringFunc(p.Text, func(s string) string { return name(s[1 : len(s)-1]) })
}

// InFile says p in the words of the file.
func (p Problem) InFile() string {
	return p.key() + reference.ReplaceAllString(p.Text, "$1")
}

// key is the last of the path.
func (p Problem) key() string {
	key := p.Path[strings.LastIndexByte(p.Path, '.')+1:]
	key, _, _ = strings.Cut(key, "[")
	return key
}

// problems gathers what is wrong.
type problems []Problem

func (ps *problems) add(path, format string, args ...any) {
	*ps = append(*ps, Problem{path, fmt.Sprintf(format, args...)})
}

// CheckRing checks the size of a receive ring.
func CheckRing(size int64) error {
	if size < mcast.MinRingSize || size > mcast.MaxRingSize {
		return fmt.Errorf("%v: want 4MiB to 1GiB", Size{&size})
	}
	return nil
}

// Validate finds everything that is wrong with n, after EnsureDefaults, by
// itself: names are not resolved, nor interfaces looked for.
func (n *Node) Validate() []Problem {
	var ps problems
	if n.SegmentSize < 16<<10 {
		ps.add("segment_size", " %d: want at least 16KiB", n.SegmentSize)
	}
	if n.Reserve > 1<<30 {
		ps.add("reserve", " %d: want 0 to 1GiB", n.Reserve)
	}
	if _, err := store.ParseCodec(n.Codec); err != nil {
		ps.add("codec", " %v", err)
	}
	if n.QueueBytes < leastQueue {
		ps.add("queue_bytes", " %d: want at least 4MiB", n.QueueBytes)
	}
	// 0 means no limit elsewhere; here it would remove all that is sealed.
	if n.Keep == 0 {
		ps.add("keep", " 0: want more than 0, like 90d; without it nothing is removed for its age")
	}
	if n.MaxBytes == 0 {
		ps.add("max_bytes", " 0: want more than 0, like 2TB; without it nothing is removed for want of room")
	}
	if n.RetainEvery < time.Second {
		ps.add("retain_every", " %v: want at least 1s", n.RetainEvery)
	}
	if n.RetransmitDuty != DutyAlways && n.RetransmitDuty != DutyBeyondWindow {
		ps.add("retransmit_duty", " %q: want %s or %s", n.RetransmitDuty, DutyAlways, DutyBeyondWindow)
	} else if n.RetransmitDuty != DutyAlways && !n.listens(n.RetransmitListen, func(c *Channel) string { return c.RetransmitListen }) {
		ps.add("retransmit_duty", " goes with {retransmit_listen}")
	}
	if n.MTU < 128 || n.MTU > 65535 {
		ps.add("mtu", " %d: want 128 to 65535", n.MTU)
	}
	ps = append(ps, n.Streams.Validate()...)
	if !n.listens(n.Streams.Listen, func(c *Channel) string { return c.RecoveryListen }) {
		ps = append(ps, n.Streams.unserved()...)
	}
	if n.NakRateTotal < 1 || n.NakRateTotal > maxNakRate {
		ps.add("nak_rate_total", " %d: want 1 to %d requests a second", n.NakRateTotal, maxNakRate)
	}
	if _, err := mcast.ParseBackend(n.RX); err != nil {
		ps.add("rx", " %v", err)
	}
	if err := CheckRing(n.RXRing); err != nil {
		ps.add("rx_ring", " %v", err)
	}
	if _, err := ParseAllow(n.Allow); err != nil {
		ps.add("allow", " %v", err)
	}
	if n.SnapshotMax != 0 && n.HTTP == "" {
		ps.add("snapshot_max", " goes with {http}")
	}
	if n.Pprof && n.HTTP == "" {
		ps.add("pprof", " goes with {http}")
	}
	if n.AckKey != "" && !n.Acknowledges() {
		ps.add("ack_key", " goes with {ack}")
	}
	switch n.LogLevel {
	case "", "debug", "info", "warn", "error":
	default:
		ps.add("log_level", " %q: want debug, info, warn or error", n.LogLevel)
	}
	switch n.LogFormat {
	case "", "text", "json":
	default:
		ps.add("log_format", " %q: want text or json", n.LogFormat)
	}
	n.validateListen(&ps)
	switch {
	case len(n.Channels) == 0:
		ps.add("channels", " is required: a list of channels, each with a name and lines")
	case len(n.Channels) > MaxChannels:
		ps.add("channels", ": %d; want at most %d", len(n.Channels), MaxChannels)
	}
	names := map[string]int{}
	taken := map[string]string{}
	for i := range n.Channels {
		c := &n.Channels[i]
		at := fmt.Sprintf("channels[%d]", i)
		c.validate(at, &ps)
		for _, name := range c.Names() {
			if other, ok := names[name]; ok && c.Name != "" {
				ps.add(at+".name", " %q: channels[%d] has that name already; want each once", name, other)
			} else if len(name) > maxName {
				ps.add(at+".name", " %q is longer than %d with the line's; want it shorter", c.Name, maxName)
			} else {
				names[name] = i
			}
		}
		c.validateLines(at, taken, &ps)
	}
	return ps
}

// listens reports whether there is an address of all channels, or of one.
func (n *Node) listens(all string, of func(*Channel) string) bool {
	for i := range n.Channels {
		if of(&n.Channels[i]) != "" {
			return true
		}
	}
	return all != ""
}

// validateListen checks where requests and readers are received: no address
// twice.
func (n *Node) validateListen(ps *problems) {
	type listener struct{ network, host, port, path string }
	var taken []listener
	free := func(l listener, s string) bool {
		any := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
		for _, x := range taken {
			if x.network == l.network && x.port == l.port && (x.host == l.host || any(x.host) || any(l.host)) {
				ps.add(l.path, " %q: %s listens there already", s, x.path)
				return false
			}
		}
		return true
	}
	check := func(network, path, s string) {
		if s == "" {
			return
		}
		if err := HostPort(s); err != nil {
			ps.add(path, " %v", err)
			return
		}
		if a, err := netip.ParseAddrPort(s); err == nil && a.Addr().IsMulticast() {
			ps.add(path, " %q: want a unicast host:port", s)
			return
		}
		host, port, _ := net.SplitHostPort(s)
		if l := (listener{network, host, port, path}); port != "0" && free(l, s) { // with 0 each gets a port of its own
			taken = append(taken, l)
		}
	}
	check("tcp", "http", n.HTTP)
	check("udp", "retransmit_listen", n.RetransmitListen)
	check("tcp", "recovery_listen", n.Streams.Listen)
	for i := range n.Channels {
		c := &n.Channels[i]
		check("udp", path("channels", i, "retransmit_listen"), c.RetransmitListen)
		check("tcp", path("channels", i, "recovery_listen"), c.RecoveryListen)
	}
	// Unicast lines may share a socket, but with no listener.
	for i := range n.Channels {
		for k, s := range n.Channels[i].Lines {
			if l, err := parseLine(s); err == nil && !l.Addr.Addr().IsMulticast() && l.Addr.Port() != 0 {
				free(listener{"udp", l.Addr.Addr().String(), strconv.Itoa(int(l.Addr.Port())), fmt.Sprintf("%s[%d]", path("channels", i, "lines"), k)}, s)
			}
		}
	}
}

func (c *Channel) validate(at string, ps *problems) {
	if c.Name == "" {
		ps.add(at+".name", " is required: 1 to 64 of A-Z a-z 0-9 . _ : -")
	} else if !store.ValidChannel(c.Name) {
		ps.add(at+".name", " %q: want 1 to 64 of A-Z a-z 0-9 . _ : -", c.Name)
	}
	for i, s := range c.Sessions {
		if _, err := moldcast.ParseSession(s); err != nil {
			ps.add(fmt.Sprintf("%s.sessions[%d]", at, i), ": %v", err)
		}
	}
	fromSource := false
	for i, s := range c.Rerequest {
		addr, _, err := parseServer(s)
		if err == nil && addr == "source" {
			fromSource = true
			continue
		} else if err == nil {
			err = serverAddr(addr)
		}
		if err != nil {
			ps.add(fmt.Sprintf("%s.rerequest[%d]", at, i), " %v", err)
		}
	}
	switch {
	case c.RerequestPort < 0 || c.RerequestPort > 65535:
		ps.add(at+".rerequest_port", " %d: want 1 to 65535", c.RerequestPort)
	case fromSource && c.RerequestPort == 0:
		ps.add(at+".rerequest", " source needs {rerequest_port}, the port to ask at")
	case !fromSource && c.RerequestPort != 0:
		ps.add(at+".rerequest_port", " goes with {rerequest} source")
	}
	for i, s := range c.Recovery {
		if err := peerAddr(s); err != nil {
			ps.add(fmt.Sprintf("%s.recovery[%d]", at, i), " %v", err)
		}
	}
	if len(c.Recovery) == 0 && (c.RecoveryLogin != "" || c.RecoveryTLS || c.RecoveryTLSCA != "") {
		ps.add(at+".recovery", " is missing: {recovery_login}, {recovery_tls} and {recovery_tls_ca} are of the peers that it names")
	}
	for i, s := range c.Ack {
		if err := checkAck(s); err != nil {
			ps.add(fmt.Sprintf("%s.ack[%d]", at, i), " %v", err)
		}
	}
	if c.Threshold < 1 {
		ps.add(at+".recovery_threshold", " %d: want at least 1 message", c.Threshold)
	}
	choice := func(key, got string, want ...string) {
		if !slices.Contains(want, got) {
			ps.add(at+"."+key, " %q: want %s", got, strings.Join(want, " or "))
		}
	}
	choice("sequence_covers", c.SequenceCovers, string(moldcast.CoversChannel), string(moldcast.CoversLine))
	choice("increments", c.Increments, string(moldcast.Consecutive), string(moldcast.Rising))
	choice("restart", c.Restart, string(moldcast.RestartSession), string(moldcast.RestartSequence))
	choice("heartbeats", c.Heartbeats, string(moldcast.HeartbeatNext), string(moldcast.HeartbeatLast), string(moldcast.HeartbeatNone))
	choice("snapshot", c.Snapshot, string(moldcast.NoSnapshot), string(moldcast.SnapshotNext), string(moldcast.SnapshotLast))
	choice("on_loss", c.OnLoss, "record", "stall")
	choice("line_log", c.LineLog, "auto", "on", "off")
	if c.Start != "" {
		choice("start", c.Start, "beginning", "live")
	}
	if c.Start == "beginning" && c.Increments == string(moldcast.Rising) {
		ps.add(at+".start", " beginning: with {increments} rising a session begins where it is heard: want live")
	}
	if c.HeartbeatInterval < time.Millisecond || c.HeartbeatInterval > time.Minute {
		ps.add(at+".heartbeat_interval", " %v: want 1ms to 1m", c.HeartbeatInterval)
	}
	if c.ReorderBytes < arbiter.MinReorderBytes {
		ps.add(at+".reorder_bytes", " %d: want at least %d", c.ReorderBytes, arbiter.MinReorderBytes)
	}
	if c.RingBytes < 128<<10 || c.RingBytes > maxRing {
		ps.add(at+".ring_bytes", " %d: want 128KiB to 1GiB", c.RingBytes)
	}
	if c.NakBudget <= 0 {
		ps.add(at+".nak_budget", " 0: want a time above 0; {on_loss} stall never gives a gap up")
	}
	if c.NakBudget > 0 && c.ReorderWait > c.NakBudget && c.OnLoss != "stall" {
		ps.add(at+".reorder_wait", " %v: want at most {nak_budget}, %v: what comes before is given up then", c.ReorderWait, c.NakBudget)
	}
	if c.NakRate < 1 || c.NakRate > maxNakRate {
		ps.add(at+".nak_rate", " %d: want 1 to %d requests a second", c.NakRate, maxNakRate)
	}
	if c.NakRetry <= 0 || c.NakRetry > maxNakRetry {
		ps.add(at+".nak_retry", " %v: want a time above 0, at most %v", c.NakRetry, maxNakRetry)
	}
}

// validateLines checks the lines of c, and that no other line, of any channel
// in taken, is the same.
func (c *Channel) validateLines(at string, taken map[string]string, ps *problems) {
	switch {
	case len(c.Lines) == 0:
		ps.add(at+".lines", " is required: G:P[,interface=NAME][,source=ADDR], like 239.255.0.1:26400,interface=eth1")
	case len(c.Lines) > capture.MaxLines:
		ps.add(at+".lines", ": %d; want at most %d", len(c.Lines), capture.MaxLines)
	}
	own := map[capture.Line]bool{}
	for i, s := range c.Lines {
		path := fmt.Sprintf("%s.lines[%d]", at, i)
		l, err := parseLine(s)
		if err != nil {
			ps.add(path, " %q: %v; want G:P[,interface=NAME][,source=ADDR]", s, err)
			continue
		}
		if own[l] {
			ps.add(path, " %q is given twice; lines must differ in group, port, interface or source", s)
			continue
		}
		own[l] = true
		if l.Interface == "" && l.Addr.Addr().IsMulticast() {
			l.Interface = c.Interface
		}
		if other, ok := taken[l.String()]; ok && l.Addr.Port() != 0 {
			ps.add(path, " %q: %s is the same; lines must differ in group, port, interface or source", s, other)
			continue
		}
		taken[l.String()] = path
	}
}

// parseLine reads G:P[,interface=NAME][,source=ADDR].
func parseLine(s string) (capture.Line, error) {
	parts := strings.Split(s, ",")
	addr, err := netip.ParseAddrPort(parts[0])
	if err != nil || !addr.Addr().Is4() {
		return capture.Line{}, fmt.Errorf("no IPv4 address and port")
	}
	l := capture.Line{Addr: addr}
	for _, p := range parts[1:] {
		key, val, _ := strings.Cut(p, "=")
		switch {
		case key == "interface" && val != "" && l.Interface == "":
			l.Interface = val
		case key == "source" && !l.Source.IsValid():
			a, err := netip.ParseAddr(val)
			if err != nil || !a.Is4() || a.IsMulticast() {
				return capture.Line{}, fmt.Errorf("source is no IPv4 address")
			}
			l.Source = a
		default:
			return capture.Line{}, fmt.Errorf("%q", p)
		}
	}
	return l, nil
}

// HostPort checks a host:port to listen on or send to; port 0 asks the system
// for one. The host may be empty (all addresses).
func HostPort(s string) error {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return fmt.Errorf("%q: want host:port", s)
	}
	if _, err := strconv.ParseUint(s[i+1:], 10, 16); err != nil {
		return fmt.Errorf("%q: want host:port with a port 0..65535", s)
	}
	return nil
}

// parseServer reads HOST:PORT or source, and [,window=N].
func parseServer(s string) (addr string, window uint64, err error) {
	addr, rest, more := strings.Cut(s, ",")
	if !more {
		return addr, 0, nil
	}
	n, ok := strings.CutPrefix(rest, "window=")
	if window, err = strconv.ParseUint(n, 10, 64); !ok || err != nil || window == 0 {
		return addr, 0, fmt.Errorf("%q: want HOST:PORT[,window=N], N messages", s)
	}
	return addr, window, nil
}

// serverAddr checks a host:port that can be sent to.
func serverAddr(s string) error {
	if err := HostPort(s); err != nil {
		return err
	}
	a, err := netip.ParseAddrPort(s)
	if i := strings.LastIndexByte(s, ':'); i == 0 || s[i+1:] == "0" || err == nil && !a.Addr().Unmap().Is4() {
		return fmt.Errorf("%q: want the host:port of a server, IPv4", s)
	}
	return nil
}

// peerAddr checks a host:port that can be connected to; the name is looked up
// each time.
func peerAddr(s string) error {
	if err := HostPort(s); err != nil {
		return err
	}
	if strings.HasPrefix(s, ":") || strings.HasSuffix(s, ":0") {
		return fmt.Errorf("%q: want the host:port of a peer", s)
	}
	return nil
}

// ParseAllow reads networks; a single address is one. nil for none.
func ParseAllow(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if a, err2 := netip.ParseAddr(s); err != nil && err2 == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q: want a network, like 10.20.0.0/16", s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
