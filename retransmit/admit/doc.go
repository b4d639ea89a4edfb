// Package admit decides which requests a retransmission server answers. It is
// pure: the time is an argument, and it owns no socket, goroutine, lock or
// clock.
//
// A request passes, in this order: a source that can be answered at all, the
// allow-list, linger, the client's budget, the total budget. Its count is
// clamped. The first that refuses names the verdict, and a refused request
// costs no budget.
//
//   - Source. Nothing goes to multicast, broadcast, "this network" (0/8),
//     reserved (240/4) or port 0: a request from there is forged.
//   - Allow-list. An answer is up to 75 times as large as the 20 bytes that
//     ask for it, and UDP sources can be forged, so a server open to the world
//     is a weapon. The default admits loopback, private and link-local
//     networks; Config.Allow replaces it.
//   - Linger. The same request, from the same address and port, less than
//     Config.Linger after its answer is a duplicate made by the network, or
//     was sent before the answer arrived: it is not answered twice. Nor is one
//     for part of what was sent there in that time, which is what counts: not
//     what was asked for, of which a packet holds the beginning. A receiver
//     that lost the answer retries later than that, and is answered.
//   - Budgets. Token buckets for requests and for answered bytes, for each
//     client and in total. A client is an IPv4 address or an IPv6 /64: ports
//     are free to whoever asks. Bytes are paid after the answer: a bucket in
//     debt refuses until it is positive again.
//
// # Bounds
//
// The table holds at most Config.Clients clients. A new one takes the place of
// the client idle longest, but only once that one's budgets are full again and
// its linger is over, so that forgetting it forgives nothing. Otherwise, and
// until there is such a place, all clients without one share one budget: a
// flood of forged sources starves itself and newcomers, never those who were
// there before, and memory stays as it is.
package admit
