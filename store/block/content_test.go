package block

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/moldtape/moldtape/moldcast"
)

// contentOf works the hash out the long way, by the text of the definition
// and another implementation of the tree.
func contentOf(t testing.TB, s moldcast.Session, r moldcast.Range) (root [32]byte, leaves uint64) {
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(at []int64) (out []tlog.Hash, err error) {
		for _, i := range at {
			out = append(out, stored[i])
		}
		return out, nil
	})
	for i := uint64(r.First) / LeafMessages; !r.Empty() && i <= uint64(r.Next-1)/LeafMessages; i++ {
		leaf := sha256.New()
		for k := range uint64(LeafMessages) {
			if q := moldcast.Seq(i*LeafMessages + k); r.Contains(q) {
				m := message(q)
				binary.Write(leaf, binary.BigEndian, uint64(q))
				binary.Write(leaf, binary.BigEndian, uint16(len(m)))
				leaf.Write([]byte(m))
			}
		}
		more, err := tlog.StoredHashes(int64(leaves), leaf.Sum(nil), reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, more...)
		leaves++
	}
	tree, err := tlog.TreeHash(int64(leaves), reader)
	if err != nil {
		t.Fatal(err)
	}
	all := sha256.New()
	all.Write(s[:])
	binary.Write(all, binary.BigEndian, uint64(r.First))
	binary.Write(all, binary.BigEndian, uint64(r.Next))
	all.Write(tree[:])
	return [32]byte(all.Sum(nil)), leaves
}

func TestContentIsTheDefinition(t *testing.T) {
	for _, r := range []moldcast.Range{
		{First: 1, Next: 1},
		{First: 1, Next: 2},
		{First: 1, Next: 4095},
		{First: 1, Next: 4096},
		{First: 1, Next: 4097},
		{First: 4095, Next: 4096},
		{First: 4096, Next: 8192},
		{First: 4096, Next: 8193},
		{First: 484311999, Next: 484311999 + 2232},
		{First: 484311999, Next: 484311999 + 7*4096 + 5},
		{First: 1<<64 - 1 - 9000, Next: 1<<64 - 1},
		{First: 1<<64 - 4096, Next: 1<<64 - 1},
	} {
		want, leaves := contentOf(t, testSession, r)
		// Any cut into pieces, of any size, gives the same root.
		for try := range 4 {
			rnd := rand.New(rand.NewPCG(uint64(try), 1))
			n := uint64(0)
			c := NewContent(testSession, r.First, func(l moldcast.Range, _ [32]byte) {
				if l.Empty() || l.Len() > LeafMessages || uint64(l.First)/LeafMessages != uint64(l.Next-1)/LeafMessages {
					t.Errorf("%v: leaf of %v", r, l)
				}
				n += l.Len()
			})
			for c.Next() < r.Next {
				k := min(1+rnd.Uint64N([]uint64{1, 40, 5000, 20000}[try]), uint64(r.Next-c.Next()))
				var b []byte
				for i := range k {
					b = moldcast.AppendMessage(b, []byte(message(c.Next()+moldcast.Seq(i))))
				}
				if err := c.Add(c.Next(), moldcast.MessagesOf(b, int(k))); err != nil {
					t.Fatal(err)
				}
			}
			got := c.Root()
			if got != (Root{Range: r, Leaves: leaves, Hash: want}) {
				t.Errorf("%v in pieces, try %d: %d leaves, %x, want %d, %x", r, try, got.Leaves, got.Hash, leaves, want)
			}
			if n != r.Len() {
				t.Errorf("%v: leaves of %d messages", r, n)
			}
		}
		if other, _ := contentOf(t, moldcast.Session{'x'}, r); other == want {
			t.Errorf("%v: the session does not enter", r)
		}
	}
}

