package soup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/moldtape/moldtape/moldcast"
)

// The types of a frame.
const (
	typeAccepted    = 'A'
	typeRejected    = 'J'
	typeSequenced   = 'S'
	typeBeat        = 'H' // of the server
	typeEnd         = 'Z'
	typeDebug       = '+'
	typeLogin       = 'L'
	typeClientBeat  = 'R'
	typeLogout      = 'O'
	typeUnsequenced = 'U'
)

// Sizes.
const (
	// HeaderSize is that of length and type.
	HeaderSize = 3
	// MaxMessage is the longest message that a frame can carry.
	MaxMessage = 0xFFFF - 1

	loginSize    = 6 + 10 + 10 + 20 // payload of a login; 4.1 adds timeoutSize
	timeoutSize  = 5
	acceptedSize = 10 + 20
	seqSize      = 20
	maxDebug     = 1024 // of a debug text, bytes kept
)

// What the other end may do wrong. ErrProtocol is wrapped by all but
// ErrSilent.
var (
	ErrProtocol   = errors.New("soup: not the protocol")
	ErrSilent     = errors.New("soup: the other end is silent")
	ErrNoLogin    = fmt.Errorf("%w: no login in time", ErrProtocol)
	ErrEmptyFrame = fmt.Errorf("%w: frame without a type", ErrProtocol)
	ErrType       = fmt.Errorf("%w: frame of an unknown type, or out of turn", ErrProtocol)
	ErrFrameSize  = fmt.Errorf("%w: frame of a wrong size", ErrProtocol)
	ErrNumber     = fmt.Errorf("%w: no number", ErrProtocol)
	ErrSession    = fmt.Errorf("%w: another session than asked for", ErrProtocol)
	ErrSequence   = fmt.Errorf("%w: sequence 0, beyond 2^64-2, or not the next", ErrProtocol)
)

// Code is why a login is rejected.
type Code byte

// The codes of the protocol.
const (
	NotAuthorised       Code = 'A'
	SessionNotAvailable Code = 'S'
)

func (c Code) String() string {
	switch c {
	case NotAuthorised:
		return "not authorised"
	case SessionNotAvailable:
		return "session not available"
	}
	return fmt.Sprintf("code %q", byte(c))
}

// RejectedError is the end of a login.
type RejectedError struct{ Code Code }

func (e *RejectedError) Error() string { return "soup: login rejected: " + e.Code.String() }

// Blank is the session name that stands for the current one.
var Blank = moldcast.Session([]byte("          "))

// frame is one unit of the stream. The payload aliases what it was read from,
// and is cut at the decoder's bound; size is its true length.
type frame struct {
	typ     byte
	payload []byte
	size    int
}

// decoder cuts a stream into frames, however it arrives, and keeps at most
// HeaderSize + keep bytes.
type decoder struct {
	keep int
	buf  []byte // of a frame that is not whole
	skip int    // bytes of a frame beyond keep that are still to come
}

// next takes bytes off b until a frame is whole, and says how many; not ok:
// all of b, and none is.
func (d *decoder) next(b []byte) (f frame, n int, ok bool, err error) {
	if len(d.buf) == 0 && len(b) >= HeaderSize {
		size := int(binary.BigEndian.Uint16(b))
		if size == 0 {
			return frame{}, 0, false, ErrEmptyFrame
		}
		if len(b) >= 2+size {
			payload := b[HeaderSize : 2+size : 2+size]
			return frame{b[2], payload[:min(len(payload), d.keep)], size - 1}, 2 + size, true, nil
		}
	}
	for {
		if len(d.buf) >= 2 && binary.BigEndian.Uint16(d.buf) == 0 {
			return frame{}, n, false, ErrEmptyFrame
		}
		want := HeaderSize - len(d.buf)
		if want <= 0 {
			payload := int(binary.BigEndian.Uint16(d.buf)) - 1
			want = min(payload, d.keep) - (len(d.buf) - HeaderSize)
			if want == 0 {
				return d.whole(b, n, payload)
			}
		}
		k := min(want, len(b)-n)
		if k == 0 {
			return frame{}, n, false, nil
		}
		d.buf = append(d.buf, b[n:n+k]...)
		n += k
		if len(d.buf) == HeaderSize {
			d.skip = max(0, int(binary.BigEndian.Uint16(d.buf))-1-d.keep)
		}
	}
}

// whole ends a frame of which all that is kept is in buf.
func (d *decoder) whole(b []byte, n, payload int) (frame, int, bool, error) {
	k := min(d.skip, len(b)-n)
	d.skip -= k
	n += k
	if d.skip > 0 {
		return frame{}, n, false, nil
	}
	f := frame{d.buf[2], d.buf[HeaderSize:], payload}
	d.buf = d.buf[:0] // its bytes stay until the next call
	return f, n, true, nil
}

