package gap

// heap orders small ids by a key, smallest first, ties by insertion being
// arbitrary. pos, shared by heaps of which an id is in one at most, says where
// an id stands, so that any id can be taken out in O(log n).
type heap struct {
	items []heapItem
	pos   *[]int32
}

type heapItem struct {
	key uint64
	id  uint32
}

// at is t as a key.
func at(t Instant) uint64 { return uint64(t) ^ 1<<63 }

// when is at's inverse.
func when(key uint64) Instant { return Instant(key ^ 1<<63) }

func (h *heap) len() int { return len(h.items) }

func (h *heap) key(id uint32) uint64 { return h.items[(*h.pos)[id]].key }

func (h *heap) push(id uint32, key uint64) {
	for len(*h.pos) <= int(id) {
		*h.pos = append(*h.pos, 0)
	}
	h.items = append(h.items, heapItem{key, id})
	h.up(len(h.items) - 1)
}

func (h *heap) remove(id uint32) {
	i := int((*h.pos)[id])
	n := len(h.items) - 1
	last := h.items[n]
	h.items = h.items[:n]
	if i == n {
		return
	}
	h.items[i] = last
	(*h.pos)[last.id] = int32(i)
	h.fix(i)
}

// change gives id another key.
func (h *heap) change(id uint32, key uint64) {
	i := int((*h.pos)[id])
	h.items[i].key = key
	h.fix(i)
}

func (h *heap) fix(i int) {
	if !h.up(i) {
		h.down(i)
	}
}

func (h *heap) up(i int) bool {
	it, start := h.items[i], i
	for i > 0 {
		p := (i - 1) / 2
		if h.items[p].key <= it.key {
			break
		}
		h.items[i] = h.items[p]
		(*h.pos)[h.items[i].id] = int32(i)
		i = p
	}
	h.items[i] = it
	(*h.pos)[it.id] = int32(i)
	return i != start
}

func (h *heap) down(i int) {
	it := h.items[i]
	for {
		c := 2*i + 1
		if c >= len(h.items) {
			break
		}
		if c+1 < len(h.items) && h.items[c+1].key < h.items[c].key {
			c++
		}
		if it.key <= h.items[c].key {
			break
		}
		h.items[i] = h.items[c]
		(*h.pos)[h.items[i].id] = int32(i)
		i = c
	}
	h.items[i] = it
	(*h.pos)[it.id] = int32(i)
}