func TestTreeOfAnySize(t *testing.T) {
	var mine tree
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(at []int64) (out []tlog.Hash, err error) {
		for _, i := range at {
			out = append(out, stored[i])
		}
		return out, nil
	})
	for n := range int64(140) {
		want, err := tlog.TreeHash(n, reader)
		if err != nil {
			t.Fatal(err)
		}
		if got := mine.hash(); tlog.Hash(got) != want {
			t.Fatalf("%d leaves: %x, want %x", n, got, want)
		}
		leaf := sha256.Sum256([]byte{byte(n)})
		more, err := tlog.StoredHashes(n, leaf[:], reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, more...)
		mine.add(leaf)
	}
}

// The same messages in blocks of other sizes, with holes filled late in one
// of them, have the same root.
func TestContentOfAnyBlocking(t *testing.T) {
	const first, n = 484311999, 20000
	want, _ := contentOf(t, testSession, moldcast.Range{First: first, Next: first + n})
	e, d := mustEncoder(t, EncoderOptions{}), mustDecoder(t, DecoderOptions{Verify: true})
	for _, size := range []int{1000, 7777, 64 << 10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(size), 9))
			pieces := cutRandomly(rnd, first, n, 40, 0)
			for i := range pieces { // neighbours out of order
				if k := i + rnd.IntN(3); k < len(pieces) {
					pieces[i], pieces[k] = pieces[k], pieces[i]
				}
			}
			var blocks []*Block
			b := NewBuilder(testSession)
			seal := func() {
				header, body := encode(t, e, b, EncodeOptions{})
				blk := new(Block)
				decode(t, d, header, body, blk)
				blocks = append(blocks, blk)
				b.Reset(testSession)
			}
			for _, p := range pieces {
				if mustAppend(t, b, p); b.RawSize() >= size {
					seal()
				}
			}
			seal()
			c := NewContent(testSession, first, nil)
			for c.Next() < first+n {
				at := c.Next()
				for _, blk := range blocks {
					if m, ok := blk.Messages(c.Next(), 1<<20, 1<<30); ok {
						if err := c.Add(c.Next(), m); err != nil {
							t.Fatal(err)
						}
					}
				}
				if c.Next() == at {
					t.Fatalf("message %d is in no block", at)
				}
			}
			if got := c.Root(); got.Hash != want {
				t.Errorf("%d blocks: %x, want %x", len(blocks), got.Hash, want)
			}
		})
	}
}

// Leaves that were kept stand for the messages that were deleted.
func TestContentFromKeptLeaves(t *testing.T) {
	type kept struct {
		r moldcast.Range
		h [32]byte
	}
	r := moldcast.Range{First: 1000, Next: 30000}
	var leaves []kept
	add := func(c *Content, to moldcast.Seq) {
		for c.Next() < to {
			m := moldcast.AppendMessage(nil, []byte(message(c.Next())))
			if err := c.Add(c.Next(), moldcast.MessagesOf(m, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := NewContent(testSession, r.First, func(l moldcast.Range, h [32]byte) { leaves = append(leaves, kept{l, h}) })
	add(c, r.Next)
	want := c.Root()
	again := NewContent(testSession, r.First, nil)
	for i, l := range leaves[:5] {
		if err := again.AddLeaf(leaves[i+1].r, l.h); !errors.Is(err, ErrNotNext) {
			t.Errorf("leaf %v out of turn: %v", leaves[i+1].r, err)
		}
		if err := again.AddLeaf(l.r, l.h); err != nil {
			t.Fatal(err)
		}
	}
	if err := again.AddLeaf(moldcast.Range{First: again.Next(), Next: again.Next() + 10}, leaves[0].h); !errors.Is(err, ErrNotNext) {
		t.Errorf("part of a leaf: %v", err)
	}
	if err := again.Add(again.Next()+1, moldcast.MessagesOf([]byte{0, 0}, 1)); !errors.Is(err, ErrNotNext) {
		t.Errorf("a message out of turn: %v", err)
	}
	add(again, again.Next()+1)
	if err := again.AddLeaf(leaves[5].r, leaves[5].h); !errors.Is(err, ErrNotNext) {
		t.Errorf("a leaf in the middle of one: %v", err)
	}
	add(again, r.Next)
	if got := again.Root(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