func appendFrame(dst []byte, typ byte, payload string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(1+len(payload)))
	dst = append(dst, typ)
	return append(dst, payload...)
}

// AppendData appends messages as frames of sequenced data, and says how many:
// all, but for one longer than MaxMessage, before which it ends.
func AppendData(dst []byte, msgs moldcast.Messages) ([]byte, int) {
	n := 0
	for msgs.Len() > 0 {
		m := msgs.Next()
		if len(m) > MaxMessage {
			break
		}
		dst = binary.BigEndian.AppendUint16(dst, uint16(1+len(m)))
		dst = append(dst, typeSequenced)
		dst = append(dst, m...)
		n++
	}
	return dst, n
}

// appendNumber appends v in ASCII, padded on the left with spaces.
func appendNumber(dst []byte, v uint64, width int) []byte {
	var room [seqSize]byte
	s := strconv.AppendUint(room[:0], v, 10)
	for i := len(s); i < width; i++ {
		dst = append(dst, ' ')
	}
	return append(dst, s...)
}

// parseNumber reads ASCII digits, padded with spaces on either side, as some
// clients do; blank reads as 0 where that is allowed.
func parseNumber(b []byte, blank bool) (uint64, error) {
	b = bytes.Trim(b, " ")
	if len(b) == 0 && blank {
		return 0, nil
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, ErrNumber
		}
	}
	v, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return 0, ErrNumber
	}
	return v, nil
}

// Login is what a client asks for.
type Login struct {
	User     string           // at most 6 bytes, without the padding
	Password string           // at most 10
	Session  moldcast.Session // Blank: the current one
	Seq      moldcast.Seq     // 0: the most recent; 1: the start

	// Timeout is the heartbeat timeout of a 4.1 login in ms, 0..99999; 0 sends
	// a 3.0 login.
	Timeout int
}

// Validate reports what does not fit the fields of a login.
func (l *Login) Validate() error {
	switch {
	case len(l.User) > 6:
		return fmt.Errorf("soup: user %q: want at most 6 bytes", l.User)
	case len(l.Password) > 10:
		return errors.New("soup: password: want at most 10 bytes")
	case l.Timeout < 0 || l.Timeout > 99999:
		return fmt.Errorf("soup: heartbeat timeout %d ms: want 0..99999", l.Timeout)
	}
	return nil
}

func appendLogin(dst []byte, l Login) []byte {
	size := loginSize
	if l.Timeout > 0 {
		size += timeoutSize
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(1+size))
	dst = append(dst, typeLogin)
	dst = fmt.Appendf(dst, "%-6s%-10s", l.User, l.Password)
	dst = append(dst, l.Session[:]...)
	dst = appendNumber(dst, uint64(l.Seq), seqSize)
	if l.Timeout > 0 {
		dst = appendNumber(dst, uint64(l.Timeout), timeoutSize)
	}
	return dst
}

func parseLogin(f frame) (l Login, err error) {
	if f.size != loginSize && f.size != loginSize+timeoutSize {
		return l, ErrFrameSize
	}
	b := f.payload
	l.User = string(bytes.TrimRight(b[:6], " "))
	l.Password = string(bytes.TrimRight(b[6:16], " "))
	copy(l.Session[:], b[16:26])
	seq, err := parseNumber(b[26:46], true)
	if err != nil {
		return l, err
	}
	l.Seq = moldcast.Seq(seq)
	if len(b) > loginSize {
		ms, err := parseNumber(b[loginSize:], true)
		if err != nil {
			return l, err
		}
		l.Timeout = int(ms) // 5 digits
	}
	return l, nil
}

// The debug packets that say what is missing.
const (
	holeWord = "hole " // for good
	gapWord  = "gap "  // as yet
)

// rangeText is the debug text of a range that is not empty.
func rangeText(word string, r moldcast.Range) string {
	return fmt.Sprintf("%s%d..%d", word, r.First, r.Next-1)
}

// parseRange reads it.
func parseRange(word string, text []byte) (r moldcast.Range, ok bool) {
	text, ok = bytes.CutPrefix(text, []byte(word))
	if !ok {
		return r, false
	}
	from, to, ok := bytes.Cut(text, []byte(".."))
	if !ok || len(from) == 0 || len(to) == 0 {
		return r, false
	}
	a, err1 := strconv.ParseUint(string(from), 10, 64)
	b, err2 := strconv.ParseUint(string(to), 10, 64)
	if err1 != nil || err2 != nil || a == 0 || b < a || b == ^uint64(0) {
		return r, false
	}
	return moldcast.Range{First: moldcast.Seq(a), Next: moldcast.Seq(b) + 1}, true
}
