package mcast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Backend is a way to receive.
type Backend uint8

const (
	// Auto is RingBackend where it is permitted and as good, else UDPBackend.
	Auto Backend = iota

	// UDPBackend reads a UDP socket for each group in batches.
	UDPBackend

	// RingBackend shares memory with the kernel: one receive ring for all
	// groups of an interface, at a fraction of the CPU, and up to a
	// millisecond later. It needs Linux, CAP_NET_RAW and an Ethernet (or
	// loopback) interface, and is for multicast alone. It also hears what a
	// firewall or a reverse-path filter keeps from a UDP socket.
	RingBackend
)

func (b Backend) String() string {
	switch b {
	case UDPBackend:
		return "udp"
	case RingBackend:
		return "ring"
	}
	return "auto"
}

// ParseBackend reads what String writes.
func ParseBackend(s string) (Backend, error) {
	for _, b := range []Backend{Auto, UDPBackend, RingBackend} {
		if s == b.String() {
			return b, nil
		}
	}
	return 0, fmt.Errorf("%q: want auto, udp or ring", s)
}

// Tap is one socket that serves one or several lines. Lines that share a
// group, port and interface share a Tap and are told apart by source, so that
// no datagram is ever counted on two. A receive ring serves all the multicast
// lines of an interface.
type Tap struct {
	Socket Socket

	lines  []int // the lines served
	groups []tapGroup
}

// tapGroup is what a Tap hears at one address.
type tapGroup struct {
	addr  netip.AddrPort
	lines []int
	any   int // the line that takes what no source claims; -1: none
	by    map[netip.Addr]int
}

// ErrNoRing: RingBackend was asked for, and cannot be.
var ErrNoRing = errors.New("no receive ring")

// maxRingGroups is the most groups that one receive ring hears: its filter
// looks at one after the other.
const maxRingGroups = 64

// OpenLines opens the sockets for a set of lines: as few as can be. The index
// of a line in lines is its number. Auto says in the log where and why it
// falls back. Errors: ErrSameLine where two lines differ in neither group,
// port, interface nor source; ErrNoRing; otherwise those of Listen.
func OpenLines(lines []ListenConfig, backend Backend) ([]*Tap, error) {
	plans, err := planLines(lines, interfaceOf)
	if err != nil {
		return nil, err
	}
	var taps []*Tap
	fail := func(err error) ([]*Tap, error) {
		for _, t := range taps {
			t.Socket.Close()
		}
		return nil, err
	}
	if backend != UDPBackend {
		var why []string
		for _, set := range ringSets(plans) {
			t, err := openRing(set)
			switch {
			case err == nil:
				taps = append(taps, t)
			case backend == RingBackend:
				return fail(fmt.Errorf("%w for line %s: %w", ErrNoRing, lineNames(set), err))
			default:
				if reason := err.Error(); !slices.Contains(why, reason) {
					why = append(why, reason)
				}
			}
		}
		if len(why) > 0 {
			plans[0].listen.Log.Info("lines are received by UDP sockets, at more CPU than a receive ring", "why", strings.Join(why, "; "))
		}
	}
	for _, p := range plans {
		if p.open {
			continue
		}
		if backend == RingBackend {
			return fail(fmt.Errorf("%w for line %s: %w %v is unicast", ErrNoRing, lineNames([]*plan{p}), ErrAddress, p.listen.Addr))
		}
		conn, err := Listen(p.listen)
		if err != nil {
			return fail(lineError(len(lines), lineNames([]*plan{p}), err))
		}
		taps = append(taps, newTap(conn, []*plan{p}, []netip.AddrPort{conn.LocalAddr()}))
	}
	return taps, nil
}

// ringSets are the plans that a receive ring may serve, by interface.
func ringSets(plans []*plan) (sets [][]*plan) {
	at := make(map[string]int)
	for _, p := range plans {
		if !p.listen.Addr.Addr().IsMulticast() {
			continue
		}
		i, ok := at[p.listen.Interface]
		if !ok || len(sets[i]) == maxRingGroups {
			i = len(sets)
			at[p.listen.Interface] = i
			sets = append(sets, nil)
		}
		sets[i] = append(sets[i], p)
	}
	return sets
}

func openRing(set []*plan) (*Tap, error) {
	c := set[0].listen
	if c.Interface == "" {
		return nil, fmt.Errorf("%w of %v is not known: name it", ErrInterface, c.Addr)
	}
	var listen []ListenConfig
	for _, p := range set {
		listen = append(listen, p.listen)
	}
	ring, addrs, err := openPacketRing(listen)
	if err != nil {
		return nil, err
	}
	for _, p := range set {
		p.open = true
	}
	c.Log.Debug("lines are received by a receive ring", "lines", lineNames(set), "interface", c.Interface)
	return newTap(ring, set, addrs), nil
}

func newTap(s Socket, set []*plan, addrs []netip.AddrPort) *Tap {
	t := &Tap{Socket: s}
	for i, p := range set {
		p.group.addr = addrs[i]
		t.groups = append(t.groups, p.group)
		t.lines = append(t.lines, p.group.lines...)
	}
	return t
}

