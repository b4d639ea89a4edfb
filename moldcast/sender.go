package moldcast

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Defaults of a SenderConfig.
const (
	DefaultRing      = 65536
	DefaultRingBytes = 64 << 20
	DefaultMTU       = 1500
	DefaultHeartbeat = time.Second
)

// SenderConfig configures a Sender. The zero value of every field but Session
// is its default.
type SenderConfig struct {
	Session        Session
	First          Seq           // sequence of the first message; default 1
	Ring           int           // messages kept for requests; default 65536
	RingBytes      int           // most bytes kept, framed; default 64 MiB, 64 KiB..1 GiB; rounded up to a power of two
	MTU            int           // bytes of an IPv4 packet, 64..65535; default 1500
	PacketMessages int           // most messages of a packet, 1..65534; default as many as fit
	Heartbeat      time.Duration // silence after which a heartbeat is sent; default 1 s
}

// EnsureDefaults fills in what was left zero.
func (c *SenderConfig) EnsureDefaults() {
	if c.First == 0 {
		c.First = 1
	}
	if c.Ring == 0 {
		c.Ring = DefaultRing
	}
	if c.RingBytes == 0 {
		c.RingBytes = DefaultRingBytes
	}
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.PacketMessages == 0 {
		c.PacketMessages = MaxCount
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = DefaultHeartbeat
	}
}

// Validate checks the ranges of a config that has its defaults.
func (c *SenderConfig) Validate() error {
	switch {
	case c.First == ^Seq(0):
		return fmt.Errorf("first sequence %d: want 1..2^64-2", c.First)
	case c.Ring < 1 || c.Ring > 1<<30:
		return fmt.Errorf("ring of %d messages: want 1..2^30", c.Ring)
	case c.RingBytes < 64<<10 || c.RingBytes > 1<<30:
		return fmt.Errorf("ring of %d bytes: want 65536..2^30", c.RingBytes)
	case c.MTU < 64 || c.MTU > 65535:
		return fmt.Errorf("MTU %d: want 64..65535", c.MTU)
	case c.PacketMessages < 1 || c.PacketMessages > MaxCount:
		return fmt.Errorf("%d messages a packet: want 1..%d", c.PacketMessages, MaxCount)
	case c.Heartbeat < 0:
		return fmt.Errorf("heartbeat %v: want more than 0", c.Heartbeat)
	}
	return nil
}

// What Publish refuses.
var (
	ErrTooLong   = errors.New("message longer than 65485 bytes")
	ErrRingFull  = errors.New("ring is full of messages that were not sent yet")
	ErrFinished  = errors.New("session has ended")
	ErrExhausted = errors.New("no sequence left below 2^64-1")
)

// Why Answer gives no answer, besides what ParseRequest finds wrong.
var (
	ErrRequestSession = errors.New("request for another session")
	ErrRequestAhead   = errors.New("request for what was not sent yet")
	ErrRequestGone    = errors.New("request for what has left the ring")
)

// Sender is the sending side of a MoldCast session. Every message is copied
// into a ring keyed by sequence, from which packets and the answers to
// requests are built alike; nothing is kept about any receiver. Once the ring
// has grown to its working size nothing allocates.
//
// A Sender is pure and owned by one goroutine. After each call ask Next until
// it has nothing more, and call Poll at Deadline.
type Sender struct {
	cfg     SenderConfig
	payload int // most bytes of a packet: what the MTU leaves

	// The ring: message s lies framed at byte starts[s&mask] of the stream of
	// all messages; byte b of it at arena[b&(len(arena)-1)].
	starts []uint64
	mask   uint64
	arena  []byte
	end    uint64 // of the stream

	// low <= sent <= closed <= next: kept from low, handed to Next below sent,
	// in closed packets below closed, published below next.
	low, sent, closed, next Seq
	openBytes, openCount    int // of the packet that is being filled

	started, finishing, ended bool
	last                      Instant // when a packet was last sent
	stats                     SenderStats
}

// SenderStats are a Sender's totals.
type SenderStats struct {
	Messages, Bytes           uint64 // published; bytes without framing
	Packets, Heartbeats, Ends uint64 // handed out to be sent

	// Requests = Answered + Malformed + OtherSession + Ahead + Gone.
	Requests, Answered                   uint64
	Malformed, OtherSession, Ahead, Gone uint64
	AnsweredMessages                     uint64
}

