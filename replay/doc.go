// Package replay publishes recorded sessions again: the same messages under
// the same sequence numbers, in their original packets or repacked, at the
// recorded rhythm or a scaled one.
//
//	sources ──▶ read-ahead ──chunks──▶ sender ──batches──▶ Sender (socket)
//	(cursors)   goroutine    bounded   locked thread
//
// The read-ahead goroutine reads the sources, merges several sessions by the
// time of their packets, and copies finished datagrams into chunks of a
// bounded queue. The sender thread takes them off, waits for the instant that
// package pace gives, and sends what is due together as one batch. From queue
// to batch nothing is allocated and no lock is taken. How it waits says Spin;
// how fast it catches up when it was held up, pace.Limiter; what came of it, the
// Report, in memory of fixed size however long the replay.
//
// A stream goes out on one line or several, each of which harms packets by
// package impair (Impaired). Package burst finds the busiest windows of a
// recording and makes them busier (Config.Stress).
//
// Recorded heartbeats go out at their times, where stamps alone pace; those of
// silence fill the rest. A stream may also be a line as it was heard
// (Stream.Heard): its datagrams in the order of hearing, whatever their
// sequences, and nothing else.
//
// # Invariants
//
//   - The clock starts when the read-ahead is full or the sources have ended,
//     at the start as after a seek.
//   - Due times are reckoned from one anchor, moved only by start, pause, seek,
//     change of speed and a new loop.
//   - All streams run on one clock. Packets go in order of their time; packets
//     of one stream always in order of their sequence, whatever their stamps.
//   - What a Sender did not take is not counted and not published. It is tried
//     again for Config.SendRetry, then the replay fails. The user can end it
//     meanwhile.
//   - A reader that is too slow makes packets late; the schedule stays.
//   - A Space's published sequence moves only after a Sender took the packet.
//   - A packet that a line loses or holds back was published. What is held back
//     goes before End of Session, and also where a replay is cut short.
//   - A range that the archive lacks, or cannot read, is never made up: it is
//     skipped, stops the replay, or is waited for (HoleAction).
//   - What is replayed as heard is what the line brought, or a hole: nothing is
//     added, neither heartbeats nor an end.
//   - End of Session is sent only when a stream was published to the end of its
//     range. A replay that is interrupted, stopped by a hole or failed sends
//     none: receivers see silence, not a false end.
package replay
