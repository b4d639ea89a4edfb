package arbiter

import (
	"math/bits"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	pageBits = 12
	pageSize = 1 << pageBits
)

// hashes remembers a 64-bit hash of each of the newest messages of a session.
// Memory comes a page at a time, as messages come: a session of which only a
// forged packet was ever heard costs one page.
type hashes struct {
	pages []*page
	mask  uint64
}

type page struct {
	number uint64 // the sequences number<<pageBits…
	hash   [pageSize]uint64
}

func newHashes(messages int) hashes {
	n := uint64(messages+pageSize-1) / pageSize
	n = 1 << bits.Len64(n-1)
	return hashes{pages: make([]*page, n), mask: n - 1}
}

// put remembers the hash of seq, unless only newer ones are remembered where
// it would go.
func (h *hashes) put(seq moldcast.Seq, hash uint64) {
	number := uint64(seq) >> pageBits
	p := h.pages[number&h.mask]
	if p == nil || p.number != number {
		switch {
		case p == nil:
			p = new(page)
			h.pages[number&h.mask] = p
		case p.number > number:
			return
		default:
			clear(p.hash[:])
		}
		p.number = number
	}
	p.hash[uint64(seq)%pageSize] = hash | 1 // 0 is "not known"
}

// differs reports whether the hash of seq is remembered, and is another one.
func (h *hashes) differs(seq moldcast.Seq, hash uint64) bool {
	known, same := h.compare(seq, hash)
	return known && !same
}

// compare reports whether the hash of seq is remembered, and then whether it
// is this one.
func (h *hashes) compare(seq moldcast.Seq, hash uint64) (known, same bool) {
	number := uint64(seq) >> pageBits
	p := h.pages[number&h.mask]
	if p == nil || p.number != number {
		return false, false
	}
	was := p.hash[uint64(seq)%pageSize]
	return was != 0, was == hash|1
}
