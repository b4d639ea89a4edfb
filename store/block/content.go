package block

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"math/bits"

	"github.com/moldtape/moldtape/moldcast"
)

// LeafMessages is the number of sequences of one leaf of a content hash.
const LeafMessages = 4096

// ErrNotNext is returned, bare, where a Content is given what does not follow
// on what it has.
var ErrNotNext = errors.New("block: not the next messages of the range")

// Content computes the content hash of an unbroken range of messages as they
// are given to it. Neither stamps nor lines, packet boundaries, blocks or
// codecs enter it, so that two archives that hold the same messages agree:
//
//	leaf i  SHA-256 over each message with a sequence in [4096 i, 4096 (i+1))
//	        that lies in the range, in order: sequence u64, length u16, payload
//	tree    the RFC 6962 tree hash (section 2.1) over the leaves, 32 bytes each
//	root    SHA-256 over session[10], first u64, next u64, tree[32]
//
// All integers are big-endian. It keeps one hash for each level of the tree.
type Content struct {
	session     moldcast.Session
	first, next moldcast.Seq
	leaf        hash.Hash
	started     bool // the leaf at next has messages
	onLeaf      func(moldcast.Range, [32]byte)
	buf         []byte
	tree        tree
}

// NewContent begins the hash of a range of session s at first. onLeaf, where
// it is not nil, is given every leaf as it is complete, with what it covers.
func NewContent(s moldcast.Session, first moldcast.Seq, onLeaf func(moldcast.Range, [32]byte)) *Content {
	return &Content{session: s, first: first, next: first, leaf: sha256.New(), onLeaf: onLeaf}
}

// Next is the sequence that is wanted next.
func (c *Content) Next() moldcast.Seq { return c.next }

// leafRange is what the leaf that holds s covers, cut at the range's first.
func (c *Content) leafRange(s moldcast.Seq) moldcast.Range {
	low := s &^ (LeafMessages - 1)
	next := low + LeafMessages
	if next < low {
		next = ^moldcast.Seq(0)
	}
	return moldcast.Range{First: max(low, c.first), Next: next}
}

// Add adds messages, the first of which has the sequence first. Errors:
// ErrNotNext, with nothing changed.
func (c *Content) Add(first moldcast.Seq, m moldcast.Messages) error {
	if first != c.next || uint64(m.Len()) > uint64(^first) {
		return ErrNotNext
	}
	const batch = 8 << 10 // small writes to a hash are dear
	for m.Len() > 0 {
		data := m.Next()
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(c.next))
		c.buf = moldcast.AppendMessage(c.buf, data)
		c.next++
		c.started = true
		if len(c.buf) >= batch {
			c.flush()
		}
		if c.next%LeafMessages == 0 {
			c.flush()
			c.endLeaf(c.next)
		}
	}
	c.flush()
	return nil
}

func (c *Content) flush() {
	if len(c.buf) > 0 {
		c.leaf.Write(c.buf)
		c.buf = c.buf[:0]
	}
}

func (c *Content) endLeaf(next moldcast.Seq) {
	var h [32]byte
	c.leaf.Sum(h[:0])
	c.leaf.Reset()
	c.started = false
	c.tree.add(h)
	if c.onLeaf != nil {
		c.onLeaf(moldcast.Range{First: c.leafRange(next - 1).First, Next: next}, h)
	}
}

// AddLeaf adds a leaf that was kept after its messages were deleted. It must
// begin at Next and cover all of its leaf from there on. Errors: ErrNotNext.
func (c *Content) AddLeaf(r moldcast.Range, leaf [32]byte) error {
	if r.First != c.next || r != c.leafRange(r.First) {
		return ErrNotNext
	}
	c.next = r.Next
	c.tree.add(leaf)
	return nil
}

// Root is a content hash and the range that it stands for.
type Root struct {
	Range  moldcast.Range
	Leaves uint64
	Hash   [32]byte
}

// Root is the hash of all that was added so far. The last, cut leaf is ended
// with it; c must not be added to afterwards.
func (c *Content) Root() Root {
	if c.started {
		c.endLeaf(c.next)
	}
	t := c.tree.hash()
	b := make([]byte, 0, moldcast.SessionSize+16+32)
	b = append(b, c.session[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.first))
	b = binary.BigEndian.AppendUint64(b, uint64(c.next))
	return Root{
		Range:  moldcast.Range{First: c.first, Next: c.next},
		Leaves: c.tree.n,
		Hash:   sha256.Sum256(append(b, t[:]...)),
	}
}

// tree is an RFC 6962 tree that is added to at its end. It keeps the roots of
// its full subtrees: one for each bit that is set in n.
type tree struct {
	n    uint64
	full [64][32]byte // by height
}

func (t *tree) add(leaf [32]byte) {
	var b [33]byte
	copy(b[1:], leaf[:])
	h := sha256.Sum256(b[:])
	level := bits.TrailingZeros64(^t.n)
	for k := range level {
		h = node(t.full[k], h)
	}
	t.full[level] = h
	t.n++
}

func (t *tree) hash() [32]byte {
	if t.n == 0 {
		return sha256.Sum256(nil)
	}
	level := bits.TrailingZeros64(t.n)
	h := t.full[level]
	for level++; t.n>>level != 0; level++ {
		if t.n>>level&1 == 1 {
			h = node(t.full[level], h)
		}
	}
	return h
}

func node(left, right [32]byte) [32]byte {
	var b [65]byte
	b[0] = 1
	copy(b[1:], left[:])
	copy(b[33:], right[:])
	return sha256.Sum256(b[:])
}
