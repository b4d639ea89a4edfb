package capfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// bufferSize holds the largest record, so that frames are handed out without
// copying.
const bufferSize = 640 << 10

// Decompress gives the content of r: that of a gzip or zstd file where r
// begins with the magic of one, else r itself. Several members one behind the
// other are read as one. The returned close function frees the decoder; it
// does not close r. Memory is bounded: a zstd window above 128 MiB is refused.
func Decompress(r io.Reader) (out io.Reader, compressed bool, closer func(), err error) {
	br := bufio.NewReaderSize(r, 1<<16)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, nil, err
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, true, nil, fmt.Errorf("%w: %v", ErrCompressed, err)
		}
		return z, true, func() { z.Close() }, nil
	case len(magic) == 4 && magic[0] == 0x28 && magic[1] == 0xb5 && magic[2] == 0x2f && magic[3] == 0xfd:
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, true, nil, fmt.Errorf("%w: %v", ErrCompressed, err)
		}
		return z, true, z.Close, nil
	}
	return br, false, func() {}, nil
}

// source is a buffered file with its byte position.
type source struct {
	br         *bufio.Reader
	pos        int64
	compressed bool
}

// peek gives the next n bytes, n <= bufferSize; they stay valid until the next
// peek. Fewer come with io.EOF at the end of the file, and with another error
// where reading failed.
func (s *source) peek(n int) ([]byte, error) {
	b, err := s.br.Peek(n)
	if err != nil && err != io.EOF {
		if s.compressed {
			err = &FormatError{Pos: s.pos + int64(len(b)), Err: ErrCompressed, Detail: err.Error()}
		}
		return b, err
	}
	return b, err
}

// skip passes n bytes that need not be in the buffer.
func (s *source) skip(n int64) (int64, error) {
	done := int64(0)
	for done < n {
		k, err := s.br.Discard(int(min(n-done, 1<<30)))
		done += int64(k)
		s.pos += int64(k)
		if err != nil {
			if err != io.EOF && s.compressed {
				err = &FormatError{Pos: s.pos, Err: ErrCompressed, Detail: err.Error()}
			}
			return done, err
		}
	}
	return done, nil
}
