// Package capture is the capture node: it receives the lines of a channel,
// has gaps repaired, and hands every message once to a Sink.
//
//	line A ─▶ RX thread ─▶ ring ─┐
//	line B ─▶ RX thread ─▶ ring ─┼─▶ engine: arbiter ─▶ Sink
//	answers ▶ RX thread ─▶ ring ─┘      │
//	             request servers ◀──────┘ requests
//
// A Channel has one engine, the goroutine that calls Run. It owns the arbiter
// and with it all protocol state, so nothing is locked; what others want to
// know of it (Status) they ask it. Answers to requests are ordinary
// downstream packets that enter by the same door as a third line; they are
// taken only from addresses that were asked.
//
// A sender that was started again under its session's name is recorded as the
// next take (package arbiter has the rule). What must be read from the disk for
// that, to compare old messages and to copy what the takes have in common, is
// read by goroutines of their own, in bounded queues; what they find enters the
// engine as events. A copy that a crash or a stop cut short goes on when the
// take is opened again.
//
// Long gaps are fetched from the recovery streams of peers: one goroutine for
// each connection, at most 4, whose messages enter the engine between the
// packets of the lines (see recovery.go).
//
// The engine never waits for the disk: a Sink that is full refuses, and what
// it refused stays a gap, to be repaired.
package capture
