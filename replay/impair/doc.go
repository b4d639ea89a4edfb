// Package impair harms the packets of one line as a network does: it loses
// them, alone and in bursts, repeats them, lets later ones overtake them, and
// delays them. It is pure: it owns no clock, socket or goroutine.
//
//	            ┌ lost ─▶ gone
//	packet ─▶ fate ┼ reorder k ─▶ held until k later packets came ┐
//	            └ at its place (and its duplicate) ───────────────┴─▶ delay ─▶ out
//
// # The rule
//
// A Fate is drawn for each packet, in the order in which they are offered.
// Seven numbers of a PCG are drawn for every packet whatever becomes of it, so
// the fates depend on the seed and on how many packets came before: not on
// when they came, nor on how they were batched, and to change one probability
// changes no fate under another.
//
//   - Burst loss: at a packet outside a burst one begins with probability
//     BurstLoss; it takes BurstLen packets, this one the first. The mean share
//     lost so is PL/(1+P(L-1)).
//   - Loss: any other packet is lost with probability Loss.
//   - Duplicate: a packet that is not lost goes twice, the second copy right
//     behind its place, also where the first is held back.
//   - Reorder: a packet that is not lost is held back until k later packets
//     were offered, k uniform in 1..Depth. So it is overtaken by at most Depth.
//     Packets that come free together go in the order of their places.
//   - Delay: each copy goes up to Jitter later than it would have, uniformly.
//
// # Invariants
//
//   - What is offered and not lost comes out, once or (duplicate) twice.
//   - At most Depth packets are held for reorder, at most MaxDelayed packets and
//     MaxDelayedBytes for delay. Beyond that the one that is due next goes early,
//     and is counted (Counters.Early).
//   - Once its buffers have grown, Offer allocates nothing.
package impair
