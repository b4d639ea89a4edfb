package moldcast

import (
	"errors"
	"fmt"
)

// SessionSize is the length of a session name on the wire.
const SessionSize = 10

// Session is the 10-byte wire identity of a sequence space (MoldUDP64 1.00,
// "Session"). It is opaque: always compared whole. Names shorter than ten
// bytes are padded on the right with spaces; one padded with NULs is another
// session.
type Session [SessionSize]byte

// ErrSessionName is returned by ParseSession.
var ErrSessionName = errors.New("session name")

// String is the printed form of s: trailing spaces removed, and every byte
// outside '!'..'~', and '%', '/', '@', as %XX; a name of spaces only prints as
// %20. ParseSession is its inverse. The form is safe as a file name with a
// suffix, and in a URL path.
func (s Session) String() string {
	n := SessionSize
	for n > 0 && s[n-1] == ' ' {
		n--
	}
	if n == 0 {
		return "%20"
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, 3*SessionSize)
	for _, c := range s[:n] {
		if c < '!' || c > '~' || c == '%' || c == '/' || c == '@' {
			b = append(b, '%', hex[c>>4], hex[c&15])
			continue
		}
		b = append(b, c)
	}
	return string(b)
}

// MarshalText is String.
func (s Session) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSession.
func (s *Session) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSession(string(b))
	return err
}

// ParseSession reads the printed form of a session: 1 to 10 bytes, %XX for
// any byte, padded on the right with spaces. It wraps ErrSessionName.
func ParseSession(text string) (Session, error) {
	s := Session{' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '}
	bad := func(why string) (Session, error) {
		return Session{}, fmt.Errorf("%w %q: %s; want 1 to 10 printable characters, other bytes as %%XX", ErrSessionName, text, why)
	}
	n := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' {
			if i+2 >= len(text) {
				return bad("cut escape")
			}
			hi, ok1 := unhex(text[i+1])
			lo, ok2 := unhex(text[i+2])
			if !ok1 || !ok2 {
				return bad("wrong escape " + text[i:i+3])
			}
			c = hi<<4 | lo
			i += 2
		} else if c < '!' || c > '~' || c == '/' || c == '@' {
			return bad(fmt.Sprintf("character %q", rune(c)))
		}
		if n == SessionSize {
			return bad("longer than 10 bytes")
		}
		s[n] = c
		n++
	}
	if n == 0 {
		return bad("empty")
	}
	return s, nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}
