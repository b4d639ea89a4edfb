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
package soup
