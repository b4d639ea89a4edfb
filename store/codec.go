package store

import (
	"fmt"

	"github.com/moldtape/moldtape/store/block"
)

// Codec is in which form blocks are stored. Every Archive reads all of them.
type Codec uint8

// The codecs of Options.
const (
	CodecRow   Codec = iota // rows, compressed; fast while blocks wait
	CodecAuto               // dense; planes while blocks wait or others want the processor, to be made dense when their segment is sealed
	CodecDense              // dense, whatever waits
	CodecFast               // planes
)

var codecNames = [...]string{CodecRow: "row", CodecAuto: "auto", CodecDense: "dense", CodecFast: "fast"}

func (c Codec) String() string {
	if int(c) < len(codecNames) {
		return codecNames[c]
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// ParseCodec is the codec of a name: auto, dense, fast or row.
func ParseCodec(name string) (Codec, error) {
	for c, n := range codecNames {
		if n == name {
			return Codec(c), nil
		}
	}
	return 0, fmt.Errorf("%q is none of auto, dense, fast, row", name)
}

// level is how blocks are compressed behind which so many wait.
func (c Codec) level(waiting int) block.Level {
	switch {
	case c == CodecDense:
		return block.Dense
	case waiting >= rush && c != CodecRow:
		return block.Hasty
	case c == CodecFast, waiting >= hurry && c == CodecAuto:
		return block.Planes
	case c == CodecAuto:
		return block.Dense
	case waiting >= hurry:
		return block.Fastest
	}
	return block.Default
}

// hasty reports whether blocks of a codec are to be made dense when their
// segment is sealed: those of before anything was learned too.
func (c Codec) hasty(of block.Codec) bool {
	return (c == CodecAuto || c == CodecDense) && (of == block.PlanesZstd || of == block.PlanesS2)
}
