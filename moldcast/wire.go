package moldcast

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moldtape/moldtape/moldcast/gap"
)

// Seq, Range and Instant are those of the gap machine.
type (
	Seq     = gap.Seq
	Range   = gap.Range
	Instant = gap.Instant
)

// Sizes and counts of MoldUDP64 1.00. All integers are big-endian.
const (
	HeaderSize  = 20         // session[10], first sequence u64, count u16
	RequestSize = 20         // session[10], first sequence u64, requested count u16
	EndCount    = 0xFFFF     // the count that marks End of Session; never a message count
	MaxCount    = 0xFFFF - 1 // most messages of one packet or request
	LengthSize  = 2          // length u16 before each message, itself not counted

	// MaxMessage is the longest message that fits one IPv4 UDP datagram:
	// 65507 - HeaderSize - LengthSize.
	MaxMessage = 65485

	// MaxDatagram is the longest UDP payload over IPv4.
	MaxDatagram = 65507
)

// PayloadSize is the UDP payload that fits one IPv4 packet of the given MTU
// (without IP options): mtu - 20 - 8.
func PayloadSize(mtu int) int { return mtu - 28 }

// What Parse and ParseRequest find wrong. A malformed datagram is counted,
// never used in part.
var (
	ErrShort       = errors.New("shorter than a 20-byte header")
	ErrTruncated   = errors.New("message blocks shorter than the count says")
	ErrTrailing    = errors.New("bytes after the last message block")
	ErrSeqZero     = errors.New("sequence 0")
	ErrSeqOverflow = errors.New("sequence + count beyond 2^64-1")
	ErrRequestSize = errors.New("request is not 20 bytes")
	ErrCountZero   = errors.New("request for 0 messages")
)

// Kind tells the three downstream packets apart.
type Kind uint8

// The kinds of a downstream packet.
const (
	Data Kind = iota
	Heartbeat
	End // End of Session
)

func (k Kind) String() string {
	switch k {
	case Data:
		return "data"
	case Heartbeat:
		return "heartbeat"
	case End:
		return "end"
	}
	return "kind(" + fmt.Sprint(uint8(k)) + ")"
}

// Packet is a parsed downstream packet.
type Packet struct {
	Session Session
	First   Seq  // of the first message; next expected in a heartbeat and at the end
	Kind    Kind // Data has at least one message, the others none
	Msgs    Messages
}

// Range is [First, First+count); empty for heartbeats and ends.
func (p Packet) Range() Range { return Range{First: p.First, Next: p.First + Seq(p.Msgs.Len())} }

// Parse reads one datagram as a downstream packet. It checks all framing
// first, so that nothing that iterates over the result can fail. The packet
// aliases b. Errors: ErrShort, ErrTruncated, ErrTrailing, ErrSeqZero,
// ErrSeqOverflow, bare, so that a hot path can count them without allocating.
func Parse(b []byte) (Packet, error) {
	if len(b) < HeaderSize {
		return Packet{}, ErrShort
	}
	var p Packet
	copy(p.Session[:], b)
	p.First = Seq(binary.BigEndian.Uint64(b[10:]))
	n := int(binary.BigEndian.Uint16(b[18:]))
	body := b[HeaderSize:]
	if p.First == 0 {
		return Packet{}, ErrSeqZero
	}
	// 0xFFFF is no message count: it is looked at before any arithmetic.
	if n == EndCount || n == 0 {
		if len(body) != 0 {
			return Packet{}, ErrTrailing
		}
		p.Kind = Heartbeat
		if n == EndCount {
			p.Kind = End
		}
		return p, nil
	}
	if uint64(p.First) > ^uint64(0)-uint64(n) {
		return Packet{}, ErrSeqOverflow
	}
	m, err := ParseMessages(body, n)
	if err != nil {
		return Packet{}, err
	}
	p.Msgs = m
	return p, nil
}

// Messages is a validated sequence of message blocks, each {length u16, data}.
// It aliases the buffer that it was parsed from and is valid as long as that.
type Messages struct {
	b []byte
	n int
}

