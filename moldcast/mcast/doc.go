// Package mcast runs moldcast on sockets: batch UDP sockets with multicast
// join, kernel timestamps and drop counts; receive rings shared with the
// kernel; the receive thread and its queue; a
// seeded link impairment; an in-memory network for tests in virtual time; and
// the shells Publisher and Subscriber around moldcast's pure machines.
//
// # Receiving
//
//	socket ──recvmmsg──▶ RX ──slots──▶ Ring ──Pop──▶ engine
//	        (one thread)     (no copy)       (one goroutine)
//
// An RX owns one socket and one locked OS thread. It reads batches straight
// into the slots of a single-producer, single-consumer Ring and does nothing
// else. When the ring is full it reads into scratch, discards and counts: the
// kernel's buffer never hides a loss, and a loss stays repairable. Several RXs
// share one Wake, on which the engine sleeps.
//
// # Two back ends
//
// Either is a Socket; OpenLines chooses (Backend). A UDP socket is read by
// recvmmsg, 64 datagrams a call. A receive ring (TPACKET_V3 of an AF_PACKET
// socket) is memory that the kernel writes packets into; all the multicast
// groups of an interface share one. It hands blocks of 128 KiB over when they
// are full, or after 1 ms. Its RX lends their packets to the engine, without a
// copy, and gives a block back when the engine has popped the last; of a block
// that is hardly filled it copies them into the Ring's slots. When the Ring is
// full it waits: the kernel's ring fills, and the kernel counts what finds no
// room. What a UDP socket's stack does for it, a ring has done thus:
//
//   - Membership: a UDP socket for each group, whose filter drops all but what
//     this host itself sent to the group on an interface that is no loopback,
//     which packet sockets never hear. That is read from there. (The kernel
//     counts what is filtered in UdpInErrors.)
//   - Which packets: a filter by interface, group, port and source in the
//     kernel. The packet socket is bound to IPv4, behind VLANs, bridges and
//     bonds: it sees what the kernel's stack would of the interface, not what
//     goes out, nor other VLANs of a trunk. What a firewall or a reverse-path
//     filter drops, it sees; a packet with IP options is taken whatever they
//     are.
//   - Fragments are put together by the kernel (a fan-out group of one socket,
//     with PACKET_FANOUT_FLAG_DEFRAG), within its own bounds.
//   - Checksums and lengths are verified by the kernel's rules, unless the
//     hardware did, or the packet never left the host. What is broken is
//     counted (Invalid).
//   - Super-packets, of a sender with UDP_SEGMENT on a virtual link or of
//     receive offload, are split by the GSO size of the virtio header. Before
//     Linux 6.2 the kernel cannot say it, and drops and counts them.
//   - Stamps are those of SO_TIMESTAMPNS, to the nanosecond.
//
// Both watch their interface (rtnetlink): while it is down the groups are left,
// and joined when it is back, so that the switch hears of it (IGMP); a ring is
// made anew where the interface was. A ring needs CAP_NET_RAW, and memory that
// is there from the start (DefaultRingSize), for at least a millisecond a block.
//
// An RX blocks in system calls, and a Go processor (GOMAXPROCS) stays with a
// thread for a moment after it blocked. A program that runs several RXs on few
// cores should raise GOMAXPROCS by the number of RXs.
//
// # Sending
//
// A Conn tries every datagram of a batch, and skips what the system refuses. An
// InOrder stops there and says how many went, and takes for sent only what was:
// the kernel reports as sent what the queue of an interface drops (unless
// IP_RECVERR is set), and what an interface without a carrier does. DialInOrder
// sends by UDP, DialPacket by frames: headers made here, one sendmmsg for up to
// 64 of them with the payloads where they lie, past the queueing discipline. What
// such frames pass by is also what would have looped them back to this host's own
// receivers, fragmented them (a UDP socket does that for what is too long), and
// found a neighbour's hardware address: so multicast only. (On a veth pair: 0.8 µs
// of CPU a packet, by UDP 1.2; a transmit ring would save a tenth of the 0.8.)
//
// # Invariants
//
//   - Nothing allocates per datagram, except for one longer than a ring's slot,
//     which gets a buffer of its own, bounded in total by the ring.
//   - Every datagram that the kernel handed over is in exactly one of: popped,
//     still in the ring, QueueDropped, Truncated.
//   - What is lent stays as it is until the next Pop, also beyond Close.
//   - Socket errors are counted and survived; only a closed socket ends a read.
//   - After Close returns no thread is inside the socket, and its port is free.
//
// On systems other than Linux sockets work one datagram a call and stamp in
// user space, without drop counts.
package mcast
