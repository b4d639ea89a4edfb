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
package moldcast
