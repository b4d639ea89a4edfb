package store

import (
	"runtime"
	"sync"

	"github.com/moldtape/moldtape/store/block"
)

// tools are what blocks are compressed by. They are large, and of no
// recording: a few go around among all workers and merges of an archive.
type tools struct {
	size    int
	by      map[block.Level]*block.Encoder // those that were needed
	check   *block.Decoder                 // nil until it is needed
	checked *block.Block
	made    []byte // a block as it is compressed, before it is kept
}

// at is the encoder of a level.
func (t *tools) at(l block.Level) (*block.Encoder, error) {
	if enc := t.by[l]; enc != nil {
		return enc, nil
	}
	enc, err := block.NewEncoder(block.EncoderOptions{BlockSize: t.size, Level: l})
	if err == nil {
		t.by[l] = enc
	}
	return enc, err
}

// decoder is the one that compares hashes.
func (t *tools) decoder() (*block.Decoder, error) {
	if t.check == nil {
		check, err := block.NewDecoder(block.DecoderOptions{Verify: true})
		if err != nil {
			return nil, err
		}
		t.check = check
	}
	return t.check, nil
}

// toolbox lends tools: as many as the system has processors, so that more would
// only wait for those. What was used last is lent first.
type toolbox struct {
	size  int // of blocks
	turns chan struct{}

	mu   sync.Mutex
	free []*tools
}

func newToolbox(blockSize int) *toolbox {
	return &toolbox{size: min(blockSize, block.MaxTarget), turns: make(chan struct{}, runtime.NumCPU())}
}

// take waits for tools, which are to be given back soon: without waiting for a
// disk, or for other tools.
func (b *toolbox) take() *tools {
	b.turns <- struct{}{}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.free); n > 0 {
		t := b.free[n-1]
		b.free = b.free[:n-1]
		return t
	}
	return &tools{size: b.size, by: map[block.Level]*block.Encoder{}, checked: new(block.Block)}
}

func (b *toolbox) give(t *tools) {
	b.mu.Lock()
	b.free = append(b.free, t)
	b.mu.Unlock()
	<-b.turns
}

// close frees what is not lent.
func (b *toolbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.free {
		if t.check != nil {
			t.check.Close()
		}
	}
	b.free = nil
}
