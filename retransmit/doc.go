// Package retransmit answers MoldUDP64 requests from an archive, without a
// window: whatever is held can be asked for. And it serves recovery streams.
//
// # The rules (protocol.md, "MoldUDP64")
//
//   - One request, at most one answer: a downstream packet, unicast to the
//     address that the request came from. It holds whole messages, from the
//     first asked for, contiguous, as many as were asked for and fit the MTU;
//     the requester asks again for the rest.
//   - A message larger than the MTU goes alone in one larger datagram.
//   - Nothing at or beyond the head is ever sent, nor anything of another
//     session. A name on the wire is the latest take under that name.
//   - Where the archive has a hole, the answer ends before it; a request whose
//     first message is missing has no answer.
//   - Everything else (malformed, empty, count 0, out of range, unknown
//     session, refused by admission) has no answer, but a counter with the
//     Reason. Requests are conserved: each is answered, or counted under
//     exactly one Reason, or waits for its cold read.
//
// # How
//
// One goroutine reads requests in batches and answers from memory at once:
// nothing there allocates or waits. While more waits than a batch, all of it is
// read and clients have their turn, one request each; who has most in that
// queue loses when it is full.
//
// What needs a disk goes to a pool of workers over a bounded queue, of which one
// client gets at most a quarter, and where clients have their turn as well. A
// block is read for one request at a time; those that need it too wait for that
// read and keep no worker. When the queue is full the request is dropped and
// counted, and the requester's retry finds it shorter. So a client that reads
// last week's history never delays one that lost a packet a moment ago.
//
// # What is lacking
//
// With an Upstream, what is asked for and lacking is wanted there: a range once
// in 50 ms, however many ask for it, and within budgets, so that nobody can
// have the venue asked at will. Who asked is kept in mind for a quarter of a
// second, and answered when it has come.
//
// # Who asks
//
// A census counts by client what was asked and what became of it. It is bounded,
// and those who ask most stay in it.
//
// # The recovery stream
//
// A StreamServer serves the same recordings over TCP, by package soup: history
// from the archive, a chunk at a time, then what comes, without a hole or a
// repeat, since a reader only ever asks for what follows the last it was sent.
// Nothing is queued for a reader: one that is slow reads the archive later.
// What costs memory or time is bounded: the connections, the reads from the
// archive at a time, and how long a reader may take nothing.
//
// The stream of a recording is encoded once for all its readers (wire): in
// chunks that never change, kept up to a number of bytes, each made by the first
// who asks for it while the others wait for that. The newest chunk is continued
// where the recording grows. What needs a disk waits in a line, in order, a chunk
// at a time (line); what is in memory does not. A reader has of its own where it
// is, and the rest of a frame that was half sent. On TCP only a few readers copy
// to the kernel at once (turnConn), so that a crowd leaves processors to others.
//
// A client that asks for it (package soup, Snapshots) is first sent a snapshot of
// an application's state, where the Recording has some: read in line a piece at a
// time, once the one before is on its way, so that it costs a reader three pieces
// at most (100 KiB), and is stalled and disconnected as ever. The messages follow
// from its very sequence.
//
// # Sessions
//
// One socket serves the sessions of any number of channels: Source finds the
// View of a session. Package admit decides which requests are answered at all.
package retransmit
