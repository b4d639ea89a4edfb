package store

import (
	"runtime"
	"sync"

	"github.com/moldtape/moldtape/store/block"
)

// decodeAhead is how many blocks of a segment are read before the oldest of
// them is decoded.
const decodeAhead = 4

// decoding is a block on its way through a decoder.
type decoding struct {
	h    block.Header
	body []byte
	err  error // of reading it, or of decoding
	done chan struct{}
	then func(err error)
}

// decodings are those of one segment: decoded by whoever has time, told of in
// the order in which they were added. They belong to one goroutine.
type decodings struct {
	todo         chan<- *decoding
	queue, spare []*decoding
}

// add reads the body of a block, behind dst, and has it decoded; then is called
// by a later add, or by settle.
func (q *decodings) add(h block.Header, read func(dst []byte) ([]byte, error), then func(err error)) {
	if len(q.queue) == decodeAhead {
		q.oldest()
	}
	d := &decoding{done: make(chan struct{}, 1)}
	if n := len(q.spare); n > 0 {
		d, q.spare = q.spare[n-1], q.spare[:n-1]
	}
	d.h, d.then = h, then
	d.body, d.err = read(d.body[:0])
	q.queue = append(q.queue, d)
	if d.err != nil {
		d.done <- struct{}{}
		return
	}
	q.todo <- d
}

// oldest waits for the oldest, and tells of it.
func (q *decodings) oldest() {
	d := q.queue[0]
	q.queue = append(q.queue[:0], q.queue[1:]...)
	<-d.done
	d.then(d.err)
	d.then = nil
	q.spare = append(q.spare, d)
}

// settle tells of all that were added.
func (q *decodings) settle() {
	for len(q.queue) > 0 {
		q.oldest()
	}
}

// decodeAll starts a decoder for each processor; end waits until they are at an
// end, when nobody adds any more.
func decodeAll() (todo chan<- *decoding, end func()) {
	c := make(chan *decoding)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 8) {
		wg.Go(func() {
			dec, err := block.NewDecoder(block.DecoderOptions{Verify: true})
			if err == nil {
				defer dec.Close()
			}
			var b block.Block
			for d := range c {
				if d.err = err; err == nil {
					d.err = dec.Decode(d.h, d.body, &b)
				}
				d.done <- struct{}{}
			}
		})
	}
	return c, func() {
		close(c)
		wg.Wait()
	}
}
