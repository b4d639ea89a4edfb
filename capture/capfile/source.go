package capfile

import (
	"bufio"
	"encoding/binary"
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
	r          io.Reader
	buf        []byte
	at, end    int   // of buf, what is not passed yet
	pos        int64 // of buf[at]
	err        error // that r gave, told once what is in buf does not do
	compressed bool
}

func newSource(r io.Reader, compressed bool) source {
	return source{r: r, buf: make([]byte, bufferSize), compressed: compressed}
}

// peek gives the next n bytes, n <= bufferSize; they stay valid until the next
// peek. Fewer come with io.EOF at the end of the file, and with another error
// where reading failed.
func (s *source) peek(n int) ([]byte, error) {
	if s.end-s.at < n {
		return s.fill(n)
	}
	return s.buf[s.at : s.at+n], nil
}

// fill is peek where the buffer does not hold that much.
func (s *source) fill(n int) ([]byte, error) {
	s.end = copy(s.buf, s.buf[s.at:s.end])
	s.at = 0
	for empty := 0; s.end < n && s.err == nil; {
		k, err := s.r.Read(s.buf[s.end:])
		s.end += k
		s.err = err
		if empty++; k > 0 {
			empty = 0
		} else if empty == maxEmpty && err == nil {
			s.err = io.ErrNoProgress
		}
	}
	if s.end >= n {
		return s.buf[:n], nil
	}
	return s.buf[:s.end], s.fault(s.end)
}

// maxEmpty is how often a reader may give neither bytes nor an error.
const maxEmpty = 100

// fault is the error of reading, n bytes from pos on.
func (s *source) fault(n int) error {
	if s.err != io.EOF && s.compressed {
		return &FormatError{Pos: s.pos + int64(n), Err: ErrCompressed, Detail: s.err.Error()}
	}
	return s.err
}

// pass passes n bytes that peek gave.
func (s *source) pass(n int) {
	s.at += n
	s.pos += int64(n)
}

// skip passes n bytes that need not be in the buffer.
func (s *source) skip(n int64) (int64, error) {
	for done := int64(0); ; {
		k := int(min(n-done, int64(s.end-s.at)))
		s.pass(k)
		if done += int64(k); done == n {
			return done, nil
		}
		if b, err := s.fill(1); len(b) == 0 {
			return done, err
		}
	}
}

// order is the byte order of a file.
type order bool

const (
	little order = false
	big    order = true
)

func (o order) u16(b []byte) uint16 {
	if o == little {
		return binary.LittleEndian.Uint16(b)
	}
	return binary.BigEndian.Uint16(b)
}

func (o order) u32(b []byte) uint32 {
	if o == little {
		return binary.LittleEndian.Uint32(b)
	}
	return binary.BigEndian.Uint32(b)
}

func (o order) u64(b []byte) uint64 {
	if o == little {
		return binary.LittleEndian.Uint64(b)
	}
	return binary.BigEndian.Uint64(b)
}
