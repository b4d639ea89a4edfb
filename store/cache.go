package store

import (
	"container/list"
	"sync"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// blockCache keeps decoded blocks for View.Append, up to a number of bytes,
// the least recently used going first. Blocks in it never change; one that is
// dropped stays valid for who has it.
type blockCache struct {
	max int64

	mu      sync.Mutex
	size    int64
	entries map[blockKey]*cached
	lru     list.List // of *cached, most recently used first
	loading map[blockKey]*loading
	decs    []*block.Decoder
}

type blockKey struct {
	seg   *segment
	first moldcast.Seq
}

type cached struct {
	key  blockKey
	b    *block.Block
	elem *list.Element
}

// loading is a read that several wait for.
type loading struct {
	done chan struct{}
	b    *block.Block
	err  error
}

func newBlockCache(size int64) *blockCache {
	return &blockCache{max: size, entries: map[blockKey]*cached{}, loading: map[blockKey]*loading{}}
}

// get is the block when it is in memory, else nil.
func (c *blockCache) get(k blockKey) *block.Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		return nil
	}
	c.lru.MoveToFront(e.elem)
	return e.b
}

// load is the block, read from disk when it is not in memory; who asks for
// the same one meanwhile waits for the one read.
func (c *blockCache) load(t *table, k blockKey) (*block.Block, error) {
	c.mu.Lock()
	if e := c.entries[k]; e != nil {
		c.lru.MoveToFront(e.elem)
		c.mu.Unlock()
		return e.b, nil
	}
	if l := c.loading[k]; l != nil {
		c.mu.Unlock()
		<-l.done
		return l.b, l.err
	}
	l := &loading{done: make(chan struct{})}
	c.loading[k] = l
	dec, err := c.decoder()
	c.mu.Unlock()

	if err == nil {
		b := new(block.Block)
		if err = k.seg.decode(t, k.first, dec, b); err == nil {
			l.b = b
		}
	}
	l.err = err

	c.mu.Lock()
	if dec != nil {
		c.decs = append(c.decs, dec)
	}
	delete(c.loading, k)
	if l.b != nil {
		e := &cached{key: k, b: l.b}
		e.elem = c.lru.PushFront(e)
		c.entries[k] = e
		c.size += int64(l.b.Size())
		for c.size > c.max && c.lru.Len() > 1 {
			old := c.lru.Back().Value.(*cached)
			c.lru.Remove(old.elem)
			delete(c.entries, old.key)
			c.size -= int64(old.b.Size())
		}
	}
	c.mu.Unlock()
	close(l.done)
	return l.b, l.err
}

// decoder is one that nobody uses. As many are kept as ever read at a time.
// REQUIRES: mu.
func (c *blockCache) decoder() (*block.Decoder, error) {
	if n := len(c.decs); n > 0 {
		d := c.decs[n-1]
		c.decs = c.decs[:n-1]
		return d, nil
	}
	return block.NewDecoder(block.DecoderOptions{})
}

// forget drops the blocks of g.
func (c *blockCache) forget(g *segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range c.entries {
		if k.seg == g {
			c.lru.Remove(e.elem)
			delete(c.entries, k)
			c.size -= int64(e.b.Size())
		}
	}
}
