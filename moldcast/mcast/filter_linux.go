package mcast

import (
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// group is what a receive ring hears of one group and port.
type group struct {
	ip      uint32
	port    uint16
	sources []uint32 // empty: everyone
}

func (g *group) hears(p *packet) bool {
	if p.dst != g.ip || p.dstPort != g.port {
		return false
	}
	for _, s := range g.sources {
		if s == p.src {
			return true
		}
	}
	return len(g.sources) == 0
}

const (
	filterAll    = 1 << 18              // accept, whole
	networkBase  = uint32(0xfff00000)   // SKF_NET_OFF: the IP header, wherever it is
	ethernetBase = 14                   // the same behind a plain Ethernet header: faster
	etherTypeIP  = 0x0800               //
	slotDst      = 0                    // scratch
	slotPort     = 1                    //
	slotSrc      = 2                    //
	maxHostType  = unix.PACKET_HOST + 2 // host, broadcast, multicast; beyond: others' and our own
)

// ringFilter accepts what the groups hear on the interface with an index. It
// is run by the kernel for each IPv4 packet that arrives, fragments put
// together.
func ringFilter(index int, groups []group) []bpf.Instruction {
	p := []bpf.Instruction{
		// What an address filter of the hardware let through for others, or
		// has a VLAN tag that no device is for.
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: maxHostType, SkipFalse: 1},
		bpf.RetConstant{},
		// Tagged packets show up on the trunk as well as on their VLAN's
		// device; those of a bond on the port that they came by.
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(index), SkipTrue: 1},
		bpf.RetConstant{},
	}
	return append(p, groupFilter(groups)...)
}

// groupFilter is ringFilter's part that looks at the packet.
func groupFilter(groups []group) []bpf.Instruction {
	plain, other := groupFilterAt(ethernetBase, groups), groupFilterAt(networkBase, groups)
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherTypeIP, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(plain))},
	}
	return append(append(p, plain...), other...)
}

func groupFilterAt(base uint32, groups []group) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: base + 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolUDP, SkipTrue: 1},
		bpf.RetConstant{},
		bpf.LoadAbsolute{Off: base + 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipFalse: 1},
		bpf.RetConstant{}, // a fragment
		bpf.LoadAbsolute{Off: base + 12, Size: 4},
		bpf.StoreScratch{Src: bpf.RegA, N: slotSrc},
		bpf.LoadMemShift{Off: base},
		bpf.LoadIndirect{Off: base + 2, Size: 2},
		bpf.StoreScratch{Src: bpf.RegA, N: slotPort},
		bpf.LoadAbsolute{Off: base + 16, Size: 4},
		bpf.StoreScratch{Src: bpf.RegA, N: slotDst},
	}
	for _, g := range groups {
		accept := []bpf.Instruction{bpf.RetConstant{Val: filterAll}}
		if len(g.sources) > 0 {
			accept = []bpf.Instruction{bpf.LoadScratch{Dst: bpf.RegA, N: slotSrc}}
			for _, s := range g.sources {
				accept = append(accept,
					bpf.JumpIf{Cond: bpf.JumpEqual, Val: s, SkipFalse: 1},
					bpf.RetConstant{Val: filterAll})
			}
			accept = append(accept, bpf.RetConstant{})
		}
		p = append(p,
			bpf.LoadScratch{Dst: bpf.RegA, N: slotDst},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: g.ip, SkipTrue: 1},
			bpf.Jump{Skip: uint32(len(accept) + 3)},
			bpf.LoadScratch{Dst: bpf.RegA, N: slotPort},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(g.port), SkipTrue: 1},
			bpf.Jump{Skip: uint32(len(accept))})
		p = append(p, accept...)
	}
	return append(p, bpf.RetConstant{})
}

// loopedFilter accepts what this host sent to a group and hears itself, on an
// interface that is no loopback: a receive ring never sees such.
func loopedFilter() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_LOOPBACK, SkipTrue: 1},
		bpf.RetConstant{},
		bpf.RetConstant{Val: filterAll},
	}
}

// attach has the kernel run a filter for fd.
func attach(fd int, filter []bpf.Instruction) error {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return err
	}
	prog := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		prog[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}))
}
