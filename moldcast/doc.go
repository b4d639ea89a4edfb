// Package moldcast speaks MoldUDP64: the codec, a Sender that keeps every
// message in a fixed-size ring and answers requests from it, and a Receiver
// that detects gaps, asks for what is missing and delivers in order. Both are
// pure state machines: they take the time as an argument and own no socket,
// goroutine, lock or clock. Package mcast runs them on sockets.
//
// # Wire format (NASDAQ MoldUDP64 1.00; all integers big-endian)
//
//	downstream  session[10]  sequence u64 of the first message  count u16
//	            then count × { length u16 (without itself), data }
//	heartbeat   count 0; sequence = next expected
//	end         count 0xFFFF; sequence = next expected
//	request     session[10]  first sequence u64  requested count u16
//
// Sequences count messages, from 1. A message of length 0 is legal.
//
// # Acknowledgements
//
// An archive may tell the publisher what it holds durably of a session (Ack),
// by datagrams of 102 bytes to an address of the publisher's choice; all
// integers big-endian:
//
//	 0  u16   0x4D41, "MA"
//	 2  u8    version 1
//	 3  u8    0
//	 4  [10]  session
//	14  [16]  node: the identity of the archive, random, made once, kept in it
//	30  u64   place: a hash of machine and directory, 0 for none
//	38  u64   epoch: the captures into the archive that were started, from 1
//	46  u64   counter: the acknowledgements of that epoch, from 1
//	54  u64   first sequence that is held
//	62  u64   durable: one past the last of what is held from first on without a hole, and synced
//	70  u64   checked: a sequence in [first, durable); 0 for none
//	78  u64   check: the first 8 bytes of SHA-256(checked u64, data of that message); 0 for none
//	86  [16]  tag: the first 16 bytes of HMAC-SHA-256 over bytes 0 to 85
//
// Without a key the tag is made with the empty one: it finds damage, and proves
// nothing. An archive acknowledges every 5 ms while something moves, and every
// second what does not. Nothing is answered or repeated: each acknowledgement
// says all there is to say, so one that is lost only delays.
//
// A Quorum beside the Sender says up to where at least K archives hold all of
// the session durably. Takes do not appear: an archive speaks of the newest.
//
//   - An archive counts once, by its node, whichever process or address speaks
//     for it; a copy of an archive is the same one. The newest word holds, by
//     epoch and then counter; the epoch is kept in the archive, so no clock can
//     set it back. Of two captures into one archive that report the same session
//     the one started last is heard.
//   - It counts only if what it holds begins at or below the session's first
//     sequence: who joined late (ArchiveLate) does not, until its beginning is
//     filled.
//   - It counts up to its durable sequence, and never beyond what was sent.
//   - What it says last is what counts, also where that is less than before: a
//     new take, a session or segments that are lost or pruned. A new node at the
//     place of another, from the same address, is an archive that was made where
//     one is gone: that one counts no more. So two archives that share directory,
//     host name and address, as in containers, count as one.
//   - Durable is durable: an archive that is not heard any more counts for what it
//     held. It is shown as silent after three seconds. What it loses while it is
//     silent, nobody knows.
//   - An archive may still have another stream under the session's name, where a
//     sender was started again. The message checked is compared with the ring:
//     one that differs takes the archive out (ArchiveOther) until it holds less or
//     was started again. One that held more than was sent (ArchiveUnproven) counts
//     once a message of it was compared. A message that has left the ring proves
//     nothing either way.
//
// The table of archives is bounded; a new one gets the place of the silent one
// that counts least, or none. Without a key anyone within the allowed addresses
// can speak for an archive; with one, an old datagram that is sent again is
// old, except to a publisher that never heard the newer ones.
package moldcast
