package moldcast

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"time"
)

// Sizes of an acknowledgement; the package documentation has its layout.
const (
	AckSize = 102
	ackBody = AckSize - ackTag
	ackTag  = 16

	ackMagic   = 0x4D41 // "MA"
	ackVersion = 1
)

// AckKeepAlive is how often an archive acknowledges what does not move.
const AckKeepAlive = time.Second

// NodeID is the identity of an archive: random, made once, and kept in it.
type NodeID [16]byte

func (n NodeID) String() string { return hex.EncodeToString(n[:]) }

// MarshalText is String.
func (n NodeID) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// Ack says what an archive holds durably of a session.
type Ack struct {
	Session Session
	Node    NodeID
	// Place is where the archive is: a hash of machine and directory; 0: not
	// told. A new Node at the place of another is an archive that took the place
	// of one that is gone.
	Place uint64
	// Epoch counts the starts of captures into the archive, Counter the
	// acknowledgements of one of them, both from 1: what is not greater than what
	// was heard, in this order, is old.
	Epoch, Counter uint64
	// Held is [first sequence held, one past the last): all of it is held, without
	// a hole, and synced. Nothing is said of what may be held beyond. Empty: the
	// first is not there yet.
	Held Range
	// Checked is one of Held, and Check the AckCheck of it: so an archive that
	// recorded another stream under the same name is told. 0: none.
	Checked Seq
	Check   uint64
}

// What AckCodec.Parse finds wrong.
var (
	ErrAckSize    = errors.New("acknowledgement is not 102 bytes")
	ErrAckTag     = errors.New("tag of the acknowledgement does not match: damaged, or of another key")
	ErrAckVersion = errors.New("acknowledgement of another version")
	ErrAckRange   = errors.New("numbers of the acknowledgement contradict each other")
)

// AckCodec writes and reads acknowledgements under a key; the empty key proves
// no origin, and finds damage alone. It has one owner.
type AckCodec struct {
	mac hash.Hash
	sum []byte // scratch
}

// NewAckCodec makes one; key is not kept by reference.
func NewAckCodec(key []byte) *AckCodec {
	return &AckCodec{mac: hmac.New(sha256.New, key), sum: make([]byte, 0, sha256.Size)}
}

// tag is that of b, valid until the next call.
func (c *AckCodec) tag(b []byte) []byte {
	c.mac.Reset()
	c.mac.Write(b)
	c.sum = c.mac.Sum(c.sum[:0])
	return c.sum[:ackTag]
}

// Append appends a, AckSize bytes.
func (c *AckCodec) Append(dst []byte, a Ack) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, ackMagic)
	dst = append(dst, ackVersion, 0)
	dst = append(dst, a.Session[:]...)
	dst = append(dst, a.Node[:]...)
	for _, v := range [...]uint64{a.Place, a.Epoch, a.Counter, uint64(a.Held.First), uint64(a.Held.Next), uint64(a.Checked), a.Check} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return append(dst, c.tag(dst[at:])...)
}

// Parse reads one datagram. Errors, bare: ErrAckSize, ErrAckTag,
// ErrAckVersion, ErrAckRange.
func (c *AckCodec) Parse(b []byte) (Ack, error) {
	switch {
	case len(b) != AckSize:
		return Ack{}, ErrAckSize
	case !hmac.Equal(c.tag(b[:ackBody]), b[ackBody:]):
		return Ack{}, ErrAckTag
	case binary.BigEndian.Uint16(b) != ackMagic || b[2] != ackVersion || b[3] != 0:
		return Ack{}, ErrAckVersion
	}
	var a Ack
	copy(a.Session[:], b[4:])
	copy(a.Node[:], b[14:])
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	a.Place, a.Epoch, a.Counter = u64(30), u64(38), u64(46)
	a.Held = Range{First: Seq(u64(54)), Next: Seq(u64(62))}
	a.Checked, a.Check = Seq(u64(70)), u64(78)
	switch {
	case a.Epoch == 0, a.Counter == 0, a.Held.First == 0, a.Held.Next < a.Held.First,
		a.Checked == 0 && a.Check != 0,
		a.Checked != 0 && (a.Checked < a.Held.First || a.Checked >= a.Held.Next):
		return Ack{}, ErrAckRange
	}
	return a, nil
}

// AckCheck is what Ack.Check says of message seq: the first 8 bytes of SHA-256
// over seq u64 and its data, as a big-endian number.
func AckCheck(seq Seq, data []byte) uint64 {
	h := sha256.New()
	var b [sha256.Size]byte
	binary.BigEndian.PutUint64(b[:], uint64(seq))
	h.Write(b[:8])
	h.Write(data)
	return binary.BigEndian.Uint64(h.Sum(b[:0]))
}
