package gap

import "strconv"

// Seq is the sequence number of a message in its session: 1..2^64-2. 0 is
// never a message; 2^64-1 only ever appears as an exclusive end.
type Seq uint64

// Range is the half-open range of sequences [First, Next).
type Range struct{ First, Next Seq }

// Len is the number of sequences in r; 0 when r is empty or inverted.
func (r Range) Len() uint64 {
	if r.Next <= r.First {
		return 0
	}
	return uint64(r.Next - r.First)
}

// Empty reports whether r holds no sequence.
func (r Range) Empty() bool { return r.Next <= r.First }

// Contains reports whether s lies in r.
func (r Range) Contains(s Seq) bool { return r.First <= s && s < r.Next }

// Intersect is what r and o have in common; empty (but not the zero Range)
// when they are apart.
func (r Range) Intersect(o Range) Range {
	return Range{First: max(r.First, o.First), Next: max(max(r.First, o.First), min(r.Next, o.Next))}
}

// String prints r inclusively, "from..to", as on the command line; an empty
// range prints as "none".
func (r Range) String() string {
	if r.Empty() {
		return "none"
	}
	return strconv.FormatUint(uint64(r.First), 10) + ".." + strconv.FormatUint(uint64(r.Next-1), 10)
}

// Instant is a monotonic time in ns, of an arbitrary origin: for timers only,
// never stored, never compared with a wall clock.
type Instant int64

// Never is the instant of a timer that is not set.
const Never Instant = 1<<63 - 1
