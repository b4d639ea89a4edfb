// Package gap finds what is missing in a sequence space, and decides when to
// ask whom for it. It is pure: no socket, goroutine, lock or clock; every
// method that needs the time takes it, and answers with values. The receiver
// and the capture's arbiter use the same machine.
//
// Set is a set of sequences as sorted disjoint ranges. Machine is gap
// detection and the request schedule for one sequence space; the messages
// themselves stay with its owner.
//
// Ranges are half-open. Sequences run from 1 to 2^64-2; 2^64-1 occurs only as
// an exclusive end, so no sum of a range here can wrap.
package gap
