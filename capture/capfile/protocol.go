package capfile

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moldtape/moldtape/moldcast"
)

// Protocol is the framing of a stream.
type Protocol uint8

// The protocols that are found. 0 is none.
const (
	MoldUDP64 Protocol = iota + 1
	IEXTP
)

func (p Protocol) String() string {
	switch p {
	case MoldUDP64:
		return "moldudp64"
	case IEXTP:
		return "iex-tp"
	}
	return "none"
}

// iexHeader is the size of an IEX-TP header (IEX Transport Protocol 1.25; all
// little-endian): version u8, reserved u8, message protocol u16, channel u32,
// session u32, payload length u16, message count u16, stream offset u64, first
// sequence u64, send time i64. Then count × { length u16, data }.
const iexHeader = 40

var errIEX = errors.New("no IEX-TP header")

// Parse reads one datagram as a downstream packet of p. Errors are those of
// moldcast.Parse, bare, and for IEX-TP one more. A MoldUDP64 packet aliases b;
// one of IEX-TP aliases *scratch, which is grown as needed: its lengths are
// rewritten to wire order.
func (p Protocol) Parse(b []byte, scratch *[]byte) (moldcast.Packet, error) {
	if p == IEXTP {
		return parseIEX(b, scratch)
	}
	return moldcast.Parse(b)
}

// hasIEX reports whether b begins as an IEX-TP header does.
func hasIEX(b []byte) bool { return len(b) >= iexHeader && b[0] == 1 && b[1] == 0 && b[3] >= 0x80 }

func parseIEX(b []byte, scratch *[]byte) (moldcast.Packet, error) {
	le := binary.LittleEndian
	if !hasIEX(b) {
		return moldcast.Packet{}, errIEX
	}
	size, count := int(le.Uint16(b[12:])), int(le.Uint16(b[14:]))
	body := b[iexHeader:]
	switch {
	case size > len(body):
		return moldcast.Packet{}, moldcast.ErrTruncated
	case size < len(body), count == 0 && size > 0:
		return moldcast.Packet{}, moldcast.ErrTrailing
	}
	p := moldcast.Packet{First: moldcast.Seq(le.Uint64(b[24:]))}
	copy(p.Session[:], fmt.Appendf(nil, "%08x  ", le.Uint32(b[8:])))
	if p.First == 0 {
		return moldcast.Packet{}, moldcast.ErrSeqZero
	}
	if count == 0 {
		p.Kind = moldcast.Heartbeat
		return p, nil
	}
	if uint64(p.First) > ^uint64(0)-uint64(count) {
		return moldcast.Packet{}, moldcast.ErrSeqOverflow
	}
	out := append((*scratch)[:0], body...)
	*scratch = out
	for i, at := 0, 0; i < count; i++ {
		if len(out)-at < 2 {
			return moldcast.Packet{}, moldcast.ErrTruncated
		}
		n := int(le.Uint16(out[at:]))
		out[at], out[at+1] = out[at+1], out[at]
		if at += 2 + n; at > len(out) {
			return moldcast.Packet{}, moldcast.ErrTruncated
		}
	}
	m, err := moldcast.ParseMessages(out, count)
	if err != nil {
		return moldcast.Packet{}, err
	}
	p.Msgs = m
	return p, nil
}
