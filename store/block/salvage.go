package block

import "encoding/binary"

// Magic is how the stored form of every header begins, and BodyMagic that of
// every body of a block with messages: the payload section comes first, and is
// required. They are what to look for where the place of a block was lost.
const (
	Magic     = magic
	BodyMagic = "\x00\x01\x01"
)

// HeaderLen is the length of the header that b begins with, which may go on
// behind it; ok is false where that is no header that ParseHeader accepts.
func HeaderLen(b []byte) (n int, ok bool) {
	if len(b) < headerMin || string(b[:4]) != magic || b[4] != version {
		return 0, false
	}
	b = b[:min(len(b), MaxHeader)]
	marks := binary.BigEndian.Uint32(b[headerFixed-4:])
	s := scanner{b: b, at: headerFixed}
	runs := s.uvarint()
	for ; runs > 0 && s.reason == ""; runs-- {
		s.uvarint()
		s.uvarint()
		s.varint()
		s.uvarint()
		if s.byte() == 1 {
			s.uvarint()
			s.uvarint()
		}
	}
	if marks > 0 {
		s.uvarint()
		s.uvarint()
		if s.byte() == 1 {
			s.uvarint()
		}
	}
	_ = new(Header).readFields(&s)
	n = s.at + 4
	if s.reason != "" || n > len(b) {
		return 0, false
	}
	_, err := ParseHeader(b[:n])
	return n, err == nil
}

// PayloadLen is the raw length of the payload that a body begins with; ok is
// false where b does not begin like one. b holds at least BodyPrefix bytes.
func PayloadLen(b []byte) (raw int, ok bool) {
	if len(b) < BodyPrefix || string(b[:len(BodyMagic)]) != BodyMagic {
		return 0, false
	}
	n := binary.BigEndian.Uint32(b[4:])
	return int(n), n <= MaxRaw
}

// BodyPrefix is what PayloadLen needs, in bytes.
const BodyPrefix = sectionHeader

// BodyMatches reports whether body is the one that h speaks for.
func (h *Header) BodyMatches(body []byte) bool {
	return len(body) == h.StoredLen && crc(body) == h.BodyCRC
}
