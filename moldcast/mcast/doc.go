// Package mcast runs moldcast on sockets: batch UDP sockets with multicast
// join, kernel timestamps and drop counts; the receive thread and its ring; a
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
// An RX blocks in system calls, and a Go processor (GOMAXPROCS) stays with a
// thread for a moment after it blocked. A program that runs several RXs on few
// cores should raise GOMAXPROCS by the number of RXs.
//
// # Invariants
//
//   - Nothing allocates per datagram, except for one longer than a ring's slot,
//     which gets a buffer of its own, bounded in total by the ring.
//   - Every datagram that the kernel handed over is in exactly one of: popped,
//     still in the ring, QueueDropped, Truncated.
//   - Socket errors are counted and survived; only a closed socket ends a read.
//   - After Close returns no thread is inside the socket, and its port is free.
//
// On systems other than Linux sockets work one datagram a call and stamp in
// user space, without drop counts.
package mcast
