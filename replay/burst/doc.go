// Package burst finds the busiest windows of a recording, and makes them
// busier: it takes quiet time out between bursts and leaves bursts as they
// were, as far as that goes. It is pure.
//
// # The busiest windows
//
// A window of a length begins at a packet and holds what is stamped less than
// the length later. Peaks keeps the busiest, by messages; of those that overlap
// as time goes on the busiest one. So the first is the busiest of all, exactly;
// those behind it lie apart. A stamp below an earlier one counts as that.
//
// FindPeaks finds the same with as few looks at packets as it can. Packets come
// in spans, of which the first and last stamp and the messages are known. A
// window that begins in a span holds at most the messages of all spans that the
// length reaches from there: spans of which that is too little are not read, nor
// those that lie inside of every window that begins in one. Windows below a
// number of messages play no part in which of the others are kept: dropping one
// changes the busiest so far only where it is below that number too. So it looks
// for windows of at least so many, which it takes from a first look at the
// spans that may hold most, and for fewer where that was too much.
//
// # Stress by F
//
// The busiest second of what is replayed shall hold F times as many messages as
// the busiest second P of what was recorded. A Planner counts messages in bins
// of 10 ms (wider ones where there would be more than 2^22), of spans again, of
// which it reads those that lie partly in windows that may be the answer. It takes for K the
// shortest time, in seconds, in which F·P messages came, but at least F: played K
// times as fast those fill one second. Where less than F·P messages were
// recorded at all there is no plan.
//
// Warp then moves packets, in order. Gaps up to MaxGap (1 ms) lie within a
// burst, longer ones between bursts. The target of a packet is its distance
// from the first over K.
//
//   - Within a burst a gap stays as it was: the burst falls behind its targets.
//     When it is Lag (50 ms) behind, its gaps are divided by F until its end.
//   - Between bursts a packet goes at its target, but no earlier than the gap
//     over F, or MaxGap where that is less, behind the one before.
//
// # Invariants
//
//   - Order is kept, equal stamps stay equal, no gap grows.
//   - No gap within a burst becomes less than 1/F of it.
//   - A packet is never before its target.
//
// The peak so comes to F·P but for the bins and what Lag moves across the ends
// of a second. It stays below where bursts next to the busiest second are so
// dense that a K-th of their time would take more than F from their gaps.
package burst
