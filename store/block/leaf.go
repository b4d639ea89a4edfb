package block

import (
	"crypto/sha256"
	"encoding"
	"errors"

	"github.com/moldtape/moldtape/moldcast"
)

// Leaf is a leaf of a content hash, or the beginning of one, kept beyond its
// messages. Range begins where the leaf does: at a multiple of LeafMessages,
// or where the range of the hash begins.
type Leaf struct {
	Range moldcast.Range
	Hash  [32]byte // of a whole leaf, which Range is where State is nil
	State []byte   // of a beginning: LeafStateSize bytes, SHA-256 as it stands behind it
}

// LeafStateSize is the length of Leaf.State: the encoding of package
// crypto/sha256, "sha\x03", eight words, a block of 64 bytes, the length u64.
const LeafStateSize = 108

// ErrLeafState is returned where a Leaf's State is none.
var ErrLeafState = errors.New("block: no state of a leaf")

// Begun is the beginning of the leaf at Next; ok is false where none of its
// messages was added.
func (c *Content) Begun() (l Leaf, ok bool) {
	if !c.started {
		return Leaf{}, false
	}
	c.flush()
	state, err := c.leaf.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return Leaf{}, false
	}
	return Leaf{Range: moldcast.Range{First: c.leafRange(c.next - 1).First, Next: c.next}, State: state}, true
}

// Resume adds what was kept of a leaf: a whole one, or a beginning, behind
// which the next message is wanted. Errors, with nothing changed: ErrNotNext
// where it does not begin at Next or not where a leaf does, ErrLeafState.
func (c *Content) Resume(l Leaf) error {
	if l.State == nil {
		return c.AddLeaf(l.Range, l.Hash)
	}
	whole := c.leafRange(l.Range.First)
	// The very last leaf of all sequences is never whole.
	if c.started || l.Range.Empty() || l.Range.First != c.next || whole.First != l.Range.First ||
		l.Range.Next > whole.Next || l.Range.Next%LeafMessages == 0 {
		return ErrNotNext
	}
	h := sha256.New()
	if len(l.State) != LeafStateSize || h.(encoding.BinaryUnmarshaler).UnmarshalBinary(l.State) != nil {
		return ErrLeafState
	}
	c.leaf, c.next, c.started = h, l.Range.Next, true
	return nil
}
