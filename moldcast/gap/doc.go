// Package gap finds what is missing in a sequence space, and decides when to
// ask whom for it. It is pure: no socket, goroutine, lock or clock; every
// method that needs the time takes it, and answers with values. The receiver
// and the capture's arbiter use the same machine.
//
// Set is a set of sequences as sorted disjoint ranges. Machine is gap
// detection and the request schedule for one sequence space; the messages
// themselves stay with its owner.
//
// # The life of a missing range
//
//	shown ──settle──▶ gap ──budget──▶ lost ──▶ asked for now and then,
//	  │                │                │      or given up
//	  ▼                ▼                ▼
//	disorder       recovered       recovered, stale
//
// It is shown by a packet beyond it, a heartbeat or an end of session. Until
// the settle time has run, or the lines have gone on, it may be disorder that
// heals by itself: nothing is counted and nobody is asked. Then it is a gap,
// and is asked for at once: oldest first, no range twice at a time, in pieces
// of what an answer carries, with at most Outstanding requests unanswered. A
// request that is not answered is repeated, to the next server, after four
// round trips, then twice that and so on, with jitter, and has its turn rarely
// once it was not answered twice; one that is answered in part is repeated at
// once for the rest, since a server answers one packet of what fits. A gap that
// brings nothing for the length of the budget is lost, which is said and counted
// once, however often it was asked for and into whatever parts it has fallen.
// While the owner cannot take anything in (Hold) nothing is asked for, and no
// budget runs.
//
// # What a server still has
//
// A sender keeps its newest messages only. How far below the front of the lines,
// which is where their newest packets end, each server still has them is learnt from what it answers and what not: see reach. What
// lies deeper is not asked for, but probed for now and then: a little below what
// was answered, down to the very next message, and anywhere. So the requests go
// to what can be got, the oldest of it first, with a little lead before it goes
// too. A server that has everything is asked for the oldest first; one that does
// not answer while another does is passed over. A few requests lost by chance
// move nothing. A server answers from the first message on or not at all: what
// was asked for in vain is now and then asked for from farther on, see skip.
//
// # How often it is asked
//
// At 1000 requests a second to begin with; more, up to RequestsPerSecond, only
// while requests wait and the answers come promptly; less where they do not: see
// rate. A small gap for which an answer would have room to spare rather waits
// than asks for more than 1000. Budgets (Shared) bound several machines together.
//
// What was missing before (Resume, Extend) has its turn after what goes
// missing now, and what is lost after both, with a tenth of the requests.
//
// What is lost and somebody wants (Want) has its turn at once, though at no
// higher rate. What somebody wants from below the start (WantBelow) is asked for
// once and is no gap.
//
// What an owner fetches by other means it reserves (Reserve): it is not asked
// for until it is released.
//
// # Invariants
//
// Ranges are half-open. Sequences run from 1 to 2^64-2; 2^64-1 occurs only as
// an exclusive end, so no sum of a range here can wrap. Between First and Head
// each sequence is held, missing, or given up. All state is bounded by
// MaxGaps, whatever comes; what finds the table full is refused or takes the
// place of what is lost, or from before, and is counted. What was given up is
// remembered in two steps, exactly and then vaguely, so that it is never taken
// for held: Forgotten says that the owner must know.
package gap
