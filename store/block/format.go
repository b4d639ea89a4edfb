package block

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/moldtape/moldtape/moldcast"
)

// Limits of the format. A reader refuses what exceeds them before it
// allocates anything; a Builder refuses what would make it exceed them.
const (
	// MaxTarget is the largest sensible size of rows at which to cut a block.
	MaxTarget = 16 << 20

	// MaxRaw is the most bytes of rows in one block: MaxTarget and one more
	// of the largest pieces.
	MaxRaw = 17 << 20

	MaxPieces = 1 << 18 // pieces of one block
	MaxMarks  = 1 << 16 // marks of one block

	// MaxStored is the longest body.
	MaxStored = 64 << 20

	// MaxHeader is the longest header.
	MaxHeader = 16 << 20
)

// DefaultMemory is what a Decoder allows one decoded block and its own
// buffers to take together; any block within the limits above fits.
const DefaultMemory = 64 << 20

// Codec says how the stored bytes of a section hold its raw bytes.
type Codec uint8

// The codecs of version 1. 2 to 4 are of the payload alone, and of one form,
// which says itself how to read it: they tell how hard its writer tried.
const (
	Stored     Codec = 0 // as they are
	Zstd       Codec = 1 // one frame of RFC 8878
	PlanesZstd Codec = 2 // columns, compressed by zstd: when the queue grows
	PlanesS2   Codec = 3 // columns, compressed by S2: in overload
	Foretold   Codec = 4 // columns of what messages differ in from what foretells them: dense
	Lagged     Codec = 5 // of the times alone: how much later packets came than the feed's own time
)

func (c Codec) String() string {
	switch c {
	case Stored:
		return "stored"
	case Zstd:
		return "zstd"
	case PlanesZstd:
		return "planes"
	case PlanesS2:
		return "planes-s2"
	case Foretold:
		return "dense"
	case Lagged:
		return "lagged"
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// What Builder.Append and Builder.Mark refuse; nothing was changed. They are
// returned bare.
var (
	ErrFull    = errors.New("block: full")                                  // seal it and begin the next
	ErrOverlap = errors.New("block: overlaps what it holds")                // the caller appends only what is not held
	ErrSeq     = errors.New("block: sequence 0 or beyond 2^64-1, or empty") // no piece of a session
	ErrKind    = errors.New("block: mark is neither heartbeat nor end")
)

// ErrFraming is wrapped where messages that were vouched for by
// moldcast.MessagesOf turn out not to be whole message blocks.
var ErrFraming = errors.New("block: messages are not framed")

// ErrTooLarge is wrapped by Decode where a sound block needs more memory than
// its Decoder allows.
var ErrTooLarge = errors.New("block: larger than the memory allowed")

// CorruptError says that the bytes of a block are not those that were written.
type CorruptError struct {
	Session moldcast.Session
	Range   moldcast.Range // first to one past the last message by the header; zero where the header itself is damaged
	Part    string         // "header", "body", or the name of a section
	At      int            // byte position in the part
	Reason  string
}

func (e *CorruptError) Error() string {
	if e.Part == "header" {
		return fmt.Sprintf("block: corrupt header at byte %d: %s", e.At, e.Reason)
	}
	return fmt.Sprintf("block %v %v: corrupt %s at byte %d: %s", e.Session, e.Range, e.Part, e.At, e.Reason)
}

// UnsupportedError says that a block is sound, but uses what this version
// does not know.
type UnsupportedError struct {
	What  string // "version", "header flag", "header field", "section" or "codec"
	Value int
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("block: %s %d is not known to this version; a newer moldtape wrote it", e.What, e.Value)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crcAdd(c uint32, b []byte) uint32 { return crc32.Update(c, castagnoli, b) }

func crc(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

const (
	magic   = "MTbk"
	version = 1

	flagPatch = 1 << 0
	// flagsOptional are header flags that a reader may ignore; it refuses
	// any other that it does not know.
	flagsOptional = 0xF0

	fieldRequired   = 1 << 0 // of a header field
	sectionRequired = 1 << 0 // of a section
	sectionHeader   = 16
)

type tag uint16

const (
	tagPayload    tag = 1
	tagBoundaries tag = 2
	tagTimes      tag = 3
	tagOrigins    tag = 4
	tagMarks      tag = 5
	tagLog        tag = 6
	// 7 is reserved.
)

func (t tag) String() string {
	switch t {
	case tagPayload:
		return "payload"
	case tagBoundaries:
		return "boundaries"
	case tagTimes:
		return "times"
	case tagOrigins:
		return "origins"
	case tagMarks:
		return "marks"
	case tagLog:
		return "line log"
	}
	return fmt.Sprintf("section %d", uint16(t))
}

// scanner reads the varints of a header or section. The first fault sticks,
// and everything after it reads as zero.
type scanner struct {
	b      []byte
	at     int
	reason string
	bad    int // where, once reason is set
}

func (s *scanner) fail(reason string) {
	if s.reason == "" {
		s.reason, s.bad = reason, s.at
		s.at = len(s.b)
	}
}

// uvarint reads one unsigned LEB128 number. There is one way to write each
// number, so that equal content has equal bytes: the shortest.
func (s *scanner) uvarint() uint64 {
	if s.at < len(s.b) && s.b[s.at] < 0x80 {
		s.at++
		return uint64(s.b[s.at-1])
	}
	v, n := binary.Uvarint(s.b[s.at:])
	switch {
	case n == 0:
		s.fail("cut short")
		return 0
	case n < 0 || s.b[s.at+n-1] == 0:
		s.fail("number not in its shortest form")
		return 0
	}
	s.at += n
	return v
}

func (s *scanner) varint() int64 {
	u := s.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (s *scanner) byte() byte {
	if s.at >= len(s.b) {
		s.fail("cut short")
		return 0
	}
	s.at++
	return s.b[s.at-1]
}

func (s *scanner) bytes(n uint64) []byte {
	if n > uint64(len(s.b)-s.at) {
		s.fail("cut short")
		return nil
	}
	s.at += int(n)
	return s.b[s.at-int(n) : s.at]
}

// end wants everything read.
func (s *scanner) end() {
	if s.at < len(s.b) {
		s.fail("bytes after the end")
	}
}
