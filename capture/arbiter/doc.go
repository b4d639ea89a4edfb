// Package arbiter decides, for one channel, what becomes of every datagram:
// it merges the lines and the answers to requests into one archive of each
// session. It is pure: it takes the time as an argument, owns no socket,
// goroutine, lock or clock, and gives its decisions to an Output. The gap
// machine of package gap knows what is missing and when to ask; the arbiter
// adds the bodies, the times, and the judgement of what to believe.
//
// # A datagram
//
// It is malformed, or of a session that is not recorded, or held until a
// second one confirms it, or believed:
//
//   - A session is taken up at the second packet of its name that lies within
//     Limits.Jump of one before; the first is held. At most Limits.NewSessions
//     new names per Limits.SessionsWindow. Config.Sessions names those
//     recorded; such names are not limited.
//   - A packet more than Limits.Jump beyond the head of its session, whether
//     data, heartbeat or end, is held until one comes, within Limits.JumpWait,
//     that lies between it and Limits.Jump beyond.
//   - Messages below the first sequence of the session move that down. More
//     than Limits.Jump below, only in the first Limits.StartWindow of a
//     session that began live, and confirmed likewise.
//   - Answers are taken for sessions that were asked for. They fill what was
//     asked for and is missing; they reveal nothing. Only one to a request for
//     what lies below the first sequence, because a client wants it, moves that
//     down (Want).
//
// At most Limits.HeldPackets are held; the oldest makes room.
//
// # A message
//
// It is arbitrated by itself, however lines and servers pack it. Held already:
// a duplicate, or, with other bytes, a conflict; dropped either way. Bytes are
// compared by the hashes of the newest Limits.Compared messages; a packet of a
// line with messages of which no hash is remembered, since they are older or
// this process is younger, waits for Output.Compare. What a line brings beside a
// conflict, in the same packet, is dropped with it. Otherwise a message is stored at once if its predecessor is
// stored, and else waits for that, ReorderWait at most and within ReorderBytes
// for the channel, and no longer than until what is before it is given up.
// Then it is stored where it belongs, as an island; its gap
// stays missing and is asked for. What the store refuses stays missing, or
// goes on waiting. So memory is bounded, and nothing that was stored is asked
// for.
//
// The time of a message heard on a line is its stamp. That of a repaired one
// is interpolated by sequence between the messages that are held on both sides
// of its gap, repaired or not, so that it lies between theirs; with one such
// neighbour it is that one's.
//
// What a heartbeat or End of Session has revealed is missing like anything
// else. But if nothing of it ever comes, and for Limits.Withdraw all that the
// lines say is, three times and more, the same lower sequence, it is withdrawn.
//
// A session that did not end is over all the same when its sender went on under
// another name: on every line that brought it, a session that began after it
// fell silent is heard, and it was silent for Limits.Grace. It is closed as one that
// ended is, and opened anew if something comes for it.
//
// # A feed
//
// Config.Feed says what a sender does differently. Where numbers only rise, a
// jump is no gap: nothing is missing, waits or is asked for, heartbeats and ends
// reveal nothing, and a session begins at what is heard; what comes late is
// stored where it belongs, since the store tells what it holds. Heartbeats that
// carry the last sequence are taken for the next; where there are none, packets
// without messages are counted and nothing else.
//
// # A take
//
// A sender that was started again under its session's name sends other
// messages by the same numbers. They become the next take: a Session of its
// own, to which Output.Fork gives a place; the one before is closed as it is. It
// begins
//
//   - at the second of two packets in conflict, of one source on one line,
//     within Limits.ForkWindow, when no packet of any line agreed with what is
//     held, or went on with it, in between. One conflict alone is counted, said
//     and dropped, as are two with an agreeing packet between: who can forge
//     packets beside a sender that goes on ends nothing;
//
//   - at data at or beyond the end of a session that ended. The end must have
//     been heard twice, or be on record, or nothing heard since for as long as
//     three heartbeats: else data after it contradicts it, and the session goes on;
//
//   - at a heartbeat (or end), when for as long as three of them, and for three at
//     least, every live line was below the head and none brought anything new. A
//     line is below where it went back: its next message is held, and it had
//     sent beyond it.
//
//   - where Config.Feed says that numbers from 1 mark a restart: at a packet
//     that goes on from one at 1, of the same source and line, Limits.Back below
//     the head or more, when no line has gone on at the head between the two.
//     One packet never does, and a stream that goes on beside is no restart.
//
// What a source sends below the highest that it sent is its run: an unbroken
// ascent, but for losses. The take begins where the run did that led to the
// rule. Of a run, packets in conflict are kept, at most Limits.KeptPackets and
// KeptBytes, the oldest making room; of what agreed the ranges suffice, and
// Output.Copy takes the bytes from the take before. What neither brings is a gap
// of the new take like any other; so is what lies below the run where sessions
// start at the beginning, since the run may have begun before it was heard (a
// process that was killed in the midst of it knows only its rest). For three heartbeats after a take began by
// conflict, or from 1, packets of other sources that go on where they were in the take
// before are dropped, and count as conflicts. At most Limits.Takes per
// Limits.SessionsWindow.
//
// Not told apart: a restart of which only one packet conflicts, the take being
// as short, goes on as that take; and of a take that began at a later message
// than 1, a restart below is its beginning until it comes to what is held.
//
// # What is measured
//
// Of each line what it brought, lost, brought late or again, and how much later
// than another line (LineStats); how long messages waited in memory, and how
// long gaps were open (SessionStats). All of it is bounded, and costs no
// allocation. Lines are compared by the kernel's stamps: the engine looks at one
// line's packets after another's.
//
// # What was heard
//
// Output.Heard gets each packet of a line that is believed, as it was on the
// wire, before what of it is new is stored: those that are dropped for a
// conflict too, marked. Packets that waited, for a second one or for a
// comparison, come later than they were heard: Heard.Turn tells the order.
//
// # Invariants
//
//   - Each message of a session is given to the store at most once with
//     success, and from then on held.
//   - The sequences from First to Head of a session are those stored, those
//     that wait, and those on the gap ledger: each in exactly one. Only when
//     the gap table is full, lost ranges, and then those from before this
//     capture, make room for new ones; so do all but the highest MaxGaps/2 that
//     an archive comes with. They are then no longer asked for, and the store
//     is asked whether it holds what comes of them: it stays true that nothing
//     is stored twice, or taken for held that is not.
//   - Datagrams and messages are conserved: see Counters.
//   - Nothing is allocated for a message in order, or repeated, beyond 32 KiB
//     for each 4096 messages until Limits.Compared are remembered.
package arbiter
