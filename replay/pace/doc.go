// Package pace says when each packet of a replay is due. It is pure: it owns
// no clock and takes the instants it needs.
//
// # The rule
//
//	due(packet) = anchor + (position(packet) - position(anchor)) / speed
//
// The position is recorded time: the packet's stamp, less what --max-idle cut
// out of the quiet times before it. It is an integer number of ns and never
// falls: a stamp below an earlier one (a step of the wall clock) takes the
// position of the highest before it, so such a packet goes at once and stalls
// nothing behind it, and packets with equal stamps are due together in the
// order in which they are asked for.
//
// There is one anchor, moved only where the relation between recorded and real
// time changes: start, pause, seek, change of speed. Every due time is
// reckoned from it with 128-bit integers, so no error is carried from one
// packet to the next: after any number of hours each due time is exact to
// 1 ns. A sender that falls behind is late against the anchor and catches up;
// it does not shift what follows. How fast it may catch up says a Limiter.
//
// # Invariants
//
//   - Due never falls from one packet to the next between two re-bases.
//   - At speed s the schedule of a recording of length d lasts d/s, whatever
//     its packets: 2 is twice as fast.
//   - A pause of length p shifts everything after it by p, to 1 ns of recorded
//     time, and what was late when it began by as much.
//   - A Limiter makes nothing early and changes no order.
package pace
