// Package rejoin brings a moldcast.Receiver that is far behind back to the live
// stream: at a late join, or after it heard nothing for a while. It is the pure
// state machine of the client side of recovery streams; a shell dials, reads and
// writes.
//
// A gap of more than Threshold messages, or one that nothing has filled in two
// seconds, is fetched from a recovery stream (package soup), one connection at a
// time:
//
//	live      │ buffered by the Receiver, in order, bounded ────────┐
//	          │                                                     ▼
//	stream    │ login at the first missing − Overlap ─▶ compare ─▶ deliver … joint ─▶ read on for a while
//
// Live messages are received, and small gaps of them asked for, all the while.
// What finds no room has the Receiver start over: all that waited is dropped,
// and the stream goes on to where live is by then. So nothing is delivered
// twice, or out of order, and memory is bounded, whatever the speeds. The stream
// is left when it has brought nothing of use for a second.
//
// # Two phases
//
// With a Snapshot delivery begins with an application's state. Everything waits
// until one is whole, and it is known that the next message follows: it was
// heard, or is what the server sends next, or the server has nothing to send
// yet. Otherwise another is asked for, with the same back-off, for a bounded
// number of tries.
//
// # What is believed
//
// Before the first message of a server is delivered, what follows the gap and
// was heard live is compared with what it has, where anything was heard; then,
// always, the Overlap messages before the gap, and all that both have. A server
// with other bytes is left alone for a minute. One that was found to have the
// same may run ahead of the lines, and says where the session ends; another is
// read as far as the lines have shown.
//
// Lines that were silent for three seconds, of a session that is named, show
// nothing more: the servers are asked for what comes next, again and again with
// the same back-off, and believed. So the whole of a session can be had after its
// end.
//
// # What goes wrong
//
// A connection that breaks off is taken up where it was, at the next server in
// turn, each after a back-off with jitter. A range that is a hole of every
// server is reported lost at once where there is no request server; else it is
// left to requests and their budget. Budget bounds how long the streams may
// bring nothing: then what they were to bring is left to requests too, and to
// the budget of gaps, and in the end is lost.
package rejoin
