package store

import "github.com/moldtape/moldtape/store/block"

// hurry is how many blocks wait when the next is compressed fast rather than
// well: the writer is behind, and what it never catches up with is lost.
const hurry = 4

// encoders are those of a worker.
type encoders struct {
	size        int
	usual, fast *block.Encoder // fast is made when it is needed first
}

func newEncoders(blockSize int) (e encoders, err error) {
	e.size = blockSize
	e.usual, err = block.NewEncoder(block.EncoderOptions{BlockSize: blockSize})
	return e, err
}

// pick is the encoder for a block behind which so many wait.
func (e *encoders) pick(waiting int) *block.Encoder {
	if waiting < hurry {
		return e.usual
	}
	if e.fast == nil {
		fast, err := block.NewEncoder(block.EncoderOptions{BlockSize: e.size, Level: block.Fastest})
		if err != nil {
			return e.usual
		}
		e.fast = fast
	}
	return e.fast
}
