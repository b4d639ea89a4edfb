package impair

import "time"

// heap keeps copies of packets and gives them back by rising key; equal keys in
// the order in which they came. Its buffers are used again.
type heap struct {
	held  []held // a binary heap
	came  uint64
	bytes int
	free  [][]byte
}

type held struct {
	key   int64
	came  uint64
	pkt   []byte
	delay time.Duration
}

func (h *heap) len() int   { return len(h.held) }
func (h *heap) min() int64 { return h.held[0].key }

func (h *heap) before(i, j int) bool {
	a, b := &h.held[i], &h.held[j]
	return a.key < b.key || a.key == b.key && a.came < b.came
}

// push takes a copy of pkt.
func (h *heap) push(pkt []byte, key int64, delay time.Duration) {
	var b []byte
	if n := len(h.free); n > 0 {
		b, h.free = h.free[n-1], h.free[:n-1]
	}
	h.came++
	h.bytes += len(pkt)
	h.held = append(h.held, held{key: key, came: h.came, pkt: append(b[:0], pkt...), delay: delay})
	for i := len(h.held) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.before(i, up) {
			break
		}
		h.held[i], h.held[up] = h.held[up], h.held[i]
		i = up
	}
}

// pop gives the first, valid until the next push.
func (h *heap) pop() ([]byte, time.Duration) {
	top := h.held[0]
	h.free = append(h.free, top.pkt)
	h.bytes -= len(top.pkt)
	n := len(h.held) - 1
	h.held[0] = h.held[n]
	h.held[n] = held{}
	h.held = h.held[:n]
	for i := 0; ; {
		first := i
		for k := 2*i + 1; k <= 2*i+2; k++ {
			if k < n && h.before(k, first) {
				first = k
			}
		}
		if first == i {
			return top.pkt, top.delay
		}
		h.held[i], h.held[first] = h.held[first], h.held[i]
		i = first
	}
}