func lineNames(set []*plan) string {
	var names []string
	for _, p := range set {
		names = append(names, p.names...)
	}
	return strings.Join(names, ", ")
}

// lineError says which line an error is about, where there are several.
func lineError(of int, name string, err error) error {
	if of == 1 {
		return err
	}
	return fmt.Errorf("line %s: %w", name, err)
}

// NewTap is a Tap of one line, by its number, on a socket that is open.
func NewTap(s Socket, line int) *Tap {
	lines := []int{line}
	return &Tap{Socket: s, lines: lines, groups: []tapGroup{{addr: s.LocalAddr(), lines: lines, any: line}}}
}

// LineName is how a line is called: A, B, … Z, then its number.
func LineName(line int) string {
	if line >= 0 && line < 26 {
		return string(rune('A' + line))
	}
	return fmt.Sprint(line)
}

// Line is the line that d, which Socket read, came on; -1 when it is from a
// source that none of the lines names.
func (t *Tap) Line(d *Datagram) int {
	g := &t.groups[d.group]
	if len(g.by) > 0 {
		if l, ok := g.by[d.Src.Addr()]; ok {
			return l
		}
	}
	return g.any
}

// Lines are the numbers of the lines that t serves.
func (t *Tap) Lines() []int { return t.lines }

// Backend is what Socket is: UDPBackend or RingBackend.
func (t *Tap) Backend() Backend {
	if _, ok := t.Socket.(lender); ok {
		return RingBackend
	}
	return UDPBackend
}

// Addr is what a line that t serves is received on: for a group that and its
// port, else the address that was bound.
func (t *Tap) Addr(line int) netip.AddrPort {
	for _, g := range t.groups {
		if slices.Contains(g.lines, line) {
			return g.addr
		}
	}
	return netip.AddrPort{}
}

// plan is what is to be heard at one address.
type plan struct {
	group  tapGroup
	names  []string // of its lines
	listen ListenConfig
	open   bool // by a receive ring
}

// planLines groups lines by what they hear. where resolves the interface of a
// line.
func planLines(lines []ListenConfig, where func(ListenConfig) (*net.Interface, error)) ([]*plan, error) {
	type key struct {
		addr  netip.AddrPort
		index int
	}
	var plans []*plan
	byKey := make(map[key]*plan)
	name := func(i int) string {
		if lines[i].Name != "" {
			return lines[i].Name
		}
		return LineName(i)
	}
	for i, c := range lines {
		c.ensureDefaults()
		if err := c.validate(); err != nil {
			return nil, lineError(len(lines), name(i), err)
		}
		ifi, err := where(c)
		if err != nil {
			return nil, lineError(len(lines), name(i), err)
		}
		ifindex := 0
		if ifi != nil {
			ifindex, c.Interface = ifi.Index, ifi.Name
		}
		k := key{c.Addr, ifindex}
		p := byKey[k]
		if p == nil || c.Addr.Port() == 0 { // each gets a port of its own
			p = &plan{group: tapGroup{any: -1, by: make(map[netip.Addr]int)}, listen: c}
			p.listen.Source, p.listen.sources = netip.Addr{}, nil
			byKey[k] = p
			plans = append(plans, p)
		}
		same := func(other int) error {
			return fmt.Errorf("%w: %s and %s are both %v on one interface, from the same source", ErrSameLine, name(other), name(i), c.Addr)
		}
		if c.Source.IsValid() {
			src := c.Source.Unmap()
			if other, ok := p.group.by[src]; ok {
				return nil, same(other)
			}
			p.group.by[src] = i
			p.listen.sources = append(p.listen.sources, src)
		} else {
			if p.group.any >= 0 {
				return nil, same(p.group.any)
			}
			p.group.any = i
		}
		p.group.lines, p.names = append(p.group.lines, i), append(p.names, name(i))
	}
	for _, p := range plans {
		if p.group.any >= 0 {
			p.listen.sources = nil // one line hears everyone: join for all
		}
	}
	return plans, nil
}

// interfaceOf is the interface that c is heard on, so that a line that names it
// and one that leaves it to the system are known to be the same. nil: not
// known, or, of a unicast address without an interface, all.
func interfaceOf(c ListenConfig) (*net.Interface, error) {
	ifi, err := lookupInterface(c.Interface)
	if err != nil || ifi != nil || !c.Addr.Addr().IsMulticast() {
		return ifi, err
	}
	// The route decides. Asking the kernel by connecting a socket sends nothing.
	s, err := net.Dial("udp4", netip.AddrPortFrom(c.Addr.Addr(), max(c.Addr.Port(), 1)).String())
	if err != nil {
		return nil, fmt.Errorf("%w: no route for group %v: name the interface", ErrInterface, c.Addr.Addr())
	}
	defer s.Close()
	local, err := netip.ParseAddrPort(s.LocalAddr().String())
	if err != nil {
		return nil, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == local.Addr().Unmap() {
					return &i, nil
				}
			}
		}
	}
	return nil, nil
}
