package soup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/moldtape/moldtape/moldcast"
)

// The user names of a login that asks for a snapshot first: SnapshotUser, or
// one's own with SnapshotMark behind it.
const (
	SnapshotUser = "SNAP"
	SnapshotMark = "+"

	// MaxSnapshotName is the longest own name that leaves room for the mark.
	MaxSnapshotName = 6 - len(SnapshotMark)
)

// SnapshotLogin is the User with which one of that name asks for a snapshot;
// the name is at most MaxSnapshotName bytes, or empty.
func SnapshotLogin(name string) string {
	if name == "" {
		return SnapshotUser
	}
	return name + SnapshotMark
}

// WantsSnapshot reports whether l asks for a snapshot before the messages.
func (l *Login) WantsSnapshot() bool { return l.User == SnapshotUser || l.Name() != l.User }

// Name is who logs in: User, without the mark.
func (l *Login) Name() string {
	if name := strings.TrimSuffix(l.User, SnapshotMark); name != "" {
		return name
	}
	return l.User
}

// SnapshotKind is what a packet of a snapshot is.
type SnapshotKind byte

// The packets of a snapshot: SnapshotNone alone, or SnapshotBegin, any number
// of SnapshotData, SnapshotEnd.
const (
	SnapshotNone  SnapshotKind = 'N' // there is none to begin with
	SnapshotBegin SnapshotKind = 'B' // Seq, Size, Sum
	SnapshotData  SnapshotKind = 'D' // At, Data
	SnapshotEnd   SnapshotKind = 'E' // Size
)

// SnapshotPacket is one packet of a snapshot.
type SnapshotPacket struct {
	Kind SnapshotKind
	Seq  moldcast.Seq // from 1: the state is that after all messages below it
	Size uint64       // of the whole, bytes
	Sum  [32]byte     // its SHA-256
	At   uint64       // where Data begins in it
	Data []byte       // 1 to MaxSnapshotData bytes; it aliases what was parsed
}

// Sizes of the payload of a packet.
const (
	snapshotNoneSize  = 1
	snapshotBeginSize = 1 + 8 + 8 + 32
	snapshotDataHead  = 1 + 8
	snapshotEndSize   = 1 + 8

	// MaxSnapshotData is the most bytes of a snapshot in one packet.
	MaxSnapshotData = MaxMessage - snapshotDataHead
)

// ErrSnapshot: what came is no snapshot as it was announced.
var ErrSnapshot = fmt.Errorf("%w: snapshot", ErrProtocol)

// AppendSnapshot appends p as a frame. Of Data at most MaxSnapshotData bytes
// are taken.
func AppendSnapshot(dst []byte, p SnapshotPacket) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, typeUnsequenced, byte(p.Kind))
	switch p.Kind {
	case SnapshotBegin:
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.Seq))
		dst = binary.BigEndian.AppendUint64(dst, p.Size)
		dst = append(dst, p.Sum[:]...)
	case SnapshotData:
		dst = binary.BigEndian.AppendUint64(dst, p.At)
		dst = append(dst, p.Data[:min(len(p.Data), MaxSnapshotData)]...)
	case SnapshotEnd:
		dst = binary.BigEndian.AppendUint64(dst, p.Size)
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(len(dst)-at-2))
	return dst
}

// ParseSnapshot reads the payload of an unsequenced packet of the server.
// Errors wrap ErrSnapshot.
func ParseSnapshot(b []byte) (p SnapshotPacket, err error) {
	if len(b) == 0 {
		return p, fmt.Errorf("%w: packet of no kind", ErrSnapshot)
	}
	p.Kind = SnapshotKind(b[0])
	want := 0
	switch p.Kind {
	case SnapshotNone:
		want = snapshotNoneSize
	case SnapshotBegin:
		want = snapshotBeginSize
	case SnapshotEnd:
		want = snapshotEndSize
	case SnapshotData:
		if len(b) <= snapshotDataHead {
			return p, fmt.Errorf("%w: data of %d bytes", ErrSnapshot, len(b))
		}
		p.At, p.Data = binary.BigEndian.Uint64(b[1:]), b[snapshotDataHead:]
		return p, nil
	default:
		return p, fmt.Errorf("%w: packet of kind %q", ErrSnapshot, b[0])
	}
	if len(b) != want {
		return p, fmt.Errorf("%w: packet %q of %d bytes, want %d", ErrSnapshot, b[0], len(b), want)
	}
	switch p.Kind {
	case SnapshotBegin:
		p.Seq, p.Size = moldcast.Seq(binary.BigEndian.Uint64(b[1:])), binary.BigEndian.Uint64(b[9:])
		copy(p.Sum[:], b[17:])
		if p.Seq == 0 {
			return p, fmt.Errorf("%w: at sequence 0", ErrSnapshot)
		}
	case SnapshotEnd:
		p.Size = binary.BigEndian.Uint64(b[1:])
	}
	return p, nil
}

// snapshotState is how far a client is with the snapshot it asked for.
type snapshotState uint8

const (
	notAsked snapshotState = iota // or done
	announced
	receiving
)

// snapshot takes a packet of the snapshot that was asked for.
func (c *Client) snapshot(f frame) (Event, error) {
	p, err := ParseSnapshot(f.payload)
	if err != nil {
		return Event{}, err
	}
	wrong := func(why string) (Event, error) { return Event{}, fmt.Errorf("%w: %s", ErrSnapshot, why) }
	switch {
	case c.snap.state == announced && p.Kind == SnapshotNone:
		c.snap.state = notAsked
		return Event{Kind: NoSnapshot}, nil
	case c.snap.state == announced && p.Kind == SnapshotBegin:
		if p.Seq != c.next {
			return wrong(fmt.Sprintf("at %d, and the messages from %d", p.Seq, c.next))
		}
		c.snap.state, c.snap.size, c.snap.sum = receiving, p.Size, p.Sum
		c.snap.hash.Reset()
		return Event{Kind: Snapshot, First: p.Seq, Size: p.Size, Sum: p.Sum}, nil
	case c.snap.state == receiving && p.Kind == SnapshotData:
		if p.At != c.snap.at || uint64(len(p.Data)) > c.snap.size-c.snap.at {
			return wrong(fmt.Sprintf("data at %d of %d, want %d", p.At, c.snap.size, c.snap.at))
		}
		c.snap.at += uint64(len(p.Data))
		c.snap.hash.Write(p.Data)
		return Event{Kind: SnapshotBytes, First: c.next, Bytes: p.Data}, nil
	case c.snap.state == receiving && p.Kind == SnapshotEnd:
		var sum [32]byte
		switch c.snap.hash.Sum(sum[:0]); {
		case p.Size != c.snap.size || c.snap.at != c.snap.size:
			return wrong(fmt.Sprintf("%d of %d bytes came", c.snap.at, c.snap.size))
		case !bytes.Equal(sum[:], c.snap.sum[:]):
			return wrong("its SHA-256 is not the one it was announced with")
		}
		c.snap.state = notAsked
		return Event{Kind: SnapshotDone, First: c.next}, nil
	}
	return wrong(fmt.Sprintf("packet %q out of turn", byte(p.Kind)))
}

// errEarly: a message, or the end, came before the snapshot was whole.
var errEarly = errors.New("the messages began before it was whole")