// ParseMessages checks that b is exactly n message blocks. Errors:
// ErrTruncated, ErrTrailing.
func ParseMessages(b []byte, n int) (Messages, error) {
	at := 0
	for i := 0; i < n; i++ {
		if len(b)-at < LengthSize {
			return Messages{}, ErrTruncated
		}
		at += LengthSize + (int(b[at])<<8 | int(b[at+1]))
		if at > len(b) {
			return Messages{}, ErrTruncated
		}
	}
	if at != len(b) {
		return Messages{}, ErrTrailing
	}
	return Messages{b: b, n: n}, nil
}

// MessagesOf vouches that b is exactly n message blocks: for owners of
// buffers that were checked before. A wrong b makes iteration panic.
func MessagesOf(b []byte, n int) Messages { return Messages{b: b, n: n} }

// Len is the number of messages.
func (m Messages) Len() int { return m.n }

// Framed is the blocks as on the wire, lengths included.
func (m Messages) Framed() []byte { return m.b }

// Next takes the first message off m. It must not be called when Len is 0.
func (m *Messages) Next() []byte {
	n := LengthSize + (int(m.b[0])<<8 | int(m.b[1]))
	d := m.b[LengthSize:n:n]
	m.b = m.b[n:]
	m.n--
	return d
}

// Split cuts m after its first k messages, 0 <= k <= Len.
func (m Messages) Split(k int) (head, tail Messages) {
	if k == m.n {
		return m, Messages{b: m.b[len(m.b):]}
	}
	at := 0
	for i := 0; i < k; i++ {
		at += LengthSize + (int(m.b[at])<<8 | int(m.b[at+1]))
	}
	return Messages{b: m.b[:at:at], n: k}, Messages{b: m.b[at:], n: m.n - k}
}

// Fit is how many of the first messages of m, at most count, take at most
// size bytes framed.
func (m Messages) Fit(count, size int) int {
	at, k := 0, 0
	for k < m.n && k < count {
		at += LengthSize + (int(m.b[at])<<8 | int(m.b[at+1]))
		if at > size {
			break
		}
		k++
	}
	return k
}

// AppendHeader appends a downstream header; count 0 is a heartbeat, EndCount
// an End of Session.
func AppendHeader(dst []byte, s Session, first Seq, count uint16) []byte {
	dst = append(dst, s[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(first))
	return binary.BigEndian.AppendUint16(dst, count)
}

// AppendMessage appends one message block. len(data) is at most 65535; a
// datagram carries at most MaxMessage.
func AppendMessage(dst, data []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data)))
	return append(dst, data...)
}

// Request asks for the messages [First, First+Count) of a session.
type Request struct {
	Session Session
	First   Seq
	Count   uint16 // 1..MaxCount in what we send; 65535 may be received
}

// Range is what r asks for.
func (r Request) Range() Range {
	next := r.First + Seq(r.Count)
	if next < r.First {
		next = ^Seq(0)
	}
	return Range{First: r.First, Next: next}
}

// ParseRequest reads one datagram as a request. Errors: ErrRequestSize,
// ErrSeqZero, ErrCountZero, bare.
func ParseRequest(b []byte) (Request, error) {
	if len(b) != RequestSize {
		return Request{}, ErrRequestSize
	}
	var r Request
	copy(r.Session[:], b)
	r.First = Seq(binary.BigEndian.Uint64(b[10:]))
	r.Count = binary.BigEndian.Uint16(b[18:])
	switch {
	case r.First == 0:
		return Request{}, ErrSeqZero
	case r.Count == 0:
		return Request{}, ErrCountZero
	}
	return r, nil
}

// AppendRequest appends r as on the wire; a count above MaxCount is clipped
// to it, since 65535 would be taken for End of Session by some servers.
func AppendRequest(dst []byte, r Request) []byte {
	return AppendHeader(dst, r.Session, r.First, min(r.Count, MaxCount))
}
