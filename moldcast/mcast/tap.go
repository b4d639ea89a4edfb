package mcast

import (
	"fmt"
	"net"
	"net/netip"
)

// Tap is one socket that serves one or several lines. Lines that share a
// group, port and interface share a Tap and are told apart by source, so that
// no datagram is ever counted on two.
type Tap struct {
	Conn *Conn

	lines []int // the lines served
	any   int   // the line that takes what no source claims; -1: none
	by    map[netip.Addr]int
}

// OpenLines opens the sockets for a set of lines: as few as can be. The index
// of a line in lines is its number. Errors: ErrSameLine where two lines differ
// in neither group, port, interface nor source; otherwise those of Listen.
func OpenLines(lines []ListenConfig) ([]*Tap, error) {
	plans, err := planLines(lines, interfaceIndex)
	if err != nil {
		return nil, err
	}
	var taps []*Tap
	for _, p := range plans {
		conn, err := Listen(p.listen)
		if err != nil {
			for _, t := range taps {
				t.Conn.Close()
			}
			return nil, fmt.Errorf("line %s: %w", p.listen.Name, err)
		}
		t := p.tap
		t.Conn = conn
		taps = append(taps, &t)
	}
	return taps, nil
}

// LineName is how a line is called: A, B, … Z, then its number.
func LineName(line int) string {
	if line >= 0 && line < 26 {
		return string(rune('A' + line))
	}
	return fmt.Sprint(line)
}

// Line is the line that d came on; -1 when it is from a source that none of
// the lines names.
func (t *Tap) Line(d *Datagram) int {
	if len(t.by) > 0 {
		if l, ok := t.by[d.Src.Addr()]; ok {
			return l
		}
	}
	return t.any
}

// Lines are the numbers of the lines that t serves.
func (t *Tap) Lines() []int { return t.lines }

type plan struct {
	tap    Tap
	listen ListenConfig
}

// planLines groups lines by socket. index resolves the interface of a line.
func planLines(lines []ListenConfig, index func(ListenConfig) (int, error)) ([]*plan, error) {
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
		c.Name = name(i)
		c.ensureDefaults()
		if err := c.validate(); err != nil {
			return nil, fmt.Errorf("line %s: %w", c.Name, err)
		}
		ifindex, err := index(c)
		if err != nil {
			return nil, fmt.Errorf("line %s: %w", c.Name, err)
		}
		k := key{c.Addr, ifindex}
		p := byKey[k]
		if p == nil || c.Addr.Port() == 0 { // each gets a port of its own
			p = &plan{tap: Tap{any: -1, by: make(map[netip.Addr]int)}, listen: c}
			p.listen.Source, p.listen.sources = netip.Addr{}, nil
			byKey[k] = p
			plans = append(plans, p)
		}
		same := func(other int) error {
			return fmt.Errorf("%w: %s and %s are both %v on one interface, from the same source", ErrSameLine, name(other), c.Name, c.Addr)
		}
		if c.Source.IsValid() {
			src := c.Source.Unmap()
			if other, ok := p.tap.by[src]; ok {
				return nil, same(other)
			}
			p.tap.by[src] = i
			p.listen.sources = append(p.listen.sources, src)
		} else {
			if p.tap.any >= 0 {
				return nil, same(p.tap.any)
			}
			p.tap.any = i
		}
		p.tap.lines = append(p.tap.lines, i)
	}
	for _, p := range plans {
		if p.tap.any >= 0 {
			p.listen.sources = nil // one line hears everyone: join for all
		}
	}
	return plans, nil
}

// interfaceIndex is the index of the interface that c is heard on, so that a
// line that names it and one that leaves it to the system are known to be the
// same. A unicast address without an interface is heard on all: 0.
func interfaceIndex(c ListenConfig) (int, error) {
	ifi, err := lookupInterface(c.Interface)
	if err != nil || ifi != nil {
		index := 0
		if ifi != nil {
			index = ifi.Index
		}
		return index, err
	}
	if !c.Addr.Addr().IsMulticast() {
		return 0, nil
	}
	// The route decides. Asking the kernel by connecting a socket sends nothing.
	s, err := net.Dial("udp4", netip.AddrPortFrom(c.Addr.Addr(), max(c.Addr.Port(), 1)).String())
	if err != nil {
		return 0, fmt.Errorf("%w: no route for group %v: name the interface", ErrInterface, c.Addr.Addr())
	}
	defer s.Close()
	local, err := netip.ParseAddrPort(s.LocalAddr().String())
	if err != nil {
		return 0, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == local.Addr().Unmap() {
					return i.Index, nil
				}
			}
		}
	}
	return 0, nil
}
