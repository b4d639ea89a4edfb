// Package soup speaks SoupBinTCP 3.0 and 4.1, the recovery stream: the codec,
// and the state machines of both ends. It is pure: no socket, goroutine, lock
// or clock. The machines take the time and the bytes that came, and give bytes
// to send and events; whatever the other end sends, what they keep is bounded.
//
// # Wire format (all integers big-endian)
//
//	frame     length u16 (of what follows), type u8, payload
//
//	client    L  user[6] password[10] session[10] sequence[20]            47 bytes with the type
//	          L  the same, and heartbeat timeout[5] in ms (4.1)           52 bytes
//	          R  heartbeat    O  logout    U  unsequenced data (ignored)    +  debug (ignored)
//	server    A  session[10] sequence[20]: the first that will be sent
//	          J  code: A not authorised, S session not available; then it closes
//	          S  a message; its sequence is implied
//	          H  heartbeat    Z  end of session    +  debug
//	          U  a packet of a snapshot, to who asked for one (see below)
//
// Numbers are ASCII, padded on the left with spaces; names are padded on the
// right. A login asks for sequence 0: the most recent, 1: the start of the
// session, or any other; a session of spaces is the current one.
//
// # Rules (protocol.md, "SoupBinTCP")
//
// Either end sends a heartbeat after a second in which it sent nothing. A
// client that is silent for 15 s (or as long as a 4.1 login says, 2..99 s) is
// dropped; a login must come within 30 s. The accepted sequence is the first
// that the server holds at or after the one asked for, or, where it does not
// reach that far yet, one past all it holds: the client looks at it. From there
// on numbers are implied, so a hole cannot be passed over: the server sends the
// debug packet "hole FROM..TO", both inclusive, and closes without Z, and the
// client logs in again at TO+1. Where the server waits for what may yet come it
// says "gap FROM..TO", once, and sends heartbeats. Z comes only after the last message of a
// session that has ended.
//
// # Snapshots
//
// A snapshot is opaque bytes that an application stored with a session: its
// state after all messages below the sequence of the snapshot, which is
// exclusive. What follows it begins with the message at that very sequence.
//
// A client asks for one by its user name, and never gets one otherwise: SNAP
// (padded with spaces: "SNAP  ") for who has none, or its own with a + behind it,
// "ann+  ", so a name of at most 5 characters. So can any client of SoupBinTCP:
// what comes is unsequenced data, U, of the server. Where a server knows users by
// name and password, "ann+" is ann with ann's password, and SNAP one of its users
// or nobody; no name of a user ends with +. The sequence of such a login is an
// upper bound:
//
//	N  the newest snapshot at or before N, that is with a sequence <= N
//	0  the newest
//
// Only one whose sequence the server's messages reach, and from which on nothing
// was pruned, is sent. The sequence in A is, exactly, that of the snapshot, and
// of the first message behind it. Where that message is missing, "hole" or "gap"
// follows the snapshot, from that sequence on. Where there is no such snapshot, A
// and the messages are those that any other login gets with sequence 1: the
// session from its start; so that in either case all there is up to N, and
// beyond, follows from what is sent.
//
// Right after A, before any S or Z, come in U:
//
//	B  seq u64, size u64, sha256[32]   the snapshot begins: its sequence, bytes, hash
//	D  at u64, bytes                   its bytes from at on, 1 to 65525; in order, without a gap
//	E  size u64                        it is whole
//
// or, where there is none, and that is all,
//
//	N
//
// The kind is one byte, and the first of the payload. A snapshot of no bytes is B
// and E. H and + may come between. Where the server cannot read on (a flipped bit
// in what it stored is never sent) it says so in a debug packet and closes before
// E; the next login gets the next older one. A Client checks order, size and
// hash: SnapshotDone comes only of what is whole, and nothing is to be believed
// before. How large a snapshot may be is for the owner to decide, by Size.
package soup
