package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// read takes in datagrams, at least one, and reports how many, and whether the
// end of the burst was among them.
type read func() (n int, end bool, err error)

func receive(how string) error {
	var r read
	var err error
	switch how {
	case "udp":
		r, err = udp()
	case "ring":
		r, err = ring()
	case "xnet":
		r, err = xnet()
	default:
		err = fmt.Errorf("%q: want ring, udp or xnet", how)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	allocs, began := mallocs(), bench.CPU()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); allocs, began = mallocs(), bench.CPU() {
		got := 0
		for end := false; !end; {
			var n int
			if n, end, err = r(); err != nil {
				return err
			}
			got += n
		}
		took := bench.CPU() - began
		fmt.Printf("%d %.6f %d\n", got, took.Seconds(), mallocs()-allocs)
	}
	runtime.KeepAlive(sink)
	return nil
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

var sink int // what was read, so that it is

// udp is the UDP back end: what a thread does to fill its ring.
func udp() (read, error) {
	runtime.LockOSThread()
	s, err := mcast.Listen(mcast.ListenConfig{Addr: group, Interface: iface, RecvBuffer: buffer})
	if err != nil {
		return nil, err
	}
	ds := make([]mcast.Datagram, mcast.BatchSize)
	bufs := make([]byte, len(ds)*2048)
	return func() (n int, end bool, err error) {
		for i := range ds {
			ds[i].Data = bufs[i*2048 : i*2048 : (i+1)*2048]
		}
		n, err = s.ReadBatch(ds)
		for i := range ds[:n] {
			sink += len(ds[i].Data) + int(ds[i].Stamp&1)
			end = end || ds[i].Data[0] == 'E'
		}
		return n, end, err
	}, nil
}

// ring is the receive ring, all the way to the engine: thread, queue, Pop.
func ring() (read, error) {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2) // as capture does
	taps, err := mcast.OpenLines([]mcast.ListenConfig{{Addr: group, Interface: iface, RingSize: 2 * buffer}}, mcast.RingBackend)
	if err != nil {
		return nil, err
	}
	wake := mcast.NewWake()
	queue := mcast.StartRX(taps[0].Socket, mcast.NewRing(0, 0), wake, nil).Ring()
	return func() (n int, end bool, err error) {
		for n == 0 {
			for d := queue.Pop(); d != nil; d = queue.Pop() {
				n++
				sink += len(d.Data) + int(d.Stamp&1)
				end = end || d.Data[0] == 'E'
			}
			c := wake.Arm()
			if n == 0 && queue.Empty() {
				<-c
			}
			wake.Disarm()
		}
		return n, end, nil
	}, nil
}

// xnet is golang.org/x/net's ReadBatch.
func xnet() (read, error) {
	runtime.LockOSThread()
	ifi, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenMulticastUDP("udp4", ifi, net.UDPAddrFromAddrPort(group))
	if err != nil {
		return nil, err
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer/2) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer/2)
		}
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	})
	if err != nil {
		return nil, err
	}
	p := ipv4.NewPacketConn(udp)
	ms := make([]ipv4.Message, mcast.BatchSize)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, 2048)}
		ms[i].OOB = make([]byte, 128)
	}
	return func() (n int, end bool, err error) {
		n, err = p.ReadBatch(ms, 0)
		for i := range ms[:max(n, 0)] {
			for oob := ms[i].OOB[:ms[i].NN]; len(oob) >= unix.SizeofCmsghdr; {
				h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
				if err != nil {
					return n, false, err
				}
				if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS {
					sink += int(binary.NativeEndian.Uint64(data[8:]) & 1)
				}
				oob = rest
			}
			sink += ms[i].N
			end = end || ms[i].Buffers[0][0] == 'E'
		}
		return n, end, err
	}, nil
}
