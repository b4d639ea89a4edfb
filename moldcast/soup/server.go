package soup

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// Server is the sending end of one connection. It knows when to send what,
// but not the messages: the owner appends those with AppendData, in order, to
// what it sends, and tells by Sent. It hands what arrives to Receive, sends
// what Output gives between its messages, and calls Poll at Deadline. Once
// Closing, or after an error, what is to be sent still is, and then the
// connection is closed.
type Server struct {
	in    decoder
	out   []byte
	state serverState
	next  moldcast.Seq

	opened, heard, sent moldcast.Instant
	silence             time.Duration
}

type serverState uint8

const (
	waiting serverState = iota // for a login
	asked                      // for Accept or Reject
	serving
	closing
)

// The bounds of the silence that a 4.1 login may ask for: a client beats once
// a second.
const minSilence = 2 * time.Second

// keepOut bounds what is kept of Output.
const keepOut = 4096

// NewServer begins a connection.
func NewServer(now moldcast.Instant) *Server {
	return &Server{in: decoder{keep: loginSize + timeoutSize}, opened: now, heard: now, sent: now, silence: Silence}
}

// Receive takes bytes off b, which arrived at now, and says how many; it is
// called again with the rest. login is set when one came: Accept or Reject
// answers it. Errors wrap ErrProtocol. After a logout the Server is Closing.
func (s *Server) Receive(now moldcast.Instant, b []byte) (n int, login *Login, err error) {
	if len(b) > 0 {
		s.heard = max(s.heard, now)
	}
	for n < len(b) && login == nil && err == nil {
		f, k, ok, e := s.in.next(b[n:])
		n += k
		switch {
		case e != nil:
			err = e
		case ok:
			login, err = s.frame(f)
		}
	}
	return n, login, err
}

func (s *Server) frame(f frame) (*Login, error) {
	switch f.typ {
	case typeDebug:
		return nil, nil
	case typeClientBeat, typeLogout:
		if f.size != 0 {
			return nil, ErrFrameSize
		}
		if f.typ == typeLogout {
			s.state = closing
		}
		return nil, nil
	case typeUnsequenced:
		if s.state != waiting {
			return nil, nil
		}
	case typeLogin:
		if s.state != waiting {
			break
		}
		l, err := parseLogin(f)
		if err != nil {
			return nil, err
		}
		s.state = asked
		if l.Timeout > 0 {
			s.silence = max(minSilence, time.Duration(l.Timeout)*time.Millisecond)
		}
		return &l, nil
	}
	return nil, ErrType
}

// Accept answers the login: the first message to be sent is that at first.
func (s *Server) Accept(session moldcast.Session, first moldcast.Seq) {
	if s.state != asked {
		return
	}
	s.state, s.next = serving, first
	var p [acceptedSize]byte
	copy(p[:], session[:])
	appendNumber(p[:10], uint64(first), seqSize)
	s.out = appendFrame(s.out, typeAccepted, string(p[:]))
}

// Reject answers the login, or refuses a connection before it has come.
func (s *Server) Reject(c Code) { s.close(typeRejected, string([]byte{byte(c)})) }

// End says that the session has ended, and that all of it was sent.
func (s *Server) End() { s.close(typeEnd, "") }

// Hole says that r, which begins at Next and is not empty, is not held.
func (s *Server) Hole(r moldcast.Range) { s.close(typeDebug, rangeText(holeWord, r)) }

// Gap says that r, which begins at Next and is not empty, is not held as yet.
func (s *Server) Gap(r moldcast.Range) {
	if s.state == serving {
		s.out = appendFrame(s.out, typeDebug, rangeText(gapWord, r))
	}
}

// Say is a debug packet, which tells a person how things are; of more than 1024
// bytes the rest is dropped.
func (s *Server) Say(text string) {
	if s.state == asked || s.state == serving {
		s.out = appendFrame(s.out, typeDebug, text[:min(len(text), maxDebug)])
	}
}

// Snapshot appends a packet of a snapshot: to who asked for one, after Accept
// and before any message.
func (s *Server) Snapshot(p SnapshotPacket) {
	if s.state == serving {
		s.out = AppendSnapshot(s.out, p)
	}
}

// Refuse says why the connection is closed; of more than 1024 bytes the rest
// is dropped.
func (s *Server) Refuse(why string) { s.close(typeDebug, why[:min(len(why), maxDebug)]) }

func (s *Server) close(typ byte, payload string) {
	if s.state != closing {
		s.state = closing
		s.out = appendFrame(s.out, typ, payload)
	}
}

// Closing reports that nothing but the rest of Output is to be sent.
func (s *Server) Closing() bool { return s.state == closing }

// Serving reports that messages are to be sent.
func (s *Server) Serving() bool { return s.state == serving }

// Pending reports that Output is not empty.
func (s *Server) Pending() bool { return len(s.out) > 0 }

// Next is the sequence of the next message.
func (s *Server) Next() moldcast.Seq { return s.next }

// Sent says that n messages are on their way.
func (s *Server) Sent(now moldcast.Instant, n int) {
	s.next += moldcast.Seq(n)
	s.sent = max(s.sent, now)
}

// Output is what is to be sent besides messages, and is taken to be sent now.
// It is valid until the next call.
func (s *Server) Output(now moldcast.Instant) []byte {
	out := s.out
	if s.out = s.out[:0]; cap(s.out) > keepOut {
		s.out = nil // of a snapshot
	}
	if len(out) > 0 {
		s.sent = max(s.sent, now)
	}
	return out
}

// Poll does what is due. Errors: ErrNoLogin, ErrSilent.
func (s *Server) Poll(now moldcast.Instant) error {
	switch {
	case s.state == waiting && now >= at(s.opened, LoginTimeout):
		return ErrNoLogin
	case s.state == serving && now >= at(s.heard, s.silence):
		return ErrSilent
	case s.state == serving && len(s.out) == 0 && now >= at(s.sent, Beat):
		s.out = appendFrame(s.out, typeBeat, "")
	}
	return nil
}

// Deadline is when Poll has something to do.
func (s *Server) Deadline() moldcast.Instant {
	switch s.state {
	case waiting:
		return at(s.opened, LoginTimeout)
	case serving:
		d := at(s.heard, s.silence)
		if len(s.out) == 0 {
			d = min(d, at(s.sent, Beat))
		}
		return d
	}
	return gap.Never
}
