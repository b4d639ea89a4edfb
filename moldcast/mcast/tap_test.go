//go:build linux

package mcast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
)

func TestPlanLines(t *testing.T) {
	interfaces := map[string]int{"": 2, "lo": 1, "eth0": 2, "eth1": 3}
	where := func(c ListenConfig) (*net.Interface, error) {
		if !c.Addr.Addr().IsMulticast() && c.Interface == "" {
			return nil, nil
		}
		return &net.Interface{Index: interfaces[c.Interface], Name: c.Interface}, nil
	}
	line := func(addr, iface, source string) ListenConfig {
		c := ListenConfig{Addr: netip.MustParseAddrPort(addr), Interface: iface}
		if source != "" {
			c.Source = netip.MustParseAddr(source)
		}
		return c
	}
	const g1, g2 = "239.1.1.1:5000", "239.1.1.2:5000"
	for _, c := range []struct {
		name  string
		lines []ListenConfig
		want  string // lines of each socket, + the sources it joins for
		err   error
	}{
		{"two groups", []ListenConfig{line(g1, "lo", ""), line(g2, "lo", "")}, "[0]+[] [1]+[]", nil},
		{"two ports", []ListenConfig{line(g1, "lo", ""), line("239.1.1.1:5001", "lo", "")}, "[0]+[] [1]+[]", nil},
		{"two interfaces", []ListenConfig{line(g1, "eth0", ""), line(g1, "eth1", "")}, "[0]+[] [1]+[]", nil},
		{"two sources", []ListenConfig{line(g1, "lo", "10.0.0.1"), line(g1, "lo", "10.0.0.2")}, "[0 1]+[10.0.0.1 10.0.0.2]", nil},
		{"one source and the others", []ListenConfig{line(g1, "lo", "10.0.0.1"), line(g1, "lo", "")}, "[0 1]+[]", nil},
		{"unicast, by source", []ListenConfig{line("10.0.0.9:5", "", "10.0.0.1"), line("10.0.0.9:5", "", "10.0.0.2")}, "[0 1]+[10.0.0.1 10.0.0.2]", nil},
		{"free ports", []ListenConfig{line("127.0.0.1:0", "", ""), line("127.0.0.1:0", "", "")}, "[0]+[] [1]+[]", nil},
		{"the same", []ListenConfig{line(g1, "lo", ""), line(g1, "lo", "")}, "", ErrSameLine},
		{"the same source", []ListenConfig{line(g1, "lo", "10.0.0.1"), line(g1, "lo", "10.0.0.1")}, "", ErrSameLine},
		{"the same interface, once by name", []ListenConfig{line(g1, "", ""), line(g1, "eth0", "")}, "", ErrSameLine},
		{"no IPv4", []ListenConfig{line("[ff02::1]:5", "lo", "")}, "", ErrAddress},
	} {
		t.Run(c.name, func(t *testing.T) {
			plans, err := planLines(c.lines, where)
			if !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			got := ""
			for i, p := range plans {
				if i > 0 {
					got += " "
				}
				got += fmt.Sprintf("%v+%v", p.group.lines, p.listen.sources)
			}
			if err == nil && got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestTapSources: two lines that share a group and a port are told apart by
// their senders, and no datagram counts twice.
func TestTapSources(t *testing.T) {
	free := join(t, "239.255.51.1", ListenConfig{})
	group := free.LocalAddr()
	a, b := netip.MustParseAddr("127.0.51.1"), netip.MustParseAddr("127.0.51.2")
	for _, c := range []struct {
		name   string
		second netip.Addr
		lines  []int
		data   []string
	}{
		{"two sources", b, []int{0, 1}, []string{"from a", "from b"}},
		{"one and the others", netip.Addr{}, []int{0, 1, 1}, []string{"from a", "from b", "from c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			taps := must[[]*Tap](t)(OpenLines([]ListenConfig{
				{Addr: group, Interface: "lo", Source: a},
				{Addr: group, Interface: "lo", Source: c.second},
			}, UDPBackend))
			if len(taps) != 1 {
				t.Fatalf("%d sockets", len(taps))
			}
			tap := taps[0]
			defer tap.Socket.Close()
			for _, from := range []string{"127.0.51.1", "127.0.51.2", "127.0.51.3"} {
				out := dial(t, group, SendConfig{Bind: netip.AddrPortFrom(netip.MustParseAddr(from), 0)})
				must[int](t)(out.Send([][]byte{[]byte("from " + string(rune('a'+from[len(from)-1]-'1')))}))
			}
			var lines []int
			var data []string
			for _, d := range read(t, tap.Socket, len(c.data), 64) {
				lines = append(lines, tap.Line(&d))
				data = append(data, string(d.Data))
			}
			if !slices.Equal(lines, c.lines) || !slices.Equal(data, c.data) {
				t.Errorf("%v %q", lines, data)
			}
		})
	}
}

func TestTapForeign(t *testing.T) {
	taps := must[[]*Tap](t)(OpenLines([]ListenConfig{{Addr: loopback, Source: netip.MustParseAddr("127.0.51.1")}}, Auto))
	defer taps[0].Socket.Close()
	must[int](t)(dial(t, taps[0].Socket.LocalAddr(), SendConfig{Bind: loopback}).Send([][]byte{[]byte("x")}))
	d := read(t, taps[0].Socket, 1, 16)[0]
	if got := taps[0].Line(&d); got != -1 {
		t.Errorf("line %d", got)
	}
	if _, err := OpenLines([]ListenConfig{{Addr: loopback}, {Addr: loopback, Interface: "nosuch0"}}, Auto); !errors.Is(err, ErrInterface) {
		t.Errorf("%v", err)
	}
}
