package block

import (
	"encoding/binary"
	"math/bits"
)

// repeats says how much of rows came before, and in how many pieces. It is what
// makes rows smaller, and what columns, which look at one place of messages at
// a time, may not see.
type repeats struct {
	found float64 // of what was looked for
	fresh float64 // a byte of rows: what was found, but not as far behind as what was found before it
}

// repeatFinder finds repeats, as a compressor does, but looks only for eight
// bytes in every 32, at places counted from the ends of messages.
type repeatFinder struct {
	// By the highest bits of a hash: the next ones, and the lowest of where its
	// bytes were last.
	seen [1 << finderBits]uint32
}

const (
	finderBits = 14
	finderAt   = 20
	probeBytes = 8
	probeEvery = 32
	hashFactor = 0x9E3779B97F4A7C15
)

// last is where before p the bytes of hash h may have been last; -1: nowhere.
func (f *repeatFinder) last(h uint64, p int) int {
	slot := &f.seen[h>>(64-finderBits)]
	before, check := *slot, uint32(h>>(32-finderBits+finderAt))&(1<<(32-finderAt)-1)
	*slot = check<<finderAt | uint32(p)&(1<<finderAt-1)
	if before>>finderAt != check {
		return -1
	}
	return p - int((uint32(p)-before)&(1<<finderAt-1))
}

// find looks in rows.
func (f *repeatFinder) find(rows []byte) repeats {
	clear(f.seen[:])
	// Of more rows those of some hashes, so that there is room for them.
	some := uint64(1)<<max(bits.Len(uint(len(rows)/probeEvery))-finderBits-1, 0) - 1
	probes, found, fresh, distance, next := 0, 0, 0, 0, 0
	for at := 0; at < len(rows); {
		end := at + frame(rows, at)
		first := end - probeBytes - (end-at-probeBytes)/probeEvery*probeEvery
		for p := max(first, next); p <= end-probeBytes; p += probeEvery {
			next = p + probeBytes
			w := binary.LittleEndian.Uint64(rows[p:])
			h := w * hashFactor
			if h>>16&some != 0 {
				continue
			}
			probes++
			q := f.last(h, p)
			if q < 0 || q == p || binary.LittleEndian.Uint64(rows[q:]) != w {
				continue
			}
			found++
			// What goes on is no new piece, though the same came after it, too.
			if d := p - q; d != distance && (distance == 0 || binary.LittleEndian.Uint64(rows[p-distance:]) != w) {
				fresh++
				distance = d
			}
		}
		at = end
	}
	return repeats{
		found: float64(found) / float64(max(probes, 1)),
		fresh: float64(fresh) * float64(some+1) / float64(len(rows)),
	}
}

// findNumbers is how much of raw was there before, of the four bytes from where
// each number (uv) begins.
func (f *repeatFinder) findNumbers(raw []byte) float64 {
	clear(f.seen[:])
	probes, found := 0, 0
	for p := 0; p+4 <= len(raw); p++ {
		if p > 0 && raw[p-1] >= 0x80 {
			continue
		}
		probes++
		w := binary.LittleEndian.Uint32(raw[p:])
		if q := f.last(uint64(w)*hashFactor, p); q >= 0 && q < p && binary.LittleEndian.Uint32(raw[q:]) == w {
			found++
		}
	}
	return float64(found) / float64(max(probes, 1))
}
