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
	"strings"
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

// BOM is the byte order mark that some programs put at the start of UTF-8.
const BOM = "\xef\xbb\xbf"

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
	ErrTimeZero    = errors.New("time 1970-01-01T00:00:00Z cannot be kept, it means that there is none: leave it out, or give another")
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
	Seq   json.RawMessage `json:"seq"`
	Time  json.RawMessage `json:"time"`
	Heard json.RawMessage `json:"heard"`
	Line  json.RawMessage `json:"line"`
	Flags json.RawMessage `json:"flags"`
	Data  json.RawMessage `json:"data"`
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
		if at == 0 {
			b = bytes.TrimPrefix(b, []byte(BOM))
		}
		text := bytes.TrimSpace(b)
		if len(text) == 0 {
			continue
		}
		if m, ok := fast(text); ok {
			return m, nil
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

func parse(b []byte) (m Message, err error) {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return Message{}, notJSON(err)
	}
	if given(w.Seq) {
		n, err := strconv.ParseUint(string(w.Seq), 10, 64)
		if err != nil {
			return Message{}, wrong("seq", w.Seq, "a whole number, 1 to 18446744073709551614")
		}
		m.Seq = moldcast.Seq(n)
	}
	if given(w.Line) {
		n, err := strconv.ParseUint(string(w.Line), 10, 8)
		if err != nil {
			return Message{}, wrong("line", w.Line, "a whole number, 0 to 255")
		}
		m.Line = uint8(n)
	}
	if !given(w.Data) {
		return Message{}, ErrNoData
	}
	var text string
	if err := json.Unmarshal(w.Data, &text); err != nil {
		return Message{}, wrong("data", w.Data, "a string of base64")
	}
	if m.Data, err = base64.StdEncoding.AppendDecode([]byte{}, []byte(text)); err != nil {
		return Message{}, wrong("data", w.Data, "standard base64, with its padding")
	}
	if m.Time, err = stamp("time", w.Time); err != nil {
		return Message{}, err
	}
	m.Heard = m.Time
	if len(w.Heard) > 0 {
		if m.Heard, err = stamp("heard", w.Heard); err != nil {
			return Message{}, err
		}
	}
	if given(w.Flags) {
		var names []string
		if err := json.Unmarshal(w.Flags, &names); err != nil {
			return Message{}, wrong("flags", w.Flags, `a list of "repaired" and "more"`)
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

// given: a member that is there, and not null.
func given(v json.RawMessage) bool { return len(v) > 0 && string(v) != "null" }

func wrong(member string, v json.RawMessage, want string) error {
	const most = 40
	text := string(v)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return fmt.Errorf("%s is %s: want %s", member, text, want)
}

// notJSON says in a file's words what is wrong with a line.
func notJSON(err error) error {
	var s *json.SyntaxError
	if errors.As(err, &s) {
		return fmt.Errorf("no JSON object: at its byte %d: %s", s.Offset, s.Error())
	}
	return errors.New("no JSON object: a line is {\"seq\":…,\"data\":…}")
}

func stamp(member string, v json.RawMessage) (moldcast.Stamp, error) {
	if !given(v) {
		return 0, nil
	}
	var text string
	err := json.Unmarshal(v, &text)
	var t time.Time
	if err == nil {
		t, err = time.Parse(time.RFC3339Nano, text)
	}
	if err != nil {
		return 0, wrong(member, v, "RFC 3339, like 2016-09-13T20:50:31.523595Z")
	}
	if y := t.Year(); y <= 1678 || y >= 2262 {
		return 0, ErrTime
	}
	s := moldcast.StampOf(t)
	if s == 0 {
		return 0, ErrTimeZero
	}
	return s, nil
}
