// Package ndjson writes and reads messages as JSON, one object a line:
//
//	{"seq":7,"time":"2016-09-13T20:50:31.523595Z","heard":"…","line":1,"flags":["repaired"],"data":"AAEC"}
//
// heard stands only where it differs from time, line only where it is not 0
// (255 is a retransmission). flags are "repaired" (the message answered a
// request) and "more" (the next message came in the same packet). data is the
// payload in standard base64. A time of null is none. Reading back what was
// written restores all of it.
package ndjson

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Message is one line.
type Message struct {
	Seq   moldcast.Seq // 0: the line named none
	Time  moldcast.Stamp
	Heard moldcast.Stamp
	Line  uint8
	Flags moldcast.PieceFlags
	More  bool // the next message came in the same packet
	Data  []byte
}

// Append appends m as one line.
func Append(dst []byte, m Message) []byte {
	dst = append(dst, `{"seq":`...)
	dst = strconv.AppendUint(dst, uint64(m.Seq), 10)
	dst = append(dst, `,"time":`...)
	dst = appendTime(dst, m.Time)
	if m.Heard != m.Time {
		dst = append(dst, `,"heard":`...)
		dst = appendTime(dst, m.Heard)
	}
	if m.Line != 0 {
		dst = append(dst, `,"line":`...)
		dst = strconv.AppendUint(dst, uint64(m.Line), 10)
	}
	dst = append(dst, `,"flags":[`...)
	if m.Flags&moldcast.Repaired != 0 {
		dst = append(dst, `"repaired"`...)
	}
	if m.More {
		if m.Flags&moldcast.Repaired != 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `"more"`...)
	}
	dst = append(dst, `],"data":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, m.Data)
	return append(dst, "\"}\n"...)
}

func appendTime(dst []byte, s moldcast.Stamp) []byte {
	if s == 0 {
		return append(dst, "null"...)
	}
	dst = append(dst, '"')
	dst = s.Time().AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}

// MaxLine bounds a line: base64 of the longest message, and room.
const MaxLine = 256 << 10

// LineError says where a file is wrong.
type LineError struct {
	Pos  int64 // byte position of the line
	Line int64 // its number, from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("byte %d (line %d): %v", e.Pos, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// What a line can be besides wrong JSON.
var (
	ErrLineTooLong = errors.New("line longer than 256 KiB")
	ErrCut         = errors.New("the file ends inside a line")
	ErrNoData      = errors.New("no data")
	ErrTime        = errors.New("time outside 1678..2262")
)

// Reader reads lines.
type Reader struct {
	br   *bufio.Reader
	pos  int64
	line int64
	err  error
}

// NewReader reads r.
func NewReader(r io.Reader) *Reader { return &Reader{br: bufio.NewReaderSize(r, MaxLine)} }

// Pos is the byte position of the line to come, and its number.
func (r *Reader) Pos() (pos, line int64) { return r.pos, r.line + 1 }

type wire struct {
	Seq   moldcast.Seq    `json:"seq"`
	Time  *time.Time      `json:"time"`
	Heard json.RawMessage `json:"heard"`
	Line  uint8           `json:"line"`
	Flags json.RawMessage `json:"flags"`
	Data  *[]byte         `json:"data"`
}

// Next gives the next message; empty lines are passed. It ends with io.EOF, a
// *LineError or the error of the underlying reader, which then stays.
func (r *Reader) Next() (Message, error) {
	for r.err == nil {
		b, err := r.br.ReadSlice('\n')
		at := r.pos
		r.pos += int64(len(b))
		r.line++
		switch {
		case err == bufio.ErrBufferFull:
			r.err = &LineError{at, r.line, ErrLineTooLong}
			continue
		case err == io.EOF && len(b) == 0:
			r.err = io.EOF
			continue
		case err != nil && err != io.EOF:
			r.err = err
			continue
		}
		text := bytes.TrimSpace(b)
		if len(text) == 0 {
			continue
		}
		m, bad := parse(text)
		if bad != nil {
			if err == io.EOF { // the last line, without its end: cut, not wrong
				bad = fmt.Errorf("%w (%v)", ErrCut, bad)
			}
			r.err = &LineError{at, r.line, bad}
			continue
		}
		return m, nil
	}
	return Message{}, r.err
}

func parse(b []byte) (Message, error) {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return Message{}, err
	}
	m := Message{Seq: w.Seq, Line: w.Line}
	if w.Data == nil {
		return Message{}, ErrNoData
	}
	m.Data = *w.Data
	var err error
	if m.Time, err = stamp(w.Time); err != nil {
		return Message{}, err
	}
	m.Heard = m.Time
	if len(w.Heard) > 0 {
		var t *time.Time
		if err := json.Unmarshal(w.Heard, &t); err != nil {
			return Message{}, fmt.Errorf("heard: %w", err)
		}
		if m.Heard, err = stamp(t); err != nil {
			return Message{}, err
		}
	}
	if len(w.Flags) > 0 {
		var names []string
		if err := json.Unmarshal(w.Flags, &names); err != nil {
			return Message{}, fmt.Errorf("flags: %w", err)
		}
		for _, n := range names {
			switch n {
			case "repaired":
				m.Flags |= moldcast.Repaired
			case "more":
				m.More = true
			default:
				return Message{}, fmt.Errorf("unknown flag %q", n)
			}
		}
	}
	return m, nil
}

func stamp(t *time.Time) (moldcast.Stamp, error) {
	if t == nil {
		return 0, nil
	}
	if y := t.Year(); y <= 1678 || y >= 2262 {
		return 0, ErrTime
	}
	return moldcast.StampOf(*t), nil
}
