// Package binaryfile reads and writes NASDAQ's BinaryFILE framing: each
// message behind its length, a big-endian u16; a length of zero ends the file.
//
//	{ length u16, payload }…  [ 00 00 ]
//
// Whole days as NASDAQ publishes them end with the zero, excerpts just end.
// Both are read; the Writer writes none, so that an excerpt comes out as it
// went in. A message of length zero cannot be carried: it would be the end.
package binaryfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxMessage is the longest message of a file.
const MaxMessage = 65535

// What reading and writing can find wrong.
var (
	ErrCut     = errors.New("the file ends inside a message")
	ErrEmpty   = errors.New("BinaryFILE cannot carry an empty message: its zero length means the end; use ndjson")
	ErrTooLong = errors.New("message longer than 65535 bytes")
)

// Error says where a file is wrong. Err is ErrCut or the error of the
// underlying reader.
type Error struct {
	Pos int64 // of the message's length, bytes from the start of the content
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("byte %d: %v", e.Pos, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Reader reads messages. It allocates nothing per message.
type Reader struct {
	br    *bufio.Reader
	pos   int64
	err   error
	ended bool
}

// NewReader reads r.
func NewReader(r io.Reader) *Reader {
	return &Reader{br: bufio.NewReaderSize(r, MaxMessage+2+1)}
}

// Pos is the byte position of the message to come; after the end, of the end.
func (r *Reader) Pos() int64 { return r.pos }

// Ended reports whether the zero length of the end was read.
func (r *Reader) Ended() bool { return r.ended }

// Next is the next message, 1 to 65535 bytes, valid until the next call. It
// ends with io.EOF or an *Error, which then stays.
func (r *Reader) Next() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	h, err := r.br.Peek(2)
	if err != nil {
		return nil, r.fail(len(h), err)
	}
	n := int(binary.BigEndian.Uint16(h))
	if n == 0 {
		_, _ = r.br.Discard(2)
		r.pos += 2
		r.ended = true
		r.err = io.EOF
		return nil, io.EOF
	}
	b, err := r.br.Peek(2 + n)
	if err != nil {
		return nil, r.fail(len(b), err)
	}
	_, _ = r.br.Discard(2 + n) // leaves b as it is until the next Peek
	r.pos += int64(2 + n)
	return b[2 : 2+n : 2+n], nil
}

func (r *Reader) fail(got int, err error) error {
	switch {
	case err == io.EOF && got == 0:
		r.err = io.EOF
	case err == io.EOF:
		r.err = &Error{Pos: r.pos, Err: ErrCut}
	default:
		r.err = &Error{Pos: r.pos, Err: err}
	}
	return r.err
}

// Rest reads to the end of what underlies r and tells how many bytes follow
// the zero length. Not for a pipe, whose end may never come.
func (r *Reader) Rest() (int64, error) { return io.Copy(io.Discard, r.br) }

// Writer writes messages. It buffers: Flush at the end.
type Writer struct{ bw *bufio.Writer }

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{bw: bufio.NewWriterSize(w, 1<<16)} }

// Write writes one message of 1 to 65535 bytes: ErrEmpty, ErrTooLong, or the
// error of the underlying writer.
func (w *Writer) Write(msg []byte) error {
	switch {
	case len(msg) == 0:
		return ErrEmpty
	case len(msg) > MaxMessage:
		return ErrTooLong
	}
	// Not a local array, which would be allocated.
	if err := w.bw.WriteByte(byte(len(msg) >> 8)); err != nil {
		return err
	}
	if err := w.bw.WriteByte(byte(len(msg))); err != nil {
		return err
	}
	_, err := w.bw.Write(msg)
	return err
}

// Flush writes out what is buffered.
func (w *Writer) Flush() error { return w.bw.Flush() }
