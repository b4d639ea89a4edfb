package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
)

// mostBits bounds the files in which a flipped bit is looked for: each of its
// bits is one SHA-256 of half the file, 2 s in all.
const mostBits = 24 << 10

// unflip looks for the one bit of b without which ok says that b is what was
// written, and leaves b so; false: there is none, and b is as it was.
func unflip(b []byte, ok func([]byte) bool) bool {
	if len(b) > mostBits {
		return false
	}
	for i := range b {
		for bit := byte(1); bit != 0; bit <<= 1 {
			b[i] ^= bit
			if ok(b) {
				return true
			}
			b[i] ^= bit
		}
	}
	return false
}

// sumMatches reports whether b is a file that begins with head and the SHA-256
// of what comes after it, in hexadecimal.
func sumMatches(b []byte, head string) bool {
	n := len(head)
	if len(b) < n+64 || string(b[:n]) != head {
		return false
	}
	sum := sha256.Sum256(after(b, head))
	var text [64]byte
	hex.Encode(text[:], sum[:])
	return string(b[n:n+64]) == string(text[:])
}

// after is what the sum of a file with that head is the sum of.
func after(b []byte, head string) []byte {
	n := len(head) + 64
	if head == sumHead {
		n++ // its closing quote is not part of it
	}
	return b[min(n, len(b)):]
}

// unflipAudit turns back, in b, flipped bits of an audit log, where the chain
// proves which they are; lines are those of the breaks that were mended.
func unflipAudit(b []byte) (lines []AuditBreak) {
	tried := map[int]bool{}
	for {
		breaks := readAudit(b).breaks
		k := 0
		for k < len(breaks) && tried[breaks[k].Line] {
			k++
		}
		if k == len(breaks) {
			return lines
		}
		n := breaks[k].Line
		tried[n] = true
		// The bit lies in the line itself or the one before, or makes one of
		// two, or two of one.
		from, start := lineStart(b, n-2), lineStart(b, n-1)
		end, to := lineStart(b, n+1), lineStart(b, n+3)
		window := b[from:to]
		if len(window) > mostBits {
			continue
		}
		// One line more that names the one before proves it.
		before, _ := links(window, n <= 3)
		whole := func([]byte) bool {
			n, all := links(window, n <= 3)
			return all && n > before
		}
		if !unflip(b[start:end], whole) {
			continue
		}
		lines = append(lines, breaks[k])
		clear(tried) // neighbours may be mended now
	}
}

// lineStart is where line n, from 1, begins; before the first, and behind the
// last, where b does.
func lineStart(b []byte, n int) int {
	at := 0
	for ; n > 1; n-- {
		k := bytes.IndexByte(b[at:], '\n')
		if k < 0 {
			return len(b)
		}
		at += k + 1
	}
	return at
}

// links counts the lines of b that name the sum of the line before, and tells
// whether all do, but for the first, where that is not the first of a log.
// Sums only: it is asked for every bit.
func links(b []byte, first bool) (n int, all bool) {
	want := []byte(`{"prev":"`)
	head := len(want)
	lines := 0
	for ; len(b) > 0; lines++ {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !whole {
			return n, false
		}
		if lines == 0 && !first || bytes.HasPrefix(line, append(want, '"')) {
			n++
		}
		sum := sha256.Sum256(line)
		want, b = hex.AppendEncode(want[:head], sum[:]), rest
	}
	return n, n == lines
}