// NewSender makes a Sender; the error is of Validate.
func NewSender(c SenderConfig) (*Sender, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := 1
	for n < c.Ring {
		n *= 2
	}
	size := 64 << 10
	for size < c.RingBytes {
		size *= 2
	}
	c.RingBytes = size
	return &Sender{
		cfg:     c,
		payload: PayloadSize(c.MTU),
		starts:  make([]uint64, n),
		mask:    uint64(n - 1),
		arena:   make([]byte, 64<<10),
		low:     c.First, sent: c.First, closed: c.First, next: c.First,
	}, nil
}

// Config is the effective configuration.
func (s *Sender) Config() SenderConfig { return s.cfg }

// Published is one past the last message published; Sent one past the last
// that Next handed out: what a heartbeat carries.
func (s *Sender) Published() Seq { return s.next }

// Sent is one past the last message that Next handed out.
func (s *Sender) Sent() Seq { return s.sent }

// Kept is what requests are answered from.
func (s *Sender) Kept() Range { return Range{First: s.low, Next: s.sent} }

// Stats is a snapshot.
func (s *Sender) Stats() SenderStats { return s.stats }

// Publish copies a message of 0..MaxMessage bytes into the ring. It goes out
// when its packet is full, or by Flush. Errors: ErrTooLong; ErrRingFull, which
// Flush and Next relieve; ErrFinished; ErrExhausted.
func (s *Sender) Publish(data []byte) error {
	switch {
	case len(data) > MaxMessage:
		return ErrTooLong
	case s.finishing:
		return ErrFinished
	case s.next == ^Seq(0):
		return ErrExhausted
	}
	n := LengthSize + len(data)
	if err := s.makeRoom(n); err != nil {
		return err
	}
	if s.openCount > 0 && HeaderSize+s.openBytes+n > s.payload {
		s.closePacket()
	}
	s.starts[uint64(s.next)&s.mask] = s.end
	var length [LengthSize]byte
	binary.BigEndian.PutUint16(length[:], uint16(len(data)))
	s.write(length[:])
	s.write(data)
	s.next++
	s.openBytes += n
	s.openCount++
	if s.openCount == s.cfg.PacketMessages || HeaderSize+s.openBytes >= s.payload {
		s.closePacket()
	}
	s.stats.Messages++
	s.stats.Bytes += uint64(len(data))
	return nil
}

func (s *Sender) closePacket() {
	s.closed = s.next
	s.openBytes, s.openCount = 0, 0
}

// Flush closes the packet that is being filled.
func (s *Sender) Flush() { s.closePacket() }

// makeRoom lets the oldest messages go until n bytes and one message fit.
func (s *Sender) makeRoom(n int) error {
	for {
		kept := uint64(s.next - s.low)
		bytes := 0
		if kept > 0 {
			bytes = int(s.end - s.starts[uint64(s.low)&s.mask])
		}
		short := bytes+n > len(s.arena)
		if short && len(s.arena) < s.cfg.RingBytes && kept < uint64(s.cfg.Ring) {
			s.grow(bytes)
			continue
		}
		if !short && kept < uint64(s.cfg.Ring) {
			return nil
		}
		if s.low == s.sent {
			return ErrRingFull
		}
		s.low++
	}
}

// grow doubles the arena, which holds the last n bytes of the stream.
func (s *Sender) grow(n int) {
	old := s.arena
	s.arena = make([]byte, 2*len(old))
	for at := s.end - uint64(n); at < s.end; {
		from := old[at&uint64(len(old)-1):]
		from = from[:min(uint64(len(from)), s.end-at)]
		to := s.arena[at&uint64(len(s.arena)-1):]
		at += uint64(copy(to, from))
	}
}

func (s *Sender) write(b []byte) {
	at := s.end & uint64(len(s.arena)-1)
	n := copy(s.arena[at:], b)
	copy(s.arena, b[n:])
	s.end += uint64(len(b))
}

// stop is the end of message q in the stream.
func (s *Sender) stop(q Seq) uint64 {
	if q+1 == s.next {
		return s.end
	}
	return s.starts[uint64(q+1)&s.mask]
}

