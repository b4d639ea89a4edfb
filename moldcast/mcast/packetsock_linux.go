package mcast

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// packetSocket makes a packet socket that hears nothing yet.
func packetSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("packet socket: %w: it needs CAP_NET_RAW (run as root, or setcap cap_net_raw+ep on the program)", err)
	case err != nil:
		return -1, os.NewSyscallError("socket AF_PACKET", err)
	}
	return fd, nil
}

// ethernet reports why an interface's packets are not Ethernet's.
func ethernet(name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	if err := unix.IoctlIfreq(s, unix.SIOCGIFHWADDR, ifr); err != nil {
		return os.NewSyscallError("ioctl SIOCGIFHWADDR", err)
	}
	if t := ifr.Uint16(); t != unix.ARPHRD_ETHER && t != unix.ARPHRD_LOOPBACK { // sa_family is the hardware's type
		return fmt.Errorf("its hardware type %d is not Ethernet's", t)
	}
	return nil
}

// setupRing gives fd a filter and a ring of about size bytes, less where the
// system has not as many, and maps it.
func setupRing(fd, size int, filter []bpf.Instruction) ([]byte, error) {
	set := func(opt, v int, name string) error {
		return os.NewSyscallError("setsockopt "+name, unix.SetsockoptInt(fd, unix.SOL_PACKET, opt, v))
	}
	// The stamps are those that a UDP socket with SO_TIMESTAMPNS has.
	err := errors.Join(
		attach(fd, filter),
		set(unix.PACKET_VERSION, unix.TPACKET_V3, "PACKET_VERSION"),
		set(unix.PACKET_VNET_HDR, 1, "PACKET_VNET_HDR"), // tells super-packets
	)
	if err != nil {
		return nil, err
	}
	blocks := max(size, MinRingSize) / ringBlock
	for {
		const frame = 2048 // means nothing to TPACKET_V3, but must divide a block
		err := unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq3{
			Block_size: ringBlock, Block_nr: uint32(blocks), Frame_size: frame, Frame_nr: uint32(blocks * (ringBlock / frame)), Retire_blk_tov: retireAfter,
		})
		if errors.Is(err, unix.ENOMEM) && blocks*ringBlock/2 >= MinRingSize {
			blocks /= 2
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("setsockopt PACKET_RX_RING", err)
		}
		break
	}
	mem, err := unix.Mmap(fd, 0, blocks*ringBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	return mem, os.NewSyscallError("mmap", err)
}

// attachInterface begins reception. Bound to IPv4, a packet socket is served
// where the kernel's own stack is: behind VLANs, bridges and bonds, and never
// with what goes out. The fan-out, of one, has fragments put together by the
// kernel, within its own bounds (net.ipv4.ipfrag_high_thresh, ipfrag_time).
func attachInterface(fd, index int) error {
	const ip = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8 // network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: index}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	fanout := uint32(unix.PACKET_FANOUT_LB|unix.PACKET_FANOUT_FLAG_DEFRAG|unix.PACKET_FANOUT_FLAG_UNIQUEID) << 16
	return os.NewSyscallError("setsockopt PACKET_FANOUT", unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT, int(int32(fanout))))
}

// silence has fd hear nothing more.
func silence(fd int) { _ = attach(fd, []bpf.Instruction{bpf.RetConstant{}}) }
