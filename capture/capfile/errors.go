package capfile

import (
	"errors"
	"fmt"
)

// What can be wrong with a file. A *FormatError wraps one of them.
var (
	ErrFormat     = errors.New("neither pcap nor pcapng")
	ErrTruncated  = errors.New("the file ends inside a record")
	ErrLength     = errors.New("a length that cannot be")
	ErrTime       = errors.New("a time that cannot be")
	ErrBlock      = errors.New("a block that contradicts itself")
	ErrVersion    = errors.New("unknown format version")
	ErrLinkType   = errors.New("unsupported link type")
	ErrCompressed = errors.New("the compressed data is damaged")
	errInternal   = errors.New("the record could not be decoded")
)

// FormatError says where a file stops being readable. All that stands before
// Pos was yielded.
type FormatError struct {
	Pos    int64  // byte position of the record at fault, in the uncompressed file
	Frame  int64  // number of the frame at fault, from 1 as Wireshark counts; 0 outside frames
	Err    error  // one of the sentinels of this package
	Detail string // what was found there
}

func (e *FormatError) Error() string {
	s := fmt.Sprintf("byte %d", e.Pos)
	if e.Frame > 0 {
		s += fmt.Sprintf(" (frame %d)", e.Frame)
	}
	s += ": " + e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *FormatError) Unwrap() error { return e.Err }
