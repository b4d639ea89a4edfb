package moldcast

import "slices"

// early keeps messages that came before their turn: runs by sequence, in
// buffers that are used again. Messages that continue a run are packed into
// its buffer, so that small packets do not waste it.
type early struct {
	runs     []run // sorted; runs[:lo] are done with
	lo       int
	messages uint64
	bytes    int // capacity in use
	limit    int
	most     uint64   // messages; 0: no bound
	free     [][]byte // of earlyBuffer bytes
}

type run struct {
	rng Range
	buf []byte // framed
}

const earlyBuffer = 4096

// slot is where first stands in runs, and whether n bytes more go into the
// buffer of the run before.
func (e *early) slot(first Seq, n int) (i int, joins bool) {
	i = len(e.runs)
	if i > e.lo && e.runs[i-1].rng.First > first {
		i, _ = slices.BinarySearchFunc(e.runs[e.lo:], first, func(r run, q Seq) int {
			if r.rng.First < q {
				return -1
			}
			return 1
		})
		i += e.lo
	}
	if i > e.lo {
		p := &e.runs[i-1]
		joins = p.rng.Next == first && cap(p.buf)-len(p.buf) >= n
	}
	return i, joins
}

// fits reports whether there is room for messages of n framed bytes at first.
func (e *early) fits(first Seq, messages, n int) bool {
	if e.most > 0 && e.messages+uint64(messages) > e.most {
		return false
	}
	if _, joins := e.slot(first, n); joins {
		return true
	}
	return e.bytes+max(n, earlyBuffer) <= e.limit
}

// add copies messages that fit.
func (e *early) add(rng Range, msgs Messages) {
	b := msgs.Framed()
	e.messages += rng.Len()
	i, joins := e.slot(rng.First, len(b))
	if joins {
		p := &e.runs[i-1]
		p.buf = append(p.buf, b...)
		p.rng.Next = rng.Next
		return
	}
	var buf []byte
	switch n := len(e.free); {
	case len(b) > earlyBuffer:
		buf = make([]byte, 0, len(b))
	case n > 0:
		buf = e.free[n-1]
		e.free = e.free[:n-1]
	default:
		buf = make([]byte, 0, earlyBuffer)
	}
	buf = append(buf, b...)
	e.bytes += cap(buf)
	if len(e.runs) == cap(e.runs) && e.lo > len(e.runs)/2 {
		n := copy(e.runs, e.runs[e.lo:])
		clear(e.runs[n:])
		e.runs = e.runs[:n]
		i -= e.lo
		e.lo = 0
	}
	e.runs = slices.Insert(e.runs, i, run{rng, buf})
}

// from is the index of the first run that ends beyond seq.
func (e *early) from(seq Seq) int {
	i, _ := slices.BinarySearchFunc(e.runs[e.lo:], seq, func(r run, q Seq) int {
		if r.rng.Next <= q {
			return -1
		}
		return 1
	})
	return e.lo + i
}

// front is the run that begins at seq, if that is the lowest.
func (e *early) front(seq Seq) (run, bool) {
	if e.lo == len(e.runs) || e.runs[e.lo].rng.First != seq {
		return run{}, false
	}
	return e.runs[e.lo], true
}

// drop forgets the lowest run.
func (e *early) drop() {
	p := &e.runs[e.lo]
	e.messages -= p.rng.Len()
	e.bytes -= cap(p.buf)
	if cap(p.buf) == earlyBuffer {
		e.free = append(e.free, p.buf[:0])
	}
	*p = run{}
	e.lo++
	if e.lo == len(e.runs) {
		e.runs, e.lo = e.runs[:0], 0
	}
}

// dropBelow forgets what comes before first, and says how many messages.
func (e *early) dropBelow(first Seq) (n uint64) {
	n = e.messages
	for e.lo < len(e.runs) && e.runs[e.lo].rng.Next <= first {
		e.drop()
	}
	if e.lo < len(e.runs) && e.runs[e.lo].rng.First < first {
		p := &e.runs[e.lo]
		k := int(first - p.rng.First)
		_, rest := MessagesOf(p.buf, int(p.rng.Len())).Split(k)
		p.buf = append(p.buf[:0], rest.Framed()...)
		p.rng.First = first
		e.messages -= uint64(k)
	}
	return n - e.messages
}

// clear forgets everything.
func (e *early) clear() {
	for e.lo < len(e.runs) {
		e.drop()
	}
}