// appendPacket appends a packet with the messages from first, at most count
// and below limit, that fit the payload; the first goes even if it does not.
func (s *Sender) appendPacket(dst []byte, first, limit Seq, count int) ([]byte, int) {
	from := s.starts[uint64(first)&s.mask]
	to := s.stop(first)
	n := 1
	for q := first + 1; q < limit && n < count; q++ {
		next := s.stop(q)
		if HeaderSize+int(next-from) > s.payload {
			break
		}
		to = next
		n++
	}
	dst = AppendHeader(dst, s.cfg.Session, first, uint16(n))
	size := uint64(len(s.arena))
	at := from & (size - 1)
	if length := to - from; at+length > size {
		dst = append(dst, s.arena[at:]...)
		dst = append(dst, s.arena[:at+length-size]...)
	} else {
		dst = append(dst, s.arena[at:at+length]...)
	}
	return dst, n
}

// message is the data of message q, where it was sent and is still in the
// ring. It may be a copy.
func (s *Sender) message(q Seq) (data []byte, ok bool) {
	if q < s.low || q >= s.sent {
		return nil, false
	}
	from, to := s.starts[uint64(q)&s.mask]+LengthSize, s.stop(q)
	size := uint64(len(s.arena))
	if at := from & (size - 1); at+to-from <= size {
		return s.arena[at : at+to-from], true
	} else {
		return append(slices.Clip(s.arena[at:]), s.arena[:at+to-from-size]...), true
	}
}

// Next appends the next packet of messages that is ready to be sent, at most
// PayloadSize(MTU) bytes unless its one message alone is longer; false when
// there is none.
func (s *Sender) Next(now Instant, dst []byte) ([]byte, bool) {
	if s.sent == s.closed {
		return dst, false
	}
	dst, n := s.appendPacket(dst, s.sent, s.closed, s.cfg.PacketMessages)
	s.sent += Seq(n)
	s.last, s.started = now, true
	s.stats.Packets++
	return dst, true
}

// Finish flushes and ends the session: Poll then gives End of Session, once
// Next has given out all messages, and again each Heartbeat for as long as it
// is called. Requests are still answered.
func (s *Sender) Finish() {
	s.Flush()
	s.finishing = true
}

// Ended reports whether Poll has given End of Session at least once.
func (s *Sender) Ended() bool { return s.ended }

// Poll appends the heartbeat or End of Session that is due; false when none
// is. Before the first message a heartbeat is due at once: who hears it knows
// where the session begins, even if the first packet is lost.
func (s *Sender) Poll(now Instant, dst []byte) ([]byte, bool) {
	if s.sent != s.closed || now < s.Deadline() {
		return dst, false
	}
	s.last, s.started = now, true
	if s.finishing {
		s.ended = true
		s.stats.Ends++
		return AppendHeader(dst, s.cfg.Session, s.sent, EndCount), true
	}
	s.stats.Heartbeats++
	return AppendHeader(dst, s.cfg.Session, s.sent, 0), true
}

// Deadline is when Poll has something to give, if no packet goes out before.
func (s *Sender) Deadline() Instant {
	if !s.started || s.finishing && !s.ended {
		return 0
	}
	return s.last + Instant(s.cfg.Heartbeat)
}

// Answer appends the one packet that answers a request: as many whole
// messages as fit, contiguous from the first asked, never one that was not
// sent yet. No answer is due where it fails: the errors are those of
// ParseRequest, ErrRequestSession, ErrRequestAhead and ErrRequestGone, bare.
func (s *Sender) Answer(dst, request []byte) ([]byte, error) {
	s.stats.Requests++
	r, err := ParseRequest(request)
	if err != nil {
		s.stats.Malformed++
		return dst, err
	}
	switch {
	case r.Session != s.cfg.Session:
		s.stats.OtherSession++
		return dst, ErrRequestSession
	case r.First >= s.sent:
		s.stats.Ahead++
		return dst, ErrRequestAhead
	case r.First < s.low:
		s.stats.Gone++
		return dst, ErrRequestGone
	}
	dst, n := s.appendPacket(dst, r.First, min(r.Range().Next, s.sent), MaxCount)
	s.stats.Answered++
	s.stats.AnsweredMessages += uint64(n)
	return dst, nil
}
